package qp_test

import (
	"bytes"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/stretchr/testify/require"

	"github.com/roce-go/roce/bth"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/script"
	"github.com/roce-go/roce/reth"
)

// Connect takes a machine up once, with values in range.
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

// Rule RS-10: a QP without memory reaches nothing, and answers what reaches nothing.
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

// Rule RS-09: completions that nobody takes hold up receives, so that their number is
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

// The limit of a SRQ is told once, when fewer are left.
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
	require.False(t, srq.LimitReached(), "told already")
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
