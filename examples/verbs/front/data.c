/* The data path: posts into rings, completions out of rings. */
#define _GNU_SOURCE
#include "objects.h"
#include <sched.h>
#include <sys/eventfd.h>
#include <time.h>

static uint32_t power(uint32_t n)
{
	uint32_t p = 1;
	while (p < n)
		p *= 2;
	return p;
}

static uint32_t bell_used[RV_BELLS / 32];

static int bell_take(void)
{
	int n = -1;
	pthread_mutex_lock(&rv_big);
	for (int i = 0; i < RV_BELLS / 32 && n < 0; i++)
		if (~bell_used[i]) {
			int b = __builtin_ctz(~bell_used[i]);
			bell_used[i] |= 1u << b;
			n = 32 * i + b;
		}
	pthread_mutex_unlock(&rv_big);
	return n;
}

/* rv_queue_init makes a ring of max work requests. */
int rv_queue_init(struct rv_queue *q, struct rv_pd *pd, uint32_t max, uint32_t sges, uint32_t inl, int sends)
{
	uint32_t room = sges * sizeof(struct ibv_sge) > inl ? sges * sizeof(struct ibv_sge) : inl;
	q->size = power(max ? max : 1);
	q->max = max;
	q->max_sge = sges;
	q->max_inline = inl;
	q->stride = ((sends ? sizeof(struct rv_wqe) : sizeof(struct rv_rqe)) + room + 15) & ~15u;
	q->owner = pd;
	q->slots = rv_pd_alloc(&q->owner, (size_t)q->size * q->stride);
	q->order = sends ? NULL : calloc(q->size, 8);
	q->bell = bell_take();
	if (!q->slots || (!sends && !q->order) || q->bell < 0) {
		rv_queue_free(q);
		return ENOMEM;
	}
	if (!sends)
		q->spare = q->order + q->size;
	pthread_mutex_init(&q->lock, NULL);
	rv_queue_reset(q);
	return 0;
}

void rv_queue_reset(struct rv_queue *q)
{
	q->posted = q->taken = q->freed = q->spares = 0;
	if (q->order)
		while (q->spares < q->max) {
			q->spare[q->spares] = q->max - 1 - q->spares;
			q->spares++;
		}
}

void rv_queue_free(struct rv_queue *q)
{
	rv_pd_free(q->owner, q->slots);
	free(q->order);
	q->slots = NULL;
	q->order = q->spare = NULL;
	q->size = 0;
	if (q->bell >= 0) {
		pthread_mutex_lock(&rv_big);
		bell_used[q->bell / 32] &= ~(1u << q->bell % 32);
		pthread_mutex_unlock(&rv_big);
		q->bell = -1;
	}
}

void rv_wake(void)
{
	static const uint64_t one = 1;
	if (rv_load(&rv_sh->asleep) && rv_swap(&rv_sh->asleep, 0))
		while (write(rv_sh->kick, &one, 8) < 0 && errno == EINTR)
			;
}

/* rv_ring tells the engine of posts. */
void rv_ring(struct rv_queue *q)
{
	__atomic_or_fetch(&rv_sh->bells[q->bell / 64], 1ull << q->bell % 64, __ATOMIC_SEQ_CST);
	rv_store(&rv_sh->rung, 1);
	rv_wake();
}

/* What each kind of QP may send, by operation. */
int rv_may_send(enum ibv_qp_type t, uint32_t op)
{
	static const uint32_t rc = 1 << IBV_WR_RDMA_WRITE | 1 << IBV_WR_RDMA_WRITE_WITH_IMM | 1 << IBV_WR_SEND |
		1 << IBV_WR_SEND_WITH_IMM | 1 << IBV_WR_RDMA_READ | 1 << IBV_WR_ATOMIC_CMP_AND_SWP |
		1 << IBV_WR_ATOMIC_FETCH_AND_ADD | 1 << IBV_WR_LOCAL_INV | 1 << IBV_WR_BIND_MW | 1 << IBV_WR_SEND_WITH_INV;
	uint32_t may = 0;
	switch (t) {
	case IBV_QPT_RC:
		may = rc | 1 << IBV_WR_ATOMIC_WRITE;
		break;
	case IBV_QPT_XRC_SEND:
		may = rc;
		break;
	case IBV_QPT_UC:
		may = 1 << IBV_WR_RDMA_WRITE | 1 << IBV_WR_RDMA_WRITE_WITH_IMM | 1 << IBV_WR_SEND | 1 << IBV_WR_SEND_WITH_IMM |
			1 << IBV_WR_BIND_MW | 1 << IBV_WR_LOCAL_INV;
		break;
	case IBV_QPT_UD:
		may = 1 << IBV_WR_SEND | 1 << IBV_WR_SEND_WITH_IMM;
		break;
	default:
		break;
	}
	return op < 32 && may >> op & 1;
}

