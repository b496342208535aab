package lab

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/roce-go/roce/qp/simnet"
)

// Bytes of an RC packet around its payload on an Ethernet wire: Ethernet 14, IPv4 20 (or
// IPv6 40), UDP 8, BTH 12, ICRC 4, FCS 4; preamble 8 and gap 12; RETH of a first packet
// 16, AETH of an acknowledgement 4.
const (
	header4, header6 = 62, 82
	preamble, gap    = 8, 12
	rethSize         = 16
	aethSize         = 4
)

// Ideal returns how long a WRITE of size bytes takes from its post to its completion in an
// idle network: the time on each link of the shortest path, on which packets follow each
// other and are stored and forwarded, and that of the acknowledgement. An mtu of 0 means
// 4096. The error is ErrConfig where there is no path.
func Ideal(n *simnet.Network, from, to *simnet.Host, size, mtu int) (time.Duration, error) {
	if mtu == 0 {
		mtu = 4096
	}
	path, err := n.Path(from, to)
	if err != nil {
		return 0, err
	}
	if path == nil {
		return 0, fmt.Errorf("%w: no path from %s to %s", simnet.ErrConfig, from.Name(), to.Name())
	}
	gid, _ := to.Port.GID(0)
	header := header4
	if !netip.AddrFrom16(gid).Unmap().Is4() {
		header = header6
	}
	packets := max(1, (size+mtu-1)/mtu)
	last := size - (packets-1)*mtu
	wire := func(payload int) float64 { return float64(max(header+(payload+3)&^3, 64) + preamble) }
	full, tail := wire(mtu), wire(last)
	if packets == 1 {
		tail += rethSize
	}
	ack := wire(aethSize)
	// When the last full packet, and the last packet, are at the end of each link.
	var before, end, back, slowest, passed float64
	for _, d := range path {
		per := 0.0 // ns a byte
		if d.Rate() != 0 {
			per = 8e9 / float64(d.Rate())
		}
		delay := float64(d.Delay())
		passed += full*per + delay
		slowest = max(slowest, (full+gap)*per)
		if packets > 1 {
			// The first packet's RETH delays the others once, at the first link.
			b := passed + float64(packets-2)*slowest
			if before == 0 {
				before = rethSize * per
			}
			end = max(end, b+before-delay+gap*per) + tail*per + delay
		} else {
			end += tail*per + delay
		}
		back += ack*per + delay
	}
	return time.Duration(end + back), nil
}
