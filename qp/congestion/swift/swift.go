// Package swift is Swift, the congestion control by delay with a target: Kumar et
// al., "Swift: Delay is Simple and Effective for Congestion Control in the
// Datacenter", SIGCOMM 2020.
//
// A flow has a window of cwnd packets, which may be less than one: then a packet
// leaves every rtt/cwnd. Each acknowledgement gives a delay:
//
//	target = BaseTarget + Hops x HopScale + what the window's size calls for
//	delay < target: cwnd += AI x acked/cwnd, or AI x acked below 1
//	else, at most once a round trip: cwnd x max(1 - Beta (delay - target)/delay, 1 - MaxMDF)
//
// What the size calls for is FsRange at FsMin packets, nothing from FsMax on, and
// between a/sqrt(cwnd) - a/sqrt(FsMax): flows with small windows are many, and their
// queues vary more.
//
// The delay is that of the fabric and the receiver together, as the port measures it: the
// paper's second window, for the receiver's own delay, is not implemented.
package swift

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/roce-go/roce/qp/congestion"
)

// ErrParams is what every error about a parameter wraps.
var ErrParams = errors.New("swift: bad parameter")

// Params are the parameters. Start from [Defaults].
type Params struct {
	BaseTarget time.Duration // target of a path without hops, 1 us .. 10 ms
	HopScale   time.Duration // for each hop, 0 .. 1 ms
	Hops       int           // of flows without SetHops, 0 .. 64
	FsRange    time.Duration // most that the window's size adds, 0 .. 10 ms
	FsMin      float64       // packets at which it does, more than 0
	FsMax      float64       // packets from which nothing is added, more than FsMin
	AI         float64       // packets that a round trip adds, more than 0, at most 1000
	Beta       float64       // strength of a decrease, 0 .. 1
	MaxMDF     float64       // most that one decrease takes, 0 .. 0.99
	MinCwnd    float64       // floor, packets, 0.0001 .. 1
	MaxCwnd    float64       // ceiling, packets, 1 .. 10^6
	// InitCwnd is the window of a new flow, in packets; 0 means what the line sends in
	// BaseTarget.
	InitCwnd float64
	// RetxReset is after how many timeouts in a row the window goes to MinCwnd.
	RetxReset int
}

// Defaults returns ai 1, beta 0.8, max_mdf 0.5, fs_range 100 us, fs_min 0.1, fs_max
// 100 and a base target of 20 us. The paper gives the last in its figures, and of the
// others not all as numbers; a hop adds 1 us, for no hops, a floor of 0.001, a
// ceiling of 1000 packets and a reset after 5 timeouts are ours.
func Defaults() Params {
	return Params{
		BaseTarget: 20 * time.Microsecond, HopScale: time.Microsecond, FsRange: 100 * time.Microsecond,
		FsMin: 0.1, FsMax: 100, AI: 1, Beta: 0.8, MaxMDF: 0.5, MinCwnd: 0.001, MaxCwnd: 1000, RetxReset: 5,
	}
}

// Validate returns an error that wraps ErrParams and names the field that is out
// of range.
func (p *Params) Validate() error {
	durations := []struct {
		name      string
		v, lo, hi time.Duration
	}{
		{"BaseTarget", p.BaseTarget, time.Microsecond, 10 * time.Millisecond},
		{"HopScale", p.HopScale, 0, time.Millisecond},
		{"FsRange", p.FsRange, 0, 10 * time.Millisecond},
	}
	for _, d := range durations {
		if d.v < d.lo || d.v > d.hi {
			return fmt.Errorf("%w: %s is %v, want %v to %v", ErrParams, d.name, d.v, d.lo, d.hi)
		}
	}
	numbers := []struct {
		name      string
		v, lo, hi float64
	}{
		{"Hops", float64(p.Hops), 0, 64}, {"FsMin", p.FsMin, 1e-6, 1e6}, {"FsMax", p.FsMax, 1e-6, 1e6},
		{"AI", p.AI, 1e-6, 1000}, {"Beta", p.Beta, 0, 1}, {"MaxMDF", p.MaxMDF, 0, 0.99},
		{"MinCwnd", p.MinCwnd, 0.0001, 1}, {"MaxCwnd", p.MaxCwnd, 1, 1e6}, {"RetxReset", float64(p.RetxReset), 1, 1e6},
	}
	for _, n := range numbers {
		if !(n.v >= n.lo && n.v <= n.hi) {
			return fmt.Errorf("%w: %s is %v, want %v to %v", ErrParams, n.name, n.v, n.lo, n.hi)
		}
	}
	if p.FsMax <= p.FsMin {
		return fmt.Errorf("%w: FsMax is %v, not above FsMin, %v", ErrParams, p.FsMax, p.FsMin)
	}
	if p.InitCwnd != 0 && !(p.InitCwnd >= p.MinCwnd && p.InitCwnd <= p.MaxCwnd) {
		return fmt.Errorf("%w: InitCwnd is %v, want MinCwnd to MaxCwnd, %v to %v, or 0", ErrParams, p.InitCwnd, p.MinCwnd, p.MaxCwnd)
	}
	return nil
}

