package qp_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"reflect"
	"time"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/internal/explore"
	"github.com/roce-go/roce/reth"
)

// The explorer's world: two QPs of the code that ships, a link that holds few
// packets, two applications. Each move is a call of one QP, or something that the
// link does.
const (
	exWire   = 3 // packets in flight in each direction
	exOps    = 4 // work requests of an end
	exRecvs  = 4
	exRegion = 0x1000 // address of an end's region
	exMTU    = 256
	exFirst  = psn.PSN(0xfffffe) // PSNs wrap at once
	exLater  = 0x400000          // from the PSNs of a connection to those of the next
	exPSNs   = 8                 // of the requests of an end, where they are not without end
	exUsed   = 0x7e              // what an application fills a buffer with that it got back
	exLong   = exMTU + 4         // bytes of a message of two packets

	// In a region: what WRITEs go to, what READs read, the word of the ATOMICs, that of
	// the ATOMIC WRITEs.
	exWriteOff, exReadOff, exWordOff, exCellOff, exMemory = 0, 264, 528, 536, 544

	exAccess = qp.RemoteRead | qp.RemoteWrite | qp.RemoteAtomic | qp.FlushGlobal | qp.FlushPersistent | qp.MWBind
)

// exOp is a work request of a scenario.
type exOp uint8

const (
	exSend exOp = iota
	exSendLong
	exWrite
	exWriteLong
	exWriteImm
	exRead
	exReadLong
	exFetchAdd
	exSendImm
	exSendInv // of a window of its own
	exCmpSwap
	exAtomicWrite
	exFlush
)

// exScenario says what is explored: what the ends post, and what may go wrong.
type exScenario struct {
	name   string
	typ    qp.Type
	ops    [2][]exOp
	recvs  [2]int // receives posted at the start; more are moves
	later  [2]int // work requests that moves post; the others are posted at the start
	ends   [2]exEnd
	faults exFaults
	busy   bool // end 1 posts READs for ever while the world finishes
	linux  bool // end 1 sends a sequence NAK for each packet behind one that it refused with an RNR NAK
	srq    bool // the receives come from a SRQ
	drain  bool // a move takes end 0 to SQD, and another back to RTS
	attrs  bool // ... with other attributes set in SQD
	kill   bool // a move takes an end to Error
	reset  bool // a move takes an end to Reset and, with other PSNs, to RTS
	forge  bool // responses of every kind are forged for end 0, also good ones
	asks   bool // requests are forged for end 1, at PSNs that it does not expect
	silent bool // only the last request of an end is signaled
	late   bool // completions are polled by moves
	fails  bool // retries may run out

	selective qp.Selective
	out       qp.Outgoing
	log       *exLog // where a story is written
}

// exEnd is what an end is set to.
type exEnd struct {
	timeout, retryCnt uint8
	rnrRetry          uint8 // 0: without end
	window, maxRd     int
	credits           bool
}

func (e *exEnd) rnr() uint8 {
	if e.rnrRetry == 0 {
		return 7
	}
	return e.rnrRetry
}

// exFaults is how often each fault may happen.
type exFaults struct{ drop, duplicate, swap, early, forge, modify int8 }

type exPacket struct {
	p   bth.Packet
	buf [exMTU]byte
}

type exDirection struct {
	n int
	q [exWire]exPacket
}

type exMem struct {
	region [exMemory]byte
	data   [exOps][exLong]byte // to send, or where a result goes
	recv   [exRecvs][exLong]byte
}

// exFlusher is the memory of an end, which records what it is to flush.
type exFlusher struct {
	*qp.Regions
	mem  *exMem
	n    int
	tags [exOps]byte // of the last WRITE, at each
	bad  string
}

// Flush implements [qp.Flusher].
func (f *exFlusher) Flush(_ uint32, va uint64, n uint32, sel reth.Selectivity, p reth.Placement) {
	if va != exRegion+exWriteOff || n != exLong || sel != reth.MemoryRange || p != reth.Persistence {
		f.bad = fmt.Sprintf("%d bytes at %#x, %v, placement %d", n, va, sel, p)
	}
	if f.n == exOps {
		f.bad = "one too many"
		return
	}
	f.tags[f.n] = (f.mem.region[exWriteOff] ^ exByte(0, 0)) & 0x7f
	f.n++
}

type exNode struct {
	q       *qp.QP
	srq     *qp.SRQ
	m       *exFlusher
	key     uint32
	windows [exOps]uint32 // keys for the peer's SENDs with invalidate, by request

	posted, completed    int // work requests
	recvPosted, recvDone int
	broken               bool // a completion with an error, or in Error
	drained              bool
	draining             bool
	gen                  int8              // which connection since the start
	timeout              uint8             // the least since the connection began
	sums                 [2][exPSNs]uint32 // of the contents of its requests and its responses, by PSN
	lost                 [2]int            // Ignored: posted in the connections before
	quiet                bool              // NextPacket had nothing to send, and nothing happened since

	newest    psn.PSN // of its request packets
	nak       int32   // PSN that it named in a sequence NAK and has not received since; -1: none
	gap       bool    // a request of the peer is missing, and no NAK for it was sent yet
	waiting   bool    // in an RNR wait, which may end while packets are on their way
	rnr       int32   // PSN that it refused because there was no receive; -1: none
	msgs      int     // of the peer, executed as far as completions and memory show
	seen      [4]byte // what stood in the memory that WRITEs go to: see exCells
	word      uint64  // and in the word of the ATOMICs
	progress  int64   // Ignored: when the last response was accepted
	timeouts  uint64  // Ignored
	spent     [2]int8 // retries since the last progress, and RNR NAKs where these have an end
	complete  int32   // messages that the peer said to be complete
	maxCredit int32   // newest message that the peer's acknowledgements allow, -1 before the first
}

type exWorld struct {
	mem   [2]exMem // first: others point into it
	now   int64
	nodes [2]exNode
	wire  [2]exDirection // wire[i] is from node i
	left  exFaults
	used  int  // Ignored: faults, once the link has no more
	mixed bool // packets of another connection are, or may be, on their way
	fake  bool // end 0 took a forged response
}

func exClassify(t reflect.Type, field string) explore.Kind {
	switch {
	case t.Name() == "Counters", t.Name() == "Clock", t.Name() == "Outgoing":
		return explore.Ignored
	case t.Name() == "exWorld" && (field == "now" || field == "used"), t.Name() == "exNode" && (field == "progress" || field == "timeouts" || field == "lost"):
		return explore.Ignored
	}
	if f, ok := t.FieldByName(field); ok && f.Type.Kind() == reflect.Int64 && field != "timeout" {
		return explore.Instant
	}
	return explore.Plain
}

// Moves: what, and of which end.
const (
	exEmit explore.Move = iota << 1
	exDeliver
	exDrop
	exDuplicate
	exSwap
	exPost
	exPostRecv
	exPoll
	exTick
	exDrain
	exForgeAck
	exForgeNak
	exForgeRNR
	exForge // with what in the bits from 8 on
	exResume
	exSetAttr
	exKill
	exReset
	exAsk // with what in the bits from 8 on
)

