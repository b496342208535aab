package endpoint

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"syscall"

	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/cm"
)

// ErrDisconnected means that the peer has ended the connection. It is io.EOF.
var ErrDisconnected error = disconnected{}

type disconnected struct{}

func (disconnected) Error() string        { return "endpoint: the peer has ended the connection" }
func (disconnected) Is(target error) bool { return target == io.EOF || target == syscall.ECONNRESET }

// OpError says why a request failed; its connection has failed with it.
type OpError struct {
	Op     string // of the request, in the words of verbs
	Peer   netip.AddrPort
	Status qp.Status
	// TooLong is set when the link refused packets during the connection, because its MTU
	// is smaller than when the endpoint was opened.
	TooLong bool
}

// opError is called with the lock held.
func (c *Conn) opError(op string, s qp.Status) error {
	return &OpError{Op: op, Peer: c.remote, Status: s, TooLong: c.e.counted.TooLong != c.tooLong}
}

var statusSentences = map[qp.Status]string{
	qp.LocalLengthErr:      "the message is longer than the receive: raise RecvSize",
	qp.LocalQPOpErr:        "the queue pair failed here",
	qp.LocalProtErr:        "local memory does not allow it",
	qp.WRFlushErr:          "the connection ended before the request was complete",
	qp.BadRespErr:          "the peer's response does not match the request",
	qp.RemoteInvalidReqErr: "the peer found the request invalid: the message may be longer than its receive, or the operation not enabled",
	qp.RemoteAccessErr:     "the peer's memory does not allow it: check R_Key, address, length and rights",
	qp.RemoteOpErr:         "the peer could not complete the operation",
	qp.RetryExcErr:         "the peer does not respond: it, or the network, may be down",
	qp.RNRRetryExcErr:      "the peer had no receive posted for too long",
}

// Error returns the status with a sentence.
func (e *OpError) Error() string {
	s := statusSentences[e.Status]
	if e.Status == qp.RetryExcErr && e.TooLong {
		s = errTooBig.Error()
	}
	return fmt.Sprintf("endpoint: %s with %v: %v: %s", e.Op, e.Peer, e.Status, s)
}

// Is reports whether target is the standard error of e's kind.
func (e *OpError) Is(target error) bool {
	switch e.Status {
	case qp.RetryExcErr:
		return target == syscall.ETIMEDOUT
	case qp.RemoteAccessErr, qp.LocalProtErr:
		return target == syscall.EACCES
	case qp.LocalLengthErr:
		return target == io.ErrShortBuffer
	case qp.RNRRetryExcErr:
		return target == syscall.ENOBUFS
	}
	return false
}

// RejectedError says why a request for a connection was refused. Decide returns one to
// choose reason and private data.
type RejectedError struct {
	Peer        netip.AddrPort
	Reason      cm.Reason
	Local       bool   // refused here
	PrivateData []byte // of the refusing program, 148 bytes
}

// Error returns the reason with a sentence.
func (e *RejectedError) Error() string {
	by := "the peer"
	if e.Local {
		by = "this side"
	}
	return fmt.Sprintf("refused by %s, reason %d (%v): %s", by, uint16(e.Reason), e.Reason, e.Reason.Sentence())
}

// Is reports whether target is syscall.ECONNREFUSED.
func (e *RejectedError) Is(target error) bool { return target == syscall.ECONNREFUSED }

// UnreachableError means that no response came to a request for a connection.
type UnreachableError struct{ Peer netip.AddrPort }

// Error says what to check.
func (e *UnreachableError) Error() string {
	return "no response: check the address, that a RoCE device is up there, and that UDP port 4791 is not filtered"
}

// Is reports whether target is syscall.EHOSTUNREACH.
func (e *UnreachableError) Is(target error) bool { return target == syscall.EHOSTUNREACH }

var errNoContext = errors.New("endpoint: the context is nil: use context.Background(), or one with a deadline")

// begun returns an error for a context with which nothing can begin.
func begun(ctx context.Context) error {
	if ctx == nil {
		return errNoContext
	}
	return context.Cause(ctx)
}

var errTooBig = errors.New("a packet is larger than the link's MTU: choose a smaller path MTU")
