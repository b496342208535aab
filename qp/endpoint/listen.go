package endpoint

import (
	"context"
	"errors"
	"fmt"
	"math"
	"net"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/cm"
	"github.com/roce-go/roce/qp/softnic"
)

// ConnConfig holds the parameters of a connection. nil means the zero value.
type ConnConfig struct {
	// SendDepth is how many requests may be outstanding, and RecvDepth how many received
	// messages may wait for Recv: beyond that the peer gets RNR NAKs, and retransmits. 0
	// means 64 and 16.
	SendDepth, RecvDepth int
	// RecvSize is the longest message that can be received, in bytes. 0 means 65536.
	RecvSize int
	// Access is what the peer may do with regions. 0 means READ, WRITE and ATOMIC.
	Access qp.Access
	// MaxRdAtomic and MaxDestRdAtomic are how many READs and ATOMICs may be outstanding at
	// the peer and here. 0 means 16.
	MaxRdAtomic, MaxDestRdAtomic int
	// RetryCnt is how often a packet is retransmitted without progress before the
	// connection fails, 1 to 7; 0 means 7. RNRRetry is the same for a peer that has no
	// receive posted, 1 to 7, where 7 and 0 mean for ever.
	RetryCnt, RNRRetry uint8
	// PathMTU is the largest payload of a packet, in bytes, which the side that dials
	// chooses. 0 means the endpoint's.
	PathMTU int
	// Window is how many packets may be outstanding. A peer in software loses what its
	// buffers do not hold, and everything after it is retransmitted. 0 means 8192.
	Window int
	// PrivateData are sent to the peer with the request (at most 56 bytes), or with its
	// acceptance (at most 196 bytes).
	PrivateData  []byte
	TrafficClass uint8 // DSCP and ECN bits
	// VLAN is the tag (TCI) of the connection's frames, which the side that dials chooses;
	// valid with HasVLAN.
	VLAN    uint16
	HasVLAN bool
	// LinuxAckBeforeRead is for peers that READ with the Linux driver, see [qp.Config]:
	// without it such a READ may end without its data after a loss.
	LinuxAckBeforeRead bool
}

func (c *ConnConfig) defaults(e *Endpoint) {
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.SendDepth, 64)
	def(&c.RecvDepth, 16)
	def(&c.RecvSize, 65536)
	def(&c.MaxRdAtomic, 16)
	def(&c.MaxDestRdAtomic, 16)
	def(&c.PathMTU, e.cfg.PathMTU)
	if c.Access == 0 {
		c.Access = qp.RemoteRead | qp.RemoteWrite | qp.RemoteAtomic
	}
	if c.RetryCnt == 0 {
		c.RetryCnt = 7
	}
	if c.RNRRetry == 0 {
		c.RNRRetry = 7
	}
}

// mostReceives is how many bytes the receives of a connection may have.
const mostReceives = min(math.MaxInt>>1, 1<<36)

// check returns an error for values that are out of range, where the queue pair has none.
func (c *ConnConfig) check() error {
	for _, v := range []struct {
		name      string
		got, most int
	}{
		{"SendDepth", c.SendDepth, 1 << 20}, {"RecvDepth", c.RecvDepth, 1 << 20}, {"RecvSize", c.RecvSize, math.MaxInt32},
		{"MaxRdAtomic", c.MaxRdAtomic, 255}, {"MaxDestRdAtomic", c.MaxDestRdAtomic, 255}, {"RetryCnt", int(c.RetryCnt), 7}, {"RNRRetry", int(c.RNRRetry), 7},
	} {
		if v.got < 1 || v.got > v.most {
			return fmt.Errorf("%s is %d, want 1 to %d", v.name, v.got, v.most)
		}
	}
	if mtuCode(c.PathMTU) == 0 {
		return fmt.Errorf("PathMTU is %d, want 256, 512, 1024, 2048 or 4096", c.PathMTU)
	}
	if n := int64(c.RecvDepth) * int64(c.RecvSize); n > mostReceives {
		return fmt.Errorf("RecvDepth times RecvSize is %d bytes, want at most %d", n, int64(mostReceives))
	}
	return nil
}

// attr returns the attributes for the port.
func (c *ConnConfig) attr() softnic.ConnAttr {
	return softnic.ConnAttr{PrivateData: c.PrivateData, Access: c.Access, PathMTU: c.PathMTU, TrafficClass: c.TrafficClass,
		VLAN: c.VLAN, HasVLAN: c.HasVLAN, MaxRdAtomic: c.MaxRdAtomic, MaxDestRdAtomic: c.MaxDestRdAtomic, RetryCnt: c.RetryCnt, RNRRetry: c.RNRRetry}
}

