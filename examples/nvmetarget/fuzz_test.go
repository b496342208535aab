package main

import (
	"bytes"
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"sync"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/examples/internal/nvme"
)

// script is a link whose host sends given capsules, and grants all memory that is
// accessed, except where a key is odd.
type script struct {
	mu        sync.Mutex
	capsules  [][]byte
	data      []byte // what a READ finds, over and over
	responses []nvme.Completion
	inv       []uint32
	wrote     map[uint16]int // bytes written for a command
	ended     chan struct{}
	once      sync.Once
}

func (l *script) recv(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if len(l.capsules) == 0 {
		return 0, io.EOF
	}
	n := copy(b, l.capsules[0])
	l.capsules = l.capsules[1:]
	return n, nil
}

func (l *script) read(b []byte, from nvme.SGL) error {
	if from.Key&1 != 0 {
		l.close()
		return errors.New("remote access error")
	}
	for i := 0; i < len(b) && len(l.data) != 0; {
		i += copy(b[i:], l.data)
	}
	return nil
}

func (l *script) respond(data []byte, to nvme.SGL, capsule []byte, inv uint32, done func()) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if to.Key&1 != 0 && len(data) != 0 {
		return errors.New("remote access error")
	}
	var c nvme.Completion
	if err := c.Decode(capsule); err != nil {
		return err
	}
	l.responses = append(l.responses, c)
	if l.wrote == nil {
		l.wrote = map[uint16]int{}
	}
	if len(data) > int(to.Length) {
		panic("more data than the host has room for")
	}
	l.wrote[c.CID] = len(data)
	if inv != 0 {
		l.inv = append(l.inv, inv)
	}
	done()
	return nil
}

func (l *script) probe()                {}
func (l *script) close()                { l.once.Do(func() { close(l.ended) }) }
func (l *script) over() <-chan struct{} { return l.ended }

// play has a queue do capsules, after a Connect and with the controller enabled where
// ctrl is nil, else for that controller.
func play(t *target, id uint16, ctrl *controller, data []byte, capsules ...[]byte) (*script, *queue) {
	l := &script{capsules: capsules, data: data, ended: make(chan struct{})}
	q := t.newQueue(l, &nvme.ConnectRequest{QID: id, HSQSize: 31, HRQSize: 32})
	q.local = netip.MustParseAddr("192.0.2.1")
	if ctrl != nil {
		ctrl.add(q)
		q.ctrl = ctrl
	}
	q.run()
	return l, q
}

func enabled(t *target) *controller {
	c, err := t.newController(&nvme.ConnectData{SubNQN: t.cfg.nqn, HostNQN: "host"}, 0)
	if err != nil {
		panic(err)
	}
	c.setCC(nvme.CCEntrySizes | nvme.CCEnable)
	return c
}

