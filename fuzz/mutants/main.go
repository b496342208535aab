// Mutants changes the code of packages in one place at a time and runs their tests: if no
// test notices a change, a test is missing.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"go/build"
	"io"
	"maps"
	"math/rand/v2"
	"os"
	"os/exec"
	"os/signal"
	"path"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// Exit codes.
const (
	exitGood  = 0
	exitWrong = 1 // more mutants survived, without being listed, than -min allows
	exitUsage = 2
)

func main() {
	ctx, cancel := signal.NotifyContext(context.Background(), os.Interrupt)
	defer cancel()
	os.Exit(run(ctx, os.Args[1:], os.Stdout, os.Stderr))
}

type options struct {
	root, state, accept string
	sample              int
	seed                uint64
	parallel            int
	timeout             time.Duration
	list, verbose       bool
	single, whole       bool
	tags                string
	least               float64
	match               []string
	packages            []string
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	o := options{}
	fs := flag.NewFlagSet("mutants", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&o.root, "root", ".", "")
	fs.StringVar(&o.state, "state", "", "")
	fs.StringVar(&o.accept, "accept", "", "")
	fs.IntVar(&o.sample, "sample", 0, "")
	fs.Uint64Var(&o.seed, "seed", 1, "")
	fs.IntVar(&o.parallel, "parallel", runtime.NumCPU(), "")
	fs.DurationVar(&o.timeout, "timeout", 0, "")
	fs.BoolVar(&o.list, "list", false, "")
	fs.BoolVar(&o.verbose, "v", false, "")
	fs.BoolVar(&o.single, "single", false, "")
	fs.BoolVar(&o.whole, "whole", false, "")
	fs.StringVar(&o.tags, "tags", "", "")
	fs.Func("match", "", func(s string) error { o.match = append(o.match, s); return nil })
	fs.Float64Var(&o.least, "min", 100, "")
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, usage)
		return exitGood
	} else if err != nil {
		fmt.Fprintf(stderr, "mutants: %v (mutants -h explains)\n", err)
		return exitUsage
	}
	o.packages = fs.Args()
	if len(o.packages) == 0 {
		o.packages = strings.Fields(packages)
	}
	if o.accept == "" {
		o.accept = filepath.Join(o.root, "fuzz/mutants/survivors.txt")
	}
	if o.parallel < 1 || o.sample < 0 {
		fmt.Fprintln(stderr, "mutants: -parallel is at least 1 and -sample at least 0")
		return exitUsage
	}
	code, err := o.run(ctx, stdout, stderr)
	if err != nil {
		fmt.Fprintf(stderr, "mutants: %v\n", err)
	}
	return code
}

// job is a mutant with what its test needs.
type job struct {
	mutant
	src     []byte
	sum     string
	run     *runner // the runner of its package
	outcome outcome
	by      string    // the test that noticed it, if known
	in      *compiled // the build that contains it, or nil
}

func (o *options) run(ctx context.Context, stdout, stderr io.Writer) (int, error) {
	root, err := filepath.Abs(o.root)
	if err != nil {
		return exitUsage, err
	}
	if b, err := exec.Command("go", "env", "GOROOT").Output(); err == nil { // for the type checker
		build.Default.GOROOT = strings.TrimSpace(string(b))
	}
	build.Default.BuildTags = strings.FieldsFunc(o.tags, func(r rune) bool { return r == ',' })
	list, err := readAccepted(o.accept)
	if err != nil {
		return exitUsage, err
	}
	jobs, err := o.collect(root)
	if err != nil {
		return exitUsage, err
	}
	ids, pkgs := map[string]bool{}, map[string]bool{}
	for i := range jobs {
		ids[jobs[i].id] = true
	}
	for _, p := range o.packages {
		pkgs[path.Clean(p)] = true
	}
	if stale := list.stale(pkgs, ids); len(stale) > 0 {
		return exitUsage, fmt.Errorf("%s lists what is no mutant any more:\n  %s", o.accept, strings.Join(stale, "\n  "))
	}
	if len(o.match) != 0 {
		jobs = slices.DeleteFunc(jobs, func(j job) bool {
			return !slices.ContainsFunc(o.match, func(s string) bool { return strings.Contains(j.id, s) })
		})
	}
	if o.sample > 0 && o.sample < len(jobs) {
		rand.New(rand.NewPCG(o.seed, 0)).Shuffle(len(jobs), func(i, j int) { jobs[i], jobs[j] = jobs[j], jobs[i] })
		jobs = jobs[:o.sample]
	}
	if o.list {
		for i := range jobs {
			fmt.Fprintf(stdout, "%s:%d: %s\n", jobs[i].file, jobs[i].line, jobs[i].id)
		}
		return exitGood, nil
	}
	if err := o.test(ctx, root, jobs, stderr); err != nil {
		return exitUsage, err
	}
	return o.report(jobs, list, stdout), nil
}

