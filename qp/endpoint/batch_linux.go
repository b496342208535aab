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

// A batch is as many datagrams as one system call receives or sends. Packets of one length
// to one destination are sent as one datagram, which the kernel or a card splits, and
// received as one (UDP segmentation and receive offload).
const (
	batchSize  = 60      // packets sent by one call, or
	batchBytes = 60_000  // that many bytes: more leave the cache before they are sent, and one more packet makes no datagram too long
	recvBatch  = 15      // datagrams received by one call
	datagramSz = 1 << 16 // received, of many packets
	headRoom   = 40 + 8  // before what is received, for the headers or the tag that it had
)

// The options for it.
const (
	solUDP     = 17
	udpSegment = 103
	udpGRO     = 104
)

// sysSendmmsg is the number of sendmmsg, which package syscall lacks on some architectures.
var sysSendmmsg = map[string]uintptr{
	"386": 345, "amd64": 307, "arm": 374, "arm64": 269, "loong64": 269, "mips": 4343, "mipsle": 4343,
	"mips64": 5302, "mips64le": 5302, "ppc64": 349, "ppc64le": 349, "riscv64": 269, "s390x": 358,
}[runtime.GOARCH]

// mmsghdr is struct mmsghdr.
type mmsghdr struct {
	hdr syscall.Msghdr
	n   uint32
}

// control is room for one control message: a number, of which UDP_SEGMENT has 16 bits, or
// struct tpacket_auxdata.
type control struct {
	hdr  syscall.Cmsghdr
	data [6]uint32
}

// part is a packet of a datagram.
type part struct {
	from, at, n int // the datagram's place, the packet's in it, and its length
	header      int // length of the headers before the first of many packets of a frame
}

// batch receives or sends datagrams on a socket.
type batch struct {
	raw   syscall.RawConn
	msgs  [batchSize]mmsghdr
	iovs  [batchSize]syscall.Iovec
	names [batchSize]syscall.RawSockaddrInet6 // or Inet4, which is shorter
	ctls  [batchSize]control
	bufs  [batchSize][]byte
	got   []part // packets received
	v4    bool
	split bool // the kernel splits datagrams
	scope uint32
	first int // of those to be sent
	n     int
	errno syscall.Errno
	apart func(i int)   // lists the packets of a received datagram in got
	busy  time.Duration // before recv sleeps
	call  func(fd uintptr) bool
	once  func(fd uintptr) bool // call without a wait
}

func newBatch(raw syscall.RawConn, sends bool) *batch {
	b := &batch{raw: raw, split: true}
	for i := range b.msgs {
		if !sends && i < recvBatch {
			b.bufs[i] = make([]byte, headRoom+datagramSz)
		}
		h := &b.msgs[i].hdr
		h.Iov, h.Iovlen = &b.iovs[i], 1
	}
	b.call = b.receive
	if sends {
		b.call = b.transmit
	}
	b.once = func(fd uintptr) bool { b.call(fd); return true }
	return b
}

// newUDPBatch returns a batch of a UDP socket.
func newUDPBatch(c *net.UDPConn, local netip.Addr, sends bool) (*batch, error) {
	raw, err := c.SyscallConn()
	if err != nil {
		return nil, err
	}
	b := newBatch(raw, sends)
	b.v4, b.apart = local.Is4(), b.takeApart
	if z := local.Zone(); z != "" {
		if i, err := net.InterfaceByName(z); err == nil {
			b.scope = uint32(i.Index)
		}
	}
	for i := range b.msgs {
		b.msgs[i].hdr.Name = (*byte)(unsafe.Pointer(&b.names[i]))
	}
	// A kernel may have neither.
	err = raw.Control(func(fd uintptr) {
		_, serr := syscall.GetsockoptInt(int(fd), solUDP, udpSegment)
		if b.split = serr == nil; !sends {
			_ = syscall.SetsockoptInt(int(fd), solUDP, udpGRO, 1)
		}
	})
	return b, err
}

