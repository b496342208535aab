package qp

import (
	"fmt"

	"github.com/roce-go/roce/psn"
)

// State is the state of a queue pair, enum ibv_qp_state.
type State uint8

// States.
const (
	Reset State = iota
	Init
	RTR   // ready to receive
	RTS   // ready to send
	SQD   // send queue drained or draining
	SQE   // send queue error
	Error // all work completes flushed
)

var stateNames = [...]string{"RESET", "INIT", "RTR", "RTS", "SQD", "SQE", "ERR"}

// String returns the name of s.
func (s State) String() string { return name(stateNames[:], int(s)) }

// AttrMask says which attributes of an Attr a call sets, enum ibv_qp_attr_mask.
type AttrMask uint32

// Attributes.
const (
	AttrState AttrMask = 1 << iota
	AttrPKey
	AttrQKey
	AttrAccess
	AttrPathMTU
	AttrDestQPN
	AttrAH
	AttrRQPSN
	AttrMaxDestRdAtomic
	AttrMinRNRTimer
	AttrSQPSN
	AttrTimeout
	AttrRetryCnt
	AttrRNRRetry
	AttrMaxRdAtomic
	attrEnd
)

// TransitionError says that a QP cannot go from one state to another.
type TransitionError struct {
	From, To State
}

// Error implements error.
func (e *TransitionError) Error() string {
	return fmt.Sprintf("qp: no transition from %v to %v", e.From, e.To)
}

// AttrError says which attributes a transition lacks, does not take, or has out
// of range.
type AttrError struct {
	From, To              State
	Missing, Extra, Range AttrMask
}

// Error implements error.
func (e *AttrError) Error() string {
	s := fmt.Sprintf("qp: %v to %v:", e.From, e.To)
	if e.Missing != 0 {
		s += fmt.Sprintf(" needs %v", e.Missing)
	}
	if e.Extra != 0 {
		s += fmt.Sprintf(" does not take %v", e.Extra)
	}
	if e.Range != 0 {
		s += fmt.Sprintf(" has out of range %v", e.Range)
	}
	return s
}

var attrNames = [...]string{"state", "pkey", "qkey", "access", "path_mtu", "dest_qp_num", "ah",
	"rq_psn", "max_dest_rd_atomic", "min_rnr_timer", "sq_psn", "timeout", "retry_cnt", "rnr_retry",
	"max_rd_atomic"}

// String lists the attributes by their verbs names.
func (m AttrMask) String() string {
	s := ""
	for i, n := range attrNames {
		if m>>i&1 != 0 {
			if s != "" {
				s += ","
			}
			s += n
		}
	}
	return s
}

// attrRule is what a transition needs and what it may take besides, as the table
// of ibv_modify_qp(3) has it.
type attrRule struct{ need, may AttrMask }

// rule returns the attributes of a transition of a QP of type t, and false when
// there is no such transition. AttrState itself is not in it.
func rule(t Type, from, to State) (attrRule, bool) {
	const (
		connectRC = AttrAH | AttrPathMTU | AttrDestQPN | AttrRQPSN
		receiveRC = AttrMaxDestRdAtomic | AttrMinRNRTimer
		sendRC    = AttrTimeout | AttrRetryCnt | AttrRNRRetry | AttrMaxRdAtomic
	)
	connected := t != UD
	receives := t == RC || t == XRCRecv
	sends := t == RC || t == XRCSend
	key := AttrQKey
	if connected {
		key = AttrAccess
	}
	live := key
	if receives {
		live |= AttrMinRNRTimer
	}
	switch {
	case to == Reset, to == Error:
		return attrRule{}, true
	case from == Reset && to == Init:
		return attrRule{need: AttrPKey | key}, true
	case from == Init && to == Init:
		return attrRule{may: AttrPKey | key}, true
	case from == Init && to == RTR:
		r := attrRule{may: AttrPKey | key}
		if connected {
			r.need = connectRC
		} else {
			r.may |= AttrPathMTU
		}
		if receives {
			r.need |= receiveRC
		}
		return r, true
	case from == RTR && to == RTS:
		r := attrRule{need: AttrSQPSN, may: live}
		if sends {
			r.need |= sendRC
		}
		if t == XRCRecv {
			r.need |= AttrTimeout
		}
		return r, true
	case from == RTS && to == RTS, from == SQE && to == RTS:
		return attrRule{may: live}, true
	case from == RTS && to == SQD:
		return attrRule{}, true
	case from == SQD && to == RTS:
		return attrRule{may: live}, true
	case from == SQD && to == SQD:
		r := attrRule{may: live | AttrPKey}
		if connected {
			r.may |= AttrAH
		}
		if sends {
			r.may |= sendRC
		}
		return r, true
	}
	return attrRule{}, false
}

// outOfRange returns those of the attributes in m whose values cannot be.
func (a *Attr) outOfRange(m AttrMask, maxRd, maxDestRd int) (bad AttrMask) {
	flag := func(bit AttrMask, ok bool) {
		if m&bit != 0 && !ok {
			bad |= bit
		}
	}
	flag(AttrPathMTU, validMTU(a.PathMTU))
	flag(AttrDestQPN, a.DestQPN <= 0xffffff)
	flag(AttrRQPSN, a.RQPSN <= psn.Mask)
	flag(AttrSQPSN, a.SQPSN <= psn.Mask)
	flag(AttrMaxDestRdAtomic, a.MaxDestRdAtomic >= 0 && a.MaxDestRdAtomic <= maxDestRd)
	flag(AttrMaxRdAtomic, a.MaxRdAtomic >= 0 && a.MaxRdAtomic <= maxRd)
	flag(AttrMinRNRTimer, a.MinRNRTimer <= 31)
	flag(AttrTimeout, a.Timeout <= 31)
	flag(AttrRetryCnt, a.RetryCnt <= 7)
	flag(AttrRNRRetry, a.RNRRetry <= 7)
	return bad
}

// set copies the attributes in m from b.
func (a *Attr) set(b *Attr, m AttrMask) {
	if m&AttrPKey != 0 {
		a.PKey = b.PKey
	}
	if m&AttrQKey != 0 {
		a.QKey = b.QKey
	}
	if m&AttrAccess != 0 {
		a.Access = b.Access
	}
	if m&AttrPathMTU != 0 {
		a.PathMTU = b.PathMTU
	}
	if m&AttrDestQPN != 0 {
		a.DestQPN = b.DestQPN
	}
	if m&AttrAH != 0 {
		a.AH = b.AH
	}
	if m&AttrRQPSN != 0 {
		a.RQPSN = b.RQPSN
	}
	if m&AttrMaxDestRdAtomic != 0 {
		a.MaxDestRdAtomic = b.MaxDestRdAtomic
	}
	if m&AttrMinRNRTimer != 0 {
		a.MinRNRTimer = b.MinRNRTimer
	}
	if m&AttrSQPSN != 0 {
		a.SQPSN = b.SQPSN
	}
	if m&AttrTimeout != 0 {
		a.Timeout = b.Timeout
	}
	if m&AttrRetryCnt != 0 {
		a.RetryCnt = b.RetryCnt
	}
	if m&AttrRNRRetry != 0 {
		a.RNRRetry = b.RNRRetry
	}
	if m&AttrMaxRdAtomic != 0 {
		a.MaxRdAtomic = b.MaxRdAtomic
	}
}
