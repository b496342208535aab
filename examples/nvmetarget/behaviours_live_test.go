//go:build interop

package main

import (
	"fmt"
	"os"
	"strings"
	"syscall"
	"testing"

	"github.com/stretchr/testify/require"
)

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
	good("004", "the disk comes and goes", "ls /dev/nvme0n1 /sys/block/nvme0n1/size; cat /sys/block/nvme0n1/size", "65536"),
	good("005, 022", "reset", "nvme reset /dev/nvme0; cat /sys/class/nvme/nvme0/state", "live"),
	bad("018", "a read beyond the end", "nvme read /dev/nvme0n1 -s 65536 -c 0 -z 512", "LBA Out of Range"),
	bad("018", "a write beyond the end", "echo x | nvme write /dev/nvme0n1 -s 65535 -c 1 -z 1024", "LBA Out of Range"),
	good("019", "Dataset Management", "nvme dsm /dev/nvme0n1 -d -s 0,64 -b 8,8", "success"),
	good("021", "list", "nvme list", "roce nvmetarget"),
	good("023, 024", "health log", "nvme smart-log /dev/nvme0", "critical_warning"),
	good("025", "effects log", "nvme get-log /dev/nvme0 --log-id=5 --log-len=4096 -b | od -An -tx1 -j1056 -N4", "03 00 00 00"),
	good("026", "namespace descriptors", "nvme ns-descs /dev/nvme0n1", "nguid"),
	good("027", "rescan", "nvme ns-rescan /dev/nvme0; nvme list-ns /dev/nvme0", "0x1"),
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
	{"047, 048", "queues and their sizes as the host asks", func(t *testing.T, l *lab) {
		l.sh(t, "nvme disconnect -n %s", liveNQN)
		l.connect(t, ip4, "--nr-io-queues=1", "--queue-size=16")
		require.Contains(t, l.sh(t, "cat /sys/class/nvme/nvme0/queue_count /sys/class/nvme/nvme0/sqsize"), "2\n15")
	}},
	bad("", "a subsystem that is not there", "nvme connect -t rdma -a 192.0.2.1 -s 4420 -n nqn.2014-08.org.nvmexpress:none", ""),
	{"", "an idle host keeps its controller alive", func(t *testing.T, l *lab) {
		l.sh(t, "nvme disconnect -n %s", liveNQN)
		l.connect(t, ip6, "--keep-alive-tmo=2")
		l.sh(t, "sleep 5; [ $(cat /sys/class/nvme/nvme0/state) = live ]; dd if=/dev/nvme0n1 of=/dev/null bs=64k count=1 iflag=direct")
	}},
}

// behaviours tries each on one target.
func (l *lab) behaviours(t *testing.T) {
	l.start(t, "behaviours", "-size", "32M")
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

// write writes the table.
func (l *lab) write(t *testing.T, kernel string) {
	text := "# Against Linux's host\n\nMade by `go test -tags interop ./examples/nvmetarget -update`; do not edit.\n\n" +
		"The host: nvme-rdma of Linux " + kernel + " and nvme-cli in the guest of `examples/softrnic/guest`.\n" +
		"Numbers are those of blktests' group nvme whose behaviour a line has; what they ask of the\n" +
		"host alone, of authentication, or of Linux's own target, is left out.\n\n" +
		"| blktests nvme | behaviour | result |\n|---|---|---|\n" + strings.Join(l.results, "\n") + "\n"
	require.NoError(t, os.WriteFile("INTEROP.md", []byte(text), 0o644))
}
