package qp_test

import (
	"encoding/hex"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/internal/explore"
	"github.com/roce-go/roce/qp/script"
)

// exStory writes what happens at one end as a script.
type exStory struct {
	strings.Builder
	node    int
	silent  bool          // requests are signaled one by one
	windows [exOps]uint32 // of its node
}

// exLog is the stories of both ends, and of what happens on the link, as comments.
type exLog [2]exStory

func (s *exScenario) stories() *exLog {
	l := new(exLog)
	for i := range l {
		st := &l[i]
		st.node, st.silent = i, s.silent
		e, typ, extra := s.ends[i], "rc", ""
		if s.typ == qp.UC {
			typ = "uc"
		}
		if s.srq {
			st.line(-1, "srq 7 size=%d", exRecvs)
			extra += " srq=7"
		}
		if !s.ends[1-i].credits {
			extra += " no_credits"
		}
		if e.window != 0 {
			extra += fmt.Sprintf(" window=%d", e.window)
		}
		if c := s.selectiveOf(i); c.Packets != 0 {
			extra += fmt.Sprintf(" selective=%d reorder=%d rto_low=%v rto_high=%v", c.Packets, c.Reorder, c.RTOLow, c.RTOHigh)
		}
		maxRd := 2
		if e.maxRd != 0 {
			maxRd = e.maxRd
		}
		if s.typ == qp.RC {
			extra += fmt.Sprintf(" timeout=%d retry_cnt=%d rnr_retry=%d min_rnr_timer=1 max_rd_atomic=%d max_dest_rd_atomic=2", e.timeout, e.retryCnt, e.rnr(), maxRd)
		}
		if !s.silent {
			extra += " signal_all"
		}
		st.line(-1, "qp %s qpn=%d dest_qpn=%d mtu=%d sq_psn=%d rq_psn=%d max_send=%d max_recv=%d access=write,read,atomic,flush,persist%s",
			typ, i+1, 2-i, exMTU, exFirst, exFirst, exOps, exRecvs, extra)
		var m [exMemory]byte
		for k := range exLong {
			m[exReadOff+k] = byte(k + 1)
		}
		exFill(m[exCellOff:], 0, 0)
		st.line(-1, "region m addr=%#x 0x%s", exRegion, hex.EncodeToString(m[:]))
		for k, op := range s.ops[1-i] {
			if op == exSendInv {
				st.line(-1, "window w%d region=m addr=%#x len=4 access=read qpn=%d", k, exRegion, i+1)
			}
		}
		st.line(-1, "hold")
	}
	return l
}

// line adds a statement at a time in nanoseconds, -1 for none.
func (st *exStory) line(now int64, format string, args ...any) {
	at := ""
	if now >= 0 {
		at = time.Duration(now).String()
	}
	fmt.Fprintf(st, "%-14s %s\n", at, fmt.Sprintf(format, args...))
}

// reconnect brings the QP of end i from RESET to RTS again.
func (st *exStory) reconnect(now int64, s *exScenario, i int, first psn.PSN) {
	e := s.ends[i]
	st.line(now, "modify state=INIT pkey=0xffff access=write,read,atomic,flush,persist")
	st.line(now, "modify state=RTR ah=0 path_mtu=%d dest_qp_num=%d rq_psn=%d max_dest_rd_atomic=2 min_rnr_timer=1", exMTU, 2-i, first)
	st.line(now, "modify state=RTS sq_psn=%d timeout=%d retry_cnt=%d rnr_retry=%d max_rd_atomic=2", first, e.timeout, e.retryCnt, e.rnr())
}

// packet names a packet and the fields that it has.
func (st *exStory) packet(p *bth.Packet, in bool) string {
	name := strings.TrimPrefix(strings.TrimPrefix(p.Opcode.String(), "RC_"), "UC_")
	s := fmt.Sprintf("%s %d", name, p.PSN)
	if p.AckReq {
		s += " ackreq"
	}
	if p.PKey != 0xffff {
		s += fmt.Sprintf(" pkey=%#x", p.PKey)
	}
	ext := p.Opcode.Ext()
	if ext&(bth.HasRETH|bth.HasAtomicETH) != 0 {
		va, key := p.RETH.VA, p.RETH.RKey
		if ext&bth.HasAtomicETH != 0 {
			va, key = p.AtomicETH.VA, p.AtomicETH.RKey
			s += fmt.Sprintf(" add=%d compare=%d", p.AtomicETH.SwapAdd, p.AtomicETH.Compare)
		}
		s += fmt.Sprintf(" va=%#x", va)
		if in { // the region of this script
			s += " rkey=m"
		} else {
			s += fmt.Sprintf(" rkey=%#x", key)
		}
	}
	if ext&bth.HasRETH != 0 {
		s += fmt.Sprintf(" dmalen=%d", p.RETH.DMALen)
	}
	if ext&bth.HasAETH != 0 {
		s += fmt.Sprintf(" syndrome=%#x msn=%d", uint8(p.AETH.Syndrome), p.AETH.MSN)
	}
	if ext&bth.HasAtomicAckETH != 0 {
		s += fmt.Sprintf(" orig=%d", p.AtomicAckETH.Orig)
	}
	if ext&bth.HasImmDt != 0 {
		s += fmt.Sprintf(" imm=%d", p.ImmDt.Imm)
	}
	if ext&bth.HasIETH != 0 {
		s += " inv_rkey=" + st.window(p.IETH.RKey, in)
	}
	if ext&bth.HasFETH != 0 {
		s += fmt.Sprintf(" sel=%d plt=%d", p.FETH.Sel, p.FETH.Placement)
	}
	if len(p.Payload) != 0 {
		s += " 0x" + hex.EncodeToString(p.Payload)
	}
	return s
}

