/* Completion queues, their channels, shared receive queues, and asynchronous events. */
#define _GNU_SOURCE
#include "objects.h"
#include <fcntl.h>

/* Completion queues and channels. */

int rv_pipe(int fd[2])
{
	if (pipe2(fd, O_CLOEXEC))
		return errno;
	fcntl(fd[1], F_SETFL, O_NONBLOCK);
	return 0;
}

PUBLIC struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *c)
{
	struct rv_channel *h = calloc(1, sizeof *h);
	int fd[2], err = h ? rv_pipe(fd) : ENOMEM;
	if (err) {
		free(h);
		return FAIL(err);
	}
	h->ch.context = c;
	h->ch.fd = fd[0];
	h->write = fd[1];
	h->magic = ALIVE;
	rv_add(&ctx_of(c)->refs, 1);
	return &h->ch;
}
PUBLIC int ibv_destroy_comp_channel(struct ibv_comp_channel *ch)
{
	struct rv_channel *h = (void *)ch;
	if (h->magic != ALIVE)
		return FAILS(EINVAL);
	if (rv_load(&ch->refcnt))
		return FAILS(EBUSY);
	h->magic = 0;
	close(ch->fd);
	rv_close_late(h->write);
	rv_add(&ctx_of(ch->context)->refs, -1);
	rv_bury(h);
	return 0;
}

static uint32_t cqs;

static struct rv_cq *create_cq(struct ibv_context *c, struct rv_pd *pd, uint32_t cqe, void *context, struct ibv_comp_channel *ch, int vector)
{
	if (cqe < 1 || cqe > RV_MAX_CQE || vector < 0 || vector >= c->num_comp_vectors)
		return FAIL(EINVAL);
	if (!rv_live())
		return FAIL(EIO);
	int err = rv_count(&cqs, RV_MAX_CQ);
	struct rv_cq *q = err ? NULL : calloc(1, sizeof *q);
	if (!q)
		return FAIL(ENOMEM);
	q->size = 1;
	while (q->size < cqe)
		q->size *= 2;
	q->depth = cqe;
	q->pd = q->owner = pd;
	q->ring = rv_pd_alloc(&q->owner, (size_t)q->size * sizeof *q->ring);
	q->handle = q->ring ? rv_handle(q) : 0;
	if (!q->handle) {
		rv_pd_free(q->owner, q->ring);
		rv_add(&cqs, -1);
		free(q);
		return FAIL(ENOMEM);
	}
	q->cq.context = c;
	q->cq.channel = ch;
	q->cq.cq_context = context;
	q->cq.cqe = cqe;
	q->cq.handle = (uint32_t)q->handle;
	q->notify = ch ? ((struct rv_channel *)ch)->write : -1;
	pthread_mutex_init(&q->cq.mutex, NULL);
	pthread_cond_init(&q->cq.cond, NULL);
	pthread_mutex_init(&q->lock, NULL);
	if (ch)
		rv_add(&ch->refcnt, 1);
	if (pd)
		rv_add(&pd->refs, 1);
	rv_add(&ctx_of(c)->refs, 1);
	q->magic = ALIVE;
	return q;
}
PUBLIC struct ibv_cq *ibv_create_cq(struct ibv_context *c, int cqe, void *context, struct ibv_comp_channel *ch, int vector)
{
	return (void *)create_cq(c, NULL, cqe < 0 ? 0 : cqe, context, ch, vector);
}
static struct ibv_cq_ex *create_cq_ex(struct ibv_context *c, struct ibv_cq_init_attr_ex *a)
{
	const uint64_t flags = IBV_WC_STANDARD_FLAGS | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP | IBV_WC_EX_WITH_COMPLETION_TIMESTAMP_WALLCLOCK;
	if (a->comp_mask & ~(IBV_CQ_INIT_ATTR_MASK_FLAGS | IBV_CQ_INIT_ATTR_MASK_PD))
		return FAIL(EINVAL);
	if (a->wc_flags & ~flags || (a->comp_mask & IBV_CQ_INIT_ATTR_MASK_FLAGS && a->flags & ~IBV_CREATE_CQ_ATTR_SINGLE_THREADED))
		return FAIL(EOPNOTSUPP);
	struct rv_cq *q = create_cq(c, a->comp_mask & IBV_CQ_INIT_ATTR_MASK_PD ? (void *)a->parent_domain : NULL, a->cqe, a->cq_context, a->channel, a->comp_vector);
	if (q)
		rv_cq_ops(q);
	return q ? &q->ex : NULL;
}
PUBLIC int ibv_resize_cq(struct ibv_cq *cq, int cqe)
{
	struct rv_cq *q = (void *)cq;
	int err = cqe < 1 || cqe > RV_MAX_CQE ? EINVAL : WRONG_CQ(q);
	if (err)
		return FAILS(err);
	struct rv_cq to = {.size = 1, .depth = cqe, .owner = q->pd};
	while (to.size < to.depth)
		to.size *= 2;
	to.ring = rv_pd_alloc(&to.owner, (size_t)to.size * sizeof *to.ring);
	if (!to.ring)
		return ENOMEM;
	pthread_mutex_lock(&q->lock);
	/* The engine moves what waits into the other ring, and the rings change places. */
	struct rv_cmd c = {.op = RV_RESIZE_CQ, .obj = q, .attr = &to};
	err = rv_command(&c);
	if (!err) {
		struct rv_pd *owner = q->owner;
		q->owner = to.owner;
		to.owner = owner;
		cq->cqe = cqe;
	}
	pthread_mutex_unlock(&q->lock);
	rv_pd_free(to.owner, to.ring);
	return err;
}
static int modify_cq(struct ibv_cq *cq, struct ibv_modify_cq_attr *a) { return EOPNOTSUPP; }

