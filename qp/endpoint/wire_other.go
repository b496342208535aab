//go:build !linux

package endpoint

import (
	"errors"
	"net/netip"
	"syscall"
)

// TAP and Packet need Linux.
func TAP(string, ...netip.Addr) Wire { return noWire{} }

// Packet needs Linux.
func Packet(string, ...netip.Addr) Wire { return noWire{} }

type noWire struct{}

func (noWire) open(*Config) (transport, error) {
	return nil, errors.New("TAP and packet wires need Linux")
}

// udpOptions: other systems have no way to make identifications known.
func udpOptions(uintptr, bool) error {
	return errors.New("a UDP wire needs Linux: no other system says what it puts into IP headers")
}

func forceReadBuffer(uintptr, int) {}

// socketDrops: no other system says.
func socketDrops(syscall.Conn) uint64 { return 0 }
