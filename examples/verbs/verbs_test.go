package main

import (
	"bytes"
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

// limit is the longest that a pair of programs may take.
const limit = 60 * time.Second

var build string // where the libraries are

func TestMain(m *testing.M) {
	out, err := exec.Command("./run", "-build").Output()
	if err != nil {
		fmt.Fprintf(os.Stderr, "run -build: %v\n", err)
		os.Exit(1)
	}
	build = strings.TrimSpace(string(out))
	os.Exit(m.Run())
}

// need skips a test that lacks a program; in CI it fails.
func need(t *testing.T, program string) {
	t.Helper()
	if _, err := exec.LookPath(program); err == nil {
		return
	}
	if os.Getenv("CI") == "true" {
		t.Fatalf("%s is not installed", program)
	}
	t.Skipf("%s is not installed: see README.md", program)
}

// command is a program on our library, at an address. What it has forked ends with it.
func command(ctx context.Context, addr string, env []string, args ...string) *exec.Cmd {
	c := exec.CommandContext(ctx, "./run", args...)
	c.Env = append(append(os.Environ(), "ROCE_ADDR="+addr), env...)
	c.WaitDelay = 2 * time.Second
	c.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	c.Cancel = func() error { return syscall.Kill(-c.Process.Pid, syscall.SIGKILL) }
	return c
}

// alone runs one program.
func alone(t *testing.T, env []string, args ...string) string {
	t.Helper()
	need(t, args[0])
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	out, err := command(ctx, "127.0.0.2", env, args...).CombinedOutput()
	require.NoError(t, err, "%v\n%s", args, out)
	return string(out)
}

// freePort returns a TCP port on which nothing listens.
func freePort(t *testing.T) int {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}

// listens reports whether a program listens on a TCP port.
func listens(port int) bool {
	for _, f := range []string{"/proc/net/tcp", "/proc/net/tcp6"} {
		b, _ := os.ReadFile(f)
		if regexp.MustCompile(fmt.Sprintf(`:%04X 0+:0000 0A `, port)).Match(b) {
			return true
		}
	}
	return false
}

// ends describes how a server and a client run.
type ends struct {
	server, client string // addresses
	senv, cenv     []string
	pcaps          string // pattern of the captures that they write
}

// fresh removes the captures of a try that is repeated: its programs were killed, perhaps in
// the middle of a record.
func (on ends) fresh() {
	files, _ := filepath.Glob(on.pcaps)
	for _, f := range files {
		_ = os.Remove(f)
	}
}

// loopback returns ends on two addresses of the loopback network.
func loopback(env ...string) ends {
	return ends{server: "127.0.0.2", client: "127.0.0.3", senv: env, cenv: env}
}

// segmentEnds returns ends on an Ethernet segment of UDP datagrams.
func segmentEnds(t *testing.T, server, client string) ends {
	a, b := fmt.Sprint("127.0.0.1:", freePort(t)), fmt.Sprint("127.0.0.1:", freePort(t))
	return ends{server: server, client: client, senv: []string{"ROCE_SEGMENT=" + a + "," + b}, cenv: []string{"ROCE_SEGMENT=" + b + "," + a}}
}

// both runs a server and a client that connect by a TCP port, and returns what they print.
// Both must end well.
func both(t *testing.T, port int, on ends, server, client []string) (string, string) {
	t.Helper()
	need(t, server[0])
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	var sout, cout bytes.Buffer
	s := command(ctx, on.server, on.senv, server...)
	s.Stdout, s.Stderr = &sout, &sout
	require.NoError(t, s.Start())
	done := make(chan error, 1)
	go func() { done <- s.Wait() }()
	for begin := time.Now(); !listens(port); time.Sleep(10 * time.Millisecond) {
		select {
		case err := <-done:
			t.Fatalf("%v ended before the client came: %v\n%s", server, err, sout.String())
		default:
		}
		if time.Since(begin) > limit/2 {
			cancel()
			<-done
			t.Fatalf("%v does not listen on port %d\n%s", server, port, sout.String())
		}
	}
	c := command(ctx, on.client, on.cenv, client...)
	c.Stdout, c.Stderr = &cout, &cout
	err := c.Run()
	if err != nil {
		cancel()
	}
	serr := <-done
	require.NoError(t, err, "client %v\n%s\nserver: %v\n%s", client, cout.String(), serr, sout.String())
	require.NoError(t, serr, "server %v\n%s\nclient\n%s", server, sout.String(), cout.String())
	return sout.String(), cout.String()
}

func TestDevinfo(t *testing.T) {
	out := alone(t, nil, "ibv_devinfo", "-v")
	for _, want := range []string{"roce0", "PORT_ACTIVE", "Ethernet", "::ffff:127.0.0.2", "max_qp:", "4096 (5)"} {
		require.Contains(t, out, want)
	}
}

// The pingpongs of libibverbs, which check data with -c; polling and with events.
func TestPingpong(t *testing.T) {
	for _, v := range []string{"rc -c", "rc -c -e", "rc -c -N -t", "uc -c", "uc -e", "ud -c", "ud -e", "srq -c", "srq -e -q 4", "xsrq", "xsrq -e"} {
		t.Run(v, func(t *testing.T) {
			f := strings.Fields(v)
			port := freePort(t)
			args := append([]string{"ibv_" + f[0] + "_pingpong", "-g", "0", "-n", "200", "-p", fmt.Sprint(port)}, f[1:]...)
			_, out := both(t, port, loopback(), args, append(args, "127.0.0.1"))
			if f[0] != "xsrq" {
				require.Regexp(t, `200 iters in`, out)
			}
			require.NotContains(t, out, "invalid data")
		})
	}
}

// No privileges are needed: not those of root, and none to lock memory.
func TestUnprivileged(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("all the other tests show it")
	}
	need(t, "ibv_rc_pingpong")
	dir := t.TempDir()
	for d := dir; d != filepath.Dir(d); d = filepath.Dir(d) {
		if s, err := os.Stat(d); err == nil && s.Mode()&1 == 0 && os.Chmod(d, s.Mode()|1) != nil {
			t.Skip(d + " is closed to others")
		}
	}
	for _, name := range []string{"libroce-verbs.so", "libroce-engine.so"} {
		b, err := os.ReadFile(filepath.Join(build, name))
		require.NoError(t, err)
		require.NoError(t, os.WriteFile(filepath.Join(dir, name), b, 0o755))
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	port := fmt.Sprint(freePort(t))
	nobody := func(addr string, args ...string) *exec.Cmd {
		args = append([]string{"-c", `ulimit -l 0; exec ibv_rc_pingpong -g 0 -c -s 1000000 -n 20 -p "$@"`, "sh", port}, args...)
		c := exec.CommandContext(ctx, "sh", args...)
		c.Dir, c.WaitDelay = "/", 2*time.Second
		c.Env = append(os.Environ(), "LD_PRELOAD="+filepath.Join(dir, "libroce-verbs.so"), "ROCE_ADDR="+addr)
		c.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: 65534, Gid: 65534}}
		return c
	}
	s := nobody("127.0.0.2")
	require.NoError(t, s.Start())
	var out []byte
	var err error
	for range 50 { // until it listens
		if out, err = nobody("127.0.0.3", "127.0.0.1").CombinedOutput(); err == nil {
			break
		}
		time.Sleep(100 * time.Millisecond)
	}
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "20 iters in")
	require.NoError(t, s.Wait())
}

