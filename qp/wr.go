package qp

import "strconv"

// Type is the kind of a queue pair, as enum ibv_qp_type has it.
type Type uint8

// Kinds of queue pair.
const (
	RC      Type = iota // reliable connection
	UC                  // unreliable connection
	UD                  // unreliable datagram
	XRCSend             // XRC initiator: sends requests to the SRQs of a target
	XRCRecv             // XRC target: requests consume receives of XRC SRQs
)

var typeNames = [...]string{"RC", "UC", "UD", "XRC_SEND", "XRC_RECV"}

// String returns the name of t.
func (t Type) String() string { return name(typeNames[:], int(t)) }

func name(names []string, i int) string {
	if i < len(names) {
		return names[i]
	}
	return strconv.Itoa(i)
}

// Op is the operation of a work request.
type Op uint8

// Operations. The numbers have no meaning on the wire.
const (
	OpSend Op = iota
	OpSendImm
	OpSendInv // invalidates the key RKey of the peer: fence it behind a READ of that window (rule RQ-08)
	OpWrite
	OpWriteImm
	OpRead
	OpCmpSwap
	OpFetchAdd
	OpAtomicWrite
	OpFlush
	OpBindMW    // local: binds a type 2 window, see SendWR.Region
	OpLocalInv  // local: invalidates a window of this host
	OpRecv      // in completions: a SEND was received
	OpRecvWrite // in completions: a RDMA WRITE with immediate was received
)

var opNames = [...]string{"SEND", "SEND_WITH_IMM", "SEND_WITH_INV", "RDMA_WRITE", "RDMA_WRITE_WITH_IMM",
	"RDMA_READ", "ATOMIC_CMP_AND_SWP", "ATOMIC_FETCH_AND_ADD", "ATOMIC_WRITE", "FLUSH", "BIND_MW", "LOCAL_INV",
	"RECV", "RECV_RDMA_WITH_IMM"}

// String returns the name of o in the manner of ibv_wr_opcode and ibv_wc_opcode.
func (o Op) String() string { return name(opNames[:], int(o)) }

// hasResponse reports whether o has a response of its own, which an acknowledgement does
// not replace: READ, ATOMIC, and ATOMIC WRITE and FLUSH, whose response is an empty READ
// response. These are what max_rd_atomic limits.
func (o Op) hasResponse() bool { return o >= OpRead && o <= OpFlush }

// local reports whether o is executed here, without a packet.
func (o Op) local() bool { return o == OpBindMW || o == OpLocalInv }

// takesReceive reports whether o consumes a receive at the peer.
func (o Op) takesReceive() bool { return o <= OpSendInv || o == OpWriteImm }

// Flags modify a work request.
type Flags uint8

// Work request flags, as enum ibv_send_flags.
const (
	Signaled  Flags = 1 << iota // complete with a completion also on success
	Fence                       // wait until all earlier READs and ATOMICs are complete
	Solicited                   // ask for an event at the receiver
	Inline                      // copy the data when posted
)

// SendWR is a work request for the send queue.
type SendWR struct {
	ID    uint64 // the caller's, returned in the completion
	Op    Op
	Flags Flags

	// Fail, where not Success, is the status with which the request completes in its turn,
	// without being executed; the QP goes to Error (UC and UD: SQE). It is for callers that
	// detect themselves a fault which a card would detect.
	Fail Status

	FlushRegion      bool   // FLUSH: the whole region, not the range
	FlushPersistence bool   // FLUSH: to persistence; else to global visibility
	Access           Access // OpBindMW: the rights that the window gives

	// Local is the data to send, read when each packet is built; or where the result of a
	// READ or ATOMIC goes (8 bytes, little-endian, for an ATOMIC). It must stay unchanged,
	// or untouched, until the request completes. Where Gather is not nil, it replaces
	// Local: its slices one after the other. Each packet goes through the list from its
	// start: keep it short.
	Local  []byte
	Gather [][]byte
	// SGEs, where not nil, replace both: memory named by key, of a Memory that is a
	// [LocalMemory]. It is looked up when each packet is built or placed; a key or range
	// that is refused ends the request with LocalProtErr (rule RQ-11). The list itself must
	// stay unchanged too.
	SGEs []SGE

	RemoteAddr uint64 // WRITE, READ, ATOMIC, FLUSH: virtual address at the peer, bytes
	CompareAdd uint64 // OpCmpSwap: compared with; OpFetchAdd: added
	Swap       uint64 // OpCmpSwap: stored when equal
	RKey       uint32 // WRITE, READ, ATOMIC, FLUSH; the key to invalidate for OpSendInv and OpLocalInv; the window for OpBindMW
	Imm        uint32 // OpSendImm, OpWriteImm: as the wire's four bytes read big-endian
	Length     uint32 // FLUSH: bytes to flush; OpBindMW: bytes of the window

	// OpBindMW: window RKey is bound to Length bytes at RemoteAddr of region Region, with
	// the rights Access, for this QP. Its key becomes IncRKey(RKey). NewRKey, where not 0,
	// is its new key instead.
	Region  uint32
	NewRKey uint32

	SRQ uint32 // XRC: the SRQ at the target

	// UD: the destination. Other QPs ignore it.
	RemoteQPN  uint32
	RemoteQKey uint32
	AH         *AddressHandle
}