// FuzzCapsules: whatever a host sends, each command gets one response that names it, or
// waits for an event; at most as much is written to the host as it has room for; nothing is
// kept. The first byte chooses the queue, and whether it is connected; the rest are
// capsules of 64 bytes, with the data of READs behind them.
func FuzzCapsules(f *testing.F) {
	seed := func(first byte, cmds ...nvme.Command) {
		b := []byte{first}
		for i := range cmds {
			cmds[i].CID, cmds[i].Flags = uint16(i), nvme.FlagsSGL
			b = cmds[i].AppendTo(b)
		}
		f.Add(b)
	}
	keyed := func(n uint32) nvme.SGL { return nvme.SGL{Addr: 4096, Length: n, Key: 2, Type: nvme.SGLKeyedInvalidate} }
	seed(0, nvme.Command{Opcode: nvme.Fabrics, NSID: nvme.Connect, SGL: keyed(1024), CDW10: [6]uint32{0, 31}},
		nvme.Command{Opcode: nvme.Fabrics, NSID: nvme.PropertyGet, CDW10: [6]uint32{1}},
		nvme.Command{Opcode: nvme.Fabrics, NSID: nvme.PropertySet, CDW10: [6]uint32{0, nvme.PropertyCC, nvme.CCEntrySizes | nvme.CCEnable}})
	for _, cns := range []uint32{0, 1, 2, 3, 5} {
		seed(1, nvme.Command{Opcode: nvme.Identify, NSID: 1, SGL: keyed(4096), CDW10: [6]uint32{cns}})
	}
	for _, page := range []uint32{1, 2, 3, 4, 5, 0x70} {
		seed(1, nvme.Command{Opcode: nvme.GetLogPage, SGL: keyed(512), CDW10: [6]uint32{page | 127<<16}})
		seed(3, nvme.Command{Opcode: nvme.GetLogPage, SGL: keyed(4096), CDW10: [6]uint32{page | 1023<<16}})
	}
	for _, fid := range []uint32{1, 2, 4, 5, 6, 7, 0xb, 0xf, 0x81} {
		seed(1, nvme.Command{Opcode: nvme.GetFeatures, SGL: keyed(16), CDW10: [6]uint32{fid, 1}}, nvme.Command{Opcode: nvme.SetFeatures, CDW10: [6]uint32{fid, 1 << 16}})
	}
	var many []nvme.Command
	for range 6 {
		many = append(many, nvme.Command{Opcode: nvme.AsyncEvent})
	}
	many = append(many, nvme.Command{Opcode: nvme.Abort, CDW10: [6]uint32{2 << 16}}, nvme.Command{Opcode: nvme.KeepAlive})
	seed(1, many...)
	seed(2, nvme.Command{Opcode: nvme.Read, NSID: 1, SGL: keyed(4096), CDW10: [6]uint32{2: 7}},
		nvme.Command{Opcode: nvme.Write, NSID: 1, SGL: keyed(4096), CDW10: [6]uint32{2: 7}},
		nvme.Command{Opcode: nvme.Write, NSID: 1, SGL: nvme.SGL{Length: 512, Type: nvme.SGLOffset}},
		nvme.Command{Opcode: nvme.WriteZeroes, NSID: 1, CDW10: [6]uint32{2: 7}},
		nvme.Command{Opcode: nvme.DatasetManagement, NSID: 1, SGL: keyed(16), CDW10: [6]uint32{0, 4}},
		nvme.Command{Opcode: nvme.Flush, NSID: 1})

	cfg := testConfig()
	cfg.size = 1 << 20
	disk := &memory{b: make([]byte, cfg.size)}
	// Found by the fuzzer.
	f.Add([]byte("\x03\x02@\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x10\x00\x00\x00\x00\x00\x00\x00\x10\x00\x02\x00\x00\x00O\x02\x00\xff\x03\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00"))
	f.Fuzz(func(t *testing.T, b []byte) {
		if len(b) == 0 || len(b) > 1+40*(nvme.CommandSize+600) {
			return
		}
		tgt := newTarget(cfg, disk, slog.New(slog.DiscardHandler))
		var ctrl *controller
		id := uint16(0)
		switch b[0] & 3 {
		case 1, 2:
			ctrl = enabled(tgt)
			id = uint16(b[0]&3) - 1
		case 3:
			ctrl = enabled(tgt)
			ctrl.discovery = true
		}
		var capsules [][]byte
		sent := map[uint16]int{}
		size := nvme.CommandSize
		if id != 0 {
			size += int(b[0]>>2) * 16
		}
		for rest := b[1:]; len(rest) != 0; {
			n := min(size, len(rest))
			capsules = append(capsules, rest[:n])
			if n < nvme.CommandSize {
				break
			}
			sent[uint16(rest[2])|uint16(rest[3])<<8]++
			rest = rest[n:]
		}
		l, q := play(tgt, id, ctrl, b[1:], capsules...)
		for _, c := range l.responses {
			if sent[c.CID]--; sent[c.CID] < 0 {
				t.Fatalf("a response to a command %#x that was not sent: %+v", c.CID, c)
			}
			require.Equal(t, id, c.SQID)
		}
		require.Equal(t, 4*cfg.maxData, q.room.left, "bytes of data are kept")
		controllers, _ := tgt.count()
		if id == 0 {
			require.Zero(t, controllers)
		}
	})
}

