package endpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/qp/softnic"
)

// UDP is a plain UDP socket on port 4791 of an address of this host, which needs no
// privilege (Linux). An IPv6 link-local address needs its zone: "fe80::1%eth0".
//
// A UDP socket does not show the IP header that a packet's ICRC covers. All of it is known
// except the 16-bit identification that an IPv4 sender chose: a packet is accepted if its
// ICRC is right for some identification, so that a corrupted packet is accepted with
// probability 2^-16 instead of 2^-32. The socket sends with identification 0 (to its own
// host the kernel may increment it) and Don't Fragment, needs peers that set Don't Fragment
// and no IP options, sends from port 4791 only, and supports neither ECN nor VLANs nor
// DSCP.
func UDP(address string) Wire { return udpWire{address: address} }

// StrictUDP is UDP, but accepts only IPv4 packets with identification 0, as another
// StrictUDP sends them. The Linux driver increments the identification, and so does UDP for
// packets to its own host that it sends together.
func StrictUDP(address string) Wire { return udpWire{address, true} }

type udpWire struct {
	address string
	strict  bool
}

func (w udpWire) open(cfg *Config) (transport, error) {
	t, err := w.listen()
	if err != nil {
		return nil, err
	}
	t.in.busy = cfg.BusyPoll
	cfg.GIDs = []netip.Addr{t.local.Addr()}
	return t, nil
}

func (w udpWire) listen() (*udp, error) {
	a, err := netip.ParseAddr(w.address)
	if err != nil {
		return nil, fmt.Errorf("UDP: %q is no IP address", w.address)
	}
	a = a.Unmap()
	switch {
	case a.IsUnspecified():
		return nil, fmt.Errorf("UDP: %v is not an address that peers can send to: use an address of this host", a)
	case a.IsMulticast():
		return nil, fmt.Errorf("UDP: %v is a multicast address", a)
	case a.IsLinkLocalUnicast() && a.Is6() && a.Zone() == "":
		return nil, fmt.Errorf("UDP: %v is link-local and needs its zone: %v%%INTERFACE", a, a)
	}
	return newUDP(a, w.strict)
}

// udp is a transport over a UDP socket. The kernel writes the IP and UDP headers of what is
// sent, and removes those of what is received; they are reconstructed to compute the ICRC.
type udp struct {
	conn   *net.UDPConn
	local  netip.AddrPort
	linkMT int
	ids    idFinder
	finder frame.Finder

	in, out *batch
	joined  joined
	n       int // packets received that wait
	rx, tx  frame.Frame
}

func newUDP(a netip.Addr, strict bool) (*udp, error) {
	local := netip.AddrPortFrom(a, frame.Port)
	network := "udp6"
	if a.Is4() {
		network = "udp4"
	}
	// Not connected: a connected socket increments the identification.
	c, err := net.ListenUDP(network, net.UDPAddrFromAddrPort(local))
	if err != nil {
		switch {
		case errors.Is(err, syscall.EADDRNOTAVAIL):
			err = fmt.Errorf("%w: %v is not an address of this host", err, a)
		case errors.Is(err, syscall.EADDRINUSE):
			err = fmt.Errorf("%w: another endpoint, or the kernel's RoCE driver, has port %d of %v", err, frame.Port, a)
		}
		return nil, err
	}
	var bad error
	raw, err := c.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { bad = udpOptions(fd, a.Is4()) })
	}
	if err = errors.Join(err, bad); err != nil {
		c.Close()
		return nil, err
	}
	buffers(c)
	in, err := newUDPBatch(c, a, false)
	if err != nil {
		c.Close()
		return nil, err
	}
	out, err := newUDPBatch(c, a, true)
	if err != nil {
		c.Close()
		return nil, err
	}
	return &udp{conn: c, local: local, linkMT: linkMTU(a), ids: idFinder{strict, make(map[int]*idSpace)},
		finder: frame.Finder{UDPPort: frame.Port}, in: in, out: out}, nil
}

const socketBuffer = 4 << 20 // bytes

// buffers sets large buffers for a socket, as far as the system allows: what does not fit
// is lost like any packet.
func buffers(c *net.UDPConn) {
	_ = c.SetReadBuffer(socketBuffer)
	_ = c.SetWriteBuffer(socketBuffer)
	if raw, err := c.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { forceReadBuffer(fd, socketBuffer) })
	}
}

// linkMTU returns the MTU of the interface that has an address.
func linkMTU(a netip.Addr) int {
	ifs, _ := net.Interfaces()
	for _, i := range ifs {
		addrs, _ := i.Addrs()
		for _, x := range addrs {
			if n, ok := x.(*net.IPNet); ok {
				if b, ok := netip.AddrFromSlice(n.IP); ok && b.Unmap() == a.WithZone("") || n.Contains(a.AsSlice()) && a.IsLoopback() {
					return i.MTU
				}
			}
		}
	}
	return 1500
}

func (u *udp) mtu() int { return u.linkMT }

// peerMAC: the value does not matter, because no Ethernet header is sent.
func (u *udp) peerMAC() frame.MAC { return frame.MAC{2} }

func (u *udp) wait() error {
	for {
		n, err := u.in.recv()
		switch {
		case err == nil:
			u.n = n
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		}
		// An ICMP message about an earlier packet, or an interface that is down: neither is
		// final.
		time.Sleep(time.Millisecond)
	}
}

