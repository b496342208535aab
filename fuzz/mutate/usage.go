package main

import (
	"fmt"
	"io"
	"strings"

	"github.com/roce-go/roce/fuzz/mutator"
)

const usageText = `usage: mutate -in FILE -out FILE [options]

Reads a pcap or pcapng file, changes its RoCE frames by a seed, repairs lengths
and ICRC or breaks them as asked, and writes a pcap file with times in
nanoseconds, to be replayed at a device or fed to a program. The same options
and input give the same output.

  -in FILE       capture to take frames from, gzip'ed or not; - is standard input
  -out FILE      pcap file to write; - is standard output
  -seed N        which changes are chosen (default 1)
  -n N           how many frames to take; the capture is begun again where it has
                 fewer (default: each frame once). Frames that are dropped are not
                 written, and those sent twice are written twice
  -icrc MODE     valid, bad, or keep the four bytes as they were (default valid)
  -lengths MODE  repair, or lie: one length field of each frame is wrong, all else
                 is right (default repair)
  -kinds LIST    kinds of change and groups of them, separated by commas; one that
                 begins with - is taken away (default all)
  -changes N     most changes of fields in a frame, 1 to 8 (default 3)
  -keep PERCENT  share of frames left alone (default 0)
  -speed FACTOR  times of the output: recorded (the default), or so many times as
                 fast: 2 halves the gaps, 0 removes them
  -port N        UDP destination port of RoCE v2 (default 4791)
  -mrc           opcodes 0xc0 to 0xdf, which are any manufacturer's, are those of
                 MRC 1.0, and its headers are changed too (experimental)
  -log FILE      write a line for each frame that says what was done to it
  -h             this text

Kinds:
%s
Groups:
%s
A summary goes to standard error. Exit code: 0 all is well; 1 the capture ends
inside a frame (what came before was used); 2 bad usage, unreadable input, or
output that cannot be written.

Examples:

  ten thousand frames that a receiver has to look at twice
      mutate -in a.pcap -out b.pcap -seed 1 -n 10000
  does the device check the ICRC before it acts?
      mutate -in a.pcap -out b.pcap -icrc bad -kinds none
  retransmission under fire: order alone, half of the frames untouched
      mutate -in a.pcap -out b.pcap -kinds sequence -keep 50
  nothing that leaves the protocol
      mutate -in a.pcap -out b.pcap -kinds=-escape,-malform
  send it, as fast as it was recorded
      tcpreplay -i eth0 b.pcap
`

func usage(w io.Writer) {
	var groups strings.Builder
	for name, s := range mutator.Groups {
		fmt.Fprintf(&groups, "  %-9s %s\n", name, describe(name, s))
	}
	fmt.Fprintf(w, usageText, wrap(names(mutator.KindsOf(mutator.None).Or(mutator.AllKinds))), groups.String())
}

// describe says what a group is for, or from where to where it goes.
func describe(name string, s mutator.Kinds) string {
	switch name {
	case "all":
		return "everything"
	case "fields":
		return "all but sequence"
	case "escape":
		return "what may no longer be taken for RoCE:\n            " + strings.Join(names(s), " ")
	case "malform":
		return "what may break the layout of a packet:\n            " + strings.Join(names(s), " ")
	}
	n := names(s)
	return n[0] + " to " + n[len(n)-1]
}

func names(s mutator.Kinds) (list []string) {
	for k := range s.All {
		list = append(list, k.String())
	}
	return list
}

func wrap(words []string) string {
	var b strings.Builder
	line := " "
	for _, w := range words {
		if len(line)+1+len(w) > 78 {
			b.WriteString(line + "\n")
			line = " "
		}
		line += " " + w
	}
	return b.String() + line + "\n"
}
