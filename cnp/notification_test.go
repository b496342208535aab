package cnp_test

import (
	"encoding"
	"encoding/hex"
	"io"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/cnp"
	"github.com/roce-go/roce/psn"
)

func newNP(t testing.TB, scope cnp.Scope, gap uint32, flows int) *cnp.NotificationPoint {
	t.Helper()
	p := cnp.Paper()
	p.CnpScope, p.MinTimeBetweenCnps = scope, gap
	n, err := cnp.NewNotificationPoint(p, flows)
	require.NoError(t, err)
	return n
}

func marked(src, dst string) *cnp.Arrival {
	return &cnp.Arrival{Src: netip.MustParseAddr(src), Dst: netip.MustParseAddr(dst), Opcode: bth.RCSendOnly, ECN: cnp.CE}
}

// Gap 50 us, marks at 0, 10, 49, 55, 60, 120 us give CNPs at 0, 55, 120.
// Rule NP-2.
func TestGap(t *testing.T) {
	for scope := cnp.ScopeQP; scope <= cnp.ScopePort; scope++ {
		n := newNP(t, scope, 50, 0)
		var g cnp.Gate
		var sent []int
		for _, at := range []int{0, 10, 49, 55, 60, 120} {
			if n.HandlePacket(us(float64(at)), marked("192.0.2.1", "192.0.2.2"), &g) {
				sent = append(sent, at)
			}
		}
		require.Equal(t, []int{0, 55, 120}, sent, scope)
		require.EqualValues(t, 6, n.NpEcnMarkedRocePackets)
		require.EqualValues(t, 3, n.NpCnpSent)
	}
}

// What counts as one flow is a setting.
// Rule NP-3.
func TestScopes(t *testing.T) {
	a, b, c := "192.0.2.1", "192.0.2.2", "2001:db8::3"
	for _, s := range []struct {
		scope cnp.Scope
		want  []bool
	}{
		{cnp.ScopeQP, []bool{true, true, false, true, true, false}},
		{cnp.ScopeAddressPair, []bool{true, false, false, true, true, false}},
		{cnp.ScopeDestination, []bool{true, false, false, false, true, false}},
		{cnp.ScopePort, []bool{true, false, false, false, false, false}},
	} {
		n := newNP(t, s.scope, 50, 0)
		gates := make([]cnp.Gate, 4)
		var got []bool
		for _, p := range []struct {
			qp       int
			src, dst string
		}{{0, a, b}, {1, a, b}, {0, a, b}, {2, a, c}, {3, c, b}, {3, c, b}} {
			got = append(got, n.HandlePacket(us(1), marked(p.src, p.dst), &gates[p.qp]))
		}
		require.Equal(t, s.want, got, s.scope)
		require.Zero(t, n.Evictions)
	}
}

// Rule NP-1.
func TestAsksForCNP(t *testing.T) {
	asks := map[bth.Opcode]bool{
		bth.RCSendOnly: true, bth.RCWriteFirst: true, bth.RCReadResponseMiddle: true, bth.UCWriteOnly: true,
		bth.UDSendOnly: true, bth.XRC.Opcode(bth.SendOnly): true, bth.RCSendLastInv: true,
		bth.RCAcknowledge: false, bth.CNP: false, bth.RCReadRequest: false, bth.RCFetchAdd: false,
		bth.RCAtomicAcknowledge: false, bth.Opcode(0xc4): false,
	}
	for op, want := range asks {
		for ecn := range uint8(8) {
			a := cnp.Arrival{Opcode: op, ECN: ecn}
			require.Equal(t, want && ecn&3 == 3, a.AsksForCNP(), "%v %d", op, ecn)
			a.Multicast = true
			require.False(t, a.AsksForCNP())
		}
	}
	// Marked packets are counted even when they call for nothing.
	n := newNP(t, cnp.ScopePort, 0, 0)
	require.False(t, n.HandlePacket(us(0), &cnp.Arrival{Opcode: bth.RCAcknowledge, ECN: cnp.CE}, nil))
	require.False(t, n.HandlePacket(us(0), &cnp.Arrival{Opcode: bth.RCSendOnly, ECN: cnp.ECT0}, nil))
	require.True(t, n.HandlePacket(us(0), &cnp.Arrival{Opcode: bth.RCSendOnly, ECN: cnp.CE}, nil))
	require.True(t, n.HandlePacket(us(0), &cnp.Arrival{Opcode: bth.RCSendOnly, ECN: cnp.CE}, nil), "gap 0")
	require.EqualValues(t, 3, n.NpEcnMarkedRocePackets)
	require.EqualValues(t, 2, n.NpCnpSent)
}