// An address that is in use, and one that this host has not, give errors in words that
// say what to do.
func TestOpenErrors(t *testing.T) {
	need(t, "ibv_devinfo")
	c, err := net.ListenPacket("udp", "127.0.0.2:4791")
	require.NoError(t, err)
	defer c.Close()
	for addr, want := range map[string]string{"127.0.0.2": "set ROCE_ADDR to another", "192.0.2.1": "not an address of this host", "x": "no IP address"} {
		out, err := command(t.Context(), addr, nil, "ibv_devinfo").CombinedOutput()
		require.Error(t, err)
		require.Contains(t, string(out), want)
	}
	out, err := command(t.Context(), "127.0.0.4", []string{"ROCE_FAULTS=loss=2"}, "ibv_devinfo").CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "loss=P%")
	out, err = exec.Command("env", "-u", "ROCE_ADDR", "LD_PRELOAD="+filepath.Join(build, "libroce-verbs.so"), "ibv_devinfo", "-v").CombinedOutput()
	require.NoError(t, err)
	require.Contains(t, string(out), "::ffff:127.0.0.", "without ROCE_ADDR a free address is taken")
	// The front without the engine beside it: an error, and the program ends.
	lib := filepath.Join(t.TempDir(), "libroce-verbs.so")
	b, err := os.ReadFile(filepath.Join(build, "libroce-verbs.so"))
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(lib, b, 0o755))
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	out, err = exec.CommandContext(ctx, "env", "LD_PRELOAD="+lib, "ibv_devinfo").CombinedOutput()
	require.NoError(t, ctx.Err(), "it hangs\n%s", out)
	require.Error(t, err)
	require.Contains(t, string(out), "cannot load the engine")
}

