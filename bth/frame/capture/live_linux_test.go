package capture_test

import (
	"bytes"
	"errors"
	"io"
	"os"
	"os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
)

// veth gives this goroutine a network of its own with two interfaces, v0 and v1,
// that are joined, and returns a function that sends frames from v1. The thread is
// not used again: its network goes away with it.
func veth(t *testing.T) (send func(frames ...[]byte)) {
	if _, err := exec.LookPath("ip"); err != nil {
		t.Skip("no iproute2")
	}
	runtime.LockOSThread()
	if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
		t.Skip("no right to make a network namespace: ", err)
	}
	// No frames of the kernel's own.
	os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0)
	for _, args := range []string{"link add v0 type veth peer name v1", "link set v0 up", "link set v1 up", "link set lo up"} {
		if out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Skipf("ip %s: %v: %s", args, err, out)
		}
	}
	fd, err := syscall.Socket(syscall.AF_PACKET, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	t.Cleanup(func() { syscall.Close(fd) })
	var index int
	all, err := exec.Command("ip", "-o", "link", "show", "v1").Output()
	require.NoError(t, err)
	for _, c := range all {
		if c == ':' {
			break
		}
		index = 10*index + int(c-'0')
	}
	return func(frames ...[]byte) {
		for _, b := range frames {
			require.NoError(t, syscall.Sendto(fd, b, 0, &syscall.SockaddrLinklayer{Ifindex: index, Halen: 6}))
		}
	}
}

// next reads a frame that must come.
func next(t *testing.T, l *capture.Live) capture.Record {
	t.Helper()
	require.NoError(t, l.SetDeadline(time.Now().Add(20*time.Second)))
	var rec capture.Record
	require.NoError(t, l.Next(&rec))
	rec.Data = bytes.Clone(rec.Data)
	return rec
}

func TestLive(t *testing.T) {
	send := veth(t)
	recs, err := capture.ReadFile("../testdata/tunnels.pcap")
	require.NoError(t, err)
	l, err := capture.OpenLive("v0", capture.LiveConfig{Finder: frame.Finder{Tunnels: true}, Delay: time.Millisecond})
	require.NoError(t, err)
	defer l.Close()
	require.Zero(t, l.Buffered())

	arp := append(bytes.Clone(recs[0].Data[:12]), append([]byte{8, 6}, make([]byte, 46)...)...)
	before := time.Now()
	for _, r := range recs {
		send(arp, r.Data)
	}
	for i, want := range recs {
		got := next(t, l)
		require.Equal(t, i+1, got.Number)
		require.Equal(t, frame.Ethernet, got.Link)
		require.Equal(t, want.Data, got.Data, "frame %d, with its tags", i+1)
		require.Equal(t, len(want.Data), got.WireLen)
		require.True(t, got.HasTime)
		require.WithinRange(t, got.Time, before.Add(-time.Second), time.Now().Add(time.Second))
		require.Equal(t, time.UTC, got.Time.Location())
	}
	s, err := l.Stats()
	require.NoError(t, err)
	require.Equal(t, capture.LiveStats{Received: uint64(len(recs))}, s)

	// A deadline, after which it goes on.
	require.NoError(t, l.SetDeadline(time.Now()))
	var rec capture.Record
	require.ErrorIs(t, l.Next(&rec), os.ErrDeadlineExceeded)
	send(recs[5].Data)
	require.Equal(t, recs[5].Data, next(t, l).Data)

	// Close ends a wait, and may be called again.
	require.NoError(t, l.SetDeadline(time.Time{}))
	go func() {
		time.Sleep(10 * time.Millisecond)
		l.Close()
	}()
	require.Equal(t, io.EOF, l.Next(&rec))
	require.Equal(t, io.EOF, l.Next(&rec))
	l.Close()
	s, _ = l.Stats()
	require.Equal(t, uint64(len(recs)+1), s.Received)
}

// TestLiveDrops: what does not fit is counted, and the rest comes whole.
func TestLiveDrops(t *testing.T) {
	send := veth(t)
	l, err := capture.OpenLive("v0", capture.LiveConfig{All: true, Buffer: 1, SnapLen: 1000, Delay: time.Millisecond})
	require.NoError(t, err)
	defer l.Close()
	b := make([]byte, 1500)
	b[0], b[6] = 2, 2
	b[12], b[13] = 0x88, 0xb5
	const sent = 4000 // of 2 MiB there is room for
	for i := range sent {
		b[20], b[21] = byte(i>>8), byte(i)
		send(b)
	}
	var rec capture.Record
	read := 0
	for {
		require.NoError(t, l.SetDeadline(time.Now().Add(300*time.Millisecond)))
		err := l.Next(&rec)
		if errors.Is(err, os.ErrDeadlineExceeded) {
			break
		}
		require.NoError(t, err)
		if rec.Data[12] != 0x88 {
			continue // the kernel's own, on new interfaces
		}
		read++
		require.Equal(t, 1000, len(rec.Data))
		require.Equal(t, 1500, rec.WireLen)
	}
	s, err := l.Stats()
	require.NoError(t, err)
	require.NotZero(t, s.Dropped)
	require.Less(t, read, sent)
	require.GreaterOrEqual(t, read+int(s.Dropped), sent)

	// And room again.
	send(b)
	require.Equal(t, 1000, len(next(t, l).Data))
}

// TestLiveLoop: a frame on a loopback interface is seen once.
func TestLiveLoop(t *testing.T) {
	veth(t)
	l, err := capture.OpenLive("lo", capture.LiveConfig{Delay: time.Millisecond})
	require.NoError(t, err)
	defer l.Close()
	c, err := syscall.Socket(syscall.AF_INET, syscall.SOCK_DGRAM|syscall.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer syscall.Close(c)
	for i := range 3 {
		require.NoError(t, syscall.Sendto(c, []byte{byte(i)}, 0, &syscall.SockaddrInet4{Port: 4791, Addr: [4]byte{127, 0, 0, 1}}))
	}
	for i := range 3 {
		require.Equal(t, []byte{byte(i)}, next(t, l).Data[42:])
	}
}

// TestLiveDown: an interface that goes down is an error that names it.
func TestLiveDown(t *testing.T) {
	veth(t)
	l, err := capture.OpenLive("v0", capture.LiveConfig{Delay: time.Millisecond})
	require.NoError(t, err)
	defer l.Close()
	require.NoError(t, exec.Command("ip", "link", "set", "v0", "down").Run())
	require.NoError(t, l.SetDeadline(time.Now().Add(20*time.Second)))
	var rec capture.Record
	err = l.Next(&rec)
	require.ErrorIs(t, err, capture.ErrLive)
	require.ErrorContains(t, err, "v0")
	require.ErrorContains(t, err, "down")
}

// TestLiveRefused: what is wrong, and what to do.
func TestLiveRefused(t *testing.T) {
	_, err := capture.OpenLive("nosuch0", capture.LiveConfig{})
	require.ErrorIs(t, err, capture.ErrLive)
	require.ErrorContains(t, err, "no such interface; there are: ")

	veth(t)
	// Without the right: a thread that is not root, and is not used again.
	_, _, errno := syscall.RawSyscall(syscall.SYS_SETUID, 65534, 0, 0)
	require.Zero(t, errno)
	_, err = capture.OpenLive("v0", capture.LiveConfig{})
	require.ErrorIs(t, err, os.ErrPermission)
	require.ErrorContains(t, err, "setcap cap_net_raw")
}
