package main

import (
	"bytes"
	"fmt"
	"io"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/stretchr/testify/assert"
	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/qp"
	roce "github.com/roce-go/roce/qp/endpoint"
	"github.com/roce-go/roce/qp/softnic"
)

var lastPort atomic.Int32

// segment returns two addresses with ports that no other test has, at the same time or
// in another process.
func segment() (a, b string) {
	pid := os.Getpid()
	at := func() string {
		return fmt.Sprintf("127.%d.%d.%d:%d", 64+pid>>16&63, pid>>8&255, 1+pid&127, 10000+lastPort.Add(1))
	}
	return at(), at()
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
	out, code = program("-segment", "127.0.0.1:0,127.0.0.1:1")
	require.Equal(t, 2, code)
	require.Contains(t, out, "name a tool to be, or the peer")
	for _, bad := range []string{"", "-nonsense", "-segment x,y", "-segment 127.0.0.1:0,127.0.0.1:1 -tap x", "-segment 127.0.0.1:0,127.0.0.1:1 -ip x",
		"-segment 127.0.0.1:0,127.0.0.1:1 -gid 7", "-segment 127.0.0.1:0,127.0.0.1:1 -mac x", "-packet nosuchinterface", "-segment 127.0.0.1:0,127.0.0.1:1 here",
		"-udp 0.0.0.0", "-tap namesofmorethan15characters", "-segment 127.0.0.1:0,127.0.0.1:1 -n -5", "-segment 127.0.0.1:0,127.0.0.1:1 -size -1",
		"-segment 127.0.0.1:0,127.0.0.1:1 -mtu 1000", "-segment 127.0.0.1:0,127.0.0.1:1 -perftest nosuch", "-segment 127.0.0.1:0,127.0.0.1:1 -cm nosuch",
		"-packet lo -ip 127.0.0.1", "-segment 127.0.0.1:0,127.0.0.1:1 -perftest read -c uc", "-segment 127.0.0.1:0,127.0.0.1:1 -perftest send_lat -q 2",
		"-segment 127.0.0.1:0,127.0.0.1:1 -q 2 -pingpong rc", "-segment 127.0.0.1:0,127.0.0.1:1 -perftest write_lat -size -2", "-udp 127.0.0.1 -dscp 5",
		"-segment 127.0.0.1:0,127.0.0.1:1 -timeout 32", "-segment 127.0.0.1:0,127.0.0.1:1 -vlan 65536", "-segment 127.0.0.1:0,127.0.0.1:1 -patience 0s",
		"-udp name.that.is.none.invalid", "-segment 127.0.0.1:0,127.0.0.1:1 -cm rcopy", "-segment 127.0.0.1:0,127.0.0.1:1 -qperf rc_bw -for 1500ms", "-segment 127.0.0.1:0,127.0.0.1:1 -R -perftest send -c ud", "-segment 127.0.0.1:0,127.0.0.1:1 -file x",
		"-udp 127.0.0.1 -faults loss=1", "-segment 127.0.0.1:0,127.0.0.1:1 -pingpong rc -perftest write", "-segment 127.0.0.1:0,127.0.0.1:1 -perftest write -op send",
		"-segment 127.0.0.1:0,127.0.0.1:1 -peer 11:x:192.0.2.2"} {
		args := strings.Fields(bad)
		if !strings.Contains(bad, " rc") && !strings.Contains(bad, "-perftest") && !strings.Contains(bad, "-cm") && !strings.Contains(bad, "-peer") {
			args = append(args, "-peer", "-")
		}
		out, code := program(args...)
		require.Equal(t, 2, code, bad)
		require.NotEmpty(t, out)
		if flag := strings.Fields(bad + " x"); len(flag) > 2 {
			require.Regexp(t, "softrnic: -[a-zA-Z]+|ADDRESS|flag provided", out, "the error names the flag")
		}
	}
}

