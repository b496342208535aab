// Package testing replaces the standard library's when fuzz targets are built for libFuzzer:
// command libfuzzer replaces the import in test files. It has what the tests of this module
// use. A failed test panics, which libFuzzer reports with the input; benchmarks do nothing.
package testing

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"reflect"
	std "testing"
	"time"
)

// TB has the methods that T, B and F share.
type TB interface {
	Cleanup(func())
	Context() context.Context
	Error(args ...any)
	Errorf(format string, args ...any)
	Fail()
	FailNow()
	Failed() bool
	Fatal(args ...any)
	Fatalf(format string, args ...any)
	Helper()
	Log(args ...any)
	Logf(format string, args ...any)
	Name() string
	Setenv(key, value string)
	Skip(args ...any)
	SkipNow()
	Skipf(format string, args ...any)
	Skipped() bool
	TempDir() string
}

// skipped is the value with which Skip panics.
type skipped struct{}

type common struct{ cleanups []func() }

func (c *common) Cleanup(f func())             { c.cleanups = append(c.cleanups, f) }
func (c *common) Context() context.Context     { return context.Background() }
func (c *common) Error(args ...any)            { panic(fmt.Sprintln(args...)) }
func (c *common) Errorf(f string, args ...any) { panic(fmt.Sprintf(f, args...)) }
func (c *common) Fail()                        { panic("failed") }
func (c *common) FailNow()                     { panic("failed") }
func (c *common) Failed() bool                 { return false }
func (c *common) Fatal(args ...any)            { c.Error(args...) }
func (c *common) Fatalf(f string, args ...any) { c.Errorf(f, args...) }
func (c *common) Helper()                      {}
func (c *common) Log(args ...any)              {}
func (c *common) Logf(f string, args ...any)   {}
func (c *common) Name() string                 { return "libFuzzer" }
func (c *common) Parallel()                    {}
func (c *common) Skip(args ...any)             { panic(skipped{}) }
func (c *common) SkipNow()                     { panic(skipped{}) }
func (c *common) Skipf(f string, args ...any)  { panic(skipped{}) }
func (c *common) Skipped() bool                { return false }

func (c *common) Setenv(key, value string) {
	old, had := os.LookupEnv(key)
	os.Setenv(key, value)
	c.Cleanup(func() {
		if os.Unsetenv(key); had {
			os.Setenv(key, old)
		}
	})
}

func (c *common) TempDir() string {
	dir, err := os.MkdirTemp("", "libfuzzer")
	if err != nil {
		panic(err)
	}
	c.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

func (c *common) end() {
	for i := len(c.cleanups) - 1; i >= 0; i-- {
		c.cleanups[i]()
	}
	c.cleanups = nil
}

// T is given to tests and fuzz targets.
type T struct{ common }

// Run runs a part of a test.
func (t *T) Run(name string, f func(t *T)) bool { f(t); return true }

// B is given to benchmarks, which are not run.
type B struct {
	common
	N int
}

// Methods that benchmarks call.
func (b *B) Elapsed() time.Duration              { return 0 }
func (b *B) Loop() bool                          { return false }
func (b *B) ReportAllocs()                       {}
func (b *B) ReportMetric(n float64, unit string) {}
func (b *B) ResetTimer()                         {}
func (b *B) Run(name string, f func(b *B)) bool  { return true }
func (b *B) RunParallel(body func(*std.PB))      {}
func (b *B) SetBytes(n int64)                    {}
func (b *B) StartTimer()                         {}
func (b *B) StopTimer()                          {}

// M is given to TestMain.
type M struct{}

// Run ends TestMain: code before it is needed, code after it is not.
func (m *M) Run() int { panic(m) }

// Setup runs TestMain up to its call of Run.
func Setup(testMain func(*M)) {
	m := new(M)
	defer func() {
		if r := recover(); r != m {
			panic(r)
		}
	}()
	testMain(m)
}

// F is given to fuzz targets.
type F struct {
	common
	dir   string // where to write seeds
	seeds int
	fn    reflect.Value // what the target gave to Fuzz
}

// Add writes a seed if seeds are requested.
func (f *F) Add(args ...any) {
	if f.dir == "" {
		return
	}
	name := filepath.Join(f.dir, fmt.Sprintf("seed-%04d", f.seeds))
	f.seeds++
	if err := os.WriteFile(name, encode(args), 0o666); err != nil {
		panic(err)
	}
}

// Fuzz stores the function that receives inputs.
func (f *F) Fuzz(fn any) { f.fn = reflect.ValueOf(fn) }

// Target is a fuzz target that is set up once and then run for each input.
type Target struct {
	fn    reflect.Value
	types []reflect.Type
}

// Prepare sets a target up.
func Prepare(target func(*F)) *Target {
	f := new(F)
	target(f)
	t := &Target{fn: f.fn}
	for i := 1; i < t.fn.Type().NumIn(); i++ {
		t.types = append(t.types, t.fn.Type().In(i))
	}
	return t
}

// Run runs one input, and panics when the target fails on it.
func (g *Target) Run(input []byte) {
	t := new(T)
	defer t.end()
	defer func() {
		if r := recover(); r != nil {
			if _, ok := r.(skipped); !ok {
				panic(r)
			}
		}
	}()
	g.fn.Call(append([]reflect.Value{reflect.ValueOf(t)}, decode(g.types, input)...))
}

// WriteSeeds writes the seeds of a target into a folder, a file each, and returns
// their number.
func WriteSeeds(target func(*F), dir string) int {
	f := &F{dir: dir}
	defer f.end()
	target(f)
	return f.seeds
}

// Short returns true: long tests are skipped.
func Short() bool { return true }

// Verbose reports false.
func Verbose() bool { return false }

// AllocsPerRun is the standard library's.
func AllocsPerRun(runs int, f func()) float64 { return std.AllocsPerRun(runs, f) }
