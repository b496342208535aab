//go:build interop

package main

import (
	"bytes"
	"encoding/binary"
	"flag"
	"fmt"
	"hash/crc32"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"sort"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/crc"
	"github.com/roce-go/roce/examples/internal/guest"
	"github.com/roce-go/roce/qp"
	roce "github.com/roce-go/roce/qp/endpoint"
	"github.com/roce-go/roce/qp/softnic"
)

var (
	update = flag.Bool("update", false, "write INTEROP.md")
	rounds = flag.Int("rounds", 1, "times as many messages over bad links")
	kmsg   = flag.String("console", "", "keep the guest's kernel messages in this file")
	pcap   = flag.String("pcap", "", "let QEMU record the segment in this file")
)

// What the guest has, and what it finds at our end.
var (
	guestIP4 = netip.MustParseAddr("192.0.2.2")
	guestIP6 = netip.MustParseAddr("2001:db8::2")
	ourIP4   = netip.MustParseAddr("192.0.2.1")
	ourIP6   = netip.MustParseAddr("2001:db8::1")
	ourMAC   = frame.MAC{0x52, 0x54, 0, 0, 0, 1}
)

const (
	memSize  = 2 << 20
	ourVA    = 0x7000_0000_0000
	pollWait = 40 * time.Second
	guard    = 64 // bytes behind a message that must stay unchanged
)

// lab is the guest and our port on one segment.
type lab struct {
	*loop
	guest *guest.Guest
	wire  *faulty
	regs  *qp.Regions
	pd    qp.PD
	ports [2]int // of the segment: ours, the guest's
	tcp   int    // here, for the guest's 18515
	gid   string // the guest's index, where a tool needs it

	mem  []byte // what the guest reaches
	rkey uint32
	mr   uint64 // the guest's memory
	gkey uint64
	gva  uint64
	seed uint32

	results results
}

func newLab(t *testing.T) *lab {
	l := &lab{mem: make([]byte, memSize)}
	l.ports = [2]int{freeUDP(t), freeUDP(t)}
	l.tcp = freeTCP(t)
	args := []string{"--tcp", fmt.Sprintf("%d:18515", l.tcp)}
	if *pcap != "" {
		args = append(args, "--pcap", *pcap)
	}
	if *kmsg != "" {
		args = append(args, "--console", *kmsg)
	}
	l.guest = guest.Boot(t, "", l.ports[1], l.ports[0], args...)
	t.Cleanup(l.guest.Close)
	l.results.guest = l.guest

	l.wire = &faulty{peerPort: l.ports[1]}
	ep, err := roce.Config{MAC: ourMAC, Filter: l.wire.filter, Port: func(c *softnic.Config) { c.Seed = nil }}.Open(
		roce.Segment(fmt.Sprintf("127.0.0.1:%d", l.ports[0]), fmt.Sprintf("127.0.0.1:%d", l.ports[1]), ourIP4, ourIP6))
	require.NoError(t, err)
	l.loop = newLoop(ep)
	l.regs = l.port.Regions()
	t.Cleanup(func() { l.loop.close() })

	l.rkey, err = l.regs.Register(qp.Region{Data: l.mem, Addr: ourVA,
		Access: qp.RemoteRead | qp.RemoteWrite | qp.RemoteAtomic | qp.FlushGlobal | qp.MWBind})
	require.NoError(t, err)
	access := "rwab"
	if l.guest.Info.Num("flush") != 0 {
		access += "f"
	}
	a := l.guest.Do(t, "mr size=%d access=%s", memSize, access)
	l.mr, l.gkey, l.gva = a.Num("mr"), a.Num("rkey"), a.Num("addr")
	return l
}

// nextSeed returns a pattern's number that no earlier call returned.
func (l *lab) nextSeed() uint32 {
	l.seed++
	return l.seed
}

// faults is what happens to the RoCE frames of one direction, in thousandths.
type faults struct{ lose, double, swap int }

// faulty is the segment with faults on our side of it.
type faulty struct {
	mu      sync.Mutex
	rng     *rand.Rand
	in, out faults
	held    [2][]byte // a frame that lets the next one pass: received, sent
	count   int       // of faults since set

	peerPort int
	sent     int // bytes since the peer's buffer was last looked at
}