// window names a key: one of this end's, or of the peer's.
func (st *exStory) window(key uint32, own bool) string {
	if k := slices.Index(st.windows[:], key); own && k >= 0 && key != 0 {
		return fmt.Sprintf("w%d", k)
	}
	return fmt.Sprintf("%#x", key)
}

func (st *exStory) out(now int64, p *qp.Outgoing) {
	retx := ""
	if p.Retransmission {
		retx = " retx"
	}
	st.line(now, "> %s%s", st.packet(&p.Packet, false), retx)
}

func (st *exStory) in(now int64, p *bth.Packet, v qp.Verdict) {
	to := ""
	if v != qp.Accepted {
		to = " => " + v.String()
	}
	st.line(now, "< %s%s", st.packet(p, true), to)
}

func (st *exStory) post(now int64, wr *qp.SendWR) {
	s := fmt.Sprintf("post %v id=%d", wr.Op, wr.ID)
	switch wr.Op {
	case qp.OpRead:
		s += fmt.Sprintf(" len=%d", len(wr.Local))
	case qp.OpFetchAdd:
		s += fmt.Sprintf(" len=8 add=%d", wr.CompareAdd)
	case qp.OpCmpSwap:
		s += fmt.Sprintf(" len=8 compare=%d swap=%d", wr.CompareAdd, wr.Swap)
	case qp.OpFlush:
		s += fmt.Sprintf(" len=%d persist", wr.Length)
	default:
		s += " 0x" + hex.EncodeToString(wr.Local)
	}
	if wr.Op != qp.OpSend && wr.Op != qp.OpSendImm {
		s += fmt.Sprintf(" va=%#x rkey=%#x", wr.RemoteAddr, wr.RKey)
	}
	if wr.Op == qp.OpWriteImm || wr.Op == qp.OpSendImm {
		s += fmt.Sprintf(" imm=%d", wr.Imm)
	}
	if wr.Flags&qp.Signaled == 0 && st.silent {
		s += " unsignaled"
	}
	st.line(now, "%s", s)
}

func (st *exStory) done(now int64, c *qp.Completion) {
	s := fmt.Sprintf("done %v id=%d", c.Op, c.ID)
	if c.Status != qp.Success {
		s += " status=" + exStatusNames[c.Status]
	} else if c.HasImm {
		s += fmt.Sprintf(" imm=%d", c.Imm)
	} else if c.HasInv {
		s += " inv_rkey=" + st.window(c.InvRKey, true)
	}
	st.line(now, "%s", s)
}

var exStatusNames = map[qp.Status]string{qp.WRFlushErr: "wr_flush_err", qp.RetryExcErr: "retry_exc_err", qp.RNRRetryExcErr: "rnr_retry_exc_err"}

// script returns the story, with a first line that says what it is about.
func (st *exStory) script(title string) string {
	return fmt.Sprintf("# %s, seen from end %d.\n%s", title, st.node, st.String())
}

// tell replays moves and returns the stories of the two ends.
func (s *exScenario) tell(moves []explore.Move, title string) [2]string {
	s.log = s.stories()
	defer func() { s.log = nil }()
	m := s.model()
	var w *exWorld
	start := m.Start
	m.Start = func() *exWorld { w = start(); return w }
	_, err := m.Replay(moves, nil)
	if err != nil {
		title += ": " + err.Error()
	}
	for i := range w.nodes { // what was not checked any more, and what would come next
		q, l := w.nodes[i].q, &s.log[i]
		rest := func() {
			for c := (qp.Completion{}); q.NextSendCompletion(&c) || q.NextRecvCompletion(&c); {
				l.done(w.now, &c)
			}
			for ev := qp.Event(0); q.NextEvent(&ev); {
				l.line(w.now, "event %v", ev)
			}
		}
		rest()
		for n := 0; n < 20 && q.NextPacket(exTime(w.now), &s.out); n++ {
			l.out(w.now, &s.out)
			rest()
		}
		l.line(w.now, "release")
		n := q.Counters()
		l.line(w.now, "counters LocalAckTimeoutErr=%d PacketSeqErr=%d DuplicateRequest=%d", n.LocalAckTimeoutErr, n.PacketSeqErr, n.DuplicateRequest)
		l.line(w.now, "memory m addr=%#x 0x%x", exRegion+exWordOff, w.mem[i].region[exWordOff:])
	}
	return [2]string{s.log[0].script(title), s.log[1].script(title)}
}

// TestExploreStories holds that what the explorer does replays as scripts: what is
// printed with a counterexample can be run again, and kept.
func TestExploreStories(t *testing.T) {
	for i := range exScenarios {
		s := exScenarios[i]
		if s.busy || s.late {
			continue // their applications do what scripts have no line for
		}
		m := s.model()
		for seed := range uint64(20) {
			rnd := rand.New(rand.NewPCG(seed, 1))
			var moves, can []explore.Move
			w := m.Start()
			for range 40 {
				if can = m.Moves(w, can[:0]); len(can) == 0 {
					break
				}
				mv := can[rnd.IntN(len(can))]
				moves = append(moves, mv)
				require.NoError(t, m.Apply(w, mv))
			}
			for _, story := range s.tell(moves, s.name) {
				require.NoError(t, script.Run(story), "%s", story)
			}
		}
	}
}
