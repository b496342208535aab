package main

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/examples/internal/nvme"
	"github.com/roce-go/roce/examples/internal/wire"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/cm"
	"github.com/roce-go/roce/qp/endpoint"
)

const testNQN = "nqn.2014-08.org.nvmexpress:uuid:11111111-2222-4333-8444-555555555555"

func testConfig() config {
	return config{nqn: testNQN, serial: "7", port: nvme.Port, size: 8 << 20, blockLog: 9, queues: 4, depth: 64, inline: 4096, maxData: 1 << 20, mdts: 8, conns: 64, window: 64, patience: 2 * time.Second}
}

// bench is a target and a host's endpoint on one wire.
type bench struct {
	t       *target
	ep      *endpoint.Endpoint // the host's
	targets *endpoint.Endpoint
	at      string
	stop    context.CancelFunc
	cut     atomic.Bool // the wire, at the host
}

// newBench starts a target at one end of a wire; faults, where there are any, are at
// its end. Timeouts are short: nothing is far away.
func newBench(t testing.TB, s store, faults string, edit func(*config)) *bench {
	before := runtime.NumGoroutine()
	t.Cleanup(func() {
		for end := time.Now().Add(10 * time.Second); runtime.NumGoroutine() > before; time.Sleep(5 * time.Millisecond) {
			if time.Now().After(end) {
				b := make([]byte, 1<<16)
				t.Fatalf("goroutines left:\n%s", b[:runtime.Stack(b, true)])
			}
		}
	})
	cfg := testConfig()
	if edit != nil {
		edit(&cfg)
	}
	ec := endpoint.Config{CM: cm.Config{PacketLifetime: 13, AckDelay: 9, ResponseTimeout: 16}}
	wa, wb := endpoint.Pair()
	b := new(bench)
	hc := ec
	hc.MaxRegions = 1 << 15 // for hundreds of hosts at one port
	hc.Filter = func(_ bool, f []byte) [][]byte {
		if b.cut.Load() {
			return nil
		}
		return [][]byte{f}
	}
	var err error
	b.ep, err = hc.Open(wa)
	require.NoError(t, err)
	t.Cleanup(func() { b.ep.Close() })
	if faults != "" {
		f, err := wire.ParseFaults(faults, 1)
		require.NoError(t, err)
		ec.Filter = f.Filter
	}
	b.targets, err = ec.Open(wb)
	require.NoError(t, err)
	t.Cleanup(func() { b.targets.Close() })
	b.t = newTarget(cfg, s, slog.New(slog.DiscardHandler))
	b.at = netip.AddrPortFrom(b.targets.Addrs()[0], cfg.port).String()
	var ctx context.Context
	ctx, b.stop = context.WithCancel(context.Background())
	l, err := b.t.listen(ctx, b.targets)
	require.NoError(t, err)
	done := make(chan error, 1)
	go func() { done <- b.t.serve(ctx, l) }()
	t.Cleanup(func() {
		b.stop()
		require.NoError(t, <-done)
		controllers, conns := b.t.count()
		require.Zero(t, controllers)
		require.Zero(t, conns)
	})
	return b
}

