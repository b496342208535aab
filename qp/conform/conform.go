// Package conform judges captures of RoCE networks. A [Watcher] is given frames in capture
// order. It follows every connection in them, and reports broken rules of the transport or
// of the wire format, and events: retransmissions, NAKs, time-outs, duplicates. It also
// counts what operators look at.
//
// A capture is taken between the two ends. A packet that it contains may be lost after that
// point, and one that it lacks may have been sent all the same. So the watcher keeps
// bounds, not values, for what the responder has received, what the requester has received,
// and the MSN after a PSN. There are three verdicts:
//
//   - a rule is broken where no loss, copy or reordering, by the network or by the
//     capture, explains what was seen (a [Breach]);
//   - it is not broken where something does;
//   - it is not judged where the packets that would decide it were not captured: see
//     [Watcher.NotJudged].
//
// Some observations are explained only by a frame that the capture has lost. A lost frame
// leaves signs of its own (PSNs that were acknowledged and never seen, retransmissions
// without a cause), except for an acknowledgement that a later one replaces. Where a
// connection shows no such sign, nothing was lost; where an observation is several times as
// frequent as the signs, it is not due to loss. What the network may have done elsewhere
// (reordering, copies) is reported as a breach of a device only where it happens
// repeatedly.
//
// Copies of a packet, by mirror ports, taps at two places or the network, are folded into
// one. Tunnels and tags are decoded, and distinguish networks with the same addresses. The
// watcher learns which two directions belong together (from connection management, UDP
// source ports, or PSNs), first PSNs, path MTU and message counts. A capture may begin in
// the middle, have one direction only, be cut short by a snapshot length, or miss frames.
// [Config].Complete says that the capture lost nothing and has all connections from their
// first packet, so that more can be judged.
//
// In the finding of a breach, Src is the address of the device that broke the rule.
//
// The watcher shares no code with the state machines of package qp, on purpose: it is an
// independent implementation of the same rules, so that each can be tested against the
// other.
//
// It reads no clock and does no I/O. Memory grows with the flows that are open, up to
// Config.MaxFlows, and not with the frames; nothing is allocated for a frame of a flow that
// was seen before, unless findings are not fetched.
package conform

import (
	"errors"
	"hash/maphash"
	"math/bits"
	"net/netip"
	"time"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/psn"
)

// ErrConfig means that a field of Config is out of its range.
var ErrConfig = errors.New("conform: config out of range")

// Config holds the parameters of a Watcher. The zero value can be used.
type Config struct {
	// UDPPort is the UDP destination port of RoCE v2; 0 means 4791.
	UDPPort uint16
	// VXLANPorts are UDP destination ports of VXLAN beside 4789 and 8472.
	VXLANPorts []uint16
	// MaxFlows is how many flows (directions) are followed at a time; 0 means
	// 4096. When more appear, the one that was idle longest is closed.
	MaxFlows int
	// Window is how many of the newest PSNs of a flow are remembered at most, a
	// power of two; 0 means 4096. A flow takes memory for what it has outstanding.
	// A sender with more outstanding is judged less, not wrongly.
	Window int
	// Complete says that the capture holds all connections from their first packet, both
	// directions, and lost no frame. Findings that are notes because frames may be missing
	// become breaches.
	Complete bool
	// MinTimeout is the shortest acknowledgement time-out that a requester of the capture
	// may have; 0 means 10 ms. An earlier retransmission was not caused by a timer.
	MinTimeout time.Duration
	// Reorder is by how much time the capture may have frames of the two directions in the
	// wrong order; 0 means 50 µs.
	Reorder time.Duration
	// Idle is how long a connection may be silent before its QP numbers may belong to
	// another; 0 means 10 s. It must be above the longest acknowledgement time-out in use.
	Idle time.Duration
	// MinCNPGap is the least time between CNPs of a flow; 0 means 4 µs, the
	// least that the NVIDIA preset of DCQCN sends; below 0 nothing is checked.
	MinCNPGap time.Duration
	// LinkRate, in bits per second, converts pause quanta to time; 0 means unknown.
	LinkRate uint64
	// Closed, where set, is called with each flow that is closed to make room,
	// and by Finish with all others. The flow is valid only during the call.
	Closed func(*Flow)
}