/* Which operations send data of the caller's. */
int rv_may_inline(uint32_t op)
{
	return op == IBV_WR_SEND || op == IBV_WR_SEND_WITH_IMM || op == IBV_WR_SEND_WITH_INV || op == IBV_WR_RDMA_WRITE ||
		op == IBV_WR_RDMA_WRITE_WITH_IMM || op == IBV_WR_ATOMIC_WRITE;
}

int rv_may_post(struct rv_qp *qp)
{
	if (qp->magic != ALIVE || !rv_live())
		return EINVAL;
	int s = rv_load(&qp->state);
	return s == IBV_QPS_RTS || s == IBV_QPS_SQD || s == IBV_QPS_SQE || s == IBV_QPS_ERR ? 0 : EINVAL;
}

/* rv_sends_begin and rv_sends_end stand around posts of sends. */
int rv_sends_begin(struct rv_qp *qp)
{
	int err = rv_may_post(qp);
	if (err)
		return err;
	pthread_mutex_lock(&qp->sq.lock);
	qp->batch = qp->sq.posted;
	return 0;
}

void rv_sends_end(struct rv_qp *qp)
{
	struct rv_queue *q = &qp->sq;
	int any = qp->batch != q->posted;
	if (any)
		rv_store(&q->posted, qp->batch);
	pthread_mutex_unlock(&q->lock);
	if (any)
		rv_ring(q);
}

/* rv_next_slot returns the slot of the next send, or NULL when the queue is full. */
struct rv_wqe *rv_next_slot(struct rv_qp *qp)
{
	struct rv_queue *q = &qp->sq;
	if (qp->batch - rv_load(&q->freed) >= q->max)
		return NULL;
	struct rv_wqe *w = (void *)(q->slots + (size_t)(qp->batch & (q->size - 1)) * q->stride);
	w->num_sge = w->inline_len = 0;
	return w;
}

int rv_put_inline(struct rv_queue *q, struct rv_wqe *w, const void *p, size_t n)
{
	if (w->inline_len + n > q->max_inline)
		return EINVAL;
	memcpy((uint8_t *)w->sge + w->inline_len, p, n);
	w->inline_len += n;
	return 0;
}

int rv_put_bind(struct rv_wqe *w, struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *b)
{
	rkey = (mw->rkey & ~0xffu) | (rkey & 0xff); /* the low byte is the program's */
	w->rkey = mw->rkey;
	w->imm = rkey;
	w->remote_addr = b->addr;
	w->length = b->length;
	w->access = b->mw_access_flags;
	w->mr_rkey = b->mr ? b->mr->lkey : 0;
	if (mw->type == IBV_MW_TYPE_2)
		mw->rkey = rkey; /* as the next bind names it */
	return 0;
}

