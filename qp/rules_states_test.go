package qp_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/script"
	"github.com/roce-go/roce/reth"
)

// attrs changes attributes of q in its state.
func attrs(t *testing.T, q *qp.QP, mask qp.AttrMask, set func(*qp.Attr)) {
	t.Helper()
	a := qp.Attr{State: q.State()}
	set(&a)
	require.NoError(t, q.Modify(epoch, &a, mask|qp.AttrState))
}

// Rule RQ-31: a timeout that is set in SQD while a request is outstanding starts the
// timer, and 0 stops it. Other attributes do not change timer and retries (RQ-32).
func TestTimeoutInSQD(t *testing.T) {
	for _, typ := range []qp.Type{qp.RC, qp.XRCSend} {
		q, err := qp.New(base(typ))
		require.NoError(t, err)
		a := good(qp.RTS)
		a.Timeout = 0
		require.NoError(t, q.Connect(epoch, a))
		require.NoError(t, q.PostSend(epoch, &qp.SendWR{Op: qp.OpWrite}))
		var out qp.Outgoing
		require.True(t, q.NextPacket(epoch, &out))
		_, ok := q.Deadline()
		require.False(t, ok)
		attrs(t, q, 0, func(a *qp.Attr) { a.State = qp.SQD })
		attrs(t, q, qp.AttrTimeout, func(a *qp.Attr) { a.Timeout = 14 })
		due, ok := q.Deadline()
		require.True(t, ok)
		require.Equal(t, 4096*time.Nanosecond<<14, due.Sub(epoch))
		attrs(t, q, qp.AttrTimeout, func(a *qp.Attr) { a.Timeout = 0 })
		_, ok = q.Deadline()
		require.False(t, ok)
	}
}

// Rule RQ-32: only a new retry_cnt refills the retries in SQD.
func TestRetriesInSQD(t *testing.T) {
	q, err := qp.New(base(qp.RC))
	require.NoError(t, err)
	a := good(qp.RTS)
	a.Timeout, a.RetryCnt = 1, 2
	require.NoError(t, q.Connect(epoch, a))
	require.NoError(t, q.PostSend(epoch, &qp.SendWR{Op: qp.OpWrite}))
	var out qp.Outgoing
	fire := func() {
		t.Helper()
		require.True(t, q.NextPacket(epoch, &out))
		due, ok := q.Deadline()
		require.True(t, ok)
		q.Tick(due)
	}
	fire()
	fire()
	attrs(t, q, 0, func(a *qp.Attr) { a.State = qp.SQD })
	attrs(t, q, qp.AttrMinRNRTimer|qp.AttrTimeout|qp.AttrRNRRetry, func(a *qp.Attr) { a.MinRNRTimer, a.Timeout, a.RNRRetry = 5, 2, 7 })
	fire()
	require.Equal(t, qp.Error, q.State(), "two retries were spent before")
}

// Rule RQ-28: only a new rnr_retry refills the RNR retries in SQD, at once.
func TestRNRRetriesInSQD(t *testing.T) {
	for _, test := range []struct {
		mask   qp.AttrMask
		to     uint8
		accept int // RNR NAKs that it waits for
	}{
		{qp.AttrTimeout | qp.AttrRetryCnt | qp.AttrMinRNRTimer, 5, 1},
		{qp.AttrRNRRetry, 2, 2},
		{qp.AttrRNRRetry, 0, 0},
	} {
		q, err := qp.New(base(qp.RC))
		require.NoError(t, err)
		a := good(qp.RTS)
		a.RNRRetry = 2
		require.NoError(t, q.Connect(epoch, a))
		require.NoError(t, q.PostSend(epoch, &qp.SendWR{}))
		now := epoch
		refused := func() qp.Verdict {
			t.Helper()
			var out qp.Outgoing
			require.True(t, q.NextPacket(now, &out))
			nak := bth.Packet{Header: bth.Header{Opcode: bth.RCAcknowledge, PKey: 0xffff, DestQP: 1, PSN: 20}}
			nak.AETH.Syndrome = aeth.RNRSyndrome(1)
			v := q.HandlePacket(now, &nak, nil)
			if due, ok := q.Deadline(); ok {
				now = due
				q.Tick(now)
			}
			return v
		}
		require.Equal(t, qp.Retried, refused())
		attrs(t, q, 0, func(a *qp.Attr) { a.State = qp.SQD })
		attrs(t, q, test.mask, func(a *qp.Attr) { a.Timeout, a.RetryCnt, a.MinRNRTimer, a.RNRRetry = 14, 3, 5, test.to })
		for range test.accept {
			require.Equal(t, qp.Retried, refused(), "%v", test.mask)
		}
		require.Equal(t, qp.Failed, refused(), "%v", test.mask)
		var c qp.Completion
		require.True(t, q.NextCompletion(&c))
		require.Equal(t, qp.RNRRetryExcErr, c.Status)
	}
}

