package qp_test

import (
	"testing"
	"time"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/crc"
	"github.com/roce-go/roce/qp"
)

// BenchmarkMachines joins two QPs back to back without bytes, on one core:
// 64-byte RDMA WRITEs, 64 posted at a time. packets/s counts what NextPacket made
// and HandlePacket took: requests and acknowledgements. "coalesced" signals one
// WRITE in 64, which is acknowledged with those before it; "acked" signals each,
// and each has an acknowledgement of its own.
func BenchmarkMachines(b *testing.B) {
	for _, c := range []struct {
		name  string
		every int
	}{{"coalesced", 64}, {"acked", 1}} {
		b.Run("write64/"+c.name, func(b *testing.B) {
			j := newJoined(b, joinedConfig(), 1024, 4096)
			wr := qp.SendWR{Op: qp.OpWrite, Local: make([]byte, 64), RemoteAddr: joinedAddr, RKey: j.keys[1]}
			b.ReportAllocs()
			posts := 0
			for b.Loop() {
				for range 64 {
					posts++
					wr.Flags = 0
					if posts%c.every == 0 {
						wr.Flags = qp.Signaled
					}
					if err := j.q[0].PostSend(j.now, &wr); err != nil {
						b.Fatal(err)
					}
				}
				for j.carry(0) {
					if c.every == 1 {
						j.carry(1)
					}
				}
				for j.carry(1) {
				}
				if _, bad := j.completions(); bad != 0 || j.q[0].Outstanding() != 0 {
					b.Fatal("not complete")
				}
			}
			b.ReportMetric(float64(j.packets)/b.Elapsed().Seconds(), "packets/s")
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(j.packets), "ns/packet")
		})
	}
}

// BenchmarkBytes moves 1 MiB messages at a path MTU of 4096 between two QPs on
// one core, through frames: each packet is encoded with its ICRC, decoded, and
// its ICRC checked. Between any two messages it does what no way of doing that
// can do without: the same bytes copied into frames and out of them, and two
// passes of ICRC over them. "%limit" is that time in hundredths of ours, and
// "limit-MB/s" its rate.
func BenchmarkBytes(b *testing.B) {
	const size, mtu = 1 << 20, 4096
	for _, c := range []struct {
		name string
		op   qp.Op
	}{{"write1MiB", qp.OpWrite}, {"read1MiB", qp.OpRead}} {
		b.Run(c.name, func(b *testing.B) {
			j := newJoined(b, joinedConfig(), mtu, size)
			j.bytes = true
			wr := qp.SendWR{Op: c.op, Flags: qp.Signaled, Local: make([]byte, size), RemoteAddr: joinedAddr, RKey: j.keys[1]}

			ref := newJoined(b, joinedConfig(), mtu, size)
			ref.f.Packet = bth.Packet{Header: bth.Header{Opcode: 7, PKey: 0xffff, DestQP: 1}, Payload: make([]byte, mtu)}
			pkt := ref.f.AppendTo(nil)[14:]
			payload := pkt[len(pkt)-bth.ICRCSize-mtu:][:mtu]
			src, dst := make([]byte, size), make([]byte, size)

			var limit, ours time.Duration
			n := 0
			b.ReportAllocs()
			for b.Loop() {
				start := time.Now()
				for off := 0; off < size; off += mtu {
					copy(payload, src[off:])
					if made, checked := crc.Sum(pkt), crc.Sum(pkt); made != checked {
						b.Fatal()
					}
					copy(dst[off:], payload)
				}
				middle := time.Now()
				if err := j.q[0].PostSend(j.now, &wr); err != nil {
					b.Fatal(err)
				}
				j.settle()
				if n, bad := j.completions(); n != 1 || bad != 0 {
					b.Fatal("not complete")
				}
				limit += middle.Sub(start)
				ours += time.Since(middle)
				n++
			}
			b.ReportMetric(100*float64(limit)/float64(ours), "%limit")
			b.ReportMetric(float64(n)*size/1e6/ours.Seconds(), "MB/s")
			b.ReportMetric(float64(n)*size/1e6/limit.Seconds(), "limit-MB/s")
		})
	}
}
