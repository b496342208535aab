package main

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/hugelgupf/p9/p9"
	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/examples/internal/wire"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/cm"
	"github.com/roce-go/roce/qp/endpoint"
)

// serving serves a folder at one end of a wire, with faults at that end, to p9's own
// client at the other. A client that requests messages of 1 MiB gets 64 KiB.
func serving(t *testing.T, root, faults string) p9.File {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	t.Cleanup(cancel)
	f, err := wire.ParseFaults(faults, 1)
	require.NoError(t, err)
	times := cm.Config{PacketLifetime: 13, AckDelay: 9, ResponseTimeout: 16}
	a, b := endpoint.Pair()
	client, err := endpoint.Config{CM: times}.Open(a)
	require.NoError(t, err)
	t.Cleanup(func() { client.Close() })
	server, err := endpoint.Config{CM: times, Filter: f.Filter}.Open(b)
	require.NoError(t, err)
	t.Cleanup(func() { server.Close() })
	serving, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	srv := newServer()
	go func() { done <- srv.serve(serving, server, root) }()
	t.Cleanup(func() { stop(); require.NoError(t, <-done) })
	var conn *endpoint.Conn
	require.Eventually(t, func() bool { // it may not listen yet
		conn, err = client.Dial(ctx, fmt.Sprintf("%v:%d", server.Addrs()[0], port), &endpoint.ConnConfig{RecvDepth: 32, RecvSize: 65536})
		return err == nil
	}, 20*time.Second, 10*time.Millisecond)
	require.NoError(t, conn.Send(ctx, []byte("\x15\x00\x00\x00\x64\xff\xff\x00\x00\x10\x00\x08\x009P2000.L")))
	buf := make([]byte, 100)
	n, err := conn.Recv(ctx, buf)
	require.NoError(t, err)
	require.Equal(t, "\x15\x00\x00\x00\x65\xff\xff\x00\x00\x01\x00\x08\x009P2000.L", string(buf[:n]), "Rversion: 64 KiB")
	c, err := p9.NewClient(&stream{ctx: ctx, conn: conn, buf: make([]byte, 65536)}, p9.WithMessageSize(65536))
	require.NoError(t, err)
	at, err := c.Attach("")
	require.NoError(t, err)
	return at
}

func newServer() *server {
	return &server{most: 3, msize: 65536, window: 64, patience: 100 * time.Millisecond}
}

// Clients that vanish leave nothing, one too many is refused, and one that sends requests
// without end and receives no response has at most its 32 requests outstanding.
func TestClients(t *testing.T) {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	var cut atomic.Bool
	times := cm.Config{PacketLifetime: 13, AckDelay: 9, ResponseTimeout: 16}
	a, b := endpoint.Pair()
	client, err := endpoint.Config{CM: times, Filter: func(_ bool, f []byte) [][]byte {
		if cut.Load() {
			return nil
		}
		return [][]byte{f}
	}}.Open(a)
	require.NoError(t, err)
	defer client.Close()
	ep, err := endpoint.Config{CM: times}.Open(b)
	require.NoError(t, err)
	defer ep.Close()
	srv := newServer()
	serving, stop := context.WithCancel(ctx)
	done := make(chan error, 1)
	go func() { done <- srv.serve(serving, ep, t.TempDir()) }()
	dial := func() (*endpoint.Conn, error) {
		return client.Dial(ctx, fmt.Sprintf("%v:%d", ep.Addrs()[0], port), &endpoint.ConnConfig{RecvDepth: 1, RecvSize: 65536, SendDepth: 2000})
	}
	var conn *endpoint.Conn
	require.Eventually(t, func() bool { conn, err = dial(); return err == nil }, 20*time.Second, 10*time.Millisecond)
	_, err = dial()
	require.NoError(t, err)
	_, err = dial()
	require.NoError(t, err)
	require.Eventually(t, func() bool { return srv.conns.Load() == 3 }, 10*time.Second, time.Millisecond)
	_, err = dial()
	require.ErrorContains(t, err, "no resources")
	before := runtime.NumGoroutine()
	for i := range 1000 { // Tversion, with tags
		msg := []byte("\x15\x00\x00\x00\x64\xff\xff\x00\x00\x10\x00\x08\x009P2000.L")
		msg[5], msg[6] = byte(i), byte(i>>8)
		require.NoError(t, conn.Post(qp.SendWR{Op: qp.OpSend, Local: msg}, nil))
	}
	time.Sleep(300 * time.Millisecond)
	require.Less(t, runtime.NumGoroutine()-before, 2*requests)
	require.EqualValues(t, 3, srv.conns.Load(), "all are there")
	cut.Store(true)
	require.Eventually(t, func() bool { return srv.conns.Load() == 0 }, 30*time.Second, 10*time.Millisecond)
	stop()
	require.NoError(t, <-done)
}

