//go:build interop

package main

import (
	"bytes"
	"encoding/json"
	"flag"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/examples/internal/guest"
)

var (
	update = flag.Bool("update", false, "write INTEROP.md")
	speed  = flag.Bool("throughput", false, "compare the speed with Linux's target, in a second guest")
	grid   = flag.Int("grid", 0, "fio with all sizes, depths, patterns, faults and addresses: so many times 64 commands of 512 bytes and 4 KiB, 8 of 64 KiB, 2 of 1 MiB each")
	golden = flag.String("golden", "", "write what Linux's host and target say to each other to this pcap `file`")
	keep   = flag.String("keep", "", "keep captures and the guest's console in this folder")
)

// lab is a guest with Linux's NVMe over RDMA host, and this program on its segment.
type lab struct {
	*guest.Guest
	dir     string // programs, disks, captures
	ports   [2]int // of the segment: ours, the guest's
	prog    *exec.Cmd
	said    *said
	runs    int
	results []string
}

// said is what a program printed so far.
type said struct {
	mu sync.Mutex
	b  bytes.Buffer
}

func (s *said) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.Write(b)
}

func (s *said) String() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.b.String()
}

// newLab boots a guest and builds the programs.
func newLab(t *testing.T, more ...string) *lab {
	l := &lab{dir: t.TempDir()}
	if *keep != "" {
		var err error
		l.dir, err = filepath.Abs(*keep)
		require.NoError(t, err)
		require.NoError(t, os.MkdirAll(l.dir, 0o755))
	}
	for _, p := range []string{".", "../nvmehost", "../rocecheck", "../9prdma"} {
		out, err := exec.Command("go", "build", "-C", p, "-o", l.dir+"/", ".").CombinedOutput()
		require.NoError(t, err, "%s", out)
	}
	for i := range l.ports {
		c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
		require.NoError(t, err)
		l.ports[i] = c.LocalAddr().(*net.UDPAddr).Port
		c.Close()
	}
	l.Guest = guest.Boot(t, "storage", l.ports[1], l.ports[0], append([]string{"--console", l.dir + "/console.txt"}, more...)...)
	t.Cleanup(l.Close)
	t.Cleanup(func() { l.stop(t, syscall.SIGINT) })
	l.sh(t, "modprobe -a nvme-rdma ext4")
	return l
}

// wire are the flags that every program here has.
func (l *lab) wire(name string) []string {
	return []string{"-segment", fmt.Sprintf("127.0.0.1:%d,127.0.0.1:%d", l.ports[0], l.ports[1]),
		"-capture", filepath.Join(l.dir, fmt.Sprintf("%02d-%s.pcap", l.runs, name))}
}

// start runs the target.
func (l *lab) start(t *testing.T, name string, args ...string) {
	t.Helper()
	l.launch(t, "nvmetarget", name, args...)
}

// launch runs a program.
func (l *lab) launch(t *testing.T, program, name string, args ...string) {
	t.Helper()
	l.stop(t, syscall.SIGKILL) // one that a failed test has left
	l.runs++
	l.said = new(said)
	l.prog = exec.Command(filepath.Join(l.dir, program), append(l.wire(name), args...)...)
	l.prog.Stdout, l.prog.Stderr = l.said, l.said
	require.NoError(t, l.prog.Start())
}

// stop ends it with a signal.
func (l *lab) stop(t *testing.T, sig os.Signal) {
	if l.prog == nil {
		return
	}
	_ = l.prog.Process.Signal(sig)
	dead := time.AfterFunc(20*time.Second, func() { l.prog.Process.Kill() })
	err := l.prog.Wait()
	dead.Stop()
	l.prog = nil
	t.Logf("%s", l.said)
	if sig == syscall.SIGINT {
		require.NoError(t, err)
	}
}

// sh runs a shell command in the guest that must succeed, and returns what it printed.
func (l *lab) sh(t testing.TB, format string, args ...any) string {
	t.Helper()
	cmd := fmt.Sprintf(format, args...)
	a := l.Do(t, "sh ms=150000 -- set -e; %s", cmd)
	require.Equal(t, "0", a.Words["status"], "the guest: %s\n%s", cmd, a.Words["out"])
	return a.Words["out"]
}

// fails runs a shell command in the guest that must fail, and returns what it printed.
func (l *lab) fails(t testing.TB, format string, args ...any) string {
	t.Helper()
	cmd := fmt.Sprintf(format, args...)
	a := l.Do(t, "sh ms=60000 -- %s", cmd)
	require.NotEqual(t, "0", a.Words["status"], "the guest: %s\n%s", cmd, a.Words["out"])
	return a.Words["out"]
}

