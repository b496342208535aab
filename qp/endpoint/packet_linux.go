package endpoint

import (
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"
)

// packet is a transport over a packet socket. Received frames are in a ring that the kernel
// shares, and are handed to the port from there; frames are sent in batches. The ring is of
// version 2 (TPACKET_V2), in which a frame is visible at once; with version 3 it waits
// until its block is full or a timer of milliseconds fires.
type packet struct {
	device
	raw  syscall.RawConn
	size int // of the ring, in bytes
	slot int // of a frame in it

	ring  []byte // mapped by the first wait
	at    int    // slot to be filled next
	given int    // slots before it that were handed out
	drops uint64 // of the kernel, whose own count begins anew each time it is read

	outs  [packetBatch][]byte
	msgs  [packetBatch]mmsghdr
	iovs  [packetBatch]syscall.Iovec
	first int
	n     int
	errno syscall.Errno
	get   func(fd uintptr) bool
	put   func(fd uintptr) bool
}

// Of linux/if_packet.h.
const (
	packetRXRing  = 5
	packetStats   = 6
	packetVersion = 10
	packetReserve = 12

	tpacketV2 = 1

	packetBatch = 32 // frames sent by one call
	vlanRoom    = 4  // reserved before each frame, for the tag that the kernel removed

	statusUser      = 1
	statusVLANValid = 1 << 4
)

// tpacket2 is struct tpacket2_hdr.
type tpacket2 struct {
	status, len, snaplen uint32
	mac, net             uint16
	sec, nsec            uint32
	vlanTCI, vlanTPID    uint16
	_                    uint32
}

// newPacket maps the ring of a packet socket.
func newPacket(d device, fd int) (*packet, error) {
	p := &packet{device: d, slot: 2048, size: 4 << 20}
	for p.slot < d.linkMTU+256 {
		p.slot *= 2
	}
	p.size = max(p.size, 64*p.slot)
	block := max(p.slot, 1<<16)
	err := syscall.SetsockoptInt(fd, syscall.SOL_PACKET, packetVersion, tpacketV2)
	if err == nil {
		err = syscall.SetsockoptInt(fd, syscall.SOL_PACKET, packetReserve, vlanRoom)
	}
	if err == nil {
		var req []byte // struct tpacket_req: size and number of blocks, and of frames
		for _, v := range []int{block, p.size / block, p.slot, p.size / p.slot} {
			req = binary.NativeEndian.AppendUint32(req, uint32(v))
		}
		err = syscall.SetsockoptString(fd, syscall.SOL_PACKET, packetRXRing, string(req))
	}
	if err != nil {
		return nil, fmt.Errorf("the ring of the packet socket: %w", err)
	}
	if p.raw, err = d.f.SyscallConn(); err != nil {
		return nil, err
	}
	for i := range p.msgs {
		p.msgs[i].hdr.Iov, p.msgs[i].hdr.Iovlen = &p.iovs[i], 1
	}
	p.get, p.put = p.take, p.transmit
	return p, nil
}

// header returns the header of a slot.
func (p *packet) header(i int) *tpacket2 { return (*tpacket2)(unsafe.Pointer(&p.ring[i*p.slot])) }

// wait waits for frames. The slots of those before are given back to the kernel.
func (p *packet) wait() error {
	if p.ring == nil {
		var bad error
		err := p.raw.Control(func(fd uintptr) {
			p.ring, bad = syscall.Mmap(int(fd), 0, p.size, syscall.PROT_READ|syscall.PROT_WRITE, syscall.MAP_SHARED)
		})
		if err = errors.Join(err, bad); err != nil {
			return err
		}
	}
	for slots := p.size / p.slot; ; {
		for ; p.given > 0; p.given-- {
			atomic.StoreUint32(&p.header((p.at-p.given+slots)%slots).status, 0)
		}
		p.in = p.in[:0]
		switch {
		case p.raw.Read(p.get) != nil:
			_ = syscall.Munmap(p.ring)
			return os.ErrClosed
		case len(p.in) != 0:
			return nil
		}
		// The interface is down. It may come up again, and then frames are received.
		time.Sleep(50 * time.Millisecond)
	}
}

// take takes what is in the ring, and reports whether there is no sense in waiting.
func (p *packet) take(fd uintptr) bool {
	slots := p.size / p.slot
	for p.given < min(slots/2, 256) {
		h := p.header(p.at)
		status := atomic.LoadUint32(&h.status)
		if status&statusUser == 0 {
			break
		}
		b := p.ring[p.at*p.slot:][:p.slot]
		from, to := int(h.mac), int(h.mac)+int(h.snaplen)
		if status&statusVLANValid != 0 && h.snaplen >= 12 {
			from -= vlanRoom
			copy(b[from:from+12], b[from+vlanRoom:])
			tpid := h.vlanTPID
			if tpid == 0 {
				tpid = 0x8100
			}
			binary.BigEndian.PutUint16(b[from+12:], tpid)
			binary.BigEndian.PutUint16(b[from+14:], h.vlanTCI)
		}
		if to <= p.slot {
			p.in = append(p.in, b[from:to])
		}
		p.at = (p.at + 1) % slots
		p.given++
	}
	if len(p.in) != 0 || p.given != 0 {
		return true
	}
	// An error that waits, such as that of an interface that went down, is taken, or the
	// socket would count as readable for ever.
	errno, err := syscall.GetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_ERROR)
	return err != nil || errno != 0
}

func (p *packet) send(now time.Time, e *Endpoint) (n, bytes int, err error) {
	if p.filter != nil {
		return p.device.send(now, e)
	}
	for n < packetBatch {
		p.out = p.outs[n]
		b, ok := p.next(now, e)
		if !ok {
			break
		}
		p.outs[n] = p.out
		p.iovs[n].Base = &b[0]
		p.iovs[n].SetLen(len(b))
		bytes += len(b)
		n++
	}
	for p.first, p.n = 0, n; p.first < n; {
		if p.raw.Write(p.put) != nil {
			return n, bytes, nil // closed
		}
		if p.errno != 0 {
			// An interface that is down or full loses frames.
			if p.errno == syscall.EMSGSIZE {
				err = errTooBig
			}
			p.first++
		}
	}
	return n, bytes, err
}

func (p *packet) transmit(fd uintptr) bool {
	n, _, errno := syscall.Syscall6(sysSendmmsg, fd, uintptr(unsafe.Pointer(&p.msgs[p.first])), uintptr(p.n-p.first), syscall.MSG_DONTWAIT, 0, 0)
	if p.errno = errno; errno == 0 {
		p.first += int(n)
	}
	return errno != syscall.EAGAIN && errno != syscall.EINTR
}

func (p *packet) dropped() uint64 {
	var stats [2]uint32 // struct tpacket_stats: packets, and those of them without room in the ring
	if sockopt(p.raw, syscall.SOL_PACKET, packetStats, stats[:]) {
		p.drops += uint64(stats[1])
	}
	return p.drops
}
