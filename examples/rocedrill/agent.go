package main

import (
	"bufio"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"
)

// agent is the control connection to the device's host: a command is a line of words, and so
// is its reply. drill-agent.c describes the commands.
type agent interface {
	do(format string, v ...any) (reply, error)
	close()
}

// reply is the agent's reply to a command: words, and those of each group after a bar.
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
		return reply{}, fmt.Errorf("%.40q is no reply of drill-agent: does something else listen there?", strings.TrimSpace(line))
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
	addr   string
	reboot time.Duration // how long a host that went down may take to come back
	lost   bool          // it did not come back in that time
	c      net.Conn
	r      *bufio.Reader
	err    error // set until revive
}

// errGone means that the agent's connection has ended: the device's host is down, or the
// agent has ended.
var errGone = errors.New("the connection to the agent has ended")

// Time limits of a reply, besides the time that the command itself needs, and its maximum
// length. A host that is down does not reply either, so the limit of "info" is shorter.
var (
	replyTime = 20 * time.Second
	infoTime  = 10 * time.Second
)

const maxReply = 1 << 20

func dialAgent(addr string) (*remote, error) {
	c, err := net.DialTimeout("tcp", addr, 10*time.Second)
	if err != nil {
		return nil, fmt.Errorf("no agent at %s: %w\nStart it at the device's host: drill-agent [-d DEVICE] [-p PORT]", addr, err)
	}
	return newRemote(addr, c), nil
}

func newRemote(addr string, c net.Conn) *remote {
	return &remote{addr: addr, c: c, r: bufio.NewReaderSize(c, maxReply)}
}

// info asks the agent what the device supports.
func (a *remote) info() (reply, error) {
	r, err := a.ask("info", infoTime)
	switch {
	case err != nil:
		return r, fmt.Errorf("%s takes connections, but no agent responds there; does drill-agent run, and for this program alone? %w", a.addr, err)
	case r.words["device"] == "":
		return r, fmt.Errorf("%s takes connections, but it is no drill-agent: it names no device", a.addr)
	}
	return r, nil
}

// revive connects again to an agent after the connection has ended: the agent or its host may
// have restarted. It waits for the host only once; if the host did not come back, each later
// script tries once.
func (a *remote) revive() {
	if a.err == nil {
		return
	}
	a.c.Close()
	wait, each := a.reboot, infoTime
	if a.lost {
		wait, each = 0, time.Second
	}
	for end := time.Now().Add(wait); ; {
		if c, err := net.DialTimeout("tcp", a.addr, each); err == nil {
			b := newRemote(a.addr, c)
			if _, err := b.ask("info", each); err == nil {
				a.c, a.r, a.err, a.lost = b.c, b.r, nil, false
				return
			}
			c.Close()
		}
		if !time.Now().Before(end) {
			a.lost = true
			return
		}
		time.Sleep(500 * time.Millisecond)
	}
}

func (a *remote) do(format string, v ...any) (reply, error) {
	cmd := fmt.Sprintf(format, v...)
	if cmd == "info" || cmd == "log" {
		return a.ask(cmd, infoTime)
	}
	return a.ask(cmd, replyTime)
}

func (a *remote) ask(cmd string, within time.Duration) (reply, error) {
	if a.err != nil {
		return reply{}, a.err
	}
	_ = a.c.SetDeadline(time.Now().Add(within))
	_, err := a.c.Write([]byte(cmd + "\n"))
	var line []byte
	if err == nil {
		line, err = a.r.ReadSlice('\n')
	}
	if errors.Is(err, os.ErrDeadlineExceeded) {
		err = fmt.Errorf("no reply to %q in %v", firstWord(cmd), within)
	}
	if errors.Is(err, bufio.ErrBufferFull) {
		err = fmt.Errorf("more than %d bytes without the end of a line", maxReply)
	}
	if err != nil {
		a.err = fmt.Errorf("%w: %w", errGone, err)
		return reply{}, a.err
	}
	r, err := parseReply(firstWord(cmd), string(line))
	if r.words == nil && !isRefusal(err) {
		a.err = fmt.Errorf("%w: %w", errGone, err) // replies and commands no longer match: later replies would be wrong too
		return r, a.err
	}
	return r, err
}

func firstWord(s string) string {
	w, _, _ := strings.Cut(s, " ")
	return w
}

func isRefusal(err error) bool {
	var e *errAgent
	return errors.As(err, &e)
}

func (a *remote) close() { a.c.Close() }

// obituary is called when the agent is gone. It waits for it to come back, and returns what
// the console tells about the crash of its host. It returns an error if only the agent has
// ended, which may not be the device's fault.
func (d *device) obituary() (how string, err error) {
	a, ok := d.agent.(*remote)
	if !ok {
		return "", errGone
	}
	why := a.err
	boot := d.can["boot"]
	if d.waiting != nil {
		d.waiting()
	}
	a.revive()
	how = d.console.said()
	if a.err != nil {
		if _, err := resolve(d.link, ourMAC, d.our4, d.ip4); err == nil && how == "" {
			return "", fmt.Errorf("%w; its host still responds to ARP", why)
		}
		return "it no longer responds" + how, nil
	}
	info, err := a.info()
	if err != nil {
		return "", err
	}
	for k, v := range info.words {
		d.can[k] = v
	}
	if boot != "" && d.can["boot"] == boot {
		return "", fmt.Errorf("%w; it responds again, and its host had not restarted", why)
	}
	if d.mac, err = resolve(d.link, ourMAC, d.our4, d.ip4); err != nil {
		return "", fmt.Errorf("%v, after its host started anew: %w", d.ip4, err)
	}
	return "it started anew" + how, nil
}

// consoleFile is the file with the console output of the device's host, if there is one.
type consoleFile struct {
	file string
	at   int64 // how much of it has been read
}

var (
	lastWords = regexp.MustCompile(`(?m)(BUG: .*|kernel BUG at .*|Oops: .*|general protection fault.*|RIP: .*|Kernel panic.*)\r?$`)
	liveWords = regexp.MustCompile(`\b(CPU|PID): \d+ ?|0x[0-9a-f]{6,}|\b[0-9a-f]{12,16}\b|\b0010:|\s+$`)
)

// said returns the lines of the console since the last call that tell how the kernel crashed:
// ": ..." or "". Parts that differ in each run are removed.
func (c *consoleFile) said() string {
	if c == nil || c.file == "" {
		return ""
	}
	f, err := os.Open(c.file)
	if err != nil {
		return ""
	}
	defer f.Close()
	b, err := io.ReadAll(io.NewSectionReader(f, c.at, maxReply))
	c.at += int64(len(b))
	if err != nil {
		return ""
	}
	var out []string
	for _, m := range lastWords.FindAllString(string(b), -1) {
		m = strings.TrimSuffix(strings.Join(strings.Fields(liveWords.ReplaceAllString(m, "")), " "), ", address:")
		if !slices.Contains(out, m) && len(out) < 3 {
			out = append(out, m)
		}
	}
	if len(out) == 0 {
		return ""
	}
	return ": " + strings.Join(out, "; ")
}
