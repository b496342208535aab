package softnic_test

import (
	"encoding/binary"
	"flag"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/cnp"
	"github.com/roce-go/roce/crc"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/internal/testenv"
	"github.com/roce-go/roce/qp/softnic"
)

var long = flag.Bool("long", false, "TestStorm: ten million frames instead of one")

// victim is a port with QPs of every kind that the frames of the captures find:
// Linux numbers its QPs from 0x11, as a port does.
type victim struct {
	t    testing.TB
	port *softnic.Port
	now  time.Time
	qps  []*softnic.QP
	ahs  []qp.AHAttr
	cq   *softnic.CQ
	srq  *softnic.SRQ
	mem  []byte
	key  uint32
	bufs [64][]byte
	buf  []byte
	out  int // frames that it sent

	// What lies around the region, and must stay.
	around []byte
}

const wall = 4096

func newVictim(t testing.TB) *victim {
	v := &victim{t: t, now: start, cq: softnic.NewCQ(), around: make([]byte, 2*wall+65536)}
	v.mem = v.around[wall : wall+65536]
	regs, err := qp.NewRegions(16)
	require.NoError(t, err)
	params := cnp.NVIDIA()
	v.port = onePort(t, 1, softnic.Config{Regions: regs, Control: cnp.Controller(params), MaxNeighbors: 64}, "192.0.2.1", "192.0.2.2", "2001:db8::1", "2001:db8::2")
	v.key, err = regs.Register(qp.Region{Data: v.mem, Addr: 0x10000, Access: qp.RemoteRead | qp.RemoteWrite | qp.RemoteAtomic | qp.FlushGlobal})
	require.NoError(t, err)
	v.srq, err = v.port.CreateSRQ(64, 3)
	require.NoError(t, err)
	for i := range v.bufs {
		v.bufs[i] = make([]byte, 5000)
	}
	for i, typ := range []qp.Type{qp.RC, qp.RC, qp.RC, qp.RC, qp.UC, qp.UC, qp.UD, qp.XRCSend, qp.XRCRecv, qp.RC} {
		c := qp.Config{Type: typ, MaxSendWR: 8, MaxRecvWR: 16, MaxRdAtomic: 4, MaxDestRdAtomic: 4}
		q, err := v.port.CreateQP(softnic.QPConfig{Config: c, SendCQ: v.cq, RecvCQ: v.cq, XRCD: 3})
		require.NoError(t, err)
		ah := qp.AHAttr{GID: gidOf([]string{"192.0.2.2", "192.0.2.1", "2001:db8::2", "2001:db8::1"}[i%4]), SGIDIndex: uint8(i%4/2) * 2, MAC: peerMAC}
		v.qps, v.ahs = append(v.qps, q), append(v.ahs, ah)
	}
	require.NoError(t, v.qps[6].AttachMulticast(netip.MustParseAddr("239.1.1.1")))
	v.revive()
	return v
}

// revive connects all QPs again and posts work.
func (v *victim) revive() {
	for i, q := range v.qps {
		must(v.t, q.Modify(v.now, &qp.Attr{State: qp.Reset}, qp.AttrState))
		a := qp.Attr{PKey: 0xffff, QKey: 0x11111111, Access: 0xff, PathMTU: 1024, DestQPN: 0x11, AH: v.ahs[i], RQPSN: 100, SQPSN: 100,
			MaxDestRdAtomic: 4, MaxRdAtomic: 4, MinRNRTimer: 1, Timeout: 8, RetryCnt: 7, RNRRetry: 7}
		must(v.t, q.Connect(v.now, &a))
		if q.Type() != qp.XRCSend && q.Type() != qp.XRCRecv {
			for k := range 4 {
				must(v.t, q.PostRecv(&qp.RecvWR{ID: uint64(k), Local: v.bufs[4*i+k]}))
			}
		}
		if q.Type() == qp.RC || q.Type() == qp.XRCSend {
			for _, op := range []qp.Op{qp.OpSend, qp.OpRead, qp.OpFetchAdd} {
				must(v.t, q.PostSend(v.now, &qp.SendWR{Op: op, Flags: qp.Signaled, Local: v.bufs[4*i][:3000], RemoteAddr: 0x10000, RKey: 5}))
			}
		}
	}
	for v.srq.Len() < 32 {
		must(v.t, v.srq.PostRecv(&qp.RecvWR{Local: v.bufs[63]}))
	}
}

