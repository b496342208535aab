package main

import (
	"context"
	"errors"
	"net/netip"
	"sync"
	"time"

	"github.com/roce-go/roce/examples/internal/nvme"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/endpoint"
)

// link is what a queue needs of its connection.
type link interface {
	// recv waits for the next capsule.
	recv(b []byte) (int, error)
	// read fills b from the host's memory.
	read(b []byte, from nvme.SGL) error
	// respond writes data, if any, to the host's memory, and sends a response, which
	// invalidates the key inv if it is not 0. done is called when data and capsule are no
	// longer needed, unless there is an error.
	respond(data []byte, to nvme.SGL, capsule []byte, inv uint32, done func()) error
	// probe sends a packet that the host acknowledges if it is still there: if the packet is
	// not acknowledged, the link ends.
	probe()
	close()
	over() <-chan struct{}
}

// conn is a link over a connection.
type conn struct {
	*endpoint.Conn
	ctx context.Context
}

func (c conn) recv(b []byte) (int, error) { return c.Recv(c.ctx, b) }
func (c conn) close()                     { c.Conn.Close() }
func (c conn) over() <-chan struct{}      { return c.Done() }

// probe sends a WRITE of no bytes, which needs no key and accesses no memory.
func (c conn) probe() { _ = c.Post(qp.SendWR{Op: qp.OpWrite}, nil) }

func (c conn) read(b []byte, from nvme.SGL) error {
	return c.ReadRemote(c.ctx, b, endpoint.Remote{Addr: from.Addr, RKey: from.Key, Len: from.Length})
}

func (c conn) respond(data []byte, to nvme.SGL, capsule []byte, inv uint32, done func()) error {
	if len(data) != 0 {
		if err := c.Post(qp.SendWR{Op: qp.OpWrite, Local: data, RemoteAddr: to.Addr, RKey: to.Key}, nil); err != nil {
			return err
		}
	}
	wr := qp.SendWR{Op: qp.OpSend, Local: capsule}
	if inv != 0 {
		wr.Op, wr.RKey = qp.OpSendInv, inv
	}
	return c.Post(wr, func(qp.Completion) { done() })
}

// queue is a submission and a completion queue: one connection.
//
// Invariant: a slot is free, or used by the goroutine that executes its command, or parked
// with the controller, or waits until its response is acknowledged. When none is free the
// host has sent more commands than the queue has entries, and no command is received until
// one is.
type queue struct {
	t     *target
	link  link
	id    uint16
	depth int
	peer  netip.Addr
	local netip.Addr  // the local address that the host connected to
	ctrl  *controller // nil before Connect
	noSQ  bool        // the host has disabled submission queue head reports
	// patience ends a connection on which no Connect arrives.
	patience *time.Timer

	free chan *slot
	room room
	work sync.WaitGroup

	mu   sync.Mutex // responses are sent in the order of their head values
	head uint16
}

// slot is a command and what it needs.
type slot struct {
	q       *queue
	cmd     nvme.Command
	inline  []byte // data in the capsule
	capsule []byte // received
	out     []byte // response
	began   time.Time
	held    int // bytes reserved in the queue's room
}

// result is the result of a command.
type result struct {
	status nvme.Status
	value  uint64
	data   []byte // for the host's memory
	parked bool   // the response is sent later
}

func fail(s nvme.Status) result { return result{status: s | nvme.DNR} }

// serveQueue executes the commands of a connection until it ends.
func (t *target) serveQueue(ctx context.Context, c *endpoint.Conn) {
	var req nvme.ConnectRequest
	_ = req.Decode(c.PrivateData()) // cannot fail: decide has decoded it
	q := t.newQueue(conn{c, ctx}, &req)
	q.peer, q.local = c.RemoteAddr().Addr(), c.LocalAddr()
	stop := context.AfterFunc(ctx, func() { c.Close() })
	defer stop()
	q.patience = time.AfterFunc(t.cfg.patience, func() {
		t.log.Warn("no Connect command was received", "peer", q.peer, "queue", q.id)
		c.Close()
	})
	defer q.patience.Stop()
	q.run()
	if op := (*endpoint.OpError)(nil); errors.As(c.Err(), &op) && q.ctrl != nil {
		t.log.Warn("controller failed", "controller", q.ctrl.id, "queue", q.id, "err", op)
		q.ctrl.fail()
	}
}

func (t *target) newQueue(l link, req *nvme.ConnectRequest) *queue {
	q := &queue{t: t, link: l, id: req.QID, depth: int(req.HSQSize) + 1}
	q.room.init(4 * t.cfg.maxData)
	q.free = make(chan *slot, q.depth)
	size := nvme.CommandSize
	if q.id != 0 {
		size += t.cfg.inline
	}
	for range q.depth {
		q.free <- &slot{q: q, capsule: make([]byte, size)}
	}
	return q
}

