// Congestion compares congestion controls: an incast, two flows that share a link, a burst
// against a long flow, a parking lot, a flow that suffers from pauses meant for others, an
// all-reduce, and messages of a web search cluster. See usage.go for its help text.
package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/roce-go/roce/cnp"
	"github.com/roce-go/roce/examples/internal/term"
	"github.com/roce-go/roce/qp/simnet/lab"
)

// Exit codes.
const (
	exitGood  = 0
	exitWrong = 1 // a flow failed
	exitUsage = 2
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

type options struct {
	scenarios, controls []string
	n, mtu              int
	rate                float64 // Gb/s; 0: the scenario's
	ms                  float64 // 0: the scenario's duration
	kmin, kmax, pmax    float64 // KB, KB, percent; below 0: derived from the link rate
	pfc, selective      bool
	shard               lab.Shard
	seed                uint64
	json                bool
	svg                 string
}

// marking returns how switches mark: by the options, or by the rate of the links. The paper's
// thresholds are for 40 Gb/s; above that rate those of HPCC's scripts are used, which grow
// with the rate.
func (o *options) marking(rate float64) cnp.CongestionParams {
	p := cnp.PaperCongestion()
	if rate > 40 {
		p = cnp.CongestionParams{Kmin: uint32(100_000 * rate / 25), Kmax: uint32(400_000 * rate / 25), Pmax: 200_000}
	}
	if o.kmin >= 0 {
		p.Kmin = uint32(o.kmin * 1000)
	}
	if o.kmax >= 0 {
		p.Kmax = uint32(o.kmax * 1000)
	}
	if o.pmax >= 0 {
		p.Pmax = uint32(o.pmax * 10_000)
	}
	p.Kmax = max(p.Kmax, p.Kmin)
	return p
}

// choose splits a list of names; "all" selects all of them.
func choose(flagName, s string, from []string) ([]string, error) {
	if s == "all" {
		return from, nil
	}
	var out []string
	for _, name := range strings.Split(s, ",") {
		if !slices.Contains(from, name) {
			return nil, fmt.Errorf("-%s %q: give some of %s, or all", flagName, name, strings.Join(from, ", "))
		}
		out = append(out, name)
	}
	return out, nil
}

func parse(args []string, stdout, stderr io.Writer) (o options, code int, ok bool) {
	fs := flag.NewFlagSet("congestion", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	wanted := fs.String("scenario", "all", "")
	chosen := fs.String("control", "off,dcqcn,hpcc,swift,timely", "")
	fs.IntVar(&o.n, "n", 8, "")
	fs.IntVar(&o.mtu, "mtu", 1024, "")
	fs.Float64Var(&o.rate, "rate", 0, "")
	fs.Float64Var(&o.ms, "ms", 0, "")
	fs.Float64Var(&o.kmin, "kmin", -1, "")
	fs.Float64Var(&o.kmax, "kmax", -1, "")
	fs.Float64Var(&o.pmax, "pmax", -1, "")
	fs.BoolVar(&o.pfc, "pfc", true, "")
	fs.Uint64Var(&o.seed, "seed", 1, "")
	fs.BoolVar(&o.json, "json", false, "")
	fs.StringVar(&o.svg, "o", "", "")
	fs.BoolVar(&o.selective, "selective", false, "")
	shard := fs.String("shard", "", "")
	err := fs.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, usage)
		return o, exitGood, false
	}
	if err == nil {
		o.scenarios, err = choose("scenario", *wanted, scenarioNames())
	}
	if err == nil {
		o.controls, err = choose("control", *chosen, controlNames())
	}
	if err == nil {
		if o.shard, err = lab.ParseShard(*shard); err != nil {
			err = fmt.Errorf("-shard: %w", err)
		}
	}
	switch {
	case err != nil:
	case o.shard.N > 1 && (!o.json || o.svg != ""):
		err = errors.New("-shard gives a part of the runs: use it with -json, and without -o")
	case fs.NArg() != 0:
		err = fmt.Errorf("%q is no option", fs.Arg(0))
	case o.n < 1 || o.n > 256:
		err = fmt.Errorf("-n %d: give 1 to 256 senders", o.n)
	case !slices.Contains([]int{256, 512, 1024, 2048, 4096}, o.mtu):
		err = fmt.Errorf("-mtu %d: give 256, 512, 1024, 2048 or 4096", o.mtu)
	case o.rate != 0 && !(o.rate >= 1 && o.rate <= 800):
		err = fmt.Errorf("-rate %v: give 1 to 800 Gb/s", o.rate)
	case !(o.ms >= 0 && o.ms <= 10_000):
		err = fmt.Errorf("-ms %v: give up to 10000 virtual milliseconds", o.ms)
	case !(o.kmin <= 1e6 && o.kmax <= 1e6) || o.kmin >= 0 && o.kmax >= 0 && o.kmin > o.kmax:
		err = fmt.Errorf("-kmin %v -kmax %v: give kilobytes, kmin not above kmax", o.kmin, o.kmax)
	case !(o.pmax <= 100):
		err = fmt.Errorf("-pmax %v: give percent, 0 to 100", o.pmax)
	}
	if err != nil {
		fmt.Fprintf(stderr, "congestion: %v; congestion -h lists the options\n", err)
		return o, exitUsage, false
	}
	return o, exitGood, true
}

