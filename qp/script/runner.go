package script

import (
	"errors"
	"fmt"
	"io"
	"reflect"
	"strings"
	"time"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/qp"
)

// item is an output of the QP that no statement has claimed yet.
type item struct {
	at   time.Duration
	line int // of the statement that caused it
	stmt string
	text string

	raw  []byte // packets
	retx bool
	c    qp.Completion
	e    qp.Event
}

type runner struct {
	w    io.Writer
	line int
	stmt string

	qp      *qp.QP
	typ     qp.Type
	service bth.Service
	attr    qp.Attr
	now     time.Duration
	held    bool

	packets, completions, events []item

	regions *qp.Regions
	keys    map[string]uint32 // of regions and windows
	memory  map[string]qp.Region
	srqs    map[uint32]*qp.SRQ
	grh     [qp.GRHSize]byte
	// Memory of work requests, by id: what a completion's data is compared with.
	sent, received map[uint64][]byte

	out qp.Outgoing
}

// SRQ implements qp.SRQLookup.
func (r *runner) SRQ(num uint32) *qp.SRQ { return r.srqs[num] }

func newRunner(w io.Writer) *runner {
	t, err := qp.NewRegions(64)
	if err != nil {
		panic(err) // 64 is in range
	}
	r := &runner{w: w, regions: t, keys: map[string]uint32{}, memory: map[string]qp.Region{}, srqs: map[uint32]*qp.SRQ{},
		sent: map[uint64][]byte{}, received: map[uint64][]byte{}}
	copy(r.grh[:], Pattern('g', 0, qp.GRHSize))
	return r
}

var epoch = time.Unix(1e9, 0)

// at is the time of the QP.
func (r *runner) at() time.Time { return epoch.Add(r.now) }

func (r *runner) logf(format string, v ...any) {
	fmt.Fprintf(r.w, "%-14v %s\n", r.now, fmt.Sprintf(format, v...))
}

// expects are the statements that name an output of the QP.
var expects = map[string]bool{">": true, "done": true, "event": true}

// static are the statements that affect neither the clock nor the QP.
var static = map[string]bool{"state": true, "counters": true, "memory": true, "posted": true, "deadline": true}

func (r *runner) statement(s string) error {
	a := &Words{words: strings.Fields(s)}
	from, to := r.now, r.now
	if w := a.words[0]; w[0] >= '0' && w[0] <= '9' || w[0] == '+' {
		var err error
		if from, to, err = window(a.Next("time"), r.now); err != nil {
			return err
		}
		if from < r.now {
			return fmt.Errorf("time goes back from %v to %v", r.now, from)
		}
	}
	name := a.Next("the statement")
	if r.qp == nil {
		switch name {
		case "qp", "srq", "region", "window":
		default:
			return errors.New("qp comes first")
		}
	}
	if expects[name] {
		if err := r.await(name, from, to); err != nil {
			return err
		}
		return r.expect(name, a, from, to)
	}
	if from != to {
		return errors.New("a window is for what is expected")
	}
	if static[name] && from == r.now {
		return r.check(name, a)
	}
	if err := r.nothingLeft(); err != nil {
		return err
	}
	if from > r.now {
		if err := r.run(from, func() bool { return r.nothingLeft() != nil }); err != nil {
			return err
		}
	}
	if static[name] {
		return r.check(name, a)
	}
	if name == "-" {
		if err := r.nothingLeft(); err != nil {
			return err
		}
		return a.Done()
	}
	if err := r.nothingLeft(); err != nil {
		return err
	}
	if err := r.act(name, a); err != nil {
		return err
	}
	return r.drain()
}

// nothingLeft fails where there is an output that no statement expects.
func (r *runner) nothingLeft() error {
	for _, q := range [][]item{r.packets, r.completions, r.events} {
		if len(q) != 0 {
			it := &q[0]
			return &Error{it.line, it.stmt, fmt.Sprintf("at %v, not expected: %s", it.at, it.text)}
		}
	}
	return nil
}

