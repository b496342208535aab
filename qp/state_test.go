package qp_test

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp"
)

var epoch = time.Unix(1e9, 0)

// base is a QP with room for everything.
func base(t qp.Type) qp.Config {
	c := qp.Config{Type: t, QPN: 1, PD: 1, MaxSendWR: 16, MaxRecvWR: 16, MaxInline: 64, MaxRdAtomic: 4, MaxDestRdAtomic: 4}
	if t == qp.XRCRecv {
		c.XRCSRQs = noSRQs{}
	}
	return c
}

type noSRQs struct{}

func (noSRQs) SRQ(uint32) *qp.SRQ { return nil }

// good has a good value for every attribute.
func good(s qp.State) *qp.Attr {
	return &qp.Attr{State: s, PKey: 0xffff, QKey: 5, Access: qp.RemoteWrite, PathMTU: 1024, DestQPN: 2,
		AH: qp.AHAttr{TrafficClass: 8}, RQPSN: 10, MaxDestRdAtomic: 3, MinRNRTimer: 4, SQPSN: 20,
		Timeout: 14, RetryCnt: 6, RNRRetry: 5, MaxRdAtomic: 2}
}

const (
	noAttr   = qp.AttrMask(0)
	allAttrs = qp.AttrMaxRdAtomic<<1 - 1 // AttrMaxRdAtomic is the last one
)

// needs is what ibv_modify_qp(3) lists for the ways up, of what there is here.
var needs = map[qp.Type]map[qp.State]qp.AttrMask{
	qp.RC: {
		qp.Init: qp.AttrPKey | qp.AttrAccess,
		qp.RTR:  qp.AttrAH | qp.AttrPathMTU | qp.AttrDestQPN | qp.AttrRQPSN | qp.AttrMaxDestRdAtomic | qp.AttrMinRNRTimer,
		qp.RTS:  qp.AttrSQPSN | qp.AttrMaxRdAtomic | qp.AttrRetryCnt | qp.AttrRNRRetry | qp.AttrTimeout,
	},
	qp.UC: {
		qp.Init: qp.AttrPKey | qp.AttrAccess,
		qp.RTR:  qp.AttrAH | qp.AttrPathMTU | qp.AttrDestQPN | qp.AttrRQPSN,
		qp.RTS:  qp.AttrSQPSN,
	},
	qp.UD: {
		qp.Init: qp.AttrPKey | qp.AttrQKey,
		qp.RTR:  noAttr,
		qp.RTS:  qp.AttrSQPSN,
	},
	qp.XRCSend: {
		qp.Init: qp.AttrPKey | qp.AttrAccess,
		qp.RTR:  qp.AttrAH | qp.AttrPathMTU | qp.AttrDestQPN | qp.AttrRQPSN,
		qp.RTS:  qp.AttrSQPSN | qp.AttrMaxRdAtomic | qp.AttrRetryCnt | qp.AttrRNRRetry | qp.AttrTimeout,
	},
	qp.XRCRecv: {
		qp.Init: qp.AttrPKey | qp.AttrAccess,
		qp.RTR:  qp.AttrAH | qp.AttrPathMTU | qp.AttrDestQPN | qp.AttrRQPSN | qp.AttrMaxDestRdAtomic | qp.AttrMinRNRTimer,
		qp.RTS:  qp.AttrSQPSN | qp.AttrTimeout,
	},
}

// in returns a QP of type t in state s.
func in(t testing.TB, cfg qp.Config, s qp.State) *qp.QP {
	q, err := qp.New(cfg)
	require.NoError(t, err)
	for up := qp.Init; up <= min(s, qp.RTS); up++ {
		require.NoError(t, q.Modify(epoch, good(up), needs[cfg.Type][up]|qp.AttrState))
	}
	switch s {
	case qp.SQD, qp.Error:
		require.NoError(t, q.Modify(epoch, &qp.Attr{State: s}, qp.AttrState))
	case qp.SQE:
		// Only a failed send of an unreliable QP leads there.
		require.NoError(t, q.PostSend(epoch, &qp.SendWR{AH: qp.NewAddressHandle(qp.AHAttr{})}))
		q.FailSend(qp.LocalQPOpErr)
	}
	require.Equal(t, s, q.State())
	return q
}

