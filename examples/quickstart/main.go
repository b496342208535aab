// Quickstart moves data between two queue pairs over a virtual link that loses packets: SEND,
// RDMA WRITE, RDMA READ and atomics. It prints the packets on the wire and the results.
package main

import (
	"bufio"
	"bytes"
	"encoding/binary"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/roce-go/roce/examples/internal/term"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/simnet"
	"github.com/roce-go/roce/qp/softnic"
)

// Exit codes.
const (
	exitGood  = 0
	exitWrong = 1 // work failed, or data is not what it should be
	exitUsage = 2
)

const usage = `usage: quickstart [-loss P] [-seed N] [-mtu N] [-pcap FILE] [-json] [-q]

Two hosts on a virtual 100 Gb/s link of 2 us, which loses packets in both
directions. Alice does to Bob one of each: a SEND, an RDMA WRITE, an RDMA READ,
a FETCH_ADD and a COMPARE_SWAP. Prints each packet, then the outcome.

  -loss P     chance that a packet is lost, 0 to 1 (default 0.12)
  -seed N     seed of the run: the same seed gives the same run (default 2)
  -mtu N      path MTU: 256, 512, 1024, 2048 or 4096 (default 1024)
  -pcap FILE  also write what Alice's card sent and received, for rocedump or
              Wireshark
  -json       a JSON object a line: packets, then work
  -q          only the outcome
  -h          this text

In the trace, A asks for an acknowledgement. Time is virtual: the run takes a few
milliseconds of real time.

Exit code: 0 all work succeeded with the right data; 1 it did not; 2 bad usage, or
a file that cannot be written.
`

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

type options struct {
	loss        float64
	seed        uint64
	mtu         int
	pcap        string
	json, quiet bool
}

func run(args []string, stdout, stderr io.Writer) int {
	var o options
	fs := flag.NewFlagSet("quickstart", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.Float64Var(&o.loss, "loss", 0.12, "")
	fs.Uint64Var(&o.seed, "seed", 2, "")
	fs.IntVar(&o.mtu, "mtu", 1024, "")
	fs.StringVar(&o.pcap, "pcap", "", "")
	fs.BoolVar(&o.json, "json", false, "")
	fs.BoolVar(&o.quiet, "q", false, "")
	bad := func(format string, args ...any) int {
		fmt.Fprintf(stderr, "quickstart: "+format+"; quickstart -h lists the options\n", args...)
		return exitUsage
	}
	switch err := fs.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		fmt.Fprint(stdout, usage)
		return exitGood
	case err != nil:
		return bad("%v", err)
	case fs.NArg() != 0:
		return bad("%q is no option", fs.Arg(0))
	case !(o.loss >= 0 && o.loss <= 1):
		return bad("-loss %v: give 0 to 1", o.loss)
	case o.mtu < 256 || o.mtu > 4096 || o.mtu&(o.mtu-1) != 0:
		return bad("-mtu %d: give 256, 512, 1024, 2048 or 4096", o.mtu)
	}
	out := bufio.NewWriter(stdout)
	d := demo{options: o, out: out, colour: term.Colour(stdout)}
	err := d.build()
	if err == nil && o.pcap != "" {
		err = d.record()
	}
	if err == nil {
		err = d.play()
	}
	if e := out.Flush(); err == nil {
		err = e
	}
	switch {
	case errors.Is(err, errWrong):
		fmt.Fprintln(stderr, "quickstart: not all work succeeded; with this much loss try less, or another seed")
		return exitWrong
	case err != nil:
		fmt.Fprintf(stderr, "quickstart: %v\n", err)
		return exitUsage
	}
	return exitGood
}

var errWrong = errors.New("not all work succeeded")

// step is a piece of work with a check of its result.
type step struct {
	title string
	wr    qp.SendWR
	right func() (outcome string, ok bool)
	wc    *qp.Completion
	took  time.Duration
}

type demo struct {
	options
	out    *bufio.Writer
	colour bool

	net        *simnet.Network
	alice, bob *simnet.Host
	qa, qb     *softnic.QP
	steps      []*step
	lost       int
	pcapFile   *os.File
	pcapOut    *bufio.Writer
}

