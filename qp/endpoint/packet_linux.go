package endpoint

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"syscall"
	"time"
	"unsafe"

	"github.com/roce-go/roce/bth/frame"
)

// packet is a transport over a packet socket. A struct virtio_net_hdr is in front of each
// frame (PACKET_VNET_HDR). It tells of a frame that stands for many: UDP packets of one
// length to one peer are handed to the kernel as one, which it or a card splits, and one
// arrives where nothing between the ends had to split it, as between the ends of a veth
// pair. A socket without that header would receive such a frame, too, and not know where to
// split it.
type packet struct {
	device
	raw   syscall.RawConn
	recv  *batch
	outs  *batch
	head  int      // the first frame of the message that is put together
	over  bool     // no other frame may join it
	split netSplit // the frame that is taken apart
	drops uint64   // of the kernel, whose own count begins anew each time it is read
}

// netSplit is a received frame of many packets.
type netSplit struct {
	header [vlanRoom + 14 + 8 + 60 + 8]byte
	n      int // length of the header
	ip     int // where in it the IP header begins
	k      int // of the next packet
}

// Of linux/if_packet.h and linux/virtio_net.h.
const (
	packetAuxdata = 8
	packetStats   = 6
	packetVnetHdr = 15

	vnetSize      = 10 // struct virtio_net_hdr
	vnetNeedsCsum = 1  // its flags
	vnetUDP       = 5  // its gso_type: VIRTIO_NET_HDR_GSO_UDP_L4

	vlanRoom        = 4 // before each frame, for the tag that the kernel removed
	statusVLANValid = 1 << 4

	leastRoCE = 12 + 4 // UDP payload of the shortest packet: BTH and ICRC
)

// auxdata is struct tpacket_auxdata.
type auxdata struct {
	status, len, snaplen uint32
	mac, net             uint16
	vlanTCI, vlanTPID    uint16
}

// newPacket prepares a packet socket.
func newPacket(d device, fd int) (*packet, error) {
	d.lead, d.out = vnetSize, make([]byte, vnetSize)
	p := &packet{device: d}
	err := syscall.SetsockoptInt(fd, syscall.SOL_PACKET, packetVnetHdr, 1)
	if err == nil {
		err = syscall.SetsockoptInt(fd, syscall.SOL_PACKET, packetAuxdata, 1)
	}
	if err != nil {
		return nil, fmt.Errorf("the options of the packet socket: %w", err)
	}
	if p.raw, err = d.f.SyscallConn(); err != nil {
		return nil, err
	}
	p.recv, p.outs = newBatch(p.raw, false), newBatch(p.raw, true)
	p.recv.apart = p.takeApart
	for i := range p.outs.bufs {
		p.outs.bufs[i] = make([]byte, vnetSize)
	}
	return p, nil
}

// wait waits for frames.
func (p *packet) wait() error {
	for {
		_, err := p.recv.recv()
		switch err {
		case nil, net.ErrClosed:
			return err
		case syscall.EINVAL:
			// A frame that stands for many in a way that struct virtio_net_hdr cannot express,
			// such as UDP before Linux 6.2: it is lost, and others may follow at once.
		default:
			// The interface is down. It may come up again, and then frames are received.
			time.Sleep(50 * time.Millisecond)
		}
	}
}

// takeApart lists the packets of a received frame.
func (p *packet) takeApart(i int) {
	m, c := &p.recv.msgs[i], &p.recv.ctls[i]
	at, n := headRoom+vnetSize, int(m.n)-vnetSize
	if n < 14 || m.hdr.Flags&syscall.MSG_TRUNC != 0 {
		return
	}
	b := p.recv.bufs[i]
	vnet := [vnetSize]byte(b[headRoom:at])
	if aux := (*auxdata)(unsafe.Pointer(&c.data)); int(m.hdr.Controllen) >= syscall.CmsgLen(int(unsafe.Sizeof(*aux))) &&
		c.hdr.Level == syscall.SOL_PACKET && c.hdr.Type == packetAuxdata && aux.status&statusVLANValid != 0 {
		// The tag goes back where it was.
		copy(b[at-vlanRoom:], b[at:at+12])
		at, n = at-vlanRoom, n+vlanRoom
		tpid := aux.vlanTPID
		if tpid == 0 {
			tpid = 0x8100
		}
		binary.BigEndian.PutUint16(b[at+12:], tpid)
		binary.BigEndian.PutUint16(b[at+14:], aux.vlanTCI)
	}
	size := int(binary.NativeEndian.Uint16(vnet[4:]))
	if vnet[1] == vnetUDP && size >= leastRoCE {
		if _, header := udpHeader(b[at : at+n]); header != 0 {
			for at, n = at+header, n-header; n > 0; at, n = at+size, n-size {
				p.recv.got = append(p.recv.got, part{i, at, min(size, n), header})
			}
			return
		}
	}
	p.recv.got = append(p.recv.got, part{i, at, n, 0})
}

