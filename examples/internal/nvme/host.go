package nvme

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/endpoint"
)

// HostConfig holds the parameters of a host.
type HostConfig struct {
	NQN     string // of the subsystem
	HostNQN string
	HostID  [16]byte
	Queues  int           // I/O queues; 0: the controller is for admin commands only
	Depth   int           // entries of an I/O queue, 2 to 1024; 0 means 32
	Alive   time.Duration // keep-alive timeout; 0: none
	// Conn holds the parameters of connections; sizes, depths and private data are set here.
	Conn endpoint.ConnConfig
}

// Host is a connection to a controller: one queue pair for admin commands, and one for
// each I/O queue. Its methods may be called from any goroutine.
type Host struct {
	Controller Controller
	Namespace  Namespace // the first
	NSID       uint32    // 0: there is none

	cfg   HostConfig
	admin *queue
	mu    sync.Mutex // of io until Dial has returned: keepAlive may close it
	io    []*queue
	turn  atomic.Uint32
	stop  chan struct{}
	once  sync.Once
}

// Dial connects to the controller at ADDRESS:PORT and makes it ready.
func Dial(ctx context.Context, ep *endpoint.Endpoint, address string, cfg HostConfig) (*Host, error) {
	if cfg.Depth == 0 {
		cfg.Depth = 32
	}
	h := &Host{cfg: cfg, stop: make(chan struct{})}
	if err := h.dial(ctx, ep, address); err != nil {
		h.drop()
		return nil, err
	}
	return h, nil
}

func (h *Host) dial(ctx context.Context, ep *endpoint.Endpoint, address string) (err error) {
	if h.admin, err = dialQueue(ctx, ep, address, &h.cfg, 0, AdminDepth, 0xffff); err != nil {
		return err
	}
	capabilities, err := h.property(ctx, PropertyCAP, 1)
	if err != nil {
		return err
	}
	if err := h.SetProperty(ctx, PropertyCC, CCEntrySizes|CCEnable); err != nil {
		return err
	}
	for {
		csts, err := h.property(ctx, PropertyCSTS, 0)
		if err != nil {
			return err
		}
		if csts&CSTSFatal != 0 {
			return errors.New("nvme: the controller reports a fatal status (CSTS.CFS)")
		}
		if csts&CSTSReady != 0 {
			break
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			return fmt.Errorf("nvme: the controller does not become ready: %w", context.Cause(ctx))
		}
	}
	buf := make([]byte, IdentifySize)
	if err := h.identify(ctx, 0, IdentifyControllerCNS, buf); err != nil {
		return err
	}
	if err := h.Controller.Decode(buf); err != nil {
		return err
	}
	if h.cfg.Alive != 0 {
		go h.keepAlive()
	}
	if h.cfg.Queues == 0 {
		return nil
	}
	if most := int(uint16(capabilities)) + 1; h.cfg.Depth > most {
		return fmt.Errorf("nvme: the queue depth is %d, and the controller has at most %d", h.cfg.Depth, most)
	}
	n := uint32(h.cfg.Queues - 1)
	r, err := h.Admin(ctx, "set features (number of queues)", &Command{Opcode: SetFeatures, CDW10: [6]uint32{FeatureQueues, n<<16 | n}}, nil, false)
	if err != nil {
		return err
	}
	for i := range min(h.cfg.Queues, int(r.Result&0xffff)+1) {
		q, err := dialQueue(ctx, ep, address, &h.cfg, uint16(i+1), h.cfg.Depth, h.admin.cntlid)
		if err != nil {
			return err
		}
		q.inline = h.Controller.inline()
		h.mu.Lock()
		h.io = append(h.io, q)
		h.mu.Unlock()
	}
	if err := h.identify(ctx, 0, IdentifyNamespacesCNS, buf); err != nil {
		return err
	}
	if h.NSID = le.Uint32(buf); h.NSID == 0 {
		return nil
	}
	if err := h.identify(ctx, h.NSID, IdentifyNamespaceCNS, buf); err != nil {
		return err
	}
	return h.Namespace.Decode(buf)
}

