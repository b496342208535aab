package nvme

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/roce-go/roce/qp/endpoint"
)

// HostConfig says what a host wants of a controller.
type HostConfig struct {
	NQN     string // of the subsystem
	HostNQN string
	HostID  [16]byte
	Queues  int           // I/O queues; 0: the controller is for admin commands only
	Depth   int           // entries of an I/O queue, 2 to 1024; 0 means 32
	Alive   time.Duration // keep-alive timeout; 0: none
	// Conn is what connections are like; sizes, depths and private data are set here.
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
		h.io = append(h.io, q)
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

// Admin does an admin command with data, which the controller reads where write is
// set, and else writes.
func (h *Host) Admin(ctx context.Context, name string, c *Command, data []byte, write bool) (Completion, error) {
	return h.admin.do(ctx, name, c, data, write)
}

// IO does an I/O command, on the queues in turn.
func (h *Host) IO(ctx context.Context, name string, c *Command, data []byte, write bool) (Completion, error) {
	if len(h.io) == 0 {
		return Completion{}, errors.New("nvme: there are no I/O queues")
	}
	return h.io[int(h.turn.Add(1))%len(h.io)].do(ctx, name, c, data, write)
}

// Read fills b with blocks from lba on, Write writes them. b is a number of whole
// blocks, at most what MaxData says.
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

// Flush has the controller make durable what was written.
func (h *Host) Flush(ctx context.Context) error {
	_, err := h.IO(ctx, "flush", &Command{Opcode: Flush, NSID: h.NSID}, nil, false)
	return err
}

// Deallocate says that ranges of blocks hold nothing of value any more.
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

// MaxData returns the most bytes of a read or write.
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
