package congestion_test

import (
	"encoding/binary"
	"math"
	"net/netip"
	"runtime"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/cnp"
	"github.com/roce-go/roce/qp/congestion"
	"github.com/roce-go/roce/qp/congestion/hpcc"
	"github.com/roce-go/roce/qp/congestion/swift"
	"github.com/roce-go/roce/qp/congestion/timely"
	"github.com/roce-go/roce/qp/internal/testenv"
)

const fuzzLine = 100e9

var controllers = []struct {
	name  string
	c     congestion.Controller
	floor uint64 // of the rate
}{
	{"dcqcn", cnp.Controller(cnp.Paper()), 10e6},
	{"dcqcn nvidia", cnp.Controller(cnp.NVIDIA()), 1e6},
	{"dcqcn ns3", cnp.Controller(cnp.NS3(fuzzLine)), 1e9},
	{"hpcc", hpcc.Controller(hpcc.Defaults()), 100e6},
	{"swift", swift.Controller(swift.Defaults()), 1},
	{"timely", timely.Controller(timely.Defaults()), 100e6},
}

// abuse drives a flow with calls of 18 bytes each, which may be anything: times that
// go back, sizes below 0, sequence numbers and records that make no sense.
func abuse(t tester, c congestion.Controller, floor uint64, calls []byte) {
	p, err := c.NewPort(fuzzLine)
	require.NoError(t, err)
	f, r := p.Flow(), p.Receiver()
	now, gate := int64(1), int64(0)
	var x congestion.INT
	for ; len(calls) >= 18; calls = calls[18:] {
		a, b := int64(binary.BigEndian.Uint64(calls[1:])), int64(binary.BigEndian.Uint64(calls[9:]))
		k := calls[17]
		now = max(1, now+int64(int32(a))<<(k&15))
		due := f.Due()
		switch calls[0] % 9 {
		case 0:
			f.Sent(now, &congestion.Send{PSN: uint64(a), Bytes: int(b), Again: k&16 != 0})
		case 1, 2:
			f.Acked(now, &congestion.Ack{Una: uint64(a) >> 40, Next: uint64(b) >> 40, Bytes: b >> (k & 63), Size: int(a >> 30), RTT: a >> (k & 63), ECN: k&1 != 0})
		case 3:
			x.Mode, x.N = congestion.INTEcho, k%(congestion.MaxHops+1)
			for i := range x.N {
				x.Hops[i] = congestion.Hop(uint64(a)*uint64(2*i+1) ^ uint64(b))
			}
			f.Acked(now, &congestion.Ack{Una: uint64(a) >> 50, Next: uint64(b) >> 50, INT: &x})
		case 4:
			f.CNP(now)
		case 5:
			f.Lost(now, congestion.LossKind(k%3))
		case 6:
			if r != nil {
				r.Received(now, &congestion.Arrival{Src: netip.IPv4Unspecified(), CE: k&1 != 0, Data: k&2 != 0, Gate: &gate})
			}
		case 7:
			f.Tick(now)
			if d := f.Due(); d != 0 && d <= now {
				t.Fatalf("due at %d after Tick(%d)", d, now)
			}
		case 8:
			f.Reset()
		}
		if rate := f.Rate(); rate != 0 && rate < floor || rate > fuzzLine {
			t.Fatalf("rate %d", rate)
		}
		if w := f.Window(); w < 0 || w > 1<<40 {
			t.Fatalf("window %d", w)
		}
		if d := f.Due(); d < 0 || due < 0 {
			t.Fatalf("due %d", d)
		}
	}
}

func FuzzControllers(f *testing.F) {
	for i := range controllers {
		f.Add(uint8(i), []byte("\x00aaaaaaaabbbbbbbb\x00\x03aaaaaaaabbbbbbbb\x03\x04\x00\x00\x00\x00\x00\x00\x00\x01bbbbbbbb\x00\x07\x00\x00\x00\x00\x7f\xff\xff\xffbbbbbbbb\x0f"))
	}
	f.Fuzz(func(t *testing.T, which uint8, calls []byte) {
		c := controllers[int(which)%len(controllers)]
		abuse(t, c.c, c.floor, calls)
	})
}