// states of a QP of type t.
func states(t qp.Type) []qp.State {
	s := []qp.State{qp.Reset, qp.Init, qp.RTR, qp.RTS, qp.SQD, qp.Error}
	if t == qp.UC || t == qp.UD {
		s = append(s, qp.SQE)
	}
	return s
}

// allowed is the picture of QP states, with the transitions to itself that
// ibv_modify_qp has. Any state may go to Error and Reset.
var allowed = map[[2]qp.State]bool{
	{qp.Reset, qp.Init}: true, {qp.Init, qp.Init}: true, {qp.Init, qp.RTR}: true, {qp.RTR, qp.RTS}: true,
	{qp.RTS, qp.RTS}: true, {qp.RTS, qp.SQD}: true, {qp.SQD, qp.SQD}: true, {qp.SQD, qp.RTS}: true, {qp.SQE, qp.RTS}: true,
}

// Rule QP states: every pair of states of every kind of QP, with the attributes that
// the transition needs.
// Rule ST-1.
func TestTransitions(t *testing.T) {
	for typ := range qp.XRCRecv + 1 {
		for _, from := range states(typ) {
			for to := range qp.Error + 3 {
				q := in(t, base(typ), from)
				before := q.Attr()
				mask := qp.AttrState
				if to > from {
					mask |= needs[typ][to]
				}
				if from == qp.SQE {
					mask = qp.AttrState
				}
				err := q.Modify(epoch, good(to), mask)
				name := fmt.Sprint(typ, " ", from, " to ", to)
				if allowed[[2]qp.State{from, to}] || to == qp.Error || to == qp.Reset {
					require.NoError(t, err, name)
					require.Equal(t, to, q.State(), name)
					continue
				}
				var te *qp.TransitionError
				require.True(t, errors.As(err, &te), name)
				require.Equal(t, qp.TransitionError{From: from, To: to}, *te)
				require.Equal(t, fmt.Sprintf("qp: no transition from %v to %v", from, to), err.Error())
				require.Equal(t, before, q.Attr(), name)
			}
		}
	}
}

// Rule QP states: each attribute that a transition needs is needed, by its name, and
// nothing else is taken but what may be.
// Rule ST-2.
func TestTransitionAttributes(t *testing.T) {
	liveOf := func(typ qp.Type) qp.AttrMask {
		switch typ {
		case qp.RC, qp.XRCRecv:
			return qp.AttrAccess | qp.AttrMinRNRTimer
		case qp.UD:
			return qp.AttrQKey
		}
		return qp.AttrAccess
	}
	for typ := range qp.XRCRecv + 1 {
		live := liveOf(typ)
		key := live &^ qp.AttrMinRNRTimer
		sqd := live | qp.AttrPKey
		if typ != qp.UD {
			sqd |= qp.AttrAH
		}
		if typ == qp.RC || typ == qp.XRCSend {
			sqd |= qp.AttrTimeout | qp.AttrRetryCnt | qp.AttrRNRRetry | qp.AttrMaxRdAtomic
		}
		if typ == qp.RC || typ == qp.XRCRecv {
			sqd |= qp.AttrMaxDestRdAtomic
		}
		if typ == qp.XRCRecv {
			sqd |= qp.AttrTimeout
		}
		rtr := qp.AttrPKey | key
		if typ == qp.UD {
			rtr |= qp.AttrPathMTU // the port's, and may be given
		}
		for _, c := range []struct {
			from, to  qp.State
			need, may qp.AttrMask
		}{
			{qp.Reset, qp.Init, needs[typ][qp.Init], 0},
			{qp.Init, qp.Init, 0, qp.AttrPKey | key},
			{qp.Init, qp.RTR, needs[typ][qp.RTR], rtr},
			{qp.RTR, qp.RTS, needs[typ][qp.RTS], live},
			{qp.RTS, qp.RTS, 0, live},
			{qp.RTS, qp.SQD, 0, 0},
			{qp.SQD, qp.RTS, 0, live},
			{qp.SQD, qp.SQD, 0, sqd},
			{qp.SQE, qp.RTS, 0, live},
			{qp.RTS, qp.Error, 0, 0},
			{qp.RTS, qp.Reset, 0, 0},
		} {
			if c.from == qp.SQE && typ != qp.UC && typ != qp.UD {
				continue
			}
			name := fmt.Sprint(typ, " ", c.from, " to ", c.to)
			for bit := qp.AttrPKey; bit < allAttrs; bit <<= 1 {
				var ae *qp.AttrError
				q := in(t, base(typ), c.from)
				switch {
				case c.need&bit != 0:
					err := q.Modify(epoch, good(c.to), qp.AttrState|c.need&^bit)
					require.True(t, errors.As(err, &ae), "%s without %v", name, bit)
					requireAttrError(t, qp.AttrError{From: c.from, To: c.to, Missing: bit}, ae)
					require.Equal(t, fmt.Sprintf("qp: %v to %v: needs %v", c.from, c.to, bit), err.Error())
				case c.may&bit != 0:
					require.NoError(t, q.Modify(epoch, good(c.to), qp.AttrState|c.need|bit), "%s with %v", name, bit)
					continue
				default:
					err := q.Modify(epoch, good(c.to), qp.AttrState|c.need|bit)
					require.True(t, errors.As(err, &ae), "%s with %v", name, bit)
					requireAttrError(t, qp.AttrError{From: c.from, To: c.to, Extra: bit}, ae)
					require.Equal(t, fmt.Sprintf("qp: %v to %v: does not accept %v", c.from, c.to, bit), err.Error())
				}
				require.Equal(t, c.from, q.State(), "a refused call changed the state")
			}
			q := in(t, base(typ), c.from)
			require.NoError(t, q.Modify(epoch, good(c.to), qp.AttrState|c.need|c.may), name)
		}
	}
}

