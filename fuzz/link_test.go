package fuzz_test

import (
	"bytes"
	"encoding/binary"
	"testing"
	"time"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/fuzz/mutator"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/conform"
)

// What a byte of FuzzLink's schedule does to the next frame on the link. The low
// three bits choose; the others say how much.
const (
	linkPass = iota
	linkDrop
	linkDouble
	linkHold   // behind some of the next frames
	linkFlip   // a bit, which the ICRC covers
	linkBad    // mutated, with a bad ICRC
	linkPause  // passes, after time went by
	linkHostle // mutated, with a good ICRC
)

// link carries frames between two nodes, as a schedule says; when that is used
// up, it is a good link.
type link struct {
	t        testing.TB
	nodes    [2]*node
	schedule []byte
	n        uint64
	hostile  bool // a frame was changed that the receiver had to believe
	bad, evl *mutator.Mutator
	queue    [2][]inFlight // to each node
	tap      [2]*tap
	frames   int
	rep      mutator.Report
}

// tap is a watcher at one node's card: it sees what the node sends and receives,
// in the node's order, whatever the link does. So a rule that it says a frame of
// that node broke was broken.
type tap struct {
	*conform.Watcher
	sent   map[uint64]bool // the node's own frames
	breach []string
}

func (t *tap) see(now time.Time, b []byte, own bool) {
	t.HandleFrame(now, frame.Ethernet, b, len(b))
	if own {
		t.sent[t.Frames()] = true
	}
	var f conform.Finding
	for t.NextFinding(&f) {
		if f.Severity == conform.Breach && t.sent[f.Frame] {
			t.breach = append(t.breach, f.String())
		}
	}
}

type inFlight struct {
	b     []byte
	after int
}

func newLink(t testing.TB, seed uint64, schedule []byte) *link {
	l := &link{t: t, schedule: schedule}
	for i := range l.nodes {
		l.nodes[i] = newNode(t, i)
	}
	var err error
	l.bad, err = mutator.New(mutator.Config{Seed: seed, ICRC: mutator.ICRCBad})
	must(t, err)
	l.evl, err = mutator.New(mutator.Config{Seed: seed})
	must(t, err)
	for i := range l.tap {
		w, err := conform.New(conform.Config{})
		must(t, err)
		l.tap[i] = &tap{Watcher: w, sent: make(map[uint64]bool)}
	}
	return l
}

// send is called with each frame that node i sends.
func (l *link) send(i int, b []byte) {
	if l.frames++; l.frames > 50_000 {
		l.t.Fatal("no end of frames")
	}
	l.tap[i].see(l.nodes[i].now, b, true)
	op := byte(linkPass)
	if len(l.schedule) > 0 {
		op, l.schedule = l.schedule[0], l.schedule[1:]
	}
	much := int(op >> 3)
	l.n++
	out := inFlight{b: bytes.Clone(b)}
	switch op & 7 {
	case linkDrop:
		return
	case linkDouble:
		l.queue[1-i] = append(l.queue[1-i], out)
	case linkHold:
		out.after = much
	case linkFlip:
		var f frame.Frame
		if f.Decode(frame.Ethernet, b) == nil {
			// From BTH byte 5 on all bits are covered.
			from := len(b) - len(f.Transport) + 5
			bit := int(l.n * 2654435761 % uint64((len(b)-from)*8))
			out.b[from+bit/8] ^= 1 << (bit & 7)
		}
	case linkBad:
		out.b = l.bad.Mutate(l.n, frame.Ethernet, b, len(b), nil, &l.rep)
		// A raw change may fall on what no ICRC covers, and then is repaired.
	case linkPause:
		l.nodes[1-i].now = l.nodes[1-i].now.Add(time.Nanosecond << (much & 31))
	case linkHostle:
		out.b = l.evl.Mutate(l.n, frame.Ethernet, b, len(b), nil, &l.rep)
		l.hostile = true
	}
	l.queue[1-i] = append(l.queue[1-i], out)
}

// deliver hands over what has arrived at node i, and reports whether it did
// anything.
func (l *link) deliver(i int) bool {
	q := l.queue[i]
	l.queue[i] = nil
	moved := false
	for _, f := range q {
		if f.after > 0 {
			f.after--
			l.queue[i] = append(l.queue[i], f)
			moved = true
			continue
		}
		moved = true
		n := l.nodes[i]
		l.tap[i].see(n.now, f.b, false)
		n.port.HandleFrame(n.now, f.b)
		n.drain(func(b []byte) { l.send(i, b) })
	}
	return moved
}

