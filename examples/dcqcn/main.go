// Dcqcn shows congestion control at work: an incast, two flows that share a link,
// a burst against a long flow, and a flow that suffers from pauses meant for
// others. See usage.go for its help text.
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
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/roce-go/roce/cnp"
	"github.com/roce-go/roce/examples/internal/term"
)

// Exit codes.
const (
	exitGood  = 0
	exitWrong = 1 // a flow failed
	exitUsage = 2
)

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

type options struct {
	scenarios, presets []string
	n                  int
	rate               float64 // Gb/s
	ms                 float64 // 0: the scenario's
	ecn                cnp.CongestionParams
	pfc                bool
	seed               uint64
	json               bool
	svg                string
}

var (
	scenarioNames = []string{"incast", "converge", "burst", "victim"}
	presetNames   = []string{"off", "paper", "nvidia"}
)

// choose splits a list of names; "all" is all of them.
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
	fs := flag.NewFlagSet("dcqcn", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	scenarios := fs.String("scenario", "all", "")
	presets := fs.String("preset", "all", "")
	fs.IntVar(&o.n, "n", 8, "")
	fs.Float64Var(&o.rate, "rate", 40, "")
	fs.Float64Var(&o.ms, "ms", 0, "")
	kmin := fs.Float64("kmin", 5, "")
	kmax := fs.Float64("kmax", 200, "")
	pmax := fs.Float64("pmax", 1, "")
	fs.BoolVar(&o.pfc, "pfc", true, "")
	fs.Uint64Var(&o.seed, "seed", 1, "")
	fs.BoolVar(&o.json, "json", false, "")
	fs.StringVar(&o.svg, "o", "", "")
	err := fs.Parse(args)
	if errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, usage)
		return o, exitGood, false
	}
	if err == nil {
		o.scenarios, err = choose("scenario", *scenarios, scenarioNames)
	}
	if err == nil {
		o.presets, err = choose("preset", *presets, presetNames)
	}
	switch {
	case err != nil:
	case fs.NArg() != 0:
		err = fmt.Errorf("%q is no option", fs.Arg(0))
	case o.n < 1 || o.n > 256:
		err = fmt.Errorf("-n %d: give 1 to 256 senders", o.n)
	case !(o.rate >= 1 && o.rate <= 800):
		err = fmt.Errorf("-rate %v: give 1 to 800 Gb/s", o.rate)
	case !(o.ms >= 0 && o.ms <= 10_000):
		err = fmt.Errorf("-ms %v: give up to 10000 virtual milliseconds", o.ms)
	case !(*kmin >= 0 && *kmin <= *kmax && *kmax <= 1e6):
		err = fmt.Errorf("-kmin %v -kmax %v: give kilobytes, kmin not above kmax", *kmin, *kmax)
	case !(*pmax >= 0 && *pmax <= 100):
		err = fmt.Errorf("-pmax %v: give percent, 0 to 100", *pmax)
	}
	if err != nil {
		fmt.Fprintf(stderr, "dcqcn: %v; dcqcn -h lists the options\n", err)
		return o, exitUsage, false
	}
	o.ecn = cnp.CongestionParams{Kmin: uint32(*kmin * 1000), Kmax: uint32(*kmax * 1000), Pmax: uint32(*pmax * 10_000)}
	return o, exitGood, true
}

func run(args []string, stdout, stderr io.Writer) int {
	o, code, ok := parse(args, stdout, stderr)
	if !ok {
		return code
	}
	fail := func(err error) int {
		fmt.Fprintf(stderr, "dcqcn: %v\n", err)
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
		for _, p := range o.presets {
			runs = append(runs, &experiment{o: &o, Scenario: s, Preset: p})
		}
	}
	if err := runAll(runs, progress); err != nil {
		return fail(fmt.Errorf("%w; try fewer senders (-n), a lower -rate, or -pfc=false", err))
	}
	out := bufio.NewWriter(stdout)
	for _, r := range runs {
		if r.Status != "success" {
			code = exitWrong
			fmt.Fprintf(stderr, "dcqcn: %s with %s: a flow ended with: %s\n", r.Scenario, r.Preset, r.Status)
		}
		if o.json {
			b, err := json.Marshal(r)
			if err != nil {
				panic(err) // no value here can fail
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

// fileOf returns the name of the picture of a scenario: its own where there are
// several.
func (o *options) fileOf(scenario string) string {
	if len(o.scenarios) == 1 {
		return o.svg
	}
	ext := filepath.Ext(o.svg)
	return strings.TrimSuffix(o.svg, ext) + "-" + scenario + ext
}

// runAll runs the experiments on all processors: they have nothing in common.
func runAll(runs []*experiment, progress *term.Progress) error {
	todo := make(chan *experiment, len(runs))
	for _, r := range runs {
		todo <- r
	}
	close(todo)
	steps := make(chan error)
	var wg sync.WaitGroup
	for range min(runtime.GOMAXPROCS(0), len(runs)) {
		wg.Add(1)
		go func() {
			defer wg.Done()
			for r := range todo {
				if err := r.run(func() { steps <- nil }); err != nil {
					steps <- err
				}
			}
		}()
	}
	go func() { wg.Wait(); close(steps) }()
	var first error
	n := 0
	for err := range steps {
		if err != nil && first == nil {
			first = err
		}
		n++
		progress.Update("experiments", int64(n), int64(len(runs)*parts), n/parts, "done")
	}
	progress.Clear()
	return first
}

// parts is how many pieces a run is done in, for the progress line.
const parts = 20

func milliseconds(ms float64) time.Duration { return time.Duration(ms * 1e6) }