// Rule QP states: values out of range are refused by name, at both ends.
// Rule ST-2.
func TestAttributeRanges(t *testing.T) {
	rtr, rts := needs[qp.RC][qp.RTR], needs[qp.RC][qp.RTS]
	for _, c := range []struct {
		bit  qp.AttrMask
		name string
		set  func(*qp.Attr)
		ok   bool
	}{
		{qp.AttrPathMTU, "path_mtu", func(a *qp.Attr) { a.PathMTU = 128 }, false},
		{qp.AttrPathMTU, "path_mtu", func(a *qp.Attr) { a.PathMTU = 256 }, true},
		{qp.AttrPathMTU, "path_mtu", func(a *qp.Attr) { a.PathMTU = 4096 }, true},
		{qp.AttrPathMTU, "path_mtu", func(a *qp.Attr) { a.PathMTU = 8192 }, false},
		{qp.AttrPathMTU, "path_mtu", func(a *qp.Attr) { a.PathMTU = 1500 }, false},
		{qp.AttrPathMTU, "path_mtu", func(a *qp.Attr) { a.PathMTU = -256 }, false},
		{qp.AttrDestQPN, "dest_qp_num", func(a *qp.Attr) { a.DestQPN = 0xffffff }, true},
		{qp.AttrDestQPN, "dest_qp_num", func(a *qp.Attr) { a.DestQPN = 0x1000000 }, false},
		{qp.AttrRQPSN, "rq_psn", func(a *qp.Attr) { a.RQPSN = 0xffffff }, true},
		{qp.AttrRQPSN, "rq_psn", func(a *qp.Attr) { a.RQPSN = 0x1000000 }, false},
		{qp.AttrMaxDestRdAtomic, "max_dest_rd_atomic", func(a *qp.Attr) { a.MaxDestRdAtomic = 0 }, true},
		{qp.AttrMaxDestRdAtomic, "max_dest_rd_atomic", func(a *qp.Attr) { a.MaxDestRdAtomic = 4 }, true},
		{qp.AttrMaxDestRdAtomic, "max_dest_rd_atomic", func(a *qp.Attr) { a.MaxDestRdAtomic = 5 }, false},
		{qp.AttrMaxDestRdAtomic, "max_dest_rd_atomic", func(a *qp.Attr) { a.MaxDestRdAtomic = -1 }, false},
		{qp.AttrMinRNRTimer, "min_rnr_timer", func(a *qp.Attr) { a.MinRNRTimer = 31 }, true},
		{qp.AttrMinRNRTimer, "min_rnr_timer", func(a *qp.Attr) { a.MinRNRTimer = 32 }, false},
		{qp.AttrSQPSN, "sq_psn", func(a *qp.Attr) { a.SQPSN = 0xffffff }, true},
		{qp.AttrSQPSN, "sq_psn", func(a *qp.Attr) { a.SQPSN = 0x1000000 }, false},
		{qp.AttrTimeout, "timeout", func(a *qp.Attr) { a.Timeout = 31 }, true},
		{qp.AttrTimeout, "timeout", func(a *qp.Attr) { a.Timeout = 32 }, false},
		{qp.AttrRetryCnt, "retry_cnt", func(a *qp.Attr) { a.RetryCnt = 7 }, true},
		{qp.AttrRetryCnt, "retry_cnt", func(a *qp.Attr) { a.RetryCnt = 8 }, false},
		{qp.AttrRNRRetry, "rnr_retry", func(a *qp.Attr) { a.RNRRetry = 7 }, true},
		{qp.AttrRNRRetry, "rnr_retry", func(a *qp.Attr) { a.RNRRetry = 8 }, false},
		{qp.AttrMaxRdAtomic, "max_rd_atomic", func(a *qp.Attr) { a.MaxRdAtomic = 4 }, true},
		{qp.AttrMaxRdAtomic, "max_rd_atomic", func(a *qp.Attr) { a.MaxRdAtomic = 5 }, false},
		{qp.AttrMaxRdAtomic, "max_rd_atomic", func(a *qp.Attr) { a.MaxRdAtomic = -1 }, false},
	} {
		from, to, mask := qp.Init, qp.RTR, rtr
		if rts&c.bit != 0 {
			from, to, mask = qp.RTR, qp.RTS, rts
		}
		q := in(t, base(qp.RC), from)
		a := good(to)
		c.set(a)
		err := q.Modify(epoch, a, mask|qp.AttrState)
		if c.ok {
			require.NoError(t, err, c.name)
			continue
		}
		var ae *qp.AttrError
		require.True(t, errors.As(err, &ae), "%s %+v", c.name, a)
		requireAttrError(t, qp.AttrError{From: from, To: to, Range: c.bit}, ae)
		require.Contains(t, err.Error(), c.name+" is ")
		require.Equal(t, from, q.State())
	}
}

