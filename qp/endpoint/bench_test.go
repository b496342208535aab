//go:build linux

package endpoint_test

import (
	"context"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/crc"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/endpoint"
	"github.com/roce-go/roce/qp/internal/testenv"
)

// BenchmarkWrite measures RDMA WRITEs of 1 MiB, 16 outstanding, between two endpoints,
// in memory, over two UDP sockets of the loopback and over a pair of interfaces; and beside them what the same
// packets cost over two plain UDP sockets, with a copy and an ICRC at each end.
func BenchmarkWrite(b *testing.B) {
	const size = 1 << 20
	for _, wire := range []string{"memory", "udp", "packet"} {
		b.Run(wire, func(b *testing.B) {
			var x, y *endpoint.Endpoint
			if wire == "packet" {
				x, y = veth(b)
			} else {
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
	b.Run("reference", func(b *testing.B) {
		const payload = 4096
		open := func(a string) *net.UDPConn {
			c, err := net.ListenUDP("udp4", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(a)))
			require.NoError(b, err)
			_ = c.SetReadBuffer(4 << 20)
			return c
		}
		tx, rx := open(host(1)+":4791"), open(host(2)+":4791")
		defer tx.Close()
		ctx, cancel := context.WithCancel(context.Background())
		defer cancel()
		sink, window := make([]byte, payload), make(chan struct{}, 256)
		go func() {
			buf := make([]byte, 1<<16)
			for ctx.Err() == nil {
				n, _, err := rx.ReadFromUDPAddrPort(buf)
				if err != nil {
					return
				}
				crc.Sum(append(make([]byte, 0, 8192), ipHeader(buf[:n])...))
				copy(sink, buf[16:n])
				<-window
			}
		}()
		defer rx.Close()
		data, pkt := make([]byte, size), make([]byte, 0, 8192)
		to := netip.MustParseAddrPort(host(2) + ":4791")
		b.SetBytes(size)
		defer perCore(b, size, testenv.CPUTime())
		for b.Loop() {
			for off := 0; off < size; off += payload {
				pkt = append(pkt[:0], make([]byte, 28+16)...)
				pkt[0] = 0x45
				pkt = append(pkt, data[off:off+payload]...)
				crc.Sum(pkt)
				window <- struct{}{}
				_, _ = tx.WriteToUDPAddrPort(pkt[28:], to)
			}
		}
	})
}

// perCore reports the bytes that a second of processor time moved: other programs do not
// count.
func perCore(b *testing.B, size int, start time.Duration) {
	b.ReportMetric(float64(b.N)*float64(size)/float64(testenv.CPUTime()-start), "GB/cpu-s")
}

// ipHeader puts an IPv4 and a UDP header before a packet.
func ipHeader(b []byte) []byte {
	p := make([]byte, 28, 28+len(b))
	p[0] = 0x45
	return append(p, b...)
}