/* rv_await waits until all events that were got are acknowledged. */
void rv_await(pthread_mutex_t *m, pthread_cond_t *c, uint32_t *done, uint32_t *got)
{
	pthread_mutex_lock(m);
	while (*done != *got)
		pthread_cond_wait(c, m);
	pthread_mutex_unlock(m);
}

PUBLIC int ibv_destroy_cq(struct ibv_cq *cq)
{
	struct rv_cq *q = (void *)cq;
	int err = WRONG_CQ(q);
	if (!err && rv_load(&q->refs))
		err = EBUSY;
	if (err)
		return FAILS(err);
	rv_unhandle(q->handle);
	rv_await(&cq->mutex, &cq->cond, &cq->comp_events_completed, &q->comp_got);
	rv_await(&cq->mutex, &cq->cond, &cq->async_events_completed, &q->async_got);
	q->magic = 0;
	rv_add(&cqs, -1);
	if (cq->channel)
		rv_add(&cq->channel->refcnt, -1);
	rv_add(&ctx_of(cq->context)->refs, -1);
	rv_pd_free(q->owner, q->ring);
	if (q->pd)
		rv_add(&q->pd->refs, -1);
	rv_bury(q);
	return 0;
}

PUBLIC int ibv_get_cq_event(struct ibv_comp_channel *ch, struct ibv_cq **cq, void **context)
{
	if (((struct rv_channel *)ch)->magic != ALIVE)
		return FAILED(EINVAL); /* a child of fork would take its parent's events */
	for (;;) {
		uint64_t e;
		ssize_t n = read(ch->fd, &e, 8);
		if (n != 8)
			return -1;
		struct rv_cq *q = rv_object(e & 0xffffffffffff);
		if (!q)
			continue; /* it was destroyed since */
		pthread_mutex_lock(&q->cq.mutex);
		q->comp_got++;
		pthread_mutex_unlock(&q->cq.mutex);
		*cq = &q->cq;
		*context = q->cq.cq_context;
		return 0;
	}
}
PUBLIC void ibv_ack_cq_events(struct ibv_cq *cq, unsigned n)
{
	pthread_mutex_lock(&cq->mutex);
	cq->comp_events_completed += n;
	pthread_cond_signal(&cq->cond);
	pthread_mutex_unlock(&cq->mutex);
}

/* Asynchronous events. */

/* counters_of returns where an event is counted. */
static int counters_of(struct ibv_async_event *e, pthread_mutex_t **m, pthread_cond_t **c, uint32_t **done, uint32_t **got)
{
	switch (e->event_type) {
	case IBV_EVENT_CQ_ERR:
		*m = &e->element.cq->mutex, *c = &e->element.cq->cond;
		*done = &e->element.cq->async_events_completed, *got = &((struct rv_cq *)e->element.cq)->async_got;
		return 1;
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
	case IBV_EVENT_COMM_EST:
	case IBV_EVENT_SQ_DRAINED:
	case IBV_EVENT_QP_LAST_WQE_REACHED:
		*m = &e->element.qp->mutex, *c = &e->element.qp->cond;
		*done = &e->element.qp->events_completed, *got = &((struct rv_qp *)e->element.qp)->async_got;
		return 1;
	case IBV_EVENT_SRQ_ERR:
	case IBV_EVENT_SRQ_LIMIT_REACHED:
		*m = &e->element.srq->mutex, *c = &e->element.srq->cond;
		*done = &e->element.srq->events_completed, *got = &((struct rv_srq *)e->element.srq)->async_got;
		return 1;
	default:
		return 0;
	}
}

