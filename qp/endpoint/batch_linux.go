//go:build linux && (amd64 || arm64)

package endpoint

import (
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"runtime"
	"syscall"
	"time"
	"unsafe"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/qp/softnic"
)

// A batch is as many datagrams as one system call receives or sends.
const (
	batchSize  = 32
	datagramSz = 8192 // longer ones are no RoCE packets
)

// The calls that package syscall has no numbers for on each architecture.
var sysRecvmmsg, sysSendmmsg = func() (uintptr, uintptr) {
	if runtime.GOARCH == "arm64" {
		return 243, 269
	}
	return 299, 307
}()

// mmsghdr is struct mmsghdr.
type mmsghdr struct {
	hdr syscall.Msghdr
	n   uint32
}

// batch receives or sends datagrams on a socket.
type batch struct {
	raw   syscall.RawConn
	msgs  [batchSize]mmsghdr
	iovs  [batchSize]syscall.Iovec
	names [batchSize]syscall.RawSockaddrInet6 // or Inet4, which is shorter
	bufs  [batchSize][]byte
	v4    bool
	scope uint32
	first int // of those to be sent
	n     int
	errno syscall.Errno
	call  func(fd uintptr) bool
	once  func(fd uintptr) bool // call without a wait
}

func newBatch(c *net.UDPConn, local netip.Addr, sends bool) (*batch, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	b := &batch{raw: raw, v4: local.Is4()}
	if z := local.Zone(); z != "" {
		if i, err := net.InterfaceByName(z); err == nil {
			b.scope = uint32(i.Index)
		}
	}
	for i := range b.msgs {
		b.bufs[i] = make([]byte, datagramSz)
		h := &b.msgs[i].hdr
		h.Name = (*byte)(unsafe.Pointer(&b.names[i]))
		h.Iov, h.Iovlen = &b.iovs[i], 1
	}
	b.call = b.receive
	if sends {
		b.call = b.transmit
	}
	b.once = func(fd uintptr) bool { b.call(fd); return true }
	return b, nil
}

func (b *batch) receive(fd uintptr) bool {
	for i := range b.msgs {
		b.iovs[i].Base = &b.bufs[i][0]
		b.iovs[i].SetLen(datagramSz)
		b.msgs[i].hdr.Namelen = uint32(unsafe.Sizeof(b.names[i]))
		b.msgs[i].hdr.Flags = 0
	}
	n, _, errno := syscall.Syscall6(sysRecvmmsg, fd, uintptr(unsafe.Pointer(&b.msgs[0])), batchSize, syscall.MSG_DONTWAIT, 0, 0)
	b.n, b.errno = int(n), errno
	if errno != 0 {
		b.n = 0
	}
	return errno != syscall.EAGAIN && errno != syscall.EINTR
}

func (b *batch) transmit(fd uintptr) bool {
	n, _, errno := syscall.Syscall6(sysSendmmsg, fd, uintptr(unsafe.Pointer(&b.msgs[b.first])), uintptr(b.n-b.first), syscall.MSG_DONTWAIT, 0, 0)
	b.errno = errno
	if errno == 0 {
		b.first += int(n)
	}
	return errno != syscall.EAGAIN && errno != syscall.EINTR
}

// recv waits for datagrams.
func (b *batch) recv() (n int, err error) {
	if err := b.raw.Read(b.call); err != nil {
		return 0, err
	}
	if b.errno != 0 {
		return 0, b.errno
	}
	return b.n, nil
}

// Socket is the UDP wire by itself, for those who run a port in a loop of their own
// (Linux). See UDP for what it can and cannot. It is not safe for concurrent use.
type Socket struct{ u *udp }

// OpenSocket opens port 4791 of an address of this host.
func OpenSocket(address string) (*Socket, error) {
	u, err := udpWire{address: address}.listen()
	if err != nil {
		return nil, fmt.Errorf("endpoint: %w", err)
	}
	return &Socket{u}, nil
}

// SyscallConn returns the socket, to wait for packets by other means.
func (s *Socket) SyscallConn() (syscall.RawConn, error) { return s.u.conn.SyscallConn() }

