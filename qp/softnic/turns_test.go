package softnic_test

import (
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/softnic"
)

// Rule EE-3 over two ports, with a link that takes one frame of each side at a time:
// a peer that always has two READs outstanding, or WRITEs that are acknowledged one
// by one, does not keep our SEND back.
func TestTurns(t *testing.T) {
	for _, op := range []qp.Op{qp.OpRead, qp.OpWrite} {
		p := newPair(t, [2]softnic.GID{addr("192.0.2.1"), addr("192.0.2.2")})
		var qs [2]*softnic.QP
		var cqs [2]*softnic.CQ
		for i := range qs {
			g, _ := p.ports[1-i].GID(0)
			qs[i], cqs[i] = qpOf(t, p.ports[i], p.now, qp.RC, qp.AHAttr{GID: g, MAC: p.ports[1-i].MAC()}, nil)
		}
		mem := make([]byte, 16<<10)
		key, err := p.ports[0].Regions().Register(qp.Region{Data: mem, Access: qp.RemoteRead | qp.RemoteWrite})
		require.NoError(t, err)
		require.NoError(t, qs[1].PostRecv(&qp.RecvWR{Local: make([]byte, 8)}))

		local := make([]byte, 16<<10)
		if op == qp.OpWrite {
			local = local[:8]
		}
		outstanding, served := 0, 0
		var wc qp.Completion
		for step := 0; ; step++ {
			require.Less(t, step, 1000, "%v: the SEND was never received, %d done", op, served)
			for outstanding < 2+14*int(min(1, 1024/uint(len(local)))) {
				require.NoError(t, qs[1].PostSend(p.now, &qp.SendWR{Op: op, Flags: qp.Signaled, Local: local, RKey: key}))
				outstanding++
			}
			if step == 100 {
				require.NoError(t, qs[0].PostSend(p.now, &qp.SendWR{Op: qp.OpSend, Local: []byte("through")}))
			}
			for i, port := range p.ports {
				if b, ok := port.NextFrame(p.now, nil); ok {
					p.ports[1-i].HandleFrame(p.now, b)
				}
			}
			p.now = p.now.Add(100 * time.Nanosecond)
			got := false
			for cqs[1].Poll(&wc) {
				require.Equal(t, qp.Success, wc.Status)
				if wc.Op == qp.OpRecv {
					got = true
					continue
				}
				outstanding--
				served++
			}
			if got {
				require.Less(t, step, 110, op)
				break
			}
		}
		require.Positive(t, served)
	}
}
