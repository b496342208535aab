//go:build interop

package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"
	"unsafe"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/examples/internal/guest"
)

// testTools runs the guest's own tools against this program, in both roles. It is
// the last test: the program takes over the segment.
func (l *lab) testTools(t *testing.T) {
	l.loop.close()
	wire := fmt.Sprintf("-segment=127.0.0.1:%d,127.0.0.1:%d", l.ports[0], l.ports[1])
	for _, c := range []struct {
		tool string
		ours string
	}{
		{"ibv_rc_pingpong -d rxe0 -g 1 -n 300", "-pingpong rc -n 300"},
		{"ibv_rc_pingpong -d rxe0 -g 2 -n 300 -s 10000 -m 4096", "-pingpong rc -n 300 -size 10000 -mtu 4096 -gid 1"},
		{"ibv_uc_pingpong -d rxe0 -g 1 -n 300", "-pingpong uc -n 300"},
		{"ibv_ud_pingpong -d rxe0 -g 1 -n 300", "-pingpong ud -n 300"},
		{"ibv_ud_pingpong -d rxe0 -g 2 -n 300", "-pingpong ud -n 300 -gid 1"},
		{"ib_send_bw -F -d rxe0 -x 1 -n 300", "-perftest send -n 300"},
		{"ib_send_bw -F -d rxe0 -x 2 -n 300 -m 4096", "-perftest send -n 300 -mtu 4096 -gid 1"},
		{"ib_send_bw -F -d rxe0 -x 1 -n 300 -c UC -s 1000", "-perftest send -c uc -n 300 -size 1000"},
		{"ib_send_bw -F -d rxe0 -x 1 -n 300 -c UD -s 1000", "-perftest send -c ud -n 300 -size 1000"},
		{"ib_write_bw -F -d rxe0 -x 1 -n 300", "-perftest write -n 300"},
		{"ib_write_bw -F -d rxe0 -x 1 -n 300 -c UC -s 1000", "-perftest write -c uc -n 300 -size 1000"},
		{"ib_read_bw -F -d rxe0 -x 1 -n 300", "-perftest read -n 300"},
		{"ib_atomic_bw -F -d rxe0 -x 1 -n 300", "-perftest atomic -n 300"},
		{"ib_send_bw -F -d rxe0 -x 1 -n 100 -q 2", "-perftest send -n 100 -q 2"},
		{"ib_write_bw -F -d rxe0 -x 1 -n 100 -q 4", "-perftest write -n 100 -q 4"},
		{"ib_read_bw -F -d rxe0 -x 1 -n 100 -q 2", "-perftest read -n 100 -q 2"},
		{"ib_send_lat -F -d rxe0 -x 1 -n 200", "-perftest send_lat -n 200"},
		{"ib_send_lat -F -d rxe0 -x 1 -n 200 -c UD", "-perftest send_lat -n 200 -c ud"},
		{"ib_write_lat -F -d rxe0 -x 1 -n 300 -s 2000", "-perftest write_lat -n 300 -size 2000"},
		{"ib_read_lat -F -d rxe0 -x 1 -n 200", "-perftest read_lat -n 200"},
		{"ib_atomic_lat -F -d rxe0 -x 1 -n 200", "-perftest atomic_lat -n 200"},
	} {
		l.testTool(t, wire, "", c.tool, c.ours)
	}
}

