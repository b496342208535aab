package mrcwatch_test

import (
	"encoding/hex"
	"encoding/json"
	"math/rand/v2"
	"os"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/mrc"
	"github.com/roce-go/roce/qp/conform"
	"github.com/roce-go/roce/qp/conform/mrcwatch"
)

// TestHealthy: whatever networks and taps do to a connection that keeps the
// rules, none is said to be broken, and the counts are those of what passed.
func TestHealthy(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		n := &network{
			rng: rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1)), v6: rapid.Bool().Draw(t, "v6"),
			ackEvery: rapid.IntRange(1, 6).Draw(t, "sack every"), timestamp: rapid.Bool().Draw(t, "timestamps"),
		}
		share := func(what string) float64 { return rapid.SampledFrom([]float64{0, 0, 0.02, 0.2}).Draw(t, what) }
		n.loss, n.copies, n.trim, n.ce = share("loss"), share("copies"), share("trim"), share("ce")
		n.unseen = rapid.SampledFrom([]float64{0, 0, 0.5}).Draw(t, "unseen")
		n.run(rapid.IntRange(1, 12).Draw(t, "messages"))
		if share := share("reordered"); share > 0 {
			n.reorder(share, 40)
		}
		from := 0
		if rapid.Bool().Draw(t, "begin in the middle") {
			from = rapid.IntRange(0, len(n.tap)/2).Draw(t, "from")
		}
		found, flows := watch(mrcwatch.Config{}, n.tap[from:])
		for i := range found {
			require.NotEqual(t, conform.Breach, found[i].Severity, "frame %d: %s", found[i].Frame, &found[i])
		}
		if from > 0 || len(n.tap) == 0 {
			return
		}
		require.LessOrEqual(t, len(flows), 1)
		for _, f := range flows {
			if n.copies > 0 {
				require.GreaterOrEqual(t, f.Packets, n.truth.packets)
				continue
			}
			require.Equal(t, n.truth.packets, f.Packets)
			require.Equal(t, n.truth.rtx, f.Retransmitted)
			require.Equal(t, n.truth.ce, f.CE)
			require.Equal(t, n.truth.probes, f.Probes)
			require.LessOrEqual(t, f.SACKs, n.truth.sacks)
			require.LessOrEqual(t, f.NACKs, n.truth.nacks)
			var packets, ce, rtx uint64
			for _, p := range f.Paths {
				packets, ce, rtx = packets+p.Packets, ce+p.CE, rtx+p.Retransmitted
			}
			require.Equal(t, []uint64{f.Packets, f.CE, f.Retransmitted}, []uint64{packets, ce, rtx}, "sums over paths")
		}
		if n.unseen == 0 && n.loss == 0 && n.copies == 0 && flows != nil {
			require.Zero(t, flows[0].Holes)
			require.EqualValues(t, len(n.sent), flows[0].Packets-flows[0].Retransmitted)
		}
	})
}

// TestComplete: a capture that has all, of a network without reordering, gives
// neither breach nor note.
func TestComplete(t *testing.T) {
	for seed := range uint64(50) {
		n := &network{rng: rand.New(rand.NewPCG(seed, 2)), v6: seed%2 == 0, ackEvery: 2, trim: 0.1, ce: 0.1}
		n.run(8)
		found, _ := watch(mrcwatch.Config{Complete: true}, n.tap)
		require.Zero(t, count(found, conform.Breach)+count(found, conform.Note), "%v", found)
	}
}

// exchange is a small healthy exchange: packets to the responder and back.
type exchange struct {
	p           mrc.Packet
	toResponder bool
	ev          uint32
}

