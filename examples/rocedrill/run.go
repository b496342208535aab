package main

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/qp/script"
)

// device is what is examined, and how it is reached.
type device struct {
	link       link
	agent      agent                        // nil where there is none
	cm         map[programAt]netip.AddrPort // programs that take connections
	mac        frame.MAC
	ip4, ip6   netip.Addr
	our4, our6 netip.Addr
	can        map[string]string // what info said, and what was tried
	rec        *recorder
	console    *consoleFile // of the device's host, nil where it is not known
	bases      map[string]*result
	qpns       uint32 // handed out
	comms      uint32
	seed       uint64 // of the mutations
	mutations  int

	patience time.Duration // for what must come
	quiet    time.Duration // for what must not
	slack    time.Duration // added to the end of a window
	jitter   time.Duration // by how much the way from the device may differ from packet to packet
}

// programAt is a program, and the kind of address that it is reached at.
type programAt struct {
	name string
	v6   bool
}

const (
	defaultQKey = 0x11111111
	firstQPN    = 0x10000
	scratchSize = 1 << 18
)

// verdict is what a script found.
type verdict int

const (
	follows verdict = iota
	deviates
	notApplicable
	notReached
)

var verdictNames = []string{"follows", "deviates", "not applicable", "not reached"}

func (v verdict) String() string { return verdictNames[v] }

// result is a verdict and what it rests on.
type result struct {
	s       *drill
	verdict verdict
	line    int    // of the statement that did not hold
	stmt    string // that statement
	why     string // what came instead; or why there is no verdict
	frame   int    // in the recording
	first   int    // frame with which the script began
	tries   int
	misses  int  // tries that deviated
	died    bool // the device's host did not outlive it
	notes   []string
	kernel  []string // what the kernel of the device's host warned of
	trace   []traced
	took    time.Duration
}

// deviation is an expectation that did not hold.
type deviation struct{ got string }

func (e *deviation) Error() string { return e.got }

func deviated(format string, v ...any) error { return &deviation{fmt.Sprintf(format, v...)} }

// inapplicable says why a script cannot be run here.
type inapplicable string

func (e inapplicable) Error() string { return string(e) }

// run is a script that is run.
type run struct {
	d    *device
	s    *drill
	line int
	stmt string

	service       bth.Service
	qpn, dutQPN   uint32
	qp            uint64 // the agent's handle
	v6            bool
	shift         int // of PSNs of our requests: where the device chose the first
	mads          bool
	also          uint32 // another QP number of ours whose packets are taken
	calls         call
	last          time.Time
	lastFrame     int
	seen          map[uint32]bool
	allowed       []string
	faults        []fault
	fatal         bool // a NAK ended the connection: what was consumed completes with an error
	notes         []string
	kernel        []string
	lastSent      string // the statement, or what was mutated
	heard         int    // frames
	trace         []traced
	keys          map[string]uint32
	regions       map[string]liveRegion
	scratch, free uint64
	srq           uint64
	srqNum        uint32               // as requests of XRC name it
	ports         []uint16             // UDP source ports of the device's queue pair, each once
	bufs          map[string][2]uint64 // "recv 1", "post 1": offset and length in scratch
	completions   []map[string]string
}

type liveRegion struct {
	handle, addr, len uint64
	rkey              uint32
}

// examine runs a script, and once more where it is of a kind that time may upset.
func (d *device) examine(s *drill) *result {
	if res := d.bases[s.id]; res != nil {
		return res
	}
	for _, b := range s.on {
		if res := d.examine(b); res.verdict == deviates {
			return &result{s: s, verdict: notReached, tries: 1, first: d.rec.n + 1, why: fmt.Sprintf("it builds on %s, which deviates", b.id)}
		}
	}
	res := d.repeat(s)
	if s.basis != nil {
		d.bases[s.id] = res
	}
	return res
}

