package main

/*
#include "front.h"
*/
import "C"

import (
	"errors"
	"net/netip"
	"strings"
	"sync/atomic"
	"syscall"
	"time"
	"unsafe"

	"github.com/roce-go/roce/aeth"
	"github.com/roce-go/roce/psn"
	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/softnic"
)

func is(err, target error) bool                         { return errors.Is(err, target) }
func cutPrefix(s, prefix string) (rest string, ok bool) { return strings.CutPrefix(s, prefix) }

// command executes the waiting command, if there is one.
func (e *engine) command(now time.Time) bool {
	state := word(&e.sh.state)
	if s := atomic.LoadUint32(state); s != 1 && s != 3 {
		return false
	}
	c := e.sh.cmd
	c.err = C.EIO
	defer func() {
		if atomic.SwapUint32(state, 2) == 3 {
			const wakePrivate = 1 | 128
			syscall.RawSyscall6(syscall.SYS_FUTEX, uintptr(unsafe.Pointer(state)), wakePrivate, 1, 0, 0, 0)
		}
	}()
	if c.op == C.RV_OPEN {
		c.err = 0
		if err := e.open(C.GoString(&c.text[0])); err != nil {
			c.err = C.ENODEV
			for i, b := range []byte(err.Error())[:min(len(err.Error()), len(c.text)-1)] {
				c.text[i], c.text[i+1] = C.char(b), 0
			}
		}
		return true
	}
	if e.port == nil {
		return true
	}
	c.err = e.control(now, c)
	return true
}

func (e *engine) control(now time.Time, c *C.struct_rv_cmd) C.int {
	e.posts(now) // work requests posted before the command
	switch c.op {
	case C.RV_LEAVE:
		if e.cms.last != 0 {
			c.mask = 1 // it had connections
		}
		e.leave(now)
	case C.RV_CLOSE:
		for _, p := range e.qps {
			if p.c.async == C.int(c.addr) {
				e.destroy(p)
			}
		}
		for s := range e.armed {
			if s.c.async == C.int(c.addr) {
				delete(e.armed, s)
			}
		}
		if c.mask != 0 {
			e.leave(now)
			e.close()
		}
		return 0
	case C.RV_REG_MR:
		return e.register(c)
	case C.RV_DEREG_MR:
		return e.deregister(c.key)
	case C.RV_ALLOC_MW, C.RV_DEALLOC_MW:
		return e.window(c)
	case C.RV_CREATE_QP:
		return e.createQP((*C.struct_rv_qp)(c.obj))
	case C.RV_CREATE_SRQ:
		return e.createSRQ((*C.struct_rv_srq)(c.obj))
	case C.RV_CREATE_AH:
		return e.createAH(c)
	case C.RV_DESTROY_AH:
		delete(e.ahs, uint32(c.key))
	case C.RV_MODIFY_SRQ, C.RV_DESTROY_SRQ:
		x := (*C.struct_rv_srq)(c.obj)
		s := e.srqs[uint32(x.number)]
		if s == nil || s.c != x {
			return C.EINVAL
		}
		if c.op == C.RV_MODIFY_SRQ {
			s.s.Arm(int(c.len))
			atomic.StoreUint32(word(&x.limit), uint32(c.len))
			delete(e.armed, s)
			if c.len != 0 {
				e.armed[s] = struct{}{}
			}
			e.events(now)
			return 0
		}
		s.s.Destroy()
		delete(e.srqs, s.s.Num())
		delete(e.armed, s)
		e.bells[x.rq.bell] = nil
	case C.RV_RESIZE_CQ:
		e.send(now) // datagrams complete when they are sent
		e.complete(now)
		return resize((*C.struct_rv_cq)(c.obj), (*C.struct_rv_cq)(c.attr))
	case C.RV_MODIFY_QP, C.RV_QUERY_QP, C.RV_DESTROY_QP, C.RV_MCAST:
		x := (*C.struct_rv_qp)(c.obj)
		p := e.qps[uint32((*C.struct_ibv_qp)(unsafe.Pointer(x)).qp_num)]
		if p == nil || p.c != x {
			return C.EINVAL
		}
		switch c.op {
		case C.RV_MODIFY_QP:
			return e.modify(now, p, (*C.struct_ibv_qp_attr)(c.attr), uint32(c.mask))
		case C.RV_QUERY_QP:
			e.query(p, (*C.struct_ibv_qp_attr)(c.attr))
		case C.RV_DESTROY_QP:
			e.destroy(p)
		default:
			return e.multicast(p, (*[16]byte)(c.attr), c.mask != 0)
		}
	default:
		return e.cmControl(now, c)
	}
	return 0
}

