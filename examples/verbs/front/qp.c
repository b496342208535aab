/* Queue pairs, and the extended interface of their sends. */
#include "objects.h"
#include <time.h>

/* Queue pairs. */

static void hold(struct rv_qp *qp, int n)
{
	if (qp->qp.pd)
		rv_add(&((struct rv_pd *)qp->qp.pd)->refs, n);
	if (qp->scq)
		rv_add(&qp->scq->refs, n);
	if (qp->rcq)
		rv_add(&qp->rcq->refs, n);
	if (qp->srq)
		rv_add(&qp->srq->refs, n);
	if (qp->xrcd)
		rv_add(&qp->xrcd->refs, n);
	rv_add(&ctx_of(qp->qp.context)->refs, n);
}

/* caps checks and rounds what a QP is to have. */
static int caps(struct ibv_qp_cap *c, int sends, int receives)
{
	if (!sends)
		c->max_send_wr = c->max_send_sge = c->max_inline_data = 0;
	if (!receives)
		c->max_recv_wr = c->max_recv_sge = 0;
	if (c->max_send_wr > RV_MAX_WR || c->max_recv_wr > RV_MAX_WR || c->max_send_sge > RV_MAX_SGE || c->max_recv_sge > RV_MAX_SGE ||
		c->max_inline_data > RV_MAX_INLINE)
		return EINVAL;
	return 0;
}

struct ibv_qp *rv_create_qp(struct ibv_context *c, struct ibv_qp_init_attr_ex *a)
{
	const uint32_t known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	const uint64_t ops = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
		IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_LOCAL_INV |
		IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_ATOMIC_WRITE;
	int target = a->qp_type == IBV_QPT_XRC_RECV;
	struct rv_pd *pd = a->comp_mask & IBV_QP_INIT_ATTR_PD ? (void *)a->pd : NULL;
	struct rv_xrcd *xrcd = target && a->comp_mask & IBV_QP_INIT_ATTR_XRCD ? (void *)a->xrcd : NULL;
	if (a->comp_mask & ~known || (a->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS && a->create_flags) ||
		(a->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS && a->send_ops_flags & ~ops))
		return FAIL(EOPNOTSUPP);
	switch (a->qp_type) {
	case IBV_QPT_RC:
	case IBV_QPT_UC:
	case IBV_QPT_UD:
	case IBV_QPT_XRC_SEND:
		if (!pd || WRONG_PD(pd))
			return FAIL(EINVAL);
		break;
	case IBV_QPT_XRC_RECV:
		if (!xrcd)
			return FAIL(EINVAL);
		break;
	default:
		return FAIL(EOPNOTSUPP);
	}
	int receives = !target && a->qp_type != IBV_QPT_XRC_SEND;
	struct rv_cq *scq = target ? NULL : (void *)a->send_cq, *rcq = receives ? (void *)a->recv_cq : NULL;
	struct rv_srq *srq = receives ? (void *)a->srq : NULL;
	if ((!target && (!scq || WRONG_CQ(scq))) || (receives && (!rcq || WRONG_CQ(rcq))) || (srq && (WRONG_SRQ(srq) || a->qp_type == IBV_QPT_UC)))
		return FAIL(EINVAL);
	int err = caps(&a->cap, !target, receives && !srq);
	struct rv_qp *qp = err ? NULL : calloc(1, sizeof *qp);
	if (!qp)
		return FAIL(err ? err : ENOMEM);
	qp->sq.bell = qp->rq.bell = -1;
	if (!target)
		err = rv_queue_init(&qp->sq, pd, a->cap.max_send_wr, a->cap.max_send_sge, a->cap.max_inline_data, 1);
	if (!err && receives && !srq)
		err = rv_queue_init(&qp->rq, pd, a->cap.max_recv_wr, a->cap.max_recv_sge, 0, 0);
	qp->qp = (struct ibv_qp){.context = c, .qp_context = a->qp_context, .pd = &pd->pd, .send_cq = target ? NULL : a->send_cq, .recv_cq = receives ? a->recv_cq : NULL,
		.srq = receives ? a->srq : NULL, .state = IBV_QPS_RESET, .qp_type = a->qp_type};
	pthread_mutex_init(&qp->qp.mutex, NULL);
	pthread_cond_init(&qp->qp.cond, NULL);
	qp->scq = scq, qp->rcq = rcq, qp->srq = srq, qp->xrcd = xrcd;
	qp->receives = srq ? &srq->rq : receives ? &qp->rq : NULL;
	qp->pd = pd ? pd->number : 0;
	qp->xrcdn = xrcd ? xrcd->number : 0;
	qp->cap = a->cap;
	qp->sq_sig_all = a->sq_sig_all;
	qp->async = ctx_of(c)->async[1];
	qp->handle = err ? 0 : rv_handle(qp);
	struct rv_cmd cmd = {.op = RV_CREATE_QP, .obj = qp};
	if (!err)
		err = rv_command(&cmd);
	if (err) {
		if (qp->handle)
			rv_unhandle(qp->handle);
		rv_queue_free(&qp->sq);
		rv_queue_free(&qp->rq);
		free(qp);
		return FAIL(err);
	}
	qp->qp.handle = qp->qp.qp_num;
	if (a->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
		rv_qp_ops(qp, a->send_ops_flags);
	qp->magic = ALIVE;
	hold(qp, 1);
	return &qp->qp;
}
PUBLIC struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *a)
{
	struct ibv_qp_init_attr_ex x = {.qp_context = a->qp_context, .send_cq = a->send_cq, .recv_cq = a->recv_cq, .srq = a->srq, .cap = a->cap,
		.qp_type = a->qp_type, .sq_sig_all = a->sq_sig_all, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd};
	struct ibv_qp *qp = rv_create_qp(pd->context, &x);
	if (qp)
		a->cap = x.cap;
	return qp;
}
PUBLIC struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp) { return ((struct rv_qp *)qp)->with_ex ? &((struct rv_qp *)qp)->ex : NULL; }