var exMoveNames = [...]string{"emit", "deliver", "drop", "duplicate", "swap", "post", "recv", "poll", "tick", "drain",
	"forged ACK", "forged NAK", "forged RNR NAK", "forged", "resume", "attributes of", "error at", "reset", "forged request"}

func exMoveName(m explore.Move) string {
	s := fmt.Sprintf("%s %d", exMoveNames[m&0xff>>1], m&1)
	if m&0xfe == exForge {
		s += fmt.Sprintf(" kind %d, PSN %d of %d", m>>8/exForgePSNs, m>>8%exForgePSNs, exForgePSNs)
	} else if m>>8 != 0 {
		s += fmt.Sprintf(" kind %d", m>>8)
	}
	return s
}

func exTime(ns int64) time.Time { return time.Unix(1000, ns) }

func (s *exScenario) start() *exWorld {
	w := &exWorld{left: s.faults}
	for i := range w.nodes {
		n, m, e := &w.nodes[i], &w.mem[i], s.ends[i]
		for k := range exLong {
			m.region[exReadOff+k] = byte(k + 1)
		}
		exFill(m.region[exCellOff:exMemory], 0, 0)
		rs, err := qp.NewRegions(1 + s.count(1-i, exSendInv))
		exMust(err)
		n.key, err = rs.Register(qp.Region{PD: 1, Addr: exRegion, Data: m.region[:], Access: exAccess})
		exMust(err)
		for k, op := range s.ops[1-i] {
			if op != exSendInv {
				continue
			}
			free, err := rs.AllocWindow(1)
			exMust(err)
			n.windows[k], err = rs.Bind(qp.Binding{Window: free, Region: n.key, VA: exRegion, Len: 4, Access: qp.RemoteRead, QPN: uint32(i + 1)})
			exMust(err)
		}
		n.m = &exFlusher{Regions: rs, mem: m}
		if s.log != nil {
			s.log[i].windows = n.windows
		}
		cfg := qp.Config{Type: s.typ, QPN: uint32(i + 1), PD: 1, Memory: n.m, MaxSendWR: exOps, MaxRecvWR: exRecvs,
			MaxRdAtomic: 2, MaxDestRdAtomic: 2, Window: e.window, NoCredits: !s.ends[1-i].credits, SignalAll: !s.silent, Selective: s.selectiveOf(i)}
		if s.srq {
			n.srq, err = qp.NewSRQ(7, exRecvs)
			exMust(err)
			cfg.SRQ = n.srq
		}
		n.q, err = qp.New(cfg)
		exMust(err)
		for j := range exLong {
			m.region[exWriteOff+j] = exByte(0, j)
		}
	}
	for i := range w.nodes {
		s.connect(w, i)
		for range s.recvs[i] {
			exMust(s.apply(w, exPostRecv|explore.Move(i)))
		}
		for range len(s.ops[i]) - s.later[i] {
			exMust(s.apply(w, exPost|explore.Move(i)))
		}
	}
	return w
}

// count returns how many requests of end i are op.
func (s *exScenario) count(i int, op exOp) (n int) {
	for _, o := range s.ops[i] {
		if o == op {
			n++
		}
	}
	return n
}

// selectiveOf returns the selective repeat of end i, whose timers are those of its
// attributes.
func (s *exScenario) selectiveOf(i int) qp.Selective {
	c := s.selective
	if c.Packets != 0 {
		c.RTOLow = time.Duration(4096 << s.ends[i].timeout)
		c.RTOHigh = c.RTOLow
	}
	return c
}

// exByte is byte j of what carries tag: a message, by its number from 1 on, the
// connection that it was sent on and, from 0x80 on, whether its receiver has used it.
func exByte(tag byte, j int) byte { return tag ^ byte(j*29) }

// exPattern is the bytes of each tag.
var exPattern = func() (t [256][exLong]byte) {
	for tag := range t {
		for j := range t[tag] {
			t[tag][j] = exByte(byte(tag), j)
		}
	}
	return t
}()

// exFill fills b, which is at offset at of a message.
func exFill(b []byte, tag byte, at int) { copy(b, exPattern[tag][at:]) }

// exTag returns what b carries, and false when it is not one thing.
func exTag(b []byte, at int) (byte, bool) {
	tag := b[0] ^ exByte(0, at)
	return tag, bytes.Equal(b, exPattern[tag][at:at+len(b)])
}

// tag is what message k of a connection carries.
func (n *exNode) tag(k int) byte { return byte(n.gen)<<3 + byte(k+1) }

// first is the first PSN of both ends on connection gen.
func (n *exNode) first() psn.PSN { return exFirst.Add(int(n.gen) * exLater) }

// connect takes end i, in Reset, to RTS and forgets what was before.
func (s *exScenario) connect(w *exWorld, i int) {
	n, e := &w.nodes[i], s.ends[i]
	maxRd := e.maxRd
	if maxRd == 0 {
		maxRd = 2
	}
	n.nak, n.rnr, n.maxCredit, n.complete = -1, -1, -1, 0
	n.newest, n.timeout, n.sums = n.first()-1, e.timeout, [2][exPSNs]uint32{}
	n.posted, n.completed, n.recvPosted, n.recvDone, n.msgs = 0, 0, 0, 0, 0
	n.broken, n.draining, n.drained, n.quiet, n.gap, n.waiting, n.progress = false, false, false, false, false, false, 0
	n.spent = [2]int8{}
	a := qp.Attr{PKey: 0xffff, Access: exAccess &^ qp.MWBind, PathMTU: exMTU,
		DestQPN: uint32(2 - i), RQPSN: n.first(), SQPSN: n.first(), MaxDestRdAtomic: 2, MaxRdAtomic: maxRd,
		MinRNRTimer: 1, Timeout: e.timeout, RetryCnt: e.retryCnt, RNRRetry: e.rnr()}
	exConnect(exTime(w.now), n.q, s.typ, &a)
}

func exMust(err error) {
	if err != nil {
		panic(err)
	}
}

// exConnect takes q from Reset to RTS.
func exConnect(now time.Time, q *qp.QP, typ qp.Type, a *qp.Attr) {
	init := qp.AttrState | qp.AttrPKey | qp.AttrAccess
	rtr := qp.AttrState | qp.AttrAH | qp.AttrPathMTU | qp.AttrDestQPN | qp.AttrRQPSN
	rts := qp.AttrState | qp.AttrSQPSN
	if typ == qp.RC {
		rtr |= qp.AttrMaxDestRdAtomic | qp.AttrMinRNRTimer
		rts |= qp.AttrTimeout | qp.AttrRetryCnt | qp.AttrRNRRetry | qp.AttrMaxRdAtomic
	}
	for _, step := range []struct {
		s qp.State
		m qp.AttrMask
	}{{qp.Init, init}, {qp.RTR, rtr}, {qp.RTS, rts}} {
		a.State = step.s
		exMust(q.Modify(now, a, step.m))
	}
}

