package conform_test

import (
	"container/heap"
	"hash/crc32"
	"math/rand/v2"
	"net/netip"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/crc"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/conform"
	"github.com/roce-go/roce/qp/softnic"
)

// stream makes n messages of three packets of 1 KiB, each acknowledged, of one
// connection, from the first SEND of rc-mixed.
func stream(tb testing.TB, n int) [][]byte {
	base := load(tb, "rc-mixed")
	var out [][]byte
	var req, ack frame.Frame
	require.NoError(tb, req.Decode(frame.Ethernet, base[8].data))
	require.NoError(tb, ack.Decode(frame.Ethernet, base[11].data))
	p := psn.PSN(0xfffff0)
	for i := range n {
		for j, op := range []bth.Opcode{bth.RCSendFirst, bth.RCSendMiddle, bth.RCSendLast} {
			req.Packet.Opcode, req.Packet.PSN, req.Packet.AckReq = op, p, j == 2
			req.ID++
			out = append(out, req.AppendTo(nil))
			p = p.Add(1)
		}
		ack.Packet.PSN, ack.Packet.AETH.MSN = p.Add(-1), uint32(i+1)&psn.Mask
		ack.ID++
		out = append(out, ack.AppendTo(nil))
	}
	return out
}

// BenchmarkHandleFrame is the time of a frame of a mix of three data packets of
// 1 KiB and one acknowledgement; ICRC and CRC-32C alone and Decode alone are for
// comparison.
func BenchmarkHandleFrame(b *testing.B) {
	frames := stream(b, 4096)
	size := 0
	for _, f := range frames {
		size += len(f)
	}
	size /= len(frames)
	b.Run("watch", func(b *testing.B) {
		w, err := conform.New(conform.Config{})
		require.NoError(b, err)
		var f conform.Finding
		b.ReportAllocs()
		b.SetBytes(int64(size))
		now := time.Unix(1, 0)
		i := 0
		for b.Loop() {
			if i == len(frames) {
				b.StopTimer() // PSNs begin again
				w, err = conform.New(conform.Config{})
				require.NoError(b, err)
				i = 0
				b.StartTimer()
			}
			now = now.Add(time.Microsecond)
			w.HandleFrame(now, frame.Ethernet, frames[i], len(frames[i]))
			for w.NextFinding(&f) {
			}
			i++
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.SetBytes(int64(size))
		var f frame.Frame
		i := 0
		for b.Loop() {
			if i == len(frames) {
				i = 0
			}
			_ = f.Decode(frame.Ethernet, frames[i])
			i++
		}
	})
	b.Run("icrc", func(b *testing.B) {
		b.SetBytes(int64(size))
		i := 0
		for b.Loop() {
			if i == len(frames) {
				i = 0
			}
			_ = crc.Check(frames[i][14:])
			i++
		}
	})
	b.Run("crc32c", func(b *testing.B) {
		b.SetBytes(int64(size))
		table := crc32.MakeTable(crc32.Castagnoli)
		i := 0
		for b.Loop() {
			if i == len(frames) {
				i = 0
			}
			_ = crc32.Checksum(frames[i], table)
			i++
		}
	})
}

// TestStream: what the benchmark feeds is clean.
func TestStream(t *testing.T) {
	frames := stream(t, 1000)
	var recs []rec
	for i, f := range frames {
		recs = append(recs, rec{time.Unix(1, int64(i)*1000), f, len(f)})
	}
	w, all := watch(t, conform.Config{Complete: true}, slices.Clone(recs))
	require.Empty(t, all)
	total := w.Total()
	require.EqualValues(t, 1000, total.MessagesDone)
}

// wire is two ports with a tap between them, in virtual time. What a port sends
// and what it gets passes through functions that may change it, which makes a port
// break any rule: hook gets a frame and returns what is sent instead of it.
type wire struct {
	tb    testing.TB
	rng   *rand.Rand
	now   time.Time
	ports [2]*softnic.Port
	qps   [2]*softnic.QP
	cq    *softnic.CQ
	out   [2]hook
	in    [2]hook
	loss  [2]float64 // behind the tap, towards host 0 and 1
	ids   bool       // the IPv4 identification counts
	id    [2]uint16
	busy  [2]time.Time // until when a host's link sends
	queue flights
	seq   int
	tape  []rec
	done  int
	va    uint64
	key   uint32
	cva   uint64
	ckey  uint32
}

type hook func(f *frame.Frame) []*frame.Frame

// flight is a frame on its way: first to the tap, then to its receiver.
type flight struct {
	at   time.Time
	seq  int
	to   int
	seen bool
	b    []byte
	call func()
}

type flights []flight

func (q flights) Len() int { return len(q) }
func (q flights) Less(i, j int) bool {
	if c := q[i].at.Compare(q[j].at); c != 0 {
		return c < 0
	}
	return q[i].seq < q[j].seq
}
func (q flights) Swap(i, j int) { q[i], q[j] = q[j], q[i] }
func (q *flights) Push(x any)   { *q = append(*q, x.(flight)) }
func (q *flights) Pop() any {
	f := (*q)[len(*q)-1]
	*q = (*q)[:len(*q)-1]
	return f
}

const wireMTU = 1024

func newWire(tb testing.TB, seed uint64, set func(i int, c *softnic.QPConfig, a *qp.Attr)) *wire {
	w := &wire{tb: tb, rng: rand.New(rand.NewPCG(seed, 9)), now: time.Unix(1_900_000_000, 0), cq: softnic.NewCQ(), va: 0x10000, cva: 0x80000}
	var regions [2]*qp.Regions
	for i := range w.ports {
		var err error
		regions[i], err = qp.NewRegions(8)
		require.NoError(tb, err)
		w.ports[i], err = softnic.New(softnic.Config{MAC: frame.MAC{2, 5: byte(i + 1)}, GIDs: []softnic.GID{{Addr: hostAddr(i)}}, Regions: regions[i]})
		require.NoError(tb, err)
	}
	var err error
	w.key, err = regions[1].Register(qp.Region{Data: make([]byte, 16384), Addr: w.va, Access: qp.RemoteWrite | qp.RemoteRead})
	require.NoError(tb, err)
	w.ckey, err = regions[1].Register(qp.Region{Data: make([]byte, 8), Addr: w.cva, Access: qp.RemoteAtomic})
	require.NoError(tb, err)
	attrs := [2]qp.Attr{}
	for i, p := range w.ports {
		c := softnic.QPConfig{Config: qp.Config{MaxSendWR: 256, MaxRecvWR: 256, MaxRdAtomic: 4, MaxDestRdAtomic: 4, LinuxRetryForever: true, AckEvery: 4}, SendCQ: w.cq}
		a := &attrs[i]
		gid := hostAddr(1 - i).As16()
		*a = qp.Attr{PKey: 0xffff, Access: qp.RemoteWrite | qp.RemoteRead | qp.RemoteAtomic, PathMTU: wireMTU,
			AH: qp.AHAttr{GID: gid, MAC: frame.MAC{2, 5: byte(2 - i)}}, SQPSN: psn.PSN(1000 * (i + 1)), RQPSN: psn.PSN(1000 * (2 - i)),
			MaxDestRdAtomic: 4, MaxRdAtomic: 4, MinRNRTimer: 12, Timeout: 14, RetryCnt: 7, RNRRetry: 7}
		if set != nil {
			set(i, &c, a)
		}
		w.qps[i], err = p.CreateQP(c)
		require.NoError(tb, err)
	}
	for i, q := range w.qps {
		attrs[i].DestQPN = w.qps[1-i].Num()
		require.NoError(tb, q.Connect(w.now, &attrs[i]))
	}
	return w
}

func hostAddr(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 0, 2, byte(i + 1)}) }