// run carries frames and advances the time until no port has anything to do.
func (l *link) run() {
	for rounds := 0; ; rounds++ {
		if rounds > 20_000 {
			l.t.Fatal("no end of rounds")
		}
		for i, n := range l.nodes {
			n.drain(func(b []byte) { l.send(i, b) })
		}
		moved := l.deliver(0)
		moved = l.deliver(1) || moved
		l.together(time.Microsecond)
		if moved {
			continue
		}
		// The earlier deadline of the two comes.
		var first *node
		var due time.Time
		for _, n := range l.nodes {
			if d, ok := n.port.Deadline(); ok && (first == nil || d.Before(due)) {
				first, due = n, d
			}
		}
		if first == nil {
			return
		}
		first.tick()
		l.together(0)
	}
}

// together sets both clocks to the later one and d more.
func (l *link) together(d time.Duration) {
	now := l.nodes[0].now
	if l.nodes[1].now.After(now) {
		now = l.nodes[1].now
	}
	now = now.Add(d)
	for _, n := range l.nodes {
		n.now = now
	}
}

// runLink posts work at both ends and carries it over the link. Whatever the
// link does, everything posted to the RC QPs completes. Over a link that loses,
// repeats, reorders, corrupts and delays, but does not forge, it completes with
// success unless retries run out, and the watchers see no rule broken.
func runLink(t testing.TB, seed uint64, warm bool, work, schedule []byte) *link {
	l := newLink(t, seed, nil)
	for i, n := range l.nodes {
		for j := range n.fixed.data {
			n.fixed.data[j] = byte(j*7 + i)
		}
		copy(n.fixed.fixed, n.fixed.data)
	}
	want := [2]int{}
	if warm {
		// Both ways a message of several packets goes over the good link first. From
		// it the watcher learns the path MTU, without which it has to guess where READs
		// end.
		want = [2]int{1, 1}
		for _, n := range l.nodes {
			n.post(1)
		}
		l.run()
	}
	l.schedule = schedule
	for _, w := range work[:min(len(work), 12)] {
		n := l.nodes[w>>7]
		before := n.rc.Outstanding()
		n.post(int(w & 0x7f))
		want[w>>7] += n.rc.Outstanding() - before
	}
	l.run()
	for i, n := range l.nodes {
		n.check()
		if n.rc.Outstanding() != 0 {
			t.Fatalf("node %d: %d requests never completed", i, n.rc.Outstanding())
		}
		got, good := 0, true
		for _, c := range n.done {
			if c.QPN == n.rc.Num() && c.Op < qp.OpRecv {
				got++
				good = good && c.Status == qp.Success
			}
		}
		if got != want[i] {
			t.Fatalf("node %d: %d completions of %d requests", i, got, want[i])
		}
		if !good && !l.hostile && n.rc.Counters().RetryExceededErr == 0 && n.rc.Counters().RNRNakRetryErr == 0 &&
			l.nodes[1-i].rc.Counters().RetryExceededErr == 0 && l.nodes[1-i].rc.Counters().RNRNakRetryErr == 0 {
			t.Fatalf("node %d: failed over a link that forges nothing: %+v", i, n.done)
		}
	}
	if !l.hostile {
		l.once()
	}
	for i, tap := range l.tap {
		if !l.hostile && len(tap.breach) > 0 {
			t.Fatalf("the watcher says that node %d broke a rule: %q", i, tap.breach)
		}
	}
	return l
}

// once checks that each FETCH_ADD was done once, and no CMP_SWAP of the wrong
// value: one that failed because retries were exhausted was done once or not at all.
func (l *link) once() {
	const untouched = 0xa5a5a5a5a5a5a5a5
	for i, n := range l.nodes {
		least, most := uint64(0), uint64(0)
		for _, c := range n.done {
			if c.Op == qp.OpFetchAdd {
				most++
				if c.Status == qp.Success {
					least++
				}
			}
		}
		at := l.nodes[1-i].mem.data
		added := binary.LittleEndian.Uint64(at[8:]) - untouched
		if added%3 != 0 || added/3 < least || added/3 > most {
			l.t.Fatalf("node %d: %d was added, by %d to %d times 3", i, added, least, most)
		}
		if binary.LittleEndian.Uint64(at[16:]) != untouched {
			l.t.Fatalf("node %d: a CMP_SWAP swapped what it did not compare", i)
		}
	}
}