// Dial connects to a listener at "ADDRESS:PORT" (IPv6: "[ADDRESS]:PORT"), a port of
// RDMA-CM's TCP port space; a host name is looked up. cfg may be nil. Dial returns when
// both sides are ready. Its errors wrap the error of ctx, a *RejectedError or an
// *UnreachableError (after 74 seconds without a response, unless ctx ends before).
func (e *Endpoint) Dial(ctx context.Context, address string, cfg *ConnConfig) (*Conn, error) {
	if err := begun(ctx); err != nil {
		return nil, err
	}
	to, err := e.resolveHost(ctx, address)
	if err != nil {
		return nil, err
	}
	e.mu.Lock()
	c, err := e.dial(time.Now(), to, cfg)
	e.unlock()
	if err != nil {
		return nil, fmt.Errorf("endpoint: dial %v: %w", to, err)
	}
	select {
	case <-c.ready:
	case <-ctx.Done():
		c.abort(context.Cause(ctx))
	}
	if err := c.Err(); err != nil {
		return nil, fmt.Errorf("endpoint: dial %v: %w", to, err)
	}
	return c, nil
}

func (e *Endpoint) dial(now time.Time, to netip.AddrPort, cfg *ConnConfig) (*Conn, error) {
	if !e.loop.running {
		return nil, net.ErrClosed
	}
	if e.loop.err != nil {
		return nil, e.loop.err
	}
	c, err := e.newConn(now, cfg)
	if err != nil {
		return nil, err
	}
	if len(c.cfg.PrivateData) > cmaPrivate {
		err = fmt.Errorf("PrivateData is %d bytes, want at most %d", len(c.cfg.PrivateData), cmaPrivate)
	} else if c.cfg.PathMTU > e.cfg.PathMTU {
		err = fmt.Errorf("PathMTU is %d, and the endpoint's is %d", c.cfg.PathMTU, e.cfg.PathMTU)
	}
	c.remote = to
	if err == nil {
		a := c.cfg.attr()
		a.SourcePort = uint16(0xc000 | c.q.Num()&0x3fff)
		c.call, err = e.port.Connect(now, c.q, to.Addr(), cm.IPServiceID(cm.ProtocolTCP, to.Port()), a)
	}
	if err != nil {
		delete(e.conns, c)
		delete(e.qpns, c.q.Num())
		c.q.Destroy()
		return nil, err
	}
	c.call.User = c
	c.local = e.addrOf(c.call)
	e.counted.Dialled++
	e.settle(now)
	return c, nil
}

// cmaPrivate is how many bytes of private data a REQ has after RDMA-CM's header.
const cmaPrivate = cm.REQPrivateDataSize - cm.CMAHeaderSize

// addrOf returns the endpoint's address of a call, with its zone.
func (e *Endpoint) addrOf(call *softnic.Call) netip.Addr {
	for _, g := range e.cfg.GIDs {
		if g.WithZone("") == call.Local {
			return g
		}
	}
	return call.Local
}

// resolveHost reads ADDRESS:PORT.
func (e *Endpoint) resolveHost(ctx context.Context, address string) (netip.AddrPort, error) {
	if to, err := netip.ParseAddrPort(address); err == nil {
		return netip.AddrPortFrom(to.Addr().Unmap(), to.Port()), nil
	}
	host, port, err := net.SplitHostPort(address)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("endpoint: %q is not ADDRESS:PORT", address)
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("endpoint: port %q of %q is not 0 to 65535", port, address)
	}
	ips, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	if err != nil {
		return netip.AddrPort{}, err
	}
	for _, ip := range ips {
		ip = ip.Unmap()
		if slices.ContainsFunc(e.cfg.GIDs, func(g netip.Addr) bool { return g.Is4() == ip.Is4() }) {
			return netip.AddrPortFrom(ip, uint16(n)), nil
		}
	}
	return netip.AddrPort{}, fmt.Errorf("endpoint: %s has the addresses %v, and this endpoint %v", host, ips, e.cfg.GIDs)
}

