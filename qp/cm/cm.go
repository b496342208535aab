// Package cm establishes and ends connections by InfiniBand communication management (CM),
// as RDMA-CM does over RoCE: the codecs of its 256-byte management datagrams (MADs), the
// payload of a UD SEND to queue pair 1 with Q_Key 0x80010000, and [Machine], which runs the
// protocol for one port.
//
// A connection is established by REQ, REP and RTU, refused by REJ, delayed by MRA, ended by
// DREQ and DREP; SIDR_REQ and SIDR_REP find the queue pair of an unconnected service; LAP
// and APR load an alternate path. REQ and REP carry the parameters of a connection: both
// queue pair numbers, both starting PSNs, the path MTU and the retry counts. Note that a
// starting PSN is the one at which the other side starts: the sender of REQ numbers its
// packets from REP's StartingPSN on, the sender of REP from REQ's.
//
// [Message] is a whole datagram: after Decode, Header.AttributeID names the one member that
// was filled in. Each message is also a codec of its own over the [DataSize] bytes behind
// the [Header]. RDMA-CM puts addresses into the private data of REQ and SIDR_REQ; see
// [CMAHeader] and [ServiceID].
//
// Each codec works on the caller's memory and allocates nothing. Decode reads
// the first bytes of its input and leaves the receiver unchanged when they are
// too few; private data and additional information alias the input and are cut
// to capacity. AppendTo never fails, masks each field to its width, cuts
// private data to the room it has and fills up with zeros; Validate says what
// that would lose. Reserved bits are fields, so that what was decoded is
// encoded to the same bytes. All fields are big-endian on the wire.
//
// Layouts are those of InfiniBand Architecture Volume 1, chapter 12
// (communication management, tables 106 to 120), chapter 13.4 (MADs) and
// Annex A11 (RDMA IP CM service); names are the specification's.
package cm

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"time"
)

var (
	// ErrTruncated means that the input is shorter than what is to be read from it.
	ErrTruncated = fmt.Errorf("cm: datagram truncated: %w", io.ErrUnexpectedEOF)
	// ErrLength means that UnmarshalBinary got more bytes than a datagram has.
	ErrLength = errors.New("cm: input longer than a datagram")
	// ErrClass means that the datagram's class is not communication management.
	ErrClass = errors.New("cm: management class is not communication management")
	// ErrAttribute means that no message of this package has that attribute ID.
	ErrAttribute = errors.New("cm: attribute is not a communication management message")
	// ErrRange means that a field does not fit its width on the wire.
	ErrRange = errors.New("cm: field exceeds its width")
	// ErrTooLong means that private data or additional information does not fit
	// the room that the message has for it.
	ErrTooLong = errors.New("cm: private data exceeds its room")
	// ErrAddr means that two addresses are not of one IP version.
	ErrAddr = errors.New("cm: addresses are not both IPv4 or both IPv6")
)

// Size is the length of a management datagram in bytes.
const Size = 256

// DataSize is the length in bytes of what follows the header in a datagram:
// a message with its private data.
const DataSize = Size - HeaderSize

// Message is a communication management datagram: the header, and one member for each kind
// of message, of which Header.AttributeID names the valid one.
type Message struct {
	Header Header

	REQ     REQ
	MRA     MRA
	REJ     REJ
	REP     REP
	RTU     RTU
	DREQ    DREQ
	DREP    DREP
	SIDRREQ SIDRREQ
	SIDRREP SIDRREP
	LAP     LAP
	APR     APR
}

// Decode reads a datagram from the first Size bytes of b into Header and into the member
// that Header.AttributeID names; the other members stay as they were. It returns
// ErrTruncated, ErrClass or ErrAttribute, and then m is unchanged. Method, status and
// versions are not checked.
func (m *Message) Decode(b []byte) error {
	if len(b) < Size {
		return ErrTruncated
	}
	if Class(b[1]) != ClassCM {
		return ErrClass
	}
	id := AttributeID(binary.BigEndian.Uint16(b[16:]))
	data := b[HeaderSize:Size:Size]
	var err error
	switch id {
	case AttrREQ:
		err = m.REQ.Decode(data)
	case AttrMRA:
		err = m.MRA.Decode(data)
	case AttrREJ:
		err = m.REJ.Decode(data)
	case AttrREP:
		err = m.REP.Decode(data)
	case AttrRTU:
		err = m.RTU.Decode(data)
	case AttrDREQ:
		err = m.DREQ.Decode(data)
	case AttrDREP:
		err = m.DREP.Decode(data)
	case AttrSIDRREQ:
		err = m.SIDRREQ.Decode(data)
	case AttrSIDRREP:
		err = m.SIDRREP.Decode(data)
	case AttrLAP:
		err = m.LAP.Decode(data)
	case AttrAPR:
		err = m.APR.Decode(data)
	default:
		return ErrAttribute
	}
	if err != nil {
		return err
	}
	return m.Header.Decode(b)
}

