package pcapio_test

import (
	"bytes"
	"encoding/binary"
	"os"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/fuzz/internal/pcapio"
	"github.com/roce-go/roce/fuzz/mutator"
)

// TestSLL2: link types above 255 are kept, by reader and writer.
func TestSLL2(t *testing.T) {
	var b bytes.Buffer
	w, err := pcapio.NewWriter(&b, frame.LinuxSLL2)
	require.NoError(t, err)
	want := mutator.Record{Time: time.Unix(1, 999999999), Link: frame.LinuxSLL2, Data: []byte("frame"), WireLen: 9}
	require.NoError(t, w.Write(&want))
	r, err := pcapio.NewReader(&b)
	require.NoError(t, err)
	var got mutator.Record
	require.NoError(t, r.Next(&got))
	require.Equal(t, want, got)
}

// TestBigEndian reads a file in microseconds of the other byte order.
func TestBigEndian(t *testing.T) {
	o := binary.BigEndian
	b := o.AppendUint32(nil, 0xa1b2c3d4)
	b = append(b, make([]byte, 16)...)
	b = o.AppendUint32(b, 1)
	b = o.AppendUint32(o.AppendUint32(b, 5), 6)
	b = o.AppendUint32(o.AppendUint32(b, 2), 3)
	b = append(b, "ab"...)
	r, err := pcapio.NewReader(bytes.NewReader(b))
	require.NoError(t, err)
	var got mutator.Record
	require.NoError(t, r.Next(&got))
	require.Equal(t, mutator.Record{Time: time.Unix(5, 6000), Link: 1, Data: []byte("ab"), WireLen: 3}, got)
}

// FuzzReader: no file makes the reader panic, or give more bytes than it has.
func FuzzReader(f *testing.F) {
	b, err := os.ReadFile("../../../examples/internal/capture/testdata/two-interfaces.pcapng")
	if err != nil {
		f.Fatal(err)
	}
	f.Add(b)
	f.Fuzz(func(t *testing.T, b []byte) {
		r, err := pcapio.NewReader(bytes.NewReader(b))
		if err != nil {
			return
		}
		total := 0
		var rec mutator.Record
		for r.Next(&rec) == nil {
			if total += len(rec.Data); b[0] != 0x1f && total > len(b) {
				t.Fatalf("%d bytes of frames in a file of %d", total, len(b))
			}
			if rec.WireLen < 0 {
				t.Fatal("a negative length")
			}
		}
	})
}
