//go:build interop

package main

import (
	"bytes"
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

var (
	update  = flag.Bool("update", false, "write the golden card")
	percent = flag.Int("mutations", 100, "percent of the mutated packets")
	keep    = flag.String("keep", "", "folder for the page, the capture and the kernel's console")
)

// limit is the longest that the exam of a driver may take.
const limit = 10 * time.Minute

// TestGuest examines the Linux driver in the guest of examples/softrnic, by the agent and
// by programs of rdma-core, and compares the verdicts with its golden card.
func TestGuest(t *testing.T) {
	dir := *keep
	if dir == "" {
		dir = t.TempDir()
	}
	out, err := exec.Command("../softrnic/guest/prepare").CombinedOutput()
	require.NoError(t, err, string(out))
	here, there, tcp := freePort(t, "udp"), freePort(t, "udp"), freePort(t, "tcp")
	console := filepath.Join(dir, "console.txt")
	guest := exec.Command("../softrnic/guest/run", fmt.Sprint(there), fmt.Sprint(here), "--tcp", fmt.Sprintf("%d:7175", tcp),
		"--console", console, "--reboot", "--set", "DRILL=1")
	in, err := guest.StdinPipe() // its end powers the guest off
	require.NoError(t, err)
	guest.Stderr = os.Stderr
	stdout, err := guest.StdoutPipe()
	require.NoError(t, err)
	require.NoError(t, guest.Start())
	kill := time.AfterFunc(limit+time.Minute, func() { guest.Process.Kill() })
	t.Cleanup(func() {
		in.Close()
		time.AfterFunc(10*time.Second, func() { guest.Process.Kill() })
		guest.Wait()
		kill.Stop()
	})
	up := make([]byte, 4096) // the guest's first line says that it is up
	n, err := stdout.Read(up)
	require.NoError(t, err, "the guest did not come up")
	go io.Copy(io.Discard, stdout) // it says so again after a panic
	_, kernel, _ := strings.Cut(string(up[:n]), "kernel=")
	version := strings.Join(strings.SplitN(kernel, ".", 3)[:2], ".")

	args := []string{"-segment", fmt.Sprintf("127.0.0.1:%d,127.0.0.1:%d", here, there), "-agent", fmt.Sprintf("127.0.0.1:%d", tcp),
		"-cm", "192.0.2.2", "-cm", "[2001:db8::2]:7274", "-cm", "rdma_server=192.0.2.2", "-console", console, "-mutations", fmt.Sprint(*percent), "-title", "rdma_rxe of Linux " + version,
		"-card", filepath.Join(dir, "card.txt"), "-html", filepath.Join(dir, "card.html"), "-pcap", filepath.Join(dir, "drill.pcapng")}
	var text, errs bytes.Buffer
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	code := run0(ctx, args, &text, &errs)
	require.Less(t, code, 2, errs.String())
	t.Log("\n" + text.String())
	require.NoError(t, os.WriteFile(filepath.Join(dir, "card.out"), text.Bytes(), 0o666))
	got, err := os.ReadFile(filepath.Join(dir, "card.txt"))
	require.NoError(t, err)
	golden := "cards/linux-" + version + ".txt"
	if *update {
		require.NoError(t, os.WriteFile(golden, got, 0o666))
		return
	}
	want, err := os.ReadFile(golden)
	require.NoError(t, err)
	is, was := verdictsOf(string(got)), verdictsOf(string(want))
	for name, v := range was {
		if v == "not examined yet" {
			t.Logf("%s: %q, new", name, is[name])
			continue
		}
		if *percent < 100 && strings.HasPrefix(name, "robustness/") && is[name] == "follows" {
			continue // fewer packets find less
		}
		if is[name] != v {
			t.Errorf("%s: %q, the golden card says %q", name, is[name], v)
		}
	}
	require.Len(t, is, len(was))
}

func freePort(t *testing.T, network string) int {
	if network == "udp" {
		c, err := net.ListenPacket("udp", "127.0.0.1:0")
		require.NoError(t, err)
		defer c.Close()
		return c.LocalAddr().(*net.UDPAddr).Port
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
