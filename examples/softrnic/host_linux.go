package main

import (
	"encoding/binary"
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
	req.flags = syscall.IFF_TAP | syscall.IFF_NO_PI
	if _, _, e := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), syscall.TUNSETIFF, uintptr(unsafe.Pointer(&req))); e != 0 {
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
	proto := binary.NativeEndian.Uint16([]byte{0, syscall.ETH_P_ALL})
	fd, err := syscall.Socket(syscall.AF_PACKET, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, int(proto))
	if err != nil {
		return nil, &os.PathError{Op: "packet socket", Path: name, Err: err}
	}
	if err := syscall.Bind(fd, &syscall.SockaddrLinklayer{Protocol: proto, Ifindex: i}); err != nil {
		syscall.Close(fd)
		return nil, &os.PathError{Op: "packet socket", Path: name, Err: err}
	}
	// The port's Ethernet address is not the interface's.
	// struct packet_mreq: interface, type, no address.
	mreq := binary.NativeEndian.AppendUint32(nil, uint32(i))
	mreq = binary.NativeEndian.AppendUint16(mreq, syscall.PACKET_MR_PROMISC)
	mreq = append(mreq, make([]byte, 10)...)
	if err := syscall.SetsockoptString(fd, syscall.SOL_PACKET, syscall.PACKET_ADD_MEMBERSHIP, string(mreq)); err != nil {
		syscall.Close(fd)
		return nil, &os.PathError{Op: "promiscuous mode", Path: name, Err: err}
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
