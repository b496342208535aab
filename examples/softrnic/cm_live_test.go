//go:build interop

package main

import (
	"bytes"
	"context"
	"crypto/sha256"
	"fmt"
	"io"
	"net/netip"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/examples/internal/guest"
	"github.com/roce-go/roce/qp/cm"
	roce "github.com/roce-go/roce/qp/endpoint"
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
		{"rdma_xserver, rdma_xclient", "rdma_xserver", "rdma_xclient -s %s", "-cm xrdma"},
		{"cmtime", "cmtime -b %s", "cmtime -s %s -c 20", "-cm cmtime -n 20"},
		{"rstream -T v", "rstream -b %s -C 10 -S 20000 -T b -T v", "rstream -s %s -C 10 -S 20000 -T b -T v", "-cm rstream -n 10 -size 20000"},
		{"riostream -T v", "riostream -b %s -C 10 -S 20000 -T b -T v", "riostream -s %s -C 10 -S 20000 -T b -T v", "-cm riostream -n 10 -size 20000"},
		{"ib_send_bw -R", "ib_send_bw -F -d rxe0 -R -n 100 -s 20000", "ib_send_bw -F -d rxe0 -R -n 100 -s 20000 %s", "-perftest send -R -n 100 -size 20000"},
		{"ib_write_bw -R -q 2", "ib_write_bw -F -d rxe0 -R -q 2 -n 50 -s 8000", "ib_write_bw -F -d rxe0 -R -q 2 -n 50 -s 8000 %s", "-perftest write -R -q 2 -n 50 -size 8000"},
		{"ib_read_bw -R", "ib_read_bw -F -d rxe0 -R -n 50", "ib_read_bw -F -d rxe0 -R -n 50 %s", "-perftest read -R -n 50"},
		{"ib_atomic_bw -R", "ib_atomic_bw -F -d rxe0 -R -n 100", "ib_atomic_bw -F -d rxe0 -R -n 100 %s", "-perftest atomic -R -n 100"},
	} {
		for _, v6 := range []bool{false, true} {
			for _, loss := range []int{0, 5} { // percent
				switch {
				case v6 && strings.Contains(c.tool, " -R"):
					continue // perftest's resolves IPv4 addresses only
				case testing.Short() && (loss != 0 || v6) && (strings.Contains(c.tool, " -R") || strings.Contains(c.tool, "stream")):
					continue
				case loss == 0:
				case c.tool == "udaddy":
					continue // lost datagrams are not sent again
				case c.tool == "cmtime", strings.HasPrefix(c.tool, "rdma_x"):
					continue // these end before the peer has all, and it is not sent again
				}
				ip, ours, theirs, more := "IPv4", ourIP4, guestIP4, ""
				if v6 {
					ip, ours, theirs, more = "IPv6", ourIP6, guestIP6, ", IPv6"
				}
				wire := fmt.Sprintf("-segment=127.0.0.1:%d,127.0.0.1:%d", l.ports[0], l.ports[1])
				if loss != 0 {
					more += ", 5 % loss"
				}
				args := fmt.Sprintf("%s -faults loss=%d -wait 80s", c.ours, loss)
				if loss != 0 && c.tool != "rping -v -V" {
					// They wait for the DREP to their DREQ, and send it again after some 5 s.
					args += " -linger 9s"
					if strings.Contains(c.tool, " -R") {
						args += " -linger 20s" // two connections and more
					}
				}
				client := fmt.Sprintf(c.client, ours)
				if strings.HasPrefix(client, "rdma_") {
					// These give the resolution of an address 2 s, which an emulated guest may miss.
					client = "for i in 1 2 3; do o=$(" + client + " 2>&1); s=$?; echo \"$o\"; " +
						"case \"$o\" in *'rdma_create_ep: Connection timed out'*) ;; *) break ;; esac; done; exit $s"
				}
				name := fmt.Sprintf("%s/%s/loss%d", strings.Fields(c.tool)[0], ip, loss)
				row := "`" + c.tool + "`" + more
				t.Run(name+"/client there", func(t *testing.T) {
					l.results.record(t, row, answers)
					out := make(chan string, 1)
					go func() { out <- runProgram(wire, args) }()
					require.Eventually(t, func() bool { return isOpen(l.ports[0]) }, 10*time.Second, 5*time.Millisecond)
					a := l.guest.Do(t, "sh ms=60000 -- %s", client)
					got := <-out
					t.Log(got)
					require.Equal(t, "0", a.Words["status"], "the guest's tool: %s\nours: %s", a.Words["out"], got)
					require.Contains(t, got, "exit 0")
					if strings.Contains(c.tool, "-T v") {
						require.Contains(t, got, ", verified")
					}
				})
				t.Run(name+"/server there", func(t *testing.T) {
					if loss != 0 && c.tool == "rdma_server, rdma_client" {
						t.Skip("it hangs where the last message to it is lost after we have ended")
					}
					l.results.record(t, row, asks)
					server := c.server
					if strings.Contains(server, "%s") {
						server = fmt.Sprintf(server, theirs)
					}
					if strings.HasPrefix(c.tool, "rdma_") && v6 {
						t.Skip("these servers listen to IPv4 only")
					}
					job := l.guest.Do(t, "bg -- %s", server).Num("job")
					l.awaitListener(t, job)
					got := runProgram(wire, args+" "+theirs.String())
					ms := 20000
					if c.tool == "cmtime" { // it serves for ever
						ms = 10
					}
					a := l.guest.Do(t, "wait job=%d ms=%d", job, ms)
					if a.Words["done"] != "1" {
						a = l.guest.Do(t, "wait job=%d ms=1000 kill=9", job)
					}
					t.Log(got)
					require.Contains(t, got, "exit 0", "the guest's tool: %s", a.Words["out"])
					if c.tool == "cmtime" {
						return
					}
					require.Equal(t, "0", a.Words["status"], "the guest's tool: %s", a.Words["out"])
					if strings.Contains(c.tool, "-T v") {
						require.Contains(t, got, ", verified")
					}
				})
			}
		}
	}
}

