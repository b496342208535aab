//go:build interop

package main

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/examples/internal/guest"
)

// files has the kernel mount a folder of 9prdma, copy a tree to it, read it again after
// another mount, and do to it what a file system is for; with the faults that its client
// bears; and has the server end in the middle.
func (l *lab) files(t *testing.T) {
	l.sh(t, "modprobe -a 9p 9pnet_rdma; dmesg -c >/dev/null")
	const mount = "mount -t 9p -o trans=rdma,port=5640,version=9p2000.L,msize=65536,access=any 192.0.2.1 /mnt"
	const tree = "/usr/lib/modules/*/kernel/drivers/nvme"
	serve := func(t *testing.T, name string, more ...string) string {
		root := filepath.Join(l.dir, name)
		require.NoError(t, os.RemoveAll(root))
		require.NoError(t, os.Mkdir(root, 0o755))
		l.launch(t, "9prdma", name, append([]string{"-root", root}, more...)...)
		return root
	}
	// The client asks for no retries, of both sides: all must arrive, in order and soon.
	for _, c := range []struct{ name, faults string }{{"9p", ""}, {"9p-faults", "duplicate=5"}} {
		t.Run(c.name, func(t *testing.T) {
			if c.faults != "" && testing.Short() {
				t.Skip("with faults")
			}
			var more []string
			if c.faults != "" {
				more = []string{"-faults", c.faults}
			}
			var root string
			// use runs what uses the mount. A machine that has no time for the guest for half
			// a second ends the mount: then once more from the beginning.
			use := func(format string, args ...any) bool {
				a := l.Do(t, "sh ms=100000 -- set -e; %s", fmt.Sprintf(format, args...))
				if a.Words["status"] == "0" {
					return true
				}
				log := l.sh(t, "dmesg -c; umount -l /mnt || true")
				require.Contains(t, log, "non-flush error status = 12", "no time-out, but %s", a.Words["out"])
				t.Log("the mount ended by a time-out")
				l.stop(t, syscall.SIGKILL)
				return false
			}
			try := 1
			for ; ; try++ {
				require.LessOrEqual(t, try, 3, "time-outs")
				root = serve(t, c.name, more...)
				if !use("%s; cp -a %s /mnt; cd %s/..; "+
					"find nvme -type f | sort | xargs md5sum >/tmp/sums; cd /mnt; md5sum -c /tmp/sums >/tmp/out; ! grep -v OK /tmp/out; cd /; umount /mnt", mount, tree, tree) {
					continue
				}
				if use("%s; cd /mnt; md5sum -c /tmp/sums >/tmp/out; ! grep -v OK /tmp/out; "+
					"mkdir d; echo one >d/a; chmod 640 d/a; ln -s a d/l; ln d/a d/h; mv d e; echo two >>e/a; [ \"$(cat e/l)\" = \"$(printf 'one\\ntwo')\" ]; [ $(stat -c %%a e/a) = 640 ]; "+
					"touch -d '2001-02-03 04:05:06' e/h; truncate -s 3 e/a; [ $(stat -c %%s e/h) = 3 ]; rm e/l; ! rmdir e 2>/dev/null; "+
					"mkdir many; cd many; i=0; while [ $i -lt 400 ]; do : >$i-with-a-name-that-is-long-enough-to-fill-a-message; i=$((i+1)); done; [ $(ls | wc -l) = 400 ]; "+
					"df /mnt | grep -q 192.0.2.1; cd /; umount /mnt", mount) {
					break
				}
			}
			l.stop(t, syscall.SIGINT)
			sums := strings.Fields(l.sh(t, "cat /tmp/sums"))
			require.NotEmpty(t, sums)
			for i := 0; i < len(sums); i += 2 {
				out, err := exec.Command("md5sum", filepath.Join(root, sums[i+1])).Output()
				require.NoError(t, err)
				require.Equal(t, sums[i], strings.Fields(string(out))[0])
			}
			names, err := os.ReadDir(root + "/many")
			require.NoError(t, err)
			require.Len(t, names, 400)
			if try > 1 {
				l.forgotten(t)
			} else {
				l.clean(t)
			}
		})
	}
	// A request that waits for a server that has ended waits until it is killed; all others
	// get an error, and the folder can be mounted again.
	t.Run("killed", func(t *testing.T) {
		serve(t, "9p-killed")
		l.sh(t, "%s; echo there >/mnt/there", mount)
		job := l.Do(t, "bg -- i=0; while dd if=/dev/zero of=/mnt/x bs=64k count=64 2>/dev/null; do i=$((i+1)); done; echo after $i").Num("job")
		l.sh(t, "sleep 1")
		l.stop(t, syscall.SIGKILL)
		l.sh(t, "sleep 5")
		a := l.Do(t, "wait job=%d ms=20000 kill=9", job)
		t.Logf("what copied: %v", a.Words)
		l.fails(t, "timeout 10 ls -l /mnt/there")
		l.sh(t, "umount -l /mnt")
		l.launch(t, "9prdma", "9p-again", "-root", filepath.Join(l.dir, "9p-killed"))
		l.sh(t, "%s; grep there /mnt/there; umount /mnt", mount)
		l.stop(t, syscall.SIGINT)
		l.forgotten(t)
	})
	if testing.Short() {
		return
	}
	// The first loss ends a mount, or its making: with an error or a request that waits,
	// never with wrong bytes. The losses are so few that files are copied before.
	t.Run("9p-loss", func(t *testing.T) {
		files := 0
		for seed := 1; files == 0; seed++ {
			require.LessOrEqual(t, seed, 8, "no file was copied and then one lost")
			root := serve(t, "9p-loss", "-faults", "loss=0.2", "-seed", strconv.Itoa(seed))
			a := l.Do(t, "sh ms=60000 -- timeout -s KILL 5 %s && { timeout -s KILL 20 cp -r %s /mnt; echo copied $?; umount -l /mnt; }", mount, tree)
			t.Logf("%v", a.Words)
			l.stop(t, syscall.SIGINT)
			if !strings.Contains(a.Words["out"], "copied") || strings.Contains(a.Words["out"], "copied 0") {
				continue // no mount, or no loss
			}
			_ = filepath.Walk(root, func(name string, info os.FileInfo, err error) error {
				if err == nil && info.Mode().IsRegular() && info.Size() != 0 {
					files++
					rel, _ := filepath.Rel(root, name)
					b, err := os.ReadFile(name)
					require.NoError(t, err)
					// What is there is the beginning of the file, and nothing else.
					sum := strings.Fields(l.sh(t, "head -c %d %s/../%s | md5sum", len(b), tree, rel))[0]
					out, err := exec.Command("md5sum", name).Output()
					require.NoError(t, err)
					require.Equal(t, sum, strings.Fields(string(out))[0], rel)
					t.Logf("%s: %d bytes", rel, len(b))
				}
				return nil
			})
		}
		l.forgotten(t)
	})
	t.Run("9p-ipv6", func(t *testing.T) {
		serve(t, "9p-ipv6")
		a := l.Do(t, "sh ms=60000 -- %s; dmesg | tail -3", strings.ReplaceAll(mount, "192.0.2.1", ip6))
		require.NotContains(t, l.sh(t, "mount"), "9p")
		t.Logf("%v", a.Words)
		l.stop(t, syscall.SIGINT)
		l.sh(t, "dmesg -c")
	})
}