static int put_send(struct rv_qp *qp, struct ibv_send_wr *wr)
{
	struct rv_queue *q = &qp->sq;
	if (!rv_may_send(qp->qp.qp_type, wr->opcode) || wr->num_sge < 0 || (uint32_t)wr->num_sge > q->max_sge)
		return EINVAL;
	struct rv_wqe *w = rv_next_slot(qp);
	if (!w)
		return ENOMEM;
	w->wr_id = wr->wr_id;
	w->opcode = wr->opcode;
	w->flags = wr->send_flags;
	w->imm = wr->imm_data;
	w->rkey = 0;
	switch (wr->opcode) {
	case IBV_WR_ATOMIC_CMP_AND_SWP:
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		w->remote_addr = wr->wr.atomic.remote_addr;
		w->rkey = wr->wr.atomic.rkey;
		w->compare_add = wr->wr.atomic.compare_add;
		w->swap = wr->wr.atomic.swap;
		break;
	case IBV_WR_BIND_MW:
		if (!wr->bind_mw.mw)
			return EINVAL;
		if (wr->bind_mw.mw->type != IBV_MW_TYPE_2)
			return EINVAL;
		rv_put_bind(w, wr->bind_mw.mw, wr->bind_mw.rkey, &wr->bind_mw.bind_info);
		break;
	case IBV_WR_LOCAL_INV:
	case IBV_WR_SEND_WITH_INV:
		w->rkey = wr->invalidate_rkey;
		break;
	default:
		w->remote_addr = wr->wr.rdma.remote_addr;
		w->rkey = wr->wr.rdma.rkey;
	}
	if (qp->qp.qp_type == IBV_QPT_UD) {
		struct rv_ah *ah = (void *)wr->wr.ud.ah;
		if (!ah || ah->magic != ALIVE)
			return EINVAL;
		w->ah = ah->ah.handle;
		w->remote_qpn = wr->wr.ud.remote_qpn;
		w->remote_qkey = wr->wr.ud.remote_qkey;
	}
	w->srqn = wr->qp_type.xrc.remote_srqn;
	if (wr->send_flags & IBV_SEND_INLINE) {
		if (!rv_may_inline(wr->opcode))
			return EINVAL;
		for (int i = 0; i < wr->num_sge; i++)
			if (rv_put_inline(q, w, (void *)(uintptr_t)wr->sg_list[i].addr, wr->sg_list[i].length))
				return EINVAL;
	} else if (wr->opcode != IBV_WR_BIND_MW && wr->opcode != IBV_WR_LOCAL_INV) {
		w->num_sge = wr->num_sge;
		memcpy(w->sge, wr->sg_list, wr->num_sge * sizeof(struct ibv_sge));
	}
	qp->batch++;
	return 0;
}

static int post_send(struct ibv_qp *ibqp, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct rv_qp *qp = (void *)ibqp;
	int err = rv_sends_begin(qp);
	if (err) {
		*bad = wr;
		return err;
	}
	for (; wr; wr = wr->next)
		if ((err = put_send(qp, wr))) {
			*bad = wr;
			break;
		}
	rv_sends_end(qp);
	return err;
}

static int post_recvs(struct rv_queue *q, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	int err = 0;
	pthread_mutex_lock(&q->lock);
	uint32_t n = q->posted;
	for (; wr; wr = wr->next) {
		if (wr->num_sge < 0 || (uint32_t)wr->num_sge > q->max_sge)
			err = EINVAL;
		else if (!q->spares)
			err = ENOMEM;
		if (err) {
			*bad = wr;
			break;
		}
		uint32_t slot = q->spare[--q->spares];
		struct rv_rqe *r = (void *)(q->slots + (size_t)slot * q->stride);
		r->wr_id = wr->wr_id;
		r->num_sge = wr->num_sge;
		memcpy(r->sge, wr->sg_list, wr->num_sge * sizeof(struct ibv_sge));
		q->order[n++ & (q->size - 1)] = slot;
	}
	int any = n != q->posted;
	if (any)
		rv_store(&q->posted, n);
	pthread_mutex_unlock(&q->lock);
	if (any)
		rv_ring(q);
	return err;
}

static int post_recv(struct ibv_qp *ibqp, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct rv_qp *qp = (void *)ibqp;
	if (qp->magic != ALIVE || !rv_live() || qp->srq || !qp->rq.slots || rv_load(&qp->state) == IBV_QPS_RESET) {
		*bad = wr;
		return EINVAL;
	}
	return post_recvs(&qp->rq, wr, bad);
}

static int post_srq_recv(struct ibv_srq *ibsrq, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct rv_srq *s = (void *)ibsrq;
	if (s->magic != ALIVE || !rv_live()) {
		*bad = wr;
		return EINVAL;
	}
	return post_recvs(&s->rq, wr, bad);
}

/* release gives the slot of a completion back. */
static void release(struct rv_cqe *e)
{
	struct rv_queue *q = e->queue;
	if (!q->order) {
		rv_store(&q->freed, e->slot + 1);
		return;
	}
	pthread_mutex_lock(&q->lock);
	q->spare[q->spares++] = e->slot;
	pthread_mutex_unlock(&q->lock);
}

