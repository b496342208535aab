package cnp

import (
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"time"
)

// ErrParams is what every error about a parameter wraps.
var ErrParams = errors.New("cnp: bad parameter")

// Algorithm says which of the reaction points that bear the name DCQCN a set of
// parameters is for.
type Algorithm uint8

const (
	// AlgorithmPaper is that of Zhu et al., "Congestion Control for Large-Scale
	// RDMA Deployments", SIGCOMM 2015: a CNP cuts at once.
	AlgorithmPaper Algorithm = iota
	// AlgorithmNVIDIA is that of ConnectX adapters: a CNP sets flags that are
	// looked at when periods end.
	AlgorithmNVIDIA
	// AlgorithmNS3 is that of the ns-3 code that was published with HPCC (Li et al.,
	// SIGCOMM 2019), which many papers ran and call DCQCN: AlgorithmNVIDIA by the
	// timer only.
	AlgorithmNS3
)

// String returns "paper", "nvidia", "ns3", or the number of another value.
func (a Algorithm) String() string {
	switch a {
	case AlgorithmPaper:
		return "paper"
	case AlgorithmNVIDIA:
		return "nvidia"
	case AlgorithmNS3:
		return "ns3"
	}
	return strconv.Itoa(int(a))
}

// Scope says what a notification point regards as one flow when it keeps the gap between
// CNPs. Adapters differ, and the difference decides what an incast does: with one gap for
// the port, eight senders share the CNPs that each of them would get with a gap per QP. The
// adapters named are those that Yu et al. measured ("Understanding the Micro-Behaviors of
// Hardware Offloaded Network Stacks with Lumina", SIGCOMM 2023).
type Scope uint8

// Scopes, finest first.
const (
	ScopeQP          Scope = iota // one gap per queue pair: Intel E810
	ScopeAddressPair              // one per pair of addresses
	ScopeDestination              // one per address that CNPs go to: ConnectX-4 Lx
	ScopePort                     // one for the whole port: ConnectX-5 and ConnectX-6 Dx
)

// String returns "qp", "address-pair", "destination", "port", or the number of
// another value.
func (s Scope) String() string {
	switch s {
	case ScopeQP:
		return "qp"
	case ScopeAddressPair:
		return "address-pair"
	case ScopeDestination:
		return "destination"
	case ScopePort:
		return "port"
	}
	return strconv.Itoa(int(s))
}

