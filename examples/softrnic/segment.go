package main

import (
	"net"
	"net/netip"
	"time"

	"github.com/roce-go/roce/qp/softnic"
)

// frames is the part of a wire that all have whose packets are Ethernet frames.
type frames struct{ buf []byte }

func (f *frames) deliver(now time.Time, p *softnic.Port, b []byte) { p.HandleFrame(now, b) }

// next returns the port's next frame, padded to what Ethernet wants.
func (f *frames) next(now time.Time, p *softnic.Port) ([]byte, bool) {
	b, ok := p.NextFrame(now, f.buf[:0])
	if !ok {
		return nil, false
	}
	for len(b) < 60 {
		b = append(b, 0)
	}
	f.buf = b
	return b, true
}

// segment is an Ethernet segment of two hosts whose frames travel in UDP
// datagrams, one each, without FCS: what QEMU's -netdev dgram and socket speak.
type segment struct {
	frames
	conn *net.UDPConn
	peer netip.AddrPort
}

func newSegment(local, remote string) (*segment, error) {
	l, err := netip.ParseAddrPort(local)
	if err != nil {
		return nil, err
	}
	r, err := netip.ParseAddrPort(remote)
	if err != nil {
		return nil, err
	}
	c, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(l))
	if err != nil {
		return nil, err
	}
	// As much as the system gives: what does not fit is lost like any frame.
	_ = c.SetReadBuffer(4 << 20)
	_ = c.SetWriteBuffer(4 << 20)
	return &segment{conn: c, peer: r}, nil
}

func (s *segment) read(buf []byte) ([]byte, error) {
	n, _, err := s.conn.ReadFromUDPAddrPort(buf)
	return buf[:n], err
}

func (s *segment) send(now time.Time, p *softnic.Port) (int, error) {
	b, ok := s.next(now, p)
	if !ok {
		return 0, nil
	}
	s.write(b)
	return len(b), nil
}

// write sends a frame. That nobody listens is no error: there may be soon.
func (s *segment) write(b []byte) { _, _ = s.conn.WriteToUDPAddrPort(b, s.peer) }

func (s *segment) close() error { return s.conn.Close() }
