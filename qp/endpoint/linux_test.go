//go:build linux

package endpoint_test

import (
	"bytes"
	"context"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/crc"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/endpoint"
	"github.com/roce-go/roce/qp/internal/testenv"
	"github.com/roce-go/roce/qp/softnic"
)

func ip(t testing.TB, args string) error {
	out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
	if err != nil {
		t.Logf("ip %s: %s", args, out)
	}
	return err
}

// linkName returns the name of an interface that no other run of the tests has, nor an
// earlier test: package net remembers the index of a zone for a minute.
func linkName() string {
	return fmt.Sprintf("roce%x%x", os.Getpid(), links.Add(1)) // 15 bytes at most
}

var links atomic.Uint32

// tapped opens a TAP interface and a packet socket on it, or skips the test.
func tapped(t *testing.T) (a, b *endpoint.Endpoint, name string) {
	goroutines(t)
	name = linkName()
	if ip(t, "tuntap add mode tap name "+name) != nil {
		t.Skip("no TAP interface can be created here")
	}
	t.Cleanup(func() { _ = ip(t, "link del "+name) })
	require.NoError(t, ip(t, "link set "+name+" mtu 1500 up"))
	a, err := endpoint.Open(endpoint.TAP(name, netip.MustParseAddr("198.18.9.1")))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, a.Close()) })
	b, err = endpoint.Open(endpoint.Packet(name, netip.MustParseAddr("198.18.9.2")))
	require.NoError(t, err)
	t.Cleanup(func() { require.NoError(t, b.Close()) })
	return a, b, name
}

// An interface that goes down for a moment: connections survive it.
func TestInterfaceDown(t *testing.T) {
	a, b, name := tapped(t)
	require.Equal(t, 1024, a.PathMTU())
	x, y := joined(t, a, b, nil)
	ctx, buf := limit(t), make([]byte, 65536)
	say := func(what string) {
		require.NoError(t, x.Send(ctx, []byte(what)))
		n, err := y.Recv(ctx, buf)
		require.NoError(t, err)
		require.Equal(t, what, string(buf[:n]))
		require.NoError(t, y.Send(ctx, []byte(what)))
		_, err = x.Recv(ctx, buf)
		require.NoError(t, err)
	}
	say("before")
	require.NoError(t, ip(t, "link set "+name+" down"))
	sent := make(chan error, 1)
	go func() { sent <- x.Send(ctx, []byte("while it is down")) }()
	time.Sleep(300 * time.Millisecond)
	require.NoError(t, ip(t, "link set "+name+" up"))
	require.NoError(t, <-sent)
	n, err := y.Recv(ctx, buf)
	require.NoError(t, err)
	require.Equal(t, "while it is down", string(buf[:n]))
	say("after")
}

// veth opens packet sockets on the ends of a veth pair, with IPv4 addresses if none are
// given, or skips the test.
func veth(t testing.TB, addrs ...string) (a, b *endpoint.Endpoint) {
	goroutines(t)
	name := linkName()
	if ip(t, "link add "+name+"a type veth peer name "+name+"b") != nil {
		t.Skip("no veth pair can be created here")
	}
	t.Cleanup(func() { _ = ip(t, "link del "+name+"a") })
	open := func(end, addr string) *endpoint.Endpoint {
		require.NoError(t, ip(t, "link set "+name+end+" mtu 4200 up"))
		e, err := endpoint.Open(endpoint.Packet(name+end, netip.MustParseAddr(addr)))
		require.NoError(t, err)
		t.Cleanup(func() { require.NoError(t, e.Close()) })
		return e
	}
	if addrs == nil {
		addrs = []string{"198.18.10.1", "198.18.10.2"}
	}
	return open("a", addrs[0]), open("b", addrs[1])
}