// Params are the parameters of DCQCN at both ends. Those that exist in the mlxconfig tool
// (and in the mlx5 driver's debugfs) have its name, in Go case, and its unit: microseconds,
// Mb/s (10^6 bits per second), 64 bytes, or 1/1024. Start from [Paper], [NVIDIA] or [NS3],
// change what is needed, and see [Params.Validate] for the ranges.
//
// All algorithms read each field the same way unless its comment says otherwise. What is
// said of NVIDIA's also holds for that of ns-3.
type Params struct {
	Algorithm Algorithm

	// ClampTgtRate makes every cut pull the target rate down to the rate before
	// the cut. NVIDIA only; the paper's algorithm always does.
	ClampTgtRate bool
	// ClampTgtRateAfterTimeInc does so for a cut that follows an increase by the
	// timer. NVIDIA only.
	ClampTgtRateAfterTimeInc bool
	// RpgTimeReset is the period of the increase timer, in us: 1..2^31-1.
	RpgTimeReset uint32
	// RpgByteReset is how many bytes are sent between two increases by the byte counter, in
	// units of 64 bytes. 0 switches the byte counter off.
	RpgByteReset uint32
	// RpgThreshold is F, the stage at which fast recovery ends: 0..31.
	RpgThreshold uint32
	// RpgAIRate and RpgHAIRate are what additive and hyper increase add to the
	// target rate, in Mb/s: 0..10^7. The paper's algorithm multiplies the latter
	// by the number of hyper stages so far, NVIDIA's does not, and in that of ns-3
	// the stage of the timer alone says which of the two it is.
	RpgAIRate, RpgHAIRate uint32
	// RpgMaxRate caps current and target rate once the first CNP has come, in
	// Mb/s: 0 (port speed) or at least RpgMinRate.
	RpgMaxRate uint32
	// RpgMinRate is the floor of the rate, in Mb/s: at least 1.
	RpgMinRate uint32
	// RpgMinDecFac is how much of the rate the deepest cut leaves, in percent:
	// 0..100. NVIDIA only; the paper's cut is by at most a half.
	RpgMinDecFac uint32
	// RpgGd scales the cut, rate x alpha / 2^RpgGd with alpha in 1/1024: 11 is
	// alpha/2, 10 is alpha. NVIDIA only.
	RpgGd uint32
	// RateToSetOnFirstCnp is the rate that the first CNP of a flow sets unless
	// the flow is slower already, in Mb/s: 0 (none) or at least RpgMinRate.
	// NVIDIA only.
	RateToSetOnFirstCnp uint32
	// DceTcpG is the weight of the OLD alpha when alpha is updated, in 1/1024:
	// 0..1023. The paper's g is (1024 - DceTcpG)/1024: 1020 is g = 1/256, 1019 is
	// about 1/205. Reading it as the weight of the new sample is a common mistake.
	DceTcpG uint32
	// DceTcpRtt is the period of the alpha update, in us: 1..2^31-1. It is the
	// paper's K, which counts from the last CNP; NVIDIA's runs freely.
	DceTcpRtt uint32
	// RateReduceMonitorPeriod is how far apart cuts are, in us: 1..2^31-1.
	// NVIDIA only; in the paper the gap between CNPs does that.
	RateReduceMonitorPeriod uint32
	// InitialAlphaValue is alpha at the first CNP, in 1/1024: 0..1023, and 1024
	// (which is 1) for the other two algorithms.
	InitialAlphaValue uint32
	// AlphaBits is how many fractional bits alpha is kept in, 10..31; 0 means 31. With few,
	// alpha falls to 0 where it should converge to a larger value: with 10, and a CNP every
	// 6 us, it falls to 0 where the recurrence in real numbers stays at 0.165. The 10 bits
	// of the other parameters are only their format; no public source says in how many bits
	// adapters keep their state. It has no mlxconfig name.
	AlphaBits uint32
	// Release removes the limiter of a flow whose rate is back at RpgMaxRate, or the port's
	// speed: the flow sends without limit, and its next CNP is a first one, with a new
	// alpha. Without it, alpha is close to 0 after a long recovery, and the first CNPs of
	// the next burst cut nothing.
	Release bool
	// FullFastRecovery gives fast recovery F averaging steps, as the paper's text
	// has it, instead of the F - 1 of its pseudo-code. Paper only; it has no
	// mlxconfig name.
	FullFastRecovery bool

	// MinTimeBetweenCnps is the least gap between two CNPs of a flow, in us:
	// 0 (a CNP for every marked packet) or more.
	MinTimeBetweenCnps uint32
	// CnpScope is what that gap is kept for. It has no mlxconfig name.
	CnpScope Scope
	// EchoOnAck makes the receiver set BECN in its acknowledgements of marked packets
	// instead of sending CNPs. The sender handles each as a CNP. It has no mlxconfig name;
	// only [Controller] does it.
	EchoOnAck bool
	// CnpDscp is the DSCP of CNPs: 0..63.
	CnpDscp uint8
	// Cnp802pPrio is the VLAN priority of CNPs: 0..7.
	Cnp802pPrio uint8
}

// Paper returns the values of the SIGCOMM 2015 paper: g 1/256, K and timer
// 55 us, B 10 MB, F 5, R_AI 40 Mb/s, R_HAI 200 Mb/s, CNP gap 50 us per QP, floor
// 10 Mb/s. They were chosen on 40 Gb/s links.
//
// The paper does not say what becomes of the limiter at line rate. Release is set:
// it ran on adapters of the maker whose driver says so (see [NVIDIA]), and a flow
// that has recovered is one without a limiter in the paper's own words for a new one.
func Paper() Params {
	return Params{
		Algorithm:          AlgorithmPaper,
		RpgTimeReset:       55,
		RpgByteReset:       10_000_000 / byteUnit,
		RpgThreshold:       5,
		RpgAIRate:          40,
		RpgHAIRate:         200,
		RpgMinRate:         10,
		RpgMinDecFac:       50,
		RpgGd:              11,
		DceTcpG:            1020,
		DceTcpRtt:          55,
		InitialAlphaValue:  1024,
		MinTimeBetweenCnps: 50,
		CnpDscp:            48,
		Cnp802pPrio:        6,

		Release: true,

		ClampTgtRate:            true,
		RateReduceMonitorPeriod: 50,
	}
}

// NVIDIA returns the defaults of ConnectX-5 and ConnectX-6 Dx adapters, with one
// CNP gap for the port (see [Scope]).
//
// Release is set: the mlx5 driver says of rpg_max_rate that a flow which has
// reached it is not limited any more, and mlxconfig that the limiter of a flow is
// allocated when its first CNP arrives.
func NVIDIA() Params {
	return Params{
		Algorithm:                AlgorithmNVIDIA,
		ClampTgtRateAfterTimeInc: true,
		RpgTimeReset:             300,
		RpgByteReset:             32767,
		RpgThreshold:             1,
		RpgAIRate:                5,
		RpgHAIRate:               50,
		RpgMinRate:               1,
		RpgMinDecFac:             50,
		RpgGd:                    11,
		DceTcpG:                  1019,
		DceTcpRtt:                1,
		RateReduceMonitorPeriod:  4,
		InitialAlphaValue:        1023,
		Release:                  true,
		CnpScope:                 ScopePort,
		MinTimeBetweenCnps:       4,
		CnpDscp:                  48,
		Cnp802pPrio:              6,
	}
}