// moves lists what may happen in w.
func (s *exScenario) moves(w *exWorld, to []explore.Move) []explore.Move {
	idle := true
	for i := range w.nodes {
		n, d, e := &w.nodes[i], &w.wire[i], explore.Move(i)
		if n.posted < len(s.ops[i]) {
			to = append(to, exPost|e)
		}
		if n.recvPosted < exRecvs && n.recvPosted < len(s.ops[1-i]) {
			to = append(to, exPostRecv|e)
		}
		if !n.quiet {
			idle = false
			if d.n < exWire {
				to = append(to, exEmit|e)
			}
		}
		if d.n != 0 {
			idle = false
			to = append(to, exDeliver|e)
			if w.left.drop > 0 {
				to = append(to, exDrop|e)
			}
			if w.left.duplicate > 0 && d.n < exWire {
				to = append(to, exDuplicate|e)
			}
			if w.left.swap > 0 && d.n > 1 {
				to = append(to, exSwap|e)
			}
		}
		if s.late && n.q.Pending(qp.PendingSendCompletion|qp.PendingRecvCompletion) != 0 {
			to = append(to, exPoll|e)
		}
		if s.drain && i == 0 && n.q.State() == qp.RTS && w.left.modify > 0 {
			to = append(to, exDrain|e)
		}
		if n.q.State() == qp.SQD {
			to = append(to, exResume|e)
			if s.attrs && w.left.modify > 0 {
				to = append(to, exSetAttr|e)
			}
		}
		if s.kill && w.left.modify > 0 && n.q.State() != qp.Error {
			to = append(to, exKill|e)
		}
		if s.reset && (w.left.modify > 0 && n.gen == 0 || n.gen < w.nodes[1-i].gen) {
			to = append(to, exReset|e)
		}
		if w.left.forge > 0 && !n.broken {
			switch {
			case s.asks && i == 1:
				for k := range explore.Move(exAskKinds) {
					to = append(to, exAsk|k<<8|e)
				}
			case s.asks:
			case !s.forge:
				to = append(to, exForgeAck|e, exForgeNak|e, exForgeRNR|e)
			case i == 0:
				for k := range explore.Move(exForgeKinds * exForgePSNs) {
					to = append(to, exForge|k<<8|e)
				}
			}
		}
	}
	if (idle || w.left.early > 0 || s.waits(w)) && s.deadline(w) != 0 {
		to = append(to, exTick)
	}
	return to
}

// deadline returns the earliest of the two QPs, or 0.
func (s *exScenario) deadline(w *exWorld) int64 {
	var first int64
	for i := range w.nodes {
		if t, ok := w.nodes[i].q.Deadline(); ok {
			if ns := int64(t.Sub(exTime(0))); first == 0 || ns < first {
				first = ns
			}
		}
	}
	return first
}

// waits reports whether what happens next in time is the end of an RNR wait.
func (s *exScenario) waits(w *exWorld) bool {
	for i := range w.nodes {
		if n := &w.nodes[i]; n.waiting {
			t, ok := n.q.Deadline()
			return ok && int64(t.Sub(exTime(0))) == s.deadline(w)
		}
	}
	return false
}

func (s *exScenario) apply(w *exWorld, m explore.Move) error {
	i := int(m & 1)
	n, d, peer := &w.nodes[i], &w.wire[i], &w.nodes[1-i]
	now := exTime(w.now)
	switch m & 0xfe {
	case exEmit:
		if err := s.emit(w, i); err != nil {
			return err
		}
	case exDeliver:
		p := d.q[0]
		d.shift(0)
		if err := s.deliver(w, 1-i, &p); err != nil {
			return err
		}
		peer.quiet = false
	case exDrop:
		w.left.drop--
		d.shift(0)
	case exDuplicate:
		w.left.duplicate--
		d.push(&d.q[0].p)
	case exSwap:
		w.left.swap--
		d.q[0], d.q[1] = d.q[1], d.q[0]
		d.alias()
	case exPost:
		wr := s.wr(w, i, n.posted)
		exMust(n.q.PostSend(now, &wr))
		if s.log != nil {
			s.log[i].post(w.now, &wr)
		}
		n.posted++
		n.quiet = false
	case exPostRecv:
		wr := qp.RecvWR{ID: uint64(n.recvPosted), Local: w.mem[i].recv[n.recvPosted][:]}
		if n.srq != nil {
			exMust(n.srq.PostRecv(&wr))
		} else {
			exMust(n.q.PostRecv(&wr))
		}
		if s.log != nil {
			srq := ""
			if s.srq {
				srq = " srq=7"
			}
			s.log[i].line(w.now, "recv id=%d len=%d%s", n.recvPosted, exLong, srq)
		}
		n.recvPosted++
		n.quiet = false
	case exPoll:
		n.quiet = false
		return s.poll(w, i, 1)
	case exTick:
		if err := s.tick(w); err != nil {
			return err
		}
	case exDrain:
		w.left.modify--
		s.modify(w, i, &qp.Attr{State: qp.SQD}, qp.AttrState, "state=SQD")
		n.draining = true
	case exResume:
		n.draining, n.drained = false, false
		s.modify(w, i, &qp.Attr{State: qp.RTS}, qp.AttrState, "state=RTS")
	case exSetAttr:
		w.left.modify--
		n.timeout, n.spent[0] = min(n.timeout, 9), 0
		s.modify(w, i, &qp.Attr{Timeout: 9, RetryCnt: 6, MaxRdAtomic: 1, MinRNRTimer: 2},
			qp.AttrTimeout|qp.AttrRetryCnt|qp.AttrMaxRdAtomic|qp.AttrMinRNRTimer, "timeout=9 retry_cnt=6 max_rd_atomic=1 min_rnr_timer=2")
	case exKill:
		w.left.modify--
		n.broken = true
		s.modify(w, i, &qp.Attr{State: qp.Error}, qp.AttrState, "state=ERR")
	case exReset:
		w.left.modify--
		w.mixed = true
		s.modify(w, i, &qp.Attr{}, qp.AttrState, "state=RESET")
		n.lost[0], n.gen = n.posted, n.gen+1
		s.connect(w, i)
		if s.log != nil {
			s.log[i].reconnect(w.now, s, i, n.first())
		}
		for range s.recvs[i] {
			if err := s.apply(w, exPostRecv|explore.Move(i)); err != nil {
				return err
			}
		}
	case exForge:
		return s.forged(w, i, int(m>>8))
	case exAsk:
		return s.asked(w, i, int(m>>8))
	case exForgeAck, exForgeNak, exForgeRNR:
		w.left.forge--
		n.quiet = false
		p := exPacket{}
		p.p.Opcode, p.p.DestQP, p.p.PKey, p.p.PSN = bth.RC.Opcode(bth.Acknowledge), n.q.Num(), 0xffff, n.newest.Add(3)
		p.p.AETH = aeth.Header{Syndrome: aeth.AckSyndrome(aeth.NoCredits), MSN: uint32(n.posted + 1)}
		if m&0xfe == exForgeNak {
			p.p.AETH.Syndrome = aeth.NakSyndrome(aeth.NakPSNSequenceError)
		} else if m&0xfe == exForgeRNR {
			p.p.AETH.Syndrome = aeth.RNRSyndrome(5)
		}
		v := n.q.HandlePacket(now, &p.p, nil)
		if s.log != nil {
			s.log[i].in(w.now, &p.p, v)
		}
		if v != qp.Unsent {
			return fmt.Errorf("RQ-22: a response to PSN %v, which was never sent, is %v", p.p.PSN, v)
		}
	}
	return s.after(w)
}

