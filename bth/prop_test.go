package bth_test

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/fuzz/seeds"
)

func TestProperties(t *testing.T) {
	checkCodec[bth.Header](t, "BTH", bth.Size)
	checkCodec[bth.DETH](t, "DETH", bth.DETHSize)
	checkCodec[bth.RDETH](t, "RDETH", bth.RDETHSize)
	checkCodec[bth.XRCETH](t, "XRCETH", bth.XRCETHSize)
}

// codec is what all headers have.
type codec interface {
	Decode(b []byte) error
	AppendTo(dst []byte) []byte
	Validate() error
	AppendBinary(dst []byte) ([]byte, error)
	UnmarshalBinary(b []byte) error
}

// pointer is a *T with the methods of a codec.
type pointer[T any] interface {
	*T
	codec
}

// checkValues holds what must be true of any value, too wide ones as well.
func checkValues[T comparable, P pointer[T]](t *testing.T, size int) {
	rapid.Check(t, func(t *rapid.T) {
		v := rapid.Make[T]().Draw(t, "value")
		fresh := P(&v).AppendTo(nil)
		require.Len(t, fresh, size)

		// Into a dirty buffer, behind a prefix, with room behind.
		prefix := rapid.SliceOfN(rapid.Byte(), 0, 9).Draw(t, "prefix")
		buf := bytes.Repeat([]byte{0xa5}, len(prefix)+size+7)
		copy(buf, prefix)
		out := P(&v).AppendTo(buf[:len(prefix)])
		require.Equal(t, append(bytes.Clone(prefix), fresh...), out)
		require.Equal(t, bytes.Repeat([]byte{0xa5}, 7), buf[len(out):], "bytes behind")

		var got T
		require.NoError(t, P(&got).Decode(fresh))
		require.NoError(t, P(&got).Validate(), "what was decoded fits")
		checked, err := P(&v).AppendBinary(bytes.Clone(prefix))
		if P(&v).Validate() != nil {
			require.NotEqual(t, v, got, "Validate said that something is lost")
			require.ErrorIs(t, err, bth.ErrRange)
			require.Equal(t, prefix, checked)
			return
		}
		require.Equal(t, v, got, "decode after encode")
		require.NoError(t, err)
		require.Equal(t, out, checked)
	})
}

// checkBytes holds what must be true of any input.
func checkBytes[T comparable, P pointer[T]](t require.TestingT, size int, b []byte) {
	in := bytes.Clone(b)
	// A receiver with something in it, to see that it is left alone.
	var before T
	if err := P(&before).Decode(bytes.Repeat([]byte{0x5a}, size)); err != nil {
		t.Errorf("%v", err)
	}
	v := before
	err := P(&v).Decode(b)
	if len(b) < size {
		require.ErrorIs(t, err, bth.ErrTruncated)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		require.Equal(t, before, v)
		require.ErrorIs(t, P(&v).UnmarshalBinary(b), bth.ErrTruncated)
		require.Equal(t, before, v)
	} else {
		require.NoError(t, err)
		require.Equal(t, b[:size], P(&v).AppendTo(nil), "encode after decode")
		require.NoError(t, P(&v).Validate())
		w := before
		err := P(&w).UnmarshalBinary(b)
		if len(b) > size {
			require.ErrorIs(t, err, bth.ErrLength)
			require.Equal(t, before, w)
		} else {
			require.NoError(t, err)
			require.Equal(t, v, w)
		}
	}
	require.Equal(t, in, b, "the input was written to")
}

// checkCodec runs both, with every shorter input.
func checkCodec[T comparable, P pointer[T]](t *testing.T, name string, size int) {
	t.Run(name, func(t *testing.T) {
		checkValues[T, P](t, size)
		rapid.Check(t, func(t *rapid.T) {
			b := rapid.SliceOfN(rapid.Byte(), size, size+3).Draw(t, "bytes")
			for n := range len(b) + 1 {
				checkBytes[T, P](t, size, b[:n:n])
			}
		})
	})
}

func FuzzHeaders(f *testing.F) {
	f.Add([]byte{})
	f.Add(unhex(f, "8100ffff 40000118 00000000"))
	f.Add(unhex(f, "1140ffff 3f000011 7f000003 1f000001"))
	seeds.Into(f).Packets(func(s *seeds.Frame) []any {
		b := s.Frame.Transport
		return []any{b[:min(len(b), 48)]}
	})
	f.Fuzz(func(t *testing.T, b []byte) {
		checkBytes[bth.Header](t, bth.Size, b)
		checkBytes[bth.DETH](t, bth.DETHSize, b)
		checkBytes[bth.RDETH](t, bth.RDETHSize, b)
		checkBytes[bth.XRCETH](t, bth.XRCETHSize, b)
		if v, err := bth.ViewOf(b); err == nil {
			var h bth.Header
			_ = h.Decode(b)
			if h.Opcode != v.Opcode() || h.PSN != v.PSN() || h.DestQP != v.DestQP() || h.AckReq != v.AckReq() {
				t.Errorf("view and header differ on %x", b)
			}
		}
	})
}

func FuzzPacket(f *testing.F) {
	for _, op := range knownOpcodes(f) {
		p := full(op)
		fit(p, []byte("hello"))
		f.Add(p.AppendTo(nil), 40)
	}
	f.Add([]byte{0xff, 0}, 16)
	seeds.Into(f).Packets(func(s *seeds.Frame) []any { return []any{s.Frame.Transport, len(s.Frame.Transport)} })
	f.Fuzz(checkFuzzedPacket)
}

func checkFuzzedPacket(t *testing.T, b []byte, n int) { checkPacketBytes(t, b, n) }
