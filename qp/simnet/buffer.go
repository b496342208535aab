package simnet

import (
	"fmt"
	"math"
	"math/bits"
	"time"
)

// Verdict is what a buffer policy decides about a packet.
type Verdict uint8

// Verdicts.
const (
	Accept Verdict = iota // it waits
	Drop                  // there is no room
)

// PortInfo describes a port to a buffer policy.
type PortInfo struct {
	Rate   uint64        // of its link, bits per second, 0: no limit
	Delay  time.Duration // one way
	Jitter time.Duration // the largest additional delay of packets towards the port
}

// BufferPolicy divides a switch's buffer. Ports are numbered in the order of the switch's
// links; in is the port at which a packet was received, out the one on which it is sent.
// Lengths are in bytes. The switch calls Enqueue and Dequeue for each packet, so that the
// policy can count.
type BufferPolicy interface {
	// Resize is called before the network runs and whenever a port was added or changed.
	// Packets that wait are kept. An error stops the run.
	Resize(ports []PortInfo) error
	// Enqueue decides about a packet, and counts it where it accepts it.
	Enqueue(in, out, prio, size int) Verdict
	// Dequeue counts a packet that leaves the buffer.
	Dequeue(in, out, prio, size int)
	// Pause reports whether the peer of port in should be paused; asked says whether it is.
	// It is called after each Enqueue and Dequeue of in.
	Pause(in, prio int, asked bool) bool
	// Lifts reports whether a pause would end if only held bytes that were received at port
	// in waited, and in the whole switch only rest bytes. It distinguishes a deadlock from
	// congestion.
	Lifts(in, prio, held, rest int) bool
}

// headroom returns the bytes that a port needs for packets that arrive after it has
// requested a pause: a round trip of its link, its jitter both ways, and the packets that
// are being sent at both ends.
func headroom(p PortInfo) int {
	return int(2*float64(p.Delay+p.Jitter)*float64(p.Rate)/8e9) + 3*maxWire + 2*(minFrame+fcsSize+preambleSize+gapSize)
}

// headrooms returns the headroom of each port for one lossless priority, and the sum over
// all ports and lossless priorities.
func (c *SwitchConfig) headrooms(ports []PortInfo) (each []int, sum int, err error) {
	queues := bits.OnesCount8(c.Lossless)
	if queues == 0 {
		return make([]int, len(ports)), 0, nil
	}
	for _, p := range ports {
		if p.Rate == 0 {
			return nil, 0, fmt.Errorf("%w: PFC of %s on a link without a rate", ErrConfig, c.Name)
		}
		h := c.Headroom
		if h == 0 {
			h = headroom(p)
		}
		each = append(each, h)
		sum += h * queues
	}
	return each, sum, nil
}

// staticBuffer gives each port and lossless priority its own part.
type staticBuffer struct {
	// Used for every packet: one cache line.
	bytes     [][8]int32 // that wait, by the port at which they were received, and priority
	room      []int32    // XOFF and headroom of a port
	xoff, xon int32
	lossy     int32 // room for priorities that are not lossless
	lossyUsed int32

	cfg *SwitchConfig
}

func (b *staticBuffer) Resize(ports []PortInfo) error {
	c := b.cfg
	head, sum, err := c.headrooms(ports)
	if err != nil {
		return err
	}
	for len(b.bytes) < len(ports) {
		b.bytes = append(b.bytes, [8]int32{})
	}
	b.lossy = int32(c.Buffer)
	queues := len(ports) * bits.OnesCount8(c.Lossless)
	if queues == 0 {
		return nil
	}
	xoff := c.XOFF
	if xoff == 0 {
		xoff = (c.Buffer/4*3 - sum) / queues
	}
	xon := c.XON
	if xon == 0 {
		xon = max(0, xoff-2*maxWire)
	}
	lossy := c.Buffer - sum - xoff*queues
	if xoff < maxWire || lossy < 0 {
		return fmt.Errorf("%w: %s has %d bytes of buffer for %d ports with %d lossless priorities: XOFF %d bytes, %d of headroom in all",
			ErrConfig, c.Name, c.Buffer, len(ports), bits.OnesCount8(c.Lossless), xoff, sum)
	}
	b.room = b.room[:0]
	for _, h := range head {
		b.room = append(b.room, int32(xoff+h))
	}
	b.xoff, b.xon, b.lossy = int32(xoff), int32(xon), int32(lossy)
	return nil
}

// take counts a packet if there is room for it, which it reports.
func (b *staticBuffer) take(in int32, prio uint8, size int32, lossless bool) bool {
	n := &b.bytes[in][prio&7]
	if lossless {
		if size > b.room[in]-*n {
			return false
		}
	} else {
		if size > b.lossy-b.lossyUsed {
			return false
		}
		b.lossyUsed += size
	}
	*n += size
	return true
}

// give counts a packet that leaves.
func (b *staticBuffer) give(in int32, prio uint8, size int32, lossless bool) {
	b.bytes[in][prio&7] -= size
	if !lossless {
		b.lossyUsed -= size
	}
}

func (b *staticBuffer) lossless(prio int) bool { return b.cfg.Lossless>>(prio&7)&1 != 0 }

func (b *staticBuffer) Enqueue(in, _, prio, size int) Verdict {
	if b.take(int32(in), uint8(prio), int32(size), b.lossless(prio)) {
		return Accept
	}
	return Drop
}

func (b *staticBuffer) Dequeue(in, _, prio, size int) {
	b.give(int32(in), uint8(prio), int32(size), b.lossless(prio))
}