// TestAgainstItself runs each tool between two of this program: on a segment, and
// on sockets where the system has what they need.
func TestAgainstItself(t *testing.T) {
	// Other runs of the test have other addresses and another interface.
	host := fmt.Sprintf("127.%d.%d.", 64|os.Getpid()>>8&63, os.Getpid()&255)
	wires := map[string][2]string{"segment": {}}
	if runtime.GOOS == "linux" {
		wires["udp"] = [2]string{"-udp " + host + "1", "-udp " + host + "2"}
	}
	tap := fmt.Sprintf("roces%x", os.Getpid())
	if exec.Command("ip", "tuntap", "add", "mode", "tap", "name", tap).Run() == nil {
		defer exec.Command("ip", "link", "del", tap).Run()
		require.NoError(t, exec.Command("ip", "link", "set", tap, "mtu", "4400", "up").Run())
		wires["interface"] = [2]string{"-ip 198.18.7.1 -tap " + tap, "-packet " + tap + " -mac 52:54:00:00:00:02 -ip 198.18.7.2"}
	}
	if testing.Short() {
		wires = map[string][2]string{"segment": wires["segment"]}
	}
	for name, wire := range wires {
		for _, what := range []string{
			"-pingpong rc -n 50", "-pingpong rc -n 20 -size 20000 -mtu 4096", "-pingpong uc -n 50 -size 900", "-pingpong ud -n 50",
			"-perftest send -n 50", "-perftest write -n 50", "-perftest read -n 50", "-perftest atomic -n 50",
			"-perftest send -c ud -n 50 -size 500", "-perftest send -n 20 -q 3 -size 3000", "-perftest write -n 20 -q 3", "-perftest read -n 20 -q 2",
			"-perftest send_lat -n 50", "-perftest send_lat -c ud -n 50", "-perftest write_lat -n 300 -size 2000", "-perftest write_lat -c uc -n 50",
			"-perftest read_lat -n 50", "-perftest atomic_lat -n 50",
			"-cm rping -n 20 -size 3000", "-cm ucmatose -n 50", "-cm rdma", "-cm xrdma", "-cm cmtime -n 20", "-cm udaddy -n 40",
			"-perftest send -R -n 50 -p 9999", "-perftest write -R -n 50 -q 3", "-perftest read -R -n 50", "-perftest atomic -R -n 50 -q 2",
			"-qperf rc_bw -for 1s", "-qperf rc_lat -for 1s", "-qperf rc_rdma_read_bw -for 1s", "-qperf rc_rdma_write_bw -for 1s -size 9000",
			"-cm rstream -n 30 -size 20000", "-cm riostream -n 10 -size 20000",
		} {
			t.Run(name+"/"+what, func(t *testing.T) {
				wire := wire
				if name == "segment" {
					t.Parallel()
					a, b := segment()
					wire = [2]string{"-segment " + a + "," + b, "-segment " + b + "," + a + " -mac 52:54:00:00:00:02 -ip 192.0.2.2,2001:db8::2"}
				}
				if strings.HasPrefix(what, "-qperf") && name != "udp" {
					t.Skip("its TCP needs the port's address on the host")
				}
				port := 21000 + os.Getpid()%100*100 + int(lastPort.Add(1))%100
				server, client := "", " 127.0.0.1"
				if strings.HasPrefix(what, "-cm") || strings.Contains(what, " -R ") || strings.HasPrefix(what, "-qperf") {
					client = " " + map[string]string{"segment": "192.0.2.1", "udp": host + "1", "interface": "198.18.7.1"}[name]
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
					// The server is not listening yet, or the last one's socket not closed.
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
				if strings.Contains(what, "stream") {
					require.Contains(t, out, ", verified")
					require.Contains(t, r.out, ", verified")
				}
			})
		}
	}
}

// A file goes where the server says, whatever the client calls it.
func TestRcopy(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	from, to := filepath.Join(dir, "from"), filepath.Join(dir, "to")
	data := bytes.Repeat([]byte("0123456789abcde"), 50_000)
	require.NoError(t, os.WriteFile(from, data, 0o600))
	a, b := segment()
	served := make(chan string, 1)
	go func() {
		out, code := program(strings.Fields("-segment " + a + "," + b + " -cm rcopy -file " + to)...)
		served <- fmt.Sprint(out, "exit ", code)
	}()
	var out string
	code := 1
	for end := time.Now().Add(20 * time.Second); code != 0 && time.Now().Before(end); { // the server may not listen yet
		out, code = program(strings.Fields("-segment " + b + "," + a + " -mac 52:54:00:00:00:02 -ip 192.0.2.2 -cm rcopy -file " + from + ":/etc/passwd 192.0.2.1")...)
	}
	require.Zero(t, code, out)
	said := <-served
	require.Contains(t, said, "/etc/passwd is in "+to)
	require.Contains(t, said, "exit 0")
	got, err := os.ReadFile(to)
	require.NoError(t, err)
	require.Equal(t, data, got)
}

// Errors are reported with the counters and the likely cause.
func TestExplains(t *testing.T) {
	t.Parallel()
	a, b := segment()
	out, code := program(strings.Fields(fmt.Sprintf("-segment %s,%s -peer 11:1:192.0.2.9:101:0 -op write -n 1", a, b))...)
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "TxUnresolved 1")
	require.Contains(t, out, "likely: no host has the peer's address")
	require.Contains(t, out, "the ports, which are swapped")

	out, code = program(strings.Fields(fmt.Sprintf("-segment %s,%s -cm rping -wait 4s 192.0.2.9", a, b))...)
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "likely: no host has the peer's address")

	for want, c := range map[string]struct {
		p softnic.Counters
		c qp.Counters
	}{
		"wrong ICRC":            {softnic.Counters{RxFrames: 9, RxICRCEncapsulated: 9}, qp.Counters{}},
		"no RoCE packet":        {softnic.Counters{TxFrames: 9}, qp.Counters{TxPackets: 9, RetryExceededErr: 1}},
		"do not exist here":     {softnic.Counters{RxFrames: 9, RxRoCE: 9, RxNoQP: 9}, qp.Counters{}},
		"another address":       {softnic.Counters{RxFrames: 9, RxRoCE: 9, RxWrongAddress: 9}, qp.Counters{}},
		"no receives":           {softnic.Counters{RxFrames: 9, RxRoCE: 9}, qp.Counters{RNRNakReceived: 8, RNRNakRetryErr: 1}},
		"key, address":          {softnic.Counters{RxFrames: 9, RxRoCE: 9}, qp.Counters{ReqRemoteAccessErrors: 1}},
		"the same -size":        {softnic.Counters{RxFrames: 9, RxRoCE: 9}, qp.Counters{RespLocalLengthError: 1}},
		"does not respond":      {softnic.Counters{RxFrames: 9, RxRoCE: 9}, qp.Counters{RetryExceededErr: 1}},
		"no longer responds":    {softnic.Counters{RxFrames: 9, RxRoCE: 9}, qp.Counters{RetryExceededErr: 1, RxPackets: 5}},
		"service does not send": {softnic.Counters{RxFrames: 9, RxRoCE: 9}, qp.Counters{UCMessagesDropped: 1, RxPackets: 5}},
	} {
		require.Contains(t, likely(&c.p, &c.c), want)
	}
	require.Empty(t, likely(&softnic.Counters{}, &qp.Counters{}))
}