// testRcopy has files copied by the guest's rcopy, there and here.
func (l *lab) testRcopy(t *testing.T) {
	l.loop.close()
	wire := fmt.Sprintf("-segment=127.0.0.1:%d,127.0.0.1:%d", l.ports[0], l.ports[1])
	const there = "/usr/bin/rcopy"
	file := filepath.Join(t.TempDir(), "file")
	sum := func(t *testing.T, path string) string {
		a := l.guest.Do(t, "sh ms=20000 -- sha256sum <%s", path)
		return strings.Fields(a.Words["out"])[0]
	}
	requireCopied := func(t *testing.T, want string) {
		data, err := os.ReadFile(file)
		require.NoError(t, err)
		require.Equal(t, want, fmt.Sprintf("%x", sha256.Sum256(data)))
	}
	for _, loss := range []int{0, 5} {
		if loss != 0 && testing.Short() {
			continue
		}
		row := "`rcopy`"
		if loss != 0 {
			row += fmt.Sprintf(", %d %% loss", loss)
		}
		args := fmt.Sprintf("-cm rcopy -file %s -faults loss=%d -wait 80s -linger 9s", file, loss)
		t.Run(fmt.Sprintf("loss%d/client there", loss), func(t *testing.T) {
			l.results.record(t, row, answers)
			out := make(chan string, 1)
			go func() { out <- runProgram(wire, args) }()
			require.Eventually(t, func() bool { return isOpen(l.ports[0]) }, 10*time.Second, 5*time.Millisecond)
			a := l.guest.Do(t, "sh ms=60000 -- rcopy %s %s:/its/name", there, ourIP4)
			got := <-out
			require.Equal(t, "0", a.Words["status"], "the guest's tool: %s\nours: %s", a.Words["out"], got)
			require.Contains(t, got, "exit 0")
			requireCopied(t, sum(t, there))
		})
		t.Run(fmt.Sprintf("loss%d/server there", loss), func(t *testing.T) {
			l.results.record(t, row, asks)
			data := bytes.Repeat([]byte{1, 2, 3, 4, 5, 6, byte(loss)}, 40_000)
			require.NoError(t, os.WriteFile(file, data, 0o600))
			job := l.guest.Do(t, "bg -- rcopy").Num("job")
			l.awaitListener(t, job)
			got := runProgram(wire, strings.Replace(args, file, file+":/tmp/copied", 1)+" "+guestIP4.String())
			l.guest.Do(t, "wait job=%d ms=100 kill=9", job) // it serves for ever
			require.Contains(t, got, "exit 0")
			requireCopied(t, sum(t, "/tmp/copied"))
		})
	}
}

// awaitListener waits until a program of the guest listens for connections.
func (l *lab) awaitListener(t *testing.T, job uint64) {
	a := l.guest.Do(t, "sh ms=25000 -- for i in $(seq 200); do rdma resource show cm_id | grep -q LISTEN && exit 0; sleep 0.1; done; exit 1")
	if a.Words["status"] != "0" {
		out := l.guest.Do(t, "wait job=%d ms=10 kill=9", job).Words["out"]
		t.Fatalf("nobody in the guest listens: %s\nthe guest's tool: %s", a.Words["out"], out)
	}
}

