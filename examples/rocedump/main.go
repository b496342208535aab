// Rocedump decodes the RoCE packets in pcap and pcapng files: a line for each, as text or as
// JSON, or counts of all of them.
package main

import (
	"bufio"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/bth/mrc"
	"github.com/roce-go/roce/cnp/pfc"
	"github.com/roce-go/roce/examples/internal/input"
	"github.com/roce-go/roce/examples/internal/term"
)

// Exit codes.
const (
	exitGood  = 0
	exitWrong = 1 // a bad ICRC or IPv4 header checksum, a frame that cannot be decoded, a file cut short
	exitUsage = 2 // bad usage, unreadable input, or output that cannot be written
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

type options struct {
	json, all, summary bool
	port               uint
	tunnels            bool
	vxlan              ports
	iface              string
	mrc                input.MRC
	files              []string
}

// ports is a flag that holds UDP ports, separated by commas or given repeatedly.
type ports []uint16

func (p *ports) String() string { return "" }

func (p *ports) Set(s string) error {
	for _, part := range strings.Split(s, ",") {
		n, err := strconv.ParseUint(part, 10, 16)
		if err != nil || n == 0 {
			return fmt.Errorf("%q is no UDP port; give 1 to 65535", part)
		}
		*p = append(*p, uint16(n))
	}
	return nil
}

func parse(args []string, stdout, stderr io.Writer) (o options, code int, ok bool) {
	fs := flag.NewFlagSet("rocedump", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.BoolVar(&o.json, "json", false, "")
	fs.BoolVar(&o.all, "all", false, "")
	fs.BoolVar(&o.summary, "summary", false, "")
	fs.UintVar(&o.port, "port", frame.Port, "")
	fs.BoolVar(&o.tunnels, "tunnels", true, "")
	fs.Var(&o.vxlan, "vxlan", "")
	fs.StringVar(&o.iface, "i", "", "")
	o.mrc.Flags(fs)

	var err error
	if o.files, err = input.Parse(fs, args); errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, usage)
		return o, exitGood, false
	} else if err != nil {
		fmt.Fprintf(stderr, "rocedump: %v; rocedump -h lists the options\n", err)
		return o, exitUsage, false
	}
	switch {
	case len(o.files) == 0 && o.iface == "":
		fmt.Fprintln(stderr, "rocedump: no file named; give capture files, - to read standard input, or -i INTERFACE (rocedump -h explains)")
	case len(o.files) > 0 && o.iface != "":
		fmt.Fprintf(stderr, "rocedump: -i %s and files: give one or the other\n", o.iface)
	case o.port == 0 || o.port > 0xffff:
		fmt.Fprintf(stderr, "rocedump: -port %d is no UDP port; give 1 to 65535\n", o.port)
	case o.mrc.Unused() != "":
		fmt.Fprintf(stderr, "rocedump: %s\n", o.mrc.Unused())
	default:
		return o, exitGood, true
	}
	return o, exitUsage, false
}

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	o, code, ok := parse(args, stdout, stderr)
	if !ok {
		return code
	}
	d := newDumper(o, stdout)
	d.warn = func(format string, args ...any) {
		d.progress.Clear()
		fmt.Fprintf(stderr, "rocedump: "+format+"\n", args...)
	}
	// Lines printed on the same terminal show the progress already.
	if term.Is(stderr) && (o.summary || !term.Is(stdout)) {
		d.progress = term.NewProgress(stderr, nil)
	}
	if o.iface != "" {
		code = d.live(o.iface)
	}
	for _, name := range o.files {
		code = max(code, d.file(name, stdin))
		if d.werr != nil {
			break
		}
	}
	if o.summary && !o.json && len(o.files) > 1 {
		d.out.Write(d.total.appendText(nil, fmt.Sprintf("all %d files", len(o.files))))
	}
	if err := d.out.Flush(); err != nil {
		d.warn("cannot write the output: %v", err)
		return exitUsage
	}
	return code
}

// dumper reads the files and writes the lines or counts.
type dumper struct {
	options
	out      *bufio.Writer
	werr     error
	warn     func(format string, args ...any)
	progress *term.Progress

	finder frame.Finder
	frame  frame.Frame
	proto  frame.Protocol // of a frame that was not decoded
	badSum bool           // of a frame that was decoded: its IPv4 header checksum is wrong
	pause  pfc.Frame
	// Endpoint requests of MRC, for their responses.
	requests mrc.Requests
	rec      capture.Record
	line     []byte

	asJSON     jsonLine
	asText     textLine
	sum, total *summary
}