// after polls completions, unless the applications are slow, and checks the
// memory.
func (s *exScenario) after(w *exWorld) error {
	if !s.late {
		for e := range w.nodes {
			if err := s.poll(w, e, exOps+exRecvs); err != nil {
				return err
			}
		}
	}
	return s.memory(w)
}

func (s *exScenario) modify(w *exWorld, i int, a *qp.Attr, m qp.AttrMask, story string) {
	exMust(w.nodes[i].q.Modify(exTime(w.now), a, m))
	w.nodes[i].quiet = false
	if s.log != nil {
		s.log[i].line(w.now, "modify %s", story)
	}
}

// Forged responses: their kinds, and their PSNs from the newest request's on.
const (
	exForgePSNs  = 4 // three before the next that was never sent, and that
	exForgeKinds = 16
)

// forged delivers a response to end i that its peer never sent. What was never sent must
// not be acknowledged by it, and a reserved syndrome changes nothing; otherwise the
// end may accept it, and only its own responses are checked.
func (s *exScenario) forged(w *exWorld, i, what int) error {
	w.left.forge--
	n := &w.nodes[i]
	n.quiet = false
	var buf [exMTU]byte
	p := bth.Packet{}
	ack := func(a aeth.Syndrome) { p.Opcode, p.AETH.Syndrome = bth.RC.Opcode(bth.Acknowledge), a }
	read := func(op bth.Operation, size int) {
		p.Opcode, p.AETH.Syndrome = bth.RC.Opcode(op), aeth.AckSyndrome(aeth.NoCredits)
		exFill(buf[:size], exUsed-1, 0)
		p.SetPayload(buf[:size])
	}
	p.DestQP, p.PKey, p.AETH.MSN = n.q.Num(), 0xffff, uint32(n.posted)
	p.PSN = n.newest.Add(what%exForgePSNs - exForgePSNs + 2)
	switch what / exForgePSNs {
	case 0:
		ack(aeth.AckSyndrome(aeth.NoCredits))
	case 1:
		ack(aeth.AckSyndrome(0)) // no more receives
	case 2:
		ack(aeth.AckSyndrome(aeth.CreditsFor(3)))
		p.AETH.MSN = 0
	case 3:
		ack(aeth.RNRSyndrome(1))
	case 4:
		ack(aeth.NakSyndrome(aeth.NakPSNSequenceError))
	case 5:
		ack(aeth.NakSyndrome(aeth.NakInvalidRequest))
	case 6:
		ack(aeth.NakSyndrome(aeth.NakRemoteAccessError))
	case 7:
		ack(aeth.NakSyndrome(31))
	case 8:
		ack(0x80 | aeth.AckSyndrome(aeth.NoCredits))
	case 9:
		read(bth.ReadResponseFirst, exMTU)
	case 10:
		read(bth.ReadResponseMiddle, exMTU)
		p.AETH = aeth.Header{}
	case 11:
		read(bth.ReadResponseLast, exLong-exMTU)
	case 12:
		read(bth.ReadResponseOnly, 4)
	case 13:
		read(bth.ReadResponseFirst, exMTU-1) // shorter than any
	case 14:
		read(bth.AtomicAcknowledge, 0)
		p.AtomicAckETH.Orig = 1 << 40
	case 15:
		read(bth.ReadResponseOnly, 0) // of a FLUSH or ATOMIC WRITE
	}
	v := n.q.HandlePacket(exTime(w.now), &p, nil)
	if s.log != nil {
		s.log[i].in(w.now, &p, v)
	}
	switch {
	case what%exForgePSNs == exForgePSNs-1 && v != qp.Unsent:
		return fmt.Errorf("RQ-22: %v for PSN %v, which was never sent, is %v", p.Opcode, p.PSN, v)
	case (what/exForgePSNs == 7 || what/exForgePSNs == 8) && v != qp.Reserved && v != qp.Unsent:
		return fmt.Errorf("RQ-30: a reserved syndrome is %v", v)
	case what/exForgePSNs == 13 && v == qp.Accepted:
		return fmt.Errorf("RQ-25: a first READ response of less than the path MTU is %v", v)
	}
	w.fake = w.fake || v != qp.Unsent && v != qp.Reserved
	return s.after(w)
}

// Forged requests: of each kind at a PSN that was executed, with other data than it had;
// the middle of a message there; a WRITE behind a gap; and one of another partition at
// the PSN that is expected.
const exAskKinds = 11

// asked delivers a request to end i that its peer never sent. Nothing of it may be executed
// (rules RS-02, RS-03, RS-20, RS-22), as the memory and the messages show.
func (s *exScenario) asked(w *exWorld, i, what int) error {
	w.left.forge--
	n := &w.nodes[i]
	n.quiet = false
	var buf [exMTU]byte
	exFill(buf[:8], exUsed-1, 0)
	p := bth.Packet{}
	p.DestQP, p.PKey, p.AckReq = n.q.Num(), 0xffff, true
	executed := int(n.q.Executed())
	at := executed - 1
	op := []bth.Operation{bth.WriteOnly, bth.SendOnly, bth.ReadRequest, bth.FetchAdd, bth.WriteMiddle, bth.WriteOnly, bth.WriteOnly,
		bth.SendOnlyInv, bth.CmpSwap, bth.AtomicWrite, bth.Flush}[what]
	switch what {
	case 5:
		at = executed + 2
	case 6:
		at, p.PKey = executed, 0x1234
	}
	p.Opcode, p.PSN = bth.RC.Opcode(op), n.first().Add(at)
	p.RETH.VA, p.RETH.RKey, p.RETH.DMALen = exRegion+exWriteOff, n.key, 4
	p.AtomicETH.VA, p.AtomicETH.RKey, p.AtomicETH.SwapAdd = exRegion+exWordOff, n.key, 100
	switch op {
	case bth.CmpSwap: // with what stands there
		p.AtomicETH.Compare = binary.LittleEndian.Uint64(w.mem[i].region[exWordOff:])
	case bth.AtomicWrite:
		p.RETH.VA, p.RETH.DMALen = exRegion+exCellOff, 8
		p.SetPayload(buf[:8])
	case bth.Flush:
		p.FETH.Placement = reth.Persistence
	case bth.SendOnlyInv:
		for k, key := range n.windows {
			if p.IETH.RKey = key; key != 0 && k >= n.msgs {
				break // one that was not removed yet
			}
		}
		p.SetPayload(buf[:4])
	case bth.WriteMiddle:
		p.SetPayload(buf[:])
	case bth.WriteOnly, bth.SendOnly:
		p.SetPayload(buf[:4])
	case bth.ReadRequest:
		p.RETH.VA = exRegion + exReadOff
	}
	v := n.q.HandlePacket(exTime(w.now), &p, nil)
	if s.log != nil {
		s.log[i].in(w.now, &p, v)
	}
	want := qp.Duplicate
	switch what {
	case 5:
		want = qp.OutOfSequence
	case 6:
		want = qp.Invalid
	}
	if v != want {
		return fmt.Errorf("end %d: a forged %v at PSN %v, %d executed, is %v, want %v", i, p.Opcode, p.PSN, executed, v, want)
	}
	if now := int(n.q.Executed()); now != executed {
		return fmt.Errorf("RS-23: end %d: a forged %v at PSN %v moves the expected PSN by %d", i, p.Opcode, p.PSN, now-executed)
	}
	return s.after(w)
}

