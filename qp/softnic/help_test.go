package softnic_test

import (
	"net/netip"
	"path/filepath"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/softnic"
)

// readPcap returns the frames of a capture in fuzz/captures, or of a file.
func readPcap(t testing.TB, name string) (frames [][]byte) {
	if filepath.Dir(name) == "." {
		name = "../../fuzz/captures/" + name + ".pcap"
	}
	records, err := capture.ReadFile(name)
	require.NoError(t, err)
	for _, r := range records {
		frames = append(frames, r.Data)
	}
	return frames
}

// allCaptures returns the frames of all captures.
func allCaptures(t testing.TB) (frames [][]byte) {
	names, err := filepath.Glob("../../fuzz/captures/*.pcap")
	require.NoError(t, err)
	require.NotEmpty(t, names)
	for _, name := range names {
		frames = append(frames, readPcap(t, name)...)
	}
	return frames
}

var start = time.Unix(1_800_000_000, 0)

// onePort returns a port with these addresses.
func onePort(t testing.TB, mac byte, cfg softnic.Config, addrs ...string) *softnic.Port {
	cfg.MAC = frame.MAC{0x52, 0x54, 0, 0, 0, mac}
	for _, a := range addrs {
		cfg.GIDs = append(cfg.GIDs, softnic.GID{Addr: netip.MustParseAddr(a)})
	}
	p, err := softnic.New(cfg)
	require.NoError(t, err)
	return p
}

// drain returns the frames that a port has to send.
func drain(p *softnic.Port, now time.Time) (frames [][]byte) {
	for {
		b, ok := p.NextFrame(now, nil)
		if !ok {
			return frames
		}
		frames = append(frames, b)
	}
}

func decode(t testing.TB, b []byte) *frame.Frame {
	f := new(frame.Frame)
	require.NoError(t, frame.Finder{}.Decode(frame.Ethernet, b, len(b), f))
	require.Equal(t, frame.ICRCGood, f.CheckICRC())
	return f
}

func gidOf(s string) [16]byte { return netip.MustParseAddr(s).As16() }

// qpOf creates a QP of a type, in RTS, connected to a peer.
func qpOf(t testing.TB, p *softnic.Port, now time.Time, typ qp.Type, dst qp.AHAttr, more func(*softnic.QPConfig, *qp.Attr)) (*softnic.QP, *softnic.CQ) {
	cq := softnic.NewCQ()
	c := softnic.QPConfig{Config: qp.Config{Type: typ, MaxSendWR: 16, MaxRecvWR: 16, MaxRdAtomic: 4, MaxDestRdAtomic: 4}, SendCQ: cq, RecvCQ: cq}
	a := qp.Attr{PKey: 0xffff, QKey: 0x1111, Access: qp.RemoteRead | qp.RemoteWrite | qp.RemoteAtomic, PathMTU: 1024,
		DestQPN: 0x11, AH: dst, MaxDestRdAtomic: 4, MaxRdAtomic: 4, MinRNRTimer: 12, Timeout: 14, RetryCnt: 7, RNRRetry: 7}
	if more != nil {
		more(&c, &a)
	}
	q, err := p.CreateQP(c)
	require.NoError(t, err)
	require.NoError(t, q.Connect(now, &a))
	return q, cq
}

func poll(t testing.TB, cq *softnic.CQ) qp.Completion {
	t.Helper()
	var wc qp.Completion
	require.True(t, cq.Poll(&wc), "no completion")
	return wc
}

func none(t testing.TB, cq *softnic.CQ) {
	t.Helper()
	var wc qp.Completion
	require.False(t, cq.Poll(&wc), "%+v", wc)
}

func mustAddr(p *pair, i int) netip.Addr {
	g, _ := p.ports[i].GID(0)
	return netip.AddrFrom16(g).Unmap()
}
