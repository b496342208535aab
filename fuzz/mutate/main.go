// Mutate changes the RoCE frames of a capture by a seed and writes them to a pcap
// file.
package main

import (
	"bufio"
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"strconv"
	"strings"
	"time"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/fuzz/internal/records"
	"github.com/roce-go/roce/fuzz/mutator"
)

// Exit codes.
const (
	exitGood  = 0
	exitWrong = 1 // the capture ends inside a frame
	exitUsage = 2
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

type options struct {
	in, out, log string
	n            uint64
	speed        float64
	cfg          mutator.Config
}

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	o, err := parse(args)
	if errors.Is(err, flag.ErrHelp) {
		usage(stdout)
		return exitGood
	}
	if err != nil {
		fmt.Fprintf(stderr, "mutate: %v (mutate -h explains)\n", err)
		return exitUsage
	}
	code, err := o.run(stdin, stdout, stderr)
	if err != nil {
		fmt.Fprintf(stderr, "mutate: %v\n", err)
	}
	return code
}

func parse(args []string) (o options, err error) {
	fs := flag.NewFlagSet("mutate", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&o.in, "in", "", "")
	fs.StringVar(&o.out, "out", "", "")
	fs.StringVar(&o.log, "log", "", "")
	fs.Uint64Var(&o.n, "n", 0, "")
	fs.Uint64Var(&o.cfg.Seed, "seed", 1, "")
	fs.IntVar(&o.cfg.Keep, "keep", 0, "")
	fs.IntVar(&o.cfg.Changes, "changes", 3, "")
	icrc := fs.String("icrc", "valid", "")
	lengths := fs.String("lengths", "repair", "")
	kinds := fs.String("kinds", "all", "")
	speed := fs.String("speed", "recorded", "")
	port := fs.Uint("port", frame.Port, "")
	fs.BoolVar(&o.cfg.MRC, "mrc", false, "")
	if err = fs.Parse(args); err != nil {
		return o, err
	}
	if fs.NArg() > 0 {
		return o, fmt.Errorf("what is %q? files are named by -in and -out", fs.Arg(0))
	}
	if o.in == "" || o.out == "" {
		return o, errors.New("name a capture with -in and the file to write with -out")
	}
	switch *icrc {
	case "valid":
	case "bad":
		o.cfg.ICRC = mutator.ICRCBad
	case "keep":
		o.cfg.ICRC = mutator.ICRCKeep
	default:
		return o, fmt.Errorf("-icrc %q is none of valid, bad and keep", *icrc)
	}
	switch *lengths {
	case "repair":
	case "lie":
		o.cfg.Lengths = mutator.LengthsLie
	default:
		return o, fmt.Errorf("-lengths %q is none of repair and lie", *lengths)
	}
	if o.cfg.Kinds, err = mutator.ParseKinds(*kinds); err != nil {
		return o, fmt.Errorf("-kinds: %w", err)
	}
	if o.cfg.Kinds.Len() == 0 {
		return o, errors.New("-kinds leaves nothing; none changes no fields, but ICRC and lengths as asked")
	}
	if o.speed = 1; *speed != "recorded" {
		o.speed, err = strconv.ParseFloat(*speed, 64)
		if err != nil || !(o.speed >= 0 && o.speed <= 1e9) {
			return o, fmt.Errorf("-speed %q is neither recorded nor a factor of 0 or more", *speed)
		}
	}
	switch {
	case *port == 0 || *port > 0xffff:
		return o, fmt.Errorf("-port %d is no UDP port; give 1 to 65535", *port)
	case o.cfg.Keep < 0 || o.cfg.Keep > 100:
		return o, fmt.Errorf("-keep %d is no percentage; give 0 to 100", o.cfg.Keep)
	case o.cfg.Changes < 1 || o.cfg.Changes > 8:
		return o, fmt.Errorf("-changes %d is out of range; give 1 to 8", o.cfg.Changes)
	}
	o.cfg.UDPPort = uint16(*port)
	return o, nil
}

// run returns the exit code, with an error that says what to do.
func (o *options) run(stdin io.Reader, stdout, stderr io.Writer) (code int, err error) {
	in, closeIn, err := openInput(o.in, stdin)
	if err != nil {
		return exitUsage, err
	}
	defer closeIn()
	// The first frame gives the link type, which is needed before anything is written.
	src := &source{in: in}
	if err := src.rewind(); err != nil {
		return exitUsage, fmt.Errorf("%s: %w", o.in, err)
	}
	if err := src.r.Next(&src.rec); err != nil {
		if err == io.EOF || errors.Is(err, capture.ErrTruncated) {
			err = errors.New("there is no whole frame in it")
		}
		return exitUsage, fmt.Errorf("%s: %w", o.in, err)
	}
	src.link = src.rec.Link
	if err := src.rewind(); err != nil {
		return exitUsage, err
	}

	file, closeOut, err := createOutput(o.out, o.in, stdout)
	if err != nil {
		return exitUsage, err
	}
	out := bufio.NewWriterSize(file, 1<<18)
	var log *bufio.Writer
	closeLog := func() error { return nil }
	if o.log != "" {
		var f io.Writer
		if f, closeLog, err = createOutput(o.log, o.in, stdout); err != nil {
			return exitUsage, err
		}
		log = bufio.NewWriter(f)
	}

	sum := summary{}
	err = o.copy(src, out, log, &sum)
	for _, end := range []func() error{out.Flush, closeOut} {
		if e := end(); err == nil && e != nil {
			err = fmt.Errorf("cannot write %s: %w", o.out, e)
		}
	}
	if log != nil {
		if e := errors.Join(log.Flush(), closeLog()); err == nil && e != nil {
			err = fmt.Errorf("cannot write %s: %w", o.log, e)
		}
	}
	if err != nil {
		return exitUsage, err
	}
	sum.print(stderr, o, src)
	if src.cut {
		return exitWrong, fmt.Errorf("%s: warning: it ends inside a frame; the frames before it were used", o.in)
	}
	return exitGood, nil
}