const (
	ip4, ip6 = "192.0.2.1", "2001:db8::1"
	liveNQN  = "nqn.2014-08.org.nvmexpress:uuid:0f0e0d0c-0b0a-4908-8706-050403020100"
)

func (l *lab) connect(t *testing.T, ip string, more ...string) {
	t.Helper()
	l.sh(t, "nvme connect -t rdma -a %s -s 4420 -n %s --reconnect-delay=1 --ctrl-loss-tmo=120 %s; "+
		"for i in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20; do [ -b /dev/nvme0n1 ] && exit 0; sleep 0.3; done; exit 1", ip, liveNQN, strings.Join(more, " "))
}

// judged runs rocecheck over the captures so far: no rule may be broken by our side, and
// by the driver only those that INTEROP.md names. With -short, as .ci/run has it, others of
// the driver's are only logged: with frames lost and swapped they come by chance.
func (l *lab) judged(t *testing.T) {
	known := regexp.MustCompile(`\b[A-Z]{2}-\d+\b`).FindAllString(byHand(t), -1)
	files, err := filepath.Glob(l.dir + "/*.pcap")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		cmd := exec.Command(l.dir+"/rocecheck", "-json", f)
		out, err := cmd.StdoutPipe()
		require.NoError(t, err)
		require.NoError(t, cmd.Start())
		broken, frames := map[string]int{}, 0
		for d := json.NewDecoder(out); ; {
			var v struct {
				Type, Severity, Rule, Check, Src, Text string
				Frames                                 int `json:"roce_frames"`
			}
			if err := d.Decode(&v); err == io.EOF {
				break
			} else {
				require.NoError(t, err, f)
			}
			frames = max(frames, v.Frames)
			if v.Severity != "breach" {
				continue
			}
			broken[v.Src+" "+v.Rule+" "+v.Check]++
			report := t.Errorf
			if v.Src != ip4 && v.Src != ip6 {
				if slices.Contains(known, v.Rule) {
					continue
				}
				if testing.Short() {
					report = t.Logf
				}
			}
			report("%s: %s broke %s (%s): %s", filepath.Base(f), v.Src, v.Rule, v.Check, v.Text)
		}
		_ = cmd.Wait()                       // exit code 1 for any breach
		if !strings.Contains(f, "9p-ipv6") { // the client asks another host
			require.NotZero(t, frames, f)
		}
		t.Logf("%s: %d frames, broken %v", filepath.Base(f), frames, broken)
	}
}

// What the kernel logs where something went wrong that should not have.
var complaint = regexp.MustCompile(`(?i)BUG:|WARNING:|Call Trace|I/O error|EXT4-fs error|EXT4-fs warning|Buffer I/O|corrupt|failed|timeout|hung|error`)

// clean reads the kernel's log since the last time, which must hold no complaint.
func (l *lab) clean(t *testing.T, allowed ...string) {
	t.Helper()
	out := l.sh(t, "dmesg -c")
	for _, line := range strings.Split(out, "\n") {
		if !complaint.MatchString(line) {
			continue
		}
		ok := false
		for _, a := range allowed {
			ok = ok || strings.Contains(line, a)
		}
		if !ok {
			t.Errorf("the guest's kernel: %s", line)
		}
	}
}

// fio has fio write and verify.
func (l *lab) fio(t *testing.T, name, args string) {
	t.Helper()
	out := l.sh(t, "fio --name=%s --filename=/dev/nvme0n1 --direct=1 --ioengine=libaio --thread --verify=crc32c --verify_fatal=1 %s", name, args)
	require.Contains(t, out, "err= 0")
	for _, line := range strings.Split(out, "\n") {
		if strings.Contains(line, "IOPS=") {
			t.Log(name, strings.TrimSpace(line))
		}
	}
}

