package endpoint

import (
	"errors"
	"time"

	"github.com/roce-go/roce/bth/frame"
)

// Wire says what a port is attached to: see UDP, Packet, TAP, Segment and Pair.
type Wire interface {
	// open opens the wire, and fills the addresses of cfg that it knows and cfg
	// lacks.
	open(cfg *Config) (transport, error)
}

// transport carries a port's packets. wait is called by one goroutine without the
// endpoint's lock, and close by any; the others with it.
type transport interface {
	// wait waits until packets have come. An error is for good.
	wait() error
	// deliver hands them to the port.
	deliver(now time.Time, e *Endpoint)
	// send takes some packets out of the port and sends them. It returns how many,
	// 0 when the port has none, and their bytes. What the network refuses is lost;
	// the error says that some of it was larger than the link's MTU.
	send(now time.Time, e *Endpoint) (n, bytes int, err error)
	// mtu returns the largest IP packet, in bytes.
	mtu() int
	// peerMAC returns the hardware address that all peers have on a wire without
	// such addresses, or zero.
	peerMAC() frame.MAC
	// inject sends one Ethernet frame that the port did not build.
	inject(b []byte) error
	close() error
}

// errNoFrames is inject's error on a wire without Ethernet frames.
var errNoFrames = errors.New("this wire carries no Ethernet frames")

// frames is the part of a transport that all have whose packets are Ethernet
// frames.
type frames struct {
	in     [][]byte
	out    []byte
	filter func(sent bool, frame []byte) [][]byte
}

func (f *frames) deliver(now time.Time, e *Endpoint) {
	for _, b := range f.in {
		if e.tap != nil {
			e.record(now, b)
		}
		if f.filter == nil {
			e.port.HandleFrame(now, b)
			continue
		}
		for _, b := range f.filter(false, b) {
			e.port.HandleFrame(now, b)
		}
	}
	f.in = f.in[:0]
}

// next returns the port's next frame, padded to what Ethernet wants.
func (f *frames) next(now time.Time, e *Endpoint) ([]byte, bool) {
	b, ok := e.port.NextFrame(now, f.out[:0])
	if !ok {
		return nil, false
	}
	for len(b) < 60 {
		b = append(b, 0)
	}
	f.out = b
	if e.tap != nil {
		e.record(now, b)
	}
	return b, true
}

// each calls write with what the filter makes of a frame.
func (f *frames) each(b []byte, write func([]byte)) {
	if f.filter == nil {
		write(b)
		return
	}
	for _, b := range f.filter(true, b) {
		write(b)
	}
}

func (f *frames) peerMAC() frame.MAC { return frame.MAC{} }