// Rule RS-12: max_dest_rd_atomic may change in SQD, and counts at once.
func TestMaxDestRdAtomicInSQD(t *testing.T) {
	mem, _, key := memory(t, 64)
	cfg := base(qp.RC)
	cfg.Memory = mem
	q, err := qp.New(cfg)
	require.NoError(t, err)
	a := good(qp.RTS)
	a.Access, a.MaxDestRdAtomic, a.RQPSN = qp.RemoteRead, 1, 0
	require.NoError(t, q.Connect(epoch, a))
	attrs(t, q, 0, func(a *qp.Attr) { a.State = qp.SQD })
	attrs(t, q, qp.AttrMaxDestRdAtomic, func(a *qp.Attr) { a.MaxDestRdAtomic = 3 })
	read := func(n uint32) qp.Verdict {
		p := request(bth.ReadRequest, 0)
		p.PSN = p.PSN.Add(int(n))
		p.RETH.VA, p.RETH.RKey, p.RETH.DMALen = 0x1000, key, 8
		return q.HandlePacket(epoch, p, nil)
	}
	for n := range uint32(3) {
		require.Equal(t, qp.Accepted, read(n))
	}
	require.Equal(t, qp.Refused, read(3))
	var out qp.Outgoing
	for n := range 3 {
		require.True(t, q.NextPacket(epoch, &out))
		require.EqualValues(t, n, out.Packet.PSN)
	}
}

// Rules RS-11, RS-21: a right that is removed in RTS is removed for duplicates too.
func TestRightTakenAway(t *testing.T) {
	mem, _, key := memory(t, 64)
	cfg := base(qp.RC)
	cfg.Memory = mem
	q, err := qp.New(cfg)
	require.NoError(t, err)
	a := good(qp.RTS)
	a.Access, a.RQPSN = qp.RemoteRead, 0
	require.NoError(t, q.Connect(epoch, a))
	p := request(bth.ReadRequest, 0)
	p.RETH.VA, p.RETH.RKey, p.RETH.DMALen = 0x1000, key, 8
	var out qp.Outgoing
	require.Equal(t, qp.Accepted, q.HandlePacket(epoch, p, nil))
	require.True(t, q.NextPacket(epoch, &out))
	require.Equal(t, qp.Duplicate, q.HandlePacket(epoch, p, nil))
	require.True(t, q.NextPacket(epoch, &out))
	require.Len(t, out.Packet.Payload, 8)
	attrs(t, q, qp.AttrAccess, func(a *qp.Attr) { a.Access = 0 })
	require.Equal(t, qp.Duplicate, q.HandlePacket(epoch, p, nil))
	require.True(t, q.NextPacket(epoch, &out))
	require.Equal(t, aeth.NakSyndrome(aeth.NakRemoteAccessError), out.Packet.AETH.Syndrome)
	require.Empty(t, out.Packet.Payload)
}

// Rule ST-4: LAST_WQE_REACHED is raised once, whatever is called in Error.
func TestLastWQEOnce(t *testing.T) {
	srq, err := qp.NewSRQ(1, 1)
	require.NoError(t, err)
	cfg := base(qp.RC)
	cfg.SRQ = srq
	q := in(t, cfg, qp.RTS)
	var e qp.Event
	for range 2 {
		require.NoError(t, q.Modify(epoch, &qp.Attr{State: qp.Error}, qp.AttrState))
	}
	require.True(t, q.NextEvent(&e))
	require.Equal(t, qp.EventLastWQEReached, e)
	require.NoError(t, q.Modify(epoch, &qp.Attr{State: qp.Error}, qp.AttrState))
	require.False(t, q.NextEvent(&e))
}