func limit(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func hostConfig() nvme.HostConfig {
	return nvme.HostConfig{NQN: testNQN, HostNQN: "nqn.2014-08.org.nvmexpress:uuid:host", HostID: [16]byte{1, 2}, Queues: 2, Depth: 16, Alive: 5 * time.Second}
}

// Reads return what was written last, whatever the network does: random commands of
// all sizes, many at once, against a copy in memory; in memory and in a file.
func TestData(t *testing.T) {
	for _, c := range []struct {
		name, faults string
		file         bool
		ops          int
	}{{"memory", "", false, 600}, {"file", "", true, 200}, {"faults", "loss=5,duplicate=5,reorder=5", false, 100}} {
		t.Run(c.name, func(t *testing.T) {
			var s store = &memory{b: make([]byte, testConfig().size)}
			if c.file {
				f, n, err := openFile(filepath.Join(t.TempDir(), "disk"), testConfig().size)
				require.NoError(t, err)
				require.Equal(t, testConfig().size, n)
				defer f.Close()
				s = f
			}
			b := newBench(t, s, c.faults, nil)
			ctx := limit(t)
			entries, err := nvme.Discover(ctx, b.ep, b.at, hostConfig())
			require.NoError(t, err)
			require.Len(t, entries, 2)
			require.Equal(t, testNQN, entries[1].NQN)
			require.Equal(t, "4420", entries[1].Port)
			require.Equal(t, b.targets.Addrs()[0], entries[1].Addr)

			h, err := nvme.Dial(ctx, b.ep, b.at, hostConfig())
			require.NoError(t, err)
			require.Equal(t, uint64(8<<20>>9), h.Namespace.Blocks)
			require.Equal(t, 2, h.Queues())
			ops := c.ops
			if testing.Short() {
				ops /= 3
			}
			exercise(t, ctx, h, ops)
			require.NoError(t, h.Close())
		})
	}
}

// exercise does random commands in eight goroutines, each in a part of the namespace of
// its own.
func exercise(t *testing.T, ctx context.Context, h *nvme.Host, ops int) {
	var wg sync.WaitGroup
	const workers = 8
	part := h.Namespace.Blocks / workers
	for w := range uint64(workers) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			rng := rand.New(rand.NewPCG(w, 1))
			want := make([]byte, part<<9)
			check := func(err error) bool {
				if err != nil {
					t.Errorf("worker %d: %v", w, err)
				}
				return err == nil
			}
			for lba := uint64(0); lba < part; lba += 512 {
				if !check(h.WriteZeroes(ctx, w*part+lba, 512)) {
					return
				}
			}
			for i := range ops / workers {
				n := 1 + rng.Uint64N(1<<rng.IntN(11))
				if i < 4 {
					n = 8 + uint64(i%2) // as much as fits into a capsule, and a block more
				}
				lba := rng.Uint64N(part - n)
				span := want[lba<<9 : (lba+n)<<9]
				switch rng.IntN(8) {
				case 0:
					if !check(h.WriteZeroes(ctx, w*part+lba, int(n))) {
						return
					}
					clear(span)
				case 1:
					if !check(h.Deallocate(ctx, []nvme.Range{{LBA: w*part + lba, Blocks: uint32(n)}})) {
						return
					}
					clear(span)
				case 2, 3, 4:
					for i := range span {
						span[i] = byte(rng.Uint32())
					}
					if !check(h.Write(ctx, w*part+lba, span)) {
						return
					}
				case 5:
					if !check(h.Flush(ctx)) {
						return
					}
				default:
					got := make([]byte, len(span))
					if !check(h.Read(ctx, w*part+lba, got)) {
						return
					}
					if !bytes.Equal(span, got) {
						t.Errorf("worker %d: block %d: other data than was written", w, lba)
						return
					}
				}
			}
			got := make([]byte, 1<<18)
			for off := 0; off < len(want); off += len(got) {
				if !check(h.Read(ctx, w*part+uint64(off>>9), got)) || !bytes.Equal(want[off:off+len(got)], got) {
					t.Errorf("worker %d: other data at the end at %d", w, off)
					return
				}
			}
		}()
	}
	wg.Wait()
}