PUBLIC int ibv_get_async_event(struct ibv_context *c, struct ibv_async_event *e)
{
	if (ctx_of(c)->magic != ALIVE)
		return FAILED(EINVAL);
	for (;;) {
		uint64_t v;
		pthread_mutex_t *m;
		pthread_cond_t *cond;
		uint32_t *done, *got;
		if (read(c->async_fd, &v, 8) != 8)
			return -1;
		e->event_type = v >> 56;
		void *obj = rv_object(v & 0xffffffffffff);
		e->element.qp = obj;
		if (e->event_type == IBV_EVENT_DEVICE_FATAL) {
			e->element.port_num = 1;
			return 0;
		}
		if (!obj || !counters_of(e, &m, &cond, &done, &got))
			continue;
		pthread_mutex_lock(m);
		++*got;
		pthread_mutex_unlock(m);
		return 0;
	}
}
PUBLIC void ibv_ack_async_event(struct ibv_async_event *e)
{
	pthread_mutex_t *m;
	pthread_cond_t *cond;
	uint32_t *done, *got;
	if (!counters_of(e, &m, &cond, &done, &got))
		return;
	pthread_mutex_lock(m);
	++*done;
	pthread_cond_signal(cond);
	pthread_mutex_unlock(m);
}

/* Shared receive queues. */

static struct ibv_srq *create_srq_ex(struct ibv_context *c, struct ibv_srq_init_attr_ex *a)
{
	enum ibv_srq_type type = a->comp_mask & IBV_SRQ_INIT_ATTR_TYPE ? a->srq_type : IBV_SRQT_BASIC;
	if (type == IBV_SRQT_TM)
		return FAIL(EOPNOTSUPP);
	if (!(a->comp_mask & IBV_SRQ_INIT_ATTR_PD) || !a->pd || (type == IBV_SRQT_XRC && (!(a->comp_mask & IBV_SRQ_INIT_ATTR_XRCD) || !(a->comp_mask & IBV_SRQ_INIT_ATTR_CQ))))
		return FAIL(EINVAL);
	int err = WRONG_PD((struct rv_pd *)a->pd);
	if (err)
		return FAIL(err);
	if (a->attr.max_wr < 1 || a->attr.max_wr > RV_MAX_WR || a->attr.max_sge > RV_MAX_SGE)
		return FAIL(EINVAL);
	struct rv_srq *s = calloc(1, sizeof *s);
	if (!s)
		return FAIL(ENOMEM);
	s->rq.bell = -1;
	if (!a->attr.max_sge)
		a->attr.max_sge = 1;
	err = rv_queue_init(&s->rq, (void *)a->pd, a->attr.max_wr, a->attr.max_sge, 0, 0);
	if (err) {
		free(s);
		return FAIL(err);
	}
	s->srq.context = c;
	s->srq.srq_context = a->srq_context;
	s->srq.pd = a->pd;
	s->pd = ((struct rv_pd *)a->pd)->number;
	s->async = ctx_of(c)->async[1];
	s->handle = rv_handle(s);
	if (type == IBV_SRQT_XRC) {
		s->xrcd = (void *)a->xrcd;
		s->xrcdn = s->xrcd->number;
		s->cq = (void *)a->cq;
	}
	pthread_mutex_init(&s->srq.mutex, NULL);
	pthread_cond_init(&s->srq.cond, NULL);
	struct rv_cmd cmd = {.op = RV_CREATE_SRQ, .obj = s};
	if ((err = rv_command(&cmd))) {
		rv_unhandle(s->handle);
		rv_queue_free(&s->rq);
		free(s);
		return FAIL(err);
	}
	s->srq.handle = s->number;
	s->magic = ALIVE;
	rv_add(&((struct rv_pd *)a->pd)->refs, 1);
	if (s->xrcd) {
		rv_add(&s->xrcd->refs, 1);
		rv_add(&s->cq->refs, 1);
	}
	return &s->srq;
}
PUBLIC struct ibv_srq *ibv_create_srq(struct ibv_pd *pd, struct ibv_srq_init_attr *a)
{
	struct ibv_srq_init_attr_ex x = {.srq_context = a->srq_context, .attr = a->attr, .comp_mask = IBV_SRQ_INIT_ATTR_PD, .pd = pd};
	struct ibv_srq *s = create_srq_ex(pd->context, &x);
	if (s)
		a->attr = x.attr;
	return s;
}
PUBLIC int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *a, int mask)
{
	struct rv_srq *s = (void *)srq;
	if (WRONG_SRQ(s) || mask & ~(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT))
		return FAILS(EINVAL);
	if (mask & IBV_SRQ_MAX_WR)
		return EOPNOTSUPP;
	if (mask & IBV_SRQ_LIMIT) {
		if (a->srq_limit > s->rq.max)
			return EINVAL;
		struct rv_cmd c = {.op = RV_MODIFY_SRQ, .obj = s, .len = a->srq_limit};
		return rv_command(&c);
	}
	return 0;
}
PUBLIC int ibv_query_srq(struct ibv_srq *srq, struct ibv_srq_attr *a)
{
	struct rv_srq *s = (void *)srq;
	if (WRONG_SRQ(s))
		return FAILS(EINVAL);
	*a = (struct ibv_srq_attr){s->rq.max, s->rq.max_sge, rv_load(&s->limit)};
	return 0;
}
static int get_srq_num(struct ibv_srq *srq, uint32_t *n)
{
	struct rv_srq *s = (void *)srq;
	if (!s->xrcd)
		return EOPNOTSUPP;
	*n = s->number;
	return 0;
}
PUBLIC int ibv_destroy_srq(struct ibv_srq *srq)
{
	struct rv_srq *s = (void *)srq;
	struct rv_cmd c = {.op = RV_DESTROY_SRQ, .obj = s};
	int err = WRONG_SRQ(s);
	if (!err)
		err = rv_load(&s->refs) ? EBUSY : rv_command(&c);
	if (err && err != ENODEV)
		return FAILS(err);
	rv_unhandle(s->handle);
	rv_await(&srq->mutex, &srq->cond, &srq->events_completed, &s->async_got);
	s->magic = 0;
	rv_add(&((struct rv_pd *)srq->pd)->refs, -1);
	if (s->xrcd) {
		rv_add(&s->xrcd->refs, -1);
		rv_add(&s->cq->refs, -1);
	}
	rv_queue_free(&s->rq);
	rv_bury(s);
	return 0;
}