// TestInterop has the kernel's host use the target as its disk.
func TestInterop(t *testing.T) {
	l := newLab(t)
	kernel := l.Info.Words["kernel"]
	t.Logf("guest: %s", kernel)
	l.sh(t, "dmesg -c") // of booting
	for _, c := range []struct {
		name, ip string
		faults   string
		long     bool
	}{{"ipv4", ip4, "", false}, {"ipv6", ip6, "", true}, {"ipv4-faults", ip4, "loss=5,duplicate=5,reorder=5", true}, {"ipv6-faults", ip6, "loss=5,duplicate=5,reorder=5", false}} {
		if !c.long || !testing.Short() {
			t.Run(c.name, func(t *testing.T) { l.disk(t, c.name, c.ip, c.faults) })
		}
	}
	if !testing.Short() {
		t.Run("behaviours", l.behaviours)
	}
	t.Run("restart", l.restart)
	if !testing.Short() {
		t.Run("recovery", l.recovery)
	}
	t.Run("initiator", l.initiator)
	t.Run("9p", l.files)
	t.Run("killed", l.killed) // the guest, so this is last
	t.Run("captures", l.judged)
	if *update && len(l.results) == len(behaviours) {
		l.write(t, kernel)
	}
}

// whole keeps the host from commands of several pages. With nvme-rdma's register_always=N
// it then registers no memory by work requests: rdma_rxe does those once more when it
// sends what is before them again, finds the key in use, and gives the queue pair up, so
// that the host must reconnect for each packet lost on its side: recovery has that.
func (l *lab) whole(t *testing.T) { l.sh(t, "echo 4 >/sys/block/nvme0n1/queue/max_sectors_kb") }

// disk makes a file system, copies a tree to it, has fio write and verify, and finds
// the tree again after a reconnection; in a file that a second run of the program opens.
func (l *lab) disk(t *testing.T, name, ip, faults string) {
	disk := filepath.Join(l.dir, name+".disk")
	_ = os.Remove(disk)
	if faults != "" {
		l.sh(t, "modprobe -r nvme-rdma; modprobe nvme-rdma register_always=N")
		defer l.sh(t, "modprobe -r nvme-rdma; modprobe nvme-rdma")
	}
	args := []string{"-file", disk, "-size", "40M"}
	if faults != "" {
		args = append(args, "-faults", faults)
	}
	l.start(t, name, args...)
	out := l.sh(t, "nvme discover -t rdma -a %s -s 4420", ip)
	require.Contains(t, out, "subnqn:  "+liveNQN)
	require.Contains(t, out, "traddr:  "+ip)
	l.connect(t, ip)
	require.Contains(t, l.sh(t, "nvme list"), "roce nvmetarget")
	tree := "/usr/lib/modules"
	if faults != "" {
		tree = "/usr/lib/modules/*/kernel/drivers/nvme"
		l.whole(t)
		l.fio(t, "random", "--size=256k --rw=randrw --iodepth=16 --bssplit=512/40:4k/40:64k/20")
		if testing.Short() {
			l.sh(t, "nvme disconnect -n %s", liveNQN)
			l.stop(t, syscall.SIGINT)
			l.clean(t)
			return
		}
		l.fio(t, "sequential", "--size=512k --rw=write --iodepth=4 --bs=128k")
	} else {
		l.fio(t, "random", "--size=16m --io_size=4m --rw=randrw --iodepth=64 --bssplit=512/40:4k/30:64k/20:1m/10")
		l.fio(t, "sequential", "--size=16m --rw=write --iodepth=8 --bs=1m")
		l.fio(t, "one", "--size=256k --rw=randwrite --iodepth=1 --bs=512")
	}
	l.sh(t, "mkfs.ext4 -q -N 256 -E lazy_itable_init=0 /dev/nvme0n1; mount /dev/nvme0n1 /mnt; cp -r %s /mnt; cd /mnt; find . -type f | sort | xargs md5sum >/tmp/sums; cd /; umount /mnt", tree)
	l.sh(t, "nvme disconnect -n %s", liveNQN)
	l.connect(t, ip)
	if faults != "" {
		l.whole(t)
	}
	l.sh(t, "e2fsck -fn /dev/nvme0n1; mount /dev/nvme0n1 /mnt; cd /mnt; md5sum -c /tmp/sums >/tmp/out; ! grep -v OK /tmp/out; cd /; umount /mnt; nvme disconnect -n %s", liveNQN)
	l.stop(t, syscall.SIGINT)
	l.clean(t)
}

