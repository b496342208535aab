package simnet

import (
	"encoding/binary"
	"io"

	"github.com/roce-go/roce/bth/frame"
)

// capture writes the frames of one end of a link to a pcap file.
type capture struct {
	n   *Network
	w   io.Writer
	buf []byte
	err error
}

// pcap files with times in nanoseconds.
const (
	pcapMagicNanos = 0xa1b23c4d
	pcapSnapLen    = 262144
)

// Capture writes a pcap file of what the host sends and receives to w, as a
// sniffer between card and cable would: with times in nanoseconds, without FCS,
// and padded to Ethernet's 60 bytes. What a decoded network carries is encoded for
// it. Writes are small: see bufio. The error of a write ends the capture and is
// returned by CaptureErr.
func (h *Host) Capture(w io.Writer) { h.end.capture = newCapture(h.n, w) }

// CaptureErr returns the first error of writing the capture.
func (h *Host) CaptureErr() error {
	if h.end == nil || h.end.capture == nil {
		return nil
	}
	return h.end.capture.err
}

// Capture does at the sending end of a direction what a host's Capture does: it
// records what the node there sends on the link and receives from it.
func (d *Direction) Capture(w io.Writer) { d.from.capture = newCapture(d.n, w) }

func newCapture(n *Network, w io.Writer) *capture {
	c := &capture{n: n, w: w}
	b := binary.LittleEndian.AppendUint32(nil, pcapMagicNanos)
	b = append(b, 2, 0, 4, 0, 0, 0, 0, 0, 0, 0, 0, 0)
	b = binary.LittleEndian.AppendUint32(b, pcapSnapLen)
	b = binary.LittleEndian.AppendUint32(b, uint32(frame.Ethernet))
	_, c.err = w.Write(b)
	return c
}

func (c *capture) record(at int64, p *packet) {
	if c.err != nil {
		return
	}
	const head = 16
	b := append(c.buf[:0], make([]byte, head)...)
	switch {
	case p.pause:
		b = p.pfc.AppendFrame(b)
	case c.n.bytes:
		b = append(b, p.buf...)
	default:
		b = p.f.AppendTo(b)
		if p.broken && len(b) > head {
			b[len(b)-1] ^= 1
		}
	}
	for len(b) < head+minFrame {
		b = append(b, 0)
	}
	t := c.n.zero + at
	binary.LittleEndian.PutUint32(b[0:], uint32(t/1e9))
	binary.LittleEndian.PutUint32(b[4:], uint32(t%1e9))
	binary.LittleEndian.PutUint32(b[8:], uint32(len(b)-head))
	binary.LittleEndian.PutUint32(b[12:], uint32(len(b)-head))
	c.buf = b
	_, c.err = c.w.Write(b)
}
