package crc_test

import (
	"bytes"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"

	"github.com/roce-go/roce/crc"
)

const maxLen = 9216

// prefixes returns refSum of p[:n] for every n, from one pass of the bitwise
// reference. Below seven bytes the form is not settled.
func prefixes(p []byte) []uint32 {
	m := refMasked(p)
	r, want := ^uint32(0), make([]uint32, len(p)+1)
	for i, b := range m {
		if i >= 8 {
			want[i-8] = ^r
		}
		r = refByte(r, b)
	}
	want[len(p)] = ^r
	for n := range min(7, len(p)) {
		want[n] = refSum(p[:n])
	}
	return want
}

// patterns are messages that provoke different mistakes: in constant ones and
// sparse ones a lost or doubled block may not show, or nothing else does.
func patterns(rnd *rand.Rand) map[string][]byte {
	sparse := make([]byte, maxLen)
	for i := 0; i < maxLen; i += 1 + rnd.IntN(200) {
		sparse[i] = 1 << rnd.IntN(8)
	}
	return map[string][]byte{
		"random": random(rnd, maxLen),
		"zeros":  make([]byte, maxLen),
		"ones":   bytes.Repeat([]byte{0xff}, maxLen),
		"sparse": sparse,
	}
}

// stride thins out the long tests: alignments 0, s, 2s ...; 1 for a full run.
func stride(t *testing.T) int {
	switch {
	case os.Getenv("CRC_FULL") != "":
		return 1
	case testing.Short():
		return 31
	}
	return 7
}

// Every length from 0 to 9216, at alignments 0..63, in every form.
func TestSum(t *testing.T) {
	crc.EachKernel(t, func(t *testing.T) {
		rnd := rand.New(rand.NewPCG(1, 2))
		space := make([]byte, maxLen+128)
		for name, p := range patterns(rnd) {
			for i, f := range forms {
				f.set(p)
				want := prefixes(p)
				at := aligned(space)
				step := stride(t)
				if t.Name() == "TestSum/generic" {
					step = 63 // it has no alignments, but byte loops
				}
				for a := i % step; a < 64; a += step {
					buf := at[a:][:maxLen]
					copy(buf, p)
					lens := 1
					if step > 1 && a >= step {
						lens = 3
					}
					if raceEnabled && step == 63 {
						lens = 37 // every table look-up is watched
					}
					for n := a % lens; n <= maxLen; n += lens {
						if got := crc.Sum(buf[:n]); got != want[n] {
							t.Fatalf("%s, %s, %d bytes at alignment %d: %08x, want %08x", f.name, name, n, a, got, want[n])
						}
					}
					if !bytes.Equal(buf, p) {
						t.Fatal("the packet was written to")
					}
				}
			}
		}
	})
}

// aligned cuts b to a multiple of 64.
func aligned(b []byte) []byte {
	var a int
	fmt.Sscanf(fmt.Sprintf("%p", b), "0x%x", &a)
	return b[-a&63:]
}

func TestUpdate(t *testing.T) {
	crc.EachKernel(t, func(t *testing.T) {
		rnd := rand.New(rand.NewPCG(3, 4))
		p := random(rnd, maxLen)
		dst := make([]byte, maxLen+128)
		for i := range 12 {
			r := rnd.Uint32()
			if i < 3 {
				r = [3]uint32{0, ^uint32(0), 1}[i]
			}
			a, d := rnd.IntN(64), rnd.IntN(64)
			want, x := make([]uint32, maxLen+1), r
			for n, b := range p[a:] {
				want[n], x = x, refByte(x, b)
			}
			for n := 0; n < maxLen-64; n++ {
				if n > 600 && (n+i)%5 != 0 || raceEnabled && n > 3000 {
					continue
				}
				src := p[a:][:n]
				if got := crc.Update(r, src); got != want[n] {
					t.Fatalf("update of %08x by %d bytes: %08x, want %08x", r, n, got, want[n])
				}
				clear(dst[:d+n+64])
				if got := crc.CopyUpdate(r, dst[d:][:n], src); got != want[n] {
					t.Fatalf("copy and update of %08x by %d bytes: %08x, want %08x", r, n, got, want[n])
				}
				if !bytes.Equal(dst[d:][:n], src) {
					t.Fatalf("copy of %d bytes differs", n)
				}
				for j, b := range dst[d+n:][:64] {
					if b != 0 || j < d && dst[j] != 0 {
						t.Fatalf("copy of %d bytes writes around itself", n)
					}
				}
			}
		}
	})
}

func TestState(t *testing.T) {
	crc.EachKernel(t, func(t *testing.T) {
		rnd := rand.New(rand.NewPCG(5, 6))
		for _, f := range forms[:6] {
			for range 300 {
				n := 90 + rnd.IntN(1500)
				pkt := random(rnd, n)
				f.set(pkt)
				i := 73 + rnd.IntN(n-73)
				j := i + rnd.IntN(n-i)
				s := crc.Start(pkt[:i])
				if got, want := s.Update(pkt[i:j]).Update(pkt[j:]).Sum(), refSum(pkt); got != want {
					t.Fatalf("%s, %d bytes cut at %d and %d: %08x, want %08x", f.name, n, i, j, got, want)
				}
			}
		}
	})
}

func TestFlow(t *testing.T) {
	crc.EachKernel(t, func(t *testing.T) {
		rnd := rand.New(rand.NewPCG(7, 8))
		bth := []int{28, 48, 40, 32, 52, 68, 28}
		for i, f := range forms[:7] {
			for n := bth[i] + 12; n < bth[i]+12+70; n++ {
				pkt := random(rnd, n)
				f.set(pkt)
				tail := bth[i] + 5 + rnd.IntN(n-bth[i]-4)
				if n == bth[i]+16 {
					tail = n - 8
				}
				flow := crc.NewFlow(pkt, tail)
				for k := range 20 {
					copy(pkt[tail:], random(rnd, n-tail))
					if k > 2 && pkt[0]>>4 == 4 {
						copy(pkt[4:6], random(rnd, 2))
						flow.SetID(uint16(pkt[4])<<8 | uint16(pkt[5]))
					} else if k == 3 {
						flow.SetID(7) // nothing to set
					}
					want := refSum(pkt)
					if got := flow.Sum(pkt[tail:]); got != want {
						t.Fatalf("%s, %d bytes, the last %d vary: %08x, want %08x", f.name, n, n-tail, got, want)
					}
					if n-tail == 8 {
						be := func(b []byte) uint32 {
							return uint32(b[0])<<24 | uint32(b[1])<<16 | uint32(b[2])<<8 | uint32(b[3])
						}
						if got := flow.Ack(be(pkt[tail:]), be(pkt[tail+4:])); got != want {
							t.Fatalf("%s: Ack: %08x, want %08x", f.name, got, want)
						}
					}
				}
			}
		}
	})
}
