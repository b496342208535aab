/* What the C front and the Go engine share: objects, rings in C memory, commands.
 *
 * The front runs on the program's threads and has no Go in it. The engine is one thread
 * that runs a port (package softnic). A program posts into a ring and rings a bell; the
 * engine writes completions into a ring that ibv_poll_cq reads. All else is a command:
 * the front fills a struct rv_cmd, and waits until the engine has carried it out.
 *
 * Fields that both sides change are accessed atomically by both: rv_load and so on here,
 * sync/atomic there. */
#ifndef ROCE_FRONT_H
#define ROCE_FRONT_H

#include <infiniband/verbs.h>
#include <stdint.h>
#include <stddef.h>

enum {
	RV_MAX_QP = 1024,
	RV_MAX_SRQ = 512,
	RV_MAX_WR = 16384,
	RV_MAX_SGE = 32,
	RV_MAX_INLINE = 1024,
	RV_MAX_CQE = 1 << 20,
	RV_MAX_MR = 1 << 16, /* regions and windows */
	RV_MAX_PD = 1 << 14,
	RV_MAX_CQ = 1 << 14,
	RV_MAX_AH = 1 << 14,
	RV_MAX_RD = 128,
	RV_BELLS = 4096, /* queues: at most two a QP, one a SRQ */
};

#define rv_load(p) __atomic_load_n(p, __ATOMIC_SEQ_CST)
#define rv_store(p, v) __atomic_store_n(p, v, __ATOMIC_SEQ_CST)
#define rv_add(p, v) __atomic_add_fetch(p, v, __ATOMIC_SEQ_CST)
#define rv_swap(p, v) __atomic_exchange_n(p, v, __ATOMIC_SEQ_CST)

/* A work request in a ring, with the operations, flags and rights of verbs. Behind it
 * are its SGEs, or its inline data. */
struct rv_wqe {
	uint64_t wr_id;
	uint64_t remote_addr; /* bind: of the range */
	uint64_t compare_add, swap;
	uint64_t length; /* bind: of the range */
	uint32_t opcode, flags;
	uint32_t rkey; /* bind, invalidate: the window; IBV_WR_SEND_WITH_INV: to invalidate */
	uint32_t imm;  /* as it stands in memory, network byte order */
	uint32_t num_sge, inline_len;
	uint32_t ah, remote_qpn, remote_qkey, srqn;
	uint32_t mr_rkey, access; /* bind */
	struct ibv_sge sge[];
};

struct rv_rqe {
	uint64_t wr_id;
	uint32_t num_sge;
	uint32_t pad;
	struct ibv_sge sge[];
};

/* A work queue: of sends, of receives, or shared. The slot of a send is its number
 * modulo size. Receives of a shared queue come back in any order: order has the slots
 * in the order of their posts, spare those that are free. */
struct rv_queue {
	uint32_t size;   /* slots, a power of two */
	uint32_t stride; /* bytes of one */
	uint32_t posted; /* by the front; atomic */
	uint32_t taken;  /* by the engine */
	uint32_t max;    /* work requests, as the program was told */
	uint32_t max_sge, max_inline;
	int bell;
	uint8_t *slots;
	struct rv_pd *owner; /* whose allocator slots came from, or NULL */
	uint32_t *order;
	/* The front's own. */
	pthread_mutex_t lock;
	uint32_t freed; /* sends: those before it are free */
	uint32_t *spare;
	uint32_t spares;
};

/* A completion. */
struct rv_cqe {
	struct ibv_wc wc;
	struct rv_qp *qp; /* NULL: its QP is gone */
	struct rv_queue *queue;
	uint32_t slot; /* that becomes free */
	uint32_t solicited;
	uint64_t ns; /* when it was written */
};

struct rv_cq {
	union {
		struct ibv_cq cq;
		struct ibv_cq_ex ex;
	};
	uint32_t magic, refs;
	uint64_t handle;
	struct rv_cqe *ring;
	struct rv_pd *pd, *owner; /* parent domain; whose allocator ring came from, or NULL */
	uint32_t size; /* a power of two */
	uint32_t depth;  /* entries, as the program was told */
	uint32_t produced, consumed; /* atomic */
	uint32_t armed;    /* atomic: 1 the next solicited completion, 2 any */
	uint32_t overrun;  /* atomic: a completion had no room */
	int notify; /* where events are written, or -1 */
	pthread_mutex_t lock;
	uint32_t idle; /* polls that found nothing, in a row */
	uint32_t crowded; /* so many more of them sleep; atomic, as threads poll at once */
	struct rv_cqe cur; /* of the extended interface */
	uint32_t comp_got, async_got; /* events that the program has got */
};

