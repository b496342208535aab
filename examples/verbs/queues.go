package main

/*
#include "front.h"
*/
import "C"

import (
	"encoding/binary"
	"sync/atomic"
	"time"
	"unsafe"

	"github.com/roce-go/roce/qp"
	"github.com/roce-go/roce/qp/softnic"
)

// pair is a queue pair: the program's object and the port's.
type pair struct {
	c    *C.struct_rv_qp
	q    *softnic.QP
	recv *receiver
	wr   qp.SendWR
	attr C.struct_ibv_qp_attr // last values set, for attributes that the port does not keep
}

func (p *pair) ib() *C.struct_ibv_qp { return (*C.struct_ibv_qp)(unsafe.Pointer(p.c)) }

// setState writes the QP's state for the front.
func (p *pair) setState(s qp.State) {
	atomic.StoreInt32((*int32)(unsafe.Pointer(&p.c.state)), int32(s))
}

// slot returns the memory of a slot.
func slot(q *C.struct_rv_queue, i uint32) unsafe.Pointer {
	return unsafe.Add(unsafe.Pointer(q.slots), uintptr(i)*uintptr(q.stride))
}

// sendOps translates enum ibv_wr_opcode.
var sendOps = [...]qp.Op{C.IBV_WR_RDMA_WRITE: qp.OpWrite, C.IBV_WR_RDMA_WRITE_WITH_IMM: qp.OpWriteImm, C.IBV_WR_SEND: qp.OpSend,
	C.IBV_WR_SEND_WITH_IMM: qp.OpSendImm, C.IBV_WR_RDMA_READ: qp.OpRead, C.IBV_WR_ATOMIC_CMP_AND_SWP: qp.OpCmpSwap,
	C.IBV_WR_ATOMIC_FETCH_AND_ADD: qp.OpFetchAdd, C.IBV_WR_LOCAL_INV: qp.OpLocalInv, C.IBV_WR_BIND_MW: qp.OpBindMW,
	C.IBV_WR_SEND_WITH_INV: qp.OpSendInv, C.IBV_WR_ATOMIC_WRITE: qp.OpAtomicWrite}

// drain posts the sends of the ring.
func (p *pair) drain(e *engine, now time.Time) {
	q := &p.c.sq
	for posted := atomic.LoadUint32(word(&q.posted)); uint32(q.taken) != posted; q.taken++ {
		n := uint32(q.taken)
		w := (*C.struct_rv_wqe)(slot(q, n&(uint32(q.size)-1)))
		p.fill(e, w)
		p.wr.ID = uint64(n)
		if err := p.q.PostSend(now, &p.wr); err != nil {
			e.log.Warn("send request refused", "qpn", p.q.Num(), "err", err)
			p.wr.Fail = failure(p.wr.Op, err)
			p.wr.SGEs = nil
			if err := p.q.PostSend(now, &p.wr); err != nil {
				e.publish(p, &qp.Completion{ID: uint64(n), Status: qp.WRFlushErr, Op: p.wr.Op}, false)
			}
		}
	}
}

// failure returns the status of a request that the port refuses.
func failure(op qp.Op, err error) qp.Status {
	switch err {
	case qp.ErrAlign:
		return qp.RemoteInvalidReqErr // the error that the peer would find
	}
	if is(err, qp.ErrLength) {
		return qp.LocalLengthErr
	}
	return qp.LocalQPOpErr
}

// fill translates a work request.
func (p *pair) fill(e *engine, w *C.struct_rv_wqe) {
	p.wr = qp.SendWR{Op: sendOps[w.opcode], RemoteAddr: uint64(w.remote_addr), RKey: uint32(w.rkey), CompareAdd: uint64(w.compare_add), Swap: uint64(w.swap),
		RemoteQPN: uint32(w.remote_qpn) & 0xffffff, RemoteQKey: uint32(w.remote_qkey), SRQ: uint32(w.srqn)}
	for _, f := range [...]struct {
		bit C.uint32_t
		f   qp.Flags
	}{{C.IBV_SEND_SIGNALED, qp.Signaled}, {C.IBV_SEND_FENCE, qp.Fence}, {C.IBV_SEND_SOLICITED, qp.Solicited}} {
		if w.flags&f.bit != 0 {
			p.wr.Flags |= f.f
		}
	}
	switch p.wr.Op {
	case qp.OpSendImm, qp.OpWriteImm:
		p.wr.Imm = binary.BigEndian.Uint32(unsafe.Slice((*byte)(unsafe.Pointer(&w.imm)), 4))
	case qp.OpBindMW:
		p.wr.Region, p.wr.Access, p.wr.Length = uint32(w.mr_rkey), rights(w.access)&^qp.LocalWrite, uint32(w.length)
		if p.wr.NewRKey = uint32(w.imm); w.length > 1<<32-1 {
			p.wr.Length = 1<<32 - 1
		}
	}
	data := unsafe.Add(unsafe.Pointer(w), unsafe.Sizeof(*w))
	switch {
	case w.flags&C.IBV_SEND_INLINE != 0:
		// The slot holds the data until the request is complete.
		p.wr.Local = unsafe.Slice((*byte)(data), int(w.inline_len))
	case p.wr.Op == qp.OpBindMW || p.wr.Op == qp.OpLocalInv:
	default:
		p.wr.SGEs = unsafe.Slice((*qp.SGE)(data), int(w.num_sge))
	}
	if w.ah != 0 {
		p.wr.AH = e.ahs[uint32(w.ah)]
	}
}