// What must be refused is refused, with the status that the specification has for it, and
// nothing is changed.
func TestRefusals(t *testing.T) {
	b := newBench(t, &memory{b: make([]byte, 8<<20)}, "", nil)
	ctx := limit(t)
	dial := func(edit func(*nvme.HostConfig)) error {
		c := hostConfig()
		edit(&c)
		h, err := nvme.Dial(ctx, b.ep, b.at, c)
		if err == nil {
			h.Close()
		}
		return err
	}
	status := func(want nvme.Status, err error) {
		t.Helper()
		var e *nvme.Error
		require.ErrorAs(t, err, &e)
		require.True(t, e.Status.Is(want), "%v, want %v", e.Status, want)
	}
	require.NoError(t, dial(func(c *nvme.HostConfig) {}))
	status(nvme.ConnectInvalidParam, dial(func(c *nvme.HostConfig) { c.NQN = "nqn.2014-08.org.nvmexpress:other" }))
	status(nvme.ConnectInvalidParam, dial(func(c *nvme.HostConfig) { c.HostNQN = "" }))
	require.ErrorContains(t, dial(func(c *nvme.HostConfig) { c.Depth = 65 }), "at most 64")

	// Private data with impossible values: a REJ with NVMe's status.
	for _, c := range []struct {
		req  nvme.ConnectRequest
		want nvme.ConnectStatus
	}{
		{nvme.ConnectRequest{RecFmt: 1, HSQSize: 31, HRQSize: 32}, nvme.InvalidRecFmt},
		{nvme.ConnectRequest{QID: 5, HSQSize: 31, HRQSize: 32}, nvme.InvalidQID},
		{nvme.ConnectRequest{HSQSize: 32, HRQSize: 32}, nvme.InvalidHSQSize},
		{nvme.ConnectRequest{HSQSize: 0, HRQSize: 32}, nvme.InvalidHSQSize},
		{nvme.ConnectRequest{QID: 1, HSQSize: 64, HRQSize: 32}, nvme.InvalidHSQSize},
		{nvme.ConnectRequest{HSQSize: 31, HRQSize: 0}, nvme.InvalidHRQSize},
		{nvme.ConnectRequest{QID: 1, HSQSize: 31, HRQSize: 32, CntlID: 0x777}, nvme.InvalidCntlID},
	} {
		_, err := b.ep.Dial(ctx, b.at, &endpoint.ConnConfig{PrivateData: c.req.AppendTo(nil)})
		var rej *endpoint.RejectedError
		require.ErrorAs(t, err, &rej)
		require.Equal(t, cm.ReasonConsumer, rej.Reason)
		var why nvme.ConnectReject
		require.NoError(t, why.Decode(rej.PrivateData))
		require.Equal(t, c.want, why.Status)
	}

	h, err := nvme.Dial(ctx, b.ep, b.at, hostConfig())
	require.NoError(t, err)
	defer h.Close()
	buf := make([]byte, 8192)
	status(nvme.LBAOutOfRange, h.Read(ctx, 8<<20>>9, buf[:512]))
	status(nvme.LBAOutOfRange, h.Read(ctx, 8<<20>>9-1, buf[:1024]))
	status(nvme.LBAOutOfRange, h.Write(ctx, 1<<63, buf[:512]))
	status(nvme.LBAOutOfRange, h.WriteZeroes(ctx, 1<<60, 1))
	status(nvme.LBAOutOfRange, h.Deallocate(ctx, []nvme.Range{{Blocks: 1}, {LBA: 1, Blocks: 1<<32 - 1}}))
	io := func(c nvme.Command, data []byte, write bool) error {
		_, err := h.IO(ctx, "test", &c, data, write)
		return err
	}
	admin := func(c nvme.Command, data []byte) error {
		_, err := h.Admin(ctx, "test", &c, data, false)
		return err
	}
	// More room than ranges, as Linux sends it, is no fault.
	require.NoError(t, io(nvme.Command{Opcode: nvme.DatasetManagement, NSID: 1, CDW10: [6]uint32{0, 4}}, buf[:4096], true))
	status(nvme.SGLLengthInvalid, io(nvme.Command{Opcode: nvme.DatasetManagement, NSID: 1, CDW10: [6]uint32{1, 4}}, buf[:16], true))
	status(nvme.InvalidNamespace, io(nvme.Command{Opcode: nvme.Read, NSID: 2}, buf[:512], false))
	status(nvme.InvalidOpcode, io(nvme.Command{Opcode: 0x99, NSID: 1}, nil, false))
	status(nvme.SGLLengthInvalid, io(nvme.Command{Opcode: nvme.Read, NSID: 1}, buf[:1024], false))
	status(nvme.SGLLengthInvalid, io(nvme.Command{Opcode: nvme.Write, NSID: 1}, buf[:100], true))
	status(nvme.SGLLengthInvalid, io(nvme.Command{Opcode: nvme.Read, NSID: 1}, nil, false))
	status(nvme.InvalidField, io(nvme.Command{Opcode: nvme.Read, NSID: 1, CDW10: [6]uint32{2: 4095}}, buf[:4096], false))
	status(nvme.InvalidOpcode, admin(nvme.Command{Opcode: 0xc0}, nil))
	status(nvme.InvalidField, admin(nvme.Command{Opcode: nvme.Identify, CDW10: [6]uint32{0x77}}, buf[:4096]))
	status(nvme.SGLLengthInvalid, admin(nvme.Command{Opcode: nvme.Identify, CDW10: [6]uint32{1}}, buf[:512]))
	status(nvme.InvalidNamespace, admin(nvme.Command{Opcode: nvme.Identify, NSID: 9}, buf[:4096]))
	status(nvme.InvalidLogPage, admin(nvme.Command{Opcode: nvme.GetLogPage, CDW10: [6]uint32{0xee}}, buf[:4]))
	status(nvme.SGLLengthInvalid, admin(nvme.Command{Opcode: nvme.GetLogPage, CDW10: [6]uint32{2 | 127<<16}}, buf[:508]))
	status(nvme.InvalidField, admin(nvme.Command{Opcode: nvme.GetLogPage, CDW10: [6]uint32{2 | 0xffff<<16, 0xffff}}, buf))
	status(nvme.InvalidField, admin(nvme.Command{Opcode: nvme.GetFeatures, CDW10: [6]uint32{0x70}}, nil))
	status(nvme.FeatureNotSaveable, admin(nvme.Command{Opcode: nvme.SetFeatures, CDW10: [6]uint32{1<<31 | 4}}, nil))
	status(nvme.SequenceError, admin(nvme.Command{Opcode: nvme.Fabrics, NSID: nvme.Connect}, nil))
	status(nvme.InvalidField, h.SetProperty(ctx, nvme.PropertyCSTS, 1))

	// The error log lists them, the newest first.
	require.NoError(t, admin(nvme.Command{Opcode: nvme.GetLogPage, CDW10: [6]uint32{1 | 31<<16}}, buf[:128]))
	require.Equal(t, nvme.InvalidField, nvme.Status(uint16(buf[12])|uint16(buf[13])<<8)>>1&0x7ff)
	require.Equal(t, buf[0]-1, buf[64])

	// A disk that is disabled takes no commands.
	require.NoError(t, h.SetProperty(ctx, nvme.PropertyCC, nvme.CCEntrySizes))
	status(nvme.SequenceError, admin(nvme.Command{Opcode: nvme.Identify, CDW10: [6]uint32{1}}, buf[:4096]))
	require.Error(t, h.Read(ctx, 0, buf[:512]), "its I/O queues were deleted")
	require.NoError(t, h.SetProperty(ctx, nvme.PropertyCC, nvme.CCEntrySizes|nvme.CCEnable))
	require.NoError(t, admin(nvme.Command{Opcode: nvme.Identify, CDW10: [6]uint32{1}}, buf[:4096]))
}

