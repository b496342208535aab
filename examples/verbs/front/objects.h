/* What the files of the front share among themselves. */
#ifndef ROCE_OBJECTS_H
#define ROCE_OBJECTS_H

#include "front.h"
#include <errno.h>
#include <rdma/rdma_cma.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define PUBLIC __attribute__((visibility("default")))

extern uint32_t rv_alive; /* magic of an object that was not destroyed; in a child of fork another */
#define ALIVE rv_alive

struct rv_ctx {
	struct verbs_context v;
	int async[2]; /* pipe */
	uint32_t magic, refs;
};

struct rv_pd {
	struct ibv_pd pd;
	uint32_t magic, refs;
	uint32_t number;	     /* of the domain; pd.handle is the program's to spoil */
	struct ibv_context *context; /* that it is of */
	struct rv_pd *parent; /* of a parent domain */
	struct rv_td *td;
	/* A parent domain's own memory for rings. */
	void *(*alloc)(struct ibv_pd *pd, void *context, size_t size, size_t align, uint64_t type);
	void (*free)(struct ibv_pd *pd, void *context, void *p, uint64_t type);
	void *alloc_context;
};

struct rv_td {
	struct ibv_td td;
	uint32_t refs;
};

struct rv_mr {
	struct ibv_mr mr;
	uint32_t magic;
	uint32_t access;
	uint64_t iova;
};

struct rv_mw {
	struct ibv_mw mw;
	uint32_t magic, number;
};

struct rv_ah {
	struct ibv_ah ah;
	uint32_t magic, number;
};

struct rv_xrcd {
	struct ibv_xrcd xrcd;
	uint32_t refs, number;
	struct rv_file *file;
};

struct rv_channel {
	struct ibv_comp_channel ch;
	int write;
	uint32_t magic;
};

/* A call that returns an object, and fails. */
#define FAIL(e) (errno = (e), NULL)

/* What is wrong with an object: EINVAL for one that was destroyed, ENOENT for one whose
 * handle is not its own any more, 0 for none. */
#define WRONG(x, own) ((x)->magic != ALIVE ? EINVAL : !(own) ? ENOENT : 0)
#define WRONG_PD(p) WRONG(p, (p)->pd.handle == (p)->number && (p)->pd.context == (p)->context)
#define WRONG_MR(m) WRONG(m, (m)->mr.handle == (m)->mr.lkey)
#define WRONG_MW(w) WRONG(w, (w)->mw.handle == (w)->number)
#define WRONG_AH(h) WRONG(h, (h)->ah.handle == (h)->number)
#define WRONG_CQ(q) WRONG(q, (q)->cq.handle == (uint32_t)(q)->handle)
#define WRONG_SRQ(s) WRONG(s, (s)->srq.handle == (s)->number)
#define WRONG_QP(q) WRONG(q, (q)->qp.handle == (q)->qp.qp_num)

/* A call that returns an errno, and fails. */
#define FAILS(e) (errno = (e))

/* rv_count counts one more of what there may be max of, or returns ENOMEM. */
static inline int rv_count(uint32_t *n, uint32_t max)
{
	if (rv_add(n, 1) <= max)
		return 0;
	rv_add(n, -1);
	return ENOMEM;
}

#define ctx_of(c) ((struct rv_ctx *)((char *)(c)-offsetof(struct rv_ctx, v.context)))

extern pthread_mutex_t rv_big;			 /* device.c: opening, closing, tables */
extern pthread_mutex_t rv_cm_lock;		 /* rdmacm.c; taken before rv_big */
void rv_domain_verbs(struct verbs_context *v);	 /* memory.c: its part of a context */
void rv_queue_verbs(struct verbs_context *v);	 /* queues.c: the same */
void rv_await(pthread_mutex_t *m, pthread_cond_t *c, uint32_t *done, uint32_t *got);
void rv_ops(struct rv_ctx *c);		       /* data.c: the data path of a context */
void rv_qp_ops(struct rv_qp *qp, uint64_t ops); /* qp.c: of extended QPs */
void rv_cq_ops(struct rv_cq *cq);	       /* queues.c: of extended CQs */
int rv_take(struct rv_cq *cq, struct rv_cqe *e); /* data.c: with the lock of the CQ held */
void rv_idle(struct rv_cq *cq);			 /* after a poll that found nothing */
int rv_queue_init(struct rv_queue *q, struct rv_pd *pd, uint32_t max, uint32_t sges, uint32_t inl, int sends);
void rv_queue_reset(struct rv_queue *q);
void rv_queue_free(struct rv_queue *q);
int rv_may_send(enum ibv_qp_type t, uint32_t op);
int rv_may_inline(uint32_t op);
int rv_may_post(struct rv_qp *qp);
int rv_sends_begin(struct rv_qp *qp);
void rv_sends_end(struct rv_qp *qp);
struct rv_wqe *rv_next_slot(struct rv_qp *qp);
int rv_put_inline(struct rv_queue *q, struct rv_wqe *w, const void *p, size_t n);
int rv_put_bind(struct rv_wqe *w, struct ibv_mw *mw, uint32_t rkey, const struct ibv_mw_bind_info *b);
void rv_clean(struct rv_cq *cq, struct rv_qp *qp);
void rv_wake(void);
void rv_ring(struct rv_queue *q);
int rv_live(void);
void *rv_pd_alloc(struct rv_pd **pd, size_t n); /* *pd becomes NULL where it is ours */
void rv_pd_free(struct rv_pd *pd, void *p);
void rv_want(const char *addr);
void rv_close_late(int fd);
extern struct rv_shared *rv_sh;
int rv_pipe(int fd[2]);
void rv_bury(void *obj);
struct ibv_mw *rv_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type);
int rv_dealloc_mw(struct ibv_mw *mw);
struct ibv_qp *rv_create_qp(struct ibv_context *c, struct ibv_qp_init_attr_ex *a);

/* Of librdmacm, whose calls return -1 and set errno when they fail. */

#define FAILED(e) (errno = (e), -1)
#define NEED(x)                                                                                                                        \
	do {                                                                                                                           \
		int need_ = (x);                                                                                                       \
		if (need_)                                                                                                             \
			return FAILED(need_);                                                                                          \
	} while (0)

struct rv_evch {
	struct rdma_event_channel ch;
	int write;
	uint32_t magic;
};

struct rv_id {
	struct rdma_cm_id id;
	uint32_t magic;
	uint64_t handle;
	uint32_t call; /* of the engine, 0 for none */
	int sync;      /* the channel is its own, and calls wait for their events */
	int bound, listening, active;
	uint8_t tos, ack_timeout;
	uint32_t peer_qpn; /* of the connection, with what it may do */
	uint8_t resources, depth, retry, rnr;
	struct ibv_qp_init_attr init; /* of the QPs of a rdma_create_ep listener */
	int has_init;
	struct ibv_sa_path_rec path;
	pthread_mutex_t lock;
	pthread_cond_t cond;
	uint32_t got, acked;
};

#define ID(x) ((struct rv_id *)(x))

struct ibv_context *rv_cm_device(void); /* rdmacm.c: opened, or NULL and errno */
int rv_cm_gid(const struct sockaddr *a, uint8_t gid[16]);
int rv_cm_post(struct rv_id *x, struct rv_cm_event *e); /* an event of the front's own */
int rv_cm_adopts(const struct ibv_qp_attr *a);		/* rdmacm_ep.c */
int rv_cm_complete(struct rv_id *x);			/* waits, where x is synchronous */

#endif