// testMckey has the guest's tool send to a multicast group, and receive from it.
func (l *lab) testMckey(t *testing.T) {
	l.loop.close()
	wire := fmt.Sprintf("-segment=127.0.0.1:%d,127.0.0.1:%d", l.ports[0], l.ports[1])
	for _, c := range []struct{ name, group, theirs, gid string }{{"`mckey`", "239.5.6.7", guestIP4.String(), "0"}} {
		t.Run(c.group+"/sender there", func(t *testing.T) {
			l.results.record(t, c.name, answers)
			out := make(chan string, 1)
			go func() { out <- runProgram(wire, "-cm mckey -n 10 -wait 2m -group "+c.group) }()
			require.Eventually(t, func() bool { return isOpen(l.ports[0]) }, 10*time.Second, 5*time.Millisecond)
			for range 10 { // those that the tool has not sent when it ends are lost
				a := l.guest.Do(t, "sh ms=20000 -- mckey -m %s -s -b %s -C 10 -S 100", c.group, c.theirs)
				require.Equal(t, "0", a.Words["status"], a.Words["out"])
				select {
				case got := <-out:
					require.Contains(t, got, "exit 0")
					return
				case <-time.After(200 * time.Millisecond):
				}
			}
			require.Contains(t, <-out, "exit 0")
		})
		t.Run(c.group+"/receiver there", func(t *testing.T) {
			l.results.record(t, c.name, asks)
			job := l.guest.Do(t, "bg -- mckey -m %s -b %s -C 10 -S 100", c.group, c.theirs).Num("job")
			var a guest.Answer
			for range 15 { // there is no sign that it has joined
				require.Contains(t, runProgram(wire, "-cm mckey -n 10 -gid "+c.gid+" "+c.group), "exit 0")
				if a = l.guest.Do(t, "wait job=%d ms=500", job); a.Words["done"] == "1" {
					break
				}
			}
			if a.Words["done"] != "1" {
				a = l.guest.Do(t, "wait job=%d ms=1000 kill=9", job)
			}
			require.Equal(t, "0", a.Words["status"], a.Words["out"])
		})
	}
}

// testNotThere records what the guest's tools cannot do there.
func (l *lab) testNotThere(t *testing.T) {
	for _, c := range []struct{ cmd, why string }{
		{fmt.Sprintf("rdma_xclient -c x -s %s", ourIP4), ""},
		// It sends LIDs and no GIDs, so that it is for InfiniBand only.
		{"qperf & p=$!; sleep 1; qperf 127.0.0.1 -t 1 ud_lat; s=$?; kill $p; exit $s", ""},
		{fmt.Sprintf("mckey -m ff0e::5:6:7 -s -b %s -C 1", guestIP6), "failure joining"},
	} {
		a := l.guest.Do(t, "sh ms=10000 -- %s", c.cmd)
		t.Logf("%s: %v", c.cmd, a.Words)
		require.NotEqual(t, "0", a.Words["status"], "the driver has it now: try it")
		require.Contains(t, a.Words["out"], c.why)
	}
}

