// Package mutator changes RoCE frames on purpose. It knows their structure, so
// that a changed frame passes the first checks of a receiver: it changes
// opcodes, PSNs, keys, lengths, payload, IP and VLAN fields to values at the
// edges, and then repairs lengths, IPv4 checksum and ICRC, or breaks them, as
// configured. A Stream drops, duplicates, reorders, delays and replays frames besides.
//
// All choices come from one seed and the number of the frame: frame n of a run
// can be built again by Mutate with the same Config, n and input, whatever came
// before it. Each frame comes with a Report of what was done to it.
//
// Frames may be of any link type of package frame. A frame that is not RoCE gets
// raw changes only, and no repair. Nothing is written to the input, and nothing
// allocates after the constructor where the caller's buffer has room.
package mutator

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"strconv"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
)

// ErrConfig means that a field of Config is out of its range.
var ErrConfig = errors.New("mutator: config out of range")

// ICRC selects what is done to the ICRC of a frame.
type ICRC uint8

// ICRC modes.
const (
	ICRCValid ICRC = iota // computed
	ICRCBad               // wrong on purpose
	ICRCKeep              // the four bytes are left as they were
)

// String returns "valid", "bad" or "keep", and any other value as a number.
func (i ICRC) String() string {
	switch i {
	case ICRCValid:
		return "valid"
	case ICRCBad:
		return "bad"
	case ICRCKeep:
		return "keep"
	}
	return strconv.Itoa(int(i))
}

// Lengths selects what is done to the lengths in IP, UDP and GRH headers.
type Lengths uint8

// Length modes.
const (
	LengthsRepair Lengths = iota // computed
	LengthsLie                   // one of them, chosen by the seed, is wrong; the others are right
)

// Config says how to change frames. The zero value changes all kinds of fields
// and repairs lengths and ICRC.
type Config struct {
	Seed    uint64
	Kinds   Kinds // what may change; the zero value means all
	ICRC    ICRC
	Lengths Lengths
	// Keep is the share of frames that are not changed, in percent, 0 .. 100.
	Keep int
	// Changes is the most changes of fields in a frame, 1 .. 8; 0 means 3.
	Changes int
	// MaxFrame is the length in bytes to which a payload may grow a frame,
	// 256 .. 65000; 0 means 9216. Tags, options and headers may add 128 more.
	MaxFrame int
	// Hold is how many frames a Stream holds back at a time, and how many old
	// ones it remembers for ReplayOld, 1 .. 4096; 0 means 16.
	Hold int
	// UDPPort is the UDP destination port of RoCE v2; 0 means 4791.
	UDPPort uint16
	// MRC makes opcodes C0 to DF, which are any manufacturer's, those of MRC, so that
	// its headers are known: see package mrc.
	MRC bool
}

func (c *Config) check() error {
	if c.Kinds == (Kinds{}) {
		c.Kinds = AllKinds
	}
	if c.Changes == 0 {
		c.Changes = 3
	}
	if c.MaxFrame == 0 {
		c.MaxFrame = 9216
	}
	if c.Hold == 0 {
		c.Hold = 16
	}
	if c.ICRC > ICRCKeep || c.Lengths > LengthsLie || c.Keep < 0 || c.Keep > 100 || c.Changes < 0 || c.Changes > maxChanges ||
		c.MaxFrame < 256 || c.MaxFrame > 65000 || c.Hold < 0 || c.Hold > 4096 {
		return ErrConfig
	}
	return nil
}

// room is how many bytes a frame may exceed MaxFrame or its input.
const room = 128

// Mutator changes frames one by one. It must be used by one goroutine at a time.
type Mutator struct {
	cfg Config
	pcg rand.PCG
	rng *rand.Rand
	w   work
}

// work is a frame under change. Offsets are into b.
type work struct {
	b     []byte // the previous content of dst, then the frame
	start int    // frame
	net   int    // network header; with what is before it, the link header
	udp   int    // UDP header; the BTH for a GRH
	t     int    // BTH
	end   int    // after the ICRC
	link  frame.Link
	kind  frame.Net
	vlans int
	max   int // longest frame that a longer payload may give
	found frame.Frame
	// keepChecksum is set when the UDP checksum was changed on purpose.
	keepChecksum bool
	mrc          bool // Config.MRC, for a packet that UDP carries
}

