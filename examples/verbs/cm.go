package main

/*
#include "front.h"
#include <rdma/rdma_cma.h>
*/
import "C"

import (
	"net/netip"
	"syscall"
	"time"
	"unsafe"

	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/cm"
	"github.com/roce-go/roce/qp/softnic"
)

// calls holds the connections that programs open through librdmacm.
type calls struct {
	events    map[uint64]C.int // file descriptor to which the events of an identifier are written
	listeners map[cm.ServiceID]uint64
	calls     map[uint32]*call
	last      uint32
}

// call is a connection, or a request to a datagram service (SIDR).
type call struct {
	c      *softnic.Call
	id     uint64 // identifier to which its events are sent; 0: not accepted yet
	listen uint64
	sidr   bool
}

func newCalls() calls {
	return calls{events: map[uint64]C.int{}, listeners: map[cm.ServiceID]uint64{}, calls: map[uint32]*call{}}
}

func (s *calls) add(c *call) uint32 {
	for s.last++; s.last == 0 || s.calls[s.last] != nil; s.last++ {
	}
	s.calls[s.last] = c
	c.c.User = s.last
	return s.last
}

func service(p *C.struct_rv_cm_param) cm.ServiceID {
	proto := uint8(cm.ProtocolTCP)
	if p.ps == C.RDMA_PS_UDP {
		proto = cm.ProtocolUDP
	}
	return cm.IPServiceID(proto, uint16(p.port))
}

// connAttr translates the parameters of a connection.
func connAttr(p *C.struct_rv_cm_param, e *engine) softnic.ConnAttr {
	return softnic.ConnAttr{PrivateData: C.GoBytes(unsafe.Pointer(&p.data), C.int(p.len)), Access: qp.RemoteWrite | qp.RemoteRead | qp.RemoteAtomic,
		PathMTU: min(int(e.sh.mtu), 4096), MaxRdAtomic: min(int(p.depth), C.RV_MAX_RD), MaxDestRdAtomic: min(int(p.resources), C.RV_MAX_RD),
		RetryCnt: uint8(p.retry) & 7, RNRRetry: uint8(p.rnr) & 7, SRQ: p.srq != 0, TrafficClass: uint8(p.tos), SourcePort: uint16(p.sport)}
}

// errno translates an error of the connection machine.
func errno(err error) C.int {
	switch {
	case err == nil:
		return 0
	case is(err, cm.ErrFull):
		return C.ENOMEM
	case is(err, softnic.ErrAddress):
		return C.ENETUNREACH
	}
	return C.EINVAL
}

// cmControl carries out the commands of the connection manager.
func (e *engine) cmControl(now time.Time, c *C.struct_rv_cmd) C.int {
	p := (*C.struct_rv_cm_param)(c.attr)
	s := &e.cms
	known := s.calls[uint32(p.call)]
	var pr *pair
	if p.qp != nil {
		if pr = e.qps[uint32((*C.struct_ibv_qp)(unsafe.Pointer(p.qp)).qp_num)]; pr == nil {
			return C.EINVAL
		}
	}
	attr := connAttr(p, e)
	if p.qp == nil {
		if pr = e.qps[uint32(p.qpn)]; pr != nil { // the program created it, with its own access rights
			attr.Access = pr.q.Attr().Access
		}
	}
	id := uint64(p.id)
	var err error
	switch c.op {
	case C.RV_CM_LISTEN:
		if err = e.port.Listen(service(p), int(max(p.backlog, 0))); err == nil {
			s.listeners[service(p)], s.events[id] = id, p.events
			e.log.Info("listen", "service", service(p))
		} else if is(err, cm.ErrInUse) {
			return C.EADDRINUSE
		}
	case C.RV_CM_CONNECT, C.RV_CM_SIDR:
		to := netip.AddrFrom16(*(*[16]byte)(unsafe.Pointer(&p.remote))).Unmap()
		x := &call{id: id, sidr: c.op == C.RV_CM_SIDR}
		if x.sidr {
			x.c, err = e.port.ResolveSIDR(now, to, service(p), attr)
		} else if pr == nil {
			return C.EINVAL
		} else {
			x.c, err = e.port.Connect(now, pr.q, to, service(p), attr)
		}
		if err == nil {
			p.call, s.events[id] = C.uint32_t(s.add(x)), p.events
		}
	case C.RV_CM_ACCEPT:
		if known == nil {
			return C.EINVAL
		}
		known.id, s.events[id] = id, p.events
		if known.sidr {
			err = e.port.ReplySIDR(now, known.c, &cm.SIDRReply{Status: cm.SIDRValid, QPN: uint32(p.qpn), QKey: uint32(p.qkey), PrivateData: C.GoBytes(unsafe.Pointer(&p.data), C.int(p.len))})
			delete(s.calls, uint32(p.call))
		} else if pr == nil {
			return C.EINVAL
		} else {
			err = e.port.Accept(now, known.c, pr.q, attr)
		}
	case C.RV_CM_REJECT:
		if known == nil {
			return C.EINVAL
		}
		known.id = 0
		if known.sidr {
			err = e.port.ReplySIDR(now, known.c, &cm.SIDRReply{Status: cm.SIDRRejected})
		} else {
			err = e.port.Reject(known.c, cm.ReasonConsumer, nil, C.GoBytes(unsafe.Pointer(&p.data), C.int(p.len)))
		}
		delete(s.calls, uint32(p.call))
	case C.RV_CM_DISCONNECT:
		if known == nil {
			return C.EINVAL
		}
		err = e.port.Disconnect(now, known.c, nil)
	case C.RV_CM_MIGRATE:
		if _, ok := s.events[id]; ok {
			s.events[id] = p.events
		}
	case C.RV_CM_DESTROY:
		delete(s.events, id)
		if svc := service(p); p.backlog != 0 && s.listeners[svc] == id {
			e.port.Unlisten(svc)
			delete(s.listeners, svc)
		}
		if known != nil {
			known.id = 0
			if known.sidr && !known.c.Active {
				_ = e.port.ReplySIDR(now, known.c, &cm.SIDRReply{Status: cm.SIDRRejected})
			} else {
				_ = e.port.Disconnect(now, known.c, nil)
			}
			delete(s.calls, uint32(p.call))
		}
	default:
		return C.EOPNOTSUPP
	}
	if err != nil {
		e.log.Info("connection manager", "op", int(c.op), "err", err)
	}
	if pr != nil {
		pr.setState(pr.q.State()) // Accept leaves it in RTS: the program may post at once
	}
	e.flush(now)
	e.events(now)
	return errno(err)
}

