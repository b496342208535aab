// Package timely is TIMELY, the congestion control by the gradient of round trip
// times: Mittal et al., "TIMELY: RTT-based Congestion Control for the Datacenter",
// SIGCOMM 2015.
//
// When a segment is complete, at most once a round trip, with rtt the time of the
// packet that was acknowledged last without its own on the line:
//
//	diff = (1 - Alpha) diff + Alpha (rtt - rtt before);  gradient = diff/MinRTT
//	rtt < TLow:      rate + Delta
//	rtt > THigh:     rate x (1 - Beta (1 - THigh/rtt))
//	gradient <= 0:   rate + Delta, 5 Delta from the fifth time in a row on
//	else:            rate x (1 - Beta gradient), never less than 0
//
// It has no unique fixed point (Zhu et al., "ECN or Delay: Lessons Learnt from Analysis of
// DCQCN and TIMELY", CoNEXT 2016): flows that start with unequal rates keep them, since the
// faster one completes segments, and so makes its steps, more often. Where a segment takes
// less than a round trip all make as many steps and converge: two flows on 10 Gb/s that
// start at 7 and 3 Gb/s stay there with segments of 64 KB, converge within 100 ms with 16
// KB, and within 30 ms with a step each round trip.
package timely

import (
	"errors"
	"fmt"
	"time"

	"github.com/roce-go/roce/qp/congestion"
)

// ErrParams is what every error about a parameter wraps.
var ErrParams = errors.New("timely: bad parameter")

// Params are the parameters. Start from [Defaults].
type Params struct {
	Alpha  float64       // weight of the new difference, 0 .. 1
	Beta   float64       // strength of a decrease, 0 .. 1
	TLow   time.Duration // below it the rate only rises, 0 .. THigh
	THigh  time.Duration // above it the rate only falls, at most 100 ms
	MinRTT time.Duration // the divisor of diff, 100 ns .. 10 ms
	// Delta is the additive step, in bits per second; 0 means 10 Mb/s for each 10
	// Gb/s of line rate.
	Delta uint64
	// Segment is the least number of bytes acknowledged between two steps, 0 .. 2^30; with
	// 0 a step is made each round trip, as in the code that was published with HPCC.
	Segment  int
	HAI      int    // gradients <= 0 in a row from which on 5 Delta are added, 1 .. 1000
	MinRate  uint64 // floor of the rate, bits per second, at least 1
	InitRate uint64 // rate of a new flow, bits per second; 0 means the line rate
}

// Defaults returns alpha 0.875, beta 0.8, T_low 50 us, T_high 500 us and a least
// round trip time of 20 us, with a step of 10 Mb/s on 10 Gb/s and five times that
// from the fifth gradient on, and segments of 16 KB: the paper's for 10 Gb/s, its step
// scaled with the line. The floor of 100 Mb/s, and to begin at line rate, are those of the code that
// was published with HPCC; the paper begins at the line rate divided by the number
// of the host's flows.
func Defaults() Params {
	return Params{
		Alpha: 0.875, Beta: 0.8, TLow: 50 * time.Microsecond, THigh: 500 * time.Microsecond,
		MinRTT: 20 * time.Microsecond, Segment: 16_000, HAI: 5, MinRate: 100e6,
	}
}

const maxRate = 10_000_000_000_000

// Validate returns an error that wraps ErrParams and names the field that is out
// of range.
func (p *Params) Validate() error {
	switch {
	case !(p.Alpha >= 0 && p.Alpha <= 1):
		return fmt.Errorf("%w: Alpha is %v, want 0 to 1", ErrParams, p.Alpha)
	case !(p.Beta >= 0 && p.Beta <= 1):
		return fmt.Errorf("%w: Beta is %v, want 0 to 1", ErrParams, p.Beta)
	case p.THigh < 0 || p.THigh > 100*time.Millisecond:
		return fmt.Errorf("%w: THigh is %v, want 0s to 100ms", ErrParams, p.THigh)
	case p.TLow < 0 || p.TLow > p.THigh:
		return fmt.Errorf("%w: TLow is %v, want 0s to THigh, %v", ErrParams, p.TLow, p.THigh)
	case p.MinRTT < 100*time.Nanosecond || p.MinRTT > 10*time.Millisecond:
		return fmt.Errorf("%w: MinRTT is %v, want 100ns to 10ms", ErrParams, p.MinRTT)
	case p.Delta > maxRate:
		return fmt.Errorf("%w: Delta is %d b/s, want at most %d b/s", ErrParams, p.Delta, uint64(maxRate))
	case p.Segment < 0 || p.Segment > 1<<30:
		return fmt.Errorf("%w: Segment is %d bytes, want 0 to 2^30", ErrParams, p.Segment)
	case p.HAI < 1 || p.HAI > 1000:
		return fmt.Errorf("%w: HAI is %d, want 1 to 1000", ErrParams, p.HAI)
	case p.MinRate < 1 || p.MinRate > maxRate:
		return fmt.Errorf("%w: MinRate is %d b/s, want 1 to %d b/s", ErrParams, p.MinRate, uint64(maxRate))
	case p.InitRate != 0 && p.InitRate < p.MinRate:
		return fmt.Errorf("%w: InitRate is %d b/s, below MinRate, %d b/s", ErrParams, p.InitRate, p.MinRate)
	}
	return nil
}

