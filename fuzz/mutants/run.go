package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// outcome is the result of a mutant.
type outcome string

const (
	killed   outcome = "killed"
	timedOut outcome = "timeout"  // counts as killed: the test would not end
	invalid  outcome = "invalid"  // it does not compile
	survived outcome = "survived" // the short tests

	survivedAll outcome = "survived all"
)

// suite is a choice of tests.
type suite struct {
	short bool
	cpu   time.Duration // processor time after which the tests count as endless
}

// wall is the real time after which the tests count as endless, however little processor time
// they get.
func (s suite) wall() time.Duration { return 10*s.cpu + time.Minute }

// flags returns the flags for a test binary, with the prefix test., or for go test.
func (s suite) flags(prefix string) []string {
	return []string{fmt.Sprintf("-%sshort=%t", prefix, s.short), "-" + prefix + "failfast", "-" + prefix + "timeout=" + s.wall().String()}
}

// limited is a shell command that limits the memory and the processor time of a mutant.
func (s suite) limited() string {
	return fmt.Sprintf(`ulimit -v 16000000 2>/dev/null; ulimit -t %d 2>/dev/null; exec "$0" "$@"`, int(s.cpu.Seconds()+0.999))
}

// runner runs the tests of a package with a mutant in place.
type runner struct {
	root, tmp, tags string
	whole           bool
	limit           time.Duration // of processor time; 0: by what the tests need
	suites          []suite       // the short tests, and if requested all tests
}

// test runs the tests of the package that m is in.
func (r *runner) test(ctx context.Context, m *mutant, src []byte, worker int, s suite) ([]byte, error) {
	changed := filepath.Join(r.tmp, fmt.Sprintf("mutant%d.go", worker))
	if err := os.WriteFile(changed, m.apply(src), 0o666); err != nil {
		return nil, err
	}
	overlay := filepath.Join(r.tmp, fmt.Sprintf("overlay%d.json", worker))
	b, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(r.root, m.file): changed}})
	if err != nil {
		return nil, err
	}
	if err := os.WriteFile(overlay, b, 0o666); err != nil {
		return nil, err
	}
	out, _, err := r.goTest(ctx, s, "./"+filepath.ToSlash(filepath.Dir(m.file)), "-overlay", overlay)
	return out, err
}

// judge returns the result of a mutant from the output of its tests.
func judge(ctx context.Context, out []byte, err error) (outcome, error) {
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err == nil:
		return survived, nil
	case errors.Is(err, context.DeadlineExceeded), bytes.Contains(out, []byte("panic: test timed out")),
		strings.Contains(err.Error(), "signal: "), bytes.Contains(out, []byte("signal: killed")):
		return timedOut, nil
	case bytes.Contains(out, []byte("[build failed]")), bytes.Contains(out, []byte("[setup failed]")):
		return invalid, nil
	}
	return killed, nil
}

// failed returns the name of the first failed test in out.
func failed(out []byte) string {
	_, rest, _ := bytes.Cut(out, []byte("--- FAIL: "))
	name, _, _ := bytes.Cut(rest, []byte(" "))
	return string(name)
}

// goTest runs tests of a package, and stops at the first that fails. It returns also
// the processor time of the build and the tests.
func (r *runner) goTest(ctx context.Context, s suite, pkg string, args ...string) ([]byte, time.Duration, error) {
	args = append([]string{"test", "-vet=off", "-count=1", "-ldflags=-s -w", "-tags", r.tags, "-exec", "sh -c '" + s.limited() + "'"}, args...)
	args = append(append(args, s.flags("")...), pkg)
	return r.command(ctx, s.wall()+2*time.Minute, r.root, nil, "go", args...) // additional time for the build
}

func (r *runner) command(ctx context.Context, limit time.Duration, dir string, env []string, name string, args ...string) ([]byte, time.Duration, error) {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	cmd := exec.CommandContext(ctx, name, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), env...)
	cmd.WaitDelay = 5 * time.Second
	stop(cmd)
	out, err := cmd.CombinedOutput()
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	var took time.Duration
	if p := cmd.ProcessState; p != nil {
		took = p.UserTime() + p.SystemTime()
	}
	return out, took, err
}

// compiled is the test binary of a package with mutants in it.
type compiled struct {
	dir, binary string
	quick       string // a pattern of tests to begin with
	ids         map[*job]int
}

