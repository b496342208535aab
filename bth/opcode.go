package bth

import "strconv"

// Opcode is the first byte of a BTH: the service in the top three bits, the
// operation in the other five.
//
// InfiniBand Architecture Volume 1, clause 9.2.1, Annex A17 (CNP) and Annex A19
// (FLUSH, ATOMIC WRITE).
type Opcode uint8

// Service is the transport service of an opcode, its top three bits.
type Service uint8

// Transport services.
const (
	RC            Service = iota // reliable connection
	UC                           // unreliable connection
	RD                           // reliable datagram
	UD                           // unreliable datagram
	CNPService                   // congestion notification, opcode 0x81 only
	XRC                          // extended reliable connection
	Manufacturer6                // opcodes 0xC0 .. 0xDF, for manufacturers
	Manufacturer7                // opcodes 0xE0 .. 0xFF, for manufacturers
)

var serviceNames = [...]string{"RC", "UC", "RD", "UD", "CNP", "XRC", "MANUF6", "MANUF7"}

// String returns the name of s, or its decimal value if it is not a defined service.
func (s Service) String() string {
	if int(s) < len(serviceNames) {
		return serviceNames[s]
	}
	return strconv.Itoa(int(s))
}

// Operation is the low five bits of an opcode, as RC numbers them.
type Operation uint8

// Operations.
const (
	SendFirst               Operation = 0x00
	SendMiddle              Operation = 0x01
	SendLast                Operation = 0x02
	SendLastImm             Operation = 0x03
	SendOnly                Operation = 0x04
	SendOnlyImm             Operation = 0x05
	WriteFirst              Operation = 0x06
	WriteMiddle             Operation = 0x07
	WriteLast               Operation = 0x08
	WriteLastImm            Operation = 0x09
	WriteOnly               Operation = 0x0a
	WriteOnlyImm            Operation = 0x0b
	ReadRequest             Operation = 0x0c
	ReadResponseFirst       Operation = 0x0d
	ReadResponseMiddle      Operation = 0x0e
	ReadResponseLast        Operation = 0x0f
	ReadResponseOnly        Operation = 0x10
	Acknowledge             Operation = 0x11
	AtomicAcknowledge       Operation = 0x12
	CmpSwap                 Operation = 0x13
	FetchAdd                Operation = 0x14
	Resync                  Operation = 0x15 // RD only
	SendLastInv             Operation = 0x16
	SendOnlyInv             Operation = 0x17
	Flush                   Operation = 0x1c
	AtomicWrite             Operation = 0x1d
	cnpOperation            Operation = 0x01
	lastRDOperation                   = Resync
	lastUnreliableConnected           = WriteOnlyImm
)

// Opcode returns the opcode of operation o of service s. It need not be one
// that is defined: see [Opcode.Known].
func (s Service) Opcode(o Operation) Opcode { return Opcode(s)<<5 | Opcode(o)&0x1f }

