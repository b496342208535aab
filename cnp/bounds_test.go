package cnp

import (
	"math"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Sizes that the documentation states: a million flows must be affordable.
func TestSizes(t *testing.T) {
	word := unsafe.Sizeof(uintptr(0))
	require.LessOrEqual(t, unsafe.Sizeof(ReactionPoint{}), uintptr(80))
	require.Equal(t, uintptr(8), unsafe.Sizeof(Gate{}))
	require.LessOrEqual(t, unsafe.Sizeof(Pacer{}), uintptr(48))
	require.Equal(t, uintptr(40), unsafe.Sizeof(slot{}))
	if word == 8 {
		require.Equal(t, uintptr(80), unsafe.Sizeof(ReactionPoint{}))
	}
}

// The bounds on late calls that the documentation states. A run of the alpha
// loop or the increase loop counts its steps.
// Rule RP-10.
func TestBoundedWork(t *testing.T) {
	for _, c := range []struct {
		name   string
		change func(*Params)
		line   uint64
		alpha  int // steps of alpha at most
		raise  int // steps of rate at most
	}{
		{"paper", func(p *Params) { *p = Paper() }, 40e9, 4221, 100},
		{"nvidia", func(p *Params) { *p = NVIDIA() }, 40e9, 3420, 100},
		{"paper 800G", func(p *Params) { *p = Paper() }, 800e9, 4221, 150},
		{"worst", func(p *Params) {
			*p = Paper()
			p.DceTcpG, p.RpgThreshold, p.RpgAIRate, p.RpgHAIRate, p.RpgMinRate = 1023, 31, 1, 1, 1
		}, 1e13, 15489, 4700},
		{"no increase", func(p *Params) { *p = Paper(); p.RpgAIRate, p.RpgHAIRate = 0, 0 }, 1e13, 4221, 100},
		{"nvidia slow", func(p *Params) { *p = NVIDIA(); p.DceTcpG, p.RpgAIRate, p.RpgHAIRate = 1023, 1, 0 }, 1e13, 15489, 150},
	} {
		t.Run(c.name, func(t *testing.T) {
			var p Params
			c.change(&p)
			port, err := NewReactionPort(p, c.line)
			require.NoError(t, err)
			now := time.Unix(0, 0)
			start := port.ReactionPoint()
			for i := range 3000 { // down to the floor
				start.HandleCNP(now.Add(time.Duration(i) * 4 * time.Microsecond))
			}
			start.Tick(now.Add(12 * time.Millisecond))
			hour := uint64(3600 * 1000 * 1000 / p.RpgTimeReset)
			for _, n := range []uint64{hour, math.MaxUint64, 1, 50, 1000, 20_000} {
				for _, bc := range []uint32{0, 1, 6, 40, 100_000, math.MaxUint32} {
					for _, floor := range []bool{false, true} {
						r := start
						if floor {
							r.rc, r.rt = port.floor, port.floor
						}
						require.LessOrEqual(t, r.increase(n, &r.t, bc), c.raise, "n %d BC %d", n, bc)
						require.LessOrEqual(t, r.increase(n, &r.bc, r.t), c.raise, "n %d BC %d", n, bc)
					}
				}
			}
			r := start
			r.alpha = 1 << 31
			require.LessOrEqual(t, r.decay(hour), c.alpha)
			require.LessOrEqual(t, r.decay(math.MaxUint64), c.alpha)
			require.Zero(t, r.alpha)
			require.Zero(t, r.decay(math.MaxUint64), "done for good")
		})
	}
}

// The shortcut for many events equals as many single events.
func TestPropManyEqualsOneByOne(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := rapid.SampledFrom([]Params{Paper(), NVIDIA()}).Draw(t, "preset")
		p.RpgThreshold = rapid.Uint32Range(0, 31).Draw(t, "threshold")
		p.RpgAIRate = rapid.OneOf(rapid.Just(uint32(0)), rapid.Uint32Range(0, 200)).Draw(t, "ai")
		p.RpgHAIRate = rapid.OneOf(rapid.Just(uint32(0)), rapid.Uint32Range(0, 200)).Draw(t, "hai")
		p.FullFastRecovery = rapid.Bool().Draw(t, "full")
		port, err := NewReactionPort(p, rapid.Uint64Range(10e6, 100e9).Draw(t, "line"))
		require.NoError(t, err)
		r := port.ReactionPoint()
		r.start(1)
		r.rt = rapid.Uint64Range(port.floor, port.ceil).Draw(t, "rt")
		r.rc = rapid.Uint64Range(port.floor, r.rt).Draw(t, "rc")
		stage := rapid.OneOf(rapid.Uint32Range(0, 40), rapid.Uint32Range(0, 5000), rapid.Uint32Range(math.MaxUint32-3, math.MaxUint32))
		r.t, r.bc = stage.Draw(t, "T"), stage.Draw(t, "BC")
		n := rapid.IntRange(1, 8000).Draw(t, "n")

		many, single := r, r
		many.increase(uint64(n), &many.t, many.bc)
		for range n {
			single.increase(1, &single.t, single.bc)
		}
		require.Equal(t, single, many)
	})
}

// A gap that repeats by chance while hyper increase still grows is no reason to
// take the shortcut.
func TestGapRepeatsByChance(t *testing.T) {
	port, err := NewReactionPort(Paper(), 100e9)
	require.NoError(t, err)
	many := port.ReactionPoint()
	many.start(1)
	many.t, many.bc = 5, 100
	many.rc, many.rt = 10e9, 10e9+200e6 // the first addend is 200 Mb/s too
	single := many
	many.increase(4, &many.t, many.bc)
	for range 4 {
		single.increase(1, &single.t, single.bc)
	}
	require.Equal(t, single, many)
	require.Equal(t, uint64(10e9+200e6+(1+2+3+4)*200e6), many.rt)
}