// Class is how the watcher classified a frame.
type Class uint8

// Classes of frame.
const (
	ClassOther      Class = iota // not RoCE
	ClassInvalid                 // RoCE that a receiver drops: ICRC, length, opcode, P_Key
	ClassNew                     // a request or datagram with a new PSN
	ClassResent                  // a retransmission
	ClassCopy                    // a duplicate
	ClassLate                    // out of order
	ClassResponse                // a READ response or atomic acknowledgement
	ClassAck                     // a positive acknowledgement
	ClassNak                     // a NAK
	ClassRNR                     // an RNR NAK
	ClassCongestion              // a CNP
	ClassPaused                  // PFC or PAUSE
	ClassManagement              // a datagram of QP 1
)

// Seen is how the last frame was classified.
type Seen struct {
	Class   Class
	Flow    int // Flow.ID; -1 when there is none
	PSN     psn.PSN
	Payload int // bytes
	Good    int // of them, not seen before
	CE      bool
	// Response is set for responses and CNPs: their PSNs are those of the other
	// direction's requests.
	Response bool
}

// Watcher follows the connections of a capture. It is created by New, and is for one
// goroutine.
type Watcher struct {
	cfg  Config
	find frame.Finder
	seed maphash.Seed

	current
	roce   uint64 // RoCE frames so far
	clock  clock
	copies sightings
	slices sliced
	others map[frame.Protocol]uint64

	flows  flows
	calls  calls
	pauses pauses
	totals totals

	unjudged [rules][reasons]uint64
	found    findings
}

// current is the frame that is being judged.
type current struct {
	frames uint64 // its number, from 1
	now    int64
	wire   int // its length
	source uint32
	f      frame.Frame
	short  bool // f is shorter than its headers say: it was cut, or they are wrong
	full   bool // all headers of f.Packet are there
	vague  bool // the ICRC of f.Packet is not: the packet may be damaged
	seen   Seen
	repeat int64 // how long ago the same was seen, -1: never
	told   bool  // place or identification show whether it is a copy
	beside bool  // f was captured at another place than where its flow is judged
}

// clock is what is known of the time stamps.
type clock struct {
	shift int64 // what is taken off the time since 1970, in nanoseconds, so that now is above 0
	begun int64 // time of the first RoCE frame
	still bool  // all times are the same so far
	grain int64 // all times are multiples of it so far, in nanoseconds: a power of ten
}

// see notes the time of a RoCE frame, of which it is the first or not.
func (c *clock) see(now int64, first bool) {
	if first {
		c.begun = now
	} else if now != c.begun {
		c.still = false
	}
	for c.grain > 1 && now%c.grain != 0 {
		c.grain /= 10
	}
}

// totals are of all flows.
type totals struct {
	past       Counters // of closed flows
	latency    Histogram
	completion Histogram
}

// findings are those that were not fetched yet.
type findings struct {
	queue []Finding
	taken int
}

// next puts the next one into f and returns true, or returns false.
func (q *findings) next(f *Finding) bool {
	if q.taken == len(q.queue) {
		q.queue, q.taken = q.queue[:0], 0
		return false
	}
	*f = q.queue[q.taken]
	q.taken++
	return true
}

// New returns a watcher, or ErrConfig.
func New(cfg Config) (*Watcher, error) {
	set := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	if cfg.MaxFlows == 0 {
		cfg.MaxFlows = 4096
	}
	if cfg.Window == 0 {
		cfg.Window = 4096
	}
	set(&cfg.MinTimeout, 10*time.Millisecond)
	set(&cfg.Reorder, 50*time.Microsecond)
	set(&cfg.Idle, 10*time.Second)
	set(&cfg.MinCNPGap, 4*time.Microsecond)
	if cfg.MaxFlows < 4 || cfg.Window < 16 || cfg.Window > 1<<20 || bits.OnesCount(uint(cfg.Window)) != 1 ||
		cfg.MinTimeout < 0 || cfg.Reorder < 0 || cfg.Idle < 0 {
		return nil, ErrConfig
	}
	w := &Watcher{cfg: cfg, find: frame.Finder{UDPPort: cfg.UDPPort, Tunnels: true, VXLANPorts: cfg.VXLANPorts, Sliced: true},
		seed: maphash.MakeSeed(), clock: clock{still: true, grain: 1e9}, copies: newSightings(firstRing),
		flows: newFlows(), others: make(map[frame.Protocol]uint64)}
	w.seen.Flow = -1
	return w, nil
}

