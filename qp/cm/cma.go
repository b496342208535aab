package cm

import (
	"encoding/binary"
	"net/netip"
	"strconv"
)

// ServiceID says to which service a REQ or SIDR_REQ goes. Those of RDMA-CM
// carry an IP protocol and a port:
//
//	+----------------------------------------+----------+------------+
//	|     0x0000000001, 40 bits: prefix      | protocol | port       |
//	+----------------------------------------+----------+------------+
//
// The protocol is that of the port space: 6 (RDMA_PS_TCP, connections) or 17
// (RDMA_PS_UDP, datagrams) in practice.
//
// InfiniBand Architecture Volume 1, Annex A11.
type ServiceID uint64

const serviceIDPrefix = 1 << 24

// Protocols of service IDs.
const (
	ProtocolTCP = 6
	ProtocolUDP = 17
)

// IPServiceID returns the service ID of an IP protocol and a destination port.
func IPServiceID(protocol uint8, port uint16) ServiceID {
	return serviceIDPrefix | ServiceID(protocol)<<16 | ServiceID(port)
}

// IsIP reports whether s has the prefix of RDMA-CM's service IDs.
func (s ServiceID) IsIP() bool { return s>>24 == serviceIDPrefix>>24 }

// Protocol returns the IP protocol; it is valid only when IsIP.
func (s ServiceID) Protocol() uint8 { return uint8(s >> 16) }

// Port returns the destination port; it is valid only when IsIP.
func (s ServiceID) Port() uint16 { return uint16(s) }

// String returns "tcp:PORT", "udp:PORT", "ip PROTOCOL:PORT", or the number of a
// service ID that is not RDMA-CM's.
func (s ServiceID) String() string {
	if !s.IsIP() {
		return hex(uint64(s), 16)
	}
	port := ":" + strconv.Itoa(int(s.Port()))
	switch s.Protocol() {
	case ProtocolTCP:
		return "tcp" + port
	case ProtocolUDP:
		return "udp" + port
	}
	return "ip " + strconv.Itoa(int(s.Protocol())) + port
}

// CMAHeaderSize is the length of CMAHeader in bytes.
const CMAHeaderSize = 36

// CMAHeader is the header that RDMA-CM (the kernel's "cma") puts before the consumer's
// private data in REQ and SIDR_REQ: the addresses of both sides.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+-------+-------+-------+-------+-------------------------------+
//	| major | minor | IP ver| rsvd  |          source port          |
//	+-------+-------+-------+-------+-------------------------------+
//	|                  source IP address, 16 bytes                  |
//	+---------------------------------------------------------------+
//	|                destination IP address, 16 bytes               |
//	+---------------------------------------------------------------+
//
// An IPv4 address is in the last 4 of the 16 bytes. The destination port is in the service
// ID.
//
// InfiniBand Architecture Volume 1, Annex A11, clause A11.4.
type CMAHeader struct {
	MajorVersion uint8 // 4 bits, 0
	MinorVersion uint8 // 4 bits, 0
	IPVersion    uint8 // 4 bits, 4 or 6
	Reserved     uint8 // 4 bits
	Port         uint16
	// SrcIP and DstIP are as on the wire; see Src and Dst.
	SrcIP [16]byte
	DstIP [16]byte
}

// NewCMAHeader returns the header of a call from src to dst. The addresses are
// both IPv4 or both IPv6 (zones are dropped), else it returns ErrAddr.
func NewCMAHeader(src netip.AddrPort, dst netip.Addr) (CMAHeader, error) {
	h := CMAHeader{Port: src.Port()}
	switch a := src.Addr(); {
	case a.Is4() && dst.Is4():
		h.IPVersion = 4
		s, d := a.As4(), dst.As4()
		copy(h.SrcIP[12:], s[:])
		copy(h.DstIP[12:], d[:])
	case a.Is6() && dst.Is6():
		h.IPVersion = 6
		h.SrcIP, h.DstIP = a.As16(), dst.As16()
	default:
		return CMAHeader{}, ErrAddr
	}
	return h, nil
}

// Decode reads the header from the first CMAHeaderSize bytes of b, the private data of REQ
// or SIDR_REQ. It does not check the versions.
func (h *CMAHeader) Decode(b []byte) error {
	if len(b) < CMAHeaderSize {
		return ErrTruncated
	}
	h.MajorVersion = b[0] >> 4
	h.MinorVersion = b[0] & 0xf
	h.IPVersion = b[1] >> 4
	h.Reserved = b[1] & 0xf
	h.Port = binary.BigEndian.Uint16(b[2:])
	h.SrcIP = [16]byte(b[4:20])
	h.DstIP = [16]byte(b[20:36])
	return nil
}

// AppendTo appends the CMAHeaderSize bytes of h to dst; append the consumer's
// private data behind it.
func (h *CMAHeader) AppendTo(dst []byte) []byte {
	dst = append(dst, h.MajorVersion<<4|h.MinorVersion&0xf, h.IPVersion<<4|h.Reserved&0xf)
	dst = binary.BigEndian.AppendUint16(dst, h.Port)
	dst = append(dst, h.SrcIP[:]...)
	return append(dst, h.DstIP[:]...)
}

// Validate returns ErrRange when a field exceeds its width.
func (h *CMAHeader) Validate() error {
	if h.MajorVersion > 0xf || h.MinorVersion > 0xf || h.IPVersion > 0xf || h.Reserved > 0xf {
		return ErrRange
	}
	return nil
}

// Src returns the source address, or the zero Addr when the IP version is
// neither 4 nor 6.
func (h *CMAHeader) Src() netip.Addr { return h.addr(&h.SrcIP) }

// Dst returns the destination address as Src does the source's.
func (h *CMAHeader) Dst() netip.Addr { return h.addr(&h.DstIP) }

func (h *CMAHeader) addr(b *[16]byte) netip.Addr {
	switch h.IPVersion {
	case 4:
		return netip.AddrFrom4([4]byte(b[12:]))
	case 6:
		return netip.AddrFrom16(*b)
	}
	return netip.Addr{}
}

// cma is REQ.CMA and SIDRREQ.CMA.
func cma(h *CMAHeader, id ServiceID, private []byte) (consumer []byte, ok bool) {
	if !id.IsIP() || len(private) < CMAHeaderSize || private[0] != 0 {
		return nil, false
	}
	if v := private[1] >> 4; v != 4 && v != 6 {
		return nil, false
	}
	// Long enough by now.
	_ = h.Decode(private)
	return private[CMAHeaderSize:], true
}
