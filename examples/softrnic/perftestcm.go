package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"strconv"
	"time"

	"github.com/roce-go/roce/qp"
	roce "github.com/roce-go/roce/qp/endpoint"
)

// perfCM is a test of perftest with -R: the handshake uses SENDs on a connection of RDMA-CM,
// and RDMA-CM also connects the queue pairs that are tested, at the same port.
type perfCM struct {
	*cmTool
	perfTest
	ctl        cmMessages
	conns      []*roce.Conn
	to         []*peer
	into, from *roce.MR
	received   int
}

// cmMessages is a connection on which each read and each write is one message.
type cmMessages struct {
	ctx context.Context
	c   *roce.Conn
}

func (m cmMessages) Read(b []byte) (int, error) { return m.c.Recv(m.ctx, b) }

func (m cmMessages) Write(b []byte) (int, error) { return len(b), m.c.Send(m.ctx, b) }

// perftestKeys builds the message that describes a queue pair: LID, outstanding READs, QPN,
// PSN, R_Key, address, GID, SRQ and the GID's index, big-endian, with the padding of the C
// struct.
func perftestKeys(p *peer) []byte {
	be := binary.BigEndian
	b := make([]byte, 4, 56)
	for _, v := range []uint32{uint32(p.reads), p.qpn, p.psn & 0xffffff, p.rkey, 0} {
		b = be.AppendUint32(b, v)
	}
	b = append(be.AppendUint64(b, p.va), p.gid[:]...)
	return append(b, make([]byte, 8)...)
}

func parsePerftestKeys(b []byte) *peer {
	be := binary.BigEndian
	p := &peer{reads: int(be.Uint32(b[4:])), qpn: be.Uint32(b[8:]), psn: be.Uint32(b[12:]), rkey: be.Uint32(b[16:]), va: be.Uint64(b[24:])}
	copy(p.gid[:], b[32:])
	return p
}

// perftest runs ib_send_bw -R and so on.
func (t *cmTool) perftest(ctx context.Context) error {
	r := &perfCM{cmTool: t, perfTest: perfTests[t.o.perftest]}
	if t.o.size == 0 {
		t.o.size = 65536
	}
	if r.op == qp.OpFetchAdd {
		t.o.size = 8
	}
	cfg := t.config()
	if r.op == qp.OpSend && t.to == "" {
		cfg.RecvDepth = recvDepth
	}
	connect := func() (*roce.Conn, error) { return t.dialSoon(ctx, t.to, &cfg) }
	if t.to == "" {
		l, err := t.ep.Listen(ctx, ":"+strconv.Itoa(t.port), &roce.ListenConfig{ConnConfig: cfg})
		if err != nil {
			return err
		}
		defer l.Close()
		connect = func() (*roce.Conn, error) { return l.Accept(ctx) }
	}
	all := qp.RemoteRead | qp.RemoteWrite | qp.RemoteAtomic
	var err, err2 error
	r.into, err = t.ep.Register(make([]byte, max(4<<20, t.o.size)), all)
	r.from, err2 = t.ep.Register(make([]byte, t.o.size), all)
	if err = errors.Join(err, err2); err != nil {
		return err
	}
	c, err := connect()
	if err != nil {
		return err
	}
	defer c.Close()
	r.ctl = cmMessages{ctx, c}
	if err := r.handshake(connect); err != nil {
		return err
	}
	for i, c := range r.conns {
		defer c.Close()
		fmt.Fprintf(t.out, "connected: %v, QP %#06x, remote QPN %#06x\n", c.RemoteAddr().Addr(), c.QP(), r.to[i].qpn)
	}
	start := time.Now()
	done := t.o.n * len(r.conns)
	if t.to == "" {
		err = r.serve()
		done = r.received
	} else if err = r.stream(); err == nil {
		err = r.leave()
	}
	if err != nil {
		return err
	}
	if d := time.Since(start); done != 0 {
		fmt.Fprintf(t.out, "%d messages of %d bytes in %.2f seconds = %.2f MB/s\n", done, t.o.size, d.Seconds(), float64(done*t.o.size)/d.Seconds()/1e6)
	}
	limit := goodbye
	if t.to != "" {
		// Our last acknowledgement may be lost: the server retransmits its message for ever,
		// and after the connection is closed nothing acknowledges it.
		limit = max(time.Second, t.o.linger)
	}
	t.gone(limit, append(r.conns, c)...)
	return nil
}

