package simnet

import (
	"fmt"
	"math/bits"
	"time"

	"github.com/roce-go/roce/cnp/pfc"
)

// nic is a host's end of a link: its packets to send, and the priorities that the other end
// has paused.
type nic struct {
	control list // PFC frames, before all else
	stash   list // of a host with several links: packets that wait for this one
	stashed int
	paused  uint8
	till    [8]int64
	since   [8]int64 // when PausedFor was last brought up to date
}

// stashLimit is how many packets may wait for one of several links. While that many wait,
// the port builds no packets for any link.
const stashLimit = 4

// account updates PausedFor.
func (c *nic) account(d *Direction) {
	now := d.e.now.ns
	for m := c.paused; m != 0; m &= m - 1 {
		prio := bits.TrailingZeros8(m)
		d.counters.PausedFor[prio] += time.Duration(now - c.since[prio])
		c.since[prio] = now
	}
}

// ready reports whether the host may build a packet.
func (h *Host) ready() bool {
	if h.out != nil {
		return h.out.free()
	}
	free := false
	for _, e := range h.ends {
		if e.nic.stashed >= stashLimit {
			return false
		}
		free = free || e.out.free()
	}
	return free
}

// rearm schedules settle for when a link is free.
func (h *Host) rearm() {
	if h.out != nil {
		h.out.rearm()
		return
	}
	for _, e := range h.ends {
		e.out.rearm()
	}
}

// linkFree is called when a link of the host has become free.
func (h *Host) linkFree(at *end) {
	h.drain(at)
	h.settle()
}

// drain sends what waits for a link.
func (h *Host) drain(at *end) {
	for at.out.free() {
		p := at.nic.control.pop()
		if p == nil {
			if p = at.nic.stash.pop(); p == nil {
				return
			}
			at.nic.stashed--
		}
		at.out.send(p)
	}
	if at.nic.control.head != nil || at.nic.stash.head != nil {
		at.out.rearm()
	}
}

// emit sends a packet on one of the host's links that are up: all of a flow on the same.
func (h *Host) emit(p *packet) {
	if h.out != nil {
		h.out.send(p)
		return
	}
	at := h.choose(p)
	at.nic.stash.push(p)
	at.nic.stashed++
	h.drain(at)
}

func (h *Host) choose(p *packet) *end {
	up := 0
	for _, e := range h.ends {
		if !e.out.down {
			up++
		}
	}
	if up == 0 {
		return h.ends[0]
	}
	i := pick(finalize(h.n.flowHash(p)^uint64(h.id)), up)
	for _, e := range h.ends {
		if !e.out.down {
			if i == 0 {
				return e
			}
			i--
		}
	}
	return h.ends[0]
}

// pause obeys a PFC frame that was received on a link.
func (h *Host) pause(at *end, f *pfc.Frame) {
	e, c := h.e, &at.nic
	c.account(at.out)
	for prio := range 8 {
		q, ok := f.Time(prio)
		if !ok {
			continue
		}
		bit := uint8(1) << prio
		if q == 0 {
			c.till[prio] = e.now.ns
			continue
		}
		if c.paused&bit == 0 {
			c.paused |= bit
			c.since[prio] = e.now.ns
			at.out.counters.Pauses++
		}
		c.till[prio] = e.now.ns + int64(pfc.Duration(q, at.out.rate))
	}
	h.unpause()
}

// resume is called when a pause of the host may be over, when one that it requested has to
// be repeated, or, with rx, when a packet has been read.
func (h *Host) resume(rx bool) {
	if rx {
		h.rx.done(h)
		return
	}
	if h.wake == h.e.now.ns {
		h.wake = 0
	}
	h.repeatStorm()
	if h.unpause() {
		h.settle()
	}
}

// unpause ends pauses whose time is over, and passes the paused priorities of all links to
// the port. It is called again when the next may be over: see open.
func (h *Host) unpause() bool {
	paused, next := uint8(0), int64(noTime)
	for _, at := range h.ends {
		c := &at.nic
		if c.paused != 0 {
			c.account(at.out)
		}
		for m := c.paused; m != 0; m &= m - 1 {
			if prio := bits.TrailingZeros8(m); c.till[prio] <= h.e.now.ns {
				c.paused &^= 1 << prio
			} else {
				next = min(next, c.till[prio])
			}
		}
		paused |= c.paused
	}
	if next != noTime && (h.wake == 0 || next < h.wake) {
		h.wake = next
		h.e.schedule(stamp{ns: next}, evHost, h.id<<1)
	}
	changed := paused != h.paused
	h.paused = paused
	h.Port.SetPaused(paused)
	return changed
}