// perftest returns the command line of a perftest program and its client's.
func perftest(t *testing.T, line string) (port int, server, client []string) {
	t.Helper()
	port = freePort(t)
	f := strings.Fields(line)
	server = append([]string{f[0], "-F", "-x", "0", "-p", fmt.Sprint(port)}, f[1:]...)
	return port, server, append(append([]string{}, server...), "127.0.0.1")
}

// The programs of perftest: operations, services, both directions, sizes, durations,
// events. (-a, all sizes, is not among them: for each it measures the processor's clock,
// which takes seconds on a loaded machine.)
func TestPerftest(t *testing.T) {
	for _, line := range []string{
		"ib_send_bw -n 200 -b", "ib_send_bw -c UD -n 200 -e", "ib_send_bw -D 1 -s 4096", "ib_send_lat -c UC -n 100 -e", "ib_send_lat -c UD -n 100",
		"ib_write_bw -q 2 -n 100", "ib_write_bw -c UC -n 200 -b", "ib_write_lat -s 4097 -n 20", "ib_send_bw -s 2097153 -n 5",
		"ib_read_bw -n 100 -e", "ib_read_lat -n 100", "ib_atomic_bw -n 200", "ib_atomic_lat -n 100 -A CMP_AND_SWAP",
		"ib_send_bw -c XRC -n 50", "ib_send_bw --use-srq -q 2 -n 100", "ib_write_bw -I 64 -s 64 -n 100",
	} {
		t.Run(line, func(t *testing.T) {
			port, server, client := perftest(t, line)
			_, out := both(t, port, loopback(), server, client)
			require.Regexp(t, `(?m)^ *\d+ +\d+ +[\d.]+`, out)
		})
	}
}

// All sizes, up to 8 MiB: perftest's -a. For each it measures the processor's clock, which
// takes long on a loaded machine.
func TestPerftestAll(t *testing.T) {
	if testing.Short() {
		t.Skip("takes half a minute")
	}
	port, server, client := perftest(t, "ib_write_bw -a -n 5")
	_, out := both(t, port, loopback(), server, client)
	require.Regexp(t, `(?m)^ *8388608 +5 `, out)
	require.Regexp(t, `(?m)^ *2 +5 `, out)
}

// Two ends of an Ethernet segment: IPv4 and IPv6, connections, multicast.
func TestSegment(t *testing.T) {
	for _, a := range [][2]string{{"192.0.2.1", "192.0.2.2"}, {"2001:db8::1", "2001:db8::2"}} {
		on := segmentEnds(t, a[0], a[1])
		port := freePort(t)
		args := []string{"ibv_rc_pingpong", "-g", "0", "-c", "-n", "200", "-p", fmt.Sprint(port)}
		_, out := both(t, port, on, args, append(args, "127.0.0.1"))
		require.Contains(t, out, "200 iters in")
		require.Contains(t, late(t, on, "rping -s -C 5 -a "+a[0], "rping -c -C 5 -v -V -a "+a[0], 255), "rdma-ping-4")
	}
	out, err := command(t.Context(), "", []string{"ROCE_SEGMENT=x"}, "ibv_devinfo").CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "ROCE_ADDR")
	on := segmentEnds(t, "192.0.2.1", "192.0.2.2")
	need(t, "mckey")
	ctx, cancel := context.WithTimeout(t.Context(), limit/2)
	defer cancel()
	member := command(ctx, on.server, on.senv, "mckey", "-m", "239.1.2.3", "-b", "192.0.2.1", "-C", "5")
	var got bytes.Buffer
	member.Stdout, member.Stderr = &got, &got
	require.NoError(t, member.Start())
	done := make(chan error, 1)
	go func() { done <- member.Wait() }()
	for { // until it has joined, datagrams to the group are lost
		out, err := command(ctx, on.client, on.cenv, "mckey", "-m", "239.1.2.3", "-b", "192.0.2.2", "-s", "-C", "5").CombinedOutput()
		require.NoError(t, err, string(out))
		select {
		case err := <-done:
			require.NoError(t, err, got.String())
			require.Contains(t, got.String(), "test complete")
			return
		case <-time.After(200 * time.Millisecond):
		}
	}
}