// restart kills the target in the middle of writing and starts it again: the host
// reconnects by itself, and what completed as written and flushed is there.
func (l *lab) restart(t *testing.T) {
	disk := filepath.Join(l.dir, "restart.disk")
	_ = os.Remove(disk)
	l.start(t, "killed", "-file", disk, "-size", "32M")
	l.connect(t, ip4)
	l.sh(t, "mkfs.ext4 -q /dev/nvme0n1; mount /dev/nvme0n1 /mnt; cp -r /usr/lib/modules/*/kernel/drivers/nvme /mnt; sync; "+
		"cd /mnt; find . -type f | sort | xargs md5sum >/tmp/sums")
	job := l.Do(t, "bg -- fio --name=through --filename=/mnt/x --size=2m --rw=randwrite --bs=4k --iodepth=8 --direct=1 --ioengine=libaio --thread --verify=crc32c --verify_fatal=1 --rate=300k").Num("job")
	l.sh(t, "sleep 2")
	l.stop(t, syscall.SIGKILL)
	l.sh(t, "sleep 1")
	l.start(t, "again", "-file", disk)
	a := l.Do(t, "wait job=%d ms=100000", job)
	require.Equal(t, "1", a.Words["done"], "fio has not ended")
	require.Equal(t, "0", a.Words["status"], a.Words["out"])
	require.Contains(t, a.Words["out"], "err= 0")
	l.sh(t, "echo 3 >/proc/sys/vm/drop_caches; cd /mnt; md5sum -c /tmp/sums >/tmp/out; ! grep -v OK /tmp/out; cd /; umount /mnt; e2fsck -fn /dev/nvme0n1; nvme disconnect -n %s", liveNQN)
	l.stop(t, syscall.SIGINT)
	out := l.sh(t, "dmesg -c")
	require.Contains(t, out, "Successfully reconnected")
	require.NotRegexp(t, `BUG:|WARNING:|Call Trace|I/O error|EXT4-fs error`, out)
}

// recovery has fio write and verify with the defaults of nvme-rdma, where lost packets
// make the driver's queue pairs fail: the host reconnects, does its commands again, and
// the data are right.
func (l *lab) recovery(t *testing.T) {
	// The driver says why, when asked.
	l.sh(t, "[ -e /sys/kernel/debug/dynamic_debug ] || mount -t debugfs none /sys/kernel/debug; "+
		"for f in rxe_reg_fast_mr rxe_invalidate_mr; do echo func $f +p >/sys/kernel/debug/dynamic_debug/control; done")
	l.start(t, "recovery", "-size", "32M", "-faults", "loss=1,duplicate=1,reorder=1", "-v")
	l.connect(t, ip4)
	l.fio(t, "random", "--size=1m --rw=randrw --iodepth=16 --bssplit=512/40:4k/40:64k/20")
	l.sh(t, "nvme disconnect -n %s", liveNQN)
	l.stop(t, syscall.SIGINT)
	out := l.sh(t, "dmesg -c")
	again := regexp.MustCompile(`(rxe_reg_fast_mr: .*not free|rxe_invalidate_mr: .*)`).FindAllString(out, -1)
	t.Logf("%d reconnections; rdma_rxe refused %d local operations: %q", strings.Count(out, "Successfully reconnected"), len(again), again)
	for _, line := range strings.Split(out, "\n") {
		if regexp.MustCompile(`rxe0|nvme nvme0`).MatchString(line) {
			t.Log(line)
		}
	}
	require.NotRegexp(t, `BUG:|WARNING:|Call Trace|I/O error`, out)
}

// initiator has nvmehost write and compare on Linux's own target: null_blk with memory
// behind nvmet-rdma; without faults and with them, IPv4 and IPv6. Then the target is
// removed in the middle.
func (l *lab) initiator(t *testing.T) {
	l.sh(t, "%s", serveNVMet("192.0.2.2", "2001:db8::2"))
	for _, c := range []struct{ name, to, faults string }{{"host-ipv4", "192.0.2.2", ""}, {"host-ipv6-faults", "2001:db8::2", "loss=5,duplicate=5,reorder=5"}} {
		t.Run(c.name, func(t *testing.T) {
			args := []string{"-to", c.to, "-max", "1048576", "-verify", "2097152", "-n", "200", "-depth", "8", "-limit", "2m"}
			if c.faults != "" {
				// The target READs nothing of several packets, since all that is written fits
				// into capsules: rdma_rxe gives a queue pair up when the response to a READ
				// that it asked for from its middle on is a First, as it must be.
				args = append(args, "-faults", c.faults, "-n", "100", "-max", "16384", "-verify", "1048576")
			}
			out, err := l.host(t, l.wire, c.name, args...)
			require.NoError(t, err)
			require.Contains(t, out, "controller")
			require.Contains(t, out, "verified: ")
		})
	}
	t.Run("gone", func(t *testing.T) {
		job := l.Do(t, "bg -- sleep 3; echo 0 >/sys/kernel/config/nvmet/subsystems/%s/namespaces/1/enable; rm /sys/kernel/config/nvmet/ports/*/subsystems/*", nvmetNQN).Num("job")
		out, err := l.host(t, l.wire, "host-gone", "-to", "192.0.2.2", "-verify", "1048576", "-n", "10000000", "-limit", "60s")
		require.Error(t, err)
		require.NotContains(t, out, "does not hold")
		l.Do(t, "wait job=%d ms=20000", job)
	})
	// Where it asks again for READs, rdma_rxe warns of states that it did not expect
	// (rxe_completer): that is reported, and the data are right all the same.
	out := l.sh(t, "dmesg -c")
	for _, warning := range regexp.MustCompile(`WARNING: .*`).FindAllString(out, -1) {
		t.Log(warning)
	}
	require.NotRegexp(t, `BUG:|Oops|panic`, out)
}

