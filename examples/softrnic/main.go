// Command softrnic is a RoCE endpoint in user space: a qp/softnic port on a wire that a
// program without privileges can have. The peer is an unmodified tool on a Linux host:
// ibv_rc_pingpong, ibv_uc_pingpong, ibv_ud_pingpong, perftest's tests of bandwidth and
// latency, or a tool that connects by RDMA-CM, as client or as server; or a second softrnic.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/roce-go/roce/examples/internal/wire"
	"github.com/roce-go/roce/qp"
	roce "github.com/roce-go/roce/qp/endpoint"
	"github.com/roce-go/roce/qp/softnic"
)

const usage = `usage: softrnic WIRE [option...] [ADDRESS]

A RoCE v2 endpoint in user space. With -pingpong, -perftest, -qperf or -cm it is the tool
of that name: a server, or with ADDRESS a client of the server there. Otherwise it
makes one queue pair, prints its numbers, connects it to the peer that -peer
names, and serves a region and a receive queue, or does what -op says.

` + wire.Usage + `
A UDP socket does not show the IP header that a packet's ICRC covers. All of it is
known except the 16-bit identification that the sender chose (IPv4): a packet is
accepted if its ICRC is right for some identification. A corrupted packet is accepted
with probability 2^-16 instead of 2^-32. -strict accepts only identification 0, which is
what this program sends, with -strict to its own host, too; the Linux driver increments
it. The socket sends with Don't Fragment, needs peers that set Don't Fragment and no
IP options, sends from port 4791 only, and supports neither ECN nor VLANs nor DSCP.

options:
`

type options struct {
	wire wire.Flags
	path path

	pingpong, perftest    string
	cm, qperf             string
	tcp                   int
	n, size, mtu, qps     int
	kind                  string
	psn                   int
	peer, op, group, file string
	dur, wait, linger     time.Duration
	gid, rate             int
	rdmacm                bool
}

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	var o options
	fs := flag.NewFlagSet("softrnic", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() { fmt.Fprint(fs.Output(), usage); fs.PrintDefaults() }
	o.wire.DefaultWindow = 64
	o.wire.Register(fs)
	fs.IntVar(&o.gid, "gid", 0, "`index` among the port's addresses, where the peer's address does not say which")
	fs.IntVar(&o.rate, "rate", 0, "most `bytes` sent a second; 0: as fast as it goes")
	fs.StringVar(&o.pingpong, "pingpong", "", "be ibv_`KIND`_pingpong: rc, uc or ud")
	fs.StringVar(&o.perftest, "perftest", "", "be ib_`TEST`_bw: send, write, read or atomic; or ib_TEST: send_lat, write_lat, read_lat or atomic_lat (handshake of perftest 5.7 to 6.06)")
	fs.BoolVar(&o.rdmacm, "R", false, "-perftest as with its -R: handshake and queue pairs over RDMA-CM, no TCP; send, write, read and atomic of rc")
	fs.StringVar(&o.cm, "cm", "", "be a `ROLE` of RDMA-CM: "+strings.Join(cmRoles, ", "))
	fs.StringVar(&o.qperf, "qperf", "", "be qperf with -cm1, of the `TEST` "+strings.Join(qperfNames, ", ")+", for -for (2s); a server takes any of them")
	fs.IntVar(&o.tcp, "p", 0, "`port`: of the tools' handshake over TCP, 0 means 18515; with -cm RDMA-CM's, 0 means the tool's own")
	fs.IntVar(&o.n, "n", 1000, "`number` of messages")
	fs.IntVar(&o.size, "size", 0, "`bytes` of a message; 0: what the tool takes (4096, 1024 for ud; 65536, 2 for latency)")
	fs.IntVar(&o.qps, "q", 1, "`number` of queue pairs of -perftest, each with -n messages")
	fs.IntVar(&o.mtu, "mtu", 1024, "path MTU in `bytes`: 256, 512, 1024, 2048 or 4096")
	fs.StringVar(&o.kind, "c", "rc", "`kind` of queue pair: rc, uc or ud")
	fs.IntVar(&o.path.vlan, "vlan", -1, "VLAN `tag` (TCI: priority, 3 bits; DEI; VLAN ID, 12 bits) of what is sent; -1: none")
	fs.IntVar(&o.path.dscp, "dscp", 0, "`DSCP` of what is sent")
	fs.IntVar(&o.path.timeout, "timeout", 14, "`code` of the acknowledgement timer, 4.096 us * 2^code; 0: never")
	fs.IntVar(&o.path.retries, "retry", 7, "`times` to send again without a response before the connection fails")
	fs.DurationVar(&o.path.patience, "patience", 30*time.Second, "longest `time` to wait for anything to happen once a client or server is there")
	fs.IntVar(&o.psn, "psn", -1, "first `PSN` sent; -1: any")
	fs.StringVar(&o.peer, "peer", "", "the peer's `QPN:PSN:GID[:RKEY:ADDRESS]`, numbers in hexadecimal; - reads that line from standard input")
	fs.StringVar(&o.op, "op", "", "`operation` to do: send, write, read, fadd or cswap")
	fs.StringVar(&o.group, "group", "239.1.1.1", "multicast `address` that -cm mckey receives")
	fs.StringVar(&o.file, "file", "", "`file` of -cm rcopy: what a client sends, with :NAME for its name there; where a server writes what it receives")
	fs.DurationVar(&o.wait, "wait", 5*time.Minute, "longest `time` to wait for a client, or with -cm for all of it")
	fs.DurationVar(&o.linger, "linger", 0, "`time` that -cm goes on to respond once it is done: a peer whose DREP was lost sends its DREQ again")
	fs.DurationVar(&o.dur, "for", 0, "`time` to serve; 0: until interrupted")
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	bad := func(err error) int {
		fmt.Fprintln(stderr, "softrnic:", err)
		return 2
	}
	if fs.NArg() > 1 || fs.NArg() == 1 && o.pingpong == "" && o.perftest == "" && o.cm == "" && o.qperf == "" {
		return bad(errors.New("one ADDRESS at most, with -pingpong, -perftest, -qperf or -cm; see -h"))
	}
	if err := o.check(); err != nil {
		return bad(err)
	}
	e, err := o.open()
	if err != nil {
		return bad(err)
	}
	defer e.close()

	switch {
	case o.cm != "", o.rdmacm, o.qperf != "":
		if err = e.cm(&o, fs.Arg(0), stdout); err == nil {
			time.Sleep(o.linger)
		}
	case o.pingpong != "" || o.perftest != "":
		if o.tcp == 0 {
			o.tcp = 18515
		}
		var tcp net.Conn
		if tcp, err = handshakeConn(fs.Arg(0), o.tcp, o.wait, o.path.patience); err != nil {
			break
		}
		defer tcp.Close()
		t := tool{endpoint: e, tcp: tcp, server: fs.NArg() == 0, n: o.n, size: o.size, mtu: o.mtu, qps: o.qps, out: stdout}
		if o.pingpong != "" {
			err = t.pingpong(o.pingpong)
		} else {
			err = t.perftest(o.perftest, o.kind)
		}
	default:
		err = e.serve(&o, stdin, stdout)
	}
	if err != nil {
		fmt.Fprintln(stderr, "softrnic:", err)
		e.explain(stderr)
		return 1
	}
	if err := e.close(); err != nil {
		fmt.Fprintln(stderr, "softrnic:", err)
		return 1
	}
	return 0
}

