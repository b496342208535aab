// Package pfc holds the frames by which one end of an Ethernet link stops the
// other: priority-based flow control (PFC, IEEE 802.1Qbb), which lossless RoCE
// networks rest on, and the older PAUSE (IEEE 802.3 Annex 31B), which stops all
// priorities at once.
//
// Both are MAC control frames: a destination address that no bridge forwards, Ethertype
// 0x8808, an operation code, its parameters, and zeros up to the shortest Ethernet frame.
// They carry no VLAN tag, and their addresses have no meaning beyond the link.
//
//	field            bytes  PFC                                PAUSE
//	destination          6  01:80:c2:00:00:01                  the same, or the peer's
//	source               6  the sending port
//	Ethertype            2  0x8808
//	operation code       2  0x0101                             0x0001
//	class enable         2  high byte reserved, bit n = prio n  none
//	pause time       8 x 2  of priority 0, 1, ... 7            one of 2 bytes, for all
//	zeros            26     up to 60 bytes                     42
//	FCS                  4  not part of what this package reads or writes
//
// A pause time counts quanta of 512 bit times of the link: 51.2 ns at 10 Gb/s, 5.12 ns at
// 100 Gb/s. At 100 Gb/s the longest pause, 65535 quanta, is 335.5 us, so that a receiver
// that stays full has to send pauses repeatedly. Time 0 ends a pause (XON). A priority
// whose bit in the class enable vector is clear is not changed, whatever its time says.
//
// All fields are big-endian. Nothing here allocates.
package pfc

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"math/bits"
	"strconv"
	"time"
)

var (
	// ErrTruncated means that the input is shorter than the frame.
	ErrTruncated = fmt.Errorf("pfc: frame truncated: %w", io.ErrUnexpectedEOF)
	// ErrEthertype means that the frame is no MAC control frame.
	ErrEthertype = errors.New("pfc: Ethertype is not 0x8808")
	// ErrOpcode means a MAC control frame that is neither PFC nor PAUSE.
	ErrOpcode = errors.New("pfc: MAC control opcode is neither PFC nor PAUSE")
	// ErrLength means that UnmarshalBinary was given bytes past the frame.
	ErrLength = errors.New("pfc: trailing bytes")
	// ErrRange means that a field is set that the frame's opcode does not carry.
	ErrRange = errors.New("pfc: field that the opcode does not carry is set")
)

// Ethertype is that of MAC control frames.
const Ethertype = 0x8808

// Lengths in bytes, without the FCS.
const (
	Size      = 34 // of a PFC frame up to its last pause time
	PauseSize = 18 // of a PAUSE frame up to its pause time
	MinFrame  = 60 // of the shortest Ethernet frame: what AppendFrame pads to
)

// Priorities is the number of priorities of a link.
const Priorities = 8

// Dest is the destination address of PFC frames, which bridges do not forward.
var Dest = [6]byte{0x01, 0x80, 0xc2, 0x00, 0x00, 0x01}

// Opcode is a MAC control operation code.
type Opcode uint16

// MAC control operation codes.
const (
	Pause Opcode = 0x0001 // IEEE 802.3 Annex 31B, all priorities
	PFC   Opcode = 0x0101 // IEEE 802.1Qbb, each priority by itself
)

// String returns "PAUSE", "PFC", or the number of another code.
func (o Opcode) String() string {
	switch o {
	case Pause:
		return "PAUSE"
	case PFC:
		return "PFC"
	}
	return "0x" + strconv.FormatUint(uint64(o), 16)
}

// Frame is a PFC or a PAUSE frame from its destination address to its last
// pause time. Padding and FCS are not part of it.
//
//	 0                   1                   2                   3
//	 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1 2 3 4 5 6 7 8 9 0 1
//	+---------------------------------------------------------------+
//	|                 destination 01:80:c2:00:00:01                 |
//	+                               +-------------------------------+
//	|                               |            source             |
//	+-------------------------------+                               +
//	|                                                               |
//	+-------------------------------+-------------------------------+
//	|       Ethertype 0x8808        |         opcode 0x0101         |
//	+---------------+---------------+-------------------------------+
//	|   reserved    |7 6 5 4 3 2 1 0|     quanta of priority 0      |
//	+---------------+---------------+-------------------------------+
//	|     quanta of priority 1      |     quanta of priority 2      |
//	+-------------------------------+-------------------------------+
//	|                  ... up to priority 7 ...                     |
//	+---------------------------------------------------------------+
//
// IEEE 802.1Qbb and IEEE 802.3 Annex 31D. In a PAUSE frame the 16 bits after the
// opcode are its only pause time, and the frame ends there.
type Frame struct {
	Dst, Src [6]byte
	Opcode   Opcode
	// Enable is the class enable vector: bit n says that Quanta[n] counts. The
	// high byte is reserved, sent as zero and kept by Decode. PAUSE has none: 0.
	Enable uint16
	// Quanta are pause times of 512 bit times each, by priority; 0 resumes. A
	// PAUSE frame has only Quanta[0], for all priorities.
	Quanta [Priorities]uint16
}

// New returns an empty PFC frame from src: no priority is enabled yet.
func New(src [6]byte) Frame { return Frame{Dst: Dest, Src: src, Opcode: PFC} }

// NewPause returns a PAUSE frame from src that stops the whole link for quanta.
func NewPause(src [6]byte, quanta uint16) Frame {
	return Frame{Dst: Dest, Src: src, Opcode: Pause, Quanta: [Priorities]uint16{quanta}}
}

