package endpoint

import (
	"context"
	"encoding/binary"
	"io"
	"net"
	"net/netip"
	"slices"
	"time"

	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/softnic"
)

// Conn is a reliable connection. Its methods may be called from any goroutine.
type Conn struct {
	e       *Endpoint
	q       *softnic.QP
	call    *softnic.Call
	cfg     ConnConfig
	local   netip.Addr
	remote  netip.AddrPort
	private []byte
	from    *Listener // that accepted it, until Accept returns it

	sends sendOps
	inbox inbox

	ready chan struct{} // closed when established, or over
	over  chan struct{} // closed when over
	est   bool
	err   error // why it is over

	tooLong uint64 // the endpoint's count when the connection was created
}

// sendOps are the requests outstanding, by work request ID.
type sendOps struct {
	done []func(qp.Completion)
	free []uint32
	room []chan struct{} // callers that wait for a free one
}

// wake wakes the caller that has waited longest, where a request may be posted.
func (s *sendOps) wake() {
	if len(s.free) != 0 && len(s.room) != 0 {
		close(s.room[0])
		s.room = s.room[1:]
	}
}

// inbox holds the messages that were received and not yet returned by Recv.
type inbox struct {
	bufs    [][]byte
	got     []Message // oldest first; Data is of bufs
	arrived chan struct{}
}

// Message is a received SEND, or a RDMA WRITE with immediate data, which has no Data.
type Message struct {
	N      int // bytes: of the message, or written
	Op     qp.Op
	Imm    uint32
	HasImm bool
	// InvRKey is, where HasInv, the key of a Window that the peer invalidated.
	InvRKey uint32
	HasInv  bool
	id      uint64
}

// newConn creates a queue pair with receives posted. The lock is held.
func (e *Endpoint) newConn(now time.Time, cfg *ConnConfig) (*Conn, error) {
	c := &Conn{e: e, ready: make(chan struct{}), over: make(chan struct{}), tooLong: e.counted.TooLong}
	if cfg != nil {
		c.cfg = *cfg
	}
	c.cfg.defaults(e)
	err := c.cfg.check()
	if err != nil {
		return nil, err
	}
	c.q, err = e.port.CreateQP(softnic.QPConfig{Config: qp.Config{Type: qp.RC, PD: e.pd, MaxSendWR: c.cfg.SendDepth,
		MaxRecvWR: c.cfg.RecvDepth, MaxRdAtomic: min(c.cfg.MaxRdAtomic, 128), MaxDestRdAtomic: min(c.cfg.MaxDestRdAtomic, 128),
		Window: c.cfg.Window, LinuxAckBeforeRead: c.cfg.LinuxAckBeforeRead},
		SendCQ: e.cq, RecvCQ: e.cq})
	if err != nil {
		return nil, err
	}
	c.inbox.arrived = make(chan struct{}, 1)
	err = c.q.Modify(now, &qp.Attr{State: qp.Init, PKey: 0xffff, Access: c.cfg.Access}, qp.AttrState|qp.AttrPKey|qp.AttrAccess)
	// One piece of memory for all receives: what is never used is never touched.
	mem := make([]byte, c.cfg.RecvDepth*c.cfg.RecvSize)
	for i := 0; i < c.cfg.RecvDepth && err == nil; i++ {
		b := mem[i*c.cfg.RecvSize:][:c.cfg.RecvSize:c.cfg.RecvSize]
		c.inbox.bufs = append(c.inbox.bufs, b)
		err = c.q.PostRecv(&qp.RecvWR{ID: uint64(i), Local: b})
	}
	if err != nil {
		c.q.Destroy()
		return nil, err
	}
	c.sends.done = make([]func(qp.Completion), c.cfg.SendDepth)
	for i := range c.sends.done {
		c.sends.free = append(c.sends.free, uint32(i))
	}
	e.conns[c] = struct{}{}
	e.qpns[c.q.Num()] = c
	return c, nil
}

