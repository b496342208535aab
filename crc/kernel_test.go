package crc

import (
	"math/rand/v2"
	"testing"
)

func TestKernels(t *testing.T) {
	defer use(use(kernelGeneric))
	rnd := rand.New(rand.NewPCG(9, 10))
	for _, k := range kernels() {
		for n := 0; n < 4000; n++ {
			p := make([]byte, n)
			for i := range p {
				p[i] = byte(rnd.Uint32())
			}
			if n > 6 {
				switch n % 3 {
				case 0:
					p[0] = 0x45
				case 1:
					p[0] = 0x60
					p[6] = 0x1b
				case 2:
					p[0] = 0x60
					p[6] = 17
				}
			}
			use(kernelGeneric)
			r := rnd.Uint32()
			wantSum, wantUpdate := sum(p), update(r, p)
			use(k)
			if got := sum(p); got != wantSum {
				t.Fatalf("%s: sum of %d: %08x, want %08x", kernelNames[k], n, got, wantSum)
			}
			if got := update(r, p); got != wantUpdate {
				t.Fatalf("%s: update by %d: %08x, want %08x", kernelNames[k], n, got, wantUpdate)
			}
			a, b := rnd.Uint32(), rnd.Uint32()
			if got, want := mulmod(a, b), mulmodGeneric(a, b); got != want {
				t.Fatalf("%s: %08x * %08x = %08x, want %08x", kernelNames[k], a, b, got, want)
			}
		}
	}
}
