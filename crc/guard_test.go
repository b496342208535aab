//go:build linux

package crc_test

import (
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/roce-go/roce/crc"
)

// guarded returns n bytes (whole pages) with a page on either side that faults.
func guarded(t *testing.T, n int) []byte {
	page := syscall.Getpagesize()
	n = (n + page - 1) / page * page
	m, err := syscall.Mmap(-1, 0, n+2*page, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_ANON|syscall.MAP_PRIVATE)
	if err != nil {
		t.Skip("mmap: ", err)
	}
	t.Cleanup(func() { syscall.Munmap(m) })
	for _, g := range [][]byte{m[:page], m[page+n:]} {
		if err := syscall.Mprotect(g, syscall.PROT_NONE); err != nil {
			t.Skip("mprotect: ", err)
		}
	}
	return m[page : page+n : page+n]
}

// No byte outside of a slice is read or written: packets that begin where a page
// begins and packets that end where one ends, with nothing around.
func TestGuardPages(t *testing.T) {
	src, dst := guarded(t, 8192), guarded(t, 8192)
	rnd := rand.New(rand.NewPCG(9, 10))
	copy(src, random(rnd, len(src)))
	last := 4500
	if testing.Short() {
		last = 1500
	}
	crc.EachKernel(t, func(t *testing.T) {
		for _, f := range forms[:4] {
			for n := 0; n <= last; n++ {
				for _, p := range [][]byte{src[:n:n], src[len(src)-n:]} {
					f.set(p)
					got, r := crc.Sum(p), crc.Update(1, p)
					q := make([]byte, n)
					copy(q, p)
					if want := crc.Sum(q); got != want {
						t.Fatalf("%s, %d bytes at a page's edge: %08x, elsewhere %08x", f.name, n, got, want)
					}
					for _, d := range [][]byte{dst[:n:n], dst[len(dst)-n:]} {
						if x := crc.CopyUpdate(1, d, p); x != r {
							t.Fatalf("copy of %d bytes at a page's edge: %08x, want %08x", n, x, r)
						}
					}
				}
			}
		}
	})
}