// A host whose key does not fit, or that sends a write longer than its buffer, loses its
// connection, and no other host notices.
func TestWrongKey(t *testing.T) {
	b := newBench(t, &memory{b: make([]byte, 8<<20)}, "", nil)
	ctx := limit(t)
	other, err := nvme.Dial(ctx, b.ep, b.at, hostConfig())
	require.NoError(t, err)
	defer other.Close()
	for _, op := range []nvme.Opcode{nvme.Read, nvme.Write} {
		c := dialRaw(t, b, ctx)
		cmd := nvme.Command{Opcode: nvme.Fabrics, NSID: nvme.Connect, Flags: nvme.FlagsSGL, CDW10: [6]uint32{0, 31},
			SGL: nvme.SGL{Addr: 4096, Length: 1024, Key: 0x12345678, Type: nvme.SGLKeyed}}
		if op == nvme.Read { // too much: beyond the window's end
			cmd.SGL = lend(t, b, c, 1000)
			cmd.SGL.Length = 1024
		}
		require.NoError(t, c.Send(ctx, cmd.AppendTo(nil)))
		_, err := c.Recv(ctx, make([]byte, 64))
		require.Error(t, err)
	}
	require.NoError(t, other.Write(ctx, 0, make([]byte, 4096)))
}

// dialRaw connects an admin queue without Connect.
func dialRaw(t *testing.T, b *bench, ctx context.Context) *endpoint.Conn {
	req := nvme.ConnectRequest{HRQSize: 32, HSQSize: 31}
	c, err := b.ep.Dial(ctx, b.at, &endpoint.ConnConfig{PrivateData: req.AppendTo(nil)})
	require.NoError(t, err)
	return c
}

