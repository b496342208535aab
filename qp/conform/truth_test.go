package conform_test

import (
	"bytes"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/cm"
	"github.com/roce-go/roce/qp/conform"
	"github.com/roce-go/roce/qp/simnet"
	"github.com/roce-go/roce/qp/softnic"
)

// truthRuns is how many simulated networks TestTruth looks at; each gives six
// captures.
//
//	go test ./qp/conform -run TestTruth -truth 2500 -truth-from 5000
var (
	truthRuns = flag.Int("truth", 0, "simulated networks of TestTruth; 0: 125, or 8 with -short")
	truthFrom = flag.Uint64("truth-from", 0, "the first one's seed")
)

// tally are the causes of retransmissions, and what was done, of all requesters.
type tally struct {
	Nak, Implied, RNR, Timer, Unknown, Retransmitted uint64
}

func (t *tally) add(o tally) {
	t.Nak += o.Nak
	t.Implied += o.Implied
	t.RNR += o.RNR
	t.Timer += o.Timer
	t.Unknown += o.Unknown
	t.Retransmitted += o.Retransmitted
}

// apart returns by how much causes differ at most, where there are few.
func (t tally) apart(o tally) (d uint64) {
	for _, p := range [...][2]uint64{{t.Nak, o.Nak}, {t.Implied, o.Implied}, {t.RNR, o.RNR}, {t.Timer, o.Timer}} {
		if p[1] < 20 {
			d = max(d, max(p[0], p[1])-min(p[0], p[1]))
		}
	}
	return d
}

// world is a simulated network with two hosts, a switch between them, and what its
// machines counted.
type world struct {
	seed     uint64
	what     string
	taps     map[string]tap
	truth    tally    // of both hosts
	own      [2]tally // of each
	messages uint64
	times    []time.Duration // completion times of signalled work, as the requester had them
	hasFault bool
	mirrored bool // taps["again"] is by mirror ports
	calls    int  // connections
	managed  bool // of which the captures have connection management
}

// tap is a capture, and where each of its frames comes from.
type tap struct {
	recs []rec
	from []int // nil: one interface
}

func (p tap) watch(tb testing.TB, closed func(*conform.Flow)) (*conform.Watcher, []conform.Finding) {
	w, err := conform.New(conform.Config{Closed: closed})
	require.NoError(tb, err)
	var all []conform.Finding
	var f conform.Finding
	for i, r := range p.recs {
		if p.from != nil {
			w.SetSource(p.from[i])
		}
		w.HandleFrame(r.ts, frame.Ethernet, r.data, r.wire)
		for w.NextFinding(&f) {
			all = append(all, f)
		}
	}
	w.Finish()
	for w.NextFinding(&f) {
		all = append(all, f)
	}
	return w, all
}

