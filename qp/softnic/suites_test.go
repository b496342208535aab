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

// pyverbs are the tests of rdma-core's tests/ that are of any card's queue pairs,
// memory, receive queues and completions, by their names at the state of September 2025.
func pyverbs() []verbsCase {
	rights := qp.RemoteRead | qp.RemoteWrite | qp.RemoteAtomic
	created := func(kind qp.Type) func(v *verbs) { return func(v *verbs) { v.qp(kind, nil) } }
	up := func(kind qp.Type) func(v *verbs) {
		return func(v *verbs) {
			q, _ := v.qp(kind, nil)
			v.connect(q, v.a, nil)
			require.Equal(v.t, qp.RTS, q.State())
			require.EqualValues(v.t, 1024, q.Attr().PathMTU)
		}
	}
	here := qp.AHAttr{GID: gidOf("192.0.2.1")}
	message := func(names string, op qp.Op) verbsCase {
		return right(names, func(v *verbs) {
			v.recv(v.dst.sge(0, 200))
			w := v.send()
			w.Op, w.Imm = op, 9
			require.Equal(v.t, qp.Success, v.do(w))
			wc := poll(v.t, v.bc)
			require.Equal(v.t, qp.Success, wc.Status)
			require.Equal(v.t, op == qp.OpSendImm, wc.HasImm)
		})
	}
	datagram := func(names string, op qp.Op, n int) verbsCase {
		return right(names, func(v *verbs) {
			v = datagrams(v)
			v.recv(v.dst.sge(0, 200))
			w := v.datagram(here)
			w.Op, w.SGEs[0].Len = op, uint32(n)
			require.Equal(v.t, qp.Success, v.do(w))
			require.EqualValues(v.t, 40+n, poll(v.t, v.bc).ByteLen)
		})
	}
	return []verbsCase{
		right("test_qp.test_create_rc_qp_no_attr test_qp.test_create_rc_qp_with_attr test_qp.test_create_rc_qp_ex_no_attr test_qp.test_create_rc_qp_ex_with_attr", created(qp.RC)),
		right("test_qp.test_create_uc_qp_no_attr test_qp.test_create_uc_qp_with_attr test_qp.test_create_uc_qp_ex_no_attr test_qp.test_create_uc_qp_ex_with_attr", created(qp.UC)),
		right("test_qp.test_create_ud_qp_no_attr test_qp.test_create_ud_qp_with_attr test_qp.test_create_ud_qp_ex_no_attr test_qp.test_create_ud_qp_ex_with_attr", created(qp.UD)),
		right("test_qp.test_query_rc_qp", up(qp.RC)),
		right("test_qp.test_query_uc_qp", up(qp.UC)),
		right("test_qp.test_query_ud_qp", up(qp.UD)),
		right("test_qp.test_modify_ud_qp", func(v *verbs) {
			q, _ := v.qp(qp.UD, nil)
			v.connect(q, v.a, nil)
			a := attrTo(0)
			a.QKey = 0x999
			require.NoError(v.t, q.Modify(v.now, &a, qp.AttrQKey))
			require.EqualValues(v.t, 0x999, q.Attr().QKey)
		}),
		right("test_qp.test_create_ud_qp_with_privileged_qkey", func(v *verbs) {
			q, _ := v.qp(qp.UD, nil)
			a := attrTo(0)
			a.State, a.QKey = qp.Init, 0x80000001
			require.NoError(v.t, q.Modify(v.now, &a, qp.AttrState|qp.AttrPKey|qp.AttrQKey))
		}),
		right("test_qp.test_modify_rc_qp_rd_atomic", func(v *verbs) {
			for _, n := range []int{1, 4} {
				w := newVerbs(v.t, func(_ *softnic.QPConfig, a *qp.Attr) { a.MaxRdAtomic, a.MaxDestRdAtomic = n, n })
				require.Equal(v.t, n, w.a.Attr().MaxRdAtomic)
				require.Equal(v.t, qp.Success, w.do(w.read()))
			}
		}),
		not(whyLinux, "test_qp.test_query_data_in_order test_mr.test_create_dm_mr test_mr.test_dm_bad_access test_mr.test_dm_bad_registration "+
			"test_mr.test_dm_export_dmabuf_fd test_mr.test_dmabuf_reg_mr test_mr.test_dmabuf_dereg_mr test_mr.test_dmabuf_dereg_mr_twice "+
			"test_mr.test_dmabuf_reg_mr_bad_flags test_mr.test_dmabuf_write test_mr.test_dmabuf_read test_mr.test_dmabuf_lkey test_mr.test_dmabuf_rkey "+
			"test_mr.test_dmabuf_rc_traffic test_mr.test_dmabuf_rdma_traffic test_mr.test_dm_traffic test_mr.test_dm_remote_traffic "+
			"test_mr.test_dm_remote_write_traffic_imm test_mr.test_dm_remote_read_traffic test_mr.test_dm_atomic_fetch_add test_mr.test_dm_atomic_cmp_swp "+
			"test_shared_pd.test_imported_rc_ex_rdma_write test_odp.test_odp_rc_traffic test_odp.test_odp_rc_mixed_mr test_odp.test_odp_qp_ex_rc_atomic_write "+
			"test_odp.test_odp_qp_ex_rc_flush test_odp.test_odp_rc_atomic_cmp_and_swp test_odp.test_odp_rc_atomic_fetch_and_add test_odp.test_odp_rc_rdma_read "+
			"test_odp.test_odp_rc_rdma_write test_odp.test_odp_implicit_rc_traffic test_odp.test_odp_ud_traffic test_odp.test_odp_xrc_traffic "+
			"test_odp.test_odp_rc_huge_traffic test_odp.test_odp_rc_huge_user_addr_traffic test_odp.test_odp_sync_prefetch_rc_traffic "+
			"test_odp.test_odp_async_prefetch_rc_traffic test_odp.test_odp_implicit_sync_prefetch_rc_traffic test_odp.test_odp_implicit_async_prefetch_rc_traffic "+
			"test_odp.test_odp_prefetch_sync_no_page_fault_rc_traffic test_odp.test_odp_prefetch_async_no_page_fault_rc_traffic test_odp.test_mrex_odp_rc_traffic "+
			"test_odp.test_mrex_odp_rc_huge_traffic test_odp.test_mrex_odp_implicit_rc_traffic test_odp.test_mrex_odp_qp_ex_rc_flush"),
		not(whyRaw, "test_qp.test_create_raw_qp_no_attr test_qp.test_create_raw_qp_with_attr test_qp.test_create_raw_qp_ex_no_attr "+
			"test_qp.test_create_raw_qp_ex_with_attr test_qp.test_create_raw_qp_ex_with_illegal_caps_max_send_wr "+
			"test_qp.test_create_raw_qp_ex_with_illegal_caps_max_send_sge test_qp.test_create_raw_qp_ex_with_illegal_caps_max_recv_sge "+
			"test_qp.test_create_raw_qp_ex_with_illegal_caps_max_recv_wr test_qp.test_query_raw_qp test_qp.test_raw_qp_rate_limit_modify"),
		not(whyQueues, "test_cq.test_create_cq_with_comp_channel test_cq.test_create_cq_bad_flow test_cq.test_resize_cq test_cqex.test_create_cq_ex "+
			"test_cqex.test_create_cq_ex_bad_flow"),
		not(whyHandles, "test_pd.test_dealloc_pd test_pd.test_destroy_pd_twice test_addr.test_destroy_ah"),
		right("test_mr.test_mr_rereg_addr test_mr.test_mrex_rereg_addr", func(v *verbs) {
			v.rereg(&v.dst, v.pd, 4096, allAccess)
			require.Equal(v.t, qp.Success, v.do(v.write()))
			v.filled(v.dst.b, 'a', 100)
		}),
		right("test_mr.test_mr_rereg_atomic", func(v *verbs) {
			v.rereg(&v.dst, v.pd, 4096, qp.LocalWrite|qp.RemoteAtomic)
			require.Equal(v.t, qp.Success, v.do(v.fadd()))
			require.Equal(v.t, qp.RemoteAccessErr, v.do(v.write()))
		}),
		right("test_mr.test_mr_rereg_access test_mr.test_mrex_rereg_access", func(v *verbs) {
			v.rereg(&v.dst, v.pd, 4096, qp.LocalWrite|qp.RemoteWrite)
			require.Equal(v.t, qp.Success, v.do(v.write()))
		}),
		right("test_mr.test_mr_rereg_access_bad_flow", func(v *verbs) {
			require.Equal(v.t, qp.Success, v.do(v.write()))
			v.rereg(&v.dst, v.pd, 4096, qp.LocalWrite)
			require.Equal(v.t, qp.RemoteAccessErr, v.do(v.write()))
		}),
		right("test_mr.test_mr_rereg_pd", func(v *verbs) {
			require.Equal(v.t, qp.Success, v.do(v.write()))
			v.rereg(&v.dst, v.p.AllocPD(), 4096, allAccess)
			require.Equal(v.t, qp.RemoteAccessErr, v.do(v.write()))
		}),
		right("test_mr.test_mw_type1 test_mr.test_mw_ex_type1", func(v *verbs) {
			w := v.write()
			w.RKey = v.window1(v.b)
			require.Equal(v.t, qp.Success, v.do(w))
		}),
		right("test_mr.test_invalidate_mw_type1", func(v *verbs) {
			w := v.write()
			w.RKey = v.window1(v.b)
			require.Equal(v.t, qp.Success, v.do(w))
			require.Equal(v.t, qp.Success, v.bind(v.b, w.RKey, v.dst.key, v.dst.va, 0, rights1))
			require.Equal(v.t, qp.RemoteAccessErr, v.do(w))
		}),
		not(whyOneBind, "test_mr.test_reg_mw_wrong_type"),
		not(whyNoSize, "test_qpex.test_rq_with_larger_sgl_bad_flow"),
		not("a SRQ keeps its size", "test_srq.test_resize_srq"),

		datagram("test_qpex.test_qp_ex_ud_send test_cqex.test_ud_traffic_cq_ex", qp.OpSend, 100),
		datagram("test_qpex.test_qp_ex_ud_zero_size", qp.OpSend, 0),
		datagram("test_qpex.test_qp_ex_ud_send_imm", qp.OpSendImm, 100),
		message("test_qpex.test_qp_ex_rc_send test_cqex.test_rc_traffic_cq_ex", qp.OpSend),
		message("test_qpex.test_qp_ex_rc_send_imm", qp.OpSendImm),
		right("test_qpex.test_qp_ex_xrc_send test_cqex.test_xrc_traffic_cq_ex", func(v *verbs) { v.xrc(qp.OpSend) }),
		right("test_qpex.test_qp_ex_xrc_send_imm", func(v *verbs) { v.xrc(qp.OpSendImm) }),
		right("test_qpex.test_qp_ex_rc_flush", func(v *verbs) { require.Equal(v.t, qp.Success, v.flush(qp.FlushGlobal, false)) }),
		right("test_qpex.test_qp_ex_rc_flush_type_violate", func(v *verbs) {
			require.Equal(v.t, qp.RemoteAccessErr, v.flush(qp.FlushGlobal, true))
		}),
		one("test_qpex.test_qp_ex_rc_atomic_write", qp.Success, func(v *verbs) qp.SendWR {
			return qp.SendWR{Op: qp.OpAtomicWrite, Local: []byte("12345678"), RemoteAddr: v.dst.va, RKey: v.dst.key}
		}),
		one("test_qpex.test_qp_ex_rc_rdma_write", qp.Success, (*verbs).write),
		right("test_qpex.test_qp_ex_rc_rdma_write_imm", func(v *verbs) {
			v.recv(nil)
			require.Equal(v.t, qp.Success, v.do(v.rdma(qp.OpWriteImm, 10)))
			require.Equal(v.t, qp.OpRecvWrite, poll(v.t, v.bc).Op)
		}),
		one("test_qpex.test_qp_ex_rc_rdma_write_zero_size", qp.Success, func(v *verbs) qp.SendWR { return v.rdma(qp.OpWrite, 0) }),
		one("test_qpex.test_qp_ex_rc_rdma_read", qp.Success, (*verbs).read),
		one("test_qpex.test_qp_ex_rc_rdma_read_zero_size", qp.Success, func(v *verbs) qp.SendWR { return v.rdma(qp.OpRead, 0) }),
		one("test_qpex.test_qp_ex_rc_atomic_cmp_swp test_atomic.test_atomic_cmp_and_swap", qp.Success, (*verbs).cswap),
		one("test_qpex.test_qp_ex_rc_atomic_fetch_add test_atomic.test_atomic_fetch_and_add", qp.Success, (*verbs).fadd),
		right("test_qpex.test_qp_ex_rc_bind_mw test_mr.test_mw_type2", func(v *verbs) {
			w := v.write()
			w.RKey = v.window(v.b, 0, 4096, rights)
			require.Equal(v.t, qp.Success, v.do(w))
		}),
		right("test_qpex.test_post_receive_qp_state_bad_flow", func(v *verbs) {
			q, _ := v.qp(qp.UD, nil)
			require.ErrorIs(v.t, q.PostRecv(&qp.RecvWR{}), qp.ErrState)
		}),
		right("test_qpex.test_post_send_qp_state_bad_flow", func(v *verbs) {
			for _, s := range []qp.State{qp.Reset, qp.Init, qp.RTR} {
				q, _ := v.fresh(s, 0x11)
				require.ErrorIs(v.t, q.PostSend(v.now, &qp.SendWR{}), qp.ErrState)
			}
		}),
		right("test_qpex.test_full_rq_bad_flow", func(v *verbs) {
			for range 16 {
				v.recv(nil)
			}
			require.ErrorIs(v.t, v.b.PostRecv(&qp.RecvWR{}), qp.ErrQueueFull)
		}),
		other("any set of rights may be registered", "test_mr.test_reg_mr_bad_flags test_mr.test_reg_mrex_bad_flags test_mr.test_reg_mrex_inval_params",
			func(v *verbs) { v.reg(v.pd, 10, qp.RemoteWrite) }),
		right("test_mr.test_mw_type2_invalidate_local", func(v *verbs) {
			w := v.write()
			w.RKey = v.window(v.b, 0, 4096, rights)
			require.NoError(v.t, v.b.PostSend(v.now, &qp.SendWR{Op: qp.OpLocalInv, Flags: qp.Signaled, RKey: w.RKey}))
			v.run()
			require.Equal(v.t, qp.Success, v.came())
			require.Equal(v.t, qp.RemoteAccessErr, v.do(w))
		}),
		right("test_mr.test_mw_type2_invalidate_remote", func(v *verbs) {
			w := v.write()
			w.RKey = v.window(v.b, 0, 4096, rights)
			v.recv(v.dst.sge(0, 200))
			s := v.send()
			s.Op, s.RKey = qp.OpSendInv, w.RKey
			require.Equal(v.t, qp.Success, v.do(s))
			require.Equal(v.t, qp.RemoteAccessErr, v.do(w))
		}),
		right("test_mr.test_mw_type2_invalidate_dealloc", func(v *verbs) {
			w := v.write()
			w.RKey = v.window(v.b, 0, 4096, rights)
			require.NoError(v.t, v.p.Regions().Deregister(w.RKey))
			require.Equal(v.t, qp.RemoteAccessErr, v.do(w))
		}),
		right("test_cq.test_create_cq", func(v *verbs) { none(v.t, softnic.NewCQ()) }),
		// The caller of a port looks for completions after each call: what arrives is an
		// event by itself.
		right("test_cq_events.test_cq_events_ud", func(v *verbs) {
			v = datagrams(v)
			v.recv(v.dst.sge(0, 200))
			w := v.datagram(here)
			w.Flags = qp.Solicited
			require.Equal(v.t, qp.Success, v.do(w))
			require.True(v.t, poll(v.t, v.bc).Solicited)
		}),
		right("test_cq_events.test_cq_events_rc", func(v *verbs) {
			v.recv(v.dst.sge(0, 200))
			w := v.send()
			w.Flags = qp.Solicited
			require.Equal(v.t, qp.Success, v.do(w))
			require.True(v.t, poll(v.t, v.bc).Solicited)
		}),
		right("test_addr.test_create_ah test_addr.test_create_ah_roce", func(v *verbs) {
			_, err := v.p.CreateAH(here)
			require.NoError(v.t, err)
			_, err = v.p.CreateAH(qp.AHAttr{})
			require.ErrorIs(v.t, err, softnic.ErrAddress)
		}),
		right("test_pd.test_alloc_pd test_pd.test_multiple_pd_creation", func(v *verbs) {
			seen := map[qp.PD]bool{v.pd: true}
			for range 100 {
				pd := v.p.AllocPD()
				require.False(v.t, seen[pd])
				seen[pd] = true
			}
		}),
		right("test_srq.test_rc_srq_traffic", func(v *verbs) {
			v, s := shared(v, 8)
			for range 20 {
				require.NoError(v.t, s.PostRecv(&qp.RecvWR{SGEs: v.dst.sge(0, 200)}))
				require.Equal(v.t, qp.Success, v.do(v.send()))
				require.Equal(v.t, qp.Success, v.came())
			}
		}),
		right("test_srq.test_modify_srq_limit", func(v *verbs) {
			v, s := shared(v, 16)
			for range 10 {
				require.NoError(v.t, s.PostRecv(&qp.RecvWR{SGEs: v.dst.sge(0, 200)}))
			}
			s.Arm(7)
			for i := range 4 {
				require.False(v.t, s.LimitReached(), "message %d", i)
				require.Equal(v.t, qp.Success, v.do(v.send()))
				require.Equal(v.t, qp.Success, v.came())
			}
			require.True(v.t, s.LimitReached())
		}),
		right("test_atomic.test_xrc_atomic_fetch_and_add", func(v *verbs) { v.xrc(qp.OpFetchAdd) }),
		right("test_atomic.test_xrc_atomic_cmp_and_swap", func(v *verbs) { v.xrc(qp.OpCmpSwap) }),
		right("test_atomic.test_atomic_invalid_qp_access", func(v *verbs) {
			w := newVerbs(v.t, func(_ *softnic.QPConfig, a *qp.Attr) { a.Access = qp.RemoteRead | qp.RemoteWrite })
			require.NotEqual(v.t, qp.Success, w.do(w.fadd()))
		}),
		one("test_atomic.test_atomic_invalid_mr_access", qp.RemoteAccessErr, func(v *verbs) qp.SendWR {
			v.dst = v.reg(v.pd, 4096, qp.LocalWrite|qp.RemoteRead|qp.RemoteWrite)
			return v.fadd()
		}),
		refused(whyPost, "test_atomic.test_atomic_non_aligned_addr", qp.ErrAlign, func(v *verbs) qp.SendWR { return at(v.fadd(), 1) }),
		one("test_atomic.test_atomic_invalid_lkey", qp.LocalProtErr, func(v *verbs) qp.SendWR { return badL(v.fadd()) }),
		one("test_atomic.test_atomic_invalid_rkey", qp.RemoteAccessErr, func(v *verbs) qp.SendWR { return badR(v.fadd()) }),
		not("connections by RDMA-CM are tried in cm_test.go, in qp/endpoint and live", "test_rdmacm.test_rdmacm_sync_traffic test_rdmacm.test_rdmacm_async_traffic "+
			"test_rdmacm.test_rdmacm_async_reject_traffic test_rdmacm.test_rdmacm_async_multicast_traffic test_rdmacm.test_rdmacm_async_ex_multicast_traffic "+
			"test_rdmacm.test_rdmacm_async_ex_leave_multicast_traffic test_rdmacm.test_rdmacm_async_traffic_external_qp test_rdmacm.test_rdmacm_async_udp_traffic "+
			"test_rdmacm.test_rdmacm_async_read test_rdmacm.test_rdmacm_async_write test_rdmacm.test_rdmacm_async_resolve_addrinfo"),
	}
}

