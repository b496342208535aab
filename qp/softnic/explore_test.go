package softnic_test

import (
	"fmt"
	"net/netip"
	"reflect"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth/frame"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/internal/explore"
	"github.com/roce-go/roce/qp/softnic"
)

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