// must is require.NoError without what that allocates.
func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}

// settle sends, ticks and polls. It returns the number of frames sent.
func (v *victim) settle() (sent int) {
	for {
		b, ok := v.port.NextFrame(v.now, v.buf[:0])
		if !ok {
			break
		}
		v.buf = b
		sent++
		if sent > 1000 {
			v.t.Fatal("a frame makes the port send without end")
		}
	}
	if d, ok := v.port.Deadline(); ok && !d.After(v.now) {
		v.port.Tick(v.now)
	}
	var wc qp.Completion
	for v.cq.Poll(&wc) {
	}
	var e softnic.Event
	for v.port.NextEvent(&e) {
	}
	v.out += sent
	return sent
}

func (v *victim) check() {
	for i, b := range v.around {
		if b != 0 && (i < wall || i >= wall+len(v.mem)) {
			v.t.Fatalf("byte %d around the region was written", i-wall)
		}
	}
}

// totals sums what the QPs counted of packets: unchanged means that none saw one.
func (v *victim) totals() (n uint64) {
	for _, q := range v.qps {
		c := q.Counters()
		n += c.RxPackets + c.TxPackets + c.Retransmitted
	}
	return n
}

// mutator changes frames by a seed.
type mutator struct {
	rng  *rand.Rand
	all  [][]byte
	buf  []byte
	v    *victim
	find frame.Frame
}

// next returns a changed frame, valid until the next call.
func (m *mutator) next() []byte {
	r := m.rng
	b := append(m.buf[:0], m.all[r.IntN(len(m.all))]...)
	copy(b, []byte{0x52, 0x54, 0, 0, 0, 1})
	found := (frame.Finder{}).Find(frame.Ethernet, b, len(b), &m.find) == nil
	if found && r.IntN(4) != 0 {
		// To a QP that there is, with what fits it.
		h := m.find.Transport
		q := m.v.qps[r.IntN(len(m.v.qps))]
		binary.BigEndian.PutUint32(h[4:], q.Num())
		if r.IntN(2) == 0 {
			binary.BigEndian.PutUint32(h[8:], uint32(h[8])<<24|(100+uint32(r.IntN(6))))
		}
		if op := h[0] & 0x1f; len(h) > 32 && (op == 6 || op == 10 || op == 11 || op == 12 || op == 0x13 || op == 0x14) && r.IntN(2) == 0 {
			binary.BigEndian.PutUint64(h[12:], 0x10000+r.Uint64N(65536+64)-32)
			binary.BigEndian.PutUint32(h[20:], m.v.key)
		}
	}
	for range r.IntN(4) {
		i := r.IntN(len(b))
		switch r.IntN(6) {
		case 0:
			b[i] ^= 1 << r.IntN(8)
		case 1:
			b[i] = byte(r.Uint32())
		case 2:
			b = b[:i+1]
		case 3:
			o := m.all[r.IntN(len(m.all))]
			copy(b[i:], o[min(i, len(o)-1):])
		case 4:
			b = append(b, b[i:min(len(b), i+40)]...)
		case 5:
			if found {
				m.find.Transport[0] = byte(r.Uint32()) // another opcode
			}
		}
	}
	if r.IntN(4) != 0 && (frame.Finder{}).Find(frame.Ethernet, b, len(b), &m.find) == nil && !m.find.Truncated() && len(m.find.NetPacket) > 24 {
		n := len(m.find.NetPacket) - crc.Size
		binary.LittleEndian.PutUint32(m.find.NetPacket[n:], crc.Sum(m.find.NetPacket[:n]))
	}
	m.buf = b
	return b
}

