package cnp

import (
	"fmt"
	"math"
	"math/bits"
	"time"

	"github.com/roce-go/roce/qp/clock"
)

// ReactionPort is what the reaction points of one sending port share: the
// parameters, the line rate, the origin of time, and the counter. It is not safe
// for concurrent use; neither are reaction points of one port.
type ReactionPort struct {
	// RpCnpHandled counts the CNPs that reaction points of this port handled
	// (the hardware's rp_cnp_handled).
	RpCnpHandled uint64

	clock         clock.Clock
	params        Params
	line          uint64 // bits per second, as are the next four
	ceil, floor   uint64
	ai, hai       uint64
	firstRate     uint64 // 0: the first CNP sets none
	byteReset     uint64 // bytes; 0: no byte stages
	timeReset     int64  // ns
	alphaPeriod   int64  // ns
	monitorPeriod int64  // ns
	fastStages    uint32 // stages below this are fast recovery
	alphaMask     uint32 // the bits that alpha is kept in
}

// NewReactionPort returns a port with the given parameters and a line rate in
// bits per second, from RpgMinRate to 10 Tb/s. Errors wrap ErrParams.
func NewReactionPort(p Params, lineRate uint64) (*ReactionPort, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	floor := uint64(p.RpgMinRate) * megabit
	if lineRate < floor || lineRate > maxRate*megabit {
		return nil, fmt.Errorf("%w: line rate is %d b/s, want RpgMinRate, %d b/s, to %d b/s",
			ErrParams, lineRate, floor, uint64(maxRate*megabit))
	}
	r := &ReactionPort{
		params:        p,
		line:          lineRate,
		ceil:          lineRate,
		floor:         floor,
		ai:            uint64(p.RpgAIRate) * megabit,
		hai:           uint64(p.RpgHAIRate) * megabit,
		firstRate:     uint64(p.RateToSetOnFirstCnp) * megabit,
		byteReset:     uint64(p.RpgByteReset) * byteUnit,
		timeReset:     micros(p.RpgTimeReset),
		alphaPeriod:   micros(p.DceTcpRtt),
		monitorPeriod: micros(p.RateReduceMonitorPeriod),
		fastStages:    p.RpgThreshold,
		alphaMask:     math.MaxUint32,
	}
	if p.AlphaBits != 0 {
		r.alphaMask <<= alphaShift - p.AlphaBits
	}
	if p.RpgMaxRate != 0 {
		r.ceil = min(lineRate, uint64(p.RpgMaxRate)*megabit)
	}
	if p.Algorithm == AlgorithmPaper && p.FullFastRecovery {
		r.fastStages++
	}
	return r, nil
}

// Params returns the parameters of the port.
func (p *ReactionPort) Params() Params { return p.params }

// LineRate returns the speed of the port in bits per second.
func (p *ReactionPort) LineRate() uint64 { return p.line }

// ReactionPoint returns the reaction point of a new flow.
func (p *ReactionPort) ReactionPoint() ReactionPoint { return ReactionPoint{port: p} }

// ReactionPoint is the rate of one flow of a sender. It is a value of 80 bytes
// (76 on 32-bit machines) without pointers but the one to its port, so that a
// million flows take 80 MB; it allocates nothing.
//
// After each call of a Handle method or Tick, ask Rate, and arm a timer for
// Deadline. Calling late is allowed and gives the same rates as calling at every
// deadline: missed periods are run in order, in bounded work (see the
// package documentation). Times that go backwards count as the latest seen.
//
// The zero value belongs to no port and never limits anything.
type ReactionPoint struct {
	port   *ReactionPort
	rc, rt uint64 // bits per second

	// Nanoseconds of the port's clock.
	last    int64 // latest time seen
	alphaAt int64 // end of the alpha period
	timerAt int64 // end of the increase timer
	cutAt   int64 // end of the monitor period; NVIDIA only

	bytes  uint64 // sent since the last byte stage
	t, bc  uint32 // time and byte stages
	alpha  uint32 // in 2^-31
	active bool   // a CNP has come, and the limiter was not released since

	// What a CNP leaves for the ends of the periods; not in the paper's algorithm.
	alphaMark, cutMark bool
}

// Rate returns how fast the flow may send, in bits per second: the line rate
// until the first CNP and after a release, else the current rate RC as of the last
// call.
func (r *ReactionPoint) Rate() uint64 {
	switch {
	case r.port == nil:
		return math.MaxUint64
	case !r.active:
		return r.port.line
	}
	return r.rc
}

// TargetRate returns the target rate RT, in bits per second: the line rate
// without a limiter.
func (r *ReactionPoint) TargetRate() uint64 {
	if !r.active {
		return r.Rate()
	}
	return r.rt
}