// A QP with a SRQ and MaxRecvWR 0, as is usual in verbs, receives.
func TestSRQWithoutMaxRecvWR(t *testing.T) {
	for _, typ := range []qp.Type{qp.RC, qp.UD, qp.XRCRecv} {
		srq, err := qp.NewSRQ(5, 3)
		require.NoError(t, err)
		cfg := base(typ)
		cfg.MaxRecvWR, cfg.SRQ = 0, srq
		p := request(bth.SendOnly, 0)
		switch typ {
		case qp.XRCRecv:
			cfg.SRQ, cfg.XRCSRQs = nil, oneSRQ{srq}
			p.Opcode, p.XRCETH.SRQ = bth.XRC.Opcode(bth.SendOnly), 5
		case qp.UD:
			p.Opcode, p.DETH.QKey = bth.UD.Opcode(bth.SendOnly), good(qp.RTR).QKey
		}
		q, err := qp.New(cfg)
		require.NoError(t, err)
		a := good(qp.RTS)
		a.RQPSN = 0
		require.NoError(t, q.Connect(epoch, a))
		for i := range 3 {
			require.NoError(t, srq.PostRecv(&qp.RecvWR{ID: uint64(i), Local: make([]byte, 64)}))
		}
		var c qp.Completion
		for i := range 3 {
			require.Equal(t, qp.Accepted, q.HandlePacket(epoch, p, nil), "%v %d", typ, i)
			p.PSN++
		}
		for i := range 3 {
			require.True(t, q.NextRecvCompletion(&c))
			require.Equal(t, qp.Success, c.Status)
			require.EqualValues(t, i, c.ID)
		}
		require.Zero(t, srq.Len())
	}
}

// Rule UD-3: a datagram that is too long for the next receive of a SRQ leaves it to
// the other QPs.
func TestUDTooLongForSRQ(t *testing.T) {
	srq, err := qp.NewSRQ(5, 3)
	require.NoError(t, err)
	cfg := base(qp.UD)
	cfg.SRQ = srq
	q := in(t, cfg, qp.RTS)
	require.NoError(t, srq.PostRecv(&qp.RecvWR{Local: make([]byte, 44)}))
	p := request(bth.SendOnly, 0)
	p.Opcode, p.DETH.QKey = bth.UD.Opcode(bth.SendOnly), good(qp.RTR).QKey
	p.SetPayload(make([]byte, 5))
	require.Equal(t, qp.NoReceive, q.HandlePacket(epoch, p, nil))
	require.Equal(t, 1, srq.Len())
	p.SetPayload(make([]byte, 4))
	require.Equal(t, qp.Accepted, q.HandlePacket(epoch, p, nil))
	require.Zero(t, srq.Len())
}

// Connect works once, with values in range.
func TestConnect(t *testing.T) {
	r, err := qp.NewRequester(base(qp.RC))
	require.NoError(t, err)
	bad := good(qp.RTS)
	bad.MaxRdAtomic = 5
	require.ErrorIs(t, r.Connect(bad), qp.ErrRange)
	require.ErrorIs(t, r.PostSend(epoch, &qp.SendWR{}), qp.ErrState)
	require.NotEqual(t, qp.Accepted, r.HandlePacket(epoch, ackPacket(bth.Acknowledge, plainAck, 0)))
	require.NoError(t, r.Connect(good(qp.RTS)))
	require.ErrorIs(t, r.Connect(good(qp.RTS)), qp.ErrState)

	p, err := qp.NewResponder(base(qp.RC))
	require.NoError(t, err)
	bad.MaxDestRdAtomic = 5
	require.ErrorIs(t, p.Connect(bad), qp.ErrRange)
	require.NoError(t, p.Connect(good(qp.RTR)))
	require.ErrorIs(t, p.Connect(good(qp.RTR)), qp.ErrState)
}

// Rule RS-19: before Connect a responder drops all, valid or not.
func TestIdleResponder(t *testing.T) {
	r, err := qp.NewResponder(base(qp.RC))
	require.NoError(t, err)
	require.NotEqual(t, qp.Accepted, r.HandlePacket(request(bth.SendOnly, 10), nil))
	var out qp.Outgoing
	require.False(t, r.NextPacket(&out))
}

// Rule RS-10: a QP without memory accesses nothing, and responds to requests that access nothing.
func TestNoMemory(t *testing.T) {
	r := receiver(t, base(qp.RC), func(*qp.Attr) {})
	p := request(bth.WriteOnly, 10)
	require.Equal(t, qp.Accepted, r.HandlePacket(p, nil))
	p.PSN++
	p.SetPayload([]byte{1})
	p.RETH = reth.Header{DMALen: 1}
	require.Equal(t, qp.Refused, r.HandlePacket(p, nil))
	require.Equal(t, uint64(1), r.Counters().RespRemoteAccessErrors)

	// Rule RS-17: nor does it invalidate.
	r = receiver(t, base(qp.RC), func(*qp.Attr) {})
	require.NoError(t, r.PostRecv(&qp.RecvWR{}))
	require.Equal(t, qp.Refused, r.HandlePacket(request(bth.SendOnlyInv, 10), nil))
}