// sendPFC requests the other ends of the host's links to pause priorities for quanta
// quanta, 0 to resume.
func (h *Host) sendPFC(mask uint8, quanta uint16) {
	for _, at := range h.ends {
		k := h.e.newPause()
		k.pfc = pfc.New([6]byte(h.Port.MAC()))
		for m := mask; m != 0; m &= m - 1 {
			k.pfc.Set(bits.TrailingZeros8(m), quanta)
		}
		if h.n.bytes {
			k.buf = k.pfc.AppendFrame(k.buf[:0])
		}
		if quanta == 0 {
			at.out.counters.ResumeSent++
		} else {
			at.out.counters.PauseSent++
		}
		at.nic.control.push(k)
		h.drain(at)
	}
}

// storm is a host that requests pauses without end, as a faulty card does.
type storm struct {
	mask  uint8
	until int64
	again int64
}

// PauseStorm makes the host request, for d, that its links' other ends pause the priorities
// of mask, bit n for priority n, whether or not it has room, as a faulty card does. A mask
// of 0 ends a storm.
func (h *Host) PauseStorm(mask uint8, d time.Duration) {
	was := h.storm.mask
	h.storm = storm{mask: mask, until: h.e.now.ns + max(0, int64(d))}
	if mask == 0 || d <= 0 {
		h.storm.mask = 0
		if was != 0 {
			h.sendPFC(was, 0)
		}
		return
	}
	h.storm.again = h.e.now.ns
	h.repeatStorm()
}

func (h *Host) repeatStorm() {
	s := &h.storm
	switch {
	case s.mask == 0 || h.e.now.ns < s.again:
		return
	case h.e.now.ns >= s.until:
		h.sendPFC(s.mask, 0)
		s.mask = 0
		return
	}
	h.sendPFC(s.mask, maxQuanta)
	s.again = s.until
	for _, at := range h.ends {
		s.again = min(s.again, h.e.now.ns+int64(pfc.Duration(maxQuanta, at.out.rate))/2+1)
	}
	h.e.schedule(stamp{ns: s.again}, evHost, h.id<<1)
}

// ReceiveConfig says how fast a host reads received packets. Lengths are in bytes.
type ReceiveConfig struct {
	Rate   uint64 // bits per second of frames
	Buffer int    // for packets that wait to be read; more are dropped; 0 means 1,000,000
	// Lossless are the priorities that the host requests to pause, together, when more than
	// XOFF bytes wait, until no more than XON do. 0 for both means a half and a quarter of
	// the buffer.
	Lossless  uint8
	XOFF, XON int
}

// receiver is the buffer of a host with ReceiveConfig.
type receiver struct {
	cfg     ReceiveConfig
	waiting list
	bytes   int
	busy    bool
	asked   bool
	dropped uint64
}

func newReceiver(cfg *ReceiveConfig) (*receiver, error) {
	r := &receiver{cfg: *cfg}
	c := &r.cfg
	if c.Buffer == 0 {
		c.Buffer = 1_000_000
	}
	if c.XOFF == 0 {
		c.XOFF = c.Buffer / 2
	}
	if c.XON == 0 {
		c.XON = c.XOFF / 2
	}
	if c.Rate == 0 || c.Rate > 1e13 || c.Buffer < 0 || c.XOFF < 0 || c.XON < 0 || c.XON > c.XOFF || c.XOFF > c.Buffer {
		return nil, fmt.Errorf("%w: receive %+v, want 0 < Rate and XON <= XOFF <= Buffer", ErrConfig, *cfg)
	}
	return r, nil
}

// Dropped returns how many packets a host with ReceiveConfig had no room for.
func (h *Host) Dropped() uint64 {
	if h.rx == nil {
		return 0
	}
	return h.rx.dropped
}

func (r *receiver) push(h *Host, p *packet) {
	if r.bytes+int(p.size) > r.cfg.Buffer {
		r.dropped++
		h.e.release(p)
		return
	}
	r.waiting.push(p)
	r.bytes += int(p.size)
	if !r.asked && r.cfg.Lossless != 0 && r.bytes > r.cfg.XOFF {
		r.asked = true
		h.PauseStorm(r.cfg.Lossless, 365*24*time.Hour)
	}
	if !r.busy {
		r.read(h)
	}
}

func (r *receiver) read(h *Host) {
	r.busy = true
	t := int64(uint64(r.waiting.head.size) * 8e9 / r.cfg.Rate)
	h.e.schedule(stamp{ns: h.e.now.ns + max(1, t)}, evHost, h.id<<1|1)
}

// done is called when the first packet that waits has been read.
func (r *receiver) done(h *Host) {
	p := r.waiting.pop()
	r.bytes -= int(p.size)
	r.busy = false
	if r.waiting.head != nil {
		r.read(h)
	}
	if r.asked && r.bytes <= r.cfg.XON {
		r.asked = false
		h.PauseStorm(0, 0)
	}
	h.take(p)
}