// host runs nvmehost.
func (l *lab) host(t *testing.T, wire func(string) []string, name string, args ...string) (string, error) {
	l.runs++
	out, err := exec.Command(l.dir+"/nvmehost", append(wire(name), args...)...).CombinedOutput()
	t.Logf("%s", out)
	return string(out), err
}

// killed has the host's machine end without a message while fio writes. The target detects
// it by the keep-alive timeout, and releases all that the host had: of the three
// connections that it may have, the next host needs two.
func (l *lab) killed(t *testing.T) {
	l.start(t, "host-killed", "-size", "16M", "-conns", "3", "-v")
	l.connect(t, ip4, "--nr-io-queues=1", "--keep-alive-tmo=2")
	l.Do(t, "bg -- fio --name=x --filename=/dev/nvme0n1 --size=16m --rw=randwrite --bs=64k --iodepth=8 --direct=1 --ioengine=libaio --thread --time_based --runtime=60")
	l.sh(t, "sleep 2")
	require.NoError(t, l.Signal(syscall.SIGKILL))
	l.Close()
	require.Eventually(t, func() bool { return strings.Contains(l.said.String(), "controller removed") }, 60*time.Second, 100*time.Millisecond, "%v", l.said)
	next := func(string) []string {
		return []string{"-segment", fmt.Sprintf("127.0.0.1:%d,127.0.0.1:%d", l.ports[1], l.ports[0]), "-ip", "192.0.2.3,2001:db8::3", "-mac", "52:54:00:00:00:03"}
	}
	out, err := l.host(t, next, "", "-to", ip4, "-verify", "1048576", "-n", "100", "-limit", "60s")
	require.NoError(t, err)
	require.Contains(t, out, "verified: ")
	l.stop(t, syscall.SIGINT)
}

// nvmetNQN is Linux's subsystem.
const nvmetNQN = "nqn.2014-08.org.nvmexpress:nvmet"

// serveNVMet are the shell commands that have a guest serve null_blk, at two addresses.
func serveNVMet(v4, v6 string) string {
	return fmt.Sprintf("modprobe -a nvmet-rdma; modprobe null_blk nr_devices=1 gb=1 memory_backed=1 bs=512; "+
		"[ -d /sys/kernel/config/nvmet ] || mount -t configfs none /sys/kernel/config; cd /sys/kernel/config/nvmet; "+
		"mkdir -p subsystems/%[1]s/namespaces/1; echo 1 >subsystems/%[1]s/attr_allow_any_host; "+
		"echo /dev/nullb0 >subsystems/%[1]s/namespaces/1/device_path; echo 1 >subsystems/%[1]s/namespaces/1/enable; "+
		"for p in 1 2; do mkdir -p ports/$p; echo rdma >ports/$p/addr_trtype; echo 4420 >ports/$p/addr_trsvcid; echo 16384 >ports/$p/param_inline_data_size; done; "+
		"echo ipv4 >ports/1/addr_adrfam; echo %[2]s >ports/1/addr_traddr; echo ipv6 >ports/2/addr_adrfam; echo %[3]s >ports/2/addr_traddr; "+
		"for p in 1 2; do ln -s /sys/kernel/config/nvmet/subsystems/%[1]s ports/$p/subsystems/%[1]s; done", nvmetNQN, v4, v6)
}

// behaviour is what a test of blktests' group nvme asks of a target, or a test like
// one; the numbers are those of blktests.
type behaviour struct {
	tests, what string
	run         func(t *testing.T, l *lab)
}

