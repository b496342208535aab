// Package nvme holds the wire formats of NVMe over RDMA, as far as the target and the
// host of the examples need them, and that host. All numbers on the wire are
// little-endian. Sections are those of the NVM Express Base Specification 2.0 (Base)
// and the NVMe RDMA Transport Specification 1.0 (RDMA).
package nvme

import (
	"encoding/binary"
	"errors"
)

// Sizes in bytes, and names.
const (
	CommandSize     = 64   // of a command in its capsule
	CompletionSize  = 16   // of a response capsule
	ConnectDataSize = 1024 // of the data of the Connect command
	IdentifySize    = 4096 // of every Identify data structure

	Port         = 4420 // of RDMA-CM's TCP port space
	AdminDepth   = 32   // entries of the admin queue
	DiscoveryNQN = "nqn.2014-08.org.nvmexpress.discovery"
)

// ErrShort means fewer bytes than the format has.
var ErrShort = errors.New("nvme: too few bytes")

var le = binary.LittleEndian

// Opcode is a command's first byte. Admin and I/O commands use the same numbers for
// different things.
type Opcode uint8

// Admin commands (Base 5), I/O commands (NVM command set), and the one for fabrics.
const (
	GetLogPage  Opcode = 0x02
	Identify    Opcode = 0x06
	Abort       Opcode = 0x08
	SetFeatures Opcode = 0x09
	GetFeatures Opcode = 0x0a
	AsyncEvent  Opcode = 0x0c
	KeepAlive   Opcode = 0x18

	Flush             Opcode = 0x00
	Write             Opcode = 0x01
	Read              Opcode = 0x02
	WriteZeroes       Opcode = 0x08
	DatasetManagement Opcode = 0x09

	Fabrics Opcode = 0x7f
)

// Fabrics command types (Base 6): Command.NSID's low byte.
const (
	PropertySet = 0x00
	Connect     = 0x01
	PropertyGet = 0x04
	Disconnect  = 0x08
)

// SGL is the descriptor of a command's data (Base 4.1.2, RDMA 2.2).
//
//	byte 0      7 8       10 11       14 15
//	     address | length    | key      | type, subtype      keyed
//	     address | length (4)| reserved | type, subtype      not keyed
type SGL struct {
	Addr   uint64
	Length uint32 // 24 bits where keyed
	Key    uint32 // reserved (24 bits) where not keyed
	Type   SGLType
}

// SGLType is type and subtype of a descriptor.
type SGLType uint8

// The descriptors of RDMA: in the capsule at an offset from the command's end, and
// keyed memory of the host, which the target is to invalidate in the second case.
const (
	SGLOffset          SGLType = 0x01
	SGLKeyed           SGLType = 0x40
	SGLKeyedInvalidate SGLType = 0x4f
)

// Keyed reports whether there is a key.
func (t SGLType) Keyed() bool { return t>>4 == 4 }

func (s *SGL) decode(b []byte) {
	*s = SGL{Addr: le.Uint64(b), Length: le.Uint32(b[8:]), Key: uint32(b[12]) | uint32(b[13])<<8 | uint32(b[14])<<16, Type: SGLType(b[15])}
	if s.Type.Keyed() {
		s.Length, s.Key = s.Length&0xffffff, le.Uint32(b[11:])
	}
}

func (s *SGL) append(b []byte) []byte {
	b = le.AppendUint64(b, s.Addr)
	if s.Type.Keyed() {
		b = append(b, byte(s.Length), byte(s.Length>>8), byte(s.Length>>16))
		b = le.AppendUint32(b, s.Key)
	} else {
		b = le.AppendUint32(b, s.Length)
		b = append(b, byte(s.Key), byte(s.Key>>8), byte(s.Key>>16))
	}
	return append(b, byte(s.Type))
}

// FlagsSGL is Command.Flags where the data pointer is an SGL: always, over fabrics.
const FlagsSGL = 0x40

// Command is a submission queue entry.
//
//	byte 0 opcode, 1 flags, 2 command identifier, 4 namespace, 8 and 12 command
//	dwords 2 and 3, 16 metadata pointer, 24 SGL, 40 command dwords 10 to 15
type Command struct {
	Opcode   Opcode
	Flags    uint8
	CID      uint16
	NSID     uint32
	CDW2     [2]uint32
	Metadata uint64
	SGL      SGL
	CDW10    [6]uint32 // command dwords 10 to 15
}

// Decode reads the first CommandSize bytes of a capsule.
func (c *Command) Decode(b []byte) error {
	if len(b) < CommandSize {
		return ErrShort
	}
	c.Opcode, c.Flags, c.CID, c.NSID = Opcode(b[0]), b[1], le.Uint16(b[2:]), le.Uint32(b[4:])
	c.CDW2 = [2]uint32{le.Uint32(b[8:]), le.Uint32(b[12:])}
	c.Metadata = le.Uint64(b[16:])
	c.SGL.decode(b[24:])
	for i := range c.CDW10 {
		c.CDW10[i] = le.Uint32(b[40+4*i:])
	}
	return nil
}

// AppendTo appends CommandSize bytes.
func (c *Command) AppendTo(b []byte) []byte {
	b = append(b, byte(c.Opcode), c.Flags)
	b = le.AppendUint16(b, c.CID)
	b = le.AppendUint32(b, c.NSID)
	b = le.AppendUint32(b, c.CDW2[0])
	b = le.AppendUint32(b, c.CDW2[1])
	b = le.AppendUint64(b, c.Metadata)
	b = c.SGL.append(b)
	for _, d := range c.CDW10 {
		b = le.AppendUint32(b, d)
	}
	return b
}

// FabricsType returns the type of a Fabrics command.
func (c *Command) FabricsType() uint8 { return uint8(c.NSID) }

// Cdw returns command dwords i and i+1, i from 10 to 14, as one number.
func (c *Command) Cdw(i int) uint64 {
	return uint64(c.CDW10[i-10]) | uint64(c.CDW10[i-9])<<32
}

// Completion is a response capsule.
//
//	byte 0 result, 8 submission queue head, 10 submission queue, 12 command
//	identifier, 14 status in bits 1 to 15
type Completion struct {
	Result uint64
	SQHead uint16
	SQID   uint16
	CID    uint16
	Phase  bool // bit 0 of the status word, of no meaning over fabrics
	Status Status
}

// Decode reads a response capsule.
func (c *Completion) Decode(b []byte) error {
	if len(b) < CompletionSize {
		return ErrShort
	}
	s := le.Uint16(b[14:])
	*c = Completion{le.Uint64(b), le.Uint16(b[8:]), le.Uint16(b[10:]), le.Uint16(b[12:]), s&1 != 0, Status(s >> 1)}
	return nil
}

// AppendTo appends CompletionSize bytes.
func (c *Completion) AppendTo(b []byte) []byte {
	b = le.AppendUint64(b, c.Result)
	b = le.AppendUint16(b, c.SQHead)
	b = le.AppendUint16(b, c.SQID)
	b = le.AppendUint16(b, c.CID)
	s := uint16(c.Status << 1)
	if c.Phase {
		s |= 1
	}
	return le.AppendUint16(b, s)
}