// Over IPv6 a packet wire hands the kernel many packets as one frame, and splits such a frame
// when it receives one, from a UDP socket, too.
func TestPacketJoined(t *testing.T) {
	for _, wire := range []string{"packet", "udp"} {
		t.Run(wire, func(t *testing.T) {
			goroutines(t)
			name := linkName()
			if ip(t, "link add "+name+"a type veth peer name "+name+"b") != nil {
				t.Skip("no veth pair can be created here")
			}
			t.Cleanup(func() { _ = ip(t, "link del "+name+"a") })
			for _, end := range []string{"a", "b"} {
				require.NoError(t, ip(t, "link set "+name+end+" mtu 4200 up"))
			}
			v6 := fmt.Sprintf("fd78::%x:", os.Getpid()&0xffff)
			var from endpoint.Wire
			if wire == "udp" {
				require.NoError(t, ip(t, "addr add "+v6+"1/64 dev "+name+"a nodad"))
				from = endpoint.UDP(v6 + "1")
			} else {
				from = endpoint.Packet(name+"a", netip.MustParseAddr(v6+"1"))
			}
			a, err := endpoint.Open(from)
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, a.Close()) })
			b, err := endpoint.Open(endpoint.Packet(name+"b", netip.MustParseAddr(v6+"2")))
			require.NoError(t, err)
			t.Cleanup(func() { require.NoError(t, b.Close()) })
			received := func() uint64 {
				n, err := os.ReadFile("/sys/class/net/" + name + "b/statistics/rx_packets")
				require.NoError(t, err)
				v, err := strconv.ParseUint(strings.TrimSpace(string(n)), 10, 64)
				require.NoError(t, err)
				return v
			}
			x, _ := joined(t, a, b, nil)
			require.Equal(t, 4096, a.PathMTU())
			mr, err := b.Register(make([]byte, 1<<20), qp.RemoteWrite|qp.RemoteRead)
			require.NoError(t, err)
			var seen bytes.Buffer
			require.NoError(t, b.Capture(&seen))
			frames, packets := received(), b.Metrics().Port.RxFrames
			for _, n := range []int{1 << 20, 1<<20 - 1, 4096, 5000, 8192, 1} {
				data := random(n, uint64(n))
				require.NoError(t, x.WriteRemote(limit(t), mr.Remote(), data))
				b.Do(func(time.Time, *softnic.Port) { require.Equal(t, data, mr.Bytes()[:n]) })
				back := make([]byte, n)
				require.NoError(t, x.ReadRemote(limit(t), back, mr.Remote()))
				require.Equal(t, data, back)
			}
			frames, packets = received()-frames, b.Metrics().Port.RxFrames-packets
			require.Less(t, 3*frames, packets, "frames of the link, and packets in them")
			require.Zero(t, b.Metrics().Port.RxICRCEncapsulated)
			require.Zero(t, x.Counters().Retransmitted)
			// The packets that a capture has are those that would have been there without.
			require.NoError(t, b.Capture(nil))
			r, err := capture.NewReader(&seen)
			require.NoError(t, err)
			var rec capture.Record
			var f frame.Frame
			n := 0
			for ; r.Next(&rec) == nil; n++ {
				if f.Decode(frame.Ethernet, rec.Data) == frame.ErrNotRoCE {
					continue // the host's own
				}
				require.Equal(t, frame.ICRCGood, f.CheckICRC())
				require.NotEqual(t, frame.ChecksumBad, f.CheckUDP())
			}
			require.Greater(t, n, 1000)
		})
	}
}

// The kernel takes a frame's VLAN tag out; a packet wire has it.
func TestPacketVLAN(t *testing.T) {
	a, b := veth(t)
	var seen bytes.Buffer
	require.NoError(t, b.Capture(&seen))
	const tag = 5<<13 | 7
	x, y := joined(t, a, b, &endpoint.ConnConfig{VLAN: tag, HasVLAN: true})
	mr, err := b.Register(make([]byte, 1<<20), qp.RemoteWrite)
	require.NoError(t, err)
	data := random(1<<20, 3)
	require.NoError(t, x.WriteRemote(limit(t), mr.Remote(), data))
	b.Do(func(time.Time, *softnic.Port) { require.Equal(t, data, mr.Bytes()) })
	require.NoError(t, y.Err())
	require.NoError(t, b.Capture(nil))
	r, err := capture.NewReader(&seen)
	require.NoError(t, err)
	tagged := 0
	var rec capture.Record
	var f frame.Frame
	for r.Next(&rec) == nil {
		if f.Decode(frame.Ethernet, rec.Data) == nil && f.Src == a.Addrs()[0] {
			require.EqualValues(t, 1, f.VLANs)
			require.EqualValues(t, tag, f.VLAN[0].TCI)
			tagged++
		}
	}
	require.Greater(t, tagged, 256)
}

