package simnet

import (
	"fmt"
	"io"
	"time"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
)

// recorder writes the frames of one end of a link to a pcap file.
type recorder struct {
	n   *Network
	w   *capture.Writer
	buf []byte
	err error
}

// Capture writes a pcap file of what the host sends and receives on its first link to w:
// with times in nanoseconds, without FCS, and padded to Ethernet's 60 bytes. Packets of a
// decoded network are encoded for it. Writes are small: use a bufio.Writer. The error of a
// write ends the capture and is returned by CaptureErr. A host without a link is ErrConfig.
func (h *Host) Capture(w io.Writer) error {
	if !h.linked() {
		return fmt.Errorf("%w: host %s has no link to capture from", ErrConfig, h.name)
	}
	h.ends[0].out.Capture(w)
	return nil
}

// CaptureErr returns the first error of writing the capture.
func (h *Host) CaptureErr() error {
	if !h.linked() || h.ends[0].capture == nil {
		return nil
	}
	return h.ends[0].capture.err
}

// Capture is Host.Capture at the sending end of a direction: it records what the node there
// sends and receives on the link.
func (d *Direction) Capture(w io.Writer) {
	d.from.capture = newRecorder(d.n, w)
	d.review()
	d.from.in.review()
}

func newRecorder(n *Network, w io.Writer) *recorder {
	r := &recorder{n: n}
	r.w, r.err = capture.NewWriter(w, frame.Ethernet)
	return r
}

func (r *recorder) record(at int64, p *packet) {
	if r.err != nil {
		return
	}
	b := r.buf[:0]
	switch {
	case p.pause:
		b = p.pfc.AppendFrame(b)
	case r.n.bytes:
		b = append(b, p.buf...)
	default:
		b = p.f.AppendTo(b)
		if p.broken && len(b) > 0 {
			b[len(b)-1] ^= 1
		}
	}
	for len(b) < minFrame {
		b = append(b, 0)
	}
	r.buf = b
	r.err = r.w.Write(time.Unix(0, r.n.zero+at), b)
}
