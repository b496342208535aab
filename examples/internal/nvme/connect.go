package nvme

import "fmt"

// Sizes of the private data of RDMA-CM messages (RDMA 3).
const (
	ConnectRequestSize = 32 // REQ
	ConnectReplySize   = 32 // REP
	ConnectRejectSize  = 4  // REJ
)

// ConnectRequest is the private data of the REQ: which queue a connection is to be.
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

// ConnectStatus says why a connection was refused.
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

// String returns words for the status.
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

// NQNSize is the room for a name, which ends with a zero byte.
const NQNSize = 256

// Decode reads the data. A name that does not end within its room is empty.
func (d *ConnectData) Decode(b []byte) error {
	if len(b) < ConnectDataSize {
		return ErrShort
	}
	*d = ConnectData{HostID: [16]byte(b), CntlID: le.Uint16(b[16:]), SubNQN: text(b[256:512]), HostNQN: text(b[512:768])}
	return nil
}

// text returns what stands before the first zero byte.
func text(b []byte) string {
	for i, c := range b {
		if c == 0 {
			return string(b[:i])
		}
	}
	return ""
}

// AppendTo appends ConnectDataSize bytes. Names are cut to their room.
func (d *ConnectData) AppendTo(b []byte) []byte {
	var x [ConnectDataSize]byte
	copy(x[:], d.HostID[:])
	le.PutUint16(x[16:], d.CntlID)
	copy(x[256:511], d.SubNQN)
	copy(x[512:767], d.HostNQN)
	return append(b, x[:]...)
}
