package mutator

import (
	"errors"
	"fmt"
	"math/bits"
	"strconv"
	"strings"
)

// Kind is one way to change a frame or the order of frames.
type Kind uint8

// Kinds of change. None is no change: with Kinds of only None, a frame is
// only repaired, or broken, as Config says.
const (
	None Kind = iota

	// Base transport header.
	OpcodeService  // another opcode of the service, headers and payload made to fit
	OpcodeOther    // an opcode of another service, made to fit
	OpcodeReserved // an opcode without a layout, nothing else changed
	Relabel        // any other opcode, nothing else changed
	Solicited
	Migration
	PadCnt // only the count: the pad bytes stay
	TVer
	PKey
	FECN
	BECN
	Reserved6 // the bits after BECN
	DestQP
	AckReq
	Reserved7 // the bits after AckReq
	PSN

	// Extended headers.
	RETHAddress
	RETHRKey
	RETHLength
	AETHSyndrome
	AETHMSN
	AtomicAddress
	AtomicRKey
	AtomicSwap
	AtomicCompare
	AtomicAck
	Immediate
	IETHRKey
	DETHQKey
	DETHReserved
	DETHSource
	RDETH
	XRCETH
	FETH

	// Headers of MRC, where Config.MRC is set. Some are in several headers.
	MRCRetransmission  // the rtx bit of the BTH
	MRCTimestampHeader // the ts bit and the TSETH that it tells
	METHRQMSN
	METHMSN
	MRCTimestamp
	MRCTimeFormat // tsr, reserved bits and ftype
	MRCType       // type and next header
	MRCReserved   // a reserved field
	MRCVendor
	MRCEntropy
	MRCContext        // spdcid and dpdcid
	MRCCongestionType // cc_type and cc_flags
	SETHVerdict       // m
	SETHProbe         // pr
	SETHCause         // ack_psn_offset, or the id of a probe
	SETHCumulative    // cack_psn
	SETHWindow        // mpr
	SETHOffset
	SETHBitmap
	CCOutOfOrder
	CCPenalty // restore_cwnd and rcv_cwnd_pen
	CCReceived
	NETHReason
	NETHSequence // nack_psn
	PETHID
	EndpointOp
	ERTHPorts

	// Payload, with the pad that it needs.
	PayloadTruncate
	PayloadExtend
	PayloadFlip
	PayloadMTU // a path MTU, or a byte or word more or less than one
	Cut        // the transport packet ends earlier, in its headers too

	// Link, IP, UDP.
	ECN
	DSCP
	TTL
	FlowLabel
	IPID
	DontFragment
	AddressSwap
	AddressFlip
	SourcePort
	DestPort
	UDPChecksum
	VLANAdd
	VLANRemove
	VLANTag
	IPv4Options // added or removed
	Fragment
	IPVersion
	Protocol

	// Bytes, whatever they mean.
	Flip
	Trailing // bytes after the packet

	// Order and time; done by a Stream.
	Drop
	Duplicate
	Reorder   // sent after some of the frames that follow
	Delay     // sent later
	ReplayOld // after the frame an old one is sent again

	numKinds

	// Closed cannot be chosen: the capture had truncated the frame, and the packet now ends
	// there.
	Closed = numKinds
)

var kindNames = [numKinds + 1]string{
	"none",
	"opcode", "opcode-other", "opcode-reserved", "relabel", "se", "m", "padcnt", "tver", "pkey", "fecn", "becn",
	"resv6", "destqp", "ackreq", "resv7", "psn",
	"reth-va", "reth-rkey", "reth-len", "aeth-syndrome", "aeth-msn", "atomic-va", "atomic-rkey", "atomic-swap",
	"atomic-compare", "atomic-ack", "imm", "ieth-rkey", "deth-qkey", "deth-resv", "deth-srcqp", "rdeth", "xrceth", "feth",
	"mrc-rtx", "mrc-ts", "meth-rqmsn", "meth-msn", "mrc-timestamp", "mrc-tsr", "mrc-type", "mrc-reserved", "mrc-vendor",
	"mrc-entropy", "mrc-dcid", "mrc-cc-type", "seth-m", "seth-pr", "seth-cause", "seth-cack-psn", "seth-mpr", "seth-offset",
	"seth-bitmap", "cc-ooo", "cc-penalty", "cc-rcvd", "neth-reason", "neth-psn", "peth-id", "mrc-op", "erth-ports",
	"payload-truncate", "payload-extend", "payload-flip", "payload-mtu", "cut",
	"ecn", "dscp", "ttl", "flow-label", "ip-id", "df", "address-swap", "address-flip", "sport", "dport", "udp-checksum",
	"vlan-add", "vlan-remove", "vlan-tag", "ipv4-options", "fragment", "ip-version", "protocol",
	"flip", "trailing",
	"drop", "duplicate", "reorder", "delay", "replay",
	"closed",
}

// String returns a short name, for example "psn", or the decimal value if it is
// not a defined kind.
func (k Kind) String() string {
	if int(k) < len(kindNames) {
		return kindNames[k]
	}
	return strconv.Itoa(int(k))
}

// Kinds is a set of Kind.
type Kinds [2]uint64

// KindsOf returns the set of ks.
func KindsOf(ks ...Kind) (s Kinds) {
	for _, k := range ks {
		s[k>>6&1] |= 1 << (k & 63)
	}
	return s
}

