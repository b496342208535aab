package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"github.com/roce-go/roce/examples/internal/nvme"
	"github.com/roce-go/roce/qp/cm"
	"github.com/roce-go/roce/qp/endpoint"
)

// config says what a target offers.
type config struct {
	nqn      string
	serial   string
	port     uint16
	size     int64 // bytes of the namespace, at first
	blockLog uint8
	queues   int // most I/O queues of a controller
	depth    int // most entries of an I/O queue
	inline   int // bytes of data that a command capsule may carry
	maxData  int // bytes of a read or write: 4096 << mdts
	mdts     uint8
	conns    int // most queues of all controllers
	window   int // packets outstanding on a connection
	// patience is for how long a connection may be without a Connect, and how often a
	// host without keep-alive is looked after.
	patience time.Duration
}

// target is a subsystem with one namespace, and the discovery subsystem. A controller
// lives as long as the connection of its admin queue.
type target struct {
	cfg   config
	store store
	log   *slog.Logger
	stats stats
	errs  errorLog
	start time.Time
	size  atomic.Int64 // bytes of the namespace

	failures atomic.Uint64 // operations of the store
	failing  atomic.Uint32 // kinds of operations that the store fails: see outcome

	mu          sync.Mutex
	controllers map[uint16]*controller
	last        uint16 // identifier given out
	conns       int    // that are served
	queues      sync.WaitGroup
}

func newTarget(cfg config, s store, log *slog.Logger) *target {
	t := &target{cfg: cfg, store: s, log: log, start: time.Now(), controllers: map[uint16]*controller{}}
	t.size.Store(cfg.size)
	return t
}

// listen makes the listener that serve takes connections from.
func (t *target) listen(ctx context.Context, ep *endpoint.Endpoint) (*endpoint.Listener, error) {
	return ep.Listen(ctx, fmt.Sprintf(":%d", t.cfg.port), &endpoint.ListenConfig{Decide: t.decide, Backlog: t.cfg.conns})
}

// serve takes connections until the listener or the context ends, and then waits for
// all queues to end.
func (t *target) serve(ctx context.Context, l *endpoint.Listener) error {
	ctx, cancel := context.WithCancel(ctx)
	defer t.queues.Wait()
	defer cancel()
	defer l.Close()
	for {
		c, err := l.Accept(ctx)
		if err != nil {
			if ctx.Err() != nil {
				return nil
			}
			return err
		}
		t.mu.Lock()
		full := t.conns >= t.cfg.conns // many came at once, and decide let them all pass
		if !full {
			t.conns++
		}
		t.mu.Unlock()
		if full {
			c.Close()
			continue
		}
		t.queues.Add(1)
		go func() {
			defer t.queues.Done()
			t.serveQueue(ctx, c)
			t.mu.Lock()
			t.conns--
			t.mu.Unlock()
		}()
	}
}