// receive and transmit do not block, so the scheduler need not know of the system call: it
// would start another thread when the call takes more than some 20 microseconds.
func (b *batch) receive(fd uintptr) bool {
	for i := range recvBatch {
		b.iovs[i].Base = &b.bufs[i][headRoom]
		b.iovs[i].SetLen(datagramSz)
		if b.msgs[i].hdr.Name != nil {
			b.msgs[i].hdr.Namelen = uint32(unsafe.Sizeof(b.names[i]))
		}
		b.msgs[i].hdr.Flags = 0
		b.msgs[i].hdr.Control = (*byte)(unsafe.Pointer(&b.ctls[i]))
		b.msgs[i].hdr.SetControllen(int(unsafe.Sizeof(b.ctls[i])))
	}
	n, _, errno := syscall.RawSyscall6(syscall.SYS_RECVMMSG, fd, uintptr(unsafe.Pointer(&b.msgs[0])), recvBatch, syscall.MSG_DONTWAIT, 0, 0)
	b.errno, b.got = errno, b.got[:0]
	if errno == 0 {
		for i := range int(n) {
			b.apart(i)
		}
	}
	b.n = len(b.got)
	return errno != syscall.EAGAIN && errno != syscall.EINTR
}

func (b *batch) transmit(fd uintptr) bool {
	n, _, errno := syscall.RawSyscall6(sysSendmmsg, fd, uintptr(unsafe.Pointer(&b.msgs[b.first])), uintptr(b.n-b.first), syscall.MSG_DONTWAIT, 0, 0)
	b.errno = errno
	if errno == 0 {
		b.first += int(n)
	}
	return errno != syscall.EAGAIN && errno != syscall.EINTR
}

// recv waits for datagrams. The error is net.ErrClosed after Close.
func (b *batch) recv() (n int, err error) {
	if b.busy != 0 {
		for end := time.Now().Add(b.busy); time.Now().Before(end); runtime.Gosched() {
			if b.raw.Read(b.once) != nil {
				return 0, net.ErrClosed
			}
			if b.errno == 0 {
				return b.n, nil
			}
		}
	}
	if b.raw.Read(b.call) != nil {
		return 0, net.ErrClosed
	}
	if b.errno != 0 {
		return 0, b.errno
	}
	return b.n, nil
}

// Socket is the UDP wire by itself, for programs that run a port in a loop of their own
// (Linux). UDP has its limits. It is not safe for concurrent use.
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

// PeerMAC is for the port's configuration. Its value does not matter, because no Ethernet
// header is sent.
func (s *Socket) PeerMAC() frame.MAC { return s.u.peerMAC() }

// Receive receives the packets that have arrived, without waiting, and returns their
// number.
func (s *Socket) Receive() int {
	if s.u.in.raw.Read(s.u.in.once) != nil || s.u.in.errno != 0 {
		return 0
	}
	return s.u.in.n
}

// Packet returns the i-th packet received, with IP and UDP headers that are
// reconstructed. Read the packets in order, each once: the headers of one overwrite the
// end of the one before.
func (s *Socket) Packet(i int) []byte { return s.u.packet(i) }

// Decode decodes a packet for Port.HandleDecoded, or returns why it is dropped, for
// Port.CountDropped. The frame's payload aliases the packet.
func (s *Socket) Decode(pkt []byte, f *frame.Frame) softnic.Result { return s.u.decode(pkt, f) }

// Send sends packets of a port, at most a batch, and returns their number. sent, where not
// nil, is called with each as an Ethernet frame.
func (s *Socket) Send(now time.Time, p *softnic.Port, sent func([]byte)) (n int, err error) {
	n, _, err = s.u.sendBatch(now, p, sent)
	return n, err
}

// Close closes the socket.
func (s *Socket) Close() error { return s.u.close() }

// takeApart splits a received datagram into packets.
func (b *batch) takeApart(i int) {
	m, c := &b.msgs[i], &b.ctls[i]
	rest := min(int(m.n), datagramSz)
	size := rest
	if int(m.hdr.Controllen) >= syscall.CmsgLen(4) && c.hdr.Level == solUDP && c.hdr.Type == udpGRO && int32(c.data[0]) > 0 {
		size = int(c.data[0])
	}
	at := headRoom
	for ; rest > size; at, rest = at+size, rest-size {
		b.got = append(b.got, part{i, at, size, 0})
	}
	b.got = append(b.got, part{i, at, rest, 0})
}