// check finds wrong options before anything is opened.
func (o *options) check() error {
	kinds, ops := []string{"rc", "uc", "ud"}, []string{"send", "write", "read", "fadd", "cswap"}
	one := func(flag, v string, of []string) error {
		if v == "" || slices.Contains(of, v) {
			return nil
		}
		return fmt.Errorf("%s %q: want %s", flag, v, strings.Join(of, ", "))
	}
	if err := errors.Join(one("-pingpong", o.pingpong, kinds), one("-perftest", o.perftest, perfTestNames), one("-c", o.kind, kinds),
		one("-op", o.op, ops), one("-cm", o.cm, cmRoles), one("-qperf", o.qperf, qperfNames), checkPerftest(o)); err != nil {
		return err
	}
	for _, v := range []struct {
		flag           string
		is, least, max int
	}{{"-n", o.n, 1, 1 << 30}, {"-size", o.size, 0, 1 << 30}, {"-p", o.tcp, 0, 65535}, {"-rate", o.rate, 0, 1 << 30}, {"-psn", o.psn, -1, 0xffffff},
		{"-q", o.qps, 1, 256}, {"-vlan", o.path.vlan, -1, 0xffff}, {"-dscp", o.path.dscp, 0, 63},
		{"-timeout", o.path.timeout, 0, 31}, {"-retry", o.path.retries, 0, 7}} {
		if v.is < v.least || v.is > v.max {
			return fmt.Errorf("%s %d: want %d to %d", v.flag, v.is, v.least, v.max)
		}
	}
	tools := 0
	for _, t := range []string{o.pingpong, o.perftest, o.cm, o.qperf} {
		if t != "" {
			tools++
		}
	}
	switch {
	case tools > 1:
		return errors.New("-pingpong, -perftest, -cm and -qperf: want one of them")
	case tools == 1 && o.peer+o.op != "":
		return errors.New("-peer and -op: are not for -pingpong, -perftest, -cm and -qperf")
	case tools == 0 && o.peer == "":
		return errors.New("name a tool to be, or the peer with -peer; see -h")
	case o.wire.UDP() && (o.path.vlan >= 0 || o.path.dscp != 0):
		return errors.New("-vlan and -dscp: a UDP socket (-udp) has neither; -packet has")
	case o.qps != 1 && o.perftest == "":
		return errors.New("-q: only -perftest has several queue pairs")
	case o.cm == "rcopy" && o.file == "", o.cm != "rcopy" && o.file != "":
		return errors.New("-file: -cm rcopy needs one, and nothing else uses one")
	case o.cm == "riostream" && o.size == 1:
		return errors.New("-size 1: -cm riostream needs 2 or more")
	case o.qperf != "" && (o.dur < 0 || o.dur > time.Hour || o.dur%time.Second != 0):
		return errors.New("-for: -qperf sends the server whole seconds, up to an hour")
	case o.rdmacm && (o.perftest == "" || o.kind != "rc" || strings.HasSuffix(o.perftest, "_lat")):
		return errors.New("-R: want -perftest send, write, read or atomic, of rc")
	case o.wait <= 0 || o.path.patience <= 0:
		return errors.New("-wait and -patience: want more than 0")
	}
	if o.peer != "" && o.peer != "-" {
		if _, err := parsePeer(o.peer); err != nil {
			return err
		}
	}
	switch o.mtu {
	case 256, 512, 1024, 2048, 4096:
	default:
		return fmt.Errorf("-mtu %d: want 256, 512, 1024, 2048 or 4096", o.mtu)
	}
	return nil
}

