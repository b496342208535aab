package cnp

import (
	"math"
	"math/bits"
	"time"
)

// MaxPacerBytes is the most that one call of [Pacer.HandleSent] counts.
const MaxPacerBytes = 1 << 30

// Pacer turns a rate into the time of the next packet. Each packet moves that
// time on by its own length at the present rate. Times are kept to 2^-32 ns and
// rounded up: less than 0.25 ps of error per million packets. A change of rate
// applies to the rest of the present wait too.
//
// The zero value is ready and, at rate 0, never waits. It takes 48 bytes.
type Pacer struct {
	// Burst is how late a packet may be sent without delaying those after it, so that a
	// caller whose timers fire late still reaches the rate. With 0 no two packets are ever
	// closer than the rate allows.
	Burst time.Duration

	next time.Time
	rate uint64
	frac uint32 // what next lacks, in 2^-32 ns
}

// Rate returns the rate in bits per second; 0 is without limit.
func (p *Pacer) Rate() uint64 { return p.rate }

// Ready reports whether a packet may leave now.
func (p *Pacer) Ready(now time.Time) bool { return !now.Before(p.next) }

// SetRate changes the rate, in bits per second; 0 is without limit. If a packet is waiting,
// the rest of its wait is scaled to the new rate. The same rate again costs nothing and
// changes nothing.
func (p *Pacer) SetRate(now time.Time, rate uint64) {
	if rate == p.rate {
		return
	}
	old := p.rate
	p.rate = rate
	rest := p.next.Sub(now)
	if rest < 0 || rest == 0 && p.frac == 0 {
		return
	}
	if old == 0 || rate == 0 {
		p.next, p.frac = now, 0
		return
	}
	// The rest in units of 2^-32 ns, times old, over rate. The whole nanoseconds
	// and the fraction are divided one after the other; the remainder of the
	// first goes into the second.
	hi, lo := bits.Mul64(uint64(rest), old)
	if hi >= rate {
		p.next, p.frac = now.Add(math.MaxInt64), 0
		return
	}
	ns, rem := bits.Div64(hi, lo, rate)
	hi, lo = bits.Mul64(uint64(p.frac), old)
	lo, carry := bits.Add64(lo, rem<<32, 0)
	hi += rem>>32 + carry
	more, rem := hi/rate, hi%rate // whole 2^64 of 2^-32 ns: 2^32 ns each
	frac, rem := bits.Div64(rem, lo, rate)
	if rem != 0 && frac != math.MaxUint64 {
		frac++
	}
	if ns > math.MaxInt64/2 || more > math.MaxInt32/4 {
		p.next, p.frac = now.Add(math.MaxInt64), 0
		return
	}
	p.next = now.Add(time.Duration(ns + more<<32 + frac>>32))
	p.frac = uint32(frac)
}

// HandleSent counts a packet of bytes bytes (0..MaxPacerBytes) that leaves now. Count the
// bytes that the rate is meant to cover, usually whole frames. A packet that is sent before
// it is due is counted all the same.
func (p *Pacer) HandleSent(now time.Time, bytes int) {
	if p.rate == 0 {
		p.next, p.frac = now, 0
		return
	}
	if now.Sub(p.next) > p.Burst {
		p.next, p.frac = now.Add(-p.Burst), 0
	}
	x := uint64(min(max(bytes, 0), MaxPacerBytes)) * 8 * uint64(time.Second) // at most 2^63
	ns, rem := x/p.rate, x%p.rate
	frac, rem := bits.Div64(rem>>32, rem<<32, p.rate)
	if rem != 0 {
		frac++
	}
	frac += uint64(p.frac)
	p.next = p.next.Add(time.Duration(ns + frac>>32))
	p.frac = uint32(frac)
}

// Deadline returns when the next packet may leave, rounded down to the
// nanosecond; false before the first one, which may leave at once.
func (p *Pacer) Deadline() (time.Time, bool) { return p.next, !p.next.IsZero() }