func run(args []string, stdout, stderr io.Writer) int {
	o, code, ok := parse(args, stdout, stderr)
	if !ok {
		return code
	}
	fail := func(err error) int {
		fmt.Fprintf(stderr, "congestion: %v\n", err)
		return exitUsage
	}
	files := make(map[string]*os.File)
	if o.svg != "" {
		for _, s := range o.scenarios {
			f, err := os.Create(o.fileOf(s))
			if err != nil {
				return fail(err)
			}
			defer f.Close()
			files[s] = f
		}
	}
	var progress *term.Progress
	if term.Is(stderr) {
		progress = term.NewProgress(stderr, nil)
	}
	var runs []*experiment
	for _, s := range o.scenarios {
		for _, c := range o.controls {
			runs = append(runs, &experiment{o: &o, Scenario: s, Control: c})
		}
	}
	var err error
	if runs, err = runAll(runs, o.shard, progress); err != nil {
		return fail(fmt.Errorf("%w; try fewer senders (-n), a lower -rate, or -pfc=false", err))
	}
	out := bufio.NewWriter(stdout)
	for _, r := range runs {
		if r.Status != "success" {
			code = exitWrong
			fmt.Fprintf(stderr, "congestion: %s with %s: a flow ended with: %s\n", r.Scenario, r.Control, r.Status)
		}
		if o.json {
			b, err := json.Marshal(r)
			if err != nil {
				panic(err) // cannot happen: no value here can fail
			}
			out.Write(append(b, '\n'))
		}
	}
	if !o.json {
		table(out, runs, &o)
	}
	for _, s := range o.scenarios {
		if f := files[s]; f != nil {
			_, err := f.Write(picture(s, runs, &o))
			if err = errors.Join(err, f.Close()); err != nil {
				return fail(err)
			}
		}
	}
	if err := out.Flush(); err != nil {
		return fail(err)
	}
	return code
}

// fileOf returns the file name of a scenario's picture; with several scenarios each gets its
// own.
func (o *options) fileOf(scenario string) string {
	if len(o.scenarios) == 1 {
		return o.svg
	}
	ext := filepath.Ext(o.svg)
	return strings.TrimSuffix(o.svg, ext) + "-" + scenario + ext
}

// runAll runs the experiments of a shard on all processors: they share nothing. It returns
// them.
func runAll(runs []*experiment, shard lab.Shard, progress *term.Progress) (mine []*experiment, err error) {
	all := int64(0)
	for i := range runs {
		if shard.Has(i) {
			all += parts
		}
	}
	var mu sync.Mutex
	n := 0
	step := func() {
		mu.Lock()
		defer mu.Unlock()
		n++
		progress.Update("experiments", int64(n), all, n/parts, "done")
	}
	defer progress.Clear()
	err = lab.Sweep(runs, shard, func(i int, r *experiment) (*experiment, error) {
		r.Point = i
		return r, r.run(step)
	}, func(_ int, r *experiment) error {
		mine = append(mine, r)
		return nil
	})
	return mine, err
}

// parts is the number of parts of a run, for the progress line.
const parts = 20

func milliseconds(ms float64) time.Duration { return time.Duration(ms * 1e6) }
