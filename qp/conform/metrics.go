package conform

import (
	"net/netip"
	"time"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
)

// Counters are what is counted for one direction of a connection, that is for
// the packets to one QP from one address, or for a whole capture. Where the Open
// Traffic Generator's RoCE v2 metrics have a name for it, the comment gives that
// name; "tx" or "rx" depends on which end one looks from.
//
// A data frame is any but Acknowledge (which carries acknowledgements, NAKs and
// RNR NAKs) and CNP.
type Counters struct {
	Frames        uint64 // RoCE frames, those with bad ICRC too
	Bytes         uint64 // their lengths on the wire, without FCS
	DataFrames    uint64 // data_frames
	Retransmitted uint64 // data_frames_retransmitted: PSN not above the highest seen; copies and late packets not counted
	RepliedAgain  uint64 // of Retransmitted, READ responses and atomic acknowledgements; the rest are requests
	SequenceError uint64 // frame_sequence_error: jumps of the PSN in requests or READ responses
	Duplicates    uint64 // copies that the network made
	OutOfOrder    uint64 // late packets
	PayloadBytes  uint64 // payload of data frames
	GoodBytes     uint64 // the same without retransmissions and copies
	Acks          uint64 // ack: positive Acknowledge packets
	Naks          uint64 // nak: NAKs of all codes, RNR NAKs not counted
	NakSequence   uint64 // of them PSN sequence errors
	RNRs          uint64 // RNR NAKs
	CNPs          uint64 // cnp
	CE            uint64 // ecn_ce: data frames marked congestion experienced
	MessagesTx    uint64 // message_tx: requests whose last packet was seen
	MessagesDone  uint64 // message_complete: of these, acknowledged
	MessagesFail  uint64 // message_fail: refused with an error NAK
	RNRWait       time.Duration

	// Retransmissions by what caused them, each counted once where it begins, in
	// the names of the hardware counters at the requester.
	PacketSeqErr       uint64 // packet_seq_err: a NAK sequence error
	ImpliedNakSeqErr   uint64 // implied_nak_seq_err: a later response
	RNRNakRetry        uint64 // an RNR NAK
	LocalAckTimeoutErr uint64 // local_ack_timeout_err: the timer
	UnknownCause       uint64 // the capture does not show it

	ICRCBad       uint64
	ICRCUnchecked uint64 // cut short by the capture
	Invalid       uint64 // could not be laid out: length, opcode, version
	LostBehind    uint64 // PSNs captured that were lost after that point, by a NAK sequence error
	CaptureLost   uint64 // acknowledged PSNs that are not in the capture
	First, Last   int64  // nanoseconds since 1970 of the first and the last frame
}

// shiftOf returns what is taken off all times of a capture that begins at ts. Times are
// above 0, which stands for none, and far from where they would overflow; clocks that were
// never set, and offsets of pcapng, give any.
func shiftOf(ts time.Time) int64 {
	if n := ts.UnixNano(); n < int64(time.Hour) || n > 1<<62 {
		return n - n%int64(time.Second) - int64(time.Hour)
	}
	return 0
}

func (c *Counters) frame(now int64, bytes int) {
	if c.Frames == 0 {
		c.First, c.Last = now, now
	}
	c.Frames++
	c.Bytes += uint64(bytes)
	c.Last = max(c.Last, now)
}

// data counts a data frame.
func (s *stream) data(w *Watcher, payload int) {
	s.DataFrames++
	s.PayloadBytes += uint64(payload)
	if w.f.ECN() != frame.CE {
		return
	}
	s.CE++
	s.marks++
	w.seen.CE = true
	if s.firstCE == 0 {
		s.firstCE, s.firstCEFrame = w.now, w.frames
	}
}

// good counts payload that was not seen before.
func (w *Watcher) good(s *stream, payload int) {
	s.GoodBytes += uint64(payload)
	w.seen.Good = payload
}

// Add adds the counts of d, and widens First and Last.
func (c *Counters) Add(d *Counters) {
	if d.Frames != 0 {
		if c.Frames == 0 {
			c.First, c.Last = d.First, d.Last
		}
		c.First, c.Last = min(c.First, d.First), max(c.Last, d.Last)
	}
	c.Frames += d.Frames
	c.Bytes += d.Bytes
	c.DataFrames += d.DataFrames
	c.Retransmitted += d.Retransmitted
	c.RepliedAgain += d.RepliedAgain
	c.SequenceError += d.SequenceError
	c.Duplicates += d.Duplicates
	c.OutOfOrder += d.OutOfOrder
	c.PayloadBytes += d.PayloadBytes
	c.GoodBytes += d.GoodBytes
	c.Acks += d.Acks
	c.Naks += d.Naks
	c.NakSequence += d.NakSequence
	c.RNRs += d.RNRs
	c.CNPs += d.CNPs
	c.CE += d.CE
	c.MessagesTx += d.MessagesTx
	c.MessagesDone += d.MessagesDone
	c.MessagesFail += d.MessagesFail
	c.RNRWait += d.RNRWait
	c.PacketSeqErr += d.PacketSeqErr
	c.ImpliedNakSeqErr += d.ImpliedNakSeqErr
	c.RNRNakRetry += d.RNRNakRetry
	c.LocalAckTimeoutErr += d.LocalAckTimeoutErr
	c.UnknownCause += d.UnknownCause
	c.ICRCBad += d.ICRCBad
	c.ICRCUnchecked += d.ICRCUnchecked
	c.Invalid += d.Invalid
	c.LostBehind += d.LostBehind
	c.CaptureLost += d.CaptureLost
}

