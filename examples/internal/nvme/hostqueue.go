package nvme

import (
	"context"
	"errors"
	"fmt"

	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/endpoint"
)

// queue is a host's end of a submission and completion queue.
//
// Invariant: a slot is free, or one command has it: until the controller has responded
// and the capsule has been acknowledged, since a lost acknowledgement has it sent again.
type queue struct {
	id       uint16
	ep       *endpoint.Endpoint
	conn     *endpoint.Conn
	cntlid   uint16
	slots    []*slot
	free     chan *slot
	receiver chan struct{} // closed when nobody hands out responses any more
}

type slot struct {
	cid     uint16
	window  *endpoint.Window
	capsule []byte
	sent    chan qp.Completion
	done    chan response
}

type response struct {
	Completion
	msg endpoint.Message
}

// dialQueue connects a queue of depth entries and has the controller take it.
func dialQueue(ctx context.Context, ep *endpoint.Endpoint, address string, cfg *HostConfig, id uint16, depth int, cntlid uint16) (*queue, error) {
	cc := cfg.Conn
	cc.SendDepth, cc.RecvDepth, cc.RecvSize = depth, depth, CompletionSize
	req := ConnectRequest{QID: id, HRQSize: uint16(depth), HSQSize: uint16(depth - 1)}
	if id != 0 {
		req.CntlID = cntlid
	}
	cc.PrivateData = req.AppendTo(nil)
	conn, err := ep.Dial(ctx, address, &cc)
	if err != nil {
		var rej *endpoint.RejectedError
		var why ConnectReject
		if errors.As(err, &rej) && why.Decode(rej.PrivateData) == nil && why.Status != 0 {
			return nil, fmt.Errorf("nvme: queue %d: %w: %v", id, err, why.Status)
		}
		return nil, fmt.Errorf("nvme: queue %d: %w", id, err)
	}
	q := &queue{id: id, ep: ep, conn: conn, free: make(chan *slot, depth), receiver: make(chan struct{})}
	for i := range depth - 1 { // a queue that is full has an entry less
		w, err := ep.AllocWindow()
		if err != nil {
			conn.Close()
			return nil, err
		}
		s := &slot{cid: uint16(i), window: w, sent: make(chan qp.Completion, 1), done: make(chan response, 1)}
		q.slots = append(q.slots, s)
		q.free <- s
	}
	go q.receive()
	data := ConnectData{HostID: cfg.HostID, CntlID: cntlid, SubNQN: cfg.NQN, HostNQN: cfg.HostNQN}
	c := &Command{Opcode: Fabrics, NSID: Connect, CDW10: [6]uint32{uint32(id) << 16, uint32(depth - 1)}}
	if id == 0 {
		c.CDW10[2] = uint32(cfg.Alive.Milliseconds())
	}
	r, err := q.do(ctx, "connect", c, data.AppendTo(nil), true)
	if err != nil {
		conn.Close()
		return nil, err
	}
	q.cntlid = uint16(r.Result)
	return q, nil
}

// receive hands responses to those who wait for them, until the connection is over.
func (q *queue) receive() {
	defer close(q.receiver)
	buf := make([]byte, CompletionSize)
	for {
		m, err := q.conn.RecvMessage(context.Background(), buf)
		if err != nil {
			break
		}
		r := response{msg: m}
		if r.Decode(buf[:m.N]) != nil || int(r.CID) >= len(q.slots) {
			break
		}
		select {
		case q.slots[r.CID].done <- r:
			continue
		default: // two responses to one command
		}
		break
	}
	q.conn.Close()
	for _, s := range q.slots {
		s.window.Close()
	}
}

// do does a command. When ctx ends before the controller has responded, the queue's
// connection is over.
func (q *queue) do(ctx context.Context, name string, c *Command, data []byte, write bool) (Completion, error) {
	fail := func(err error) (Completion, error) {
		if over := q.conn.Err(); over != nil && ctx.Err() == nil {
			err = over // whatever else it led to
		}
		return Completion{}, fmt.Errorf("nvme: %s on queue %d: %w", name, q.id, err)
	}
	var s *slot
	select {
	case s = <-q.free:
	case <-ctx.Done():
		return fail(context.Cause(ctx))
	case <-q.receiver:
		return fail(q.conn.Err())
	}
	cmd := *c
	cmd.CID, cmd.Flags = s.cid, FlagsSGL
	cmd.SGL = SGL{Type: SGLKeyed}
	if len(data) != 0 {
		mr, err := q.ep.Register(data, qp.MWBind)
		if err != nil {
			q.free <- s
			return fail(err)
		}
		defer mr.Close()
		access := qp.RemoteWrite
		if write {
			access = qp.RemoteRead
		}
		r, err := s.window.Bind(q.conn, mr, 0, uint32(len(data)), access)
		if err != nil {
			q.free <- s
			return fail(err)
		}
		cmd.SGL = SGL{Addr: r.Addr, Length: r.Len, Key: r.RKey, Type: SGLKeyedInvalidate}
	}
	s.capsule = cmd.AppendTo(s.capsule[:0])
	if err := q.conn.Post(qp.SendWR{Op: qp.OpSend, Local: s.capsule}, func(wc qp.Completion) { s.sent <- wc }); err != nil {
		return fail(err) // the slot is lost with the connection
	}
	var r response
	select {
	case r = <-s.done:
	case <-ctx.Done():
		q.conn.Close()
		return fail(context.Cause(ctx))
	case <-q.receiver:
		return fail(q.conn.Err())
	}
	if <-s.sent; r.msg.HasInv && r.msg.InvRKey != s.window.RKey() {
		q.conn.Close()
		return fail(errors.New("the response takes away the key of another command"))
	}
	s.window.Invalidate()
	q.free <- s
	if r.Status != Success {
		return r.Completion, &Error{name, r.Status}
	}
	return r.Completion, nil
}