// Opcodes of the services that RoCE devices use, by their common names.
const (
	RCSendFirst          = Opcode(RC)<<5 | Opcode(SendFirst)
	RCSendMiddle         = Opcode(RC)<<5 | Opcode(SendMiddle)
	RCSendLast           = Opcode(RC)<<5 | Opcode(SendLast)
	RCSendLastImm        = Opcode(RC)<<5 | Opcode(SendLastImm)
	RCSendOnly           = Opcode(RC)<<5 | Opcode(SendOnly)
	RCSendOnlyImm        = Opcode(RC)<<5 | Opcode(SendOnlyImm)
	RCWriteFirst         = Opcode(RC)<<5 | Opcode(WriteFirst)
	RCWriteMiddle        = Opcode(RC)<<5 | Opcode(WriteMiddle)
	RCWriteLast          = Opcode(RC)<<5 | Opcode(WriteLast)
	RCWriteLastImm       = Opcode(RC)<<5 | Opcode(WriteLastImm)
	RCWriteOnly          = Opcode(RC)<<5 | Opcode(WriteOnly)
	RCWriteOnlyImm       = Opcode(RC)<<5 | Opcode(WriteOnlyImm)
	RCReadRequest        = Opcode(RC)<<5 | Opcode(ReadRequest)
	RCReadResponseFirst  = Opcode(RC)<<5 | Opcode(ReadResponseFirst)
	RCReadResponseMiddle = Opcode(RC)<<5 | Opcode(ReadResponseMiddle)
	RCReadResponseLast   = Opcode(RC)<<5 | Opcode(ReadResponseLast)
	RCReadResponseOnly   = Opcode(RC)<<5 | Opcode(ReadResponseOnly)
	RCAcknowledge        = Opcode(RC)<<5 | Opcode(Acknowledge)
	RCAtomicAcknowledge  = Opcode(RC)<<5 | Opcode(AtomicAcknowledge)
	RCCmpSwap            = Opcode(RC)<<5 | Opcode(CmpSwap)
	RCFetchAdd           = Opcode(RC)<<5 | Opcode(FetchAdd)
	RCSendLastInv        = Opcode(RC)<<5 | Opcode(SendLastInv)
	RCSendOnlyInv        = Opcode(RC)<<5 | Opcode(SendOnlyInv)
	RCFlush              = Opcode(RC)<<5 | Opcode(Flush)
	RCAtomicWrite        = Opcode(RC)<<5 | Opcode(AtomicWrite)

	UCSendOnly  = Opcode(UC)<<5 | Opcode(SendOnly)
	UCWriteOnly = Opcode(UC)<<5 | Opcode(WriteOnly)

	UDSendOnly    = Opcode(UD)<<5 | Opcode(SendOnly)
	UDSendOnlyImm = Opcode(UD)<<5 | Opcode(SendOnlyImm)

	CNP = Opcode(CNPService)<<5 | Opcode(cnpOperation) // 0x81, congestion notification packet
)

// Ext is a set of the headers that may follow a BTH.
type Ext uint16

// Extended headers. Those of one packet stand in this order on the wire, except that ImmDt
// and IETH, the last two, never occur together.
const (
	HasRDETH Ext = 1 << iota
	HasDETH
	HasXRCETH
	HasFETH
	HasRETH
	HasAtomicETH
	HasAETH
	HasAtomicAckETH
	HasImmDt
	HasIETH
)

// Class is which side of a connection sends an opcode.
type Class uint8

// Classes of opcode.
const (
	Unknown      Class = iota // reserved: no layout is defined
	Request                   // sent by a requester
	Response                  // sent by a responder
	Notification              // CNP
	Vendor                    // for manufacturers: no layout is defined
)

var classNames = [...]string{"reserved", "request", "response", "notification", "manufacturer"}

// String returns the name of c, or its decimal value if it is not a defined class.
func (c Class) String() string {
	if int(c) < len(classNames) {
		return classNames[c]
	}
	return strconv.Itoa(int(c))
}

// PayloadRule says how much payload a packet may carry at a path MTU of M bytes.
type PayloadRule uint8

// Payload rules.
const (
	NoPayload   PayloadRule = iota // none
	UpToMTU                        // 0 .. M: Only packets
	OneToMTU                       // 1 .. M: Last packets
	ExactlyMTU                     // M: First and Middle packets
	EightBytes                     // 8: ATOMIC WRITE
	SixteenZero                    // 16 bytes of zero: CNP
)

type opcodeInfo struct {
	name    string
	ext     Ext
	class   Class
	payload PayloadRule
	size    uint8 // BTH and extended headers, bytes
	part    part
}

// part is a set: which place in which message the packets of an opcode have. It is empty
// for opcodes that are not known, and for CNP.
type part uint8

const (
	partFirst part = 1 << iota
	partMiddle
	partLast
	partSend
	partWrite
	partReadResponse
)

// parts has the operations of each part.
var parts = [...]uint32{
	1<<SendFirst | 1<<WriteFirst | 1<<ReadResponseFirst,
	1<<SendMiddle | 1<<WriteMiddle | 1<<ReadResponseMiddle,
	1<<SendLast | 1<<SendLastImm | 1<<SendLastInv | 1<<WriteLast | 1<<WriteLastImm | 1<<ReadResponseLast,
	1<<SendFirst | 1<<SendMiddle | 1<<SendLast | 1<<SendLastImm | 1<<SendOnly | 1<<SendOnlyImm | 1<<SendLastInv | 1<<SendOnlyInv,
	1<<WriteFirst | 1<<WriteMiddle | 1<<WriteLast | 1<<WriteLastImm | 1<<WriteOnly | 1<<WriteOnlyImm,
	1<<ReadResponseFirst | 1<<ReadResponseMiddle | 1<<ReadResponseLast | 1<<ReadResponseOnly,
}

