package softnic_test

import (
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/crc"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/softnic"
)

// BenchmarkWrite moves WRITEs of 64 KiB between two ports, as frames with ICRC and
// decoded; beside it what no port can do without: copying the bytes, and making
// and checking the ICRC of each packet.
func BenchmarkWrite(b *testing.B) {
	const size, mtu = 64 << 10, 4096
	for _, qps := range []int{1, 100, 1000} {
		for _, way := range []string{"frames", "decoded"} {
			b.Run(fmt.Sprintf("%s/%d QPs", way, qps), func(b *testing.B) {
				p := newPair(b, [2]softnic.GID{addr("192.0.2.1"), addr("192.0.2.2")})
				mem, msg := make([]byte, size), make([]byte, size)
				key, err := p.regs[1].Register(qp.Region{Data: mem, Access: qp.RemoteWrite})
				require.NoError(b, err)
				var from []*softnic.QP

				for range qps {
					var pair [2]*softnic.QP
					for i := range pair {
						g, _ := p.ports[1-i].GID(0)
						n := uint32(0x11 + len(from))
						pair[i], _ = qpOf(b, p.ports[i], p.now, qp.RC, qp.AHAttr{GID: g, MAC: p.ports[1-i].MAC()}, func(c *softnic.QPConfig, a *qp.Attr) {
							c.QPN, a.DestQPN, a.PathMTU, a.MaxDestRdAtomic = n, n, mtu, 4
						})
					}
					from = append(from, pair[0])
				}
				buf := make([]byte, 0, 9000)
				f := new(frame.Frame)
				b.SetBytes(size)
				b.ReportAllocs()
				i := 0
				for b.Loop() {
					q := from[i%len(from)]
					i++
					must(b, q.PostSend(p.now, &qp.SendWR{Op: qp.OpWrite, Local: msg, RKey: key}))
					for moved := true; moved; {
						moved = false
						for k, port := range p.ports {
							if way == "decoded" {
								for port.NextDecoded(p.now, f) {
									p.ports[1-k].HandleDecoded(p.now, f)
									moved = true
								}
								continue
							}
							for {
								fr, ok := port.NextFrame(p.now, buf)
								if !ok {
									break
								}
								p.ports[1-k].HandleFrame(p.now, fr)
								moved = true
							}
						}
					}
					if q.Outstanding() != 0 {
						b.Fatal("not done")
					}
					p.now = p.now.Add(time.Microsecond)
				}
			})
		}
	}
	src, dst := make([]byte, size), make([]byte, size)
	b.Run("copy", func(b *testing.B) {
		b.SetBytes(size)
		for b.Loop() {
			copy(dst, src)
		}
	})
	b.Run("ICRC twice", func(b *testing.B) {
		b.SetBytes(size)
		pkt := make([]byte, 60+mtu)
		pkt[0] = 0x45
		for b.Loop() {
			for range 2 * size / mtu {
				crc.Sum(pkt)
			}
		}
	})
}
