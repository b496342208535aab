package main

import (
	"bufio"
	"errors"
	"fmt"
	"net"
	"strconv"
	"strings"
	"time"
)

// agent is the control line to the device's host: a command is a line of words, and so
// is what it returns. drill-agent.c describes the commands.
type agent interface {
	do(format string, v ...any) (reply, error)
	close()
}

// reply is what the agent says to a command: words, and those of each group after a bar.
type reply struct {
	words  map[string]string
	groups []map[string]string
}

func (a reply) num(key string) uint64 {
	n, _ := strconv.ParseUint(a.words[key], 0, 64)
	return n
}

// errAgent is a command that the agent refused.
type errAgent struct{ cmd, why string }

func (e *errAgent) Error() string { return fmt.Sprintf("agent: %s: %s", e.cmd, e.why) }

// parseReply reads "ok KEY=VALUE... | KEY=VALUE..." or "err TEXT".
func parseReply(cmd, line string) (reply, error) {
	verb, rest, _ := strings.Cut(strings.TrimSpace(line), " ")
	switch verb {
	case "ok":
	case "err":
		return reply{}, &errAgent{cmd, rest}
	default:
		return reply{}, fmt.Errorf("agent: %q is no reply: does something else listen there?", line)
	}
	var a reply
	for i, part := range strings.Split(rest, "|") {
		m := map[string]string{}
		for w := range strings.FieldsSeq(part) {
			k, v, _ := strings.Cut(w, "=")
			m[k] = v
		}
		if i == 0 {
			a.words = m
		} else {
			a.groups = append(a.groups, m)
		}
	}
	return a, nil
}

// remote is an agent behind a TCP connection.
type remote struct {
	addr string
	c    net.Conn
	r    *bufio.Reader
	err  error // until revive
}

// errGone means that the agent's connection has ended: the device's host is gone, or the
// agent died.
var errGone = errors.New("the agent is gone")

func dialAgent(addr string) (*remote, error) {
	c, err := net.DialTimeout("tcp", addr, 10*time.Second)
	if err != nil {
		return nil, fmt.Errorf("no agent at %s: %w\nStart it at the device's host: drill-agent [-d DEVICE] [-p PORT]", addr, err)
	}
	return &remote{addr: addr, c: c, r: bufio.NewReaderSize(c, 1<<20)}, nil
}

// revive connects again to an agent that was gone: it, or its host, may have started anew.
func (a *remote) revive() {
	if a.err == nil {
		return
	}
	a.c.Close()
	if b, err := dialAgent(a.addr); err == nil {
		if _, err := b.do("info"); err == nil {
			*a = *b
			return
		}
		b.close()
	}
}

func (a *remote) do(format string, v ...any) (reply, error) {
	cmd := fmt.Sprintf(format, v...)
	if a.err != nil {
		return reply{}, a.err
	}
	_ = a.c.SetDeadline(time.Now().Add(30 * time.Second))
	_, err := a.c.Write([]byte(cmd + "\n"))
	line := ""
	if err == nil {
		line, err = a.r.ReadString('\n')
	}
	if err != nil {
		a.err = fmt.Errorf("%w: %v", errGone, err)
		return reply{}, a.err
	}
	return parseReply(cmd, line)
}

func (a *remote) close() { a.c.Close() }