// complete handles a completion. The lock is held.
func (c *Conn) complete(now time.Time, wc *qp.Completion) {
	if wc.Op == qp.OpRecv || wc.Op == qp.OpRecvWrite {
		if wc.Status != qp.Success {
			if wc.Status != qp.WRFlushErr {
				c.end(now, c.opError("receive", wc.Status))
			} else if c.err == nil {
				c.end(now, c.opError("receive", wc.Status))
			}
			return
		}
		c.inbox.got = append(c.inbox.got, Message{N: int(wc.ByteLen), Op: wc.Op, Imm: wc.Imm, HasImm: wc.HasImm,
			InvRKey: wc.InvRKey, HasInv: wc.HasInv, id: wc.ID})
		signal(c.inbox.arrived)
		return
	}
	if wc.ID >= uint64(len(c.sends.done)) {
		return
	}
	done := c.sends.done[wc.ID]
	c.sends.done[wc.ID] = nil
	c.sends.free = append(c.sends.free, uint32(wc.ID))
	c.sends.wake()
	if done != nil {
		done(*wc)
	}
	if wc.Status != qp.Success && c.err == nil {
		c.end(now, c.opError(wc.Op.String(), wc.Status))
	}
}

func signal(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}

// end ends the connection: err is what operations fail with from now on. The lock is
// held.
func (c *Conn) end(now time.Time, err error) {
	if c.err != nil {
		return
	}
	c.err = err
	close(c.over)
	if !c.est {
		close(c.ready)
	}
	for _, ch := range c.sends.room {
		close(ch)
	}
	c.sends.room = nil
	if c.call != nil && c.q.State() == qp.Error {
		// The queue pair failed: its NAK, which says why, is sent before the DREQ.
		c.e.failed = append(c.e.failed, c)
	} else if c.call != nil {
		_ = c.e.port.Disconnect(now, c.call, nil)
	} else {
		_ = c.q.Modify(now, &qp.Attr{State: qp.Error}, qp.AttrState)
	}
	c.e.log.Info("connection over", "peer", c.remote, "qpn", c.q.Num(), "err", err)
}

// gone destroys the queue pair, after the last event of its call. The lock is held.
func (c *Conn) gone(now time.Time) {
	c.e.takeCompletions(now)
	c.end(now, net.ErrClosed)
	delete(c.e.conns, c)
	delete(c.e.qpns, c.q.Num())
	if c.from != nil && !c.est {
		c.from.waiting-- // Accept never returns it
	}
	if c.call != nil && !c.call.Active {
		a := c.remote.Addr()
		if c.e.peers[a]--; c.e.peers[a] <= 0 {
			delete(c.e.peers, a)
		}
	}
	c.q.Destroy()
}

// ok reports whether c is a connection, and not nil, what Dial returns with an error, nor the
// zero value.
func (c *Conn) ok() bool { return c != nil && c.e != nil }

// Post posts a request and returns: done is called when it is complete, in the order of the
// posts, never from within Post, and must not block. Until then the memory of wr belongs to
// the endpoint. wr.ID and the Signaled flag are overwritten. The errors are qp.ErrQueueFull
// when SendDepth requests are outstanding, that of Err after the end of the connection, and
// those of qp.Requester's PostSend.
func (c *Conn) Post(wr qp.SendWR, done func(qp.Completion)) error {
	if !c.ok() {
		return net.ErrClosed
	}
	c.e.mu.Lock()
	defer c.e.unlockFirst()
	return c.post(wr, func(wc qp.Completion) {
		if done != nil {
			c.e.later(func() { done(wc) })
		}
	})
}

// post posts a request; done is called with the lock held.
func (c *Conn) post(wr qp.SendWR, done func(qp.Completion)) error {
	if c.err != nil {
		return c.err
	}
	n := len(c.sends.free)
	if n == 0 {
		return qp.ErrQueueFull
	}
	id := c.sends.free[n-1]
	wr.ID = uint64(id)
	wr.Flags |= qp.Signaled
	now := time.Now()
	if err := c.q.PostSend(now, &wr); err != nil {
		return err
	}
	c.sends.free = c.sends.free[:n-1]
	c.sends.done[id] = done
	c.e.settle(now)
	return nil
}

