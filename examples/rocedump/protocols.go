package main

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/roce-go/roce/bth/frame"
)

// protocols counts the frames that are not RoCE.
type protocols struct {
	n     map[frame.Protocol]int
	total int
}

// maxProtocols bounds the memory that a capture of a port scan can take. Further
// ones are counted in total.
const maxProtocols = 1 << 12

func (s *protocols) add(p frame.Protocol) {
	s.total++
	if n, ok := s.n[p]; ok || len(s.n) < maxProtocols {
		s.n[p] = n + 1
	}
}

// sorted returns the protocols, most frequent first.
func (s *protocols) sorted() []frame.Protocol {
	keys := make([]frame.Protocol, 0, len(s.n))
	for p := range s.n {
		keys = append(keys, p)
	}
	slices.SortFunc(keys, func(a, b frame.Protocol) int {
		return cmp.Or(cmp.Compare(s.n[b], s.n[a]), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Number, b.Number), cmp.Compare(a.In, b.In))
	})
	return keys
}

// textProtocols is how many protocols a line for people has.
const textProtocols = 8

// list returns the most frequent protocols that keep accepts, and their frames,
// behind prefix; or "" if there are none.
func (s *protocols) list(prefix string, keep func(frame.Protocol) bool) string {
	var parts []string
	more := 0
	for _, p := range s.sorted() {
		switch {
		case keep != nil && !keep(p):
		case len(parts) < textProtocols:
			parts = append(parts, fmt.Sprintf("%d %s", s.n[p], p))
		default:
			more += s.n[p]
		}
	}
	if len(parts) == 0 {
		return ""
	}
	if more > 0 {
		parts = append(parts, fmt.Sprintf("%d more", more))
	}
	return prefix + strings.Join(parts, ", ")
}

// appendOther says what a frame is that is not RoCE.
func (d *dumper) appendOther(b []byte, why error) []byte {
	return d.proto.AppendTo(append(append(b, why.Error()...), ": "...))
}
