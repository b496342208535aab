package main

import (
	"encoding/binary"

	"github.com/roce-go/roce/bth/frame"
)

// claimsRoCE reports whether a frame that could not be decoded says that it is
// RoCE: Ethertype 0x8915, or UDP to the port, as far as it was captured. Runts
// and fragments of other protocols are none of our business.
func claimsRoCE(link frame.Link, b []byte, port uint16) bool {
	var off int
	var etherType uint16
	switch link {
	case frame.Ethernet:
		if len(b) < 14 {
			return false
		}
		off, etherType = 14, binary.BigEndian.Uint16(b[12:])
	case frame.LinuxSLL:
		if len(b) < 16 {
			return false
		}
		off, etherType = 16, binary.BigEndian.Uint16(b[14:])
	case frame.LinuxSLL2:
		if len(b) < 20 {
			return false
		}
		off, etherType = 20, binary.BigEndian.Uint16(b)
	case frame.RawIP, frame.RawIPv4, frame.RawIPv6:
		if len(b) == 0 {
			return false
		}
		switch b[0] >> 4 {
		case 4:
			etherType = frame.EtherTypeIPv4
		case 6:
			etherType = frame.EtherTypeIPv6
		}
	}
	for range 2 {
		if etherType != frame.EtherTypeVLAN && etherType != frame.EtherTypeQinQ {
			break
		}
		if len(b) < off+4 {
			return false
		}
		etherType = binary.BigEndian.Uint16(b[off+2:])
		off += 4
	}
	b = b[off:]
	const udp = 17
	switch etherType {
	case frame.EtherTypeRoCE:
		return true
	case frame.EtherTypeIPv4:
		if len(b) < 20 || b[0]>>4 != 4 || b[9] != udp || binary.BigEndian.Uint16(b[6:])&0x1fff != 0 {
			return false
		}
		ihl := int(b[0]&0xf) * 4
		return ihl >= 20 && toPort(b, ihl, port)
	case frame.EtherTypeIPv6:
		return len(b) >= 40 && b[0]>>4 == 6 && b[6] == udp && toPort(b, 40, port)
	}
	return false
}

func toPort(b []byte, udp int, port uint16) bool {
	return len(b) >= udp+4 && binary.BigEndian.Uint16(b[udp+2:]) == port
}
