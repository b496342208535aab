package main

import (
	"bytes"
	osexec "os/exec"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame/capture"
)

// atLine is a writer that does something when a number of lines were written.
type atLine struct {
	bytes.Buffer
	n  int
	do func()
}

func (w *atLine) Write(b []byte) (int, error) {
	n, err := w.Buffer.Write(b)
	if w.do != nil && bytes.Count(w.Bytes(), []byte("\n")) >= w.n {
		w.do()
		w.do = nil
	}
	return n, err
}

// TestInterface reads from one of two joined interfaces until an interrupt.
func TestInterface(t *testing.T) {
	if _, err := osexec.LookPath("ip"); err != nil {
		t.Skip("no iproute2")
	}
	runtime.LockOSThread() // and this thread, with its network, ends with the test
	if err := syscall.Unshare(syscall.CLONE_NEWNET); err != nil {
		t.Skip("no right to make a network namespace: ", err)
	}
	for _, args := range []string{"link add v1 index 11 type veth peer name v0", "link set v0 up", "link set v1 up"} {
		if out, err := osexec.Command("ip", strings.Fields(args)...).CombinedOutput(); err != nil {
			t.Skipf("ip %s: %v: %s", args, err, out)
		}
	}
	recs, err := capture.ReadFile(tunnels)
	require.NoError(t, err)
	fd, err := syscall.Socket(syscall.AF_PACKET, syscall.SOCK_RAW|syscall.SOCK_CLOEXEC, 0)
	require.NoError(t, err)
	defer syscall.Close(fd)

	// There is no sign when reading of the interface begins, so frames are sent until
	// enough of them came out.
	stop := make(chan struct{})
	go func() {
		for {
			for _, r := range recs {
				syscall.Sendto(fd, r.Data, 0, &syscall.SockaddrLinklayer{Ifindex: 11, Halen: 6})
			}
			select {
			case <-stop:
				return
			default:
			}
		}
	}()
	out := &atLine{n: 100, do: func() {
		close(stop)
		syscall.Kill(syscall.Getpid(), syscall.SIGINT)
	}}
	var errs bytes.Buffer
	code := run([]string{"-i", "v0", "-json"}, nil, out, &errs)
	require.Zero(t, code, errs.String())
	text := out.String()
	got := objects(t, text)
	require.GreaterOrEqual(t, len(got), 100)
	kinds := map[string]bool{}
	for _, o := range got {
		require.Equal(t, "v0", o.File)
		require.Equal(t, 100, *o.BTH.PSN)
		require.Equal(t, "good", o.ICRCState)
		for _, u := range o.Outer {
			kinds[u.Kind] = true
		}
	}
	require.Greater(t, len(kinds), 8)
}

func TestInterfaceRefused(t *testing.T) {
	code, _, errs := exec(nil, "-i", "nosuch0")
	require.Equal(t, exitUsage, code)
	require.Contains(t, errs, "no such interface")
	code, _, errs = exec(nil, "-i", "nosuch0", "a.pcap")
	require.Equal(t, exitUsage, code)
	require.Contains(t, errs, "one or the other")
}