// endpoint is a port on its wire.
type endpoint struct {
	*loop
	path
	regs  *qp.Regions
	gids  []netip.Addr
	gid   int
	psn   uint32
	most  int          // packets outstanding on a connection
	pairs []*pair      // all that were created
	conns []*roce.Conn // all that were opened
}

// open opens the wire and creates the port.
func (o *options) open() (*endpoint, error) {
	e := &endpoint{path: o.path, gid: o.gid, psn: rand.Uint32(), most: o.wire.Window()}
	if o.psn >= 0 {
		e.psn = uint32(o.psn)
	}
	cfg := roce.Config{Rate: o.rate}
	if o.cm == "" {
		// QP numbers in sequence, not random: people copy them by hand.
		cfg.Port = func(c *softnic.Config) { c.Seed = nil }
	}
	ep, closing, err := o.wire.Open(cfg)
	if err != nil {
		return nil, err
	}
	e.loop = newLoop(ep)
	e.closing = closing
	e.gids = ep.Addrs()
	if e.gid < 0 || e.gid >= len(e.gids) {
		e.close()
		return nil, fmt.Errorf("-gid %d: there are %d addresses", e.gid, len(e.gids))
	}
	if o.mtu > ep.PathMTU() {
		e.close()
		return nil, fmt.Errorf("-mtu %d: the largest that fits the link is %d", o.mtu, ep.PathMTU())
	}
	e.regs = e.port.Regions()
	return e, nil
}

// address returns an address handle for a peer.
func (e *endpoint) address(gid [16]byte) (qp.AHAttr, error) {
	a := netip.AddrFrom16(gid).Unmap()
	h := qp.AHAttr{GID: gid}
	e.mark(&h)
	for i := range e.gids {
		j := (e.gid + i) % len(e.gids)
		if e.gids[j].Is4() == a.Is4() {
			h.SGIDIndex = uint8(j)
			return h, nil
		}
	}
	return h, fmt.Errorf("the peer's address is %v, and this port has none of its family", a)
}

// interrupted waits for a time, 0 for ever, or for an interrupt.
func interrupted(d time.Duration) {
	c := make(chan os.Signal, 1)
	signal.Notify(c, os.Interrupt)
	defer signal.Stop(c)
	if d == 0 {
		<-c
		return
	}
	select {
	case <-c:
	case <-time.After(d):
	}
}

// loop is an endpoint for callers that use the queue pairs directly.
type loop struct {
	ep   *roce.Endpoint
	port *softnic.Port // used only in do and wait
	err  error

	closing func() error // of the endpoint
}

func newLoop(ep *roce.Endpoint) *loop {
	l := &loop{ep: ep, closing: ep.Close}
	ep.Do(func(_ time.Time, p *softnic.Port) { l.port = p })
	return l
}

// do runs fn while nothing else uses the port, and sends the packets that result.
func (l *loop) do(fn func(now time.Time)) {
	l.ep.Do(func(now time.Time, _ *softnic.Port) { fn(now) })
}

// wake makes the waiting calls check again.
func (l *loop) wake() { l.do(func(time.Time) {}) }

// wait calls done now and after every change, until it reports true. It reports false when
// the time is up or the wire has failed.
func (l *loop) wait(limit time.Duration, done func(now time.Time) bool) bool {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	err := l.ep.Wait(ctx, func(now time.Time, _ *softnic.Port) bool { return done(now) })
	if err != nil && !errors.Is(err, context.DeadlineExceeded) {
		l.err = err
	}
	return err == nil
}

// stuck returns the reason that nothing happens any more: an error of the wire, or a peer
// that does not respond.
func (l *loop) stuck() error {
	if l.err != nil {
		return l.err
	}
	return errStuck
}

// close ends the loop. Closing it again does nothing.
func (l *loop) close() error { return l.closing() }
