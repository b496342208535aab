// Rocedrill is connected to a RoCE v2 device and tests, rule by rule, whether the device
// follows the transport rules: see -h.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"net/netip"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"time"

	"github.com/roce-go/roce/examples/internal/term"
	"github.com/roce-go/roce/qp/endpoint"
	"github.com/roce-go/roce/qp/rules"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	os.Exit(run0(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

// options are the flags.
type options struct {
	agent, segment, packet, tap string
	ip, dut                     string
	cm                          programFlag
	only, explain               string
	list, json                  bool
	junit, html, baseline, pcap string
	mutations                   int
	seed                        uint64
	patience, reboot            time.Duration
	console                     string
	title                       string
	card                        string
}

// programFlag collects -cm [PROGRAM=]ADDRESS[:PORT].
type programFlag map[programAt]netip.AddrPort

func (p programFlag) String() string { return "" }

func (p programFlag) Set(s string) error {
	name, addr, ok := strings.Cut(s, "=")
	if !ok {
		name, addr = "rping", s
	}
	port := uint16(0)
	for n, known := range programs {
		if known == name {
			port = n
		}
	}
	if port == 0 {
		return fmt.Errorf("%q is no program that is known here: rping or rdma_server", name)
	}
	to, err := netip.ParseAddrPort(addr)
	if a, e := netip.ParseAddr(strings.Trim(addr, "[]")); e == nil {
		to, err = netip.AddrPortFrom(a, port), nil
	}
	if err != nil {
		return fmt.Errorf("want [PROGRAM=]ADDRESS[:PORT], an IPv6 address with a port in brackets: %w", err)
	}
	p[programAt{name, to.Addr().Is6()}] = to
	return nil
}

// run0 runs the program and returns the exit code.
func run0(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o := options{cm: programFlag{}}
	fs := flag.NewFlagSet("rocedrill", flag.ContinueOnError)
	fs.SetOutput(stderr)
	fs.Usage = func() { usage(fs, stderr) }
	o.flags(fs)
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	if fs.NArg() != 0 {
		fmt.Fprintf(stderr, "rocedrill: %q is not understood; see -h\n", fs.Arg(0))
		return 2
	}
	code, err := o.exam(ctx, stdout, stderr)
	if err != nil {
		fmt.Fprintln(stderr, "rocedrill:", err)
	}
	return code
}

func (o *options) flags(fs *flag.FlagSet) {
	fs.StringVar(&o.agent, "agent", "", "`HOST:PORT` of drill-agent at the device's host")
	fs.Var(o.cm, "cm", "`[PROGRAM=]ADDRESS[:PORT]` of a program that takes connections: rping (the default, port 7174) or rdma_server (7471); more than once for more programs, and for addresses of IPv4 and IPv6")
	fs.StringVar(&o.segment, "segment", "", "`LOCAL,REMOTE`: an Ethernet segment in UDP datagrams, as QEMU's -netdev dgram")
	fs.StringVar(&o.packet, "packet", "", "`INTERFACE` of this host that reaches the device (Linux, CAP_NET_RAW)")
	fs.StringVar(&o.tap, "tap", "", "`NAME` of a TAP interface (Linux, CAP_NET_ADMIN)")
	fs.StringVar(&o.ip, "ip", "192.0.2.1,2001:db8::1", "`ADDRESSES` of this end, that no host has: IPv4, and IPv6 where there is")
	fs.StringVar(&o.dut, "dut", "192.0.2.2,2001:db8::2", "`ADDRESSES` of the device")
	fs.StringVar(&o.only, "only", "", "run only what these `WORDS` name, with commas between: groups, parts of names, rules")
	fs.BoolVar(&o.list, "list", false, "list the scripts and end")
	fs.StringVar(&o.explain, "explain", "", "print the script and the rules of a `NAME` and end")
	fs.BoolVar(&o.json, "json", false, "print the card as JSON")
	fs.StringVar(&o.junit, "junit", "", "write the card as JUnit XML to a `FILE`")
	fs.StringVar(&o.html, "html", "", "write the card as a page to a `FILE`")
	fs.StringVar(&o.baseline, "baseline", "", "`FILE` with deviations that are known, one name a line: they do not fail the exam")
	fs.StringVar(&o.card, "card", "", "write the table of all verdicts to a `FILE`; it serves as a baseline")
	fs.StringVar(&o.pcap, "pcap", "", "record all frames in a pcapng `FILE`, each with its statement as comment")
	fs.IntVar(&o.mutations, "mutations", 100, "run `PERCENT` of the mutated packets of the robustness group")
	fs.Uint64Var(&o.seed, "seed", 1, "of the mutated packets")
	fs.DurationVar(&o.patience, "patience", 2*time.Second, "how long to wait for what a device outside must send")
	fs.DurationVar(&o.reboot, "reboot", 3*time.Minute, "how long a host that crashed may take to start again, with its agent")
	fs.StringVar(&o.console, "console", "", "`FILE` that the console of the device's host is written to: its kernel's messages when it crashes")
	fs.StringVar(&o.title, "title", "", "`NAME` of the device on the card")
}

// exam runs what the flags request. The exit codes: 0 the device follows the rules, 1 it
// deviates, 2 wrong usage, or nothing could be run.
func (o *options) exam(ctx context.Context, stdout, stderr io.Writer) (int, error) {
	groups, err := loadExam()
	if err != nil {
		return 2, err
	}
	if o.list {
		return 0, list(stdout, groups, o.only)
	}
	if o.explain != "" {
		return explain(stdout, groups, o.explain)
	}
	known, err := readBaseline(o.baseline)
	if err == nil {
		err = o.check()
	}
	if err != nil {
		return 2, err
	}
	d, err := o.open()
	if err != nil {
		return 2, err
	}
	defer d.close()
	var rec io.WriteCloser
	if o.pcap != "" {
		if rec, err = os.Create(o.pcap); err != nil {
			return 2, err
		}
		defer rec.Close()
	}
	if rec == nil {
		d.rec, err = newRecorder(nil)
	} else {
		d.rec, err = newRecorder(rec)
	}
	if err != nil {
		return 2, err
	}
	if err := d.meets(); err != nil {
		return 2, err
	}
	var progress *term.Progress
	if term.Is(stderr) {
		progress = term.NewProgress(stderr, nil)
	}
	c := examine(ctx, d, groups, o.only, progress)
	progress.Clear()
	c.title, c.pcap = o.title, o.pcap
	c.known = known
	if c.title == "" {
		c.title = d.String()
	}
	if err := d.rec.flush(); err != nil {
		return 2, fmt.Errorf("%s: %w", o.pcap, err)
	}
	if len(c.results) == 0 {
		return 2, fmt.Errorf("no script is called %q: see -list", o.only)
	}
	if err := c.write(o, stdout); err != nil {
		return 2, err
	}
	switch {
	case len(c.results) < c.planned:
		return 2, errors.New("interrupted: the card has what was run until then")
	case c.count(notReached) == len(c.results):
		return 2, fmt.Errorf("nothing could be run: %s", c.results[0].why)
	case c.news() != 0:
		return 1, nil
	}
	return 0, nil
}

// check finds wrong flags before the exam, whose results would be lost otherwise.
func (o *options) check() error {
	switch {
	case o.mutations < 1 || o.mutations > 1000:
		return errors.New("-mutations: 1 to 1000 percent")
	case o.patience < 100*time.Millisecond || o.patience > time.Minute:
		return errors.New("-patience: 100ms to 1m")
	case o.reboot < 0 || o.reboot > time.Hour:
		return errors.New("-reboot: 0s to 1h")
	}
	for _, name := range []string{o.junit, o.html, o.card} {
		if name == "" {
			continue
		}
		f, err := os.OpenFile(name, os.O_CREATE|os.O_WRONLY, 0o666)
		if err != nil {
			return err
		}
		f.Close()
	}
	return nil
}

// open finds the device.
func (o *options) open() (*device, error) {
	d := &device{cm: map[programAt]netip.AddrPort{}, can: map[string]string{}, bases: map[string]*result{}, mutations: o.mutations, seed: o.seed}
	if o.console != "" {
		info, err := os.Stat(o.console)
		if err != nil {
			return nil, err
		}
		d.console = &consoleFile{o.console, info.Size()}
	}
	wires := 0
	for _, s := range []string{o.segment, o.packet, o.tap} {
		if s != "" {
			wires++
		}
	}
	if wires == 0 && (o.agent != "" || len(o.cm) != 0) {
		return nil, errors.New("an agent or a program needs a wire to the device as well: -packet, -tap or -segment")
	}
	if wires == 0 {
		return localDevice(d)
	}
	if wires > 1 {
		return nil, errors.New("one of -packet, -tap and -segment")
	}
	if o.agent == "" && len(o.cm) == 0 {
		return nil, errors.New("what is at the other end? Name its agent (-agent) or a program that takes connections (-cm)")
	}
	var err error
	if d.our4, d.our6, err = pair("-ip", o.ip); err != nil {
		return nil, err
	}
	if d.ip4, d.ip6, err = pair("-dut", o.dut); err != nil {
		return nil, err
	}
	d.patience, d.quiet, d.slack, d.jitter = o.patience, o.patience/40, o.patience/4, o.patience/200
	addrs := []netip.Addr{d.our4}
	if d.our6.IsValid() {
		addrs = append(addrs, d.our6)
	}
	var w endpoint.Wire
	switch {
	case o.segment != "":
		local, remote, ok := strings.Cut(o.segment, ",")
		if !ok {
			return nil, errors.New("-segment: want LOCAL,REMOTE, each ADDRESS:PORT")
		}
		w = endpoint.Segment(local, remote, addrs...)
	case o.packet != "":
		w = endpoint.Packet(o.packet, addrs...)
	default:
		w = endpoint.TAP(o.tap, addrs...)
	}
	l, err := openWire(w, addrs, ourMAC)
	if err != nil {
		return nil, fmt.Errorf("the wire %s: %w", o.segment+o.packet+o.tap, err)
	}
	d.link = l
	d.comms = uint32(time.Now().Unix()) & 0xffff << 7 // a device may still remember the calls of an earlier exam
	if o.agent != "" {
		a, err := dialAgent(o.agent)
		if err != nil {
			l.close()
			return nil, err
		}
		a.reboot = o.reboot
		d.agent = a
		info, err := a.info()
		if err != nil {
			d.close()
			return nil, err
		}
		for k, v := range info.words {
			d.can[k] = v
		}
	}
	d.cm = o.cm
	for at, to := range o.cm {
		if at.v6 && to.Addr() != d.ip6 || !at.v6 && to.Addr() != d.ip4 {
			d.close()
			return nil, fmt.Errorf("-cm %v: that is none of the device's addresses, which are %s (-dut)", to, o.dut)
		}
	}
	if d.mac, err = resolve(l, ourMAC, d.our4, d.ip4); err != nil {
		d.close()
		return nil, fmt.Errorf("%v: %w", d.ip4, err)
	}
	return d, nil
}

func localDevice(d *device) (*device, error) {
	l, err := newLocal()
	if err != nil {
		return nil, err
	}
	d.link, d.agent, d.mac = l, l, dutMAC
	d.ip4, d.ip6, d.our4, d.our6 = dutIP4, dutIP6, ourIP4, ourIP6
	d.patience, d.quiet = 2*time.Second, 30*time.Millisecond
	for port, name := range programs {
		d.cm[programAt{name, false}] = netip.AddrPortFrom(dutIP4, port)
		d.cm[programAt{name, true}] = netip.AddrPortFrom(dutIP6, port)
	}
	info, err := l.do("info")
	for k, v := range info.words {
		d.can[k] = v
	}
	return d, err
}

func pair(name, s string) (v4, v6 netip.Addr, err error) {
	a, b, ok := strings.Cut(s, ",")
	if v4, err = netip.ParseAddr(a); err != nil || !v4.Is4() {
		return v4, v6, fmt.Errorf("%s: want an IPv4 address, and an IPv6 address after a comma, if there is one", name)
	}
	if ok {
		if v6, err = netip.ParseAddr(b); err != nil || !v6.Is6() {
			return v4, v6, fmt.Errorf("%s: %q is no IPv6 address", name, b)
		}
	}
	return v4, v6, nil
}

func (d *device) close() {
	if d.agent != nil {
		d.agent.close()
	}
	d.link.close()
}

// String returns a description of the device.
func (d *device) String() string {
	if name := d.can["device"]; name != "" && d.can["kernel"] != "none" {
		return fmt.Sprintf("%s, Linux %s", name, d.can["kernel"])
	} else if name != "" {
		return "qp/softnic, this module's own port"
	}
	return d.ip4.String()
}

// examine runs the scripts.
func examine(ctx context.Context, d *device, groups []*group, only string, progress *term.Progress) *card {
	c := &card{started: time.Now()}
	var all []*drill
	for _, g := range groups {
		for _, s := range g.scripts {
			if s.chosen(only) {
				all = append(all, s)
			}
		}
	}
	c.planned = len(all)
	for i, s := range all {
		if ctx.Err() != nil {
			break
		}
		d.waiting = func() {
			progress.Update(s.id+" ended with the device's host, which is waited for", int64(i), int64(len(all)), c.count(deviates), "deviations")
		}
		progress.Update(s.id, int64(i), int64(len(all)), c.count(deviates), "deviations")
		c.results = append(c.results, d.examine(s))
	}
	c.took = time.Since(c.started)
	return c
}

// list prints the scripts.
func list(w io.Writer, groups []*group, only string) error {
	n := 0
	for _, g := range groups {
		shown := false
		for _, s := range g.scripts {
			if !s.chosen(only) {
				continue
			}
			if !shown {
				fmt.Fprintf(w, "%s: %s\n", g.name, g.title)
				shown = true
			}
			n++
			fmt.Fprintf(w, "  %-60s %-16s %s\n", s.id, strings.Join(s.rules, " "), s.by)
		}
	}
	_, err := fmt.Fprintf(w, "%d scripts\n", n)
	return err
}

// explain prints a script with its purpose, and the rules that it cites.
func explain(w io.Writer, groups []*group, name string) (int, error) {
	n := 0
	for _, g := range groups {
		for _, s := range g.scripts {
			if !s.chosen(name) {
				continue
			}
			if n++; n > 1 {
				fmt.Fprintln(w)
			}
			fmt.Fprintf(w, "%s (%s)\n\n%s\n\n", s.id, s.file, s.about)
			for _, b := range s.on {
				fmt.Fprintf(w, "It builds on %s.\n", b.id)
			}
			for _, l := range s.lines {
				fmt.Fprintf(w, "%5d  %s\n", l.line, l.text)
			}
			if n == 1 {
				for _, id := range s.rules {
					if r, ok := rules.Find(id); ok {
						fmt.Fprintf(w, "\n%s\n", r.Text)
					}
				}
			}
		}
	}
	if n == 0 {
		return 2, fmt.Errorf("no script is called %q: see -list", name)
	}
	return 0, nil
}

const help = `Rocedrill is the peer of a RoCE v2 device and tests, rule by rule, whether the device
follows the transport: packet scripts are played against it, and what it sends, completes
and remembers is compared with the rules. It prints a report card.

Three ways to reach a device:

  its own host runs drill-agent (one C file over libibverbs, see agent/drill-agent.c),
  which posts the requests that it receives and reports the completions. All groups but cm and programs:
      rocedrill -packet eth1 -ip 192.0.2.1 -dut 192.0.2.2 -agent 192.0.2.20:7175

  its own host runs a program of rdma-core that takes connections, unchanged: rping -s -P
  or rdma_server. The groups cm and programs:
      rocedrill -packet eth1 -ip 192.0.2.1 -dut 192.0.2.2 -cm 192.0.2.2:7174

  this module's own port in this process, in virtual time. All groups, in a second:
      rocedrill

-ip is an address that no host has: this program responds to ARP for it itself. -list shows the
scripts, -explain NAME what one is about and what it says, -only chooses.

Verdicts: "follows"; "deviates", with the statement that did not hold and what was received instead;
"not applicable", because the device, or the way to reach it, lacks something; "not reached", where
the script could not be played. A deviation is tried three times, and counts when it is seen
at least twice. If the host of a device crashes, rocedrill waits for it (-reboot), and the card names the packet.

Exit codes: 0 no deviation but those of -baseline, 1 a new deviation, 2 misuse, or nothing
could be run.

`

func usage(fs *flag.FlagSet, w io.Writer) {
	fmt.Fprint(w, help)
	fs.PrintDefaults()
}