// forgotten reads the kernel's log, where its 9P client may complain of the requests that
// it forgot when its server ended, and of nothing else.
func (l *lab) forgotten(t *testing.T) {
	out := l.sh(t, "dmesg -c")
	require.Equal(t, strings.Count(out, "WARNING:"), strings.Count(out, "kmem_cache_destroy 9p-fcall-cache"), out)
	require.NotContains(t, out, "BUG:")
}

// TestGrid has fio write, read and verify: each size with each depth, in order and at
// random, for each fault, over IPv4 and IPv6. With faults that lose or swap frames the
// host registers no memory (see README.md): its buffers are huge pages, so that commands
// of all sizes are one segment.
func TestGrid(t *testing.T) {
	if *grid == 0 {
		t.Skip("takes long: -grid 1")
	}
	l := newLab(t)
	l.sh(t, "dmesg -c; echo 40 >/proc/sys/vm/nr_hugepages; grep HugePages_Total /proc/meminfo; modprobe -r nvme-rdma; modprobe nvme-rdma register_always=N")
	for _, ip := range []string{ip4, ip6} {
		for _, faults := range []string{"loss=0", "loss=5", "duplicate=5", "reorder=5", "loss=5,duplicate=5,reorder=5"} {
			name := map[string]string{ip4: "IPv4", ip6: "IPv6"}[ip] + " " + faults
			t.Run(name, func(t *testing.T) {
				began := time.Now()
				l.start(t, strings.NewReplacer(" ", "-", "=", "", ",", "-").Replace(name), "-size", "80M", "-faults", faults, "-seed", strconv.Itoa(l.runs+1))
				l.connect(t, ip, "--nr-io-queues=1")
				cells := 0
				jobs := "fio --filename=/dev/nvme0n1 --direct=1 --ioengine=libaio --thread --verify=crc32c --verify_fatal=1 --do_verify=1 --iomem=shmhuge --stonewall"
				for _, bs := range []struct {
					size string
					n    int // commands written, and then read
				}{{"512", 64}, {"4k", 64}, {"64k", 8}, {"1024k", 2}} {
					for _, depth := range []int{1, 64} {
						for _, rw := range []string{"write", "randwrite"} {
							n := bs.n * *grid
							if depth == 1 && faults != "loss=0" { // each loss costs a time-out
								n = max(n/8, 2)
							}
							bytes, _ := parseSize(bs.size)
							jobs += fmt.Sprintf(" --name=%s-%s-%d --rw=%s --bs=%s --iodepth=%d --size=%d", rw, bs.size, depth, rw, bs.size, depth, int(bytes)*n)
							cells++
						}
					}
				}
				a := l.Do(t, "sh ms=600000 -- %s", jobs)
				out := a.Words["out"]
				require.Equal(t, "0", a.Words["status"], out)
				require.Equal(t, cells, strings.Count(out, "err= 0"), out)
				require.Equal(t, cells, strings.Count(out, "  read: IOPS"), "each has verified: %s", out)
				l.sh(t, "nvme disconnect -n %s", liveNQN)
				l.stop(t, syscall.SIGINT)
				l.clean(t)
				t.Logf("%d cells in %v", cells, time.Since(began).Round(time.Second))
			})
		}
	}
	t.Run("captures", l.judged)
}

