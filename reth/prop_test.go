package reth_test

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/fuzz/seeds"
	"github.com/roce-go/roce/reth"
)

// Rule WI-16.
func TestProperties(t *testing.T) {
	checkCodec[reth.Header](t, "RETH", reth.Size)
	checkCodec[reth.AtomicETH](t, "AtomicETH", reth.AtomicETHSize)
	checkCodec[reth.ImmDt](t, "ImmDt", reth.ImmDtSize)
	checkCodec[reth.IETH](t, "IETH", reth.IETHSize)
	checkCodec[reth.FETH](t, "FETH", reth.FETHSize)
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
			require.ErrorIs(t, err, reth.ErrRange)
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
		require.ErrorIs(t, err, reth.ErrTruncated)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		require.Equal(t, before, v)
		require.ErrorIs(t, P(&v).UnmarshalBinary(b), reth.ErrTruncated)
		require.Equal(t, before, v)
	} else {
		require.NoError(t, err)
		require.Equal(t, b[:size], P(&v).AppendTo(nil), "encode after decode")
		require.NoError(t, P(&v).Validate())
		w := before
		err := P(&w).UnmarshalBinary(b)
		if len(b) > size {
			require.ErrorIs(t, err, reth.ErrLength)
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

func FuzzReth(f *testing.F) {
	f.Add([]byte{})
	f.Add(unhex(f, "0000123456780000 000007c4 00000401"))                                     // RETH
	f.Add(unhex(f, "0000123456880000 00000291 a0b0c0d0e0f00004 410203040506070c 0000000013")) // AtomicETH, more
	seeds.Into(f).Headers(bth.HasRETH | bth.HasAtomicETH | bth.HasImmDt | bth.HasIETH | bth.HasFETH)
	f.Fuzz(func(t *testing.T, b []byte) {
		checkBytes[reth.Header](t, reth.Size, b)
		checkBytes[reth.AtomicETH](t, reth.AtomicETHSize, b)
		checkBytes[reth.ImmDt](t, reth.ImmDtSize, b)
		checkBytes[reth.IETH](t, reth.IETHSize, b)
		checkBytes[reth.FETH](t, reth.FETHSize, b)
	})
}
