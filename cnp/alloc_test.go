//go:build !race

package cnp_test

import (
	"runtime"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/cnp"
)

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