// Request is a peer's request for a connection.
type Request struct {
	Remote      netip.AddrPort
	Local       netip.Addr
	PrivateData []byte // 56 bytes, padded with zeros
	Attr        cm.Attr
	// Config holds the parameters of the connection; Decide may change it.
	Config ConnConfig
}

// ListenConfig holds the parameters of a listener.
type ListenConfig struct {
	ConnConfig
	// Backlog bounds the connections that wait for Accept. 0 means 128.
	Backlog int
	// Decide, where not nil, is called before a request is accepted. An error refuses the
	// request: a *RejectedError with its reason and private data, any other with the reason
	// "refused by the application" (cm.ReasonConsumer). It is called by one goroutine at a
	// time, and must not block.
	Decide func(*Request) error
}

// Listener accepts connections for a port.
type Listener struct {
	e        *Endpoint
	service  cm.ServiceID
	cfg      ListenConfig
	accepted chan *Conn
	waiting  int // accepted, or being accepted, and not yet returned by Accept
	closed   chan struct{}
}

// Listen accepts connections for ":PORT" of RDMA-CM's TCP port space, at all addresses of
// the endpoint; port 0 is one that is free, see Listener.Port. cfg may be nil. ctx limits
// only the call itself.
func (e *Endpoint) Listen(ctx context.Context, address string, cfg *ListenConfig) (*Listener, error) {
	if err := begun(ctx); err != nil {
		return nil, err
	}
	host, port, err := net.SplitHostPort(address)
	n, perr := strconv.ParseUint(port, 10, 16)
	if err != nil || perr != nil {
		return nil, fmt.Errorf("endpoint: listen: %q is not :PORT", address)
	}
	if host != "" {
		if a, err := netip.ParseAddr(host); err != nil || !a.IsUnspecified() && !slices.Contains(e.cfg.GIDs, a) {
			return nil, fmt.Errorf("endpoint: listen: %s is no address of this endpoint, which has %v", host, e.cfg.GIDs)
		}
	}
	l := &Listener{e: e, closed: make(chan struct{})}
	if cfg != nil {
		l.cfg = *cfg
	}
	if l.cfg.Backlog == 0 {
		l.cfg.Backlog = 128
	}
	if l.cfg.Backlog < 1 || l.cfg.Backlog > 1<<20 {
		return nil, fmt.Errorf("endpoint: listen: Backlog is %d, want 1 to %d", l.cfg.Backlog, 1<<20)
	}
	l.accepted = make(chan *Conn, l.cfg.Backlog)
	e.mu.Lock()
	defer e.unlock()
	if !e.loop.running {
		return nil, net.ErrClosed
	}
	err = cm.ErrInUse
	for p := 0xc000; n == 0 && err != nil && p < 1<<16; p++ {
		err = e.port.Listen(l.name(uint16(p)), 0)
	}
	if n != 0 {
		err = e.port.Listen(l.name(uint16(n)), 0)
	}
	if err != nil {
		return nil, fmt.Errorf("endpoint: listen: %w", err)
	}
	e.listeners[l.service] = l
	return l, nil
}

// Accept waits for a connection.
func (l *Listener) Accept(ctx context.Context) (*Conn, error) {
	if ctx == nil {
		return nil, errNoContext
	}
	select {
	case c := <-l.accepted:
		return l.give(c), nil
	default:
	}
	select {
	case c := <-l.accepted:
		return l.give(c), nil
	case <-l.closed:
		return nil, net.ErrClosed
	case <-l.e.loop.done:
		return nil, l.e.over()
	case <-ctx.Done():
		return nil, context.Cause(ctx)
	}
}

// over returns why nothing is received any more.
func (e *Endpoint) over() error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.loop.err != nil {
		return e.loop.err
	}
	return net.ErrClosed
}

// name makes l the listener of a port and returns its service.
func (l *Listener) name(port uint16) cm.ServiceID {
	l.service = cm.IPServiceID(cm.ProtocolTCP, port)
	return l.service
}

func (l *Listener) give(c *Conn) *Conn {
	l.e.mu.Lock()
	l.waiting--
	l.e.mu.Unlock()
	return c
}

// Port returns the port that l listens to.
func (l *Listener) Port() uint16 { return l.service.Port() }

// Close ends listening: requests are refused from now on. Connections that Accept has not
// returned are closed, the others stay open.
func (l *Listener) Close() error {
	l.e.mu.Lock()
	defer l.e.unlock()
	l.close()
	l.e.settle(time.Now())
	return nil
}

