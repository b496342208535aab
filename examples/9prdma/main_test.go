package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/hugelgupf/p9/p9"
	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/examples/internal/wire"
	"github.com/roce-go/roce/qp/cm"
	"github.com/roce-go/roce/qp/endpoint"
)

// A file that a client writes is in the folder, and reads back, with faults on the
// server's side.
func TestServe(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	f, err := wire.ParseFaults("loss=3,duplicate=3,reorder=3", 1)
	require.NoError(t, err)
	times := cm.Config{PacketLifetime: 13, AckDelay: 9, ResponseTimeout: 16}
	a, b := endpoint.Pair()
	client, err := endpoint.Config{CM: times}.Open(a)
	require.NoError(t, err)
	defer client.Close()
	server, err := endpoint.Config{CM: times, Filter: f.Filter}.Open(b)
	require.NoError(t, err)
	defer server.Close()
	root := t.TempDir()
	serving, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- serve(serving, server, root, 65536, 64) }()
	var conn *endpoint.Conn
	require.Eventually(t, func() bool { // it may not listen yet
		conn, err = client.Dial(ctx, fmt.Sprintf("%v:%d", server.Addrs()[0], port), &endpoint.ConnConfig{RecvDepth: 32, RecvSize: 65536})
		return err == nil
	}, 20*time.Second, 10*time.Millisecond)
	c, err := p9.NewClient(&stream{ctx: ctx, conn: conn, buf: make([]byte, 65536)}, p9.WithMessageSize(32768))
	require.NoError(t, err)
	at, err := c.Attach("")
	require.NoError(t, err)
	_, dir, err := at.Walk(nil)
	require.NoError(t, err)
	file, _, _, err := dir.Create("a", p9.ReadWrite, 0o644, p9.NoUID, p9.NoGID)
	require.NoError(t, err)
	data := bytes.Repeat([]byte("nine "), 50000)
	for off := 0; off < len(data); {
		n, err := file.WriteAt(data[off:], int64(off))
		require.NoError(t, err)
		off += n
	}
	got := make([]byte, 0, len(data))
	for piece := make([]byte, 16000); len(got) < len(data); {
		n, err := file.ReadAt(piece, int64(len(got)))
		require.True(t, err == nil || err == io.EOF, err)
		got = append(got, piece[:n]...)
	}
	require.Equal(t, data, got)
	onDisk, err := os.ReadFile(filepath.Join(root, "a"))
	require.NoError(t, err)
	require.Equal(t, data, onDisk)
	stop()
	require.NoError(t, <-done)
}

func TestUsage(t *testing.T) {
	var errs bytes.Buffer
	require.Zero(t, run([]string{"-h"}, io.Discard, &errs))
	require.Contains(t, errs.String(), "trans=rdma")
	for _, args := range [][]string{{}, {"-root", "/no such"}, {"-root", ".", "x"}, {"-root", ".", "-msize", "1"}, {"-root", "main.go"}} {
		require.Equal(t, 2, run(args, io.Discard, io.Discard), args)
	}
}
