package qp_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"hash/crc32"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp"
)

// transmit takes the packets of the QP and gives them to the link.
func (e *hostileEnd) transmit() {
	w := e.w
	p := w.plan
	for n := 0; ; n++ {
		if p.Gap != 0 && e.gapUntil > w.now {
			e.wake(e.gapUntil)
			return
		}
		if !e.q.NextPacket(w.time(), &w.out) {
			return
		}
		if n > 1000 {
			w.fail("%v: packets without end", e)
			return
		}
		e.gapUntil = w.now + p.Gap
		pk := &w.out.Packet
		if err := pk.Validate(); err != nil {
			w.fail("%v: built an invalid packet: %v", e, err)
		}
		if pk.Opcode.Class() == bth.Request {
			e.checkRequest(pk, w.out.Retransmission)
		}
		e.send(pk)
	}
}

// checkRequest holds what is sent against what was sent before with the same PSN
// (rule RQ-16).
func (e *hostileEnd) checkRequest(p *bth.Packet, again bool) {
	w := e.w
	n := psn.Unwrap(e.sent+1<<24, psn.PSN(uint32(p.PSN)-uint32(e.firstPSN))&psn.Mask) - 1<<24
	if again != (n < e.sent) {
		w.fail("%v: PSN %v: retransmission is %v, %d PSNs sent, this is %d", e, p.PSN, again, e.sent, n)
	}
	if n > e.sent {
		w.fail("%v: PSN %v: gap", e, p.PSN)
	}
	if p.Opcode.Operation() == bth.ReadRequest {
		for i := len(e.reads) - 1; i >= 0; i-- {
			r := e.reads[i]
			if n < r.first || n >= r.first+uint64(r.n) {
				continue
			}
			skip := uint32(n-r.first) * uint32(w.plan.MTU)
			if p.RETH.VA != r.va+uint64(skip) || p.RETH.DMALen != r.len-skip {
				w.fail("%v: READ at PSN %v resumed at another place (rule RQ-27)", e, p.PSN)
			}
			return
		}
		cnt := max(1, (p.RETH.DMALen+uint32(w.plan.MTU)-1)/uint32(w.plan.MTU))
		e.reads = append(e.reads, sentRead{n, cnt, p.RETH.VA, p.RETH.DMALen})
		e.sent = max(e.sent, n+uint64(cnt))
		return
	}
	h := *p
	h.AckReq = false
	var buf [bth.MaxHeaderSize]byte
	sum := crc32.Update(crc32.ChecksumIEEE(h.AppendHeadersTo(buf[:0])), crc32.IEEETable, p.Payload)
	if old, ok := e.sums[n]; ok && old != sum {
		w.fail("%v: PSN %v sent again with other content (rule RQ-16)", e, p.PSN)
	}
	e.sums[n] = sum
	e.sent = max(e.sent, n+1)
}

// send lets the link do its worst.
func (e *hostileEnd) send(pk *bth.Packet) {
	w := e.w
	p := w.plan
	w.packets++
	w.f = frame.Frame{Link: frame.Ethernet, Net: frame.IPv4, Src: hostileAddr[e.side], Dst: hostileAddr[1-e.side], SrcPort: 0xc123, DF: true, HopLimit: 64, Packet: *pk}
	b := w.f.AppendTo(w.bytes())
	sum := crc32.ChecksumIEEE(b)
	w.mix(2, uint64(w.now), uint64(sum))

	copies := 1
	fate := ""
	if w.burst > 0 {
		w.burst--
		copies, fate = 0, "lost"
	} else if w.chance(p.Loss) {
		w.burst = p.Burst
		copies, fate = 0, "lost"
	} else if w.chance(p.Dup) {
		copies, fate = 2+w.rng.IntN(2), "multiplied"
	}
	if w.trace != nil {
		w.logf("%v > %v PSN %v ack %v syn %#x msn %d va %#x len %d payload %d %s", e, pk.Opcode, pk.PSN, pk.AckReq, uint8(pk.AETH.Syndrome), pk.AETH.MSN, pk.RETH.VA, pk.RETH.DMALen, len(pk.Payload), fate)
	}
	for i := range copies {
		at := w.now + p.Delay
		if p.Jitter > 0 {
			at += w.rng.Int64N(p.Jitter)
		}
		if i > 0 && w.rng.IntN(2) == 0 {
			at += w.rng.Int64N(1_000_000) // a straggler
		}
		f := flying{at: at, to: e.peer, b: b}
		if i+1 < copies {
			f.b = append(w.bytes(), b...)
		}
		if w.chance(p.Corrupt) {
			f.bad = true
			for range 1 + w.rng.IntN(3) {
				f.b[w.rng.IntN(len(f.b))] ^= 1 << w.rng.IntN(8)
			}
		}
		w.push(f)
	}
}

func (w *hostileWorld) bytes() []byte { return make([]byte, 0, w.plan.MTU+128) }

var hostileAddr = [2]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}