// build creates the network and the work.
func (d *demo) build() error {
	d.net = simnet.New(simnet.Config{Seed: d.seed})
	var err error
	host := func(name string) *simnet.Host {
		h, e := d.net.AddHost(simnet.HostConfig{Name: name})
		err = errors.Join(err, e)
		return h
	}
	d.alice, d.bob = host("alice"), host("bob")
	if err != nil {
		return err
	}
	link, err := d.net.Connect(d.alice, d.bob, simnet.LinkConfig{Rate: 100e9, Delay: 2 * time.Microsecond})
	if err != nil {
		return err
	}
	link.AB().SetFaults(simnet.Faults{Loss: d.loss})
	link.BA().SetFaults(simnet.Faults{Loss: d.loss})

	// RetryForever: no limit of retries, which is how Linux treats a retry count of 7.
	// Timeout 8 is a millisecond.
	d.qa, d.qb, err = d.net.ConnectQPs(d.alice, d.bob, simnet.ConnConfig{MTU: d.mtu, Timeout: 8, RetryForever: true})
	if err != nil {
		return err
	}

	// Bob's memory: a buffer to write to and read from, and a counter.
	buffer, counter, inbox := make([]byte, 4096), make([]byte, 8), make([]byte, 4096)
	va, key, err := d.bob.Register(buffer, qp.RemoteWrite|qp.RemoteRead)
	if err != nil {
		return err
	}
	cva, ckey, err := d.bob.Register(counter, qp.RemoteAtomic)
	if err != nil {
		return err
	}
	binary.LittleEndian.PutUint64(counter, 40)
	if err := d.qb.PostRecv(&qp.RecvWR{ID: 1, Local: inbox}); err != nil {
		return err
	}

	hello := bytes.Repeat([]byte("hello, Bob. "), 250)
	data := make([]byte, 4096)
	for i := range data {
		data[i] = byte(i * 7)
	}
	back, sum, swap := make([]byte, 4096), make([]byte, 8), make([]byte, 8)
	same := func(what string, a, b []byte) func() (string, bool) {
		return func() (string, bool) {
			if !bytes.Equal(a, b) {
				return what + " differs", false
			}
			return fmt.Sprintf("%s, %d bytes, all right", what, len(a)), true
		}
	}
	d.steps = []*step{
		{title: "SEND", wr: qp.SendWR{Op: qp.OpSend, Local: hello}, right: same("Bob's inbox", hello, inbox[:len(hello)])},
		{title: "RDMA WRITE", wr: qp.SendWR{Op: qp.OpWrite, Local: data, RemoteAddr: va, RKey: key}, right: same("Bob's buffer", data, buffer)},
		{title: "RDMA READ", wr: qp.SendWR{Op: qp.OpRead, Local: back, RemoteAddr: va, RKey: key}, right: same("the data read", data, back)},
		{title: "FETCH_ADD 2", wr: qp.SendWR{Op: qp.OpFetchAdd, Local: sum, RemoteAddr: cva, RKey: ckey, CompareAdd: 2}, right: was(sum, 40)},
		{title: "COMPARE_SWAP 42 to 7", wr: qp.SendWR{Op: qp.OpCmpSwap, Local: swap, RemoteAddr: cva, RKey: ckey, CompareAdd: 42, Swap: 7}, right: func() (string, bool) {
			s, ok := was(swap, 42)()
			now := binary.LittleEndian.Uint64(counter)
			return fmt.Sprintf("%s, is %d", s, now), ok && now == 7
		}},
	}
	return nil
}

// was checks the original value that an atomic returned.
func was(b []byte, want uint64) func() (string, bool) {
	return func() (string, bool) {
		got := binary.LittleEndian.Uint64(b)
		return fmt.Sprintf("the counter was %d", got), got == want
	}
}

func (d *demo) record() error {
	f, err := os.Create(d.pcap)
	if err != nil {
		return err
	}
	d.pcapFile, d.pcapOut = f, bufio.NewWriter(f)
	d.alice.Capture(d.pcapOut)
	return nil
}

