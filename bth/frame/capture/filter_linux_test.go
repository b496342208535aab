package capture

import (
	"encoding/binary"
	"path/filepath"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame"
)

// kernel runs filters in the kernel, which takes them on any socket: what it
// accepts arrives at the other end of a pair.
type kernel struct{ fds [2]int }

func newKernel(t *testing.T) *kernel {
	fds, err := syscall.Socketpair(syscall.AF_UNIX, syscall.SOCK_DGRAM|syscall.SOCK_NONBLOCK|syscall.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { syscall.Close(fds[0]); syscall.Close(fds[1]) })
	return &kernel{fds}
}

func (k *kernel) use(t *testing.T, link frame.Link, cfg LiveConfig) {
	//lint:ignore SA1019 its replacement is another module
	require.NoError(t, syscall.AttachLsf(k.fds[1], filter(link, &cfg)))
}

// kept returns how much of b gets through, -1 where it is refused.
func (k *kernel) kept(t *testing.T, b []byte) int {
	_, err := syscall.Write(k.fds[0], b)
	require.NoError(t, err)
	var buf [65536]byte
	n, err := syscall.Read(k.fds[1], buf[:])
	if err == syscall.EAGAIN {
		return -1
	}
	require.NoError(t, err)
	require.Equal(t, b[:n], buf[:n])
	return n
}

// TestFilter: whatever a Finder finds gets through the kernel's filter, and most of
// what it does not find stays out.
func TestFilter(t *testing.T) {
	k := newKernel(t)
	files, err := filepath.Glob("../../../fuzz/captures/*.pcap")
	require.NoError(t, err)
	var recs []Record
	for _, f := range append(files, "../testdata/tunnels.pcap") {
		all, err := ReadFile(f)
		require.NoError(t, err)
		recs = append(recs, all...)
	}
	require.Greater(t, len(recs), 1400)
	port := frame.Finder{UDPPort: 4444, Tunnels: true, VXLANPorts: []uint16{5555}}
	for _, find := range []frame.Finder{{}, {Tunnels: true}, {Tunnels: true, VXLANPorts: make([]uint16, maxFilterPorts)}, port} {
		for _, link := range []frame.Link{frame.Ethernet, frame.RawIP} {
			k.use(t, link, LiveConfig{Finder: find})
			var in, out, more int
			for _, r := range recs {
				b := r.Data
				if find.UDPPort != 0 {
					b = retarget(b)
				}
				if link == frame.RawIP {
					if t := binary.BigEndian.Uint16(b[12:]); t != frame.EtherTypeIPv4 && t != frame.EtherTypeIPv6 {
						continue
					}
					b = b[14:]
				}
				var f frame.Frame
				found := find.Find(link, b, len(b), &f) == nil || find.IsRoCE(find.Protocol(link, b, len(b)))
				switch passed := k.kept(t, b) == len(b); {
				case found && passed:
					in++
				case found:
					t.Errorf("%v %+v: refused: %x", link, find, b)
				case passed:
					more++
				default:
					out++
				}
			}
			require.Greater(t, in, 1300)
			require.Greater(t, out, 200)
			require.Less(t, more, 40, "%+v", find)
		}
	}
}

// retarget sends what goes to the ports of RoCE and VXLAN to others. Checksums are
// of no interest here.
func retarget(b []byte) []byte {
	b = append([]byte(nil), b...)
	for i := 0; i+4 <= len(b); i++ {
		switch binary.BigEndian.Uint16(b[i:]) {
		case frame.Port:
			binary.BigEndian.PutUint16(b[i:], 4444)
		case 4789:
			binary.BigEndian.PutUint16(b[i:], 5555)
		}
	}
	return b
}

// TestFilterEdges: what has no port, PFC, all frames, and what is kept of them.
func TestFilterEdges(t *testing.T) {
	k := newKernel(t)
	recs, err := ReadFile("../testdata/tunnels.pcap")
	require.NoError(t, err)
	tagged := recs[len(recs)-1].Data
	plain := append(append([]byte(nil), tagged[:12]...), tagged[20:]...)
	edit := func(at int, v ...byte) []byte {
		b := append([]byte(nil), plain...)
		copy(b[at:], v)
		return b
	}
	k.use(t, frame.Ethernet, LiveConfig{})
	for name, c := range map[string]struct {
		b  []byte
		in bool
	}{
		"plain":           {plain, true},
		"tagged":          {tagged, true},
		"first fragment":  {edit(20, 0x20, 0), true},
		"later fragment":  {edit(20, 0, 1), false},
		"far fragment":    {edit(20, 0x10, 0), false},
		"TCP":             {edit(23, 6), false},
		"another port":    {edit(36, 0x12, 0xb8), false},
		"from the port":   {edit(34, 0x12, 0xb7, 0, 53), false},
		"ARP":             {edit(12, 8, 6), false},
		"PFC":             {edit(12, 0x88, 8), true},
		"RoCE v1":         {edit(12, 0x89, 0x15), true},
		"GRE, unwanted":   {recs[0].Data, false},
		"VXLAN, unwanted": {recs[2].Data, false},
		"cut in Ethernet": {plain[:13], false},
		"cut in UDP":      {plain[:37], false},
		"options":         {append(edit(14, 0x46)[:34:34], append([]byte{1, 1, 1, 1}, plain[34:]...)...), true},
	} {
		require.Equal(t, c.in, k.kept(t, c.b) > 0, name)
	}
	k.use(t, frame.Ethernet, LiveConfig{SnapLen: 64})
	require.Equal(t, 64, k.kept(t, plain))
	k.use(t, frame.Ethernet, LiveConfig{All: true, SnapLen: 20})
	require.Equal(t, 20, k.kept(t, edit(12, 8, 6)))
}