// gaveUp checks that a request that failed did so for a reason (rules RQ-28, RQ-32,
// RQ-33): more retries without progress than there are, of the faults of the link or of
// RNR NAKs where these have an end; others are flushed behind one that failed.
func (s *exScenario) gaveUp(w *exWorld, i int, c *qp.Completion) error {
	n, e := &w.nodes[i], &s.ends[i]
	if s.forge || s.kill || s.reset {
		return nil // the peer, or nobody, may end it for other reasons
	}
	switch {
	case c.Status == qp.WRFlushErr && n.broken:
	case c.Status == qp.RNRRetryExcErr && !n.broken && e.rnr() != 7 && n.spent[1] > int8(e.rnr()):
	case c.Status == qp.RetryExcErr && !n.broken && n.spent[0] > int8(e.retryCnt) && s.used(w) > int(e.retryCnt):
	default:
		return fmt.Errorf("RQ-32: end %d: request %d ends with %v after %d faults of the link, %d retries and RNR NAKs without progress, broken before: %t",
			i, c.ID, c.Status, s.used(w), n.spent, n.broken)
	}
	return nil
}

// used returns how many faults there were.
func (s *exScenario) used(w *exWorld) int {
	f := s.faults
	return w.used + int(f.drop+f.duplicate+f.swap+f.early+f.forge+f.modify) -
		int(w.left.drop+w.left.duplicate+w.left.swap+w.left.early+w.left.forge+w.left.modify)
}

// resent checks that what is sent again is bounded by what went wrong: each fault, each
// RNR NAK and each request of a peer that asks again has at most all PSNs sent again.
func (s *exScenario) resent(w *exWorld) error {
	if s.busy || s.reset || s.kill || s.linux {
		return nil
	}
	for i := range w.nodes {
		k := w.nodes[i].q.Counters()
		if most := exPSNs * (uint64(s.used(w)) + k.RNRNakReceived); k.Retransmitted > most {
			return fmt.Errorf("RQ-34: end %d: %d packets are sent again after %d faults and %d RNR NAKs", i, k.Retransmitted, s.used(w), k.RNRNakReceived)
		}
	}
	return nil
}

// tick advances the time to the first deadline.
func (s *exScenario) tick(w *exWorld) error {
	if (w.wire[0].n != 0 || w.wire[1].n != 0 || !w.nodes[0].quiet || !w.nodes[1].quiet) && !s.waits(w) {
		w.left.early--
	}
	w.now = max(w.now, s.deadline(w))
	for e := range w.nodes {
		n := &w.nodes[e]
		n.q.Tick(exTime(w.now))
		if t, ok := n.q.Deadline(); ok && !t.After(exTime(w.now)) {
			return fmt.Errorf("end %d: the deadline after Tick is not later than now", e)
		}
		n.quiet, n.waiting = false, n.waiting && s.beyond(w, e)
		if c := n.q.Counters().LocalAckTimeoutErr; c != n.timeouts {
			n.timeouts = c
			n.spent[0]++
			if least := int64(4096) << n.timeout; w.now-n.progress < least && n.progress != 0 {
				return fmt.Errorf("RQ-31: end %d: the timer fired %d ns after progress, want %d", e, w.now-n.progress, least)
			}
		}
	}
	return nil
}

// beyond reports whether the deadline of end i is later than now.
func (s *exScenario) beyond(w *exWorld, i int) bool {
	t, ok := w.nodes[i].q.Deadline()
	return ok && t.After(exTime(w.now))
}

// wr builds work request k of end i.
func (s *exScenario) wr(w *exWorld, i, k int) qp.SendWR {
	buf := w.mem[i].data[k][:]
	wr := qp.SendWR{ID: uint64(k), Local: buf[:4], RKey: w.nodes[1-i].key, RemoteAddr: exRegion + exWriteOff}
	op := s.ops[i][k]
	if k == len(s.ops[i])-1 {
		wr.Flags = qp.Signaled
	}
	exFill(buf, w.nodes[i].tag(k), 0)
	switch op {
	case exSendLong, exWriteLong, exReadLong:
		wr.Local = buf
	}
	switch op {
	case exSend, exSendLong:
		wr.Op = qp.OpSend
	case exWrite, exWriteLong:
		wr.Op = qp.OpWrite
	case exWriteImm:
		wr.Op, wr.Imm = qp.OpWriteImm, uint32(k+1)
	case exRead, exReadLong:
		wr.Op, wr.RemoteAddr = qp.OpRead, exRegion+exReadOff
	case exFetchAdd:
		wr.Op, wr.RemoteAddr, wr.CompareAdd, wr.Local = qp.OpFetchAdd, exRegion+exWordOff, 1, buf[:8]
	case exSendImm:
		wr.Op, wr.Imm = qp.OpSendImm, uint32(k+1)
	case exSendInv:
		wr.Op, wr.RKey = qp.OpSendInv, w.nodes[1-i].windows[k]
	case exCmpSwap: // from what those before leave there
		before := s.adds(i, k)
		wr.Op, wr.RemoteAddr, wr.CompareAdd, wr.Swap, wr.Local = qp.OpCmpSwap, exRegion+exWordOff, before, before+1, buf[:8]
	case exAtomicWrite:
		wr.Op, wr.RemoteAddr, wr.Local = qp.OpAtomicWrite, exRegion+exCellOff, buf[:8]
	case exFlush:
		wr.Op, wr.Length, wr.FlushPersistence, wr.Local = qp.OpFlush, exLong, true, nil
	}
	return wr
}

func (o exOp) receives() bool {
	return o <= exSendLong || o == exWriteImm || o == exSendImm || o == exSendInv
}

// adds returns how much the first k requests of end i add to the word of the ATOMICs.
func (s *exScenario) adds(i, k int) (n uint64) {
	for _, o := range s.ops[i][:k] {
		if o == exFetchAdd || o == exCmpSwap {
			n++
		}
	}
	return n
}