// Alpha returns the congestion estimate as of the last call, in units of 2^-31,
// so that 1<<31 is 1. It is 0 without a limiter.
func (r *ReactionPoint) Alpha() uint32 { return r.alpha }

// Stages returns the counts of time stages T and byte stages BC since the last
// cut. They stop at the largest uint32, and are 0 without a limiter.
func (r *ReactionPoint) Stages() (t, bc uint32) { return r.t, r.bc }

// Limited reports whether the flow has to send slower than the line.
func (r *ReactionPoint) Limited() bool { return r.active && r.rc < r.port.line }

// HandleCNP handles a CNP for this flow. It never raises the rate beyond what
// periods that ended before now raise it to. Periods that end at now itself
// have their alpha update before the CNP; an increase due at now gives way to a
// cut.
func (r *ReactionPoint) HandleCNP(now time.Time) {
	if r.port == nil {
		return
	}
	r.handleCNP(r.enter(r.port.clock.At(now)))
}

func (r *ReactionPoint) handleCNP(ns int64) {
	r.port.RpCnpHandled++
	if r.port.params.Algorithm == AlgorithmPaper {
		r.paperCNP(ns)
	} else {
		r.nvidiaCNP(ns)
	}
}

// HandleSent counts bytes that the flow has sent: any number at once. Count what
// the rate is meant to be of, whole frames as a rule.
func (r *ReactionPoint) HandleSent(now time.Time, bytes int) {
	if !r.active { // the byte counter starts with the limiter
		return
	}
	r.handleSent(r.enter(r.port.clock.At(now)), bytes)
}

func (r *ReactionPoint) handleSent(ns int64, bytes int) {
	r.run(ns)
	if bytes <= 0 || r.port.byteReset == 0 || !r.active {
		return
	}
	r.bytes += uint64(bytes)
	if r.bytes >= r.port.byteReset {
		n := r.bytes / r.port.byteReset
		r.bytes -= n * r.port.byteReset
		r.increase(n, &r.bc, r.t)
		r.release()
	}
}

// Tick runs all periods that have ended by now.
func (r *ReactionPoint) Tick(now time.Time) {
	if r.active {
		r.run(r.enter(r.port.clock.At(now)))
	}
}

// Deadline returns when the rate may change next without a CNP or bytes sent;
// false when it will not. After Tick(now) it is later than now. Alpha may change
// before, which needs no call: the next call brings it up to date.
func (r *ReactionPoint) Deadline() (time.Time, bool) {
	if at := r.due(); at != 0 {
		return r.port.clock.Time(at), true
	}
	return time.Time{}, false
}

// due is Deadline in nanoseconds of the port's clock; 0 is none.
func (r *ReactionPoint) due() int64 {
	if !r.active {
		return 0
	}
	at := int64(math.MaxInt64)
	if r.rc < r.rt || r.rt < r.port.ceil && r.port.ai|r.port.hai != 0 {
		at = r.timerAt
	}
	if r.cutMark {
		at = min(at, r.cutAt)
	}
	if at == math.MaxInt64 {
		return 0
	}
	return at
}

// enter returns ns, but not less than before.
func (r *ReactionPoint) enter(ns int64) int64 {
	r.last = max(r.last, ns)
	return r.last
}

func (r *ReactionPoint) run(ns int64) {
	if r.port.params.Algorithm == AlgorithmPaper {
		r.paperRun(ns, ns)
	} else {
		r.nvidiaRun(ns)
	}
}

// start puts the limiter in place.
func (r *ReactionPoint) start(ns int64) {
	r.active, r.last = true, ns
	r.rc, r.rt = r.port.ceil, r.port.ceil
	r.alpha = r.port.params.InitialAlphaValue << (alphaShift - 10)
}

// release takes the limiter off after an increase that has brought the rate back
// to the ceiling, unless a CNP waits for the end of a period.
func (r *ReactionPoint) release() {
	if r.port.params.Release && r.active && r.rc == r.port.ceil && !r.cutMark {
		*r = ReactionPoint{port: r.port}
	}
}

// elapse counts the periods that have ended by now, the first of them at *at,
// and moves *at past now.
func elapse(at *int64, period, now int64) uint64 {
	if now < *at {
		return 0
	}
	n := int64(1)
	if late := now - *at; late >= period {
		n += late / period
	}
	*at += n * period
	return uint64(n)
}

// runTimer carries out the increases by the timer that are due by ns.
func (r *ReactionPoint) runTimer(ns int64) {
	if n := elapse(&r.timerAt, r.port.timeReset, ns); n != 0 {
		r.increase(n, &r.t, r.bc)
		r.release()
	}
}

