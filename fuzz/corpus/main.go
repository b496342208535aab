// Corpus makes seeds for the fuzz targets of the module out of captures.
package main

import (
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"
	"strings"
)

const usage = `usage: corpus [-root DIR] [-limit N] [-list] [CAPTURE...]

Reads pcap and pcapng files (by default fuzz/captures/*.pcap), chooses frames
that are unlike each other, and writes them as seeds for every fuzz target of the
module, each in the form that it eats, to the testdata/fuzz folders. Seeds that
an earlier run wrote, testdata/fuzz/*/capture-*, are replaced; others are left.

  -root DIR   the module's folder (default .)
  -limit N    most bytes of seeds for a target (default 40000)
  -list       list the targets and what they eat, and write nothing
  -h          this text

Exit code: 0 all is well; 2 bad usage, a file that cannot be read or written.
`

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

func run(args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("corpus", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	root := fs.String("root", ".", "")
	limit := fs.Int("limit", 40_000, "")
	list := fs.Bool("list", false, "")
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, usage)
		return 0
	} else if err != nil {
		fmt.Fprintf(stderr, "corpus: %v (corpus -h explains)\n", err)
		return 2
	}
	if *list {
		for _, t := range targets {
			from := "captures"
			if t.seeds == nil {
				from = "its own"
			}
			fmt.Fprintf(stdout, "%-28s %-18s seeds: %-9s eats: %s\n", t.pkg, t.name, from, t.eats)
		}
		return 0
	}
	if _, err := os.Stat(filepath.Join(*root, "go.mod")); err != nil {
		fmt.Fprintf(stderr, "corpus: %v; run it in the module's folder, or name that with -root\n", err)
		return 2
	}
	names := fs.Args()
	if len(names) == 0 {
		names, _ = filepath.Glob(filepath.Join(*root, "fuzz/captures/*.pcap"))
	}
	files, err := generate(names, *limit)
	if err == nil {
		err = write(*root, files, stdout)
	}
	if err != nil {
		fmt.Fprintf(stderr, "corpus: %v\n", err)
		return 2
	}
	return 0
}

const prefix = "capture-"

// generate returns the seed files by their paths in the module.
func generate(names []string, limit int) (map[string][]byte, error) {
	if len(names) == 0 {
		return nil, errors.New("there are no captures; name some")
	}
	c, err := load(names)
	if err != nil {
		return nil, err
	}
	files := make(map[string][]byte)
	for _, t := range targets {
		if t.seeds == nil {
			continue
		}
		size := 0
		seen := make(map[string]bool)
		for _, s := range t.seeds(c) {
			b, err := encode(s.args)
			if err != nil {
				return nil, fmt.Errorf("%s.%s: %w", t.pkg, t.name, err)
			}
			if seen[string(b)] || size+len(b) > limit {
				continue
			}
			seen[string(b)] = true
			size += len(b)
			files[filepath.Join(t.dir(), prefix+s.from)] = b
		}
	}
	return files, nil
}

func (t *target) dir() string { return filepath.Join(t.pkg, "testdata/fuzz", t.name) }

// encode writes arguments in the form that go test reads.
func encode(args []any) ([]byte, error) {
	var b strings.Builder
	b.WriteString("go test fuzz v1\n")
	for _, a := range args {
		switch v := a.(type) {
		case []byte:
			b.WriteString("[]byte(" + strconv.Quote(string(v)) + ")\n")
		case string:
			b.WriteString("string(" + strconv.Quote(v) + ")\n")
		case bool, int, uint16, uint32, uint64:
			fmt.Fprintf(&b, "%T(%v)\n", v, v)
		case byte:
			b.WriteString("byte(" + strconv.QuoteRuneToASCII(rune(v)) + ")\n")
		default:
			return nil, fmt.Errorf("a seed of type %T", v)
		}
	}
	return []byte(b.String()), nil
}

// write replaces the seeds below root.
func write(root string, files map[string][]byte, stdout io.Writer) error {
	total := 0
	for _, t := range targets {
		dir := filepath.Join(root, t.dir())
		old, err := filepath.Glob(filepath.Join(dir, prefix+"*"))
		if err != nil {
			return err
		}
		for _, name := range old {
			if err := os.Remove(name); err != nil {
				return err
			}
		}
		n, size := 0, 0
		for name, b := range files {
			if filepath.Dir(name) != t.dir() {
				continue
			}
			if n == 0 {
				if err := os.MkdirAll(dir, 0o777); err != nil {
					return err
				}
			}
			if err := os.WriteFile(filepath.Join(root, name), b, 0o666); err != nil {
				return err
			}
			n++
			size += len(b)
		}
		total += size
		fmt.Fprintf(stdout, "%-28s %-18s %4d seeds %8d bytes\n", t.pkg, t.name, n, size)
	}
	fmt.Fprintf(stdout, "%d bytes in all\n", total)
	return nil
}