/* take copies the next completion to e, with the queue's lock held. */
int rv_take(struct rv_cq *cq, struct rv_cqe *e)
{
	uint32_t end = rv_load(&cq->produced);
	while (cq->consumed != end) {
		struct rv_cqe *r = &cq->ring[cq->consumed & (cq->size - 1)];
		int alive = r->qp != NULL;
		if (alive) {
			*e = *r;
			release(r);
		}
		rv_store(&cq->consumed, cq->consumed + 1);
		if (alive)
			return 1;
	}
	return 0;
}

static uint64_t clock_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec * 1000000000ull + t.tv_nsec;
}

/* idle has a thread that polls in vain let others have the processor: the engine is one
 * of them. On one processor it sleeps: threads that yield take turns with each other. So it
 * does for a while after others have had the processor for a millisecond: where it is
 * wanted by many, the kernel lets one that yields wait longer than one that sleeps. */
void rv_idle(struct rv_cq *cq)
{
	static int alone = -1;
	cpu_set_t set;
	if (alone < 0)
		alone = !sched_getaffinity(0, sizeof set, &set) && CPU_COUNT(&set) == 1;
	if (++cq->idle <= 16)
		return;
	uint32_t left = rv_load(&cq->crowded);
	if (alone || left) {
		if (left)
			rv_store(&cq->crowded, left - 1); /* of two threads' steps one may be lost */
		usleep(1);
		return;
	}
	uint64_t t = clock_ns();
	sched_yield();
	if (clock_ns() - t > 1000000)
		rv_store(&cq->crowded, 1000);
}

static int poll_cq(struct ibv_cq *ibcq, int n, struct ibv_wc *wc)
{
	struct rv_cq *cq = (void *)ibcq;
	struct rv_cqe e;
	int got = 0;
	if (cq->magic != ALIVE)
		return -1;
	pthread_mutex_lock(&cq->lock);
	while (got < n && rv_take(cq, &e))
		wc[got++] = e.wc;
	pthread_mutex_unlock(&cq->lock);
	if (got)
		cq->idle = 0;
	else
		rv_idle(cq);
	return got;
}

static int req_notify_cq(struct ibv_cq *ibcq, int solicited)
{
	struct rv_cq *cq = (void *)ibcq;
	if (WRONG_CQ(cq) || cq->notify < 0)
		return EINVAL; /* without a channel one would wait in vain */
	uint32_t want = solicited ? 1 : 2;
	if (rv_load(&cq->armed) < want)
		rv_store(&cq->armed, want);
	return 0;
}

/* rv_clean takes the completions of qp out of cq. */
void rv_clean(struct rv_cq *cq, struct rv_qp *qp)
{
	if (!cq)
		return;
	pthread_mutex_lock(&cq->lock);
	for (uint32_t i = cq->consumed; i != rv_load(&cq->produced); i++) {
		struct rv_cqe *e = &cq->ring[i & (cq->size - 1)];
		if (e->qp == qp) {
			release(e);
			e->qp = NULL;
		}
	}
	pthread_mutex_unlock(&cq->lock);
}

static int bind_mw(struct ibv_qp *ibqp, struct ibv_mw *mw, struct ibv_mw_bind *b)
{
	struct rv_qp *qp = (void *)ibqp;
	int err = rv_sends_begin(qp);
	if (err)
		return err;
	struct rv_wqe *w = rv_next_slot(qp);
	if (w) {
		w->wr_id = b->wr_id;
		w->opcode = IBV_WR_BIND_MW;
		w->flags = b->send_flags;
		uint32_t key = ibv_inc_rkey(mw->rkey);
		rv_put_bind(w, mw, key, &b->bind_info);
		mw->rkey = key;
		qp->batch++;
	}
	rv_sends_end(qp);
	return w ? 0 : ENOMEM;
}

void rv_ops(struct rv_ctx *c)
{
	struct ibv_context_ops *o = &c->v.context.ops;
	o->poll_cq = poll_cq;
	o->req_notify_cq = req_notify_cq;
	o->post_send = post_send;
	o->post_recv = post_recv;
	o->post_srq_recv = post_srq_recv;
	o->alloc_mw = rv_alloc_mw;
	o->bind_mw = bind_mw;
	o->dealloc_mw = rv_dealloc_mw;
}