// Query returns what was set, and only that.
func TestQuery(t *testing.T) {
	q := in(t, base(qp.RC), qp.RTS)
	want := *good(qp.RTS)
	want.QKey = 0 // not an attribute of RC
	require.Equal(t, want, q.Attr())

	require.NoError(t, q.Modify(epoch, &qp.Attr{Access: qp.RemoteRead, MinRNRTimer: 9, PathMTU: 256}, qp.AttrAccess|qp.AttrMinRNRTimer))
	want.Access, want.MinRNRTimer = qp.RemoteRead, 9
	require.Equal(t, want, q.Attr())

	require.NoError(t, q.Modify(epoch, &qp.Attr{State: qp.Reset}, qp.AttrState))
	require.Equal(t, qp.Attr{}, q.Attr())
}

// Attributes that may change while the QP works have their effect.
func TestLiveAttributes(t *testing.T) {
	q := in(t, base(qp.RC), qp.RTS)
	var out qp.Outgoing
	write := bth.Packet{Header: bth.Header{Opcode: bth.RCSendOnly, PKey: 0xffff, DestQP: 1, PSN: 10}}
	require.NoError(t, q.Modify(epoch, &qp.Attr{MinRNRTimer: 30}, qp.AttrMinRNRTimer))
	require.Equal(t, qp.NotReady, q.HandlePacket(epoch, &write, nil))
	require.True(t, q.NextPacket(epoch, &out))
	require.Equal(t, aeth.RNRTimer(30), out.Packet.AETH.Syndrome.RNRTimer())

	require.NoError(t, q.Modify(epoch, &qp.Attr{}, qp.AttrAccess))
	write.Opcode = bth.RCWriteOnly
	require.Equal(t, qp.Refused, q.HandlePacket(epoch, &write, nil))

	q = in(t, base(qp.RC), qp.SQD)
	require.NoError(t, q.Modify(epoch, &qp.Attr{Timeout: 1, RetryCnt: 0}, qp.AttrTimeout|qp.AttrRetryCnt))
	require.NoError(t, q.Modify(epoch, &qp.Attr{State: qp.RTS}, qp.AttrState))
	require.NoError(t, q.PostSend(epoch, &qp.SendWR{}))
	require.True(t, q.NextPacket(epoch, &out))
	d, ok := q.Deadline()
	require.True(t, ok)
	require.Equal(t, epoch.Add(8192), d)
	q.Tick(d)
	require.Equal(t, qp.Error, q.State())
}

