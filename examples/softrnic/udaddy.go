package main

import (
	"context"
	"fmt"
	"net/netip"
	"time"

	"github.com/roce-go/roce/qp"
	roce "github.com/roce-go/roce/qp/endpoint"
	"github.com/roce-go/roce/qp/softnic"
)

// udaddyQKey is the Q_Key of RDMA-CM's datagram services.
const udaddyQKey = 0x01234567

// udaddy exchanges datagrams: the client resolves the service, sends all of its messages with
// its QP number as immediate data, and receives as many.
func (t *cmTool) udaddy(ctx context.Context) error {
	p, bufs, err := t.datagrams()
	if err != nil {
		return err
	}
	qkey := uint32(udaddyQKey)
	if t.to != "" {
		s, err := t.ep.ResolveDatagram(ctx, t.to, nil)
		if err != nil {
			return err
		}
		fmt.Fprintf(t.out, "resolved: QP %#06x, Q_Key %#x\n", s.QPN, s.QKey)
		p.qpn, qkey = s.QPN, s.QKey
		if p.ah, err = t.handle(s.Addr); err != nil {
			return err
		}
		if err := t.sendDatagrams(ctx, p, qkey); err != nil {
			return err
		}
		return t.recvDatagrams(ctx, p, bufs)
	}
	stop, err := t.ep.ServeDatagrams(uint16(t.port), func(*roce.DatagramRequest) roce.DatagramReply {
		return roce.DatagramReply{QPN: p.qp.Num(), QKey: udaddyQKey}
	})
	if err != nil {
		return err
	}
	defer stop()
	if err := t.recvDatagrams(ctx, p, bufs); err != nil {
		return err
	}
	if err := t.sendDatagrams(ctx, p, qkey); err != nil {
		return err
	}
	// A SIDR_REP may be lost, and the SIDR_REQ repeated.
	p.wait(time.Second, func(time.Time) bool { return false })
	return nil
}

// mckey is rdma-core's tool of that name: it receives -n datagrams of a multicast group, or
// sends them if the group's address is given.
func (t *cmTool) mckey(ctx context.Context, address string) error {
	group := t.o.group
	if address != "" {
		group = address
	}
	a, err := netip.ParseAddr(group)
	if err != nil || !a.IsMulticast() {
		return fmt.Errorf("-cm mckey: %q is no multicast address", group)
	}
	p, bufs, err := t.datagrams()
	if err != nil {
		return err
	}
	if address == "" {
		if p.do(func(time.Time) { err = p.qp.AttachMulticast(a) }); err != nil {
			return err
		}
		return t.recvDatagrams(ctx, p, bufs)
	}
	p.qpn = qp.MulticastQPN
	if p.ah, err = t.handle(a); err != nil {
		return err
	}
	return t.sendDatagrams(ctx, p, udaddyQKey)
}

// datagrams creates a UD queue pair with receives.
func (t *cmTool) datagrams() (*pair, [][]byte, error) {
	p := &pair{endpoint: t.endpoint, kind: qp.UD, send: softnic.NewCQ(), recv: softnic.NewCQ()}
	n, size := t.o.n, t.size()
	bufs := make([][]byte, min(n, recvDepth))
	var err error
	p.do(func(now time.Time) {
		p.qp, err = p.port.CreateQP(softnic.QPConfig{Config: qp.Config{Type: qp.UD, MaxSendWR: sendDepth, MaxRecvWR: recvDepth}, SendCQ: p.send, RecvCQ: p.recv})
		if err != nil {
			return
		}
		err = p.qp.Connect(now, &qp.Attr{QKey: udaddyQKey, PathMTU: t.ep.PathMTU()})
		for i := range bufs {
			bufs[i] = make([]byte, qp.GRHSize+size)
			if err == nil {
				err = p.qp.PostRecv(&qp.RecvWR{ID: uint64(i), Local: bufs[i]})
			}
		}
	})
	if err == nil && size > t.ep.PathMTU() {
		err = fmt.Errorf("-size %d: a datagram has at most %d bytes here", size, t.ep.PathMTU())
	}
	if p.qp != nil {
		t.pairs = append(t.pairs, p)
	}
	return p, bufs, err
}

// handle returns the address handle of a peer.
func (t *cmTool) handle(a netip.Addr) (*qp.AddressHandle, error) {
	h, err := t.address(a.As16())
	return qp.NewAddressHandle(h), err
}

func (t *cmTool) sendDatagrams(ctx context.Context, p *pair, qkey uint32) error {
	msg := make([]byte, t.size())
	for done := 0; done < t.o.n; {
		var err error
		werr := t.ep.Wait(ctx, func(now time.Time, _ *softnic.Port) bool {
			for posted := 0; posted < sendDepth/2 && done+posted < t.o.n && p.qp.Outstanding() == 0; posted++ {
				wr := qp.SendWR{Op: qp.OpSendImm, Flags: qp.Signaled, Local: msg, Imm: p.qp.Num(), AH: p.ah, RemoteQPN: p.qpn, RemoteQKey: qkey}
				if err = p.qp.PostSend(now, &wr); err != nil {
					return true
				}
			}
			var wc qp.Completion
			before := done
			for p.send.Poll(&wc) {
				if err = failure(&wc); err != nil {
					return true
				}
				done++
			}
			return done != before
		})
		if err != nil || werr != nil {
			return fmt.Errorf("after %d datagrams sent: %w", done, firstOf(err, werr))
		}
	}
	fmt.Fprintf(t.out, "%d datagrams of %d bytes sent\n", t.o.n, len(msg))
	return nil
}

func firstOf(a, b error) error {
	if a != nil {
		return a
	}
	return b
}

// recvDatagrams receives -n datagrams. Datagrams may be lost: the error tells how many
// arrived.
func (t *cmTool) recvDatagrams(ctx context.Context, p *pair, bufs [][]byte) error {
	for got := 0; got < t.o.n; {
		var err error
		werr := t.ep.Wait(ctx, func(now time.Time, _ *softnic.Port) bool {
			var wc qp.Completion
			before := got
			for got < t.o.n && p.recv.Poll(&wc) {
				if err = failure(&wc); err != nil {
					return true
				}
				got++
				b := bufs[wc.ID]
				if p.ah == nil {
					from := netip.AddrFrom16([16]byte(b[8:24]))
					if b[0]>>4 != 6 {
						from = netip.AddrFrom4([4]byte(b[32:36]))
					}
					p.qpn = wc.SrcQP
					if p.ah, err = t.handle(from); err != nil {
						return true
					}
				}
				_ = p.qp.PostRecv(&qp.RecvWR{ID: wc.ID, Local: b})
			}
			return got != before
		})
		if err != nil || werr != nil {
			return fmt.Errorf("after %d of %d datagrams: %w", got, t.o.n, firstOf(err, werr))
		}
	}
	fmt.Fprintf(t.out, "%d datagrams received\n", t.o.n)
	return nil
}
