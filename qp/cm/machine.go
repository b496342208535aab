package cm

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	"github.com/roce-go/roce/qp/clock"
)

var (
	// ErrConfig means that a value of a Config is out of range.
	ErrConfig = errors.New("cm: configuration value out of range")
	// ErrCall means that no call of this machine has that number, or that it
	// has ended.
	ErrCall = errors.New("cm: no such call")
	// ErrState means that the call's state does not allow the operation.
	ErrState = errors.New("cm: not in this state of the call")
	// ErrFull means that the machine holds as many calls as its Config allows.
	ErrFull = errors.New("cm: no room for another call")
	// ErrInUse means that there is a listener for that service already.
	ErrInUse = errors.New("cm: service ID in use")
)

// Config holds the parameters of a Machine. The zero value of each field except CAGUID
// means what the Linux kernel does.
type Config struct {
	// CAGUID is the GUID of this channel adapter. Peers distinguish calls by it: it must be
	// unique in the network.
	CAGUID uint64
	// Seed makes communication IDs unpredictable. With nil they are 1, 2, ..., for tests.
	Seed *[32]byte

	// Time codes, as in the fields of the messages (see Timeout).
	ResponseTimeout uint8 // the time for a response to a message; 0 means 20: 4 s
	PacketLifetime  uint8 // of a packet in the network; 0 means 16: 0.26 s
	ServiceTimeout  uint8 // the delay that an MRA announces; 0 means 24: 65 s
	AckDelay        uint8 // local CA ACK delay; 0 means 15
	// MaxRetries is how often a message is retransmitted, 1 .. 15; 0 means 15.
	MaxRetries uint8

	MaxCalls int // calls at once, those in timewait included; 0 means 1024, at most 2^20
	// MaxHalfOpen limits the calls that peers have requested and that are not established:
	// further REQs and SIDR_REQs are dropped, and the peers retransmit them. 0 means 256.
	MaxHalfOpen int
	// MaxHalfOpenPeer limits them for one remote address. 0 means MaxHalfOpen.
	MaxHalfOpenPeer int
}

func (c *Config) defaults() error {
	def := func(v *uint8, d uint8) {
		if *v == 0 {
			*v = d
		}
	}
	def(&c.ResponseTimeout, 20)
	def(&c.PacketLifetime, 16)
	def(&c.ServiceTimeout, 24)
	def(&c.AckDelay, 15)
	def(&c.MaxRetries, 15)
	if c.MaxCalls == 0 {
		c.MaxCalls = 1024
	}
	if c.MaxHalfOpen == 0 {
		c.MaxHalfOpen = 256
	}
	if c.MaxHalfOpenPeer == 0 {
		c.MaxHalfOpenPeer = c.MaxHalfOpen
	}
	for _, v := range []struct {
		name      string
		got, most int
	}{
		{"ResponseTimeout", int(c.ResponseTimeout), maxWait},
		{"PacketLifetime", int(c.PacketLifetime), maxWait},
		{"ServiceTimeout", int(c.ServiceTimeout), maxWait},
		{"AckDelay", int(c.AckDelay), 31},
		{"MaxRetries", int(c.MaxRetries), 15},
		{"MaxCalls", c.MaxCalls, 1 << 20},
		{"MaxHalfOpen", c.MaxHalfOpen, 1 << 20},
		{"MaxHalfOpenPeer", c.MaxHalfOpenPeer, 1 << 20},
	} {
		if v.got < 1 || v.got > v.most {
			return fmt.Errorf("%w: %s is %d, want 1 to %d", ErrConfig, v.name, v.got, v.most)
		}
	}
	return nil
}

// Address is the address of the peer of a call; datagrams go from QP 1 to QP 1.
type Address struct {
	Local, Remote netip.Addr
	VLAN          uint16 // tag control information, where HasVLAN
	HasVLAN       bool
}

// MachineCounters count what a machine did with datagrams.
type MachineCounters struct {
	Rx, Tx       uint64 // datagrams handed in, and built
	Retries      uint64 // messages retransmitted because no response was received
	Duplicates   uint64 // messages that were received before
	NotCM        uint64 // of another management class: not handled
	Malformed    uint64 // that cannot be decoded, or of another version or method
	Unknown      uint64 // about a call that does not exist, or in a state that does not allow it
	NoListener   uint64 // REQs and SIDR_REQs for a service without a listener
	HalfOpenFull uint64 // REQs and SIDR_REQs dropped because of MaxHalfOpen and backlogs
	Full         uint64 // REQs and SIDR_REQs dropped because of MaxCalls
	Stale        uint64 // REQs and REPs refused as stale connections
	RepliesLost  uint64 // responses without a call, dropped because too many were waiting
	TimedOut     uint64 // calls that ended because no response was received
}