// New returns a mutator, or ErrConfig.
func New(cfg Config) (*Mutator, error) {
	if err := cfg.check(); err != nil {
		return nil, err
	}
	m := &Mutator{cfg: cfg}
	m.rng = rand.New(&m.pcg)
	return m, nil
}

// Streams of choices: that of fields and that of sequence changes.
const (
	fieldChoices    = 0
	sequenceChoices = 0x9e3779b97f4a7c15
)

// seed begins the choices of frame n. The multiplication spreads frame numbers,
// which differ in few bits.
func (m *Mutator) seed(n, stream uint64) {
	m.pcg.Seed(m.cfg.Seed^stream, (n+1)*0xd1342543de82ef95)
}

// kept is the first choice of every frame.
func (m *Mutator) kept() bool { return m.rng.IntN(100) < m.cfg.Keep }

// Mutate appends frame number n of a run to dst: the frame of which a capture has b, and
// whose length on the wire was wireLen bytes, changed. rep receives what was done. b and the
// free room of dst must not overlap.
func (m *Mutator) Mutate(n uint64, link frame.Link, b []byte, wireLen int, dst []byte, rep *Report) []byte {
	*rep = Report{Frame: n, ICRC: m.cfg.ICRC}
	m.seed(n, fieldChoices)
	w := &m.w
	w.b = append(dst, b...)
	w.start = len(dst)
	if m.kept() {
		rep.Kept = true
		return w.b
	}
	for try := 0; ; try++ {
		rep.RoCE = m.locate(link, b, wireLen, rep)
		if try < tries {
			m.changes(rep)
		}
		if rep.RoCE {
			m.repair(rep)
		}
		if try == tries || len(rep.Changes()) == 0 || !m.unchanged(b, rep) {
			break
		}
		// The repair has undone the change: try another, and at last none.
		w.b = append(w.b[:w.start], b...)
		*rep = Report{Frame: n, ICRC: m.cfg.ICRC}
	}
	out := w.b
	w.b, w.found = nil, frame.Frame{}
	return out
}

// tries limits how often a frame that did not change is tried again.
const tries = 4

// changes makes up to Config.Changes changes, none of which undoes another.
func (m *Mutator) changes(rep *Report) {
	kinds := m.cfg.Kinds.And(FieldKinds)
	for range 1 + m.rng.IntN(m.cfg.Changes) {
		can := kinds.And(m.applicable(rep.RoCE))
		c := can.Len()
		if c == 0 {
			break
		}
		k := can.nth(m.rng.IntN(c))
		m.apply(k, rep)
		kinds = kinds.AndNot(after(k))
	}
}

// unchanged reports whether the frame is as it was, except for an ICRC that was broken on
// purpose.
func (m *Mutator) unchanged(b []byte, rep *Report) bool {
	out := m.w.b[m.w.start:]
	if len(out) != len(b) {
		return false
	}
	// A packet that the capture had truncated was closed, and may have been cut again there.
	if end := m.w.end - m.w.start; rep.RoCE && m.cfg.ICRC == ICRCBad && end <= len(b) {
		return bytes.Equal(out[:end-bth.ICRCSize], b[:end-bth.ICRCSize]) && bytes.Equal(out[end:], b[end:])
	}
	return bytes.Equal(out, b)
}

// locate finds the parts of the frame, and closes a packet that the capture had truncated. It
// reports false for a frame that is not RoCE.
func (m *Mutator) locate(link frame.Link, b []byte, wireLen int, rep *Report) bool {
	w := &m.w
	w.link, w.kind, w.keepChecksum = link, 0, false
	w.max = max(m.cfg.MaxFrame, len(b))
	w.vlans = countTags(link, b)
	w.end = len(w.b)
	f := &w.found
	if (frame.Finder{UDPPort: m.cfg.UDPPort}).Find(link, b, wireLen, f) != nil || len(f.Transport) < bth.Size {
		return false
	}
	captured := len(b) - len(f.Trailer)
	w.kind = f.Net
	w.mrc = m.cfg.MRC && f.Net != frame.GRH
	w.net = w.start + captured - len(f.NetPacket)
	w.t = w.start + captured - len(f.Transport)
	w.udp = w.t - udpSize
	if f.Net == frame.GRH {
		w.udp = w.t
	}
	w.end = w.start + captured
	if f.Truncated() {
		w.b = append(w.b, 0, 0, 0, 0)
		w.end = len(w.b)
		rep.add(Closed, uint64(f.TransportLen), uint64(w.end-w.t))
	} else if len(f.Transport) < bth.MinSize {
		return false
	}
	return true
}