func (w *wire) push(f flight) {
	w.seq++
	f.seq = w.seq
	heap.Push(&w.queue, f)
}

func (w *wire) after(d time.Duration, call func()) { w.push(flight{at: w.now.Add(d), call: call}) }

// through lets b pass a hook.
func (w *wire) through(h hook, b []byte) [][]byte {
	var f frame.Frame
	if h == nil || f.Decode(frame.Ethernet, b) != nil || f.Packet.Opcode.Service() != bth.RC {
		return [][]byte{b}
	}
	f.Packet.Payload = append([]byte(nil), f.Packet.Payload...)
	var out [][]byte
	for _, g := range h(&f) {
		out = append(out, g.AppendTo(nil))
	}
	return out
}

// send puts on the wire what the ports have to send.
func (w *wire) send() {
	for i, p := range w.ports {
		for {
			b, ok := p.NextFrame(w.now, nil)
			if !ok {
				break
			}
			for _, b := range w.through(w.out[i], b) {
				w.emit(i, b)
			}
		}
	}
}

// emit puts a frame of host i on the wire.
func (w *wire) emit(i int, b []byte) {
	at := w.now
	if w.busy[i].After(at) {
		at = w.busy[i]
	}
	w.busy[i] = at.Add(100)
	if w.ids {
		var f frame.Frame
		if f.Decode(frame.Ethernet, b) == nil {
			w.id[i]++
			f.ID = w.id[i]
			b = f.AppendTo(nil)
		}
	}
	w.push(flight{at: at.Add(2 * us), to: 1 - i, b: b})
}

