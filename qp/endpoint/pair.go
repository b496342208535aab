package endpoint

import (
	"io"
	"net/netip"
	"sync"
	"time"
)

// Pair returns the two ends of a wire in memory, for tests: packets arrive in order,
// and get lost when more than a few thousand wait. The ends have the addresses
// 192.0.2.1 and 192.0.2.2, and 2001:db8::1 and 2001:db8::2, where Config has none.
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
			// What was handed out before is used by now.
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

// put has a copy of b arrive.
func (p *pairEnd) put(b []byte) {
	p.mu.Lock()
	if !p.closed && len(p.queue) < pairDepth {
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

func (p *pairEnd) close() error {
	p.mu.Lock()
	p.closed = true
	p.mu.Unlock()
	signal(p.here)
	return nil
}