// ConnectX4Lx is [NVIDIA] with the CNP gap of the ConnectX-4 Lx: one for each
// address that CNPs go to.
func ConnectX4Lx() Params {
	p := NVIDIA()
	p.CnpScope = ScopeDestination
	return p
}

// NS3 returns what the scripts of HPCC's ns-3 code call "dcqcn", for a port of
// lineRate bits per second: alpha and cut periods 1 and 4 us, timer 300 us, g 1/256,
// F 1, R_AI 5 and R_HAI 50 Mb/s for each 25 Gb/s of line rate, floor 1 Gb/s (or the
// line rate where that is less), no byte counter, and a mark in each acknowledgement
// instead of CNPs. That code never releases the limiter of a flow.
func NS3(lineRate uint64) Params {
	scale := max(1, uint32(lineRate/25e9))
	return Params{
		Algorithm:                AlgorithmNS3,
		ClampTgtRateAfterTimeInc: true,
		RpgTimeReset:             300,
		RpgThreshold:             1,
		RpgAIRate:                5 * scale,
		RpgHAIRate:               50 * scale,
		RpgMinRate:               uint32(min(1000, max(1, lineRate/megabit))),
		RpgMinDecFac:             0,
		RpgGd:                    11,
		DceTcpG:                  1020,
		DceTcpRtt:                1,
		RateReduceMonitorPeriod:  4,
		InitialAlphaValue:        1024,
		EchoOnAck:                true,
		CnpDscp:                  48,
		Cnp802pPrio:              6,
	}
}

// NS3Paper returns what the same scripts call "dcqcn_paper": [NS3] with alpha and
// cut periods of 50 us and a timer of 55 us. It is not the algorithm of the paper.
func NS3Paper(lineRate uint64) Params {
	p := NS3(lineRate)
	p.DceTcpRtt, p.RateReduceMonitorPeriod, p.RpgTimeReset = 50, 50, 55
	return p
}

const (
	byteUnit   = 64        // bytes per unit of RpgByteReset
	megabit    = 1_000_000 // bits per second per Mb/s
	alphaShift = 31        // fractional bits of alpha
	alphaOne   = 1024      // 1 in the unit of InitialAlphaValue and DceTcpG
	maxPeriod  = 1<<31 - 1 // us
	maxRate    = 10_000_000
)

// Validate returns an error that wraps ErrParams and names the first field
// that is out of range, with its value and the range.
func (p *Params) Validate() error {
	maxAlpha := uint32(alphaOne)
	switch p.Algorithm {
	case AlgorithmPaper, AlgorithmNS3:
	case AlgorithmNVIDIA:
		maxAlpha--
	default:
		return badParam("Algorithm", uint32(p.Algorithm), uint32(AlgorithmPaper), uint32(AlgorithmNS3))
	}
	if p.AlphaBits != 0 && (p.AlphaBits < 10 || p.AlphaBits > alphaShift) {
		return fmt.Errorf("%w: AlphaBits is %d, want 10..%d, or 0 for %d", ErrParams, p.AlphaBits, alphaShift, alphaShift)
	}
	for _, f := range []struct {
		name      string
		v, lo, hi uint32
	}{
		{"RpgTimeReset", p.RpgTimeReset, 1, maxPeriod},
		{"RpgThreshold", p.RpgThreshold, 0, 31},
		{"RpgAIRate", p.RpgAIRate, 0, maxRate},
		{"RpgHAIRate", p.RpgHAIRate, 0, maxRate},
		{"RpgMinRate", p.RpgMinRate, 1, maxRate},
		{"RpgMaxRate", p.RpgMaxRate, 0, maxRate},
		{"RpgMinDecFac", p.RpgMinDecFac, 0, 100},
		{"RpgGd", p.RpgGd, 10, 11},
		{"RateToSetOnFirstCnp", p.RateToSetOnFirstCnp, 0, maxRate},
		{"DceTcpG", p.DceTcpG, 0, alphaOne - 1},
		{"DceTcpRtt", p.DceTcpRtt, 1, maxPeriod},
		{"RateReduceMonitorPeriod", p.RateReduceMonitorPeriod, 1, maxPeriod},
		{"InitialAlphaValue", p.InitialAlphaValue, 0, maxAlpha},
		{"MinTimeBetweenCnps", p.MinTimeBetweenCnps, 0, maxPeriod},
		{"CnpScope", uint32(p.CnpScope), uint32(ScopeQP), uint32(ScopePort)},
		{"CnpDscp", uint32(p.CnpDscp), 0, 63},
		{"Cnp802pPrio", uint32(p.Cnp802pPrio), 0, 7},
	} {
		if f.v < f.lo || f.v > f.hi {
			return badParam(f.name, f.v, f.lo, f.hi)
		}
	}
	for _, f := range []struct {
		name string
		v    uint32
	}{{"RpgMaxRate", p.RpgMaxRate}, {"RateToSetOnFirstCnp", p.RateToSetOnFirstCnp}} {
		if f.v != 0 && f.v < p.RpgMinRate {
			return fmt.Errorf("%w: %s is %d Mb/s, below RpgMinRate, %d Mb/s (0 switches it off)",
				ErrParams, f.name, f.v, p.RpgMinRate)
		}
	}
	return nil
}

