// Rocecheck judges captures of RoCE networks: which rules were broken, what
// happened, and the key figures of every connection, as text, as JSON, or as a
// page with time lines. See usage.go for its help text.
package main

import (
	"bufio"
	"bytes"
	"cmp"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/examples/internal/input"
	"github.com/roce-go/roce/examples/internal/term"
	"github.com/roce-go/roce/qp/conform"
)

// Exit codes.
const (
	exitGood  = 0
	exitWrong = 1 // a rule is broken, or a file is cut short
	exitUsage = 2 // bad usage, unreadable input, or output that cannot be written
	exitNone  = 3 // there was nothing to judge
)

func main() { os.Exit(run(os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

type options struct {
	json, all, join bool
	explained       bool // a rule was printed: nothing else to do
	html            string
	write           string
	baseline        string
	iface           string
	metrics         string
	follow          bool
	interval        time.Duration
	columns         int // width of the text output
	filter          filter
	cfg             conform.Config
	mrcOptions      input.MRC
	files           []string
}

func parse(args []string, stdout, stderr io.Writer) (o options, code int, ok bool) {
	fs := flag.NewFlagSet("rocecheck", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	port := uint(frame.Port)
	var rate string
	o.filter.fromIn, o.filter.toIn = -1, -1
	fs.BoolVar(&o.json, "json", false, "")
	fs.BoolVar(&o.all, "all", false, "")
	fs.BoolVar(&o.join, "join", false, "")
	fs.StringVar(&o.html, "html", "", "")
	fs.Func("qp", "", o.filter.setQPs)
	fs.Func("host", "", o.filter.setHosts)
	fs.Func("from", "", func(s string) error { return moment(s, &o.filter.from, &o.filter.fromIn) })
	fs.Func("to", "", func(s string) error { return moment(s, &o.filter.to, &o.filter.toIn) })
	fs.StringVar(&o.write, "write", "", "")
	fs.StringVar(&o.baseline, "baseline", "", "")
	fs.StringVar(&o.iface, "i", "", "")
	fs.StringVar(&o.metrics, "metrics", "", "")
	fs.BoolVar(&o.follow, "follow", false, "")
	fs.DurationVar(&o.interval, "interval", time.Second, "")
	fs.IntVar(&o.columns, "columns", 120, "")
	fs.BoolVar(&o.cfg.Complete, "complete", false, "")
	fs.UintVar(&port, "port", port, "")
	fs.StringVar(&rate, "rate", "", "")
	fs.DurationVar(&o.cfg.MinTimeout, "timeout", 0, "")
	fs.DurationVar(&o.cfg.MinCNPGap, "cnp-gap", 0, "")
	o.mrcOptions.Flags(fs)
	fs.Func("explain", "", func(id string) error { return explain(stdout, &o, id) })

	var err error
	if o.files, err = input.Parse(fs, args); errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, usage)
		return o, exitGood, false
	} else if err != nil {
		fmt.Fprintf(stderr, "rocecheck: %v; rocecheck -h lists the options\n", err)
		return o, exitUsage, false
	}
	if o.explained {
		return o, exitGood, false
	}
	o.cfg.UDPPort = uint16(port)
	bad := func(format string, args ...any) (options, int, bool) {
		fmt.Fprintf(stderr, "rocecheck: "+format+"\n", args...)
		return o, exitUsage, false
	}
	if o.iface != "" {
		if len(o.files) > 0 || o.write != "" {
			return bad("-i reads from an interface; give no file and no -write with it")
		}
		o.files, o.follow = []string{o.iface}, true
	}
	if len(o.files) == 0 {
		return bad("no file named; give capture files, or - to read standard input (rocecheck -h explains)")
	}
	if o.html != "" && len(o.files) > 1 && !o.join {
		return bad("-html makes one page; give one file, or -join if the files are parts of one capture")
	}
	if port == 0 || port > 0xffff {
		return bad("-port %d is no UDP port; give 1 to 65535", port)
	}
	if o.cfg.MinTimeout < 0 {
		return bad("-timeout %v is negative; give a duration such as 10ms", o.cfg.MinTimeout)
	}
	if s := cmp.Or(o.filter.order(), o.mrcOptions.Unused()); s != "" {
		return bad("%s", s)
	}
	if rate != "" {
		v, err := parseRate(rate)
		if err != nil {
			return bad("-rate %q is no rate; give bits per second, such as 100G or 25G", rate)
		}
		o.cfg.LinkRate = v
	}
	if o.write != "" && slices.Contains(o.files, "-") {
		return bad("-write reads the files a second time, which standard input cannot be; give files")
	}
	if o.columns < 80 {
		return bad("-columns %d is too narrow for a report; give 80 or more", o.columns)
	}
	if o.interval <= 0 {
		return bad("-interval %v is not above zero; give a duration such as 1s", o.interval)
	}
	if (o.follow || o.metrics != "") && len(o.files) > 1 {
		return bad("-follow and -metrics take one file, - or -i")
	}
	return o, exitGood, true
}

// parseRate reads bits per second with an optional K, M, G or T.
func parseRate(s string) (uint64, error) {
	mul := 1.0
	if i := strings.IndexAny(s, "kKmMgGtT"); i >= 0 && i == len(s)-1 {
		mul = map[byte]float64{'K': 1e3, 'M': 1e6, 'G': 1e9, 'T': 1e12}[strings.ToUpper(s)[i]]
		s = s[:i]
	}
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !(v > 0 && v*mul <= 1e13) {
		return 0, strconv.ErrRange
	}
	return uint64(v * mul), nil
}

func run(args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	o, code, ok := parse(args, stdout, stderr)
	if !ok {
		return code
	}
	var before known
	if o.baseline != "" {
		var err error
		if before, err = readBaseline(o.baseline, o.cfg); err != nil {
			fmt.Fprintf(stderr, "rocecheck: -baseline: %v\n", err)
			return exitUsage
		}
	}
	captures := [][]string{o.files}
	if !o.join {
		captures = nil
		for _, name := range o.files {
			captures = append(captures, []string{name})
		}
	}
	out := bufio.NewWriterSize(stdout, 64<<10)
	for i, files := range captures {
		c := newChecker(o, files, out, stdout, stderr)
		c.known = before
		if len(captures) > 1 && !o.json {
			if i > 0 {
				fmt.Fprintln(out)
			}
			fmt.Fprintf(out, "%s:\n", files[0])
		}
		code = worse(code, c.capture(stdin), i == 0)
		if c.werr != nil {
			break
		}
	}
	if err := out.Flush(); err != nil {
		fmt.Fprintf(stderr, "rocecheck: cannot write the output: %v\n", err)
		return exitUsage
	}
	return code
}

// worse combines the exit codes of two captures: the result is exitNone only if all captures
// had nothing to judge.
func worse(a, b int, first bool) int {
	switch {
	case first:
		return b
	case a == exitNone || b == exitNone:
		return min(a, b)
	}
	return max(a, b)
}

// capture reads one capture and reports on it.
func (c *checker) capture(stdin io.Reader) int {
	code := exitGood
	for _, name := range c.files {
		code = max(code, c.file(name, stdin))
		if c.werr != nil {
			return exitUsage
		}
	}
	c.finish()
	if c.breaches > 0 || c.mrc != nil && c.mrc.breaches > 0 {
		code = max(code, exitWrong)
	}
	if c.read == 0 {
		return code
	}
	if code == exitGood && c.nothing() {
		code = exitNone
	}
	onlyMRC := c.mrc != nil && c.mrc.w.Packets() > 0 && c.w.RoCEFrames() == 0
	switch {
	case c.json:
		c.writeTotals()
	case !onlyMRC:
		c.writeText()
	}
	if c.mrc != nil && c.json {
		c.writeMRCTotals()
	} else if c.mrc != nil {
		c.writeMRC()
	}
	if c.write != "" {
		if err := c.writeBad(); err != nil {
			c.warn("cannot write %s: %v", c.write, err)
			return exitUsage
		}
	}
	if c.html != "" {
		var b bytes.Buffer
		c.writeHTML(&b)
		if err := os.WriteFile(c.html, b.Bytes(), 0o666); err != nil {
			c.warn("cannot write the page: %v", err)
			return exitUsage
		}
	}
	return code
}

// checker reads the files and keeps what the report needs.
type checker struct {
	options
	out      *bufio.Writer
	werr     error
	stderr   io.Writer
	progress *term.Progress
	paint    func(colour, s string) string

	w       *conform.Watcher
	mrc     *mrcChecker // nil without -mrc
	rec     capture.Record
	finding conform.Finding
	known   known  // of the baseline
	spans   []span // files read, by their first frame
	read    int    // files that were read

	period
	findings
	flowRows
	costs    map[flowKey]*costs
	comments map[uint64][]string // for -write
	tracks   *tracks             // for the page; otherwise nil
	live
}

// period holds the times of the first and the last frame: of those in the time range, and of
// all.
type period struct {
	first, last time.Time
	begin, end  time.Time
}

// span tells which of the watcher's frames belong to a file.
type span struct {
	name   string
	before uint64 // frames before its first
}

func newChecker(o options, files []string, out *bufio.Writer, stdout, stderr io.Writer) *checker {
	o.files = files
	c := &checker{options: o, out: out, stderr: stderr, findings: findings{groups: map[groupKey]*group{}},
		costs: map[flowKey]*costs{}, comments: map[uint64][]string{}}
	if o.html != "" {
		c.tracks = newTracks()
	}
	c.cfg.Closed = c.closed
	w, err := conform.New(c.cfg)
	if err != nil {
		panic(err) // cannot happen: parse has checked the options
	}
	c.w = w
	if o.mrcOptions.On {
		c.startMRC()
	}
	c.paint = func(_, s string) string { return s }
	if term.Colour(stdout) {
		c.paint = func(colour, s string) string { return colour + s + term.Reset }
	}
	if term.Is(stderr) {
		c.progress = term.NewProgress(stderr, nil)
	}
	return c
}

func (c *checker) warn(format string, args ...any) {
	c.progress.Clear()
	fmt.Fprintf(c.stderr, "rocecheck: "+format+"\n", args...)
}

// file reads one file and returns its exit code.
func (c *checker) file(name string, stdin io.Reader) int {
	f, file, shut, err := c.open(name, stdin)
	if err != nil {
		c.warn("%v", input.Unopened(err))
		return exitUsage
	}
	defer shut()
	end, err := c.watchLive()
	if err != nil {
		c.warn("%v", err)
		return exitUsage
	}
	defer end()
	c.spans = append(c.spans, span{name, c.w.Frames()})
	code := exitGood
	var bad input.Links
	timeless, number := 0, 0
	live := c.follow || c.metrics != "" // other goroutines read the counters meanwhile
	for {
		if (name == "-" || c.follow) && f.Buffered() == 0 { // a live source may block
			c.mu.Lock()
			c.werr = c.out.Flush()
			c.mu.Unlock()
			if c.werr != nil {
				return exitUsage
			}
		}
		if err = f.Next(&c.rec); err != nil {
			break
		}
		r := &c.rec
		number++
		if !r.HasTime {
			timeless++
		}
		if c.begin.IsZero() {
			c.begin = r.Time
		}
		if r.Time.After(c.end) {
			c.end = r.Time
		}
		if c.filter.timed() && !c.looksAt(r) {
			continue
		}
		switch r.Link {
		case frame.Ethernet, frame.RawIP, frame.RawIPv4, frame.RawIPv6, frame.LinuxSLL, frame.LinuxSLL2:
		default:
			bad.Skip(r.Link)
		}
		if c.first.IsZero() {
			c.first = r.Time
		}
		if r.Number == 1 && c.last.Sub(r.Time) > time.Second {
			c.warn("%s: begins %v before the end of the file before; give the parts in order", name, c.last.Sub(r.Time).Round(time.Millisecond))
		}
		if r.Time.After(c.last) {
			c.last = r.Time
		}
		if live {
			c.mu.Lock()
		}
		if c.mrc == nil || !c.handleMRC() {
			c.w.SetSource(r.Iface)
			c.w.HandleFrame(r.Time, r.Link, r.Data, r.WireLen)
		}
		if c.follow && number%1024 == 0 {
			c.w.CloseIdle(idle)
		}
		c.drain()
		if c.tracks != nil {
			c.tracks.add(c.w, r.Time)
		}
		if live {
			c.mu.Unlock()
		}
		if c.progress != nil && file != nil && number%1024 == 0 {
			read, size := file.Progress()
			c.progress.Update(name, read, size, number, "frames")
		}
	}
	if errors.Is(err, capture.ErrTruncated) && c.isInterrupted() {
		err = io.EOF // a record that is being written is not an error
	}
	c.progress.Clear()
	n := number
	if c.w.Frames() == c.spans[len(c.spans)-1].before {
		n = 0
	}
	c.read++
	if bad.N > 0 {
		if bad.N == n {
			code = exitUsage
		}
		c.warn("%s", bad.Warning(name))
	}
	if timeless > 0 {
		c.warn("%s: %d frames have no time stamp; latencies and time-outs mean nothing", name, timeless)
	}
	if warning, cut := input.Ended(name, err, n); warning != "" {
		code = exitUsage
		if cut {
			code = exitWrong
		}
		c.warn("%s", warning)
	}
	return code
}

// finish ends the watch and collects its last findings.
func (c *checker) finish() {
	c.w.Finish()
	c.drain()
	if c.mrc != nil {
		c.finishMRC()
	}
	c.sortFlows()
}

func (c *checker) drain() {
	for c.w.NextFinding(&c.finding) {
		f := &c.finding
		if c.known[f.Check] {
			c.left++
			continue
		}
		if (c.filter.hosts != nil || c.filter.qps != nil) && !c.filter.keeps(f.Src, f.Dst, f.QP, f.PeerQP) {
			continue
		}
		c.charge(f)
		c.comment(f)
		switch f.Severity {
		case conform.Breach:
			c.breaches++
		case conform.Note:
			c.notes++
		default:
			c.events++
		}
		if c.json {
			c.writeFinding(f)
		}
		c.group(f)
	}
}

// place returns the file, and the frame number in it, of one of the watcher's frames.
func (c *checker) place(n uint64) (string, uint64) {
	for i := len(c.spans) - 1; i >= 0; i-- {
		if s := &c.spans[i]; n > s.before || i == 0 {
			if n == 0 {
				return "", 0
			}
			return s.name, n - s.before
		}
	}
	return "", n
}
