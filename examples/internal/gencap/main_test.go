package main

import (
	"bytes"
	"io"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
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
	for i := range 100 {
		require.NoError(t, r.Next(&rec))
		require.NoError(t, f.Decode(rec.Link, rec.Data))
		require.Equal(t, frame.ICRCGood, f.CheckICRC())
		require.Equal(t, 1024, f.PayloadLen())
		require.Equal(t, i%16 == 0, f.Packet.Opcode == bth.RCWriteFirst)
	}
	require.Equal(t, io.EOF, r.Next(&rec))
}
