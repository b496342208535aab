package main

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/roce-go/roce/bth/frame"
)

// segments numbers the networks that VLANs and tunnels separate, since each may use
// the same addresses. Number 0 is the network without tags and tunnels.
type segments struct {
	all []frame.Segment
	ids map[frame.Segment]uint32
}

func newSegments() segments {
	return segments{all: make([]frame.Segment, 1), ids: map[frame.Segment]uint32{{}: 0}}
}

// maxSegments bounds the memory for a capture full of random tags. Further segments count as
// number 0.
const maxSegments = 1 << 14

func (s *segments) id(x frame.Segment) uint32 {
	id, ok := s.ids[x]
	if !ok && len(s.all) < maxSegments {
		id = uint32(len(s.all))
		s.all = append(s.all, x)
		s.ids[x] = id
	}
	return id
}

// segmentText returns for example " vlan 100 vxlan 5000", or "" for the zero value.
func segmentText(x frame.Segment) string {
	var b strings.Builder
	for _, v := range x.VLAN {
		if v != 0 {
			fmt.Fprintf(&b, " vlan %d", v)
		}
	}
	switch {
	case x.Ends[0].IsValid():
		fmt.Fprintf(&b, " %s %s %s", x.Kind, x.Ends[0], x.Ends[1])
	case x.Kind != 0:
		fmt.Fprintf(&b, " %s %d", x.Kind, x.ID)
	}
	return b.String()
}

// segmentJSON appends the same as segmentText, as members of an object.
func segmentJSON(b []byte, x frame.Segment) []byte {
	sep := `,"vlan":[`
	for _, v := range x.VLAN {
		if v != 0 {
			b = strconv.AppendUint(append(b, sep...), uint64(v), 10)
			sep = ","
		}
	}
	if sep == "," {
		b = append(b, ']')
	}
	if x.Kind != 0 {
		b = append(append(append(b, `,"tunnel":"`...), x.Kind.String()...), '"')
		if x.Ends[0].IsValid() {
			b = appendAddr(append(b, `,"ends":["`...), x.Ends[0])
			b = append(appendAddr(append(b, `","`...), x.Ends[1]), `"]`...)
		} else {
			b = num(b, `,"id":`, uint64(x.ID))
		}
	}
	return b
}

// protocols counts the frames that are not RoCE.
type protocols struct {
	n     map[frame.Protocol]int
	total int
}

// maxProtocols bounds the memory for a capture of a port scan. Further protocols are counted
// in total.
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

// textProtocols is the number of protocols in a line of text.
const textProtocols = 8

// list returns the most frequent protocols that keep accepts, with their frame counts, after
// prefix; or "" if there are none.
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

// appendOther describes a frame that is not RoCE.
func (d *dumper) appendOther(b []byte, why error) []byte {
	return d.proto.AppendTo(append(append(b, why.Error()...), ": "...))
}
