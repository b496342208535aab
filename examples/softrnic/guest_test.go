//go:build interop

package main

import (
	"bufio"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// guest is a booted guest and its agent: see guest/README.md.
type guest struct {
	cmd  *exec.Cmd
	in   io.WriteCloser
	out  *bufio.Reader
	mu   sync.Mutex
	info answer
}

// answer is what the agent says to a command: words, and those of each group
// after a bar.
type answer struct {
	words  map[string]string
	groups []map[string]string
	err    string
}

func (a answer) num(key string) uint64 {
	n, err := strconv.ParseUint(a.words[key], 0, 64)
	if err != nil {
		panic("guest's answer has no number " + key)
	}
	return n
}

// boot makes the guest where needed and boots it. Its network card is a socket at
// port here, whose frames go to port there.
func boot(t *testing.T, here, there int, args ...string) *guest {
	t.Helper()
	if out, err := exec.Command("guest/prepare").CombinedOutput(); err != nil {
		t.Fatalf("guest/prepare: %v\n%s", err, out)
	}
	g := &guest{cmd: exec.Command("guest/run", append([]string{strconv.Itoa(here), strconv.Itoa(there)}, args...)...)}
	var err error
	g.in, err = g.cmd.StdinPipe()
	require.NoError(t, err)
	out, err := g.cmd.StdoutPipe()
	require.NoError(t, err)
	g.cmd.Stderr = os.Stderr
	g.out = bufio.NewReaderSize(out, 1<<20)
	require.NoError(t, g.cmd.Start())
	kill := time.AfterFunc(2*time.Minute, func() { g.cmd.Process.Kill() })
	g.info, err = g.read()
	kill.Stop()
	require.NoError(t, err, "the guest did not come up")
	return g
}

// close ends the guest's input, upon which it powers off.
func (g *guest) close() {
	g.in.Close()
	kill := time.AfterFunc(10*time.Second, func() { g.cmd.Process.Kill() })
	g.cmd.Wait()
	kill.Stop()
}

func (g *guest) read() (answer, error) {
	line, err := g.out.ReadString('\n')
	if err != nil {
		return answer{}, err
	}
	line = strings.TrimSuffix(line, "\n")
	verb, rest, _ := strings.Cut(line, " ")
	if verb != "ok" {
		return answer{err: rest}, nil
	}
	var a answer
	for i, part := range splitBars(rest) {
		m := words(part)
		if i == 0 {
			a.words = m
		} else {
			a.groups = append(a.groups, m)
		}
	}
	return a, nil
}

// splitBars cuts at bars outside of quotes.
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

// try gives the agent a command and returns its answer, good or bad.
func (g *guest) try(format string, args ...any) answer {
	g.mu.Lock()
	defer g.mu.Unlock()
	if _, err := fmt.Fprintf(g.in, format+"\n", args...); err != nil {
		return answer{err: "guest is gone: " + err.Error()}
	}
	a, err := g.read()
	if err != nil {
		return answer{err: "guest is gone: " + err.Error()}
	}
	return a
}

// do is try for what must succeed.
func (g *guest) do(t testing.TB, format string, args ...any) answer {
	t.Helper()
	a := g.try(format, args...)
	if a.err != "" {
		t.Fatalf("guest: %s: %s", fmt.Sprintf(format, args...), a.err)
	}
	return a
}

// poll waits for n completions of a guest's QP.
func (g *guest) poll(t testing.TB, qp uint64, n int) []map[string]string {
	t.Helper()
	a := g.do(t, "poll qp=%d n=%d ms=10000", qp, n)
	require.Len(t, a.groups, n, "completions of the guest")
	return a.groups
}

// pattern fills b with the guest's pattern of a seed, from byte from on.
func pattern(b []byte, seed, from uint32) {
	for i := range b {
		x := (uint32(i)+from)*0x9E3779B1 + seed*0x85EBCA6B
		x ^= x >> 15
		x *= 0x2C1B3CD5
		b[i] = byte(x >> 24)
	}
}

func mustAddr(s string) netip.Addr { return netip.MustParseAddr(s).Unmap() }
func mustGID(s string) [16]byte    { return netip.MustParseAddr(s).As16() }