// blend is the update of alpha with a mark: alpha = g' alpha + (1 - g').
func (r *ReactionPoint) blend() {
	g := uint64(r.port.params.DceTcpG)
	r.alpha = uint32(uint64(r.alpha)*g>>10+(alphaOne-g)<<(alphaShift-10)) & r.port.alphaMask
}

// decay takes n periods without a CNP off alpha and returns the steps of its
// loop. Rounding down makes each step lose at least 1, so that alpha reaches 0
// and the loop ends whatever n is: after 15,489 steps with the slowest g, 1/1024.
func (r *ReactionPoint) decay(n uint64) (steps int) {
	a, g, mask := uint64(r.alpha), uint64(r.port.params.DceTcpG), uint64(r.port.alphaMask)
	for ; n > 0 && a != 0; n-- {
		a = a * g >> 10 & mask
		steps++
	}
	r.alpha = uint32(a)
	return steps
}

// increase carries out n events in a row of one stage counter, own, while the
// other one stands still, and returns the steps of its loop.
//
// One event adds a to the target rate (within the ceiling) and halves the gap
// between it and the current rate: gap = floor((gap + a) / 2). Once a no longer
// depends on own, that map comes to rest within some 45 steps; from then on each
// event moves both rates by a, and the rest is one multiplication. So the loop
// is bounded by the stages before a is constant, plus twice those 45, and its
// result is exactly that of n single events.
func (r *ReactionPoint) increase(n uint64, own *uint32, other uint32) (steps int) {
	p := r.port
	for ; n > 0; steps++ {
		if r.rc == p.ceil { // RT is at least RC: nothing is left to raise
			*own = addSat(*own, n)
			return steps
		}
		var add uint64
		var constant bool
		switch p.params.Algorithm {
		case AlgorithmPaper:
			*own = addSat(*own, 1)
			add, constant = p.paperAdd(*own, other)
		case AlgorithmNS3:
			add, constant = p.ns3Add(*own)
			*own = addSat(*own, 1)
		default:
			add, constant = p.nvidiaAdd(*own, other)
			*own = addSat(*own, 1)
		}
		n--
		gap := r.rt - r.rc
		r.rt = min(r.rt+add, p.ceil)
		r.rc += (r.rt - r.rc + 1) / 2 // rounds up, or RC would stop 1 below RT
		if !constant || r.rt-r.rc != gap {
			continue
		}
		if add == 0 { // a gap that halving does not change is 0
			*own = addSat(*own, n)
			return steps
		}
		k := min(n, (p.ceil-r.rt)/add)
		r.rt += k * add
		r.rc = r.rt - gap
		*own = addSat(*own, k)
		n -= k
	}
	return steps
}

// addSat returns a + n, or the largest uint32.
func addSat(a uint32, n uint64) uint32 {
	if n > uint64(math.MaxUint32-a) {
		return math.MaxUint32
	}
	return a + uint32(n)
}

// paperCNP cuts at once: RT = RC, RC = RC (1 - alpha/2), and only then
// alpha = (1 - g) alpha + g.
func (r *ReactionPoint) paperCNP(ns int64) {
	p := r.port
	if r.active {
		r.paperRun(ns, ns-1) // an increase at ns would be undone by the restart below
	}
	if !r.active {
		r.start(ns)
	}
	r.rt = r.rc
	hi, lo := bits.Mul64(r.rc, uint64(r.alpha))
	r.rc = max(r.rc-(hi<<(63-alphaShift)|lo>>(alphaShift+1)), p.floor)
	r.blend()

	r.t, r.bc, r.bytes = 0, 0, 0
	r.alphaAt = ns + p.alphaPeriod
	r.timerAt = ns + p.timeReset
}

// paperRun carries out alpha periods that end by alphaTo and increases that are
// due by timerTo. Between two CNPs they do not touch each other.
func (r *ReactionPoint) paperRun(alphaTo, timerTo int64) {
	if n := elapse(&r.alphaAt, r.port.alphaPeriod, alphaTo); n != 0 {
		r.decay(n)
	}
	r.runTimer(timerTo)
}

// paperAdd returns what an event adds to the target rate, its stage being
// counted already, and whether all further events of its kind add the same.
func (p *ReactionPort) paperAdd(own, other uint32) (add uint64, constant bool) {
	f := p.params.RpgThreshold
	switch low := min(own, other); {
	case max(own, other) < p.fastStages:
		return 0, false
	case low > f:
		return uint64(low-f) * p.hai, own >= other || p.hai == 0
	default:
		return p.ai, other <= f
	}
}