// do posts a request and waits until it is complete. When ctx ends before that, the
// connection ends: a posted request cannot be cancelled.
func (c *Conn) do(ctx context.Context, wr qp.SendWR) error {
	if !c.ok() {
		return net.ErrClosed
	}
	if err := begun(ctx); err != nil {
		return err
	}
	result := make(chan qp.Completion, 1)
	for {
		c.e.mu.Lock()
		err := c.post(wr, func(wc qp.Completion) { result <- wc })
		var room chan struct{}
		if err == qp.ErrQueueFull {
			room = make(chan struct{})
			c.sends.room = append(c.sends.room, room)
		} else if err != nil {
			c.sends.wake() // the next in its place
		}
		c.e.unlock()
		if room == nil {
			if err != nil {
				return err
			}
			break
		}
		select {
		case <-room:
		case <-ctx.Done():
			c.e.mu.Lock()
			if i := slices.Index(c.sends.room, room); i >= 0 {
				c.sends.room = slices.Delete(c.sends.room, i, i+1)
			} else {
				c.sends.wake()
			}
			c.e.mu.Unlock()
			return context.Cause(ctx)
		}
	}
	var wc qp.Completion
	select {
	case wc = <-result:
	case <-ctx.Done():
		c.abort(context.Cause(ctx))
		wc = <-result // flushed by now
	}
	if wc.Status == qp.Success {
		return nil
	}
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	if wc.Status == qp.WRFlushErr && c.err != nil {
		return c.err
	}
	return c.opError(wr.Op.String(), wc.Status)
}

// abort ends the connection with an error.
func (c *Conn) abort(err error) {
	c.e.mu.Lock()
	now := time.Now()
	c.end(now, err)
	c.e.settle(now)
	c.e.unlock()
}

// Send sends a message and waits until the peer has acknowledged it.
func (c *Conn) Send(ctx context.Context, b []byte) error {
	return c.do(ctx, qp.SendWR{Op: qp.OpSend, Local: b})
}

// SendImm is Send with immediate data.
func (c *Conn) SendImm(ctx context.Context, b []byte, imm uint32) error {
	return c.do(ctx, qp.SendWR{Op: qp.OpSendImm, Local: b, Imm: imm})
}

// SendInvalidate is Send which also invalidates a window of the peer's by its key.
func (c *Conn) SendInvalidate(ctx context.Context, b []byte, rkey uint32) error {
	return c.do(ctx, qp.SendWR{Op: qp.OpSendInv, Local: b, RKey: rkey})
}

// Recv waits for a message and copies it to b. It returns the number of bytes copied, with
// io.ErrShortBuffer when b holds only the first part. After the peer has ended the
// connection, and all messages that it sent before were returned, it returns io.EOF.
func (c *Conn) Recv(ctx context.Context, b []byte) (int, error) {
	m, err := c.RecvMessage(ctx, b)
	return m.N, err
}

// RecvMessage is Recv with the other fields of a message, such as immediate data.
func (c *Conn) RecvMessage(ctx context.Context, b []byte) (Message, error) {
	if !c.ok() {
		return Message{}, net.ErrClosed
	}
	if ctx == nil {
		return Message{}, errNoContext
	}
	for {
		c.e.mu.Lock()
		if len(c.inbox.got) != 0 {
			m, err := c.take(b)
			c.e.unlock()
			return m, err
		}
		err := c.err
		c.e.unlock()
		if err == ErrDisconnected {
			err = io.EOF
		}
		if err != nil {
			signal(c.inbox.arrived) // others wait, too
			return Message{}, err
		}
		select {
		case <-c.inbox.arrived:
		case <-c.over:
		case <-ctx.Done():
			return Message{}, context.Cause(ctx)
		}
	}
}