// Reset discards all, and the QP can be connected again.
func TestResetAndAgain(t *testing.T) {
	q := in(t, base(qp.RC), qp.RTS)
	var out qp.Outgoing
	var c qp.Completion
	var e qp.Event
	for range 3 {
		require.NoError(t, q.PostRecv(&qp.RecvWR{ID: 1}))
		require.NoError(t, q.PostSend(epoch, &qp.SendWR{Flags: qp.Signaled}))
		require.True(t, q.NextPacket(epoch, &out))
		require.Equal(t, psn.PSN(20), out.Packet.PSN)
		require.NoError(t, q.Modify(epoch, &qp.Attr{State: qp.Error}, qp.AttrState))
		require.NoError(t, q.Modify(epoch, &qp.Attr{State: qp.Reset}, qp.AttrState))
		require.False(t, q.NextCompletion(&c))
		require.False(t, q.NextEvent(&e))
		require.False(t, q.NextPacket(epoch, &out))
		require.Zero(t, q.Outstanding())
		_, ok := q.Deadline()
		require.False(t, ok)
		require.ErrorIs(t, q.PostRecv(&qp.RecvWR{}), qp.ErrState)
		require.ErrorIs(t, q.PostSend(epoch, &qp.SendWR{}), qp.ErrState)
		for up := qp.Init; up <= qp.RTS; up++ {
			require.NoError(t, q.Modify(epoch, good(up), needs[qp.RC][up]|qp.AttrState))
		}
	}
}

// Rule RS-18: Error with a SRQ raises the event of the last receive.
func TestLastWQEReached(t *testing.T) {
	srq, err := qp.NewSRQ(1, 4)
	require.NoError(t, err)
	cfg := base(qp.RC)
	cfg.SRQ = srq
	q := in(t, cfg, qp.RTS)
	require.NoError(t, q.Modify(epoch, &qp.Attr{State: qp.Error}, qp.AttrState))
	var e qp.Event
	require.True(t, q.NextEvent(&e))
	require.Equal(t, qp.EventLastWQEReached, e)
	require.False(t, q.NextEvent(&e))
}

