package cnp_test

import (
	"math"

	"github.com/roce-go/roce/cnp"
)

// reference is DCQCN in real numbers, straight from the equations: one event at
// a time, in order of time, and no shortcut. It shares no code with the package.
// Times are nanoseconds, rates bits per second, alpha is 0..1. It knows no release.
type reference struct {
	p             cnp.Params
	rc, rt, alpha float64
	ceil          float64
	on            bool
	alphaAt       int64
	timerAt       int64
	monitorAt     int64
	bytes         int64
	T, BC         int
	flagA, flagC  bool
}

func newReference(p cnp.Params, line float64) *reference {
	m := &reference{p: p, rc: line, rt: line, ceil: line}
	if p.RpgMaxRate != 0 {
		m.ceil = math.Min(line, float64(p.RpgMaxRate)*1e6)
	}
	return m
}

func (m *reference) nvidia() bool { return m.p.Algorithm != cnp.AlgorithmPaper }

func (m *reference) cnp(now int64) {
	first := !m.on
	m.on = true
	if first {
		m.rc, m.rt = m.ceil, m.ceil
		m.alpha = float64(m.p.InitialAlphaValue) / 1024
	}
	if m.nvidia() {
		if first {
			if f := float64(m.p.RateToSetOnFirstCnp) * 1e6; f != 0 {
				m.rc = math.Min(m.rc, f)
				m.rt = m.rc
			}
			m.alphaAt = now + int64(m.p.DceTcpRtt)*1000
			m.monitorAt = now + int64(m.p.RateReduceMonitorPeriod)*1000
			m.timerAt = now + int64(m.p.RpgTimeReset)*1000
		} else {
			m.advance(now, now)
		}
		m.flagA, m.flagC = !first || m.p.Algorithm == cnp.AlgorithmNVIDIA, true
		return
	}
	if !first {
		m.advance(now, now-1)
	}
	g := 1 - float64(m.p.DceTcpG)/1024
	m.rt = m.rc
	m.rc = math.Max(m.rc*(1-m.alpha/2), float64(m.p.RpgMinRate)*1e6)
	m.alpha = (1-g)*m.alpha + g
	m.T, m.BC, m.bytes = 0, 0, 0
	m.alphaAt = now + int64(m.p.DceTcpRtt)*1000
	m.timerAt = now + int64(m.p.RpgTimeReset)*1000
}

func (m *reference) sent(now int64, n int64) {
	if !m.on {
		return
	}
	m.advance(now, now)
	b := int64(m.p.RpgByteReset) * 64
	if b == 0 {
		return
	}
	for m.bytes += n; m.bytes >= b; m.bytes -= b {
		m.event(&m.BC)
	}
}

func (m *reference) advance(now, timerTo int64) {
	if !m.on {
		return
	}
	for {
		next := m.alphaAt
		if m.nvidia() {
			next = min(next, m.monitorAt)
		}
		if m.timerAt <= timerTo {
			next = min(next, m.timerAt)
		}
		if next > now {
			return
		}
		if m.alphaAt == next {
			m.alphaAt += int64(m.p.DceTcpRtt) * 1000
			old := float64(m.p.DceTcpG) / 1024
			m.alpha *= old
			if m.flagA {
				m.alpha += 1 - old
			}
			m.flagA = false
		}
		if m.nvidia() && m.monitorAt == next {
			m.monitorAt += int64(m.p.RateReduceMonitorPeriod) * 1000
			if m.flagC {
				m.flagC = false
				if m.p.ClampTgtRate || m.BC > 0 || m.p.ClampTgtRateAfterTimeInc && m.T > 0 {
					m.rt = m.rc
				}
				cut := m.rc * m.alpha * 1024 / math.Exp2(float64(m.p.RpgGd))
				cut = math.Min(cut, m.rc*(1-float64(m.p.RpgMinDecFac)/100))
				m.rc = math.Max(m.rc-cut, float64(m.p.RpgMinRate)*1e6)
				m.T, m.BC, m.bytes = 0, 0, 0
				m.timerAt = next + int64(m.p.RpgTimeReset)*1000
			}
		}
		if m.timerAt == next && next <= timerTo {
			m.timerAt += int64(m.p.RpgTimeReset) * 1000
			m.event(&m.T)
		}
	}
}

func (m *reference) event(stage *int) {
	F := int(m.p.RpgThreshold)
	ai, hai := float64(m.p.RpgAIRate)*1e6, float64(m.p.RpgHAIRate)*1e6
	if m.p.Algorithm == cnp.AlgorithmNS3 {
		switch {
		case m.T > F:
			m.rt += hai
		case m.T == F:
			m.rt += ai
		}
		*stage++
	} else if m.nvidia() {
		switch {
		case min(m.T, m.BC) > F:
			m.rt += hai
		case max(m.T, m.BC) >= F:
			m.rt += ai
		}
		*stage++
	} else {
		*stage++
		fast := max(m.T, m.BC) < F
		if m.p.FullFastRecovery {
			fast = max(m.T, m.BC) <= F
		}
		switch {
		case fast:
		case min(m.T, m.BC) > F:
			m.rt += float64(min(m.T, m.BC)-F) * hai
		default:
			m.rt += ai
		}
	}
	m.rt = math.Min(m.rt, m.ceil)
	m.rc = (m.rt + m.rc) / 2
}
