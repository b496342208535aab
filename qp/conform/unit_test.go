package conform_test

import (
	"encoding/binary"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/cnp/pfc"
	"github.com/roce-go/roce/qp/conform"
)

func TestConfig(t *testing.T) {
	for _, bad := range []conform.Config{{MaxFlows: 1}, {MaxFlows: -5}, {Window: 8}, {Window: 100}, {Window: 1 << 21}, {MinTimeout: -1}, {Reorder: -1}} {
		_, err := conform.New(bad)
		require.ErrorIs(t, err, conform.ErrConfig, "%+v", bad)
	}
}

func TestStrings(t *testing.T) {
	seen := map[string]bool{}
	n := 0
	for c := range conform.Checks {
		n++
		require.False(t, seen[c.String()], c.String())
		seen[c.String()] = true
		require.NotEqual(t, conform.RuleNone, c.Rule(), c.String())
		f := conform.Finding{Check: c, Want: 0xfe01, Got: 0xfe02, PSN: 7}
		require.NotContains(t, f.String(), "{")
		require.Equal(t, c.Rule(), f.Rule())
	}
	require.Greater(t, n, 80)
	for v := range 256 {
		require.NotEmpty(t, conform.Check(v).String())
		require.NotEmpty(t, conform.Check(v).Rule().String())
		require.NotEmpty(t, conform.Rule(v).String())
		require.NotEmpty(t, conform.Severity(v).String())
		require.NotEmpty(t, (&conform.Finding{Check: conform.Check(v)}).String())
		_ = conform.Check(v).Severity()
	}
	f := conform.Finding{Check: conform.RNRTooEarly, Want: 5_120_000, Got: 3_000_000, PSN: 9}
	require.Equal(t, "PSN 9 should be retransmitted 5.12ms or more after its RNR NAK; this is 3ms after it", f.String())
}

func TestPauses(t *testing.T) {
	mac := [6]byte{2, 0, 0, 0, 0, 1}
	xoff := pfc.New(mac)
	xoff.Set(3, 0xffff)
	xon := pfc.New(mac)
	xon.Set(3, 0)
	play := func(cfg conform.Config, at ...time.Duration) *conform.Watcher {
		w, err := conform.New(cfg)
		require.NoError(t, err)
		for i, d := range at {
			f := &xoff
			if i%2 == 1 {
				f = &xon
			}
			b := f.AppendFrame(nil)
			w.HandleFrame(time.Unix(1, 0).Add(d), frame.Ethernet, b, len(b))
			require.Equal(t, conform.ClassPaused, w.Last().Class)
		}
		w.Finish()
		return w
	}
	w := play(conform.Config{}, 0, 100*us, 500*us, 520*us)
	require.Equal(t, conform.Pauses{Frames: 2, Resume: 2, Time: 120 * us}, w.Pauses(3))
	require.Zero(t, w.Pauses(2))
	// 65535 quanta are 335.5392 us at 100 Gb/s: the pause ends by itself.
	w = play(conform.Config{LinkRate: 100e9}, 0, 400*us, 500*us)
	require.Equal(t, conform.Pauses{Frames: 2, Resume: 1, Time: 2 * 335540 * time.Nanosecond}, roundUp(w.Pauses(3)))
	// Without a rate, a pause that nothing ends counts for nothing.
	w = play(conform.Config{}, 0)
	require.Equal(t, conform.Pauses{Frames: 1}, w.Pauses(3))
}

func roundUp(p conform.Pauses) conform.Pauses {
	p.Time = (p.Time + 9) / 10 * 10
	return p
}

func TestCNPCounted(t *testing.T) {
	tp := open(t, "rc-mixed").insert(20, us, cnp(nil)).insert(24, us, cnp(nil))
	w, all := watch(t, conform.Config{}, tp.recs)
	require.Empty(t, all)
	total := w.Total()
	require.EqualValues(t, 2, total.CNPs)
	require.Greater(t, total.CNPRate(), 0.0)
}