// VLAN tags and DSCP of what is sent.
func TestMarks(t *testing.T) {
	t.Parallel()
	a, b := segment()
	peer, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(b)))
	require.NoError(t, err)
	defer peer.Close()
	go func() {
		_ = peer.SetReadDeadline(time.Now().Add(10 * time.Second))
		buf := make([]byte, 2000)
		var asked bool
		for {
			n, from, err := peer.ReadFromUDPAddrPort(buf)
			if err != nil {
				return
			}
			var f frame.Frame
			switch {
			case n >= 46 && string(buf[16:18]) == "\x08\x06" && !asked: // 192.0.2.2 responds
				asked = true
				r := append(append([]byte{}, buf[6:12]...), 2, 0, 0, 0, 0, 2)
				r = append(r, buf[12:24]...)
				r = append(r, 0, 2, 2, 0, 0, 0, 0, 2, 192, 0, 2, 2)
				_, _ = peer.WriteToUDPAddrPort(append(r, buf[26:36]...), from)
			case (frame.Finder{}).Decode(frame.Ethernet, buf[:n], n, &f) == nil:
				assert.EqualValues(t, 1, f.VLANs)
				assert.EqualValues(t, 0x6005, f.VLAN[0].TCI)
				assert.EqualValues(t, 26<<2, f.TrafficClass)
			}
		}
	}()
	out, code := program(strings.Fields(fmt.Sprintf("-segment %s,%s -peer 11:1:192.0.2.2:101:0 -op write -n 1 "+
		"-vlan 0x6005 -dscp 26 -timeout 10 -retry 1", a, b))...)
	require.Equal(t, 1, code, out)
	require.Contains(t, out, "RetryExceededErr 1")
	require.Contains(t, out, "no RoCE packet was received")
}

// Datagrams of a multicast group.
func TestMckey(t *testing.T) {
	t.Parallel()
	a, b := segment()
	served := make(chan string, 1)
	go func() {
		out, code := program(strings.Fields(fmt.Sprintf("-segment %s,%s -cm mckey -n 5 -wait 20s -group 239.9.8.7", a, b))...)
		served <- fmt.Sprint(out, "exit ", code)
	}()
	for end := time.Now().Add(20 * time.Second); time.Now().Before(end); {
		out, code := program(strings.Fields(fmt.Sprintf("-segment %s,%s -mac 52:54:00:00:00:02 -ip 192.0.2.2 -cm mckey -n 5 239.9.8.7", b, a))...)
		require.Zero(t, code, out)
		select {
		case out := <-served:
			require.Contains(t, out, "5 datagrams received\nexit 0")
			return
		case <-time.After(20 * time.Millisecond):
		}
	}
	t.Fatal("nothing was received")
}