// take copies the oldest message to b and posts its receive again. The lock is held.
func (c *Conn) take(b []byte) (Message, error) {
	m := c.inbox.got[0]
	c.inbox.got = c.inbox.got[1:]
	buf := c.inbox.bufs[m.id]
	var err error
	if m.Op == qp.OpRecv && copy(b, buf[:m.N]) < m.N {
		m.N, err = len(b), io.ErrShortBuffer
	}
	if c.err == nil {
		_ = c.q.PostRecv(&qp.RecvWR{ID: m.id, Local: buf})
		c.e.settle(time.Now())
	}
	if len(c.inbox.got) != 0 {
		signal(c.inbox.arrived)
	}
	return m, err
}

// WriteRemote writes b to the peer's memory (RDMA WRITE) and waits until the peer has
// acknowledged it.
func (c *Conn) WriteRemote(ctx context.Context, to Remote, b []byte) error {
	return c.do(ctx, qp.SendWR{Op: qp.OpWrite, Local: b, RemoteAddr: to.Addr, RKey: to.RKey})
}

// WriteRemoteImm is WriteRemote with immediate data, which the peer's RecvMessage returns
// after the bytes are written.
func (c *Conn) WriteRemoteImm(ctx context.Context, to Remote, b []byte, imm uint32) error {
	return c.do(ctx, qp.SendWR{Op: qp.OpWriteImm, Local: b, RemoteAddr: to.Addr, RKey: to.RKey, Imm: imm})
}

// ReadRemote fills b from the peer's memory (RDMA READ), and waits until it is complete.
func (c *Conn) ReadRemote(ctx context.Context, b []byte, from Remote) error {
	return c.do(ctx, qp.SendWR{Op: qp.OpRead, Local: b, RemoteAddr: from.Addr, RKey: from.RKey})
}

// FetchAdd adds to the 64-bit number at an aligned address of the peer's memory, and
// returns what it was. RDMA atomics have the byte order of the host that holds the
// memory; here that is little-endian.
func (c *Conn) FetchAdd(ctx context.Context, at Remote, add uint64) (old uint64, err error) {
	var b [8]byte
	err = c.do(ctx, qp.SendWR{Op: qp.OpFetchAdd, Local: b[:], RemoteAddr: at.Addr, RKey: at.RKey, CompareAdd: add})
	return binary.LittleEndian.Uint64(b[:]), err
}

// CompareSwap stores swap at an aligned address of the peer's memory when compare is
// there, and returns what was there.
func (c *Conn) CompareSwap(ctx context.Context, at Remote, compare, swap uint64) (old uint64, err error) {
	var b [8]byte
	err = c.do(ctx, qp.SendWR{Op: qp.OpCmpSwap, Local: b[:], RemoteAddr: at.Addr, RKey: at.RKey, CompareAdd: compare, Swap: swap})
	return binary.LittleEndian.Uint64(b[:]), err
}

// Close ends the connection: outstanding requests end with net.ErrClosed, and a DREQ is
// sent to the peer. Close does not wait for the peer, or for requests: wait before for
// those that must complete.
func (c *Conn) Close() error {
	if !c.ok() {
		return net.ErrClosed
	}
	c.abort(net.ErrClosed)
	return nil
}

// Done returns a channel that is closed when the connection is over; Err says why.
func (c *Conn) Done() <-chan struct{} { return c.over }

// Err returns why the connection is over, or nil.
func (c *Conn) Err() error {
	if !c.ok() {
		return net.ErrClosed
	}
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	return c.err
}

// PrivateData returns the private data of the peer's request or acceptance, padded with
// zeros to 56 or 196 bytes.
func (c *Conn) PrivateData() []byte { return c.private }

// QP returns the number of the queue pair.
func (c *Conn) QP() uint32 { return c.q.Num() }

// LocalAddr returns the address of this side.
func (c *Conn) LocalAddr() netip.Addr { return c.local }

// RemoteAddr returns the peer's address. Its port has no meaning where the peer dialled.
func (c *Conn) RemoteAddr() netip.AddrPort { return c.remote }

// Counters returns what the queue pair counted.
func (c *Conn) Counters() qp.Counters {
	c.e.mu.Lock()
	defer c.e.mu.Unlock()
	return c.q.Counters()
}