func (h *Host) identify(ctx context.Context, nsid uint32, cns uint32, buf []byte) error {
	_, err := h.Admin(ctx, "identify", &Command{Opcode: Identify, NSID: nsid, CDW10: [6]uint32{cns}}, buf, false)
	return err
}

// property reads a property of 4 bytes, or of 8 where size is 1.
func (h *Host) property(ctx context.Context, offset, size uint32) (uint64, error) {
	r, err := h.Admin(ctx, "property get", &Command{Opcode: Fabrics, NSID: PropertyGet, CDW10: [6]uint32{size, offset}}, nil, false)
	return r.Result, err
}

// SetProperty writes a property of 4 bytes.
func (h *Host) SetProperty(ctx context.Context, offset uint32, v uint32) error {
	_, err := h.Admin(ctx, "property set", &Command{Opcode: Fabrics, NSID: PropertySet, CDW10: [6]uint32{0, offset, v}}, nil, false)
	return err
}

func (h *Host) keepAlive() {
	t := time.NewTicker(h.cfg.Alive / 2)
	defer t.Stop()
	for {
		select {
		case <-h.stop:
			return
		case <-t.C:
		}
		ctx, cancel := context.WithTimeout(context.Background(), h.cfg.Alive)
		_, err := h.Admin(ctx, "keep alive", &Command{Opcode: KeepAlive}, nil, false)
		cancel()
		if err != nil {
			h.drop()
			return
		}
	}
}

// Admin executes an admin command with data, which the controller reads if write is set, and
// otherwise writes.
func (h *Host) Admin(ctx context.Context, name string, c *Command, data []byte, write bool) (Completion, error) {
	return h.admin.do(ctx, name, c, data, write)
}

// IO executes an I/O command; the queues are used in turn.
func (h *Host) IO(ctx context.Context, name string, c *Command, data []byte, write bool) (Completion, error) {
	if len(h.io) == 0 {
		return Completion{}, errors.New("nvme: there are no I/O queues")
	}
	return h.io[int(h.turn.Add(1))%len(h.io)].do(ctx, name, c, data, write)
}

// Read fills b with blocks starting at lba; Write writes them. b must be a whole number of
// blocks, and at most MaxData bytes.
func (h *Host) Read(ctx context.Context, lba uint64, b []byte) error {
	_, err := h.IO(ctx, "read", h.blocks(Read, lba, len(b)>>h.Namespace.BlockLog), b, false)
	return err
}

// Write writes b, see Read.
func (h *Host) Write(ctx context.Context, lba uint64, b []byte) error {
	_, err := h.IO(ctx, "write", h.blocks(Write, lba, len(b)>>h.Namespace.BlockLog), b, true)
	return err
}

// WriteZeroes writes zeros to n blocks, 1 to 65536.
func (h *Host) WriteZeroes(ctx context.Context, lba uint64, n int) error {
	_, err := h.IO(ctx, "write zeroes", h.blocks(WriteZeroes, lba, n), nil, false)
	return err
}

// Flush makes the controller write its cache to durable storage.
func (h *Host) Flush(ctx context.Context) error {
	_, err := h.IO(ctx, "flush", &Command{Opcode: Flush, NSID: h.NSID}, nil, false)
	return err
}

// Deallocate tells the controller that ranges of blocks are no longer used.
func (h *Host) Deallocate(ctx context.Context, ranges []Range) error {
	var b []byte
	for i := range ranges {
		b = ranges[i].AppendTo(b)
	}
	c := &Command{Opcode: DatasetManagement, NSID: h.NSID, CDW10: [6]uint32{uint32(len(ranges) - 1), 4}}
	_, err := h.IO(ctx, "dataset management", c, b, true)
	return err
}

