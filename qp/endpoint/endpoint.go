// Package endpoint is a RoCE v2 port that runs: a softnic port, driven in real time over a
// socket, an interface, or memory. It is the one package of the module with goroutines, and
// for programs that want RDMA without a card: connections by RDMA-CM with programs like
// rping, messages, remote memory.
//
//	ep, err := endpoint.Open(endpoint.UDP("192.0.2.10"))
//	c, err := ep.Dial(ctx, "192.0.2.2:7174", nil)
//	err = c.Send(ctx, []byte("hello"))
//	n, err := c.Recv(ctx, buf)
//
// # Memory
//
// A slice passed to Send, WriteRemote, ReadRemote or Post belongs to the endpoint until the
// call returns or, for Post, until done is called: do not write to it, and do not read what
// a READ is to fill. A region (Register) may be written and read by the peer at any time
// while it is registered. A program that reads a region while a peer writes to it races
// with the peer, as with a real card: let messages decide who may access it when. (What a
// peer wrote before a SEND is safe to read after its message was received: the endpoint's
// lock orders the two.)
//
// # Errors
//
// Errors of operations are *OpError: the work completion's status with a sentence. They
// match, with errors.Is: net.ErrClosed after Close here, io.EOF and ErrDisconnected when
// the peer has ended the connection, context errors, syscall.ECONNREFUSED for a REJ,
// syscall.EHOSTUNREACH when no response came to a request for a connection,
// syscall.ETIMEDOUT when retries are exhausted.
//
// # Security
//
// RoCE has no authentication. See the threat model in README.md of this package.
package endpoint

import (
	"context"
	crand "crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/cm"
	"github.com/roce-go/roce/qp/softnic"
)

// Config holds the parameters of an endpoint. Open uses the zero value.
type Config struct {
	// GIDs are the port's addresses. Empty takes those of the wire.
	GIDs []netip.Addr
	// MAC is the port's Ethernet address; zero takes the wire's, or a random one.
	MAC frame.MAC
	// MaxQPs bounds the queue pairs, and MaxRegions the memory regions. 0 means 4096.
	MaxQPs, MaxRegions int
	// PathMTU is the largest payload of a packet in bytes: 256, 512, 1024, 2048 or
	// 4096. 0 takes the largest that fits the link.
	PathMTU int
	// Rate limits what is sent, in bytes a second; a peer in software loses packets that
	// arrive faster than it handles them. 0 means no limit.
	Rate int

	// BusyPoll is for how long after the last packets the endpoint looks for more without
	// sleeping, which costs a processor's time and spares the time to wake up (UDP and
	// packet sockets of Linux). 0: it sleeps at once.
	BusyPoll time.Duration

	// Allow lists the peers that may connect. Empty allows all.
	Allow []netip.Prefix
	// MaxHalfOpen limits the connections that were requested and are not yet established,
	// and MaxHalfOpenPeer those of one address. 0 means 256 and 64.
	MaxHalfOpen, MaxHalfOpenPeer int
	// MaxConnsPeer limits the connections that one address requested. 0 means MaxQPs.
	MaxConnsPeer int

	// CM has other parameters of the connection machine.
	CM cm.Config
	// Port, where not nil, may change the port's configuration before the port is created.
	Port func(*softnic.Config)
	// Filter, where not nil, is called for each Ethernet frame sent or received and returns
	// the frames that are sent or received instead: none for a loss, two for a duplicate,
	// and so on. It is for tests, and not available on wires without Ethernet frames (UDP).
	// It must not keep the frame, nor call the endpoint.
	Filter func(sent bool, frame []byte) [][]byte
	// Logger receives connection events, at Info, and refusals, at Warn. nil: no log.
	Logger *slog.Logger
	// Seed, where not nil, replaces random numbers of the system, so that numbers and keys
	// are the same each time. For tests.
	Seed *[32]byte
}

