package qp

import (
	"errors"
	"fmt"
)

// Errors of calls: the caller's fault, with nothing changed. The error that a call returns
// may wrap one of these and say more: compare with errors.Is.
var (
	// ErrConfig means that a value of a Config is out of range.
	ErrConfig = errors.New("qp: configuration value out of range")
	// ErrRange means that an attribute, a number of a work request or an address
	// range is out of range.
	ErrRange = errors.New("qp: value out of range")
	// ErrQueueFull means that a work queue has no room.
	ErrQueueFull = errors.New("qp: work queue full")
	// ErrState means that the QP's state does not allow the call.
	ErrState = errors.New("qp: not in this state")
	// ErrOp means that this kind of QP has no such operation.
	ErrOp = errors.New("qp: operation not available on this kind of QP")
	// ErrNoAH means a datagram without an address handle.
	ErrNoAH = errors.New("qp: datagram without an address handle (SendWR.AH is nil)")
	// ErrLength means that a message is too long, or local memory too short for
	// the result.
	ErrLength = errors.New("qp: length out of range")
	// ErrAlign means that an atomic's address is no multiple of 8.
	ErrAlign = errors.New("qp: atomic address not a multiple of 8")
	// ErrInline means more inline data than Config.MaxInline.
	ErrInline = errors.New("qp: too much inline data")
	// ErrSRQ means a receive posted to a QP that has an SRQ, or to an XRC target.
	ErrSRQ = errors.New("qp: receives of this QP are posted to its SRQ")
	// ErrNil means a nil argument.
	ErrNil = errors.New("qp: nil work request or attributes")
	// ErrZero means a QP that was not created by New.
	ErrZero = errors.New("qp: this QP was not created by New")
)

// RangeError names a value that is out of range, and the range. It is an
// [ErrConfig] for a value of a Config, else an [ErrRange].
type RangeError struct {
	Field           string
	Value, Min, Max int64
	kind            error
}

// Error implements error.
func (e *RangeError) Error() string {
	return fmt.Sprintf("qp: %s is %d, want %d to %d", e.Field, e.Value, e.Min, e.Max)
}

// Unwrap returns ErrConfig or ErrRange.
func (e *RangeError) Unwrap() error { return e.kind }

// detailed is an error with a text of its own that wraps a kind.
type detailed struct {
	kind error
	text string
}

func (e detailed) Error() string { return e.text }
func (e detailed) Unwrap() error { return e.kind }

// Errors of work requests. They are allocated once: no call of a machine allocates.
var (
	errSendFull    error = detailed{ErrQueueFull, "qp: send queue full (MaxSendWR)"}
	errRecvFull    error = detailed{ErrQueueFull, "qp: receive queue full (MaxRecvWR)"}
	errMessage     error = detailed{ErrLength, "qp: message longer than 2^31 bytes"}
	errAtomicLocal error = detailed{ErrLength, "qp: Local is shorter than the 8 bytes of an ATOMIC's result"}
	errAtomicWrite error = detailed{ErrLength, "qp: Local of an ATOMIC WRITE is not 8 bytes"}
	errReadPSNs    error = detailed{ErrLength, "qp: READ of 2^23 or more packets"}
	errDatagram    error = detailed{ErrLength, "qp: datagram longer than the path MTU"}
	errNoRd        error = detailed{ErrOp, "qp: max_rd_atomic is 0: READ, ATOMIC, ATOMIC WRITE and FLUSH are not available"}
	errNoBinder    error = detailed{ErrOp, "qp: the Memory of this QP has no windows (it is no Binder)"}
	errNoLocal     error = detailed{ErrOp, "qp: the Memory of this QP has no local keys (it is no LocalMemory)"}
	errInlineKey   error = detailed{ErrInline, "qp: inline data in memory that its key does not grant"}
	errRemoteQPN   error = detailed{ErrRange, "qp: RemoteQPN is above 0xffffff"}
	errSRQNumber   error = detailed{ErrRange, "qp: SRQ is above 0xffffff"}
)

// maxQPN is the highest QP and SRQ number: they have 24 bits.
const maxQPN = 0xffffff

// defaultPKey is the full member of the default partition.
const defaultPKey = 0xffff

// stateErrors has the errors of calls that a state does not allow.
var stateErrors = func() (e [2][Error + 1]error) {
	for c, call := range [...]string{callPostSend: "PostSend", callPostRecv: "PostRecv"} {
		for s := range e[c] {
			e[c][s] = detailed{ErrState, "qp: " + call + " in " + State(s).String()}
		}
	}
	return e
}()

const (
	callPostSend = iota
	callPostRecv
)