// TestStorm hands a port mutated frames of the captures by the million: no panic,
// no memory, nothing written outside of the region, and a packet with a bad ICRC
// moves nothing but a counter.
func TestStorm(t *testing.T) {
	n := 1_000_000
	switch {
	case *long:
		n *= 10
	case testing.Short() || testenv.Allocates:
		n = 50_000
	}
	v := newVictim(t)
	m := &mutator{rng: rand.New(rand.NewPCG(1, 2)), all: allCaptures(t), buf: make([]byte, 0, 1<<16), v: v}
	v.buf = make([]byte, 0, 1<<16)
	var results [softnic.NoQP + 1]int
	run := func(n int) {
		for i := range n {
			if i%256 == 0 {
				v.revive()
			}
			v.settle()
			before, saw := v.port.Counters(), v.totals()
			r := v.port.HandleFrame(v.now, m.next())
			results[r]++
			if r == softnic.BadICRC {
				before.RxFrames++
				before.RxICRCEncapsulated++
				if v.port.Counters() != before || v.totals() != saw {
					t.Fatal("a packet with a bad ICRC was looked at")
				}
				if sent := v.settle(); sent != 0 {
					t.Fatalf("after a packet with a bad ICRC the port sent %d frames", sent)
				}
			}
			v.now = v.now.Add(time.Duration(m.rng.IntN(3000)))
		}
	}
	run(1000)
	got := testenv.Mallocs(func() { run(n) })
	v.check()
	t.Logf("delivered %d, answered %d, not RoCE %d, malformed %d, bad ICRC %d, wrong address %d, no QP %d; %d frames sent; %d allocations",
		results[softnic.Delivered], results[softnic.Answered], results[softnic.NotRoCE], results[softnic.Malformed],
		results[softnic.BadICRC], results[softnic.WrongAddress], results[softnic.NoQP], v.out, got)
	for r, k := range results {
		if r != int(softnic.Answered) {
			require.Greater(t, k, n/1000, "the storm is one-sided")
		}
	}
	if !testenv.Allocates {
		// The table of hardware addresses may grow to its bound, and the runtime has
		// its own.
		require.Less(t, got, uint64(100))
	}
}

// FuzzHandleFrame feeds a port with QPs of every kind two frames, whose ICRCs are
// repaired where the first byte says so.
func FuzzHandleFrame(f *testing.F) {
	for i, b := range allCaptures(f) {
		if i%40 == 0 {
			f.Add(uint8(i), b, b)
		}
	}
	f.Fuzz(func(t *testing.T, how uint8, a, b []byte) {
		v := newVictim(t)
		v.buf = make([]byte, 0, 1<<16)
		for i, b := range [][]byte{a, b} {
			b = append([]byte(nil), b...)
			var fr frame.Frame
			if how>>i&1 == 0 && (frame.Finder{}).Find(frame.Ethernet, b, len(b), &fr) == nil && !fr.Truncated() && len(fr.NetPacket) > 24 {
				if how>>2&1 == 0 {
					copy(b, []byte{0x52, 0x54, 0, 0, 0, 1})
					binary.BigEndian.PutUint32(fr.Transport[4:], v.qps[int(how>>3)%len(v.qps)].Num())
				}
				n := len(fr.NetPacket) - crc.Size
				binary.LittleEndian.PutUint32(fr.NetPacket[n:], crc.Sum(fr.NetPacket[:n]))
			}
			v.port.HandleFrame(v.now, b)
			v.settle()
			v.now = v.now.Add(time.Millisecond)
		}
		for range 50 {
			d, ok := v.port.Deadline()
			if !ok {
				break
			}
			v.now = d
			v.port.Tick(v.now)
			if d, ok := v.port.Deadline(); ok && !d.After(v.now) {
				t.Fatal("after Tick the deadline is not later than now")
			}
			v.settle()
		}
		v.check()
	})
}
