package cnp

// nvidiaCNP leaves two flags for the ends of the alpha and the monitor period.
// Both periods run freely from the flow's first CNP on.
func (r *ReactionPoint) nvidiaCNP(ns int64) {
	p := r.port
	if r.active {
		r.nvidiaRun(ns)
	} else {
		r.start()
		if p.firstRate != 0 {
			r.rc = min(r.rc, p.firstRate)
			r.rt = r.rc
		}
		r.alphaAt = ns + p.alphaPeriod
		r.cutAt = ns + p.monitorPeriod
		r.timerAt = ns + p.timeReset
	}
	r.alphaMark, r.cutMark = true, true
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
		g := r.port.params.DceTcpG
		r.alpha = min(r.alpha*g>>10+alphaOne-g, alphaOne-1)
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
	cut := min(r.rc*uint64(r.alpha)>>p.RpgGd, r.rc*uint64(100-p.RpgMinDecFac)/100)
	r.rc = max(r.rc-cut, r.port.floor)
	r.t, r.bc, r.bytes = 0, 0, 0
	r.timerAt = at + r.port.timeReset
	r.cutMark = false
	r.cutAt += r.port.monitorPeriod
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