// FuzzLink connects two ports by a link that does to each frame what a fuzzed
// schedule says, changes by the mutator with a fuzzed seed among it.
func FuzzLink(f *testing.F) {
	f.Add(uint64(1), []byte{0, 1, 2, 3, 4, 5, 6, 0x80, 0x83}, []byte{})
	f.Add(uint64(2), []byte{1, 5, 2, 9, 12}, []byte{0, 1, 0, 2, 0x13, 0, 4, 0, 5, 0, 0xce})
	f.Add(uint64(3), []byte{2, 1, 0x82, 0x81, 3}, bytes.Repeat([]byte{1, 0, 0x0b, 2, 0}, 8))
	f.Add(uint64(5), []byte{3, 3, 4, 0x83, 3}, bytes.Repeat([]byte{2, 0, 1, 0, 0}, 8))
	f.Add(uint64(4), []byte{0, 1, 2, 3, 4}, bytes.Repeat([]byte{7, 0, 0}, 16))
	// Two that the watcher once judged wrongly: an acknowledgement far behind, and
	// MSNs after a READ that it could not measure.
	f.Add(uint64(5), []byte("\x02\xee\xee2\x11\x11\x11"), []byte("\x02\xee\xee\xee\xee2\x11\x11\x11\x11\x82\x02\v\x02\x00\x01\x00\v\x02\x00\x01\x00\v\x02\x00\x01\x00"+
		"\xfe\xfe\xfe\xfe\xfe\xfe\xfe\x03\x02\x00\x01\x00\v\x02\x00\x01\x00\vx\x00"))
	f.Add(uint64(1), []byte("`b\x14e]\xb3\xdc/\xcd\x02"), []byte("\x01\x80\x03\x15\x02\x03\x15\x02\x05\x05"))
	// Four more, found by the fuzzer; the last is of rule RQ-15, credits after going back.
	f.Add(uint64(141), []byte("\x00\x00\x00\x10\x13X\x01XXX\x00"), []byte("\x00\x00\x00\x10\x13X\x01XXX\x00\x04\xb8ޤ\x00\xd8\x00\x00"))
	f.Add(uint64(2), []byte("\xf2\xf2\xf2\xf2\xf2\xf2\xf2\xf2\xf2A\x93\x00"), []byte("\xf2\xf2\xf2\xf2\xf2\xf2\xf2\xf2\xf2A\x93\x00\x91\xca\x00\x01{\x15\x13\x00\x04\x00\xd8\x00\xce"))
	f.Add(uint64(12), []byte("\x88\x88\x88\x88\x00"), []byte("\x01\x00\v\x02\x00\x01\x00\x01\x02\x00\v\x00\v\x02\x00\x01\x00\x98\x98\x98\x98\x98\x98\x98\x00\x01\x00\v\x02\x00\x01\x00\v\x02\x00\x01\x00\v\x02\x00"))
	f.Add(uint64(34), []byte("XX\x00\x10@X\x01X\x00\x00\x00"), []byte("XX\x00\x10@X\x01X\x00\x00\x00\x04\xb8ޤ\x00\xd8\x00\x00"))
	f.Fuzz(func(t *testing.T, seed uint64, work, schedule []byte) {
		if len(schedule) > 4096 {
			t.Skip()
		}
		// With the path MTU known to the watcher from the start, and without.
		runLink(t, seed, true, work, schedule)
		runLink(t, seed, false, work, schedule)
	})
}

// TestGoodLink: over a good link all is done at once and data arrives.
func TestGoodLink(t *testing.T) {
	l := runLink(t, 1, true, []byte{0, 1, 2, 3, 4, 5, 7}, nil)
	a, b := l.nodes[0], l.nodes[1]
	for _, c := range a.done {
		if c.Status != qp.Success {
			t.Errorf("%v: %v", c.Op, c.Status)
		}
	}
	if len(a.done) != 8 || len(b.done) != 3 {
		t.Fatalf("%d and %d completions", len(a.done), len(b.done))
	}
	if !bytes.Equal(b.recv.data[:2500], a.fixed.data[:2500]) {
		t.Error("SEND")
	}
	if !bytes.Equal(b.mem.data[64:3064], a.fixed.data[:3000]) || !bytes.Equal(b.mem.data[24:32], a.fixed.data[:8]) {
		t.Error("WRITE")
	}
	if !bytes.Equal(a.local.data[1024+64:4096-8], b.mem.data[64:3072-8]) {
		t.Error("READ")
	}
}

// TestColdLink holds two schedules that the watcher once judged wrongly, without a
// path MTU to go by: a READ of which the last response was lost while a NAK came
// for what followed it, and one that was first seen as a retransmission.
func TestColdLink(t *testing.T) {
	runLink(t, 1, false, []byte{2, 1, 0x82, 0x81},
		append([]byte{0xe2, 0, 0x0b, 2, 0}, bytes.Repeat([]byte{1, 0, 0x0b, 2, 0}, 7)...))
	runLink(t, 141, false, []byte("4F\xc8\xc1\x92."), []byte("\x00\x01\x00\x02\x13\x00\x04\x00\xd8\x00\x00"))
}
