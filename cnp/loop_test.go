package cnp_test

import (
	"math"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/cnp"
)

// loop is the smallest network with all four machines in it: senders, one queue
// before one link, one receiver, and a fixed delay both ways.
type loop struct {
	flows []loopFlow
	cp    cnp.CongestionPoint
	np    *cnp.NotificationPoint
	rnd   *rand.Rand
	line  uint64

	queue []loopPacket // first one is on the link
	bytes int          // in queue
	free  time.Time    // when the link has sent the first one
	sent  []int        // bytes by flow, delivered since the caller last looked
	qsum  int          // of queue lengths at the arrival of packets
	qnum  int
	above int // of them, above Kmax
}

type loopFlow struct {
	rp    cnp.ReactionPoint
	pacer cnp.Pacer
	gate  cnp.Gate
	start time.Time
	cnps  []time.Time // on their way
}

type loopPacket struct {
	flow int
	ecn  uint8
}

const (
	loopSize  = 1500
	loopDelay = 4 * time.Microsecond
)

func newLoop(t *testing.T, p cnp.Params, line uint64, starts ...time.Duration) *loop {
	port, err := cnp.NewReactionPort(p, line)
	require.NoError(t, err)
	l := &loop{line: line, rnd: rand.New(rand.NewPCG(1, 2)), sent: make([]int, len(starts))}
	l.cp, err = cnp.NewCongestionPoint(cnp.PaperCongestion())
	require.NoError(t, err)
	l.np, err = cnp.NewNotificationPoint(p, 0)
	require.NoError(t, err)
	for _, s := range starts {
		f := loopFlow{rp: port.ReactionPoint(), start: t0.Add(s)}
		f.pacer.SetRate(f.start, line)
		l.flows = append(l.flows, f)
	}
	return l
}

// wire is how long a packet takes on the link.
func (l *loop) wire() time.Duration {
	return time.Duration(loopSize * 8 * uint64(time.Second) / l.line)
}

// run goes from event to event until end.
func (l *loop) run(end time.Time) {
	for {
		now, what, flow := end, 'e', 0
		earlier := func(at time.Time, w rune, f int) {
			if at.Before(now) {
				now, what, flow = at, w, f
			}
		}
		if len(l.queue) > 0 {
			earlier(l.free, 'd', 0)
		}
		for i := range l.flows {
			f := &l.flows[i]
			if len(f.cnps) > 0 {
				earlier(f.cnps[0], 'c', i)
			}
			if d, ok := f.rp.Deadline(); ok {
				earlier(d, 't', i)
			}
			at := f.start
			if d, ok := f.pacer.Deadline(); ok {
				at = d
			}
			earlier(at, 's', i)
		}
		f := &l.flows[flow]
		switch what {
		case 'e':
			return
		case 'd':
			p := l.queue[0]
			l.queue = l.queue[1:]
			l.bytes -= loopSize
			l.free = now.Add(l.wire())
			l.sent[p.flow] += loopSize
			to := &l.flows[p.flow]
			a := cnp.Arrival{Opcode: bth.RCWriteMiddle, ECN: p.ecn}
			if l.np.HandlePacket(now, &a, &to.gate) {
				to.cnps = append(to.cnps, now.Add(2*loopDelay))
			}
		case 'c':
			f.cnps = f.cnps[1:]
			f.rp.HandleCNP(now)
		case 't':
			f.rp.Tick(now)
		case 's':
			p := loopPacket{flow, cnp.ECT0}
			if l.cp.Mark(l.bytes, p.ecn, l.rnd.Uint32()) {
				p.ecn = cnp.CE
			}
			l.qsum, l.qnum = l.qsum+l.bytes, l.qnum+1
			if l.bytes > 200_000 {
				l.above++
			}
			if len(l.queue) == 0 {
				l.free = now.Add(l.wire())
			}
			l.queue = append(l.queue, p)
			l.bytes += loopSize
			f.rp.HandleSent(now, loopSize)
			f.pacer.HandleSent(now, loopSize)
		}
		f.pacer.SetRate(now, f.rp.Rate())
	}
}

// Two flows, the second 2 ms later, over one link of their own speed come to
// share it. The network simulator has the larger cases.
func TestTwoFlowsConverge(t *testing.T) {
	for _, p := range []cnp.Params{cnp.Paper(), cnp.NVIDIA()} {
		l := newLoop(t, p, 40*gig, 0, 2*time.Millisecond)
		l.run(t0.Add(50 * time.Millisecond))
		l.qsum, l.qnum, l.above = 0, 0, 0
		worst, total := 1.0, 0
		for ms := 50; ms < 150; ms++ {
			l.sent[0], l.sent[1] = 0, 0
			l.run(t0.Add(time.Duration(ms+1) * time.Millisecond))
			a, b := float64(l.sent[0]), float64(l.sent[1])
			worst = min(worst, (a+b)*(a+b)/(2*(a*a+b*b)))
			total += l.sent[0] + l.sent[1]
		}
		use := float64(total) * 8 / (0.1 * float64(40*gig))
		t.Logf("%v: Jain's index at worst %.4f, link use %.4f, queue %d bytes, %.2f %% above Kmax",
			p.Algorithm, worst, use, l.qsum/l.qnum, 100*float64(l.above)/float64(l.qnum))
		require.Greater(t, worst, 0.95)
		require.Greater(t, use, 0.90)
		require.Less(t, l.above, l.qnum/10)
	}
}

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
