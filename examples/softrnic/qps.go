package main

import (
	"time"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/softnic"
)

func pSN(n uint32) psn.PSN            { return psn.PSN(n) & psn.Mask }
func rnrTimer(code int) aeth.RNRTimer { return aeth.RNRTimer(code) }

// bringUp takes a QP from Reset to RTS with the attributes of a that its kind
// takes.
func bringUp(now time.Time, q *softnic.QP, a qp.Attr) error {
	var init, rtr, rts qp.AttrMask
	switch q.Type() {
	case qp.UD:
		init, rtr, rts = qp.AttrPKey|qp.AttrQKey, qp.AttrPathMTU, qp.AttrSQPSN
	default:
		init = qp.AttrPKey | qp.AttrAccess
		rtr = qp.AttrAH | qp.AttrPathMTU | qp.AttrDestQPN | qp.AttrRQPSN
		rts = qp.AttrSQPSN
		if q.Type() == qp.RC {
			rtr |= qp.AttrMaxDestRdAtomic | qp.AttrMinRNRTimer
			rts |= qp.AttrTimeout | qp.AttrRetryCnt | qp.AttrRNRRetry | qp.AttrMaxRdAtomic
		}
	}
	for _, s := range []struct {
		state qp.State
		mask  qp.AttrMask
	}{{qp.Init, init}, {qp.RTR, rtr}, {qp.RTS, rts}} {
		a.State = s.state
		if err := q.Modify(now, &a, s.mask|qp.AttrState); err != nil {
			return err
		}
	}
	return nil
}