PUBLIC int ibv_modify_qp(struct ibv_qp *ibqp, struct ibv_qp_attr *a, int mask)
{
	struct rv_qp *qp = (void *)ibqp;
	struct rv_cmd c = {.op = RV_MODIFY_QP, .obj = qp, .attr = a, .mask = mask};
	int err = WRONG_QP(qp);
	if (!err && mask & IBV_QP_STATE) {
		qp->adopted = (a->qp_state == IBV_QPS_RTR && rv_cm_adopts(a)) || (a->qp_state == IBV_QPS_RTS && qp->adopted);
		if (qp->adopted) {
			ibqp->state = a->qp_state;
			return 0;
		}
	}
	if (!err)
		err = rv_command(&c);
	if (err)
		return FAILS(err);
	if (mask & IBV_QP_STATE)
		ibqp->state = a->qp_state;
	if (mask & IBV_QP_STATE && a->qp_state == IBV_QPS_RESET) {
		rv_clean(qp->scq, qp);
		rv_clean(qp->rcq, qp);
		if (qp->sq.slots) {
			pthread_mutex_lock(&qp->sq.lock);
			rv_queue_reset(&qp->sq);
			pthread_mutex_unlock(&qp->sq.lock);
		}
		if (qp->rq.slots) {
			pthread_mutex_lock(&qp->rq.lock);
			rv_queue_reset(&qp->rq);
			pthread_mutex_unlock(&qp->rq.lock);
		}
	}
	return 0;
}
PUBLIC int ibv_query_qp(struct ibv_qp *ibqp, struct ibv_qp_attr *a, int mask, struct ibv_qp_init_attr *init)
{
	struct rv_qp *qp = (void *)ibqp;
	int err = WRONG_QP(qp);
	if (err)
		return FAILS(err);
	memset(a, 0, sizeof *a);
	struct rv_cmd c = {.op = RV_QUERY_QP, .obj = qp, .attr = a};
	if ((err = rv_command(&c)))
		return FAILS(err);
	a->cap = qp->cap;
	a->cur_qp_state = a->qp_state;
	ibqp->state = a->qp_state;
	*init = (struct ibv_qp_init_attr){.qp_context = ibqp->qp_context, .send_cq = ibqp->send_cq, .recv_cq = ibqp->recv_cq, .srq = ibqp->srq, .cap = qp->cap,
		.qp_type = ibqp->qp_type, .sq_sig_all = qp->sq_sig_all};
	return 0;
}
/* linger waits where packets get lost on purpose: the peer may lack our last
 * acknowledgement, and a program that is done ends at once. */
