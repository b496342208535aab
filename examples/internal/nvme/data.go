package nvme

import (
	"net/netip"
	"strings"
)

// Properties of a controller, by their offsets (Base 3.1.3).
const (
	PropertyCAP  = 0x00 // 8 bytes
	PropertyVS   = 0x08
	PropertyCC   = 0x14
	PropertyCSTS = 0x1c
)

// Bits of CC and CSTS.
const (
	CCEnable      = 1 << 0
	CCShutdown    = 3 << 14
	CSTSReady     = 1 << 0
	CSTSFatal     = 1 << 1
	CSTSShutdown  = 2 << 2        // complete
	CCEntrySizes  = 6<<16 | 4<<20 // of 64 and 16 bytes, as powers of two
	Version14     = 0x00010400
	CAPNVM        = 1 << 37 // the NVM command set
	CAPContiguous = 1 << 16
)

// CNS selects what Identify returns.
const (
	IdentifyNamespaceCNS   = 0x00
	IdentifyControllerCNS  = 0x01
	IdentifyNamespacesCNS  = 0x02
	IdentifyDescriptorsCNS = 0x03
)

// Features.
const (
	FeatureArbitration   = 0x01
	FeaturePower         = 0x02
	FeatureTemperature   = 0x04
	FeatureErrorRecovery = 0x05
	FeatureWriteCache    = 0x06
	FeatureQueues        = 0x07
	FeatureAsyncEvents   = 0x0b
	FeatureKeepAlive     = 0x0f
	FeatureHostID        = 0x81
)

// Log pages.
const (
	LogErrors     = 0x01
	LogSMART      = 0x02
	LogFirmware   = 0x03
	LogNamespaces = 0x04
	LogEffects    = 0x05
	LogDiscovery  = 0x70
)

// Controller holds the fields of Identify Controller (Base 5.17.2.1) that are not zero here.
type Controller struct {
	Serial, Model, Firmware string // 20, 40 and 8 characters
	MDTS                    uint8  // maximum data of a command: 4096 << MDTS bytes
	CntlID                  uint16
	Version                 uint32
	OAES                    uint32 // asynchronous events
	CTRATT                  uint32
	Type                    uint8 // 1 I/O, 2 discovery
	AERL                    uint8 // asynchronous event requests, less one
	ELPE                    uint8 // entries of the error log, less one
	LPA                     uint8
	KAS                     uint16 // keep-alive granularity, in 100 ms
	MaxCmd                  uint16
	NN                      uint32 // maximum number of namespaces
	ONCS                    uint16
	VWC                     uint8
	SGLS                    uint32
	SubNQN                  string
	CapsuleSize             uint32 // of commands, in 16 bytes
	DataOffset              uint16 // from the command to its data in the capsule, in 16 bytes
}

// inline returns how many bytes of data a command of an I/O queue may carry, if they follow
// the command immediately, as RDMA requires.
func (c *Controller) inline() int {
	if c.SGLS&SGLSOffset == 0 || c.DataOffset != 0 {
		return 0
	}
	return max(int(min(c.CapsuleSize, 1<<20))*16-CommandSize, 0)
}

// Bits of the fields.
const (
	OAESNamespace    = 1 << 8
	OAESDiscovery    = 1 << 31
	CTRATTTraffic    = 1 << 6 // traffic counts as keep-alive
	ONCSDataset      = 1 << 2
	ONCSWriteZeroes  = 1 << 3
	SGLSSupported    = 1 << 0
	SGLSKeyed        = 1 << 2
	SGLSOffset       = 1 << 20 // in-capsule data
	LPASMART         = 1 << 0
	LPAEffects       = 1 << 1
	LPAExtended      = 1 << 2 // long lengths and offsets
	identifyVersion  = 80
	identifyQueues   = 512
	identifySubNQN   = 768
	identifyCapsules = 1792
)

// AppendTo appends IdentifySize bytes.
func (c *Controller) AppendTo(b []byte) []byte {
	var x [IdentifySize]byte
	padded(x[4:24], c.Serial)
	padded(x[24:64], c.Model)
	padded(x[64:72], c.Firmware)
	x[77] = c.MDTS
	le.PutUint16(x[78:], c.CntlID)
	le.PutUint32(x[identifyVersion:], c.Version)
	le.PutUint32(x[92:], c.OAES)
	le.PutUint32(x[96:], c.CTRATT)
	x[111], x[259], x[261], x[262] = c.Type, c.AERL, c.LPA, c.ELPE
	le.PutUint16(x[320:], c.KAS)
	x[identifyQueues], x[identifyQueues+1] = 0x66, 0x44 // entries of 64 and 16 bytes
	le.PutUint16(x[514:], c.MaxCmd)
	le.PutUint32(x[516:], c.NN)
	le.PutUint16(x[520:], c.ONCS)
	x[525] = c.VWC
	le.PutUint32(x[536:], c.SGLS)
	copy(x[identifySubNQN:identifySubNQN+NQNSize-1], c.SubNQN)
	le.PutUint32(x[identifyCapsules:], c.CapsuleSize)
	le.PutUint32(x[identifyCapsules+4:], CompletionSize/16)
	le.PutUint16(x[identifyCapsules+8:], c.DataOffset)
	x[1803] = 1 // SGL descriptors of a command
	return append(b, x[:]...)
}