// emit puts a packet of end i on the link.
func (s *exScenario) emit(w *exWorld, i int) error {
	n := &w.nodes[i]
	has := n.q.Pending(qp.PendingPacket)
	if !n.q.NextPacket(exTime(w.now), &s.out) {
		n.quiet = true
		if n.gap && n.q.State() != qp.Error {
			return fmt.Errorf("RS-03: end %d has nothing to send, and no NAK was sent for a request that is missing", i)
		}
		return nil
	}
	p := &s.out.Packet
	if s.log != nil {
		s.log[i].out(w.now, &s.out)
	}
	if kind := exKind(p); has&kind == 0 {
		return fmt.Errorf("end %d sends %v, and what is pending is %#b", i, p.Opcode, has)
	}
	switch {
	case p.Opcode.Class() == bth.Request:
		end := p.PSN
		if p.Opcode.Operation() == bth.ReadRequest {
			end = end.Add(int((p.RETH.DMALen+exMTU-1)/exMTU) - 1)
		}
		if err := s.credit(n, i, p); err != nil {
			return err
		}
		if n.newest.Before(end) {
			n.newest = end
		}
		una, next := n.q.Flight()
		if most := s.ends[i].window; most != 0 && next-una > uint64(most) && psn.Seq(una).PSN() != p.PSN {
			return fmt.Errorf("end %d sends %v with %d PSNs outstanding, and its window is %d", i, p.Opcode, next-una, most)
		}
		if err := n.same(0, p, n.first()); err != nil {
			return fmt.Errorf("RQ-16: end %d: %w", i, err)
		}
	case p.Opcode.Operation() == bth.Acknowledge || p.Opcode.Ext()&bth.HasAETH != 0:
		if posted := w.nodes[1-i].postedOn(n.gen); int(p.AETH.MSN) > posted && !s.busy && !s.selects(p) {
			return fmt.Errorf("RS-13: end %d sends MSN %d, of %d messages", i, p.AETH.MSN, posted)
		}
		if p.Opcode.Operation() != bth.Acknowledge {
			if err := n.same(1, p, n.first()); err != nil {
				return fmt.Errorf("RS-22: end %d: %w", i, err)
			}
		}
		if k := p.AETH.Syndrome.Kind(); k != aeth.Ack {
			n.gap = false
		}
		switch p.AETH.Syndrome.Kind() {
		case aeth.Nak:
			if p.AETH.Syndrome.Nak() == aeth.NakPSNSequenceError {
				if s.selective.Packets == 0 && n.nak == int32(p.PSN) {
					return fmt.Errorf("RS-03: end %d sends a second NAK for PSN %v", i, p.PSN)
				}
				n.nak = int32(p.PSN)
			} else if !w.fake || p.AETH.Syndrome.Nak() != aeth.NakInvalidRequest {
				// An end that accepts a forged response may have more outstanding than its peer's
				// max_dest_rd_atomic.
				return fmt.Errorf("end %d refuses a good request: %v", i, p.AETH.Syndrome)
			}
		case aeth.RNR:
			n.rnr = int32(p.PSN)
		}
	}
	w.wire[i].push(p)
	return nil
}

// exKind returns what a packet was pending as.
func exKind(p *bth.Packet) qp.Pending {
	switch {
	case p.Opcode.Class() == bth.Request:
		return qp.PendingRequest
	case p.Opcode.Operation() == bth.Acknowledge:
		return qp.PendingAck
	}
	return qp.PendingResponse
}

// postedOn returns how many messages the end posted on connection gen.
func (n *exNode) postedOn(gen int8) int {
	switch {
	case n.gen == gen:
		return n.posted
	case n.gen > gen:
		return n.lost[0]
	}
	return 0
}

// same checks that what is sent again at a PSN is what was sent first: opcode,
// headers and payload. A READ may be resumed in its middle, but ends where it did.
func (n *exNode) same(side int, p *bth.Packet, first psn.PSN) error {
	at := p.PSN.Diff(first)
	if at < 0 || at >= exPSNs {
		return nil
	}
	h := uint32(2166136261)
	mix := func(v uint64) {
		for range 8 {
			h = (h ^ uint32(v&0xff)) * 16777619
			v >>= 8
		}
	}
	if op := p.Opcode.Operation(); op == bth.ReadRequest {
		mix(p.RETH.VA + uint64(p.RETH.DMALen))
	} else if side == 0 || op == bth.AtomicAcknowledge {
		mix(uint64(p.Opcode)<<32 | uint64(p.ImmDt.Imm))
		mix(p.RETH.VA ^ uint64(p.RETH.DMALen)<<32)
		mix(p.AtomicETH.VA ^ p.AtomicETH.SwapAdd<<32 ^ p.AtomicETH.Compare<<48)
		mix(uint64(p.IETH.RKey)<<32 | uint64(p.FETH.Sel)<<8 | uint64(p.FETH.Placement))
		mix(p.AtomicAckETH.Orig)
	}
	for _, b := range p.Payload {
		h = (h ^ uint32(b)) * 16777619
	}
	h |= 1
	if sum := &n.sums[side][at]; *sum == 0 {
		*sum = h
	} else if *sum != h {
		return fmt.Errorf("%v at PSN %v differs from what was sent before", p.Opcode, p.PSN)
	}
	return nil
}

// credit checks a packet of a scenario with credits, in which all messages are SENDs:
// only the message after the limit may be sent, also when it is sent again (rule
// RQ-15).
func (s *exScenario) credit(n *exNode, i int, p *bth.Packet) error {
	if !s.ends[i].credits || n.maxCredit < 0 {
		return nil
	}
	ssn, at := 0, exFirst
	for _, op := range s.ops[i] {
		ssn++
		at = at.Add(1)
		if op == exSendLong {
			at = at.Add(1)
		}
		if p.PSN.Before(at) {
			break
		}
	}
	// One message beyond what is complete may always be sent.
	if ssn > int(max(n.maxCredit, n.complete))+1 {
		return fmt.Errorf("RQ-15: end %d sends message %d where credits end at %d", i, ssn, n.maxCredit)
	}
	return nil
}

// selects reports whether p has a PSN in the place of the MSN (rule SR-2).
func (s *exScenario) selects(p *bth.Packet) bool {
	return s.selective.Packets != 0 && p.AETH.Syndrome == aeth.NakSyndrome(aeth.NakPSNSequenceError)
}