// Endpoint is a port that runs; Open returns one. Its methods may be called from any
// goroutine. One that is closed, and the zero value, return net.ErrClosed.
type Endpoint struct {
	cfg  Config
	wire transport
	regs *qp.Regions
	log  *slog.Logger

	mu        sync.Mutex
	port      *softnic.Port
	listeners map[cm.ServiceID]*Listener
	services  map[cm.ServiceID]func(*DatagramRequest) DatagramReply
	conns     map[*Conn]struct{}
	peers     map[netip.Addr]int
	cq        *softnic.CQ
	qpns      map[uint32]*Conn
	failed    []*Conn // to be disconnected when their pending packets were sent
	pd        qp.PD

	loop    loop
	calls   callbacks
	tap     *capture.Writer
	counted Counters
}

// Open opens a port on a wire: UDP, Packet, TAP, Segment, or one end of Pair.
func Open(w Wire) (*Endpoint, error) { return Config{}.Open(w) }

// Open opens a port on a wire with this configuration.
func (cfg Config) Open(w Wire) (*Endpoint, error) {
	if w == nil {
		return nil, errors.New("endpoint: the wire is nil: use UDP, Packet, TAP, Segment or Pair")
	}
	def := func(v *int, d int) {
		if *v == 0 {
			*v = d
		}
	}
	def(&cfg.MaxQPs, 4096)
	def(&cfg.MaxRegions, 4096)
	def(&cfg.MaxHalfOpen, 256)
	def(&cfg.MaxHalfOpenPeer, min(64, cfg.MaxHalfOpen))
	def(&cfg.MaxConnsPeer, cfg.MaxQPs)
	for _, v := range []struct {
		name             string
		got, least, most int
	}{
		{"MaxQPs", cfg.MaxQPs, 1, 1 << 19}, {"MaxRegions", cfg.MaxRegions, 1, 1<<24 - 1}, {"MaxHalfOpen", cfg.MaxHalfOpen, 1, 1 << 18},
		{"MaxHalfOpenPeer", cfg.MaxHalfOpenPeer, 1, 1 << 18}, {"MaxConnsPeer", cfg.MaxConnsPeer, 1, 1 << 19}, {"Rate", cfg.Rate, 0, math.MaxInt32},
	} {
		if v.got < v.least || v.got > v.most {
			return nil, fmt.Errorf("endpoint: %s is %d, want %d to %d", v.name, v.got, v.least, v.most)
		}
	}
	if cfg.PathMTU != 0 && mtuCode(cfg.PathMTU) == 0 {
		return nil, fmt.Errorf("endpoint: PathMTU is %d, want 256, 512, 1024, 2048 or 4096", cfg.PathMTU)
	}
	seed := cfg.Seed
	if seed == nil {
		seed = new([32]byte)
		crand.Read(seed[:])
	}
	t, err := w.open(&cfg)
	if err != nil {
		return nil, fmt.Errorf("endpoint: %w", err)
	}
	e, err := newEndpoint(cfg, t, seed)
	if err != nil {
		t.close()
		return nil, fmt.Errorf("endpoint: %w", err)
	}
	e.loop.start(e)
	return e, nil
}