// The replacement of libibverbs and librdmacm, for programs that are not to be preloaded:
// found by the library path.
func TestReplacement(t *testing.T) {
	run := func(addr string, args ...string) *exec.Cmd {
		ctx, cancel := context.WithTimeout(t.Context(), limit)
		t.Cleanup(cancel)
		c := exec.CommandContext(ctx, args[0], args[1:]...)
		c.Env, c.WaitDelay = append(os.Environ(), "LD_LIBRARY_PATH="+build, "ROCE_ADDR="+addr), 2*time.Second
		return c
	}
	need(t, "ibv_devinfo")
	out, err := run("127.0.0.2", "ibv_devinfo").CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "roce0")
	for _, line := range []string{"ibv_rc_pingpong -g 0 -c -n 100", "ib_write_bw -F -x 0 -n 50", "rping -c -a 127.0.0.2 -C 3 -v -V"} {
		f := strings.Fields(line)
		need(t, f[0])
		port := freePort(t)
		server, client := append(f, "-p", fmt.Sprint(port)), append(f, "-p", fmt.Sprint(port), "127.0.0.1")
		if f[0] == "rping" {
			server, client = strings.Fields("rping -s -a 127.0.0.2 -C 3"), f
		}
		s := run("127.0.0.2", server...)
		require.NoError(t, s.Start())
		for try := 0; ; try++ { // until the server listens
			if out, err = run("127.0.0.3", client...).CombinedOutput(); err == nil || try == 20 {
				break
			}
			time.Sleep(200 * time.Millisecond)
		}
		require.NoError(t, err, "%s\n%s", line, out)
		if err := s.Wait(); f[0] != "rping" {
			require.NoError(t, err, line)
		}
	}
	// Rates are what the system's library says, and dlopen with dlsym finds ours.
	program := abuse(t)
	theirs, err := exec.Command(program, "rates").CombinedOutput()
	require.NoError(t, err, string(theirs))
	ours, err := run("127.0.0.2", program, "rates").CombinedOutput()
	require.NoError(t, err, string(ours))
	require.Equal(t, string(theirs), string(ours))
	out, err = run("127.0.0.2", program, "loaded").CombinedOutput()
	require.NoError(t, err, string(out))
	// dlclose with the engine's thread running, and once more.
	const reload = `
import ctypes, _ctypes
for i in range(3):
    lib = ctypes.CDLL("libibverbs.so.1")
    lib.ibv_get_device_list.restype = ctypes.POINTER(ctypes.c_void_p)
    lib.ibv_open_device.restype = ctypes.c_void_p
    c = lib.ibv_open_device(ctypes.c_void_p(lib.ibv_get_device_list(None)[0]))
    assert c and lib.ibv_close_device(ctypes.c_void_p(c)) == 0
    _ctypes.dlclose(lib._handle)
print("loaded")
`
	need(t, "python3")
	out, err = run("127.0.0.2", "python3", "-c", reload).CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "loaded")
	// Both libraries, or one twice, are one.
	twice := run("127.0.0.2", "ibv_devinfo")
	preload := filepath.Join(build, "libroce-verbs.so")
	twice.Env = append(twice.Env, "LD_PRELOAD="+preload+" "+preload)
	out, err = twice.CombinedOutput()
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "roce0")
}

// late runs a server whose readiness cannot be seen from outside, since it listens with
// librdmacm, and its client when the server's log says that it listens. perftest with -R
// connects twice, and its server listens again in between: a client that is faster is
// rejected, and ends with a segmentation fault of its own. Then both are run again.
func late(t *testing.T, on ends, server, client string, serverCode int) string {
	t.Helper()
	sv, cl := strings.Fields(server), strings.Fields(client)
	need(t, sv[0])
	var out []byte
	for try := 1; ; try++ {
		on.fresh()
		ctx, cancel := context.WithTimeout(t.Context(), limit/2)
		log := filepath.Join(t.TempDir(), "log")
		var sout bytes.Buffer
		s := command(ctx, on.server, append([]string{"ROCE_LOG=" + log}, on.senv...), sv...)
		s.Stdout, s.Stderr = &sout, &sout
		require.NoError(t, s.Start())
		for ctx.Err() == nil {
			if b, _ := os.ReadFile(log); bytes.Contains(b, []byte("msg=listen")) {
				break
			}
			time.Sleep(10 * time.Millisecond)
		}
		cctx, ccancel := context.WithTimeout(ctx, limit/3)
		var err error
		out, err = command(cctx, on.client, on.cenv, cl...).CombinedOutput()
		ccancel()
		if err != nil {
			cancel()
		}
		serr := s.Wait()
		cancel()
		if err == nil && (serr == nil || s.ProcessState.ExitCode() == serverCode) {
			return string(out)
		}
		require.Less(t, try, 12, "client: %v\n%s\nserver: %v\n%s", err, out, serr, sout.String())
	}
}