// repeat runs a script until it is clear what it finds.
func (d *device) repeat(s *drill) *result {
	res := d.once(s)
	if res.verdict != deviates || !d.link.real() || res.stmt == quietKernel || res.died {
		return res
	}
	first := res
	first.misses = 1
	for ; first.tries < 3; first.tries++ {
		again := d.once(s)
		if again.verdict == notReached {
			break // the device, or its agent, is not well: what it did before counts
		}
		if again.died {
			return again
		}
		first.kernel = append(first.kernel, again.kernel...)
		if again.verdict == deviates {
			first.misses++
		} else {
			res = again
		}
	}
	if res == first || first.misses > 1 {
		return first
	}
	res.tries, res.misses, res.kernel = first.tries, first.misses, first.kernel
	res.notes = append(res.notes, fmt.Sprintf("did not hold in 1 try of %d: line %d: %s: %s", first.tries, first.line, first.stmt, first.why))
	return res
}

// once runs a script.
func (d *device) once(s *drill) (res *result) {
	if s.by != "agent" && d.link.real() {
		time.Sleep(300 * time.Millisecond) // programs that end with a connection start again
	}
	alive := false
	if a, ok := d.agent.(*remote); ok {
		a.revive()
		alive = a.err == nil && d.link.real()
	}
	start := d.link.now()
	res = &result{s: s, tries: 1, first: d.rec.n + 1}
	r := &run{d: d, s: s, seen: map[uint32]bool{}, keys: map[string]uint32{}, regions: map[string]liveRegion{}, bufs: map[string][2]uint64{}}
	d.qpns++
	r.qpn, r.last = firstQPN+d.qpns, start
	err := r.needs()
	for _, st := range s.lines {
		if err != nil {
			break
		}
		r.line, r.stmt = st.line, st.text
		err = r.statement(st.text)
	}
	if err == nil {
		r.line, r.stmt = r.line+1, "end"
		err = r.end()
	}
	if r.heard > maxHeard {
		err = deviated("more than %d frames came", maxHeard)
	}
	res.line, res.stmt, res.frame = r.line, r.stmt, r.lastFrame
	r.cleanup()
	said, gone := r.kernelLog()
	if said != "" {
		r.kernel = append(r.kernel, said)
	}
	switch {
	case gone && alive:
		if how, notIt := d.obituary(); notIt != nil {
			err = notIt
		} else {
			err = deviated("%s; the last packet to it: %s", how, r.lastSent)
			res.stmt, res.died = livingHost, true
		}
	case r.stmt == livingHost:
		res.died = true
	case said != "" && err == nil:
		err, res.stmt = deviated("%s", said), quietKernel
	}
	var dev *deviation
	var na inapplicable
	switch {
	case err == nil:
		res.line, res.stmt, res.frame = 0, "", 0
	case errors.As(err, &dev):
		res.verdict, res.why = deviates, err.Error()
	case errors.As(err, &na):
		res.verdict, res.why = notApplicable, err.Error()
	default:
		res.verdict, res.why = notReached, err.Error()
	}
	res.kernel = slices.Compact(slices.Sorted(slices.Values(r.kernel)))
	res.trace = r.trace
	res.notes, res.took = r.notes, d.link.now().Sub(start)
	return res
}

// maxHeard is how many frames a script takes: more is a flood.
const maxHeard = 1 << 18

var overIPv6 = regexp.MustCompile(`^(dut|call) .*\bv6\b`)

// needs reports what is missing for a script.
func (r *run) needs() error {
	v6 := r.s.has(overIPv6)
	r.v6 = v6
	if v6 && !r.d.ip6.IsValid() {
		return inapplicable("the device has no IPv6 address that is known here")
	}
	switch by := r.s.by; {
	case by == "agent" && r.d.agent == nil:
		return inapplicable("needs the agent")
	case by == "cm" && len(r.d.cm) == 0:
		return inapplicable("needs a program that takes connections")
	case by != "agent":
		name := by
		if by == "cm" {
			name = "rping"
		}
		to, ok := r.d.cm[programAt{name, v6}]
		for at, a := range r.d.cm {
			if by == "cm" && !ok && at.v6 == v6 {
				to, ok = a, true
			}
		}
		switch {
		case !ok && v6:
			return inapplicable("needs a program that takes connections over IPv6")
		case !ok && by == "cm":
			return inapplicable("needs a program that takes connections over IPv4")
		case !ok:
			return inapplicable("needs " + by)
		}
		r.calls.to = to
	}
	for _, n := range r.s.needs {
		if n == "ecn" && r.d.can[n] == "" {
			r.d.can[n] = r.d.probe(ecnProbe)
		}
		if v := r.d.can[n]; v == "" || v == "0" {
			return inapplicable("the device has no " + n)
		}
	}
	return nil
}