// Rule RS-09: completions that are not polled hold up receives, so that their number is
// bounded: as without a receive, RNR.
func TestCompletionsBounded(t *testing.T) {
	srq, err := qp.NewSRQ(1, 64)
	require.NoError(t, err)
	for range 64 {
		require.NoError(t, srq.PostRecv(&qp.RecvWR{}))
	}
	cfg := base(qp.RC)
	cfg.SRQ, cfg.MaxRecvWR = srq, 4
	r := receiver(t, cfg, func(*qp.Attr) {})
	p := request(bth.SendOnly, 10)
	for range 4 {
		require.Equal(t, qp.Accepted, r.HandlePacket(p, nil))
		p.PSN++
	}
	require.Equal(t, qp.NotReady, r.HandlePacket(p, nil))
	require.Equal(t, 60, srq.Len())
	var c qp.Completion
	require.True(t, r.NextCompletion(&c))
	require.Equal(t, qp.Accepted, r.HandlePacket(p, nil))
}

// The limit of a SRQ is reported once, when fewer are left.
func TestSRQLimit(t *testing.T) {
	srq, err := qp.NewSRQ(5, 4)
	require.NoError(t, err)
	require.Equal(t, uint32(5), srq.Num())
	for range 4 {
		require.NoError(t, srq.PostRecv(&qp.RecvWR{}))
	}
	require.ErrorIs(t, srq.PostRecv(&qp.RecvWR{}), qp.ErrQueueFull)
	cfg := base(qp.RC)
	cfg.SRQ = srq
	r := receiver(t, cfg, func(*qp.Attr) {})
	p := request(bth.SendOnly, 10)
	take := func() {
		require.Equal(t, qp.Accepted, r.HandlePacket(p, nil))
		p.PSN++
	}
	require.False(t, srq.LimitReached(), "not armed")
	srq.Arm(3)
	take()
	require.Equal(t, 3, srq.Len())
	require.False(t, srq.LimitReached(), "3 are no fewer than 3")
	take()
	require.True(t, srq.LimitReached())
	require.False(t, srq.LimitReached(), "reported already")
	srq.Arm(3)
	require.True(t, srq.LimitReached())
	srq.Arm(0)
	take()
	require.False(t, srq.LimitReached())
}

// A receive longer than any message is refused.
func TestReceiveTooLong(t *testing.T) {
	chunk := make([]byte, 1<<20)
	list := make([][]byte, 2048, 2049)
	for i := range list {
		list[i] = chunk
	}
	q := in(t, base(qp.RC), qp.Init)
	require.NoError(t, q.PostRecv(&qp.RecvWR{Scatter: list}))
	require.ErrorIs(t, q.PostRecv(&qp.RecvWR{Scatter: append(list, chunk[:1])}), qp.ErrLength)
}

// Getters, and FailSend where it does nothing.
func TestQPSmallThings(t *testing.T) {
	cfg := base(qp.UC)
	cfg.QPN = 0x123
	q := in(t, cfg, qp.RTS)
	require.Equal(t, qp.UC, q.Type())
	require.Equal(t, uint32(0x123), q.Num())
	q.FailSend(qp.RemoteOpErr)
	require.Equal(t, qp.RTS, q.State())
	require.Zero(t, q.Outstanding())
	var grh [qp.GRHSize]byte
	require.Equal(t, qp.Invalid, q.HandlePacket(epoch, request(bth.SendOnly, 0), &grh))
	require.NoError(t, q.PostSend(epoch, &qp.SendWR{}))
	require.Equal(t, 1, q.Outstanding())

	// On a reliable QP it leads to Error.
	q = in(t, base(qp.RC), qp.RTS)
	require.NoError(t, q.PostSend(epoch, &qp.SendWR{}))
	q.FailSend(qp.RemoteOpErr)
	require.Equal(t, qp.Error, q.State())
	q.FailSend(qp.RemoteOpErr)
	require.Equal(t, qp.Error, q.State())
}

// TestScripts runs the scripts of testdata, each part between "==" lines by
// itself. The parts name the rules and the sequences of public fault reports that
// they hold.
func TestScripts(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		for _, part := range parts(string(b)) {
			t.Run(filepath.Base(file)+"/"+part.name, func(t *testing.T) {
				var trace bytes.Buffer
				if err := script.RunTrace(&trace, part.text); err != nil {
					t.Errorf("%s: %v\n%s", file, err, trace.String())
				}
			})
		}
	}
}

type part struct{ name, text string }

