package softnic_test

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/softnic"
)

// The behaviour that public test suites of verbs ask for, tried on two queue pairs of
// one port. Each case has the suite's name of its test. README.md has the sums.

// verbsCase is a test of a suite.
type verbsCase struct {
	names []string
	run   func(v *verbs) // nil: it does not apply
	why   string         // it does not apply, or the outcome is another one
}

// right is a test whose outcome is the suite's.
func right(names string, run func(v *verbs)) verbsCase {
	return verbsCase{names: strings.Fields(names), run: run}
}

// other is a test with another outcome, for a reason.
func other(why, names string, run func(v *verbs)) verbsCase {
	return verbsCase{names: strings.Fields(names), run: run, why: why}
}

// not is tests that do not apply.
func not(why, names string) verbsCase { return verbsCase{names: strings.Fields(names), why: why} }

// one posts a request, and expects it to end with a status.
func one(names string, want qp.Status, wr func(v *verbs) qp.SendWR) verbsCase {
	return right(names, func(v *verbs) { require.Equal(v.t, want, v.do(wr(v))) })
}

// refused posts a request, and expects PostSend to refuse it.
func refused(why, names string, want error, wr func(v *verbs) qp.SendWR) verbsCase {
	return other(why, names, func(v *verbs) {
		w := wr(v)
		require.ErrorIs(v.t, v.a.PostSend(v.now, &w), want)
	})
}

// TestSuites runs them, and checks the table of README.md.
func TestSuites(t *testing.T) {
	page, err := os.ReadFile("README.md")
	require.NoError(t, err)
	seen := map[string]bool{}
	for _, s := range []struct {
		name  string
		cases []verbsCase
	}{{"rdma-unit-test", rdmaUnitTest()}, {"pyverbs", pyverbs()}} {
		var good, otherwise, none int
		for _, c := range s.cases {
			switch {
			case c.run == nil:
				none += len(c.names)
			case c.why != "":
				otherwise += len(c.names)
			default:
				good += len(c.names)
			}
			if c.why != "" {
				require.Contains(t, string(page), c.why, "README.md says why: %v", c.names)
			}
			for _, n := range c.names {
				require.False(t, seen[s.name+n], "%s stands there twice", n)
				seen[s.name+n] = true
				if c.run != nil {
					t.Run(s.name+"/"+n, func(t *testing.T) { c.run(newVerbs(t, nil)) })
				}
			}
		}
		row := fmt.Sprintf("| %s | %d | %d | %d | %d |", s.name, good+otherwise+none, good, otherwise, none)
		require.Contains(t, string(page), row, "the row of README.md's table")
	}
}

// verbs is two RC queue pairs of one port, connected with each other, and memory.
type verbs struct {
	t      *testing.T
	now    time.Time
	p      *softnic.Port
	pd     qp.PD
	a, b   *softnic.QP
	ac, bc *softnic.CQ
	src    mem // of a
	dst    mem // of b
	sent   int // frames that left the port
}

// mem is a region.
type mem struct {
	b   []byte
	va  uint64
	key uint32
}

const allAccess = qp.LocalWrite | qp.RemoteRead | qp.RemoteWrite | qp.RemoteAtomic | qp.MWBind

func newVerbs(t *testing.T, more func(*softnic.QPConfig, *qp.Attr)) *verbs {
	v := &verbs{t: t, now: start, p: onePort(t, 1, softnic.Config{}, "192.0.2.1")}
	v.pd = v.p.AllocPD()
	v.src, v.dst = v.reg(v.pd, 4096, allAccess), v.reg(v.pd, 4096, allAccess)
	for i := range v.src.b {
		v.src.b[i], v.dst.b[i] = 'a', 'b'
	}
	v.a, v.ac = v.qp(qp.RC, more)
	v.b, v.bc = v.qp(qp.RC, more)
	v.connect(v.a, v.b, more)
	v.connect(v.b, v.a, more)
	return v
}

// reg registers memory. Its address is far from all others.
func (v *verbs) reg(pd qp.PD, n int, access qp.Access) mem {
	m := mem{b: make([]byte, n), va: 0x10000 * uint64(1+v.p.Regions().Len())}
	var err error
	m.key, err = v.p.Regions().Register(qp.Region{PD: pd, Data: m.b, Addr: m.va, Access: access})
	require.NoError(v.t, err)
	return m
}

func (m mem) sge(off uint64, n int) []qp.SGE {
	return []qp.SGE{{Addr: m.va + off, Len: uint32(n), LKey: m.key}}
}

func (v *verbs) qp(kind qp.Type, more func(*softnic.QPConfig, *qp.Attr)) (*softnic.QP, *softnic.CQ) {
	cq := softnic.NewCQ()
	c := softnic.QPConfig{Config: qp.Config{Type: kind, PD: v.pd, MaxSendWR: 16, MaxRecvWR: 16, MaxRdAtomic: 4, MaxDestRdAtomic: 4, MaxInline: 64},
		SendCQ: cq, RecvCQ: cq}
	if more != nil {
		more(&c, &qp.Attr{})
	}
	q, err := v.p.CreateQP(c)
	require.NoError(v.t, err)
	return q, cq
}

