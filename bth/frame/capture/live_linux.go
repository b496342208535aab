package capture

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/roce-go/roce/bth/frame"
)

// From linux/if_packet.h and linux/if_arp.h.
const (
	packetAddMembership = 1
	packetRxRing        = 5
	packetVersion       = 10
	packetReserve       = 12
	tpacketV3           = 2
	promiscuous         = 1
	packetOutgoing      = 4

	hardwareEthernet = 1
	hardwareLoopback = 772
	hardwareNone     = 0xfffe
)

// The ring is divided into blocks. Each starts with a header, which says whether the kernel
// or this process owns the block, and holds frames, each after a header. All is in the
// machine's byte order; these are offsets of fields in bytes.
const (
	blockSize    = 1 << 20
	blockStatus  = 8
	blockPackets = 12
	blockFirst   = 16 // offset of the first frame's header in the block

	packetNext     = 0 // from one header to the next
	packetSec      = 4
	packetNsec     = 8
	packetCaptured = 12
	packetWire     = 16
	packetStatus   = 20
	packetMAC      = 24 // two bytes: offset of the link header from the frame's header
	packetTCI      = 32
	packetTPID     = 36      // two bytes
	packetKind     = 48 + 10 // one byte: sll_pkttype of the address behind the header

	statusUser = 1 << 0 // this process owns the block
	statusVLAN = 1 << 4 // the kernel removed a VLAN tag from the frame
	statusTPID = 1 << 6 // packetTPID says of what kind
)

const tagSize = 4

// maxFilterPorts bounds the length of the filter's jumps.
const maxFilterPorts = 64

// Live reads the frames that a network interface receives and sends. It is for one
// goroutine, except for Close and Stats.
//
// The kernel writes them to memory that it shares with this process (a packet socket with
// TPACKET_V3), with its own time of reception in nanoseconds. It sees only what passes
// through it: RNICs send and receive RDMA past the kernel, so their traffic is captured at
// another host's interface behind a switch's mirror port, or with the vendor's tools.
type Live struct {
	name string
	link frame.Link
	loop bool // loopback: a frame that is sent is received again
	file *os.File
	conn syscall.RawConn
	n    int    // records so far
	data []byte // of the last record

	mu    sync.Mutex // for what follows
	ring  []byte     // nil after Close
	at    int        // offset of the block that is read, or comes next
	held  bool       // this process owns that block
	left  int        // frames of it that were not read
	pos   int        // offset in the ring of the next frame's header
	stats LiveStats
}

// OpenLive begins to read from the named interface. It needs root or the capability
// CAP_NET_RAW. Its errors wrap ErrLive and say what to do.
func OpenLive(name string, cfg LiveConfig) (*Live, error) {
	l := &Live{name: name}
	fail := func(err error) (*Live, error) {
		l.Close()
		return nil, fmt.Errorf("%w %s: %w", ErrLive, name, err)
	}
	ifi, err := net.InterfaceByName(name)
	if err != nil {
		return fail(fmt.Errorf("there is no such interface; there are: %s", interfaces()))
	}
	if err := l.readKind(ifi.Index); err != nil {
		return fail(err)
	}
	// Protocol 0 receives nothing until bind, when all is set up.
	fd, err := syscall.Socket(syscall.AF_PACKET, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC|syscall.SOCK_NONBLOCK, 0)
	if err != nil {
		if errors.Is(err, os.ErrPermission) {
			err = fmt.Errorf("%w; run as root, or give the program the right with: setcap cap_net_raw+ep FILE", err)
		}
		return fail(err)
	}
	l.file = os.NewFile(uintptr(fd), name)
	if l.conn, err = l.file.SyscallConn(); err != nil {
		return fail(err)
	}
	if err := l.setUp(fd, ifi.Index, cfg); err != nil {
		return fail(err)
	}
	return l, nil
}

func interfaces() string {
	all, _ := net.Interfaces()
	var names []string
	for _, i := range all {
		names = append(names, i.Name)
	}
	return strings.Join(names, ", ")
}

