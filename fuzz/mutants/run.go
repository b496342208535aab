package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// outcome is what became of a mutant.
type outcome string

const (
	killed   outcome = "killed"
	timedOut outcome = "timeout" // counts as killed: a test would not have ended
	invalid  outcome = "invalid" // it does not compile
	survived outcome = "survived"
)

// runner runs the tests of packages with a mutant in place.
type runner struct {
	root    string
	timeout time.Duration
	tmp     string
}

// test runs the tests of the package that m is in.
func (r *runner) test(ctx context.Context, m *mutant, src []byte, worker int) (outcome, error) {
	changed := filepath.Join(r.tmp, fmt.Sprintf("mutant%d.go", worker))
	if err := os.WriteFile(changed, m.apply(src), 0o666); err != nil {
		return "", err
	}
	overlay := filepath.Join(r.tmp, fmt.Sprintf("overlay%d.json", worker))
	b, err := json.Marshal(map[string]map[string]string{"Replace": {filepath.Join(r.root, m.file): changed}})
	if err != nil {
		return "", err
	}
	if err := os.WriteFile(overlay, b, 0o666); err != nil {
		return "", err
	}
	out, err := r.goTest(ctx, "./"+filepath.ToSlash(filepath.Dir(m.file)), "-overlay", overlay)
	return judge(ctx, out, err)
}

// judge tells what became of a mutant from what its tests said.
func judge(ctx context.Context, out []byte, err error) (outcome, error) {
	switch {
	case ctx.Err() != nil:
		return "", ctx.Err()
	case err == nil:
		return survived, nil
	case errors.Is(err, context.DeadlineExceeded), bytes.Contains(out, []byte("panic: test timed out")):
		return timedOut, nil
	case bytes.Contains(out, []byte("[build failed]")), bytes.Contains(out, []byte("[setup failed]")):
		return invalid, nil
	}
	return killed, nil
}

// goTest runs the short tests of a package, and stops at the first that fails.
// What a mutant allocates without end is bounded.
func (r *runner) goTest(ctx context.Context, pkg string, args ...string) ([]byte, error) {
	limit := r.timeout + 2*time.Minute // to build in
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	args = append([]string{"test", "-vet=off", "-short", "-count=1", "-failfast", "-ldflags=-s -w", "-timeout", r.timeout.String()}, append(args, pkg)...)
	cmd := exec.CommandContext(ctx, "sh", append([]string{"-c", `ulimit -v 16000000 2>/dev/null; exec "$@"`, "go", "go"}, args...)...)
	cmd.Dir = r.root
	cmd.WaitDelay = 5 * time.Second
	stop(cmd)
	out, err := cmd.CombinedOutput()
	if err != nil && ctx.Err() != nil {
		err = ctx.Err()
	}
	return out, err
}

// compiled is the test binary of a package with mutants in it.
type compiled struct {
	dir, binary string
	ids         map[*job]int
}

// compile builds the tests of pkg with those of jobs in it that one build can
// hold.
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
	c := &compiled{filepath.Join(r.root, pkg), filepath.Join(r.tmp, strings.ReplaceAll(pkg, "/", "-")+".test"), ids}
	cmd := exec.CommandContext(ctx, "go", "test", "-c", "-vet=off", "-o", c.binary, "-overlay", overlay, "./"+pkg)
	cmd.Dir = r.root
	if out, err := cmd.CombinedOutput(); err != nil {
		return nil, fmt.Errorf("%w\n%s", err, tail(out))
	}
	if out, err := r.exec(ctx, c, 0); err != nil { // it may be slower, or allocate, where it did not
		return nil, fmt.Errorf("its tests fail: %w\n%s", err, tail(out))
	}
	return c, nil
}

// exec runs the tests with a mutant; 0 is none.
func (r *runner) exec(ctx context.Context, c *compiled, id int) ([]byte, error) {
	limited, cancel := context.WithTimeout(ctx, r.timeout+10*time.Second)
	defer cancel()
	cmd := exec.CommandContext(limited, "sh", "-c", `ulimit -v 16000000 2>/dev/null; exec "$@"`, "test", c.binary,
		"-test.short", "-test.failfast", "-test.timeout", r.timeout.String())
	cmd.Dir = c.dir
	cmd.Env = append(os.Environ(), fmt.Sprintf("%s=%d", variable, id))
	cmd.WaitDelay = 5 * time.Second
	stop(cmd)
	out, err := cmd.CombinedOutput()
	if err != nil && limited.Err() != nil {
		err = limited.Err()
	}
	return out, err
}

// baseline runs the tests of a package as it is, and returns how long they took
// with their build.
func (r *runner) baseline(ctx context.Context, pkg string) (time.Duration, error) {
	start := time.Now()
	if out, err := r.goTest(ctx, pkg); err != nil {
		return 0, fmt.Errorf("the tests of %s fail without a mutant: %w\n%s", pkg, err, tail(out))
	}
	return time.Since(start), nil
}

func tail(b []byte) string {
	lines := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(lines[max(0, len(lines)-10):], "\n")
}