// Target returns the target delay of a window of cwnd packets.
func (p *Params) Target(cwnd float64) time.Duration {
	var t target
	t.init(p)
	return time.Duration(t.of(cwnd))
}

// target is the target delay, in nanoseconds.
type target struct{ base, a, b, most float64 }

func (t *target) init(p *Params) {
	t.base = float64(p.BaseTarget + time.Duration(p.Hops)*p.HopScale)
	t.most = float64(p.FsRange)
	t.a = t.most / (1/math.Sqrt(p.FsMin) - 1/math.Sqrt(p.FsMax))
	t.b = t.a / math.Sqrt(p.FsMax)
}

func (t *target) of(cwnd float64) float64 {
	return t.base + min(max(t.a/math.Sqrt(cwnd)-t.b, 0), t.most)
}

// Controller returns Swift with the parameters p. NewPort fails with an error that
// wraps ErrParams.
func Controller(p Params) congestion.Controller { return controller{p} }

type controller struct{ params Params }

// NewPort implements [congestion.Controller].
func (c controller) NewPort(lineRate uint64) (congestion.Port, error) {
	p := &port{Params: c.params, line: float64(lineRate)}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if lineRate < 1e6 || lineRate > 1e13 {
		return nil, fmt.Errorf("%w: line rate is %d b/s, want 1 Mb/s to 10 Tb/s", ErrParams, lineRate)
	}
	p.target.init(&p.Params)
	return p, nil
}

type port struct {
	Params
	target target
	line   float64
}

func (p *port) Needs() congestion.Needs       { return congestion.NeedRTT }
func (p *port) Receiver() congestion.Receiver { return nil }
func (p *port) Flow() congestion.Flow         { return &flow{port: p, cwnd: p.InitCwnd} }

// flow is the state of a flow. Invariant: once a packet was sent, MinCwnd <= cwnd <=
// MaxCwnd.
type flow struct {
	port      *port
	cwnd      float64 // packets; 0: not known before the first packet
	size      float64 // bytes of a packet: the largest frame so far
	rtt       float64 // ns, of the last sample
	now       int64
	decreased int64   // when, 0: never
	timeouts  int     // in a row
	more      float64 // ns that the target is higher by, for the flow's own hops
}

func (f *flow) Reset() { *f = flow{port: f.port, cwnd: f.port.InitCwnd, more: f.more} }

// SetHops implements [congestion.PathFlow].
func (f *flow) SetHops(n int) {
	f.more = float64(time.Duration(min(max(n, 0), 64)-f.port.Hops) * f.port.HopScale)
}

func (f *flow) Sent(now int64, s *congestion.Send) {
	f.now = max(f.now, now)
	if b := float64(min(max(s.Bytes, 64), 1<<16)); b > f.size {
		f.size = b
		if f.cwnd == 0 {
			f.set(f.port.line * float64(f.port.BaseTarget) / 8e9 / b)
		}
	}
}

func (f *flow) Acked(now int64, a *congestion.Ack) {
	f.now = max(f.now, now)
	if a.Bytes > 0 {
		f.timeouts = 0
	}
	if a.RTT <= 0 || f.size == 0 {
		return
	}
	f.rtt = float64(a.RTT)
	target := f.port.target.of(f.cwnd) + f.more
	if f.rtt >= target {
		f.decrease(max(1-f.port.Beta*(f.rtt-target)/f.rtt, 1-f.port.MaxMDF))
		return
	}
	add := f.port.AI * (float64(max(a.Bytes, 0)) / f.size)
	if f.cwnd >= 1 {
		add /= f.cwnd
	}
	f.set(f.cwnd + float64(add)) // the conversion: see package congestion
}

// decrease reduces the window by the fraction by, at most once a round trip.
func (f *flow) decrease(by float64) {
	if f.decreased != 0 && float64(f.now-f.decreased) < f.rtt {
		return
	}
	was := f.cwnd
	if f.set(f.cwnd * by); f.cwnd < was {
		f.decreased = f.now
	}
}

func (f *flow) set(cwnd float64) { f.cwnd = min(max(cwnd, f.port.MinCwnd), f.port.MaxCwnd) }

func (f *flow) Lost(now int64, k congestion.LossKind) {
	f.now = max(f.now, now)
	if f.cwnd == 0 {
		return
	}
	if k == congestion.LossTimeout {
		if f.timeouts++; f.timeouts >= f.port.RetxReset {
			f.decreased = f.now
			f.set(0)
			return
		}
	} else {
		f.timeouts = 0
	}
	f.decrease(1 - f.port.MaxMDF)
}

func (f *flow) CNP(int64)  {}
func (f *flow) Tick(int64) {}
func (f *flow) Due() int64 { return 0 }

// Rate is a packet every rtt/cwnd where the window is less than one, without limit
// else.
func (f *flow) Rate() uint64 {
	if f.cwnd == 0 || f.cwnd >= 1 || f.rtt == 0 {
		return 0
	}
	return uint64(min(max(1, f.size*8e9*f.cwnd/f.rtt), f.port.line))
}

// Window is the whole packets of the window; one at a time where it is less.
func (f *flow) Window() int64 {
	if f.cwnd == 0 {
		return 0
	}
	return int64(max(1, math.Floor(f.cwnd)) * f.size)
}