// lend returns a descriptor for n bytes of a host's memory.
func lend(t *testing.T, b *bench, c *endpoint.Conn, n uint32) nvme.SGL {
	mr, err := b.ep.Register(make([]byte, n), qp.MWBind)
	require.NoError(t, err)
	w, err := b.ep.AllocWindow()
	require.NoError(t, err)
	r, err := w.Bind(c, mr, 0, n, qp.RemoteRead|qp.RemoteWrite)
	require.NoError(t, err)
	return nvme.SGL{Addr: r.Addr, Length: r.Len, Key: r.RKey, Type: nvme.SGLKeyed}
}

// The state of a host that vanished is released: in the middle of its commands, by the
// keep-alive timeout, or since its packets are not acknowledged; also of one without
// keep-alive and without commands.
func TestHostVanishes(t *testing.T) {
	for _, alive := range []time.Duration{time.Second, 0} {
		b := newBench(t, &memory{b: make([]byte, 8<<20)}, "", nil)
		ctx := limit(t)
		c := hostConfig()
		c.Alive = alive
		h, err := nvme.Dial(ctx, b.ep, b.at, c)
		require.NoError(t, err)
		if alive != 0 {
			for range 8 {
				go func() {
					for h.Write(ctx, 0, make([]byte, 1<<20)) == nil {
					}
				}()
			}
		}
		require.NoError(t, h.Write(ctx, 0, make([]byte, 1<<20)))
		// The wire is cut: the host sends nothing, not even a DREQ.
		b.cut.Store(true)
		require.Eventually(t, func() bool { n, q := b.t.count(); return n == 0 && q == 0 }, 30*time.Second, 10*time.Millisecond)
	}
}

// A connection without a Connect command is ended.
func TestNoConnect(t *testing.T) {
	b := newBench(t, &memory{b: make([]byte, 8<<20)}, "", func(c *config) { c.patience = 300 * time.Millisecond })
	c := dialRaw(t, b, limit(t))
	select {
	case <-c.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("it stays")
	}
	// A host that responds stays connected, without keep-alive and without commands.
	hc := hostConfig()
	hc.Alive = 0
	h, err := nvme.Dial(limit(t), b.ep, b.at, hc)
	require.NoError(t, err)
	time.Sleep(time.Second)
	require.NoError(t, h.Flush(limit(t)))
	require.NoError(t, h.Close())
}

// When a controller has failed, all of its queues end at once, and it is removed.
func TestControllerFails(t *testing.T) {
	b := newBench(t, &memory{b: make([]byte, 8<<20)}, "", nil)
	ctx := limit(t)
	h, err := nvme.Dial(ctx, b.ep, b.at, hostConfig())
	require.NoError(t, err)
	b.t.find(h.Controller.CntlID).fail()
	require.Eventually(t, func() bool { return h.Flush(ctx) != nil && h.SetProperty(ctx, nvme.PropertyCC, 0) != nil }, 10*time.Second, time.Millisecond)
	require.Eventually(t, func() bool { n, _ := b.t.count(); return n == 0 }, 10*time.Second, time.Millisecond)
	_ = h.Close()
}

