package cnp_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/cnp"
)

func BenchmarkDecode(b *testing.B) {
	in := k01Packet(b)
	var h cnp.Header
	b.ReportAllocs()
	for b.Loop() {
		_ = h.Decode(in)
	}
}

func BenchmarkAppendTo(b *testing.B) {
	h := cnp.New(280, 0xffff)
	buf := make([]byte, 0, cnp.Size)
	b.ReportAllocs()
	for b.Loop() {
		buf = h.AppendTo(buf[:0])
	}
}

// BenchmarkBTHDecode is the reference of BenchmarkDecode: the 12 bytes of it
// that any packet has.
func BenchmarkBTHDecode(b *testing.B) {
	in := k01Packet(b)
	var h bth.Header
	b.ReportAllocs()
	for b.Loop() {
		_ = h.Decode(in)
	}
}

func each(b *testing.B, f func(b *testing.B, p cnp.Params)) {
	b.Run("paper", func(b *testing.B) { f(b, cnp.Paper()) })
	b.Run("nvidia", func(b *testing.B) { f(b, cnp.NVIDIA()) })
}

// BenchmarkSent is what a packet costs the sender: count, rate, pace.
func BenchmarkSent(b *testing.B) {
	each(b, func(b *testing.B, p cnp.Params) {
		r := newRP(b, p, 100*gig)
		var pacer cnp.Pacer
		now := t0
		r.HandleCNP(now)
		b.ReportAllocs()
		for b.Loop() {
			now = now.Add(330)
			r.HandleSent(now, 4096)
			pacer.SetRate(now, r.Rate())
			pacer.HandleSent(now, 4096)
			_, _ = pacer.Deadline()
		}
	})
}

// BenchmarkTimeSub is the reference: one subtraction of two times.
func BenchmarkTimeSub(b *testing.B) {
	now, sum := t0, time.Duration(0)
	for b.Loop() {
		now = now.Add(330)
		sum += now.Sub(t0)
	}
	_ = sum
}

func BenchmarkCNP(b *testing.B) {
	each(b, func(b *testing.B, p cnp.Params) {
		r := newRP(b, p, 100*gig)
		now := t0
		b.ReportAllocs()
		for b.Loop() {
			now = now.Add(50_000)
			r.HandleCNP(now)
		}
	})
}

// BenchmarkHourLate is the worst late call: a flow cut to the floor wakes up.
func BenchmarkHourLate(b *testing.B) {
	each(b, func(b *testing.B, p cnp.Params) {
		start := newRP(b, p, 100*gig)
		for i := range 5000 {
			start.HandleCNP(t0.Add(time.Duration(i) * 4000))
		}
		later := t0.Add(time.Hour)
		b.ReportAllocs()
		for b.Loop() {
			r := start
			r.Tick(later)
		}
	})
}

func BenchmarkMarked(b *testing.B) {
	for scope := cnp.ScopeQP; scope <= cnp.ScopePort; scope++ {
		b.Run(scope.String(), func(b *testing.B) {
			n := newNP(b, scope, 50, 1024)
			a := marked("192.0.2.1", "192.0.2.2")
			var g cnp.Gate
			now := t0
			b.ReportAllocs()
			for b.Loop() {
				now = now.Add(330)
				n.HandlePacket(now, a, &g)
			}
		})
	}
}

func BenchmarkRED(b *testing.B) {
	c, _ := cnp.NewCongestionPoint(cnp.PaperCongestion())
	q := 0
	for b.Loop() {
		q = (q + 4096) & 0x3ffff
		_ = c.Mark(q, cnp.ECT0, uint32(q)*2654435761)
	}
}

func TestCodecAllocs(t *testing.T) {
	good := k01Packet(t)
	bad := append([]byte(nil), good...)
	bad[0] = 0x80
	buf := make([]byte, 0, 64)
	var h cnp.Header
	for name, fn := range map[string]func(){
		"Decode":          func() { _ = h.Decode(good) },
		"Decode bad":      func() { _ = h.Decode(bad) },
		"Decode short":    func() { _ = h.Decode(good[:20]) },
		"UnmarshalBinary": func() { _ = h.UnmarshalBinary(good) },
		"AppendTo":        func() { buf = h.AppendTo(buf[:0]) },
		"AppendBinary":    func() { buf, _ = h.AppendBinary(buf[:0]) },
		"New":             func() { h = cnp.New(5, 6) },
	} {
		require.Zero(t, testing.AllocsPerRun(200, fn), name)
	}
}

// A whole run of all four machines: AllocsPerRun rounds down, so mallocs are
// counted over everything.
func TestMachineAllocs(t *testing.T) {
	for _, params := range []cnp.Params{cnp.Paper(), cnp.NVIDIA()} {
		params.CnpScope = cnp.ScopeAddressPair
		port, err := cnp.NewReactionPort(params, 40*gig)
		require.NoError(t, err)
		np, err := cnp.NewNotificationPoint(params, 64)
		require.NoError(t, err)
		cp, err := cnp.NewCongestionPoint(cnp.PaperCongestion())
		require.NoError(t, err)
		var pacer cnp.Pacer
		var gate cnp.Gate
		a := marked("192.0.2.1", "2001:db8::1")
		now := t0
		run := func() {
			rp := port.ReactionPoint()
			for i := range 20_000 {
				now = now.Add(3 * time.Microsecond)
				a.ECN = cnp.ECT0
				if cp.Mark(i*37%250_000, a.ECN, uint32(i)*2654435761) {
					a.ECN = cnp.CE
				}
				a.Opcode = bth.RCWriteMiddle
				if np.HandlePacket(now, a, &gate) {
					rp.HandleCNP(now)
				}
				rp.HandleSent(now, 4096)
				rp.Tick(now)
				_, _ = rp.Deadline()
				_, _, _ = rp.Rate(), rp.Alpha(), rp.Limited()
				pacer.SetRate(now, rp.Rate())
				pacer.HandleSent(now, 4096)
				_ = pacer.Ready(now)
			}
		}
		run()
		var before, after runtime.MemStats
		least := ^uint64(0)
		for range 3 { // the runtime itself may allocate in one of them
			runtime.ReadMemStats(&before)
			run()
			runtime.ReadMemStats(&after)
			least = min(least, after.Mallocs-before.Mallocs)
		}
		require.Zero(t, least)
		require.NotZero(t, port.RpCnpHandled)
	}
}