// Decode reads an Identify Controller structure.
func (c *Controller) Decode(b []byte) error {
	if len(b) < IdentifySize {
		return ErrShort
	}
	trim := func(b []byte) string { return strings.TrimRight(string(b), " \x00") }
	*c = Controller{
		Serial: trim(b[4:24]), Model: trim(b[24:64]), Firmware: trim(b[64:72]), MDTS: b[77], CntlID: le.Uint16(b[78:]),
		Version: le.Uint32(b[identifyVersion:]), OAES: le.Uint32(b[92:]), CTRATT: le.Uint32(b[96:]), Type: b[111],
		AERL: b[259], LPA: b[261], ELPE: b[262], KAS: le.Uint16(b[320:]), MaxCmd: le.Uint16(b[514:]), NN: le.Uint32(b[516:]),
		ONCS: le.Uint16(b[520:]), VWC: b[525], SGLS: le.Uint32(b[536:]), SubNQN: text(b[identifySubNQN : identifySubNQN+NQNSize]),
		CapsuleSize: le.Uint32(b[identifyCapsules:]), DataOffset: le.Uint16(b[identifyCapsules+8:]),
	}
	return nil
}

// padded writes s, followed by spaces.
func padded(b []byte, s string) {
	for i := copy(b, s); i < len(b); i++ {
		b[i] = ' '
	}
}

// Namespace holds the fields of Identify Namespace: its size and identifiers.
type Namespace struct {
	Blocks    uint64
	BlockLog  uint8 // a block has 1 << BlockLog bytes
	Deallocs  bool  // deallocated blocks read as zeros
	NGUID     [16]byte
	Capacity  uint64
	Allocated uint64
}

// AppendTo appends IdentifySize bytes.
func (n *Namespace) AppendTo(b []byte) []byte {
	var x [IdentifySize]byte
	le.PutUint64(x[:], n.Blocks)
	le.PutUint64(x[8:], n.Capacity)
	le.PutUint64(x[16:], n.Allocated)
	if n.Deallocs {
		x[33] = 1 | 1<<3 // read as zeros, and so by Write Zeroes
	}
	copy(x[104:], n.NGUID[:])
	x[130] = n.BlockLog
	return append(b, x[:]...)
}

// Decode reads an Identify Namespace structure.
func (n *Namespace) Decode(b []byte) error {
	if len(b) < IdentifySize {
		return ErrShort
	}
	*n = Namespace{Blocks: le.Uint64(b), Capacity: le.Uint64(b[8:]), Allocated: le.Uint64(b[16:]), Deallocs: b[33]&7 == 1,
		NGUID: [16]byte(b[104:]), BlockLog: b[128+4*int(b[26]&15)+2]}
	return nil
}

// DiscoverySize is the size in bytes of the discovery log's header, and of each entry.
const DiscoverySize = 1024

// DiscoveryEntry is a subsystem's port in the discovery log (Base 5.16.1.23), over
// RDMA.
type DiscoveryEntry struct {
	Type   uint8 // 2 a subsystem with namespaces, 3 this discovery subsystem
	PortID uint16
	NQN    string
	Addr   netip.Addr
	Port   string
}

// AppendTo appends DiscoverySize bytes.
func (d *DiscoveryEntry) AppendTo(b []byte) []byte {
	var x [DiscoverySize]byte
	x[0], x[1], x[2] = 1, 1, d.Type // RDMA, IPv4
	if d.Addr.Is6() {
		x[1] = 2
	}
	x[3] = 2 // no secure channel
	le.PutUint16(x[4:], d.PortID)
	le.PutUint16(x[6:], 0xffff) // any controller
	le.PutUint16(x[8:], AdminDepth)
	padded(x[32:64], d.Port)
	copy(x[256:511], d.NQN)
	padded(x[512:768], d.Addr.String())
	x[768], x[769], x[770] = 1, 4, 1 // reliable connection, RoCE v2, RDMA-CM
	return append(b, x[:]...)
}

// Decode reads an entry.
func (d *DiscoveryEntry) Decode(b []byte) error {
	if len(b) < DiscoverySize {
		return ErrShort
	}
	*d = DiscoveryEntry{Type: b[2], PortID: le.Uint16(b[4:]), NQN: text(b[256:512]), Port: strings.TrimRight(text(append(b[32:64:64], 0)), " ")}
	d.Addr, _ = netip.ParseAddr(strings.TrimRight(text(append(b[512:768:768], 0)), " "))
	return nil
}

// AppendDiscovery appends the discovery log: generation, entries.
func AppendDiscovery(b []byte, generation uint64, entries []DiscoveryEntry) []byte {
	head := len(b)
	b = append(b, make([]byte, DiscoverySize)...)
	le.PutUint64(b[head:], generation)
	le.PutUint64(b[head+8:], uint64(len(entries)))
	for i := range entries {
		b = entries[i].AppendTo(b)
	}
	return b
}

// Range is a range of blocks of Dataset Management: 16 bytes.
type Range struct {
	Attributes uint32
	Blocks     uint32
	LBA        uint64
}

// RangeSize is its size in bytes.
const RangeSize = 16

// Decode reads a range.
func (r *Range) Decode(b []byte) error {
	if len(b) < RangeSize {
		return ErrShort
	}
	*r = Range{le.Uint32(b), le.Uint32(b[4:]), le.Uint64(b[8:])}
	return nil
}

// AppendTo appends RangeSize bytes.
func (r *Range) AppendTo(b []byte) []byte {
	b = le.AppendUint32(b, r.Attributes)
	b = le.AppendUint32(b, r.Blocks)
	return le.AppendUint64(b, r.LBA)
}