func (e *engine) destroy(p *pair) {
	p.q.Destroy()
	p.setState(qp.Reset) // nothing can be posted, also where only its context was closed
	delete(e.qps, p.q.Num())
	if p.c.sq.bell >= 0 {
		e.bells[p.c.sq.bell] = nil
	}
	if p.c.rq.bell >= 0 {
		e.bells[p.c.rq.bell] = nil
	}
}

func (e *engine) createQP(x *C.struct_rv_qp) C.int {
	types := map[C.enum_ibv_qp_type]qp.Type{C.IBV_QPT_RC: qp.RC, C.IBV_QPT_UC: qp.UC, C.IBV_QPT_UD: qp.UD, C.IBV_QPT_XRC_SEND: qp.XRCSend, C.IBV_QPT_XRC_RECV: qp.XRCRecv}
	ib := (*C.struct_ibv_qp)(unsafe.Pointer(x))
	p := &pair{c: x}
	cfg := softnic.QPConfig{SendCQ: e.cq, RecvCQ: e.cq, XRCD: uint32(x.xrcdn)}
	mem := &pairMemory{memory: e.mem, pd: qp.PD(x.pd)}
	cfg.Type, cfg.PD, cfg.Memory, cfg.SignalAll = types[ib.qp_type], mem.pd, mem, x.sq_sig_all != 0
	cfg.MaxSendWR, cfg.MaxRecvWR = int(x.sq.size), int(x.rq.size)
	cfg.MaxRdAtomic, cfg.MaxDestRdAtomic = C.RV_MAX_RD, C.RV_MAX_RD
	cfg.Window = e.wire.window()
	cfg.AckEvery = cfg.Window / 4
	cfg.LinuxAckBeforeRead = true // the peer may be the kernel's driver, and nothing shows whether it is
	if x.srq != nil {
		s := e.srqs[uint32(x.srq.number)]
		if s == nil {
			return C.EINVAL
		}
		cfg.SRQ = s.s
	}
	if x.srq != nil || cfg.Type == qp.XRCRecv {
		cfg.MaxRecvWR = 256 // completions, which the engine polls at once
	}
	q, err := e.port.CreateQP(cfg)
	if err != nil {
		e.log.Warn("create QP", "err", err)
		return C.ENOMEM
	}
	p.q, mem.qpn = q, q.Num()
	ib.qp_num = C.uint32_t(q.Num())
	e.qps[q.Num()] = p
	if x.sq.bell >= 0 {
		e.bells[x.sq.bell] = p
	}
	if x.rq.bell >= 0 {
		p.recv = &receiver{q: &x.rq, post: q.PostRecv}
		e.bells[x.rq.bell] = p.recv
	}
	p.setState(qp.Reset)
	return 0
}

func (e *engine) createSRQ(x *C.struct_rv_srq) C.int {
	if len(e.srqs) >= C.RV_MAX_SRQ {
		return C.ENOMEM
	}
	s, err := e.port.CreateSRQ(int(x.rq.size), uint32(x.xrcdn))
	if err != nil {
		return C.ENOMEM
	}
	s.SetPD(qp.PD(x.pd))
	sh := &shared{c: x, s: s}
	sh.q, sh.post = &x.rq, s.PostRecv
	x.number = C.uint32_t(s.Num())
	e.srqs[s.Num()] = sh
	e.bells[x.rq.bell] = sh
	return 0
}