// leave ends all connections, and sends what tells the peers so.
func (e *engine) leave(now time.Time) {
	for _, x := range e.cms.calls {
		if !x.sidr {
			_ = e.port.Disconnect(now, x.c, nil)
		}
	}
	e.flush(now)
}

// flush sends what the port has to send: the program may end when it hears that its
// command was carried out.
func (e *engine) flush(now time.Time) {
	for n := 0; n < 64 && !e.port.Idle() && e.send(now); n++ {
	}
}

// kinds translates the events of calls.
var kinds = map[cm.EventKind]C.uint32_t{cm.EventRequest: C.RDMA_CM_EVENT_CONNECT_REQUEST, cm.EventSIDRRequest: C.RDMA_CM_EVENT_CONNECT_REQUEST,
	cm.EventEstablished: C.RDMA_CM_EVENT_ESTABLISHED, cm.EventRejected: C.RDMA_CM_EVENT_REJECTED, cm.EventUnreachable: C.RDMA_CM_EVENT_UNREACHABLE,
	cm.EventDisconnected: C.RDMA_CM_EVENT_DISCONNECTED, cm.EventTimewaitExit: C.RDMA_CM_EVENT_TIMEWAIT_EXIT, cm.EventSIDRReply: C.RDMA_CM_EVENT_ESTABLISHED}

// connections passes the events of calls to the identifiers that they belong to.
func (e *engine) connections(now time.Time) {
	var ev cm.Event
	s := &e.cms
	for {
		c, ok := e.port.NextCMEvent(now, &ev)
		if !ok {
			return
		}
		e.log.Info("connection", "event", ev.Kind, "peer", c.Remote)
		if c.QP != nil {
			if p := e.qps[c.QP.Num()]; p != nil && p.q == c.QP {
				p.setState(c.QP.State())
			}
		}
		n, _ := c.User.(uint32)
		x := s.calls[n]
		kind, known := kinds[ev.Kind]
		if !known {
			continue
		}
		out := C.struct_rv_cm_event{event: kind}
		if ev.Kind == cm.EventRequest || ev.Kind == cm.EventSIDRRequest {
			x = &call{c: c, listen: s.listeners[ev.Service], sidr: ev.Kind == cm.EventSIDRRequest}
			n = s.add(x)
			out.id = C.uint64_t(x.listen)
			out.rport = C.uint16_t(ev.CMA.Port)
		} else if x == nil || x.id == 0 {
			continue // no identifier waits for it
		} else {
			out.id = C.uint64_t(x.id)
		}
		out.call = C.uint32_t(n)
		remote := c.Remote.As16()
		for i, b := range remote {
			out.remote[i] = C.uint8_t(b)
		}
		a := &ev.Attr
		out.qpn, out.qkey = C.uint32_t(a.DestQPN), C.uint32_t(a.QKey)
		out.resources, out.depth, out.retry, out.rnr = C.uint8_t(a.MaxDestRdAtomic), C.uint8_t(a.MaxRdAtomic), C.uint8_t(a.RetryCnt), C.uint8_t(a.RNRRetry)
		if x.sidr {
			out.is_ud = 1
		}
		if a.SRQ {
			out.srq = 1
		}
		out.len = C.uint8_t(copy(unsafe.Slice((*byte)(unsafe.Pointer(&out.data)), len(out.data)), ev.PrivateData))
		switch ev.Kind {
		case cm.EventRejected:
			out.status = C.int32_t(ev.Reason)
		case cm.EventUnreachable:
			out.status = -C.ETIMEDOUT
		case cm.EventSIDRReply:
			if ev.Status != cm.SIDRValid {
				out.event, out.status = C.RDMA_CM_EVENT_UNREACHABLE, C.int32_t(ev.Status)
			}
		}
		if fd, ok := s.events[uint64(out.id)]; ok {
			syscall.Write(int(fd), unsafe.Slice((*byte)(unsafe.Pointer(&out)), unsafe.Sizeof(out)))
		}
		if ev.Last && ev.Kind != cm.EventSIDRRequest {
			delete(s.calls, n)
		}
	}
}
