package endpoint

import (
	"encoding/binary"
	"io"
	"math/rand/v2"
	"net/netip"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/crc"
)

// sent returns the UDP payload of a packet whose ICRC was computed with an
// identification, and the judge of it.
func sent(t testing.TB, id uint16, n int) (*judge, []byte) {
	f := frame.Frame{
		Link: frame.Ethernet, Net: frame.IPv4, Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr("192.0.2.2"),
		ID: id, DF: true, HopLimit: 3, TrafficClass: 5, SrcPort: 0xc123, DstPort: 4791,
	}
	f.Packet.Opcode, f.Packet.DestQP, f.Packet.PKey = bth.RC.Opcode(bth.SendOnly), 0x11, 0xffff
	f.Packet.SetPayload(make([]byte, n))
	b := f.AppendTo(nil)
	s := &judge{
		from:     netip.AddrPortFrom(f.Src, f.SrcPort),
		local:    netip.AddrPortFrom(f.Dst, 4791),
		idFinder: idFinder{spaces: map[int]*idSpace{}},
	}
	return s, b[14+28:]
}

// judge is a socket's view of a packet.
type judge struct {
	from, local netip.AddrPort
	idFinder
}

func (s *judge) judge(payload []byte) (uint16, bool) {
	return s.find(append(header(nil, s.from, s.local, len(payload)), payload...))
}

// TestIdentificationIsFound finds each of the 65536 from only the ICRC.
func TestIdentificationIsFound(t *testing.T) {
	for _, n := range []int{0, 1024} {
		for id := 0; id < 1<<16; id += 1 + id%7 {
			s, b := sent(t, uint16(id), n)
			got, ok := s.judge(b)
			require.True(t, ok)
			require.EqualValues(t, id, got)
		}
	}
}

func TestStrict(t *testing.T) {
	s, b := sent(t, 0x1234, 100)
	s.strict = true
	_, ok := s.judge(b)
	require.False(t, ok)
	s, b = sent(t, 0, 100)
	s.strict = true
	_, ok = s.judge(b)
	require.True(t, ok)
}

// TestCorruptIsRefused: a corrupt packet passes once in 65536. The seed is fixed.
func TestCorruptIsRefused(t *testing.T) {
	rng := rand.New(rand.NewPCG(1, 2))
	passed := 0
	const n = 400_000
	s, b := sent(t, 0x4711, 64)
	for range n {
		bad := append([]byte(nil), b...)
		i := rng.IntN(len(bad) - 4)
		if i == 4 {
			i = 5 // the byte that no ICRC covers
		}
		binary.BigEndian.PutUint32(bad[i:], binary.BigEndian.Uint32(bad[i:])^(rng.Uint32()|1<<31))
		if _, ok := s.judge(bad); ok {
			passed++
		}
	}
	require.Less(t, passed, 30, "of %d; 6 expected", n)
	// A burst of up to 16 bits is always found: an identification is one itself.
	for i := range len(b) - 4 {
		if i == 4 {
			continue
		}
		bad := append([]byte(nil), b...)
		bad[i] ^= 0x55
		_, ok := s.judge(bad)
		require.False(t, ok, "byte %d", i)
	}
}

// TestHeader: the header built here is the one that package frame builds.
func TestHeader(t *testing.T) {
	for _, dst := range []string{"192.0.2.2", "2001:db8::2"} {
		f := frame.Frame{Link: frame.Ethernet, Net: frame.IPv4, DF: true, SrcPort: 4791, DstPort: 4791,
			Src: netip.MustParseAddr("192.0.2.1"), Dst: netip.MustParseAddr(dst), HopLimit: 64}
		if !f.Dst.Is4() {
			f.Net, f.Src = frame.IPv6, netip.MustParseAddr("2001:db8::1")
		}
		f.Packet.Opcode = bth.RC.Opcode(bth.SendOnly)
		b := f.AppendTo(nil)[14:]
		n := len(b) - 16
		h := header(nil, netip.AddrPortFrom(f.Src, 4791), netip.AddrPortFrom(f.Dst, 4791), 16)
		if f.Dst.Is4() {
			h[10], h[11] = b[10], b[11] // the checksum is the kernel's to make
		}
		require.Equal(t, b[:n], h)
		require.True(t, crc.Check(append(h, b[n:]...)))
	}
}

// TestIdentificationOfTheKernel finds the identifications that the kernel's driver
// gave its packets, of which the socket sees only the UDP payload.
func TestIdentificationOfTheKernel(t *testing.T) {
	for _, name := range []string{"rc-send", "rc-write-mtu256", "rc-read-mtu4096", "ud", "rc-atomic"} {
		r, err := capture.Open("../../fuzz/captures/"+name+".pcap", nil)
		require.NoError(t, err)
		defer r.Close()
		seen := map[uint16]bool{}
		for {
			var rec capture.Record
			err := r.Next(&rec)
			if err == io.EOF {
				break
			}
			require.NoError(t, err)
			b := rec.Data
			var f frame.Frame
			if (frame.Finder{}).Decode(frame.Ethernet, b, len(b), &f) != nil || f.Net != frame.IPv4 || f.CheckICRC() != frame.ICRCGood {
				continue
			}
			s := &judge{netip.AddrPortFrom(f.Src, f.SrcPort), netip.AddrPortFrom(f.Dst, f.DstPort), idFinder{spaces: map[int]*idSpace{}}}
			id, ok := s.judge(f.Transport)
			require.True(t, ok)
			require.Equal(t, f.ID, id)
			seen[id] = true
		}
		require.Greater(t, len(seen), 5, name)
	}
}