static void linger(void)
{
	static time_t last;
	struct timespec now;
	uint32_t ms = rv_live() ? rv_sh->linger : 0;
	clock_gettime(CLOCK_MONOTONIC, &now);
	if (!ms || now.tv_sec - last < 2)
		return;
	usleep(1000 * ms);
	clock_gettime(CLOCK_MONOTONIC, &now);
	last = now.tv_sec;
}

PUBLIC int ibv_destroy_qp(struct ibv_qp *ibqp)
{
	struct rv_qp *qp = (void *)ibqp;
	int err = WRONG_QP(qp);
	if (!err && rv_load(&qp->groups))
		err = EBUSY;
	if (err)
		return FAILS(err);
	linger();
	struct rv_cmd c = {.op = RV_DESTROY_QP, .obj = qp};
	err = rv_command(&c);
	if (err && err != ENODEV)
		return FAILS(err);
	rv_unhandle(qp->handle);
	rv_await(&ibqp->mutex, &ibqp->cond, &ibqp->events_completed, &qp->async_got);
	qp->magic = 0;
	rv_clean(qp->scq, qp);
	if (qp->rcq != qp->scq)
		rv_clean(qp->rcq, qp);
	hold(qp, -1);
	rv_queue_free(&qp->sq);
	rv_queue_free(&qp->rq);
	rv_bury(qp);
	return 0;
}
PUBLIC int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags) { return 0; }
PUBLIC int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *e)
{
	memset(e, 0, sizeof *e);
	return EOPNOTSUPP;
}
PUBLIC int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *e) { return e->vendor_id ? EOPNOTSUPP : 0; }

static int mcast(struct ibv_qp *qp, const union ibv_gid *g, int attach)
{
	struct rv_qp *q = (void *)qp;
	if (q->magic != ALIVE || qp->qp_type != IBV_QPT_UD)
		return EINVAL;
	struct rv_cmd c = {.op = RV_MCAST, .obj = q, .attr = (void *)g, .mask = attach};
	int err = rv_command(&c);
	if (!err)
		rv_add(&q->groups, attach ? 1 : -1);
	return err;
}
PUBLIC int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *g, uint16_t lid) { return mcast(qp, g, 1); }
PUBLIC int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *g, uint16_t lid) { return mcast(qp, g, 0); }

/* The extended interface of sends: wr_start, requests, wr_complete. */

#define QP(x) ((struct rv_qp *)(x))

static struct rv_wqe *begin(struct rv_qp *qp, uint32_t op)
{
	static struct rv_wqe none; /* where requests go that cannot be posted */
	struct rv_wqe *w = qp->batch_err ? NULL : rv_next_slot(qp);
	if (!qp->batch_err && !rv_may_send(qp->qp.qp_type, op))
		qp->batch_err = EINVAL;
	else if (!qp->batch_err && !w)
		qp->batch_err = ENOMEM;
	if (qp->batch_err) {
		qp->cur = NULL;
		return &none;
	}
	w->wr_id = qp->ex.wr_id;
	w->opcode = op;
	w->flags = qp->ex.wr_flags;
	w->rkey = 0;
	qp->cur = w;
	qp->batch++;
	return w;
}

static void wr_start(struct ibv_qp_ex *x)
{
	struct rv_qp *qp = QP(x);
	if (qp->magic != ALIVE)
		pthread_mutex_init(&qp->sq.lock, NULL); /* a thread of the parent may have held it */
	pthread_mutex_lock(&qp->sq.lock);
	qp->batch = qp->sq.posted;
	qp->batch_err = rv_may_post(qp);
	qp->cur = NULL;
}