// build builds the world of a seed.
func buildWorld(tb testing.TB, seed uint64) *world {
	rng := rand.New(rand.NewPCG(seed, 1))
	pick := func(n int) int { return rng.IntN(n) }
	n := simnet.New(simnet.Config{Seed: seed})
	ha, err := n.AddHost(simnet.HostConfig{Name: "a"})
	require.NoError(tb, err)
	hb, err := n.AddHost(simnet.HostConfig{Name: "b"})
	require.NoError(tb, err)
	sw, err := n.AddSwitch(simnet.SwitchConfig{Name: "s"})
	require.NoError(tb, err)
	delay := []time.Duration{500, 2000, 5000}[pick(3)]
	la, err := n.Connect(ha, sw, simnet.LinkConfig{Rate: 100e9, Delay: delay})
	require.NoError(tb, err)
	lb, err := n.Connect(sw, hb, simnet.LinkConfig{Rate: 100e9, Delay: delay})
	require.NoError(tb, err)
	kind := pick(8)
	var f simnet.Faults
	p := []float64{0.002, 0.01, 0.03}[pick(3)]
	switch kind {
	case 1, 2:
		f.Loss = p
	case 3:
		f.Duplicate = p
	case 4:
		f.Reorder = p
	case 5:
		f.Corrupt = p
	case 6:
		f = simnet.Faults{Loss: p / 2, Duplicate: p / 2, Reorder: p / 2, Corrupt: p / 2, Jitter: 300}
	}
	for _, l := range []*simnet.Link{la, lb} {
		l.AB().SetFaults(f)
		l.BA().SetFaults(f)
	}
	w := &world{seed: seed, taps: map[string]tap{}, hasFault: kind != 0 && kind != 7}
	w.what = fmt.Sprintf("seed %d kind %d p %v delay %v", seed, kind, p, delay)
	mtu := []int{256, 1024, 4096}[pick(3)]
	qps := 1 + pick(3)
	var conns [][2]*softnic.QP
	var calls []call
	credits := pick(2) == 0
	for range qps {
		first := [2]psn.PSN{psn.PSN(rng.Uint32() & psn.Mask), psn.PSN(rng.Uint32() & psn.Mask)}
		if pick(3) == 0 {
			first[0] = psn.PSN(psn.Mask - uint32(pick(40)))
		}
		depth := 1 + pick(4)
		qa, qb, err := n.ConnectQPs(ha, hb, simnet.ConnConfig{MTU: mtu, RetryForever: true, RdAtomic: depth,
			QP: func(_ int, c *softnic.QPConfig) { c.NoCredits = !credits },
			Attr: func(i int, a *qp.Attr) {
				a.SQPSN, a.RQPSN = first[i], first[1-i]
			}})
		require.NoError(tb, err)
		conns = append(conns, [2]*softnic.QP{qa, qb})
		calls = append(calls, call{[2]uint32{qa.Num(), qb.Num()}, first, mtu, uint8(depth)})
	}
	var ca, cb, cmid bytes.Buffer
	ha.Capture(&ca)
	hb.Capture(&cb)
	lb.AB().Capture(&cmid)
	size := []int{64, 1025, 5000, 9000}[pick(4)]
	type side struct {
		h         *simnet.Host
		va, cva   uint64
		key, ckey uint32
	}
	sides := [2]side{{h: ha}, {h: hb}}
	for i := range sides {
		s := &sides[i]
		s.va, s.key, err = s.h.Register(make([]byte, size), qp.RemoteWrite|qp.RemoteRead)
		require.NoError(tb, err)
		s.cva, s.ckey, err = s.h.Register(make([]byte, 8), qp.RemoteAtomic)
		require.NoError(tb, err)
	}
	msg := bytes.Repeat([]byte("roce"), size/4+1)[:size]
	late := pick(3) == 0 // receives come late, so that there are RNR NAKs
	both := pick(2) == 0
	began := map[[2]uint64]time.Time{}
	id := uint64(0)
	for i := range sides {
		h := sides[i].h
		h.OnCompletion = func(wc *qp.Completion) {
			if wc.Op == qp.OpRecv || wc.Op == qp.OpRecvWrite {
				return
			}
			if t, ok := began[[2]uint64{uint64(i), wc.ID}]; ok {
				w.times = append(w.times, n.Now().Sub(t))
			}
		}
	}
	post := func(c [2]*softnic.QP, from int, ops int) {
		to := &sides[1-from]
		recvs := 0
		for range ops {
			id++
			wr := qp.SendWR{ID: id, Flags: qp.Signaled, Local: msg}
			switch pick(7) {
			case 0, 1:
				wr.Op = qp.OpSend
				recvs++
			case 2:
				wr.Op, wr.RemoteAddr, wr.RKey = qp.OpWrite, to.va, to.key
			case 3:
				wr.Op, wr.RemoteAddr, wr.RKey = qp.OpWriteImm, to.va, to.key
				recvs++
			case 4:
				wr.Op, wr.RemoteAddr, wr.RKey, wr.Local = qp.OpRead, to.va, to.key, make([]byte, size)
			case 5:
				wr.Op, wr.RemoteAddr, wr.RKey, wr.Local, wr.CompareAdd = qp.OpFetchAdd, to.cva, to.ckey, make([]byte, 8), 1
			case 6:
				wr.Op, wr.RemoteAddr, wr.RKey, wr.Local, wr.CompareAdd = qp.OpCmpSwap, to.cva, to.ckey, make([]byte, 8), 1
			}
			require.NoError(tb, c[from].PostSend(n.Now(), &wr))
			w.messages++
		}
		give := func() {
			for range recvs {
				require.NoError(tb, c[1-from].PostRecv(&qp.RecvWR{Local: make([]byte, size)}))
			}
		}
		if late && pick(2) == 0 {
			n.After(time.Duration(pick(3000))*us, give)
		} else {
			give()
		}
	}
	for range 3 + pick(4) {
		for _, c := range conns {
			post(c, 0, 1+pick(6))
			if both {
				post(c, 1, 1+pick(6))
			}
		}
		idle, err := n.RunUntilIdle(time.Minute)
		require.NoError(tb, err)
		require.True(tb, idle, w.what)
	}
	for _, c := range conns {
		for i, q := range c {
			k := q.Counters()
			t := tally{k.PacketSeqErr, k.ImpliedNakSeqErr, k.RNRNakReceived, k.LocalAckTimeoutErr, 0, k.Retransmitted}
			w.truth.add(t)
			w.own[i].add(t)
		}
	}
	a, b, middle := records(tb, ca.Bytes()), records(tb, cb.Bytes()), records(tb, cmid.Bytes())
	if seed%2 == 1 {
		setup, end := managed(calls, a, b)
		a, b, middle = slices.Concat(setup, a, end), slices.Concat(setup, b, end), slices.Concat(setup, middle, end)
		w.managed = len(end) > 0
		w.calls = len(calls)
	}
	w.taps["a"], w.taps["b"], w.taps["middle"] = tap{recs: a}, tap{recs: b}, tap{recs: middle}
	w.taps["merged"] = tap{recs: merge(a, b, 0)}
	w.taps["interfaces"] = interfaces(a, b)
	// The first tap through a tunnel, or by two mirror ports.
	names := slices.Sorted(mapKeys(tunnelWays))
	if i := int(seed) % (len(names) + 3); i < len(names) {
		w.taps["again"] = tap{recs: eachFrame(tunnelWays[names[i]])(a)}
	} else {
		w.mirrored = true
		w.taps["again"] = tap{recs: mirrored([]time.Duration{500, 20 * us, 300 * us}[i-len(names)], true)(a)}
	}
	return w
}

