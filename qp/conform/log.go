package conform

import (
	"github.com/roce-go/roce/bth"
)

// Unwrapped PSNs start here, so that those before the first are positive.
const base = 1 << 32

// entry holds what is remembered of a request packet. A READ has one at its first PSN and
// one, with isTail, at its last.
type entry struct {
	psn   uint64 // unwrapped; 0: none
	first int64  // when it was first sent
	last  int64  // when it was last sent
	start int64  // when the message's first packet was first sent
	done  int64  // when it was complete
	frame uint64 // first
	left  uint32 // bytes of the WRITE's DMA length after this packet
	srq   uint32
	takes uint32 // messages that consume a receive, begun up to and with this packet
	content
	op    bth.Opcode
	sends uint8 // since it was last refused
	flags entryFlags
}

type entryFlags uint8

const (
	hasLeft entryFlags = 1 << iota
	hasContent
	isEnd  // of a message
	isTail // of a READ
	asked  // AckReq was set
	isDone // counted as complete
	isMeasured
)

// log holds the newest entries by PSN. It grows with what is outstanding, up to a
// limit: a flow that has little outstanding has a small one.
type log struct {
	ring  []entry
	limit int
}

const logStart = 32

func (l *log) slot(u uint64) *entry { return &l.ring[u&uint64(len(l.ring)-1)] }

// at returns what was sent with PSN u, or nil.
func (l *log) at(u uint64) *entry {
	if len(l.ring) == 0 {
		return nil
	}
	if e := l.slot(u); e.psn == u {
		return e
	}
	return nil
}

// room makes room for n PSNs, where the limit allows it.
func (l *log) room(n uint64) {
	size := max(len(l.ring), min(logStart, l.limit))
	for uint64(size) < n && size < l.limit {
		size *= 2
	}
	if size == len(l.ring) {
		return
	}
	old := l.ring
	l.ring = make([]entry, size)
	for i := range old {
		if e := &old[i]; e.psn != 0 {
			if s := l.slot(e.psn); s.psn < e.psn {
				*s = *e
			}
		}
	}
}

// content represents the content of a packet: its ICRC, and the fields covered by it that
// may differ in a retransmission: IPv4 identification and flags, UDP source port, and bytes
// 1, 2, 3 and 8 of the BTH.
type content struct {
	icrc  uint32
	ip    uint32
	sport uint16
	bth   [4]byte
}

// read is a READ, ATOMIC, FLUSH or ATOMIC WRITE, which has responses of its own.
type read struct {
	start, end uint64 // PSNs [start, end)
	from, to   uint64 // PSNs asked for by the newest request for it
	was        uint64 // first PSN of the request before that
	pos        uint64 // next response expected
	high       uint64 // responses below it were seen
	whole      uint64 // responses below it were seen without a gap
	va         uint64
	orig       uint64 // the value that an atomic returned
	t          int64  // first sent
	lastT      int64  // last sent or responded to
	took       int64  // latency that was measured, -1: none
	rkey, len  uint32
	frame      uint64
	op         bth.Opcode
	asks       uint8
	flags      readFlags
}

type readFlags uint16

const (
	isKnown   readFlags = 1 << iota // extended headers were captured
	isOpen                          // end is not known: the MTU is not
	isGuessed                       // end is where the next request seen began
	isDoneR
	isAgain   // requested more than once
	hasGap    // a response was missing
	isPartial // may be the rest of a READ that was not seen
	hasOrig
	isPassed // a later request was acknowledged while its responses were missing
	isLate   // responded to after a later request was: counted once
	isUnsure // may be damaged: the capture has no ICRC of the request
	isEarly  // responded to while an earlier response was missing: a requester drops that
)

func (d *read) is(f readFlags) bool { return d.flags&f != 0 }

// vague reports whether the end of d is not known.
func (d *read) vague() bool { return d.flags&(isOpen|isGuessed) != 0 }

// most returns an upper limit of the PSN after the last response, whatever the MTU is.
func (d *read) most() uint64 {
	if d.is(isKnown) {
		return d.start + span(d.len, 256)
	}
	return d.start + restart
}

const (
	maxReads  = 64
	keepReads = 8
)

// addRead adds a read.
func (x *exchange) addRead() *read {
	if n := len(x.reads); n >= keepReads && (n == maxReads || x.reads[0].is(isDoneR) && x.reads[0].end <= x.acked) {
		copy(x.reads, x.reads[1:])
		x.reads[n-1] = read{}
		return &x.reads[n-1]
	}
	x.reads = append(x.reads, read{})
	return &x.reads[len(x.reads)-1]
}

// newest returns the newest read, of which there is one.
func (x *exchange) newest() *read { return &x.reads[len(x.reads)-1] }

// open returns the READ of unknown span that nothing is seen behind, which there is where
// spanOpen says so. One that was lost and retransmitted may have been added since.
func (x *exchange) open() *read {
	for i := len(x.reads) - 1; i > 0; i-- {
		if x.reads[i].is(isOpen) {
			return &x.reads[i]
		}
	}
	return &x.reads[0]
}

// read returns the newest READ or atomic that has PSN u, or nil.
func (x *exchange) read(u uint64) *read {
	for i := len(x.reads) - 1; i >= 0; i-- {
		d := &x.reads[i]
		if u >= d.start && (u < d.end || d.is(isOpen) && x.spanOpen && u < d.most()) {
			return d
		}
	}
	return nil
}

// span returns how many PSNs a READ of n bytes takes.
func span(n uint32, mtu int) uint64 {
	if n == 0 {
		return 1
	}
	return (uint64(n) + uint64(mtu) - 1) / uint64(mtu)
}

// closeSpan computes the end of READs when the MTU becomes known.
func (x *exchange) closeSpan(mtu int) {
	for i := range x.reads {
		d := &x.reads[i]
		if !d.is(isKnown) || !d.vague() {
			continue
		}
		whole := d.to == d.end
		d.end = d.start + span(d.len, mtu)
		if whole {
			d.to = d.end
		}
		if d.is(isOpen) {
			x.spanOpen = false
			x.next = max(x.next, d.end)
		}
		d.flags &^= isOpen | isGuessed
		x.tail(d)
	}
}

// tail enters the entry at a READ's last PSN.
func (x *exchange) tail(d *read) {
	e := x.log.at(d.start)
	if e == nil || d.end <= d.start+1 {
		return
	}
	t := *e
	t.psn = d.end - 1
	t.flags |= isTail
	*x.log.slot(d.end - 1) = t
}

// endSpan ends a READ of unknown span, when the next request seen has PSN u. There may have
// been others in between that were not seen.
func (x *exchange) endSpan(u uint64) {
	d := x.open()
	x.spanOpen = false
	if !d.is(isOpen) {
		x.next = u
		return // it is forgotten
	}
	d.flags = d.flags&^isOpen | isGuessed
	whole := d.to == d.end
	d.end = max(u, d.start+1)
	if whole {
		d.to = d.end
	}
	x.next = u
}

// answered reports whether requests with op have a response of their own.
func answered(op bth.Opcode) bool {
	switch op.Operation() {
	case bth.ReadRequest, bth.CmpSwap, bth.FetchAdd, bth.Flush, bth.AtomicWrite:
		return op.Class() == bth.Request
	}
	return false
}