// run receives capsules until the connection ends, and returns when all commands in progress
// have ended.
func (q *queue) run() {
	for {
		var s *slot
		select {
		case s = <-q.free:
		case <-q.link.over(): // parked requests may use all slots
		}
		if s == nil {
			break
		}
		n, err := q.link.recv(s.capsule)
		if err != nil || s.cmd.Decode(s.capsule[:n]) != nil {
			break
		}
		s.inline, s.began, s.held = s.capsule[nvme.CommandSize:n], time.Now(), 0
		if q.ctrl == nil || s.cmd.Opcode == nvme.Fabrics {
			q.finish(s, q.fabrics(s))
			continue
		}
		q.ctrl.seen.Store(s.began.UnixNano())
		q.work.Add(1)
		go func() {
			defer q.work.Done()
			q.finish(s, q.execute(s))
		}()
	}
	q.link.close()
	q.room.close()
	if q.ctrl != nil {
		q.ctrl.remove(q)
	}
	q.work.Wait()
}

// execute executes a command.
func (q *queue) execute(s *slot) result {
	if !q.ctrl.ready() {
		return fail(nvme.SequenceError)
	}
	if q.id == 0 {
		return q.admin(s)
	}
	return q.io(s)
}

// finish sends the response to a command. The slot is free when the host has acknowledged the
// response.
func (q *queue) finish(s *slot, r result) {
	if r.parked {
		return
	}
	done := func() {
		q.room.give(s.held)
		q.t.stats.done(s, &r)
		q.free <- s
	}
	if r.status != nvme.Success {
		q.t.errs.add(s, r.status)
	}
	inv := uint32(0)
	if s.cmd.SGL.Type == nvme.SGLKeyedInvalidate && s.cmd.SGL.Length != 0 {
		inv = s.cmd.SGL.Key
	}
	q.mu.Lock()
	q.head = (q.head + 1) % uint16(q.depth)
	c := nvme.Completion{Result: r.value, SQID: q.id, CID: s.cmd.CID, SQHead: q.head, Status: r.status}
	if q.noSQ {
		c.SQHead = 0xffff
	}
	s.out = c.AppendTo(s.out[:0])
	err := q.link.respond(r.data, s.cmd.SGL, s.out, inv, done)
	q.mu.Unlock()
	if err != nil {
		q.link.close()
		done()
	}
}

// gather returns the want bytes of a command's data: from its capsule, or read from the
// host's memory. With exact the descriptor must not be longer.
func (q *queue) gather(s *slot, want int, exact bool) ([]byte, nvme.Status) {
	g := s.cmd.SGL
	unfit := int(g.Length) < want || exact && int(g.Length) != want
	switch {
	case want > q.t.cfg.maxData:
		return nil, nvme.InvalidField | nvme.DNR
	case g.Type == nvme.SGLOffset:
		if g.Addr > uint64(len(s.inline)) || uint64(g.Length) > uint64(len(s.inline))-g.Addr {
			return nil, nvme.SGLOffsetInvalid | nvme.DNR
		}
		if unfit {
			return nil, nvme.SGLLengthInvalid | nvme.DNR
		}
		return s.inline[g.Addr:][:want], nvme.Success
	case g.Type != nvme.SGLKeyed && g.Type != nvme.SGLKeyedInvalidate:
		return nil, nvme.SGLTypeInvalid | nvme.DNR
	case unfit:
		return nil, nvme.SGLLengthInvalid | nvme.DNR
	case !q.room.take(s, want):
		return nil, nvme.InternalError
	}
	b := make([]byte, want)
	if err := q.link.read(b, g); err != nil {
		return nil, nvme.DataTransferError
	}
	return b, nvme.Success
}

// place returns a buffer of n bytes for data to the host's memory, or the status if the
// host's descriptor has no room for them. With exact the descriptor must have exactly n
// bytes.
func (q *queue) place(s *slot, n int, exact bool) ([]byte, nvme.Status) {
	g := s.cmd.SGL
	switch {
	case n > q.t.cfg.maxData:
		return nil, nvme.InvalidField | nvme.DNR
	case g.Type != nvme.SGLKeyed && g.Type != nvme.SGLKeyedInvalidate:
		return nil, nvme.SGLTypeInvalid | nvme.DNR
	case int(g.Length) < n || exact && int(g.Length) != n:
		return nil, nvme.SGLLengthInvalid | nvme.DNR
	case !q.room.take(s, n):
		return nil, nvme.InternalError
	}
	return make([]byte, n), nvme.Success
}

// room limits the data of the commands of a queue that are in progress, in bytes.
type room struct {
	mu     sync.Mutex
	given  sync.Cond
	left   int
	closed bool
}

func (r *room) init(n int) { r.left, r.given.L = n, &r.mu }

// take reserves n bytes for a slot; n must not exceed the total. It waits until they are
// available, and returns false if the queue ends meanwhile.
func (r *room) take(s *slot, n int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	for r.left < n {
		if r.closed {
			return false
		}
		r.given.Wait()
	}
	r.left -= n
	s.held += n
	return true
}

func (r *room) give(n int) {
	if n == 0 {
		return
	}
	r.mu.Lock()
	r.left += n
	r.given.Broadcast()
	r.mu.Unlock()
}

func (r *room) close() {
	r.mu.Lock()
	r.closed = true
	r.given.Broadcast()
	r.mu.Unlock()
}