// testCMFaults has peers of RDMA-CM vanish and refuse.
func (l *lab) testCMFaults(t *testing.T) {
	l.loop.close()
	before := runtime.NumGoroutine()
	ep, err := roce.Config{MAC: ourMAC, Rate: 20 << 20}.Open(
		roce.Segment(fmt.Sprintf("127.0.0.1:%d", l.ports[0]), fmt.Sprintf("127.0.0.1:%d", l.ports[1]), ourIP4, ourIP6))
	require.NoError(t, err)
	row := func(t *testing.T, what string, role int) { l.results.record(t, "RDMA-CM, "+what, role) }
	within := func(t *testing.T, d time.Duration) context.Context {
		ctx, cancel := context.WithTimeout(context.Background(), d)
		t.Cleanup(cancel)
		return ctx
	}
	at := func(port int) string { return netip.AddrPortFrom(guestIP4, uint16(port)).String() }

	t.Run("no listener", func(t *testing.T) {
		row(t, "nobody listens", asks)
		_, err := ep.Dial(within(t, 10*time.Second), at(9), nil)
		require.ErrorIs(t, err, syscall.ECONNREFUSED)
		var r *roce.RejectedError
		require.ErrorAs(t, err, &r)
		require.Equal(t, cm.ReasonInvalidServiceID, r.Reason)
	})
	t.Run("no listener here", func(t *testing.T) {
		row(t, "nobody listens", answers)
		a := l.guest.Do(t, "sh ms=20000 -- rping -c -a %s -C 1 -p 99", ourIP4)
		require.NotEqual(t, "0", a.Words["status"])
		require.Contains(t, a.Words["out"], "REJECTED")
	})
	t.Run("no such host", func(t *testing.T) {
		row(t, "no such host", asks)
		start := time.Now()
		_, err := ep.Dial(within(t, 2*time.Second), "192.0.2.99:7174", nil)
		require.ErrorIs(t, err, context.DeadlineExceeded)
		require.Less(t, time.Since(start), 4*time.Second)
	})
	for r := cm.ReasonNoQP; r <= cm.ReasonVendorOptionNotSupported; r++ {
		if _, err := strconv.Atoi(r.String()); err == nil {
			continue // none of the specification's
		}
		if r == cm.ReasonTimeout {
			continue // is for those that a REP was sent to: the kernel looks for no others
		}
		if testing.Short() && r%4 != 0 {
			continue
		}
		t.Run(fmt.Sprintf("refused, %v", r), func(t *testing.T) {
			row(t, "refused, each reason", answers)
			ln, err := ep.Listen(context.Background(), ":7174", &roce.ListenConfig{Decide: func(*roce.Request) error { return &roce.RejectedError{Reason: r} }})
			require.NoError(t, err)
			defer ln.Close()
			a := l.guest.Do(t, "sh ms=20000 -- rping -c -a %s -C 1", ourIP4)
			require.Contains(t, a.Words["out"], fmt.Sprintf("error %d", uint16(r)))
		})
	}
	t.Run("server killed", func(t *testing.T) {
		row(t, "peer killed", asks)
		job := l.guest.Do(t, "bg -- rping -s -P -C 1000").Num("job")
		l.awaitListener(t, job)
		c, err := ep.Dial(within(t, 10*time.Second), at(7174), nil)
		require.NoError(t, err)
		l.guest.Do(t, "wait job=%d ms=100 kill=9", job)
		l.requireGone(t, c)
	})
	t.Run("client killed", func(t *testing.T) {
		row(t, "peer killed", answers)
		ln, err := ep.Listen(context.Background(), ":7174", nil)
		require.NoError(t, err)
		defer ln.Close()
		job := l.guest.Do(t, "bg -- rping -c -a %s -C 1000", ourIP4).Num("job")
		c, err := ln.Accept(within(t, 10*time.Second))
		require.NoError(t, err)
		buf := make([]byte, 100)
		n, err := c.Recv(within(t, 10*time.Second), buf)
		require.NoError(t, err)
		require.Equal(t, 16, n)
		l.guest.Do(t, "wait job=%d ms=100 kill=9", job)
		l.requireGone(t, c)
		require.NoError(t, c.Close())
	})
	t.Run("out of file descriptors", func(t *testing.T) {
		row(t, "no file descriptor left", asks)
		job := l.guest.Do(t, "bg -- rping -s -P -C 1000").Num("job")
		defer l.guest.Do(t, "wait job=%d ms=100 kill=9", job)
		l.awaitListener(t, job)
		c, err := ep.Dial(within(t, 10*time.Second), at(7174), nil)
		require.NoError(t, err)
		defer c.Close()
		var old syscall.Rlimit
		require.NoError(t, syscall.Getrlimit(syscall.RLIMIT_NOFILE, &old))
		few := old
		few.Cur = 3
		require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &few))
		_, err = roce.Open(roce.UDP("127.0.0.9"))
		c2, err2 := ep.Dial(within(t, 10*time.Second), at(7174), nil)
		require.NoError(t, syscall.Setrlimit(syscall.RLIMIT_NOFILE, &old))
		require.ErrorIs(t, err, syscall.EMFILE)
		require.NoError(t, err2, "an endpoint that is open needs none")
		c2.Close()
		require.NoError(t, c.Err())
	})
	require.NoError(t, ep.Close())
	left := runtime.NumGoroutine()
	for end := time.Now().Add(5 * time.Second); left > before && time.Now().Before(end); left = runtime.NumGoroutine() {
		time.Sleep(10 * time.Millisecond)
	}
	l.results.count("RDMA-CM, no goroutine left", asks, left <= before)
	require.LessOrEqual(t, left, before, "goroutines")
}

// requireGone expects a connection to end soon, because its peer has ended.
func (l *lab) requireGone(t *testing.T, c *roce.Conn) {
	t.Helper()
	select {
	case <-c.Done():
	case <-time.After(15 * time.Second):
		t.Fatal("the connection still stands")
	}
	require.ErrorIs(t, c.Err(), io.EOF)
}