// Connections by librdmacm: the programs of rdmacm-utils, and perftest with -R.
func TestRdmacm(t *testing.T) {
	require.Contains(t, late(t, loopback(), "rping -s -a 127.0.0.2 -C 5", "rping -c -a 127.0.0.2 -C 5 -v -V", 255), "rdma-ping-4")
	require.Contains(t, late(t, loopback(), "ucmatose -b 127.0.0.2 -c 250 -C 2", "ucmatose -s 127.0.0.2 -c 250 -C 2", 0), "return status 0")
	require.Contains(t, late(t, loopback(), "ucmatose -m", "ucmatose -s 127.0.0.2 -m", 0), "return status 0")
	require.Contains(t, late(t, loopback(), "udaddy -b 127.0.0.2", "udaddy -s 127.0.0.2", 0), "return status 0")
	require.Contains(t, late(t, loopback(), "rdma_server", "rdma_client -s 127.0.0.2", 0), "rdma_client: end 0")
	for i, p := range []string{"ib_write_bw -n 100 -b", "ib_send_lat -n 100", "ib_read_lat -n 50", "ib_send_bw -c UD -n 100", "ib_atomic_lat -n 50",
		"ib_write_lat -n 50", "ib_read_bw -n 50 -e", "ib_atomic_bw -n 50"} {
		if i > 2 && testing.Short() {
			break
		}
		require.Regexp(t, `(?m)^ *\d+ +\d+ +[\d.]+`, late(t, loopback(), p+" -F -R", p+" -F -R 127.0.0.2", 0))
	}
	// rsockets are not there.
	need(t, "rstream")
	out, err := command(t.Context(), "127.0.0.3", nil, "rstream", "-b", "127.0.0.3").CombinedOutput()
	require.Error(t, err)
	require.Contains(t, string(out), "Operation not supported")
	// No program listens.
	need(t, "rping")
	out, err = command(t.Context(), "127.0.0.3", nil, "rping", "-c", "-a", "127.0.0.3", "-C", "1").CombinedOutput()
	require.Error(t, err, string(out))
}

// reuses reports whether a program writes into the buffer of a SEND before it is complete, so
// that a retransmission differs: rping, and perftest with -R, which receives into the same
// buffer.
func reuses(line string) bool {
	return strings.HasPrefix(line, "rping") || strings.Contains(line, " -R")
}

// Under loss, duplication and reordering programs end well with their data right, and what
// was on the wire keeps the rules: both ends' captures are judged by rocecheck. udaddy
// waits for each datagram, of which a lost one is lost, and for a connection whose response
// was lost its server is asked twice (as with a kernel): only its requests are lost.
func TestFaults(t *testing.T) {
	dir := t.TempDir()
	judge := filepath.Join(dir, "rocecheck")
	b := exec.Command("go", "build", "-o", judge, "./examples/rocecheck")
	b.Dir = "../.."
	out, err := b.CombinedOutput()
	require.NoError(t, err, string(out))
	for i, c := range []struct{ faults, line string }{
		{"", "ibv_rc_pingpong -g 0 -c -n 300"},
		{"loss=1%", "ibv_rc_pingpong -g 0 -c -n 300"},
		{"loss=5%,seed=3", "ibv_rc_pingpong -g 0 -c -n 100"},
		{"loss=1%,dup=2%,reorder=2%", "ibv_rc_pingpong -g 0 -c -e -n 200"},
		{"loss=5%,dup=5%,reorder=5%", "ibv_srq_pingpong -g 0 -c -n 200"},
		{"loss=1%,dup=1%,reorder=1%", "ib_write_bw -F -x 0 -n 300 -b"},
		{"loss=5%,dup=2%,reorder=2%", "ib_read_bw -F -x 0 -n 60"},
		{"loss=5%", "ib_atomic_lat -F -x 0 -n 100"},
		{"loss=1%,dup=2%,reorder=2%", "ib_send_lat -F -x 0 -n 200"},
		{"loss=5%,dup=1%,reorder=1%", "rping -v -V -C 50"},
		{"loss=5%,dup=3%,reorder=3%", "ucmatose -c 4 -C 20"},
		{"loss=5%,dup=3%,reorder=3%", "ibv_xsrq_pingpong -g 0 -n 100"},
		{"loss=5%,dup=3%,reorder=3%", "ib_write_lat -F -x 0 -n 100"},
		{"loss=5%,dup=3%,reorder=3%", "ib_send_bw -c XRC -F -x 0 -n 50 -b -e"},
		{"loss=5%,dup=3%,reorder=3%", "rdma_server"},
		{"dup=3%,reorder=3%", "udaddy -c 4"},
		{"loss=30%", "udaddy -c 8 -C 0"},
		{"loss=5%,dup=3%,reorder=3%", "ib_send_bw -F -R -n 50"},
		{"loss=1%,dup=1%,reorder=1%", "qperf"},
	} {
		if i > 9 && testing.Short() {
			break
		}
		t.Run(c.faults+" "+c.line, func(t *testing.T) {
			on := loopback("ROCE_FAULTS="+c.faults, "ROCE_PCAP="+filepath.Join(dir, fmt.Sprintf("%d-%%p.pcap", i)))
			on.pcaps = filepath.Join(dir, fmt.Sprintf("%d-*.pcap", i))
			if c.faults == "loss=30%" {
				on.cenv = []string{"ROCE_FAULTS=dup=1%", on.cenv[1]}
			}
			switch {
			case strings.HasPrefix(c.line, "rping"): // which compares what comes back
				line := c.line + " -a 127.0.0.2"
				require.Contains(t, late(t, on, line+" -s", line+" -c", 255), "rdma-ping-49")
			case strings.HasPrefix(c.line, "ucmatose"), strings.HasPrefix(c.line, "udaddy"):
				require.Contains(t, late(t, on, c.line+" -b 127.0.0.2", c.line+" -s 127.0.0.2", 0), "return status 0")
			case c.line == "rdma_server":
				require.Contains(t, late(t, on, c.line, "rdma_client -s 127.0.0.2", 0), "rdma_client: end 0")
			case strings.Contains(c.line, " -R"):
				require.Regexp(t, `(?m)^ *\d+ +\d+ +[\d.]+`, late(t, on, c.line, c.line+" 127.0.0.2", 0))
			case c.line == "qperf":
				qperf(t, on)
			default:
				port := freePort(t)
				args := append(strings.Fields(c.line), "-p", fmt.Sprint(port))
				both(t, port, on, args, append(args, "127.0.0.1"))
			}
			files, _ := filepath.Glob(on.pcaps)
			require.GreaterOrEqual(t, len(files), 2, "a capture of each end")
			again := c.faults == "" || c.line == "rdma_server" || strings.HasPrefix(c.line, "udaddy") // too few packets
			for _, file := range files {
				out, err := exec.Command(judge, file).CombinedOutput()
				again = again || strings.Contains(string(out), "retransmission")
				if reuses(c.line) && err != nil {
					require.Regexp(t, `(?s)^1 rule is broken.*\n  RQ-16 +resend-differs`, string(out))
					continue
				}
				require.NoError(t, err, string(out))
				require.Contains(t, string(out), "No rule is broken")
			}
			require.True(t, again, "there were faults")
		})
	}
}

