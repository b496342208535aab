package softnic_test

import (
	"errors"
	"flag"
	"fmt"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/internal/explore"
	"github.com/roce-go/roce/qp/softnic"
)

var exploreStates = flag.Int("explore", 0, "TestExplorePair: most states, 0 for 5000")

// pauseWorld is a port with two UD QPs that send datagrams of two priorities, while
// priorities are paused and released.
type pauseWorld struct {
	data   [1]byte
	port   *softnic.Port
	qs     [2]*softnic.QP
	posted [2][pausePosts]int8 // the priorities of what is not sent yet, oldest first; 0 is none
	n      [2]int8             // posted so far
	paused uint8
	cq     *softnic.CQ
}

const pausePosts = 2

var (
	pausePriorities = [2]uint8{0, 3}
	pauseHandles    [2]*qp.AddressHandle
)

func pauseStart() *pauseWorld {
	w := &pauseWorld{cq: softnic.NewCQ()}
	p, err := softnic.New(softnic.Config{MAC: frame.MAC{2, 0, 0, 0, 0, 1}, MaxQPs: 2, MaxNeighbors: 2,
		GIDs: []softnic.GID{addr("192.0.2.1")}})
	pauseMust(err)
	peer := netip.MustParseAddr("192.0.2.2")
	p.AddNeighbor(peer, frame.MAC{2, 0, 0, 0, 0, 2})
	w.port = p
	for i := range pauseHandles {
		pauseHandles[i] = qp.NewAddressHandle(qp.AHAttr{GID: netip.AddrFrom16(peer.As16()).As16(), TrafficClass: pausePriorities[i] << 5})
	}
	for i := range w.qs {
		w.qs[i], err = p.CreateQP(softnic.QPConfig{Config: qp.Config{Type: qp.UD, MaxSendWR: pausePosts}, SendCQ: w.cq, RecvCQ: w.cq})
		pauseMust(err)
		pauseMust(w.qs[i].Connect(pauseNow, &qp.Attr{PKey: 0xffff, QKey: 1, PathMTU: 1024}))
	}
	return w
}

func pauseMust(err error) {
	if err != nil {
		panic(err)
	}
}

var pauseNow = time.Unix(1000, 0)

// Moves: 0 to 3 pause a set of the two priorities, 4 to 7 post a datagram of one on
// one of the QPs, 8 sends a frame.
func pauseMoves(w *pauseWorld, to []explore.Move) []explore.Move {
	to = append(to, 0, 1, 2, 3, 8)
	for i := range w.n {
		if w.n[i] < pausePosts {
			to = append(to, explore.Move(4+2*i), explore.Move(5+2*i))
		}
	}
	return to
}

func pauseApply(w *pauseWorld, m explore.Move) error {
	switch {
	case m < 4:
		w.paused = 0
		for i, p := range pausePriorities {
			if m>>i&1 != 0 {
				w.paused |= 1 << p
			}
		}
		w.port.SetPaused(w.paused)
	case m < 8:
		q, p := (m-4)/2, (m-4)%2
		pauseMust(w.qs[q].PostSend(pauseNow, &qp.SendWR{Local: w.data[:], RemoteQPN: 9, AH: pauseHandles[p]}))
		for i := range w.posted[q] {
			if w.posted[q][i] == 0 {
				w.posted[q][i] = int8(p) + 1
				break
			}
		}
		w.n[q]++
	default:
		_, err := pauseSend(w)
		return err
	}
	return nil
}

// pauseSend takes a frame, which must be the oldest of its QP and not be paused.
func pauseSend(w *pauseWorld) (bool, error) {
	var f frame.Frame
	if !w.port.NextDecoded(pauseNow, &f) {
		return false, nil
	}
	for i, q := range w.qs {
		if q.Num() != f.Packet.DETH.SrcQP {
			continue
		}
		p := w.posted[i][0]
		if p == 0 || pausePriorities[p-1] != f.TrafficClass>>5 {
			return true, fmt.Errorf("QP %d sends priority %d, its datagrams are %v", i, f.TrafficClass>>5, w.posted[i])
		}
		if w.paused>>pausePriorities[p-1]&1 != 0 {
			return true, fmt.Errorf("QP %d sends priority %d, which is paused", i, pausePriorities[p-1])
		}
		copy(w.posted[i][:], w.posted[i][1:])
		w.posted[i][pausePosts-1] = 0
		for c := (qp.Completion{}); w.cq.Poll(&c); {
		}
		return true, nil
	}
	return true, fmt.Errorf("a frame of no QP")
}

