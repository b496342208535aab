package cnp

import "math/bits"

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