// Frames returns how many frames were handled.
func (w *Watcher) Frames() uint64 { return w.frames }

// RoCEFrames returns how many of them were RoCE, well formed or not.
func (w *Watcher) RoCEFrames() uint64 { return w.roce }

// Evicted returns how many flows were closed to make room.
func (w *Watcher) Evicted() uint64 { return w.flows.evicted }

// Last returns how the last frame was classified.
func (w *Watcher) Last() Seen { return w.seen }

// Total returns the counts of all flows, open and closed.
func (w *Watcher) Total() Counters {
	c := w.totals.past
	for i := w.flows.oldest; i >= 0; i = w.flows.all[i].newer {
		c.Add(&w.flows.all[i].Counters)
	}
	return c
}

// Latency returns the request-to-acknowledgement latencies of all flows.
func (w *Watcher) Latency() *Histogram { return &w.totals.latency }

// Completion returns the flow completion times of all flows.
func (w *Watcher) Completion() *Histogram { return &w.totals.completion }

// Pauses returns the pauses of priority prio, 0..7.
func (w *Watcher) Pauses(prio int) Pauses { return w.pauses.all[prio&7] }

// Flows calls yield with each open flow, longest idle first, until it returns
// false.
func (w *Watcher) Flows(yield func(*Flow) bool) {
	for i := w.flows.oldest; i >= 0; {
		next := w.flows.all[i].newer
		f := w.view(i)
		if !yield(&f) {
			return
		}
		i = next
	}
}

// SetSource says where the frames that follow were captured, where a capture has several
// interfaces. Times of one source are assumed to be in order.
func (w *Watcher) SetSource(n int) { w.source = uint32(n) }

// HandleFrame judges the next frame, captured at ts on a link of type link. data is the
// captured part of its wireLen bytes on the wire. Nothing of data is kept. Call NextFinding
// until it returns false after it.
func (w *Watcher) HandleFrame(ts time.Time, link frame.Link, data []byte, wireLen int) {
	w.frames++
	if w.frames == 1 {
		w.clock.shift = shiftOf(ts)
	}
	w.now = ts.UnixNano() - w.clock.shift
	w.wire = max(wireLen, len(data))
	w.seen = Seen{Flow: -1}
	w.vague = false
	err := w.find.Decode(link, data, wireLen, &w.f)
	switch err {
	case nil:
		w.full = true
		w.roce++
		w.clock.see(w.now, w.roce == 1)
		if w.cut(len(data), wireLen) {
			w.packet()
		}
	case frame.ErrNotRoCE, frame.ErrLink:
		if link != frame.Ethernet || !w.pause(data) {
			w.note(w.find.Protocol(link, data, wireLen))
		}
	case frame.ErrFragment:
		w.roce++
		w.seen.Class = ClassInvalid
		w.report(nil, Fragment, 0, 0, 0)
	case frame.ErrLength:
		w.roce++
		w.seen.Class = ClassInvalid
		w.totals.past.Invalid++
		w.report(nil, LengthFrame, 0, 0, 0)
	case bth.ErrTruncated, bth.ErrLength, bth.ErrOpcode, bth.ErrVersion:
		if w.find.Find(link, data, wireLen, &w.f) != nil {
			return
		}
		w.roce++
		w.malformed(err)
	default: // headers cut off by the capture
	}
}

// packet handles a packet that was decoded.
func (w *Watcher) packet() {
	s := w.stream()
	op := w.f.Packet.Opcode
	w.seen.Response = op.Class() == bth.Response || op == bth.CNP
	s.frame(w.now+w.clock.shift, w.wire)
	w.repeat = -1
	id := w.identity()
	set := w.copies.setOf(id.sum)
	switch w.f.CheckICRC() {
	case frame.ICRCBad:
		w.seen.Class = ClassInvalid
		// The fields may be wrong; a PSN that is the expected next one is right.
		s.void(w.f.Packet.PSN, w.now)
		w.badICRC(s)
		return
	case frame.ICRCUnchecked:
		w.unchecked(s)
	}
	w.single(s, &id, &set)
}