void rv_queue_verbs(struct verbs_context *v)
{
	v->create_srq_ex = create_srq_ex;
	v->get_srq_num = get_srq_num;
	v->create_cq_ex = create_cq_ex;
	v->modify_cq = modify_cq;
}

/* The extended interface of completions. */

#define CQ(x) ((struct rv_cq *)(x))

static int next_poll(struct ibv_cq_ex *x)
{
	struct rv_cq *cq = CQ(x);
	if (!rv_take(cq, &cq->cur)) {
		rv_idle(cq);
		return ENOENT;
	}
	cq->idle = 0;
	x->wr_id = cq->cur.wc.wr_id;
	x->status = cq->cur.wc.status;
	return 0;
}
static void end_poll(struct ibv_cq_ex *x) { pthread_mutex_unlock(&CQ(x)->lock); }
static int start_poll(struct ibv_cq_ex *x, struct ibv_poll_cq_attr *a)
{
	if (CQ(x)->magic != ALIVE || a->comp_mask)
		return EINVAL;
	pthread_mutex_lock(&CQ(x)->lock);
	int err = next_poll(x);
	if (err)
		end_poll(x);
	return err;
}
static enum ibv_wc_opcode read_opcode(struct ibv_cq_ex *x) { return CQ(x)->cur.wc.opcode; }
static uint32_t read_vendor_err(struct ibv_cq_ex *x) { return CQ(x)->cur.wc.vendor_err; }
static uint32_t read_byte_len(struct ibv_cq_ex *x) { return CQ(x)->cur.wc.byte_len; }
static __be32 read_imm(struct ibv_cq_ex *x) { return CQ(x)->cur.wc.imm_data; }
static uint32_t read_qp_num(struct ibv_cq_ex *x) { return CQ(x)->cur.wc.qp_num; }
static uint32_t read_src_qp(struct ibv_cq_ex *x) { return CQ(x)->cur.wc.src_qp; }
static unsigned int read_flags(struct ibv_cq_ex *x) { return CQ(x)->cur.wc.wc_flags; }
static uint32_t read_slid(struct ibv_cq_ex *x) { return CQ(x)->cur.wc.slid; }
static uint8_t read_sl(struct ibv_cq_ex *x) { return CQ(x)->cur.wc.sl; }
static uint8_t read_dlid(struct ibv_cq_ex *x) { return CQ(x)->cur.wc.dlid_path_bits; }
static uint64_t read_ts(struct ibv_cq_ex *x) { return CQ(x)->cur.ns; }

void rv_cq_ops(struct rv_cq *cq)
{
	struct ibv_cq_ex *x = &cq->ex;
	x->start_poll = start_poll;
	x->next_poll = next_poll;
	x->end_poll = end_poll;
	x->read_opcode = read_opcode;
	x->read_vendor_err = read_vendor_err;
	x->read_wc_flags = read_flags;
	x->read_byte_len = read_byte_len;
	x->read_imm_data = read_imm;
	x->read_qp_num = read_qp_num;
	x->read_src_qp = read_src_qp;
	x->read_slid = read_slid;
	x->read_sl = read_sl;
	x->read_dlid_path_bits = read_dlid;
	x->read_completion_ts = read_ts;
	x->read_completion_wallclock_ns = read_ts;
}
