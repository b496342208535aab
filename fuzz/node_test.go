package fuzz_test

import (
	"bytes"
	"net/netip"
	"testing"
	"time"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/softnic"
)

// must fails the test on an error of the test's own making.
func must(t testing.TB, err error) {
	if err != nil {
		t.Helper()
		t.Fatal(err)
	}
}

// memory is bytes with guards on both sides.
type memory struct {
	all, data []byte
	fixed     []byte // what data has to stay, where not nil
}

const guard = 64

func newMemory(n int) *memory {
	m := &memory{all: bytes.Repeat([]byte{0xa5}, n+2*guard)}
	m.data = m.all[guard : guard+n] // the capacity reaches into the guard, on purpose
	return m
}

func (m *memory) check(t testing.TB) {
	for i := range guard {
		if m.all[i] != 0xa5 || m.all[len(m.all)-1-i] != 0xa5 {
			t.Helper()
			t.Fatal("bytes outside of registered memory were written")
		}
	}
	if m.fixed != nil && !bytes.Equal(m.fixed, m.data) {
		t.Helper()
		t.Fatal("memory that grants no writing was written")
	}
}

// Values that both nodes share.
const (
	firstPSN = psn.PSN(0xfffffa) // wraps soon
	qkey     = 0x11111111
	va       = 0x7f0000001000
	fixedVA  = 0x7f0000100000
	size     = 8192
)

// node is a port with a QP of each kind, regions and posted receives.
type node struct {
	t    testing.TB
	now  time.Time
	port *softnic.Port
	cq   *softnic.CQ

	rc, uc, ud, xrc  *softnic.QP
	srq              *softnic.SRQ
	key, fixedKey    uint32
	mem, fixed, recv *memory
	local            *memory // results of READs and atomics
	done             []qp.Completion
	posts            int
	buf              []byte
}

var (
	addrs = [2]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}
	macs  = [2]frame.MAC{{0x52, 0x54, 0, 0, 0, 1}, {0x52, 0x54, 0, 0, 0, 2}} // as in the captures
	t0    = time.Unix(1_800_000_000, 0)
)

// newNode makes node i, whose peer has QPs of the same numbers.
func newNode(t testing.TB, i int) *node {
	n := &node{t: t, now: t0, cq: softnic.NewCQ(), buf: make([]byte, 0, 8192)}
	regs, err := qp.NewRegions(8)
	must(t, err)
	n.port, err = softnic.New(softnic.Config{
		MAC: macs[i], GIDs: []softnic.GID{{Addr: addrs[i]}}, Regions: regs, MaxQPs: 8, MaxNeighbors: 4,
	})
	must(t, err)
	n.port.AddNeighbor(addrs[1-i], macs[1-i])

	n.mem, n.fixed, n.recv, n.local = newMemory(size), newMemory(size), newMemory(size), newMemory(size)
	n.fixed.fixed = bytes.Clone(n.fixed.data)
	all := qp.RemoteRead | qp.RemoteWrite | qp.RemoteAtomic | qp.FlushGlobal | qp.FlushPersistent
	n.key, err = regs.Register(qp.Region{Data: n.mem.data, Addr: va, Access: all})
	must(t, err)
	n.fixedKey, err = regs.Register(qp.Region{Data: n.fixed.data, Addr: fixedVA, Access: qp.RemoteRead})
	must(t, err)

	n.srq, err = n.port.CreateSRQ(16, 1)
	must(t, err)
	qps := [...]**softnic.QP{&n.rc, &n.uc, &n.ud, &n.xrc}
	for k, typ := range []qp.Type{qp.RC, qp.UC, qp.UD, qp.XRCRecv} {
		cfg := softnic.QPConfig{SendCQ: n.cq, RecvCQ: n.cq, Config: qp.Config{
			Type: typ, QPN: uint32(0x11 + k), MaxSendWR: 16, MaxRecvWR: 16, MaxRdAtomic: 4, MaxDestRdAtomic: 4,
		}}
		if typ == qp.XRCRecv {
			cfg.XRCD, cfg.MaxSendWR, cfg.MaxRdAtomic = 1, 0, 0
		}
		*qps[k], err = n.port.CreateQP(cfg)
		must(t, err)
		n.connect(*qps[k], typ, addrs[1-i].As16(), all)
	}
	for range 8 {
		n.postRecv()
	}
	return n
}

func (n *node) connect(q *softnic.QP, typ qp.Type, gid [16]byte, access qp.Access) {
	a := qp.Attr{
		PKey: 0xffff, QKey: qkey, Access: access, PathMTU: 1024, DestQPN: q.Num(), AH: qp.AHAttr{GID: gid},
		RQPSN: firstPSN, SQPSN: firstPSN, MaxDestRdAtomic: 4, MaxRdAtomic: 4, MinRNRTimer: 12,
		Timeout: 14, RetryCnt: 5, RNRRetry: 5,
	}
	must(n.t, q.Connect(n.now, &a))
}

// postRecv posts a receive to every queue that has room.
func (n *node) postRecv() {
	wr := qp.RecvWR{ID: 1, Local: n.recv.data}
	for _, q := range []interface{ PostRecv(*qp.RecvWR) error }{n.rc, n.uc, n.ud, n.srq} {
		if q.PostRecv(&wr) == nil {
			n.posts++
		}
	}
}