// swap exchanges the descriptions of a queue pair; c is nil if there is none.
func (r *perfCM) swap(c *roce.Conn) (*peer, error) {
	p := &peer{gid: r.gids[r.gid].As16(), reads: rdAtomic, rkey: r.into.RKey(), va: r.into.Addr()}
	if c != nil {
		p.qpn = c.QP()
	}
	got, err := exchange(r.ctl, r.server(), perftestKeys(p))
	if err != nil {
		return nil, err
	}
	return parsePerftestKeys(got), nil
}

// server reports whether this end is the server.
func (r *perfCM) server() bool { return r.cmTool.to == "" }

// handshake does everything before the test.
func (r *perfCM) handshake(connect func() (*roce.Conn, error)) error {
	if _, err := perftestOpening(r.ctl, r.server(), r.o.mtu); err != nil {
		return err
	}
	if _, err := r.swap(nil); err != nil {
		return err
	}
	for range r.o.qps {
		c, err := connect()
		if err != nil {
			return fmt.Errorf("queue pair %d of %d: %w", len(r.conns)+1, r.o.qps, err)
		}
		r.conns = append(r.conns, c)
		r.cmTool.conns = append(r.cmTool.conns, c)
	}
	if _, err := r.swap(nil); err != nil {
		return err
	}
	for _, c := range r.conns {
		p, err := r.swap(c)
		if err != nil {
			return err
		}
		r.to = append(r.to, p)
	}
	again := append([]*roce.Conn(nil), r.conns...)
	if r.op == qp.OpSend {
		again = append(again, nil)
	}
	for _, c := range append(again, nil) {
		if _, err := r.swap(c); err != nil {
			return err
		}
	}
	return nil
}

// stream sends -n messages on each queue pair.
func (r *perfCM) stream() error {
	over := make(chan error, len(r.conns))
	for i, c := range r.conns {
		go func() { over <- r.streamOn(c, r.to[i]) }()
	}
	var err error
	for range r.conns {
		err = errors.Join(err, <-over)
	}
	return err
}

func (r *perfCM) streamOn(c *roce.Conn, to *peer) error {
	const depth = 64
	results := make(chan qp.Completion, depth)
	wr := qp.SendWR{Op: r.op, Local: r.from.Bytes(), RemoteAddr: to.va, RKey: to.rkey, CompareAdd: 1}
	for posted, open := 0, 0; posted < r.o.n || open > 0; {
		if posted < r.o.n && open < depth {
			if err := c.Post(wr, func(wc qp.Completion) { results <- wc }); err != nil {
				return err
			}
			posted, open = posted+1, open+1
			continue
		}
		select {
		case wc := <-results:
			if open--; wc.Status != qp.Success {
				return fmt.Errorf("after %d messages: %w", posted-open, failure(&wc))
			}
		case <-r.ctl.ctx.Done():
			return context.Cause(r.ctl.ctx)
		}
	}
	return nil
}

// serve receives messages until the client reports the end of the test.
func (r *perfCM) serve() error {
	over := make(chan error, 1)
	go func() { over <- r.leave() }()
	if r.op != qp.OpSend {
		return <-over
	}
	ctx, cancel := context.WithCancel(r.ctl.ctx)
	defer cancel()
	came := make(chan error, len(r.conns))
	for _, c := range r.conns {
		go func() {
			b := make([]byte, r.o.size)
			for range r.o.n {
				if _, err := c.Recv(ctx, b); err != nil {
					came <- err
					return
				}
			}
			came <- nil
		}()
	}
	for range r.conns {
		if err := <-came; err != nil {
			return fmt.Errorf("the client sends fewer messages than -n %d, or longer ones than -size %d: %w", r.o.n, r.o.size, err)
		}
	}
	r.received = r.o.n * len(r.conns)
	return <-over
}

// leave exchanges results, if the test has them, and ends the handshake connection.
func (r *perfCM) leave() error {
	if r.op != qp.OpSend {
		if _, err := r.swap(nil); err != nil {
			return err
		}
		for _, v := range []uint64{uint64(r.o.size), uint64(r.o.n), 0, 0, 0} {
			if _, err := exchange(r.ctl, r.server(), binary.BigEndian.AppendUint64(nil, v)); err != nil {
				return err
			}
		}
	}
	_, err := r.swap(nil)
	if errors.Is(err, io.EOF) && r.server() {
		err = nil // the client has received everything
	}
	return err
}