// healthy has a WRITE of four packets, one with immediate of two, a SACK, a NACK,
// ACK, probe and endpoint operations.
func healthy() (all []exchange) {
	to := func(ps ...mrc.Packet) {
		for _, p := range ps {
			all = append(all, exchange{p, true, 0xc000 + uint32(len(all))})
		}
	}
	back := func(p mrc.Packet) {
		p.PKey = 0xffff
		if p.DestQP == 0 {
			p.DestQP = requestorQP
		}
		all = append(all, exchange{p, false, 0xc100})
	}
	to(writePackets(1000, 256, 5, 0, 100, 0x10000, false)...) // 0..3
	to(writePackets(300, 256, 6, 9, 104, 0x20000, true)...)   // 4, 5
	to(writePackets(77, 256, 7, 0, 106, 0x30000, false)...)   // 6
	var sack mrc.Packet
	sack.Opcode, sack.PSN = mrc.SACK, 103
	sack.SETH = mrc.SETH{CumPSN: 103, Cause: 3, SACKOffset: 1, SACKBitmap: 0b110, Entropy: 0xc000, SPDCID: responderQP, DPDCID: requestorQP}
	sack.CCState.OOOCount = 2
	back(sack) // 7: 104 is missing
	var nack mrc.Packet
	nack.Opcode, nack.PSN = mrc.NACK, 104
	nack.NETH = mrc.NETH{PSN: 104, Reason: mrc.NoBitmap, CCType: 2}
	back(nack) // 8
	again := all[4].p
	mrc.SetRtx(&again.Header, true)
	to(again) // 9
	var ack mrc.Packet
	ack.Opcode, ack.PSN, ack.AETH.Syndrome = mrc.Acknowledge, 106, 0x1f
	back(ack) // 10
	var probe mrc.Packet
	probe.Opcode, probe.PKey, probe.DestQP, probe.PETH.ProbeID = mrc.Probe, 0xffff, responderQP, 0x77
	to(probe) // 11
	sack.PSN = 106
	sack.SETH = mrc.SETH{CumPSN: 106, PR: true, Cause: 0x77, SACKOffset: 1}
	sack.CCState.OOOCount = 0
	back(sack) // 12
	var request mrc.Packet
	request.Opcode, request.PKey, request.DestQP, request.PSN = mrc.EndpointRequest, 0xffff, 2, 0x1234
	to(request) // 13
	request.Opcode = mrc.EndpointResponse
	back(request) // 14
	return all
}

func frames(all []exchange) (out []captured) {
	for i, e := range all {
		out = append(out, captured{time.Duration(i) * time.Microsecond, build(&e.p, e.toResponder, false, e.ev, false)})
	}
	return out
}

