package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"syscall"
	"time"

	"github.com/roce-go/roce/examples/internal/wire"
	"github.com/roce-go/roce/qp"
	roce "github.com/roce-go/roce/qp/endpoint"
)

// cmRoles are the values of -cm.
var cmRoles = []string{"rping", "ucmatose", "rdma", "xrdma", "cmtime", "udaddy", "mckey", "rstream", "riostream", "rcopy"}

// cm runs a tool that connects by RDMA-CM.
func (e *endpoint) cm(o *options, address string, stdout io.Writer) error {
	port := map[string]int{"rping": 7174, "ucmatose": 7471, "rdma": 7471, "xrdma": 7471, "cmtime": 7471, "udaddy": 7174, "rstream": 7471, "riostream": 7471, "rcopy": 7427}[o.cm]
	switch {
	case o.rdmacm:
		port = 18515
	case o.qperf != "":
		port = qperfPort
	}
	if o.tcp != 0 {
		port = o.tcp
	}
	t := &cmTool{endpoint: e, o: o, out: stdout, port: port}
	ctx, cancel := context.WithTimeoutCause(context.Background(), o.wait, fmt.Errorf("%s: not done after %v (-wait)", t.role(), o.wait))
	defer cancel()
	if o.cm == "mckey" {
		return t.mckey(ctx, address)
	}
	if address != "" {
		a, err := wire.Lookup(t.role(), address, !e.gids[e.gid].Is4())
		if err != nil {
			return err
		}
		t.to = netip.AddrPortFrom(a, uint16(port)).String()
	}
	switch {
	case o.qperf != "":
		return t.qperf(ctx, address)
	case o.rdmacm:
		return t.perftest(ctx)
	case o.cm == "rstream", o.cm == "riostream", o.cm == "rcopy":
		return t.rsockets(ctx)
	case o.cm == "udaddy":
		return t.udaddy(ctx)
	case o.cm == "cmtime" && address == "":
		return t.cmtimeServer(ctx)
	case o.cm == "cmtime":
		return t.cmtimeClient(ctx)
	case address == "":
		return t.serve(ctx)
	case o.cm == "rping":
		return t.rpingClient(ctx)
	}
	return t.exchange(ctx)
}

// dialSoon dials a server that may not listen yet; it retries for two seconds.
func (t *cmTool) dialSoon(ctx context.Context, to string, cfg *roce.ConnConfig) (*roce.Conn, error) {
	for i := 0; ; i++ {
		c, err := t.ep.Dial(ctx, to, cfg)
		if i == 20 || !errors.Is(err, syscall.ECONNREFUSED) {
			return c, err
		}
		time.Sleep(100 * time.Millisecond)
	}
}

// role returns the option that this run was started with.
func (t *cmTool) role() string {
	if t.o.rdmacm {
		return "-perftest " + t.o.perftest + " -R"
	}
	if t.o.qperf != "" {
		return "-qperf " + t.o.qperf
	}
	return "-cm " + t.o.cm
}

type cmTool struct {
	*endpoint
	o    *options
	out  io.Writer
	port int
	to   string
}

// serve accepts connections until one has done what the options request.
func (t *cmTool) serve(ctx context.Context) error {
	cfg := roce.ListenConfig{ConnConfig: t.config()}
	l, err := t.ep.Listen(ctx, ":"+strconv.Itoa(t.port), &cfg)
	if err != nil {
		return err
	}
	defer l.Close()
	c, err := l.Accept(ctx)
	if err != nil {
		return fmt.Errorf("no client connected to port %d: %w", t.port, err)
	}
	defer c.Close()
	t.conns = append(t.conns, c)
	fmt.Fprintf(t.out, "connected: %v, QP %#06x\n", c.RemoteAddr().Addr(), c.QP())
	switch t.o.cm {
	case "rping":
		return t.rpingServer(ctx, c)
	case "rdma", "xrdma":
		return t.rdmaServer(ctx, c)
	}
	return t.ucmatose(ctx, c, false)
}

// exchange dials and exchanges messages.
func (t *cmTool) exchange(ctx context.Context) error {
	cfg := t.config()
	c, err := t.ep.Dial(ctx, t.to, &cfg)
	if err != nil {
		return err
	}
	defer c.Close()
	t.conns = append(t.conns, c)
	fmt.Fprintf(t.out, "connected: %v, QP %#06x\n", c.RemoteAddr().Addr(), c.QP())
	switch t.o.cm {
	case "rdma":
		return t.rdmaClient(ctx, c)
	case "xrdma":
		return c.Send(ctx, make([]byte, t.size()))
	}
	return t.ucmatose(ctx, c, true)
}

// config returns the parameters of a connection, with at least as many receives as the tools
// have messages in flight.
func (t *cmTool) config() roce.ConnConfig {
	var h qp.AHAttr
	t.mark(&h)
	return roce.ConnConfig{RecvDepth: 64, RecvSize: max(t.size(), 256), SendDepth: 64, Window: t.most, RetryCnt: uint8(t.retries), RNRRetry: 7,
		LinuxAckBeforeRead: true, TrafficClass: h.TrafficClass, VLAN: h.VLAN, HasVLAN: h.HasVLAN}
}