func newDumper(o options, stdout io.Writer) *dumper {
	d := &dumper{
		options: o,
		out:     bufio.NewWriterSize(stdout, 128<<10),
		finder:  frame.Finder{UDPPort: uint16(o.port), Tunnels: o.tunnels, VXLANPorts: o.vxlan, Sliced: true},
		line:    make([]byte, 0, 4096),
		asText:  textLine{colour: term.Colour(stdout), names: &shortNames},
		total:   newSummary(),
	}
	if o.mrc.On {
		d.frame.MRC = new(mrc.Packet)
		d.finder.TrimmedDSCP = o.mrc.Trimmed
		d.asText.names = &mrcNames
	}
	return d
}

// verdict is the kind of a frame.
type verdict uint8

const (
	isRoCE  verdict = iota
	isError         // RoCE that cannot be decoded
	isPause         // PFC or PAUSE
	isOther
)

// look decodes the record into d.frame or d.pause. The error tells why a frame is isError or
// isOther.
func (d *dumper) look() (verdict, error) {
	rec := &d.rec
	err := d.finder.Decode(rec.Link, rec.Data, rec.WireLen, &d.frame)
	if err == nil {
		return isRoCE, nil
	}
	d.proto = d.finder.Protocol(rec.Link, rec.Data, rec.WireLen)
	if d.finder.IsRoCE(d.proto) {
		if err == frame.ErrNotRoCE {
			err = errNoBTH
		}
		return isError, err
	}
	if rec.Link == frame.Ethernet && d.pause.Decode(rec.Data) == nil {
		return isPause, nil
	}
	return isOther, err
}

// errNoBTH means Ethertype 0x8915 without a GRH and a BTH after it.
var errNoBTH = errors.New("frame: no GRH with a BTH after it")

// file reads one file and returns its exit code.
func (d *dumper) file(name string, stdin io.Reader) int {
	f, err := capture.Open(name, stdin)
	if err != nil {
		d.warn("%v", input.Unopened(err))
		return exitUsage
	}
	defer f.Close()
	return d.source(name, f, name == "-", f.Progress)
}

// live prints the frames of a network interface until an interrupt.
func (d *dumper) live(name string) int {
	l, stop, err := input.Live(name, d.finder)
	if err != nil {
		d.warn("%v", err)
		return exitUsage
	}
	defer stop()
	code := d.source(name, l, true, func() (int64, int64) { return 0, 0 })
	if s, err := l.Stats(); err == nil && s.Dropped > 0 {
		d.warn("%s", input.Dropped(name, s))
	}
	return code
}

// source reads the records of a file or an interface and returns the exit code. A live one
// may block.
func (d *dumper) source(name string, f capture.Source, live bool, progress func() (read, size int64)) int {
	var err error
	d.asJSON.start(name)
	d.asText.start()
	d.sum = newSummary()
	if len(d.files) > 1 && !d.json && !d.summary {
		fmt.Fprintf(d.out, "%s:\n", name)
	}
	code := exitGood
	var bad input.Links
	found := false
	for {
		if live && f.Buffered() == 0 {
			if d.werr = d.out.Flush(); d.werr != nil {
				return exitUsage
			}
		}
		if err = f.Next(&d.rec); err != nil {
			break
		}
		v, why := d.look()
		icrc := frame.ICRCUnchecked
		found = found || v != isOther
		switch v {
		case isRoCE:
			d.badSum = d.frame.CheckIPv4() == frame.ChecksumBad
			if icrc = d.frame.CheckICRC(); icrc == frame.ICRCBad || d.badSum {
				code = exitWrong
			}
			if d.frame.IsMRC() {
				d.seenMRC()
			}
		case isError:
			code = exitWrong
		case isOther:
			if why == frame.ErrLink {
				bad.Skip(d.rec.Link)
			}
			d.sum.other.add(d.proto)
		}
		switch {
		case d.summary:
			d.sum.add(d, v, icrc, why)
		case (v == isPause || v == isOther) && !d.all:
		default:
			if d.json {
				d.line = d.asJSON.append(d.line[:0], d, v, icrc, why)
			} else {
				d.line = d.asText.append(d.line[:0], d, v, icrc, why)
			}
			if _, d.werr = d.out.Write(d.line); d.werr != nil {
				return exitUsage // run reports it
			}
		}
		if d.progress != nil && d.rec.Number%1024 == 0 {
			read, size := progress()
			d.progress.Update(name, read, size, d.rec.Number, "frames")
		}
	}
	d.progress.Clear()
	if bad.N > 0 {
		if bad.N == d.rec.Number {
			code = exitUsage
		}
		d.warn("%s", bad.Warning(name))
	}
	if !found && bad.N == 0 && !d.json && !d.all && !d.summary { // without this note the output would be empty
		d.warn("%s: no RoCE packet among %d frames; another UDP port than %d (-port), or not a RoCE capture?%s",
			name, d.rec.Number, d.port, d.sum.other.list(" There are: ", nil))
	} else if !d.summary {
		if hidden := d.sum.other.list("", frame.Protocol.MayHide); hidden != "" {
			d.warn("%s: not decoded, and RoCE packets may be in it: %s", name, hidden)
		}
	}
	if warning, cut := input.Ended(name, err, d.rec.Number); warning != "" {
		d.sum.cut = true
		code = exitUsage
		if cut {
			code = exitWrong
		}
		d.warn("%s", warning)
	}
	if d.summary {
		if d.json {
			d.line = d.sum.appendJSON(d.line[:0], d.asJSON.name)
		} else {
			d.line = d.sum.appendText(d.line[:0], name)
		}
		_, d.werr = d.out.Write(d.line)
		d.total.merge(d.sum)
	}
	return code
}

