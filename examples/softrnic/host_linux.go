package main

import (
	"errors"
	"net"
	"os"
	"syscall"
	"time"
	"unsafe"

	"github.com/roce-go/roce/qp/softnic"
)

var errTooBig = errors.New("packet larger than the interface's MTU: choose a smaller path MTU with -mtu")

// dontFragment makes the kernel set Don't Fragment and identification 0.
func dontFragment(fd uintptr, v4 bool) error {
	if v4 {
		return syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IP, syscall.IP_MTU_DISCOVER, syscall.IP_PMTUDISC_DO)
	}
	return syscall.SetsockoptInt(int(fd), syscall.IPPROTO_IPV6, syscall.IPV6_MTU_DISCOVER, syscall.IPV6_PMTUDISC_DO)
}

func errnoOf(err error) (syscall.Errno, bool) {
	var errno syscall.Errno
	ok := errors.As(err, &errno)
	return errno, ok
}

const (
	ethPAll          = 0x0003
	tunSetIff        = 0x400454ca
	iffTAP           = 0x0002
	iffNoPI          = 0x1000
	packetMembership = 1 // PACKET_ADD_MEMBERSHIP
	packetPromisc    = 1 // PACKET_MR_PROMISC
)

// openTAP opens a TAP interface, and makes it if there is none. It must be brought
// up, and given an address, by others: ip link set NAME up.
func openTAP(name string) (wire, error) {
	fd, err := syscall.Open("/dev/net/tun", syscall.O_RDWR|syscall.O_CLOEXEC, 0)
	if err != nil {
		return nil, &os.PathError{Op: "open", Path: "/dev/net/tun", Err: err}
	}
	var req struct {
		name  [syscall.IFNAMSIZ]byte
		flags uint16
		_     [22]byte
	}
	copy(req.name[:syscall.IFNAMSIZ-1], name)
	req.flags = iffTAP | iffNoPI
	if _, _, e := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), tunSetIff, uintptr(unsafe.Pointer(&req))); e != 0 {
		syscall.Close(fd)
		return nil, &os.PathError{Op: "TAP interface", Path: name, Err: e}
	}
	return newDevice(fd, name)
}

// openPacket opens an interface beside the host's own use of it.
func openPacket(name string) (wire, error) {
	i, err := interfaceIndex(name)
	if err != nil {
		return nil, err
	}
	proto := uint16(ethPAll<<8&0xff00 | ethPAll>>8)
	fd, err := syscall.Socket(syscall.AF_PACKET, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, int(proto))
	if err != nil {
		return nil, &os.PathError{Op: "packet socket", Path: name, Err: err}
	}
	if err := syscall.Bind(fd, &syscall.SockaddrLinklayer{Protocol: proto, Ifindex: i}); err != nil {
		syscall.Close(fd)
		return nil, &os.PathError{Op: "packet socket", Path: name, Err: err}
	}
	// The port's Ethernet address is not the interface's.
	mreq := struct {
		index int32
		typ   uint16
		_     [10]byte
	}{int32(i), packetPromisc, [10]byte{}}
	_, _, e := syscall.Syscall6(syscall.SYS_SETSOCKOPT, uintptr(fd), syscall.SOL_PACKET, packetMembership,
		uintptr(unsafe.Pointer(&mreq)), unsafe.Sizeof(mreq), 0)
	if e != 0 {
		syscall.Close(fd)
		return nil, &os.PathError{Op: "promiscuous mode", Path: name, Err: e}
	}
	return newDevice(fd, name)
}

// device is a file that gives and takes one frame a call.
type device struct {
	frames
	f *os.File
}

func newDevice(fd int, name string) (wire, error) {
	// Not blocking, so that closing ends a read.
	if err := syscall.SetNonblock(fd, true); err != nil {
		syscall.Close(fd)
		return nil, err
	}
	return &device{f: os.NewFile(uintptr(fd), name)}, nil
}
func interfaceIndex(name string) (int, error) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return 0, err
	}
	return i.Index, nil
}

func (d *device) read(buf []byte) ([]byte, error) {
	n, err := d.f.Read(buf)
	return buf[:n], err
}

func (d *device) send(now time.Time, p *softnic.Port) (int, error) {
	b, ok := d.next(now, p)
	if !ok {
		return 0, nil
	}
	// An interface that is down or full loses frames.
	_, _ = d.f.Write(b)
	return len(b), nil
}

func (d *device) close() error { return d.f.Close() }