func (t *cmTool) size() int {
	if t.o.size != 0 {
		return t.o.size
	}
	return map[string]int{"rping": 64, "ucmatose": 100, "rdma": 16, "xrdma": 16, "cmtime": 16, "udaddy": 100, "mckey": 100, "rstream": 1000, "riostream": 1000}[t.o.cm]
}

// ucmatose exchanges messages like the tool of that name: the server sends all of its
// messages, then the client does.
func (t *cmTool) ucmatose(ctx context.Context, c *roce.Conn, client bool) error {
	n, msg := t.o.n, make([]byte, t.size())
	send := func() error {
		for range n {
			if err := c.Send(ctx, msg); err != nil {
				return err
			}
		}
		return nil
	}
	recv := func() error {
		for i := range n {
			if _, err := c.Recv(ctx, msg); err != nil {
				return fmt.Errorf("after %d of %d messages: %w", i, n, err)
			}
		}
		return nil
	}
	first, second := send, recv
	if client {
		first, second = recv, send
	}
	if err := first(); err != nil {
		return err
	}
	// A peer that has received all messages may end the connection before it acknowledges our
	// last one.
	if err := second(); err != nil && !(client && errors.Is(err, io.EOF)) {
		return err
	}
	fmt.Fprintf(t.out, "%d messages of %d bytes both ways\n", n, len(msg))
	if !client {
		t.gone(goodbye, c)
	}
	return nil
}

// gone waits for the peer to end the connections, for at most limit.
func (t *cmTool) gone(limit time.Duration, conns ...*roce.Conn) {
	over := time.After(limit)
	for _, c := range conns {
		select {
		case <-c.Done():
		case <-over:
			return
		}
	}
}

// goodbye is how long a server waits for its client to end a connection.
const goodbye = 5 * time.Second

// rdmaServer and rdmaClient are rdma-core's rdma_server and rdma_client: a message of 16
// bytes each way. rdma_xserver and rdma_xclient have no second message.
func (t *cmTool) rdmaServer(ctx context.Context, c *roce.Conn) error {
	b := make([]byte, t.size())
	n, err := c.Recv(ctx, b)
	if err != nil {
		return err
	}
	fmt.Fprintf(t.out, "%d bytes received\n", n)
	if t.o.cm == "xrdma" {
		t.gone(goodbye, c)
		return nil
	}
	if err := c.Send(ctx, b[:n]); err != nil && !errors.Is(err, io.EOF) {
		return err
	}
	t.gone(goodbye, c)
	return nil
}

func (t *cmTool) rdmaClient(ctx context.Context, c *roce.Conn) error {
	b := make([]byte, t.size())
	if err := c.Send(ctx, b); err != nil {
		return err
	}
	n, err := c.Recv(ctx, b)
	if err == nil {
		fmt.Fprintf(t.out, "%d bytes came back\n", n)
	}
	return err
}

// cmtimeServer accepts -n connections, and waits until their peers have ended them.
func (t *cmTool) cmtimeServer(ctx context.Context) error {
	cfg := roce.ListenConfig{ConnConfig: roce.ConnConfig{SendDepth: 1, RecvDepth: 1, RecvSize: 16}, Backlog: t.o.n}
	l, err := t.ep.Listen(ctx, ":"+strconv.Itoa(t.port), &cfg)
	if err != nil {
		return err
	}
	defer l.Close()
	var conns []*roce.Conn
	for len(conns) < t.o.n {
		c, err := l.Accept(ctx)
		if err != nil {
			return fmt.Errorf("after %d of %d connections: %w", len(conns), t.o.n, err)
		}
		conns = append(conns, c)
	}
	for i, c := range conns {
		select {
		case <-c.Done():
		case <-ctx.Done():
			return fmt.Errorf("%d of %d connections were ended: %w", i, t.o.n, context.Cause(ctx))
		}
	}
	fmt.Fprintf(t.out, "%d connections opened and closed\n", len(conns))
	return nil
}

// cmtimeClient opens -n connections at once, ends them, and prints how long both took.
func (t *cmTool) cmtimeClient(ctx context.Context) error {
	start := time.Now()
	conns, errs := make([]*roce.Conn, t.o.n), make(chan error, t.o.n)
	for i := range conns {
		go func() {
			var err error
			conns[i], err = t.ep.Dial(ctx, t.to, &roce.ConnConfig{SendDepth: 1, RecvDepth: 1, RecvSize: 16})
			errs <- err
		}()
	}
	var err error
	for range conns {
		err = errors.Join(err, <-errs)
	}
	made := time.Now()
	for _, c := range conns {
		if c != nil {
			c.Close()
		}
	}
	if err != nil {
		return err
	}
	// The connections are over when the peer has confirmed the disconnect.
	for m := t.ep.Metrics(); m.Conns != 0 && ctx.Err() == nil; m = t.ep.Metrics() {
		time.Sleep(5 * time.Millisecond)
	}
	fmt.Fprintf(t.out, "%d connections in %v, ended in %v\n", t.o.n, made.Sub(start).Round(time.Microsecond), time.Since(made).Round(time.Microsecond))
	return context.Cause(ctx)
}

var errRping = errors.New("not a message of rping: 16 bytes with address, key and length")
