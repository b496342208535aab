package main

import (
	"bufio"
	"bytes"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// port returns an address with a UDP port that was free a moment ago.
func port(t *testing.T) string {
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer c.Close()
	return c.LocalAddr().String()
}

// The program against nvmetarget, as programs, with faults on its side: what it says,
// IPv4 and IPv6, refusals, and that the end of the target in the middle ends it, too.
func TestProgram(t *testing.T) {
	if testing.Short() {
		t.Skip("builds a program")
	}
	target := filepath.Join(t.TempDir(), "nvmetarget")
	out, err := exec.Command("go", "build", "-o", target, "../nvmetarget").CombinedOutput()
	require.NoError(t, err, "%s", out)
	a, b := port(t), port(t)
	cmd := exec.Command(target, "-segment", b+","+a, "-ip", "192.0.2.2,2001:db8::2", "-mac", "52:54:00:00:00:02", "-size", "4M", "-for", "60s")
	says, err := cmd.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, cmd.Start())
	defer func() { cmd.Process.Kill(); cmd.Wait() }()
	_, err = bufio.NewReader(says).ReadString('\n') // it listens
	require.NoError(t, err)
	for _, to := range []string{"192.0.2.2", "[2001:db8::2]:4420"} {
		var out, errs bytes.Buffer
		code := run([]string{"-segment", a + "," + b, "-faults", "loss=1,duplicate=1,reorder=1", "-to", to, "-verify", "1048576", "-n", "60", "-max", "65536", "-queues", "2"}, &out, &errs)
		require.Zero(t, code, "%s%s", &out, &errs)
		require.Contains(t, out.String(), "roce nvmetarget")
		require.Contains(t, out.String(), "namespace 1: 8192 blocks of 512 bytes")
		require.Contains(t, out.String(), "verified: 60 commands")
	}
	var errs bytes.Buffer
	require.Equal(t, 1, run([]string{"-segment", a + "," + b, "-to", "192.0.2.2", "-nqn", "nqn.none"}, io.Discard, &errs))
	require.Contains(t, errs.String(), "connect: invalid parameters")
	require.Contains(t, errs.String(), "there is no such subsystem")
	errs.Reset()
	require.Equal(t, 1, run([]string{"-segment", a + "," + b, "-to", "192.0.2.2:99"}, io.Discard, &errs))
	require.Contains(t, errs.String(), "the peer has no listener")
	time.AfterFunc(500*time.Millisecond, func() { cmd.Process.Kill() })
	errs.Reset()
	require.Equal(t, 1, run([]string{"-segment", a + "," + b, "-to", "192.0.2.2", "-verify", "1048576", "-n", "1000000", "-limit", "6s"}, io.Discard, &errs))
	require.NotContains(t, errs.String(), "does not hold")
}

func TestUsage(t *testing.T) {
	var errs strings.Builder
	require.Zero(t, run([]string{"-h"}, io.Discard, &errs))
	require.Contains(t, errs.String(), "usage: nvmehost")
	for _, args := range [][]string{{}, {"-to", "x"}, {"-to", "192.0.2.1", "x"}, {"-to", "192.0.2.1", "-depth", "0"}, {"-to", "192.0.2.1", "-verify", "-1"}} {
		require.Equal(t, 2, run(args, io.Discard, io.Discard), args)
	}
	require.Equal(t, 1, run([]string{"-to", "192.0.2.1"}, io.Discard, io.Discard), "no wire")
}