// After a restart the host finds all of whose writing it had a completion.
func TestRestart(t *testing.T) {
	name := filepath.Join(t.TempDir(), "disk")
	data := bytes.Repeat([]byte("durable "), 8192)
	for round := range 2 {
		t.Run("", func(t *testing.T) {
			f, _, err := openFile(name, 0)
			if round == 0 {
				require.ErrorContains(t, err, "is empty")
				f, _, err = openFile(name, 8<<20)
			}
			require.NoError(t, err)
			defer f.Close()
			b := newBench(t, f, "", nil)
			ctx := limit(t)
			h, err := nvme.Dial(ctx, b.ep, b.at, hostConfig())
			require.NoError(t, err)
			got := make([]byte, len(data))
			if round == 0 {
				require.NoError(t, h.Write(ctx, 100, data))
				require.NoError(t, h.Flush(ctx))
				b.stop() // in the middle: the host is still connected
				require.Eventually(t, func() bool { return h.Read(ctx, 0, got) != nil }, 10*time.Second, time.Millisecond)
				_ = h.Close()
				return
			}
			require.NoError(t, h.Read(ctx, 100, got))
			require.Equal(t, data, got)
			require.NoError(t, h.Close())
		})
	}
	_, _, err := openFile(name, 4096)
	require.ErrorContains(t, err, "would cut it")
	_, _, err = openFile(t.TempDir(), 0)
	require.Error(t, err)
}

// Options that fit nothing are refused; the program serves and says what it did.
func TestProgram(t *testing.T) {
	var out, errs bytes.Buffer
	require.Zero(t, run([]string{"-h"}, io.Discard, &errs))
	require.Contains(t, errs.String(), "usage: nvmetarget")
	for _, args := range [][]string{{}, {"x"}, {"-bad"}, {"-segment", "127.0.0.1:0,127.0.0.1:1", "-size", "x"}, {"-segment", "127.0.0.1:0,127.0.0.1:1", "-size", "1000"},
		{"-segment", "a,b", "-block", "1000"}, {"-segment", "a,b", "-maxdata", "5000"}, {"-segment", "a,b", "-inline", "7"}, {"-segment", "a,b", "-depth", "1"},
		{"-segment", "a,b", "-nqn", nvme.DiscoveryNQN}, {"-segment", "127.0.0.1:0,127.0.0.1:1", "-size", "17G"}} {
		require.NotZero(t, run(args, io.Discard, io.Discard), args)
	}
	pic := filepath.Join(t.TempDir(), "x.svg")
	require.Zero(t, run([]string{"-segment", "127.0.0.1:0,127.0.0.1:1", "-size", "1M", "-for", "50ms", "-svg", pic, "-v"}, &out, &errs))
	require.Contains(t, out.String(), "2048 blocks of 512 bytes in memory")
	require.Contains(t, out.String(), "0 reads")
	b, err := os.ReadFile(pic)
	require.NoError(t, err)
	require.Contains(t, string(b), "Latency")
	for s, want := range map[string]int64{"5": 5, "2k": 2048, "3M": 3 << 20, "1G": 1 << 30} {
		n, err := parseSize(s)
		require.NoError(t, err)
		require.Equal(t, want, n)
	}
}

// The bytes of a write that failed are not counted: its length is only what the host claimed.
func TestStatsOfFailures(t *testing.T) {
	var s stats
	sl := &slot{q: &queue{id: 1}, cmd: nvme.Command{Opcode: nvme.Write, SGL: nvme.SGL{Length: 4096}}}
	bad, good := fail(nvme.LBAOutOfRange), result{}
	s.done(sl, &bad)
	require.Zero(t, s.sum().writeBytes)
	s.done(sl, &good)
	require.EqualValues(t, 4096, s.sum().writeBytes)
	require.EqualValues(t, 2, s.sum().writes)
}