// RecvWR is a work request for a receive queue: memory for one message.
type RecvWR struct {
	ID      uint64 // the caller's, returned in the completion
	Local   []byte
	Scatter [][]byte // where not nil, replaces Local: its slices one after the other
	SGEs    []SGE    // where not nil, replace both: see [SendWR]
}

// Status is how a work request ended, as enum ibv_wc_status has it.
type Status uint8

// Statuses.
const (
	Success Status = iota
	LocalLengthErr
	LocalQPOpErr
	LocalProtErr
	LocalAccessErr
	WRFlushErr
	BadRespErr
	RemoteInvalidReqErr
	RemoteAccessErr
	RemoteOpErr
	RetryExcErr
	RNRRetryExcErr
	MWBindErr // a bind or a local invalidate that the Memory refused
)

var statusNames = [...]string{"success", "local length error", "local QP operation error",
	"local protection error", "local access error", "work request flushed error", "bad response error",
	"remote invalid request error", "remote access error", "remote operation error",
	"transport retry counter exceeded", "RNR retry counter exceeded", "memory bind error"}

// String returns the name of s in the words of ibv_wc_status_str.
func (s Status) String() string { return name(statusNames[:], int(s)) }

// Completion says how a work request ended. On an error only ID, Status, Op and QPN are
// valid.
type Completion struct {
	ID     uint64
	Status Status
	Op     Op

	QPN     uint32 // the local QP
	SrcQP   uint32 // UD receives: the sender's QP
	SRQ     uint32 // XRC receives: the SRQ that the receive came from
	ByteLen uint32 // bytes of the message; receives, READs and ATOMICs

	Imm       uint32 // valid where HasImm
	InvRKey   uint32 // valid where HasInv: the key that the peer invalidated
	HasImm    bool
	HasInv    bool
	Solicited bool // a receive whose sender asked for an event
	GRH       bool // UD receives: the first 40 bytes of the buffer are the GRH area
}

// AHAttr is the address of a peer, as ibv_ah_attr is. A port uses it (package softnic);
// this package only carries it.
type AHAttr struct {
	GID          [16]byte // destination; IPv4 as ::ffff:a.b.c.d
	SGIDIndex    uint8    // row of the local GID table
	TrafficClass uint8    // DSCP 6 bits, ECN 2
	HopLimit     uint8    // 0 means 64
	FlowLabel    uint32   // 20 bits; 0: derived from the QP numbers, for the UDP source port
	MAC          [6]byte  // destination Ethernet address; zero: the port resolves it
	VLAN         uint16   // tag control information; valid where HasVLAN
	HasVLAN      bool
}

// AddressHandle is the destination of datagrams (ibv_ah). It cannot be changed once
// created, so that any number of work requests may share it.
type AddressHandle struct{ attr AHAttr }

// NewAddressHandle returns the handle of a. A port has CreateAH, which checks a first.
func NewAddressHandle(a AHAttr) *AddressHandle { return &AddressHandle{attr: a} }

// Attr returns the attributes that h was created with.
func (h *AddressHandle) Attr() AHAttr { return h.attr }