func (s *exScenario) deliver(w *exWorld, i int, p *exPacket) error {
	n := &w.nodes[i]
	p.p.Payload = p.buf[:len(p.p.Payload)]
	una, _ := n.q.Flight()
	before := n.q.Counters()
	v := n.q.HandlePacket(exTime(w.now), &p.p, nil)
	if s.log != nil {
		s.log[i].in(w.now, &p.p, v)
	}
	if now, _ := n.q.Flight(); now != una {
		n.spent = [2]int8{}
	}
	k := n.q.Counters()
	n.spent[0] += int8(k.PacketSeqErr + k.ImpliedNakSeqErr - before.PacketSeqErr - before.ImpliedNakSeqErr)
	if k.RNRNakReceived != before.RNRNakReceived {
		n.spent[0] = 0 // rule RQ-28
		if s.ends[i].rnr() != 7 {
			n.spent[1]++
		}
	}
	if p.p.Opcode.Ext()&bth.HasAETH != 0 && !s.selects(&p.p) {
		n.complete = max(n.complete, int32(p.p.AETH.MSN))
	}
	switch {
	case p.p.Opcode.Class() == bth.Request:
		if n.nak == int32(p.p.PSN) {
			n.nak = -1
		}
		if v == qp.Accepted {
			n.rnr = -1
		}
		switch { // rules RS-03, RS-09
		case v == qp.OutOfSequence && s.typ == qp.RC && n.nak < 0 && n.rnr < 0:
			n.gap = true
		case v == qp.Accepted:
			n.gap = false
		}
		if s.linux && i == 1 && v == qp.OutOfSequence && n.rnr >= 0 && w.wire[1].n < exWire {
			nak := bth.Packet{}
			nak.Opcode, nak.DestQP, nak.PKey, nak.PSN = bth.RC.Opcode(bth.Acknowledge), 1, 0xffff, psn.PSN(n.rnr)
			nak.AETH.Syndrome = aeth.NakSyndrome(aeth.NakPSNSequenceError)
			w.wire[1].push(&nak)
		}
	case v == qp.Retried:
		n.waiting = n.waiting || p.p.AETH.Syndrome.Kind() == aeth.RNR
	case v == qp.Accepted || v == qp.Stale:
		if v == qp.Accepted {
			n.progress = w.now
		}
		if a := p.p.AETH.Syndrome; p.p.Opcode.Operation() == bth.Acknowledge && a.Kind() == aeth.Ack {
			// An old one only raises a limit (rule RQ-21).
			if c, ok := a.Credit().Count(); ok && (v == qp.Accepted || n.maxCredit >= 0) {
				n.maxCredit = max(n.maxCredit, int32(p.p.AETH.MSN)+int32(c))
			}
		}
	}
	if v == qp.Refused && !w.fake || v == qp.Invalid || v == qp.WrongSide || v == qp.Reserved || v == qp.Unsent && !w.mixed && !s.asks {
		return fmt.Errorf("end %d: a packet that the other end sent is %v", i, v)
	}
	return nil
}

// poll polls completions, checks them and the memory at that time.
func (s *exScenario) poll(w *exWorld, i, most int) error {
	n := &w.nodes[i]
	var c qp.Completion
	for range most {
		has := n.q.Pending(qp.PendingSendCompletion)
		if !n.q.NextSendCompletion(&c) {
			break
		}
		if has == 0 {
			return fmt.Errorf("end %d: request %d completes, and no completion was pending", i, c.ID)
		}
		if s.log != nil {
			s.log[i].done(w.now, &c)
		}
		if s.busy && i == 1 && c.Status == qp.Success {
			continue
		}
		for s.silent && n.completed < int(c.ID) { // these were not signaled
			if err := s.done(w, i, n.completed); err != nil && c.Status == qp.Success {
				return fmt.Errorf("end %d, request %d: %w", i, n.completed, err)
			}
			exFill(w.mem[i].data[n.completed][:], exUsed, 0)
			n.completed++
		}
		if int(c.ID) != n.completed {
			return fmt.Errorf("RQ-09: end %d: completion of %d, want %d", i, c.ID, n.completed)
		}
		k := n.completed
		n.completed++
		if c.Status != qp.Success {
			if !s.fails {
				return fmt.Errorf("end %d: request %d ends with %v", i, k, c.Status)
			}
			if err := s.gaveUp(w, i, &c); err != nil {
				return err
			}
			n.broken = true
			exFill(w.mem[i].data[k][:], exUsed, 0)
			continue
		}
		if n.broken && n.q.State() != qp.Error {
			return fmt.Errorf("EE-1: end %d: request %d succeeds after one that failed", i, k)
		}
		if !(w.fake && i == 0) {
			if err := s.done(w, i, k); err != nil {
				return fmt.Errorf("end %d, request %d: %w", i, k, err)
			}
		}
		if !s.busy {
			exFill(w.mem[i].data[k][:], exUsed, 0) // its application uses it again
		}
	}
	for range most {
		has := n.q.Pending(qp.PendingRecvCompletion)
		if !n.q.NextRecvCompletion(&c) {
			break
		}
		if has == 0 {
			return fmt.Errorf("end %d: receive %d completes, and no completion was pending", i, c.ID)
		}
		if s.log != nil {
			s.log[i].done(w.now, &c)
		}
		if int(c.ID) != n.recvDone && n.srq == nil {
			return fmt.Errorf("end %d: receive %d completes, want %d", i, c.ID, n.recvDone)
		}
		if c.Status == qp.Success {
			if err := s.received(w, i, &c); err != nil {
				return fmt.Errorf("end %d, receive %d: %w", i, c.ID, err)
			}
		}
		exFill(w.mem[i].recv[c.ID][:], exUsed, 0)
		n.recvDone++
	}
	var ev qp.Event
	for has := n.q.Pending(qp.PendingEvent); n.q.NextEvent(&ev); {
		if has == 0 {
			return fmt.Errorf("end %d: %v happened, and no event was pending", i, ev)
		}
		if s.log != nil {
			s.log[i].line(w.now, "event %v", ev)
		}
		if ev == qp.EventSQDrained {
			n.drained = true
		}
	}
	return nil
}

// received checks the receive of the next message that consumes one.
func (s *exScenario) received(w *exWorld, i int, c *qp.Completion) error {
	n := &w.nodes[i]
	got := 0
	k := -1
	for j, op := range s.ops[1-i] {
		if op.receives() {
			if got++; got == n.msgs+1 {
				k = j
			}
		}
	}
	if s.typ == qp.UC { // messages may be lost: the contents say which it is
		k = int(w.mem[i].recv[c.ID][0]^exByte(0, 0)) - 1
		if c.Op == qp.OpRecvWrite {
			k = int(c.Imm) - 1
		}
		if k < n.msgs {
			return fmt.Errorf("UC-1: message %d after message %d", k, n.msgs-1)
		}
		n.msgs = k // one is added below
	}
	if k < 0 || k >= w.nodes[1-i].postedOn(n.gen) {
		return fmt.Errorf("EE-2: a message too many")
	}
	n.msgs++
	op := s.ops[1-i][k]
	if op == exWriteImm {
		if c.Op != qp.OpRecvWrite || c.Imm != uint32(k+1) {
			return fmt.Errorf("EE-2: %v with %d, want a WRITE with %d", c.Op, c.Imm, k+1)
		}
		// The application uses the memory that a completion reported. The WRITE must not be executed again.
		if b := w.mem[i].region[exWriteOff:][:4]; b[0]^exByte(0, 0) == n.tag(k) {
			exFill(b, 0x80|n.tag(k), 0)
		}
		return nil
	}
	want := 4
	if op == exSendLong {
		want = exLong
	}
	if c.HasImm != (op == exSendImm) || c.HasImm && c.Imm != uint32(k+1) || c.HasInv != (op == exSendInv) || c.HasInv && c.InvRKey != n.windows[k] {
		return fmt.Errorf("EE-2: message %d has immediate %t %d, invalidates %t %#x", k, c.HasImm, c.Imm, c.HasInv, c.InvRKey)
	}
	if int(c.ByteLen) != want {
		return fmt.Errorf("EE-2: %d bytes, want %d", c.ByteLen, want)
	}
	if tag, ok := exTag(w.mem[i].recv[c.ID][:want], 0); !ok || tag != n.tag(k) {
		return fmt.Errorf("EE-2: data of message %#x (of one only: %t), want %#x", tag, ok, n.tag(k))
	}
	return nil
}