// run advances the clock to t, or to where stop holds, and calls Tick at each deadline.
func (r *runner) run(t time.Duration, stop func() bool) error {
	if r.qp == nil { // nothing to wait for yet
		r.now = t
		return nil
	}
	for r.now < t {
		next := t
		if d, ok := r.qp.Deadline(); ok {
			next = min(t, max(d.Sub(epoch), r.now))
		}
		r.now = next
		r.qp.Tick(r.at())
		if d, ok := r.qp.Deadline(); ok && !d.After(r.at()) {
			return fmt.Errorf("at %v, the deadline after Tick is %v", r.now, d.Sub(epoch))
		}
		if err := r.drain(); err != nil {
			return err
		}
		if stop() {
			break
		}
	}
	return nil
}

// await advances the clock within the window, until there is an output of the kind.
func (r *runner) await(name string, from, to time.Duration) error {
	queue := map[string]*[]item{">": &r.packets, "done": &r.completions, "event": &r.events}[name]
	if name == ">" && r.held && len(r.packets) == 0 {
		if err := r.run(from, func() bool { return r.nothingLeft() != nil }); err != nil {
			return err
		}
		r.pull(1)
	}
	if len(*queue) == 0 && to > r.now {
		if err := r.nothingLeft(); err != nil {
			return err
		}
		if err := r.run(to, func() bool { return r.nothingLeft() != nil }); err != nil {
			return err
		}
	}
	if len(*queue) == 0 {
		if err := r.nothingLeft(); err != nil {
			return fmt.Errorf("no output of this kind until %v, but %w", r.now, err)
		}
		return fmt.Errorf("no output until %v", r.now)
	}
	it := &(*queue)[0]
	if it.at < from || it.at > to {
		return fmt.Errorf("output at %v: %s", it.at, it.text)
	}
	return nil
}

// drain fetches packets, completions and events from the QP.
func (r *runner) drain() error {
	if r.qp == nil {
		return nil
	}
	if !r.held {
		r.pull(-1)
	}
	var c qp.Completion
	for r.qp.NextCompletion(&c) {
		text := fmt.Sprintf("completion %v id=%d: %v, %+v", c.Op, c.ID, c.Status, c)
		r.logf("%s", text)
		r.completions = append(r.completions, item{at: r.now, line: r.line, stmt: r.stmt, text: text, c: c})
	}
	var e qp.Event
	for r.qp.NextEvent(&e) {
		r.logf("event %v", e)
		r.events = append(r.events, item{at: r.now, line: r.line, stmt: r.stmt, text: "event " + e.String(), e: e})
	}
	return nil
}

// pull fetches n packets, or with -1 all. The limit only keeps a script with a faulty
// machine from running for ever.
func (r *runner) pull(n int) {
	for i := 0; i != n && i < 1<<16; i++ {
		if !r.qp.NextPacket(r.at(), &r.out) {
			return
		}
		text := Describe(&r.out.Packet, r.out.Retransmission)
		r.logf("> %s", text)
		r.packets = append(r.packets, item{at: r.now, line: r.line, stmt: r.stmt, text: text,
			raw: r.out.Packet.AppendTo(nil), retx: r.out.Retransmission})
	}
}

// expect compares the oldest output of a kind with the statement and removes it.
func (r *runner) expect(name string, a *Words, from, to time.Duration) error {
	switch name {
	case ">":
		it := r.packets[0]
		r.packets = r.packets[1:]
		if err := r.compare(a, &it); err != nil {
			return err
		}
		// A packet that was not fetched before may complete a request.
		return r.drain()
	case "done":
		it := r.completions[0]
		r.completions = r.completions[1:]
		return r.compareCompletion(a, &it)
	}
	it := r.events[0]
	r.events = r.events[1:]
	if want := a.Next("the event"); want != it.e.String() {
		return fmt.Errorf("got %s", it.text)
	}
	return a.Done()
}