// throttle waits until QEMU has read most of what was sent to it. A socket's
// buffer that runs over loses frames, and UC messages with them.
func (f *faulty) throttle(n int) {
	const most = 64 << 10
	if f.sent += n + 700; f.sent < most/2 {
		return
	}
	f.sent = 0
	want := fmt.Sprintf(":%04X", f.peerPort)
	for end := time.Now().Add(time.Second); time.Now().Before(end); time.Sleep(100 * time.Microsecond) {
		table, _ := os.ReadFile("/proc/net/udp")
		queued := int64(0)
		for _, line := range strings.Split(string(table), "\n") {
			if w := strings.Fields(line); len(w) > 4 && strings.HasSuffix(w[1], want) {
				_, rx, _ := strings.Cut(w[4], ":")
				queued, _ = strconv.ParseInt(rx, 16, 64)
			}
		}
		if queued < most {
			return
		}
	}
}

func (f *faulty) set(in, out faults, seed uint64) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.in, f.out, f.rng, f.count = in, out, rand.New(rand.NewPCG(seed, 0)), 0
}

// met returns how many faults there were since set.
func (f *faulty) met() int {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.count
}

func isRoCE(b []byte) bool {
	var fr frame.Frame
	return (frame.Finder{}).Find(frame.Ethernet, b, len(b), &fr) == nil
}

// pass returns the frames to deliver for one. A frame held back is delivered after the next
// one; that it waits for ever without one counts as a loss.
func (f *faulty) pass(out bool, b []byte) [][]byte {
	f.mu.Lock()
	defer f.mu.Unlock()
	w, dir := f.in, 0
	if out {
		w, dir = f.out, 1
	}
	if w == (faults{}) || !isRoCE(b) {
		list := [][]byte{b}
		if h := f.held[dir]; h != nil {
			f.held[dir] = nil
			list = append(list, h)
		}
		return list
	}
	if f.rng.IntN(1000) < w.lose {
		f.count++
		return nil
	}
	copyOf := append([]byte(nil), b...)
	if f.held[dir] == nil && f.rng.IntN(1000) < w.swap {
		f.held[dir] = copyOf
		f.count++
		return nil
	}
	list := [][]byte{copyOf}
	if f.rng.IntN(1000) < w.double {
		list = append(list, copyOf)
		f.count++
	}
	if h := f.held[dir]; h != nil {
		f.held[dir] = nil
		list = append(list, h)
	}
	return list
}

// opFlush is FLUSH's opcode.
const opFlush = 0x1c

// flushICRC turns the ICRC of a FLUSH into the driver's, or back. The driver
// counts the packet from BTH on a second time, as it stands: its table of opcodes
// does not have where a FLUSH's payload begins, and so it uses the whole packet.
func flushICRC(b []byte, driver bool) {
	var fr frame.Frame
	if (frame.Finder{}).Find(frame.Ethernet, b, len(b), &fr) != nil || fr.Transport[0] != opFlush {
		return
	}
	net, bth := fr.NetPacket[:len(fr.NetPacket)-4], fr.Transport[:len(fr.Transport)-4]
	right := crc.Sum(net)
	m := append([]byte(nil), net...)
	ones := func(i, n int) {
		for ; n > 0; i, n = i+1, n-1 {
			m[i] = 0xff
		}
	}
	if fr.Net == frame.IPv4 {
		ones(1, 1)
		ones(8, 1)
		ones(10, 2)
	} else {
		m[0] |= 0x0f
		ones(1, 3)
		ones(7, 1)
	}
	at := len(m) - len(bth)
	ones(at-2, 2)
	ones(at+4, 1)
	theirs := crc32.ChecksumIEEE(append(append(bytes.Repeat([]byte{0xff}, 8), m...), bth...))
	icrc := fr.NetPacket[len(net):]
	switch have := binary.LittleEndian.Uint32(icrc); {
	case driver && have == right:
		binary.LittleEndian.PutUint32(icrc, theirs)
	case !driver && have == theirs:
		binary.LittleEndian.PutUint32(icrc, right)
	}
}

