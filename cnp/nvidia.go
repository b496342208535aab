package cnp

import "math/bits"

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