// TestConfigErrors: each value at and beyond its ends.
func TestConfigErrors(t *testing.T) {
	srq, err := qp.NewSRQ(1, 4)
	require.NoError(t, err)
	for i, c := range []struct {
		set func(*qp.Config)
		ok  bool
	}{
		{func(c *qp.Config) { c.QPN = 0xffffff }, true},
		{func(c *qp.Config) { c.QPN = 0x1000000 }, false},
		{func(c *qp.Config) { c.Type = qp.XRCRecv + 1 }, false},
		{func(c *qp.Config) { c.MaxSendWR = 0 }, true},
		{func(c *qp.Config) { c.MaxSendWR = -1 }, false},
		{func(c *qp.Config) { c.MaxSendWR = 1<<20 + 1 }, false},
		{func(c *qp.Config) { c.MaxRecvWR = -1 }, false},
		{func(c *qp.Config) { c.MaxRecvWR = 1<<20 + 1 }, false},
		{func(c *qp.Config) { c.MaxInline = 4097 }, false},
		{func(c *qp.Config) { c.MaxRdAtomic = 129 }, false},
		{func(c *qp.Config) { c.MaxDestRdAtomic = 129 }, false},
		{func(c *qp.Config) { c.MaxDestRdAtomic = -1 }, false},
		{func(c *qp.Config) { c.AckEvery = -1 }, false},
		{func(c *qp.Config) { c.Window = psn.Half - 1 }, true},
		{func(c *qp.Config) { c.Window = psn.Half }, false},
		{func(c *qp.Config) { c.SRQ = srq }, true},
		{func(c *qp.Config) { c.SRQ, c.Type = srq, qp.UD }, true},
		{func(c *qp.Config) { c.SRQ, c.Type = srq, qp.UC }, false},
		{func(c *qp.Config) { c.XRCSRQs = noSRQs{} }, false},
		{func(c *qp.Config) { c.Type = qp.XRCRecv }, false},
	} {
		cfg := base(qp.RC)
		c.set(&cfg)
		_, err := qp.New(cfg)
		_, errReq := qp.NewRequester(cfg)
		_, errResp := qp.NewResponder(cfg)
		for _, err := range []error{err, errReq, errResp} {
			if c.ok {
				require.NoError(t, err, i)
			} else {
				require.ErrorIs(t, err, qp.ErrConfig, i)
			}
		}
	}
	for _, err := range []error{
		func() error { _, err := qp.NewSRQ(0x1000000, 1); return err }(),
		func() error { _, err := qp.NewSRQ(0, 0); return err }(),
		func() error { _, err := qp.NewSRQ(0, 1<<20+1); return err }(),
	} {
		require.ErrorIs(t, err, qp.ErrConfig)
	}
}

// TestConfigRanges: each number of a Config at its ends is accepted, and beyond them refused,
// with the field and its ends in the error.
func TestConfigRanges(t *testing.T) {
	requester := func(c qp.Config) error { _, err := qp.NewRequester(c); return err }
	responder := func(c qp.Config) error { _, err := qp.NewResponder(c); return err }
	for _, f := range []struct {
		name   string
		lo, hi int
		create func(qp.Config) error // of a half that allocates little for it
		set    func(*qp.Config, int)
	}{
		{"QPN", 0, 1<<24 - 1, requester, func(c *qp.Config, n int) { c.QPN = uint32(n) }},
		{"MaxSendWR", 0, 1 << 20, responder, func(c *qp.Config, n int) { c.MaxSendWR = n }},
		{"MaxRecvWR", 0, 1 << 20, requester, func(c *qp.Config, n int) { c.MaxRecvWR = n }},
		{"MaxInline", 0, 4096, requester, func(c *qp.Config, n int) { c.MaxInline = n }},
		{"MaxRdAtomic", 0, 128, requester, func(c *qp.Config, n int) { c.MaxRdAtomic = n }},
		{"MaxDestRdAtomic", 0, 128, responder, func(c *qp.Config, n int) { c.MaxDestRdAtomic = n }},
		{"AckEvery", 0, 1 << 20, requester, func(c *qp.Config, n int) { c.AckEvery = n }},
		{"ResponseWeight", 0, 65535, requester, func(c *qp.Config, n int) { c.ResponseWeight = n }},
		{"RequestWeight", 0, 65535, requester, func(c *qp.Config, n int) { c.RequestWeight = n }},
		{"Window", 0, 1<<23 - 1, requester, func(c *qp.Config, n int) { c.Window = n }},
		{"Selective.Packets", 2, 8192, requester, func(c *qp.Config, n int) { c.Selective.Packets = n }},
		{"Selective.Reorder", 0, 7, requester, func(c *qp.Config, n int) { c.Selective.Packets, c.Selective.Reorder = 8, n }},
		{"Selective.RTOLow", 1000, 1e9, requester, func(c *qp.Config, n int) { c.Selective.RTOLow, c.Selective.RTOHigh = time.Duration(n), time.Second }},
		{"Selective.RTOHigh", 100e3, 1e9, requester, func(c *qp.Config, n int) { c.Selective.RTOHigh = time.Duration(n) }},
		{"Selective.Few", 0, 8192, requester, func(c *qp.Config, n int) { c.Selective.Packets, c.Selective.Few = 8, n }},
		{"MaxSendWR x MaxInline", 0, 1 << 18, responder, func(c *qp.Config, n int) { c.MaxSendWR, c.MaxInline = n, 4096 }},
	} {
		for _, n := range []int{f.lo, f.hi} {
			cfg := base(qp.RC)
			f.set(&cfg, n)
			require.NoError(t, f.create(cfg), "%s %d", f.name, n)
		}
		for _, n := range []int{f.lo - 1, f.hi + 1} {
			cfg := base(qp.RC)
			f.set(&cfg, n)
			err := f.create(cfg)
			require.ErrorIs(t, err, qp.ErrConfig, "%s %d", f.name, n)
			if n > 0 && f.name != "Selective.RTOHigh" {
				require.ErrorContains(t, err, f.name, "%d", n)
			}
		}
	}
	for _, typ := range []qp.Type{qp.RC, qp.XRCSend, qp.XRCRecv, qp.UC, qp.UD} {
		cfg := base(typ)
		cfg.Selective.Packets = 8
		require.Equal(t, typ == qp.UC || typ == qp.UD, requester(cfg) != nil, typ)
	}
}

