package main

import (
	"time"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/softnic"
)

// Values for all tools.
const (
	toolQKey  = 0x11111111
	sendDepth = 128
	recvDepth = 512
	rdAtomic  = 16
	minRNR    = 12 // 0.64 ms
)

// path holds the parameters of the path to the peer, and how long a response may take.
type path struct {
	vlan     int // -1: no tag
	dscp     int
	timeout  int // of the acknowledgement timer, as a code: 4.096 us * 2^timeout
	retries  int
	patience time.Duration // how long a tool waits without any progress
}

// mark sets the path's VLAN and DSCP in an address handle.
func (p *path) mark(h *qp.AHAttr) {
	h.TrafficClass = uint8(p.dscp) << 2
	if p.vlan >= 0 {
		h.VLAN, h.HasVLAN = uint16(p.vlan), true
	}
}

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
	return e.newPairOn(kind, softnic.NewCQ(), softnic.NewCQ())
}

// newPairOn creates a pair whose completion queues may be shared.
func (e *endpoint) newPairOn(kind string, send, recv *softnic.CQ) (*pair, error) {
	p := &pair{endpoint: e, kind: kinds[kind], send: send, recv: recv}
	var err error
	e.do(func(time.Time) {
		p.qp, err = e.port.CreateQP(softnic.QPConfig{
			Config: qp.Config{Type: p.kind, MaxSendWR: sendDepth, MaxRecvWR: recvDepth,
				MaxRdAtomic: rdAtomic, MaxDestRdAtomic: 128, LinuxRetryForever: true, LinuxAckBeforeRead: true, Window: e.most},
			SendCQ: p.send, RecvCQ: p.recv,
		})
	})
	e.pairs = append(e.pairs, p)
	return p, err
}

// prepare moves a pair to Init, so that receives can be posted before the peer is known.
func (p *pair) prepare() (err error) {
	p.do(func(now time.Time) {
		err = p.qp.Modify(now, &qp.Attr{State: qp.Init, PKey: 0xffff, QKey: toolQKey, Access: allRights}, qp.AttrState|initMask(p.kind))
	})
	return err
}

const allRights = qp.RemoteRead | qp.RemoteWrite | qp.RemoteAtomic | qp.FlushGlobal

// peer is the remote end, as the handshake describes it.
type peer struct {
	qpn, psn uint32
	gid      [16]byte
	rkey     uint32
	va       uint64
	reads    int // READs and ATOMICs that it can have outstanding as responder
}

// connect moves a pair from Init to RTS.
func (p *pair) connect(to *peer, mtu int) error {
	ah, err := p.address(to.gid)
	if err != nil {
		return err
	}
	p.ah, p.qpn = qp.NewAddressHandle(ah), to.qpn
	a := qp.Attr{
		PathMTU: mtu, DestQPN: to.qpn, AH: ah, RQPSN: pSN(to.psn), SQPSN: pSN(p.psn),
		MaxDestRdAtomic: 128, MaxRdAtomic: min(rdAtomic, max(to.reads, 1)),
		MinRNRTimer: rnrTimer(minRNR), Timeout: uint8(p.timeout), RetryCnt: uint8(p.retries), RNRRetry: 7,
	}
	p.do(func(now time.Time) { err = p.qp.Connect(now, &a) })
	return err
}

// post posts a send work request; for a datagram it sets the peer's address.
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
