// Libfuzzer builds the fuzz targets of a module as libFuzzer programs, for
// OSS-Fuzz, ClusterFuzz or by hand. See usage.
package main

import (
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

const usage = `usage: libfuzzer -out DIR [options] [TARGET...]

Builds fuzz targets of this module as libFuzzer programs: DIR/PACKAGE_FuzzX, and
beside each a folder of its seeds, DIR/PACKAGE_FuzzX_seed_corpus. TARGET is such
a name; without one, all are built. Run it in the module's folder. Test files are
compiled as they are, but for their import of testing; nothing is written to the
source tree.

  -out DIR       where the programs go
  -list          list the targets, and build nothing
  -engine FLAGS  what clang links with (default -fsanitize=fuzzer; OSS-Fuzz sets
                 LIB_FUZZING_ENGINE)
  -clang NAME    the C++ compiler (default clang++, or CXX)
  -zip           seeds as PACKAGE_FuzzX_seed_corpus.zip, as OSS-Fuzz wants them
  -dict FILE     copy FILE as PACKAGE_FuzzX.dict beside each program
  -x             print the commands
  -h             this text

    go run ./fuzz/libfuzzer -out /tmp/fuzz bth_FuzzPacket
    /tmp/fuzz/bth_FuzzPacket -runs=100000 /tmp/fuzz/bth_FuzzPacket_seed_corpus

Exit code: 0 all is built; 1 something cannot be built; 2 bad usage.
`

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

type builder struct {
	out, engine, clang, dict string
	zip, print               bool
	stdout, stderr           io.Writer
}

func run(args []string, stdout, stderr io.Writer) int {
	b := builder{stdout: stdout, stderr: stderr}
	fs := flag.NewFlagSet("libfuzzer", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.StringVar(&b.out, "out", "", "")
	fs.StringVar(&b.engine, "engine", env("LIB_FUZZING_ENGINE", "-fsanitize=fuzzer"), "")
	fs.StringVar(&b.clang, "clang", env("CXX", "clang++"), "")
	fs.StringVar(&b.dict, "dict", "", "")
	fs.BoolVar(&b.zip, "zip", false, "")
	fs.BoolVar(&b.print, "x", false, "")
	list := fs.Bool("list", false, "")
	fail := func(code int, format string, args ...any) int {
		fmt.Fprintf(stderr, "libfuzzer: "+format+"\n", args...)
		return code
	}
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, usage)
		return 0
	} else if err != nil {
		return fail(2, "%v (libfuzzer -h explains)", err)
	}
	all, err := find(".")
	if err != nil {
		return fail(2, "%v; run it in the module's folder", err)
	}
	if *list {
		for _, t := range all {
			fmt.Fprintf(stdout, "%-32s %s.%s\n", t.name(), t.dir, t.fn)
		}
		return 0
	}
	if b.out == "" {
		return fail(2, "-out DIR is missing (libfuzzer -h explains)")
	}
	chosen := all
	if fs.NArg() > 0 {
		chosen = nil
		for _, name := range fs.Args() {
			i := indexOf(all, name)
			if i < 0 {
				return fail(2, "there is no target %q; -list lists them", name)
			}
			chosen = append(chosen, all[i])
		}
	}
	if b.out, err = filepath.Abs(b.out); err == nil {
		err = os.MkdirAll(b.out, 0o777)
	}
	if err != nil {
		return fail(2, "%v", err)
	}
	code := 0
	for _, t := range chosen {
		if err := b.build(t); err != nil {
			code = fail(1, "%s: %v", t.name(), err)
		}
	}
	return code
}

func env(name, otherwise string) string {
	if v := os.Getenv(name); v != "" {
		return v
	}
	return otherwise
}

func indexOf(all []target, name string) int {
	for i := range all {
		if all[i].name() == name {
			return i
		}
	}
	return -1
}

// build builds a target and writes its seeds.
func (b *builder) build(t target) error {
	tmp, err := os.MkdirTemp("", "libfuzzer")
	if err != nil {
		return err
	}
	defer os.RemoveAll(tmp)
	overlay, mains, err := t.overlay(tmp)
	if err != nil {
		return err
	}
	j, err := json.Marshal(map[string]any{"Replace": overlay})
	if err != nil {
		return err
	}
	file := filepath.Join(tmp, "overlay.json")
	if err := os.WriteFile(file, j, 0o666); err != nil {
		return err
	}
	archive := filepath.Join(tmp, "fuzz.a")
	if err := b.command("go", "build", "-overlay", file, "-buildmode=c-archive", "-trimpath", "-tags", "libfuzzer,gofuzz",
		"-gcflags=all=-d=libfuzzer", "-o", archive, mains.fuzz); err != nil {
		return err
	}
	program := filepath.Join(b.out, t.name())
	link := append(strings.Fields(os.Getenv("CXXFLAGS")), strings.Fields(b.engine)...)
	if err := b.command(b.clang, append(link, archive, "-lpthread", "-o", program)...); err != nil {
		return err
	}
	if b.dict != "" {
		d, err := os.ReadFile(b.dict)
		if err == nil {
			err = os.WriteFile(program+".dict", d, 0o666)
		}
		if err != nil {
			return err
		}
	}
	// Seeds: the same target, run once by an ordinary program.
	seeder := filepath.Join(tmp, "seeder")
	if err := b.command("go", "build", "-overlay", file, "-o", seeder, mains.seeds); err != nil {
		return err
	}
	seeds := program + "_seed_corpus"
	if err := os.MkdirAll(seeds, 0o777); err != nil {
		return err
	}
	cmd := exec.Command(seeder)
	cmd.Env = append(os.Environ(), "LIBFUZZER_SEEDS="+seeds)
	cmd.Dir = t.dir // tests read testdata in their folder
	cmd.Stderr = b.stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("seeds: %w", err)
	}
	if b.zip {
		if err := zipDir(seeds+".zip", seeds); err != nil {
			return err
		}
		return os.RemoveAll(seeds)
	}
	return nil
}

func (b *builder) command(name string, args ...string) error {
	if b.print {
		fmt.Fprintln(b.stdout, name, strings.Join(args, " "))
	}
	cmd := exec.Command(name, args...)
	cmd.Stdout, cmd.Stderr = b.stdout, b.stderr
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	return nil
}