// call is a connection by connection management: host 0 calls.
type call struct {
	qps   [2]uint32
	first [2]psn.PSN // of each one's requests
	mtu   int
	depth uint8
}

// managed returns the REQ and REP of the calls, and a REQ that is rejected, a
// millisecond before the frames of a and b; and the DREQ and DREP, a millisecond behind
// them.
func managed(calls []call, a, b []rec) (setup, end []rec) {
	var from [2]frame.Frame // of the right addresses
	for _, r := range slices.Concat(a, b) {
		var f frame.Frame
		if f.Decode(frame.Ethernet, r.data) == nil && f.Src.Is4() {
			from[f.Src.As4()[3]-1] = f
		}
	}
	if from[0].Src == from[1].Src || !from[0].Src.IsValid() || !from[1].Src.IsValid() || len(a) == 0 || len(b) == 0 {
		return nil, nil
	}
	out := &setup
	at := a[0].ts.Add(-ms)
	put := func(side int, m *cm.Message) {
		f := from[side]
		f.Packet = bth.Packet{Header: bth.Header{Opcode: bth.UDSendOnly, PKey: 0xffff, DestQP: 1, M: true}}
		f.Packet.DETH = bth.DETH{QKey: 0x80010000, SrcQP: 1}
		f.Packet.SetPayload(m.AppendTo(nil))
		d := f.AppendTo(nil)
		*out = append(*out, rec{at, d, len(d)})
		at = at.Add(us)
	}
	head := cm.Header{BaseVersion: 1, MgmtClass: cm.ClassCM, ClassVersion: 2, Method: cm.MethodSend}
	for i, c := range calls {
		mtus := map[int]cm.MTU{256: cm.MTU256, 1024: cm.MTU1024, 4096: cm.MTU4096}
		var m cm.Message
		m.Header = head
		m.Header.AttributeID = cm.AttrREQ
		m.REQ.LocalCommID, m.REQ.LocalQPN, m.REQ.StartingPSN = uint32(100+i), c.qps[0], uint32(c.first[1])
		m.REQ.PathPacketPayloadMTU, m.REQ.InitiatorDepth, m.REQ.ResponderResources = mtus[c.mtu], c.depth, c.depth
		put(0, &m)
		m.Header.AttributeID = cm.AttrREP
		m.REP.LocalCommID, m.REP.RemoteCommID, m.REP.LocalQPN, m.REP.StartingPSN = uint32(200+i), uint32(100+i), c.qps[1], uint32(c.first[0])
		m.REP.InitiatorDepth, m.REP.ResponderResources = c.depth, c.depth
		put(1, &m)
	}
	var m cm.Message
	m.Header = head
	m.Header.AttributeID = cm.AttrREQ
	m.REQ.LocalCommID, m.REQ.LocalQPN, m.REQ.StartingPSN, m.REQ.PathPacketPayloadMTU = 99, calls[0].qps[0]+100, 7, cm.MTU1024
	put(0, &m)
	m.Header.AttributeID = cm.AttrREJ
	m.REJ.RemoteCommID, m.REJ.Reason = 99, 28
	put(1, &m)
	out, at = &end, slices.MaxFunc(slices.Concat(a, b), func(x, y rec) int { return x.ts.Compare(y.ts) }).ts.Add(ms)
	for i, c := range calls {
		var m cm.Message
		m.Header = head
		m.Header.AttributeID = cm.AttrDREQ
		m.DREQ.LocalCommID, m.DREQ.RemoteCommID, m.DREQ.RemoteQPNEECN = uint32(100+i), uint32(200+i), c.qps[1]
		put(0, &m)
		m.Header.AttributeID = cm.AttrDREP
		m.DREP.LocalCommID, m.DREP.RemoteCommID = uint32(200+i), uint32(100+i)
		put(1, &m)
	}
	return setup, end
}