func kindRange(from, to Kind) (s Kinds) {
	for k := from; k <= to; k++ {
		s = s.Or(KindsOf(k))
	}
	return s
}

// Groups of kinds.
var (
	BTHKinds      = kindRange(OpcodeService, PSN)
	ExtKinds      = kindRange(RETHAddress, FETH)
	MRCKinds      = kindRange(MRCRetransmission, ERTHPorts)
	PayloadKinds  = kindRange(PayloadTruncate, Cut)
	NetKinds      = kindRange(ECN, Protocol)
	RawKinds      = kindRange(Flip, Trailing)
	SequenceKinds = kindRange(Drop, ReplayOld)
	// FieldKinds change bytes of frames, and AllKinds are these and SequenceKinds.
	FieldKinds = kindRange(OpcodeService, Trailing)
	AllKinds   = kindRange(OpcodeService, ReplayOld)

	// EscapeKinds may leave a frame that is no longer recognised as RoCE.
	EscapeKinds = KindsOf(DestPort, Fragment, IPVersion, Protocol, Flip)
	// MalformKinds may leave a packet that bth refuses: lengths that do not fit
	// the opcode, opcodes without a layout, a TVer that is not 0.
	MalformKinds = KindsOf(OpcodeReserved, Relabel, PadCnt, TVer, Flip, Cut,
		PayloadTruncate, PayloadExtend, PayloadMTU, Closed)
)

var groups = []struct {
	name string
	set  Kinds
}{
	{"all", AllKinds}, {"fields", FieldKinds}, {"bth", BTHKinds}, {"ext", ExtKinds}, {"mrc", MRCKinds}, {"payload", PayloadKinds},
	{"net", NetKinds}, {"raw", RawKinds}, {"sequence", SequenceKinds},
	{"escape", EscapeKinds}, {"malform", MalformKinds.AndNot(KindsOf(Closed))},
}

// Has reports whether k is in s.
func (s Kinds) Has(k Kind) bool { return k < 128 && s[k>>6]>>(k&63)&1 != 0 }

// Or returns the kinds in s or t.
func (s Kinds) Or(t Kinds) Kinds { return Kinds{s[0] | t[0], s[1] | t[1]} }

// And returns the kinds in s and t.
func (s Kinds) And(t Kinds) Kinds { return Kinds{s[0] & t[0], s[1] & t[1]} }

// AndNot returns the kinds in s and not in t.
func (s Kinds) AndNot(t Kinds) Kinds { return Kinds{s[0] &^ t[0], s[1] &^ t[1]} }

// Len returns the number of kinds in s.
func (s Kinds) Len() int { return bits.OnesCount64(s[0]) + bits.OnesCount64(s[1]) }

// nth returns the kind in s that has i kinds of s before it.
func (s Kinds) nth(i int) Kind {
	for w, v := range s {
		for ; v != 0; v &= v - 1 {
			if i == 0 {
				return Kind(w*64 + bits.TrailingZeros64(v))
			}
			i--
		}
	}
	return None
}

// after returns the kinds that may not follow a change of kind k in the same
// frame, because they could undo or drop it: k itself, other opcodes after an
// opcode, whatever moves headers and payload after a change inside these. Bits
// flipped anywhere are the only change.
func after(k Kind) Kinds {
	if k == Flip {
		return FieldKinds.AndNot(KindsOf(Trailing))
	}
	s := KindsOf(k, Flip)
	switch {
	case opcodeKinds.Has(k):
		s = s.Or(opcodeKinds)
	case lengthKinds.Has(k) || ExtKinds.Has(k) || MRCKinds.Has(k) || k == PadCnt || k == PayloadFlip:
		s = s.Or(opcodeKinds).Or(lengthKinds)
	case vlanKinds.Has(k):
		s = s.Or(vlanKinds)
	}
	return s
}

var (
	opcodeKinds = kindRange(OpcodeService, Relabel).Or(KindsOf(MRCTimestampHeader))
	lengthKinds = KindsOf(PayloadTruncate, PayloadExtend, PayloadMTU, Cut)
	vlanKinds   = kindRange(VLANAdd, VLANTag)
)

// ErrKind means a name that is neither a kind nor a group.
var ErrKind = errors.New("mutator: unknown kind of change")

// ParseKinds reads a list of kinds and groups, separated by commas. One that
// begins with "-" is removed; a list that begins so begins with all.
func ParseKinds(list string) (s Kinds, err error) {
	for i, name := range strings.Split(list, ",") {
		name, minus := strings.CutPrefix(strings.TrimSpace(name), "-")
		set := Kinds{}
		for _, g := range groups {
			if g.name == name {
				set = g.set
			}
		}
		for k, n := range kindNames[:numKinds] {
			if n == name {
				set = KindsOf(Kind(k))
			}
		}
		if set == (Kinds{}) {
			return s, fmt.Errorf("%w: %q", ErrKind, name)
		}
		if !minus {
			s = s.Or(set)
			continue
		}
		if i == 0 {
			s = AllKinds
		}
		s = s.AndNot(set)
	}
	return s, nil
}

// Groups yields the name and members of each group that ParseKinds knows.
func Groups(yield func(name string, s Kinds) bool) {
	for _, g := range groups {
		if !yield(g.name, g.set) {
			return
		}
	}
}

// All yields the kinds of s in order.
func (s Kinds) All(yield func(Kind) bool) {
	for i := range s.Len() {
		if !yield(s.nth(i)) {
			return
		}
	}
}
