// Corpus writes seeds for your fuzz target, made from captures.
package main

import (
	"bytes"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strconv"

	"github.com/roce-go/roce/fuzz/seeds"
)

const usage = `usage: corpus -frames DIR [options] [CAPTURE...]

Reads pcap and pcapng files (by default the captures of this module), chooses
frames that are unlike each other, the shortest of each kind, and writes each as
a seed into DIR, as NAME-NUMBER of its capture. A file that is there already and
differs is left alone and reported.

  -frames DIR   where to write, such as testdata/fuzz/FuzzReceive: go test takes
                seeds of func(t *testing.T, b []byte) from there
  -part PART    what of a frame: frame (all of it, the default), network (from
                the IP header or GRH to the ICRC), packet (from the BTH to the
                ICRC). The last two leave out frames that are no RoCE
  -raw          write plain bytes, as libFuzzer and AFL read them, instead of
                go test's format
  -h            this text

The fuzz targets of this module need no seed files: they are seeded at run time,
with more captures where ROCE_CAPTURES lists some:

    ROCE_CAPTURES=$PWD/my.pcap go test -run '^$' -fuzz '^FuzzPort$' ./fuzz

Exit code: 0 all is well; 2 bad usage, a file that cannot be read or written, or
one in DIR that differs.
`

func main() { os.Exit(run(os.Args[1:], os.Stdout, os.Stderr)) }

// parts are the parts of a frame that can be written; nil means that the frame has no such
// part.
var parts = map[string]func(s *seeds.Frame) []byte{
	"frame": func(s *seeds.Frame) []byte { return s.Data },
	"network": func(s *seeds.Frame) []byte {
		if !s.RoCE {
			return nil
		}
		return s.Frame.NetPacket
	},
	"packet": func(s *seeds.Frame) []byte {
		if !s.RoCE {
			return nil
		}
		return s.Frame.Transport
	},
}

func run(args []string, stdout, stderr io.Writer) int {
	fs := flag.NewFlagSet("corpus", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	dir := fs.String("frames", "", "")
	part := fs.String("part", "frame", "")
	raw := fs.Bool("raw", false, "")
	fail := func(format string, args ...any) int {
		fmt.Fprintf(stderr, "corpus: "+format+"\n", args...)
		return 2
	}
	if err := fs.Parse(args); errors.Is(err, flag.ErrHelp) {
		fmt.Fprint(stdout, usage)
		return 0
	} else if err != nil {
		return fail("%v (corpus -h explains)", err)
	}
	if *dir == "" {
		return fail("-frames DIR is missing: where shall the seeds go? (corpus -h explains)")
	}
	of := parts[*part]
	if of == nil {
		return fail("-part %q: give frame, network or packet", *part)
	}
	c, err := read(fs.Args())
	if err != nil {
		return fail("%v", err)
	}
	if err := os.MkdirAll(*dir, 0o777); err != nil {
		return fail("%v", err)
	}
	n, size, differ := 0, 0, 0
	for _, s := range c.Chosen {
		b := of(s)
		if b == nil {
			continue
		}
		if !*raw {
			b = []byte("go test fuzz v1\n[]byte(" + strconv.Quote(string(b)) + ")\n")
		}
		name := filepath.Join(*dir, s.Name())
		if old, err := os.ReadFile(name); err == nil && !bytes.Equal(old, b) {
			fmt.Fprintf(stderr, "corpus: %s is there and differs; left alone\n", name)
			differ++
			continue
		}
		if err := os.WriteFile(name, b, 0o666); err != nil {
			return fail("%v", err)
		}
		n++
		size += len(b)
	}
	fmt.Fprintf(stdout, "%d seeds, %d bytes, in %s\n", n, size, *dir)
	if differ > 0 {
		return 2
	}
	if n == 0 {
		return fail("the captures hold no such frame")
	}
	return 0
}

func read(names []string) (*seeds.Corpus, error) {
	if len(names) == 0 {
		return seeds.Captures()
	}
	return seeds.Read(names...)
}