static int wr_complete(struct ibv_qp_ex *x)
{
	struct rv_qp *qp = QP(x);
	if (qp->batch_err)
		qp->batch = qp->sq.posted;
	int err = qp->batch_err;
	rv_sends_end(qp);
	return err;
}

static void wr_abort(struct ibv_qp_ex *x)
{
	QP(x)->batch = QP(x)->sq.posted;
	rv_sends_end(QP(x));
}

static void wr_rdma(struct ibv_qp_ex *x, uint32_t op, uint32_t rkey, uint64_t addr, uint32_t imm)
{
	struct rv_wqe *w = begin(QP(x), op);
	w->rkey = rkey;
	w->remote_addr = addr;
	w->imm = imm;
}
static void wr_rdma_read(struct ibv_qp_ex *x, uint32_t rkey, uint64_t addr) { wr_rdma(x, IBV_WR_RDMA_READ, rkey, addr, 0); }
static void wr_rdma_write(struct ibv_qp_ex *x, uint32_t rkey, uint64_t addr) { wr_rdma(x, IBV_WR_RDMA_WRITE, rkey, addr, 0); }
static void wr_rdma_write_imm(struct ibv_qp_ex *x, uint32_t rkey, uint64_t addr, __be32 imm)
{
	wr_rdma(x, IBV_WR_RDMA_WRITE_WITH_IMM, rkey, addr, imm);
}
static void wr_send(struct ibv_qp_ex *x) { begin(QP(x), IBV_WR_SEND); }
static void wr_send_imm(struct ibv_qp_ex *x, __be32 imm) { begin(QP(x), IBV_WR_SEND_WITH_IMM)->imm = imm; }
static void wr_send_inv(struct ibv_qp_ex *x, uint32_t rkey) { begin(QP(x), IBV_WR_SEND_WITH_INV)->rkey = rkey; }
static void wr_local_inv(struct ibv_qp_ex *x, uint32_t rkey) { begin(QP(x), IBV_WR_LOCAL_INV)->rkey = rkey; }

static void wr_atomic(struct ibv_qp_ex *x, uint32_t op, uint32_t rkey, uint64_t addr, uint64_t a, uint64_t b)
{
	struct rv_wqe *w = begin(QP(x), op);
	w->rkey = rkey;
	w->remote_addr = addr;
	w->compare_add = a;
	w->swap = b;
}
static void wr_cmp_swp(struct ibv_qp_ex *x, uint32_t rkey, uint64_t addr, uint64_t compare, uint64_t swap)
{
	wr_atomic(x, IBV_WR_ATOMIC_CMP_AND_SWP, rkey, addr, compare, swap);
}
static void wr_fetch_add(struct ibv_qp_ex *x, uint32_t rkey, uint64_t addr, uint64_t add)
{
	wr_atomic(x, IBV_WR_ATOMIC_FETCH_AND_ADD, rkey, addr, add, 0);
}
static void wr_atomic_write(struct ibv_qp_ex *x, uint32_t rkey, uint64_t addr, const void *eight)
{
	struct rv_wqe *w = begin(QP(x), IBV_WR_ATOMIC_WRITE);
	w->rkey = rkey;
	w->remote_addr = addr;
	if (QP(x)->cur) {
		if (QP(x)->sq.stride < sizeof *w + 8) {
			QP(x)->batch_err = EINVAL;
			return;
		}
		memcpy(w->sge, eight, 8);
		w->inline_len = 8;
		w->flags |= IBV_SEND_INLINE;
	}
}
static void wr_bind(struct ibv_qp_ex *x, struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *b)
{
	struct rv_wqe *w = begin(QP(x), IBV_WR_BIND_MW);
	if (!QP(x)->cur)
		return;
	if (mw->type != IBV_MW_TYPE_2)
		QP(x)->batch_err = EINVAL;
	else
		rv_put_bind(w, mw, rkey, b);
}