// PathMTU returns the largest payload of a packet that fits the link, in bytes.
func (s *Socket) PathMTU() int { return fitting(s.u.linkMT, s.u.local.Addr().Is4()) }

// PeerMAC is for the port's configuration: any will do, for none is sent.
func (s *Socket) PeerMAC() frame.MAC { return s.u.peerMAC() }

// Receive takes what has come, without a wait, and returns how many packets that is.
func (s *Socket) Receive() int {
	if s.u.in.raw.Read(s.u.in.once) != nil || s.u.in.errno != 0 {
		return 0
	}
	return s.u.in.n
}

// Packet returns the i-th packet received, from its IP header on, which is made up. It
// is valid until the next call.
func (s *Socket) Packet(i int) []byte { return s.u.packet(i) }

// Decode decodes a packet for Port.HandleDecoded, or returns why it is dropped, for
// Port.CountDropped. The frame's payload aliases the packet.
func (s *Socket) Decode(pkt []byte, f *frame.Frame) softnic.Result { return s.u.decode(pkt, f) }

// Send takes packets out of a port and sends them, at most a batch. It returns how many.
// sent, where not nil, is called with each as an Ethernet frame.
func (s *Socket) Send(now time.Time, p *softnic.Port, sent func([]byte)) (n int, err error) {
	for n < batchSize && p.NextDecoded(now, &s.u.tx) {
		b := s.u.put(n, &s.u.tx)
		if sent != nil {
			sent(b)
		}
		n++
	}
	if n != 0 {
		err = s.u.out.send(n)
	}
	return n, err
}

// Close closes the socket.
func (s *Socket) Close() error { return s.u.close() }

// get returns the i-th datagram received and where it came from.
func (b *batch) get(i int) ([]byte, netip.AddrPort) {
	n := min(int(b.msgs[i].n), datagramSz)
	if b.v4 {
		s := (*syscall.RawSockaddrInet4)(unsafe.Pointer(&b.names[i]))
		return b.bufs[i][:n], netip.AddrPortFrom(netip.AddrFrom4(s.Addr), networkOrder(s.Port))
	}
	s := &b.names[i]
	return b.bufs[i][:n], netip.AddrPortFrom(netip.AddrFrom16(s.Addr), networkOrder(s.Port))
}

func networkOrder(p uint16) uint16 {
	var b [2]byte
	binary.NativeEndian.PutUint16(b[:], p)
	return binary.BigEndian.Uint16(b[:])
}

// put makes what is behind the first skip bytes of bufs[i] the i-th datagram to send.
func (b *batch) put(i, skip int, to netip.AddrPort) {
	buf := b.bufs[i][skip:]
	b.iovs[i].Base = &buf[0]
	b.iovs[i].SetLen(len(buf))
	h := &b.msgs[i].hdr
	if b.v4 {
		s := (*syscall.RawSockaddrInet4)(unsafe.Pointer(&b.names[i]))
		*s = syscall.RawSockaddrInet4{Family: syscall.AF_INET, Port: networkOrder(to.Port()), Addr: to.Addr().As4()}
		h.Namelen = uint32(unsafe.Sizeof(*s))
		return
	}
	b.names[i] = syscall.RawSockaddrInet6{Family: syscall.AF_INET6, Port: networkOrder(to.Port()), Addr: to.Addr().As16()}
	if to.Addr().IsLinkLocalUnicast() {
		b.names[i].Scope_id = b.scope
	}
	h.Namelen = uint32(unsafe.Sizeof(b.names[i]))
}

// send sends the first n datagrams. What the network refuses is lost; a datagram that
// is too long is an error.
func (b *batch) send(n int) (err error) {
	b.first, b.n = 0, n
	for b.first < b.n {
		if werr := b.raw.Write(b.call); werr != nil {
			return nil // closed
		}
		if b.errno != 0 {
			if b.errno == syscall.EMSGSIZE {
				err = errTooBig
			}
			b.first++
		}
	}
	return err
}
