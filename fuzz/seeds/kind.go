package seeds

import (
	"encoding/binary"
	"slices"

	"github.com/roce-go/roce/bth/frame"
)

// EtherType returns the Ethertype of an Ethernet frame, before any tag is looked
// into, or 0.
func (s *Frame) EtherType() uint16 {
	if s.Link != frame.Ethernet || len(s.Data) < 14 {
		return 0
	}
	return binary.BigEndian.Uint16(s.Data[12:])
}

// kind is what makes a frame like another.
type kind struct {
	link      frame.Link
	net       frame.Net
	vlans     uint8
	etherType uint16
	opcode    int
	flags     uint8
	response  uint8
	length    int
	bad       bool
}

func (s *Frame) kind() kind {
	k := kind{link: s.Link, opcode: -1}
	if !s.RoCE {
		k.etherType = s.EtherType()
		return k
	}
	p := &s.Frame.Packet
	k.net, k.vlans, k.opcode = s.Frame.Net, s.Frame.VLANs, int(p.Opcode)
	k.response = uint8(p.AETH.Syndrome.Kind())
	if k.response != 0 {
		k.response = uint8(p.AETH.Syndrome)
	}
	for i, on := range []bool{p.SE, p.PadCnt > 0, p.DestQP == 1, p.TVer != 0} {
		if on {
			k.flags |= 1 << i
		}
	}
	if p.DestQP == 1 && len(p.Payload) > 17 {
		k.etherType = uint16(p.Payload[17]) // the kind of management datagram
	}
	for _, limit := range []int{0, 8, 64, 512} {
		if len(p.Payload) > limit {
			k.length++
		}
	}
	k.bad = s.Frame.CheckICRC() == frame.ICRCBad
	return k
}

// beginning returns the first frames of a file from the first RoCE frame on, n
// bytes at most.
func (f *File) beginning(n int) (out []*Frame) {
	for _, s := range f.Frames {
		if !s.RoCE && out == nil {
			continue
		}
		if n -= len(s.Data); n < 0 {
			break
		}
		out = append(out, s)
	}
	return out
}

// byNews returns the files in an order in which each begins with the most kinds
// of frame, in its first n bytes, that those before it do not.
func (c *Corpus) byNews(n int) (out []*File) {
	left := slices.Clone(c.Files)
	seen := make(map[kind]bool)
	news := func(f *File) int {
		fresh := make(map[kind]bool)
		for _, s := range f.beginning(n) {
			if k := s.kind(); !seen[k] {
				fresh[k] = true
			}
		}
		return len(fresh)
	}
	for len(left) > 0 {
		best, most := 0, -1
		for i, f := range left {
			if n := news(f); n > most {
				best, most = i, n
			}
		}
		for _, s := range left[best].beginning(n) {
			seen[s.kind()] = true
		}
		out = append(out, left[best])
		left = slices.Delete(left, best, best+1)
	}
	return out
}