func newEndpoint(cfg Config, t transport, seed *[32]byte) (*Endpoint, error) {
	if len(cfg.GIDs) == 0 {
		return nil, errors.New("the port has no address: Config.GIDs is empty, and the wire has none of its own")
	}
	if cfg.MAC == (frame.MAC{}) {
		copy(cfg.MAC[:], seed[26:])
		cfg.MAC[0] = cfg.MAC[0]&^1 | 2
	}
	largest := 0
	for _, a := range cfg.GIDs {
		if m := fitting(t.mtu(), a.Is4()); largest == 0 || m < largest {
			largest = m
		}
	}
	switch {
	case largest == 0:
		return nil, fmt.Errorf("the link's MTU of %d bytes is too small for any path MTU", t.mtu())
	case cfg.PathMTU == 0:
		cfg.PathMTU = largest
	case cfg.PathMTU > largest:
		return nil, fmt.Errorf("a path MTU of %d does not fit the link's MTU of %d bytes: the largest that does is %d", cfg.PathMTU, t.mtu(), largest)
	}
	regs, err := qp.NewRegions(cfg.MaxRegions)
	if err != nil {
		return nil, err
	}
	keys := *seed
	keys[0] ^= 0x5a // a stream of its own
	e := &Endpoint{cfg: cfg, wire: t, regs: regs, log: cfg.Logger,
		listeners: map[cm.ServiceID]*Listener{}, services: map[cm.ServiceID]func(*DatagramRequest) DatagramReply{},
		conns: map[*Conn]struct{}{}, peers: map[netip.Addr]int{}, qpns: map[uint32]*Conn{}, cq: softnic.NewCQ()}
	if e.log == nil {
		e.log = slog.New(slog.DiscardHandler)
	}
	c := cfg.CM
	c.MaxCalls, c.MaxHalfOpen, c.MaxHalfOpenPeer = cfg.MaxQPs+cfg.MaxHalfOpen+1, cfg.MaxHalfOpen, cfg.MaxHalfOpenPeer
	pc := softnic.Config{MAC: cfg.MAC, MaxQPs: cfg.MaxQPs, Regions: regs, CM: &c, Seed: seed, PeerMAC: t.peerMAC()}
	for _, a := range cfg.GIDs {
		pc.GIDs = append(pc.GIDs, softnic.GID{Addr: a.WithZone("")})
	}
	if cfg.Port != nil {
		cfg.Port(&pc)
	}
	if pc.Seed != nil {
		regs.Seed(keys)
	}
	if e.port, err = softnic.New(pc); err != nil {
		return nil, err
	}
	e.pd = e.port.AllocPD()
	return e, nil
}

// mtuCode returns the code of a path MTU, or 0.
func mtuCode(n int) cm.MTU {
	for c := cm.MTU256; c <= cm.MTU4096; c++ {
		if c.Bytes() == n {
			return c
		}
	}
	return 0
}

// overhead is the most bytes that a packet has after the IP header besides its payload:
// UDP, BTH, XRCETH, RETH, immediate data, ICRC.
const overhead = 8 + 12 + 4 + 16 + 4 + 4

// fitting returns the largest path MTU that fits an IP MTU, or 0.
func fitting(mtu int, v4 bool) int {
	room := mtu - overhead - 40
	if v4 {
		room += 20
	}
	for c := cm.MTU4096; c >= cm.MTU256; c-- {
		if c.Bytes() <= room {
			return c.Bytes()
		}
	}
	return 0
}

// PathMTU returns the largest payload of a packet, in bytes.
func (e *Endpoint) PathMTU() int { return e.cfg.PathMTU }

// Addrs returns the port's addresses.
func (e *Endpoint) Addrs() []netip.Addr { return append([]netip.Addr(nil), e.cfg.GIDs...) }

// Do runs fn with exclusive use of the port, and then sends the packets that result. It is
// for callers that drive queue pairs of their own: fn must not block, and must not call the
// Endpoint.
func (e *Endpoint) Do(fn func(now time.Time, p *softnic.Port)) {
	e.mu.Lock()
	now := time.Now()
	if e.loop.running {
		fn(now, e.port)
		e.settle(now)
	}
	e.unlock()
}

// Wait runs done now and after each change of the port, until it returns true. The error is
// that of ctx, of the wire, or net.ErrClosed.
func (e *Endpoint) Wait(ctx context.Context, done func(now time.Time, p *softnic.Port) bool) error {
	if ctx == nil {
		return errNoContext
	}
	stop := context.AfterFunc(ctx, func() {
		e.mu.Lock()
		e.loop.changed.Broadcast()
		e.mu.Unlock()
	})
	defer stop()
	e.mu.Lock()
	defer e.unlock()
	for {
		now := time.Now()
		if !e.loop.running {
			return net.ErrClosed
		}
		ok := done(now, e.port)
		sent := e.settle(now)
		switch {
		case ok:
			return nil
		case ctx.Err() != nil:
			return context.Cause(ctx)
		case e.loop.err != nil:
			return e.loop.err
		case sent: // datagrams are complete then
			continue
		}
		e.loop.waiters++
		e.loop.changed.Wait()
		e.loop.waiters--
	}
}

