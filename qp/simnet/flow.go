package simnet

import (
	"fmt"
	"math/bits"
	"time"
	"unsafe"

	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/softnic"
)

// FlowConfig holds the parameters of a flow: messages from one host to another over a queue
// pair of its own.
type FlowConfig struct {
	Name     string // empty: the names of the hosts
	From, To *Host
	// Op is OpSend, OpWrite or OpRead. A READ's data is sent by To.
	Op   qp.Op
	Size int // of a message, in bytes
	// Count is how many messages there are. 0 means no end.
	Count int
	// Depth is how many are posted at once; 0 means 2. Each completion posts the
	// next.
	Depth int
	// Interval, where not 0, is the time between posts instead, as long as the send queue
	// has room.
	Interval time.Duration
	// Start is when it begins, from now.
	Start time.Duration
	// Manual: messages are posted only by Post, of any sizes up to Size. Count, Depth,
	// Interval and Start are not used.
	Manual bool
	Conn   ConnConfig
}

// Flow is a sequence of messages from one host to another.
type Flow struct {
	cfg    FlowConfig
	n      *Network
	qa, qb *softnic.QP
	local  []byte
	inbox  []byte
	va     uint64
	key    uint32

	started time.Duration
	ended   time.Duration
	posted  int
	done    int
	posts   []time.Duration // ring: when the message was posted
	times   []time.Duration // of messages done
	status  qp.Status
	onDone  func(*Flow)

	onSent     func(tag uint32)
	onReceived func(tag uint32)
}

// AddFlow creates a queue pair on both hosts. Flows share the memory of their messages:
// received data is not checked.
func (n *Network) AddFlow(cfg FlowConfig) (*Flow, error) {
	if cfg.Depth == 0 {
		cfg.Depth = 2
	}
	if cfg.From == nil || cfg.To == nil || cfg.From == cfg.To || cfg.Size < 0 || cfg.Count < 0 || cfg.Depth < 1 ||
		cfg.Op != qp.OpSend && cfg.Op != qp.OpWrite && cfg.Op != qp.OpRead {
		return nil, fmt.Errorf("%w: flow", ErrConfig)
	}
	for _, h := range []*Host{cfg.From, cfg.To} {
		if !h.linked() {
			return nil, fmt.Errorf("%w: host %s has no link for a flow", ErrConfig, h.name)
		}
	}
	if cfg.Name == "" {
		cfg.Name = cfg.From.name + " > " + cfg.To.name
	}
	c := &cfg.Conn
	if c.SendDepth == 0 {
		c.SendDepth = max(cfg.Depth, 2)
	}
	if c.RecvDepth == 0 {
		c.RecvDepth = 2 * c.SendDepth
	}
	f := &Flow{cfg: cfg, n: n, posts: make([]time.Duration, c.SendDepth)}
	var err error
	if f.qa, f.qb, err = n.ConnectQPs(cfg.From, cfg.To, *c); err != nil {
		return nil, err
	}
	f.local = cfg.From.scratchFor(cfg.Size)
	switch {
	case cfg.Op == qp.OpSend || cfg.Manual && cfg.Op == qp.OpWrite:
		f.inbox = cfg.To.scratchFor(cfg.Size)
		for range c.RecvDepth {
			if err := f.qb.PostRecv(&qp.RecvWR{Local: f.inbox}); err != nil {
				return nil, err
			}
		}
		cfg.To.Handle(f.qb, f.receive)
	default:
		if f.va, f.key, err = cfg.To.scratchRegion(cfg.Size); err != nil {
			return nil, err
		}
	}
	cfg.From.Handle(f.qa, f.complete)
	if cfg.Manual {
		f.started = n.Elapsed()
		return f, nil
	}
	cfg.From.After(cfg.Start, f.start)
	return f, nil
}

// scratchFor returns memory of size bytes, always the same. It grows by powers of two, so
// that flows of many sizes do not need many regions. All hosts have the same memory, unless
// several threads would write to it. In a shared network the payload is then in its place
// already: nothing is copied, and untouched memory is never paged in.
func (h *Host) scratchFor(size int) []byte {
	n := h.n
	if n.room < size {
		n.room = max(1<<16, 1<<bits.Len(uint(max(size, 1)-1)))
		if n.carry == Shared || n.cfg.Threads <= 1 {
			n.arena = make([]byte, n.room)
		}
	}
	switch {
	case len(h.scratch) == n.room:
	case n.arena != nil:
		h.scratch, h.scratchKey = n.arena, 0
	default:
		h.scratch, h.scratchKey = make([]byte, n.room), 0
	}
	return h.scratch[:size]
}

// constant reports whether b is in the memory of flows, which never changes, because data
// is written only to where it was read from. It need not be copied.
func (n *Network) constant(b []byte) bool {
	at, from := uintptr(unsafe.Pointer(unsafe.SliceData(b))), uintptr(unsafe.Pointer(unsafe.SliceData(n.arena)))
	return at-from < uintptr(len(n.arena))
}

func (h *Host) scratchRegion(size int) (va uint64, key uint32, err error) {
	h.scratchFor(max(size, 1))
	if h.scratchKey == 0 {
		h.scratchVA, h.scratchKey, err = h.Register(h.scratch, qp.RemoteWrite|qp.RemoteRead)
	}
	return h.scratchVA, h.scratchKey, err
}

