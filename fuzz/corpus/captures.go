package main

import (
	"encoding/binary"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/fuzz/internal/records"
	"github.com/roce-go/roce/fuzz/mutator"
)

// captures is what seeds are made of.
type captures struct {
	files  []*captureFile
	chosen []*sample // of all files, one of each kind
}

type captureFile struct {
	name    string
	b       []byte
	samples []*sample
}

type sample struct {
	file   *captureFile
	number int // from 1
	rec    mutator.Record
	roce   bool
	f      frame.Frame // where it is
}

func (s *sample) name() string { return fmt.Sprintf("%s-%d", s.file.name, s.number) }

func (s *sample) etherType() uint16 {
	if s.rec.Link != frame.Ethernet || len(s.rec.Data) < 14 {
		return 0
	}
	return binary.BigEndian.Uint16(s.rec.Data[12:])
}

// kind is what makes a frame like another: link, network header, tags, opcode,
// kind of answer, flags, pad and class of length.
type kind struct {
	link      frame.Link
	net       frame.Net
	vlans     uint8
	etherType uint16
	opcode    int
	flags     uint8
	answer    uint8
	length    int
	bad       bool
}

func (s *sample) kind() kind {
	k := kind{link: s.rec.Link, opcode: -1}
	if !s.roce {
		k.etherType = s.etherType()
		return k
	}
	p := &s.f.Packet
	k.net, k.vlans, k.opcode = s.f.Net, s.f.VLANs, int(p.Opcode)
	k.answer = uint8(p.AETH.Syndrome.Kind())
	if k.answer != 0 {
		k.answer = uint8(p.AETH.Syndrome)
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
	k.bad = s.f.CheckICRC() == frame.ICRCBad
	return k
}

// load reads files and chooses of each kind of frame the shortest.
func load(names []string) (*captures, error) {
	c := &captures{}
	best := map[kind]*sample{}
	for _, name := range names {
		b, err := os.ReadFile(name)
		if err != nil {
			return nil, err
		}
		recs, err := records.ReadFile(name)
		if err != nil {
			return nil, err
		}
		base := filepath.Base(name)
		f := &captureFile{name: strings.TrimSuffix(base, filepath.Ext(base)), b: b}
		c.files = append(c.files, f)
		for i, r := range recs {
			s := &sample{file: f, number: i + 1, rec: r}
			s.roce = frame.Finder{}.Decode(r.Link, r.Data, r.WireLen, &s.f) == nil
			f.samples = append(f.samples, s)
			k := s.kind()
			if have := best[k]; have == nil || len(r.Data) < len(have.rec.Data) {
				best[k] = s
			}
		}
	}
	for _, f := range c.files {
		for _, s := range f.samples {
			if best[s.kind()] == s {
				c.chosen = append(c.chosen, s)
			}
		}
	}
	slices.SortStableFunc(c.chosen, func(a, b *sample) int { return len(a.rec.Data) - len(b.rec.Data) })
	return c, nil
}

// begin returns the first frames of a file from the first RoCE frame on, n bytes
// at most.
func (f *captureFile) begin(n int) (out []*sample) {
	for _, s := range f.samples {
		if !s.roce && out == nil {
			continue
		}
		if n -= len(s.rec.Data); n < 0 {
			break
		}
		out = append(out, s)
	}
	return out
}

// byNews returns the files such that each begins with the most kinds of frame, in
// its first n bytes, that those before it do not.
func (c *captures) byNews(n int) (out []*captureFile) {
	left := slices.Clone(c.files)
	seen := make(map[kind]bool)
	news := func(f *captureFile) int {
		mine := make(map[kind]bool)
		for _, s := range f.begin(n) {
			if k := s.kind(); !seen[k] {
				mine[k] = true
			}
		}
		return len(mine)
	}
	for len(left) > 0 {
		best := 0
		for i, f := range left {
			if news(f) > news(left[best]) {
				best = i
			}
		}
		for _, s := range left[best].begin(n) {
			seen[s.kind()] = true
		}
		out = append(out, left[best])
		left = slices.Delete(left, best, best+1)
	}
	return out
}