// Duration returns the time from the first to the last frame.
func (c *Counters) Duration() time.Duration { return time.Duration(c.Last - c.First) }

// Goodput returns the good payload in bits per second over Duration, 0 when that
// is 0.
func (c *Counters) Goodput() float64 { return c.perSecond(float64(c.GoodBytes) * 8) }

// CNPRate returns CNPs per second over Duration.
func (c *Counters) CNPRate() float64 { return c.perSecond(float64(c.CNPs)) }

func (c *Counters) perSecond(n float64) float64 {
	if c.Last <= c.First {
		return 0
	}
	return n / (float64(c.Last-c.First) / 1e9)
}

// PayloadEfficiency returns good payload bytes for each byte on the wire, 0..1.
func (c *Counters) PayloadEfficiency() float64 { return share(c.GoodBytes, c.Bytes) }

// RetransmissionShare returns retransmitted data frames for each data frame.
func (c *Counters) RetransmissionShare() float64 { return share(c.Retransmitted, c.DataFrames) }

// OutOfOrderShare returns late data frames for each data frame.
func (c *Counters) OutOfOrderShare() float64 { return share(c.OutOfOrder, c.DataFrames) }

func share(a, b uint64) float64 {
	if b == 0 {
		return 0
	}
	return float64(a) / float64(b)
}

// QP are the counts as one queue pair has them, in the names of the Open Traffic
// Generator's RoCE v2 metrics. Sent are the packets from its address to its peer's QP,
// received those to itself, both as the capture has them.
type QP struct {
	DataFramesTx, DataFramesRx uint64
	DataFramesRetransmitted    uint64 // sent
	FrameSequenceError         uint64 // received: jumps of the PSN
	CNPTx, CNPRx               uint64
	AckTx, AckRx               uint64
	NakTx, NakRx               uint64 // RNR NAKs not counted
	RNRTx, RNRRx               uint64 // RNR NAKs; no name there
	ECNCERx                    uint64
	MessageTx                  uint64
	MessageCompleteRx          uint64 // messages of the peer that were acknowledged or responded to
	MessageFail                uint64 // own messages that the peer refused with an error
	First, Last                int64  // nanoseconds since 1970, of both directions
}

// QPOf returns the counts of the QP that rx is sent to and that sends tx, either
// of which may be nil.
func QPOf(rx, tx *Counters) QP {
	var none, both Counters
	if rx == nil {
		rx = &none
	}
	if tx == nil {
		tx = &none
	}
	both.Add(rx)
	both.Add(tx)
	return QP{
		DataFramesTx: tx.DataFrames, DataFramesRx: rx.DataFrames, DataFramesRetransmitted: tx.Retransmitted,
		FrameSequenceError: rx.SequenceError, CNPTx: tx.CNPs, CNPRx: rx.CNPs, AckTx: tx.Acks, AckRx: rx.Acks,
		NakTx: tx.Naks, NakRx: rx.Naks, RNRTx: tx.RNRs, RNRRx: rx.RNRs, ECNCERx: rx.CE, MessageTx: tx.MessagesTx,
		MessageCompleteRx: rx.MessagesDone, MessageFail: tx.MessagesFail, First: both.First, Last: both.Last,
	}
}

// Flow is one direction: the packets from one address to a QP at another. It is
// a view into the watcher, valid until the next call of HandleFrame.
type Flow struct {
	ID       int // small number, unique among open flows
	Src, Dst netip.Addr
	Segment  frame.Segment // the network, where several may use the same addresses
	QP       uint32        // destination QP
	PeerQP   uint32        // QP of the sender, 0 when not known
	Peer     int           // ID of the other direction, -1 when not known
	Service  bth.Service   // of the first packet
	MTU      int           // path MTU in bytes, 0 when not known
	*Counters
	// Latency is the time from a request (the last packet of a SEND or WRITE
	// that asked for an acknowledgement; a READ or atomic) to what acknowledges
	// it (of a READ, its last response).
	Latency *Histogram
	// Completion is the flow completion time: from the first packet of a message
	// to what acknowledges the last.
	Completion *Histogram
}

// Pauses are the PFC and PAUSE frames of one priority, from all senders.
type Pauses struct {
	Frames uint64 // pause frames that stop
	Resume uint64 // frames that end a pause
	// Time is how long the priority was stopped, from a pause to its end, added
	// up over the senders. Without Config.LinkRate, a pause that no frame ends
	// counts for nothing.
	Time time.Duration
}