// TestSeeded: each fault, put into a healthy exchange, is reported by its check, and
// nothing else is said to be broken.
func TestSeeded(t *testing.T) {
	base, _ := watch(mrcwatch.Config{Complete: true}, frames(healthy()))
	require.Zero(t, count(base, conform.Breach)+count(base, conform.Note), "%v", base)

	type edit = func(all []exchange) []exchange
	at := func(i int, f func(p *mrc.Packet)) edit {
		return func(all []exchange) []exchange { f(&all[i].p); return all }
	}
	insert := func(i int, from int, f func(e *exchange)) edit {
		return func(all []exchange) []exchange {
			e := all[from]
			f(&e)
			return append(all[:i:i], append([]exchange{e}, all[i:]...)...)
		}
	}
	without := func(i int) edit {
		return func(all []exchange) []exchange { return append(all[:i:i], all[i+1:]...) }
	}
	for _, c := range []struct {
		check    mrcwatch.Check
		severity conform.Severity
		edit     edit
	}{
		{mrcwatch.MessageOrder, conform.Breach, at(2, func(p *mrc.Packet) { p.Opcode = mrc.WriteFirst })},
		{mrcwatch.MessageOrder, conform.Breach, at(6, func(p *mrc.Packet) { p.Opcode = mrc.WriteMiddle })},
		{mrcwatch.MSNChanged, conform.Breach, at(1, func(p *mrc.Packet) { p.METH.MSN = 4 })},
		{mrcwatch.RQMSNChanged, conform.Breach, func(all []exchange) []exchange {
			all[4].p.METH.RQMSN, all[9].p.METH.RQMSN = 8, 8
			return all
		}},
		{mrcwatch.RKeyChanged, conform.Breach, at(2, func(p *mrc.Packet) { p.RETH.RKey++ })},
		{mrcwatch.DMALenChanged, conform.Breach, at(3, func(p *mrc.Packet) { p.RETH.DMALen = 1001 })},
		{mrcwatch.AddressStep, conform.Breach, at(2, func(p *mrc.Packet) { p.RETH.VA += 4 })},
		{mrcwatch.PayloadUnequal, conform.Breach, at(3, func(p *mrc.Packet) { p.SetPayload(make([]byte, 257)) })},
		{mrcwatch.MessageLength, conform.Breach, at(3, func(p *mrc.Packet) { p.SetPayload(make([]byte, 231)) })},
		{mrcwatch.MessageLength, conform.Breach, at(6, func(p *mrc.Packet) { p.SetPayload(make([]byte, 76)) })},
		{mrcwatch.ResentDiffers, conform.Breach, at(9, func(p *mrc.Packet) { p.RETH.VA++ })},
		{mrcwatch.ResentUnmarked, conform.Breach, at(9, func(p *mrc.Packet) { mrc.SetRtx(&p.Header, false) })},
		{mrcwatch.Duplicate, conform.Event, insert(3, 2, func(*exchange) {})},
		{mrcwatch.OutOfOrder, conform.Event, func(all []exchange) []exchange { all[1], all[2] = all[2], all[1]; return all }},
		{mrcwatch.Gap, conform.Event, func(all []exchange) []exchange { all[1], all[2] = all[2], all[1]; return all }},
		{mrcwatch.SACKSequence, conform.Breach, at(7, func(p *mrc.Packet) { p.PSN = 102 })},
		{mrcwatch.SACKContradicts, conform.Note, at(7, func(p *mrc.Packet) { p.SETH.SACKBitmap, p.CCState.OOOCount = 7, 3 })},
		{mrcwatch.SACKCauseMissing, conform.Note, at(7, func(p *mrc.Packet) { p.SETH.Cause = 1 })},
		{mrcwatch.SACKCount, conform.Note, at(7, func(p *mrc.Packet) { p.CCState.OOOCount = 1 })},
		{mrcwatch.SACKVerdict, conform.Note, at(7, func(p *mrc.Packet) { p.SETH.M = 3 })},
		{mrcwatch.SACKNeverSent, conform.Note, at(7, func(p *mrc.Packet) { p.SETH.SACKBitmap, p.CCState.OOOCount = 0b1110, 3 })},
		{mrcwatch.SACKNeverSent, conform.Note, at(7, func(p *mrc.Packet) { p.SETH.Cause = 4 })},
		{mrcwatch.SACKNoProbe, conform.Note, at(12, func(p *mrc.Packet) { p.SETH.Cause = 0x78 })},
		{mrcwatch.ProbeUnanswered, conform.Event, without(12)},
		{mrcwatch.NACKSequence, conform.Breach, at(8, func(p *mrc.Packet) { p.PSN = 105 })},
		{mrcwatch.NACKReason, conform.Note, at(8, func(p *mrc.Packet) { p.NETH.Reason = 3 })},
		{mrcwatch.NACKType, conform.Note, at(8, func(p *mrc.Packet) { p.NETH.CCType = 1 })},
		{mrcwatch.NACKNeverSent, conform.Note, at(8, func(p *mrc.Packet) { p.NETH.PSN, p.PSN = 107, 107 })},
		{mrcwatch.AckCredits, conform.Note, at(10, func(p *mrc.Packet) { p.AETH.Syndrome = 3 })},
		{mrcwatch.AckRNR, conform.Breach, at(10, func(p *mrc.Packet) { p.AETH.Syndrome = 0x21 })},
		{mrcwatch.AckReserved, conform.Note, at(10, func(p *mrc.Packet) { p.AETH.Syndrome = 0x41 })},
		{mrcwatch.AckNAK, conform.Event, at(10, func(p *mrc.Packet) { p.AETH.Syndrome = 0x61 })},
		{mrcwatch.AckNeverSent, conform.Note, at(10, func(p *mrc.Packet) { p.PSN = 107 })},
		{mrcwatch.EndpointQP, conform.Breach, at(13, func(p *mrc.Packet) { p.DestQP = 3 })},
		{mrcwatch.EndpointSequence, conform.Note, at(13, func(p *mrc.Packet) { p.PSN |= 0x10000 })},
		{mrcwatch.EndpointNoRequest, conform.Note, without(13)},
		{mrcwatch.EndpointUnanswered, conform.Event, without(14)},
		{mrcwatch.OpcodeUnknown, conform.Note, nil},
		{mrcwatch.Length, conform.Breach, nil},
		{mrcwatch.VersionNotZero, conform.Breach, nil},
		{mrcwatch.ICRCBad, conform.Note, nil},
		{mrcwatch.TrimmedByNetwork, conform.Event, nil},
		{mrcwatch.NACKReceived, conform.Event, func(all []exchange) []exchange { return all }},
		{mrcwatch.Retransmission, conform.Event, func(all []exchange) []exchange { return all }},
	} {
		t.Run(c.check.String(), func(t *testing.T) {
			var in []captured
			cfg := mrcwatch.Config{}
			if c.edit != nil {
				in = frames(c.edit(healthy()))
			} else {
				in = frames(healthy())
				b := in[10].b // the ACK
				switch c.check {
				case mrcwatch.OpcodeUnknown:
					b[42] = 0xd0
				case mrcwatch.VersionNotZero:
					b[43] |= 1
				case mrcwatch.ICRCBad:
					b[len(b)-1] ^= 1
				case mrcwatch.Length:
					b[42] = byte(mrc.SACK)
				case mrcwatch.TrimmedByNetwork: // the first packet, behind its METH
					in[0].b = in[0].b[:42+20]
					in[0].b[15] = 9<<2 | 2
					cfg.Finder.TrimmedDSCP = 1 << 9
				}
			}
			found, _ := watch(cfg, in)
			told := false
			for i := range found {
				f := &found[i]
				require.NotEmpty(t, f.String())
				require.NotContains(t, f.String(), "{")
				if f.Check == c.check {
					told = true
					require.Equal(t, c.severity, f.Severity, f.String())
				} else if f.Check != mrcwatch.MessageLength { // which follows from a wrong packet in the middle
					require.NotEqual(t, conform.Breach, f.Severity, f.String())
				}
			}
			require.True(t, told, "%v", found)
		})
	}
}