func (f *faulty) filter(sent bool, b []byte) [][]byte {
	flushICRC(b, sent)
	if sent {
		f.throttle(len(b))
	}
	return f.pass(sent, b)
}

// link says how two QPs are connected.
type link struct {
	kind       qp.Type
	v6         bool
	mtu        int
	sqPSN      uint32 // ours
	guestPSN   uint32
	rnr        int // rnr_retry of both, 7 when 0
	timeout    int // of both, 18 when 0
	window     int
	forever    bool
	noRecvWait int // min_rnr_timer of both, 12 when 0
}

func (k link) String() string {
	ip := "IPv4"
	if k.v6 {
		ip = "IPv6"
	}
	return fmt.Sprintf("%v/%s/mtu%d", k.kind, ip, k.mtu)
}

func (k link) addrs() (ours, guests netip.Addr, sgid uint8) {
	if k.v6 {
		return ourIP6, guestIP6, 1
	}
	return ourIP4, guestIP4, 0
}

// conn is a QP of ours and one of the guest's, connected.
type conn struct {
	*lab
	link
	qp   *softnic.QP
	cq   *softnic.CQ // sends
	rcq  *softnic.CQ // receives
	gqp  uint64      // the guest's handle and number
	gqpn uint32
}

var kindName = map[qp.Type]string{qp.RC: "rc", qp.UC: "uc", qp.UD: "ud"}

const qkey = 0x11111111

// connect creates a pair of QPs and connects them.
func (l *lab) connect(t testing.TB, k link) *conn {
	t.Helper()
	c := &conn{lab: l, link: k, cq: softnic.NewCQ(), rcq: softnic.NewCQ()}
	access := "rwa"
	if l.guest.Info.Num("flush") != 0 && k.kind == qp.RC {
		access += "f"
	}
	a := l.guest.Do(t, "qp type=%s access=%s qkey=%#x", kindName[k.kind], access, qkey)
	c.gqp, c.gqpn = a.Num("qp"), uint32(a.Num("qpn"))
	c.makeQP(t)
	c.connectGuest(t)
	t.Cleanup(func() {
		l.do(func(time.Time) { c.qp.Destroy() })
		l.guest.Try("destroy qp=%d", c.gqp)
	})
	return c
}

// makeQP makes our QP and connects it.
func (c *conn) makeQP(t testing.TB) {
	t.Helper()
	if c.rnr == 0 {
		c.rnr = 7
	}
	if c.timeout == 0 {
		c.timeout = 18 // a second: the guest may have to wait for a processor
	}
	if c.noRecvWait == 0 {
		c.noRecvWait = 12
	}
	if c.window == 0 {
		// What a socket buffer holds: beyond it frames are lost.
		c.window = min(64, 64<<10/c.mtu)
	}
	_, guests, sgid := c.addrs()
	c.do(func(now time.Time) {
		var err error
		c.qp, err = c.port.CreateQP(softnic.QPConfig{
			Config: qp.Config{Type: c.kind, PD: c.pd, MaxSendWR: 128, MaxRecvWR: 512, MaxInline: 256,
				MaxRdAtomic: 16, MaxDestRdAtomic: 128, Window: c.window, LinuxRetryForever: c.forever, LinuxAckBeforeRead: true},
			SendCQ: c.cq, RecvCQ: c.rcq,
		})
		require.NoError(t, err)
		a := qp.Attr{
			PKey: 0xffff, QKey: qkey,
			Access:  qp.RemoteRead | qp.RemoteWrite | qp.RemoteAtomic | qp.FlushGlobal,
			PathMTU: c.mtu, DestQPN: c.gqpn, AH: qp.AHAttr{GID: guests.As16(), SGIDIndex: sgid},
			RQPSN: pSN(c.guestPSN), SQPSN: pSN(c.sqPSN), MaxDestRdAtomic: 128, MaxRdAtomic: 16,
			MinRNRTimer: rnrTimer(c.noRecvWait), Timeout: uint8(c.timeout), RetryCnt: 7, RNRRetry: uint8(c.rnr),
		}
		require.NoError(t, c.qp.Connect(now, &a))
	})
}

