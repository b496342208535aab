package main

import (
	"archive/zip"
	"errors"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"
)

const (
	module  = "github.com/roce-go/roce"
	standIn = module + "/fuzz/libfuzzer/testing"
	mark    = "zzlibfuzzer" // part of the names of files and folders that exist in the overlay only
)

// target is a fuzz target.
type target struct {
	dir, pkg, fn string // pkg is the name of the package that it is in, x_test or x
}

func (t *target) name() string { return strings.ReplaceAll(t.dir, "/", "_") + "_" + t.fn }

// find lists the fuzz targets below root.
func find(root string) ([]target, error) {
	if _, err := os.Stat(filepath.Join(root, "go.mod")); err != nil {
		return nil, err
	}
	var out []target
	err := filepath.WalkDir(root, func(path string, d fs.DirEntry, err error) error {
		if err != nil || !strings.HasSuffix(path, "_test.go") {
			return err
		}
		file, err := parser.ParseFile(token.NewFileSet(), path, nil, parser.SkipObjectResolution)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, filepath.Dir(path))
		if err != nil {
			return err
		}
		for _, d := range file.Decls {
			if f, ok := d.(*ast.FuncDecl); ok && f.Recv == nil && strings.HasPrefix(f.Name.Name, "Fuzz") {
				out = append(out, target{filepath.ToSlash(rel), file.Name.Name, f.Name.Name})
			}
		}
		return nil
	})
	slices.SortFunc(out, func(a, b target) int { return strings.Compare(a.name(), b.name()) })
	return out, err
}

// mains are the packages to build.
type mains struct{ fuzz, seeds string }

// overlay writes the files that are built in addition to the source tree into tmp, and
// returns the path that each file replaces. An external test package becomes a package of its
// own below the folder; an internal test file becomes a file of its package, which for a
// target in an external package means export_test.go.
func (t *target) overlay(tmp string) (map[string]string, mains, error) {
	replace := map[string]string{}
	put := func(at, text string) error {
		file := filepath.Join(tmp, fmt.Sprintf("%d.go", len(replace)))
		abs, err := filepath.Abs(at)
		if err != nil {
			return err
		}
		replace[abs] = file
		return os.WriteFile(file, []byte(text), 0o666)
	}
	names, err := filepath.Glob(filepath.Join(t.dir, "*_test.go"))
	if err != nil {
		return nil, mains{}, err
	}
	external := strings.HasSuffix(t.pkg, "_test")
	folder := t.dir
	if external {
		folder = t.dir + "/" + mark
	}
	setup := false // there is a TestMain
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			return nil, mains{}, err
		}
		file, err := parser.ParseFile(token.NewFileSet(), name, b, parser.ImportsOnly)
		if err != nil {
			return nil, mains{}, err
		}
		base := strings.TrimSuffix(filepath.Base(name), "_test.go")
		at := filepath.Join(folder, base+"_"+mark+".go")
		switch {
		case base == "example", strings.Contains(string(b), "\t\"testing/synctest\"\n"):
			continue // not needed by a target; synctest requires the real testing.T
		case file.Name.Name == t.pkg:
		case external && base == "export":
			at = filepath.Join(t.dir, base+"_"+mark+".go")
		default:
			continue
		}
		if file.Name.Name == t.pkg && strings.Contains(string(b), "\nfunc TestMain(") {
			setup = true
		}
		text := strings.Replace(string(b), "\t\"testing\"\n", "\ttesting \""+standIn+"\"\n", 1)
		text = strings.Replace(text, "import \"testing\"\n", "import testing \""+standIn+"\"\n", 1)
		if err := put(at, text); err != nil {
			return nil, mains{}, err
		}
	}
	calls := ""
	if setup {
		calls = "testing.Setup(target.TestMain); "
	}
	if t.pkg == "main" {
		m := mains{fuzz: "./" + t.dir, seeds: "./" + t.dir}
		return replace, m, put(filepath.Join(t.dir, mark+".go"), fmt.Sprintf(inMain, t.fn, strings.Replace(calls, "target.", "", 1)))
	}
	m := mains{fuzz: "./fuzz/" + mark + "/fuzz", seeds: "./fuzz/" + mark + "/seeds"}
	if err := put(m.fuzz+"/main.go", fmt.Sprintf(fuzzMain, module+"/"+folder, calls, t.fn)); err != nil {
		return nil, m, err
	}
	return replace, m, put(m.seeds+"/main.go", fmt.Sprintf(seedsMain, module+"/"+folder, calls, t.fn))
}

// fuzzMain and seedsMain are the programs of a target: an archive that libFuzzer
// calls, and one that writes seeds.
const fuzzMain = `package main

import (
	"github.com/roce-go/roce/fuzz/libfuzzer/entry"
	"github.com/roce-go/roce/fuzz/libfuzzer/testing"
	target %q
)

func init() { %sentry.Run = testing.Prepare(target.%s).Run }

func main() {}
`

const seedsMain = `package main

import (
	"os"

	"github.com/roce-go/roce/fuzz/libfuzzer/testing"
	target %q
)

func main() { %stesting.WriteSeeds(target.%s, os.Getenv("LIBFUZZER_SEEDS")) }
`

// inMain is both for a target that is in a command: an archive does not call its main, and
// for the other main runs too late.
const inMain = `package main

import (
	"os"

	"github.com/roce-go/roce/fuzz/libfuzzer/entry"
	"github.com/roce-go/roce/fuzz/libfuzzer/testing"
)

func init() {
	%[2]s
	if dir := os.Getenv("LIBFUZZER_SEEDS"); dir != "" {
		testing.WriteSeeds(%[1]s, dir)
		os.Exit(0)
	}
	entry.Run = testing.Prepare(%[1]s).Run
}
`

// zipDir packs the files of a folder.
func zipDir(name, dir string) error {
	f, err := os.Create(name)
	if err != nil {
		return err
	}
	w := zip.NewWriter(f)
	err = w.AddFS(os.DirFS(dir))
	return errors.Join(err, w.Close(), f.Close())
}
