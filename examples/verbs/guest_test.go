package main

import (
	"context"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/roce-go/roce/examples/internal/guest"
	"github.com/stretchr/testify/require"
)

// boot boots the guest of examples/softrnic with the kernel's driver, and returns it and
// the ends of its segment.
func boot(t *testing.T, args ...string) (*guest.Guest, ends) {
	if os.Getenv("ROCE_GUEST") == "" {
		t.Skip("set ROCE_GUEST=1 to try the kernel's driver in QEMU")
	}
	udp := func() int {
		c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		require.NoError(t, err)
		defer c.Close()
		return c.LocalAddr().(*net.UDPAddr).Port
	}
	there, here := udp(), udp()
	t.Chdir("../..") // where Boot looks for the guest's scripts
	g := guest.Boot(t, "", there, here, args...)
	t.Chdir("examples/verbs")
	t.Cleanup(g.Close)
	env := []string{fmt.Sprintf("ROCE_SEGMENT=127.0.0.1:%d,127.0.0.1:%d", here, there)}
	return g, ends{server: "192.0.2.1", client: "192.0.2.1", senv: env, cenv: env}
}

// sh runs a shell command in the guest, and returns what it printed.
func sh(t *testing.T, g *guest.Guest, line string) string {
	t.Helper()
	a := g.Do(t, "sh ms=60000 -- %s", line)
	require.Equal(t, "0", a.Words["status"], "%s\n%s", line, a.Words["out"])
	return a.Words["out"]
}

// Programs on our queue pairs against the same ones on the kernel's driver, in both roles:
// those that connect over TCP, and over RDMA-CM.
func TestGuest(t *testing.T) {
	tcp := freePort(t)
	g, on := boot(t, "--tcp", fmt.Sprintf("%d:18515", tcp))
	lines := []string{"ibv_rc_pingpong -c -n 200 -g", "ib_write_bw -F -n 100 -s 65536 -x", "ib_atomic_bw -F -n 50 -x", "ibv_uc_pingpong -n 50 -g", "ibv_ud_pingpong -n 50 -g", "ibv_srq_pingpong -c -n 100 -g",
		"ib_send_bw -F -n 100 -x", "ib_write_lat -F -n 50 -x", "ib_read_bw -F -n 100 -x", "ib_read_lat -F -n 50 -x",
		"ib_atomic_lat -F -n 50 -x", "ib_send_lat -F -c UD -n 50 -x"}
	if testing.Short() {
		lines = lines[:3]
	}
	for _, line := range lines {
		name := strings.Fields(line)[0]
		dev := " -d rxe0 "
		t.Run(line+" server there", func(t *testing.T) {
			need(t, name)
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			job := g.Do(t, "bg -- %s 1 %s -p 18515", line, dev).Num("job")
			var err error
			said := map[string]bool{}
			for range 25 { // until it listens
				args := append(strings.Fields(line), "0", "-p", fmt.Sprint(tcp), "127.0.0.1")
				var b []byte
				if b, err = command(ctx, on.client, on.cenv, args...).CombinedOutput(); err == nil {
					break
				}
				said[string(b)] = true
				time.Sleep(200 * time.Millisecond)
			}
			a := g.Do(t, "wait job=%d ms=10000", job)
			require.NoError(t, err, "%q\nthere: %s", said, a.Words["out"])
			require.Equal(t, "0", a.Words["status"], a.Words["out"])
		})
		t.Run(line+" client there", func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			port := freePort(t)
			s := command(ctx, on.server, on.senv, append(strings.Fields(line), "0", "-p", fmt.Sprint(port))...)
			require.NoError(t, s.Start())
			for begin := time.Now(); !listens(port); time.Sleep(20 * time.Millisecond) {
				require.Less(t, time.Since(begin), limit/2, "it does not listen")
			}
			out := sh(t, g, fmt.Sprintf("%s 1 %s -p %d 10.0.2.2", line, dev, port))
			require.NoError(t, s.Wait(), out)
		})
	}
	for _, faults := range []string{"", "loss=3%,dup=1%,reorder=1%"} {
		t.Run("rping "+faults, func(t *testing.T) {
			ctx, cancel := context.WithTimeout(t.Context(), limit)
			defer cancel()
			env := append([]string{"ROCE_FAULTS=" + faults}, on.cenv...)
			job := g.Do(t, "bg -- rping -s -a 192.0.2.2 -C 40").Num("job")
			var out []byte
			var err error
			for range 25 { // until it listens
				out, err = command(ctx, on.client, env, "rping", "-c", "-a", "192.0.2.2", "-C", "40", "-v", "-V").CombinedOutput()
				if !strings.Contains(string(out), "REJECTED") {
					break
				}
				time.Sleep(200 * time.Millisecond)
			}
			g.Do(t, "wait job=%d ms=5000 kill=9", job)
			require.NoError(t, err, string(out))
			require.Contains(t, string(out), "rdma-ping-39")
			s := command(ctx, on.server, env, "rping", "-s", "-a", "192.0.2.1", "-C", "40")
			require.NoError(t, s.Start())
			time.Sleep(time.Second)
			// Its end is a race: one of its threads closes what the other reads.
			said := g.Do(t, "sh ms=60000 -- rping -c -a 192.0.2.1 -C 40 -v -V").Words["out"]
			require.Contains(t, said, "rdma-ping-39")
			require.NotContains(t, said, "mismatch")
			_ = s.Wait()
		})
	}
}

