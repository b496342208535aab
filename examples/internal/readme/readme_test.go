// Package readme_test holds that the programs in the Markdown pages of the module
// build and run, and that their links lead somewhere.
package readme_test

import (
	"bytes"
	"context"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"
)

const root = "../../.."

var program = regexp.MustCompile("(?s)```go\n(package main\n.*?)```")

// TestPrograms builds the programs of README.md in an empty module beside this
// one, as a reader who pastes them does, and runs them. What stands below
// "// Output:" is what one prints; the others print something and end well.
func TestPrograms(t *testing.T) {
	if testing.Short() {
		t.Skip("builds programs")
	}
	if _, err := exec.LookPath("go"); err != nil {
		t.Skip("no go command")
	}
	page, err := os.ReadFile(root + "/README.md")
	require.NoError(t, err)
	programs := program.FindAllStringSubmatch(string(page), -1)
	require.GreaterOrEqual(t, len(programs), 4)

	here, err := filepath.Abs(root)
	require.NoError(t, err)
	dir := t.TempDir()
	mod, err := os.ReadFile(root + "/go.mod")
	require.NoError(t, err)
	text := strings.Replace(string(mod), "module github.com/roce-go/roce", "module example.com/pasted", 1) +
		fmt.Sprintf("\nrequire github.com/roce-go/roce v0.0.0\nreplace github.com/roce-go/roce => %s\n", here)
	require.NoError(t, os.WriteFile(dir+"/go.mod", []byte(text), 0o666))
	sum, err := os.ReadFile(root + "/go.sum")
	require.NoError(t, err)
	require.NoError(t, os.WriteFile(dir+"/go.sum", sum, 0o666))

	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute)
	defer cancel()
	run := func(name string, args ...string) (string, string, error) {
		var out, errs bytes.Buffer
		cmd := exec.CommandContext(ctx, name, args...)
		cmd.Dir, cmd.Stdout, cmd.Stderr = dir, &out, &errs
		err := cmd.Run()
		return out.String(), errs.String(), err
	}
	for i, p := range programs {
		folder := fmt.Sprintf("%s/p%d", dir, i)
		require.NoError(t, os.Mkdir(folder, 0o777))
		require.NoError(t, os.WriteFile(folder+"/main.go", []byte(p[1]), 0o666))
	}
	_, errs, err := run("go", "build", "-mod=mod", "-o", dir+"/bin/", "./...")
	require.NoError(t, err, errs)
	for i, p := range programs {
		out, errs, err := run(fmt.Sprintf("%s/bin/p%d", dir, i))
		require.NoError(t, err, errs)
		require.NotEmpty(t, out)
		if _, want, ok := strings.Cut(p[1], "// Output:\n"); ok {
			want, _, _ = strings.Cut(want, "}")
			want = strings.ReplaceAll(want, "\t// ", "")
			require.Equal(t, strings.TrimSpace(want), strings.TrimSpace(out))
		}
		t.Logf("program %d:\n%s", i, out)
	}
}

// command is a program of this module that a page runs.
var command = regexp.MustCompile(`go run (?:github\.com/roce-go/roce|\.)/([\w/-]+)`)

var link = regexp.MustCompile(`\]\(([^)#]+)(?:#[^)]*)?\)`)

// TestLinks: the relative links of all pages lead to files, and the programs that they run
// are there.
func TestLinks(t *testing.T) {
	seen := 0
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() && d.Name() == ".git" {
			return filepath.SkipDir
		}
		if filepath.Ext(path) != ".md" {
			return nil
		}
		b, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		for _, m := range command.FindAllStringSubmatch(string(b), -1) {
			if _, err := os.Stat(filepath.Join(root, m[1])); err != nil {
				t.Errorf("%s runs %s, which is not there", path, m[1])
			}
		}
		for _, m := range link.FindAllStringSubmatch(string(b), -1) {
			if u, err := url.Parse(m[1]); err != nil || u.Scheme != "" {
				continue
			}
			seen++
			if _, err := os.Stat(filepath.Join(filepath.Dir(path), m[1])); err != nil {
				t.Errorf("%s links to %s, which is not there", path, m[1])
			}
		}
		return nil
	})
	require.NoError(t, err)
	require.Greater(t, seen, 20)
}