// flush flushes memory with a right, to visibility or to persistence.
func (v *verbs) flush(access qp.Access, persistence bool) qp.Status {
	w := newVerbs(v.t, func(_ *softnic.QPConfig, a *qp.Attr) { a.Access |= qp.FlushGlobal | qp.FlushPersistent })
	w.dst = w.reg(w.pd, 4096, allAccess|access)
	return w.do(qp.SendWR{Op: qp.OpFlush, Length: 100, RemoteAddr: w.dst.va, RKey: w.dst.key, FlushPersistence: persistence})
}

// xrc does an operation from an XRC initiator to an XRC target and its SRQ.
func (v *verbs) xrc(op qp.Op) {
	s, err := v.p.CreateSRQ(4, 7)
	require.NoError(v.t, err)
	require.NoError(v.t, s.PostRecv(&qp.RecvWR{SGEs: v.dst.sge(0, 200)}))
	a, ac := v.qp(qp.XRCSend, nil)
	b, bc := v.qp(qp.XRCRecv, func(c *softnic.QPConfig, _ *qp.Attr) { c.XRCD, c.MaxRecvWR = 7, 0 })
	v.connect(a, b, nil)
	v.connect(b, a, nil)
	w := v.rdma(op, 8)
	w.SRQ, w.Flags = s.Num(), qp.Signaled
	require.NoError(v.t, a.PostSend(v.now, &w))
	v.run()
	require.Equal(v.t, qp.Success, poll(v.t, ac).Status)
	if op == qp.OpSend || op == qp.OpSendImm {
		wc := poll(v.t, bc)
		require.Equal(v.t, s.Num(), wc.SRQ)
		require.Equal(v.t, op == qp.OpSendImm, wc.HasImm)
	}
}