// decide accepts a request for a connection, or refuses it with the status that NVMe
// has for it.
func (t *target) decide(r *endpoint.Request) error {
	var req nvme.ConnectRequest
	if err := req.Decode(r.PrivateData); err != nil {
		return refuse(nvme.InvalidLength)
	}
	if s := t.check(&req); s != 0 {
		t.log.Warn("connection refused", "peer", r.Remote, "queue", req.QID, "why", s)
		return refuse(s)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.conns >= t.cfg.conns {
		return refuse(nvme.NoResources)
	}
	depth := int(req.HSQSize) + 1
	// A receive for each command, and one to see that there are too many; for each a
	// READ or WRITE, and a response.
	r.Config.RecvDepth, r.Config.SendDepth = depth+1, 2*depth+2
	r.Config.RecvSize = nvme.CommandSize
	if req.QID != 0 {
		r.Config.RecvSize += t.cfg.inline
	}
	r.Config.Window = t.cfg.window
	r.Config.MaxRdAtomic, r.Config.MaxDestRdAtomic = 16, 1
	reply := nvme.ConnectReply{CRQSize: uint16(depth)}
	r.Config.PrivateData = reply.AppendTo(nil)
	return nil
}

// check returns why a request for a connection cannot be, or 0.
func (t *target) check(r *nvme.ConnectRequest) nvme.ConnectStatus {
	most := t.cfg.depth
	if r.QID == 0 {
		most = nvme.AdminDepth
	}
	switch {
	case r.RecFmt != 0:
		return nvme.InvalidRecFmt
	case int(r.QID) > t.cfg.queues:
		return nvme.InvalidQID
	case r.HSQSize == 0 || int(r.HSQSize)+1 > most:
		return nvme.InvalidHSQSize
	case r.HRQSize == 0:
		return nvme.InvalidHRQSize
	case r.QID != 0 && r.CntlID != 0 && t.find(r.CntlID) == nil:
		return nvme.InvalidCntlID
	}
	return 0
}

func refuse(s nvme.ConnectStatus) error {
	rej := nvme.ConnectReject{Status: s}
	return &endpoint.RejectedError{Reason: cm.ReasonConsumer, PrivateData: rej.AppendTo(nil)}
}

// newController makes a controller with an identifier that no other has.
func (t *target) newController(d *nvme.ConnectData, alive time.Duration) (*controller, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.controllers) >= 0xfff0 {
		return nil, errors.New("no identifier is free")
	}
	for {
		if t.last++; t.last >= 0xfff0 {
			t.last = 1
		}
		if t.controllers[t.last] == nil {
			break
		}
	}
	c := &controller{t: t, id: t.last, discovery: d.SubNQN == nvme.DiscoveryNQN, host: *d,
		queues: map[uint16]*queue{}, alive: alive, thresholds: [2]uint16{343, 0}, granted: t.cfg.queues}
	t.controllers[c.id] = c
	c.seen.Store(time.Now().UnixNano())
	c.mu.Lock()
	defer c.mu.Unlock()
	c.watch()
	return c, nil
}

// all returns the controllers of the subsystem.
func (t *target) all() []*controller {
	t.mu.Lock()
	defer t.mu.Unlock()
	var list []*controller
	for _, c := range t.controllers {
		if !c.discovery {
			list = append(list, c)
		}
	}
	return list
}

// resize gives the namespace another size, of which hosts hear.
func (t *target) resize(n int64) {
	n &^= 1<<t.cfg.blockLog - 1
	if t.size.Swap(n) == n {
		return
	}
	t.log.Info("namespace", "bytes", n)
	for _, c := range t.all() {
		c.mu.Lock()
		c.changed = true
		c.mu.Unlock()
		c.raise(namespaceChanged)
	}
}

// outcome notes how an operation of the store ended. The health log counts failures and
// warns while operations of a kind fail, from a failure to the next success: room on a
// disk that was full comes back. A flush that failed is not made good by one that does
// not, for the system may have dropped what it could not write. Hosts hear of the first
// failure when all was well.
func (t *target) outcome(kind uint32, ok bool) {
	if ok {
		if kind != flushing && t.failing.Load()&kind != 0 {
			t.failing.And(^kind)
		}
		return
	}
	t.failures.Add(1)
	if t.failing.Or(kind) == 0 {
		for _, c := range t.all() {
			c.raise(degraded)
		}
	}
}

// find returns a controller by its identifier.
func (t *target) find(id uint16) *controller {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.controllers[id]
}

// count returns how many controllers and connections there are.
func (t *target) count() (controllers, conns int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.controllers), t.conns
}

// entries returns the discovery log for a host that came to an address.
func (t *target) entries(at netip.Addr) []nvme.DiscoveryEntry {
	e := nvme.DiscoveryEntry{Type: 3, PortID: 1, NQN: nvme.DiscoveryNQN, Addr: at, Port: fmt.Sprint(t.cfg.port)}
	sub := e
	sub.Type, sub.NQN = 2, t.cfg.nqn
	return []nvme.DiscoveryEntry{e, sub}
}