// Inject sends an Ethernet frame as it is, without the port and Config.Filter. For tests.
// On a wire without Ethernet frames (UDP) it fails.
func (e *Endpoint) Inject(frame []byte) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.loop.running {
		return net.ErrClosed
	}
	if err := e.wire.inject(frame); err != nil {
		return fmt.Errorf("endpoint: inject: %w", err)
	}
	return nil
}

// Capture writes what is sent and received from now on to w, as a pcap file of Ethernet
// frames, until it is called with nil. Headers that the wire does not show are
// reconstructed. A write error ends the capture.
func (e *Endpoint) Capture(w io.Writer) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.tap = nil
	if w == nil {
		return nil
	}
	t, err := capture.NewWriter(w, frame.Ethernet)
	if err == nil {
		e.tap = t
	}
	return err
}

// record writes a frame to the tap.
func (e *Endpoint) record(now time.Time, b []byte) {
	if err := e.tap.Write(now, b); err != nil {
		e.tap = nil
		e.log.Warn("capture ended", "err", err)
	}
}

// Close ends all connections and the endpoint. For each connection a DREQ is sent, once;
// outstanding operations end with net.ErrClosed. It returns within a second, and no
// goroutine is left. A callback may call it.
func (e *Endpoint) Close() error {
	e.mu.Lock()
	if !e.loop.running {
		e.mu.Unlock()
		return nil
	}
	now := time.Now()
	for c := range e.conns {
		c.end(now, net.ErrClosed)
	}
	for _, l := range e.listeners {
		l.close()
	}
	e.settle(now)
	e.countDropped()
	e.loop.running = false
	e.loop.changed.Broadcast()
	e.unlock()
	return e.loop.stop(e)
}

// handleEvent handles an event of the connection machine. The lock is held.
func (e *Endpoint) handleEvent(now time.Time, call *softnic.Call, ev *cm.Event) {
	switch u := call.User.(type) {
	case *Conn:
		e.connEvent(now, u, ev)
	case *resolution:
		u.event(ev)
	case func(*cm.Event):
		u(ev)
	default:
		switch ev.Kind {
		case cm.EventRequest:
			e.request(now, call, ev)
		case cm.EventSIDRRequest:
			e.datagramRequest(now, call, ev)
		}
	}
}

func (e *Endpoint) connEvent(now time.Time, c *Conn, ev *cm.Event) {
	switch ev.Kind {
	case cm.EventEstablished:
		if c.err == nil && !c.est {
			c.est = true
			if ev.Active {
				c.private = append([]byte(nil), ev.PrivateData...)
			}
			close(c.ready)
			e.counted.Established++
			e.log.Info("connection established", "peer", c.remote, "qpn", c.q.Num(), "dialled", ev.Active)
			if c.from != nil {
				c.from.push(now, c)
			}
		}
	case cm.EventRejected:
		if c.est { // the peer ended it before it had received our RTU
			c.end(now, ErrDisconnected)
			break
		}
		e.counted.Rejected++
		err := error(&RejectedError{Peer: c.remote, Reason: ev.Reason, Local: ev.Local, PrivateData: append([]byte(nil), ev.PrivateData...)})
		c.end(now, err)
	case cm.EventUnreachable:
		c.end(now, &UnreachableError{Peer: c.remote})
	case cm.EventDisconnected:
		c.end(now, ErrDisconnected)
	}
	if ev.Last {
		c.gone(now)
	}
}