// Controller returns TIMELY with the parameters p. NewPort fails with an error that
// wraps ErrParams.
func Controller(p Params) congestion.Controller { return controller{p} }

type controller struct{ params Params }

// NewPort implements [congestion.Controller].
func (c controller) NewPort(lineRate uint64) (congestion.Port, error) {
	p := &port{Params: c.params, line: float64(lineRate)}
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if lineRate < max(p.MinRate, p.InitRate) || lineRate > maxRate {
		return nil, fmt.Errorf("%w: line rate is %d b/s, want MinRate and InitRate, %d and %d b/s, to %d b/s",
			ErrParams, lineRate, p.MinRate, p.InitRate, uint64(maxRate))
	}
	if p.delta = float64(p.Delta); p.Delta == 0 {
		p.delta = 10e6 * p.line / 10e9
	}
	if p.init = float64(p.InitRate); p.InitRate == 0 {
		p.init = p.line
	}
	return p, nil
}

type port struct {
	Params
	line, delta, init float64 // bits per second
}

func (p *port) Needs() congestion.Needs       { return congestion.NeedRTT }
func (p *port) Receiver() congestion.Receiver { return nil }
func (p *port) Flow() congestion.Flow         { return &flow{port: p, rate: p.init} }

// flow is the state of a flow. Invariant: MinRate <= rate <= line.
type flow struct {
	port  *port
	rate  float64 // bits per second
	rtt   float64 // ns, of the last step; 0: none yet
	diff  float64 // ns, smoothed
	rises int     // gradients <= 0 in a row
	until uint64  // acknowledged beyond this, a round trip is over
	bytes int64   // acknowledged since the last step
}

func (f *flow) Reset() { *f = flow{port: f.port, rate: f.port.init} }

func (f *flow) Acked(_ int64, a *congestion.Ack) {
	f.bytes += min(max(a.Bytes, 0), 1<<40)
	if a.RTT <= 0 || f.until != 0 && (a.Una <= f.until || f.bytes < int64(f.port.Segment)) {
		return
	}
	f.bytes = 0
	rtt := max(1, float64(a.RTT)-float64(max(a.Size, 0))*8e9/f.port.line)
	if f.rtt != 0 {
		f.step(rtt)
	}
	f.rtt, f.until = rtt, max(f.until, a.Next)
}

func (f *flow) step(rtt float64) {
	p := f.port
	f.diff = float64((1-p.Alpha)*f.diff) + float64(p.Alpha*(rtt-f.rtt))
	gradient := f.diff / float64(p.MinRTT)
	rises := 0
	switch {
	case rtt < float64(p.TLow):
		f.rate += p.delta
	case rtt > float64(p.THigh):
		f.rate *= 1 - float64(p.Beta*(1-float64(p.THigh)/rtt)) // the conversion: see package congestion
	case gradient <= 0:
		if rises = f.rises + 1; rises >= p.HAI {
			f.rate += 5 * p.delta
		} else {
			f.rate += p.delta
		}
	default:
		f.rate *= max(0, 1-float64(p.Beta*gradient))
	}
	f.rises = rises
	f.rate = min(max(f.rate, float64(p.MinRate)), p.line)
}

func (f *flow) Sent(int64, *congestion.Send)    {}
func (f *flow) CNP(int64)                       {}
func (f *flow) Lost(int64, congestion.LossKind) {}
func (f *flow) Tick(int64)                      {}
func (f *flow) Due() int64                      { return 0 }
func (f *flow) Rate() uint64                    { return uint64(f.rate) }
func (f *flow) Window() int64                   { return 0 }