// Rates and windows stay in bounds, deadlines lie ahead, whatever comes.
func TestPropBounds(t *testing.T) {
	for _, c := range controllers {
		t.Run(c.name, func(t *testing.T) {
			rapid.Check(t, func(t *rapid.T) {
				extreme := rapid.SampledFrom([]uint64{0, 1, math.MaxUint64, 1 << 63, 1<<63 - 1, 1 << 32, 20_000})
				var calls []byte
				for range rapid.IntRange(1, 60).Draw(t, "n") {
					calls = append(calls, rapid.Byte().Draw(t, "call"))
					for range 2 {
						calls = binary.BigEndian.AppendUint64(calls, rapid.OneOf(extreme, rapid.Uint64()).Draw(t, "value"))
					}
					calls = append(calls, rapid.Byte().Draw(t, "k"))
				}
				abuse(t, c.c, c.floor, calls)
			})
		})
	}
}

// Equal calls give equal rates on every architecture: these constants were written
// down on amd64 and hold on 386, arm64 and s390x.
func TestSameOnEveryArchitecture(t *testing.T) {
	want := []uint64{0xe2b46dc85f316f22, 0xc9057ce95844923a, 0xc39cfc1a47731de5, 0x3920c21dcd532195, 0x40a833677f786acf, 0xd21da6c1078912a5}
	for i, c := range controllers {
		p, err := c.c.NewPort(fuzzLine)
		require.NoError(t, err)
		f := p.Flow()
		sum, x, now := uint64(14695981039346656037), uint64(88172645463325252), int64(1)
		psn, sent, queue := uint64(100), uint64(0), uint64(0)
		tel := congestion.INT{}
		for range 20_000 {
			x ^= x << 13
			x ^= x >> 7
			x ^= x << 17
			now += int64(x >> 20 % 3000)
			psn += x >> 7 % 3
			sent += x >> 30 % 40_000
			queue = x >> 40 % 200_000
			switch x >> 60 {
			case 0:
				f.CNP(now)
			case 1:
				if x>>50%64 == 0 {
					f.Lost(now, congestion.LossKind(x>>33%3))
				}
			case 2, 3, 4, 5, 6:
				f.Sent(now, &congestion.Send{PSN: psn, Bytes: 4178})
			default:
				tel.Mode, tel.N = congestion.INTCollect, 0
				for h := range x >> 10 % 2 * 2 {
					tel.Stamp(congestion.NewHop(100e9, now, sent+h, queue))
				}
				f.Acked(now, &congestion.Ack{Una: psn, Next: psn + 20, Bytes: 4178, Size: 4178, RTT: 20_000 + int64(queue)/10, INT: &tel})
			}
			f.Tick(now)
			for _, v := range []uint64{f.Rate(), uint64(f.Window()), uint64(f.Due())} {
				sum = (sum ^ v) * 1099511628211
			}
		}
		require.Equal(t, want[i], sum, c.name)
	}
}

// Nothing is allocated once a flow is there.
func TestAllocs(t *testing.T) {
	if testenv.Allocates {
		t.Skip("allocations are not counted under -race")
	}
	for _, c := range controllers {
		p, err := c.c.NewPort(fuzzLine)
		require.NoError(t, err)
		f, r := p.Flow(), p.Receiver()
		x := congestion.INT{Mode: congestion.INTCollect}
		ack, send, gate := congestion.Ack{INT: &x}, congestion.Send{Bytes: 4178}, int64(0)
		arrival := congestion.Arrival{CE: true, Data: true, Gate: &gate}
		now := int64(1)
		run := func() {
			for range 5000 {
				now += 300
				f.Sent(now, &send)
				x.Mode, x.N = congestion.INTCollect, 0
				x.Stamp(congestion.NewHop(100e9, now, uint64(now)*12, 1000))
				x.Mode = congestion.INTEcho
				ack.Una, ack.Next, ack.Bytes, ack.RTT, ack.ECN = ack.Una+1, ack.Una+9, 4178, 30_000, ack.Una%9 == 0
				f.Acked(now, &ack)
				if r != nil && r.Received(now, &arrival)&congestion.SendCNP != 0 {
					f.CNP(now)
				}
				f.Tick(now)
				_, _, _ = f.Rate(), f.Window(), f.Due()
			}
			f.Reset()
		}
		run()
		least := ^uint64(0)
		for range 3 {
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			run()
			runtime.ReadMemStats(&after)
			least = min(least, after.Mallocs-before.Mallocs)
		}
		require.Zero(t, least, c.name)
	}
}

// tester is what testing.T and rapid.T have in common.
type tester interface {
	require.TestingT
	Fatalf(format string, args ...any)
}
