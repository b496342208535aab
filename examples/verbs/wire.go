package main

import (
	"bufio"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/qp/endpoint"
	"github.com/roce-go/roce/qp/softnic"
)

// wire is the network that the port is attached to.
type wire interface {
	// Receive receives packets, and returns how many.
	Receive() int
	Packet(i int) []byte
	// deliver passes one of them, or a copy, to the port.
	deliver(e *engine, now time.Time, pkt []byte)
	// Send sends a batch of the port's packets, and calls sent, if not nil, with each
	// Ethernet frame.
	Send(now time.Time, p *softnic.Port, sent func([]byte)) (int, error)
	PathMTU() int
	PeerMAC() frame.MAC
	SyscallConn() (syscall.RawConn, error)
	Close() error
	// window returns the maximum number of packets that a queue pair may have in flight.
	window() int
}

// openWire opens a UDP socket on port 4791 of addr, or if addr is empty, of the first free
// address of the loopback network; or the Ethernet segment that ROCE_SEGMENT names, on which
// the port has addr.
func openWire(seg, addr string) (w wire, a netip.Addr, err error) {
	switch {
	case seg != "":
		if a, err = netip.ParseAddr(addr); err != nil {
			return nil, a, fmt.Errorf("ROCE_SEGMENT needs ROCE_ADDR, the address on the segment, such as 192.0.2.1: %w", err)
		}
		w, err = newSegment(seg)
	case addr != "":
		w, err = openUDP(addr)
		if errors.Is(err, syscall.EADDRINUSE) {
			err = fmt.Errorf("%w. Each process needs an address of its own: set ROCE_ADDR to another one, such as 127.0.0.3 (or unset it: the first free one of 127.0.0.1 to 127.0.0.250 is taken)", err)
		}
	default:
		for i := 1; i <= 250 && w == nil; i++ {
			addr = fmt.Sprintf("127.0.0.%d", i)
			if w, err = openUDP(addr); err != nil && !errors.Is(err, syscall.EADDRINUSE) {
				break
			}
		}
	}
	if err != nil {
		return nil, a, err
	}
	a, _ = netip.ParseAddr(addr)
	return w, a.Unmap(), nil
}

// macOf returns the MAC address of the port on a wire with such addresses.
func macOf(a netip.Addr) frame.MAC {
	b := a.As16()
	return frame.MAC{2, 0, b[12], b[13], b[14], b[15]}
}

// udp is a UDP socket.
type udp struct {
	*endpoint.Socket
	rx frame.Frame
}

func openUDP(addr string) (wire, error) {
	s, err := endpoint.OpenSocket(addr)
	if err != nil {
		return nil, err
	}
	return &udp{Socket: s}, nil
}

func (u *udp) deliver(e *engine, now time.Time, pkt []byte) {
	r := u.Decode(pkt, &u.rx) // it writes the IP identification into pkt
	if e.tap != nil {
		e.tap.network(now, pkt)
	}
	if r != softnic.Delivered {
		e.port.CountDropped(r)
		return
	}
	e.port.CountReceived()
	e.port.HandleDecoded(now, &u.rx)
}

// window: as many packets as a socket buffer of the usual size holds.
func (u *udp) window() int { return 64 }

// segment is an Ethernet segment of two hosts whose frames are sent in UDP datagrams, one
// each, as QEMU's -netdev dgram does.
type segment struct {
	*net.UDPConn
	fd      int
	in, out []byte
	n       int
}

func newSegment(s string) (*segment, error) {
	local, remote, _ := strings.Cut(s, ",")
	l, err := netip.ParseAddrPort(local)
	r, err2 := netip.ParseAddrPort(remote)
	if err != nil || err2 != nil {
		return nil, fmt.Errorf("ROCE_SEGMENT: %q is not ADDRESS:PORT,ADDRESS:PORT, this end's first", s)
	}
	c, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(l), net.UDPAddrFromAddrPort(r))
	if err != nil {
		return nil, fmt.Errorf("ROCE_SEGMENT: %w", err)
	}
	_ = c.SetReadBuffer(4 << 20)
	g := &segment{UDPConn: c, in: make([]byte, 1<<16)}
	raw, err := c.SyscallConn()
	if err == nil {
		err = raw.Control(func(fd uintptr) { g.fd = int(fd) })
	}
	return g, err
}

func (g *segment) Receive() int {
	n, err := syscall.Read(g.fd, g.in)
	if err != nil || n == 0 {
		return 0 // nothing has arrived, or the other end is not open
	}
	g.n = n
	return 1
}

func (g *segment) Packet(int) []byte { return g.in[:g.n] }

func (g *segment) deliver(e *engine, now time.Time, pkt []byte) {
	if e.tap != nil {
		e.tap.now = now
		e.tap.sent(pkt)
	}
	e.port.HandleFrame(now, pkt)
}

func (g *segment) Send(now time.Time, p *softnic.Port, sent func([]byte)) (n int, err error) {
	for ; n < 32; n++ {
		b, ok := p.NextFrame(now, g.out[:0])
		if !ok {
			break
		}
		for len(b) < 60 { // the minimum length of an Ethernet frame
			b = append(b, 0)
		}
		g.out = b
		if sent != nil {
			sent(b)
		}
		_, _ = syscall.Write(g.fd, b) // a frame that cannot be sent is lost
	}
	return n, nil
}

// PathMTU: QEMU's network cards accept frames of 9216 bytes.
func (g *segment) PathMTU() int { return 4096 }