// Against one map without bounds: with room for all flows the table is the same;
// without, it only ever sends more, and says that it lost a flow.
func TestPropTable(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := cnp.Paper()
		p.CnpScope = cnp.ScopeDestination
		flows := rapid.SampledFrom([]int{1, 5, 64, 4096}).Draw(t, "flows")
		n, err := cnp.NewNotificationPoint(p, flows)
		require.NoError(t, err)
		open := map[netip.Addr]time.Time{}
		now := t0
		rnd := rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 0))
		for range 500 {
			now = now.Add(time.Duration(rnd.IntN(4000)))
			src := netip.AddrFrom4([4]byte{10, 0, 0, byte(rnd.IntN(16))})
			got := n.HandlePacket(now, &cnp.Arrival{Src: src, Opcode: bth.RCSendOnly, ECN: cnp.CE}, nil)
			want := !now.Before(open[src])
			if want {
				require.True(t, got)
			}
			if got != want {
				require.NotZero(t, n.Evictions)
			}
			if got {
				open[src] = now.Add(50 * time.Microsecond)
			}
		}
		if flows == 4096 {
			require.Zero(t, n.Evictions)
		}
	})
}

// The table uses all its places: of as many flows as it is for, in one gap, four fifths keep
// theirs. With four places for a key, chance fills a set by one flow in five too many.
func TestTableIsUsedWhole(t *testing.T) {
	for _, flows := range []int{256, 1024, 4096} {
		n := newNP(t, cnp.ScopeAddressPair, 50, flows)
		for i := range flows {
			a := marked("192.0.2.1", "192.0.2.2")
			a.Src = netip.AddrFrom4([4]byte{10, 1, byte(i >> 8), byte(i)})
			require.True(t, n.HandlePacket(t0, a, nil))
		}
		require.InDelta(t, 0.2, float64(n.Evictions)/float64(flows), 0.1, "%d flows", flows)
	}
}

// A time before the latest one counts as the latest.
func TestNotificationTimeBackwards(t *testing.T) {
	n := newNP(t, cnp.ScopeQP, 50, 0)
	a := marked("192.0.2.1", "192.0.2.2")
	var g, h cnp.Gate
	n.HandlePacket(us(0), a, &h)
	require.True(t, n.HandlePacket(us(100), a, &g))
	require.True(t, n.HandlePacket(us(60), a, &h)) // at 100
	require.False(t, n.HandlePacket(us(120), a, &h))
	require.True(t, n.HandlePacket(us(150), a, &h))
}

func TestNotificationErrors(t *testing.T) {
	p := cnp.Paper()
	_, err := cnp.NewNotificationPoint(p, -1)
	require.ErrorIs(t, err, cnp.ErrParams)
	_, err = cnp.NewNotificationPoint(p, 1<<24+1)
	require.ErrorIs(t, err, cnp.ErrParams)
	p.CnpScope = 9
	_, err = cnp.NewNotificationPoint(p, 0)
	require.ErrorIs(t, err, cnp.ErrParams)
	n := newNP(t, cnp.ScopeAddressPair, 50, 1)
	require.True(t, n.HandlePacket(us(5), &cnp.Arrival{Opcode: bth.RCSendOnly, ECN: cnp.CE}, nil), "no addresses")
	require.False(t, n.HandlePacket(us(0), &cnp.Arrival{Opcode: bth.RCSendOnly, ECN: cnp.CE}, nil), "time backwards")
}

