package main

import (
	"fmt"
	"io"

	"github.com/roce-go/roce/fuzz/mutator"
)

// summary counts what was done.
type summary struct {
	in, out       uint64
	kept, notRoCE uint64
	lies          [8]uint64
	kinds         [int(mutator.Closed) + 1]uint64
}

func (s *summary) add(r *mutator.Report) {
	s.in++
	switch {
	case r.Kept:
		s.kept++
	case !r.RoCE:
		s.notRoCE++
	}
	for _, c := range r.Changes() {
		s.kinds[c.Kind]++
	}
	s.lies[r.Lie&7]++
}

func (s *summary) print(w io.Writer, o *options, src *source) {
	fmt.Fprintf(w, "%d frames in", s.in)
	if src.passes > 0 {
		fmt.Fprintf(w, " (the capture %d times)", src.passes+1)
	}
	fmt.Fprintf(w, ", %d frames out; seed %d, icrc %v; %d kept, %d not RoCE\n", s.out, o.cfg.Seed, o.cfg.ICRC, s.kept, s.notRoCE)
	if src.other > 0 {
		fmt.Fprintf(w, "%d frames of another link type than the first (%d) were left out: a pcap file has one\n", src.other, src.link)
	}
	row := 0
	cell := func(name string, n uint64) {
		if n == 0 {
			return
		}
		fmt.Fprintf(w, "  %-22s %9d", name, n)
		if row++; row%2 == 0 {
			fmt.Fprintln(w)
		}
	}
	for k, n := range s.kinds {
		cell(mutator.Kind(k).String(), n)
	}
	for l := mutator.LieIP; int(l) < len(s.lies); l++ {
		cell("lie: "+l.String(), s.lies[l])
	}
	if row%2 == 1 {
		fmt.Fprintln(w)
	}
}