// heap returns the bytes of the heap that are in use.
func heap() int {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return int(m.HeapAlloc)
}

// small waits until the heap has grown by less than a limit.
func small(t *testing.T, before, limit int) {
	t.Helper()
	grown := 0
	for end := time.Now().Add(10 * time.Second); time.Now().Before(end); time.Sleep(50 * time.Millisecond) {
		if grown = heap() - before; grown < limit {
			t.Logf("the heap has grown by %d KiB", grown>>10)
			return
		}
	}
	t.Errorf("the heap has grown by %d KiB, want less than %d", grown>>10, limit>>10)
}

// Hundreds of hosts at once: each finds its own data; the one too many gets the error that
// there are no resources, and gets in when there are; and what they used is released with them.
func TestManyHosts(t *testing.T) {
	hosts := 300
	if testing.Short() {
		hosts = 40
	}
	b := newBench(t, &memory{b: make([]byte, 8<<20)}, "", func(c *config) { c.conns = 2 * hosts })
	ctx := limit(t)
	c := hostConfig()
	c.Queues, c.Depth, c.Alive = 1, 4, 0
	before := heap()
	list := make([]*nvme.Host, hosts)
	each := func(f func(i int) error) {
		var wg sync.WaitGroup
		few := make(chan struct{}, 30) // at once: time-outs are short here
		for i := range list {
			wg.Add(1)
			few <- struct{}{}
			go func() {
				defer func() { <-few; wg.Done() }()
				if err := f(i); err != nil {
					t.Errorf("host %d: %v", i, err)
				}
			}()
		}
		wg.Wait()
		require.False(t, t.Failed())
	}
	each(func(i int) (err error) {
		list[i], err = nvme.Dial(ctx, b.ep, b.at, c)
		return err
	})
	n, conns := b.t.count()
	require.Equal(t, hosts, n)
	require.Equal(t, 2*hosts, conns)
	_, err := nvme.Dial(ctx, b.ep, b.at, c)
	require.ErrorContains(t, err, "no resources")
	data := func(i int) []byte { return bytes.Repeat([]byte{byte(i), byte(i >> 8), 1, 2}, 2048) }
	each(func(i int) error { return list[i].Write(ctx, uint64(i*16), data(i)) })
	each(func(i int) error {
		got := make([]byte, 8192)
		if err := list[i].Read(ctx, uint64(i*16), got); err != nil {
			return err
		}
		if !bytes.Equal(data(i), got) {
			return errors.New("another's data")
		}
		return nil
	})
	t.Logf("%d KiB for each host with an admin queue of 32 and an I/O queue of 4 entries, both ends", (heap()-before)/hosts/1024)
	each(func(i int) error { return list[i].Close() })
	require.Eventually(t, func() bool { n, q := b.t.count(); return n == 0 && q == 0 }, 30*time.Second, 10*time.Millisecond)
	h, err := nvme.Dial(ctx, b.ep, b.at, c)
	require.NoError(t, err)
	require.NoError(t, h.Close())
	list = nil
	small(t, before, 3<<20+hosts*16<<10) // what the wire and maps keep does not grow with the hosts
}