// get returns the i-th packet received, with so many bytes before it that may be written
// over, and where it came from.
func (b *batch) get(i, room int) ([]byte, netip.AddrPort) {
	p := b.got[i]
	pkt := b.bufs[p.from][p.at-room : p.at+p.n]
	if b.v4 {
		s := (*syscall.RawSockaddrInet4)(unsafe.Pointer(&b.names[p.from]))
		return pkt, netip.AddrPortFrom(netip.AddrFrom4(s.Addr), networkOrder(s.Port))
	}
	s := &b.names[p.from]
	return pkt, netip.AddrPortFrom(netip.AddrFrom16(s.Addr), networkOrder(s.Port))
}

func networkOrder(p uint16) uint16 {
	var b [2]byte
	binary.NativeEndian.PutUint16(b[:], p)
	return binary.BigEndian.Uint16(b[:])
}

// put makes bufs[i], without its first skip bytes, the i-th packet to send: in the same
// datagram as the packet before, or in one of its own.
func (b *batch) put(i, skip int, to netip.AddrPort, joins bool) {
	h := b.add(i, b.bufs[i][skip:], joins)
	if joins {
		if h.Iovlen == 2 {
			c := &b.ctls[b.n-1]
			c.hdr.Level, c.hdr.Type = solUDP, udpSegment
			c.hdr.SetLen(syscall.CmsgLen(2))
			binary.NativeEndian.PutUint16((*[2]byte)(unsafe.Pointer(&c.data))[:], uint16(b.iovs[i-1].Len))
			h.Control = (*byte)(unsafe.Pointer(c))
			h.SetControllen(syscall.CmsgSpace(2))
		}
		return
	}
	name := &b.names[b.n-1]
	h.Control = nil
	h.SetControllen(0)
	if b.v4 {
		s := (*syscall.RawSockaddrInet4)(unsafe.Pointer(name))
		*s = syscall.RawSockaddrInet4{Family: syscall.AF_INET, Port: networkOrder(to.Port()), Addr: to.Addr().As4()}
		h.Namelen = uint32(unsafe.Sizeof(*s))
		return
	}
	*name = syscall.RawSockaddrInet6{Family: syscall.AF_INET6, Port: networkOrder(to.Port()), Addr: to.Addr().As16()}
	if to.Addr().IsLinkLocalUnicast() {
		name.Scope_id = b.scope
	}
	h.Namelen = uint32(unsafe.Sizeof(*name))
}

// add makes buf the i-th packet to send, in the same message as the packet before, or in one
// of its own. It returns the message.
func (b *batch) add(i int, buf []byte, joins bool) *syscall.Msghdr {
	if i == 0 {
		b.n = 0
	}
	b.iovs[i].Base = &buf[0]
	b.iovs[i].SetLen(len(buf))
	if joins {
		h := &b.msgs[b.n-1].hdr
		h.Iovlen++
		return h
	}
	h := &b.msgs[b.n].hdr
	b.n++
	h.Iov, h.Iovlen = &b.iovs[i], 1
	return h
}

// send sends what was put. A packet that the network refuses is lost; one that is too long
// is an error.
func (b *batch) send() (err error) {
	for b.first = 0; b.first < b.n; {
		if werr := b.raw.Write(b.call); werr != nil {
			return nil // closed
		}
		if b.errno != 0 {
			switch b.errno {
			case syscall.EMSGSIZE:
				err = errTooBig
			case syscall.ENETDOWN, syscall.ENETUNREACH, syscall.EHOSTUNREACH, syscall.ENOBUFS, syscall.EPERM:
				// A state of the network, which may pass.
			default:
				if b.msgs[b.first].hdr.Iovlen > 1 {
					b.split = false // the path does not support it: what was lost is retransmitted without
				}
			}
			b.first++
		}
	}
	return err
}