// receiver is a ring of receive work requests, and the queue that they are posted to.
type receiver struct {
	q    *C.struct_rv_queue
	post func(*qp.RecvWR) error
	wr   qp.RecvWR
}

// drain posts the receives of the ring.
func (r *receiver) drain(e *engine, now time.Time) {
	q := r.q
	order := unsafe.Slice((*uint32)(unsafe.Pointer(q.order)), int(q.size))
	for posted := atomic.LoadUint32(word(&q.posted)); uint32(q.taken) != posted; q.taken++ {
		i := order[uint32(q.taken)&(uint32(q.size)-1)]
		w := (*C.struct_rv_rqe)(slot(q, i))
		r.wr = qp.RecvWR{ID: uint64(i), SGEs: unsafe.Slice((*qp.SGE)(unsafe.Add(unsafe.Pointer(w), unsafe.Sizeof(*w))), int(w.num_sge))}
		if err := r.post(&r.wr); err != nil {
			e.log.Warn("receive refused", "err", err)
		}
	}
}

// shared is a shared receive queue.
type shared struct {
	receiver
	c *C.struct_rv_srq
	s *softnic.SRQ
}

var statuses = [...]C.enum_ibv_wc_status{qp.Success: C.IBV_WC_SUCCESS, qp.LocalLengthErr: C.IBV_WC_LOC_LEN_ERR, qp.LocalQPOpErr: C.IBV_WC_LOC_QP_OP_ERR,
	qp.LocalProtErr: C.IBV_WC_LOC_PROT_ERR, qp.LocalAccessErr: C.IBV_WC_LOC_ACCESS_ERR, qp.WRFlushErr: C.IBV_WC_WR_FLUSH_ERR,
	qp.BadRespErr: C.IBV_WC_BAD_RESP_ERR, qp.RemoteInvalidReqErr: C.IBV_WC_REM_INV_REQ_ERR, qp.RemoteAccessErr: C.IBV_WC_REM_ACCESS_ERR,
	qp.RemoteOpErr: C.IBV_WC_REM_OP_ERR, qp.RetryExcErr: C.IBV_WC_RETRY_EXC_ERR, qp.RNRRetryExcErr: C.IBV_WC_RNR_RETRY_EXC_ERR,
	qp.MWBindErr: C.IBV_WC_MW_BIND_ERR}

var doneOps = [...]C.enum_ibv_wc_opcode{qp.OpSend: C.IBV_WC_SEND, qp.OpSendImm: C.IBV_WC_SEND, qp.OpSendInv: C.IBV_WC_SEND, qp.OpWrite: C.IBV_WC_RDMA_WRITE,
	qp.OpWriteImm: C.IBV_WC_RDMA_WRITE, qp.OpRead: C.IBV_WC_RDMA_READ, qp.OpCmpSwap: C.IBV_WC_COMP_SWAP, qp.OpFetchAdd: C.IBV_WC_FETCH_ADD,
	qp.OpAtomicWrite: C.IBV_WC_ATOMIC_WRITE, qp.OpFlush: C.IBV_WC_RDMA_READ, qp.OpBindMW: C.IBV_WC_BIND_MW, qp.OpLocalInv: C.IBV_WC_LOCAL_INV,
	qp.OpRecv: C.IBV_WC_RECV, qp.OpRecvWrite: C.IBV_WC_RECV_RDMA_WITH_IMM}

// complete passes completions to the rings of their CQs.
func (e *engine) complete(now time.Time) {
	var wc qp.Completion
	for e.cq.Poll(&wc) {
		if p := e.qps[wc.QPN]; p != nil {
			e.publish(p, &wc, wc.Op == qp.OpRecv || wc.Op == qp.OpRecvWrite)
		}
	}
}