func badParam(name string, v, lo, hi uint32) error {
	return fmt.Errorf("%w: %s is %d, want %d..%d", ErrParams, name, v, lo, hi)
}

// micros converts microseconds to nanoseconds.
func micros(us uint32) int64 { return int64(us) * int64(time.Microsecond) }

// nvidiaCNP leaves two flags for the ends of the alpha and the monitor period.
// Both periods run freely from the flow's first CNP on.
func (r *ReactionPoint) nvidiaCNP(ns int64) {
	p := r.port
	first := false
	if r.active {
		r.nvidiaRun(ns)
	}
	if !r.active {
		first = true
		r.start(ns)
		if p.firstRate != 0 {
			r.rc = min(r.rc, p.firstRate)
			r.rt = r.rc
		}
		r.alphaAt = ns + p.alphaPeriod
		r.cutAt = ns + p.monitorPeriod
		r.timerAt = ns + p.timeReset
	}
	// In the code of ns-3 the first CNP is not counted into alpha.
	r.alphaMark, r.cutMark = !first || p.params.Algorithm == AlgorithmNVIDIA, true
}

// nvidiaRun carries out what is due by ns in order of time and, at one instant,
// in the order alpha, cut, increase. Only a CNP marks a period, so at most one
// cut is due.
func (r *ReactionPoint) nvidiaRun(ns int64) {
	if r.cutMark && r.cutAt <= ns {
		at := r.cutAt
		r.runAlpha(at)
		r.runTimer(at - 1)
		r.nvidiaCut(at)
	}
	r.runAlpha(ns)
	r.runTimer(ns)
	if !r.active {
		return // released
	}
	elapse(&r.cutAt, r.port.monitorPeriod, ns)
}

// runAlpha carries out the alpha periods that end by ns. The first of them has
// the mark, if there is one.
func (r *ReactionPoint) runAlpha(ns int64) {
	n := elapse(&r.alphaAt, r.port.alphaPeriod, ns)
	if n == 0 {
		return
	}
	if r.alphaMark {
		r.alphaMark = false
		r.blend()
		n--
	}
	r.decay(n)
}

// nvidiaCut ends a marked monitor period at the time at.
func (r *ReactionPoint) nvidiaCut(at int64) {
	p := &r.port.params
	if p.ClampTgtRate || r.bc > 0 || p.ClampTgtRateAfterTimeInc && r.t > 0 {
		r.rt = r.rc
	}
	hi, lo := bits.Mul64(r.rc, uint64(r.alpha))
	shift := alphaShift - 10 + p.RpgGd
	cut := min(hi<<(64-shift)|lo>>shift, r.rc*uint64(100-p.RpgMinDecFac)/100)
	r.rc = max(r.rc-cut, r.port.floor)
	r.t, r.bc, r.bytes = 0, 0, 0
	r.timerAt = at + r.port.timeReset
	r.cutMark = false
	r.cutAt += r.port.monitorPeriod
}

// ns3Add is nvidiaAdd for the code of ns-3, which has one counter.
func (p *ReactionPort) ns3Add(own uint32) (add uint64, constant bool) {
	switch f := p.params.RpgThreshold; {
	case own > f:
		return p.hai, true
	case own == f:
		return p.ai, false
	default:
		return 0, false
	}
}

// nvidiaAdd returns what an event adds to the target rate, its stage not being
// counted yet, and whether all further events of its kind add the same.
func (p *ReactionPort) nvidiaAdd(own, other uint32) (add uint64, constant bool) {
	f := p.params.RpgThreshold
	switch {
	case min(own, other) > f:
		return p.hai, true
	case max(own, other) >= f:
		return p.ai, other <= f
	default:
		return 0, false
	}
}
