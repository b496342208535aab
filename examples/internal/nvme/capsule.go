// Package nvme holds the wire formats of NVMe over RDMA, as far as the target and the
// host of the examples need them, and that host. All numbers on the wire are
// little-endian. Sections are those of the NVM Express Base Specification 2.0 (Base)
// and the NVMe RDMA Transport Specification 1.0 (RDMA).
package nvme

import (
	"encoding/binary"
	"errors"
	"fmt"
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

// ErrShort means that there are fewer bytes than the format needs.
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

// The descriptors of RDMA: in the capsule at an offset from the command's end, and keyed
// memory of the host; with SGLKeyedInvalidate the target must invalidate the key.
const (
	SGLOffset          SGLType = 0x01
	SGLKeyed           SGLType = 0x40
	SGLKeyedInvalidate SGLType = 0x4f
)

// Keyed reports whether the descriptor has a key.
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

// Sizes of the private data of RDMA-CM messages (RDMA 3).
const (
	ConnectRequestSize = 32 // REQ
	ConnectReplySize   = 32 // REP
	ConnectRejectSize  = 4  // REJ
)

// ConnectRequest is the private data of the REQ: the queue for which the connection is.
type ConnectRequest struct {
	RecFmt  uint16 // 0
	QID     uint16 // 0: the admin queue
	HRQSize uint16 // receives that the host posts for responses
	HSQSize uint16 // entries of the submission queue, less one
	CntlID  uint16 // of the controller, for I/O queues; older hosts leave 0
}

// Decode reads the private data.
func (r *ConnectRequest) Decode(b []byte) error {
	if len(b) < ConnectRequestSize {
		return ErrShort
	}
	*r = ConnectRequest{le.Uint16(b), le.Uint16(b[2:]), le.Uint16(b[4:]), le.Uint16(b[6:]), le.Uint16(b[8:])}
	return nil
}

// AppendTo appends ConnectRequestSize bytes.
func (r *ConnectRequest) AppendTo(b []byte) []byte {
	for _, v := range []uint16{r.RecFmt, r.QID, r.HRQSize, r.HSQSize, r.CntlID} {
		b = le.AppendUint16(b, v)
	}
	return append(b, make([]byte, 22)...)
}

// ConnectReply is the private data of the REP.
type ConnectReply struct {
	RecFmt  uint16 // 0
	CRQSize uint16 // receives that the controller posts for commands
}

// Decode reads the private data.
func (r *ConnectReply) Decode(b []byte) error {
	if len(b) < ConnectReplySize {
		return ErrShort
	}
	*r = ConnectReply{le.Uint16(b), le.Uint16(b[2:])}
	return nil
}

// AppendTo appends ConnectReplySize bytes.
func (r *ConnectReply) AppendTo(b []byte) []byte {
	b = le.AppendUint16(b, r.RecFmt)
	b = le.AppendUint16(b, r.CRQSize)
	return append(b, make([]byte, 28)...)
}

// ConnectReject is the private data of a REJ.
type ConnectReject struct {
	RecFmt uint16 // 0
	Status ConnectStatus
}

// Decode reads the private data.
func (r *ConnectReject) Decode(b []byte) error {
	if len(b) < ConnectRejectSize {
		return ErrShort
	}
	*r = ConnectReject{le.Uint16(b), ConnectStatus(le.Uint16(b[2:]))}
	return nil
}

// AppendTo appends ConnectRejectSize bytes.
func (r *ConnectReject) AppendTo(b []byte) []byte {
	b = le.AppendUint16(b, r.RecFmt)
	return le.AppendUint16(b, uint16(r.Status))
}

// ConnectStatus is the reason that a connection was rejected.
type ConnectStatus uint16

// The statuses.
const (
	InvalidLength ConnectStatus = iota + 1
	InvalidRecFmt
	InvalidQID
	InvalidHSQSize
	InvalidHRQSize
	NoResources
	InvalidIRD
	InvalidORD
	InvalidCntlID
)

var connectStatuses = map[ConnectStatus]string{
	InvalidLength:  "private data of a wrong length",
	InvalidRecFmt:  "unknown record format",
	InvalidQID:     "no such queue",
	InvalidHSQSize: "submission queue size out of range",
	InvalidHRQSize: "receive queue size out of range",
	NoResources:    "no resources",
	InvalidIRD:     "responder resources out of range",
	InvalidORD:     "initiator depth out of range",
	InvalidCntlID:  "no such controller",
}

// String returns a text for the status.
func (s ConnectStatus) String() string {
	if t := connectStatuses[s]; t != "" {
		return t
	}
	return fmt.Sprintf("status %d", uint16(s))
}

// ConnectData is the data of the Connect command (Base 6.3).
//
//	byte 0 host identifier, 16 controller, 256 subsystem's NQN, 512 host's NQN
type ConnectData struct {
	HostID          [16]byte
	CntlID          uint16 // 0xffff: any, of the admin queue
	SubNQN, HostNQN string
}

// NQNSize is the size of the field of a name, which ends with a zero byte.
const NQNSize = 256

// Decode reads the data. A name without a zero byte in its field becomes empty.
func (d *ConnectData) Decode(b []byte) error {
	if len(b) < ConnectDataSize {
		return ErrShort
	}
	*d = ConnectData{HostID: [16]byte(b), CntlID: le.Uint16(b[16:]), SubNQN: text(b[256:512]), HostNQN: text(b[512:768])}
	return nil
}

// text returns the bytes before the first zero byte.
func text(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return ""
}

// AppendTo appends ConnectDataSize bytes. Names that are too long are truncated.
func (d *ConnectData) AppendTo(b []byte) []byte {
	var x [ConnectDataSize]byte
	copy(x[:], d.HostID[:])
	le.PutUint16(x[16:], d.CntlID)
	copy(x[256:511], d.SubNQN)
	copy(x[512:767], d.HostNQN)
	return append(b, x[:]...)
}

// Status is the status of a completion: the code in bits 0 to 7, its type in bits 8
// to 10, More and Do Not Retry in bits 13 and 14 (Base 3.3.3.2).
type Status uint16

// DNR means that the same command would fail again.
const DNR Status = 0x4000

// Statuses that the target and the host use.
const (
	Success              Status = 0x000
	InvalidOpcode        Status = 0x001
	InvalidField         Status = 0x002
	DataTransferError    Status = 0x004
	InternalError        Status = 0x006
	AbortRequested       Status = 0x007
	InvalidNamespace     Status = 0x00b
	SequenceError        Status = 0x00c
	SGLLengthInvalid     Status = 0x00f
	SGLTypeInvalid       Status = 0x011
	SGLOffsetInvalid     Status = 0x016
	LBAOutOfRange        Status = 0x080
	QueueIDInvalid       Status = 0x101
	AsyncEventLimit      Status = 0x105
	InvalidLogPage       Status = 0x109
	FeatureNotSaveable   Status = 0x10d
	FeatureNotChangeable Status = 0x10e
	ConnectFormat        Status = 0x180
	ConnectInvalidParam  Status = 0x182
	ConnectInvalidHost   Status = 0x184
	WriteFault           Status = 0x280
	UnrecoveredReadError Status = 0x281
	statusCode           Status = 0x7ff
)

var statuses = map[Status]string{
	Success:              "success",
	InvalidOpcode:        "invalid command opcode",
	InvalidField:         "invalid field in command",
	DataTransferError:    "data transfer error",
	InternalError:        "internal error",
	AbortRequested:       "command abort requested",
	InvalidNamespace:     "invalid namespace or format",
	SequenceError:        "command sequence error",
	SGLLengthInvalid:     "data SGL length invalid",
	SGLTypeInvalid:       "SGL descriptor type invalid",
	SGLOffsetInvalid:     "SGL offset invalid",
	LBAOutOfRange:        "LBA out of range",
	QueueIDInvalid:       "invalid queue identifier",
	AsyncEventLimit:      "asynchronous event request limit exceeded",
	InvalidLogPage:       "invalid log page",
	FeatureNotSaveable:   "feature identifier not saveable",
	FeatureNotChangeable: "feature not changeable",
	ConnectFormat:        "connect: incompatible format",
	ConnectInvalidParam:  "connect: invalid parameters",
	ConnectInvalidHost:   "connect: invalid host",
	WriteFault:           "write fault",
	UnrecoveredReadError: "unrecovered read error",
}

// String returns the specification's text, or numbers.
func (s Status) String() string {
	t := statuses[s&statusCode]
	if t == "" {
		t = fmt.Sprintf("status type %d code %#02x", s>>8&7, uint8(s))
	}
	if s&DNR != 0 {
		t += ", do not retry"
	}
	return t
}

// Is reports whether s is t, whatever their More and Do Not Retry say.
func (s Status) Is(t Status) bool { return s&statusCode == t&statusCode }

// Error is the error of a command that the controller completed with an error status.
type Error struct {
	Command string
	Status  Status
}

// Error implements error.
func (e *Error) Error() string { return fmt.Sprintf("nvme: %s: %v", e.Command, e.Status) }
