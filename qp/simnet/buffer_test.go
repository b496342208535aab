package simnet

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// poolsT is what testing.T and rapid.T have in common.
type poolsT interface {
	require.TestingT
	Helper()
}

// pools has packets come to the two policies of buffers and leave, as pick decides: no
// pool is ever below zero or above what it has, each packet is counted once, a pause
// lifts when nothing waits, and where peers obey pauses, with what the headroom is for
// still under way, no packet of a lossless priority is dropped.
func pools(t poolsT, pick func(lo, hi int) int) {
	t.Helper()
	alphas := []float64{1. / 64, 0.1, 1, 3, 64}
	const longest = 4200
	c := &SwitchConfig{
		Name: "s", Buffer: pick(200_000, 2_000_000), Lossless: uint8(pick(0, 255)), Headroom: pick(longest, 20_000),
		Dynamic: &Dynamic{Alpha: alphas[pick(0, 4)], LossyAlpha: alphas[pick(0, 4)], Reserved: pick(0, 5000)},
	}
	obey := pick(0, 1) == 1
	ports := make([]PortInfo, pick(1, 8))
	for i := range ports {
		ports[i] = PortInfo{Rate: 100e9, Delay: time.Microsecond}
	}
	steps := pick(1, 300)
	type packet struct{ in, out, prio, size int }
	for _, b := range []BufferPolicy{newDynamic(c), &staticBuffer{cfg: c}} {
		if b.Resize(ports) != nil {
			continue // too small a buffer
		}
		var waiting []packet
		sum := 0
		asked, left := make([][8]bool, len(ports)), make([][8]int, len(ports))
		after := func(p packet) {
			sum := checkPools(t, b, sum)
			if sum > c.Buffer {
				require.Fail(t, "more than there is", "%d of %d bytes", sum, c.Buffer)
			}
			was := asked[p.in][p.prio]
			asked[p.in][p.prio] = b.Pause(p.in, p.prio, was)
			if asked[p.in][p.prio] && !was {
				left[p.in][p.prio] = c.Headroom - longest // one frame may have crossed the threshold
			}
		}
		for range steps {
			if len(waiting) == 0 || pick(0, 3) != 0 {
				p := packet{pick(0, len(ports)-1), pick(0, len(ports)-1), pick(0, 7), pick(64, longest)}
				if obey && asked[p.in][p.prio] {
					if left[p.in][p.prio] -= p.size; left[p.in][p.prio] < 0 {
						continue
					}
				}
				if b.Enqueue(p.in, p.out, p.prio, p.size) == Accept {
					waiting = append(waiting, p)
					sum += p.size
				} else {
					require.False(t, obey && c.Lossless>>p.prio&1 != 0, "%+v dropped from a lossless priority", p)
				}
				after(p)
			} else {
				i := pick(0, len(waiting)-1)
				p := waiting[i]
				waiting = append(waiting[:i], waiting[i+1:]...)
				b.Dequeue(p.in, p.out, p.prio, p.size)
				sum -= p.size
				after(p)
			}
		}
		for _, p := range waiting {
			b.Dequeue(p.in, p.out, p.prio, p.size)
			sum -= p.size
			checkPools(t, b, sum)
		}
		for in := range ports {
			for prio := range 8 {
				require.False(t, b.Pause(in, prio, true), "nothing waits")
				require.True(t, b.Lifts(in, prio, 0, 0))
			}
		}
	}
}

// checkPools checks the pools of b, in which sum bytes wait, and returns sum.
func checkPools(t require.TestingT, b BufferPolicy, sum int) int {
	all, good := 0, true // one assertion a call: they cost more than what they assert
	switch b := b.(type) {
	case *dynamicBuffer:
		shared := 0
		for i := range b.in {
			for prio, u := range b.in[i] {
				good = good && u.reserved >= 0 && u.shared >= 0 && u.head >= 0 &&
					u.reserved <= b.cfg.Dynamic.Reserved && u.head <= b.head[i] && b.out[i][prio] >= 0
				shared += u.shared
				all += u.reserved + u.shared + u.head
			}
		}
		good = good && shared == b.sharedUsed && shared <= b.shared
	case *staticBuffer:
		for i := range b.bytes {
			for prio, n := range b.bytes[i] {
				good = good && n >= 0 && (b.cfg.Lossless>>prio&1 == 0 || n <= b.room[i])
				all += int(n)
			}
		}
		good = good && b.lossyUsed >= 0 && b.lossyUsed <= b.lossy
	}
	if !good || all != sum {
		require.Fail(t, "pools", "%+v, in which %d bytes wait", b, sum)
	}
	return sum
}

func TestBufferPools(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		pools(t, func(lo, hi int) int { return rapid.IntRange(lo, hi).Draw(t, "n") })
	})
}

// FuzzBuffers is TestBufferPools with choices from bytes.
func FuzzBuffers(f *testing.F) {
	for _, seed := range []string{"", "\xff\xff\xff\x08\xff\xff\x01\x01\x00\x00\x01\x00\x01\xff\xff", "buffers, priorities and pauses"} {
		f.Add([]byte(seed))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) > 4000 {
			return
		}
		at := 0
		pools(t, func(lo, hi int) int {
			v := 0
			for span := hi - lo; span > 0 && at < len(b); span >>= 8 {
				v = v<<8 | int(b[at])
				at++
			}
			return lo + v%(hi-lo+1)
		})
	})
}