// Hosts that connect and disconnect without end, properly and not, harm no other, and leave nothing.
func TestChurn(t *testing.T) {
	rounds := 150
	if testing.Short() {
		rounds = 20
	}
	b := newBench(t, &memory{b: make([]byte, 8<<20)}, "loss=1,duplicate=1,reorder=1", nil)
	ctx := limit(t)
	steady, err := nvme.Dial(ctx, b.ep, b.at, hostConfig())
	require.NoError(t, err)
	before := 0
	for i := range rounds {
		if i == rounds/2 {
			before = heap()
		}
		c := hostConfig()
		c.Queues, c.Depth = 1, 4
		switch i % 3 {
		case 0:
			h, err := nvme.Dial(ctx, b.ep, b.at, c)
			require.NoError(t, err)
			require.NoError(t, h.Close())
		case 1: // in the middle of a write
			h, err := nvme.Dial(ctx, b.ep, b.at, c)
			require.NoError(t, err)
			short, cancel := context.WithTimeout(ctx, time.Millisecond)
			_ = h.Write(short, 8192, make([]byte, 1<<20))
			cancel()
			_ = h.Close()
		case 2: // before Connect
			dialRaw(t, b, ctx).Close()
		}
		data := bytes.Repeat([]byte{byte(i)}, 512)
		got := make([]byte, 512)
		require.NoError(t, steady.Write(ctx, 7, data))
		require.NoError(t, steady.Read(ctx, 7, got))
		require.Equal(t, data, got)
	}
	require.Eventually(t, func() bool { n, q := b.t.count(); return n == 1 && q == 3 }, 30*time.Second, 10*time.Millisecond)
	if !testing.Short() { // few rounds do not distinguish a leak from what pools keep
		small(t, before, 2<<20)
	}
	require.NoError(t, steady.Close())
}

// A host that sends many commands and receives no response holds at most what a queue may
// hold, and no other host waits for it.
func TestSlowHost(t *testing.T) {
	b := newBench(t, &memory{b: make([]byte, 8<<20)}, "", nil)
	ctx := limit(t)
	other, err := nvme.Dial(ctx, b.ep, b.at, hostConfig())
	require.NoError(t, err)
	defer other.Close()
	hc := hostConfig()
	hc.Queues = 0
	admin, err := nvme.Dial(ctx, b.ep, b.at, hc)
	require.NoError(t, err)
	defer admin.Close()
	req := nvme.ConnectRequest{QID: 1, HRQSize: 64, HSQSize: 63, CntlID: 0}
	c, err := b.ep.Dial(ctx, b.at, &endpoint.ConnConfig{SendDepth: 64, RecvDepth: 2, RecvSize: 64, PrivateData: req.AppendTo(nil)})
	require.NoError(t, err)
	cmd := nvme.Command{Opcode: nvme.Fabrics, NSID: nvme.Connect, Flags: nvme.FlagsSGL, CDW10: [6]uint32{1 << 16, 63}, SGL: nvme.SGL{Length: nvme.ConnectDataSize, Type: nvme.SGLOffset}}
	list := b.t.all()
	id := max(list[0].id, list[1].id) // the newer
	data := nvme.ConnectData{HostID: hc.HostID, CntlID: id, SubNQN: hc.NQN, HostNQN: hc.HostNQN}
	require.NoError(t, c.Send(ctx, data.AppendTo(cmd.AppendTo(nil))))
	_, err = c.Recv(ctx, make([]byte, 64))
	require.NoError(t, err)
	room := lend(t, b, c, 1<<20)
	before := heap()
	for i := range 60 {
		cmd := nvme.Command{Opcode: nvme.Read, CID: uint16(i), NSID: 1, Flags: nvme.FlagsSGL, CDW10: [6]uint32{2: 2047}, SGL: room}
		require.NoError(t, c.Send(ctx, cmd.AppendTo(nil)))
	}
	time.Sleep(300 * time.Millisecond)
	grown := heap() - before
	require.Less(t, grown, 4*b.t.cfg.maxData+1<<20, "%d MiB for 60 commands of 1 MiB", grown>>20)
	t.Logf("%.1f MiB are held for 60 commands of 1 MiB", float64(grown)/(1<<20))
	for range 10 {
		require.NoError(t, other.Read(ctx, 0, make([]byte, 1<<20)))
	}
	c.Close()
	require.NoError(t, admin.Close())
	require.Eventually(t, func() bool { n, q := b.t.count(); return n == 1 && q == 3 }, 30*time.Second, 10*time.Millisecond)
}
