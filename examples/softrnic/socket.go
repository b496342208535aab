package main

import (
	"encoding/binary"
	"math/bits"
	"net"
	"net/netip"
	"syscall"
	"time"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/crc"
	"github.com/roce-go/roce/qp/softnic"
)

// socket is a plain UDP socket for a wire. The kernel makes the IP and UDP
// headers of what is sent, and hides those of what is received; an ICRC covers
// them. They are made up here to compute it.
type socket struct {
	conn   *net.UDPConn
	local  netip.AddrPort
	strict bool
	finder frame.Finder
	from   netip.AddrPort // of the packet that read returned
	pkt    []byte         // headers as they must have been, and the packet
	out    []byte
	rx, tx frame.Frame
	ids    map[int]*idSpace
}

// newSocket makes a socket at an address of this host.
func newSocket(local netip.AddrPort, strict bool) (*socket, error) {
	network := "udp6"
	if local.Addr().Is4() {
		network = "udp4"
	}
	// Not connected: a connected socket counts the identification up.
	c, err := net.ListenUDP(network, net.UDPAddrFromAddrPort(local))
	if err != nil {
		return nil, err
	}
	var bad error
	raw, err := c.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { bad = dontFragment(fd, local.Addr().Is4()) })
	}
	if err == nil {
		err = bad
	}
	if err != nil {
		c.Close()
		return nil, err
	}
	_ = c.SetReadBuffer(4 << 20)
	return &socket{conn: c, local: local, strict: strict, finder: frame.Finder{UDPPort: local.Port()},
		ids: make(map[int]*idSpace)}, nil
}

func (s *socket) read(buf []byte) ([]byte, error) {
	for {
		n, from, err := s.conn.ReadFromUDPAddrPort(buf)
		if err == nil || !isRefused(err) {
			s.from = netip.AddrPortFrom(from.Addr().Unmap(), from.Port())
			return buf[:n], err
		}
	}
}

// isRefused reports whether err is an ICMP message about an earlier packet.
func isRefused(err error) bool {
	errno, ok := errnoOf(err)
	return ok && (errno == syscall.ECONNREFUSED || errno == syscall.EHOSTUNREACH || errno == syscall.ENETUNREACH)
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

func (s *socket) deliver(now time.Time, p *softnic.Port, b []byte) {
	s.pkt = append(header(s.pkt[:0], s.from, s.local, len(b)), b...)
	link := frame.RawIPv6
	if s.local.Addr().Is4() {
		link = frame.RawIPv4
	}
	if s.finder.Decode(link, s.pkt, len(s.pkt), &s.rx) != nil {
		p.CountDropped(softnic.Malformed)
		return
	}
	id, ok := s.identification(s.pkt)
	if !ok {
		p.CountDropped(softnic.BadICRC)
		return
	}
	if link == frame.RawIPv4 {
		binary.BigEndian.PutUint16(s.pkt[4:], id) // part of what a datagram's receiver sees
	}
	p.CountReceived()
	p.HandleDecoded(now, &s.rx)
}

// identification returns the IPv4 identification that makes the ICRC of pkt right,
// where pkt has 0. There is none when the packet is corrupt, but once in 65536.
func (s *socket) identification(pkt []byte) (uint16, bool) {
	n := len(pkt) - crc.Size
	diff := crc.Sum(pkt[:n]) ^ crc.Stored(pkt)
	if diff == 0 {
		return 0, true
	}
	if s.strict || pkt[0]>>4 != 4 {
		return 0, false
	}
	// The bytes after the identification that the ICRC covers.
	tail := n - 6
	sp := s.ids[tail]
	if sp == nil {
		sp = newIDSpace(tail)
		s.ids[tail] = sp
	}
	return sp.find(diff)
}

// idSpace is what identifications do to an ICRC that covers so many bytes behind
// them. A CRC is linear: each bit of the identification flips its own set of the
// ICRC's bits, so that what 65536 identifications can do is a space of 16
// dimensions. It is held in echelon form, each vector with the identification that
// makes it.
type idSpace struct {
	vec [16]uint32
	id  [16]uint16
}

func newIDSpace(tail int) *idSpace {
	s := new(idSpace)
	n := 0
	for bit := range 16 {
		id := uint16(1) << bit
		v := crc.Patch(0, tail, []byte{0, 0}, binary.BigEndian.AppendUint16(nil, id))
		v, id = s.reduce(n, v, id)
		// A CRC of 32 bits tells any two identifications apart, so v is not 0.
		s.vec[n], s.id[n] = v, id
		n++
	}
	return s
}

// reduce adds to v those of the first n vectors whose highest bit it has.
func (s *idSpace) reduce(n int, v uint32, id uint16) (uint32, uint16) {
	for again := true; again; {
		again = false
		for i := range n {
			if x := v ^ s.vec[i]; x < v && bits.Len32(v) == bits.Len32(s.vec[i]) {
				v, id, again = x, id^s.id[i], true
			}
		}
	}
	return v, id
}

// find returns the identification that makes diff.
func (s *idSpace) find(diff uint32) (uint16, bool) {
	v, id := s.reduce(16, diff, 0)
	return id, v == 0
}

func (s *socket) send(now time.Time, p *softnic.Port) (int, error) {
	f := &s.tx
	if !p.NextDecoded(now, f) {
		return 0, nil
	}
	f.VLANs, f.SrcPort, f.DstPort = 0, s.local.Port(), s.local.Port()
	s.out = f.AppendTo(s.out[:0])
	skip := 14 + 40 + 8
	if f.Net == frame.IPv4 {
		skip = 14 + 20 + 8
	}
	_, err := s.conn.WriteToUDPAddrPort(s.out[skip:], netip.AddrPortFrom(f.Dst, s.local.Port()))
	if err != nil {
		if errno, ok := errnoOf(err); ok && errno == syscall.EMSGSIZE {
			return 0, &net.OpError{Op: "write", Net: "udp", Err: errTooBig}
		}
	}
	// Anything else is a packet lost.
	return len(s.out), nil
}

func (s *socket) close() error { return s.conn.Close() }