func (l *Listener) close() {
	select {
	case <-l.closed:
		return
	default:
	}
	close(l.closed)
	l.e.port.Unlisten(l.service)
	delete(l.e.listeners, l.service)
	for {
		select {
		case c := <-l.accepted:
			c.end(time.Now(), net.ErrClosed)
		default:
			return
		}
	}
}

// push queues an established connection for Accept. The lock is held.
func (l *Listener) push(now time.Time, c *Conn) {
	select {
	case <-l.closed:
		c.end(now, net.ErrClosed)
		return
	default:
	}
	select {
	case l.accepted <- c:
	default: // cannot happen: waiting is bounded
		c.end(now, net.ErrClosed)
	}
}

// allowed reports whether a peer may connect.
func (e *Endpoint) allowed(a netip.Addr) bool {
	if len(e.cfg.Allow) == 0 {
		return true
	}
	return slices.ContainsFunc(e.cfg.Allow, func(p netip.Prefix) bool { return p.Contains(a) })
}

// request decides on a request for a connection. The lock is held.
func (e *Endpoint) request(now time.Time, call *softnic.Call, ev *cm.Event) {
	l := e.listeners[ev.Service]
	remote := netip.AddrPortFrom(call.Remote, ev.CMA.Port)
	refuse := func(why string, reason cm.Reason, info []byte) {
		e.counted.Refused++
		e.log.Warn("connection refused", "peer", remote, "service", ev.Service, "why", why)
		_ = e.port.Reject(call, reason, info, nil)
	}
	switch {
	case l == nil:
		refuse("no listener", cm.ReasonInvalidServiceID, nil)
		return
	case !e.allowed(call.Remote):
		refuse("not in an allowed prefix", cm.ReasonConsumer, nil)
		return
	case e.peers[call.Remote] >= e.cfg.MaxConnsPeer:
		refuse("too many connections of this peer", cm.ReasonNoResources, nil)
		return
	case l.waiting >= l.cfg.Backlog:
		refuse("too many connections wait to be accepted", cm.ReasonNoResources, nil)
		return
	case ev.Attr.Transport != cm.ServiceRC:
		refuse("no reliable connection", cm.ReasonInvalidTransportServiceType, nil)
		return
	case ev.Attr.PathMTU.Bytes() > e.cfg.PathMTU:
		refuse("path MTU too large for the link", cm.ReasonInvalidPathMTU, []byte{byte(mtuCode(e.cfg.PathMTU)) << 4})
		return
	}
	r := &Request{Remote: remote, Local: e.addrOf(call), PrivateData: append([]byte(nil), ev.PrivateData...),
		Attr: ev.Attr, Config: l.cfg.ConnConfig}
	l.waiting++
	if l.cfg.Decide == nil {
		e.accept(now, l, call, r, nil)
		return
	}
	e.later(func() {
		err := l.cfg.Decide(r)
		e.mu.Lock()
		now := time.Now()
		if e.loop.running {
			e.accept(now, l, call, r, err)
			e.settle(now)
		}
		e.mu.Unlock() // the caller runs the other callbacks
	})
}

func (e *Endpoint) accept(now time.Time, l *Listener, call *softnic.Call, r *Request, err error) {
	var c *Conn
	reason, private := cm.ReasonConsumer, []byte(nil)
	if err == nil {
		reason = cm.ReasonNoResources
		c, err = e.newConn(now, &r.Config)
	}
	if n := len(r.Config.PrivateData); err == nil && n > cm.REPPrivateDataSize {
		err = fmt.Errorf("PrivateData is %d bytes, want at most %d", n, cm.REPPrivateDataSize)
	}
	if err == nil {
		c.call, c.from, c.remote, c.local, c.private = call, l, r.Remote, r.Local, r.PrivateData
		if err = e.port.Accept(now, call, c.q, c.cfg.attr()); err == nil {
			call.User = c
			e.peers[call.Remote]++
			return
		}
	}
	if err != nil && c != nil {
		delete(e.conns, c)
		delete(e.qpns, c.q.Num())
		c.q.Destroy()
	}
	l.waiting--
	if rej := (*RejectedError)(nil); errors.As(err, &rej) {
		private = rej.PrivateData
		if rej.Reason != 0 {
			reason = rej.Reason
		}
	}
	e.counted.Refused++
	e.log.Warn("connection refused", "peer", r.Remote, "service", l.service, "why", err)
	_ = e.port.Reject(call, reason, nil, private)
}