// The data of a command may come in its capsule, anywhere behind the command; what lies
// outside is refused. A key is invalidated where the host asks for it, and only there.
func TestCapsules(t *testing.T) {
	disk := &memory{b: make([]byte, 8<<20)}
	tgt := newTarget(testConfig(), disk, slog.New(slog.DiscardHandler))
	ctrl := enabled(tgt)
	capsule := func(cid uint16, sgl nvme.SGL, inline ...byte) []byte {
		c := nvme.Command{Opcode: nvme.Write, CID: cid, NSID: 1, SGL: sgl, CDW10: [6]uint32{uint32(cid)}}
		return append(c.AppendTo(nil), inline...)
	}
	data := bytes.Repeat([]byte{0xab}, 512)
	off := func(at uint64, n uint32) nvme.SGL { return nvme.SGL{Addr: at, Length: n, Type: nvme.SGLOffset} }
	l, _ := play(tgt, 1, ctrl, bytes.Repeat([]byte{0xcd}, 512),
		capsule(1, off(0, 512), data...),
		capsule(2, off(16, 512), append(make([]byte, 16), data...)...),
		capsule(3, off(16, 512), data...),
		capsule(4, off(1<<63, 512), data...),
		capsule(5, off(0, 511), data...),
		capsule(6, nvme.SGL{Type: 0x20}, data...),
		capsule(7, nvme.SGL{Length: 512, Key: 8, Type: nvme.SGLKeyed}),
		capsule(8, nvme.SGL{Length: 512, Key: 10, Type: nvme.SGLKeyedInvalidate}),
		capsule(9, nvme.SGL{Length: 512, Key: 12, Type: 0x42}),
	)
	want := map[uint16]nvme.Status{3: nvme.SGLOffsetInvalid, 4: nvme.SGLOffsetInvalid, 5: nvme.SGLLengthInvalid, 6: nvme.SGLTypeInvalid, 9: nvme.SGLTypeInvalid}
	require.Len(t, l.responses, 9)
	for _, c := range l.responses {
		require.True(t, c.Status.Is(want[c.CID]), "%d: %v", c.CID, c.Status)
	}
	require.Equal(t, []uint32{10}, l.inv)
	block := func(n int) byte { return disk.b[n*512+511] }
	require.Equal(t, []byte{0, 0xab, 0xab, 0, 0, 0, 0, 0xcd, 0xcd, 0}, []byte{block(0), block(1), block(2), block(3), block(4), block(5), block(6), block(7), block(8), block(9)})
}

// adminQueue is an admin queue whose commands a test does one by one.
func adminQueue(tgt *target, ctrl *controller) (*script, func(nvme.Command) result) {
	l := &script{ended: make(chan struct{})}
	q := tgt.newQueue(l, &nvme.ConnectRequest{HSQSize: 31})
	q.ctrl = ctrl
	ctrl.add(q)
	return l, func(c nvme.Command) result {
		s := <-q.free
		s.cmd = c
		r := q.execute(s)
		q.finish(s, r)
		return r
	}
}

// Asynchronous Event Requests wait; beyond the limit they are refused; Abort ends one.
func TestEventRequests(t *testing.T) {
	tgt := newTarget(testConfig(), &memory{b: make([]byte, 8<<20)}, slog.New(slog.DiscardHandler))
	var capsules [][]byte
	for i := range eventLimit {
		capsules = append(capsules, (&nvme.Command{Opcode: nvme.AsyncEvent, CID: uint16(i)}).AppendTo(nil))
	}
	l, _ := play(tgt, 0, enabled(tgt), nil, capsules...)
	require.Empty(t, l.responses)
	l, do := adminQueue(tgt, enabled(tgt))
	for i := range eventLimit {
		require.True(t, do(nvme.Command{Opcode: nvme.AsyncEvent, CID: uint16(i)}).parked)
	}
	require.True(t, do(nvme.Command{Opcode: nvme.AsyncEvent, CID: 77}).status.Is(nvme.AsyncEventLimit))
	require.EqualValues(t, 1, do(nvme.Command{Opcode: nvme.Abort, CDW10: [6]uint32{99 << 16}}).value, "there is none")
	require.EqualValues(t, 1, do(nvme.Command{Opcode: nvme.Abort, CDW10: [6]uint32{2<<16 | 1}}).value, "another queue")
	require.Zero(t, do(nvme.Command{Opcode: nvme.Abort, CDW10: [6]uint32{2 << 16}}).value)
	aborted := l.responses[len(l.responses)-2]
	require.Equal(t, uint16(2), aborted.CID)
	require.True(t, aborted.Status.Is(nvme.AbortRequested))
	require.True(t, do(nvme.Command{Opcode: nvme.AsyncEvent, CID: 2}).parked)
}