// A link whose MTU becomes smaller loses packets. Whoever waits for other things waits
// on, what is posted goes on when the MTU is back, and the error says what it was when it
// is not.
func TestSmallerMTU(t *testing.T) {
	a, b, name := tapped(t)
	x, _ := joined(t, b, a, nil)
	mr, err := a.Register(make([]byte, 4096), qp.RemoteWrite)
	require.NoError(t, err)
	write := func(x *endpoint.Conn) chan error {
		done := make(chan error, 1)
		go func() { done <- x.WriteRemote(limit(t), mr.Remote(), make([]byte, 4096)) }()
		return done
	}
	require.NoError(t, ip(t, "link set "+name+" mtu 800"))
	done := write(x)
	never := func(time.Time, *softnic.Port) bool { return false }
	ctx, cancel := context.WithTimeout(context.Background(), 700*time.Millisecond)
	defer cancel()
	require.ErrorIs(t, b.Wait(ctx, never), context.DeadlineExceeded)
	require.NotZero(t, b.Metrics().Endpoint.TooLong)
	require.NoError(t, ip(t, "link set "+name+" mtu 1500"))
	require.NoError(t, <-done)

	x, err = b.Dial(limit(t), addr(a), &endpoint.ConnConfig{RetryCnt: 1})
	require.NoError(t, err)
	require.NoError(t, ip(t, "link set "+name+" mtu 800"))
	err = <-write(x)
	require.ErrorIs(t, err, syscall.ETIMEDOUT)
	require.ErrorContains(t, err, "larger than the link's MTU")
}

// An endpoint that looks for packets without sleeping does what another does, sleeps when
// nothing has come for a while, and ends.
func TestBusyPoll(t *testing.T) {
	a, b := two(t, "udp", endpoint.Config{BusyPoll: 20 * time.Millisecond})
	x, y := joined(t, a, b, nil)
	buf := make([]byte, 10)
	for i := range 20 {
		require.NoError(t, x.Send(limit(t), []byte("there")))
		_, err := y.Recv(limit(t), buf)
		require.NoError(t, err)
		require.NoError(t, y.Send(limit(t), []byte("and back")))
		_, err = x.Recv(limit(t), buf)
		require.NoError(t, err)
		if i == 10 {
			time.Sleep(100 * time.Millisecond)
		}
	}
	time.Sleep(100 * time.Millisecond)
	before := testenv.CPUTime()
	time.Sleep(200 * time.Millisecond)
	require.Less(t, testenv.CPUTime()-before, 150*time.Millisecond, "it sleeps")
}

// UDP checksum 0 over IPv6, as the Linux driver sends it (UDP_NO_CHECK6_TX).
func TestChecksum0(t *testing.T) {
	goroutines(t)
	e, err := endpoint.Open(endpoint.UDP("::1"))
	if err != nil {
		t.Skip(err)
	}
	defer e.Close()
	c, err := net.ListenUDP("udp6", &net.UDPAddr{IP: net.IPv6loopback})
	require.NoError(t, err)
	defer c.Close()
	raw, err := c.SyscallConn()
	require.NoError(t, err)
	require.NoError(t, raw.Control(func(fd uintptr) {
		err = syscall.SetsockoptInt(int(fd), syscall.IPPROTO_UDP, 101, 1)
	}))
	require.NoError(t, err)
	_, err = c.WriteToUDPAddrPort(make([]byte, 64), netip.MustParseAddrPort("[::1]:4791"))
	require.NoError(t, err)
	require.Eventually(t, func() bool { return e.Metrics().Port.RxFrames == 1 }, 5*time.Second, time.Millisecond)
}