// layout is what decoding looks up, in one load: the size of opcodeInfo in bits
// 7..0, the number of bytes of payload in bits 15..8 (or anyPayload), the
// extended headers in bits 31..16.
type layout uint32

const anyPayload = 0xff

func (l layout) size() int    { return int(l & 0xff) }
func (l layout) payload() int { return int(l >> 8 & 0xff) }
func (l layout) ext() Ext     { return Ext(l >> 16) }

var layouts = func() (t [256]layout) {
	for i, e := range opcodes {
		payload := layout(anyPayload)
		switch e.payload {
		case NoPayload:
			payload = 0
		case EightBytes:
			payload = 8
		case SixteenZero:
			payload = CNPReserved
		}
		t[i] = layout(e.ext)<<16 | payload<<8 | layout(e.size)
	}
	return t
}()

var operations = [32]opcodeInfo{
	SendFirst:          {name: "SEND_FIRST", class: Request, payload: ExactlyMTU},
	SendMiddle:         {name: "SEND_MIDDLE", class: Request, payload: ExactlyMTU},
	SendLast:           {name: "SEND_LAST", class: Request, payload: OneToMTU},
	SendLastImm:        {name: "SEND_LAST_WITH_IMMEDIATE", class: Request, payload: OneToMTU, ext: HasImmDt},
	SendOnly:           {name: "SEND_ONLY", class: Request, payload: UpToMTU},
	SendOnlyImm:        {name: "SEND_ONLY_WITH_IMMEDIATE", class: Request, payload: UpToMTU, ext: HasImmDt},
	WriteFirst:         {name: "RDMA_WRITE_FIRST", class: Request, payload: ExactlyMTU, ext: HasRETH},
	WriteMiddle:        {name: "RDMA_WRITE_MIDDLE", class: Request, payload: ExactlyMTU},
	WriteLast:          {name: "RDMA_WRITE_LAST", class: Request, payload: OneToMTU},
	WriteLastImm:       {name: "RDMA_WRITE_LAST_WITH_IMMEDIATE", class: Request, payload: OneToMTU, ext: HasImmDt},
	WriteOnly:          {name: "RDMA_WRITE_ONLY", class: Request, payload: UpToMTU, ext: HasRETH},
	WriteOnlyImm:       {name: "RDMA_WRITE_ONLY_WITH_IMMEDIATE", class: Request, payload: UpToMTU, ext: HasRETH | HasImmDt},
	ReadRequest:        {name: "RDMA_READ_REQUEST", class: Request, ext: HasRETH},
	ReadResponseFirst:  {name: "RDMA_READ_RESPONSE_FIRST", class: Response, payload: ExactlyMTU, ext: HasAETH},
	ReadResponseMiddle: {name: "RDMA_READ_RESPONSE_MIDDLE", class: Response, payload: ExactlyMTU},
	ReadResponseLast:   {name: "RDMA_READ_RESPONSE_LAST", class: Response, payload: OneToMTU, ext: HasAETH},
	ReadResponseOnly:   {name: "RDMA_READ_RESPONSE_ONLY", class: Response, payload: UpToMTU, ext: HasAETH},
	Acknowledge:        {name: "ACKNOWLEDGE", class: Response, ext: HasAETH},
	AtomicAcknowledge:  {name: "ATOMIC_ACKNOWLEDGE", class: Response, ext: HasAETH | HasAtomicAckETH},
	CmpSwap:            {name: "COMPARE_SWAP", class: Request, ext: HasAtomicETH},
	FetchAdd:           {name: "FETCH_ADD", class: Request, ext: HasAtomicETH},
	Resync:             {name: "RESYNC", class: Request},
	SendLastInv:        {name: "SEND_LAST_WITH_INVALIDATE", class: Request, payload: OneToMTU, ext: HasIETH},
	SendOnlyInv:        {name: "SEND_ONLY_WITH_INVALIDATE", class: Request, payload: UpToMTU, ext: HasIETH},
	Flush:              {name: "FLUSH", class: Request, ext: HasFETH | HasRETH},
	AtomicWrite:        {name: "ATOMIC_WRITE", class: Request, payload: EightBytes, ext: HasRETH},
}

