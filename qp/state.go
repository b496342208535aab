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

// AttrError says which attributes a transition lacks, does not accept, or has out of range.
type AttrError struct {
	From, To              State
	Missing, Extra, Range AttrMask

	attr             Attr // the values asked for, and the upper limits
	maxRd, maxDestRd int
}

// Error implements error.
func (e *AttrError) Error() string {
	s := fmt.Sprintf("qp: %v to %v: ", e.From, e.To)
	sep := ""
	say := func(what string) {
		s += sep + what
		sep = "; "
	}
	if e.Missing != 0 {
		say(fmt.Sprintf("needs %v", e.Missing))
	}
	if e.Extra != 0 {
		say(fmt.Sprintf("does not accept %v", e.Extra))
	}
	for m := AttrMask(1); m < attrEnd; m <<= 1 {
		if e.Range&m != 0 {
			say(e.out(m))
		}
	}
	return s
}

// Is reports whether e is an [ErrRange]: a value is out of range.
func (e *AttrError) Is(target error) bool { return target == ErrRange && e.Range != 0 }

// out says what is wrong with the attribute m.
func (e *AttrError) out(m AttrMask) string {
	a := &e.attr
	upTo := func(v, most any) string { return fmt.Sprintf("%v is %v, want 0 to %v", m, v, most) }
	switch m {
	case AttrPathMTU:
		return fmt.Sprintf("%v is %d, want 256, 512, 1024, 2048 or 4096", m, a.PathMTU)
	case AttrDestQPN:
		return upTo(a.DestQPN, maxQPN)
	case AttrRQPSN:
		return upTo(uint32(a.RQPSN), psn.Mask)
	case AttrSQPSN:
		return upTo(uint32(a.SQPSN), psn.Mask)
	case AttrMaxDestRdAtomic:
		return upTo(a.MaxDestRdAtomic, e.maxDestRd)
	case AttrMaxRdAtomic:
		if e.From == SQD && a.MaxRdAtomic == 0 && e.maxRd != 0 {
			return fmt.Sprintf("%v is 0 with requests in the send queue, want 1 to %d", m, e.maxRd)
		}
		return upTo(a.MaxRdAtomic, e.maxRd)
	case AttrMinRNRTimer:
		return upTo(uint8(a.MinRNRTimer), 31)
	case AttrTimeout:
		return upTo(a.Timeout, 31)
	case AttrRetryCnt:
		return upTo(a.RetryCnt, 7)
	case AttrRNRRetry:
		return upTo(a.RNRRetry, 7)
	}
	return m.String()
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

// attrRule is what a transition needs and what it may set besides, as the table in
// ibv_modify_qp(3) says.
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
		if receives {
			r.may |= AttrMaxDestRdAtomic
		}
		if t == XRCRecv {
			r.may |= AttrTimeout
		}
		return r, true
	}
	return attrRule{}, false
}

// connectMasks returns what the three steps of a connection need: Reset to Init,
// Init to RTR and RTR to RTS of a QP of type t, with the attributes of a. The masks
// lack AttrState.
func connectMasks(t Type, a *Attr) [3]AttrMask {
	var m [3]AttrMask
	for i := range m {
		r, _ := rule(t, Reset+State(i), Init+State(i))
		m[i] = r.need
		if t == UD && a.PathMTU != 0 {
			m[i] |= r.may & AttrPathMTU
		}
	}
	return m
}

// outOfRange returns the attributes in m whose values are out of range.
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