// TestDoubts: what a loss by the capture explains is a breach in a complete one.
func TestDoubts(t *testing.T) {
	for check, edit := range map[mrcwatch.Check]func(all []exchange){
		mrcwatch.SACKNeverSent: func(all []exchange) { all[7].p.SETH.Cause = 4 },
		mrcwatch.SACKNoProbe:   func(all []exchange) { all[12].p.SETH.Cause = 1 },
		mrcwatch.NACKNeverSent: func(all []exchange) { all[8].p.NETH.PSN, all[8].p.PSN = 107, 107 },
		mrcwatch.AckNeverSent:  func(all []exchange) { all[10].p.PSN = 107 },
	} {
		all := healthy()
		edit(all)
		found, _ := watch(mrcwatch.Config{Complete: true}, frames(all))
		require.Equal(t, 1, count(found, conform.Breach), "%v", check)
		for _, f := range found {
			require.Equal(t, f.Check == check, f.Severity == conform.Breach)
		}
	}
}

// TestMetrics holds the counts of the healthy exchange, by hand.
func TestMetrics(t *testing.T) {
	_, flows := watch(mrcwatch.Config{}, frames(healthy()))
	require.Len(t, flows, 1)
	f := flows[0]
	require.Equal(t, []any{requestor, responder, uint32(responderQP), uint32(requestorQP)}, []any{f.Src, f.Dst, f.QP, f.PeerQP})
	c := f.Counters
	require.Equal(t, []uint64{8, 1, 3, 2, 1, 1, 1, 1, 0, 0}, []uint64{c.Packets, c.Retransmitted, c.Messages, c.SACKs, c.NACKs,
		c.Acks, c.Probes, c.ProbesAnswered, c.Holes, c.NAKs})
	require.EqualValues(t, 1000+300+77, c.GoodBytes)
	require.EqualValues(t, 1000+300+77+256, c.PayloadBytes)
	require.EqualValues(t, 1, c.NACKReasons[mrc.NoBitmap])
	require.EqualValues(t, 2, c.SACKVerdicts[0])
	require.Len(t, f.Paths, 8)
	require.EqualValues(t, 1, f.Paths[0].Verdicts[0], "the SACK reflects the first")

	// A hole that is never filled, and a limit on paths.
	all := healthy()
	all = append(all[:1:1], all[2:]...)
	_, flows = watch(mrcwatch.Config{MaxPaths: 3}, frames(all))
	require.EqualValues(t, 1, flows[0].Holes)
	require.Len(t, flows[0].Paths, 3)
	require.EqualValues(t, 4, flows[0].OtherPaths)
}