// pauseFinish sends what can be sent: only datagrams of paused priorities, and those
// behind them, may stay.
func pauseFinish(w *pauseWorld) error {
	for {
		sent, err := pauseSend(w)
		if err != nil {
			return err
		}
		if !sent {
			break
		}
	}
	for i := range w.qs {
		if p := w.posted[i][0]; p != 0 && w.paused>>pausePriorities[p-1]&1 == 0 {
			return fmt.Errorf("QP %d sleeps on a datagram of priority %d, which is not paused", i, pausePriorities[p-1])
		}
	}
	return nil
}

// TestExplorePause goes through every order of pauses, posts and frames of a small
// port: no QP sleeps on work that it may do.
func TestExplorePause(t *testing.T) {
	m := explore.Model[pauseWorld]{
		Graph: explore.Graph[pauseWorld]{Classify: func(t reflect.Type, _ string) explore.Kind {
			switch t.Name() {
			case "Counters", "Clock", "Outgoing", "Frame":
				return explore.Ignored
			}
			return explore.Plain
		}},
		Start: pauseStart, Moves: pauseMoves, Apply: pauseApply, Finish: pauseFinish,
		Now: func(*pauseWorld) int64 { return 0 },
	}
	limit := 30000
	if testing.Short() {
		limit = 300
	}
	r, err := explore.Run(&m, limit)
	t.Log(r)
	require.NoError(t, err)
}

// The world of two ports: each has two RC QPs, of two priorities, towards the other's;
// acknowledgements have a third. SENDs of port 0 take their receives from one SRQ.
const (
	pairWire  = 2
	pairPosts = 2
	pairSize  = 4 // bytes of a message
	pairAck   = 5 // priority of acknowledgements
)

type pairFrame struct {
	n int
	b [96]byte
}

// pairQP is a QP as its application knows it.
type pairQP struct {
	posted, done int8
	got          int8 // messages received
	asked        bool // a request of it was sent
}

type pairWorld struct {
	in     [96]byte // the frame that is being handled
	data   [2][2][pairPosts][pairSize]byte
	region [2][16]byte // of a port, eight bytes for each QP
	recv   [2 * pairPosts][pairSize]byte
	now    int64

	ports [2]*softnic.Port
	qs    [2][2]*softnic.QP
	cqs   [2]*softnic.CQ
	srq   *softnic.SRQ
	keys  [2]uint32
	app   [2][2]pairQP
	wire  [2]struct {
		n int
		q [pairWire]pairFrame
	}
	paused             [2]uint8
	pauses, drops, dup int8 // left
	hurt               bool // something was lost or doubled
}

var pairPriorities = [2]uint8{0, 3}

// pairOp is what a QP posts: the tag of what it carries is its place, from 1 on.
func pairOp(port, q, k int) qp.Op {
	switch {
	case port == 0 && k == 0:
		return qp.OpSend
	case q == 0:
		return qp.OpWrite
	}
	return qp.OpRead
}

func pairTime(ns int64) time.Time { return time.Unix(1000, ns) }

