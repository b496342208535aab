// Package mrcwatch judges the MRC packets of a capture (package mrc, which is
// experimental): a [Watcher] is given frames in capture order, and reports broken rules and
// events, and counts what operators look at: retransmissions, missing PSNs, congestion
// marks by path, paths in use.
//
// The specification was not at hand, so only that is judged which three
// independent implementations agree on; what a loss by the capture, or a link of
// a multipath network that was not captured, may explain is a note and becomes a
// breach with [Config].Complete. Not judged, because sources differ or no source
// says: pad and path MTU of last packets, SE and MigReq, the window, the PSN of a
// probe, timestamps, the congestion fields, the use of spdcid and dpdcid, and
// reserved bits.
//
// Package conform judges RoCE v2; only the severities are shared with it. It reads no clock
// and does no I/O; memory is bounded by Config, and a frame of a flow and a path that were
// seen before allocates nothing, unless findings are not fetched.
package mrcwatch

import (
	"errors"
	"math/bits"
	"net/netip"
	"time"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/mrc"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp/conform"
)

// ErrConfig means that a field of Config is out of its range.
var ErrConfig = errors.New("mrcwatch: config out of range")

// Config holds the parameters of a Watcher. The zero value can be used.
type Config struct {
	// Finder finds the packets; its TrimmedDSCP those that a switch has trimmed.
	Finder frame.Finder
	// Halves is the order of the halves of an entropy value.
	Halves mrc.Halves
	// MaxFlows is how many flows are followed at a time; 0 means 1024. When more
	// appear, the one that was idle longest is closed.
	MaxFlows int
	// Window is how many of the newest PSNs of a flow are remembered, a power of
	// two; 0 means 512.
	Window int
	// MaxPaths is how many entropy values of a flow are counted separately; 0 means 1024.
	MaxPaths int
	// AnswerTime is how long the response to a probe or an endpoint request may take; 0
	// means 100 ms.
	AnswerTime time.Duration
	// Complete says that the capture holds all paths in both directions and lost no
	// frame.
	Complete bool
	// Closed, where set, is called with each flow that is closed to make room, and by
	// Finish with all others. The flow is valid only during the call.
	Closed func(*Flow)
}

// Watcher follows the MRC flows of a capture. It is for one goroutine.
type Watcher struct {
	cfg      Config
	f        frame.Frame
	m        mrc.Packet
	now      int64
	n        uint64 // of the current frame
	packets  uint64
	unpaired uint64
	flows    map[key]*flow
	back     map[key]*flow // by the flow of the responses
	requests pending       // endpoint operations
	queue    []Finding
	taken    int
}

// New returns a watcher, or ErrConfig.
func New(cfg Config) (*Watcher, error) {
	for _, d := range []struct {
		v    *int
		zero int
	}{{&cfg.MaxFlows, 1024}, {&cfg.Window, 512}, {&cfg.MaxPaths, 1024}} {
		if *d.v == 0 {
			*d.v = d.zero
		}
	}
	if cfg.AnswerTime == 0 {
		cfg.AnswerTime = 100 * time.Millisecond
	}
	if cfg.MaxFlows < 1 || cfg.Window < 64 || cfg.Window > 1<<16 || bits.OnesCount(uint(cfg.Window)) != 1 ||
		cfg.MaxPaths < 1 || cfg.AnswerTime < 0 {
		return nil, ErrConfig
	}
	w := &Watcher{cfg: cfg, flows: make(map[key]*flow), back: make(map[key]*flow)}
	w.f.MRC = &w.m
	return w, nil
}

// Packets returns how many MRC packets were handled, well formed or not.
func (w *Watcher) Packets() uint64 { return w.packets }

// Unpaired returns how many responses could not be compared with requests, because it is
// not known to which flow they belong.
func (w *Watcher) Unpaired() uint64 { return w.unpaired }