// failing is a store whose disk is broken, and which refuses writes while it is full.
type failing struct {
	memory
	full bool
}

func (*failing) flush() error { return errors.New("broken") }

func (f *failing) WriteAt(b []byte, off int64) (int, error) {
	if f.full {
		return 0, errors.New("full")
	}
	return f.memory.WriteAt(b, off)
}

// The health log warns of a disk that refuses writes until it accepts one, whatever is
// read meanwhile, and for ever of what could not be made durable. Each time that all was
// well before, hosts get an event.
func TestHealth(t *testing.T) {
	disk := &failing{memory: memory{b: make([]byte, 8<<20)}}
	tgt := newTarget(testConfig(), disk, slog.New(slog.DiscardHandler))
	l, do := adminQueue(tgt, enabled(tgt))
	require.Equal(t, nvme.Success, do(nvme.Command{Opcode: nvme.SetFeatures, CDW10: [6]uint32{nvme.FeatureAsyncEvents, 1 << 2}}).status)
	io := func(op nvme.Opcode, flags uint32) nvme.Status {
		c := nvme.Command{Opcode: op, NSID: 1, CDW10: [6]uint32{2: flags}, SGL: nvme.SGL{Length: 512, Key: 2, Type: nvme.SGLKeyed}}
		if op == nvme.DatasetManagement {
			c.CDW10[1] = deallocate
		}
		l, _ := play(tgt, 1, enabled(tgt), make([]byte, 512), c.AppendTo(nil))
		return l.responses[0].Status
	}
	log := func() []byte {
		return do(nvme.Command{Opcode: nvme.GetLogPage, CDW10: [6]uint32{nvme.LogSMART | 127<<16}, SGL: nvme.SGL{Length: 512, Key: 2, Type: nvme.SGLKeyed}}).data
	}
	for range 2 {
		disk.full = true
		require.True(t, do(nvme.Command{Opcode: nvme.AsyncEvent, CID: 9}).parked)
		require.Equal(t, nvme.WriteFault, io(nvme.Write, 0))
		require.EqualValues(t, 9, l.responses[len(l.responses)-1].CID, "the event")
		require.Equal(t, nvme.WriteFault, io(nvme.Write, 0))
		require.Equal(t, nvme.Success, io(nvme.Read, 0))
		require.Equal(t, nvme.Success, io(nvme.DatasetManagement, 0), "of no blocks")
		require.EqualValues(t, 1<<2, log()[0])
		disk.full = false
		require.Equal(t, nvme.Success, io(nvme.Write, 0))
		require.Zero(t, log()[0])
	}
	require.EqualValues(t, 4, log()[160], "media and data integrity errors")
	require.Equal(t, nvme.WriteFault, io(nvme.Write, forceUnitAccess))
	require.Equal(t, nvme.Success, io(nvme.Write, 0))
	require.EqualValues(t, 1<<2, log()[0])
}

