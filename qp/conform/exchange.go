package conform

import "time"

// exchange is a requester and its responder, as far as a tap between them shows:
// the requests of one flow and what answers them in the other.
//
// Neither end is seen. A request that was seen may have been lost behind the tap,
// and so may a response; one that was not seen may have been sent all the same.
// So there are bounds: what the responder has received lies between what it has
// acknowledged and what was sent, the MSN after a PSN between two numbers, and
// what the requester knows is shown by what it sends again.
type exchange struct {
	started bool
	certain bool   // the first PSN is known
	first   uint64 // the first PSN
	next    uint64 // above the highest seen
	voidTo  uint64 // PSNs from next to it went out in packets that are dropped

	log      log
	reads    []read
	over     bool // the capture has ended
	spanOpen bool // the newest request is a READ whose number of PSNs is not known
	took     uint32
	depth    int // initiator depth of connection management; 0: not known

	last    lastRequest
	back    episode
	nak     naks
	rnr     refusal
	wait    time.Duration // of rnr
	hasty   int           // times in a row that it was sent again before the wait was over
	implied refusal       // a response that shows that one before it was lost
	overdue refusal       // the first sighting of a PSN that a NAK asks for

	acked    uint64 // above the highest that is complete
	undone   uint64 // above the highest that was complete before it was sent again
	owed     int    // duplicates and retransmissions, each of which may be answered
	answered uint64 // highest PSN answered positively; 0: none
	answerAt int64
	reach    uint64 // highest PSN answered since the requester went back
	heard    uint64 // highest PSN of any response
	heardAt  int64

	early  [4]earlyAck
	earlyN int
	count  messages
	credit credits
	doubts []doubt
	signs  signs

	latency    Histogram
	completion Histogram
}

// lastRequest is what came last.
type lastRequest struct {
	psn uint64
	at  int64
	gap int64 // when a PSN was last skipped
}

// episode is a retransmission under way: from where it began, PSNs follow one
// another.
type episode struct {
	active bool
	from   uint64 // where it began
	began  int64
	next   uint64
	at     int64 // its newest packet
	frame  uint64
	far    refusal
}

// refusal is a NAK that awaits the requester's reaction.
type refusal struct {
	valid bool
	psn   uint64
	t     int64
	frame uint64
}

// naks are the sequence errors.
type naks struct {
	open refusal    // awaits retransmission
	old  refusal    // one before that the requester may not have reacted to yet
	n    int        // since all was sent again
	way  [4]refusal // the newest, each of which may be on its way to the requester still
	seen bool       // what the newest refused had been captured

	last    refusal // the newest, answered or not
	resent  bool    // its PSN was sent since
	refused bool    // an RNR NAK came for its PSN since
	ignored int     // recoveries by the timer alone
	heeded  int     // recoveries at once
	beyond  int     // of those, begun behind the PSN asked for
	before  int     // or before it
	run     refusal // of copies: psn is what would be next
	runLen  uint64
	runs    int // of those, right before the PSN asked for
	doubled int // NAKs that came again, the same in every bit
}

// earlyAck is a response to a PSN that was not seen sent.
type earlyAck struct {
	psn   uint64
	t     int64
	frame uint64
	msn   uint32
	kind  uint8 // 0: a positive acknowledgement, 1: another response
}

// signs are what shows that the capture is not the whole truth. A lost frame
// leaves one, unless it is an acknowledgement that a later one stands for: a
// request is acknowledged without having been seen, a NAK causes a retransmission
// that nothing explains, a READ goes on without its response.
type signs struct {
	lost      int // frames that the capture lost
	gaps      int // PSNs that were lost before they were captured
	copies    int
	late      int
	disturbed int64 // when something was last lost, copied, damaged or sent again
}

func (x *exchange) reset() {
	l := log{ring: x.log.ring, limit: x.log.limit}
	clear(l.ring)
	*x = exchange{log: l, reads: x.reads[:0], doubts: x.doubts[:0]}
}

// restart keeps what was measured.
func (x *exchange) restart() {
	lat, com := x.latency, x.completion
	x.reset()
	x.latency, x.completion = lat, com
}

// calm reports whether nothing was amiss for a while, so that what looks wrong
// cannot be due to requests that the capture lost.
func (w *Watcher) calm(x *exchange) bool {
	return x.signs.disturbed == 0 || w.now-x.signs.disturbed > 100*int64(w.cfg.MinTimeout)
}

func (w *Watcher) exchangeOf(s *stream) *exchange {
	if s.req == nil {
		s.req = &exchange{log: log{limit: w.cfg.Window}}
	}
	return s.req
}

// quick reports whether t is too young for a time-out.
func (w *Watcher) quick(t int64) bool { return t != 0 && w.now-t < int64(w.cfg.MinTimeout) }

func durationOf(ns int64) time.Duration { return time.Duration(max(0, ns)) }