// Names of values that have none are numbers.
func TestStrings(t *testing.T) {
	for i := range 256 {
		v := uint8(i)
		for _, s := range []fmt.Stringer{qp.State(v), qp.Type(v), qp.Op(v), qp.Status(v), qp.Verdict(v), qp.Event(v), qp.AttrMask(i)} {
			if _, mask := s.(qp.AttrMask); !mask {
				require.NotEmpty(t, s.String())
			}
		}
	}
	require.Equal(t, "200", qp.State(200).String())
	require.Equal(t, "ERR", qp.Error.String())
	require.Equal(t, "path_mtu,ah", (qp.AttrAH | qp.AttrPathMTU).String())
}

// A max_rd_atomic of 0 set in SQD while work is queued would have it wait for ever
// (rule EE-1).
func TestSQDKeepsReadsPossible(t *testing.T) {
	now := time.Unix(1, 0)
	q, err := qp.New(qp.Config{QPN: 1, MaxSendWR: 2, MaxRdAtomic: 1})
	require.NoError(t, err)
	a := qp.Attr{PKey: 0xffff, PathMTU: 256, RetryCnt: 7, RNRRetry: 7, MaxRdAtomic: 1}
	for _, s := range []struct {
		state qp.State
		mask  qp.AttrMask
	}{
		{qp.Init, qp.AttrPKey | qp.AttrAccess},
		{qp.RTR, qp.AttrAH | qp.AttrPathMTU | qp.AttrDestQPN | qp.AttrRQPSN | qp.AttrMaxDestRdAtomic | qp.AttrMinRNRTimer},
		{qp.RTS, qp.AttrSQPSN | qp.AttrTimeout | qp.AttrRetryCnt | qp.AttrRNRRetry | qp.AttrMaxRdAtomic},
		{qp.SQD, 0},
	} {
		a.State = s.state
		require.NoError(t, q.Modify(now, &a, s.mask|qp.AttrState))
	}
	require.NoError(t, q.PostSend(now, &qp.SendWR{Op: qp.OpRead, Local: make([]byte, 8)}))
	a.MaxRdAtomic = 0
	var e *qp.AttrError
	require.ErrorAs(t, q.Modify(now, &a, qp.AttrMaxRdAtomic), &e)
	require.Equal(t, qp.AttrMaxRdAtomic, e.Range)
	require.EqualError(t, e, "qp: SQD to SQD: max_rd_atomic is 0 with requests in the send queue, want 1 to 1")
	require.Equal(t, 1, q.Attr().MaxRdAtomic)
}

func requireAttrError(t *testing.T, want qp.AttrError, got *qp.AttrError) {
	t.Helper()
	require.Equal(t, [...]any{want.From, want.To, want.Missing, want.Extra, want.Range},
		[...]any{got.From, got.To, got.Missing, got.Extra, got.Range})
}