// Events: a host that asked for them is notified of a namespace that grew, of a store that
// fails, and of a threshold; of each type once until it has read the log page, which
// shows it, and of none that it did not ask for. (Base 5.2, 5.16.1.)
func TestEvents(t *testing.T) {
	cfg := testConfig()
	tgt := newTarget(cfg, &failing{memory: memory{b: make([]byte, 8<<20)}}, slog.New(slog.DiscardHandler))
	deaf := enabled(tgt)
	deafLink, do := adminQueue(tgt, deaf)
	require.True(t, do(nvme.Command{Opcode: nvme.AsyncEvent, CID: 1}).parked)
	l, do := adminQueue(tgt, enabled(tgt))
	take := func() (got []uint64) {
		for _, r := range l.responses {
			if r.CID >= 100 {
				require.Equal(t, nvme.Success, r.Status)
				got = append(got, r.Result)
			}
		}
		l.responses = nil
		return got
	}
	log := func(page, retain uint32) []byte {
		r := do(nvme.Command{Opcode: nvme.GetLogPage, CDW10: [6]uint32{page | retain<<15 | 127<<16}, SGL: nvme.SGL{Length: 512, Key: 2, Type: nvme.SGLKeyed}})
		require.Equal(t, nvme.Success, r.status)
		return r.data
	}
	const all = 1<<8 | 1<<2 | 1<<1
	require.Equal(t, nvme.Success, do(nvme.Command{Opcode: nvme.SetFeatures, CDW10: [6]uint32{nvme.FeatureAsyncEvents, all}}).status)
	for i := range uint16(3) {
		require.True(t, do(nvme.Command{Opcode: nvme.AsyncEvent, CID: 100 + i}).parked)
	}
	require.Empty(t, take())
	tgt.resize(cfg.size)
	require.Empty(t, take(), "the same size is no change")
	tgt.resize(4<<20 + 100)
	require.EqualValues(t, 4<<20, tgt.size.Load(), "whole blocks")
	require.Equal(t, []uint64{2 | 0<<8 | 4<<16}, take(), "notice, namespace attribute changed, see log page 4")
	tgt.resize(6 << 20)
	require.Empty(t, take(), "masked until the log page was read")
	require.EqualValues(t, 1, log(4, 1)[0])
	require.Empty(t, take(), "the host says that it stays masked")
	require.EqualValues(t, 1, log(4, 0)[0], "namespace 1")
	require.Equal(t, []uint64{2 | 4<<16}, take(), "it came twice")
	require.EqualValues(t, 0, log(4, 0)[0])
	require.Zero(t, log(2, 0)[0])
	// One request is left. A store that fails, and then what a threshold is about: the
	// same type.
	_, _ = play(tgt, 1, enabled(tgt), nil, (&nvme.Command{Opcode: nvme.Flush, NSID: 1}).AppendTo(nil))
	require.Equal(t, []uint64{1 | 0<<8 | 2<<16}, take(), "health, reliability, see log page 2")
	require.Equal(t, nvme.Success, do(nvme.Command{Opcode: nvme.SetFeatures, CDW10: [6]uint32{nvme.FeatureTemperature, 290}}).status)
	require.True(t, do(nvme.Command{Opcode: nvme.AsyncEvent, CID: 110}).parked)
	require.Empty(t, take())
	require.EqualValues(t, 1<<1|1<<2, log(2, 0)[0])
	require.Equal(t, []uint64{1 | 1<<8 | 2<<16}, take(), "health, temperature, see log page 2")
	// An event without a request to report it waits for one.
	tgt.resize(5 << 20)
	require.Empty(t, take())
	do(nvme.Command{Opcode: nvme.AsyncEvent, CID: 111})
	require.Equal(t, []uint64{2 | 4<<16}, take())
	require.Empty(t, deafLink.responses, "that host asked for nothing")
}

// Heads of the submission queue come in order, however many commands end at once.
func TestHeadsInOrder(t *testing.T) {
	tgt := newTarget(testConfig(), &memory{b: make([]byte, 8<<20)}, slog.New(slog.DiscardHandler))
	var capsules [][]byte
	for i := range 500 {
		capsules = append(capsules, (&nvme.Command{Opcode: nvme.WriteZeroes, CID: uint16(i), NSID: 1}).AppendTo(nil))
	}
	l, q := play(tgt, 1, enabled(tgt), nil, capsules...)
	require.Len(t, l.responses, 500)
	for i, r := range l.responses {
		require.EqualValues(t, (i+1)%q.depth, r.SQHead)
	}
}
