package bth

import (
	"encoding/binary"

	"github.com/roce-go/roce/psn"
)

// View is a BTH where it lies, for code that filters or rewrites packets in
// place. Its length is checked once, by [ViewOf]; no method can fail. Setters
// mask their value to the field's width. After changing anything but FECN, BECN
// and Resv6 the packet's ICRC must be computed again (crc.Patch). A UDP checksum that
// is not 0 covers all bytes, the ICRC too: compute it again as well, or set it to 0.
type View [Size]byte

// ViewOf returns the first Size bytes of b as a View of the same memory.
func ViewOf(b []byte) (*View, error) {
	if len(b) < Size {
		return nil, ErrTruncated
	}
	return (*View)(b), nil
}

// Opcode returns the opcode.
func (v *View) Opcode() Opcode { return Opcode(v[0]) }

// SE returns the solicited event bit.
func (v *View) SE() bool { return v[1]&0x80 != 0 }

// M returns the migration state bit.
func (v *View) M() bool { return v[1]&0x40 != 0 }

// PadCnt returns the number of pad bytes, 0..3.
func (v *View) PadCnt() uint8 { return v[1] >> 4 & 3 }

// TVer returns the transport header version.
func (v *View) TVer() uint8 { return v[1] & 0xf }

// PKey returns the partition key.
func (v *View) PKey() uint16 { return binary.BigEndian.Uint16(v[2:]) }

// FECN returns the forward congestion bit.
func (v *View) FECN() bool { return v[4]&0x80 != 0 }

// BECN returns the backward congestion bit.
func (v *View) BECN() bool { return v[4]&0x40 != 0 }

// DestQP returns the destination QP number.
func (v *View) DestQP() uint32 { return binary.BigEndian.Uint32(v[4:]) & 0xffffff }

// AckReq returns the acknowledge request bit.
func (v *View) AckReq() bool { return v[8]&0x80 != 0 }

// PSN returns the packet sequence number.
func (v *View) PSN() psn.PSN { return psn.PSN(binary.BigEndian.Uint32(v[8:]) & psn.Mask) }

// SetOpcode replaces the opcode.
func (v *View) SetOpcode(o Opcode) { v[0] = byte(o) }

// SetSE replaces the solicited event bit.
func (v *View) SetSE(on bool) { v.setBit(1, 0x80, on) }

// SetM replaces the migration state bit.
func (v *View) SetM(on bool) { v.setBit(1, 0x40, on) }

// SetPadCnt replaces the pad count, of which two bits count.
func (v *View) SetPadCnt(n uint8) { v[1] = v[1]&^0x30 | n&3<<4 }

// SetTVer replaces the transport header version, of which four bits count.
func (v *View) SetTVer(n uint8) { v[1] = v[1]&^0x0f | n&0xf }

// SetPKey replaces the partition key.
func (v *View) SetPKey(k uint16) { binary.BigEndian.PutUint16(v[2:], k) }

// SetFECN replaces the forward congestion bit, which the ICRC does not cover.
func (v *View) SetFECN(on bool) { v.setBit(4, 0x80, on) }

// SetBECN replaces the backward congestion bit, which the ICRC does not cover.
func (v *View) SetBECN(on bool) { v.setBit(4, 0x40, on) }

// SetDestQP replaces the destination QP number, of which 24 bits count.
func (v *View) SetDestQP(qp uint32) { put24(v[5:8], qp) }

// SetAckReq replaces the acknowledge request bit.
func (v *View) SetAckReq(on bool) { v.setBit(8, 0x80, on) }

// SetPSN replaces the packet sequence number.
func (v *View) SetPSN(p psn.PSN) { put24(v[9:12], uint32(p)) }

func (v *View) setBit(i int, mask byte, on bool) {
	v[i] &^= mask
	if on {
		v[i] |= mask
	}
}

func put24(b []byte, v uint32) {
	_ = b[2]
	b[0], b[1], b[2] = byte(v>>16), byte(v>>8), byte(v)
}
