package cm

import (
	"net/netip"
	"strconv"
	"time"
)

// GID is a global identifier of a port. In RoCE v2 it is an IPv6 address, or an
// IPv4 address mapped into one.
type GID [16]byte

// Addr returns the GID as an address, a mapped IPv4 address as IPv4.
func (g GID) Addr() netip.Addr { return netip.AddrFrom16(g).Unmap() }

// String returns the address.
func (g GID) String() string { return g.Addr().String() }

// MTU is a path packet payload MTU in its 4-bit code.
type MTU uint8

// The MTU codes; others are reserved.
const (
	MTU256  MTU = 1
	MTU512  MTU = 2
	MTU1024 MTU = 3
	MTU2048 MTU = 4
	MTU4096 MTU = 5
)

// Bytes returns the MTU in bytes, or 0 for a reserved code.
func (m MTU) Bytes() int {
	if m < MTU256 || m > MTU4096 {
		return 0
	}
	return 128 << m
}

// String returns the MTU in bytes as a number, or "MTU code N" for a reserved code N.
func (m MTU) String() string {
	if n := m.Bytes(); n != 0 {
		return strconv.Itoa(n)
	}
	return "MTU code " + strconv.Itoa(int(m))
}

// Timeout returns the time that the 5-bit code of a timeout field stands for:
// 4.096 µs times 2 to the code. Higher bits of code are ignored. In
// LocalACKTimeout only, code 0 means that there is no timeout.
func Timeout(code uint8) time.Duration { return 4096 << (code & 0x1f) }

// TransportServiceType is the service of the connection to be made.
type TransportServiceType uint8

// Transport service types, 2 bits.
const (
	ServiceRC TransportServiceType = 0
	ServiceUC TransportServiceType = 1
	ServiceRD TransportServiceType = 2
	// ServiceExtended means that ExtendedTransportType says which.
	ServiceExtended TransportServiceType = 3
)

// ExtendedXRC is the ExtendedTransportType of XRC.
const ExtendedXRC = 1

// String returns the service's name, or its number.
func (t TransportServiceType) String() string {
	switch t {
	case ServiceRC:
		return "RC"
	case ServiceUC:
		return "UC"
	case ServiceRD:
		return "RD"
	case ServiceExtended:
		return "extended"
	}
	return strconv.Itoa(int(t))
}
