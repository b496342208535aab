package main

import (
	"fmt"
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

// maxSegments bounds the memory that a capture full of random tags can take. Further
// ones count as number 0.
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

// segmentJSON appends what segmentText has, as members of an object.
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