// Machine requests, accepts and ends connections by management datagrams, for one port: the
// rules CM-1 to CM-24. It is pure: datagrams and time go in, datagrams, a deadline and
// events come out. It has no queue pairs: events carry the attributes that the owner
// applies to them.
//
// **After each call, call NextMAD and NextEvent until they report false, and arm one timer
// for Deadline.** Each call that the owner starts, or that an event reports, has exactly
// one event with Last set.
//
// All memory but that of listeners is allocated by NewMachine. A Machine is not safe for concurrent use.
type Machine struct {
	cfg       Config
	rng       *rand.ChaCha8 // nil: communication IDs are consecutive
	lastID    uint32        // local communication ID assigned last
	tids      uint32
	clock     clock.Clock
	now       int64 // of clock
	calls     []call
	free      []int32
	byID      index // local communication ID
	byRemote  index // peer's CA GUID and communication ID
	byQPN     index // peer's CA GUID and QP number
	listeners map[ServiceID]*listener
	timers    clock.Heap[*call] // those that wait for a time
	sending   fifo              // calls with a message to send
	events    fifo              // calls with events
	half      index             // half-open calls, by the remote address
	replies   replyRing
	halfOpen  int
	counters  MachineCounters
	in        Message // the datagram being handled
	out       Message
}

// NewMachine returns a machine without listeners and calls. The error is
// ErrConfig.
func NewMachine(cfg Config) (*Machine, error) {
	if err := cfg.defaults(); err != nil {
		return nil, err
	}
	n := cfg.MaxCalls
	m := &Machine{cfg: cfg, listeners: make(map[ServiceID]*listener), calls: make([]call, n), free: make([]int32, n), timers: clock.NewHeap(func(c *call, at int) { c.timer.at = int32(at) })}
	m.timers.Grow(n)
	m.replies.ring = make([]reply, 8)
	if n > 8 {
		m.replies.ring = make([]reply, 64)
	}
	var key uint64
	if cfg.Seed != nil {
		m.rng = rand.NewChaCha8(*cfg.Seed)
		key = m.rng.Uint64()
	}
	for i := range m.calls {
		m.calls[i].at = int32(i)
		m.calls[i].timer.at = -1
		m.free[n-1-i] = int32(i)
	}
	m.byID.init(n, key, func(c *call) *link { return &c.links[0] }, m.calls)
	m.byRemote.init(n, key, func(c *call) *link { return &c.links[1] }, m.calls)
	m.byQPN.init(n, key, func(c *call) *link { return &c.links[2] }, m.calls)
	m.sending.init(func(c *call) *queued { return &c.queues[0] }, m.calls)
	m.events.init(func(c *call) *queued { return &c.queues[1] }, m.calls)
	m.half.init(n, key, func(c *call) *link { return &c.links[3] }, m.calls)
	return m, nil
}

// Counters returns what was counted.
func (m *Machine) Counters() MachineCounters { return m.counters }

// Calls returns how many calls there are, those in timewait and those with
// events to be polled included.
func (m *Machine) Calls() int { return len(m.calls) - len(m.free) }

// HalfOpen returns how many calls that peers have requested are not established.
func (m *Machine) HalfOpen() int { return m.halfOpen }

// State returns the state of a call, Idle for one that does not exist.
func (m *Machine) State(id uint32) State {
	if c := m.find(id); c != nil {
		return c.state
	}
	return Idle
}

// at sets the time; one before the latest counts as the latest.
func (m *Machine) at(now time.Time) { m.now = m.clock.At(now) }

// newID returns a communication ID that no call has.
func (m *Machine) newID() uint32 {
	for {
		if m.rng != nil {
			m.lastID = uint32(m.rng.Uint64())
		} else {
			m.lastID++
		}
		if m.lastID != 0 && m.lookup(m.lastID) == nil {
			return m.lastID
		}
	}
}

// newTID returns a transaction ID for a call (rule CM-10).
func (m *Machine) newTID(id uint32) uint64 {
	m.tids++
	return uint64(m.tids)<<32 | uint64(id)
}

// maxWait limits the time codes that a peer chooses: a peer must not hold a call for hours.
const maxWait = 24

// wait returns the time that a code stands for in the kernel (rule CM-1): 2^(t-8) ms, at
// least 1 ms; at most a minute.
func wait(code uint8) time.Duration {
	return time.Millisecond << max(int(min(code&0x1f, maxWait))-8, 0)
}

// ackTimeout returns the code of the local ACK timeout for a packet lifetime and
// the ACK delay of a target (rule CM-14).
func ackTimeout(lifetime, delay uint8) uint8 {
	t := lifetime + 1
	if t >= delay {
		if delay >= t-1 {
			t++
		}
	} else if t >= delay-1 {
		t = delay + 1
	} else {
		t = delay
	}
	return min(t, 31)
}

// listener accepts the calls for a service.
type listener struct {
	service ServiceID
	backlog int
	open    int // half-open calls
}

// Listen makes the machine report REQs, and SIDR_REQs, for a service. At most backlog of
// its calls are half-open at once; 0 means no limit except MaxHalfOpen. It returns ErrInUse
// when the service has a listener.
func (m *Machine) Listen(service ServiceID, backlog int) error {
	if m.listener(service) != nil {
		return fmt.Errorf("%w: %v", ErrInUse, service)
	}
	if backlog <= 0 {
		backlog = m.cfg.MaxHalfOpen
	}
	m.listeners[service] = &listener{service: service, backlog: backlog}
	return nil
}

// Unlisten removes the listener. Calls that were reported are kept.
func (m *Machine) Unlisten(service ServiceID) {
	delete(m.listeners, service)
}

func (m *Machine) listener(service ServiceID) *listener { return m.listeners[service] }