// play runs the network and reports.
func (d *demo) play() error {
	var line []byte
	d.net.Observe(func(e *simnet.PacketEvent) {
		if e.Fate == simnet.Lost {
			d.lost++
		}
		switch {
		case d.quiet:
		case d.json:
			d.packetJSON(e)
		default:
			line = e.AppendText(line[:0])
			if d.colour && e.Fate != simnet.Sent {
				line = append(append([]byte(term.Red), line...), term.Reset...)
			}
			d.out.Write(append(line, '\n'))
		}
	})
	d.alice.OnCompletion = func(wc *qp.Completion) {
		c := *wc
		d.steps[wc.ID].wc = &c
		d.steps[wc.ID].took = d.net.Elapsed()
	}
	for i, s := range d.steps {
		s.wr.ID = uint64(i)
		s.wr.Flags |= qp.Signaled
		if err := d.qa.PostSend(d.net.Now(), &s.wr); err != nil {
			return err
		}
	}
	if _, err := d.net.RunUntilIdle(time.Second); err != nil {
		return err
	}
	if d.pcapFile != nil {
		err := errors.Join(d.alice.CaptureErr(), d.pcapOut.Flush(), d.pcapFile.Close())
		if err != nil {
			return err
		}
	}
	return d.report()
}

func (d *demo) report() error {
	if !d.json && !d.quiet {
		fmt.Fprintln(d.out)
	}
	wrong := false
	for _, s := range d.steps {
		status, outcome, ok := "not complete", "", false
		if s.wc != nil {
			if status = s.wc.Status.String(); s.wc.Status == qp.Success {
				outcome, ok = s.right()
			}
		}
		wrong = wrong || !ok
		if d.json {
			d.line(struct {
				Work    string  `json:"work"`
				Status  string  `json:"status"`
				Right   bool    `json:"right"`
				Outcome string  `json:"outcome,omitempty"`
				At      float64 `json:"us"`
			}{s.title, status, ok, outcome, float64(s.took) / 1e3})
			continue
		}
		fmt.Fprintf(d.out, "%-23s %s at %.3f us: %s\n", s.title, status, float64(s.took)/1e3, outcome)
	}
	a, b := d.qa.Counters(), d.qb.Counters()
	if d.json {
		d.line(struct {
			Packets       uint64 `json:"packets"`
			Lost          int    `json:"lost"`
			Retransmitted uint64 `json:"retransmitted"`
			PacketSeqErr  uint64 `json:"packet_seq_err"`
			ImpliedNak    uint64 `json:"implied_nak_seq_err"`
			Timeouts      uint64 `json:"local_ack_timeout_err"`
			OutOfSequence uint64 `json:"out_of_sequence"`
			Duplicates    uint64 `json:"duplicate_request"`
		}{a.TxPackets + b.TxPackets, d.lost, a.Retransmitted, a.PacketSeqErr, a.ImpliedNakSeqErr, a.LocalAckTimeoutErr, b.OutOfSequence, b.DuplicateRequest})
	} else {
		fmt.Fprintf(d.out, "\n%d packets, %d lost; Alice sent %d again: %d NAKs, %d implied NAKs, %d timeouts\n",
			a.TxPackets+b.TxPackets, d.lost, a.Retransmitted, a.PacketSeqErr, a.ImpliedNakSeqErr, a.LocalAckTimeoutErr)
	}
	if wrong {
		return errWrong
	}
	return nil
}

func (d *demo) packetJSON(e *simnet.PacketEvent) {
	l := struct {
		At     float64 `json:"us"`
		From   string  `json:"from"`
		To     string  `json:"to"`
		Opcode string  `json:"opcode"`
		DestQP uint32  `json:"dest_qp"`
		PSN    uint32  `json:"psn"`
		AckReq bool    `json:"ack_req,omitempty"`
		Bytes  int     `json:"payload"`
		Fate   string  `json:"fate"`
	}{At: float64(e.At) / 1e3, From: e.Direction.From().Name(), To: e.Direction.To().Name(), Fate: e.Fate.String()}
	if f := e.Frame; f != nil {
		p := &f.Packet
		l.Opcode, l.DestQP, l.PSN, l.AckReq, l.Bytes = p.Opcode.String(), p.DestQP, uint32(p.PSN), p.AckReq, len(p.Payload)
	}
	d.line(l)
}

func (d *demo) line(v any) {
	b, err := json.Marshal(v)
	if err != nil {
		panic(err) // cannot happen: no value here can fail
	}
	d.out.Write(append(b, '\n'))
}