// interfaces is what one program captures at two places at once and marks as such.
func interfaces(a, b []rec) (p tap) {
	for len(a)+len(b) > 0 {
		if len(b) == 0 || len(a) > 0 && !b[0].ts.Before(a[0].ts) {
			p.recs, p.from, a = append(p.recs, a[0]), append(p.from, 1), a[1:]
		} else {
			p.recs, p.from, b = append(p.recs, b[0]), append(p.from, 2), b[1:]
		}
	}
	return p
}

func records(tb testing.TB, b []byte) []rec {
	r, err := capture.NewReader(bytes.NewReader(b))
	require.NoError(tb, err)
	var out []rec
	var c capture.Record
	for {
		err := r.Next(&c)
		if err == io.EOF {
			return out
		}
		require.NoError(tb, err)
		out = append(out, rec{c.Time, bytes.Clone(c.Data), c.WireLen})
	}
}

// merge puts two captures together by time, the clock of the second being skew
// ahead.
func merge(a, b []rec, skew time.Duration) []rec {
	out := slices.Clone(a)
	for _, r := range b {
		r.ts = r.ts.Add(skew)
		out = append(out, r)
	}
	slices.SortStableFunc(out, func(x, y rec) int { return x.ts.Compare(y.ts) })
	return out
}

func tallyOf(c *conform.Counters) tally {
	return tally{c.PacketSeqErr, c.ImpliedNakSeqErr, c.RNRNakRetry, c.LocalAckTimeoutErr, c.UnknownCause, c.Retransmitted - c.RepliedAgain}
}