func (o *options) copy(src *source, out io.Writer, log *bufio.Writer, sum *summary) error {
	stream, err := mutator.NewStream(o.cfg)
	if err != nil {
		return err
	}
	w, err := capture.NewWriter(out, src.link)
	if err != nil {
		return fmt.Errorf("cannot write %s: %w", o.out, err)
	}
	var rec mutator.Record
	var first time.Time
	drain := func() error {
		for stream.Next(&rec) {
			if o.speed == 0 {
				rec.Time = first
			} else {
				rec.Time = first.Add(time.Duration(float64(rec.Time.Sub(first)) / o.speed))
			}
			sum.out++
			if err := w.WriteCut(rec.Time, rec.Data, rec.WireLen); err != nil {
				return fmt.Errorf("cannot write %s: %w", o.out, err)
			}
		}
		return nil
	}
	for o.n == 0 || sum.in < o.n {
		err := src.next(&rec, o.n > 0)
		if err == io.EOF {
			break
		}
		if err != nil {
			return fmt.Errorf("%s: %w", o.in, err)
		}
		if sum.in == 0 {
			first = rec.Time
		}
		rep := stream.Push(&rec)
		sum.add(rep)
		if log != nil {
			log.WriteString(rep.String())
			log.WriteByte('\n')
		}
		if err := drain(); err != nil {
			return err
		}
	}
	stream.Flush()
	return drain()
}

func openInput(name string, stdin io.Reader) (io.ReadSeeker, func() error, error) {
	if name != "-" {
		f, err := os.Open(name)
		if err != nil {
			return nil, nil, fmt.Errorf("%w; check the path, or give - for standard input", err)
		}
		// A pipe cannot be read again from the start, so it is read into memory, as standard
		// input is.
		if _, err := f.Seek(0, io.SeekStart); err == nil {
			return f, f.Close, nil
		}
		defer f.Close()
		stdin = f
	}
	b, err := io.ReadAll(stdin)
	return bytes.NewReader(b), func() error { return nil }, err
}

func createOutput(name, in string, stdout io.Writer) (io.Writer, func() error, error) {
	if name == "-" {
		return stdout, func() error { return nil }, nil
	}
	if a, err := os.Stat(name); err == nil {
		if b, err := os.Stat(in); err == nil && os.SameFile(a, b) {
			return nil, nil, fmt.Errorf("%s is the capture that is read; write to another file", name)
		}
	}
	f, err := os.Create(name)
	if err != nil {
		return nil, nil, err
	}
	return f, f.Close, nil
}

// source returns the frames of one link type of a capture, in several passes if requested;
// times continue from pass to pass.
type source struct {
	in      io.ReadSeeker
	r       *capture.Reader
	rec     capture.Record
	link    frame.Link
	passes  int
	frames  int // in this pass
	other   int // of another link type, in the first pass
	cut     bool
	first   time.Time
	last    time.Time
	forward time.Duration
}

func (s *source) rewind() (err error) {
	if _, err = s.in.Seek(0, io.SeekStart); err != nil {
		return err
	}
	s.r, err = capture.NewReader(s.in)
	return err
}

func (s *source) next(rec *mutator.Record, again bool) error {
	for {
		err := s.r.Next(&s.rec)
		switch {
		case err == io.EOF || errors.Is(err, capture.ErrTruncated):
			s.cut = s.cut || err != io.EOF
			if !again {
				return io.EOF
			}
			// The gap between passes is the mean gap within one.
			length := s.last.Sub(s.first)
			s.forward += length + max(length/time.Duration(max(s.frames-1, 1)), time.Microsecond)
			s.passes++
			s.frames = 0
			if err := s.rewind(); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		case s.rec.Link != s.link:
			if s.passes == 0 {
				s.other++
			}
			continue
		}
		*rec = records.Of(&s.rec)
		if s.frames == 0 {
			s.first = rec.Time
		}
		s.last = rec.Time
		s.frames++
		rec.Time = rec.Time.Add(s.forward)
		return nil
	}
}