// A capture may have several lives of one QP number, one after the other.
func TestRestart(t *testing.T) {
	recs := load(t, "rc-mixed")
	moved := open(t, "rc-mixed").all(func(_ int, f *frame.Frame) bool { f.Packet.PSN = f.Packet.PSN.Add(5 << 20); return true }).recs
	for i := range moved {
		moved[i].ts = moved[i].ts.Add(4 * time.Second)
	}
	w, all := watch(t, conform.Config{}, append(recs, moved...))
	require.Equal(t, []string{"event restart " + "65"}, table(all))
	total := w.Total()
	require.EqualValues(t, 28, total.MessagesDone)
}

// Frames of other protocols, and what is cut before the RoCE headers, leave no
// trace.
func TestOther(t *testing.T) {
	w, err := conform.New(conform.Config{})
	require.NoError(t, err)
	good := load(t, "rc-mixed")[8].data
	other := append([]byte(nil), good...)
	binary.BigEndian.PutUint16(other[36:], 53)
	for _, d := range [][]byte{nil, {1}, other, good[:13], good[:40], good[:50]} {
		w.HandleFrame(time.Unix(1, 0), frame.Ethernet, d, len(good))
	}
	for _, l := range []frame.Link{frame.RawIP, frame.LinuxSLL, frame.LinuxSLL2, 9999} {
		w.HandleFrame(time.Unix(1, 0), l, other, len(good))
	}
	w.Finish()
	var f conform.Finding
	require.False(t, w.NextFinding(&f))
	require.EqualValues(t, 10, w.Frames())
	// Later fragments cannot be distinguished from those of other datagrams.
	late := append([]byte(nil), good...)
	late[20], late[21] = 0, 9
	w.HandleFrame(time.Unix(1, 0), frame.Ethernet, late, len(late))
	require.False(t, w.NextFinding(&f))
}

// The same packets of raw IP and Linux's cooked captures give the same findings.
func TestLinks(t *testing.T) {
	recs := load(t, "rc-rnr")
	_, want := watch(t, conform.Config{}, recs)
	for _, link := range []frame.Link{frame.RawIP, frame.LinuxSLL, frame.LinuxSLL2} {
		w, err := conform.New(conform.Config{})
		require.NoError(t, err)
		var all []conform.Finding
		var f conform.Finding
		for _, r := range recs {
			var head []byte
			switch link {
			case frame.LinuxSLL:
				head = append(make([]byte, 14), r.data[12:14]...)
			case frame.LinuxSLL2:
				head = append(append([]byte(nil), r.data[12:14]...), make([]byte, 18)...)
			}
			d := append(head, r.data[14:]...)
			w.HandleFrame(r.ts, link, d, len(d))
			for w.NextFinding(&f) {
				all = append(all, f)
			}
		}
		require.Equal(t, table(want), table(all), "%v", link)
	}
}

// TestComplete: what the owner of a capture can rule out becomes a breach.
func TestComplete(t *testing.T) {
	for _, name := range names(t) {
		_, some := watch(t, conform.Config{}, load(t, name))
		_, all := watch(t, conform.Config{Complete: true}, load(t, name))
		more := breaches(all)
		for c, n := range breaches(some) {
			require.GreaterOrEqual(t, more[c], n, "%s: %v", name, c)
			delete(more, c)
		}
		switch name {
		case "probe-requester":
			// The script acknowledges what was never sent, and refuses packets that
			// nothing went before.
			require.Equal(t, map[conform.Check]int{conform.AckNeverSent: 1, conform.NakNothingLost: 1}, more)
		case "probe-responder":
			require.Equal(t, map[conform.Check]int{conform.OrderAtStart: 1}, more)
		case "rc-ecn": // the driver sends no CNPs
			require.Equal(t, map[conform.Check]int{conform.ECNUnanswered: 1}, more)
		default:
			require.Empty(t, more, name)
		}
	}
	// Without it, the end of the capture leaves a doubt.
	tp := open(t, "rc-mixed").edit(56, func(f *frame.Frame) { f.Packet.PSN = f.Packet.PSN.Add(3) })
	_, all := watch(t, conform.Config{}, tp.edit(56, func(f *frame.Frame) { f.Packet.Opcode = 0x11 }).recs)
	require.Equal(t, []string{"note ack-never-seen 56"}, table(all))
}