// readKind finds out what link headers the interface's frames have.
func (l *Live) readKind(index int) error {
	list, err := syscall.NetlinkRIB(syscall.RTM_GETLINK, syscall.AF_UNSPEC)
	if err != nil {
		return os.NewSyscallError("netlink", err)
	}
	messages, err := syscall.ParseNetlinkMessage(list)
	if err != nil {
		return os.NewSyscallError("netlink", err)
	}
	for _, m := range messages {
		// struct ifinfomsg: family, pad, type in two bytes, index in four.
		if m.Header.Type != syscall.RTM_NEWLINK || len(m.Data) < syscall.SizeofIfInfomsg ||
			int(binary.NativeEndian.Uint32(m.Data[4:])) != index {
			continue
		}
		switch kind := binary.NativeEndian.Uint16(m.Data[2:]); kind {
		case hardwareEthernet:
			l.link = frame.Ethernet
		case hardwareLoopback:
			l.link, l.loop = frame.Ethernet, true
		case hardwareNone: // a tunnel without link headers
			l.link = frame.RawIP
		default:
			return fmt.Errorf("it carries neither Ethernet nor plain IP (ARPHRD %d)", kind)
		}
		return nil
	}
	return errors.New("the interface was removed")
}

func (l *Live) setUp(fd, index int, cfg LiveConfig) error {
	if len(cfg.Finder.VXLANPorts) > maxFilterPorts {
		cfg.All = true
	}
	//lint:ignore SA1019 its replacement is another module
	if err := syscall.AttachLsf(fd, filter(l.link, &cfg)); err != nil {
		return fmt.Errorf("filter: %w", err)
	}
	if cfg.Buffer <= 0 {
		cfg.Buffer = 8 << 20
	}
	if cfg.Delay <= 0 {
		cfg.Delay = 50 * time.Millisecond
	}
	blocks := max(2, cfg.Buffer/blockSize)
	const frameSize = 1 << 11 // frames of TPACKET_V3 have no fixed size, but the kernel asks
	request := words(blockSize, uint32(blocks), frameSize, uint32(blocks)*blockSize/frameSize,
		uint32(max(1, cfg.Delay.Milliseconds())), 0, 0)
	for _, o := range []struct {
		what   string
		option int
		value  string
	}{
		{"version of packet sockets", packetVersion, words(tpacketV3)},
		{"room for tags", packetReserve, words(tagSize)},
		{"ring", packetRxRing, request},
	} {
		if err := syscall.SetsockoptString(fd, syscall.SOL_PACKET, o.option, o.value); err != nil {
			return fmt.Errorf("%s: %w", o.what, err)
		}
	}
	var err error
	if l.ring, err = syscall.Mmap(fd, 0, blocks*blockSize, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED); err != nil {
		return fmt.Errorf("ring: %w", err)
	}
	if !cfg.NoPromiscuous {
		// Interface, kind, and an address of no bytes. It ends with the socket.
		mreq := words(uint32(index), 0, 0, 0)
		mreq = mreq[:4] + string(binary.NativeEndian.AppendUint16(nil, promiscuous)) + mreq[6:]
		if err := syscall.SetsockoptString(fd, syscall.SOL_PACKET, packetAddMembership, mreq); err != nil {
			return fmt.Errorf("promiscuous mode: %w", err)
		}
	}
	all := uint16(syscall.ETH_P_ALL)
	protocol := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, all))
	return syscall.Bind(fd, &syscall.SockaddrLinklayer{Protocol: protocol, Ifindex: index})
}

// words is how the value of a socket option is passed: std has no call for bytes,
// but one for strings.
func words(v ...uint32) string {
	var b []byte
	for _, w := range v {
		b = binary.NativeEndian.AppendUint32(b, w)
	}
	return string(b)
}

// Next waits for the next frame. After Close it returns io.EOF; where a deadline
// passed, os.ErrDeadlineExceeded, after which it may be called again; else an error
// of the interface, such as that it went down.
func (l *Live) Next(rec *Record) error {
	for {
		l.mu.Lock()
		for l.left > 0 {
			if l.read(rec) {
				l.mu.Unlock()
				l.n++
				rec.Number = l.n
				return nil
			}
		}
		l.release()
		l.mu.Unlock()
		if err := l.wait(); err != nil {
			return err
		}
	}
}

// status says whether the kernel or this process owns the current block.
func (l *Live) status() *uint32 { return (*uint32)(unsafe.Pointer(&l.ring[l.at+blockStatus])) }