// testTool runs a tool of the guest against this program on a wire, in both roles.
func (l *lab) testTool(t *testing.T, wire, more, tool, ours string) {
	row := "`" + strings.TrimSpace(strings.ReplaceAll(strings.ReplaceAll(tool, " -d rxe0", ""), " -F", "")) + "`" + more
	tool = strings.ReplaceAll(tool, " GID", " "+l.gid)
	// A loaded machine's guest may take longer to respond than the tools' 67 ms, and sending
	// all again each time leaves it no time at all.
	ours += " -timeout 18"
	// The unreliable services may lose a message, which these tools wait for in vain.
	tries, gently := 1, ""
	if strings.Contains(tool, " -c U") || strings.Contains(tool, "_uc_") || strings.Contains(tool, "_ud_") {
		tries, gently = 5, " -rate 4000000 -patience 8s"
	}
	again := func(t *testing.T, run func() (out string, guest map[string]string)) {
		for i := 1; ; i++ {
			out, guest := run()
			if strings.Contains(out, "exit 0") && guest["status"] == "0" {
				return
			}
			require.Less(t, i, tries, "ours: %s\nthe guest's tool: %s", out, guest["out"])
			t.Logf("once more, after ours: %s\nthe guest's tool: %s", out, guest["out"])
		}
	}
	t.Run(tool+"/client there", func(t *testing.T) {
		l.results.record(t, row, answers)
		again(t, func() (string, map[string]string) {
			port := freeTCP(t)
			out := make(chan string, 1)
			go func() { out <- runProgram(wire, fmt.Sprintf("%s%s -p %d", ours, gently, port)) }()
			require.Eventually(t, func() bool { return listening(port) }, 10*time.Second, time.Millisecond)
			a := l.guest.Do(t, "sh ms=40000 -- %s -p %d 10.0.2.2", tool, port)
			return <-out, a.Words
		})
	})
	t.Run(tool+"/server there", func(t *testing.T) {
		l.results.record(t, row, asks)
		again(t, func() (string, map[string]string) {
			job := l.guest.Do(t, "bg -- %s -p 18515", tool).Num("job")
			l.guest.Do(t, "sh -- for i in $(seq 100); do cat /proc/net/tcp /proc/net/tcp6 | grep -q ':4853 .* 0A ' && break; sleep 0.05; done")
			out := runProgram(wire, fmt.Sprintf("%s%s -p %d 127.0.0.1", ours, gently, l.tcp))
			ms := 20000
			if !strings.Contains(out, "exit 0") {
				ms = 1000
			}
			a := l.guest.Do(t, "wait job=%d ms=%d", job, ms)
			if a.Words["done"] != "1" {
				a = l.guest.Do(t, "wait job=%d ms=1000 kill=9", job)
			}
			return out, a.Words
		})
	})
}

// bridge has this host's kernel reach the guest through a TAP interface, whose name it
// returns, for plain UDP sockets. That takes privileges. loss is percent of the RoCE
// frames, each way.
func (l *lab) bridge(t *testing.T, loss *atomic.Int32) string {
	name := fmt.Sprintf("rocet%x", os.Getpid()) // another run may be under way
	tap, err := openTAP(name)
	if err != nil {
		t.Skipf("no TAP interface: %v", err)
	}
	t.Cleanup(func() { tap.Close() })
	// Addresses of their own: the host may have the others.
	for _, args := range []string{"link set " + name + " mtu 4400 address 52:54:00:00:00:01 up", "addr add 198.51.100.1/24 dev " + name,
		"addr add 2001:db8:9::1/64 dev " + name + " nodad", "addr add fe80::9:1/64 dev " + name + " nodad"} {
		out, err := exec.Command("ip", strings.Fields(args)...).CombinedOutput()
		if err != nil {
			t.Skipf("ip %s: %s", args, out)
		}
	}
	l.guest.Do(t, "sh -- ip addr add 198.51.100.2/24 dev eth0; ip addr add 2001:db8:9::2/64 dev eth0 nodad; ip addr add fe80::9:2/64 dev eth0 nodad")
	l.loop.close()
	seg, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1), Port: l.ports[0]})
	require.NoError(t, err)
	t.Cleanup(func() { seg.Close() })
	guest := netip.AddrPortFrom(netip.MustParseAddr("127.0.0.1"), uint16(l.ports[1]))
	lost := func(b []byte) bool { return rand.Int32N(100) < loss.Load() && isRoCE(b) }
	go func() {
		buf := make([]byte, 1<<16)
		for {
			n, err := tap.Read(buf)
			if errors.Is(err, os.ErrClosed) {
				return
			}
			if !lost(buf[:n]) {
				_, _ = seg.WriteToUDPAddrPort(buf[:n], guest)
			}
		}
	}()
	go func() {
		buf := make([]byte, 1<<16)
		for {
			n, _, err := seg.ReadFromUDPAddrPort(buf)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if !lost(buf[:n]) {
				_, _ = tap.Write(buf[:n])
			}
		}
	}()
	return name
}

