package endpoint_test

import (
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/cm"
	"github.com/roce-go/roce/qp/endpoint"
	"github.com/roce-go/roce/qp/softnic"
)

// An attacker who sees no packets, but forges the peer's address, has a million
// guesses: no memory changes, no connection ends. The guesses are the ones that
// published attacks make: QP numbers from 0x11 on, keys 0x101, 0x201 and so on, PSNs
// around 0; and random ones.
func TestBlindAttacker(t *testing.T) {
	a, b := two(t, "memory", endpoint.Config{})
	x, y := joined(t, a, b, nil)
	mr, err := b.Register(make([]byte, 4096), qp.RemoteWrite|qp.RemoteRead)
	require.NoError(t, err)
	guesses := 1_000_000
	if testing.Short() {
		guesses = 50_000
	}
	rng := rand.New(rand.NewPCG(5, 6))
	f := frame.Frame{Link: frame.Ethernet, SrcMAC: frame.MAC{2}, Net: frame.IPv4, DF: true, HopLimit: 64,
		Src: a.Addrs()[0], Dst: b.Addrs()[0], SrcPort: 50000, DstPort: 4791}
	data := []byte("overwritten by nobody")
	var buf []byte
	for i := 0; i < guesses; i += 1000 {
		b.Do(func(now time.Time, p *softnic.Port) {
			f.DstMAC = p.MAC()
			for k := range 1000 {
				qpn, key, at, va := rng.Uint32()&0xffffff, rng.Uint32(), rng.Uint32()&0xffffff, mr.Addr()
				if k%2 == 0 {
					qpn, key, at = uint32(0x11+k%64), uint32(1+k%64)<<8|1, uint32(k%16)
				}
				f.Packet = bth.Packet{Header: bth.Header{Opcode: bth.RCWriteOnly, PKey: 0xffff, DestQP: qpn, PSN: psn.PSN(at), AckReq: true}}
				f.Packet.RETH.VA, f.Packet.RETH.RKey, f.Packet.RETH.DMALen = va, key, uint32(len(data))
				f.Packet.SetPayload(data)
				buf = f.AppendTo(buf[:0])
				p.HandleFrame(now, buf)
			}
		})
	}
	require.Equal(t, make([]byte, 4096), mr.Bytes())
	m := b.Metrics()
	require.Zero(t, m.QPs.RespRemoteAccessErrors)
	require.Greater(t, m.Port.RxNoQP, uint64(guesses*9/10))
	require.NoError(t, y.Err())
	ctx := limit(t)
	require.NoError(t, x.WriteRemote(ctx, mr.Remote(), []byte("still works")))
}

// A flood of requests for connections does not harm those that are established.
func TestRequestFlood(t *testing.T) {
	a, b := two(t, "memory", endpoint.Config{})
	x, y := joined(t, a, b, nil)
	ctx := limit(t)
	captured := flood(t, b)
	before := b.Metrics().CM
	buf := make([]byte, 100)
	for range 200 {
		b.Do(func(now time.Time, p *softnic.Port) {
			for range 100 {
				p.HandleFrame(now, captured())
			}
		})
		require.NoError(t, x.Send(ctx, []byte("ping")))
		_, err := y.Recv(ctx, buf)
		require.NoError(t, err)
	}
	m := b.Metrics()
	require.Greater(t, m.CM.Rx, before.Rx+15000)
	require.LessOrEqual(t, m.HalfOpen, 256)
	require.LessOrEqual(t, m.Conns, 1+256, "bounded by the half-open calls")
}

// flood returns a source of REQs of ever other peers.
func flood(t testing.TB, e *endpoint.Endpoint) func() []byte {
	mac := frame.MAC{}
	e.Do(func(_ time.Time, p *softnic.Port) { mac = p.MAC() })
	n := uint32(0)
	return func() []byte {
		n++
		from := netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
		return reqFrame(t, mac, from, e.Addrs()[0], n)
	}
}

// reqFrame is a REQ as RDMA-CM sends it.
func reqFrame(t testing.TB, mac frame.MAC, from, to netip.Addr, n uint32) []byte {
	h, err := cm.NewCMAHeader(netip.AddrPortFrom(from, 40000), to)
	require.NoError(t, err)
	m := cm.Message{Header: cm.NewHeader(cm.AttrREQ, uint64(n)), REQ: cm.REQ{LocalCommID: n, LocalCAGUID: uint64(n),
		ServiceID: cm.IPServiceID(cm.ProtocolTCP, 7174), LocalQPN: n, PartitionKey: 0xffff, PathPacketPayloadMTU: cm.MTU256,
		LocalCMResponseTimeout: 20, RemoteCMResponseTimeout: 20, PrivateData: h.AppendTo(nil)}}
	f := frame.Frame{Link: frame.Ethernet, DstMAC: mac, SrcMAC: frame.MAC{2, 1}, Net: frame.IPv4, DF: true, HopLimit: 64,
		Src: from, Dst: to, SrcPort: 50000, DstPort: 4791}
	f.Packet = bth.Packet{Header: bth.Header{Opcode: bth.UDSendOnly, PKey: 0xffff, DestQP: 1},
		DETH: bth.DETH{QKey: softnic.GSIQKey, SrcQP: 1}}
	f.Packet.SetPayload(m.AppendTo(nil))
	return f.AppendTo(nil)
}