func (f *Flow) start() {
	f.started = f.cfg.From.Elapsed()
	if f.cfg.Interval > 0 {
		f.tick()
		return
	}
	for range f.cfg.Depth {
		f.post()
	}
}

// tick posts a message of a flow with Interval.
func (f *Flow) tick() {
	if f.status != qp.Success || f.cfg.Count != 0 && f.posted == f.cfg.Count {
		return
	}
	f.post()
	f.cfg.From.After(f.cfg.Interval, f.tick)
}

func (f *Flow) post() {
	if f.cfg.Count != 0 && f.posted == f.cfg.Count {
		return
	}
	wr := qp.SendWR{ID: uint64(f.posted), Op: f.cfg.Op, Flags: qp.Signaled, Local: f.local, RemoteAddr: f.va, RKey: f.key}
	if f.qa.PostSend(f.cfg.From.Now(), &wr) != nil {
		return // full: the network is slower than Interval
	}
	f.posts[f.posted%len(f.posts)] = f.cfg.From.Elapsed()
	f.posted++
}

// Post posts a message of a Manual flow; tag is passed to the functions of OnSent and
// OnReceived, to the receiver as immediate data. The errors are qp.ErrQueueFull, and
// ErrConfig for a size above FlowConfig.Size. It may be called by functions of From.
func (f *Flow) Post(size int, tag uint32) error {
	if !f.cfg.Manual || size < 0 || size > f.cfg.Size {
		return fmt.Errorf("%w: message of %d bytes on flow %s, want 0 to %d of a Manual one", ErrConfig, size, f.cfg.Name, f.cfg.Size)
	}
	wr := qp.SendWR{ID: uint64(tag), Op: f.cfg.Op, Flags: qp.Signaled, Local: f.local[:size], RemoteAddr: f.va, RKey: f.key}
	switch f.cfg.Op {
	case qp.OpSend:
		wr.Op, wr.Imm = qp.OpSendImm, tag
	case qp.OpWrite:
		wr.Op, wr.Imm = qp.OpWriteImm, tag
	}
	return f.qa.PostSend(f.cfg.From.Now(), &wr)
}

// OnSent sets the function that From calls when a message of a Manual flow is complete
// there.
func (f *Flow) OnSent(fn func(tag uint32)) { f.onSent = fn }

// OnReceived sets the function that To calls when a message of a Manual flow has been
// received.
func (f *Flow) OnReceived(fn func(tag uint32)) { f.onReceived = fn }

// Close destroys the flow's queue pairs. Call it between runs, or in a function of
// Network.At.
func (f *Flow) Close() {
	f.cfg.From.Handle(f.qa, nil)
	f.cfg.To.Handle(f.qb, nil)
	f.qa.Destroy()
	f.qb.Destroy()
}

func (f *Flow) receive(wc *qp.Completion) {
	if wc.Status != qp.Success {
		return
	}
	_ = f.qb.PostRecv(&qp.RecvWR{Local: f.inbox})
	if f.onReceived != nil {
		f.onReceived(wc.Imm)
	}
}

func (f *Flow) complete(wc *qp.Completion) {
	if wc.Status != qp.Success {
		if f.status == qp.Success {
			f.status = wc.Status
		}
		return
	}
	f.done++
	f.ended = f.cfg.From.Elapsed()
	if f.cfg.Count != 0 {
		f.times = append(f.times, f.ended-f.posts[wc.ID%uint64(len(f.posts))])
	}
	if f.cfg.Interval == 0 && !f.cfg.Manual {
		f.post()
	}
	if f.onSent != nil {
		f.onSent(uint32(wc.ID))
	}
	if f.onDone != nil && f.Done() {
		f.onDone(f)
	}
}

// Name returns the flow's name.
func (f *Flow) Name() string { return f.cfg.Name }

// QPs returns the queue pairs at both ends.
func (f *Flow) QPs() (from, to *softnic.QP) { return f.qa, f.qb }

// OnDone sets the function that is called when the last message is complete.
func (f *Flow) OnDone(fn func(*Flow)) { f.onDone = fn }

// Done reports whether all messages are complete.
func (f *Flow) Done() bool { return f.cfg.Count != 0 && f.done == f.cfg.Count }

// Status returns Success, or the status of the first message that failed.
func (f *Flow) Status() qp.Status { return f.status }

// Completed returns how many messages are complete.
func (f *Flow) Completed() int { return f.done }

// Duration returns the time from the flow's start to its last completion so far.
func (f *Flow) Duration() time.Duration { return max(0, f.ended-f.started) }

// Times returns how long messages took from post to completion, in the order in which they
// completed. Only flows with a Count keep them.
func (f *Flow) Times() []time.Duration { return f.times }

// Received returns how many bytes of messages have been received in order so far: of SEND
// and WRITE exact to the packet, of READ whole messages.
func (f *Flow) Received() uint64 {
	if f.cfg.Op == qp.OpRead {
		return uint64(f.done) * uint64(f.cfg.Size)
	}
	good, size, mtu := f.qb.Executed(), uint64(f.cfg.Size), uint64(f.qb.Attr().PathMTU)
	per := max(1, (size+mtu-1)/mtu)
	return good/per*size + good%per*mtu
}
