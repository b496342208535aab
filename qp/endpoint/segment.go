package endpoint

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"time"
)

// Segment is an Ethernet segment of two hosts whose frames are carried in UDP datagrams,
// one each, without FCS, as by QEMU's -netdev dgram and socket. local and remote are
// ADDRESS:PORT; addrs are the port's addresses on the segment.
func Segment(local, remote string, addrs ...netip.Addr) Wire {
	return segmentWire{local, remote, addrs}
}

type segmentWire struct {
	local, remote string
	addrs         []netip.Addr
}

// segmentMTU is the largest MTU of QEMU's cards.
const segmentMTU = 9216

func (w segmentWire) open(cfg *Config) (transport, error) {
	l, err := netip.ParseAddrPort(w.local)
	if err != nil {
		return nil, fmt.Errorf("segment: %q is not ADDRESS:PORT", w.local)
	}
	r, err := netip.ParseAddrPort(w.remote)
	if err != nil {
		return nil, fmt.Errorf("segment: %q is not ADDRESS:PORT", w.remote)
	}
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(l))
	if err != nil {
		return nil, err
	}
	buffers(c)
	cfg.addrs(w.addrs)
	return &segment{frames: frames{filter: cfg.Filter}, conn: c, peer: r, buf: make([]byte, 1<<16)}, nil
}

// addrs uses the addresses of a wire where the configuration has none.
func (cfg *Config) addrs(a []netip.Addr) {
	if len(cfg.GIDs) == 0 {
		cfg.GIDs = a
	}
}

type segment struct {
	frames
	conn *net.UDPConn
	peer netip.AddrPort
	buf  []byte
}

func (s *segment) mtu() int { return segmentMTU }

func (s *segment) wait() error {
	for {
		n, _, err := s.conn.ReadFromUDPAddrPort(s.buf)
		switch {
		case err == nil:
			s.in = append(s.in[:0], s.buf[:n])
			return nil
		case errors.Is(err, net.ErrClosed):
			return err
		}
		time.Sleep(time.Millisecond) // the other end is not open yet
	}
}

func (s *segment) send(now time.Time, e *Endpoint) (n, bytes int, err error) {
	b, ok := s.next(now, e)
	if !ok {
		return 0, 0, nil
	}
	s.each(b, func(b []byte) { _ = s.inject(b) })
	return 1, len(b), nil
}

func (s *segment) inject(b []byte) error {
	_, err := s.conn.WriteToUDPAddrPort(b, s.peer)
	return err
}

func (s *segment) dropped() uint64 { return socketDrops(s.conn) }

func (s *segment) close() error { return s.conn.Close() }
