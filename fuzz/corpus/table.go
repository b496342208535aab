package main

import (
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/fuzz/internal/records"
)

// target is a fuzz target of the module and what it eats.
type target struct {
	pkg, name string // folder in the module, function
	eats      string
	// seeds makes inputs of captures. Nil is for a target that eats nothing that a
	// capture holds: its own seeds have to do.
	seeds func(c *captures) []seed
}

// seed is one input: where it is from, and the arguments of the target.
type seed struct {
	from string
	args []any
}

// targets lists every fuzz target of the module; a test holds that it does.
var targets = []target{
	{"aeth", "FuzzAeth", "AETH and what follows it", headers(bth.HasAETH)},
	{"bth", "FuzzHeaders", "BTH and extended headers", transport(headersOnly)},
	{"bth", "FuzzPacket", "transport packet, its length on the wire", transport(func(s *sample) []any {
		return []any{s.f.Transport, len(s.f.Transport)}
	})},
	{"bth/frame", "FuzzFrame", "link type, frame, length on the wire, UDP port", frames(func(s *sample) []any {
		return []any{uint16(s.rec.Link), s.rec.Data, s.rec.WireLen, uint16(0)}
	})},
	{"bth/frame/capture", "FuzzReader", "capture file", files},
	{"bth/rocelayers", "FuzzBTH", "transport packet", transport(func(s *sample) []any { return []any{s.f.Transport} })},
	{"bth/rocelayers", "FuzzFrame", "Ethernet frame", frames(justFrame)},
	{"cnp", "FuzzHeader", "transport packet of a CNP", transport(func(s *sample) []any {
		if s.f.Packet.Opcode != bth.CNP {
			return nil
		}
		return []any{s.f.Transport}
	})},
	{"cnp", "FuzzReactionPoint", "calls of a reaction point", nil},
	{"cnp/pfc", "FuzzDecode", "Ethernet frame of PFC or PAUSE", others(0x8808)},
	{"crc", "FuzzKernels", "network packet without ICRC, where it is cut, alignment, register", transport(func(s *sample) []any {
		n := len(s.f.NetPacket) - bth.ICRCSize
		return []any{s.f.NetPacket[:n], uint16(n / 2), byte(n % 64), uint32(n)}
	})},
	{"examples/rocedump", "FuzzDump", "capture file", files},
	{"fuzz", "FuzzLink", "seed, work, schedule of a link", nil},
	{"fuzz", "FuzzPort", "frames with modes", flows(func(i int) byte {
		// Adapted to the port, receives posted, time that goes by, and at times a
		// request posted.
		mode := byte(1 | 4 | i%8<<4)
		if i%5 == 0 {
			mode |= 2
		}
		return mode
	}, func(b []byte) []any { return []any{b} })},
	{"fuzz", "FuzzWatch", "frames with modes, seed, mode", flows(func(int) byte { return 5 << 4 },
		func(b []byte) []any { return []any{b, uint64(len(b)), byte(len(b))} })},
	{"fuzz/mutator", "FuzzMutate", "frame, link type, bytes not captured, seed, mode", frames(func(s *sample) []any {
		return []any{s.rec.Data, uint16(s.rec.Link), uint16(0), uint64(s.number), byte(s.number)}
	})},
	{"psn", "FuzzPSN", "two PSNs and a count", nil},
	{"qp", "FuzzMachines", "calls of two machines, and packets", nil},
	{"qp/cm", "FuzzMachine", "calls of a machine, and datagrams", nil},
	{"qp/cm", "FuzzMachinePair", "what a link does to each datagram", nil},
	{"qp/cm", "FuzzMessage", "management datagram", transport(func(s *sample) []any {
		if s.f.Packet.DestQP != 1 || len(s.f.Packet.Payload) != 256 {
			return nil
		}
		return []any{s.f.Packet.Payload}
	})},
	{"qp/conform", "FuzzWatcher", "frames with time steps", flows(func(int) byte { return 7 },
		func(b []byte) []any { return []any{b} })},
	{"qp/script", "FuzzRun", "text of a script", nil},
	{"qp/simnet", "FuzzSwitch", "Ethernet frame", frames(justFrame)},
	{"qp/softnic", "FuzzHandleFrame", "mode, two Ethernet frames", nil},
	{"reth", "FuzzReth", "RETH, AtomicETH, ImmDt, IETH or FETH and what follows it",
		headers(bth.HasRETH | bth.HasAtomicETH | bth.HasImmDt | bth.HasIETH | bth.HasFETH)},
}

func justFrame(s *sample) []any {
	if s.rec.Link != frame.Ethernet {
		return nil
	}
	return []any{s.rec.Data}
}

// headersOnly gives the headers of a packet and the first bytes behind.
func headersOnly(s *sample) []any {
	return []any{s.f.Transport[:min(len(s.f.Transport), 48)]}
}

// frames gives chosen frames, RoCE or not.
func frames(args func(*sample) []any) func(*captures) []seed {
	return func(c *captures) (out []seed) {
		for _, s := range c.chosen {
			if a := args(s); a != nil {
				out = append(out, seed{s.name(), a})
			}
		}
		return out
	}
}

// transport gives chosen frames that hold a whole packet.
func transport(args func(*sample) []any) func(*captures) []seed {
	return frames(func(s *sample) []any {
		if !s.roce || s.f.Truncated() {
			return nil
		}
		return args(s)
	})
}

// others gives frames of an Ethertype.
func others(etherType uint16) func(*captures) []seed {
	return frames(func(s *sample) []any {
		if s.rec.Link != frame.Ethernet || s.etherType() != etherType {
			return nil
		}
		return []any{s.rec.Data}
	})
}

// headers gives the extended headers of packets that have one of a set, from the
// first of them on.
func headers(set bth.Ext) func(*captures) []seed {
	return transport(func(s *sample) []any {
		e := s.f.Packet.Opcode.Ext()
		if e&set == 0 {
			return nil
		}
		first := e & set & -(e & set)
		b := s.f.Transport[bth.Size+(e&(first-1)).Size():]
		return []any{b[:min(len(b), 40)]}
	})
}

// files gives the beginning of each capture file, in which the last record is
// cut: a case of its own.
func files(c *captures) (out []seed) {
	for _, f := range c.byNews(1500) {
		out = append(out, seed{f.name, []any{f.b[:min(len(f.b), 1500)]}})
	}
	return out
}

// flows gives the beginning of each capture as records, from the first RoCE frame
// on.
func flows(mode func(i int) byte, args func([]byte) []any) func(*captures) []seed {
	return func(c *captures) (out []seed) {
		for _, f := range c.byNews(2500) {
			var b []byte
			for i, s := range f.begin(2500) {
				b = records.Append(b, mode(i), s.rec.Data)
			}
			if b != nil {
				out = append(out, seed{f.name, args(b)})
			}
		}
		return out
	}
}