// collect returns the mutants of all packages.
func (o *options) collect(root string) (jobs []job, err error) {
	for _, pkg := range o.packages {
		pkg = path.Clean(pkg)
		sum, err := sumOf(root, pkg)
		if err != nil {
			return nil, err
		}
		p, err := build.ImportDir(filepath.Join(root, pkg), 0)
		if err != nil {
			return nil, err
		}
		for _, name := range p.GoFiles {
			all, src, err := mutantsOf(root, path.Join(pkg, name))
			if err != nil {
				return nil, err
			}
			for _, m := range all {
				jobs = append(jobs, job{mutant: m, src: src, sum: sum + o.tags})
			}
		}
	}
	return jobs, nil
}

// test runs the tests of each job that has no result yet.
func (o *options) test(ctx context.Context, root string, jobs []job, stderr io.Writer) error {
	known, err := openState(o.state)
	if err != nil {
		return err
	}
	tmp, err := os.MkdirTemp("", "mutants")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	var open []*job
	runners := map[string]*runner{}
	for i := range jobs {
		j := &jobs[i]
		if r, ok := known.get(j.sum, j.id); ok {
			if j.outcome = r; r != survived || !o.whole {
				continue
			}
		}
		pkg := "./" + path.Dir(j.file)
		if runners[pkg] == nil {
			r := &runner{root: root, tmp: tmp, tags: o.tags, whole: o.whole, limit: o.timeout}
			if err := r.baseline(ctx, pkg); err != nil {
				return err
			}
			runners[pkg] = r
		}
		j.run = runners[pkg]
		open = append(open, j)
	}

	if !o.single {
		o.compile(ctx, root, tmp, open, stderr)
	}
	work := make(chan *job)
	var wg sync.WaitGroup
	var mu sync.Mutex
	var failed error
	done, start := 0, time.Now()
	for worker := range o.parallel {
		wg.Go(func() {
			for j := range work {
				out, err := j.run.one(ctx, j, worker)
				if err == nil {
					j.outcome = out
					err = known.put(j.sum, j.id, out)
				}
				mu.Lock()
				done++
				if failed == nil {
					failed = err
				}
				if o.verbose && err == nil {
					fmt.Fprintf(stderr, "%d of %d: %s %s:%d: %s%s\n", done, len(open), out, j.file, j.line, j.id, j.by)
				} else if done%50 == 0 {
					fmt.Fprintf(stderr, "%d of %d, %v\n", done, len(open), time.Since(start).Round(time.Second))
				}
				mu.Unlock()
			}
		})
	}
	for _, j := range open {
		if ctx.Err() != nil {
			break
		}
		work <- j
	}
	close(work)
	wg.Wait()
	return errors.Join(failed, ctx.Err())
}

// compile builds packages with many open jobs once, with these in them.
func (o *options) compile(ctx context.Context, root, tmp string, open []*job, stderr io.Writer) {
	of := map[string][]*job{}
	for _, j := range open {
		of[path.Dir(j.file)] = append(of[path.Dir(j.file)], j)
	}
	for _, pkg := range slices.Sorted(maps.Keys(of)) {
		jobs := of[pkg]
		if len(jobs) < 8 { // too few for another build
			continue
		}
		p, err := build.ImportDir(filepath.Join(root, pkg), 0)
		if err != nil {
			continue
		}
		c, err := jobs[0].run.compile(ctx, pkg, p.GoFiles, jobs)
		if err != nil {
			fmt.Fprintf(stderr, "%s: each change is built by itself: %v\n", pkg, err)
			continue
		}
		for j := range c.ids {
			j.in = c
		}
		fmt.Fprintf(stderr, "%s: %d of %d changes in one build\n", pkg, len(c.ids), len(jobs))
	}
}