// good and bad are behaviours of one command: it succeeds, or it fails, and says want.
func good(tests, what, cmd, want string) behaviour {
	return behaviour{tests, what, func(t *testing.T, l *lab) { require.Contains(t, l.sh(t, "%s", cmd), want) }}
}

func bad(tests, what, cmd, want string) behaviour {
	return behaviour{tests, what, func(t *testing.T, l *lab) { require.Contains(t, l.fails(t, "%s", cmd), want) }}
}

var behaviours = []behaviour{
	good("002, 016, 017", "discovery lists the subsystem and itself", "nvme discover -t rdma -a 192.0.2.1 -s 4420", "Number of Records 2"),
	good("003", "a discovery controller with keep-alive stays", "nvme connect -t rdma -a 192.0.2.1 -s 4420 -n nqn.2014-08.org.nvmexpress.discovery -k 2; sleep 4; "+
		"cat /sys/class/nvme/nvme1/state; nvme disconnect -d nvme1", "live"),
	good("004, 008", "a host connects, and the disk is there", "ls /dev/nvme0n1 /sys/block/nvme0n1/size; cat /sys/block/nvme0n1/size", "65536"),
	{"010", "fio writes and verifies", func(t *testing.T, l *lab) {
		l.fio(t, "verified", "--size=4m --io_size=1m --rw=randwrite --bs=4k --iodepth=16")
	}},
	{"012", "a file system, and fio writes and verifies a file there", func(t *testing.T, l *lab) {
		l.sh(t, "mkfs.ext4 -q /dev/nvme0n1; mount /dev/nvme0n1 /mnt; "+
			"fio --name=file --filename=/mnt/x --size=1m --rw=randwrite --bs=4k --iodepth=16 --direct=1 --ioengine=libaio --thread --verify=crc32c --verify_fatal=1; umount /mnt; e2fsck -fn /dev/nvme0n1")
	}},
	good("014", "flush", "nvme flush /dev/nvme0n1 -n 1", "success"),
	good("005, 022", "reset", "nvme reset /dev/nvme0; cat /sys/class/nvme/nvme0/state", "live"),
	bad("018", "a read beyond the end", "nvme read /dev/nvme0n1 -s 65536 -c 0 -z 512", "LBA Out of Range"),
	bad("018", "a write beyond the end", "echo x | nvme write /dev/nvme0n1 -s 65535 -c 1 -z 1024", "LBA Out of Range"),
	good("019", "Dataset Management", "nvme dsm /dev/nvme0n1 -d -s 0,64 -b 8,8", "success"),
	good("021", "list", "nvme list", "roce nvmetarget"),
	good("023, 024", "health log", "nvme smart-log /dev/nvme0", "critical_warning"),
	good("025", "effects log", "nvme get-log /dev/nvme0 --log-id=5 --log-len=4096 -b | od -An -tx1 -j1056 -N4", "03 00 00 00"),
	good("026", "namespace descriptors", "nvme ns-descs /dev/nvme0n1", "nguid"),
	{"", "the disk grows: an event, the log of changed namespaces, a new size", func(t *testing.T, l *lab) {
		require.NoError(t, os.Truncate(l.dir+"/behaviours.disk", 40<<20))
		require.NoError(t, l.prog.Process.Signal(syscall.SIGHUP))
		l.sh(t, "for i in 1 2 3 4 5 6 7 8 9 10; do [ $(cat /sys/block/nvme0n1/size) = 81920 ] && exit 0; sleep 0.5; done; dmesg; exit 1")
		require.NoError(t, os.Truncate(l.dir+"/behaviours.disk", 32<<20))
		require.NoError(t, l.prog.Process.Signal(syscall.SIGHUP))
		l.sh(t, "for i in 1 2 3 4 5 6 7 8 9 10; do [ $(cat /sys/block/nvme0n1/size) = 65536 ] && exit 0; sleep 0.5; done; dmesg; exit 1")
	}},
	good("027", "rescan", "nvme ns-rescan /dev/nvme0; nvme list-ns /dev/nvme0", "0x1"),
	{"053", "rescan during I/O", func(t *testing.T, l *lab) {
		l.sh(t, "fio --name=x --filename=/dev/nvme0n1 --size=16m --rw=randread --iodepth=8 --direct=1 --ioengine=libaio --thread --time_based --runtime=4 >/tmp/fio & "+
			"for i in 1 2 3 4 5 6 7 8; do nvme ns-rescan /dev/nvme0; sleep 0.3; done; wait $!; grep 'err= 0' /tmp/fio")
	}},
	good("028", "subsystems", "nvme list-subsys", "rdma traddr=192.0.2.1"),
	{"029", "blocks written and read by passthrough", func(t *testing.T, l *lab) {
		l.sh(t, "head -c 65536 /dev/urandom >/tmp/a; nvme write /dev/nvme0n1 -s 128 -c 127 -z 65536 -d /tmp/a; "+
			"nvme read /dev/nvme0n1 -s 128 -c 127 -z 65536 -d /tmp/b; cmp /tmp/a /tmp/b; nvme flush /dev/nvme0n1 -n 1")
	}},
	good("", "Write Zeroes", "nvme write-zeroes /dev/nvme0n1 -s 128 -c 127; nvme read /dev/nvme0n1 -s 128 -c 127 -z 65536 -d /tmp/b; head -c 65536 /dev/zero | cmp - /tmp/b && echo same", "same"),
	good("", "identify controller", "nvme id-ctrl /dev/nvme0", "subnqn    : "+liveNQN),
	good("", "identify namespace", "nvme id-ns /dev/nvme0n1", "nsze    : 0x10000"),
	bad("", "identify of a namespace that is not there", "nvme id-ns /dev/nvme0 -n 9", "Invalid Namespace"),
	good("", "error log", "nvme error-log /dev/nvme0 -e 4", "Error Log Entries"),
	good("", "firmware log", "nvme fw-log /dev/nvme0", "frs1"),
	bad("", "a log page that is not there", "nvme get-log /dev/nvme0 --log-id=0xd0 --log-len=64", "Invalid Log Page"),
	good("", "features: queues, keep-alive, events, write cache, arbitration, temperature", "for f in 1 2 4 5 6 7 0xb 0xf; do nvme get-feature /dev/nvme0 -f $f || exit 1; done", "get-feature:0x07"),
	good("", "a feature that is set", "nvme set-feature /dev/nvme0 -f 4 --value=333; nvme get-feature /dev/nvme0 -f 4", "0x0000014d"),
	bad("", "a feature that is not there", "nvme get-feature /dev/nvme0 -f 0x7f", "Invalid Field"),
	bad("039", "an admin command that is not there", "nvme admin-passthru /dev/nvme0 --opcode=0xc1", "Invalid Command Opcode"),
	bad("039", "an I/O command that is not there", "nvme io-passthru /dev/nvme0n1 --opcode=0x99 -n 1", "Invalid Command Opcode"),
	bad("036", "a subsystem reset (the target has none)", "nvme subsystem-reset /dev/nvme0", ""),
	good("030", "the discovery log stays the same, its generation counter too", "for i in 1 2; do nvme discover -t rdma -a 192.0.2.1 -s 4420 >/tmp/log$i; done; cmp /tmp/log1 /tmp/log2; cat /tmp/log1", "Generation counter"),
	{"031", "the controller goes right after it came, three times", func(t *testing.T, l *lab) {
		l.sh(t, "nvme disconnect -n %s; for i in 1 2 3; do nvme connect -t rdma -a 192.0.2.1 -s 4420 -n %s; nvme disconnect -n %s; done", liveNQN, liveNQN, liveNQN)
		l.connect(t, ip4)
	}},
	{"040", "reset and then disconnect during I/O", func(t *testing.T, l *lab) {
		job := l.Do(t, "bg -- fio --name=x --filename=/dev/nvme0n1 --size=16m --rw=randread --iodepth=8 --direct=1 --ioengine=libaio --thread --time_based --runtime=6").Num("job")
		l.sh(t, "sleep 1; nvme reset /dev/nvme0; sleep 1; nvme disconnect -n %s", liveNQN)
		require.Equal(t, "1", l.Do(t, "wait job=%d ms=40000", job).Words["done"], "fio hangs")
		l.connect(t, ip4)
	}},
	{"", "queues and their sizes as the host asks", func(t *testing.T, l *lab) {
		l.sh(t, "nvme disconnect -n %s", liveNQN)
		l.connect(t, ip4, "--nr-io-queues=1", "--queue-size=16")
		require.Contains(t, l.sh(t, "cat /sys/class/nvme/nvme0/queue_count /sys/class/nvme/nvme0/sqsize"), "2\n15")
	}},
	{"047", "queues of their own for writes, and for polling", func(t *testing.T, l *lab) {
		for i, more := range []string{"--nr-write-queues=1", "--nr-write-queues=1 --nr-poll-queues=1"} {
			l.sh(t, "nvme disconnect -n %s", liveNQN)
			l.connect(t, ip4, more, "--nr-io-queues=1")
			l.live(t, 3+i)
			l.fio(t, "queues", "--size=1m --io_size=256k --rw=randrw --bs=4k --iodepth=8")
		}
		l.fio(t, "polled", "--size=1m --io_size=64k --rw=randrw --bs=4k --ioengine=pvsync2 --hipri")
	}},
	{"061", "the target ends and comes again during I/O, three times", func(t *testing.T, l *lab) {
		l.sh(t, "nvme disconnect -n %s", liveNQN)
		l.connect(t, ip4)
		job := l.Do(t, "bg -- fio --name=x --filename=/dev/nvme0n1 --size=4m --rw=randrw --bs=4k --iodepth=8 --direct=1 --ioengine=libaio --thread --time_based --runtime=20 --verify=crc32c --verify_fatal=1").Num("job")
		for range 3 {
			l.sh(t, "sleep 2")
			l.stop(t, syscall.SIGINT)
			l.start(t, "behaviours", "-file", l.dir+"/behaviours.disk", "-size", "32M")
			l.live(t, 2)
		}
		a := l.Do(t, "wait job=%d ms=60000", job)
		require.Equal(t, "1", a.Words["done"], "fio hangs")
		require.Contains(t, a.Words["out"], "err= 0")
	}},
	bad("", "a subsystem that is not there", "nvme connect -t rdma -a 192.0.2.1 -s 4420 -n nqn.2014-08.org.nvmexpress:none", ""),
	{"", "an idle host keeps its controller alive", func(t *testing.T, l *lab) {
		l.sh(t, "nvme disconnect -n %s", liveNQN)
		l.connect(t, ip6, "--keep-alive-tmo=2")
		l.sh(t, "sleep 5; [ $(cat /sys/class/nvme/nvme0/state) = live ]; dd if=/dev/nvme0n1 of=/dev/null bs=64k count=1 iflag=direct")
	}},
}