// release gives the block that was read back to the kernel.
func (l *Live) release() {
	if l.held && l.ring != nil {
		atomic.StoreUint32(l.status(), 0)
		l.held = false
		l.at = (l.at + blockSize) % len(l.ring)
	}
}

// take acquires the next block if the kernel has filled it.
func (l *Live) take() bool {
	if l.ring == nil || atomic.LoadUint32(l.status())&statusUser == 0 {
		return false
	}
	b := l.ring[l.at:]
	l.held = true
	l.left = int(binary.NativeEndian.Uint32(b[blockPackets:]))
	l.pos = l.at + int(binary.NativeEndian.Uint32(b[blockFirst:]))
	return true
}

// wait waits for the next block.
func (l *Live) wait() error {
	var failed error
	err := l.conn.Read(func(fd uintptr) bool {
		l.mu.Lock()
		defer l.mu.Unlock()
		if l.take() {
			return true
		}
		if n, err := syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_ERROR); err == nil && n != 0 {
			failed = syscall.Errno(n)
			return true
		}
		return false
	})
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.ring == nil:
		return io.EOF
	case errors.Is(err, os.ErrDeadlineExceeded):
		return os.ErrDeadlineExceeded
	case err == nil:
		err = failed
	}
	if err != nil {
		return fmt.Errorf("%w %s: %w", ErrLive, l.name, err)
	}
	return nil
}

// read copies the frame at pos and goes on to the next. It reports false for a frame that a
// loopback interface sends, since it is received as well.
func (l *Live) read(rec *Record) bool {
	h := l.ring[l.pos:]
	u32 := func(at int) uint32 { return binary.NativeEndian.Uint32(h[at:]) }
	u16 := func(at int) uint16 { return binary.NativeEndian.Uint16(h[at:]) }
	l.left--
	l.pos += int(u32(packetNext))
	if l.loop && h[packetKind] == packetOutgoing {
		return false
	}
	wire := int(u32(packetWire))
	data := h[u16(packetMAC):][:u32(packetCaptured)]
	l.data = l.data[:0]
	if u32(packetStatus)&statusVLAN != 0 && l.link == frame.Ethernet && len(data) >= 12 {
		tpid := uint16(frame.EtherTypeVLAN)
		if u32(packetStatus)&statusTPID != 0 {
			tpid = u16(packetTPID)
		}
		l.data = append(l.data, data[:12]...)
		l.data = binary.BigEndian.AppendUint16(l.data, tpid)
		l.data = binary.BigEndian.AppendUint16(l.data, uint16(u32(packetTCI)))
		data = data[12:]
		wire += tagSize
	}
	l.data = append(l.data, data...)
	rec.Link, rec.Iface = l.link, 0
	rec.HasTime = true
	rec.Time = time.Unix(int64(u32(packetSec)), int64(u32(packetNsec))).UTC()
	rec.WireLen = wire
	rec.Data = l.data[:len(l.data):len(l.data)]
	return true
}

// Buffered returns how many frames can be read without a wait.
func (l *Live) Buffered() int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.left
}

// Stats returns how many frames were received and dropped.
func (l *Live) Stats() (LiveStats, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	err := l.count()
	return l.stats, err
}

// count adds what the kernel counted since the last time.
func (l *Live) count() (err error) {
	if l.ring == nil {
		return nil
	}
	if e := l.conn.Control(func(fd uintptr) {
		// struct tpacket_stats_v3 begins with two words, as a Ucred does: std has no call
		// for bytes.
		var u *syscall.Ucred
		if u, err = syscall.GetsockoptUcred(int(fd), syscall.SOL_PACKET, syscall.PACKET_STATISTICS); err == nil {
			l.stats.Received += uint64(uint32(u.Pid))
			l.stats.Dropped += uint64(u.Uid)
		}
	}); e != nil {
		return e
	}
	return err
}

// SetDeadline sets the time until which calls of Next wait at most. The zero time
// means no deadline.
func (l *Live) SetDeadline(t time.Time) error { return l.file.SetReadDeadline(t) }

// Close ends reading: a call of Next that waits returns io.EOF. It may be called by
// another goroutine, and again.
func (l *Live) Close() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.file == nil {
		return nil
	}
	if l.ring == nil {
		return l.file.Close()
	}
	l.count()
	ring := l.ring
	l.ring, l.left, l.held = nil, 0, false
	return errors.Join(l.file.Close(), syscall.Munmap(ring))
}