// What our queue pairs cost beside the kernel's driver: the same programs in one guest,
// two processes each, on one processor. It measures, and asserts that there is a result.
func TestGuestCosts(t *testing.T) {
	if os.Getenv("ROCE_GUEST") == "" {
		t.Skip("set ROCE_GUEST=1")
	}
	cache := os.Getenv("ROCE_INTEROP_CACHE")
	if cache == "" {
		dir, err := os.UserCacheDir()
		require.NoError(t, err)
		cache = filepath.Join(dir, "roce-interop")
	}
	// A second archive behind the guest's own, with the two libraries.
	dir := t.TempDir()
	initrd := filepath.Join(dir, "initrd.gz")
	out, err := exec.Command("sh", "-ec", `cd "$1"; mkdir roce; cp "$2"/*.so roce; (cat "$3/initrd.gz"; find roce | cpio -o -H newc | gzip -1) >"$4"`,
		"sh", dir, build, cache, initrd).CombinedOutput()
	require.NoError(t, err, string(out))
	g, _ := boot(t, "--", "-initrd", initrd)
	column := regexp.MustCompile(`(?m)^ *\d+\s+\d+\s+([\d.]+)\s+([\d.]+)\s+([\d.]+)`)
	idle := func() (idle, all uint64) {
		for i, f := range strings.Fields(strings.SplitN(sh(t, g, "cat /proc/stat"), "\n", 2)[0])[1:] {
			n, err := strconv.ParseUint(f, 10, 64)
			require.NoError(t, err)
			all += n
			if i == 3 || i == 4 {
				idle += n
			}
		}
		return idle, all
	}
	const pair = "%[1]s >/dev/null & until grep -q \":4853 0*:0000 0A\" /proc/net/tcp /proc/net/tcp6; do sleep 0.1; done; %[2]s 127.0.0.1; wait"
	for range 3 {
		for _, c := range []struct {
			line string
			col  int
			unit string
		}{{"ib_write_bw -F -s 65536 -n 200", 2, "MB/s"}, {"ib_send_bw -F -s 8 -n 3000", 3, "million a second"}, {"ib_read_bw -F -s 65536 -n 200", 2, "MB/s"},
			{"ib_write_lat -F -s 8 -n 200", 3, "us, typical"}, {"ib_send_lat -F -s 8 -n 200", 3, "us, typical"}} {
			theirs := c.line + " -d rxe0 -x 1"
			row := c.line
			for name, script := range map[string]string{
				"rxe": fmt.Sprintf(pair, theirs, theirs),
				"ours": fmt.Sprintf("unshare -n sh -c 'ip link set lo up; export LD_PRELOAD=/roce/libroce-verbs.so; "+pair+"'",
					"ROCE_ADDR=127.0.0.2 "+c.line+" -x 0", "ROCE_ADDR=127.0.0.3 "+c.line+" -x 0"),
			} {
				i0, a0 := idle()
				text := sh(t, g, script)
				i1, a1 := idle()
				m := column.FindStringSubmatch(text)
				require.NotNil(t, m, text)
				row += fmt.Sprintf("; %s %s %s, %.2f s of the processor", name, m[c.col], c.unit, float64((a1-a0)-(i1-i0))/100)
			}
			t.Log(row)
		}
	}
}