// live waits until the host is connected by a number of queues.
func (l *lab) live(t *testing.T, queues int) {
	t.Helper()
	l.sh(t, "cd /sys/class/nvme/nvme0; for i in $(seq 60); do [ \"$(cat state) $(cat queue_count)\" = \"live %d\" ] && exit 0; sleep 0.5; done; cat state queue_count; exit 1", queues)
}

// behaviours tries each on one target.
func (l *lab) behaviours(t *testing.T) {
	disk := filepath.Join(l.dir, "behaviours.disk")
	_ = os.Remove(disk)
	l.start(t, "behaviours", "-file", disk, "-size", "32M")
	l.connect(t, ip4)
	for _, b := range behaviours {
		ok := t.Run(b.what, func(t *testing.T) { b.run(t, l) })
		word := "ok"
		if !ok {
			word = "**failed**"
		}
		tests := b.tests
		if tests == "" {
			tests = "–"
		}
		l.results = append(l.results, fmt.Sprintf("| %s | %s | %s |", tests, b.what, word))
	}
	l.sh(t, "nvme disconnect -n %s", liveNQN)
	l.stop(t, syscall.SIGINT)
	require.NotRegexp(t, `BUG:|WARNING:|Call Trace`, l.sh(t, "dmesg -c"))
}

// otherwise is the heading in INTEROP.md of the part that is written by hand, at its end.
const otherwise = "\n## What the driver does otherwise\n"

// byHand returns that end.
func byHand(t *testing.T) string {
	page, err := os.ReadFile("INTEROP.md")
	require.NoError(t, err)
	_, text, ok := strings.Cut(string(page), otherwise)
	require.True(t, ok, "INTEROP.md has no part%q", otherwise)
	return text
}

// write writes the table.
func (l *lab) write(t *testing.T, kernel string) {
	text := "# Against Linux's host\n\nThis table is made by `go test -tags interop ./examples/nvmetarget -update`; what is below it is\nwritten by hand.\n\n" +
		"The host: nvme-rdma of Linux " + kernel + " and nvme-cli in the guest of `examples/softrnic/guest`.\n" +
		"Numbers are those of blktests' group nvme whose behaviour a line has.\n\n" +
		"| blktests nvme | behaviour | result |\n|---|---|---|\n" + strings.Join(l.results, "\n") + "\n" +
		otherwise + byHand(t)
	require.NoError(t, os.WriteFile("INTEROP.md", []byte(text), 0o644))
}