var (
	_ encoding.BinaryAppender    = (*cnp.Header)(nil)
	_ encoding.BinaryUnmarshaler = (*cnp.Header)(nil)
)

// k01 is a CNP that a ConnectX-4 Lx sent, as captured for Scapy's RoCE tests
// (test/contrib/roce.uts): Ethernet, IPv4 with DSCP 48, UDP from port 0, CNP, ICRC.
const k01 = "020000000002020000000001080045c2003c718c4000401191610a0011010a001201" +
	"000012b7002800008100ffff40000118000000000000000000000000000000000000000082fd002a"

func unhex(tb testing.TB, s string) []byte {
	tb.Helper()
	b, err := hex.DecodeString(s)
	require.NoError(tb, err)
	return b
}

// k01Packet returns the CNP of k01 without what is around it.
func k01Packet(tb testing.TB) []byte { b := unhex(tb, k01); return b[14+20+8 : len(b)-4] }

// Rule CN-1.
func TestGoldenK01(t *testing.T) {
	wire := k01Packet(t)
	require.Len(t, wire, cnp.Size)
	var h cnp.Header
	require.NoError(t, h.Decode(wire))
	require.Equal(t, cnp.Header{BTH: bth.Header{Opcode: bth.CNP, PKey: 0xffff, BECN: true, DestQP: 280}}, h)
	require.Equal(t, cnp.New(280, 0xffff), h)
	require.NoError(t, h.Validate())
	require.Equal(t, wire, h.AppendTo(nil))
	out := h.AppendTo([]byte{0xa5, 0xa5})
	require.Equal(t, []byte{0xa5, 0xa5}, out[:2])
	require.Equal(t, wire, out[2:])
}

func TestDecodeRefusals(t *testing.T) {
	wire := k01Packet(t)
	before := cnp.New(7, 8)
	h := before
	for n := range wire {
		err := h.Decode(wire[:n])
		require.ErrorIs(t, err, cnp.ErrTruncated)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
	}
	wire[0] = 0x80 // InfiniBand's CNP
	require.ErrorIs(t, h.Decode(wire), cnp.ErrOpcode)
	wire[0] = 0x81
	require.ErrorIs(t, h.UnmarshalBinary(append(wire, 0)), cnp.ErrLength)
	require.Equal(t, before, h)
	require.NoError(t, h.UnmarshalBinary(wire))
	require.NotEqual(t, before, h)
}

func TestValidate(t *testing.T) {
	h := cnp.New(1<<24, 0xffff)
	_, err := h.AppendBinary(nil)
	require.ErrorIs(t, err, bth.ErrRange)
	require.Len(t, h.AppendTo(nil), cnp.Size)
	h = cnp.New(1, 0xffff)
	h.BTH.Opcode = bth.RCSendOnly
	require.ErrorIs(t, h.Validate(), cnp.ErrOpcode)
}

func TestPropCodec(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b := rapid.SliceOfN(rapid.Byte(), cnp.Size, cnp.Size).Draw(t, "bytes")
		b[0] = 0x81
		var h, g cnp.Header
		require.NoError(t, h.UnmarshalBinary(b))
		out, err := h.AppendBinary(nil)
		require.NoError(t, err)
		require.Equal(t, b, out)

		h = cnp.New(rapid.Uint32Range(0, 1<<24-1).Draw(t, "qp"), rapid.Uint16().Draw(t, "pkey"))
		h.BTH.PSN = psn.PSN(rapid.SampledFrom([]uint32{0, 1 << 23, 1<<24 - 1}).Draw(t, "psn"))
		h.Reserved[rapid.IntRange(0, 15).Draw(t, "i")] = 0xff
		require.NoError(t, g.Decode(h.AppendTo(nil)))
		require.Equal(t, h, g)
	})
}