// handle translates an address vector.
func handle(a *C.struct_ibv_ah_attr) (h qp.AHAttr, ok bool) {
	if a.is_global == 0 || a.grh.sgid_index != 0 || a.port_num > 1 {
		return h, false
	}
	copy(h.GID[:], unsafe.Slice((*byte)(unsafe.Pointer(&a.grh.dgid)), 16))
	h.TrafficClass, h.HopLimit, h.FlowLabel = uint8(a.grh.traffic_class), uint8(a.grh.hop_limit), uint32(a.grh.flow_label)&0xfffff
	return h, true
}

func (e *engine) createAH(c *C.struct_rv_cmd) C.int {
	a, ok := handle((*C.struct_ibv_ah_attr)(c.attr))
	if !ok {
		return C.EINVAL
	}
	h, err := e.port.CreateAH(a)
	if err != nil {
		return C.EINVAL
	}
	for e.lastH++; e.lastH == 0 || e.ahs[e.lastH] != nil; e.lastH++ {
	}
	e.ahs[e.lastH] = h
	c.key = C.uint32_t(e.lastH)
	return 0
}

func (e *engine) multicast(p *pair, gid *[16]byte, attach bool) C.int {
	a := netip.AddrFrom16(*gid).Unmap()
	if !attach {
		p.q.DetachMulticast(a)
		return 0
	}
	if p.q.AttachMulticast(a) != nil {
		return C.EINVAL
	}
	return 0
}

// masks maps enum ibv_qp_attr_mask to the mask of package qp. Those of 0 are accepted and
// have no effect.
var masks = [...]struct {
	verbs uint32
	qp    qp.AttrMask
}{
	{C.IBV_QP_STATE, qp.AttrState}, {C.IBV_QP_ACCESS_FLAGS, qp.AttrAccess}, {C.IBV_QP_PKEY_INDEX, qp.AttrPKey}, {C.IBV_QP_QKEY, qp.AttrQKey},
	{C.IBV_QP_AV, qp.AttrAH}, {C.IBV_QP_PATH_MTU, qp.AttrPathMTU}, {C.IBV_QP_TIMEOUT, qp.AttrTimeout}, {C.IBV_QP_RETRY_CNT, qp.AttrRetryCnt},
	{C.IBV_QP_RNR_RETRY, qp.AttrRNRRetry}, {C.IBV_QP_RQ_PSN, qp.AttrRQPSN}, {C.IBV_QP_MAX_QP_RD_ATOMIC, qp.AttrMaxRdAtomic},
	{C.IBV_QP_MIN_RNR_TIMER, qp.AttrMinRNRTimer}, {C.IBV_QP_SQ_PSN, qp.AttrSQPSN}, {C.IBV_QP_MAX_DEST_RD_ATOMIC, qp.AttrMaxDestRdAtomic},
	{C.IBV_QP_DEST_QPN, qp.AttrDestQPN}, {C.IBV_QP_CUR_STATE, 0}, {C.IBV_QP_EN_SQD_ASYNC_NOTIFY, 0}, {C.IBV_QP_PORT, 0}, {C.IBV_QP_PATH_MIG_STATE, 0},
}

