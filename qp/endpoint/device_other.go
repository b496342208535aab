//go:build !linux

package endpoint

import (
	"errors"
	"net/netip"
)

// TAP and Packet need Linux.
func TAP(string, ...netip.Addr) Wire { return noWire{} }

// Packet needs Linux.
func Packet(string, ...netip.Addr) Wire { return noWire{} }

type noWire struct{}

func (noWire) open(*Config) (transport, error) {
	return nil, errors.New("TAP and packet wires need Linux")
}