const usage = `usage: rocedump [-json] [-all] [-summary] [-port N] [-vxlan N,...]
                [-tunnels=false] [-mrc] FILE... | -i INTERFACE

Decodes every RoCE packet in pcap and pcapng files, gzip'ed or not, checks its
ICRC, and prints a line for each. FILE - is standard input.

Packets in tunnels and in copies that switches send (VXLAN, Geneve, GRE, GRETAP,
ERSPAN, NVIDIA's GRE 0x8949, MPLS, IP in IP, SRv6) are found too; the tunnels
stand at the end of the line, innermost first. Frames that a switch has cut are
read as far as they go, as those that the capture has cut.

  -json      print a JSON object a line instead of text
  -all       also show frames that are not RoCE, and PFC and PAUSE frames
  -summary   count instead: packets by opcode, service, destination QP and ICRC
             state, undecodable frames by reason, other frames by protocol; with
             -json an object for each file
  -i NAME    read from a network interface (Linux, as root) until Ctrl-C. The
             kernel must see the packets: a RNIC's own pass it by, so listen at
             a switch's mirror port
  -port N    UDP destination port of RoCE v2 (default 4791)
  -tunnels=false
             look into no tunnel
  -vxlan N,...
             UDP destination ports of VXLAN beside 4789 and 8472
  -mrc       decode opcodes 0xc0 to 0xdf, which any manufacturer may use, as
             those of MRC 1.0 (Multipath Reliable Connection); experimental
  -mrc-trimmed N,...
             DSCP values that the network gives to MRC packets that its switches
             have trimmed; they have no ICRC, and their lengths may disagree
  -mrc-port-half low|high
             which half of an MRC entropy value is the UDP source port; the rest
             is in the IPv6 flow label (default low)
  -h         this text

A line of text has: frame number, time of day (UTC), source and destination,
opcode (shortened: RDMA left out, IMM for immediate, INV for invalidate),
destination QP, PSN, flags (A acknowledge request, S solicited event,
C congestion experienced, B BECN), payload bytes, state of the ICRC, then what
the opcode has.

A JSON line has: file, frame (from 1), time (where the capture has one), outer
(the tunnels, outermost first, each with kind, id, vlan, net, src, dst), vlan,
net (ipv4, ipv6, grh), src, dst, sport, dscp, ecn, ttl, bth {...}, the headers
of its opcode by name, payload (bytes), icrc (wire order), icrc_state (good, bad
or, where less than the packet was captured, unchecked). Addresses, keys and
64-bit data are "0x..." strings. ip_checksum is "bad" if that of the IPv4 header
is wrong; 0 counts as computed by the adapter later. A frame that says it is
RoCE but cannot be decoded has file, frame, error. PFC and PAUSE frames have
file, frame, time, pfc {src, enable (priorities), quanta}.

With -mrc, a line of text has R among the flags for a retransmission, and
ends with the packet's entropy value (ev). A JSON line has rtx and ts in bth;
meth, tseth, seth, cc_state, neth, peth, erth and eeth with the fields of MRC's
tables; and trimmed where -mrc-trimmed says so. The op of an endpoint response
is its request's, where the capture has that. -summary also counts
retransmissions, trimmed packets, verdicts of SACKs and reasons of NACKs.

Exit code: 0 all is well; 1 something is wrong: a bad ICRC or IPv4 header
checksum, a RoCE frame that cannot be decoded, or a file that ends in a record
(the frames before it are printed); 2 bad usage, unreadable input, or output
that cannot be written.

Examples:

  what is in a capture?
      rocedump -summary trace.pcapng
  the NAKs of a trace, with jq
      rocedump -json trace.pcap.gz | jq -c 'select(.aeth.kind == "nak")'
  live, at an interface of this host, and at one of another
      rocedump -i eth0
      ssh root@host tcpdump -i eth0 -U -w - udp port 4791 | rocedump -
  why did an MRC responder refuse packets?
      rocedump -mrc -json trace.pcap | jq -r '.neth.reason_name // empty'
  is any ICRC bad? the exit code tells
      rocedump -summary trace.pcap > /dev/null || echo look closer
`