// ecnProbe: does the device send CNPs at all?
const ecnProbe = `== probe
# .
rule CA17-44
dut rc
region m len=4096
repeat 20 < RDMA_WRITE_ONLY 0 va=m rkey=m len=1024 ecn=ce
allow any
+100ms > CNP
`

// meetProbes: is the agent's device the one at the other end of the wire? One packet that it
// takes, or one that it sends, says so.
const meetProbes = `== a WRITE arrives
# .
rule RS-07
dut rc
region m len=64
repeat 3 same < RDMA_WRITE_ONLY 0 ackreq va=m rkey=m data=a[0:8]
allow any
wait 20ms
memory m a[0:8]

== a SEND leaves
# .
rule RQ-01
dut rc
allow any
post SEND data=a[0:8]
> SEND_ONLY 0
`

// meets returns an error where nothing passes between the wire and the agent's device.
func (d *device) meets() error {
	g, err := parseGroup("meets", "meets", meetProbes)
	if err != nil || d.agent == nil || !d.link.real() {
		return err
	}
	var res *result
	for _, s := range g.scripts {
		if res = d.once(s); res.verdict == follows {
			return nil
		}
	}
	if res.verdict == notReached {
		return errors.New(res.why)
	}
	return fmt.Errorf("%v answers ARP, but no RoCE packet reaches the agent's device from there, and none comes from it: is the agent (%s) at the host of %v, and at that of its devices? %s",
		d.ip4, d.can["device"], d.ip4, "drill-agent -d names one, and its address must be one of the RDMA device's")
}

// probe runs a script to find what a device can; "1" or "0".
func (d *device) probe(text string) string {
	g, err := parseGroup("probe", "probe", text)
	if err == nil && d.agent != nil && d.once(g.scripts[0]).verdict == follows {
		return "1"
	}
	return "0"
}

func (r *run) cleanup() {
	r.hangUp()
	if r.d.agent != nil && r.s.by == "agent" {
		_, _ = r.d.agent.do("reset")
	}
}

// What each script expects in the end.
const (
	quietKernel = "nothing in the kernel's log"
	livingHost  = "the device's host lives"
)

// kernelLog returns what the kernel of the device's host warned of since the last time, without
// what differs from one time to the next. A warning or an oops is a finding whatever the
// script is about.
func (r *run) kernelLog() (said string, gone bool) {
	if r.d.agent == nil || !r.d.link.real() {
		return "", false
	}
	a, err := r.d.agent.do("log")
	if err != nil || a.num("lines") == 0 {
		return "", errors.Is(err, errGone)
	}
	said = liveWords.ReplaceAllString(strings.ReplaceAll(a.words["text"], "_", " "), "")
	return strings.Join(strings.Fields(said), " "), false
}

// end: nothing may be left that no statement named.
func (r *run) end() error {
	if r.qp == 0 && !r.mads {
		return nil
	}
	if err := r.silence(r.d.quiet); err != nil {
		return err
	}
	if r.qp == 0 {
		return nil
	}
	if err := r.poll(0); err != nil {
		return err
	}
	for _, c := range r.completions {
		if c["status"] != "WR_FLUSH_ERR" && !(r.fatal && c["status"] != "SUCCESS") && !slices.Contains(r.allowed, "any") {
			return deviated("not stated: completion %s", showCompletion(c))
		}
	}
	return nil
}

// silence waits until d after the last event: nothing may come but what is allowed.
func (r *run) silence(d time.Duration) error {
	for until := r.last.Add(d); ; {
		p, ok := r.next(until)
		if !ok {
			r.last = until
			return nil
		}
		if !r.allows(p) {
			return deviated("not stated: %s", r.describe(p))
		}
	}
}

// allows reports whether a packet is of a kind that may come at any time.
func (r *run) allows(p *packet) bool {
	name := r.describe(p) + " "
	for _, a := range r.allowed {
		switch {
		case a == "retx" && p.retx, a == "any":
			return true
		case a == "NAK":
			if p.Packet.Opcode.Operation() == bth.Acknowledge && p.Packet.AETH.Syndrome.Kind() != aeth.Ack {
				return true
			}
		case a == "ACK":
			if p.Packet.Opcode.Operation() == bth.Acknowledge && p.Packet.AETH.Syndrome.Kind() == aeth.Ack {
				return true
			}
		case strings.HasPrefix(name, a+" "):
			return true
		}
	}
	return false
}

