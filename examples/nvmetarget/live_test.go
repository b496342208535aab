//go:build interop

package main

import (
	"bytes"
	"flag"
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

	"github.com/roce-go/roce/examples/internal/guest"
)

var (
	update = flag.Bool("update", false, "write INTEROP.md")
	speed  = flag.Bool("throughput", false, "compare the speed with Linux's target, in a second guest")
	keep   = flag.String("keep", "", "keep captures and the guest's console in this folder")
)

// lab is a guest with Linux's NVMe over RDMA host, and this program on its segment.
type lab struct {
	*guest.Guest
	dir     string // programs, disks, captures
	ports   [2]int // of the segment: ours, the guest's
	prog    *exec.Cmd
	said    *bytes.Buffer
	runs    int
	results []string
}

// newLab boots a guest and builds the programs.
func newLab(t *testing.T, more ...string) *lab {
	l := &lab{dir: t.TempDir()}
	if *keep != "" {
		l.dir = *keep
		require.NoError(t, os.MkdirAll(l.dir, 0o755))
	}
	for _, p := range []string{".", "../nvmehost", "../rocecheck"} {
		if _, err := os.Stat(p); err != nil {
			continue
		}
		out, err := exec.Command("go", "build", "-o", l.dir+"/", p).CombinedOutput()
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

// wire are the flags that every program here has. Twelve packets of 4 KiB outstanding
// are what the buffer of QEMU's socket holds.
func (l *lab) wire(name string) []string {
	return []string{"-segment", fmt.Sprintf("127.0.0.1:%d,127.0.0.1:%d", l.ports[0], l.ports[1]), "-window", "12",
		"-capture", filepath.Join(l.dir, fmt.Sprintf("%02d-%s.pcap", l.runs, name))}
}

// start runs the target.
func (l *lab) start(t *testing.T, name string, args ...string) {
	t.Helper()
	l.runs++
	l.said = new(bytes.Buffer)
	l.prog = exec.Command(l.dir+"/nvmetarget", append(l.wire(name), args...)...)
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

// judged runs rocecheck over the captures so far: no rule may be broken by our side.
// What the driver breaks is in the log.
func (l *lab) judged(t *testing.T) {
	files, err := filepath.Glob(l.dir + "/*.pcap")
	require.NoError(t, err)
	require.NotEmpty(t, files)
	for _, f := range files {
		out, _ := exec.Command(l.dir+"/rocecheck", f).CombinedOutput() // exit code 1 for any breach
		first, _, _ := strings.Cut(string(out), "\n")
		t.Logf("%s: %s", filepath.Base(f), first)
		require.Regexp(t, `^(No rule is broken|\d+ rules? (is|are) broken)`, first, "%s", out)
		_, broken, _ := strings.Cut(string(out), "\nBroken rules\n")
		broken, _, _ = strings.Cut(broken, "\n\n")
		for _, line := range strings.Split(broken, "\n") {
			if strings.Contains(line, " -> ") && !strings.HasPrefix(line, "      ") {
				t.Log(line)
				require.NotRegexp(t, ` x  (192\.0\.2\.1|2001:db8::1) -> `, line)
			}
		}
	}
}

// What the kernel says where something went wrong that should not have.
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
	}{{"ipv4", ip4, ""}, {"ipv6-faults", ip6, "loss=5,duplicate=5,reorder=5"}} {
		t.Run(c.name, func(t *testing.T) { l.disk(t, c.name, c.ip, c.faults) })
	}
	if !testing.Short() {
		t.Run("behaviours", l.behaviours)
	}
	t.Run("restart", l.restart)
	if !testing.Short() {
		t.Run("recovery", l.recovery)
	}
	t.Run("initiator", l.initiator)
	t.Run("captures", l.judged)
	if *update && !testing.Short() {
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
// reconnects by itself, and what it was told was written and flushed is there.
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
	l.start(t, "recovery", "-size", "32M", "-faults", "loss=1,duplicate=1,reorder=1", "-v")
	l.connect(t, ip4)
	l.fio(t, "random", "--size=1m --rw=randrw --iodepth=16 --bssplit=512/40:4k/40:64k/20")
	l.sh(t, "nvme disconnect -n %s", liveNQN)
	l.stop(t, syscall.SIGINT)
	out := l.sh(t, "dmesg -c")
	t.Logf("%d reconnections", strings.Count(out, "Successfully reconnected"))
	require.NotRegexp(t, `BUG:|WARNING:|Call Trace|I/O error`, out)
}

// initiator has nvmehost write and compare on Linux's own target: null_blk with memory
// behind nvmet-rdma; without faults and with them, IPv4 and IPv6. Then the target is
// taken away in the middle.
func (l *lab) initiator(t *testing.T) {
	l.sh(t, "%s", serveNVMet("192.0.2.2", "2001:db8::2"))
	host := func(t *testing.T, name string, args ...string) (string, error) {
		l.runs++
		out, err := exec.Command(l.dir+"/nvmehost", append(l.wire(name), args...)...).CombinedOutput()
		t.Logf("%s", out)
		return string(out), err
	}
	for _, c := range []struct{ name, to, faults string }{{"host-ipv4", "192.0.2.2", ""}, {"host-ipv6-faults", "2001:db8::2", "loss=5,duplicate=5,reorder=5"}} {
		t.Run(c.name, func(t *testing.T) {
			args := []string{"-to", c.to, "-verify", "2097152", "-n", "200", "-depth", "8", "-limit", "2m"}
			if c.faults != "" {
				args = append(args, "-faults", c.faults, "-n", "60", "-max", "16384", "-verify", "262144")
			}
			out, err := host(t, c.name, args...)
			require.NoError(t, err)
			require.Contains(t, out, "controller")
			require.Contains(t, out, "verified: ")
		})
	}
	t.Run("gone", func(t *testing.T) {
		job := l.Do(t, "bg -- sleep 3; echo 0 >/sys/kernel/config/nvmet/subsystems/%s/namespaces/1/enable; rm /sys/kernel/config/nvmet/ports/*/subsystems/*", nvmetNQN).Num("job")
		out, err := host(t, "host-gone", "-to", "192.0.2.2", "-verify", "1048576", "-n", "10000000", "-limit", "60s")
		require.Error(t, err)
		require.NotContains(t, out, "does not hold")
		l.Do(t, "wait job=%d ms=20000", job)
	})
	require.NotRegexp(t, `BUG:|WARNING:|Call Trace`, l.sh(t, "dmesg -c"))
}

// nvmetNQN is Linux's subsystem.
const nvmetNQN = "nqn.2014-08.org.nvmexpress:nvmet"

// serveNVMet are the shell commands that have a guest serve null_blk, at two addresses.
func serveNVMet(v4, v6 string) string {
	return fmt.Sprintf("modprobe -a nvmet-rdma; modprobe null_blk nr_devices=1 gb=1 memory_backed=1 bs=512; "+
		"[ -d /sys/kernel/config/nvmet ] || mount -t configfs none /sys/kernel/config; cd /sys/kernel/config/nvmet; "+
		"mkdir -p subsystems/%[1]s/namespaces/1; echo 1 >subsystems/%[1]s/attr_allow_any_host; "+
		"echo /dev/nullb0 >subsystems/%[1]s/namespaces/1/device_path; echo 1 >subsystems/%[1]s/namespaces/1/enable; "+
		"for p in 1 2; do mkdir -p ports/$p; echo rdma >ports/$p/addr_trtype; echo 4420 >ports/$p/addr_trsvcid; done; "+
		"echo ipv4 >ports/1/addr_adrfam; echo %[2]s >ports/1/addr_traddr; echo ipv6 >ports/2/addr_adrfam; echo %[3]s >ports/2/addr_traddr; "+
		"for p in 1 2; do ln -s /sys/kernel/config/nvmet/subsystems/%[1]s ports/$p/subsystems/%[1]s; done", nvmetNQN, v4, v6)
}

var bandwidth = regexp.MustCompile(`(READ|WRITE): bw=\S+ \(([0-9.]+)([kM])B/s\)`)

// TestThroughput has one host read and write on this target, on Linux's in a second
// guest, and on this one again: the same fio, one after the other on one wire.
func TestThroughput(t *testing.T) {
	if !*speed {
		t.Skip("takes two guests: -throughput")
	}
	l := newLab(t)
	work := func(t *testing.T, name, nqn string) {
		l.sh(t, "nvme connect -t rdma -a 192.0.2.1 -s 4420 -n %s; sleep 2", nqn)
		for _, args := range []string{"--rw=write --bs=64k --iodepth=1", "--rw=read --bs=64k --iodepth=1", "--rw=randread --bs=4k --iodepth=8", "--rw=randwrite --bs=4k --iodepth=8"} {
			before := busy()
			out := l.sh(t, "fio --name=x --filename=/dev/nvme0n1 --size=16m --direct=1 --ioengine=libaio --thread --time_based --runtime=8 %s", args)
			m := bandwidth.FindStringSubmatch(out)
			require.NotNil(t, m, out)
			t.Logf("%s: %s: %s %sB/s; %.1f s of processor time on the whole machine in 8 s", name, args, m[2], m[3], busy()-before)
		}
		l.sh(t, "nvme disconnect -n %s", nqn)
	}
	ours := func(t *testing.T) {
		l.start(t, "speed", "-size", "16M")
		work(t, "nvmetarget", liveNQN)
		l.stop(t, syscall.SIGINT)
	}
	ours(t)
	g := guest.Boot(t, "storage", l.ports[0], l.ports[1], "--set", "IP4=192.0.2.1", "--set", "IP6=2001:db8::1", "--set", "MAC=52:54:00:00:00:01")
	a := g.Do(t, "sh ms=60000 -- set -e; %s", serveNVMet("192.0.2.1", "2001:db8::1"))
	require.Equal(t, "0", a.Words["status"], a.Words["out"])
	work(t, "nvmet-rdma", nvmetNQN)
	g.Close()
	ours(t)
}

// busy returns the processor time of all processes of the machine so far, in seconds.
func busy() float64 {
	b, _ := os.ReadFile("/proc/stat")
	var user, nice, system float64
	fmt.Sscanf(string(b), "cpu %f %f %f", &user, &nice, &system)
	return (user + nice + system) / 100
}