// run lets time pass until nothing is left to do, or for limit.
func (w *wire) run(limit time.Duration) {
	end := w.now.Add(limit)
	for {
		w.send()
		next, ok := end, false
		if len(w.queue) > 0 && w.queue[0].at.Before(next) {
			next, ok = w.queue[0].at, true
		}
		for _, p := range w.ports {
			if d, has := p.Deadline(); has && d.Before(next) {
				next, ok = d, true
			}
		}
		if !ok {
			return
		}
		if next.After(w.now) {
			w.now = next
		}
		for len(w.queue) > 0 && !w.queue[0].at.After(w.now) {
			f := heap.Pop(&w.queue).(flight)
			switch {
			case f.call != nil:
				f.call()
			case !f.seen:
				if len(f.b) < 60 {
					f.b = append(f.b, make([]byte, 60-len(f.b))...)
				}
				w.tape = append(w.tape, rec{f.at, f.b, len(f.b)})
				if w.rng.Float64() >= w.loss[f.to] {
					w.push(flight{at: f.at.Add(2 * us), to: f.to, seen: true, b: f.b})
				}
			default:
				for _, b := range w.through(w.in[f.to], f.b) {
					w.ports[f.to].HandleFrame(w.now, b)
				}
			}
		}
		for _, p := range w.ports {
			p.Tick(w.now)
		}
		var wc qp.Completion
		for w.cq.Poll(&wc) {
			w.done++
		}
	}
}

// work posts a round of all operations.
func (w *wire) work(late bool) {
	msg := make([]byte, 3000)
	for i := range msg {
		msg[i] = byte(w.rng.Uint32())
	}
	post := func(wr qp.SendWR) {
		wr.Flags = qp.Signaled
		_ = w.qps[0].PostSend(w.now, &wr) // a QP that the fault has broken refuses it
	}
	give := func() {
		for range 3 {
			_ = w.qps[1].PostRecv(&qp.RecvWR{Local: make([]byte, 3000)})
		}
	}
	if late {
		w.after(900*us, give)
	} else {
		give()
	}
	post(qp.SendWR{Op: qp.OpSend, Local: msg[:102]})
	post(qp.SendWR{Op: qp.OpWrite, Local: msg, RemoteAddr: w.va, RKey: w.key})
	post(qp.SendWR{Op: qp.OpWriteImm, Local: msg[:1500], RemoteAddr: w.va, RKey: w.key})
	post(qp.SendWR{Op: qp.OpRead, Local: make([]byte, 2500), RemoteAddr: w.va, RKey: w.key})
	post(qp.SendWR{Op: qp.OpSend, Local: msg[:3000]})
	post(qp.SendWR{Op: qp.OpFetchAdd, Local: make([]byte, 8), RemoteAddr: w.cva, RKey: w.ckey, CompareAdd: 1})
	post(qp.SendWR{Op: qp.OpWrite, Local: msg[:64], RemoteAddr: w.va, RKey: w.key})
	post(qp.SendWR{Op: qp.OpRead, Local: make([]byte, 64), RemoteAddr: w.va, RKey: w.key})
}