func (e *engine) modify(now time.Time, p *pair, v *C.struct_ibv_qp_attr, mask uint32) C.int {
	// The kernel ignores attributes that one side of an XRC connection does not use.
	switch p.q.Type() {
	case qp.XRCSend:
		mask &^= C.IBV_QP_MAX_DEST_RD_ATOMIC | C.IBV_QP_MIN_RNR_TIMER
	case qp.XRCRecv:
		mask &^= C.IBV_QP_MAX_QP_RD_ATOMIC | C.IBV_QP_RETRY_CNT | C.IBV_QP_RNR_RETRY
	}
	var m qp.AttrMask
	rest := mask
	for _, x := range masks {
		if mask&x.verbs != 0 {
			m |= x.qp
			rest &^= x.verbs
		}
	}
	from := p.q.State()
	switch {
	case rest&^C.IBV_QP_RATE_LIMIT != 0:
		return C.EINVAL
	case rest != 0:
		return C.EOPNOTSUPP
	case mask&C.IBV_QP_CUR_STATE != 0 && uint32(v.cur_qp_state) != uint32(from),
		mask&C.IBV_QP_PORT != 0 && (v.port_num != 1 || from > qp.Init),
		mask&C.IBV_QP_PKEY_INDEX != 0 && v.pkey_index != 0,
		mask&C.IBV_QP_STATE != 0 && v.qp_state > C.IBV_QPS_ERR,
		mask&C.IBV_QP_PATH_MTU != 0 && (v.path_mtu < C.IBV_MTU_256 || v.path_mtu > C.IBV_MTU_4096):
		return C.EINVAL
	case mask&C.IBV_QP_STATE != 0 && v.qp_state == C.IBV_QPS_INIT && from == qp.Reset && mask&C.IBV_QP_PORT == 0:
		return C.EINVAL
	}
	a := qp.Attr{State: qp.State(v.qp_state), PKey: 0xffff, QKey: uint32(v.qkey), Access: rights(C.uint32_t(v.qp_access_flags)) & (qp.RemoteWrite | qp.RemoteRead | qp.RemoteAtomic),
		DestQPN: uint32(v.dest_qp_num), RQPSN: psn.PSN(v.rq_psn & 0xffffff), SQPSN: psn.PSN(v.sq_psn & 0xffffff), Timeout: uint8(v.timeout),
		RetryCnt: uint8(v.retry_cnt), RNRRetry: uint8(v.rnr_retry), MinRNRTimer: aeth.RNRTimer(v.min_rnr_timer),
		MaxRdAtomic: int(v.max_rd_atomic), MaxDestRdAtomic: int(v.max_dest_rd_atomic)}
	if mask&C.IBV_QP_PATH_MTU != 0 {
		a.PathMTU = 128 << v.path_mtu
		if a.PathMTU > int(e.sh.mtu) {
			return C.EINVAL
		}
	}
	if mask&C.IBV_QP_AV != 0 {
		var ok bool
		if a.AH, ok = handle(&v.ah_attr); !ok {
			return C.EINVAL
		}
	}
	if err := p.q.Modify(now, &a, m); err != nil {
		e.log.Info("modify QP refused", "qpn", p.q.Num(), "err", err)
		return C.EINVAL
	}
	if mask&C.IBV_QP_AV != 0 {
		p.attr.ah_attr = v.ah_attr
	}
	p.setState(p.q.State())
	if p.q.State() == qp.Reset {
		p.attr = C.struct_ibv_qp_attr{}
	}
	e.complete(now) // completions of flushed work requests
	e.events(now)
	return 0
}

func (e *engine) query(p *pair, v *C.struct_ibv_qp_attr) {
	a := p.q.Attr()
	v.qp_state = C.enum_ibv_qp_state(a.State)
	v.qkey, v.dest_qp_num, v.rq_psn, v.sq_psn = C.uint32_t(a.QKey), C.uint32_t(a.DestQPN), C.uint32_t(a.RQPSN), C.uint32_t(a.SQPSN)
	v.timeout, v.retry_cnt, v.rnr_retry, v.min_rnr_timer = C.uint8_t(a.Timeout), C.uint8_t(a.RetryCnt), C.uint8_t(a.RNRRetry), C.uint8_t(a.MinRNRTimer)
	v.max_rd_atomic, v.max_dest_rd_atomic, v.port_num = C.uint8_t(a.MaxRdAtomic), C.uint8_t(a.MaxDestRdAtomic), 1
	v.ah_attr = p.attr.ah_attr
	for c := C.enum_ibv_mtu(C.IBV_MTU_256); c <= C.IBV_MTU_4096; c++ {
		if 128<<c == a.PathMTU {
			v.path_mtu = c
		}
	}
	for _, x := range [...]struct {
		a   qp.Access
		bit C.uint
	}{{qp.RemoteWrite, C.IBV_ACCESS_REMOTE_WRITE}, {qp.RemoteRead, C.IBV_ACCESS_REMOTE_READ}, {qp.RemoteAtomic, C.IBV_ACCESS_REMOTE_ATOMIC}} {
		if a.Access&x.a != 0 {
			v.qp_access_flags |= x.bit
		}
	}
}
