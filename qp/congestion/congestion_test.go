package congestion_test

import (
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/qp/congestion"
)

// Two records worked out by hand from the layout: rate code in the low 3 bits, then
// 24 bits of time, 20 of bytes, 17 of queue.
func TestHopLayout(t *testing.T) {
	// 100 Gb/s: code 2, m 4. 51,200 bytes are 100 units of 512, 3,200 are 10 of 320.
	require.Equal(t, congestion.Hop(10<<47|100<<27|1000<<3|2), congestion.NewHop(100e9, 1000, 51_200, 3_200))
	// 25 Gb/s: code 0, m 1; time and bytes wrap, the queue stays at its maximum.
	require.Equal(t, congestion.Hop((1<<17-1)<<47|5<<27|7<<3), congestion.NewHop(25e9, 1<<24+7, 128<<20+5*128, 1<<40))
}

func TestHopRates(t *testing.T) {
	for _, c := range [][2]uint64{
		{1e9, 10e9}, {10e9, 10e9}, {11e9, 25e9}, {25e9, 25e9}, {40e9, 40e9}, {50e9, 50e9}, {100e9, 100e9},
		{200e9, 200e9}, {400e9, 400e9}, {800e9, 800e9}, {1600e9, 800e9},
	} {
		require.Equal(t, c[1], congestion.HopRate(c[0]))
		require.Equal(t, c[1], congestion.NewHop(c[0], 5, 6, 7).Rate())
	}
}

// What comes out of two records is what went in, to the unit.
func TestPropHop(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		rate := rapid.SampledFrom([]uint64{10e9, 25e9, 40e9, 50e9, 100e9, 200e9, 400e9, 800e9}).Draw(t, "rate")
		m := max(1, rate/25e9)
		at := rapid.Int64Range(1, 1<<40).Draw(t, "at")
		bytes := rapid.Uint64Range(0, 1<<50).Draw(t, "bytes")
		ns := rapid.Int64Range(0, 1<<24-1).Draw(t, "ns")
		sent := rapid.Uint64Range(0, (1<<20-2)*128*m).Draw(t, "sent")
		queue := rapid.Uint64Range(0, (1<<17-1)*80*m).Draw(t, "queue")
		a, b := congestion.NewHop(rate, at, bytes, 0), congestion.NewHop(rate, at+ns, bytes+sent, queue)
		d, n := b.Since(a)
		require.Equal(t, ns, d)
		require.InDelta(t, sent, n, float64(128*m))
		require.LessOrEqual(t, b.Queue(), queue)
		require.Less(t, queue-b.Queue(), 80*m)
	})
}

func TestINT(t *testing.T) {
	var x congestion.INT
	x.Stamp(1)
	require.Zero(t, x.N, "a packet without telemetry collects nothing")
	require.Zero(t, x.Size())
	x.Mode = congestion.INTCollect
	require.Equal(t, 2, x.Size())
	for i := range 300 {
		x.Stamp(congestion.Hop(i))
	}
	require.Equal(t, []congestion.Hop{0, 1, 2, 3, 4, 5, 6, 7}, x.Records())
	require.Equal(t, 66, x.Size())
	require.EqualValues(t, 255, x.Missed)
	x.Mode = congestion.INTEcho
	x.N = 2
	x.Stamp(9)
	require.Len(t, x.Records(), 2)
	require.Zero(t, testing.AllocsPerRun(100, func() { x.Stamp(congestion.NewHop(100e9, 1, 2, 3)); _ = x.Records() }))
}

// The bytes by hand: mode 1 or 2 in the top bits, the number of records, what was missed,
// and the records.
func TestINTBytes(t *testing.T) {
	x := congestion.INT{Mode: congestion.INTEcho, N: 2, Missed: 3, Hops: [congestion.MaxHops]congestion.Hop{0x0102030405060708, 9}}
	b := x.AppendTo([]byte{0xaa})
	require.Equal(t, []byte{0xaa, 0x82, 3, 1, 2, 3, 4, 5, 6, 7, 8, 0, 0, 0, 0, 0, 0, 0, 9}, b)
	require.Len(t, b, 1+x.Size())
	var y congestion.INT
	require.True(t, y.Decode(b[1:]))
	require.Equal(t, x, y)
	require.Nil(t, new(congestion.INT).AppendTo(nil))
	for _, bad := range [][]byte{nil, {0x80}, {0, 0}, {0xc0, 0}, b, b[1:18], append(b[1:19:19], 0), append([]byte{0x49, 0}, make([]byte, 72)...)} {
		require.False(t, y.Decode(bad), "%x", bad)
		require.Equal(t, x, y)
	}
}