// What a socket has no room for is counted: none of the packets is neither
// received nor dropped.
func TestDropped(t *testing.T) {
	requireAll := func(e *endpoint.Endpoint, sent uint64) {
		require.Eventually(t, func() bool {
			m := e.Metrics()
			return m.Endpoint.Dropped != 0 && m.Port.RxFrames+m.Endpoint.Dropped >= sent
		}, 10*time.Second, time.Millisecond)
		var b strings.Builder
		m := e.Metrics()
		require.NoError(t, m.WriteOpenMetrics(&b))
		require.Contains(t, b.String(), fmt.Sprintf("roce_endpoint_dropped_total %d\n", m.Endpoint.Dropped))
		require.NotZero(t, m.Port.RxFrames)
	}
	t.Run("udp", func(t *testing.T) {
		a, _ := two(t, "udp", endpoint.Config{})
		c, err := net.Dial("udp", host(1)+":4791")
		require.NoError(t, err)
		defer c.Close()
		const sent = 20_000
		a.Do(func(time.Time, *softnic.Port) { // nothing is read meanwhile
			for range sent {
				_, err = c.Write(make([]byte, 1000))
				require.NoError(t, err)
			}
		})
		requireAll(a, sent)
		m := a.Metrics()
		require.EqualValues(t, sent, m.Port.RxFrames+m.Endpoint.Dropped)
		require.NoError(t, a.Close())
		require.Equal(t, m.Endpoint.Dropped, a.Metrics().Endpoint.Dropped, "after Close, too")
	})
	t.Run("packet", func(t *testing.T) {
		a, b := veth(t)
		const sent = 30_000
		frame := make([]byte, 60)
		copy(frame[12:], []byte{0x88, 0xb5}) // of no protocol
		b.Do(func(time.Time, *softnic.Port) {
			for range sent {
				require.NoError(t, a.Inject(frame))
			}
		})
		requireAll(b, sent)
		m := b.Metrics()
		require.Less(t, m.Endpoint.Dropped, uint64(sent))
		require.Equal(t, m.Endpoint.Dropped, b.Metrics().Endpoint.Dropped, "the kernel forgets its count, the endpoint does not")
		require.NoError(t, b.Close())
		require.Equal(t, m.Endpoint.Dropped, b.Metrics().Endpoint.Dropped, "after Close, too")
	})
}

// Connections over link-local addresses, with their zone.
func TestLinkLocal(t *testing.T) {
	name := linkName()
	goroutines(t)
	if ip(t, "tuntap add mode tap name "+name) != nil {
		t.Skip("no interface can be created here")
	}
	defer func() { _ = ip(t, "link del "+name) }()
	for _, s := range []string{"link set " + name + " up", "addr add fe80::9:1/64 dev " + name + " nodad", "addr add fe80::9:2/64 dev " + name + " nodad"} {
		require.NoError(t, ip(t, s))
	}
	a, err := endpoint.Open(endpoint.UDP("fe80::9:1%" + name))
	require.NoError(t, err)
	defer a.Close()
	b, err := endpoint.Open(endpoint.UDP("fe80::9:2%" + name))
	require.NoError(t, err)
	defer b.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	_, err = b.Listen(ctx, ":7174", nil)
	require.NoError(t, err)
	c, err := a.Dial(ctx, "[fe80::9:2%"+name+"]:7174", nil)
	require.NoError(t, err)
	require.NoError(t, c.Send(ctx, []byte("hello")))
}

// BenchmarkFlood measures what a frame of each flood costs the processor, beside one of a
// connection's own with 4 KiB at both ends, and with how many frames a second 90 % of one
// processor is left. Processor time, not the clock's: other programs do not count.
func BenchmarkFlood(b *testing.B) {
	for name, source := range floods {
		b.Run(name, func(b *testing.B) {
			x, y := two(b, "memory", endpoint.Config{})
			_, c := joined(b, x, y, nil)
			next := source(b, y, c)
			frames := make([][]byte, 4096)
			for i := range frames {
				frames[i] = bytes.Clone(next())
			}
			start, n := testenv.CPUTime(), 0
			for b.Loop() {
				y.Do(func(now time.Time, p *softnic.Port) {
					for range 64 {
						p.HandleFrame(now, frames[n%len(frames)])
						n++
					}
				})
			}
			ns := float64(testenv.CPUTime()-start) / float64(n)
			b.ReportMetric(ns, "cpu-ns/frame")
			b.ReportMetric(0.1e9/ns, "frames/s-at-90%")
		})
	}
	b.Run("data", func(b *testing.B) {
		x, y := two(b, "memory", endpoint.Config{})
		c, _ := joined(b, x, y, nil)
		mr, err := y.Register(make([]byte, 1<<20), qp.RemoteWrite)
		require.NoError(b, err)
		data := make([]byte, 1<<20)
		start := testenv.CPUTime()
		for b.Loop() {
			require.NoError(b, c.WriteRemote(context.Background(), mr.Remote(), data))
		}
		b.ReportMetric(float64(testenv.CPUTime()-start)/float64(b.N)/256, "cpu-ns/frame")
	})
}

