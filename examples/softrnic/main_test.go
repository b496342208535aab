package main

import (
	"bytes"
	"fmt"
	"net"
	"os/exec"
	"runtime"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func freeUDP(t *testing.T) int {
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).Port
}

func program(args ...string) (string, int) {
	var out bytes.Buffer
	code := run(args, strings.NewReader(""), &out, &out)
	return out.String(), code
}

func TestUsage(t *testing.T) {
	out, code := program("-h")
	require.Zero(t, code)
	require.Contains(t, out, "usage: softrnic")
	for _, bad := range []string{"", "-nonsense", "-segment x,y", "-segment 127.0.0.1:0,127.0.0.1:1 -tap x", "-segment 127.0.0.1:0,127.0.0.1:1 -ip x",
		"-segment 127.0.0.1:0,127.0.0.1:1 -gid 7", "-segment 127.0.0.1:0,127.0.0.1:1 -mac x", "-packet nosuchinterface", "-segment 127.0.0.1:0,127.0.0.1:1 here",
		"-udp 0.0.0.0", "-tap namesofmorethan15characters", "-segment 127.0.0.1:0,127.0.0.1:1 -n -5", "-segment 127.0.0.1:0,127.0.0.1:1 -size -1",
		"-segment 127.0.0.1:0,127.0.0.1:1 -mtu 1000", "-segment 127.0.0.1:0,127.0.0.1:1 -perftest nosuch", "-segment 127.0.0.1:0,127.0.0.1:1 -cm nosuch",
		"-packet lo -ip 127.0.0.1"} {
		out, code := program(strings.Fields(bad)...)
		require.Equal(t, 2, code, bad)
		require.NotEmpty(t, out)
	}
}

// TestAgainstItself runs each tool between two of this program: on a segment, and
// on sockets where the system has what they need.
func TestAgainstItself(t *testing.T) {
	a, b := freeUDP(t), freeUDP(t)
	at := func(l, r int) string { return fmt.Sprintf("-segment 127.0.0.1:%d,127.0.0.1:%d", l, r) }
	wires := map[string][2]string{
		"segment": {at(a, b), at(b, a) + " -mac 52:54:00:00:00:02 -ip 192.0.2.2,2001:db8::2"},
	}
	if runtime.GOOS == "linux" {
		wires["udp"] = [2]string{"-udp 127.0.0.1", "-udp 127.0.0.2"}
	}
	const tap = "rocetest1"
	if exec.Command("ip", "tuntap", "add", "mode", "tap", "name", tap).Run() == nil {
		defer exec.Command("ip", "link", "del", tap).Run()
		require.NoError(t, exec.Command("ip", "link", "set", tap, "mtu", "4400", "up").Run())
		wires["interface"] = [2]string{"-ip 198.18.7.1 -tap " + tap, "-packet " + tap + " -mac 52:54:00:00:00:02 -ip 198.18.7.2"}
	}
	for name, wire := range wires {
		for _, what := range []string{
			"-pingpong rc -n 50", "-pingpong rc -n 20 -size 20000 -mtu 4096", "-pingpong uc -n 50 -size 900", "-pingpong ud -n 50",
			"-perftest send -n 50", "-perftest write -n 50", "-perftest read -n 50", "-perftest atomic -n 50",
			"-perftest send -c ud -n 50 -size 500",
			"-cm rping -n 20 -size 3000", "-cm ucmatose -n 50", "-cm rdma", "-cm udaddy -n 40",
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				l, err := net.Listen("tcp", "127.0.0.1:0")
				require.NoError(t, err)
				port := l.Addr().(*net.TCPAddr).Port
				l.Close()
				server, client := "", " 127.0.0.1"
				if strings.HasPrefix(what, "-cm") {
					client = " " + map[string]string{"segment": "192.0.2.1", "udp": "127.0.0.1", "interface": "198.18.7.1"}[name]
					what += " -rate 50000000"
				} else {
					server, client = fmt.Sprintf(" -rate 50000000 -p %d", port), fmt.Sprintf(" -rate 50000000 -p %d", port)+client
				}
				type result struct {
					out  string
					code int
				}
				served := make(chan result, 1)
				go func() {
					out, code := program(strings.Fields(wire[0] + " " + what + server)...)
					served <- result{out, code}
				}()
				var out string
				code := 2
				for end := time.Now().Add(20 * time.Second); code != 0 && time.Now().Before(end); {
					// The server is not listening yet, or the last one's socket not gone.
					out, code = program(strings.Fields(wire[1] + " " + what + client)...)
					select {
					case r := <-served:
						require.Zero(t, r.code, r.out)
						served <- r
					default:
					}
				}
				require.Zero(t, code, out)
				r := <-served
				require.Zero(t, r.code, r.out)
			})
		}
	}
}

// TestByHand connects two of this program with numbers from the command line.
func TestByHand(t *testing.T) {
	for op, want := range map[string]string{"write": "3 times RDMA_WRITE of 4096 bytes", "send": "3 times SEND of 4096 bytes",
		"read": "3 times RDMA_READ of 4096 bytes", "fadd": "was 0x2", "cswap": "was 0x2"} {
		t.Run(op, func(t *testing.T) {
			t.Parallel()
			a, b := freeUDP(t), freeUDP(t)
			served := make(chan string, 1)
			go func() {
				out, code := program(strings.Fields(fmt.Sprintf("-segment 127.0.0.1:%d,127.0.0.1:%d -psn 1 -peer 11:2:[192.0.2.2] -for 2s", a, b))...)
				served <- fmt.Sprint(out, "exit ", code)
			}()
			out, code := program(strings.Fields(fmt.Sprintf("-segment 127.0.0.1:%d,127.0.0.1:%d -mac 52:54:00:00:00:02 -ip 192.0.2.2 "+
				"-psn 2 -peer 11:1:192.0.2.1:101:700000000000 -op %s -n 3", b, a, op))...)
			require.Zero(t, code, out)
			require.Contains(t, out, want)
			out = <-served
			require.Contains(t, out, "local 11:000001:[192.0.2.1]:00000101:700000000000")
			require.Contains(t, out, "exit 0")
			require.Equal(t, op == "send", strings.Contains(out, `RECV 4096 bytes "abcdefghijklmnopqrstuvwxyzabcdefghijklmn"`), out)
		})
	}
}
