package main

import (
	"fmt"
	"time"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/softnic"
)

// What both tools use.
const (
	toolQKey   = 0x11111111
	sendDepth  = 128
	recvDepth  = 512
	rdAtomic   = 16
	minRNR     = 12 // 0.64 ms
	ackTimeout = 14 // 67 ms
)

func pSN(n uint32) psn.PSN            { return psn.PSN(n) & psn.Mask }
func rnrTimer(code int) aeth.RNRTimer { return aeth.RNRTimer(code) }

var kinds = map[string]qp.Type{"rc": qp.RC, "uc": qp.UC, "ud": qp.UD}

// pair is a queue pair of an endpoint with its completion queues.
type pair struct {
	*endpoint
	qp         *softnic.QP
	kind       qp.Type
	send, recv *softnic.CQ

	ah  *qp.AddressHandle // of the peer
	qpn uint32
}

func (e *endpoint) newPair(kind string) (*pair, error) {
	t, ok := kinds[kind]
	if !ok {
		return nil, fmt.Errorf("no kind of queue pair %q: rc, uc or ud", kind)
	}
	p := &pair{endpoint: e, kind: t, send: softnic.NewCQ(), recv: softnic.NewCQ()}
	var err error
	e.do(func(time.Time) {
		p.qp, err = e.port.CreateQP(softnic.QPConfig{
			Config: qp.Config{Type: t, MaxSendWR: sendDepth, MaxRecvWR: recvDepth,
				MaxRdAtomic: rdAtomic, MaxDestRdAtomic: 128, LinuxRetryForever: true, Window: 64},
			SendCQ: p.send, RecvCQ: p.recv,
		})
	})
	return p, err
}

// prepare lets receives be posted before the peer is known.
func (p *pair) prepare() (err error) {
	p.do(func(now time.Time) {
		err = p.qp.Modify(now, &qp.Attr{State: qp.Init, PKey: 0xffff, QKey: toolQKey, Access: allRights}, qp.AttrState|initMask(p.kind))
	})
	return err
}

const allRights = qp.RemoteRead | qp.RemoteWrite | qp.RemoteAtomic | qp.FlushGlobal

// peer is the far end, as the tools tell it.
type peer struct {
	qpn, psn uint32
	gid      [16]byte
	rkey     uint32
	va       uint64
	reads    int // READs and ATOMICs it takes at once
}

// connect takes a pair from Init to RTS.
func (p *pair) connect(to *peer, mtu int) error {
	ah, err := p.address(to.gid)
	if err != nil {
		return err
	}
	p.ah, p.qpn = qp.NewAddressHandle(ah), to.qpn
	a := qp.Attr{
		PathMTU: mtu, DestQPN: to.qpn, AH: ah, RQPSN: pSN(to.psn), SQPSN: pSN(p.psn),
		MaxDestRdAtomic: 128, MaxRdAtomic: min(rdAtomic, max(to.reads, 1)),
		MinRNRTimer: rnrTimer(minRNR), Timeout: ackTimeout, RetryCnt: 7, RNRRetry: 7,
	}
	p.do(func(now time.Time) { err = p.qp.Connect(now, &a) })
	return err
}

// post posts a send, to the peer for a datagram.
func (p *pair) post(now time.Time, wr qp.SendWR) error {
	wr.Flags |= qp.Signaled
	if p.kind == qp.UD {
		wr.AH, wr.RemoteQPN, wr.RemoteQKey = p.ah, p.qpn, toolQKey
	}
	return p.qp.PostSend(now, &wr)
}

func initMask(t qp.Type) qp.AttrMask {
	if t == qp.UD {
		return qp.AttrPKey | qp.AttrQKey
	}
	return qp.AttrPKey | qp.AttrAccess
}