// abuse builds testdata/abuse.c.
func abuse(t *testing.T) string {
	t.Helper()
	need(t, "cc")
	program := filepath.Join(t.TempDir(), "abuse")
	out, err := exec.Command("cc", "-O1", "-Wall", "-o", program, "testdata/abuse.c", "-lrdmacm", "-libverbs", "-lpthread").CombinedOutput()
	require.NoError(t, err, string(out))
	return program
}

// Misuse, and what may happen to a program: testdata/abuse.c.
func TestAbuse(t *testing.T) {
	program := abuse(t)
	for _, name := range []string{"unmapped", "handler", "destroyed", "deregistered", "overrun", "forks", "forking", "exiting", "order", "events", "signals", "threads", "killed", "full", "loaded", "external", "ended"} {
		t.Run(name, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			addr, env := "127.0.0.8", []string(nil)
			switch name {
			case "full":
				env = []string{"ROCE_PCAP=/dev/full"}
			case "forks", "forking":
				addr = "" // the child needs one of its own
			}
			out, err := command(ctx, addr, env, program, name).CombinedOutput()
			require.NoError(t, err, string(out))
			require.Equal(t, name == "full", strings.Contains(string(out), "no space left"), string(out))
		})
	}
}

// interrupted is a program of pyverbs that is interrupted while it polls, and while it
// waits for an event: Ctrl-C.
const interrupted = `
import os, subprocess
from pyverbs.device import Context
from pyverbs.cq import CQ, CompChannel
ctx = Context(name="roce0")
ch = CompChannel(ctx)
cq = CQ(ctx, 10, None, ch)
cq.req_notify()
for wait in False, True:
    p = subprocess.Popen(["sh", "-c", "sleep 0.3; kill -INT %d" % os.getpid()])
    try:
        while True:
            if wait:
                ch.get_cq_event(cq)
            else:
                cq.poll()
    except KeyboardInterrupt:
        p.wait()
cq.close()
ctx.close()
print("closed")
`

func TestInterrupt(t *testing.T) {
	if exec.Command("/usr/bin/python3", "-c", "import pyverbs.device").Run() != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal("python3-pyverbs is not installed")
		}
		t.Skip("python3-pyverbs is not installed")
	}
	require.Contains(t, alone(t, nil, "/usr/bin/python3", "-c", interrupted), "closed")
}

