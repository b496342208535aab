package main

import (
	"encoding/hex"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/qp/script"
)

// device is the device under test, and how it is reached.
type device struct {
	link       link
	agent      agent                        // nil where there is none
	cm         map[programAt]netip.AddrPort // programs that accept connections
	mac        frame.MAC
	ip4, ip6   netip.Addr
	our4, our6 netip.Addr
	can        map[string]string // the reply to info, and results of probes
	rec        *recorder
	console    *consoleFile       // of the device's host; nil if not known
	waiting    func()             // called when the program waits for the host; may be nil
	bases      map[string]*result // results of scripts that others build on
	qpns       uint32             // QP numbers assigned so far
	comms      uint32
	seed       uint64 // seed of the mutations
	mutations  int

	patience time.Duration // how long to wait for what must arrive
	quiet    time.Duration // how long to wait for what must not arrive
	slack    time.Duration // added to the end of a window
	jitter   time.Duration // by how much the delay from the device may vary from packet to packet
}

// programAt is a program, and whether it is reached over IPv4 or IPv6.
type programAt struct {
	name string
	v6   bool
}

const (
	defaultQKey = 0x11111111
	firstQPN    = 0x10000
	scratchSize = 1 << 18
)

// deviation is an expectation that did not hold.
type deviation struct{ got string }

func (e *deviation) Error() string { return e.got }

func deviated(format string, v ...any) error { return &deviation{fmt.Sprintf(format, v...)} }

// inapplicable is the reason that a script cannot be run here.
type inapplicable string

func (e inapplicable) Error() string { return string(e) }

// run holds the state of a script that is running.
type run struct {
	d    *device
	s    *drill
	line int
	stmt string

	connection
	resources
	transcript

	calls   call
	allowed []string
	faults  []fault
	fatal   bool // a NAK ended the connection: a receive that was consumed completes with an error
}

// connection is the two queue pairs of a script: ours and the device's.
type connection struct {
	service     bth.Service
	qpn, dutQPN uint32
	qp          uint64 // the agent's handle
	v6          bool
	shift       int // added to the PSNs of our requests: the device chose the first PSN
	mads        bool
	also        uint32 // another QP number of ours whose packets are received
	seen        map[uint32]bool
	ports       []uint16 // UDP source ports of the device's queue pair, each once
}

// resources are what a script has at the device, by the names that it gave them.
type resources struct {
	keys          map[string]uint32
	regions       map[string]liveRegion
	scratch, free uint64
	srq           uint64
	srqNum        uint32               // SRQ number in requests of XRC
	bufs          map[string][2]uint64 // "recv 1", "post 1": offset and length in scratch
	completions   []map[string]string
}

// transcript is what happened so far, for the report.
type transcript struct {
	last      time.Time
	lastFrame int
	lastSent  string // the statement, or what was mutated
	heard     int    // frames received
	trace     []traced
	notes     []string
	kernel    []string
}

type liveRegion struct {
	handle, addr, len uint64
	rkey              uint32
}

func (r *run) cleanup() {
	r.hangUp()
	if r.d.agent != nil && r.s.by == "agent" {
		_, _ = r.d.agent.do("reset")
	}
}

// Expectations of each script at its end.
const (
	quietKernel = "nothing in the kernel's log"
	livingHost  = "the device's host lives"
)

// kernelLog returns the kernel warnings of the device's host since the last call, without the
// parts that differ in each run. A warning or an oops is a finding whatever the script is
// about.
func (r *run) kernelLog() (said string, gone bool) {
	if r.d.agent == nil || !r.d.link.real() {
		return "", false
	}
	a, err := r.d.agent.do("log")
	if err != nil || a.num("lines") == 0 {
		return "", errors.Is(err, errGone)
	}
	said = liveWords.ReplaceAllString(strings.ReplaceAll(a.words["text"], "~", " "), "")
	return strings.Join(strings.Fields(said), " "), false
}

// end checks that there are no packets and completions that no statement expected.
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

// silence waits until d after the last event, and requires that only allowed packets arrive.
func (r *run) silence(d time.Duration) error {
	until := r.last.Add(d)
	if now := r.d.link.now(); now.After(until) {
		until = now // packets that arrived during commands to the agent count as well
	}
	for {
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

// named replaces names of regions by their addresses on the device: va=m+16.
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

// agentDo sends a command to the agent; a refusal means that the device does not support it.
func (r *run) agentDo(format string, v ...any) (reply, error) {
	if r.d.agent == nil {
		return reply{}, inapplicable("needs the agent")
	}
	return r.d.agent.do(format, v...)
}

// space reserves n bytes of the scratch region.
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