func attrTo(dest uint32) qp.Attr {
	return qp.Attr{PKey: 0xffff, QKey: 0x1111, Access: qp.RemoteRead | qp.RemoteWrite | qp.RemoteAtomic, PathMTU: 1024,
		DestQPN: dest, AH: qp.AHAttr{GID: gidOf("192.0.2.1")}, MaxDestRdAtomic: 4, MaxRdAtomic: 4, MinRNRTimer: 12,
		Timeout: 8, RetryCnt: 3, RNRRetry: 3}
}

func (v *verbs) connect(q, to *softnic.QP, more func(*softnic.QPConfig, *qp.Attr)) {
	a := attrTo(to.Num())
	if more != nil {
		more(&softnic.QPConfig{}, &a)
	}
	require.NoError(v.t, q.Connect(v.now, &a))
}

// run lets time pass until nothing happens any more.
func (v *verbs) run() {
	for end := v.now.Add(5 * time.Second); ; {
		v.sent += len(drain(v.p, v.now))
		due, ok := v.p.Deadline()
		if !ok || due.After(end) {
			return
		}
		v.now = due
		v.p.Tick(v.now)
	}
}

// do posts a request to a, and returns how it ended.
func (v *verbs) do(wr qp.SendWR) qp.Status {
	v.t.Helper()
	wr.Flags |= qp.Signaled
	require.NoError(v.t, v.a.PostSend(v.now, &wr))
	v.run()
	return poll(v.t, v.ac).Status
}

// quietly posts an unsignalled request, and returns what there is.
func (v *verbs) quietly(wr qp.SendWR) (st qp.Status, any bool) {
	require.NoError(v.t, v.a.PostSend(v.now, &wr))
	v.run()
	var wc qp.Completion
	any = v.ac.Poll(&wc)
	return wc.Status, any
}

// recv posts a receive to b.
func (v *verbs) recv(sges []qp.SGE) {
	v.t.Helper()
	require.NoError(v.t, v.b.PostRecv(&qp.RecvWR{ID: 7, SGEs: sges}))
}

// came returns how b's oldest receive ended.
func (v *verbs) came() qp.Status { v.t.Helper(); return poll(v.t, v.bc).Status }

func (v *verbs) send() qp.SendWR { return qp.SendWR{Op: qp.OpSend, SGEs: v.src.sge(0, 100)} }
func (v *verbs) rdma(op qp.Op, n int) qp.SendWR {
	return qp.SendWR{Op: op, SGEs: v.src.sge(0, n), RemoteAddr: v.dst.va, RKey: v.dst.key}
}
func (v *verbs) write() qp.SendWR { return v.rdma(qp.OpWrite, 100) }
func (v *verbs) read() qp.SendWR  { return v.rdma(qp.OpRead, 100) }
func (v *verbs) fadd() qp.SendWR  { w := v.rdma(qp.OpFetchAdd, 8); w.CompareAdd = 1; return w }
func (v *verbs) cswap() qp.SendWR {
	w := v.rdma(qp.OpCmpSwap, 8)
	w.CompareAdd, w.Swap = 0x6262626262626262, 5
	return w
}

// badL, badR and so on change a request.
func badL(w qp.SendWR) qp.SendWR { w.SGEs[0].LKey ^= 0xff00; return w }
func badR(w qp.SendWR) qp.SendWR { w.RKey ^= 0xff00; return w }
func at(w qp.SendWR, off int64) qp.SendWR {
	w.RemoteAddr += uint64(off)
	return w
}

// window binds a window of a's or b's host to a part of dst for the QP q, and returns its
// key.
func (v *verbs) window(q *softnic.QP, off uint64, n int, access qp.Access) uint32 {
	v.t.Helper()
	w, err := v.p.Regions().AllocWindow(v.pd)
	require.NoError(v.t, err)
	require.Equal(v.t, qp.Success, v.bind(q, w, v.dst.key, v.dst.va+off, n, access))
	return qp.IncRKey(w)
}

// bind posts a BIND_MW to q.
func (v *verbs) bind(q *softnic.QP, w, region uint32, va uint64, n int, access qp.Access) qp.Status {
	v.t.Helper()
	require.NoError(v.t, q.PostSend(v.now, &qp.SendWR{Op: qp.OpBindMW, Flags: qp.Signaled, RKey: w, Region: region, RemoteAddr: va,
		Length: uint32(n), Access: access}))
	v.run()
	cq := v.ac
	if q == v.b {
		cq = v.bc
	}
	return poll(v.t, cq).Status
}

func (v *verbs) alloc(pd qp.PD) uint32 {
	w, err := v.p.Regions().AllocWindow(pd)
	require.NoError(v.t, err)
	return w
}

func (v *verbs) filled(b []byte, c byte, n int) {
	v.t.Helper()
	for i := range n {
		require.Equal(v.t, c, b[i], "byte %d", i)
	}
}