func (c *conn) connectGuest(t testing.TB) {
	t.Helper()
	ours, _, _ := c.addrs()
	if c.kind == qp.UD {
		c.guest.Do(t, "connect qp=%d psn=%d", c.gqp, c.guestPSN)
		return
	}
	c.guest.Do(t, "connect qp=%d dqpn=%#x psn=%#x rpsn=%#x dgid=%v mtu=%d rnr=%d timeout=%d min_rnr=%d",
		c.gqp, c.qp.Num(), c.guestPSN, c.sqPSN, ours, c.mtu, c.rnr, c.timeout, c.noRecvWait)
}

// post posts a send of ours.
func (c *conn) post(t testing.TB, wr qp.SendWR) {
	t.Helper()
	wr.Flags |= qp.Signaled
	if c.kind == qp.UD {
		_, guests, sgid := c.addrs()
		wr.AH = qp.NewAddressHandle(qp.AHAttr{GID: guests.As16(), SGIDIndex: sgid})
		wr.RemoteQPN, wr.RemoteQKey = c.gqpn, qkey
	}
	c.do(func(now time.Time) { require.NoError(t, c.qp.PostSend(now, &wr)) })
}

func (c *conn) recv(t testing.TB, id uint64, b []byte) {
	t.Helper()
	c.do(func(time.Time) { require.NoError(t, c.qp.PostRecv(&qp.RecvWR{ID: id, Local: b})) })
}

// completion waits for the next completion of a queue of ours.
func (l *lab) completion(t testing.TB, cq *softnic.CQ) qp.Completion {
	t.Helper()
	var wc qp.Completion
	ok := l.wait(pollWait, func(time.Time) bool { return cq.Poll(&wc) })
	require.True(t, ok, "no completion of ours: %+v", l.port.Counters())
	return wc
}

// results counts what was tried.
type results struct {
	guest *guest.Guest
	mu    sync.Mutex
	rows  map[string]*row
	keys  []string
}

type row struct{ ok, bad [2]int }

// roles, for the columns of the table.
const (
	asks    = 0 // ours is the requester
	answers = 1 // ours is the responder
)

// record stores how the test t of an operation ends.
func (r *results) record(t *testing.T, op string, role int) {
	r.guest.Alive(t)
	t.Cleanup(func() {
		if !t.Skipped() {
			r.count(op, role, !t.Failed())
		}
	})
}

func (r *results) count(op string, role int, ok bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.rows == nil {
		r.rows = map[string]*row{}
	}
	w := r.rows[op]
	if w == nil {
		w = new(row)
		r.rows[op] = w
		r.keys = append(r.keys, op)
	}
	if ok {
		w.ok[role]++
	} else {
		w.bad[role]++
	}
}

func (w *row) cell(role int) string {
	if w.bad[role] != 0 {
		return fmt.Sprintf("**%d of %d failed**", w.bad[role], w.ok[role]+w.bad[role])
	}
	return fmt.Sprintf("ok, %d", w.ok[role])
}

// table returns the results as Markdown.
func (r *results) table(g *guest.Guest) string {
	var b strings.Builder
	fmt.Fprintf(&b, "# Against the Linux kernel's driver\n\n"+
		"Made by `go test -tags interop ./examples/softrnic -update`; do not edit.\n\n"+
		"The peer: rdma_rxe of Linux %s in the guest of `guest/`, with %s.\n"+
		"A cell holds how many cases there were and whether all were as expected:\n"+
		"completions and memory at both ends, byte for byte. A run of some of the cases leaves\n"+
		"the other rows as they were.\n\n", g.Info.Words["kernel"], versions())
	b.WriteString(r.lines())
	b.WriteString(`
Not tried: qperf's tests of UD and UC (they exchange LIDs and no GIDs, so that two hosts with
RoCE cannot run them either); perftest -R, qperf -cm1 and rcopy over IPv6 (the first two
resolve IPv4 addresses only, the third takes what is before the first colon for the server's
name, and listens to IPv4); loss with udaddy, rdma_xserver and cmtime (nobody sends again
what they lose when they end).

Known of the driver:

- Its ICRC of a FLUSH counts the packet from the BTH on twice, so that only itself
  takes it. For this test FLUSHes are translated on our side of the wire.
- It responds to a SEND longer than the receive with a NAK remote operational error,
  where the specification says invalid request.
- It does not respond to a READ of no bytes a second time. Where the first response was
  lost, the READ never completes.
- It has no XRC, so that rdma_xserver and rdma_xclient are tried with RC, and the kernel
  joins no IPv6 multicast group for RDMA-CM: mckey is tried with IPv4.
- Its queue pairs do not survive a change of their own hardware address: ours follows to
  the new one and gets no response. New queue pairs work.
- A FLUSH or an ATOMIC WRITE that it sends again asks for address 0. The cases over bad
  links leave both out.
`)
	return b.String()
}

