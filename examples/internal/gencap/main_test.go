package main

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/qp/conform"
)

func TestGenerate(t *testing.T) {
	var file, again bytes.Buffer
	require.NoError(t, generate(&file, 100, 1024, 16))
	require.NoError(t, generate(&again, 100, 1024, 16))
	require.Equal(t, file.Bytes(), again.Bytes())
	r, err := capture.NewReader(&file)
	require.NoError(t, err)
	var rec capture.Record
	var f frame.Frame
	w, err := conform.New(conform.Config{Complete: true})
	require.NoError(t, err)
	for i := range 100 {
		require.NoError(t, r.Next(&rec))
		require.NoError(t, f.Decode(rec.Link, rec.Data))
		require.Equal(t, frame.ICRCGood, f.CheckICRC())
		require.Equal(t, i%17 == 0, f.Packet.Opcode == bth.RCWriteFirst)
		require.Equal(t, i%17 == 16, f.Packet.Opcode == bth.RCAcknowledge)
		if i%17 != 16 {
			require.Equal(t, 1024, f.PayloadLen())
		}
		w.HandleFrame(rec.Time, rec.Link, rec.Data, rec.WireLen)
	}
	require.Equal(t, io.EOF, r.Next(&rec))
	w.Finish()
	var found conform.Finding
	require.False(t, w.NextFinding(&found), "%v", &found) // readers are to be busy with packets, not with faults
	require.EqualValues(t, 5, w.Total().MessagesDone)
}
