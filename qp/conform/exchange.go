package conform

import "time"

// exchange is the state of a requester and its responder, as far as a capture between them
// shows: the requests of one flow and the responses in the other.
//
// A request that was captured may have been lost after that point, and so may a response;
// one that was not captured may have been sent all the same. So there are bounds: what the
// responder has received lies between what it has acknowledged and what was sent, and the
// MSN after a PSN between two numbers. What the requester has received is inferred from its
// retransmissions.
type exchange struct {
	requests
	recovery
	progress
	early  earlyAcks
	count  messages
	credit credits
	doubts []doubt
	signs  signs

	latency    Histogram
	completion Histogram
}

// requests is what was sent.
type requests struct {
	started bool
	certain bool   // the first PSN is known
	first   uint64 // the first PSN
	next    uint64 // above the highest seen
	begun   int64  // when the first was seen
	fresh   uint64 // what has it or a higher PSN did not reach the responder before it was seen; 0: not known of any
	voidTo  uint64 // PSNs from next to it were sent in packets that are dropped

	log      log
	reads    []read
	over     bool // the capture has ended
	spanOpen bool // the newest request is a READ whose number of PSNs is not known
	took     uint32
	depth    int // initiator depth of connection management; 0: not known
}

// recovery is what was sent again, and what may make the requester do that.
type recovery struct {
	last    lastRequest
	back    episode
	prior   episode // the one before
	missed  skips
	nak     naks
	rnr     refusal
	wait    time.Duration // of rnr
	hasty   int           // times in a row that it was retransmitted before the wait was over
	implied refusal       // a response that shows that an earlier one was lost
	overdue refusal       // the first sighting of a PSN that a NAK asks for
}

// progress is what got a response.
type progress struct {
	acked    uint64 // above the highest that is complete
	undone   uint64 // above the highest that was complete before it was retransmitted
	owed     int    // duplicates and retransmissions, each of which may get a response
	answered uint64 // highest PSN acknowledged; 0: none
	answerAt int64
	reach    uint64 // highest PSN responded to since the requester went back
	heard    uint64 // highest PSN of any response
	heardAt  int64
}

// lastRequest is the newest request.
type lastRequest struct {
	psn uint64
	at  int64
	gap int64 // when a PSN was last skipped
}

// episode is the current retransmission: a run of consecutive PSNs.
type episode struct {
	active bool
	from   uint64 // its first PSN
	began  int64
	next   uint64
	at     int64 // its newest packet
	frame  uint64
	far    refusal
	lone   bool // one packet so far, as a NAK may have asked for
}

// skips are PSNs that were due lately and did not come: what was overtaken comes yet. Of
// more ranges than there is room for, the oldest is forgotten: its packets, should they
// come, count as sent again and not as late.
type skips [8]skip

// skip is the range of PSNs [from, to); it is empty where they are equal.
type skip struct {
	from, to uint64
	t        int64
	again    bool // in a retransmission
}

func (k *skips) add(from, to uint64, now int64, again bool) {
	into := &k[0]
	for i := range k {
		r := &k[i]
		if r.from == r.to {
			into = r
			break
		}
		if r.t < into.t {
			into = r
		}
	}
	*into = skip{from, to, now, again}
}

// take reports whether PSN u is one of them, and whether it was due in a
// retransmission, and takes it out.
func (k *skips) take(w *Watcher, u uint64) (found, again bool) {
	for i := range k {
		r := &k[i]
		if u < r.from || u >= r.to || !w.quick(r.t) {
			continue
		}
		before, after := *r, *r
		before.to, after.from = u, u+1
		if *r = before; before.from == before.to {
			*r = after
		} else if after.from < after.to {
			k.add(after.from, after.to, after.t, after.again)
		}
		return true, after.again
	}
	return false, false
}

// refusal is a NAK that awaits the requester's reaction.
type refusal struct {
	valid bool
	psn   uint64
	by    uint64 // PSN of the response
	t     int64
	frame uint64
}

// naks are the sequence errors.
type naks struct {
	open refusal    // awaits retransmission
	old  refusal    // one before that the requester may not have reacted to yet
	n    int        // since all was retransmitted
	way  [4]refusal // the newest, each of which may still be on its way to the requester
	seen bool       // the packet that the newest refused had been captured

	last     refusal // the newest, whether or not the requester reacted
	resent   bool    // its PSN was sent since
	refused  bool    // its PSN got an RNR NAK since
	ignored  int     // recoveries by the timer alone
	heeded   int     // recoveries at once
	used     uint64  // frame of the NAK that the newest of these is counted for
	beyond   int     // of those, begun after the PSN asked for
	beyondOf refusal // the NAK for which the newest of these was
	before   int     // or before it
	run      refusal // of copies: psn is the next of the run
	runLen   uint64
	runs     int // of those, right before the PSN asked for
	doubled  int // NAKs that were repeated, the same in every bit
}

// earlyAcks are the newest responses to PSNs that were not seen sent.
type earlyAcks struct {
	acks [4]earlyAck
	n    int
}

func (q *earlyAcks) put(a earlyAck) {
	if q.n == len(q.acks) {
		copy(q.acks[:], q.acks[1:])
		q.n--
	}
	q.acks[q.n] = a
	q.n++
}

// earlyAck is a response to a PSN that was not seen sent.
type earlyAck struct {
	psn   uint64
	t     int64
	frame uint64
	msn   uint32
	kind  uint8 // 0: a positive acknowledgement, 1: another response
}

// signs count the indications that the capture is incomplete. A lost frame leaves one,
// unless it is an acknowledgement that a later one replaces: a request is acknowledged
// without having been seen, a retransmission has no cause, a READ is complete without its
// response.
type signs struct {
	lost      int    // frames that the capture lost
	gaps      int    // PSNs that were lost before they were captured
	skipped   uint64 // how many these were
	copies    int
	late      int
	disturbed int64 // when something was last lost, copied, damaged or retransmitted
}

func (x *exchange) reset() {
	l := log{ring: x.log.ring, limit: x.log.limit}
	clear(l.ring)
	*x = exchange{requests: requests{log: l, reads: x.reads[:0]}, doubts: x.doubts[:0]}
}

// restart keeps what was measured.
func (x *exchange) restart() {
	lat, com := x.latency, x.completion
	x.reset()
	x.latency, x.completion = lat, com
}

// calm reports whether nothing was lost or retransmitted for a while, so that what looks
// wrong cannot be due to requests that the capture lost.
func (w *Watcher) calm(x *exchange) bool {
	return x.signs.disturbed == 0 || w.now-x.signs.disturbed > 100*int64(w.cfg.MinTimeout)
}

func (w *Watcher) exchangeOf(s *stream) *exchange {
	if s.req == nil {
		s.req = &exchange{requests: requests{log: log{limit: w.cfg.Window}}}
	}
	return s.req
}

// quick reports whether t is too recent for a time-out.
func (w *Watcher) quick(t int64) bool { return t != 0 && w.now-t < int64(w.cfg.MinTimeout) }

func durationOf(ns int64) time.Duration { return time.Duration(max(0, ns)) }