// Set enables priority prio (0..7; the low three bits count) with a pause of
// quanta; 0 quanta resumes it.
func (f *Frame) Set(prio int, quanta uint16) {
	prio &= Priorities - 1
	f.Enable |= 1 << prio
	f.Quanta[prio] = quanta
}

// Time returns the pause of priority prio (0..7) in quanta, and whether the frame sets it.
// A PAUSE frame sets that of every priority.
func (f *Frame) Time(prio int) (quanta uint16, ok bool) {
	if prio < 0 || prio >= Priorities {
		return 0, false
	}
	if f.Opcode == Pause {
		return f.Quanta[0], true
	}
	if f.Enable>>prio&1 == 0 {
		return 0, false
	}
	return f.Quanta[prio], true
}

// Size returns the length of f in bytes without padding: Size or PauseSize.
func (f *Frame) Size() int {
	if f.Opcode == Pause {
		return PauseSize
	}
	return Size
}

// Decode reads a frame that begins with its destination address. What follows
// the last pause time, padding and perhaps an FCS, is not looked at. On an error
// (ErrTruncated, ErrEthertype, ErrOpcode) f is unchanged.
//
// The destination address is not checked: PAUSE may be sent to the peer's own.
func (f *Frame) Decode(b []byte) error {
	if len(b) < 14 {
		return ErrTruncated
	}
	if binary.BigEndian.Uint16(b[12:]) != Ethertype {
		return ErrEthertype
	}
	if len(b) < PauseSize {
		return ErrTruncated
	}
	switch op := Opcode(binary.BigEndian.Uint16(b[14:])); op {
	case Pause:
		*f = Frame{Opcode: op}
		f.Quanta[0] = binary.BigEndian.Uint16(b[16:])
	case PFC:
		if len(b) < Size {
			return ErrTruncated
		}
		f.Opcode = op
		f.Enable = binary.BigEndian.Uint16(b[16:])
		for i := range f.Quanta {
			f.Quanta[i] = binary.BigEndian.Uint16(b[18+2*i:])
		}
	default:
		return ErrOpcode
	}
	f.Dst, f.Src = [6]byte(b), [6]byte(b[6:])
	return nil
}

// AppendTo appends f.Size() bytes to dst, without padding. An Opcode that is
// neither Pause nor PFC is written with the fields of PFC.
func (f *Frame) AppendTo(dst []byte) []byte {
	dst = append(dst, f.Dst[:]...)
	dst = append(dst, f.Src[:]...)
	dst = binary.BigEndian.AppendUint16(dst, Ethertype)
	dst = binary.BigEndian.AppendUint16(dst, uint16(f.Opcode))
	if f.Opcode == Pause {
		return binary.BigEndian.AppendUint16(dst, f.Quanta[0])
	}
	dst = binary.BigEndian.AppendUint16(dst, f.Enable)
	for _, q := range f.Quanta {
		dst = binary.BigEndian.AppendUint16(dst, q)
	}
	return dst
}

// AppendFrame appends f to dst and zeros up to MinFrame bytes: all that goes to
// the wire but the FCS.
func (f *Frame) AppendFrame(dst []byte) []byte {
	var zeros [MinFrame - PauseSize]byte
	dst = f.AppendTo(dst)
	return append(dst, zeros[:MinFrame-f.Size()]...)
}

// Validate returns ErrOpcode when f is neither PFC nor PAUSE, and ErrRange when
// it is a PAUSE with a class enable vector or a second pause time, which do not
// go to the wire.
func (f *Frame) Validate() error {
	switch f.Opcode {
	case PFC:
		return nil
	case Pause:
		if f.Enable != 0 || [Priorities - 1]uint16(f.Quanta[1:]) != [Priorities - 1]uint16{} {
			return ErrRange
		}
		return nil
	}
	return ErrOpcode
}

// AppendBinary implements [encoding.BinaryAppender]: Validate, then AppendTo.
func (f *Frame) AppendBinary(dst []byte) ([]byte, error) {
	if err := f.Validate(); err != nil {
		return dst, err
	}
	return f.AppendTo(dst), nil
}

// UnmarshalBinary implements [encoding.BinaryUnmarshaler]. b must have the exact length,
// without padding; anything longer is ErrLength.
func (f *Frame) UnmarshalBinary(b []byte) error {
	var g Frame
	if err := g.Decode(b); err != nil {
		return err
	}
	if len(b) > g.Size() {
		return ErrLength
	}
	*f = g
	return nil
}

// quantumBits is the length of a pause quantum in bit times.
const quantumBits = 512

// Duration returns how long quanta last on a link of rate bits per second, rounded up to
// the nanosecond so that no sender resumes too early. A rate of 0 gives 0.
func Duration(quanta uint16, rate uint64) time.Duration {
	if rate == 0 {
		return 0
	}
	// 65535 x 512 x 1e9 is below 2^55.
	n := uint64(quanta) * quantumBits * uint64(time.Second)
	d := n / rate
	if n%rate != 0 {
		d++
	}
	return time.Duration(d)
}

// Quanta returns the least number of quanta that last at least d on a link of
// rate bits per second, at most 65535. A d that is not positive gives 0.
func Quanta(d time.Duration, rate uint64) uint16 {
	if d <= 0 {
		return 0
	}
	const unit = quantumBits * uint64(time.Second)
	hi, lo := bits.Mul64(uint64(d), rate)
	lo, carry := bits.Add64(lo, unit-1, 0)
	hi += carry
	if hi >= unit {
		return math.MaxUint16
	}
	q, _ := bits.Div64(hi, lo, unit)
	return uint16(min(q, math.MaxUint16))
}
