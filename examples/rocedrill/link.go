package main

import (
	"bytes"
	"errors"
	"fmt"
	"net/netip"
	"sync"
	"time"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/qp/endpoint"
	"github.com/roce-go/roce/qp/softnic"
)

// Default addresses of both ends.
var (
	ourIP4 = netip.MustParseAddr("192.0.2.1")
	ourIP6 = netip.MustParseAddr("2001:db8::1")
	dutIP4 = netip.MustParseAddr("192.0.2.2")
	dutIP6 = netip.MustParseAddr("2001:db8::2")
	ourMAC = frame.MAC{0x52, 0x54, 0, 0, 0, 1}
	dutMAC = frame.MAC{0x52, 0x54, 0, 0, 0, 2}
)

// link is the wire to the device, and the clock.
type link interface {
	now() time.Time
	// send sends an Ethernet frame.
	send(b []byte) error
	// await waits until a time for the next frame that carries RoCE, or is an ARP response.
	// It returns the frame and its arrival time.
	await(until time.Time) (b []byte, at time.Time, ok bool)
	// real reports that the link uses real time, and that the device is slower than this
	// program.
	real() bool
	close()
}

// memory is a link to a port in this process, in virtual time.
type memory struct {
	t     time.Time
	dut   *softnic.Port
	free  time.Time // when the wire is free for the next frame
	in    [][]byte
	serve func(now time.Time) // the programs at the device
	// Tests change what the device receives and sends.
	toDUT, fromDUT func(f *frame.Frame) []*frame.Frame
}

func (m *memory) now() time.Time { return m.t }
func (m *memory) real() bool     { return false }
func (m *memory) close()         {}

func (m *memory) send(b []byte) error {
	b = bytes.Clone(b)
	var f frame.Frame
	if m.toDUT == nil || f.Decode(frame.Ethernet, b) != nil || f.CheckICRC() != frame.ICRCGood {
		m.dut.HandleFrame(m.t, b)
	} else {
		for _, g := range m.toDUT(&f) {
			m.dut.HandleFrame(m.t, g.AppendTo(nil))
		}
	}
	m.pump()
	return nil
}

// lineRate is the rate of the device's port, in bits per second.
const lineRate = 10e9

// pump receives what the device sends, as fast as the wire allows.
func (m *memory) pump() {
	for m.serve(m.t); !m.t.Before(m.free); m.serve(m.t) {
		b, ok := m.dut.NextFrame(m.t, nil)
		if !ok {
			return
		}
		m.free = m.t.Add(time.Duration(len(b)+24) * 8 * time.Second / lineRate)
		var f frame.Frame
		if m.fromDUT == nil || f.Decode(frame.Ethernet, b) != nil {
			m.in = append(m.in, b)
			continue
		}
		for _, g := range m.fromDUT(&f) {
			m.in = append(m.in, g.AppendTo(nil))
		}
	}
}

// step moves the clock to the device's next deadline, or until.
func (m *memory) step(until time.Time) {
	next := until
	if d, ok := m.dut.Deadline(); ok && d.Before(next) {
		next = d
	}
	if m.free.After(m.t) && m.free.Before(next) {
		next = m.free
	}
	if next.After(m.t) {
		m.t = next
	}
	m.dut.Tick(m.t)
	m.pump()
}

func (m *memory) await(until time.Time) ([]byte, time.Time, bool) {
	m.pump()
	for len(m.in) == 0 && m.t.Before(until) {
		m.step(until)
	}
	if len(m.in) == 0 {
		return nil, m.t, false
	}
	b := m.in[0]
	m.in = m.in[1:]
	return b, m.t, true
}

// wire is a link to an external device, in real time: the endpoint handles ARP and neighbour
// discovery, and all RoCE frames are passed to the script.
type wire struct {
	ep   *endpoint.Endpoint
	mu   sync.Mutex
	in   []arrival
	size int // bytes of the frames in in
	here chan struct{}
}

type arrival struct {
	b  []byte
	at time.Time
}

// maxWaiting bounds the bytes of frames that wait for the script; further frames are dropped.
const maxWaiting = 64 << 20

// openWire attaches to a wire with our own address.
func openWire(w endpoint.Wire, addrs []netip.Addr, mac frame.MAC) (*wire, error) {
	l := &wire{here: make(chan struct{}, 1)}
	ep, err := endpoint.Config{GIDs: addrs, MAC: mac, Filter: l.filter}.Open(w)
	if err != nil {
		return nil, err
	}
	l.ep = ep
	return l, nil
}

func (l *wire) filter(sent bool, b []byte) [][]byte {
	if sent {
		return [][]byte{b}
	}
	arp, roce := len(b) >= 42 && b[12] == 8 && b[13] == 6 && b[21] == 2, isRoCE(b)
	if arp || roce {
		l.mu.Lock()
		if l.size < maxWaiting {
			l.in = append(l.in, arrival{bytes.Clone(b), time.Now()})
			l.size += len(b) + 64
		}
		l.mu.Unlock()
		select {
		case l.here <- struct{}{}:
		default:
		}
	}
	if roce {
		return nil
	}
	return [][]byte{b}
}

// isRoCE reports whether a frame is RoCE v2, also one that cannot be decoded.
func isRoCE(b []byte) bool {
	return frame.Finder{}.IsRoCE(frame.Finder{}.Protocol(frame.Ethernet, b, len(b)))
}

func (l *wire) now() time.Time      { return time.Now() }
func (l *wire) real() bool          { return true }
func (l *wire) send(b []byte) error { return l.ep.Inject(b) }
func (l *wire) close()              { l.ep.Close() }

func (l *wire) await(until time.Time) ([]byte, time.Time, bool) {
	timer := time.NewTimer(time.Until(until))
	defer timer.Stop()
	for {
		l.mu.Lock()
		if len(l.in) != 0 {
			a := l.in[0]
			if a.at.After(until) { // it arrived later; without this check a flood would never end
				l.mu.Unlock()
				return nil, time.Now(), false
			}
			l.in[0] = arrival{}
			l.in = l.in[1:]
			l.size -= len(a.b) + 64
			l.mu.Unlock()
			return a.b, a.at, true
		}
		l.mu.Unlock()
		select {
		case <-l.here:
		case <-timer.C:
			return nil, time.Now(), false
		}
	}
}

var errNoARP = errors.New("nobody has that address: no ARP response within 5 s")

// resolve finds the Ethernet address of the device by ARP or neighbour discovery.
func resolve(l link, src frame.MAC, from, to netip.Addr) (mac frame.MAC, err error) {
	if !to.Is4() || !from.Is4() {
		return mac, fmt.Errorf("%v: the device is reached by its IPv4 address", to)
	}
	b := append(bytes.Repeat([]byte{0xff}, 6), src[:]...)
	b = append(b, 8, 6, 0, 1, 8, 0, 6, 4, 0, 1)
	b = append(append(b, src[:]...), from.AsSlice()...)
	b = append(append(b, 0, 0, 0, 0, 0, 0), to.AsSlice()...)
	b = append(b, make([]byte, 60-len(b))...)
	for range 5 {
		if err := l.send(b); err != nil {
			return mac, err
		}
		for end := l.now().Add(time.Second); ; {
			r, _, ok := l.await(end)
			if !ok {
				break
			}
			if len(r) >= 42 && r[12] == 8 && r[13] == 6 && r[21] == 2 && bytes.Equal(r[28:32], to.AsSlice()) {
				copy(mac[:], r[22:28])
				return mac, nil
			}
		}
	}
	return mac, errNoARP
}