// udpHeader returns where the IP header of a frame begins and where its UDP header ends, or
// 0 where there is none.
func udpHeader(b []byte) (ip, end int) {
	ip = 14
	for range 2 {
		if len(b) > ip+4 && (b[ip-2] == 0x81 && b[ip-1] == 0 || b[ip-2] == 0x88 && b[ip-1] == 0xa8) {
			ip += 4
		}
	}
	switch {
	case len(b) < ip+20+8:
		return 0, 0
	case b[ip-2] == 0x08 && b[ip-1] == 0 && b[ip]>>4 == 4 && b[ip]&15 >= 5 && b[ip+9] == 17:
		end = ip + 4*int(b[ip]&15) + 8
	case b[ip-2] == 0x86 && b[ip-1] == 0xdd && b[ip]>>4 == 6 && b[ip+6] == 17:
		end = ip + 40 + 8
	}
	if end > len(b) {
		return 0, 0
	}
	return ip, end
}

// frame returns the i-th frame received. Those of one message are asked for in order: the
// headers of one overwrite the end of the one before.
func (p *packet) frame(i int) []byte {
	g := p.recv.got[i]
	b := p.recv.bufs[g.from]
	if g.header == 0 {
		return b[g.at : g.at+g.n]
	}
	s := &p.split
	if i == 0 || p.recv.got[i-1].from != g.from {
		s.n, s.k = copy(s.header[:], b[g.at-g.header:g.at]), 0
		s.ip, _ = udpHeader(s.header[:s.n])
	}
	out := b[g.at-s.n : g.at+g.n]
	copy(out, s.header[:s.n])
	be, h, udp := binary.BigEndian, out[s.ip:s.n], out[s.n-8:]
	if h[0]>>4 == 4 {
		be.PutUint16(h[2:], uint16(len(h)+g.n))
		be.PutUint16(h[4:], be.Uint16(h[4:])+uint16(s.k)) // as the kernel numbers them
		be.PutUint16(h[10:], 0)
		be.PutUint16(h[10:], ^frame.OnesSum(0, h[:len(h)-8]))
	} else {
		be.PutUint16(h[4:], uint16(8+g.n))
	}
	be.PutUint16(udp[4:], uint16(8+g.n))
	be.PutUint16(udp[6:], 0) // that of the whole, and not complete
	s.k++
	return out
}

func (p *packet) deliver(now time.Time, e *Endpoint) {
	for i := range p.recv.got {
		p.handle(now, e, p.frame(i))
	}
	p.recv.got = p.recv.got[:0]
}

func (p *packet) send(now time.Time, e *Endpoint) (n, bytes int, err error) {
	if p.filter != nil {
		return p.sendFrame(now, e, p.inject)
	}
	o := p.outs
	for n < batchSize && bytes < batchBytes {
		p.out = o.bufs[n]
		clear(p.out[:vnetSize])
		b, ok := p.next(now, e)
		if !ok {
			break
		}
		o.bufs[n] = p.out
		if n != 0 && p.joins(b) {
			o.add(n, b[plainUDP:], true)
		} else {
			p.head, p.over = n, false
			o.add(n, p.out, false)
		}
		bytes += len(b)
		n++
	}
	if n == 0 {
		return 0, 0, nil
	}
	for i, at := 0, 0; i < o.n; i++ {
		k := int(o.msgs[i].hdr.Iovlen)
		if k > 1 {
			join(o.bufs[at], o.bufs[at+1:at+k])
		}
		at += k
	}
	return n, bytes, o.send()
}

// plainUDP is where the UDP payload of an IPv6 frame without a VLAN tag begins.
const plainUDP = 14 + 40 + 8

// joins reports whether the frame b may be the next of the message that is put together. All
// have the same headers and one length, except the last, which may be shorter. They are of
// IPv6, which has no identification: how a card that splits frames itself numbers those of
// IPv4 is not known, and the ICRC covers them.
func (p *packet) joins(b []byte) bool {
	h := p.outs.bufs[p.head][vnetSize:]
	if p.over || !p.outs.split || len(b) > len(h) || len(b) <= plainUDP || b[12] != 0x86 || b[13] != 0xdd || b[20] != 17 ||
		!bytes.Equal(b[:18], h[:18]) || !bytes.Equal(b[20:58], h[20:58]) {
		return false
	}
	p.over = len(b) < len(h)
	return true
}

// join makes head, a frame behind its struct virtio_net_hdr, the headers of one that the
// others follow.
func join(head []byte, others [][]byte) {
	n := len(head) - vnetSize - plainUDP
	h, vnet := head[vnetSize:], head[:vnetSize]
	vnet[0], vnet[1] = vnetNeedsCsum, vnetUDP
	for i, v := range []int{plainUDP, n, plainUDP - 8, 6} { // length of the headers, of a payload; the checksum begins where, is where in it
		binary.NativeEndian.PutUint16(vnet[2+2*i:], uint16(v))
	}
	n += 8
	for _, b := range others {
		n += len(b) - vnetSize - plainUDP
	}
	be := binary.BigEndian
	be.PutUint16(h[18:], uint16(n))
	be.PutUint16(h[58:], uint16(n))
	// The kernel completes the sum of the pseudo-header.
	be.PutUint16(h[60:], frame.OnesSum(frame.OnesSum(0, h[22:54]), []byte{byte(n >> 8), byte(n), 0, 17}))
}

func (p *packet) inject(b []byte) error {
	_, err := p.f.Write(append(make([]byte, vnetSize, vnetSize+len(b)), b...))
	return err
}

func (p *packet) dropped() uint64 {
	var stats [2]uint32 // struct tpacket_stats: packets, and those of them without room in the buffer
	if sockopt(p.raw, syscall.SOL_PACKET, packetStats, stats[:]) {
		p.drops += uint64(stats[1])
	}
	return p.drops
}