// lines returns only the rows. Those of the page that this run has not tried stay as they
// are.
func (r *results) lines() string {
	keys, cells := []string(nil), map[string][2]string{}
	page, _ := os.ReadFile("INTEROP.md")
	for _, line := range strings.Split(string(page), "\n") {
		c := strings.Split(line, " | ")
		if key, ok := strings.CutPrefix(c[0], "| "); ok && len(c) == 3 && key != "operation" {
			keys = append(keys, key)
			cells[key] = [2]string{c[1], strings.TrimSuffix(c[2], " |")}
		}
	}
	for _, key := range r.keys {
		c, old := cells[key]
		if !old {
			keys, c = append(keys, key), [2]string{"–", "–"}
		}
		for role := range c {
			if w := r.rows[key]; w.ok[role]+w.bad[role] != 0 {
				c[role] = w.cell(role)
			}
		}
		cells[key] = c
	}
	var b strings.Builder
	b.WriteString("| operation | ours requests, Linux responds | Linux requests, ours responds |\n|---|---|---|\n")
	sort.SliceStable(keys, func(i, j int) bool { return group(keys[i]) < group(keys[j]) })
	for _, k := range keys {
		fmt.Fprintf(&b, "| %s | %s | %s |\n", k, cells[k][asks], cells[k][answers])
	}
	return b.String()
}

// group orders the table: services first, then the rest as it came.
func group(key string) int {
	for i, p := range []string{"RC ", "UC ", "UD "} {
		if strings.HasPrefix(key, p) {
			return i
		}
	}
	return 3
}

// versions returns the versions of what is in the guest.
func versions() string {
	b, _ := os.ReadFile(os.ExpandEnv("${HOME}/.cache/roce-interop/versions"))
	if dir := os.Getenv("ROCE_INTEROP_CACHE"); dir != "" {
		b, _ = os.ReadFile(dir + "/versions")
	}
	var vs []string
	for _, line := range strings.Split(string(b), "\n") {
		name, v, _ := strings.Cut(line, " ")
		if name == "rdma-core" || name == "perftest" || name == "qemu-system-x86" {
			vs = append(vs, name+" "+v)
		}
	}
	return strings.Join(vs, ", ")
}

// pattern fills b with the guest's pattern of a seed, from byte from on.
func pattern(b []byte, seed, from uint32) {
	for i := range b {
		x := (uint32(i)+from)*0x9E3779B1 + seed*0x85EBCA6B
		x ^= x >> 15
		x *= 0x2C1B3CD5
		b[i] = byte(x >> 24)
	}
}

func mustAddr(s string) netip.Addr { return netip.MustParseAddr(s).Unmap() }
func mustGID(s string) [16]byte    { return netip.MustParseAddr(s).As16() }

func freeUDP(t *testing.T) int {
	c, err := net.ListenUDP("udp", &net.UDPAddr{IP: net.IPv4(127, 0, 0, 1)})
	require.NoError(t, err)
	defer c.Close()
	return c.LocalAddr().(*net.UDPAddr).Port
}

func freeTCP(t *testing.T) int {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	require.NoError(t, err)
	defer l.Close()
	return l.Addr().(*net.TCPAddr).Port
}
