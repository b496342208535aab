//go:build interop

package main

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// isOpen reports whether a UDP port of the loopback is in use.
func isOpen(port int) bool {
	// Asked of the kernel, not tried: a socket here could keep the program from its port.
	list, err := os.ReadFile("/proc/net/udp")
	return err == nil && strings.Contains(string(list), fmt.Sprintf(" 0100007F:%04X ", port))
}

// testCM runs the guest's RDMA-CM tools against this program, in both roles, over
// IPv4 and IPv6, on a good segment and with 5 % of what we send and receive lost.
func (l *lab) testCM(t *testing.T) {
	l.loop.close() // the program has the segment
	for _, c := range []struct{ tool, server, client, ours string }{
		{"rping -v -V", "rping -s -a %s -C 10 -S 1000 -v -V", "rping -c -a %s -C 10 -S 1000 -v -V", "-cm rping -n 10 -size 1000"},
		{"ucmatose", "ucmatose -b %s -C 10 -S 100", "ucmatose -s %s -C 10 -S 100", "-cm ucmatose -n 10 -size 100"},
		{"udaddy", "udaddy -b %s -C 10 -S 100", "udaddy -s %s -C 10 -S 100", "-cm udaddy -n 10 -size 100"},
		{"rdma_server, rdma_client", "rdma_server", "rdma_client -s %s", "-cm rdma"},
	} {
		for _, v6 := range []bool{false, true} {
			for _, loss := range []int{0, 50} {
				if loss != 0 && c.tool == "udaddy" {
					continue // nobody sends lost datagrams again
				}
				ip, ours, theirs, more := "IPv4", ourIP4, guestIP4, ""
				if v6 {
					ip, ours, theirs, more = "IPv6", ourIP6, guestIP6, ", IPv6"
				}
				wire := fmt.Sprintf("-segment=127.0.0.1:%d,127.0.0.1:%d", l.ports[0], l.ports[1])
				if loss != 0 {
					more += ", 5 % loss"
				}
				args := fmt.Sprintf("%s -loss %d", c.ours, loss)
				name := fmt.Sprintf("%s/%s/loss%d", strings.Fields(c.tool)[0], ip, loss)
				row := "`" + c.tool + "`" + more
				t.Run(name+"/client there", func(t *testing.T) {
					l.results.record(t, row, answers)
					out := make(chan string, 1)
					go func() { out <- runProgram(wire, args) }()
					require.Eventually(t, func() bool { return isOpen(l.ports[0]) }, 10*time.Second, 5*time.Millisecond)
					a := l.guest.Do(t, "sh ms=60000 -- "+c.client, ours)
					got := <-out
					t.Log(got)
					require.Equal(t, "0", a.Words["status"], "the guest's tool: %s\nours: %s", a.Words["out"], got)
					require.Contains(t, got, "exit 0")
				})
				t.Run(name+"/server there", func(t *testing.T) {
					l.results.record(t, row, asks)
					server := c.server
					if strings.Contains(server, "%s") {
						server = fmt.Sprintf(server, theirs)
					}
					if strings.HasPrefix(c.tool, "rdma_server") && v6 {
						t.Skip("rdma_server listens to IPv4 only")
					}
					job := l.guest.Do(t, "bg -- %s", server).Num("job")
					l.guest.Do(t, "sh -- sleep 0.7")
					got := runProgram(wire, args+" "+theirs.String())
					a := l.guest.Do(t, "wait job=%d ms=20000", job)
					if a.Words["done"] != "1" {
						a = l.guest.Do(t, "wait job=%d ms=1000 kill=9", job)
					}
					t.Log(got)
					require.Contains(t, got, "exit 0", "the guest's tool: %s", a.Words["out"])
					require.Equal(t, "0", a.Words["status"], "the guest's tool: %s", a.Words["out"])
				})
			}
		}
	}
}