func (g *segment) PeerMAC() frame.MAC { return frame.MAC{} }

// window: an emulated machine's socket holds few packets.
func (g *segment) window() int { return 16 }

// expand replaces %p in a file name with the process number.
func expand(name string) string { return strings.ReplaceAll(name, "%p", strconv.Itoa(os.Getpid())) }

// tap is the capture that ROCE_PCAP names: what the port sent, and what it received after the
// faults were applied.
type tap struct {
	file *os.File
	buf  *bufio.Writer
	w    *capture.Writer
	now  time.Time
	err  error
	eth  []byte
}

func newTap(name string) (*tap, error) {
	if name == "" {
		return nil, nil
	}
	f, err := os.Create(expand(name))
	if err != nil {
		return nil, fmt.Errorf("ROCE_PCAP: %w", err)
	}
	t := &tap{file: f, buf: bufio.NewWriterSize(f, 1<<16)}
	t.w, t.err = capture.NewWriter(t.buf, frame.Ethernet)
	return t, nil
}

// sent records an Ethernet frame.
func (t *tap) sent(b []byte) {
	if t.err == nil {
		t.err = t.w.Write(t.now, b)
	}
}

// network records a packet from its IP header on.
func (t *tap) network(now time.Time, pkt []byte) {
	t.eth = append(t.eth[:0], 2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2, 0x08, 0x00)
	if pkt[0]>>4 == 6 {
		t.eth[12], t.eth[13] = 0x86, 0xdd
	}
	t.eth = append(t.eth, pkt...)
	t.now = now
	t.sent(t.eth)
}

// flush writes the recorded packets. If the file cannot be written, only the capture ends.
func (t *tap) flush(log *slog.Logger) {
	if t.file == nil {
		return
	}
	if t.err == nil {
		t.err = t.buf.Flush()
	}
	if t.err != nil {
		fmt.Fprintf(os.Stderr, "roce-verbs: ROCE_PCAP: the capture ends here: %v\n", t.err)
		log.Warn("the capture ended", "err", t.err)
		t.file.Close()
		t.file = nil
	}
}

func (t *tap) close(log *slog.Logger) {
	t.flush(log)
	if t.file != nil {
		t.file.Close()
	}
}

// faults drops, duplicates and delays packets that arrive, as ROCE_FAULTS describes.
type faults struct {
	loss, dup, reorder float64 // probabilities
	rng                *rand.Rand
	held               []heldPacket
	due                time.Time // when the first of held is delivered
	spare              [][]byte
}

type heldPacket struct {
	pkt []byte
	at  time.Time
}

// reorderBy is the delay of a packet that is reordered.
const reorderBy = 300 * time.Microsecond

// newFaults reads "loss=1%,dup=0.5%,reorder=1%,seed=7"; each part is optional.
func newFaults(s string) (*faults, error) {
	if s == "" {
		return nil, nil
	}
	f := &faults{}
	seed := uint64(1)
	for _, part := range strings.Split(s, ",") {
		name, value, ok := strings.Cut(strings.TrimSpace(part), "=")
		bad := fmt.Errorf("ROCE_FAULTS: %q is not one of loss=P%%, dup=P%%, reorder=P%%, seed=N, P from 0 to 100", part)
		if !ok {
			return nil, bad
		}
		if name == "seed" {
			n, err := strconv.ParseUint(value, 10, 64)
			if err != nil {
				return nil, bad
			}
			seed = n
			continue
		}
		p := map[string]*float64{"loss": &f.loss, "dup": &f.dup, "reorder": &f.reorder}[name]
		v, err := strconv.ParseFloat(strings.TrimSuffix(value, "%"), 64)
		if p == nil || err != nil || !(v >= 0 && v <= 100) || !strings.HasSuffix(value, "%") {
			return nil, bad
		}
		*p = v / 100
	}
	f.rng = rand.New(rand.NewPCG(seed, 0))
	return f, nil
}

// arrived applies the faults to a packet and delivers it.
func (f *faults) arrived(e *engine, now time.Time, pkt []byte) {
	lose, twice, later := f.rng.Float64() < f.loss, f.rng.Float64() < f.dup, f.rng.Float64() < f.reorder
	if later && !lose {
		f.hold(pkt, now.Add(reorderBy))
	}
	if twice && !lose {
		f.hold(pkt, now) // the port may change pkt
	}
	if !lose && !later {
		e.deliver(now, pkt)
	}
}

func (f *faults) hold(pkt []byte, at time.Time) {
	var b []byte
	if n := len(f.spare); n != 0 {
		b, f.spare = f.spare[n-1], f.spare[:n-1]
	}
	f.held = append(f.held, heldPacket{append(b[:0], pkt...), at})
	if f.due.IsZero() || at.Before(f.due) {
		f.due = at
	}
}

// late delivers the packets whose delay is over, and returns how many.
func (f *faults) late(e *engine, now time.Time) (n int) {
	if f.due.IsZero() || now.Before(f.due) {
		return 0
	}
	keep := f.held[:0]
	f.due = time.Time{}
	for _, h := range f.held {
		if h.at.After(now) {
			keep = append(keep, h)
			if f.due.IsZero() || h.at.Before(f.due) {
				f.due = h.at
			}
			continue
		}
		e.deliver(now, h.pkt)
		f.spare = append(f.spare, h.pkt)
		n++
	}
	f.held = keep
	return n
}
