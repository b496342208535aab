package endpoint

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/roce-go/roce/qp/cm"
	"github.com/roce-go/roce/qp/softnic"
)

// DatagramService is the address of a datagram service, as ResolveDatagram returns it.
type DatagramService struct {
	Addr        netip.Addr
	QPN, QKey   uint32
	PrivateData []byte // 136 bytes
}

// resolution is a pending SIDR call.
type resolution struct {
	to   netip.AddrPort
	done chan struct{}
	svc  DatagramService
	err  error
}

func (r *resolution) event(ev *cm.Event) {
	switch {
	case ev.Kind == cm.EventUnreachable:
		r.err = &UnreachableError{r.to}
	case ev.Kind == cm.EventSIDRReply && ev.Status == cm.SIDRValid:
		r.svc = DatagramService{Addr: r.to.Addr(), QPN: ev.Attr.DestQPN, QKey: ev.Attr.QKey, PrivateData: append([]byte(nil), ev.PrivateData...)}
	case ev.Kind == cm.EventSIDRReply:
		reason := cm.ReasonConsumer
		if ev.Status == cm.SIDRUnsupportedService {
			reason = cm.ReasonInvalidServiceID
		}
		r.err = &RejectedError{Peer: r.to, Reason: reason}
	default:
		r.err = &RejectedError{Peer: r.to, Reason: cm.ReasonConsumer, Local: true}
	}
	if ev.Last {
		close(r.done)
	}
}

// ResolveDatagram requests the queue pair of a datagram service at "ADDRESS:PORT" of
// RDMA-CM's UDP port space (a SIDR_REQ). private are at most 180 bytes.
func (e *Endpoint) ResolveDatagram(ctx context.Context, address string, private []byte) (*DatagramService, error) {
	if err := begun(ctx); err != nil {
		return nil, err
	}
	to, err := e.resolveHost(ctx, address)
	if err != nil {
		return nil, err
	}
	r := &resolution{to: to, done: make(chan struct{})}
	var call *softnic.Call
	err = net.ErrClosed // where Do does nothing
	e.Do(func(now time.Time, p *softnic.Port) {
		call, err = p.ResolveSIDR(now, to.Addr(), cm.IPServiceID(cm.ProtocolUDP, to.Port()), softnic.ConnAttr{PrivateData: private})
		if err == nil {
			call.User = r
		}
	})
	if err != nil {
		return nil, fmt.Errorf("endpoint: resolve %v: %w", to, err)
	}
	select {
	case <-r.done:
	case <-e.loop.done:
		return nil, fmt.Errorf("endpoint: resolve %v: %w", to, e.over())
	case <-ctx.Done():
		e.Do(func(now time.Time, p *softnic.Port) { _ = p.Disconnect(now, call, nil) })
		return nil, fmt.Errorf("endpoint: resolve %v: %w", to, context.Cause(ctx))
	}
	if r.err != nil {
		return nil, fmt.Errorf("endpoint: resolve %v: %w", to, r.err)
	}
	return &r.svc, nil
}

// DatagramRequest is a peer's request for a datagram service (SIDR_REQ).
type DatagramRequest struct {
	Remote      netip.AddrPort
	PrivateData []byte // 180 bytes
}

// DatagramReply is the reply to a DatagramRequest (SIDR_REP).
type DatagramReply = cm.SIDRReply

// ServeDatagrams replies to requests for a port of RDMA-CM's UDP port space with what
// answer returns. answer is called by one goroutine at a time and must not block. Call stop
// to end the service.
func (e *Endpoint) ServeDatagrams(port uint16, answer func(*DatagramRequest) DatagramReply) (stop func(), err error) {
	svc := cm.IPServiceID(cm.ProtocolUDP, port)
	if answer == nil {
		return nil, errors.New("endpoint: serve datagrams: the function that replies is nil")
	}
	e.mu.Lock()
	defer e.mu.Unlock()
	if !e.loop.running {
		return nil, net.ErrClosed
	}
	if err := e.port.Listen(svc, 0); err != nil {
		return nil, fmt.Errorf("endpoint: serve datagrams: %w", err)
	}
	e.services[svc] = answer
	return sync.OnceFunc(func() {
		e.mu.Lock()
		defer e.mu.Unlock()
		e.port.Unlisten(svc)
		delete(e.services, svc)
	}), nil
}

// datagramRequest replies to a SIDR_REQ. The lock is held.
func (e *Endpoint) datagramRequest(now time.Time, call *softnic.Call, ev *cm.Event) {
	answer := e.services[ev.Service]
	if answer == nil || !e.allowed(call.Remote) {
		e.counted.Refused++
		_ = e.port.ReplySIDR(now, call, &cm.SIDRReply{Status: cm.SIDRRejected})
		return
	}
	r := &DatagramRequest{Remote: netip.AddrPortFrom(call.Remote, ev.CMA.Port), PrivateData: append([]byte(nil), ev.PrivateData...)}
	e.later(func() {
		a := answer(r)
		e.mu.Lock()
		if e.loop.running {
			now := time.Now()
			_ = e.port.ReplySIDR(now, call, &a)
			e.settle(now)
		}
		e.mu.Unlock()
	})
}