// publish writes a completion into the ring of its CQ, and an event if the program has
// requested one.
func (e *engine) publish(p *pair, wc *qp.Completion, recv bool) {
	cq, queue, wrID := p.c.scq, &p.c.sq, uint64(0)
	if recv {
		cq, queue = p.c.rcq, p.c.receives
		if wc.SRQ != 0 {
			if s := e.srqs[wc.SRQ]; s != nil {
				cq, queue = s.c.cq, &s.c.rq
			}
		}
		if queue == nil {
			return
		}
		wrID = uint64((*C.struct_rv_rqe)(slot(queue, uint32(wc.ID))).wr_id)
	} else {
		wrID = uint64((*C.struct_rv_wqe)(slot(queue, uint32(wc.ID)&(uint32(queue.size)-1))).wr_id)
	}
	if wc.Status != qp.Success {
		p.setState(p.q.State())
		if wc.Status != qp.WRFlushErr {
			e.log.Info("error completion", "qpn", p.q.Num(), "op", wc.Op, "status", wc.Status, "wr_id", wrID)
		}
	}
	produced := atomic.LoadUint32(word(&cq.produced))
	if produced-atomic.LoadUint32(word(&cq.consumed)) >= uint32(cq.depth) {
		e.overrun(p, cq)
		return
	}
	c := (*C.struct_rv_cqe)(unsafe.Add(unsafe.Pointer(cq.ring), uintptr(produced&(uint32(cq.size)-1))*unsafe.Sizeof(C.struct_rv_cqe{})))
	*c = C.struct_rv_cqe{qp: p.c, queue: queue, slot: C.uint32_t(wc.ID), ns: C.uint64_t(time.Now().UnixNano())}
	w := &c.wc
	w.wr_id, w.status, w.opcode, w.qp_num = C.uint64_t(wrID), statuses[wc.Status], doneOps[wc.Op], C.uint32_t(p.q.Num())
	w.byte_len, w.src_qp = C.uint32_t(wc.ByteLen), C.uint32_t(wc.SrcQP)
	imm := (*[4]byte)(unsafe.Pointer(&w.anon0))
	switch {
	case wc.Status != qp.Success:
		w.vendor_err = C.uint32_t(wc.Status)
	case wc.HasImm:
		binary.BigEndian.PutUint32(imm[:], wc.Imm)
		w.wc_flags |= C.IBV_WC_WITH_IMM
	case wc.HasInv:
		binary.NativeEndian.PutUint32(imm[:], wc.InvRKey)
		w.wc_flags |= C.IBV_WC_WITH_INV
	}
	if wc.GRH {
		w.wc_flags |= C.IBV_WC_GRH
	}
	atomic.StoreUint32(word(&cq.produced), produced+1)
	if a := atomic.LoadUint32(word(&cq.armed)); a == 2 || a == 1 && (wc.Solicited || wc.Status != qp.Success) {
		if atomic.SwapUint32(word(&cq.armed), 0) != 0 && cq.notify >= 0 {
			writeEvent(cq.notify, 0, cq.handle)
		}
	}
}

// overrun reports a CQ that is full (IBV_EVENT_CQ_ERR). The QP that lost a completion goes to
// Error.
func (e *engine) overrun(p *pair, cq *C.struct_rv_cq) {
	if atomic.SwapUint32(word(&cq.overrun), 1) == 0 {
		e.log.Warn("CQ overrun", "qpn", p.q.Num(), "cqe", cq.depth)
		writeEvent(p.c.async, C.IBV_EVENT_CQ_ERR, cq.handle)
	}
	if s := p.q.State(); s != qp.Error && s != qp.Reset {
		_ = p.q.Modify(time.Now(), &qp.Attr{State: qp.Error}, qp.AttrState)
		p.setState(qp.Error)
		writeEvent(p.c.async, C.IBV_EVENT_QP_FATAL, p.c.handle)
	}
}

var asyncEvents = [...]uint32{qp.EventCommEst: C.IBV_EVENT_COMM_EST, qp.EventSQDrained: C.IBV_EVENT_SQ_DRAINED,
	qp.EventLastWQEReached: C.IBV_EVENT_QP_LAST_WQE_REACHED, qp.EventReqErr: C.IBV_EVENT_QP_REQ_ERR, qp.EventAccessErr: C.IBV_EVENT_QP_ACCESS_ERR}

// events passes asynchronous events to their contexts.
func (e *engine) events(now time.Time) {
	var ev softnic.Event
	for e.port.NextEvent(&ev) {
		if p := e.qps[ev.QP.Num()]; p != nil {
			p.setState(p.q.State())
			e.log.Info("event", "qpn", p.q.Num(), "event", ev.Event)
			writeEvent(p.c.async, asyncEvents[ev.Event], p.c.handle)
		}
	}
	for s := range e.armed {
		if s.s.LimitReached() {
			delete(e.armed, s)
			atomic.StoreUint32(word(&s.c.limit), 0)
			writeEvent(s.c.async, C.IBV_EVENT_SRQ_LIMIT_REACHED, s.c.handle)
		}
	}
	e.connections(now)
}

// resize moves the completions of a CQ into the ring of to, and swaps the rings. The front
// holds the CQ's lock.
func resize(cq, to *C.struct_rv_cq) C.int {
	n := uint32(cq.produced - cq.consumed)
	if n > uint32(to.depth) {
		return C.EINVAL
	}
	from, dst := unsafe.Slice(cq.ring, int(cq.size)), unsafe.Slice(to.ring, int(to.size))
	for i := range n {
		dst[i] = from[(uint32(cq.consumed)+i)&(uint32(cq.size)-1)]
	}
	cq.ring, to.ring = to.ring, cq.ring
	cq.size, cq.depth = to.size, to.depth
	atomic.StoreUint32(word(&cq.consumed), 0)
	atomic.StoreUint32(word(&cq.produced), n)
	return 0
}