// TestByHand connects two of this program with numbers from the command line.
func TestByHand(t *testing.T) {
	t.Parallel()
	for op, want := range map[string]string{"write": "3 times RDMA_WRITE of 4096 bytes", "send": "3 times SEND of 4096 bytes",
		"read": "3 times RDMA_READ of 4096 bytes", "fadd": "was 0x2", "cswap": "was 0x2"} {
		t.Run(op, func(t *testing.T) {
			t.Parallel()
			a, b := segment()
			served := make(chan string, 1)
			go func() {
				out, code := program(strings.Fields(fmt.Sprintf("-segment %s,%s -psn 1 -peer 11:2:[192.0.2.2] -for 2s", a, b))...)
				served <- fmt.Sprint(out, "exit ", code)
			}()
			out, code := program(strings.Fields(fmt.Sprintf("-segment %s,%s -mac 52:54:00:00:00:02 -ip 192.0.2.2 "+
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

// Lines that ibv_rc_pingpong of rdma-core 44 and ib_send_bw, ib_read_bw of
// perftest 4.5+0.17 sent, the latter in front of 9 bytes of MTU and the like.
const (
	pingpongSent = "0000:000022:49462e:00000000000000000000ffffc0000202\x00"
	perftestSent = "0000:0080:000015:d601a2:000007e8:00007f29142c7000:00:00:00:00:00:00:00:00:00:00:ff:ff:c0:00:02:02:00000000:\x00"
	openingSent  = "6.06\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00\x00" + "\x00\x00\x10\x00" + "\x00\x00\x00@" + "5\x00"
)

func TestLines(t *testing.T) {
	gid := netip.MustParseAddr("::ffff:192.0.2.2").As16()
	p, err := parsePingpong([]byte(pingpongSent))
	require.NoError(t, err)
	require.Equal(t, &peer{qpn: 0x22, psn: 0x49462e, gid: gid}, p)
	require.Equal(t, pingpongSent, string(pingpongLine(p)))

	p, err = parsePerftest([]byte(perftestSent))
	require.NoError(t, err)
	require.Equal(t, &peer{qpn: 0x15, psn: 0xd601a2, gid: gid, rkey: 0x7e8, va: 0x7f29142c7000, reads: 128}, p)
	require.Equal(t, perftestSent, string(perftestLine(p)))

	for _, bad := range []string{"", "x", "0000:000022", pingpongSent[:30], "0000:000022:49462e:" + string(bytes.Repeat([]byte("0"), 32))} {
		_, err := parsePingpong([]byte(bad))
		require.Error(t, err, bad)
	}
	_, err = parsePerftest([]byte(perftestSent[:80]))
	require.Error(t, err)
}

// unacknowledged is a connection that ends before the peer's acknowledgement arrives, after
// the peer's message or without one.
type unacknowledged struct{ io.Reader }

func (unacknowledged) Write([]byte) (int, error) { return 0, roce.ErrDisconnected }

// The peer's message shows that it has received ours, whether that was acknowledged or not.
func TestExchangeWithoutAcknowledgement(t *testing.T) {
	got, err := exchange(unacknowledged{strings.NewReader("theirs")}, false, []byte("ours.."))
	require.NoError(t, err)
	require.Equal(t, "theirs", string(got))
	_, err = exchange(unacknowledged{strings.NewReader("")}, false, []byte("ours.."))
	require.ErrorContains(t, err, "the peer has closed")
}

func TestPeerFlag(t *testing.T) {
	p, err := parsePeer("11:00abcd:[2001:db8::2]:00000101:700000000000")
	require.NoError(t, err)
	require.Equal(t, &peer{qpn: 0x11, psn: 0xabcd, gid: netip.MustParseAddr("2001:db8::2").As16(), rkey: 0x101, va: regionVA, reads: rdAtomic}, p)
	p, err = parsePeer("11:5:192.0.2.2")
	require.NoError(t, err)
	require.EqualValues(t, 5, p.psn)
	for _, bad := range []string{"", "11", "11:5", "11:5:host", "11:5:192.0.2.2:zz", "zz:5:192.0.2.2"} {
		_, err := parsePeer(bad)
		require.Error(t, err, bad)
	}
}

func TestOpening(t *testing.T) {
	for _, server := range []bool{true, false} {
		a, b := net.Pipe()
		heard := make(chan string, 1)
		go func() {
			var got bytes.Buffer
			for i, n := range []int{16, 4, 4, 2} {
				at := []int{0, 16, 20, 24}[i]
				if server {
					io.WriteString(b, openingSent[at:at+n])
				}
				io.CopyN(&got, b, int64(n))
				if !server {
					io.WriteString(b, openingSent[at:at+n])
				}
			}
			heard <- got.String()
		}()
		mtu, err := perftestOpening(a, server, 1024)
		require.NoError(t, err)
		require.Equal(t, 1024, mtu, "the lesser")
		require.Equal(t, openingSent[:24]+"3\x00", <-heard)
	}
}