// header appends the IP and UDP headers of n bytes from one address to another.
func header(b []byte, src, dst netip.AddrPort, n int) []byte {
	be := binary.BigEndian
	if src.Addr().Is4() {
		b = append(b, 0x45, 0)
		b = be.AppendUint16(b, uint16(20+8+n))
		b = append(b, 0, 0, 0x40, 0, 64, 17, 0, 0) // identification 0, DF, TTL, UDP
	} else {
		b = append(b, 0x60, 0, 0, 0)
		b = be.AppendUint16(b, uint16(8+n))
		b = append(b, 17, 64)
	}
	b = append(b, src.Addr().AsSlice()...)
	b = append(b, dst.Addr().AsSlice()...)
	b = be.AppendUint16(b, src.Port())
	b = be.AppendUint16(b, dst.Port())
	b = be.AppendUint16(b, uint16(8+n))
	return append(b, 0, 0)
}

func (u *udp) deliver(now time.Time, e *Endpoint) {
	for i := range u.n {
		pkt := u.packet(i)
		r := u.decode(pkt, &u.rx) // which sets the identification
		if e.tap != nil {
			e.recordIP(now, pkt)
		}
		if r != softnic.Delivered {
			e.port.CountDropped(r)
			continue
		}
		e.port.CountReceived()
		e.port.HandleDecoded(now, &u.rx)
	}
	u.n = 0
}

// packet returns the i-th packet received, with the headers that it must have had. They
// are written over the end of the one before.
func (u *udp) packet(i int) []byte {
	room := 40 + 8
	if u.local.Addr().Is4() {
		room = 20 + 8
	}
	b, from := u.in.get(i, room)
	header(b[:0], from, u.local, len(b)-room)
	return b
}

// decode decodes a packet, or returns why it is dropped. It sets the identification that
// makes the ICRC right.
func (u *udp) decode(pkt []byte, f *frame.Frame) softnic.Result {
	link := frame.RawIPv6
	if u.local.Addr().Is4() {
		link = frame.RawIPv4
	}
	if u.finder.Decode(link, pkt, len(pkt), f) != nil {
		return softnic.Malformed
	}
	id, ok := u.ids.find(pkt)
	if !ok {
		return softnic.BadICRC
	}
	if link == frame.RawIPv4 {
		binary.BigEndian.PutUint16(pkt[4:], id) // part of the GRH area of a datagram
	}
	return softnic.Delivered
}

// recordIP writes an IP packet to the capture, with an invented Ethernet header.
func (e *Endpoint) recordIP(now time.Time, pkt []byte) {
	b := append(make([]byte, 0, 14+len(pkt)), 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2)
	if pkt[0]>>4 == 4 {
		b = append(b, 0x08, 0x00)
	} else {
		b = append(b, 0x86, 0xdd)
	}
	e.record(now, append(b, pkt...))
}

func (u *udp) send(now time.Time, e *Endpoint) (n, bytes int, err error) {
	var sent func([]byte)
	if e.tap != nil {
		sent = func(b []byte) { e.record(now, b) }
	}
	return u.sendBatch(now, e.port, sent)
}

// sendBatch sends packets of a port, at most a batch. sent, where not nil, is called with
// each as an Ethernet frame.
func (u *udp) sendBatch(now time.Time, p *softnic.Port, sent func([]byte)) (n, bytes int, err error) {
	for n < batchSize && bytes < batchBytes && p.NextDecoded(now, &u.tx) {
		b := u.put(n, &u.tx)
		if sent != nil {
			sent(b)
		}
		n++
		bytes += len(b)
	}
	if n != 0 {
		err = u.out.send()
	}
	return n, bytes, err
}

// put queues f as the n-th packet to be sent, and returns it as an Ethernet frame.
func (u *udp) put(n int, f *frame.Frame) []byte {
	f.VLANs, f.SrcPort, f.DstPort = 0, u.local.Port(), u.local.Port()
	skip := 14 + 40 + 8
	if f.Net == frame.IPv4 {
		skip = 14 + 20 + 8
	}
	size := f.Size() - skip
	joins := n != 0 && u.splits(f.Dst) && u.joined.takes(f.Dst, size)
	if !joins {
		u.joined = joined{to: f.Dst, size: size, n: 1}
	}
	if f.Net == frame.IPv4 {
		f.ID = uint16(u.joined.n - 1) // as the kernel numbers them
	}
	b := f.AppendTo(u.out.bufs[n][:0])
	u.out.bufs[n] = b
	u.out.put(n, skip, netip.AddrPortFrom(f.Dst, u.local.Port()), joins)
	return b
}

// joined describes packets that are sent as one datagram, which the kernel splits: all have
// one size, except the last, which may be shorter.
type joined struct {
	to      netip.Addr
	size, n int
	over    bool
}

// takes reports whether a packet of n bytes may be the next.
func (j *joined) takes(to netip.Addr, n int) bool {
	if j.over || to != j.to || n > j.size {
		return false
	}
	j.n, j.over = j.n+1, n < j.size
	return true
}

// splits reports whether the kernel may split datagrams to an address. It numbers the
// identifications of the packets of an IPv4 datagram, and the ICRC covers them. How a card
// that splits datagrams itself numbers them is not known, so this is only for IPv6, which
// has no identification, and for this host.
func (u *udp) splits(to netip.Addr) bool {
	return u.out.split && !u.ids.strict && (!to.Is4() || to.IsLoopback() || to == u.local.Addr())
}

func (u *udp) inject([]byte) error { return errNoFrames }

func (u *udp) dropped() uint64 { return socketDrops(u.conn) }

func (u *udp) close() error { return u.conn.Close() }