// Datagrams that the kernel takes apart: what one wire sends the other takes, over IPv4
// and IPv6, with lengths that do and do not fill a packet; and the
// identifications that the ICRCs reveal show that the kernel split some.
func TestJoined(t *testing.T) {
	v6 := fmt.Sprintf("fd77::%x:", os.Getpid()&0xffff) // another run of this test may be under way
	for _, hosts := range [][2]string{{host(3), host(4)}, {v6 + "1", v6 + "2"}} {
		goroutines(t)
		if hosts[0] == v6+"1" {
			for _, h := range hosts {
				if ip(t, "addr add "+h+"/128 dev lo") != nil {
					t.Skip("no address can be added here")
				}
				t.Cleanup(func() { _ = ip(t, "addr del "+h+"/128 dev lo") })
			}
		}
		a, err := endpoint.Open(endpoint.UDP(hosts[0]))
		if err != nil {
			t.Skip(err)
		}
		defer a.Close()
		b, err := endpoint.Open(endpoint.UDP(hosts[1]))
		require.NoError(t, err)
		defer b.Close()
		x, y := joined(t, a, b, nil)
		ctx := limit(t)
		mr, err := b.Register(make([]byte, 1<<20), qp.RemoteWrite|qp.RemoteRead)
		require.NoError(t, err)
		var seen bytes.Buffer
		require.NoError(t, b.Capture(&seen))
		for _, n := range []int{1, 4096, 4097, 65536, 100_000, 1 << 20} {
			data := random(n, uint64(n))
			require.NoError(t, x.WriteRemote(ctx, mr.Remote(), data))
			b.Do(func(time.Time, *softnic.Port) { require.Equal(t, data, mr.Bytes()[:n]) })
			got := make([]byte, n)
			require.NoError(t, x.ReadRemote(ctx, got, mr.Remote()))
			require.Equal(t, data, got)
		}
		require.NoError(t, y.Err())
		require.Zero(t, b.Metrics().Port.RxICRCEncapsulated)
		require.NoError(t, b.Capture(nil))
		r, err := capture.NewReader(&seen)
		require.NoError(t, err)
		counted, packets := 0, 0
		var rec capture.Record
		var f frame.Frame
		for r.Next(&rec) == nil {
			packets++
			if (frame.Finder{}).Find(frame.Ethernet, rec.Data, len(rec.Data), &f) == nil && f.ID != 0 && f.Src == a.Addrs()[0] {
				counted++
			}
		}
		require.NotZero(t, packets)
		if f.Net == frame.IPv4 {
			require.NotZero(t, counted, "no packet but the first of a datagram came")
		}
	}
}

// BenchmarkWrite measures RDMA WRITEs of 1 MiB, 16 outstanding, between two endpoints,
// in memory, over two UDP sockets of the loopback and over a pair of interfaces, where
// packets over IPv6 are joined; and beside them what the same packets cost over two plain UDP sockets, with a copy and an
// ICRC at each end, many packets a system call and one.
func BenchmarkWrite(b *testing.B) {
	const size = 1 << 20
	for _, wire := range []string{"memory", "udp", "packet", "packet-ipv6"} {
		b.Run(wire, func(b *testing.B) {
			var x, y *endpoint.Endpoint
			switch wire {
			case "packet":
				x, y = veth(b)
			case "packet-ipv6":
				x, y = veth(b, "fd79::1", "fd79::2")
			default:
				x, y = two(b, wire, endpoint.Config{})
			}
			c, _ := joined(b, x, y, &endpoint.ConnConfig{SendDepth: 16})
			mr, err := y.Register(make([]byte, size), qp.RemoteWrite)
			require.NoError(b, err)
			data := make([]byte, size)
			b.SetBytes(size)
			start := testenv.CPUTime()
			defer perCore(b, size, start)
			var wg sync.WaitGroup
			gate := make(chan struct{}, 16)
			for b.Loop() {
				gate <- struct{}{}
				wg.Add(1)
				err := c.Post(qp.SendWR{Op: qp.OpWrite, Local: data, RemoteAddr: mr.Addr(), RKey: mr.RKey()}, func(wc qp.Completion) {
					if wc.Status != qp.Success {
						b.Error(wc.Status)
					}
					<-gate
					wg.Done()
				})
				require.NoError(b, err)
			}
			wg.Wait()
		})
	}
	for name, most := range map[string]int{"reference": 15, "reference-single": 1} {
		b.Run(name, func(b *testing.B) { reference(b, size, most) })
	}
}