func pairStart() *pairWorld {
	w := &pairWorld{pauses: 3, drops: 1, dup: 1}
	addrs := [2]netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")}
	for i := range w.ports {
		regions, err := qp.NewRegions(1)
		pauseMust(err)
		for j := range w.qs[i] {
			w.region[i][8*j+4] = byte(0x40 + j) // what READs get
		}
		w.ports[i], err = softnic.New(softnic.Config{MAC: frame.MAC{2, 0, 0, 0, 0, byte(i + 1)}, MaxQPs: 2, MaxNeighbors: 2,
			GIDs: []softnic.GID{{Addr: addrs[i]}}, Regions: regions, Ack: &softnic.Marking{DSCP: pairAck << 3, Priority: pairAck}})
		pauseMust(err)
		w.ports[i].AddNeighbor(addrs[1-i], frame.MAC{2, 0, 0, 0, 0, byte(2 - i)})
		w.cqs[i] = softnic.NewCQ()
		w.keys[i], err = regions.Register(qp.Region{PD: 1, Addr: 0x1000, Data: w.region[i][:], Access: qp.RemoteRead | qp.RemoteWrite})
		pauseMust(err)
	}
	var err error
	w.srq, err = w.ports[1].CreateSRQ(2*pairPosts, 0)
	pauseMust(err)
	for i, p := range w.ports {
		for j := range w.qs[i] {
			cfg := softnic.QPConfig{SendCQ: w.cqs[i], RecvCQ: w.cqs[i], Config: qp.Config{Type: qp.RC, PD: 1, MaxSendWR: pairPosts,
				MaxRdAtomic: 1, MaxDestRdAtomic: 1, SignalAll: true, NoCredits: true}}
			if i == 1 {
				cfg.SRQ = w.srq
			}
			w.qs[i][j], err = p.CreateQP(cfg)
			pauseMust(err)
		}
	}
	for i := range w.qs {
		for j, q := range w.qs[i] {
			pauseMust(q.Connect(pairTime(0), &qp.Attr{PKey: 0xffff, Access: qp.RemoteRead | qp.RemoteWrite, PathMTU: 256, DestQPN: w.qs[1-i][j].Num(),
				AH:    qp.AHAttr{GID: netip.AddrFrom16(addrs[1-i].As16()).As16(), TrafficClass: pairPriorities[j] << 5},
				SQPSN: 0xfffffe + psn.PSN(j), RQPSN: 0xfffffe + psn.PSN(j), MaxRdAtomic: 1, MaxDestRdAtomic: 1, MinRNRTimer: 1, Timeout: uint8(10 + i), RetryCnt: 7, RNRRetry: 7}))
		}
	}
	for k := range w.recv {
		pauseMust(w.srq.PostRecv(&qp.RecvWR{ID: uint64(k), Local: w.recv[k][:]}))
	}
	return w
}

// Moves of a port: post on a QP, take a frame, deliver, drop or double what is on the
// way from it, pause or release a priority. And time passes.
const (
	pairPost explore.Move = iota << 4
	pairEmit
	pairDeliver
	pairDrop
	pairDouble
	pairPause
	pairTick
)

func pairMoves(w *pairWorld, to []explore.Move) []explore.Move {
	idle := true
	for i, p := range w.ports {
		e, d := explore.Move(i), &w.wire[i]
		for j := range w.app[i] {
			if w.app[i][j].posted < pairPosts {
				to = append(to, pairPost|explore.Move(j)<<1|e)
			}
		}
		if !p.Idle() {
			idle = false
			if d.n < pairWire {
				to = append(to, pairEmit|e)
			}
		}
		if d.n != 0 {
			idle = false
			to = append(to, pairDeliver|e)
			if w.drops > 0 {
				to = append(to, pairDrop|e)
			}
			if w.dup > 0 && d.n < pairWire {
				to = append(to, pairDouble|e)
			}
		}
		if w.pauses > 0 {
			to = append(to, pairPause|e, pairPause|2|e, pairPause|4|e)
		}
	}
	if idle && w.paused == [2]uint8{} && pairDeadline(w) != 0 { // a pause may outlast all retries
		to = append(to, pairTick)
	}
	return to
}

func pairDeadline(w *pairWorld) (first int64) {
	for _, p := range w.ports {
		if t, ok := p.Deadline(); ok {
			if ns := int64(t.Sub(pairTime(0))); first == 0 || ns < first {
				first = ns
			}
		}
	}
	return first
}

