// Package seeds chooses frames out of captures that are unlike each other, as
// seeds for fuzz targets: one frame of each kind (link, network header, tags,
// opcode, kind of response, flags, class of length), the shortest.
//
//	func FuzzReceive(f *testing.F) {
//		seeds.Into(f).Packets(func(s *seeds.Frame) []any { return []any{s.Frame.Transport} })
//		f.Fuzz(func(t *testing.T, packet []byte) { ... })
//	}
//
// The fuzz targets of this module are seeded so, at run time: only what a fuzzer
// found or a person wrote lies in testdata/fuzz.
package seeds

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/bth/frame/capture"
	"github.com/roce-go/roce/fuzz/captures"
)

// Env names the environment variable that lists more captures, separated as in
// PATH. Captures reads them too.
const Env = "ROCE_CAPTURES"

// Frame is one captured frame.
type Frame struct {
	capture.Record             // its Data stays valid
	File           string      // the capture's name, without folder and extension
	RoCE           bool        // Frame is valid
	Frame          frame.Frame // views of Data
}

// Name returns "FILE-NUMBER".
func (s *Frame) Name() string { return fmt.Sprintf("%s-%d", s.File, s.Number) }

// File is one capture.
type File struct {
	Name   string // without folder and extension
	Bytes  []byte // the file as it is
	Frames []*Frame
}

// Corpus holds the captures and the frames chosen from them.
type Corpus struct {
	Files  []*File
	Chosen []*Frame // one of each kind over all files, the shortest first
}

// Captures returns the corpus of the module's own captures, and of those that
// the environment variable ROCE_CAPTURES names.
func Captures() (*Corpus, error) {
	c := new(Corpus)
	entries, err := captures.Files.ReadDir(".")
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		b, err := captures.Files.ReadFile(e.Name())
		if err != nil {
			return nil, err
		}
		if err := c.add(e.Name(), b); err != nil {
			return nil, err
		}
	}
	for _, name := range filepath.SplitList(os.Getenv(Env)) {
		if err := c.read(name); err != nil {
			return nil, fmt.Errorf("%s: %w", Env, err)
		}
	}
	c.choose()
	return c, nil
}

// Read returns the corpus of the named pcap and pcapng files.
func Read(names ...string) (*Corpus, error) {
	c := new(Corpus)
	for _, name := range names {
		if err := c.read(name); err != nil {
			return nil, err
		}
	}
	c.choose()
	return c, nil
}

func (c *Corpus) read(name string) error {
	b, err := os.ReadFile(name)
	if err != nil {
		return err
	}
	return c.add(name, b)
}

// add reads a capture. If it ends inside a record, the complete records are used.
func (c *Corpus) add(name string, b []byte) error {
	base := filepath.Base(name)
	f := &File{Name: strings.TrimSuffix(base, filepath.Ext(base)), Bytes: b}
	r, err := capture.NewReader(bytes.NewReader(b))
	if err != nil {
		return fmt.Errorf("%s: %w", name, err)
	}
	for {
		s := &Frame{File: f.Name}
		if err = r.Next(&s.Record); err != nil {
			break
		}
		s.Data = bytes.Clone(s.Data)
		s.RoCE = frame.Finder{}.Decode(s.Link, s.Data, s.WireLen, &s.Frame) == nil
		f.Frames = append(f.Frames, s)
	}
	if err != io.EOF && !errors.Is(err, capture.ErrTruncated) {
		return fmt.Errorf("%s: %w", name, err)
	}
	c.Files = append(c.Files, f)
	return nil
}

// choose fills Chosen.
func (c *Corpus) choose() {
	best := map[kind]*Frame{}
	var order []kind
	for _, f := range c.Files {
		for _, s := range f.Frames {
			k := s.kind()
			have := best[k]
			if have == nil {
				order = append(order, k)
			}
			if have == nil || len(s.Data) < len(have.Data) {
				best[k] = s
			}
		}
	}
	for _, k := range order {
		c.Chosen = append(c.Chosen, best[k])
	}
	slices.SortStableFunc(c.Chosen, func(a, b *Frame) int { return len(a.Data) - len(b.Data) })
}

// EtherType returns the first Ethertype of an Ethernet frame (of a tag, if there is one); 0
// for other link types.
func (s *Frame) EtherType() uint16 {
	if s.Link != frame.Ethernet || len(s.Data) < 14 {
		return 0
	}
	return binary.BigEndian.Uint16(s.Data[12:])
}

// kind holds the properties by which frames are compared: frames with equal kinds count as
// alike.
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

// beginning returns the first frames of a file from the first RoCE frame on, at most n bytes
// of them.
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

// byNews returns the files in an order in which each file has, in its first n bytes, the most
// kinds of frame that the files before it do not have.
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
