//go:build interop

package main

import "net/netip"

// pattern fills b with the guest's pattern of a seed, from byte from on.
func pattern(b []byte, seed, from uint32) {
	for i := range b {
		x := (uint32(i)+from)*0x9E3779B1 + seed*0x85EBCA6B
		x ^= x >> 15
		x *= 0x2C1B3CD5
		b[i] = byte(x >> 24)
	}
}

func mustAddr(s string) netip.Addr { return netip.MustParseAddr(s).Unmap() }
func mustGID(s string) [16]byte    { return netip.MustParseAddr(s).As16() }