func (b *staticBuffer) Pause(in, prio int, asked bool) bool {
	if asked {
		return b.bytes[in][prio&7] > b.xon
	}
	return b.bytes[in][prio&7] > b.xoff
}

func (b *staticBuffer) Lifts(_, _, held, _ int) bool { return held <= int(b.xon) }

// Dynamic lets the ports share a buffer: each port and priority may use alpha times its
// free part, so that a single one gets much, and many get little each.
type Dynamic struct {
	// Alpha is for the bytes received at a port in a lossless priority, 1/64 to 64: beyond
	// alpha times the free shared buffer the port's peer is paused. 0 means 1. With the
	// paper's (Zhu et al. 2015) beta and 8 priorities alpha is beta/8.
	Alpha float64
	// LossyAlpha is for the queue of an output and a priority that is not lossless: beyond
	// alpha times the free shared buffer packets are dropped. 0 means 1.
	LossyAlpha float64
	// Reserved is how many bytes each input port and priority has of its own, beside the
	// shared buffer.
	Reserved int
	// Resume is how many bytes below the threshold a pause ends; 0 means two frames.
	Resume int
}

func (d *Dynamic) validate() error {
	for _, a := range []float64{d.Alpha, d.LossyAlpha} {
		if !(a == 0 || a >= 1./64 && a <= 64) {
			return fmt.Errorf("%w: alpha %v, want 1/64 to 64", ErrConfig, a)
		}
	}
	if d.Reserved < 0 || d.Resume < 0 {
		return fmt.Errorf("%w: dynamic buffer %+v", ErrConfig, *d)
	}
	return nil
}

// usage is how many bytes a port and priority uses of each pool.
type usage struct {
	reserved, shared, head int
}

// dynamicBuffer is the policy of Dynamic. A packet uses the rest of its port's reserve,
// then the shared buffer up to the threshold, then the headroom; when it leaves, they are
// freed in the opposite order.
type dynamicBuffer struct {
	cfg         *SwitchConfig
	alpha       int // in 1/1024
	lossyAlpha  int
	resume      int
	in          [][8]usage
	out         [][8]int // bytes of each output queue
	head        []int
	shared      int
	sharedUsed  int
	reservedSum int
}

func newDynamic(c *SwitchConfig) *dynamicBuffer {
	fixed := func(a float64) int {
		if a == 0 {
			a = 1
		}
		return int(a * 1024)
	}
	b := &dynamicBuffer{cfg: c, alpha: fixed(c.Dynamic.Alpha), lossyAlpha: fixed(c.Dynamic.LossyAlpha), resume: c.Dynamic.Resume}
	if b.resume == 0 {
		b.resume = 2 * maxWire
	}
	return b
}

func (b *dynamicBuffer) Resize(ports []PortInfo) error {
	head, sum, err := b.cfg.headrooms(ports)
	if err != nil {
		return err
	}
	b.head = head
	for len(b.in) < len(ports) {
		b.in, b.out = append(b.in, [8]usage{}), append(b.out, [8]int{})
	}
	b.reservedSum = b.cfg.Dynamic.Reserved * 8 * len(ports)
	if b.shared = b.cfg.Buffer - sum - b.reservedSum; b.shared < maxWire {
		return fmt.Errorf("%w: %s has %d bytes of buffer for %d ports: %d of headroom and %d reserved leave %d to share",
			ErrConfig, b.cfg.Name, b.cfg.Buffer, len(ports), sum, b.reservedSum, b.shared)
	}
	return nil
}

func (b *dynamicBuffer) threshold(alpha, used int) int {
	return int(min(int64(max(0, b.shared-used))*int64(alpha)>>10, math.MaxInt32)) // where int has 32 bits
}

func (b *dynamicBuffer) Enqueue(in, out, prio, size int) Verdict {
	u := &b.in[in][prio]
	free := max(0, b.shared-b.sharedUsed)
	lossless := b.cfg.Lossless>>prio&1 != 0
	reserved := min(size, max(0, b.cfg.Dynamic.Reserved-u.reserved))
	rest := size - reserved
	shared, head := rest, 0
	if lossless {
		if u.head > 0 || rest > free || u.shared > b.threshold(b.alpha, b.sharedUsed) {
			shared, head = 0, rest // headroom until it has drained
		}
		if u.head+head > b.head[in] {
			return Drop
		}
	} else if rest > free || rest > 0 && b.out[out][prio]+size > b.threshold(b.lossyAlpha, b.sharedUsed) {
		return Drop
	}
	u.reserved += reserved
	u.shared += shared
	u.head += head
	b.sharedUsed += shared
	b.out[out][prio] += size
	return Accept
}

func (b *dynamicBuffer) Dequeue(in, out, prio, size int) {
	u := &b.in[in][prio]
	b.out[out][prio] -= size
	h := min(size, u.head)
	u.head -= h
	size -= h
	s := min(size, u.shared)
	u.shared -= s
	b.sharedUsed -= s
	u.reserved -= size - s
}

func (b *dynamicBuffer) Pause(in, prio int, asked bool) bool {
	u := &b.in[in][prio]
	t := b.threshold(b.alpha, b.sharedUsed)
	if asked {
		return u.head > 0 || u.shared > max(0, t-b.resume)
	}
	return u.head > 0 || u.shared > t
}

func (b *dynamicBuffer) Lifts(in, prio, held, rest int) bool {
	shared := max(0, held-b.cfg.Dynamic.Reserved)
	used := min(b.shared, max(shared, rest-b.reservedSum))
	return shared <= max(0, b.threshold(b.alpha, used)-b.resume)
}
