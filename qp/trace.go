package qp

import (
	"log/slog"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
)

// Trace says what became of a packet that was not simply accepted: it was dropped, refused,
// responded to once more, or showed that something was lost. It is the argument of
// [Config.Trace], and a [slog.LogValuer].
type Trace struct {
	QPN      uint32 // of the QP that the packet was handed to
	Verdict  Verdict
	Reason   Reason
	Opcode   bth.Opcode
	PSN      psn.PSN
	Expected uint32 // PSN: expected next of requests, oldest unacknowledged for responses
}

// LogValue implements [slog.LogValuer].
func (t Trace) LogValue() slog.Value {
	return slog.GroupValue(
		slog.Uint64("qpn", uint64(t.QPN)),
		slog.String("verdict", t.Verdict.String()),
		slog.String("reason", t.Reason.String()),
		slog.String("opcode", t.Opcode.String()),
		slog.Uint64("psn", uint64(t.PSN)),
		slog.Uint64("expected", uint64(t.Expected)),
	)
}

// Reason says why a packet was dropped or refused, or what it showed.
type Reason uint8

// Reasons.
const (
	WhyNone       Reason = iota
	WhyTVer              // transport version other than 0
	WhyQPN               // for another QP
	WhyOpcode            // opcode that is not of this service
	WhyPKey              // P_Key of another partition
	WhyState             // the QP accepts no packets in its state
	WhyWrongSide         // a request for a QP that only sends, or a response for one that only receives
	WhyQKey              // Q_Key of another QP
	WhyOld               // PSN before the expected one, or before the oldest unacknowledged
	WhyGap               // PSN beyond the expected one
	WhyHeld              // as WhyGap, and the packet is held until what is before it has arrived
	WhySkipping          // UC: the rest of a message that lost a packet
	WhySequence          // opcode that may not follow the one before
	WhyLength            // payload length that the opcode, the path MTU or the DMA length does not allow
	WhyRights            // operation that the QP does not allow
	WhyRKey              // R_Key unknown, of another owner, without the right, or range outside
	WhyAlign             // atomic at an address that is not a multiple of 8
	WhyResources         // more READs and ATOMICs than max_dest_rd_atomic
	WhySRQ               // XRC: no such SRQ, or another than the message began with
	WhyNoReceive         // no receive posted, or completions that wait to be polled
	WhyRecvLength        // receive shorter than the message
	WhyInvalidate        // R_Key that may not be invalidated
	WhyForgotten         // duplicate of what is not remembered
	WhyNeverSent         // acknowledgement of a PSN that was never sent
	WhySyndrome          // reserved syndrome or NAK code
	WhyLost              // a response that shows an earlier one to be lost
	WhyRecovering        // the loss is known, and its packets are being sent again
	WhyResponse          // response of the wrong opcode or length
	WhyNak               // NAK of the peer
	WhyRNR               // RNR NAK of the peer, or a packet during its wait
	WhyLocal             // an SGE that the local memory refuses
)

var reasonNames = [...]string{"", "transport version", "QP number", "opcode", "P_Key", "state", "wrong side", "Q_Key", "old PSN",
	"PSN gap", "held", "skipping", "opcode sequence", "length", "operation not allowed", "R_Key", "alignment", "max_dest_rd_atomic",
	"SRQ", "no receive", "receive too short", "invalidate", "not remembered", "never sent", "reserved syndrome",
	"response lost", "recovering", "bad response", "NAK", "RNR NAK", "local memory"}

// String returns r in words.
func (r Reason) String() string { return name(reasonNames[:], int(r)) }