// post posts request number k of a small choice to the RC or UC QP.
func (n *node) post(k int) {
	l := n.local.data
	data := n.fixed.data
	wr := [...]qp.SendWR{
		{Op: qp.OpSend, Local: data[:100]},
		{Op: qp.OpWrite, Local: data[:3000], RemoteAddr: va + 64, RKey: n.key},
		{Op: qp.OpRead, Local: l[1024:4096], RemoteAddr: va, RKey: n.key},
		{Op: qp.OpFetchAdd, Local: l[:8], RemoteAddr: va + 8, RKey: n.key, CompareAdd: 3},
		{Op: qp.OpCmpSwap, Local: l[8:16], RemoteAddr: va + 16, RKey: n.key, CompareAdd: 1, Swap: 2},
		{Op: qp.OpSendImm, Local: data[:2500], Imm: 7, Flags: qp.Solicited},
		{Op: qp.OpWriteImm, Local: data[:1], RemoteAddr: va, RKey: n.key, Imm: 9, Flags: qp.Fence},
		{Op: qp.OpAtomicWrite, Local: data[:8], RemoteAddr: va + 24, RKey: n.key},
		{Op: qp.OpFlush, RemoteAddr: va, RKey: n.key, Length: 64},
	}[k%9]
	wr.ID = uint64(2 + k)
	wr.Flags |= qp.Signaled
	q := n.rc
	if k%16 >= 9 {
		q = n.uc
	}
	if q.PostSend(n.now, &wr) == nil {
		n.posts++
	}
}

// mostFrames is what a port may want to say at most after one call: the responses
// to four READs of the whole region, and all that it has outstanding.
const mostFrames = 4*size/1024 + 16*8 + 64

// drain takes all frames, hands them to send, and checks them; and polls.
func (n *node) drain(send func(b []byte)) {
	var f frame.Frame
	for count := 0; ; count++ {
		b, ok := n.port.NextFrame(n.now, n.buf[:0])
		if !ok {
			break
		}
		n.buf = b
		if count == mostFrames {
			n.t.Fatalf("more than %d frames after one call", count)
		}
		err := f.Decode(frame.Ethernet, b)
		switch {
		case err == frame.ErrNotRoCE:
			// Address resolution.
		case err != nil:
			n.t.Fatalf("a frame of ours cannot be decoded: %v: %x", err, b)
		case f.CheckICRC() != frame.ICRCGood:
			n.t.Fatalf("a frame of ours has a bad ICRC: %x", b)
		case f.Validate() != nil:
			n.t.Fatalf("a frame of ours is not valid: %v: %x", f.Validate(), b)
		}
		if send != nil {
			send(b)
		}
	}
	var wc qp.Completion
	for n.cq.Poll(&wc) {
		n.done = append(n.done, wc)
		if len(n.done) > n.posts {
			n.t.Fatalf("%d completions of %d requests", len(n.done), n.posts)
		}
	}
	var e softnic.Event
	for n.port.NextEvent(&e) {
		if e.Event.String() == "" {
			n.t.Fatal("an event without a name")
		}
	}
}

// tick lets the time of the node's deadline come, or reports false where it has
// none.
func (n *node) tick() bool {
	d, ok := n.port.Deadline()
	if !ok {
		return false
	}
	if d.After(n.now) {
		n.now = d
	}
	n.port.Tick(n.now)
	if d, ok := n.port.Deadline(); ok && !d.After(n.now) {
		n.t.Fatal("after Tick the deadline is not later than now")
	}
	return true
}

func (n *node) check() {
	for _, m := range []*memory{n.mem, n.fixed, n.recv, n.local} {
		m.check(n.t)
	}
}

// adapter turns frames of other connections into frames to a node: addresses,
// QP numbers and keys become the node's, and PSNs count from its first ones.
type adapter struct {
	n     *node
	first [8][2]psn.PSN
	known [8][2]bool
	f     frame.Frame
	buf   []byte
}

// adapt returns the frame for the node, or b where it is no RoCE frame.
func (a *adapter) adapt(b []byte) []byte {
	f, n := &a.f, a.n
	if f.Decode(frame.Ethernet, b) != nil {
		return b
	}
	p := &f.Packet
	f.Net, f.DstMAC, f.SrcMAC, f.VLANs = frame.IPv4, macs[0], macs[1], 0
	f.Src, f.Dst, f.Options = addrs[1], addrs[0], nil
	p.PKey |= 0x7fff
	p.DestQP = n.rc.Num()
	switch p.Opcode.Service() {
	case bth.UC:
		p.DestQP = n.uc.Num()
	case bth.UD:
		p.DestQP = n.ud.Num()
	case bth.XRC:
		p.DestQP = n.xrc.Num()
	}
	side := 0
	if p.Opcode.Class() == bth.Response {
		side = 1
	}
	s := p.Opcode.Service()
	if !a.known[s][side] {
		a.known[s][side], a.first[s][side] = true, p.PSN
	}
	p.PSN = firstPSN.Add(p.PSN.Diff(a.first[s][side]))
	a.region(&p.RETH.RKey, &p.RETH.VA, uint64(p.RETH.DMALen))
	a.region(&p.AtomicETH.RKey, &p.AtomicETH.VA, 8)
	p.DETH.QKey = qkey
	p.XRCETH.SRQ = n.srq.Num()
	a.buf = f.AppendTo(a.buf[:0])
	return a.buf
}

// region moves an address into one of the node's regions. What captures hold fits
// there. Key 0 and the top bits, which captures never have, ask for the region that
// cannot be written, and for places at the ends of a region.
func (a *adapter) region(key *uint32, addr *uint64, n uint64) {
	base := uint64(va)
	if *key == 0 {
		*key, base = a.n.fixedKey, fixedVA
	} else {
		*key = a.n.key
	}
	const near = 64
	switch *addr >> 62 {
	case 0, 3:
		*addr = base + *addr%512
	case 1:
		*addr = base - near + *addr%(2*near)
	case 2:
		*addr = base + size - n - near + *addr%(2*near)
	}
}
