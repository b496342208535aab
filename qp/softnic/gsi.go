package softnic

import (
	"net/netip"
	"time"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/cm"
)

// maxUnresolvedMADs is how many management datagrams wait for hardware addresses. The
// connection machine retransmits those that are dropped.
const maxUnresolvedMADs = 32

// gsi is QP 1: the connection machine, and its datagrams that are to be sent. It is used
// unless a QP was created with that number.
type gsi struct {
	m     *cm.Machine
	on    bool // Config.CM was given: calls may be made
	used  bool // on, or a datagram came: the machine may have something to do
	calls map[uint32]*Call
	psn   psn.PSN
	next  mad   // being sent
	wait  []mad // for hardware addresses, at most maxUnresolvedMADs
	ready []mad // whose addresses are known, likewise
}

type mad struct {
	to cm.Address
	b  [cm.Size]byte
}

// init creates the connection machine of a port.
func (g *gsi) init(cfg *Config) error {
	c := cm.Config{MaxCalls: 1}
	if cfg.CM != nil {
		c, g.on, g.used = *cfg.CM, true, true
	}
	if c.CAGUID == 0 {
		// The GUID of an Ethernet card: EUI-64 of its address.
		m := cfg.MAC
		c.CAGUID = uint64(m[0]^2)<<56 | uint64(m[1])<<48 | uint64(m[2])<<40 | 0xfffe<<24 |
			uint64(m[3])<<16 | uint64(m[4])<<8 | uint64(m[5])
	}
	if c.Seed == nil && cfg.Seed != nil {
		s := *cfg.Seed
		s[31] ^= 0xc3 // a stream of its own
		c.Seed = &s
	}
	g.calls = make(map[uint32]*Call)
	if g.on {
		g.wait, g.ready = make([]mad, 0, maxUnresolvedMADs), make([]mad, 0, maxUnresolvedMADs)
	}
	var err error
	g.m, err = cm.NewMachine(c)
	return err
}

// work calls Config.OnWork: there is something to send.
func (p *Port) work() {
	if p.cfg.OnWork != nil {
		p.cfg.OnWork()
	}
}

// handleGSI handles a datagram to QP 1.
func (p *Port) handleGSI(now time.Time, f *frame.Frame) Result {
	k := &f.Packet
	if k.Opcode != bth.UDSendOnly || k.DETH.QKey != GSIQKey || !p.matchesPKey(k.PKey) {
		p.counters.RxNoQP++
		return NoQP
	}
	from := cm.Address{Local: f.Dst.Unmap(), Remote: f.Src.Unmap()}
	if f.VLANs != 0 {
		from.VLAN, from.HasVLAN = f.VLAN[f.VLANs-1].TCI, true
	}
	p.gsi.used = true
	p.gsi.m.HandleMAD(now, from, k.Payload)
	p.work()
	return Delivered
}

// matchesPKey reports whether a packet's P_Key is for one of the port's partitions.
func (p *Port) matchesPKey(k uint16) bool {
	for _, have := range p.cfg.PKeys {
		if bth.PKeyMatch(have, k) {
			return true
		}
	}
	return false
}

// nextGSI builds the next datagram of QP 1, or reports false. Those that lack a
// hardware address wait for it.
func (p *Port) nextGSI(f *frame.Frame) bool {
	g := &p.gsi
	if !g.used || p.ready.paused&1 != 0 {
		return false
	}
	for {
		if n := len(g.ready); n != 0 {
			g.next = g.ready[n-1]
			g.ready = g.ready[:n-1]
		} else {
			var ok bool
			if _, g.next.to, ok = g.m.NextMAD(g.next.b[:0]); !ok {
				return false
			}
		}
		sgid, ok := p.rowOf(g.next.to.Local)
		if !ok {
			continue
		}
		ah := qp.AHAttr{SGIDIndex: uint8(sgid), VLAN: g.next.to.VLAN, HasVLAN: g.next.to.HasVLAN}
		mac, known := p.macOf(&ah, g.next.to.Remote)
		if known {
			p.buildMAD(f, sgid, mac, &ah)
			return true
		}
		p.resolve(g.next.to.Remote, sgid, tagOf(&ah))
		if len(g.wait) < cap(g.wait) {
			g.wait = append(g.wait, g.next)
		} else {
			p.counters.TxUnresolved++ // the machine retransmits it
		}
	}
}

// idle reports whether QP 1 has nothing to send.
func (g *gsi) idle() bool { return !g.used || len(g.ready) == 0 && !g.m.Pending() }

func (p *Port) rowOf(a netip.Addr) (int, bool) {
	for i := range p.gids {
		if p.gids[i].addr == a.Unmap() || p.gids[i].v1 && p.gids[i].bytes == a.As16() {
			return i, true
		}
	}
	return 0, false
}

func (p *Port) buildMAD(f *frame.Frame, sgid int, mac frame.MAC, ah *qp.AHAttr) {
	g := &p.gsi
	sport := frame.SourcePort(frame.FlowLabel(GSIQPN, GSIQPN))
	p.head(f, sgid, g.next.to.Remote, mac, sport, 0, 0, 0)
	if ah.HasVLAN {
		f.VLANs, f.VLAN[0] = 1, frame.VLAN{TPID: frame.EtherTypeVLAN, TCI: ah.VLAN}
	}
	f.Packet = bth.Packet{Header: bth.Header{Opcode: bth.UDSendOnly, PKey: p.cfg.PKeys[0], DestQP: GSIQPN, PSN: g.psn},
		DETH: bth.DETH{QKey: GSIQKey, SrcQP: GSIQPN}, Payload: g.next.b[:]}
	g.psn = g.psn.Add(1)
}

// wakeMADs sends the datagrams that waited for an address, or drops them where it is not
// known.
func (p *Port) wakeMADs(a netip.Addr, known bool) {
	g := &p.gsi
	n := 0
	for _, m := range g.wait {
		switch {
		case m.to.Remote != a:
			g.wait[n] = m
			n++
		case known && len(g.ready) < cap(g.ready):
			g.ready = append(g.ready, m)
			p.work()
		default:
			p.counters.TxUnresolved++
		}
	}
	g.wait = g.wait[:n]
}