static void wr_set_ud(struct ibv_qp_ex *x, struct ibv_ah *ah, uint32_t qpn, uint32_t qkey)
{
	struct rv_wqe *w = QP(x)->cur;
	if (!w)
		return;
	if (!ah || ((struct rv_ah *)ah)->magic != ALIVE) {
		QP(x)->batch_err = EINVAL;
		return;
	}
	w->ah = ah->handle;
	w->remote_qpn = qpn;
	w->remote_qkey = qkey;
}
static void wr_set_srqn(struct ibv_qp_ex *x, uint32_t srqn)
{
	if (QP(x)->cur)
		QP(x)->cur->srqn = srqn;
}
static void wr_set_sges(struct ibv_qp_ex *x, size_t n, const struct ibv_sge *list)
{
	struct rv_wqe *w = QP(x)->cur;
	if (!w)
		return;
	if (n > QP(x)->sq.max_sge) {
		QP(x)->batch_err = EINVAL;
		return;
	}
	memcpy(w->sge, list, n * sizeof *list);
	w->num_sge = n;
	w->flags &= ~IBV_SEND_INLINE;
}
static void wr_set_sge(struct ibv_qp_ex *x, uint32_t lkey, uint64_t addr, uint32_t len)
{
	struct ibv_sge s = {addr, len, lkey};
	wr_set_sges(x, 1, &s);
}
static void wr_set_inlines(struct ibv_qp_ex *x, size_t n, const struct ibv_data_buf *list)
{
	struct rv_wqe *w = QP(x)->cur;
	if (!w)
		return;
	if (!rv_may_inline(w->opcode))
		QP(x)->batch_err = EINVAL;
	w->flags |= IBV_SEND_INLINE;
	for (size_t i = 0; i < n; i++)
		if (rv_put_inline(&QP(x)->sq, w, list[i].addr, list[i].length))
			QP(x)->batch_err = EINVAL;
}
static void wr_set_inline(struct ibv_qp_ex *x, void *addr, size_t len)
{
	struct ibv_data_buf b = {addr, len};
	wr_set_inlines(x, 1, &b);
}

void rv_qp_ops(struct rv_qp *qp, uint64_t ops)
{
	struct ibv_qp_ex *x = &qp->ex;
	qp->with_ex = 1;
	x->wr_start = wr_start;
	x->wr_complete = wr_complete;
	x->wr_abort = wr_abort;
	x->wr_set_ud_addr = wr_set_ud;
	x->wr_set_xrc_srqn = wr_set_srqn;
	x->wr_set_inline_data = wr_set_inline;
	x->wr_set_inline_data_list = wr_set_inlines;
	x->wr_set_sge = wr_set_sge;
	x->wr_set_sge_list = wr_set_sges;
	if (ops & IBV_QP_EX_WITH_RDMA_WRITE)
		x->wr_rdma_write = wr_rdma_write;
	if (ops & IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM)
		x->wr_rdma_write_imm = wr_rdma_write_imm;
	if (ops & IBV_QP_EX_WITH_SEND)
		x->wr_send = wr_send;
	if (ops & IBV_QP_EX_WITH_SEND_WITH_IMM)
		x->wr_send_imm = wr_send_imm;
	if (ops & IBV_QP_EX_WITH_RDMA_READ)
		x->wr_rdma_read = wr_rdma_read;
	if (ops & IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP)
		x->wr_atomic_cmp_swp = wr_cmp_swp;
	if (ops & IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD)
		x->wr_atomic_fetch_add = wr_fetch_add;
	if (ops & IBV_QP_EX_WITH_LOCAL_INV)
		x->wr_local_inv = wr_local_inv;
	if (ops & IBV_QP_EX_WITH_BIND_MW)
		x->wr_bind_mw = wr_bind;
	if (ops & IBV_QP_EX_WITH_SEND_WITH_INV)
		x->wr_send_inv = wr_send_inv;
	if (ops & IBV_QP_EX_WITH_ATOMIC_WRITE)
		x->wr_atomic_write = wr_atomic_write;
}