// deliver decodes a frame, checks its ICRC and hands it to the QP.
func (w *hostileWorld) deliver(f flying) {
	err := w.f.Decode(frame.Ethernet, f.b)
	if err == nil && w.f.CheckICRC() != frame.ICRCGood {
		err = errICRC
	}
	e := f.to
	if err != nil {
		if !f.bad {
			w.fail("a frame that nobody changed: %v", err)
		}
		w.logf("%v < dropped: %v", e, err)
		return
	}
	v := e.q.HandlePacket(w.time(), &w.f.Packet, nil)
	w.mix(5, uint64(w.now), uint64(v))
	if w.trace != nil {
		w.logf("%v < %v PSN %v: %v", e, w.f.Packet.Opcode, w.f.Packet.PSN, v)
	}
}

var errICRC = errors.New("ICRC")

func (w *hostileWorld) less(i, j int) bool {
	a, b := &w.wires[i], &w.wires[j]
	return a.at < b.at || a.at == b.at && a.seq < b.seq
}

func (w *hostileWorld) push(f flying) {
	w.seq++
	f.seq = w.seq
	w.wires = append(w.wires, f)
	for i := len(w.wires) - 1; i > 0 && w.less(i, (i-1)/2); i = (i - 1) / 2 {
		w.wires[i], w.wires[(i-1)/2] = w.wires[(i-1)/2], w.wires[i]
	}
}

func (w *hostileWorld) pop() flying {
	f := w.wires[0]
	n := len(w.wires) - 1
	w.wires[0] = w.wires[n]
	w.wires = w.wires[:n]
	for i := 0; ; {
		c := 2*i + 1
		if c >= n {
			return f
		}
		if c+1 < n && w.less(c+1, c) {
			c++
		}
		if !w.less(c, i) {
			return f
		}
		w.wires[i], w.wires[c] = w.wires[c], w.wires[i]
		i = c
	}
}

// Rules UC-1, UC-2: over a link that loses packets, messages arrive whole and in
// order, or not at all; over one that also repeats and delays them, whole. What
// was lost holds up nothing, and each message that arrived used up one receive.
func TestHostileUC(t *testing.T) {
	const mtu, messages = 256, 60
	arrived := 0
	for seed := range uint64(300) {
		rng := rand.New(rand.NewPCG(seed, 3))
		lossOnly := seed%2 == 0
		var qs [2]*qp.QP
		for i := range qs {
			var err error
			qs[i], err = qp.New(qp.Config{Type: qp.UC, QPN: uint32(i + 1), MaxSendWR: 4, MaxRecvWR: messages * 4, SignalAll: true})
			require.NoError(t, err)
			a := qp.Attr{PKey: 0xffff, PathMTU: mtu, DestQPN: uint32(2 - i), RQPSN: 0xfffff0, SQPSN: 0xfffff0}
			require.NoError(t, qs[i].Connect(foundStart, &a))
		}
		bufs := make([][]byte, messages*4)
		for i := range bufs {
			bufs[i] = make([]byte, 4*mtu+8)
			require.NoError(t, qs[1].PostRecv(&qp.RecvWR{ID: uint64(i), Local: bufs[i]}))
		}
		var sent [][]byte
		var late []bth.Packet
		var out qp.Outgoing
		var c qp.Completion
		last, used := -1, 0
		take := func() {
			for qs[1].NextCompletion(&c) {
				require.Equal(t, qp.Success, c.Status)
				require.EqualValues(t, used, c.ID, "seed %d: receives are used in order, one for a message", seed)
				used++
				got := bufs[c.ID][:c.ByteLen]
				k := int(binary.LittleEndian.Uint32(got))
				require.Less(t, k, len(sent))
				require.True(t, bytes.Equal(sent[k], got), "seed %d: message %d arrived damaged", seed, k)
				if lossOnly {
					require.Greater(t, k, last, "seed %d: order", seed)
				}
				last = k
				arrived++
			}
		}
		for k := range messages {
			b := make([]byte, 4+rng.IntN(4*mtu))
			for i := range b {
				b[i] = byte(rng.Uint32())
			}
			binary.LittleEndian.PutUint32(b, uint32(k))
			sent = append(sent, b)
			require.NoError(t, qs[0].PostSend(foundStart, &qp.SendWR{ID: uint64(k), Local: b}))
			for qs[0].NextPacket(foundStart, &out) {
				require.False(t, out.Packet.AckReq)
				switch n := rng.IntN(20); {
				case n < 2:
				case n < 4 && !lossOnly:
					p := out.Packet
					p.Payload = bytes.Clone(p.Payload)
					late = append(late, p)
				case n < 6 && !lossOnly:
					qs[1].HandlePacket(foundStart, &out.Packet, nil)
					fallthrough
				default:
					qs[1].HandlePacket(foundStart, &out.Packet, nil)
				}
				if len(late) > 0 && rng.IntN(3) == 0 {
					qs[1].HandlePacket(foundStart.Add(time.Second), &late[0], nil)
					late = late[1:]
				}
				take()
			}
			require.True(t, qs[0].NextCompletion(&c), "a send is complete when its last packet is out")
			require.EqualValues(t, k, c.ID)
			require.Equal(t, qp.Success, c.Status)
		}
		require.False(t, qs[1].NextPacket(foundStart, &out), "UC has no responses")
		require.Equal(t, qp.RTS, qs[1].State())
	}
	require.Greater(t, arrived, 300*messages/3)
}