const usageText = `usage: mutate -in FILE -out FILE [options]

Reads a pcap or pcapng file, changes its RoCE frames by a seed, repairs lengths
and ICRC or breaks them as asked, and writes a pcap file with times in
nanoseconds, to be replayed at a device or fed to a program. The same options
and input give the same output.

  -in FILE       capture to take frames from, gzip'ed or not; - is standard input
  -out FILE      pcap file to write; - is standard output
  -seed N        which changes are chosen (default 1)
  -n N           how many frames to take; the capture is begun again where it has
                 fewer (default: each frame once). Frames that are dropped are not
                 written, and those sent twice are written twice
  -icrc MODE     valid, bad, or keep the four bytes as they were (default valid)
  -lengths MODE  repair, or lie: one length field of each frame is wrong, all else
                 is right (default repair)
  -kinds LIST    kinds of change and groups of them, separated by commas; one that
                 begins with - is taken away (default all)
  -changes N     most changes of fields in a frame, 1 to 8 (default 3)
  -keep PERCENT  share of frames left alone (default 0)
  -speed FACTOR  times of the output: recorded (the default), or so many times as
                 fast: 2 halves the gaps, 0 removes them
  -port N        UDP destination port of RoCE v2 (default 4791)
  -mrc           opcodes 0xc0 to 0xdf, which any manufacturer may use, are those of
                 MRC 1.0, and its headers are changed too (experimental)
  -log FILE      write a line for each frame that says what was done to it
  -h             this text

Kinds:
%s
Groups:
%s
A summary goes to standard error. Exit code: 0 all is well; 1 the capture ends
inside a frame (the frames before it were used); 2 bad usage, unreadable input, or
output that cannot be written.

Examples:

  ten thousand frames that a receiver has to look at twice
      mutate -in a.pcap -out b.pcap -seed 1 -n 10000
  does the device check the ICRC before it acts?
      mutate -in a.pcap -out b.pcap -icrc bad -kinds none
  retransmission: only the order is changed, half of the frames are untouched
      mutate -in a.pcap -out b.pcap -kinds sequence -keep 50
  nothing that leaves the protocol
      mutate -in a.pcap -out b.pcap -kinds=-escape,-malform
  send it, as fast as it was recorded
      tcpreplay -i eth0 b.pcap
`

func usage(w io.Writer) {
	var groups strings.Builder
	for name, s := range mutator.Groups {
		fmt.Fprintf(&groups, "  %-9s %s\n", name, describe(name, s))
	}
	fmt.Fprintf(w, usageText, wrap(names(mutator.KindsOf(mutator.None).Or(mutator.AllKinds))), groups.String())
}

// describe returns what a group is for, or the range of kinds that it has.
func describe(name string, s mutator.Kinds) string {
	switch name {
	case "all":
		return "everything"
	case "fields":
		return "all but sequence"
	case "escape":
		return "what may no longer be recognized as RoCE:\n            " + strings.Join(names(s), " ")
	case "malform":
		return "what may break the layout of a packet:\n            " + strings.Join(names(s), " ")
	}
	n := names(s)
	return n[0] + " to " + n[len(n)-1]
}

func names(s mutator.Kinds) (list []string) {
	for k := range s.All {
		list = append(list, k.String())
	}
	return list
}

func wrap(words []string) string {
	var b strings.Builder
	line := " "
	for _, w := range words {
		if len(line)+1+len(w) > 78 {
			b.WriteString(line + "\n")
			line = " "
		}
		line += " " + w
	}
	return b.String() + line + "\n"
}

// summary counts the changes.
type summary struct {
	in, out       uint64
	kept, notRoCE uint64
	lies          [8]uint64
	kinds         [int(mutator.Closed) + 1]uint64
}

func (s *summary) add(r *mutator.Report) {
	s.in++
	switch {
	case r.Kept:
		s.kept++
	case !r.RoCE:
		s.notRoCE++
	}
	for _, c := range r.Changes() {
		s.kinds[c.Kind]++
	}
	s.lies[r.Lie&7]++
}

func (s *summary) print(w io.Writer, o *options, src *source) {
	fmt.Fprintf(w, "%d frames in", s.in)
	if src.passes > 0 {
		fmt.Fprintf(w, " (the capture %d times)", src.passes+1)
	}
	fmt.Fprintf(w, ", %d frames out; seed %d, icrc %v; %d kept, %d not RoCE\n", s.out, o.cfg.Seed, o.cfg.ICRC, s.kept, s.notRoCE)
	if src.other > 0 {
		fmt.Fprintf(w, "%d frames of another link type than the first (%d) were left out: a pcap file has one\n", src.other, src.link)
	}
	row := 0
	cell := func(name string, n uint64) {
		if n == 0 {
			return
		}
		fmt.Fprintf(w, "  %-22s %9d", name, n)
		if row++; row%2 == 0 {
			fmt.Fprintln(w)
		}
	}
	for k, n := range s.kinds {
		cell(mutator.Kind(k).String(), n)
	}
	for l := mutator.LieIP; int(l) < len(s.lies); l++ {
		cell("lie: "+l.String(), s.lies[l])
	}
	if row%2 == 1 {
		fmt.Fprintln(w)
	}
}