func (h *Host) blocks(op Opcode, lba uint64, n int) *Command {
	return &Command{Opcode: op, NSID: h.NSID, CDW10: [6]uint32{uint32(lba), uint32(lba >> 32), uint32(n - 1)}}
}

// MaxData returns the maximum number of bytes of a read or write.
func (h *Host) MaxData() int {
	if m := h.Controller.MDTS; m != 0 && m < 12 {
		return 4096 << m
	}
	return 1 << 20
}

// Queues returns the number of I/O queues.
func (h *Host) Queues() int { return len(h.io) }

// Close shuts the controller down and ends the connections.
func (h *Host) Close() error {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	err := h.SetProperty(ctx, PropertyCC, CCEntrySizes|CCEnable|1<<14)
	h.drop()
	return err
}

// drop ends the connections.
func (h *Host) drop() {
	h.once.Do(func() { close(h.stop) })
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, q := range h.io {
		q.conn.Close()
	}
	if h.admin != nil {
		h.admin.conn.Close()
	}
}

// Discover returns the entries of the discovery log of a target.
func Discover(ctx context.Context, ep *endpoint.Endpoint, address string, cfg HostConfig) ([]DiscoveryEntry, error) {
	cfg.NQN, cfg.Queues = DiscoveryNQN, 0
	h, err := Dial(ctx, ep, address, cfg)
	if err != nil {
		return nil, err
	}
	defer h.Close()
	buf := make([]byte, DiscoverySize)
	var entries []DiscoveryEntry
	for n := uint64(0); ; {
		dwords := uint32(len(buf)/4 - 1)
		c := &Command{Opcode: GetLogPage, CDW10: [6]uint32{LogDiscovery | dwords<<16, dwords >> 16}}
		if _, err := h.Admin(ctx, "get log page (discovery)", c, buf, false); err != nil {
			return nil, err
		}
		if n = le.Uint64(buf[8:]); n > 1000 {
			return nil, fmt.Errorf("nvme: the discovery log has %d entries", n)
		}
		if want := DiscoverySize * int(n+1); want > len(buf) {
			buf = make([]byte, want)
			continue
		}
		for i := range int(n) {
			var e DiscoveryEntry
			if err := e.Decode(buf[DiscoverySize*(i+1):]); err != nil {
				return nil, err
			}
			entries = append(entries, e)
		}
		return entries, nil
	}
}

// queue is a host's end of a submission and completion queue.
//
// Invariant: a slot is free, or in use by one command until the controller has responded and
// the capsule has been acknowledged, because after a lost acknowledgement the capsule is
// retransmitted.
type queue struct {
	id       uint16
	inline   int // bytes of data that a command may carry
	ep       *endpoint.Endpoint
	conn     *endpoint.Conn
	cntlid   uint16
	slots    []*slot
	free     chan *slot
	receiver chan struct{} // closed when no more responses will be received
	fault    error         // why the receiver ended; valid after receiver is closed
}

type slot struct {
	cid     uint16
	asked   atomic.Bool // a command was sent and has no response yet
	window  *endpoint.Window
	capsule []byte
	sent    chan qp.Completion
	done    chan response
}

type response struct {
	Completion
	msg endpoint.Message
}

