// Package guest boots the guest of examples/softrnic/guest, a small QEMU machine with
// the Linux kernel's soft-RoCE driver, and talks to its agent: see the README.md there.
package guest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// Guest is a booted guest and its agent: see guest/README.md.
type Guest struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	mu   sync.Mutex
	gone chan struct{} // closed when QEMU has ended
	Info Answer        // the agent's answer to info after the start
}

// Answer is the agent's answer to a command: words, and those of each group after a bar.
type Answer struct {
	Words  map[string]string
	Groups []map[string]string
	Err    string
}

// Num returns a word as a number.
func (a Answer) Num(key string) uint64 {
	n, err := strconv.ParseUint(a.Words[key], 0, 64)
	if err != nil {
		panic("guest's answer has no number " + key)
	}
	return n
}

// Boot builds a guest's image if needed and boots it: the default image if the name is empty,
// otherwise the one with that name. The guest's network card is a UDP socket at port here,
// which sends frames to port there.
func Boot(t testing.TB, image string, here, there int, args ...string) *Guest {
	t.Helper()
	dir := scripts(t)
	prepare := exec.Command(filepath.Join(dir, "prepare"))
	first := []string{strconv.Itoa(here), strconv.Itoa(there), "--socket", "3"}
	if image != "" {
		prepare.Args = append(prepare.Args, image)
		first = append(first, "--image", image)
	}
	if out, err := prepare.CombinedOutput(); err != nil {
		t.Fatalf("guest/prepare: %v\n%s", err, out)
	}
	card, err := socket(here, there)
	require.NoError(t, err)
	defer card.Close()
	g := &Guest{cmd: exec.Command(filepath.Join(dir, "run"), append(first, args...)...), gone: make(chan struct{})}
	g.cmd.ExtraFiles = []*os.File{card}
	g.in, err = g.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := g.cmd.StdoutPipe()
	require.NoError(t, err)
	g.cmd.Stderr = os.Stderr
	g.out = bufio.NewReaderSize(out, 1<<20)
	require.NoError(t, g.cmd.Start())
	go func() {
		g.cmd.Wait()
		close(g.gone)
	}()
	kill := time.AfterFunc(4*time.Minute, func() { g.cmd.Process.Kill() })
	g.Info, err = g.read()
	kill.Stop()
	require.NoError(t, err, "the guest did not come up")
	return g
}

// socket returns the socket of a guest's network card. Its buffers hold some hundred frames,
// if the system permits, because an emulated guest is slow; QEMU's own sockets hold a dozen.
func socket(here, there int) (*os.File, error) {
	lo := net.IPv4(127, 0, 0, 1)
	c, err := net.DialUDP("udp4", &net.UDPAddr{IP: lo, Port: here}, &net.UDPAddr{IP: lo, Port: there})
	if err != nil {
		return nil, err
	}
	defer c.Close() // File has its own descriptor of the socket
	_ = c.SetReadBuffer(4 << 20)
	_ = c.SetWriteBuffer(4 << 20)
	return c.File()
}

// scripts returns the folder of the guest's scripts: a test runs in the folder of its
// package.
func scripts(t testing.TB) string {
	at, err := os.Getwd()
	require.NoError(t, err)
	for dir := at; dir != filepath.Dir(dir); dir = filepath.Dir(dir) {
		if _, err := os.Stat(filepath.Join(dir, "go.mod")); err == nil {
			return filepath.Join(dir, "examples/softrnic/guest")
		}
	}
	t.Fatalf("no go.mod above %s", at)
	return ""
}

// Close closes the guest's input, and the guest powers off.
func (g *Guest) Close() {
	g.in.Close()
	kill := time.AfterFunc(10*time.Second, func() { g.cmd.Process.Kill() })
	<-g.gone
	kill.Stop()
}

// Alive ends a test if QEMU has ended: nothing that would follow can pass, and each step
// would wait for its time limit.
func (g *Guest) Alive(t testing.TB) {
	t.Helper()
	select {
	case <-g.gone:
		t.Fatalf("the guest's QEMU has ended: %v", g.cmd.ProcessState)
	default:
	}
}

// Signal sends the guest's machine a signal: SIGSTOP freezes it.
func (g *Guest) Signal(s os.Signal) error { return g.cmd.Process.Signal(s) }

func (g *Guest) read() (Answer, error) {
	line, err := g.out.ReadString('\n')
	if err != nil {
		return Answer{}, err
	}
	line = strings.TrimSuffix(line, "\n")
	verb, rest, _ := strings.Cut(line, " ")
	if verb != "ok" {
		return Answer{Err: rest}, nil
	}
	var a Answer
	for i, part := range splitBars(rest) {
		m := words(part)
		if i == 0 {
			a.Words = m
		} else {
			a.Groups = append(a.Groups, m)
		}
	}
	return a, nil
}

// splitBars splits at bars outside of quotes.
func splitBars(s string) []string {
	var parts []string
	quoted, from := false, 0
	for i := 0; i < len(s); i++ {
		switch {
		case quoted && s[i] == '\\':
			i++
		case s[i] == '"':
			quoted = !quoted
		case s[i] == '|' && !quoted:
			parts = append(parts, s[from:i])
			from = i + 1
		}
	}
	return append(parts, s[from:])
}

func words(s string) map[string]string {
	m := map[string]string{}
	for s = strings.TrimSpace(s); s != ""; s = strings.TrimSpace(s) {
		key, rest, ok := strings.Cut(s, "=")
		if !ok {
			return m
		}
		if q, err := strconv.QuotedPrefix(rest); err == nil {
			m[key], _ = strconv.Unquote(q)
			s = rest[len(q):]
			continue
		}
		val, rest, _ := strings.Cut(rest, " ")
		m[key] = val
		s = rest
	}
	return m
}

// Try sends the agent a command and returns its answer, also if that is an error.
func (g *Guest) Try(format string, args ...any) Answer {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, err := fmt.Fprintf(g.in, format+"\n", args...); err != nil {
		return Answer{Err: "guest is gone: " + err.Error()}
	}
	a, err := g.read()
	if err != nil {
		return Answer{Err: "guest is gone: " + err.Error()}
	}
	return a
}

// Do is Try for a command that must succeed.
func (g *Guest) Do(t testing.TB, format string, args ...any) Answer {
	t.Helper()
	a := g.Try(format, args...)
	if a.Err != "" {
		t.Fatalf("guest: %s: %s", fmt.Sprintf(format, args...), a.Err)
	}
	return a
}

// Poll waits for n completions of a guest's QP.
func (g *Guest) Poll(t testing.TB, qp uint64, n int) []map[string]string {
	t.Helper()
	a := g.Do(t, "poll qp=%d n=%d ms=30000", qp, n)
	require.Len(t, a.Groups, n, "completions of the guest")
	return a.Groups
}