// TestDepth: more READs than connection management agreed on.
func TestDepth(t *testing.T) {
	tp := open(t, "cm-rping")
	tp.recs = tp.recs[:15]
	for range 3 {
		tp.again(15, 15, us)
	}
	for i := range 3 {
		tp.edit(16+i, func(f *frame.Frame) { f.Packet.PSN = f.Packet.PSN.Add(i + 1) })
	}
	_, all := watch(t, conform.Config{}, tp.recs)
	require.Empty(t, breaches(all))
	depth := 0
	for _, f := range all {
		if f.Check == conform.ReadsAboveDepth {
			depth++
			require.Greater(t, f.Got, f.Want)
		}
	}
	require.Positive(t, depth)
}

// TestDamaged: a packet that was damaged on its way to the capture alone was sent
// all the same, so that its acknowledgement is no riddle.
func TestDamaged(t *testing.T) {
	tp := open(t, "rc-mixed").raw(55, false, func(b []byte) { b[60] ^= 1 })
	_, all := watch(t, conform.Config{Complete: true}, tp.recs)
	require.Equal(t, map[conform.Check]int{conform.ICRCBad: 1}, breaches(all))
}

// TestReuse: QP numbers and PSNs taken into use again after two seconds, by
// connections that send something else.
func TestReuse(t *testing.T) {
	var recs []rec
	for _, name := range []string{"rc-mixed", "rc-rnr", "rc-nak-rights", "rc-atomic", "rc-loss-request"} {
		recs = then(recs, load(t, name), 2*time.Second)
	}
	_, all := watch(t, conform.Config{}, recs)
	require.Empty(t, breaches(all))
	restarts := 0
	for _, f := range all {
		if f.Check == conform.Restarted {
			restarts++
		}
	}
	require.Equal(t, 4, restarts)
}

// TestSameContent: what may differ in a retransmission, by each network header;
// and a change of one byte anywhere in it is seen all the same.
func TestSameContent(t *testing.T) {
	carry := map[string]func(f *frame.Frame){
		"ipv4":    func(*frame.Frame) {},
		"options": func(f *frame.Frame) { f.Options = make([]byte, 8) },
		"ipv6":    func(f *frame.Frame) { f.Net, f.Src, f.Dst = frame.IPv6, v6(f.Src), v6(f.Dst) },
		"grh":     asGRH,
	}
	for name, as := range carry {
		resend := func(f func(*frame.Frame)) map[conform.Check]int {
			tp := open(t, "rc-burst")
			tp.recs = tp.recs[:104]
			tp.again(103, 103, 70*ms).edit(104, f)
			tp.all(func(_ int, f *frame.Frame) bool { as(f); return true })
			_, all := watch(t, conform.Config{}, tp.recs)
			got := breaches(all)
			delete(got, conform.IPv4Options)
			delete(got, conform.IPv4NoDF)
			return got
		}
		require.Empty(t, resend(func(f *frame.Frame) {
			f.ID, f.DF, f.TrafficClass, f.HopLimit, f.SrcPort = 7, false, 0x68, 3, 55555
			f.Packet.AckReq, f.Packet.M, f.Packet.PKey = false, true, 0x7fff
		}), name)
		for _, i := range []int{0, 1, 500, 974, 975} {
			got := resend(func(f *frame.Frame) {
				f.ID, f.SrcPort, f.Packet.AckReq = 7, 55555, false
				f.Packet.Payload = append([]byte(nil), f.Packet.Payload...)
				f.Packet.Payload[i] ^= 0x10
			})
			require.Equal(t, map[conform.Check]int{conform.ResendDiffers: 1}, got, "%s %d", name, i)
		}
	}
}

// Rule CA17-44: marks without CNPs are a note, as the network may carry CNPs another
// way; with Complete they are a breach.
func TestMarksUnanswered(t *testing.T) {
	tp := open(t, "rc-mixed").all(func(n int, f *frame.Frame) bool { f.TrafficClass |= 3; return n == 13 || n == 14 || n == 15 })
	_, all := watch(t, conform.Config{}, tp.recs)
	require.Equal(t, []string{"note ecn-unanswered 0"}, table(all))
	_, all = watch(t, conform.Config{Complete: true}, tp.recs)
	require.Equal(t, []string{"breach ecn-unanswered 0"}, table(all))
}