// parts cuts a file at its "==" lines, with empty lines before each part, so that
// line numbers stay those of the file.
func parts(s string) []part {
	var ps []part
	line := 0
	for l := range strings.Lines(s) {
		line++
		if name, ok := strings.CutPrefix(l, "=="); ok {
			ps = append(ps, part{strings.TrimSpace(name), strings.Repeat("\n", line)})
			continue
		}
		if len(ps) != 0 {
			ps[len(ps)-1].text += l
		}
	}
	return ps
}

// TestPacketsOfAKind: of each set of kinds of packets a QP sends what is pending of it,
// acknowledgements behind responses (rule RS-14), and no other.
func TestPacketsOfAKind(t *testing.T) {
	const request1, response, ack = qp.PendingRequest, qp.PendingResponse, qp.PendingAck
	for of := qp.Pending(0); of <= qp.PendingPacket; of++ {
		mem, _, key := memory(t, 64)
		cfg := base(qp.RC)
		cfg.Memory = mem
		q, err := qp.New(cfg)
		require.NoError(t, err)
		a := good(qp.RTS)
		a.Access, a.RQPSN = qp.RemoteRead|qp.RemoteWrite, 0
		require.NoError(t, q.Connect(epoch, a))
		require.Zero(t, q.Pending(qp.PendingPacket))
		require.NoError(t, q.PostSend(epoch, &qp.SendWR{Op: qp.OpWrite}))
		read := request(bth.ReadRequest, 0)
		read.RETH.VA, read.RETH.RKey, read.RETH.DMALen = 0x1000, key, 8
		require.Equal(t, qp.Accepted, q.HandlePacket(epoch, read, nil))
		write := request(bth.WriteOnly, 1)
		write.AckReq = true
		require.Equal(t, qp.Accepted, q.HandlePacket(epoch, write, nil))
		require.Equal(t, of, q.Pending(of))
		require.Equal(t, of&qp.PendingPacket, q.Pending(of|qp.PendingSendCompletion|qp.PendingRecvCompletion|qp.PendingEvent))

		var want, got []qp.Pending
		if of&response != 0 {
			want = append(want, response)
			if of&ack != 0 {
				want = append(want, ack)
			}
		}
		if of&request1 != 0 {
			want = append(want, request1)
		}
		var out qp.Outgoing
		for q.NextPacketOf(epoch, of, &out) {
			got = append(got, exKind(&out.Packet))
		}
		require.ElementsMatch(t, want, got, "%b", of)
		if of == response|ack {
			require.Equal(t, want, got)
		}
	}
}

// TestNextAddress: the address handle of the next datagram is known before it is built, in
// the order of the posts; other QPs have none.
func TestNextAddress(t *testing.T) {
	q := in(t, base(qp.UD), qp.RTS)
	require.Nil(t, q.NextAH())
	var ahs [3]*qp.AddressHandle
	for i := range ahs {
		ahs[i] = qp.NewAddressHandle(qp.AHAttr{TrafficClass: uint8(i)})
		require.NoError(t, q.PostSend(epoch, &qp.SendWR{AH: ahs[i]}))
	}
	var out qp.Outgoing
	for i := range ahs {
		require.Same(t, ahs[i], q.NextAH())
		require.True(t, q.NextPacket(epoch, &out))
		require.Same(t, ahs[i], out.AH)
	}
	require.Nil(t, q.NextAH())
	uc := in(t, base(qp.UC), qp.RTS)
	require.NoError(t, uc.PostSend(epoch, &qp.SendWR{AH: ahs[0]}))
	require.Nil(t, uc.NextAH())
	require.True(t, uc.NextPacket(epoch, &out))
	require.Nil(t, out.AH)
}

// TestAskAck: rule RQ-05: a caller that is about to stop sending has the next packet of a
// message ask for an acknowledgement, which otherwise one in AckEvery does.
func TestAskAck(t *testing.T) {
	for _, every := range []int{0, 1, 7, 64} {
		cfg := base(qp.RC)
		cfg.AckEvery = every
		q := in(t, cfg, qp.RTS)
		require.NoError(t, q.PostSend(epoch, &qp.SendWR{Op: qp.OpWrite, Local: make([]byte, 200<<10)}))
		var out qp.Outgoing
		var asked []int
		for i := 1; q.NextPacket(epoch, &out); i++ {
			if out.Packet.AckReq {
				asked = append(asked, i)
			}
			if i == 99 {
				q.AskAck()
			}
		}
		if every == 0 {
			every = 64 // its default
		}
		var want []int
		since := 0
		for i := 1; i <= 200; i++ {
			if since++; since == every || i == 100 || i == 200 {
				want = append(want, i)
				since = 0
			}
		}
		require.Equal(t, want, asked, "one in %d", every)
	}
}