// opcodes is filled once, before any packet is looked at.
var opcodes = func() (t [256]opcodeInfo) {
	for i := range t {
		op := Opcode(i)
		e := &t[i]
		*e = operations[op.Operation()]
		e.name = op.Service().String() + "_" + e.name
		known := e.class != Unknown
		switch op.Service() {
		case RC:
			known = known && op.Operation() != Resync
		case UC:
			known = op.Operation() <= lastUnreliableConnected
		case RD:
			known = op.Operation() <= lastRDOperation
			e.ext |= HasRDETH
			if e.class == Request {
				e.ext |= HasDETH
			}
		case UD:
			known = op.Operation() == SendOnly || op.Operation() == SendOnlyImm
			e.ext |= HasDETH
		case CNPService:
			known = op == CNP
			*e = opcodeInfo{name: "CNP", class: Notification, payload: SixteenZero}
		case XRC:
			known = op.Operation() <= FetchAdd || op.Operation() == SendLastInv || op.Operation() == SendOnlyInv
			if e.class == Request {
				e.ext |= HasXRCETH
			}
		case Manufacturer6, Manufacturer7:
			*e = opcodeInfo{class: Vendor, name: "MANUFACTURER_" + hex(i)}
			continue
		}
		if !known {
			*e = opcodeInfo{name: "RESERVED_" + hex(i)}
			continue
		}
		e.size = Size + uint8(e.ext.Size())
		for k, operations := range parts {
			if op != CNP && operations>>op.Operation()&1 != 0 {
				e.part |= 1 << k
			}
		}
	}
	return t
}()

func hex(i int) string { return "0x" + strconv.FormatInt(int64(i), 16) }

// Service returns the transport service.
func (o Opcode) Service() Service { return Service(o >> 5) }

// Operation returns the low five bits.
func (o Opcode) Operation() Operation { return Operation(o & 0x1f) }

// Class returns who sends o, or that it is reserved or a manufacturer's.
func (o Opcode) Class() Class { return opcodes[o].class }

// Known reports whether the layout of o's packets is defined.
func (o Opcode) Known() bool { return opcodes[o].size != 0 }

// Ext returns the extended headers that follow the BTH.
func (o Opcode) Ext() Ext { return opcodes[o].ext }

// HeaderSize returns the length in bytes of BTH and extended headers, and 0 when
// o is not known.
func (o Opcode) HeaderSize() int { return int(opcodes[o].size) }

// Payload returns how much payload packets with o carry.
func (o Opcode) Payload() PayloadRule { return opcodes[o].payload }

// First reports whether o begins a message of several packets.
func (o Opcode) First() bool { return opcodes[o].part&partFirst != 0 }

// Middle reports whether o is a packet in the middle of a message of several.
func (o Opcode) Middle() bool { return opcodes[o].part&partMiddle != 0 }

// Last reports whether o ends a message of several packets.
func (o Opcode) Last() bool { return opcodes[o].part&partLast != 0 }

// Send reports whether o belongs to a SEND.
func (o Opcode) Send() bool { return opcodes[o].part&partSend != 0 }

// Write reports whether o belongs to a RDMA WRITE. ATOMIC WRITE does not.
func (o Opcode) Write() bool { return opcodes[o].part&partWrite != 0 }

// ReadResponse reports whether o is one of the four RDMA READ responses.
func (o Opcode) ReadResponse() bool { return opcodes[o].part&partReadResponse != 0 }

// String returns the name of o in the manner of the Linux kernel's
// IB_OPCODE_..., for example "RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE". Opcodes
// without a meaning give "RESERVED_0x1f" or "MANUFACTURER_0xc0".
func (o Opcode) String() string { return opcodes[o].name }
