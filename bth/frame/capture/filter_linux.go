package capture

import (
	"syscall"

	"github.com/roce-go/roce/bth/frame"
)

// The filter is a program for the kernel's classic BPF machine, which runs over each frame
// before it is copied: an accumulator, an index register, loads from the frame, and jumps
// forward only. Where exact tests would take more than a few instructions it accepts frames
// that are not RoCE; it never refuses one that a Finder would find.

// assembler writes such a program. Jumps to accept and reject are filled in at the
// end.
type assembler struct{ prog []syscall.SockFilter }

// Targets of a jump whose place is not known yet.
const (
	toAccept = 0xff
	toReject = 0xfe
)

func (a *assembler) add(code uint16, jt, jf uint8, k uint32) {
	a.prog = append(a.prog, syscall.SockFilter{Code: code, Jt: jt, Jf: jf, K: k})
}

// load8, load16 and load16x load from the frame; the last adds the index register.
func (a *assembler) load8(at uint32) {
	a.add(syscall.BPF_LD|syscall.BPF_B|syscall.BPF_ABS, 0, 0, at)
}

func (a *assembler) load16(at uint32) {
	a.add(syscall.BPF_LD|syscall.BPF_H|syscall.BPF_ABS, 0, 0, at)
}

func (a *assembler) load16x(at uint32) {
	a.add(syscall.BPF_LD|syscall.BPF_H|syscall.BPF_IND, 0, 0, at)
}

// equal jumps by whether the accumulator equals k.
func (a *assembler) equal(k uint32, jt, jf uint8) {
	a.add(syscall.BPF_JMP|syscall.BPF_JEQ|syscall.BPF_K, jt, jf, k)
}

// oneOf accepts where the accumulator is one of values, else goes on.
func (a *assembler) oneOf(values ...uint32) {
	for _, v := range values {
		a.equal(v, toAccept, 0)
	}
}

func (a *assembler) reject() { a.add(syscall.BPF_RET|syscall.BPF_K, 0, 0, 0) }

// finish ends the program: frames that reach its end are rejected. accept is how many bytes
// to keep of an accepted frame.
func (a *assembler) finish(accept uint32) []syscall.SockFilter {
	end := len(a.prog)
	a.reject()
	a.add(syscall.BPF_RET|syscall.BPF_K, 0, 0, accept)
	for i := range a.prog[:end] {
		for _, j := range []*uint8{&a.prog[i].Jt, &a.prog[i].Jf} {
			switch *j {
			case toAccept:
				*j = uint8(end + 1 - i - 1)
			case toReject:
				*j = uint8(end - i - 1)
			}
		}
	}
	return a.prog
}

// filter returns the program for frames of link, Ethernet or RawIP.
func filter(link frame.Link, cfg *LiveConfig) []syscall.SockFilter {
	accept := uint32(MaxData)
	if cfg.SnapLen > 0 {
		accept = uint32(min(cfg.SnapLen, MaxData))
	}
	var a assembler
	if cfg.All {
		a.add(syscall.BPF_RET|syscall.BPF_K, 0, 0, accept)
		return a.prog
	}
	ports := []uint32{frame.Port}
	if cfg.Finder.UDPPort != 0 {
		ports[0] = uint32(cfg.Finder.UDPPort)
	}
	var v4, v6, types []uint32
	if cfg.Finder.Tunnels {
		// IP in IP, GRE, MPLS in IP, Ethernet in IP; over IPv6 also behind extension
		// headers.
		v4 = []uint32{4, 41, 47, 137, 143}
		v6 = append([]uint32{0, 43, 44, 60}, v4...)
		types = []uint32{0x8847, 0x8848}
		ports = append(ports, 4789, 8472, 4790, 6081, 6635)
		for _, p := range cfg.Finder.VXLANPorts {
			ports = append(ports, uint32(p))
		}
	}
	base := uint32(0)
	if link == frame.Ethernet {
		base = 14
		a.load16(12)
		// RoCE v1, PFC and PAUSE. The kernel removes the outermost tag. Frames with
		// more tags are accepted unseen: each depth would need a copy of the program.
		a.oneOf(append(types, frame.EtherTypeRoCE, 0x8808, frame.EtherTypeVLAN, frame.EtherTypeQinQ, frame.EtherTypeOldQinQ)...)
		v4Block := len(v4) + len(ports) + 7
		a.equal(frame.EtherTypeIPv4, 1, 0)
		a.equal(frame.EtherTypeIPv6, uint8(v4Block), toReject)
	} else {
		v4Block := len(v4) + len(ports) + 7
		a.load8(0)
		a.add(syscall.BPF_ALU|syscall.BPF_AND|syscall.BPF_K, 0, 0, 0xf0)
		a.equal(0x40, 1, 0)
		a.equal(0x60, uint8(v4Block), toReject)
	}
	// IPv4: protocol, not a later fragment, port behind a header of any length.
	a.load8(base + 9)
	a.oneOf(v4...)
	a.equal(17, 0, toReject)
	a.load16(base + 6)
	a.add(syscall.BPF_JMP|syscall.BPF_JSET|syscall.BPF_K, toReject, 0, 0x1fff)
	a.add(syscall.BPF_LDX|syscall.BPF_B|syscall.BPF_MSH, 0, 0, base)
	a.load16x(base + 2)
	a.oneOf(ports...)
	a.reject()
	// IPv6.
	a.load8(base + 6)
	a.oneOf(v6...)
	a.equal(17, 0, toReject)
	a.load16(base + 40 + 2)
	a.oneOf(ports...)
	return a.finish(accept)
}