// HandleFrame judges frame number n, captured at ts on a link of type link. data is the
// captured part of its wireLen bytes on the wire. It reports whether the frame is one of
// MRC: any other is ignored. Call NextFinding until it returns false after it.
func (w *Watcher) HandleFrame(n uint64, ts time.Time, link frame.Link, data []byte, wireLen int) bool {
	w.n, w.now = n, ts.UnixNano()
	err := w.cfg.Finder.Decode(link, data, wireLen, &w.f)
	if err == nil && !w.f.IsMRC() {
		return false
	}
	if err != nil {
		return w.malformed(err, link, data, wireLen)
	}
	w.packets++
	if w.f.CheckICRC() == frame.ICRCBad {
		w.report(ICRCBad, 0, 0, 0)
		return true
	}
	switch m := &w.m; m.Opcode {
	case mrc.SACK:
		w.sack()
	case mrc.NACK:
		w.nack()
	case mrc.Acknowledge:
		w.acknowledge()
	case mrc.Probe:
		w.probe()
	case mrc.EndpointRequest, mrc.EndpointResponse:
		w.endpoint()
	default:
		w.write()
	}
	return true
}

// malformed handles a frame that could not be decoded, of which w.m holds an
// older one.
func (w *Watcher) malformed(err error, link frame.Link, data []byte, wireLen int) bool {
	var found frame.Frame
	if w.cfg.Finder.Find(link, data, wireLen, &found) != nil || len(found.Transport) < bth.Size ||
		found.Net == frame.GRH || bth.Opcode(found.Transport[0]).Service() != bth.Manufacturer6 {
		return false
	}
	w.packets++
	w.f = found
	w.f.MRC = &w.m
	w.m = mrc.Packet{}
	_ = w.m.Header.Decode(found.Transport)
	op := w.m.Opcode
	switch err {
	case bth.ErrVersion:
		w.report(VersionNotZero, 0, uint64(w.m.TVer), 0)
	case bth.ErrOpcode:
		w.report(OpcodeUnknown, 0, uint64(op), 0)
	case bth.ErrLength:
		w.report(Length, uint64(op), uint64(found.TransportLen), 0)
	} // else the capture cut the headers
	return true
}

// Finish reports what only the end of the capture shows, and closes all flows. Call
// NextFinding until it returns false after it.
func (w *Watcher) Finish() {
	w.requests.expire(w.now+int64(w.cfg.AnswerTime)+1, 0, func(q *question) {
		w.reportAt(EndpointUnanswered, conform.Event, q.src, q.dst, mrc.EndpointQP, psn.PSN(q.id), 0, uint64(q.id), 0, q.frame, q.at)
	})
	for len(w.flows) > 0 {
		w.close(w.idlest())
	}
}

// NextFinding puts the next finding into f and returns true, or returns false.
func (w *Watcher) NextFinding(f *Finding) bool {
	if w.taken == len(w.queue) {
		w.queue, w.taken = w.queue[:0], 0
		return false
	}
	*f = w.queue[w.taken]
	w.taken++
	return true
}

// report queues a finding about the current frame.
func (w *Watcher) report(c Check, want, got, earlier uint64) {
	w.reportAt(c, table[c].severity, w.f.Src, w.f.Dst, w.m.DestQP, w.m.PSN, want, got, earlier, w.n, w.now)
}

// doubt is report for findings that may be due to frames missing in the capture.
func (w *Watcher) doubt(c Check, want, got uint64) {
	severity := conform.Note
	if w.cfg.Complete {
		severity = conform.Breach
	}
	w.reportAt(c, severity, w.f.Src, w.f.Dst, w.m.DestQP, w.m.PSN, want, got, 0, w.n, w.now)
}

func (w *Watcher) reportAt(c Check, s conform.Severity, src, dst netip.Addr, qp uint32, p psn.PSN, want, got, earlier, at uint64, now int64) {
	w.queue = append(w.queue, Finding{Check: c, Severity: s, Frame: at, Earlier: earlier, Time: time.Unix(0, now).UTC(),
		Src: src, Dst: dst, QP: qp, PSN: p, Want: want, Got: got})
}