// compile builds the tests of pkg with those mutants of jobs in it that one build can
// contain.
func (r *runner) compile(ctx context.Context, pkg string, files []string, jobs []*job) (*compiled, error) {
	sources, ids, err := schema(r.root, pkg, files, jobs)
	if err != nil {
		return nil, err
	}
	replace := map[string]string{}
	for name, text := range sources {
		tmp := filepath.Join(r.tmp, strings.ReplaceAll(pkg, "/", "-")+"-"+filepath.Base(name))
		if err := os.WriteFile(tmp, []byte(text), 0o666); err != nil {
			return nil, err
		}
		replace[name] = tmp
	}
	b, err := json.Marshal(map[string]map[string]string{"Replace": replace})
	if err != nil {
		return nil, err
	}
	overlay := filepath.Join(r.tmp, strings.ReplaceAll(pkg, "/", "-")+".json")
	if err := os.WriteFile(overlay, b, 0o666); err != nil {
		return nil, err
	}
	c := &compiled{filepath.Join(r.root, pkg), filepath.Join(r.tmp, strings.ReplaceAll(pkg, "/", "-")+".test"), "", ids}
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-o", c.binary, "-tags", r.tags, "-overlay", overlay, "./"+pkg)
	cmd.Dir = r.root
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, tail(out))
	}
	for i, s := range r.suites { // with mutants they may be slower, or allocate where they did not
		out, took, err := r.exec(ctx, c, 0, s, "-test.v")
		if err != nil {
			return nil, fmt.Errorf("its tests fail: %w\n%s", err, tail(out))
		}
		if s.short {
			c.quick = quick(string(out))
		}
		if r.limit == 0 { // that of baseline includes the build
			r.suites[i].cpu = min(s.cpu, enough(took))
		}
	}
	return c, nil
}

// quick returns a pattern of the tests that take a fifth of the time together, the quickest
// first, from what they print.
func quick(out string) string {
	type test struct {
		name string
		took time.Duration
	}
	var tests []test
	var all time.Duration
	for line := range strings.Lines(out) {
		var t test
		var took string
		if n, _ := fmt.Sscanf(line, "--- PASS: %s (%s", &t.name, &took); n != 2 {
			continue
		}
		t.took, _ = time.ParseDuration(strings.TrimSuffix(took, ")"))
		tests = append(tests, t)
		all += t.took
	}
	slices.SortStableFunc(tests, func(a, b test) int { return cmp.Compare(a.took, b.took) })
	var names []string
	left := all / 5
	for _, t := range tests {
		if left -= t.took; left < 0 {
			break
		}
		names = append(names, t.name)
	}
	if len(names) == 0 || len(names) == len(tests) {
		return ""
	}
	return "^(" + strings.Join(names, "|") + ")$"
}

// ordered runs the quick tests, and then the others.
func (r *runner) ordered(ctx context.Context, j *job, s suite) (out []byte, err error) {
	id := j.in.ids[j]
	if j.in.quick == "" {
		out, _, err = r.exec(ctx, j.in, id, s)
	} else if out, _, err = r.exec(ctx, j.in, id, s, "-test.run", j.in.quick); err == nil {
		out, _, err = r.exec(ctx, j.in, id, s, "-test.skip", j.in.quick)
	}
	return out, err
}

// exec runs tests with a mutant; 0 is none. It returns also their processor time.
func (r *runner) exec(ctx context.Context, c *compiled, id int, s suite, args ...string) ([]byte, time.Duration, error) {
	args = append(append([]string{"-c", s.limited(), c.binary}, s.flags("test.")...), args...)
	return r.command(ctx, s.wall()+10*time.Second, c.dir, []string{fmt.Sprintf("%s=%d", variable, id)}, "sh", args...)
}

// enough is the processor time after which tests that need took count as endless.
func enough(took time.Duration) time.Duration { return 5*time.Second + 4*took }

// baseline runs the tests of a package without a mutant, and sets their limit of processor
// time.
func (r *runner) baseline(ctx context.Context, pkg string) error {
	for _, short := range []bool{true, false} {
		if !short && !r.whole {
			continue
		}
		s := suite{short, 5 * time.Minute}
		out, took, err := r.goTest(ctx, s, pkg)
		if err != nil {
			return fmt.Errorf("the tests of %s fail without a mutant: %w\n%s", pkg, err, tail(out))
		}
		if s.cpu = r.limit; r.limit == 0 {
			s.cpu = enough(took)
		}
		r.suites = append(r.suites, s)
	}
	return nil
}

func tail(b []byte) string {
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}
