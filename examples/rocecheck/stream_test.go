package main

import (
	"bytes"
	"encoding/binary"
	"io"
	"os"
	"runtime"
	"strconv"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/psn"
)

// endless is a capture that repeats another until n bytes were read: each round
// is later, and its PSNs go on where those of the round before ended, or it is of
// other QPs.
type endless struct {
	frames [][]byte // records with their headers
	fresh  bool     // each round is a connection of its own
	round  int
	next   int
	left   int64
	buf    []byte
	hold   []byte
}

func newEndless(t testing.TB, n int64) *endless {
	b, err := os.ReadFile(captures + "rc-burst.pcap")
	require.NoError(t, err)
	e := &endless{left: n, buf: append([]byte(nil), b[:24]...)}
	for b = b[24:]; len(b) > 0; {
		size := 16 + int(binary.LittleEndian.Uint32(b[8:]))
		var f frame.Frame
		if f.Decode(frame.Ethernet, b[16:size]) == nil {
			e.frames = append(e.frames, b[:size])
		}
		b = b[size:]
	}
	require.Len(t, e.frames, 96)
	return e
}

func (e *endless) Read(p []byte) (int, error) {
	if len(e.buf) == 0 {
		if e.left <= 0 && e.next == 0 {
			return 0, io.EOF
		}
		r := e.frames[e.next]
		e.hold = append(e.hold[:0], r...)
		binary.LittleEndian.PutUint32(e.hold, binary.LittleEndian.Uint32(r)+uint32(e.round))
		var f frame.Frame
		_ = f.Decode(frame.Ethernet, e.hold[16:])
		if e.fresh {
			f.Packet.DestQP += uint32(e.round)
			f.Packet.PSN = f.Packet.PSN.Add(70_001 * e.round & psn.Mask)
		} else {
			f.Packet.PSN = f.Packet.PSN.Add(64 * e.round)
			f.Packet.AETH.MSN = (f.Packet.AETH.MSN + uint32(32*e.round)) & 0xffffff
		}
		e.hold = f.AppendTo(e.hold[:16])
		e.buf = e.hold
		e.left -= int64(len(e.buf))
		if e.next++; e.next == len(e.frames) {
			e.next = 0
			e.round++
		}
	}
	n := copy(p, e.buf)
	e.buf = e.buf[n:]
	return n, nil
}

// TestStreams reads a capture from a pipe that is larger than memory may become: of
// one connection, and of a short one after another.
//
//	ROCECHECK_GB=10 go test ./examples/rocecheck -run TestStreams -v -timeout 1h
//
// Of 10 GB the latter are 150,000 connections.
func TestStreams(t *testing.T) {
	size := int64(48 << 20)
	if gb, err := strconv.Atoi(os.Getenv("ROCECHECK_GB")); err == nil {
		size = int64(gb) << 30
	} else if testing.Short() || raceEnabled {
		size = 4 << 20
	}
	t.Run("one connection", func(t *testing.T) { stream(t, newEndless(t, size)) })
	in := newEndless(t, size)
	in.fresh = true
	t.Run("short connections", func(t *testing.T) { stream(t, in) })
}

func stream(t *testing.T, in *endless) {
	size := in.left
	r, w, err := os.Pipe()
	require.NoError(t, err)
	var peak uint64
	go func() {
		buf := make([]byte, 1<<20)
		for i := 0; ; i++ {
			n, err := io.ReadFull(in, buf)
			if _, werr := w.Write(buf[:n]); werr != nil || err != nil {
				break
			}
			if i%16 == 0 {
				var m runtime.MemStats
				runtime.ReadMemStats(&m)
				peak = max(peak, m.Sys)
			}
		}
		w.Close()
	}()
	var out, errs bytes.Buffer
	html := t.TempDir() + "/page.html"
	code := run([]string{"-json", "-html", html, "-"}, r, &out, &errs)
	require.Equal(t, exitGood, code, errs.String())
	l := lines(t, out.String())
	total := l[len(l)-1]
	require.EqualValues(t, 96*in.round, total["all_frames"])
	require.EqualValues(t, 32*in.round, total["message_complete"])
	require.EqualValues(t, 0, total["breaches"])
	require.EqualValues(t, 0, total["events"])
	require.Less(t, peak, uint64(96<<20), "memory")
	page, err := os.Stat(html)
	require.NoError(t, err)
	require.Less(t, page.Size(), int64(1<<20))
	t.Logf("%d bytes, %d frames, %d rounds, %d MiB of memory at most", size, 96*in.round, in.round, peak>>20)
}
