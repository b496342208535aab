package qp

import "github.com/roce-go/roce/bth"

// message is the kind of the message that a responder is receiving.
type message uint8

const (
	noMessage message = iota
	sendMessage
	writeMessage
)

// inbound is the message that a responder is receiving.
//
// Invariant: of a WRITE got <= want <= 2^31. got, want, rkey and va mean nothing
// while kind is noMessage.
type inbound struct {
	va       uint64 // WRITE
	got      uint32 // bytes so far
	want     uint32 // WRITE: its DMA length
	rkey     uint32 // WRITE
	srq      uint32 // XRC: the SRQ that the message names
	pd       PD     // of the memory that the message may access: the SRQ's, where that has one of its own
	kind     message
	skipping bool // UC: until the next message begins
}

// inSequence checks rule RS-05.
func (m *inbound) inSequence(op bth.Opcode) bool {
	inside := op.Middle() || op.Last()
	switch m.kind {
	case sendMessage:
		return inside && op.Send()
	case writeMessage:
		return inside && op.Write()
	}
	return !inside
}
