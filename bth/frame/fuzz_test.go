package frame_test

import (
	"encoding/hex"
	"testing"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/fuzz/seeds"
)

func FuzzFrame(f *testing.F) {
	for _, v := range loadVectors(f) {
		raw, err := hex.DecodeString(v.Hex)
		if err != nil {
			f.Fatal(err)
		}
		link := frame.RawIP
		if v.LinkType == "ethernet" {
			link = frame.Ethernet
		}
		f.Add(uint16(link), raw, len(raw), uint16(0))
	}
	for _, net := range nets {
		for _, c := range links(net) {
			f.Add(uint16(c.link), c.b, len(c.b), uint16(0))
			f.Add(uint16(c.link), c.b[:len(c.b)-7], len(c.b), uint16(0))
		}
	}
	for _, x := range loadTunnels(f) {
		f.Add(uint16(frame.Ethernet), x.b, len(x.b), uint16(0))
	}
	for _, v := range mrcVectors(f) {
		raw, err := hex.DecodeString(v.Hex)
		if err != nil {
			f.Fatal(err)
		}
		f.Add(uint16(frame.RawIP), raw, len(raw), uint16(0))
	}
	seeds.Into(f).Each(func(s *seeds.Frame) []any { return []any{uint16(s.Link), s.Data, s.WireLen, uint16(0)} })
	f.Fuzz(func(t *testing.T, link uint16, b []byte, wireLen int, port uint16) {
		d := frame.Finder{UDPPort: port}
		checkBytes(t, frame.Link(link), b, wireLen, d)
		checkMRC(t, frame.Link(link), b, wireLen, d)
		d.Tunnels, d.VXLANPorts, d.Sliced = true, []uint16{port + 1}, true
		checkBytes(t, frame.Link(link), b, wireLen, d)
		d.TrimmedDSCP = 0x5555555555555555
		checkMRC(t, frame.Link(link), b, wireLen, d)
	})
}