struct rv_qp {
	union {
		struct ibv_qp qp;
		struct ibv_qp_ex ex;
	};
	uint32_t magic, refs;
	uint64_t handle;
	struct rv_queue sq, rq;
	struct rv_queue *receives; /* rq, or that of the SRQ */
	struct rv_cq *scq, *rcq;
	struct rv_srq *srq;
	struct rv_xrcd *xrcd;
	struct ibv_qp_cap cap;
	uint32_t pd, xrcdn;
	uint32_t sq_sig_all;
	int async; /* where events are written */
	int state; /* as the engine knows it; atomic */
	/* The extended interface: a batch that is being built. */
	uint32_t batch;
	int batch_err;
	struct rv_wqe *cur;
	uint32_t async_got, groups;
	int with_ex;
	int adopted; /* the connection manager takes it to RTR and RTS */
};

struct rv_srq {
	struct ibv_srq srq;
	uint32_t magic, refs;
	uint64_t handle;
	struct rv_queue rq;
	struct rv_cq *cq; /* XRC */
	struct rv_xrcd *xrcd;
	uint32_t pd, xrcdn, number, limit;
	int async;
	uint32_t async_got;
};

enum rv_op {
	RV_OPEN = 1,
	RV_CLOSE,
	RV_REG_MR,
	RV_DEREG_MR,
	RV_ALLOC_MW,
	RV_DEALLOC_MW,
	RV_CREATE_QP,
	RV_MODIFY_QP,
	RV_QUERY_QP,
	RV_DESTROY_QP,
	RV_CREATE_SRQ,
	RV_MODIFY_SRQ,
	RV_DESTROY_SRQ,
	RV_CREATE_AH,
	RV_DESTROY_AH,
	RV_MCAST,
	RV_RESIZE_CQ,
	RV_CM_LISTEN,
	RV_CM_CONNECT,
	RV_CM_ACCEPT,
	RV_CM_REJECT,
	RV_CM_DISCONNECT,
	RV_CM_DESTROY,
	RV_CM_SIDR,
	RV_CM_MIGRATE,
	RV_LEAVE,
};

/* A command. The engine answers with an errno, 0 for none. */
struct rv_cmd {
	uint32_t op;
	int err;
	void *obj;  /* struct rv_qp, rv_srq; memory */
	void *attr; /* attributes of verbs */
	uint64_t addr, len;
	uint32_t pd, access, key, mask;
	char text[256]; /* of an error of RV_OPEN */
};

struct rv_shared {
	uint64_t bells[RV_BELLS / 64]; /* atomic: queues with posts */
	uint32_t rung;	 /* atomic: there may be some */
	uint32_t asleep; /* atomic: the engine waits for kick */
	uint32_t state;  /* atomic, a futex: 0 no command, 1 to be carried out, 2 done,
			  * 3 to be carried out, and the front sleeps; 9 no engine, for good */
	int kick;	 /* an eventfd */
	struct rv_cmd *cmd;
	/* The engine's. */
	uint8_t gid[16];
	uint8_t v4; /* the GID is an IPv4 address */
	uint32_t mtu; /* largest payload, bytes */
	uint32_t linger; /* ms that ibv_destroy_qp waits, once in two seconds, with ROCE_FAULTS */
};

/* Events on a completion channel, and asynchronous ones: eight bytes each. */
#define RV_EVENT(type, handle) ((uint64_t)(type) << 56 | (handle))

/* Events of the connection manager: one of these each, on the channel's pipe. */
struct rv_cm_event {
	uint64_t id;	 /* handle of the identifier that it is about */
	uint32_t call;	 /* of the engine */
	uint32_t event;	 /* enum rdma_cm_event_type */
	int32_t status;
	uint32_t qpn, qkey;
	uint8_t resources, depth, flow, rnr, srq, len, retry, is_ud;
	uint8_t remote[16], local[16];
	uint16_t rport, lport;
	uint8_t data[232];
};

/* What a call of the connection manager wants. */
struct rv_cm_param {
	uint64_t id;
	int events; /* where its events are written */
	struct rv_qp *qp;
	uint32_t call;
	uint32_t ps; /* enum rdma_port_space */
	uint16_t port, sport;
	uint8_t remote[16];
	uint32_t qpn, qkey;
	int backlog;
	uint8_t resources, depth, flow, rnr, srq, len, retry, tos, timeout;
	uint8_t data[232];
};

/* front only */
int rv_command(struct rv_cmd *c);
uint64_t rv_handle(void *obj);
void rv_unhandle(uint64_t h);
void *rv_object(uint64_t h);
void rv_log(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

#endif