func pairApply(w *pairWorld, m explore.Move) error {
	i, what := int(m&1), int(m>>1&7)
	p, d := w.ports[i], &w.wire[i]
	switch m &^ 0xf {
	case pairPost:
		a := &w.app[i][what]
		k := int(a.posted)
		wr := qp.SendWR{ID: uint64(what<<4 | k), Op: pairOp(i, what, k), Local: w.data[i][what][k][:], RKey: w.keys[1-i], RemoteAddr: 0x1000 + 8*uint64(what)}
		if wr.Op == qp.OpRead {
			wr.RemoteAddr += 4
			wr.Local = wr.Local[:1]
		} else {
			for b := range wr.Local {
				wr.Local[b] = byte(what<<4 | k + 1)
			}
		}
		pauseMust(w.qs[i][what].PostSend(pairTime(w.now), &wr))
		a.posted++
	case pairEmit:
		_, err := pairSend(w, i)
		return err
	case pairDeliver:
		w.in = d.q[0].b
		n := d.q[0].n
		pairShift(w, i)
		if r := w.ports[1-i].HandleFrame(pairTime(w.now), w.in[:n]); r != softnic.Delivered {
			return fmt.Errorf("port %d: a frame of the other one is %v", 1-i, r)
		}
	case pairDrop:
		w.drops--
		w.hurt = true
		pairShift(w, i)
	case pairDouble:
		w.dup--
		w.hurt = true
		d.q[d.n] = d.q[0]
		d.n++
	case pairPause:
		w.pauses--
		w.paused[i] ^= 1 << [...]uint8{pairPriorities[0], pairPriorities[1], pairAck}[what]
		p.SetPaused(w.paused[i])
	case pairTick:
		w.now = max(w.now, pairDeadline(w))
		for k, p := range w.ports {
			p.Tick(pairTime(w.now))
			if t, ok := p.Deadline(); ok && !t.After(pairTime(w.now)) {
				return fmt.Errorf("port %d: the deadline after Tick is not later than now", k)
			}
		}
	}
	return pairPoll(w)
}

func pairShift(w *pairWorld, i int) {
	d := &w.wire[i]
	copy(d.q[:], d.q[1:d.n])
	d.n--
	d.q[d.n] = pairFrame{}
}

// pairSend takes a frame to the link, which must not be of a paused priority.
func pairSend(w *pairWorld, i int) (bool, error) {
	d := &w.wire[i]
	to := &d.q[d.n]
	b, ok := w.ports[i].NextFrame(pairTime(w.now), to.b[:0])
	if !ok {
		return false, nil
	}
	to.n = len(b)
	d.n++
	if prio := b[15] >> 5; w.paused[i]>>prio&1 != 0 { // its DSCP
		return true, fmt.Errorf("port %d sends priority %d, of which %08b are paused", i, prio, w.paused[i])
	}
	const ibta = 14 + 20 + 8 // where the BTH begins
	if bth.Opcode(b[ibta]).Class() == bth.Request {
		for j, q := range w.qs[1-i] {
			if q.Num() == uint32(b[ibta+5])<<16|uint32(b[ibta+6])<<8|uint32(b[ibta+7]) {
				w.app[i][j].asked = true
			}
		}
	}
	return true, nil
}

// pairPoll takes completions: of each QP in order, good, and with the data that belong
// to them.
func pairPoll(w *pairWorld) error {
	for i, cq := range w.cqs {
		for c := (qp.Completion{}); cq.Poll(&c); {
			j := 0
			if c.QPN == w.qs[i][1].Num() {
				j = 1
			}
			a := &w.app[i][j]
			if c.Status != qp.Success {
				return fmt.Errorf("port %d, QP %d: %v ends with %v", i, j, c.Op, c.Status)
			}
			if c.Op == qp.OpRecv {
				a.got++
				if tag := byte(j<<4 | 1); w.recv[c.ID] != [pairSize]byte{tag, tag, tag, tag} {
					return fmt.Errorf("EE-2: QP %d receives %x, want %#x four times", j, w.recv[c.ID], tag)
				}
				if a.got > 1 {
					return fmt.Errorf("EE-2: QP %d receives a message twice", j)
				}
				continue
			}
			k := int(c.ID) & 0xf
			if int(c.ID)>>4 != j || k != int(a.done) {
				return fmt.Errorf("RQ-09: port %d, QP %d: completion %#x, want %d", i, j, c.ID, a.done)
			}
			a.done++
			far := w.region[1-i][8*j:]
			switch op := pairOp(i, j, k); {
			case op == qp.OpWrite && far[0] != byte(j<<4|k+1) && k == int(a.posted)-1:
				return fmt.Errorf("EE-2: port %d, QP %d: complete, and the memory has %#x", i, j, far[0])
			case op == qp.OpRead && w.data[i][j][k][0] != byte(0x40+j):
				return fmt.Errorf("EE-2: port %d, QP %d reads %#x", i, j, w.data[i][j][k][0])
			case op == qp.OpSend && w.app[1-i][j].got != 1:
				return fmt.Errorf("EE-2: port %d, QP %d: complete, and not received", i, j)
			}
		}
	}
	return nil
}