// Frames of flows that were seen before allocate nothing, whatever they hold:
// counted over every capture, findings and malformed packets included.
func TestNoAllocation(t *testing.T) {
	var recs []rec
	for _, name := range names(t) {
		recs = append(recs, load(t, name)...)
	}
	w, err := conform.New(conform.Config{})
	require.NoError(t, err)
	var f conform.Finding
	play := func() {
		for _, r := range recs {
			w.HandleFrame(r.ts, frame.Ethernet, r.data, r.wire)
			for w.NextFinding(&f) {
			}
		}
	}
	play()
	play()
	// The runtime itself may allocate a little meanwhile: the least of several counts.
	least := uint64(1 << 32)
	for range 5 {
		var before, after runtime.MemStats
		runtime.GC()
		runtime.ReadMemStats(&before)
		for range 10 {
			play()
		}
		runtime.ReadMemStats(&after)
		least = min(least, after.Mallocs-before.Mallocs)
	}
	require.Less(t, least, uint64(10))
}

// Memory is bounded by MaxFlows: a million frames, each of a flow of its own,
// of which 64 are kept.
func TestManyFlows(t *testing.T) {
	base := load(t, "rc-mixed")[12:16]
	var closed int
	var sum conform.Counters
	w, err := conform.New(conform.Config{MaxFlows: 64, Window: 16, Closed: func(f *conform.Flow) { closed++; sum.Add(f.Counters) }})
	require.NoError(t, err)
	var fi conform.Finding
	frames := 200_000
	if testing.Short() {
		frames = 20_000
	}
	var heap uint64
	n := 0
	for i := range frames {
		r := base[i%4]
		d := append([]byte(nil), r.data...)
		// Addresses that differ make the ICRC wrong, which makes no difference
		// to memory; every fourth flow is left good.
		d[27], d[28], d[29] = byte(i>>18), byte(i>>10), byte(i>>2)
		d[31], d[32], d[33] = d[27], d[28], d[29]
		if i%16 < 4 {
			fix(d)
		}
		w.HandleFrame(r.ts.Add(time.Duration(i)*time.Microsecond), frame.Ethernet, d, len(d))
		for w.NextFinding(&fi) {
			n++
		}
		if i == frames/4 || i == frames-1 {
			var m runtime.MemStats
			runtime.GC()
			runtime.ReadMemStats(&m)
			if heap != 0 {
				require.Less(t, m.HeapAlloc, heap+1<<20)
			}
			heap = m.HeapAlloc
		}
	}
	require.Positive(t, w.Evicted())
	open := 0
	for range w.Flows {
		open++
	}
	require.Equal(t, 64, open)
	w.Finish()
	require.EqualValues(t, frames, sum.Frames)
	require.Equal(t, sum, w.Total())
	require.EqualValues(t, w.Evicted()+64, closed)
}

// A live flow takes 8 KiB at most: 4,000 connections, each with messages of
// all kinds, both directions and latencies of a wide range.
func TestMemoryOfFlows(t *testing.T) {
	if testing.Short() {
		t.Skip("long")
	}
	base := load(t, "rc-mixed")[8:]
	flows := 8000
	w, err := conform.New(conform.Config{MaxFlows: flows})
	require.NoError(t, err)
	var before, after runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&before)
	var fi conform.Finding
	for i := range flows / 2 {
		for _, r := range base {
			d := append([]byte(nil), r.data...)
			// Two addresses of one connection; the ICRC is repaired.
			d[27], d[28], d[31], d[32] = byte(i>>8), byte(i), byte(i>>8), byte(i)
			fixIP(d)
			w.HandleFrame(r.ts.Add(time.Duration(i)*time.Microsecond), frame.Ethernet, d, len(d))
			for w.NextFinding(&fi) {
				require.Less(t, fi.Severity, conform.Breach, fi.String())
			}
		}
	}
	runtime.GC()
	runtime.ReadMemStats(&after)
	n := 0
	w.Flows(func(*conform.Flow) bool { n++; return true })
	require.Equal(t, flows, n)
	each := (after.HeapAlloc - before.HeapAlloc) / uint64(flows)
	t.Logf("%d bytes a flow", each)
	require.LessOrEqual(t, each, uint64(8<<10))
}