func (w *work) op() bth.Opcode { return bth.Opcode(w.b[w.t]) }

func (w *work) view() *bth.View { return (*bth.View)(w.b[w.t:]) }

// headers returns the length of BTH and extended headers, that of the BTH where
// the packet is too short for what its opcode says.
func (w *work) headers() int {
	s := w.stackOf(w.op())
	if !s.known || w.t+bth.Size+s.size+bth.ICRCSize > w.end {
		return bth.Size
	}
	return bth.Size + s.size
}

// payload returns where the payload begins and ends, pad not counted.
func (w *work) payload() (from, to int) {
	from = w.t + w.headers()
	to = max(from, w.end-bth.ICRCSize-int(w.view().PadCnt()))
	return from, to
}

// splice replaces del bytes at offset at by ins bytes, and moves the offsets after them. New
// bytes are zero.
func (w *work) splice(at, del, ins int) {
	d := ins - del
	old := len(w.b)
	if d > 0 {
		var zero [64]byte
		for left := d; left > 0; left -= len(zero) {
			w.b = append(w.b, zero[:min(left, len(zero))]...)
		}
	}
	copy(w.b[at+ins:], w.b[at+del:old])
	w.b = w.b[:old+d]
	if d > 0 {
		clear(w.b[at+del : at+ins])
	}
	for _, p := range []*int{&w.net, &w.udp, &w.t, &w.end} {
		if *p >= at+del {
			*p += d
		}
	}
}

// applicable returns the kinds that have something to change in the frame.
func (m *Mutator) applicable(roce bool) Kinds {
	w := &m.w
	s := KindsOf(Trailing)
	if len(w.b) > w.start {
		s = s.Or(KindsOf(Flip))
	}
	if w.taggable() {
		if w.vlans < 2 {
			s = s.Or(KindsOf(VLANAdd))
		}
		if w.vlans > 0 {
			s = s.Or(KindsOf(VLANRemove, VLANTag))
		}
	}
	if !roce {
		return s
	}
	s = s.Or(anyRoCE)
	ext := headers(0)
	if w.headers() > bth.Size {
		ext = w.stackOf(w.op()).headers
	}
	for i := range fields {
		if f := &fields[i]; f.base == baseExt && ext&f.ext != 0 {
			s = s.Or(f.set)
		}
	}
	if w.isMRC() {
		s = s.Or(KindsOf(MRCRetransmission))
		if ext&hasMETH != 0 {
			s = s.Or(KindsOf(MRCTimestampHeader))
		}
	}
	if from, to := w.payload(); to > from {
		s = s.Or(KindsOf(PayloadTruncate, PayloadFlip))
	}
	if w.end-w.t > bth.MinSize {
		s = s.Or(KindsOf(Cut))
	}
	switch w.kind {
	case frame.IPv4:
		s = s.Or(onIPv4)
	case frame.IPv6:
		s = s.Or(onIPv6)
	case frame.GRH:
		s = s.Or(onGRH)
	}
	return s
}

// What applies to every RoCE frame, and to those of each network header.
var (
	anyRoCE = BTHKinds.Or(KindsOf(PayloadExtend, PayloadMTU, ECN, DSCP, TTL, AddressSwap, AddressFlip, IPVersion, Protocol))
	onIPv4  = KindsOf(IPID, DontFragment, IPv4Options, Fragment, SourcePort, DestPort, UDPChecksum)
	onIPv6  = KindsOf(FlowLabel, SourcePort, DestPort, UDPChecksum)
	onGRH   = KindsOf(FlowLabel)
)