// testSocket has the tools of the guest connect to this program on a plain UDP socket.
func (l *lab) testSocket(t *testing.T) {
	name := l.bridge(t, new(atomic.Int32))
	gid := func(t *testing.T, of string) (gid string) {
		require.Eventually(t, func() bool {
			for key, addr := range l.guest.Do(t, "info").Words {
				if strings.TrimPrefix(addr, "::ffff:") == of {
					gid = strings.TrimPrefix(key, "gid")
				}
			}
			return gid != ""
		}, 5*time.Second, 10*time.Millisecond)
		return gid
	}
	for _, a := range []struct{ kind, ours, theirs string }{
		{"", "198.51.100.1", "198.51.100.2"},
		{", IPv6", "2001:db8:9::1", "2001:db8:9::2"},
		{", link-local", "fe80::9:1%" + name, "fe80::9:2"},
	} {
		t.Run(a.theirs, func(t *testing.T) {
			l.gid = gid(t, a.theirs)
			for _, c := range []struct{ tool, ours string }{
				{"ibv_rc_pingpong -d rxe0 -g GID -n 300", "-pingpong rc -n 300"},
				{"ibv_ud_pingpong -d rxe0 -g GID -n 300", "-pingpong ud -n 300"},
				{"ib_write_bw -F -d rxe0 -x GID -n 300 -m 4096", "-perftest write -n 300 -mtu 4096"},
				{"ib_read_bw -F -d rxe0 -x GID -n 300", "-perftest read -n 300"},
			} {
				l.testTool(t, "-udp="+a.ours, ", UDP socket"+a.kind, c.tool, c.ours)
			}
		})
	}
}

// testQperfs runs the guest's qperf, with and without losses.
func (l *lab) testQperfs(t *testing.T) {
	if testing.Short() {
		t.Skip("a minute each on the emulated guest")
	}
	var loss atomic.Int32
	l.bridge(t, &loss)
	for _, percent := range []int{0, 5} {
		loss.Store(int32(percent))
		t.Run(fmt.Sprintf("loss%d", percent), func(t *testing.T) { l.testQperf(t, "-udp=198.51.100.1", percent) })
	}
}

// testQperf runs the guest's qperf, whose TCP and RDMA-CM go to the same address: the
// host's.
func (l *lab) testQperf(t *testing.T, wire string, loss int) {
	for _, test := range qperfNames {
		row := "`qperf -cm1 " + test + "`, UDP socket"
		if loss != 0 {
			row += fmt.Sprintf(", %d %% loss", loss)
		}
		t.Run(test+"/client there", func(t *testing.T) {
			l.results.record(t, row, answers)
			out := make(chan string, 1)
			go func() { out <- runProgram(wire, "-qperf "+test+" -linger 9s") }()
			require.Eventually(t, func() bool { return listening(qperfPort) }, 10*time.Second, time.Millisecond)
			a := l.guest.Do(t, "sh ms=40000 -- qperf 198.51.100.1 -cm1 -t 2 -m 4096 %s", test)
			got := <-out
			t.Log(a.Words["out"], got)
			require.Equal(t, "0", a.Words["status"], "the guest's tool: %s\nours: %s", a.Words["out"], got)
			require.Contains(t, got, "exit 0")
			require.NotContains(t, got, ": 0 messages of")
		})
		t.Run(test+"/server there", func(t *testing.T) {
			l.results.record(t, row, asks)
			job := l.guest.Do(t, "bg -- qperf").Num("job")
			defer l.guest.Do(t, "wait job=%d ms=10 kill=9", job) // it serves for ever
			l.guest.Do(t, "sh -- for i in $(seq 100); do cat /proc/net/tcp /proc/net/tcp6 | grep -q ':4D35 .* 0A ' && break; sleep 0.05; done")
			got := runProgram(wire, "-qperf "+test+" -size 4096 198.51.100.2")
			t.Log(got)
			require.Contains(t, got, "exit 0")
			require.NotContains(t, got, ": 0 messages of")
		})
	}
}

// openTAP creates a TAP interface.
func openTAP(name string) (*os.File, error) {
	fd, err := syscall.Open("/dev/net/tun", syscall.O_RDWR|syscall.O_CLOEXEC|syscall.O_NONBLOCK, 0)
	if err != nil {
		return nil, err
	}
	var req struct {
		name  [syscall.IFNAMSIZ]byte
		flags uint16
		_     [22]byte
	}
	copy(req.name[:syscall.IFNAMSIZ-1], name)
	req.flags = syscall.IFF_TAP | syscall.IFF_NO_PI
	if _, _, e := syscall.Syscall(syscall.SYS_IOCTL, uintptr(fd), syscall.TUNSETIFF, uintptr(unsafe.Pointer(&req))); e != 0 {
		syscall.Close(fd)
		return nil, e
	}
	return os.NewFile(uintptr(fd), name), nil
}

