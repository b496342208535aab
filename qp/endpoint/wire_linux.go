package endpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"runtime"
	"syscall"
	"time"
	"unsafe"
)

// TAP is a TAP interface, which is created if it does not exist (Linux, CAP_NET_ADMIN). The
// host must bring it up, and give it an address of its own: ip link set NAME up. addrs are
// the port's addresses.
func TAP(name string, addrs ...netip.Addr) Wire { return deviceWire{name, addrs, openTAP, false} }

// Packet is a network interface, which the host goes on using (Linux, CAP_NET_RAW). addrs
// are the port's addresses, which must not be addresses of the host.
func Packet(name string, addrs ...netip.Addr) Wire {
	return deviceWire{name, addrs, openPacket, true}
}

type deviceWire struct {
	name  string
	addrs []netip.Addr
	file  func(name string) (int, error)
	many  bool // frames a system call
}

func (w deviceWire) open(cfg *Config) (transport, error) {
	if w.name == "" || len(w.name) >= syscall.IFNAMSIZ {
		return nil, fmt.Errorf("interface name %q: want 1 to %d bytes", w.name, syscall.IFNAMSIZ-1)
	}
	cfg.addrs(w.addrs)
	for _, a := range cfg.GIDs {
		if hostHas(a) {
			return nil, fmt.Errorf("%v is an address of this host: the port needs one of its own", a)
		}
	}
	fd, err := w.file(w.name)
	if err != nil {
		return nil, err
	}
	// Not blocking, so that closing ends a read.
	if err := syscall.SetNonblock(fd, true); err != nil {
		syscall.Close(fd)
		return nil, err
	}
	d := &device{frames: frames{filter: cfg.Filter}, f: os.NewFile(uintptr(fd), w.name), buf: make([]byte, 1<<16), linkMTU: 1500}
	if i, err := net.InterfaceByName(w.name); err == nil {
		d.linkMTU = i.MTU
	}
	if w.many {
		p, err := newPacket(*d, fd)
		if err != nil {
			d.f.Close()
			return nil, err
		}
		p.recv.busy = cfg.BusyPoll
		return p, nil
	}
	return d, nil
}

// hostHas reports whether a is an address of this host.
func hostHas(a netip.Addr) bool {
	addrs, _ := net.InterfaceAddrs()
	for _, x := range addrs {
		if n, ok := x.(*net.IPNet); ok {
			if b, ok := netip.AddrFromSlice(n.IP); ok && b.Unmap() == a.WithZone("") {
				return true
			}
		}
	}
	return false
}

func openTAP(name string) (int, error) {
	fd, err := syscall.Open("/dev/net/tun", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return 0, &os.PathError{Op: "open", Path: "/dev/net/tun", Err: err}
	}
	var req struct {
		name  [syscall.IFNAMSIZ]byte
		flags uint16
		_     [22]byte
	}
	copy(req.name[:syscall.IFNAMSIZ-1], name)
	req.flags = syscall.IFF_TAP | syscall.IFF_NO_PI
	if _, _, e := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), syscall.TUNSETIFF, uintptr(unsafe.Pointer(&req))); e != 0 {
		syscall.Close(fd)
		return 0, &os.PathError{Op: "TAP interface", Path: name, Err: e}
	}
	return fd, nil
}

func openPacket(name string) (int, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return 0, err
	}
	proto := binary.NativeEndian.Uint16([]byte{0, syscall.ETH_P_ALL})
	fd, err := syscall.Socket(syscall.AF_PACKET, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, int(proto))
	if err != nil {
		return 0, &os.PathError{Op: "packet socket", Path: name, Err: err}
	}
	if err := syscall.Bind(fd, &syscall.SockaddrLinklayer{Protocol: proto, Ifindex: i.Index}); err != nil {
		syscall.Close(fd)
		return 0, &os.PathError{Op: "packet socket", Path: name, Err: err}
	}
	_ = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_RCVBUF, socketBuffer)
	_ = syscall.SetsockoptInt(fd, syscall.SOL_SOCKET, syscall.SO_SNDBUF, socketBuffer)
	forceReadBuffer(uintptr(fd), socketBuffer)
	// The port's Ethernet address is not the interface's.
	// struct packet_mreq: interface, type, no address.
	mreq := binary.NativeEndian.AppendUint32(nil, uint32(i.Index))
	mreq = binary.NativeEndian.AppendUint16(mreq, syscall.PACKET_MR_PROMISC)
	mreq = append(mreq, make([]byte, 10)...)
	if err := syscall.SetsockoptString(fd, syscall.SOL_PACKET, syscall.PACKET_ADD_MEMBERSHIP, string(mreq)); err != nil {
		syscall.Close(fd)
		return 0, &os.PathError{Op: "promiscuous mode", Path: name, Err: err}
	}
	return fd, nil
}