// Floods of requests for connections, of malformed datagrams to QP 1, of packets with
// wrong keys and of packets to queue pairs that are not there: a connection that stands
// loses nothing and has its data right. What a flood costs is BenchmarkFlood's.
func TestFloods(t *testing.T) {
	for name, source := range floods {
		t.Run(name, func(t *testing.T) {
			a, b := two(t, "memory", endpoint.Config{})
			x, y := joined(t, a, b, nil)
			frames := source(t, b, y)
			mr, err := b.Register(make([]byte, 1<<20), qp.RemoteWrite)
			require.NoError(t, err)
			ctx := limit(t)
			n := 40
			if testing.Short() {
				n = 8
			}
			for i := range n {
				data := random(1<<20, uint64(i))
				b.Do(func(now time.Time, p *softnic.Port) {
					for range 300 {
						p.HandleFrame(now, frames())
					}
				})
				require.NoError(t, x.WriteRemote(ctx, mr.Remote(), data))
				require.Equal(t, data, mr.Bytes())
			}
			m := b.Metrics()
			require.NoError(t, y.Err())
			if c := x.Counters(); c.LocalAckTimeoutErr == 0 { // a machine with much else to do
				require.Zero(t, c.Retransmitted, "nothing is lost to the flood")
			}
			require.Zero(t, y.Counters().OutOfSequence, "nothing is lost to the flood")
			require.LessOrEqual(t, m.Conns, 1+256)
		})
	}
}

// floods are sources of unwanted frames to an endpoint.
var floods = map[string]func(t testing.TB, e *endpoint.Endpoint, c *endpoint.Conn) func() []byte{
	"REQs": func(t testing.TB, e *endpoint.Endpoint, _ *endpoint.Conn) func() []byte { return flood(t, e) },
	"QP 1": func(t testing.TB, e *endpoint.Endpoint, _ *endpoint.Conn) func() []byte {
		return strange(t, e, 1, func(k *bth.Packet, n uint32) {
			k.Opcode, k.DETH = bth.UDSendOnly, bth.DETH{QKey: softnic.GSIQKey, SrcQP: n & 0xffffff}
			k.SetPayload(make([]byte, 256))
		})
	},
	"wrong keys": func(t testing.TB, e *endpoint.Endpoint, c *endpoint.Conn) func() []byte {
		return strange(t, e, c.QP(), func(k *bth.Packet, n uint32) {
			k.Opcode, k.PSN, k.AckReq = bth.RCWriteOnly, psn.PSN(n*7919&0xffffff), true
			k.RETH.VA, k.RETH.RKey, k.RETH.DMALen = uint64(n), n*0x9e3779b1, 16
			k.SetPayload(make([]byte, 16))
		})
	},
	"no queue pair": func(t testing.TB, e *endpoint.Endpoint, _ *endpoint.Conn) func() []byte {
		return strange(t, e, 0x777777, func(k *bth.Packet, n uint32) {
			k.Opcode, k.DestQP = bth.RCWriteOnly, n&0xffffff|2
			k.SetPayload(make([]byte, 1024))
		})
	},
}

// strange returns a source of packets of 10.x.y.z to a queue pair.
func strange(t testing.TB, e *endpoint.Endpoint, dest uint32, set func(k *bth.Packet, n uint32)) func() []byte {
	f := frame.Frame{Link: frame.Ethernet, SrcMAC: frame.MAC{2, 9}, Net: frame.IPv4, DF: true, HopLimit: 64,
		Dst: e.Addrs()[0], SrcPort: 50000, DstPort: 4791}
	e.Do(func(_ time.Time, p *softnic.Port) { f.DstMAC = p.MAC() })
	n := uint32(0)
	var buf []byte
	return func() []byte {
		n++
		f.Src = netip.AddrFrom4([4]byte{10, byte(n >> 16), byte(n >> 8), byte(n)})
		f.Packet = bth.Packet{Header: bth.Header{PKey: 0xffff, DestQP: dest}}
		set(&f.Packet, n)
		buf = f.AppendTo(buf[:0])
		return buf
	}
}
