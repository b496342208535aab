// Package codectest holds the properties that tests of all header codecs check: package
// aeth, reth, bth and bth/mrc use it.
package codectest

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// Header is what all headers have.
type Header interface {
	Decode(b []byte) error
	AppendTo(dst []byte) []byte
	Validate() error
	AppendBinary(dst []byte) ([]byte, error)
	UnmarshalBinary(b []byte) error
}

// Codec is a *T that is a Header.
type Codec[T any] interface {
	*T
	Header
}

// Errors are those of the package under test: for a field that is too wide, and for input
// that is too short or too long.
type Errors struct{ Range, Truncated, Length error }

// Runner is a *testing.T, or what stands for it where a fuzz target beside the tests is built
// for another engine, which replaces the package testing in test files only.
type Runner[R any] interface {
	rapid.TB
	Run(name string, f func(R)) bool
}

// Check checks a codec of a header of size bytes, with values and bytes of all kinds.
func Check[T comparable, P Codec[T], R Runner[R]](t R, name string, size int, e Errors) {
	t.Run(name, func(t R) {
		values[T, P](t, size, e)
		rapid.Check(t, func(t *rapid.T) {
			b := rapid.SliceOfN(rapid.Byte(), size, size+3).Draw(t, "bytes")
			for n := range len(b) + 1 {
				Bytes[T, P](t, size, e, b[:n:n])
			}
		})
	})
}

// values checks what must be true of any value, also of one with a field that is too wide.
func values[T comparable, P Codec[T]](t rapid.TB, size int, e Errors) {
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
		again, err := P(&got).AppendBinary(bytes.Clone(prefix))
		require.NoError(t, err)
		require.Equal(t, out, again, "what was decoded is encoded the same")
		checked, err := P(&v).AppendBinary(bytes.Clone(prefix))
		if P(&v).Validate() != nil {
			require.NotEqual(t, v, got, "Validate said that something is lost")
			require.ErrorIs(t, err, e.Range)
			require.Equal(t, prefix, checked)
			return
		}
		require.Equal(t, v, got, "decode after encode")
		require.NoError(t, err)
		require.Equal(t, out, checked)
	})
}

// Bytes checks what must be true of any input.
func Bytes[T comparable, P Codec[T]](t require.TestingT, size int, e Errors, b []byte) {
	in := bytes.Clone(b)
	// A receiver with something in it, to see that an error does not change it.
	var before T
	require.NoError(t, P(&before).Decode(bytes.Repeat([]byte{0x5a}, size)))
	v := before
	err := P(&v).Decode(b)
	if len(b) < size {
		require.ErrorIs(t, err, e.Truncated)
		require.ErrorIs(t, err, io.ErrUnexpectedEOF)
		require.Equal(t, before, v)
		require.ErrorIs(t, P(&v).UnmarshalBinary(b), e.Truncated)
		require.Equal(t, before, v)
	} else {
		require.NoError(t, err)
		require.Equal(t, b[:size], P(&v).AppendTo(nil), "encode after decode")
		require.NoError(t, P(&v).Validate())
		w := before
		err := P(&w).UnmarshalBinary(b)
		if len(b) > size {
			require.ErrorIs(t, err, e.Length)
			require.Equal(t, before, w)
		} else {
			require.NoError(t, err)
			require.Equal(t, v, w)
		}
	}
	require.Equal(t, in, b, "the input was written to")
}

// Allocates fails the test where the codec allocates, with enough bytes and with too few.
func Allocates[T any, P Codec[T]](t rapid.TB, name string, size int) {
	buf := make([]byte, size, size+1)
	var v T
	var err error
	for what, f := range map[string]func(){
		"Decode":                func() { err = P(&v).Decode(buf) },
		"Decode, short":         func() { err = P(&v).Decode(buf[:size-1]) },
		"UnmarshalBinary":       func() { err = P(&v).UnmarshalBinary(buf) },
		"UnmarshalBinary, long": func() { err = P(&v).UnmarshalBinary(buf[:size+1]) },
		"AppendTo":              func() { buf = P(&v).AppendTo(buf[:0]) },
		"AppendBinary":          func() { buf, err = P(&v).AppendBinary(buf[:0]) },
		"Validate":              func() { err = P(&v).Validate() },
	} {
		if n := testing.AllocsPerRun(100, f); n != 0 {
			t.Errorf("%s: %s: %v allocations", name, what, n)
		}
	}
	_ = err
}