// reasons say why tests of a suite do not pass.
type reasons []*reason

type reason struct {
	kind string // skip, fail or hang
	re   *regexp.Regexp
	used bool
}

// readReasons reads the lines "SUITE  KIND  REGEXP  ; WHY" of testdata/reasons.txt that are
// of a suite.
func readReasons(t *testing.T, suite string) (all reasons) {
	t.Helper()
	page, err := os.ReadFile("testdata/reasons.txt")
	require.NoError(t, err)
	for line := range strings.Lines(string(page)) {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), suite+"  "); ok {
			kind, rest, _ := strings.Cut(rest, "  ")
			re, why, ok := strings.Cut(rest, "  ; ")
			require.True(t, ok && why != "" && (kind == "skip" || kind == "fail" || kind == "hang"), line)
			all = append(all, &reason{kind: kind, re: regexp.MustCompile(re)})
		}
	}
	require.NotEmpty(t, all)
	return all
}

func (all reasons) explain(kind, text string) bool {
	for _, r := range all {
		if r.kind == kind && r.re.MatchString(text) {
			r.used = true
			return true
		}
	}
	return false
}

// stale returns the reasons whose tests did not fail, or do not exist.
func (all reasons) stale() (out []string) {
	for _, r := range all {
		if r.kind != "skip" && !r.used {
			out = append(out, r.re.String())
		}
	}
	return out
}

// rdmaUnitLeast is how many tests of rdma-unit-test pass at least.
const rdmaUnitLeast = 450

// The unit tests of rdma-unit-test, each in a process of its own: none crashes, and what
// does not pass is in testdata/reasons.txt with its reason.
func TestRdmaUnitTest(t *testing.T) {
	program := os.Getenv("ROCE_RDMA_UNIT_TEST")
	if program == "" {
		t.Skip("set ROCE_RDMA_UNIT_TEST to its program: see README.md")
	}
	list, err := exec.Command(program, "--gtest_list_tests").Output()
	require.NoError(t, err)
	known := readReasons(t, "rdma-unit-test")
	suite, ran, passed, skipped := "", 0, 0, 0
	for line := range strings.Lines(string(list)) {
		line, _, _ = strings.Cut(strings.TrimRight(line, "\n"), "  #")
		if !strings.HasPrefix(line, " ") {
			suite = strings.TrimSpace(line)
			continue
		}
		name := suite + strings.TrimSpace(line)
		ran++
		if known.explain("hang", name) {
			t.Logf("not run: %s", name)
			continue
		}
		var out []byte
		hung := false
		for _, longer := range []string{"1", "4"} { // five retries of a second take longer than its two
			ctx, cancel := context.WithTimeout(t.Context(), 5*limit) // some make 65,536 objects
			out, err = command(ctx, "127.0.0.7", nil, program, "--ipv4_only", "--completion_wait_multiplier="+longer,
				"--other_wait_multiplier="+longer, "--gtest_filter="+name).CombinedOutput()
			hung = ctx.Err() != nil
			cancel()
			if err == nil || hung || !strings.Contains(string(out), "[  FAILED  ] "+name) {
				break
			}
		}
		text, kind := string(out), "fail"
		switch {
		case hung:
			t.Errorf("%s hangs\n%s", name, text)
			continue
		case err != nil && !strings.Contains(text, "[  FAILED  ] "+name):
			t.Errorf("%s crashes: %v\n%s", name, err, text)
			continue
		case strings.Contains(text, "[  SKIPPED ] "+name):
			skipped++
			kind = "skip"
		case err == nil && strings.Contains(text, "[       OK ] "+name):
			passed++
			continue
		}
		t.Logf("%s: %s", kind, name)
		if !known.explain(kind, name) {
			t.Errorf("no reason for the %s of %s\n%s", kind, name, text)
		}
	}
	t.Logf("%d of %d pass, %d are skipped", passed, ran, skipped)
	require.GreaterOrEqual(t, passed, rdmaUnitLeast)
	require.Empty(t, known.stale(), "what stands in testdata/reasons.txt passes")
}

// pyverbsLeast is how many tests of pyverbs pass at least.
const pyverbsLeast = 100