// one tests a job with the short tests; if they do not notice it now, or did not in an
// earlier run, and the long tests are requested, with all tests.
func (r *runner) one(ctx context.Context, j *job, worker int) (o outcome, err error) {
	for _, s := range r.suites {
		if s.short && j.outcome == survived {
			continue
		}
		var out []byte
		if j.in == nil {
			out, err = r.test(ctx, &j.mutant, j.src, worker, s)
		} else {
			out, err = r.ordered(ctx, j, s)
		}
		o, err = judge(ctx, out, err)
		if o == survived && !s.short {
			o = survivedAll
		}
		if o != survived {
			if j.by = failed(out); j.by != "" {
				j.by = " | " + j.by
			}
			break
		}
	}
	return o, err
}

// report prints survivors and counts.
func (o *options) report(jobs []job, list accepted, stdout io.Writer) int {
	type tally struct{ killed, timeout, invalid, listed, survived int }
	var order []string
	counts := map[string]*tally{}
	total := &tally{}
	for i := range jobs {
		j := &jobs[i]
		pkg := path.Dir(j.file)
		t := counts[pkg]
		if t == nil {
			t = &tally{}
			counts[pkg] = t
			order = append(order, pkg)
		}
		for _, t := range []*tally{t, total} {
			switch j.outcome {
			case killed:
				t.killed++
			case timedOut:
				t.timeout++
			case invalid:
				t.invalid++
			case survived, survivedAll:
				if list[j.id] != "" {
					t.listed++
				} else {
					t.survived++
				}
			}
		}
		if (j.outcome == survived || j.outcome == survivedAll) && list[j.id] == "" {
			fmt.Fprintf(stdout, "%s:%d: survived: %s\n", j.file, j.line, j.id)
		}
	}
	rate := func(t *tally) float64 {
		if real := t.killed + t.timeout + t.survived; real > 0 {
			return 100 * float64(t.killed+t.timeout) / float64(real)
		}
		return 100
	}
	row := func(name string, t *tally) {
		fmt.Fprintf(stdout, "%-24s %5d killed %4d without end %4d survived %6.1f %%   %4d listed %5d do not compile\n",
			name, t.killed, t.timeout, t.survived, rate(t), t.listed, t.invalid)
	}
	slices.Sort(order)
	for _, pkg := range order {
		row(pkg, counts[pkg])
	}
	if len(order) > 1 {
		row("all", total)
	}
	if rate(total) < o.least {
		return exitWrong
	}
	return exitGood
}

// packages are the packages whose tests must kill every mutant that is not listed.
const packages = "psn aeth reth bth bth/mrc bth/frame cnp"

const usage = `usage: mutants [options] [PACKAGE...]

Changes the code of packages in one place at a time, runs the short tests of the
package with each change, and lists the changes that no test noticed. A package
is a folder of the module, such as bth/frame; without one it takes
  ` + packages + `

Changes: < to <= and == to != and the like, arithmetic and bit operators, && and
||, conditions always true and always false, a number plus one, true and false,
a sign or negation dropped, a statement removed; but no number that is returned
beside an error. What does not compile does not count. A test that does not end
has noticed.

  -root DIR     the module's folder (default .)
  -sample N     only N of the changes, chosen by -seed
  -seed N       (default 1)
  -state FILE   keep results there, and go on from them: a result counts until a
                file of its package changes
  -accept FILE  changes that no test can or need notice, a line each: the change
                as printed, " | ", and why (default fuzz/mutants/survivors.txt)
  -min PERCENT  share of the changes to be noticed or listed (default 100)
  -match TEXT   only changes whose line has TEXT in it; may be repeated
  -parallel N   tests at a time (default: the number of processors)
  -timeout D    tests that need more processor time do not end (default: four
                times what they need, and 5s), nor do those that take far longer
  -whole        what the short tests do not notice is tried with all
  -tags LIST    build tags, which choose the files that are changed too
  -single       build each change by itself; without it one build holds those
                that can be chosen when the tests run: several times as fast
  -list         print the changes, and run nothing
  -v            print each result, and the test that noticed
  -h            this text

Exit code: 0 as many changes as -min says were noticed or are listed; 1 fewer;
2 bad usage, tests that fail without a change, or a list that has what is no
change any more.

Examples:

  one package, to be stopped and gone on with
      mutants -state /tmp/mutants.jsonl bth/frame
  fifty changes of all packages, the same fifty each time
      mutants -sample 50
  was it killed?
      mutants -match 'psn.go PSN.Diff' -v psn
`