// dialQueue connects a queue of depth entries and sends the Connect command for it.
func dialQueue(ctx context.Context, ep *endpoint.Endpoint, address string, cfg *HostConfig, id uint16, depth int, cntlid uint16) (*queue, error) {
	cc := cfg.Conn
	cc.SendDepth, cc.RecvDepth, cc.RecvSize = depth, depth, CompletionSize
	cc.LinuxAckBeforeRead = true // the target may be Linux's, which READs the data of write commands
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
	for i := range depth - 1 { // a full queue has one entry less
		w, err := ep.AllocWindow()
		if err != nil {
			conn.Close()
			q.closeWindows()
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
		var refused *Error
		if errors.As(err, &refused) && refused.Status.Is(ConnectInvalidParam) {
			err = fmt.Errorf("%w: %s", err, wrongParameter(uint32(r.Result)))
		}
		return nil, err
	}
	q.cntlid = uint16(r.Result)
	return q, nil
}

// wrongParameter returns which parameter of Connect a controller refused: its offset in the
// command, or with bit 16 in the data (Base 3.3).
func wrongParameter(v uint32) string {
	switch v {
	case 1<<16 | 256:
		return "there is no such subsystem"
	case 1<<16 | 512:
		return "the host's name"
	case 1<<16 | 16:
		return "the controller's identifier"
	case 44:
		return "the queue's size"
	}
	return fmt.Sprintf("parameter %#x", v)
}

// receive passes responses to the commands that wait for them, until the connection ends.
func (q *queue) receive() {
	defer close(q.receiver)
	buf := make([]byte, CompletionSize)
	for {
		m, err := q.conn.RecvMessage(context.Background(), buf)
		if err != nil {
			break
		}
		r := response{msg: m}
		if r.Decode(buf[:m.N]) != nil || int(r.CID) >= len(q.slots) || !q.slots[r.CID].asked.CompareAndSwap(true, false) {
			q.fault = errors.New("a response to no command")
			break
		}
		q.slots[r.CID].done <- r
	}
	q.conn.Close()
	q.closeWindows()
}

func (q *queue) closeWindows() {
	for _, s := range q.slots {
		s.window.Close()
	}
}

// do executes a command. If ctx ends before the controller has responded, the queue's
// connection is closed.
func (q *queue) do(ctx context.Context, name string, c *Command, data []byte, write bool) (Completion, error) {
	fail := func(err error) (Completion, error) {
		if q.conn.Err() != nil && ctx.Err() == nil {
			<-q.receiver
			err = q.over() // the cause, not an error that followed from it
		}
		return Completion{}, fmt.Errorf("nvme: %s on queue %d: %w", name, q.id, err)
	}
	var s *slot
	select {
	case s = <-q.free:
	case <-ctx.Done():
		return fail(context.Cause(ctx))
	case <-q.receiver:
		return fail(q.over())
	}
	cmd := *c
	cmd.CID, cmd.Flags = s.cid, FlagsSGL
	cmd.SGL = SGL{Type: SGLKeyed}
	var inline []byte
	if write && len(data) != 0 && len(data) <= q.inline {
		inline = data
		cmd.SGL = SGL{Type: SGLOffset, Length: uint32(len(data))}
	} else if len(data) != 0 {
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
	s.capsule = append(cmd.AppendTo(s.capsule[:0]), inline...)
	s.asked.Store(true)
	if err := q.conn.Post(qp.SendWR{Op: qp.OpSend, Local: s.capsule}, func(wc qp.Completion) { s.sent <- wc }); err != nil {
		return fail(err) // the slot is lost with the connection
	}
	r, err := q.response(ctx, s)
	if err != nil {
		return fail(err)
	}
	if <-s.sent; r.msg.HasInv && r.msg.InvRKey != s.window.RKey() {
		q.conn.Close()
		return fail(errors.New("the response invalidates the key of another command"))
	}
	s.window.Invalidate()
	q.free <- s
	if r.Status != Success {
		return r.Completion, &Error{name, r.Status}
	}
	return r.Completion, nil
}

// response waits for the response to a slot's command. A response that has arrived is
// returned even if the connection or ctx ended at the same time.
func (q *queue) response(ctx context.Context, s *slot) (response, error) {
	select {
	case r := <-s.done:
		return r, nil
	case <-ctx.Done():
	case <-q.receiver:
	}
	select {
	case r := <-s.done:
		return r, nil
	default:
	}
	if err := context.Cause(ctx); err != nil {
		q.conn.Close()
		return response{}, err
	}
	return response{}, q.over()
}

// over returns why there will be no more responses. The receiver has ended.
func (q *queue) over() error {
	if q.fault != nil {
		return q.fault
	}
	return q.conn.Err()
}