// walk returns the node of names.
func walk(t *testing.T, from p9.File, names ...string) p9.File {
	t.Helper()
	_, to, err := from.Walk(names)
	require.NoError(t, err)
	return to
}

// A file that a client writes is in the folder, and reads back, with faults on the
// server's side.
func TestServe(t *testing.T) {
	root := t.TempDir()
	at := serving(t, root, "loss=3,duplicate=3,reorder=3")
	file, _, _, err := walk(t, at).Create("a", p9.ReadWrite, 0o644, p9.NoUID, p9.NoGID)
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
}

// What a client does to the folder is done: the system itself is asked.
func TestTree(t *testing.T) {
	syscall.Umask(0)
	root := t.TempDir()
	in := func(name string) string { return filepath.Join(root, name) }
	lstat := func(name string) os.FileInfo {
		info, err := os.Lstat(in(name))
		require.NoError(t, err)
		return info
	}
	at := serving(t, root, "loss=0")
	_, err := walk(t, at).Mkdir("d", 0o750, p9.NoUID, p9.NoGID)
	require.NoError(t, err)
	require.Equal(t, os.ModeDir|0o750, lstat("d").Mode())
	dir := walk(t, at, "d")
	file, qid, _, err := walk(t, at, "d").Create("f", p9.ReadWrite, 0o640, p9.NoUID, p9.NoGID)
	require.NoError(t, err)
	require.Equal(t, os.FileMode(0o640), lstat("d/f").Mode())
	require.Equal(t, lstat("d/f").Sys().(*syscall.Stat_t).Ino, qid.Path)
	_, err = file.WriteAt([]byte("content"), 0)
	require.NoError(t, err)
	require.NoError(t, file.FSync())

	require.NoError(t, file.SetAttr(p9.SetAttrMask{Size: true}, p9.SetAttr{Size: 3}))
	require.EqualValues(t, 3, lstat("d/f").Size())
	require.NoError(t, walk(t, dir, "f").SetAttr(p9.SetAttrMask{Size: true, Permissions: true}, p9.SetAttr{Size: 5, Permissions: 0o1711}))
	require.Equal(t, os.ModeSticky|0o711, lstat("d/f").Mode())
	require.EqualValues(t, 5, lstat("d/f").Size())
	mtime := time.Unix(1e9, 123456789)
	require.NoError(t, file.SetAttr(p9.SetAttrMask{MTime: true, MTimeNotSystemTime: true}, p9.SetAttr{MTimeSeconds: 1e9, MTimeNanoSeconds: 123456789}))
	require.True(t, mtime.Equal(lstat("d/f").ModTime()), lstat("d/f").ModTime())
	require.NoError(t, file.SetAttr(p9.SetAttrMask{ATime: true, MTime: true}, p9.SetAttr{}))
	require.Less(t, time.Since(lstat("d/f").ModTime()), time.Minute, "the time of now")
	require.NoError(t, file.SetAttr(p9.SetAttrMask{UID: true, GID: true}, p9.SetAttr{UID: p9.UID(os.Getuid()), GID: p9.GID(os.Getgid())}))

	// Links. The client follows them; the server follows none.
	_, err = dir.Symlink("/etc", "out", p9.NoUID, p9.NoGID)
	require.NoError(t, err)
	to, err := walk(t, dir, "out").Readlink()
	require.NoError(t, err)
	require.Equal(t, "/etc", to)
	_, _, err = dir.Walk([]string{"out", "passwd"})
	require.Error(t, err)
	_, _, err = dir.Walk([]string{"..", "d"})
	require.Error(t, err)
	_, _, err = walk(t, dir, "out").Open(p9.ReadOnly)
	require.Error(t, err)
	require.NoError(t, os.Symlink("f", in("d/in")))
	require.NoError(t, walk(t, dir, "in").SetAttr(p9.SetAttrMask{MTime: true, MTimeNotSystemTime: true}, p9.SetAttr{MTimeSeconds: 1e9}))
	require.True(t, time.Unix(1e9, 0).Equal(lstat("d/in").ModTime()), "of the link itself")
	require.Less(t, time.Since(lstat("d/f").ModTime()), time.Minute)
	require.Error(t, walk(t, dir, "in").SetAttr(p9.SetAttrMask{Permissions: true}, p9.SetAttr{}))
	require.NoError(t, dir.Link(walk(t, dir, "f"), "hard"))
	require.EqualValues(t, 2, lstat("d/f").Sys().(*syscall.Stat_t).Nlink)
	require.NoError(t, syscall.Mkfifo(in("d/pipe"), 0o600))
	_, _, err = walk(t, dir, "pipe").Open(p9.ReadOnly)
	require.Error(t, err, "nobody waits for its other end here")

	// In a folder that is renamed what was walked to stays valid.
	inside := walk(t, dir, "f")
	require.NoError(t, walk(t, at).RenameAt("d", walk(t, at), "e"))
	_, _, attr, err := inside.GetAttr(p9.AttrMaskAll)
	require.NoError(t, err)
	require.EqualValues(t, 5, attr.Size)
	require.NoError(t, walk(t, at, "e").UnlinkAt("hard", 0))
	require.Error(t, walk(t, at).UnlinkAt("e", 0), "a folder")
	require.Error(t, walk(t, at).UnlinkAt("e", 0x200), "not empty")
	require.NoFileExists(t, in("e/hard"))
	n, err := file.ReadAt(make([]byte, 10), 0)
	require.True(t, n == 5 && (err == nil || err == io.EOF), err)

	// Two openings of a file exclude each other. (p9's client locks its first fid only, so
	// without it.)
	folder, err := os.OpenRoot(root)
	require.NoError(t, err)
	defer folder.Close()
	served, err := tree{folder}.Attach()
	require.NoError(t, err)
	one, two := walk(t, served, "e", "f"), walk(t, served, "e", "f")
	for _, f := range []p9.File{one, two} {
		_, _, err := f.Open(p9.ReadWrite)
		require.NoError(t, err)
	}
	lock := func(f p9.File, kind p9.LockType, want p9.LockStatus) {
		t.Helper()
		got, err := f.Lock(1, kind, 0, 0, 10, "host")
		require.NoError(t, err)
		require.Equal(t, want, got)
	}
	lock(one, p9.WriteLock, p9.LockStatusOK)
	lock(two, p9.ReadLock, p9.LockStatusBlocked)
	lock(one, p9.Unlock, p9.LockStatusOK)
	lock(two, p9.ReadLock, p9.LockStatusOK)
	st, err := at.StatFS()
	require.NoError(t, err)
	require.NotZero(t, st.Blocks)
	_, err = file.GetXattr("user.x")
	require.Error(t, err)

	// A folder whose entries fill many messages.
	require.NoError(t, os.Mkdir(in("many"), 0o700))
	want := map[string]bool{}
	for i := range 3000 {
		name := fmt.Sprintf("%04d-a-name-that-is-not-short", i)
		want[name] = true
		require.NoError(t, os.WriteFile(in("many/"+name), nil, 0o600))
	}
	many := walk(t, at, "many")
	_, _, err = many.Open(p9.ReadOnly)
	require.NoError(t, err)
	for round := range 2 { // and once more from its beginning
		got := map[string]bool{}
		for offset := uint64(0); ; {
			list, err := many.Readdir(offset, 8000)
			require.NoError(t, err)
			if len(list) == 0 {
				break
			}
			for _, e := range list {
				require.False(t, got[e.Name], "%s twice", e.Name)
				got[e.Name] = true
			}
			offset = list[len(list)-1].Offset
		}
		require.Equal(t, want, got, round)
	}
}

func TestUsage(t *testing.T) {
	var errs bytes.Buffer
	require.Zero(t, run([]string{"-h"}, io.Discard, &errs))
	require.Contains(t, errs.String(), "trans=rdma")
	for _, args := range [][]string{{}, {"-root", "/no such"}, {"-root", ".", "x"}, {"-root", ".", "-msize", "1"}, {"-root", ".", "-conns", "0"}, {"-root", "main.go"}} {
		require.Equal(t, 2, run(args, io.Discard, io.Discard), args)
	}
}