// device is a file of which each read and write is one frame.
type device struct {
	frames
	f       *os.File
	buf     []byte
	linkMTU int
}

func (d *device) mtu() int { return d.linkMTU }

func (d *device) wait() error {
	for {
		n, err := d.f.Read(d.buf)
		switch {
		case err == nil:
			d.in = append(d.in[:0], d.buf[:n])
			return nil
		case errors.Is(err, os.ErrClosed):
			return err
		}
		// The interface is down or removed. It may come back, and then frames are received.
		time.Sleep(50 * time.Millisecond)
	}
}

func (d *device) send(now time.Time, e *Endpoint) (n, bytes int, err error) {
	return d.sendFrame(now, e, d.inject)
}

// sendFrame sends a frame, or those that the filter returns for it, by inject.
func (d *device) sendFrame(now time.Time, e *Endpoint, inject func([]byte) error) (n, bytes int, err error) {
	b, ok := d.next(now, e)
	if !ok {
		return 0, 0, nil
	}
	d.each(b, func(b []byte) {
		// An interface that is down or full loses frames.
		if errors.Is(inject(b), syscall.EMSGSIZE) {
			err = errTooBig
		}
	})
	return 1, len(b), err
}

func (d *device) inject(b []byte) error {
	_, err := d.f.Write(b)
	return err
}

// dropped: what a TAP interface has no room for, the host counts as not sent.
func (d *device) dropped() uint64 { return 0 }

func (d *device) close() error { return d.f.Close() }

// Socket options that package syscall lacks.
const (
	udpNoCheck6RX = 102 // UDP_NO_CHECK6_RX
	rcvBufForce   = 33  // SO_RCVBUFFORCE
	soMeminfo     = 55  // SO_MEMINFO
)

// forceReadBuffer sets the size of a socket's buffer beyond the system's limit, where this
// process has the right to.
func forceReadBuffer(fd uintptr, n int) {
	_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, rcvBufForce, n)
}

// sysGetsockopt is the number of getsockopt, which package syscall lacks on some
// architectures.
var sysGetsockopt = map[string]uintptr{
	"386": 365, "amd64": 55, "arm": 295, "arm64": 209, "loong64": 209, "mips": 4173, "mipsle": 4173,
	"mips64": 5054, "mips64le": 5054, "ppc64": 340, "ppc64le": 340, "riscv64": 209, "s390x": 365,
}[runtime.GOARCH]

// sockopt fills v with a socket's option and reports whether it is there.
func sockopt(c syscall.RawConn, level, option int, v []uint32) (ok bool) {
	n := uint32(4 * len(v))
	err := c.Control(func(fd uintptr) {
		_, _, errno := syscall.Syscall6(sysGetsockopt, fd, uintptr(level), uintptr(option), uintptr(unsafe.Pointer(&v[0])), uintptr(unsafe.Pointer(&n)), 0)
		ok = errno == 0 && n == uint32(4*len(v))
	})
	return ok && err == nil
}

// socketDrops returns how many datagrams a UDP socket had no room for.
func socketDrops(c syscall.Conn) uint64 {
	var mem [9]uint32 // SK_MEMINFO_RMEM_ALLOC to SK_MEMINFO_DROPS
	if raw, err := c.SyscallConn(); err != nil || !sockopt(raw, syscall.SOL_SOCKET, soMeminfo, mem[:]) {
		return 0
	}
	return uint64(mem[8])
}

// udpOptions makes the kernel set Don't Fragment and identification 0, and accept IPv6
// packets with UDP checksum 0, as the Linux driver sends them.
func udpOptions(fd uintptr, v4 bool) error {
	if v4 {
		return syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_MTU_DISCOVER, syscall.IP_PMTUDISC_DO)
	}
	if err := syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IPV6, syscall.IPV6_MTU_DISCOVER, syscall.IPV6_PMTUDISC_DO); err != nil {
		return err
	}
	return syscall.SetsockoptInt(int(fd), syscall.IPPROTO_UDP, udpNoCheck6RX, 1)
}
