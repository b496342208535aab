package conform_test

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/conform"
	"github.com/roce-go/roce/qp/simnet"
	"github.com/roce-go/roce/qp/softnic"
)

// truthRuns is how many simulated networks TestTruth looks at; each gives four
// captures.
//
//	go test ./qp/conform -run TestTruth -truth 2500
var truthRuns = flag.Int("truth", 0, "simulated networks of TestTruth; 0: 125, or 8 with -short")

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
	taps     map[string][]rec // requester a, responder b (and the other way round), middle
	truth    tally            // of both hosts
	own      [2]tally         // of each
	messages uint64
	times    []time.Duration // completion times of signalled work, as the requester had them
	hasFault bool
}

// build makes the world of a seed.
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
	w := &world{seed: seed, taps: map[string][]rec{}, hasFault: kind != 0 && kind != 7}
	w.what = fmt.Sprintf("seed %d kind %d p %v delay %v", seed, kind, p, delay)
	mtu := []int{256, 1024, 4096}[pick(3)]
	qps := 1 + pick(3)
	var conns [][2]*softnic.QP
	credits := pick(2) == 0
	for range qps {
		first := [2]psn.PSN{psn.PSN(rng.Uint32() & psn.Mask), psn.PSN(rng.Uint32() & psn.Mask)}
		if pick(3) == 0 {
			first[0] = psn.PSN(psn.Mask - uint32(pick(40)))
		}
		qa, qb, err := n.ConnectQPs(ha, hb, simnet.ConnConfig{MTU: mtu, RetryForever: true, RdAtomic: 1 + pick(4),
			QP: func(_ int, c *softnic.QPConfig) { c.NoCredits = !credits },
			Attr: func(i int, a *qp.Attr) {
				a.SQPSN, a.RQPSN = first[i], first[1-i]
			}})
		require.NoError(tb, err)
		conns = append(conns, [2]*softnic.QP{qa, qb})
	}
	var ca, cb, cm bytes.Buffer
	ha.Capture(&ca)
	hb.Capture(&cb)
	lb.AB().Capture(&cm)
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
	w.taps["a"], w.taps["b"], w.taps["middle"] = records(tb, ca.Bytes()), records(tb, cb.Bytes()), records(tb, cm.Bytes())
	w.taps["merged"] = merge(w.taps["a"], w.taps["b"], 0)
	return w
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
// no breach, the causes of retransmissions, and completion times.
func TestTruth(t *testing.T) {
	runs := *truthRuns
	if runs == 0 {
		runs = 125
		if testing.Short() || raceEnabled {
			runs = 8
		}
	}
	sums := map[string]*[2]tally{}
	far := map[string]int{}
	var near [2]tally
	nearFar := 0
	breachesBy := map[string]int{}
	for seed := range uint64(runs) {
		w := buildWorld(t, seed)
		for _, tap := range []string{"a", "b", "middle", "merged"} {
			var bySide [2]tally // of the requests that each host sent
			cw, all := watch(t, conform.Config{Closed: func(f *conform.Flow) {
				bySide[int(f.Src.As4()[3])-1].add(tallyOf(f.Counters))
			}}, w.taps[tap])
			total := cw.Total()
			got := tallyOf(&total)
			if tap == "a" || tap == "b" {
				// Where the requester is, the tap sees all that makes it go back.
				i := int(tap[0] - 'a')
				near[0].add(bySide[i])
				near[1].add(w.own[i])
				if d := bySide[i].apart(w.own[i]); d > 1 {
					if nearFar++; nearFar <= 12 {
						t.Logf("%s host %s: got %+v want %+v", w.what, tap, bySide[i], w.own[i])
					}
				}
			}
			if sums[tap] == nil {
				sums[tap] = new([2]tally)
			}
			sums[tap][0].add(got)
			sums[tap][1].add(w.truth)
			for _, f := range all {
				if f.Severity != conform.Breach || f.Rule() == conform.RuleICRC {
					continue
				}
				breachesBy[f.Check.String()]++
				if breachesBy[f.Check.String()] <= 3 {
					t.Errorf("%s tap %s: frame %d qp %#x: %s %s: %s", w.what, tap, f.Frame, f.QP, f.Rule(), f.Check, f.String())
				}
			}
			off := func(a, b uint64) bool { return b < 20 && max(a, b)-min(a, b) > 1 }
			tr := w.truth
			if off(got.Nak, tr.Nak) || off(got.Implied, tr.Implied) || off(got.RNR, tr.RNR) || off(got.Timer, tr.Timer) {
				far[tap]++
				if far[tap] <= 4 {
					t.Logf("%s tap %s: got %+v want %+v", w.what, tap, got, tr)
				}
			}
			if total.MessagesDone != w.messages && far[tap+" messages"] < 3 {
				far[tap+" messages"]++
				t.Logf("%s tap %s: %d messages done of %d", w.what, tap, total.MessagesDone, w.messages)
			}
		}
	}
	for _, tap := range slices.SortedFunc(mapKeys(sums), cmp.Compare[string]) {
		s := sums[tap]
		t.Logf("%-7s got  %+v", tap, s[0])
		t.Logf("%-7s want %+v; captures off by more than 1: %d of %d", "", s[1], far[tap], runs)
	}
	t.Logf("at the requester got %+v want %+v; off by more than 1: %d of %d", near[0], near[1], nearFar, 2*runs)
	t.Log(breachesBy)
	within(t, near[0].Nak, near[1].Nak, "NAKs")
	within(t, near[0].Implied, near[1].Implied, "implied NAKs")
	within(t, near[0].RNR, near[1].RNR, "RNR NAKs")
	within(t, near[0].Timer, near[1].Timer, "timers")
}

// within requires that a is within 5 % of b.
func within(t *testing.T, a, b uint64, what string) {
	require.InDelta(t, float64(b), float64(a), max(2, 0.05*float64(b)), what)
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
