//go:build linux

package endpoint_test

import (
	"encoding/binary"
	"net"
	"net/netip"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/crc"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/endpoint"
	"github.com/roce-go/roce/qp/internal/testenv"
)

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