// second boots a second guest at the segment's other end, with our address.
func (l *lab) second(t *testing.T, more ...string) *guest.Guest {
	return guest.Boot(t, "storage", l.ports[0], l.ports[1], append([]string{"--set", "IP4=192.0.2.1", "--set", "IP6=2001:db8::1", "--set", "MAC=52:54:00:00:00:01"}, more...)...)
}

// TestGolden keeps what Linux's own host and target say to each other: the outside
// evidence of examples/internal/nvme.
func TestGolden(t *testing.T) {
	if *golden == "" {
		t.Skip("takes two guests: -golden FILE")
	}
	l := newLab(t)
	raw := filepath.Join(l.dir, "guests.pcap")
	g := l.second(t, "--pcap", raw)
	a := g.Do(t, "sh ms=60000 -- set -e; %s", serveNVMet("192.0.2.1", "2001:db8::1"))
	require.Equal(t, "0", a.Words["status"], a.Words["out"])
	l.sh(t, "nvme discover -t rdma -a 192.0.2.1 -s 4420; nvme connect -t rdma -a 192.0.2.1 -s 4420 -n %s --nr-io-queues=1 --queue-size=16; sleep 2", nvmetNQN)
	l.sh(t, "printf 'golden' | nvme write /dev/nvme0n1 -s 9 -c 0 -z 512; nvme read /dev/nvme0n1 -s 9 -c 0 -z 512 -d /tmp/x; grep -q golden /tmp/x; nvme flush /dev/nvme0n1; "+
		"nvme dsm /dev/nvme0n1 -d -s 16,64 -b 8,24 || :; nvme write-zeroes /dev/nvme0n1 -s 100 -c 6; nvme smart-log /dev/nvme0 >/dev/null || :; nvme get-feature /dev/nvme0 -f 7")
	l.fails(t, "nvme read /dev/nvme0n1 -s 4294967296 -c 0 -z 512")
	l.fails(t, "nvme admin-passthru /dev/nvme0 --opcode=0xc1")
	l.fails(t, "nvme connect -t rdma -a 192.0.2.1 -s 4420 -n nqn.2014-08.org.nvmexpress:none")
	l.sh(t, "nvme disconnect -n %s", nvmetNQN)
	g.Close()
	require.NoError(t, trim(raw, *golden))
}

