package endpoint

import (
	"errors"
	"io"
	"net/netip"
	"sync"
	"time"

	"github.com/roce-go/roce/bth/frame"
)

// Wire is what a port is attached to: see UDP, Packet, TAP, Segment and Pair.
type Wire interface {
	// open opens the wire, and fills the addresses of cfg that it knows and cfg
	// lacks.
	open(cfg *Config) (transport, error)
}

// transport carries a port's packets. wait is called by one goroutine without the
// endpoint's lock, and close by any; the others with it.
type transport interface {
	// wait waits until packets have come. An error is for good, and after close there is
	// one: neither it nor deliver is called again.
	wait() error
	// deliver hands them to the port.
	deliver(now time.Time, e *Endpoint)
	// send sends some packets of the port. It returns their number, 0 when the port has
	// none, and their bytes. A packet that the network refuses is lost; the error says that
	// a packet was larger than the link's MTU.
	send(now time.Time, e *Endpoint) (n, bytes int, err error)
	// mtu returns the largest IP packet, in bytes.
	mtu() int
	// peerMAC returns the hardware address that all peers have on a wire without
	// such addresses, or zero.
	peerMAC() frame.MAC
	// inject sends one Ethernet frame that the port did not build.
	inject(b []byte) error
	// dropped returns how many packets the system has thrown away since there was no
	// room for them.
	dropped() uint64
	close() error
}

// errNoFrames is inject's error on a wire without Ethernet frames.
var errNoFrames = errors.New("this wire carries no Ethernet frames")

// frames is the common part of transports that carry Ethernet frames.
type frames struct {
	in     [][]byte
	out    []byte
	lead   int // bytes of out before the frame
	filter func(sent bool, frame []byte) [][]byte
}

func (f *frames) deliver(now time.Time, e *Endpoint) {
	for _, b := range f.in {
		f.handle(now, e, b)
	}
	f.in = f.in[:0]
}

// handle hands a frame to the port.
func (f *frames) handle(now time.Time, e *Endpoint, b []byte) {
	if e.tap != nil {
		e.record(now, b)
	}
	if f.filter == nil {
		e.port.HandleFrame(now, b)
		return
	}
	for _, b := range f.filter(false, b) {
		e.port.HandleFrame(now, b)
	}
}

// next returns the port's next frame, padded to Ethernet's minimum.
func (f *frames) next(now time.Time, e *Endpoint) ([]byte, bool) {
	b, ok := e.port.NextFrame(now, f.out[:f.lead])
	if !ok {
		return nil, false
	}
	for len(b) < f.lead+60 {
		b = append(b, 0)
	}
	f.out, b = b, b[f.lead:]
	if e.tap != nil {
		e.record(now, b)
	}
	return b, true
}

// each calls write with the frames that the filter returns for b.
func (f *frames) each(b []byte, write func([]byte)) {
	if f.filter == nil {
		write(b)
		return
	}
	for _, b := range f.filter(true, b) {
		write(b)
	}
}

func (f *frames) peerMAC() frame.MAC { return frame.MAC{} }

// Pair returns the two ends of a wire in memory, for tests: packets arrive in order, and
// are lost when more than a few thousand wait. The ends have the addresses 192.0.2.1 and
// 192.0.2.2, and 2001:db8::1 and 2001:db8::2, where Config has none.
func Pair() (a, b Wire) {
	x, y := newPairEnd(1), newPairEnd(2)
	x.peer, y.peer = y, x
	return x, y
}

// pairDepth is how many frames wait at an end of a pair.
const pairDepth = 4096

type pairEnd struct {
	frames
	n      byte
	peer   *pairEnd
	mu     sync.Mutex
	queue  [][]byte
	spare  [][]byte
	taken  [][]byte // what in holds
	here   chan struct{}
	lost   uint64
	closed bool
}

func newPairEnd(n byte) *pairEnd { return &pairEnd{n: n, here: make(chan struct{}, 1)} }

func (p *pairEnd) open(cfg *Config) (transport, error) {
	if len(cfg.GIDs) == 0 {
		cfg.GIDs = []netip.Addr{netip.AddrFrom4([4]byte{192, 0, 2, p.n}), netip.AddrFrom16([16]byte{0x20, 1, 0x0d, 0xb8, 15: p.n})}
	}
	p.filter = cfg.Filter
	return p, nil
}

func (p *pairEnd) mtu() int { return 9000 }

func (p *pairEnd) wait() error {
	for {
		p.mu.Lock()
		if p.closed {
			p.mu.Unlock()
			return io.EOF
		}
		if len(p.queue) != 0 {
			// The frames returned before are no longer used.
			p.spare = append(p.spare, p.taken...)
			p.taken = append(p.taken[:0], p.queue...)
			p.queue = p.queue[:0]
			p.in = append(p.in[:0], p.taken...)
			p.mu.Unlock()
			return nil
		}
		p.mu.Unlock()
		<-p.here
	}
}

func (p *pairEnd) send(now time.Time, e *Endpoint) (n, bytes int, err error) {
	for n < 64 {
		b, ok := p.next(now, e)
		if !ok {
			break
		}
		n++
		bytes += len(b)
		p.each(b, p.peer.put)
	}
	return n, bytes, nil
}

// put delivers a copy of b.
func (p *pairEnd) put(b []byte) {
	p.mu.Lock()
	switch {
	case p.closed:
	case len(p.queue) == pairDepth:
		p.lost++
	default:
		var c []byte
		if k := len(p.spare); k != 0 {
			c, p.spare = p.spare[k-1], p.spare[:k-1]
		}
		p.queue = append(p.queue, append(c[:0], b...))
	}
	p.mu.Unlock()
	signal(p.here)
}

func (p *pairEnd) inject(b []byte) error {
	p.peer.put(b)
	return nil
}

func (p *pairEnd) dropped() uint64 {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.lost
}

func (p *pairEnd) close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	signal(p.here)
	return nil
}
