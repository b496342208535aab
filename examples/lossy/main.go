// Lossy shows how packet loss reduces the goodput of reliable connections, which go back to
// the lost packet and retransmit everything after it, and how selective repeat improves it.
// See usage.go for its help text.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"runtime"
	"strconv"
	"strings"
	"sync"

	"github.com/roce-go/roce/examples/internal/term"
)

// Exit codes.
const (
	exitGood  = 0
	exitWrong = 1 // a transfer failed
	exitUsage = 2
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

type options struct {
	mtus, sizes []int
	losses      []float64
	timeout     int
	packets     int
	seed        uint64
	json        bool
	svg         string
}

// parseList splits s at commas.
func parseList[T any](s string, one func(string) (T, error)) (out []T, err error) {
	for _, f := range strings.Split(s, ",") {
		v, err := one(strings.TrimSpace(f))
		if err != nil {
			return nil, err
		}
		out = append(out, v)
	}
	return out, nil
}

func parseMTU(s string) (int, error) {
	n, err := strconv.Atoi(s)
	if err != nil || n < 256 || n > 4096 || n&(n-1) != 0 {
		return 0, fmt.Errorf("-mtu %q: give some of 256, 512, 1024, 2048, 4096", s)
	}
	return n, nil
}

// parseSize reads a number of bytes; K and M are powers of 1024.
func parseSize(s string) (int, error) {
	digits, unit := strings.TrimRight(s, "KkMm"), 1
	switch s[len(digits):] {
	case "K", "k":
		unit = 1 << 10
	case "M", "m":
		unit = 1 << 20
	}
	n, err := strconv.Atoi(digits)
	if err != nil || n < 1 || n > 1<<30/unit || len(s)-len(digits) > 1 {
		return 0, fmt.Errorf("-size %q: give bytes, such as 64, 4K or 1M, at most 1024M", s)
	}
	return n * unit, nil
}

func parseLoss(s string) (float64, error) {
	v, err := strconv.ParseFloat(s, 64)
	if err != nil || !(v >= 0 && v <= 10) {
		return 0, fmt.Errorf("-loss %q: give percent, 0 to 10", s)
	}
	return v / 100, nil
}

func parse(args []string, stdout, stderr io.Writer) (o options, code int, ok bool) {
	fs := flag.NewFlagSet("lossy", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	mtus := fs.String("mtu", "256,1024,4096", "")
	sizes := fs.String("size", "512,16K,1M", "")
	losses := fs.String("loss", defaultLosses, "")
	fs.IntVar(&o.timeout, "timeout", 14, "")
	fs.IntVar(&o.packets, "packets", 100_000, "")
	fs.Uint64Var(&o.seed, "seed", 1, "")
	fs.BoolVar(&o.json, "json", false, "")
	fs.StringVar(&o.svg, "o", "", "")
	err := fs.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, usage)
		return o, exitGood, false
	}
	if err == nil && fs.NArg() != 0 {
		err = fmt.Errorf("%q is no option", fs.Arg(0))
	}
	if err == nil {
		o.mtus, err = parseList(*mtus, parseMTU)
	}
	if err == nil {
		o.sizes, err = parseList(*sizes, parseSize)
	}
	if err == nil {
		o.losses, err = parseList(*losses, parseLoss)
	}
	if err == nil && (o.timeout < 1 || o.timeout > 22) {
		err = fmt.Errorf("-timeout %d: give 1 to 22, for 4.096 us x 2^N", o.timeout)
	}
	if err == nil && (o.packets < 100 || o.packets > 1e9) {
		err = fmt.Errorf("-packets %d: give 100 to 10^9", o.packets)
	}
	if err != nil {
		fmt.Fprintf(stderr, "lossy: %v; lossy -h lists the options\n", err)
		return o, exitUsage, false
	}
	return o, exitGood, true
}

func run(args []string, stdout, stderr io.Writer) int {
	o, code, ok := parse(args, stdout, stderr)
	if !ok {
		return code
	}
	fail := func(format string, args ...any) int {
		fmt.Fprintf(stderr, "lossy: "+format+"\n", args...)
		return exitUsage
	}
	var svg *os.File
	if o.svg != "" {
		// The output file is created before the measurement, which takes a while.
		var err error
		if svg, err = os.Create(o.svg); err != nil {
			return fail("%v", err)
		}
	}
	var progress *term.Progress
	if term.Is(stderr) {
		progress = term.NewProgress(stderr, nil)
	}
	curves := o.curves()
	if err := measureAll(curves, &o, progress); err != nil {
		return fail("%v", err)
	}
	out := bufio.NewWriter(stdout)
	for _, c := range curves {
		for _, p := range c.points {
			if o.json {
				b, err := json.Marshal(p)
				if err != nil {
					panic(err) // cannot happen: no value here can fail
				}
				out.Write(append(b, '\n'))
			}
			if p.Status != "success" {
				code = exitWrong
				fmt.Fprintf(stderr, "lossy: MTU %d, messages of %d bytes, loss %v: %s\n", p.MTU, p.Size, p.Loss, p.Status)
			}
		}
	}
	if !o.json {
		table(out, curves, &o)
	}
	if svg != nil {
		_, err := svg.Write(picture(curves, &o))
		if err = errors.Join(err, svg.Close()); err != nil {
			return fail("%v", err)
		}
	}
	if err := out.Flush(); err != nil {
		return fail("%v", err)
	}
	return code
}

// measureAll measures every point, on all processors: the networks share nothing, so a result
// does not depend on what runs at the same time.
func measureAll(curves []*curve, o *options, progress *term.Progress) error {
	var work []*point
	for _, c := range curves {
		for i := range c.points {
			work = append(work, &c.points[i])
		}
	}
	todo := make(chan *point)
	done := make(chan error)
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(work)) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for p := range todo {
				done <- p.measure(o)
			}
		}()
	}
	go func() {
		for _, p := range work {
			todo <- p
		}
		close(todo)
		wg.Wait()
		close(done)
	}()
	var first error
	n := 0
	for err := range done {
		n++
		progress.Update("transfers", int64(n), int64(len(work)), n, "points")
		if first == nil {
			first = err
		}
	}
	progress.Clear()
	return first
}
