package main

import (
	"bytes"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"
)

const root = "../.."

// inModule finds the fuzz targets in the module's source, and the types of their
// arguments where these stand in the target itself.
func inModule(t *testing.T) map[string]string {
	found := make(map[string]string)
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
		if err != nil {
			return nil // somebody is writing it
		}
		for _, d := range file.Decls {
			f, ok := d.(*ast.FuncDecl)
			if !ok || f.Recv != nil || !strings.HasPrefix(f.Name.Name, "Fuzz") {
				continue
			}
			pkg, err := filepath.Rel(root, filepath.Dir(path))
			if err != nil {
				return err
			}
			found[filepath.ToSlash(pkg)+" "+f.Name.Name] = arguments(f)
		}
		return nil
	})
	require.NoError(t, err)
	return found
}

func arguments(f *ast.FuncDecl) string {
	var types []string
	ast.Inspect(f.Body, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok || len(call.Args) != 1 {
			return true
		}
		if sel, ok := call.Fun.(*ast.SelectorExpr); !ok || sel.Sel.Name != "Fuzz" {
			return true
		}
		lit, ok := call.Args[0].(*ast.FuncLit)
		if !ok {
			return true
		}
		for _, p := range lit.Type.Params.List[1:] {
			for range p.Names {
				types = append(types, typeName(p.Type))
			}
		}
		return false
	})
	return strings.ReplaceAll(strings.Join(types, " "), "byte", "uint8")
}

func typeName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.ArrayType:
		return "[]" + typeName(e.Elt)
	case *ast.Ident:
		return e.Name
	}
	return "?"
}

// TestTable: every fuzz target of the module is in the table, and nothing else;
// seeds have the types that the target takes.
func TestTable(t *testing.T) {
	names, err := filepath.Glob(root + "/fuzz/captures/*.pcap")
	require.NoError(t, err)
	c, err := load(names)
	require.NoError(t, err)

	found := inModule(t)
	for _, g := range targets {
		key := g.pkg + " " + g.name
		want, ok := found[key]
		require.True(t, ok, "%s is in the table of fuzz/corpus, but not in the module", key)
		delete(found, key)
		if g.seeds == nil || want == "" {
			continue
		}
		for _, s := range g.seeds(c) {
			var types []string
			for _, a := range s.args {
				types = append(types, fmt.Sprintf("%T", a))
			}
			require.Equal(t, want, strings.Join(types, " "), key)
		}
	}
	for key := range found {
		t.Errorf("%s is not in the table of fuzz/corpus: add it to fuzz/corpus/table.go with what it eats, then go run ./fuzz/corpus", key)
	}
	require.True(t, slices.IsSortedFunc(targets, func(a, b target) int {
		return strings.Compare(a.pkg+" "+a.name, b.pkg+" "+b.name)
	}), "the table is sorted")
}

// TestCommitted: the seeds in the module are those that the command makes of its
// captures, and not many.
func TestCommitted(t *testing.T) {
	names, err := filepath.Glob(root + "/fuzz/captures/*.pcap")
	require.NoError(t, err)
	files, err := generate(names, 40_000)
	require.NoError(t, err)
	total := 0
	for name, want := range files {
		got, err := os.ReadFile(filepath.Join(root, name))
		require.NoError(t, err, "go run ./fuzz/corpus")
		require.True(t, bytes.Equal(want, got), "%s is old: go run ./fuzz/corpus", name)
		total += len(got)
	}
	require.Less(t, total, 1<<20)
	for _, g := range targets {
		old, err := filepath.Glob(filepath.Join(root, g.dir(), prefix+"*"))
		require.NoError(t, err)
		for _, name := range old {
			rel, err := filepath.Rel(root, name)
			require.NoError(t, err)
			require.Contains(t, files, rel, "no capture gives it any more: go run ./fuzz/corpus")
		}
	}
}

func TestEncode(t *testing.T) {
	b, err := encode([]any{[]byte("a\x00\xff\"\n"), "s", true, 1, uint16(2), uint32(3), uint64(4), byte('a'), byte(0x85)})
	require.NoError(t, err)
	require.Equal(t, "go test fuzz v1\n[]byte(\"a\\x00\\xff\\\"\\n\")\nstring(\"s\")\nbool(true)\nint(1)\nuint16(2)\nuint32(3)\nuint64(4)\nbyte('a')\nbyte('\\u0085')\n", string(b))
	_, err = encode([]any{3.5})
	require.Error(t, err)
}

func TestCommand(t *testing.T) {
	dir := t.TempDir()
	var out, errs bytes.Buffer
	require.Equal(t, 2, run([]string{"-root", dir}, &out, &errs))
	require.Contains(t, errs.String(), "-root")
	require.NoError(t, os.WriteFile(filepath.Join(dir, "go.mod"), nil, 0o600))
	errs.Reset()
	require.Equal(t, 2, run([]string{"-root", dir}, &out, &errs))
	require.Contains(t, errs.String(), "no captures")

	stale := filepath.Join(dir, "aeth/testdata/fuzz/FuzzAeth/capture-old")
	crash := filepath.Join(dir, "aeth/testdata/fuzz/FuzzAeth/0123456789abcdef")
	require.NoError(t, os.MkdirAll(filepath.Dir(stale), 0o700))
	require.NoError(t, os.WriteFile(stale, nil, 0o600))
	require.NoError(t, os.WriteFile(crash, nil, 0o600))
	capture := root + "/fuzz/captures/rc-mixed.pcap"
	require.Equal(t, 0, run([]string{"-root", dir, capture}, &out, &errs))
	require.NoFileExists(t, stale)
	require.FileExists(t, crash)
	made, err := filepath.Glob(filepath.Dir(stale) + "/capture-rc-mixed-*")
	require.NoError(t, err)
	require.NotEmpty(t, made)

	require.Equal(t, 2, run([]string{"-root", dir, dir + "/none.pcap"}, &out, &errs))
	require.Equal(t, 2, run([]string{"-x"}, &out, &errs))
	require.Equal(t, 0, run([]string{"-h"}, &out, &errs))
	out.Reset()
	require.Equal(t, 0, run([]string{"-list"}, &out, &errs))
	require.Equal(t, len(targets), bytes.Count(out.Bytes(), []byte("\n")))
}
