package endpoint

import (
	"encoding/binary"
	"math/rand/v2"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

// splitter returns a packet transport that receives nothing by itself.
func splitter() *packet {
	p := &packet{recv: newBatch(nil, false)}
	p.recv.apart = p.takeApart
	return p
}

// Frames with any headers that claim to stand for many packets, tagged or not: each packet is
// within what was received, and nothing panics.
func TestTakeApartAnything(t *testing.T) {
	p := splitter()
	r := rand.New(rand.NewPCG(1, 2))
	rounds := 50_000
	if testing.Short() {
		rounds = 5_000
	}
	apart := 0
	for range rounds {
		p.recv.got = p.recv.got[:0]
		received := 0
		for i := range 2 {
			b, n := p.recv.bufs[i][headRoom:], r.IntN(400)
			received += n
			for k := range n {
				b[k] = byte(r.Uint32())
			}
			b[1] = vnetUDP
			binary.NativeEndian.PutUint16(b[4:], uint16(r.IntN(60)))
			at := vnetSize + 12
			for range r.IntN(4) {
				b[at], b[at+1] = 0x81, 0
				at += 4
			}
			if r.IntN(2) == 0 {
				b[at], b[at+1], b[at+2], b[at+11] = 8, 0, 0x40|byte(r.IntN(16)), 17
			} else {
				b[at], b[at+1], b[at+2], b[at+8] = 0x86, 0xdd, 0x60, 17
			}
			m := &p.recv.msgs[i]
			m.n = uint32(n)
			m.hdr.SetControllen(0)
			if r.IntN(2) == 0 {
				c := &p.recv.ctls[i]
				m.hdr.SetControllen(syscall.CmsgLen(20))
				c.hdr.Level, c.hdr.Type = syscall.SOL_PACKET, packetAuxdata
				c.data[0] = statusVLANValid
			}
			p.takeApart(i)
		}
		sum := 0
		for i := range p.recv.got {
			f := p.frame(i)
			require.GreaterOrEqual(t, len(f), 14)
			if h := p.recv.got[i].header; h != 0 {
				f = f[h:]
				apart++
			}
			sum += len(f)
		}
		require.LessOrEqual(t, sum, received)
	}
	require.Greater(t, apart, rounds/10)
}