// done checks what must be true when request k of end i succeeds.
func (s *exScenario) done(w *exWorld, i, k int) error {
	if s.typ == qp.UC {
		return nil
	}
	local, far := &w.mem[i].data[k], &w.mem[1-i].region
	switch op := s.ops[i][k]; op {
	case exRead, exReadLong:
		n := 4
		if op == exReadLong {
			n = exLong
		}
		for j := range n {
			if local[j] != byte(j+1) {
				return fmt.Errorf("EE-2: byte %d read is %d, want %d", j, local[j], byte(j+1))
			}
		}
	case exFetchAdd, exCmpSwap:
		if v, before := binary.LittleEndian.Uint64(local[:]), s.adds(i, k); v != before {
			return fmt.Errorf("RS-16: the word was %d, want %d", v, before)
		}
	case exAtomicWrite:
		if (far[exCellOff]^exByte(0, 0))&0x7f < w.nodes[i].tag(k) {
			return fmt.Errorf("RS-11a: complete, and the data is not there")
		}
	case exFlush:
		at, newest := 0, byte(0)
		for j, o := range s.ops[i][:k] {
			switch o {
			case exFlush:
				at++
			case exWrite, exWriteLong, exWriteImm:
				newest = w.nodes[i].tag(j)
			}
		}
		if m := w.nodes[1-i].m; m.n <= at || m.tags[at] < newest {
			return fmt.Errorf("RS-11a: complete, and what was written before is not flushed: %d flushes, then %v", m.n, m.tags)
		}
	case exWrite, exWriteLong, exWriteImm:
		if far[exWriteOff]^exByte(0, 0)&0x7f < w.nodes[i].tag(k) || op == exWriteLong && far[exWriteOff+exMTU]^exByte(0, exMTU) < w.nodes[i].tag(k) {
			return fmt.Errorf("EE-2: complete, and the data is not there")
		}
	case exSend, exSendLong, exSendImm, exSendInv:
		took := 0
		for _, o := range s.ops[i][:k+1] {
			if o.receives() {
				took++
			}
		}
		if !s.late && w.nodes[1-i].msgs < took && !w.nodes[1-i].broken && w.nodes[0].gen == w.nodes[1].gen {
			return fmt.Errorf("EE-2: complete, and %d of %d messages were received", w.nodes[1-i].msgs, took)
		}
	}
	return nil
}

// exCells are the parts of the memory that WRITEs go to which one WRITE writes whole:
// the short ones only the first. The last is that of the ATOMIC WRITEs. Each has an
// offset, a length and its place in a message.
var exCells = [4][3]int{{exWriteOff, 4, 0}, {exWriteOff + 4, exMTU - 4, 4}, {exWriteOff + exMTU, exLong - exMTU, exMTU}, {exCellOff, 8, 0}}

// memory checks that nothing is written twice with other data, nor again after its
// application used it, that ATOMICs are executed once, and that buffers which their
// applications got back stay as these left them.
func (s *exScenario) memory(w *exWorld) error {
	for i := range w.nodes {
		n, m := &w.nodes[i], &w.mem[i].region
		for c, span := range exCells {
			tag, ok := exTag(m[span[0]:][:span[1]], span[2])
			if !ok {
				return fmt.Errorf("EE-2: end %d: WRITEs are mixed up at %d", i, span[0])
			}
			old := n.seen[c]
			if tag == old {
				continue
			}
			if tag&0x7f < old&0x7f || tag&0x7f == old&0x7f && tag < old {
				return fmt.Errorf("EE-2: end %d: WRITE %#x was executed after %#x, in cell %d", i, tag, old, c)
			}
			if gen := tag & 0x7f >> 3; gen != byte(n.gen) {
				return fmt.Errorf("EE-2: end %d: a WRITE of connection %d is executed on connection %d", i, gen, n.gen)
			}
			n.seen[c] = tag
		}
		if n.m.bad != "" || n.m.n > s.count(1-i, exFlush) {
			return fmt.Errorf("RS-11a: end %d: FLUSH %d: %s", i, n.m.n, n.m.bad)
		}
		if err := s.keys(w, i); err != nil {
			return err
		}
		word, adds := binary.LittleEndian.Uint64(m[exWordOff:]), s.adds(1-i, w.nodes[1-i].posted)
		if word < n.word || word > adds {
			return fmt.Errorf("RS-16: end %d: the word is %d after %d, with %d ATOMICs posted", i, word, n.word, adds)
		}
		n.word = word
		for k := range n.completed {
			if !s.busy && !exIsUsed(&w.mem[i].data[k]) {
				return fmt.Errorf("EE-2: end %d: the buffer of request %d is written to after its completion", i, k)
			}
		}
		for k := range n.recvDone {
			if n.srq == nil && !exIsUsed(&w.mem[i].recv[k]) {
				return fmt.Errorf("EE-2: end %d: receive %d is written to after its completion", i, k)
			}
		}
	}
	return nil
}

// keys checks that the windows of end i are invalid whose messages were received, and no
// others.
func (s *exScenario) keys(w *exWorld, i int) error {
	n, took := &w.nodes[i], 0
	for k, op := range s.ops[1-i] {
		if op.receives() {
			took++
		}
		if op != exSendInv {
			continue
		}
		_, there := n.m.Remote(qp.RemoteAccess{PD: 1, QPN: n.q.Num(), RKey: n.windows[k], VA: exRegion, Len: 4, Right: qp.RemoteRead})
		if received := n.msgs >= took; there && received || !there && !received && !s.late {
			return fmt.Errorf("RS-17: end %d: the window of message %d is there: %t, with %d messages received", i, k, there, n.msgs)
		}
	}
	return nil
}

func exIsUsed(b *[exLong]byte) bool { return *b == exPattern[exUsed] }

func (d *exDirection) push(p *bth.Packet) {
	to := &d.q[d.n]
	to.p = *p
	copy(to.buf[:], p.Payload)
	clear(to.buf[len(p.Payload):])
	d.n++
	d.alias()
}

func (d *exDirection) shift(i int) {
	copy(d.q[i:], d.q[i+1:d.n])
	d.n--
	d.q[d.n] = exPacket{}
	d.alias()
}

// alias makes each payload that of its own buffer again.
func (d *exDirection) alias() {
	for i := range d.q[:d.n] {
		d.q[i].p.Payload = d.q[i].buf[:len(d.q[i].p.Payload)]
	}
}
