package main

import (
	"bufio"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
)

// expand puts the process's number in the place of %p in a file name.
func expand(name string) string { return strings.ReplaceAll(name, "%p", strconv.Itoa(os.Getpid())) }

// tap is the capture that ROCE_PCAP names: what the port sent, and what it received
// after faults.
type tap struct {
	file *os.File
	buf  *bufio.Writer
	w    *capture.Writer
	now  time.Time
	err  error
	eth  []byte
}

func newTap(name string) (*tap, error) {
	if name == "" {
		return nil, nil
	}
	f, err := os.Create(expand(name))
	if err != nil {
		return nil, fmt.Errorf("ROCE_PCAP: %w", err)
	}
	t := &tap{file: f, buf: bufio.NewWriterSize(f, 1<<16)}
	t.w, t.err = capture.NewWriter(t.buf, frame.Ethernet)
	return t, nil
}

// sent records an Ethernet frame.
func (t *tap) sent(b []byte) {
	if t.err == nil {
		t.err = t.w.Write(t.now, b)
	}
}

// network records a packet from its IP header on.
func (t *tap) network(now time.Time, pkt []byte) {
	t.eth = append(t.eth[:0], 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00)
	if pkt[0]>>4 == 6 {
		t.eth[12], t.eth[13] = 0x86, 0xdd
	}
	t.eth = append(t.eth, pkt...)
	t.now = now
	t.sent(t.eth)
}

// flush writes what was recorded. A file that cannot be written ends the capture, and
// nothing else.
func (t *tap) flush(log *slog.Logger) {
	if t.file == nil {
		return
	}
	if t.err == nil {
		t.err = t.buf.Flush()
	}
	if t.err != nil {
		fmt.Fprintf(os.Stderr, "roce-verbs: ROCE_PCAP: the capture ends here: %v\n", t.err)
		log.Warn("the capture ended", "err", t.err)
		t.file.Close()
		t.file = nil
	}
}

func (t *tap) close(log *slog.Logger) {
	t.flush(log)
	if t.file != nil {
		t.file.Close()
	}
}

// faults loses, doubles and delays packets that arrive, as ROCE_FAULTS says.
type faults struct {
	loss, dup, reorder float64 // probabilities
	rng                *rand.Rand
	held               []heldPacket
	due                time.Time // when the first of held goes on
	spare              [][]byte
}

type heldPacket struct {
	pkt []byte
	at  time.Time
}

// A packet that is reordered arrives so much later.
const reorderBy = 300 * time.Microsecond

// newFaults reads "loss=1%,dup=0.5%,reorder=1%,seed=7": each may be left out.
func newFaults(s string) (*faults, error) {
	if s == "" {
		return nil, nil
	}
	f := &faults{}
	seed := uint64(1)
	for _, part := range strings.Split(s, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		bad := fmt.Errorf("ROCE_FAULTS: %q is not one of loss=P%%, dup=P%%, reorder=P%%, seed=N, P from 0 to 100", part)
		if !ok {
			return nil, bad
		}
		if name == "seed" {
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				return nil, bad
			}
			seed = n
			continue
		}
		p := map[string]*float64{"loss": &f.loss, "dup": &f.dup, "reorder": &f.reorder}[name]
		v, err := strconv.ParseFloat(strings.TrimSuffix(value, "%"), 64)
		if p == nil || err != nil || !(v >= 0 && v <= 100) || !strings.HasSuffix(value, "%") {
			return nil, bad
		}
		*p = v / 100
	}
	f.rng = rand.New(rand.NewPCG(seed, 0))
	return f, nil
}

// arrived does to a packet what is to happen to it.
func (f *faults) arrived(e *engine, now time.Time, pkt []byte) {
	lose, twice, later := f.rng.Float64() < f.loss, f.rng.Float64() < f.dup, f.rng.Float64() < f.reorder
	if later && !lose {
		f.hold(pkt, now.Add(reorderBy))
	}
	if twice && !lose {
		f.hold(pkt, now) // the port may change pkt
	}
	if !lose && !later {
		e.deliver(now, pkt)
	}
}

func (f *faults) hold(pkt []byte, at time.Time) {
	var b []byte
	if n := len(f.spare); n != 0 {
		b, f.spare = f.spare[n-1], f.spare[:n-1]
	}
	f.held = append(f.held, heldPacket{append(b[:0], pkt...), at})
	if f.due.IsZero() || at.Before(f.due) {
		f.due = at
	}
}

// late delivers the packets whose time has come, and returns how many.
func (f *faults) late(e *engine, now time.Time) (n int) {
	if f.due.IsZero() || now.Before(f.due) {
		return 0
	}
	keep := f.held[:0]
	f.due = time.Time{}
	for _, h := range f.held {
		if h.at.After(now) {
			keep = append(keep, h)
			if f.due.IsZero() || h.at.Before(f.due) {
				f.due = h.at
			}
			continue
		}
		e.deliver(now, h.pkt)
		f.spare = append(f.spare, h.pkt)
		n++
	}
	f.held = keep
	return n
}