// TestVectors: none of the whole packets of package mrc's vectors breaks a rule by
// itself, and those that are refused do.
func TestVectors(t *testing.T) {
	b, err := os.ReadFile("../../../bth/mrc/testdata/vectors.json")
	require.NoError(t, err)
	var all []struct {
		ID, Hex  string
		Expected struct{ Error string }
	}
	require.NoError(t, json.Unmarshal(b, &all))
	want := map[string]mrcwatch.Check{"length": mrcwatch.Length, "unknown_opcode": mrcwatch.OpcodeUnknown, "bad_icrc": mrcwatch.ICRCBad,
		"trimmed": mrcwatch.TrimmedByNetwork}
	for _, v := range all {
		raw, err := hex.DecodeString(v.Hex)
		require.NoError(t, err)
		cfg := mrcwatch.Config{Finder: frame.Finder{TrimmedDSCP: 1 << 9}}
		if v.ID == "M32" {
			cfg.Finder.UDPPort = 4971
		}
		w, err := mrcwatch.New(cfg)
		require.NoError(t, err)
		require.True(t, w.HandleFrame(1, time.Unix(1, 0), frame.RawIP, raw, len(raw)), v.ID)
		require.EqualValues(t, 1, w.Packets())
		var f mrcwatch.Finding
		told := false
		for w.NextFinding(&f) {
			told = told || f.Check == want[v.Expected.Error]
			require.Equal(t, f.Check == mrcwatch.Length, f.Severity == conform.Breach, "%s: %s", v.ID, &f)
		}
		require.True(t, told || v.Expected.Error == "", v.ID)
	}
}

// TestOthers: what is not MRC is not looked at.
func TestOthers(t *testing.T) {
	w, err := mrcwatch.New(mrcwatch.Config{})
	require.NoError(t, err)
	f := frame.Frame{Link: frame.Ethernet, Net: frame.IPv4, Src: requestor, Dst: responder}
	f.Packet.Opcode = bth.RCSendOnly
	rc := f.AppendTo(nil)
	require.False(t, w.HandleFrame(1, time.Unix(1, 0), frame.Ethernet, rc, len(rc)))
	bad := append([]byte(nil), rc...)
	bad[43] |= 1 // a version of RC
	require.False(t, w.HandleFrame(2, time.Unix(1, 0), frame.Ethernet, bad, len(bad)))
	require.False(t, w.HandleFrame(3, time.Unix(1, 0), frame.Ethernet, nil, 0))
	require.Zero(t, w.Packets())
	w.Finish()
	require.False(t, w.NextFinding(new(mrcwatch.Finding)))
}