// TestTruth holds what the watcher reconstructs against what the machines counted:
// no breach, and the causes of retransmissions.
//
// Where the requester is, the tap sees all that makes it go back. Elsewhere some of
// that cannot be known: of what was lost before the tap and sent again by the timer
// nothing was seen before. There the count lies between what a tap could see (see
// hidden) and what happened. Two taps merged into one capture, without IPv4
// identifications, leave more open: there the watcher is to say so (ReasonCopies) where
// its counts are not what happened.
//
// In the last run, of 2,500 networks and 15,000 captures, there was no breach; at the
// requester there were 0.2 % more NAKs than the machines counted, and all other causes were
// within 0.1 %. In the middle there were 1.0 % fewer NAKs, and up to 2 % fewer packets sent
// again, in networks that reorder; through mirror ports up to 1.4 % more NAKs; and at two
// interfaces one implied NAK of 25 is missed. The bars are as wide as that.
func TestTruth(t *testing.T) {
	runs := *truthRuns
	if runs == 0 {
		runs = 125
		if testing.Short() {
			runs = 8
		}
	}
	var near, among, merged, far, mirrors [2]tally // got, want
	var unseen tally
	nearFar, otherwise, inexact := 0, 0, 0
	unsure := false // of the watcher's counts, as it says itself
	breaches := map[string]int{}
	for i := range uint64(runs) {
		w := buildWorld(t, *truthFrom+i)
		watch := func(name string) (by [2]tally, total conform.Counters, all []conform.Finding) {
			cw, all := w.taps[name].watch(t, func(f *conform.Flow) { by[f.Src.As4()[3]-1].add(tallyOf(f.Counters)) })
			unsure = false
			cw.NotJudged(func(_ conform.Rule, why conform.Reason, _ uint64) bool {
				unsure = unsure || why == conform.ReasonCopies
				return true
			})
			for _, f := range all {
				if f.Severity != conform.Breach || f.Rule() == conform.RuleICRC {
					continue
				}
				if breaches[f.Check.String()]++; breaches[f.Check.String()] <= 3 {
					t.Errorf("%s tap %s: frame %d qp %#x: %s %s: %s", w.what, name, f.Frame, f.QP, f.Rule(), f.Check, f.String())
				}
			}
			return by, cw.Total(), all
		}
		var backs []conform.Finding
		for i, name := range []string{"a", "b"} {
			by, total, all := watch(name)
			near[0].add(by[i])
			near[1].add(w.own[i])
			if d := by[i].apart(w.own[i]); d > 1 {
				nearFar++
				t.Logf("%s host %s: got %+v want %+v", w.what, name, by[i], w.own[i])
			}
			for _, f := range all {
				if f.Src == hostAt(i) && f.Check >= conform.ResentNAK && f.Check <= conform.ResentTimeout {
					backs = append(backs, f)
				}
			}
			if w.managed {
				n := map[conform.Check]int{}
				for _, f := range all {
					n[f.Check]++
				}
				require.Equal(t, [3]int{w.calls, w.calls, 1}, [3]int{n[conform.Connected], n[conform.Disconnected], n[conform.Rejected]}, w.what)
			}
			if name == "a" {
				_, again, _ := watch("again")
				if w.mirrored {
					// The table of what was seen lately is finite.
					mirrors[0].add(tallyOf(&again))
					mirrors[1].add(tallyOf(&total))
					if whole(&total) != whole(&again) {
						otherwise++
					}
				} else {
					require.Equal(t, whole(&total), whole(&again), "%s: through a tunnel", w.what)
				}
			}
		}
		by, _, _ := watch("middle")
		for i := range by {
			far[0].add(by[i])
			far[1].add(w.own[i])
		}
		unseen.add(hidden(w.taps["middle"].recs, backs))
		unseen.Retransmitted += uint64(max(0, requests(w.taps["a"].recs, 0)+requests(w.taps["b"].recs, 1)-
			requests(w.taps["middle"].recs, 0)-requests(w.taps["middle"].recs, 1)))
		by, _, _ = watch("interfaces")
		for i := range by {
			among[0].add(by[i])
			among[1].add(w.own[i])
		}
		by, _, _ = watch("merged")
		if by != w.own {
			require.True(t, unsure, "%s: merged, got %+v want %+v, and nothing says that it is not exact", w.what, by, w.own)
			inexact++
		}
		for i := range by {
			merged[0].add(by[i])
			merged[1].add(w.own[i])
		}
	}
	t.Logf("at the requester   got  %+v", near[0])
	t.Logf("at two interfaces  got  %+v", among[0])
	t.Logf("the two as one     got  %+v", merged[0])
	t.Logf("                   want %+v", near[1])
	t.Logf("in the middle      got  %+v", far[0])
	t.Logf("                   not to be seen %+v", unseen)
	t.Logf("the two as one, not what happened and said to be inexact: %d of %d", inexact, runs)
	t.Logf("at the requester, off by more than 1 where there are fewer than 20: %d of %d", nearFar, 2*runs)
	const percent = 0.01
	near[0].within(t, near[1], tally{}, percent, "at the requester")
	elsewhere := percent
	if runs < 1000 {
		elsewhere = 4 * percent // of few
	}
	mirrors[0].within(t, mirrors[1], tally{}, 2*percent, "through mirror ports")
	require.LessOrEqual(t, otherwise, runs/200, "captures that count otherwise through mirror ports")
	far[0].within(t, far[1], unseen, 2*elsewhere, "in the middle")
	among[0].within(t, among[1], tally{Implied: among[1].Implied / 25}, elsewhere, "at two interfaces")
	require.LessOrEqual(t, nearFar, runs/500)
	require.Empty(t, breaches)
}

