package main

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

// module writes a module with a package p of the source and tests given.
func module(t *testing.T, src, test string) string {
	root := t.TempDir()
	for name, text := range map[string]string{"go.mod": "module example\n\ngo 1.26\n", "p/p.go": src, "p/p_test.go": test,
		"accept.txt": "# none\n"} {
		name = filepath.Join(root, name)
		require.NoError(t, os.MkdirAll(filepath.Dir(name), 0o777))
		require.NoError(t, os.WriteFile(name, []byte(text), 0o666))
	}
	return root
}

// call runs the program on it.
func call(root string, args ...string) (code int, out, errs string) {
	var o, e bytes.Buffer
	code = run(context.Background(), append([]string{"-root", root, "-accept", filepath.Join(root, "accept.txt")}, args...), &o, &e)
	return code, o.String(), e.String()
}

const source = `package p

const n = 3

func f(a, b int, ok bool) int {
	if a < b && !ok {
		a++
		return -a
	}
	for a > 0 {
		a -= b
	}
	b = a
	return b
}
`

// TestMutants holds which changes are made, by hand.
func TestMutants(t *testing.T) {
	code, out, errs := call(module(t, source, "package p\n"), "-list", "p")
	require.Zero(t, code, errs)
	want := []string{
		"3: p/p.go -: 3 => (3+1)",
		"6: p/p.go f: a++ => {}",
		"6: p/p.go f: a < b && !ok => (a < b && !ok) || true",
		"6: p/p.go f: a < b && !ok => (a < b && !ok) && false",
		"6: p/p.go f: a < b && !ok => a < b || !ok",
		"6: p/p.go f: a < b => a <= b",
		"6: p/p.go f: !ok => ok",
		"8: p/p.go f: -a => a",
		"10: p/p.go f: a > 0 => (a > 0) && false",
		"10: p/p.go f: a > 0 => a >= 0",
		"10: p/p.go f: 0 => 1",
		"11: p/p.go f: a -= b => a += b",
		"11: p/p.go f: a -= b => _ = b",
		"13: p/p.go f: b = a => _ = a",
	}
	want[1] = "7: p/p.go f: a++ => {}"
	var got []string
	for line := range strings.Lines(out) {
		got = append(got, strings.TrimSpace(strings.TrimPrefix(line, "p/p.go:")))
	}
	require.ElementsMatch(t, want, got)
}

// TestBesideError: a number returned beside an error is not changed: callers ignore it.
func TestBesideError(t *testing.T) {
	const source = `package p

import "errors"

var errP = errors.New("p")

func f(a int) (int, bool, error) {
	return a, 0 == a, errP
}

func g(a int) (int, error) {
	if a == 1 {
		return 2, errP
	}
	return 3, nil
}
`
	code, out, errs := call(module(t, source, "package p\n"), "-list", "p")
	require.Zero(t, code, errs)
	require.NotContains(t, out, "2 => ")
	for _, want := range []string{" 0 => 1", " 1 => (1+1)", " 3 => (3+1)"} {
		require.Contains(t, out, want)
	}
}

// TestApply: every change of this package's own code gives a file that differs
// from it in one place.
func TestApply(t *testing.T) {
	all, src, err := mutantsOf(".", "mutants.go")
	require.NoError(t, err)
	require.Greater(t, len(all), 100)
	ids := map[string]bool{}
	for i := range all {
		m := &all[i]
		require.False(t, ids[m.id], m.id)
		ids[m.id] = true
		out := m.apply(src)
		require.Equal(t, string(src[:m.from]), string(out[:m.from]))
		require.True(t, bytes.HasSuffix(out, src[m.to:]))
		require.NotEqual(t, string(src), string(out), m.id)
		require.Equal(t, 1+bytes.Count(src[:m.from], []byte("\n")), m.line)
	}
}