// TestFlows: more flows than are followed, and several between the same hosts.
func TestFlows(t *testing.T) {
	var in []captured
	for qp := range uint32(40) {
		p := writePackets(100, 256, 1, 0, 50, 0, false)[0]
		p.DestQP = 0x100 + qp
		in = append(in, captured{time.Duration(len(in)) * time.Microsecond, build(&p, true, false, 0xc000, false)})
	}
	_, flows := watch(mrcwatch.Config{MaxFlows: 7}, in)
	require.Len(t, flows, 40)
	require.EqualValues(t, 0x100, flows[0].QP, "the one that was idle longest first")

	// SACKs find the flow that their context ids name; without, none is guessed.
	var s mrc.Packet
	s.Opcode, s.DestQP, s.PSN = mrc.SACK, 0x900, 50
	s.SETH = mrc.SETH{CumPSN: 50, SPDCID: 0x105, DPDCID: 0x900, SACKOffset: 1}
	_, flows = watch(mrcwatch.Config{}, append(in, captured{time.Second, build(&s, false, false, 1, false)}))
	for _, f := range flows {
		require.Equal(t, f.QP == 0x105, f.SACKs == 1)
		require.Equal(t, f.QP == 0x105, f.PeerQP == 0x900)
	}
	s.SETH.SPDCID = 0
	_, flows = watch(mrcwatch.Config{}, append(in, captured{time.Second, build(&s, false, false, 1, false)}))
	for _, f := range flows {
		require.Zero(t, f.SACKs)
	}
}

func TestConfig(t *testing.T) {
	for _, c := range []mrcwatch.Config{{MaxFlows: -1}, {Window: 63}, {Window: 100}, {Window: 1 << 17}, {MaxPaths: -1}, {AnswerTime: -1}} {
		_, err := mrcwatch.New(c)
		require.ErrorIs(t, err, mrcwatch.ErrConfig)
	}
}

func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for i := range 256 {
		c := mrcwatch.Check(i)
		require.NotEmpty(t, c.String())
		require.False(t, seen[c.String()], c.String())
		seen[c.String()] = true
		f := mrcwatch.Finding{Check: c}
		if strings.HasPrefix(c.String(), "MRC-") {
			require.NotEmpty(t, f.String())
		}
	}
}

// FuzzWatcher: no bytes do harm, and counts agree.
func FuzzWatcher(f *testing.F) {
	var all []byte
	for _, c := range frames(healthy()) {
		all = append(append(all, byte(len(c.b)), byte(len(c.b)>>8)), c.b...)
	}
	f.Add(all)
	f.Fuzz(func(t *testing.T, b []byte) {
		w, err := mrcwatch.New(mrcwatch.Config{MaxFlows: 3, Window: 64, MaxPaths: 4, Finder: frame.Finder{TrimmedDSCP: 1 << 9}})
		if err != nil {
			t.Fatal(err)
		}
		var n uint64
		var found mrcwatch.Finding
		for len(b) > 2 {
			size := min(int(b[0])|int(b[1]&7)<<8, len(b)-2)
			n++
			w.HandleFrame(n, time.Unix(0, int64(n)*1000), frame.Ethernet, b[2:2+size], size)
			b = b[2+size:]
			for i := 0; w.NextFinding(&found); i++ {
				if i > 80 || found.Frame > n || found.String() == "" {
					t.Fatalf("finding %d of frame %d: %+v", i, n, found)
				}
			}
		}
		w.Finish()
		for w.NextFinding(&found) {
			_ = found.String()
		}
		if w.Packets() > n {
			t.Fatal("more packets than frames")
		}
	})
}

// TestNoAllocations: once its flows and paths are known, a capture is judged
// without allocations, good or bad.
func TestNoAllocations(t *testing.T) {
	n := &network{rng: rand.New(rand.NewPCG(1, 1)), v6: true, ackEvery: 2, loss: 0.05, copies: 0.05, trim: 0.05, ce: 0.1}
	n.run(12)
	short := n.tap[0].b[:50]
	w, err := mrcwatch.New(mrcwatch.Config{})
	if err != nil {
		t.Fatal(err)
	}
	start := time.Unix(1_800_000_000, 0)
	var f mrcwatch.Finding
	round := func() {
		for i, c := range n.tap {
			w.HandleFrame(uint64(i+1), start.Add(c.at), frame.Ethernet, c.b, len(c.b))
			w.HandleFrame(uint64(i+1), start.Add(c.at), frame.Ethernet, short, len(short))
			for w.NextFinding(&f) {
			}
		}
	}
	round()
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	for range 20 {
		round()
	}
	runtime.ReadMemStats(&after)
	if n := after.Mallocs - before.Mallocs; n > 10 { // the runtime has some of its own
		t.Errorf("%d allocations", n)
	}
}
