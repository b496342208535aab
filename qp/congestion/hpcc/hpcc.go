// Package hpcc is HPCC, the congestion control by telemetry that switches write into
// packets: Li et al., "HPCC: High Precision Congestion Control", SIGCOMM 2019. Where the
// paper leaves something open, this package follows the code published with it, and a
// comment says so.
//
// From two records of the same output a sender computes how busy the link is and how much
// waits for it. By a window and a rate together, it keeps the bytes in flight over the
// busiest link of its path at Eta of what the link carries in a round trip:
//
//	u = txRate/line + min(queue now, queue before)/(line x BaseRTT)   the largest of the path
//	U = U (1 - tau/BaseRTT) + u tau/BaseRTT                           tau the time between the records
//	U >= Eta, or MaxStage steps of the other kind:  R = Rc Eta/U + AI
//	else                                            R = Rc + AI
//	window = line x BaseRTT x R/line
//
// Every acknowledgement gives an R, and once a round trip Rc becomes R. A flow begins
// at line rate, with U = 1. The first acknowledgement only stores records.
//
// It works where data can carry records, see [congestion.NeedINT]. Records of different
// outputs in a row (packet spraying, a changed route of equal length and speed) cannot be
// distinguished.
package hpcc

import (
	"errors"
	"fmt"
	"time"

	"github.com/roce-go/roce/qp/congestion"
)

// ErrParams is what every error about a parameter wraps.
var ErrParams = errors.New("hpcc: bad parameter")

// Params are the parameters. Start from [Defaults].
type Params struct {
	// Eta is the target utilization of links, 0.01 .. 1.
	Eta float64
	// MaxStage is how many additive steps in a row are made before one that is scaled by U,
	// 0 .. 1000. With 0 every step is scaled by U.
	MaxStage int
	// AI is what each step adds to the rate, in bits per second; 0 means 10 Mb/s for
	// each 25 Gb/s of line rate. N flows over a link of C bits per second keep its
	// queue empty as long as N AI <= (1 - Eta) C.
	AI uint64
	// BaseRTT is the longest round trip of the network without queues, 100 ns .. 1 ms,
	// or a little more.
	BaseRTT time.Duration
	// MinRate is the floor of the rate, in bits per second, at least 1.
	MinRate uint64
}

// Defaults returns eta 0.95 and maxStage 5, as in the paper's section 5.1; a base
// round trip time of 13 us, as in its testbed of one data centre pod; a step of 10
// Mb/s and a floor of 100 Mb/s, as in its code. The scripts of that code run with
// maxStage 0.
func Defaults() Params {
	return Params{Eta: 0.95, MaxStage: 5, BaseRTT: 13 * time.Microsecond, MinRate: 100e6}
}

// Validate returns an error that wraps ErrParams and names the field that is out
// of range.
func (p *Params) Validate() error {
	switch {
	case !(p.Eta >= 0.01 && p.Eta <= 1):
		return fmt.Errorf("%w: Eta is %v, want 0.01 to 1", ErrParams, p.Eta)
	case p.MaxStage < 0 || p.MaxStage > 1000:
		return fmt.Errorf("%w: MaxStage is %d, want 0 to 1000", ErrParams, p.MaxStage)
	case p.AI > maxRate:
		return fmt.Errorf("%w: AI is %d b/s, want at most %d b/s", ErrParams, p.AI, uint64(maxRate))
	case p.BaseRTT < 100*time.Nanosecond || p.BaseRTT > time.Millisecond:
		return fmt.Errorf("%w: BaseRTT is %v, want 100ns to 1ms", ErrParams, p.BaseRTT)
	case p.MinRate < 1 || p.MinRate > maxRate:
		return fmt.Errorf("%w: MinRate is %d b/s, want 1 to %d b/s", ErrParams, p.MinRate, uint64(maxRate))
	}
	return nil
}

const maxRate = 10_000_000_000_000

// Controller returns HPCC with the parameters p. NewPort fails with an error that
// wraps ErrParams.
func Controller(p Params) congestion.Controller { return controller{p} }

type controller struct{ params Params }