// TestRun: what is noticed, what is not, what is listed, what does not end and what
// does not compile; results are kept, and a sample is the same each time.
func TestRun(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("no go command")
	}
	if testing.Short() {
		t.Skip("builds a dozen packages")
	}
	root := module(t, `package p

func less(a, b int) bool { return a < b }

func count(n int) (k int) {
	for n > 0 {
		n--
		k++
	}
	return k
}
`, `package p

import "testing"

func TestP(t *testing.T) {
	if !less(1, 2) || less(2, 1) || count(3) != 3 {
		t.Fatal()
	}
}
`)
	state := filepath.Join(root, "state")
	args := []string{"-state", state, "-timeout", "3s", "-v", "p"}
	code, out, errs := call(root, args...)
	require.Equal(t, exitWrong, code, errs)
	require.Contains(t, out, "p/p.go:3: survived: p/p.go less: a < b => a <= b\n")
	require.Equal(t, 1, strings.Count(out, "survived: "), out)
	require.Contains(t, errs, "timeout p/p.go:7: p/p.go count: n-- => {}")
	require.Contains(t, errs, "killed p/p.go:8: p/p.go count: k++ => {}")
	require.Contains(t, out, "p                            4 killed    1 without end    1 survived   83.3 %")

	// Nothing is run again; a listed one does not count, but must still be one.
	accept := filepath.Join(root, "accept.txt")
	require.NoError(t, os.WriteFile(accept, []byte("p/p.go less: a < b => a <= b | a reason\n"), 0o666))
	code, out, errs = call(root, args...)
	require.Equal(t, exitGood, code, out)
	require.Empty(t, errs)
	require.Contains(t, out, "0 survived  100.0 %      1 listed")
	require.NoError(t, os.WriteFile(accept, []byte("p/p.go less: a > b => a >= b | a reason\n"), 0o666))
	code, _, errs = call(root, args...)
	require.Equal(t, exitUsage, code)
	require.Contains(t, errs, "no mutant any more")
	require.NoError(t, os.WriteFile(accept, []byte("p/p.go less: a < b => a <= b |\n"), 0o666))
	code, _, errs = call(root, args...)
	require.Equal(t, exitUsage, code)
	require.Contains(t, errs, "no reason")
	require.NoError(t, os.WriteFile(accept, nil, 0o666))
	code, _, _ = call(root, append([]string{"-min", "80"}, args...)...)
	require.Equal(t, exitGood, code)

	_, one, _ := call(root, "-list", "-sample", "3", "-seed", "7", "p")
	_, two, _ := call(root, "-list", "-sample", "3", "-seed", "7", "p")
	require.Equal(t, one, two)
	require.Equal(t, 3, strings.Count(one, "\n"))

	// Tests that fail by themselves say nothing about mutants.
	require.NoError(t, os.WriteFile(filepath.Join(root, "p/p_test.go"), []byte("package p\nimport \"testing\"\nfunc TestP(t *testing.T) { t.Fatal() }\n"), 0o666))
	code, _, errs = call(root, args...)
	require.Equal(t, exitUsage, code)
	require.Contains(t, errs, "fail without a mutant")
}

// TestOneBuild: that many changes are in one build changes nothing about them.
func TestOneBuild(t *testing.T) {
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("no go command")
	}
	if testing.Short() {
		t.Skip("builds two dozen packages")
	}
	root := module(t, `package p

type code uint8

var table = [4]int{1, 2, 3, 4}

func f(a, b int, c code, ok bool) (n int) {
	switch {
	case a < b && !ok, a > 7:
		n += table[c&3] << 1
	case a == b || ok:
		n = int(c)%16 - 2
	}
	for i := 0; i <= 3; i++ {
		if i == 2 {
			continue
		}
		n |= i ^ 1
	}
	if n >= 100 {
		n = 100
	}
	return n
}
`, `package p

import "testing"

func TestP(t *testing.T) {
	for _, v := range []struct{ a, b int; c code; ok bool; want int }{{1, 2, 1, false, 7}, {8, 2, 3, true, 11}, {3, 3, 9, false, 7}, {5, 3, 0, false, 3}} {
		if n := f(v.a, v.b, v.c, v.ok); n != v.want {
			t.Fatal(v, n)
		}
	}
}
`)
	args := []string{"-timeout", "5s", "-v", "-sample", "24", "p"}
	results := func(errs string) (out []string) {
		for line := range strings.Lines(errs) {
			if _, line, ok := strings.Cut(line, ": "); ok && strings.Contains(line, "p/p.go:") {
				out = append(out, line)
			}
		}
		return out
	}
	_, _, errs := call(root, args...)
	require.Contains(t, errs, " changes in one build\n")
	_, _, single := call(root, append([]string{"-single"}, args...)...)
	require.NotContains(t, single, "in one build")
	require.Len(t, results(single), 24)
	require.ElementsMatch(t, results(single), results(errs))
	require.Contains(t, errs, "survived p/p.go:")
}

// TestList: the list of this module has reasons, and nothing that is no change.
func TestList(t *testing.T) {
	code, _, errs := callModule("-list")
	require.Zero(t, code, errs)
}

func callModule(args ...string) (code int, out, errs string) {
	var o, e bytes.Buffer
	code = run(context.Background(), append([]string{"-root", "../.."}, args...), &o, &e)
	return code, o.String(), e.String()
}

func TestUsage(t *testing.T) {
	code, out, _ := callModule("-h")
	require.Zero(t, code)
	require.Contains(t, out, "Exit code:")
	for line := range strings.Lines(out) {
		require.LessOrEqual(t, len(line), 81)
	}
	for _, args := range [][]string{{"-x"}, {"-parallel", "0"}, {"-sample", "-1"}, {"no/such/folder"}} {
		code, _, errs := callModule(args...)
		require.Equal(t, exitUsage, code, args)
		require.Contains(t, errs, "mutants: ")
	}
}
