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

// config holds the parameters of a target.
type config struct {
	nqn      string
	serial   string
	port     uint16
	size     int64 // size of the namespace in bytes, at the start
	blockLog uint8
	queues   int // maximum number of I/O queues of a controller
	depth    int // maximum number of entries of an I/O queue
	inline   int // bytes of data that a command capsule may carry
	maxData  int // maximum bytes of a read or write: 4096 << mdts
	mdts     uint8
	conns    int // maximum number of queues of all controllers
	window   int // packets outstanding on a connection
	// patience is how long a connection may be without a Connect, and the interval at which a
	// host without keep-alive is probed.
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

	failures atomic.Uint64 // failed operations of the store
	failing  atomic.Uint32 // kinds of operations that fail at present: see outcome

	mu          sync.Mutex
	controllers map[uint16]*controller
	last        uint16 // the last identifier assigned
	conns       int    // connections that are served
	queues      sync.WaitGroup
}

func newTarget(cfg config, s store, log *slog.Logger) *target {
	t := &target{cfg: cfg, store: s, log: log, start: time.Now(), controllers: map[uint16]*controller{}}
	t.size.Store(cfg.size)
	return t
}

// listen creates the listener from which serve accepts connections.
func (t *target) listen(ctx context.Context, ep *endpoint.Endpoint) (*endpoint.Listener, error) {
	return ep.Listen(ctx, fmt.Sprintf(":%d", t.cfg.port), &endpoint.ListenConfig{Decide: t.decide, Backlog: t.cfg.conns})
}

// serve accepts connections until the listener or the context ends, and then waits for all
// queues to end.
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
		full := t.conns >= t.cfg.conns // several requests at the same time may have passed decide
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

// decide accepts a connection request, or rejects it with the status that NVMe defines for
// the reason.
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
	// A receive for each command, and one to detect that there are too many; for each command
	// a READ or WRITE, and a response.
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

// check returns the status with which a connection request is rejected, or 0.
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

// newController creates a controller with a unique identifier.
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

// resize changes the size of the namespace, and reports that to the hosts.
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

// outcome records how an operation of the store ended. The health log counts failures. It has
// a warning while operations of a kind fail, from a failure to the next success: a full disk
// may have room again. The warning of a failed flush stays after a later successful flush,
// because the system may have dropped data that it could not write. Hosts are notified of a
// failure if no kind was failing before.
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

// count returns the number of controllers and connections.
func (t *target) count() (controllers, conns int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.controllers), t.conns
}

// entries returns the discovery log for a host that connected to an address.
func (t *target) entries(at netip.Addr) []nvme.DiscoveryEntry {
	e := nvme.DiscoveryEntry{Type: 3, PortID: 1, NQN: nvme.DiscoveryNQN, Addr: at, Port: fmt.Sprint(t.cfg.port)}
	sub := e
	sub.Type, sub.NQN = 2, t.cfg.nqn
	return []nvme.DiscoveryEntry{e, sub}
}