// NewPort implements [congestion.Controller].
func (c controller) NewPort(lineRate uint64) (congestion.Port, error) {
	p := &port{Params: c.params, line: float64(lineRate)}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if lineRate < p.MinRate || lineRate > maxRate {
		return nil, fmt.Errorf("%w: line rate is %d b/s, want MinRate, %d b/s, to %d b/s", ErrParams, lineRate, p.MinRate, uint64(maxRate))
	}
	p.rtt = float64(p.BaseRTT)
	if p.ai = float64(p.AI); p.AI == 0 {
		p.ai = 10e6 * p.line / 25e9
	}
	return p, nil
}

type port struct {
	Params
	line, ai float64 // bits per second
	rtt      float64 // ns
}

func (p *port) Needs() congestion.Needs       { return congestion.NeedINT }
func (p *port) Receiver() congestion.Receiver { return p }

// Received asks to send each packet's records back.
func (p *port) Received(int64, *congestion.Arrival) congestion.Action { return congestion.EchoINT }

func (p *port) Flow() congestion.Flow {
	f := &flow{port: p}
	f.Reset()
	return f
}

// flow is the state of a flow. Invariant: MinRate <= rc, rate <= line.
type flow struct {
	port  *port
	rate  float64 // R, bits per second
	rc    float64 // R of a round trip ago
	u     float64 // U, 1 is a full link
	stage int     // additive steps in a row
	until uint64  // acknowledged beyond this, a round trip is over; 0: none yet
	at    int64   // when records last came
	n     int     // of records
	hops  [congestion.MaxHops]congestion.Hop
}

func (f *flow) Reset() {
	*f = flow{port: f.port, rate: f.port.line, rc: f.port.line, u: 1}
}

// stale is when the time in a record may have wrapped: 2^24 ns.
const stale = 16_000_000

func (f *flow) Acked(now int64, a *congestion.Ack) {
	if a.INT == nil || a.INT.N == 0 {
		return
	}
	hops := a.INT.Records()
	old := f.at != 0 && now-f.at < stale && len(hops) == f.n
	f.at = max(f.at, now)
	first := f.until == 0
	tripOver := first || a.Una > f.until
	if old && !first && f.measure(hops) {
		f.adjust(tripOver)
	}
	f.n = copy(f.hops[:], hops)
	if tripOver {
		f.until = max(f.until, a.Next)
	}
}

// measure updates U, unless the records are the same as before, or of another path.
func (f *flow) measure(hops []congestion.Hop) bool {
	p := f.port
	most, tau := -1.0, 0.0
	for i, h := range hops {
		was := f.hops[i]
		ns, bytes := h.Since(was)
		if ns == 0 {
			continue
		}
		if h.Rate() != was.Rate() {
			return false
		}
		line := float64(h.Rate())
		tx := float64(bytes) * 8e9 / float64(ns) / line
		waits := float64(min(h.Queue(), was.Queue())) * 8e9 / p.rtt / line
		if u := tx + waits; u > most {
			most, tau = u, float64(ns)
		}
	}
	if most < 0 {
		return false
	}
	tau = min(tau, p.rtt)
	// The conversions keep all architectures from fusing multiplication and addition.
	f.u = (float64(f.u*(p.rtt-tau)) + float64(most*tau)) / p.rtt
	return true
}

// adjust computes R, and with store makes it Rc.
func (f *flow) adjust(store bool) {
	p := f.port
	stage := f.stage + 1
	rate := f.rc + p.ai
	if f.u >= p.Eta || f.stage >= p.MaxStage {
		stage = 0
		rate = f.rc*p.Eta/f.u + p.ai // by 0: the line rate
	}
	f.rate = min(max(rate, float64(p.MinRate)), p.line)
	if store {
		f.rc, f.stage = f.rate, stage
	}
}

func (f *flow) Sent(int64, *congestion.Send)    {}
func (f *flow) CNP(int64)                       {}
func (f *flow) Lost(int64, congestion.LossKind) {}
func (f *flow) Tick(int64)                      {}
func (f *flow) Due() int64                      { return 0 }
func (f *flow) Rate() uint64                    { return uint64(f.rate) }

// Window is what the rate sends in a base round trip.
func (f *flow) Window() int64 { return max(1, int64(f.rate*f.port.rtt/8e9)) }
