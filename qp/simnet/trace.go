package simnet

import (
	"fmt"
	"io"
	"net/netip"
	"strconv"
	"time"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/cnp/pfc"
)

// Fate is what became of a packet on a link.
type Fate uint8

// Fates.
const (
	Sent       Fate = iota // it will arrive
	Lost                   // by the link
	Corrupted              // it will arrive with a bit changed
	Duplicated             // it will arrive twice
	Reordered              // it will arrive late
	Dropped                // by a switch that has no room, or whose watchdog flushed the queue
)

var fateNames = [...]string{"sent", "lost", "corrupted", "duplicated", "reordered", "dropped"}

// String returns the name of f.
func (f Fate) String() string {
	if int(f) < len(fateNames) {
		return fateNames[f]
	}
	return strconv.Itoa(int(f))
}

// PacketEvent is a packet that a node starts to send on a link, or that a switch drops
// instead of queueing it.
type PacketEvent struct {
	At        time.Duration // since the network's start
	Direction *Direction
	Fate      Fate
	Size      int          // bytes on the wire with FCS
	Frame     *frame.Frame // nil where it is not RoCE
	PFC       *pfc.Frame   // nil where it is not a PFC frame
	Raw       []byte       // the frame without FCS, where the network carries bytes
}

// Observe sets the function that is called for each packet that a node starts to send on a
// link, and for each that a switch drops. The event is valid until it returns. nil removes
// it.
func (n *Network) Observe(fn func(*PacketEvent)) { n.observer = fn }

// tell calls the observer.
func (n *Network) tell(d *Direction, p *packet, fate Fate, at time.Duration) {
	e := n.engines[0]
	e.describe(&e.event, d, p, fate)
	e.event.At = at
	n.observer(&e.event)
}

// describe fills ev.
func (e *engine) describe(ev *PacketEvent, d *Direction, p *packet, fate Fate) {
	*ev = PacketEvent{At: time.Duration(e.now.ns), Direction: d, Fate: fate, Size: int(p.size)}
	switch {
	case p.pause:
		ev.PFC = &p.pfc
	case !e.n.bytes:
		ev.Frame = &p.f
	default:
		ev.Raw = p.buf
		if e.scratch.Decode(frame.Ethernet, p.buf) == nil {
			ev.Frame = &e.scratch
		}
	}
}

// Trace writes a line for each packet event to w: see AppendText. It replaces the function
// of Observe.
func (n *Network) Trace(w io.Writer) {
	var line []byte
	n.Observe(func(e *PacketEvent) {
		line = append(e.AppendText(line[:0]), '\n')
		w.Write(line)
	})
}

// AppendText appends a line that says what e is, without a line feed:
//
//	12.345678 us  a > b      SEND_FIRST  qp 0x11 psn 0x000005 1024 B  lost
//
// Flags are A (acknowledge request), S (solicited event), C (congestion
// experienced), B (BECN).
func (e *PacketEvent) AppendText(b []byte) []byte {
	b = fmt.Appendf(b, "%12.3f us  %s > %s  ", float64(e.At)/1e3, e.Direction.from.name(), e.Direction.to.name())
	switch {
	case e.PFC != nil:
		b = append(b, "PFC"...)
		for i := range 8 {
			if q, ok := e.PFC.Time(i); ok {
				b = fmt.Appendf(b, " prio %d: %d quanta", i, q)
			}
		}
	case e.Frame != nil:
		b = appendPacket(b, e.Frame)
	default:
		b = fmt.Appendf(b, "not RoCE, %d B", e.Size)
	}
	if e.Fate != Sent {
		b = append(b, "  "...)
		b = append(b, e.Fate.String()...)
	}
	return b
}

func appendPacket(b []byte, f *frame.Frame) []byte {
	p := &f.Packet
	b = fmt.Appendf(b, "%-28s qp 0x%x psn 0x%06x", p.Opcode, p.DestQP, uint32(p.PSN))
	flag := func(on bool, c byte) {
		if on {
			b = append(b, c)
		}
	}
	if p.AckReq || p.SE || p.BECN || f.ECN() == frame.CE {
		b = append(b, ' ')
		flag(p.AckReq, 'A')
		flag(p.SE, 'S')
		flag(f.ECN() == frame.CE, 'C')
		flag(p.BECN, 'B')
	}
	ext := p.Opcode.Ext()
	if ext&bth.HasAETH != 0 {
		switch s := p.AETH.Syndrome; s.Kind() {
		case aeth.Ack:
			b = fmt.Appendf(b, " msn %d", p.AETH.MSN)
			if c, ok := s.Credit().Count(); ok {
				b = fmt.Appendf(b, " credits %d", c)
			}
		case aeth.RNR:
			b = fmt.Appendf(b, " RNR NAK, wait %v", s.RNRTimer().Duration())
		case aeth.Nak:
			b = fmt.Appendf(b, " NAK %v", s.Nak())
		default:
			b = fmt.Appendf(b, " syndrome 0x%02x", uint8(s))
		}
	}
	if ext&bth.HasRETH != 0 {
		b = fmt.Appendf(b, " va 0x%x len %d", p.RETH.VA, p.RETH.DMALen)
	}
	if ext&bth.HasAtomicETH != 0 {
		b = fmt.Appendf(b, " va 0x%x", p.AtomicETH.VA)
	}
	if ext&bth.HasAtomicAckETH != 0 {
		b = fmt.Appendf(b, " orig 0x%x", p.AtomicAckETH.Orig)
	}
	if ext&bth.HasImmDt != 0 {
		b = fmt.Appendf(b, " imm 0x%x", p.ImmDt.Imm)
	}
	if n := len(p.Payload); n != 0 && p.Opcode != bth.CNP {
		b = fmt.Appendf(b, " %d B", n)
	}
	return b
}

func addrOf(g [16]byte) netip.Addr { return netip.AddrFrom16(g).Unmap() }
