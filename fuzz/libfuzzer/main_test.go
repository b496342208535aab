package main

import (
	"bytes"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

func call(args ...string) (code int, out, errs string) {
	var o, e bytes.Buffer
	code = run(args, &o, &e)
	return code, o.String(), e.String()
}

func TestUsage(t *testing.T) {
	code, out, _ := call("-h")
	require.Equal(t, 0, code)
	for line := range strings.Lines(out) {
		require.LessOrEqual(t, len(line), 82)
	}
	code, _, errs := call("-list")
	require.Equal(t, 2, code, "this folder is no module")
	require.Contains(t, errs, "go.mod")
	t.Chdir("../..")
	code, out, _ = call("-list")
	require.Equal(t, 0, code)
	require.Contains(t, out, "fuzz_FuzzPort ")
	require.Greater(t, strings.Count(out, "\n"), 20)
	for _, args := range [][]string{{}, {"-x9"}, {"-out", t.TempDir(), "none"}} {
		code, _, errs := call(args...)
		require.Equal(t, 2, code, "%v", args)
		require.True(t, strings.HasPrefix(errs, "libfuzzer: "))
	}
}

// TestHelpersTakeInterfaces: what test files call outside of them takes no *testing.T: for
// another engine only test files have another package testing.
func TestHelpersTakeInterfaces(t *testing.T) {
	takes := regexp.MustCompile(`(?m)^func [^\n]*\*testing\.[TF]\b.*`)
	require.NoError(t, filepath.WalkDir("../..", func(name string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(name, ".go") || strings.HasSuffix(name, "_test.go") || strings.Contains(filepath.ToSlash(name), "fuzz/libfuzzer") {
			return err
		}
		b, err := os.ReadFile(name)
		require.Empty(t, takes.FindAllString(string(b), -1), name)
		return err
	}))
}

// TestBuild builds targets with clang and runs each for a thousand inputs: those
// that ROCE_LIBFUZZER lists, separated by spaces, or with "all" every one.
func TestBuild(t *testing.T) {
	which := os.Getenv("ROCE_LIBFUZZER")
	if which == "" {
		t.Skip("set ROCE_LIBFUZZER to all, or to names of libfuzzer -list; needs clang")
	}
	t.Chdir("../..")
	all, err := find(".")
	require.NoError(t, err)
	dir := t.TempDir()
	for _, target := range all {
		name := target.name()
		if which != "all" && !strings.Contains(" "+which+" ", " "+name+" ") {
			continue
		}
		t.Run(name, func(t *testing.T) {
			code, out, errs := call("-out", dir, "-dict", "fuzz/oss-fuzz/roce.dict", name)
			require.Equal(t, 0, code, out+errs)
			program := filepath.Join(dir, name)
			seeds, err := filepath.Glob(program + "_seed_corpus/*")
			require.NoError(t, err)
			start := time.Now()
			cmd := exec.CommandContext(t.Context(), program, "-runs=1000", "-seed=1", "-timeout=60", "-dict="+program+".dict", program+"_seed_corpus")
			cmd.Dir = target.dir
			b, err := cmd.CombinedOutput()
			require.NoError(t, err, "%s", b[max(0, len(b)-4000):])
			require.Contains(t, string(b), "Done 1")
			t.Logf("%d seeds, %v", len(seeds), time.Since(start).Round(time.Millisecond))
		})
	}
}