// reference moves size bytes in packets of 4 KiB over two plain UDP sockets, with a copy
// and an ICRC at each end. As many as most packets are one datagram to the kernel, which
// takes it apart and joins it.
func reference(b *testing.B, size, most int) {
	const (
		payload = 4096
		bth     = 12
		packet  = bth + payload + 4
		headers = 20 + 8 // IP and UDP, which the ICRC covers
		solUDP  = 17     // SOL_UDP, UDP_SEGMENT and UDP_GRO
		segment = 103
		joins   = 104
	)
	open := func(a string) *net.UDPConn {
		c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(a)))
		require.NoError(b, err)
		raw, err := c.SyscallConn()
		require.NoError(b, err)
		require.NoError(b, raw.Control(func(fd uintptr) {
			const force = 33 // SO_RCVBUFFORCE
			_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, syscall.SO_RCVBUF, 4<<20)
			_ = syscall.SetsockoptInt(int(fd), syscall.SOL_SOCKET, force, 4<<20)
			if most > 1 {
				err = syscall.SetsockoptInt(int(fd), solUDP, joins, 1)
			}
			if most > 1 && err == nil {
				err = syscall.SetsockoptInt(int(fd), solUDP, segment, packet)
			}
		}))
		require.NoError(b, err)
		return c
	}
	// icrc returns the ICRC of the packet behind the first bytes of p, which it leaves as
	// they are.
	icrc := func(p []byte) uint32 {
		before := [headers]byte(p)
		clear(p[:headers])
		p[0] = 0x45
		sum := crc.Sum(p[:headers+bth+payload])
		copy(p, before[:])
		return sum
	}
	tx, rx := open(host(1)+":4791"), open(host(2)+":4791")
	defer tx.Close()
	window, done := make(chan struct{}, 16), make(chan struct{}) // datagrams on the way
	go func() {
		defer close(done)
		sink, buf := make([]byte, payload), make([]byte, headers+1<<16)
		for rest := most; ; {
			n, _, err := rx.ReadFromUDPAddrPort(buf[headers:])
			if err != nil {
				return
			}
			for p := buf[:headers+n]; len(p) >= headers+packet; p = p[packet:] {
				if icrc(p) != binary.LittleEndian.Uint32(p[headers+bth+payload:]) {
					b.Error("a wrong ICRC")
				}
				copy(sink, p[headers+bth:])
				if rest--; rest == 0 {
					<-window
					rest = most
				}
			}
		}
	}()
	data, pkts := make([]byte, size), make([]byte, headers+most*packet)
	to := netip.MustParseAddrPort(host(2) + ":4791")
	b.SetBytes(int64(size))
	start, off := testenv.CPUTime(), 0
	for b.Loop() {
		for off < size {
			for p := pkts; len(p) > headers; p = p[packet:] {
				copy(p[headers+bth:], data[off%size:])
				binary.LittleEndian.PutUint32(p[headers+bth+payload:], icrc(p))
				off += payload
			}
			window <- struct{}{}
			_, err := tx.WriteToUDPAddrPort(pkts[headers:], to)
			require.NoError(b, err)
		}
		off -= size
	}
	perCore(b, size, start)
	rx.Close()
	<-done
}

// perCore reports the bytes that a second of processor time moved: other programs do not
// count.
func perCore(b *testing.B, size int, start time.Duration) {
	b.ReportMetric(float64(b.N)*float64(size)/float64(testenv.CPUTime()-start), "GB/cpu-s")
}