// pairFinish continues with the priorities as they are paused, then without pauses. A
// QP of which nothing is paused comes to its end, without a timer where nothing was
// lost; in the end all do.
func pairFinish(w *pairWorld) error {
	w.drops, w.dup, w.pauses = 0, 0, 0
	for _, open := range []bool{false, true} {
		if open { // posting wakes a QP that sleeps: only now
			for k := range pairPosts * 4 {
				if i, j := k&1, k>>1&1; w.app[i][j].posted < pairPosts {
					if err := pairApply(w, pairPost|explore.Move(j)<<1|explore.Move(i)); err != nil {
						return err
					}
				}
			}
			for i, p := range w.ports {
				w.paused[i] = 0
				p.SetPaused(0)
			}
		}
		ticks := 0
		for steps := 0; ; steps++ {
			if steps == 500 {
				return errors.New("EE-3: 500 moves of a good link, and still something to do")
			}
			var moved bool
			for i := range w.ports {
				if w.wire[i].n < pairWire {
					sent, err := pairSend(w, i)
					if err != nil {
						return err
					}
					moved = moved || sent
				}
				if w.wire[i].n != 0 {
					moved = true
					if err := pairApply(w, pairDeliver|explore.Move(i)); err != nil {
						return err
					}
				}
			}
			if moved {
				continue
			}
			if pairDeadline(w) == 0 || !open {
				break
			}
			ticks++
			if err := pairApply(w, pairTick); err != nil {
				return err
			}
		}
		both := w.paused[0] | w.paused[1]
		for i := range w.app {
			for j, a := range w.app[i] {
				if !a.asked && a.posted != 0 && w.paused[i]>>pairPriorities[j]&1 == 0 {
					return fmt.Errorf("port %d: QP %d sleeps on its first request, whose priority is not paused", i, j)
				}
				if a.done != a.posted && (open || !w.hurt && both&(1<<pairPriorities[j]|1<<pairAck) == 0) {
					return fmt.Errorf("port %d: QP %d sleeps, of which nothing is paused: %d of %d requests are complete, %d ticks", i, j, a.done, a.posted, ticks)
				}
			}
		}
		if open && ticks != 0 && !w.hurt {
			return errors.New("nothing was lost, and it took a timer")
		}
	}
	return nil
}

// TestExplorePair goes through every order of pauses, posts, frames and faults of two
// ports with two connections and a shared receive queue (rules EE-1, EE-2, EE-3,
// RQ-09).
func TestExplorePair(t *testing.T) {
	m := explore.Model[pairWorld]{
		Graph: explore.Graph[pairWorld]{Classify: func(t reflect.Type, field string) explore.Kind {
			switch t.Name() {
			case "Counters", "MachineCounters", "Clock", "Outgoing", "Frame", "Message":
				return explore.Ignored
			}
			switch field {
			case "now", "in":
				return explore.Ignored
			case "due", "until", "paced":
				if f, _ := t.FieldByName(field); f.Type.Kind() == reflect.Int64 {
					return explore.Instant
				}
			}
			return explore.Plain
		}},
		Start: pairStart, Moves: pairMoves, Apply: pairApply, Finish: pairFinish,
		Now: func(w *pairWorld) int64 { return w.now + 1 }, // of the clocks, which begin at 1
	}
	limit := 5000
	if testing.Short() {
		limit = 300
	}
	if *exploreStates != 0 {
		limit = *exploreStates
	}
	begin := time.Now()
	r, err := explore.Run(&m, limit)
	t.Logf("%v, %.0f states a second", r, float64(r.States)/time.Since(begin).Seconds())
	var c *explore.Counterexample
	if errors.As(err, &c) {
		for _, mv := range c.Moves {
			t.Logf("%s at port %d, %d", [...]string{"post", "emit", "deliver", "drop", "double", "pause", "tick"}[mv>>4], mv&1, mv>>1&7)
		}
	}
	require.NoError(t, err)
}
