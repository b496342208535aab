package conform_test

import (
	"hash/crc32"
	"slices"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/crc"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp/conform"
)

// stream makes n messages of three packets of 1 KiB, each acknowledged, of one
// connection, from the first SEND of rc-mixed.
func stream(tb testing.TB, n int) [][]byte {
	base := load(tb, "rc-mixed")
	var out [][]byte
	var req, ack frame.Frame
	require.NoError(tb, req.Decode(frame.Ethernet, base[8].data))
	require.NoError(tb, ack.Decode(frame.Ethernet, base[11].data))
	p := psn.PSN(0xfffff0)
	for i := range n {
		for j, op := range []bth.Opcode{bth.RCSendFirst, bth.RCSendMiddle, bth.RCSendLast} {
			req.Packet.Opcode, req.Packet.PSN, req.Packet.AckReq = op, p, j == 2
			req.ID++
			out = append(out, req.AppendTo(nil))
			p = p.Add(1)
		}
		ack.Packet.PSN, ack.Packet.AETH.MSN = p.Add(-1), uint32(i+1)&psn.Mask
		ack.ID++
		out = append(out, ack.AppendTo(nil))
	}
	return out
}

// BenchmarkHandleFrame is the time of a frame of a mix of three data packets of
// 1 KiB and one acknowledgement; ICRC and CRC-32C alone and Decode alone are for
// comparison.
func BenchmarkHandleFrame(b *testing.B) {
	frames := stream(b, 4096)
	size := 0
	for _, f := range frames {
		size += len(f)
	}
	size /= len(frames)
	b.Run("watch", func(b *testing.B) {
		w, err := conform.New(conform.Config{})
		require.NoError(b, err)
		var f conform.Finding
		b.ReportAllocs()
		b.SetBytes(int64(size))
		now := time.Unix(1, 0)
		i := 0
		for b.Loop() {
			if i == len(frames) {
				b.StopTimer() // PSNs begin again
				w, err = conform.New(conform.Config{})
				require.NoError(b, err)
				i = 0
				b.StartTimer()
			}
			now = now.Add(time.Microsecond)
			w.HandleFrame(now, frame.Ethernet, frames[i], len(frames[i]))
			for w.NextFinding(&f) {
			}
			i++
		}
	})
	b.Run("decode", func(b *testing.B) {
		b.SetBytes(int64(size))
		var f frame.Frame
		i := 0
		for b.Loop() {
			if i == len(frames) {
				i = 0
			}
			_ = f.Decode(frame.Ethernet, frames[i])
			i++
		}
	})
	b.Run("icrc", func(b *testing.B) {
		b.SetBytes(int64(size))
		i := 0
		for b.Loop() {
			if i == len(frames) {
				i = 0
			}
			_ = crc.Check(frames[i][14:])
			i++
		}
	})
	b.Run("crc32c", func(b *testing.B) {
		b.SetBytes(int64(size))
		table := crc32.MakeTable(crc32.Castagnoli)
		i := 0
		for b.Loop() {
			if i == len(frames) {
				i = 0
			}
			_ = crc32.Checksum(frames[i], table)
			i++
		}
	})
}

// TestStream: what the benchmark feeds is clean.
func TestStream(t *testing.T) {
	frames := stream(t, 1000)
	var recs []rec
	for i, f := range frames {
		recs = append(recs, rec{time.Unix(1, int64(i)*1000), f, len(f)})
	}
	w, all := watch(t, conform.Config{Complete: true}, slices.Clone(recs))
	require.Empty(t, all)
	total := w.Total()
	require.EqualValues(t, 1000, total.MessagesDone)
}