func hostAt(i int) netip.Addr { return netip.AddrFrom4([4]byte{10, 0, 0, byte(i + 1)}) }

// whole is what does not depend on how often packets were captured.
func whole(c *conform.Counters) string {
	return fmt.Sprintf("%+v messages %d %d %d acks %d naks %d rnr %d", tallyOf(c), c.MessagesTx, c.MessagesDone, c.MessagesFail,
		c.Acks, c.Naks, c.RNRs)
}

// hidden counts those of backs, retransmissions as the requesters began them, of
// which recs cannot show that they are any: before, no PSN from where they began on
// was captured.
func hidden(recs []rec, backs []conform.Finding) (n tally) {
	type to struct {
		src netip.Addr
		qp  uint32
	}
	slices.SortStableFunc(backs, func(a, b conform.Finding) int { return a.Time.Compare(b.Time) })
	high := map[to]psn.PSN{}
	i := 0
	for _, b := range backs {
		for ; i < len(recs) && recs[i].ts.Before(b.Time); i++ {
			var f frame.Frame
			if f.Decode(frame.Ethernet, recs[i].data) != nil || f.Packet.Opcode.Class() != bth.Request ||
				f.Packet.Opcode == bth.UDSendOnly || f.CheckICRC() == frame.ICRCBad {
				continue
			}
			k, p := to{f.Src, f.Packet.DestQP}, f.Packet.PSN
			if h, ok := high[k]; !ok || p.Diff(h) > 0 {
				high[k] = p
			}
		}
		if h, ok := high[to{b.Src, b.QP}]; ok && h.Diff(b.PSN) >= 0 {
			continue
		}
		switch b.Check {
		case conform.ResentNAK:
			n.Nak++
		case conform.ResentImplied:
			n.Implied++
		case conform.ResentRNR:
			n.RNR++
		case conform.ResentTimeout:
			n.Timer++
		}
	}
	return n
}

// requests counts the request packets that host i sent, as far as recs has them whole.
func requests(recs []rec, i int) (n int) {
	for _, r := range recs {
		var f frame.Frame
		if f.Decode(frame.Ethernet, r.data) == nil && f.Src == hostAt(i) && f.Packet.Opcode.Class() == bth.Request && f.CheckICRC() != frame.ICRCBad {
			n++
		}
	}
	return n
}

// within requires that the counts lie between want without hidden and want, both
// give or take a share.
func (t tally) within(tb testing.TB, want, hidden tally, share float64, what string) {
	tb.Helper()
	for _, c := range [...]struct {
		name              string
		got, want, hidden uint64
	}{
		{"NAKs", t.Nak, want.Nak, hidden.Nak}, {"implied NAKs", t.Implied, want.Implied, hidden.Implied}, {"RNR NAKs", t.RNR, want.RNR, hidden.RNR},
		{"timers", t.Timer, want.Timer, hidden.Timer}, {"packets sent again", t.Retransmitted, want.Retransmitted, hidden.Retransmitted},
	} {
		slack := max(2, share*float64(c.want))
		if float64(c.got) > float64(c.want)+slack || float64(c.got) < float64(c.want)-float64(c.hidden)-slack {
			tb.Errorf("%s: %d %s, of %d that happened and %d that cannot be seen", what, c.got, c.name, c.want, c.hidden)
		}
	}
}

func mapKeys[V any](m map[string]V) func(func(string) bool) {
	return func(yield func(string) bool) {
		for k := range m {
			if !yield(k) {
				return
			}
		}
	}
}