// trim keeps the RoCE packets of a capture that carry messages and data; of the reads of
// the disk at its arrival, which are zeros, a few.
func trim(from, to string) error {
	recs, err := capture.ReadFile(from)
	if err != nil {
		return err
	}
	f, err := os.Create(to)
	if err != nil {
		return err
	}
	w, err := capture.NewWriter(f, frame.Ethernet)
	if err != nil {
		return err
	}
	zeros := 0
	for _, r := range recs {
		var fr frame.Frame
		if (frame.Finder{}).Find(frame.Ethernet, r.Data, len(r.Data), &fr) != nil || len(r.Data) < 70 { // no acknowledgements
			continue
		}
		if len(r.Data) > 4096 && strings.Trim(string(r.Data[100:len(r.Data)-4]), "\x00") == "" {
			if zeros++; zeros > 1 {
				continue
			}
		}
		if err := w.Write(r.Time, r.Data); err != nil {
			return err
		}
	}
	return f.Close()
}

var bandwidth = regexp.MustCompile(`(READ|WRITE): bw=\S+ \(([0-9.]+)([kM])B/s\)`)

// TestThroughput has one host read and write on this target, which runs in a second
// guest, and on Linux's in the same guest, in turn: the same fio, the same emulated
// machine, which says itself how busy it was.
func TestThroughput(t *testing.T) {
	if !*speed {
		t.Skip("takes two guests: -throughput")
	}
	l := newLab(t)
	g := l.second(t)
	there := func(cmd string, args ...any) string {
		t.Helper()
		a := g.Do(t, "sh ms=60000 -- set -e; %s", fmt.Sprintf(cmd, args...))
		require.Equal(t, "0", a.Words["status"], "%s\n%s", cmd, a.Words["out"])
		return a.Words["out"]
	}
	files := httptest.NewServer(http.FileServer(http.Dir(l.dir)))
	defer files.Close()
	there("wget -q -O /tmp/nvmetarget http://10.0.2.2:%s/nvmetarget; chmod +x /tmp/nvmetarget", files.URL[strings.LastIndex(files.URL, ":")+1:])
	there("%s", serveNVMet("192.0.2.1", "2001:db8::1"))
	// busy returns the processor time of the second guest so far, in seconds.
	busy := func() float64 {
		f := strings.Fields(there("head -1 /proc/stat"))
		sum := 0.0
		for _, i := range []int{1, 2, 3, 6, 7} { // user, nice, system, irq, softirq
			v, _ := strconv.ParseFloat(f[i], 64)
			sum += v
		}
		return sum / 100
	}
	const runtime = 8.0
	work := func(t *testing.T, name, ip, nqn string) {
		l.sh(t, "nvme connect -t rdma -a %s -s 4420 -n %s --nr-io-queues=1; sleep 2", ip, nqn)
		for _, args := range []string{"--rw=write --bs=64k --iodepth=1", "--rw=read --bs=64k --iodepth=1", "--rw=randread --bs=4k --iodepth=8", "--rw=randwrite --bs=4k --iodepth=8"} {
			before := busy()
			out := l.sh(t, "fio --name=x --filename=/dev/nvme0n1 --size=16m --direct=1 --ioengine=libaio --thread --time_based --runtime=%v %s", runtime, args)
			m := bandwidth.FindStringSubmatch(out)
			require.NotNil(t, m, out)
			rate, _ := strconv.ParseFloat(m[2], 64)
			if m[3] == "k" {
				rate /= 1000
			}
			spent := busy() - before
			t.Logf("%s: %s: %.2f MB/s; target's machine busy %.1f s of %v, %.0f ms a MB", name, args, rate, spent, runtime, spent/(rate*runtime)*1000)
		}
		l.sh(t, "nvme disconnect -n %s", nqn)
	}
	for range 2 {
		work(t, "nvmet-rdma", "192.0.2.1", nvmetNQN)
		job := g.Do(t, "bg -- /tmp/nvmetarget -packet eth0 -ip 192.0.2.3 -size 16M >/tmp/says 2>&1").Num("job")
		there("for i in 1 2 3 4 5 6 7 8 9 10; do grep -q blocks /tmp/says && exit 0; sleep 0.3; done; cat /tmp/says; exit 1")
		work(t, "nvmetarget", "192.0.2.3", liveNQN)
		t.Log(g.Do(t, "wait job=%d ms=100 kill=2", job).Words["out"])
	}
	g.Close()
}