// AppendTo appends the Size bytes of m to dst: Header and the member that it names. After
// the header of any other attribute follow zeros. Encoding over the very bytes that m was
// decoded from is allowed.
func (m *Message) AppendTo(dst []byte) []byte {
	dst = m.Header.AppendTo(dst)
	switch m.Header.AttributeID {
	case AttrREQ:
		return m.REQ.AppendTo(dst)
	case AttrMRA:
		return m.MRA.AppendTo(dst)
	case AttrREJ:
		return m.REJ.AppendTo(dst)
	case AttrREP:
		return m.REP.AppendTo(dst)
	case AttrRTU:
		return m.RTU.AppendTo(dst)
	case AttrDREQ:
		return m.DREQ.AppendTo(dst)
	case AttrDREP:
		return m.DREP.AppendTo(dst)
	case AttrSIDRREQ:
		return m.SIDRREQ.AppendTo(dst)
	case AttrSIDRREP:
		return m.SIDRREP.AppendTo(dst)
	case AttrLAP:
		return m.LAP.AppendTo(dst)
	case AttrAPR:
		return m.APR.AppendTo(dst)
	}
	return appendData(dst, nil, DataSize)
}

// Validate returns what encoding m would lose: ErrClass or ErrAttribute when
// the header names no message of this package, else the error of the member
// that it names.
func (m *Message) Validate() error {
	if m.Header.MgmtClass != ClassCM {
		return ErrClass
	}
	switch m.Header.AttributeID {
	case AttrREQ:
		return m.REQ.Validate()
	case AttrMRA:
		return m.MRA.Validate()
	case AttrREJ:
		return m.REJ.Validate()
	case AttrREP:
		return m.REP.Validate()
	case AttrRTU:
		return m.RTU.Validate()
	case AttrDREQ:
		return m.DREQ.Validate()
	case AttrDREP:
		return m.DREP.Validate()
	case AttrSIDRREQ:
		return m.SIDRREQ.Validate()
	case AttrSIDRREP:
		return m.SIDRREP.Validate()
	case AttrLAP:
		return m.LAP.Validate()
	case AttrAPR:
		return m.APR.Validate()
	}
	return ErrAttribute
}

// AppendBinary implements [encoding.BinaryAppender]: Validate, then AppendTo.
func (m *Message) AppendBinary(dst []byte) ([]byte, error) {
	if err := m.Validate(); err != nil {
		return dst, err
	}
	return m.AppendTo(dst), nil
}

// UnmarshalBinary implements [encoding.BinaryUnmarshaler]; b has exactly Size
// bytes. As that interface asks, and other than Decode, it copies b.
func (m *Message) UnmarshalBinary(b []byte) error {
	if len(b) > Size {
		return ErrLength
	}
	return m.Decode(append([]byte(nil), b...))
}

var zeros [DataSize]byte

// appendData appends n bytes: as much of data as fits, then zeros.
func appendData(dst, data []byte, n int) []byte {
	if len(data) > n {
		data = data[:n]
	}
	dst = append(dst, data...)
	return append(dst, zeros[:n-len(data)]...)
}

// append24 appends the low 24 bits of v and the byte that shares their word.
func append24(dst []byte, v uint32, low uint8) []byte {
	return binary.BigEndian.AppendUint32(dst, v<<8|uint32(low))
}

func uint24(b []byte) uint32 { return uint32(b[0])<<16 | uint32(b[1])<<8 | uint32(b[2]) }

const max24 = 1<<24 - 1

// bit returns v as a bit at position n.
func bit(v bool, n uint) uint8 {
	if v {
		return 1 << n
	}
	return 0
}

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
