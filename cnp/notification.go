package cnp

import (
	"fmt"
	"math/bits"
	"net/netip"
	"time"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/qp/clock"
)

// ECN values of the IP header's last two TOS or traffic class bits (RFC 3168).
const (
	NotECT uint8 = 0 // the sender does not support ECN
	ECT1   uint8 = 1 // ECN-capable
	ECT0   uint8 = 2 // ECN-capable, the usual value
	CE     uint8 = 3 // congestion experienced
)

// Arrival describes a received packet to a notification point.
type Arrival struct {
	// Src and Dst are the packet's addresses: its CNP goes to Src. Only the
	// address scopes look at them.
	Src, Dst  netip.Addr
	Opcode    bth.Opcode
	ECN       uint8 // the IP header's; the low two bits count
	Multicast bool
}

// AsksForCNP reports whether the packet is one that CNPs are sent for, whatever the gap
// since the last: it is marked congestion experienced, belongs to a SEND, WRITE or READ
// response, and is not multicast. Acknowledgements, requests without data, and CNPs do not.
func (a *Arrival) AsksForCNP() bool {
	return a.ECN&3 == CE && !a.Multicast &&
		(a.Opcode.Send() || a.Opcode.Write() || a.Opcode.ReadResponse())
}

// Gate is the state of one flow in a notification point: when its next CNP may be sent.
// Keep one per QP for ScopeQP. It takes 8 bytes, the zero value is ready, and it goes with
// one NotificationPoint.
type Gate struct{ open int64 }

// pass reports whether a CNP may leave at ns, and closes the gate for gap if so.
func (g *Gate) pass(ns, gap int64) bool {
	if ns < g.open {
		return false
	}
	g.open = ns + gap
	return true
}

// ways is how many slots of the table one key may be in.
const ways = 4

// slot is the gate of an address or address pair. Once its gate is open it holds no state
// and may be reused.
type slot struct {
	key  [2][16]byte
	gate Gate
}

// NotificationPoint decides for one receiving port which marked packets are
// followed by a CNP: for each flow the first at once, then no more until
// MinTimeBetweenCnps has passed. A mark inside the gap is not remembered; the
// next CNP leaves with the next marked packet after it.
//
// It is not safe for concurrent use.
type NotificationPoint struct {
	// NpEcnMarkedRocePackets counts the packets that came marked congestion
	// experienced, whether or not a CNP is due for them (np_ecn_marked_roce_packets).
	NpEcnMarkedRocePackets uint64
	// NpCnpSent counts the CNPs that the caller was to send (np_cnp_sent).
	NpCnpSent uint64
	// Evictions counts flows that lost their gate to another flow because the
	// table was full where they had to be; such a flow may send a CNP too early.
	Evictions uint64

	clock clock.Clock
	last  int64
	gap   int64
	scope Scope
	port  Gate
	slots []slot // power of two, sets of ways; nil unless the scope needs it
	shift uint   // 64 - log2(number of sets)
}

// NewNotificationPoint returns a notification point that paces by
// p.MinTimeBetweenCnps and p.CnpScope. flows is how many address pairs or
// addresses get CNPs within one gap, at most 2^24; it sizes the table, 40 bytes
// each, that the two address scopes have, and 0 stands for 1024. Errors wrap
// ErrParams.
func NewNotificationPoint(p Params, flows int) (*NotificationPoint, error) {
	if err := p.Validate(); err != nil {
		return nil, err
	}
	if flows < 0 || flows > 1<<24 {
		return nil, fmt.Errorf("%w: flows is %d, want 0..%d", ErrParams, flows, 1<<24)
	}
	n := &NotificationPoint{gap: micros(p.MinTimeBetweenCnps), scope: p.CnpScope}
	if n.scope == ScopeAddressPair || n.scope == ScopeDestination {
		if flows == 0 {
			flows = 1024
		}
		logSets := bits.Len(uint(max(flows-1, 0)) / ways)
		n.slots = make([]slot, ways<<logSets)
		n.shift = 64 - uint(logSets)
	}
	return n, nil
}

// HandlePacket counts the packet and reports whether a CNP is to be sent for it
// now. g is the gate of the QP that the packet is for, and is used with ScopeQP
// only; nil stands for one gate that all such callers share.
func (n *NotificationPoint) HandlePacket(now time.Time, a *Arrival, g *Gate) bool {
	n.last = max(n.last, n.clock.At(now))
	if a.ECN&3 != CE {
		return false
	}
	n.NpEcnMarkedRocePackets++
	if !a.AsksForCNP() {
		return false
	}
	if g == nil {
		g = &n.port
	}
	return n.asked(a.Src, a.Dst, g)
}

// asked reports whether a CNP may be sent now, at the time last, for a packet that needs
// one; g is the gate of its queue pair.
func (n *NotificationPoint) asked(src, dst netip.Addr, g *Gate) bool {
	switch n.scope {
	case ScopeAddressPair:
		g = n.gate([2][16]byte{src.As16(), dst.As16()})
	case ScopeDestination:
		g = n.gate([2][16]byte{src.As16()})
	case ScopePort:
		g = &n.port
	}
	if !g.pass(n.last, n.gap) {
		return false
	}
	n.NpCnpSent++
	return true
}

// gate returns the gate of key: its own, or else one that is open, or else the
// one of its set that opens first.
func (n *NotificationPoint) gate(key [2][16]byte) *Gate {
	i := n.set(&key) * ways
	set := n.slots[i : i+ways : i+ways]
	free := &set[0]
	for i := range set {
		s := &set[i]
		if s.key == key {
			return &s.gate
		}
		if s.gate.open < free.gate.open {
			free = s
		}
	}
	if free.gate.open > n.last {
		n.Evictions++
	}
	*free = slot{key: key}
	return &free.gate
}

// set hashes key to the number of its set. The hash has no secret: a peer that makes
// addresses collide gets more CNPs, which slow down no one else.
func (n *NotificationPoint) set(key *[2][16]byte) uint64 {
	const odd = 0x9e3779b97f4a7c15 // 2^64 / golden ratio
	h := uint64(0)
	for _, a := range key {
		for i := 0; i < len(a); i += 8 {
			w := uint64(0)
			for _, b := range a[i : i+8] {
				w = w<<8 | uint64(b)
			}
			h = (h ^ w) * odd
			h ^= h >> 32
		}
	}
	h *= odd
	return h >> n.shift // a shift by 64, for a single set, gives 0
}