func (r *runner) compareCompletion(a *Words, it *item) error {
	c := &it.c
	op := a.Next("the operation")
	if op != c.Op.String() {
		return fmt.Errorf("got %s", it.text)
	}
	status := qp.Success
	if s, ok := a.Str("status"); ok {
		status = a.status(s)
	}
	var bad []string
	compare := func(key string, got uint64) bool {
		s, ok := a.Str(key)
		if ok {
			want, isKey := r.keys[s]
			n := uint64(want)
			if !isKey {
				n = a.number(s, key, 64)
			}
			if n != got {
				bad = append(bad, fmt.Sprintf("want %s %d, got %d", key, n, got))
			}
		}
		return ok
	}
	compare("id", c.ID)
	compare("len", uint64(c.ByteLen))
	compare("src_qp", uint64(c.SrcQP))
	compare("srq", uint64(c.SRQ))
	if compare("imm", uint64(c.Imm)) != c.HasImm {
		bad = append(bad, fmt.Sprintf("imm must be given if the completion has one, and only then; it has one: %v", c.HasImm))
	}
	if compare("inv_rkey", uint64(c.InvRKey)) != c.HasInv {
		bad = append(bad, fmt.Sprintf("inv_rkey must be given if the completion has one, and only then; it has one: %v", c.HasInv))
	}
	if a.Flag("solicited") && !c.Solicited || a.Flag("!solicited") && c.Solicited {
		bad = append(bad, fmt.Sprintf("solicited is %v", c.Solicited))
	}
	want := a.Data()
	if err := a.Done(); err != nil {
		return err
	}
	if status != c.Status {
		bad = append(bad, "want "+status.String())
	}
	if want != nil {
		b := r.sent[c.ID]
		if c.Op == qp.OpRecv || c.Op == qp.OpRecvWrite {
			b = r.received[c.ID]
		}
		if c.GRH && len(b) >= qp.GRHSize {
			if err := differ(b[:qp.GRHSize], r.grh[:]); err != nil {
				bad = append(bad, "GRH area: "+err.Error())
			}
			b = b[qp.GRHSize:]
		}
		if err := differ(b[:min(len(b), len(want))], want); err != nil {
			bad = append(bad, "data: "+err.Error())
		}
	}
	if bad != nil {
		return fmt.Errorf("%s, got %s", strings.Join(bad, ", "), it.text)
	}
	return nil
}

// check runs the statements that only look.
func (r *runner) check(name string, a *Words) error {
	switch name {
	case "state":
		if want := a.Next("the state"); want != r.qp.State().String() {
			return fmt.Errorf("got %v", r.qp.State())
		}
	case "counters":
		c := reflect.ValueOf(r.qp.Counters())
		for i := range c.NumField() {
			s, ok := a.Str(c.Type().Field(i).Name)
			if !ok {
				continue
			}
			if want := a.number(s, "counter", 64); want != c.Field(i).Uint() {
				return fmt.Errorf("%s is %d", c.Type().Field(i).Name, c.Field(i).Uint())
			}
		}
	case "memory":
		return r.checkMemory(a)
	case "posted":
		q := r.srqs[uint32(a.number(a.Next("the number"), "srq", 24))]
		want := a.number(a.Next("the count"), "count", 31)
		if q == nil {
			a.Fail("no such SRQ")
		} else if a.err == nil && q.Len() != int(want) {
			return fmt.Errorf("got %d", q.Len())
		}
	case "deadline":
		s := a.Next("a time")
		d, ok := r.qp.Deadline()
		if s == "none" || !ok {
			if ok || s != "none" {
				return fmt.Errorf("there is a deadline: %v, %v", ok, d.Sub(epoch))
			}
			break
		}
		from, to, err := window(s, r.now)
		if err != nil {
			return err
		}
		if t := d.Sub(epoch); t < from || t > to {
			return fmt.Errorf("got %v", t)
		}
	}
	return a.Done()
}

func (r *runner) checkMemory(a *Words) error {
	name := a.Next("the region")
	m, ok := r.memory[name]
	if !ok {
		return fmt.Errorf("no region %q", name)
	}
	addr, want := a.Num("addr", 64, m.Addr), a.Data()
	if err := a.Done(); err != nil {
		return err
	}
	off := addr - m.Addr
	if n := uint64(len(m.Data)); addr < m.Addr || off > n || uint64(len(want)) > n-off {
		return errors.New("no such range")
	}
	return differ(m.Data[off:][:len(want)], want)
}