// single judges the current packet, unless it is a copy of one that was judged.
func (w *Watcher) single(s *stream, id *identity, set *[setSize]place32) {
	if o := w.fold(s, id, set); o != nil {
		w.copied(o)
		return
	}
	w.judge(s)
}

// judge handles a packet of which at least the BTH is good.
func (w *Watcher) judge(s *stream) {
	p := &w.f.Packet
	if !w.common(s) {
		w.seen.Class = ClassInvalid
		s.void(p.PSN, w.now)
		return
	}
	payload := max(w.f.PayloadLen(), 0)
	w.seen.Payload = payload
	if p.Opcode == bth.CNP {
		w.congestion(s)
		return
	}
	switch p.Opcode.Service() {
	case bth.RC, bth.XRC:
		if p.Opcode.Class() == bth.Response {
			w.response(s, payload)
		} else {
			w.request(s, payload)
		}
	case bth.UC:
		w.request(s, payload)
	case bth.UD:
		w.datagram(s, payload)
	default:
		w.good(s, payload)
		w.seen.Class = ClassNew
	}
	if p.Opcode.Operation() != bth.Acknowledge && w.seen.Class != ClassCopy {
		s.data(w, payload)
	}
}

// CloseIdle closes the flows that had no frame for d before the newest one, and returns how
// many. Call NextFinding until it returns false after it. A live capture needs it.
func (w *Watcher) CloseIdle(d time.Duration) int {
	n := 0
	for w.flows.oldest >= 0 && w.now-w.last(w.flows.all[w.flows.oldest]) > int64(d) {
		w.close(w.flows.oldest)
		n++
	}
	return n
}

// Finish reports what only the end of the capture shows, and closes all flows. Call
// NextFinding until it returns false after it.
func (w *Watcher) Finish() {
	w.pauses.end()
	w.endCuts()
	if w.clock.still && w.roce > 1 {
		for _, c := range [...]Check{ResentTimeout, RNRTooEarly, CNPTooOften} {
			w.leave(c, ReasonClock, w.roce)
		}
	}
	for i := w.flows.oldest; i >= 0; i = w.flows.all[i].newer {
		w.finish(w.flows.all[i])
		w.flows.all[i].finished = true
	}
	for w.flows.oldest >= 0 {
		w.close(w.flows.oldest)
	}
}

// NextFinding puts the next finding into f and returns true, or returns false.
func (w *Watcher) NextFinding(f *Finding) bool { return w.found.next(f) }

// report queues a finding about the current frame. s may be nil.
func (w *Watcher) report(s *stream, c Check, want, got uint64, earlier uint64) {
	w.reportAt(s, c, want, got, earlier, w.frames, w.now, w.f.Packet.PSN)
}

func (w *Watcher) reportAt(s *stream, c Check, want, got, earlier, at uint64, now int64, p psn.PSN) {
	f := Finding{Check: c, Severity: checks[c].severity, Frame: at, Earlier: earlier,
		Time: time.Unix(0, now+w.clock.shift).UTC(), PSN: p, Want: want, Got: got}
	if w.cfg.Complete {
		switch c {
		case AckNeverSentDoubt:
			f.Check, f.Severity = AckNeverSent, Breach
		case NakNeverSent, ReadsAboveDepth, ECNUnanswered:
			f.Severity = Breach
		}
	}
	if s != nil {
		f.Src, f.Dst, f.QP, f.Segment = s.key.src, s.key.dst, s.key.qp, s.segment
		f.PeerQP = s.peerQP
	}
	if f.Severity == Breach && w.vague && at == w.frames && s != nil && !s.insists(c) {
		w.leave(c, ReasonSnaplen, 1)
		s.forgo(c)
		return
	}
	w.found.queue = append(w.found.queue, f)
}

func unmapped(a netip.Addr) netip.Addr { return a.Unmap() }