// The tests of pyverbs, as Debian ships them. What fails or is skipped is in
// testdata/reasons.txt with its reason.
func TestPyverbs(t *testing.T) {
	const tests = "/usr/share/doc/rdma-core/tests"
	if _, err := os.Stat(tests); err != nil {
		if os.Getenv("CI") == "true" {
			t.Fatal(err)
		}
		t.Skip("rdma-core and python3-pyverbs are not installed")
	}
	dir := t.TempDir()
	out, err := exec.Command("sh", "-c", "cp -r "+tests+" "+dir+" && cd "+dir+"/tests && gunzip -f *.gz").CombinedOutput()
	require.NoError(t, err, string(out))
	known := readReasons(t, "pyverbs")
	ctx, cancel := context.WithTimeout(t.Context(), 4*time.Minute)
	defer cancel()
	abs, err := filepath.Abs("run")
	require.NoError(t, err)
	c := exec.CommandContext(ctx, abs, "/usr/bin/python3", "run_tests.py", "-v")
	c.Dir, c.WaitDelay = filepath.Join(dir, "tests"), 2*time.Second
	c.Env = append(os.Environ(), "ROCE_ADDR=127.0.0.6")
	out, _ = c.CombinedOutput()
	require.NoError(t, ctx.Err(), "it takes too long\n%s", out)
	passed, skipped := 0, 0
	for _, m := range regexp.MustCompile(`(?m)^(.*) \.\.\. (ok|FAIL|ERROR|skipped .*)$`).FindAllStringSubmatch(string(out), -1) {
		name, how := m[1], m[2]
		if how == "ok" {
			passed++
			continue
		}
		kind, text := "fail", name
		if strings.HasPrefix(how, "skipped") {
			skipped++
			kind, text = "skip", how
		}
		if !known.explain(kind, text) {
			t.Errorf("no reason for %s: %s", name, how)
		}
	}
	t.Logf("%d pass, %d are skipped", passed, skipped)
	require.GreaterOrEqual(t, passed, pyverbsLeast, string(out))
}

// qperf runs qperf, whose server forks for each test: its children open the device. A child
// sends its port number before it listens, so that a fast client is rejected. The child then
// keeps the address for a while: each try has a server of its own.
func qperf(t *testing.T, on ends) {
	need(t, "qperf")
	for try := 1; ; try++ {
		on.fresh()
		port := fmt.Sprint(freePort(t))
		ctx, cancel := context.WithTimeout(t.Context(), limit/3)
		s := command(ctx, on.server, on.senv, "qperf", "-lp", port)
		require.NoError(t, s.Start())
		time.Sleep(time.Duration(try) * 400 * time.Millisecond)
		out, err := command(ctx, on.client, on.cenv, "qperf", "-lp", port, "-t", "1", "-cm", "1", on.server, "rc_lat", "rc_rdma_write_bw").CombinedOutput()
		cancel()
		_ = s.Wait()
		if err == nil {
			require.Contains(t, string(out), "latency")
			require.Contains(t, string(out), "bw")
			return
		}
		t.Logf("%v\n%s", err, out)
		require.Less(t, try, 5)
	}
}

func TestQperf(t *testing.T) { qperf(t, loopback()) }

// Two network namespaces, as two containers have them. It needs the right to make them.
func TestNamespaces(t *testing.T) {
	need(t, "ip")
	need(t, "ibv_rc_pingpong")
	ip := func(line string) error {
		out, err := exec.Command("ip", strings.Fields(line)...).CombinedOutput()
		if err != nil {
			err = fmt.Errorf("ip %s: %w: %s", line, err, out)
		}
		return err
	}
	for _, n := range []string{"roce-a", "roce-b"} {
		_ = ip("netns del " + n)
		if err := ip("netns add " + n); err != nil {
			t.Skip(err)
		}
		defer func() { _ = ip("netns del " + n) }()
	}
	for _, line := range []string{"link add ra netns roce-a type veth peer name rb netns roce-b", "-n roce-a addr add 192.0.2.1/24 dev ra",
		"-n roce-b addr add 192.0.2.2/24 dev rb", "-n roce-a link set ra up", "-n roce-b link set rb up"} {
		require.NoError(t, ip(line))
	}
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	pingpong := func(ns, addr string, more ...string) *exec.Cmd {
		c := exec.CommandContext(ctx, "ip", append([]string{"netns", "exec", ns, "./run", "ibv_rc_pingpong", "-g", "0", "-c", "-n", "200"}, more...)...)
		c.Env, c.WaitDelay = append(os.Environ(), "ROCE_ADDR="+addr), 2*time.Second
		return c
	}
	s := pingpong("roce-a", "192.0.2.1")
	require.NoError(t, s.Start())
	var out []byte
	var err error
	for range 20 { // until the server listens
		if out, err = pingpong("roce-b", "192.0.2.2", "192.0.2.1").CombinedOutput(); err == nil {
			break
		}
		time.Sleep(200 * time.Millisecond)
	}
	require.NoError(t, err, string(out))
	require.Contains(t, string(out), "200 iters in")
	require.NoError(t, s.Wait())
}