// listening reports whether a program on this host listens at a TCP port.
func listening(port int) bool {
	for _, f := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, _ := os.ReadFile(f)
		for _, line := range strings.Split(string(b), "\n") {
			if w := strings.Fields(line); len(w) > 3 && strings.HasSuffix(w[1], fmt.Sprintf(":%04X", port)) && w[3] == "0A" {
				return true
			}
		}
	}
	return false
}

// runProgram runs this program and returns what it said and its exit code.
func runProgram(wire, args string) string {
	var out bytes.Buffer
	code := run(append([]string{wire, "-rate", fmt.Sprint(20 << 20)}, strings.Fields(args)...), strings.NewReader(""), &out, &out)
	return fmt.Sprintf("%s\nexit %d", out.String(), code)
}

var beside = flag.String("beside", "", "packet or udp: run TestBesideRXE, the speed of this program on that wire beside the driver's, in the guest")

// TestBesideRXE has two of this program, and the driver's tools, move the same messages
// over a pair of interfaces (veth) inside the guest, in turn. The guest is emulated: only
// the ratios have a meaning. -run 'TestBesideRXE/write|read' and 'TestBesideRXE/lat/64$'
// select a part. It has two processors, since ib_write_bw and ib_send_lat poll
// (with -e the first has no events, and the second waits for one in vain), one for each end;
// this program polls, too, and has one thread: to wake up another costs an emulated
// processor as much as some packets.
func TestBesideRXE(t *testing.T) {
	if *beside == "" {
		t.Skip("takes minutes: -beside packet, -beside udp")
	}
	g := guest.Boot(t, "", freeUDP(t), freeUDP(t), "--", "-smp", "2")
	defer g.Close()
	dir := t.TempDir()
	build := exec.Command("go", "build", "-ldflags", "-s -w", "-o", filepath.Join(dir, "softrnic"), ".")
	build.Env = append(os.Environ(), "CGO_ENABLED=0", "GOARCH=amd64")
	out, err := build.CombinedOutput()
	require.NoError(t, err, "%s", out)
	files := httptest.NewServer(http.FileServer(http.Dir(dir)))
	defer files.Close()
	_, port, _ := strings.Cut(files.Listener.Addr().String(), ":")
	sh := func(ms int, cmd string) string {
		a := g.Do(t, "sh ms=%d -- %s", ms, cmd)
		require.Equal(t, "0", a.Words["status"], "%s: %s", cmd, a.Words["out"])
		return a.Words["out"]
	}
	sh(60_000, "wget -q -O /tmp/softrnic http://10.0.2.2:"+port+"/softrnic && chmod 755 /tmp/softrnic")
	if *beside == "udp" { // a pair whose ends are in network namespaces of their own
		sh(20_000, strings.Join([]string{"set -e; modprobe veth; mkdir -p /var/run/netns", "ip link add ua mtu 4400 type veth peer name ub mtu 4400",
			"for e in a b; do ip netns add n$e; ip link set u$e netns n$e; ip -n n$e link set lo up; ip -n n$e link set u$e up; done",
			"ip -n na addr add fd09::1/64 dev ua nodad; ip -n nb addr add fd09::2/64 dev ub nodad"}, "; "))
	}
	// The driver's socket is in the first network namespace. Both ends are there: a rule
	// has what goes from one address to the other leave through its own end.
	sh(20_000, strings.Join([]string{"set -e; modprobe veth", "ip link add va mtu 4400 type veth peer name vb mtu 4400",
		"for k in rp_filter=0 accept_local=1; do for f in all va vb; do echo ${k#*=} >/proc/sys/net/ipv4/conf/$f/${k%=*}; done; done",
		"ip link set va up; ip link set vb up", "ip addr add 10.9.1.1/32 dev va; ip addr add 10.9.1.2/32 dev vb",
		"ip rule add pref 20 iif lo to 10.9.1.0/24 lookup 100", "ip rule add pref 30 lookup local; ip rule del pref 0",
		"ip route add 10.9.1.2 dev va src 10.9.1.1 table 100; ip route add 10.9.1.1 dev vb src 10.9.1.2 table 100",
		"ip neigh add 10.9.1.2 dev va lladdr $(cat /sys/class/net/vb/address); ip neigh add 10.9.1.1 dev vb lladdr $(cat /sys/class/net/va/address)",
		"rdma link add rxea type rxe netdev va; rdma link add rxeb type rxe netdev vb; sleep 1"}, "; "))
	gid := func(dev string) string {
		return strings.TrimSpace(sh(5000, "cd /sys/class/infiniband/"+dev+"/ports/1/gids; for i in *; do case $(cat $i) in *:ffff:0a09:*) echo $i; break;; esac; done"))
	}
	ga, gb := gid("rxea"), gid("rxeb")
	tcp := 18600
	both := func(server, client, addr string) string {
		tcp++
		p := fmt.Sprintf(" -p %d ", tcp)
		return sh(120_000, server+p+">/dev/null 2>&1 & s=$!; for i in $(seq 400); do grep -q ':"+fmt.Sprintf("%04X", tcp)+" .* 0A ' /proc/$s/net/tcp /proc/$s/net/tcp6 && break; sleep 0.05; done; "+
			client+p+addr+" 2>&1; r=$?; kill $s 2>/dev/null; exit $r")
	}
	column := func(out string, size, i int) float64 { // of perftest's table
		for _, line := range strings.Split(out, "\n") {
			if w := strings.Fields(line); len(w) > i && w[0] == strconv.Itoa(size) {
				v, err := strconv.ParseFloat(w[i], 64)
				require.NoError(t, err, line)
				return v
			}
		}
		t.Fatalf("no line of %d bytes:\n%s", size, out)
		return 0
	}
	ours := func(re, args string) float64 {
		const prog = "env GOMAXPROCS=1 /tmp/softrnic -mtu 4096 -window 128 -timeout 18 -poll 1ms "
		server, client, addr := "taskset 1 "+prog+"-packet va -mac 52:54:00:00:09:01 -ip fd08::1 ", "taskset 2 "+prog+"-packet vb -mac 52:54:00:00:09:02 -ip fd08::2 ", "127.0.0.1"
		if *beside == "udp" {
			server, client, addr = "ip netns exec na taskset 1 "+prog+"-udp fd09::1 ", "ip netns exec nb taskset 2 "+prog+"-udp fd09::2 ", "fd09::1"
		}
		out := both(server+args, client+args, addr)
		m := regexp.MustCompile(re).FindStringSubmatch(out)
		require.NotNil(t, m, out)
		v, err := strconv.ParseFloat(m[1], 64)
		require.NoError(t, err)
		return v
	}
	theirs := func(tool, args string) string {
		return both("taskset 1 "+tool+" -F -d rxea -x "+ga+args, "taskset 2 "+tool+" -F -d rxeb -x "+gb+args, "127.0.0.1")
	}
	const runs = 3
	for _, test := range []struct {
		name, theirs string
		column       int     // of perftest's table
		unit         string  // ours
		theirUnit    float64 // in ours
	}{{"write", "ib_write_bw", 3, "MB/s", 1.048576}, {"read", "ib_read_bw -e", 3, "MB/s", 1.048576},
		{"send_lat", "ib_send_lat", 4, "us", 1}, {"write_lat", "ib_write_lat", 4, "us", 1}} {
		for _, size := range []int{64, 4096, 65536, 1 << 20} {
			t.Run(fmt.Sprintf("%s/%d", test.name, size), func(t *testing.T) {
				n, re := min(2000, max(48, 24<<20/size)), `= ([0-9.]+) MB/s`
				if test.unit == "us" {
					n, re = min(n, 300), `median ([0-9.]+)`
				}
				var a, b []float64
				for range runs {
					a = append(a, ours(re, fmt.Sprintf("-perftest %s -n %d -size %d", test.name, n, size)))
					b = append(b, column(theirs(test.theirs, fmt.Sprintf(" -m 4096 -n %d -s %d", n, size)), size, test.column)*test.theirUnit)
				}
				slices.Sort(a)
				slices.Sort(b)
				t.Logf("%s of %d bytes: ours %.4g %s (%.4g to %.4g), rxe %.4g (%.4g to %.4g): ratio %.2f", test.name, size,
					a[runs/2], test.unit, a[0], a[runs-1], b[runs/2], b[0], b[runs-1], a[runs/2]/b[runs/2])
			})
		}
	}
}
