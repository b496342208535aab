package simnet

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Packets come and go at random, without regard to pauses: no pool is ever below zero or
// above what it has, each packet is counted once, and a pause lifts when nothing waits.
func TestBufferPools(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		c := &SwitchConfig{
			Name: "s", Buffer: rapid.IntRange(200_000, 2_000_000).Draw(t, "buffer"), Lossless: uint8(rapid.IntRange(0, 255).Draw(t, "lossless")),
			Headroom: rapid.IntRange(1000, 20_000).Draw(t, "headroom"),
			Dynamic: &Dynamic{Alpha: rapid.Float64Range(1./64, 64).Draw(t, "alpha"), LossyAlpha: rapid.Float64Range(1./64, 64).Draw(t, "lossy"),
				Reserved: rapid.IntRange(0, 5000).Draw(t, "reserved")},
		}
		ports := make([]PortInfo, rapid.IntRange(1, 8).Draw(t, "ports"))
		for i := range ports {
			ports[i] = PortInfo{Rate: 100e9, Delay: time.Microsecond}
		}
		type packet struct{ in, out, prio, size int }
		for _, b := range []BufferPolicy{newDynamic(c), &staticBuffer{cfg: c}} {
			if b.Resize(ports) != nil {
				continue // too small a buffer
			}
			var waiting []packet
			sum := 0
			check := func() {
				switch b := b.(type) {
				case *dynamicBuffer:
					shared, all := 0, 0
					for i := range b.in {
						for prio, u := range b.in[i] {
							require.True(t, u.reserved >= 0 && u.shared >= 0 && u.head >= 0, "%+v", u)
							require.LessOrEqual(t, u.reserved, c.Dynamic.Reserved)
							require.LessOrEqual(t, u.head, b.head[i])
							require.GreaterOrEqual(t, b.out[i][prio], 0)
							shared += u.shared
							all += u.reserved + u.shared + u.head
						}
					}
					require.Equal(t, shared, b.sharedUsed)
					require.LessOrEqual(t, shared, b.shared)
					require.Equal(t, sum, all)
				case *staticBuffer:
					require.True(t, b.lossyUsed >= 0 && b.lossyUsed <= b.lossy)
				}
				require.LessOrEqual(t, sum, c.Buffer)
			}
			for range rapid.IntRange(1, 300).Draw(t, "steps") {
				if len(waiting) == 0 || rapid.IntRange(0, 3).Draw(t, "what") != 0 {
					p := packet{rapid.IntRange(0, len(ports)-1).Draw(t, "in"), rapid.IntRange(0, len(ports)-1).Draw(t, "out"),
						rapid.IntRange(0, 7).Draw(t, "prio"), rapid.IntRange(64, 4200).Draw(t, "size")}
					if b.Enqueue(p.in, p.out, p.prio, p.size) == Accept {
						waiting = append(waiting, p)
						sum += p.size
					}
				} else {
					i := rapid.IntRange(0, len(waiting)-1).Draw(t, "which")
					p := waiting[i]
					b.Dequeue(p.in, p.out, p.prio, p.size)
					waiting = append(waiting[:i], waiting[i+1:]...)
					sum -= p.size
				}
				check()
			}
			for _, p := range waiting {
				b.Dequeue(p.in, p.out, p.prio, p.size)
				sum -= p.size
			}
			check()
			for i := range ports {
				for prio := range 8 {
					require.False(t, b.Pause(i, prio, true))
					require.True(t, b.Lifts(i, prio, 0, 0))
				}
			}
		}
	})
}