// named replaces names of regions by what the device calls them: va=m+16.
func (r *run) named(s string) string {
	words := strings.Fields(s)
	for i, w := range words {
		v, ok := strings.CutPrefix(w, "va=")
		if !ok {
			continue
		}
		name, off, _ := strings.Cut(v, "+")
		m, ok := r.regions[name]
		if !ok {
			continue
		}
		n := uint64(0)
		if off != "" {
			if _, err := fmt.Sscan(off, &n); err != nil {
				continue
			}
		}
		words[i] = fmt.Sprintf("va=%#x", m.addr+n)
	}
	return strings.Join(words, " ")
}

// statement runs one line.
func (r *run) statement(text string) error {
	from, to := time.Duration(-1), time.Duration(-1)
	if text[0] == '+' {
		var t string
		t, text, _ = strings.Cut(text, " ")
		lo, hi, ranged := strings.Cut(t, "..")
		var err error
		if from, err = time.ParseDuration(lo); err != nil {
			return err
		}
		if to = from; ranged {
			if to, err = time.ParseDuration(hi); err != nil {
				return err
			}
		} else {
			from = 0
		}
		text = strings.TrimSpace(text)
	}
	eventually := false
	if rest, ok := strings.CutPrefix(text, "eventually "); ok {
		eventually, text = true, strings.TrimSpace(rest)
	}
	w := script.SplitWords(r.named(text))
	switch name := w.Next("the statement"); name {
	case ">":
		if to < 0 {
			from, to = 0, r.d.patience
		}
		return r.expect(w, from, to, eventually)
	case "-":
		if to < 0 {
			to = r.d.quiet
		}
		return r.silence(to)
	case "<":
		return r.deliver(w, 1, false)
	case "repeat":
		n, same := w.Next("the count"), w.Flag("same")
		count := 0
		if _, err := fmt.Sscan(n, &count); err != nil || w.Next("<") != "<" {
			return fmt.Errorf("repeat N < PACKET")
		}
		return r.deliver(w, count, same)
	case "allow":
		r.allowed = append(r.allowed, w.Rest()...)
		return nil
	case "wellformed":
		if len(r.faults) != 0 {
			r.lastFrame = r.faults[0].frame
			return deviated("%s", r.faults[0].what)
		}
		return nil
	default:
		return r.control(name, w)
	}
}

// agentDo is a command to the agent whose refusal means that the device cannot.
func (r *run) agentDo(format string, v ...any) (reply, error) {
	if r.d.agent == nil {
		return reply{}, inapplicable("needs the agent")
	}
	return r.d.agent.do(format, v...)
}

// space takes n bytes of the scratch region.
func (r *run) space(n uint64) (off uint64, err error) {
	if r.scratch == 0 {
		a, err := r.agentDo("mr size=%d access=", scratchSize)
		if err != nil {
			return 0, err
		}
		r.scratch = a.num("mr")
	}
	off = r.free
	if r.free += (n + 63) &^ 63; r.free > scratchSize {
		return 0, errors.New("the script needs too much memory")
	}
	return off, nil
}

func (r *run) poke(mr, off uint64, b []byte) error {
	for len(b) != 0 {
		n := min(len(b), 8192)
		if _, err := r.agentDo("poke mr=%d off=%d len=%d hex=%s", mr, off, n, hex.EncodeToString(b[:n])); err != nil {
			return err
		}
		b, off = b[n:], off+uint64(n)
	}
	return nil
}

func (r *run) peek(mr, off uint64, n int) ([]byte, error) {
	var out []byte
	for n > 0 {
		k := min(n, 8192)
		a, err := r.agentDo("peek mr=%d off=%d len=%d", mr, off, k)
		if err != nil {
			return nil, err
		}
		b, err := hex.DecodeString(a.words["hex"])
		if err != nil || len(b) != k {
			return nil, fmt.Errorf("agent: peek of %d bytes gave %d", k, len(b))
		}
		out, n, off = append(out, b...), n-k, off+uint64(k)
	}
	return out, nil
}
