/* Work requests and completions. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <rdma/rdma_user_rxe.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "peer.h"

/* What linux/include/uapi/rdma/rdma_user_rxe.h has in wr.wr since Linux 6.2. */
struct flush_wr {
	uint64_t remote_addr;
	uint32_t length, rkey;
	uint8_t type, level;
};

int c_recv(void)
{
	struct qp *q = object(qps, "qp");
	struct ibv_srq *s = object(srqs, "srq");
	size_t off, len;
	struct region *r = span(&off, &len);
	unsigned n = num("n", 1);
	size_t stride;

	if (!r)
		return -1;
	if (!q && !s)
		return fail("no such qp or srq");
	stride = num("stride", len);
	if (n && len + (n - 1) * stride > r->len - off)
		return fail("outside the region");
	for (unsigned i = 0; i < n; i++) {
		struct ibv_sge sge = { (uintptr_t)r->p + off + i * stride, len, num("lkey", r->mr->lkey) };
		struct ibv_recv_wr wr = { .wr_id = num("id", 0) + i, .sg_list = &sge, .num_sge = len ? 1 : 0 }, *b;
		int rc = s ? ibv_post_srq_recv(s, &wr, &b) : ibv_post_recv(q->qp, &wr, &b);

		if (rc)
			return fail("receive %u of %u: %s", i, n, strerror(rc));
	}
	say("ok n=%u", n);
	return 0;
}

int c_mw(void)
{
	struct qp *q = object(qps, "qp");
	size_t off, len;
	struct region *r = span(&off, &len);
	struct ibv_send_wr wr = { .wr_id = num("id", 0), .opcode = IBV_WR_BIND_MW,
				  .send_flags = IBV_SEND_SIGNALED }, *b;
	struct ibv_mw *w;
	int rc;

	if (!r)
		return -1;
	if (!q)
		return fail("no such qp");
	if (!(w = ibv_alloc_mw(pds[0], IBV_MW_TYPE_2)))
		return fail_errno("ibv_alloc_mw", errno);
	wr.bind_mw.mw = w;
	wr.bind_mw.rkey = ibv_inc_rkey(w->rkey);
	wr.bind_mw.bind_info.mr = r->mr;
	wr.bind_mw.bind_info.addr = (uintptr_t)r->p + off;
	wr.bind_mw.bind_info.length = len;
	wr.bind_mw.bind_info.mw_access_flags = access_flags(word("access", "rw"));
	if ((rc = ibv_post_send(q->qp, &wr, &b))) {
		ibv_dealloc_mw(w);
		return fail_errno("bind", rc);
	}
	w->rkey = wr.bind_mw.rkey;
	say("ok mw=%d rkey=0x%08x addr=0x%lx", put(mws, w), w->rkey, (long)r->p + off);
	return 0;
}

static const struct {
	const char *name;
	int opcode;
} ops[] = {
	{ "send", IBV_WR_SEND },
	{ "send_imm", IBV_WR_SEND_WITH_IMM },
	{ "send_inv", IBV_WR_SEND_WITH_INV },
	{ "write", IBV_WR_RDMA_WRITE },
	{ "write_imm", IBV_WR_RDMA_WRITE_WITH_IMM },
	{ "read", IBV_WR_RDMA_READ },
	{ "cswap", IBV_WR_ATOMIC_CMP_AND_SWP },
	{ "fadd", IBV_WR_ATOMIC_FETCH_AND_ADD },
	{ "local_inv", IBV_WR_LOCAL_INV },
	{ "flush", WR_FLUSH },
	{ "atomic_write", WR_ATOMIC_WRITE },
};

static struct rxe_send_wqe *next_wqe(struct rxe_queue_buf *s)
{
	return (void *)(s->data + ((size_t)(s->producer_index & s->index_mask) << s->log2_elem_size));
}

/* The mapped send queue whose next entry has this wr_id. */
static struct rxe_queue_buf *find_sq(uint64_t wr_id)
{
	FILE *f = fopen("/proc/self/maps", "r");
	char line[512];
	struct rxe_queue_buf *found = NULL;

	while (f && fgets(line, sizeof line, f)) {
		unsigned long a, b;
		struct rxe_queue_buf *s;

		if (!strstr(line, "uverbs") || sscanf(line, "%lx-%lx", &a, &b) != 2)
			continue;
		s = (struct rxe_queue_buf *)a;
		if (s->log2_elem_size < 7 || s->log2_elem_size > 12 ||
		    sizeof *s + ((size_t)(s->index_mask + 1) << s->log2_elem_size) > b - a)
			continue;
		if (next_wqe(s)->wr.wr_id == wr_id)
			found = s;
	}
	if (f)
		fclose(f);
	return found;
}

/*
 * Debian 12's user-space driver cannot post FLUSH and ATOMIC WRITE, though the
 * kernel takes them. So a WRITE is put into the shared send queue, and changed
 * into what is wanted before the kernel is told of it.
 */
static int post_new(struct qp *q, const struct ibv_send_wr *wr, int opcode)
{
	static uint64_t unique = 0x70656572ULL << 32; /* "peer" */
	struct rxe_send_wqe *w;

	if (!q->ex || !kernel_has_flush())
		return EOPNOTSUPP;
	if (opcode == WR_ATOMIC_WRITE && (!wr->sg_list->addr || wr->sg_list->length != 8))
		return EINVAL;
	ibv_wr_start(q->ex);
	q->ex->wr_id = ++unique;
	q->ex->wr_flags = wr->send_flags;
	ibv_wr_rdma_write(q->ex, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
	ibv_wr_set_sge(q->ex, wr->sg_list->lkey, wr->sg_list->addr, wr->sg_list->length);
	if (!q->sq)
		q->sq = find_sq(unique);
	if (!q->sq || (w = next_wqe(q->sq))->wr.wr_id != unique || w->wr.opcode != IBV_WR_RDMA_WRITE) {
		ibv_wr_abort(q->ex);
		return EPROTO;
	}
	w->wr.wr_id = wr->wr_id;
	w->wr.opcode = opcode;
	w->dma.num_sge = 0;
	if (opcode == WR_FLUSH) {
		struct flush_wr f = {
			.remote_addr = wr->wr.rdma.remote_addr,
			.length = wr->sg_list->length,
			.rkey = wr->wr.rdma.rkey,
			.type = num("type", 1),
			.level = num("level", 0),
		};

		memcpy(&w->wr.wr, &f, sizeof f);
	} else {
		memcpy(w->dma.inline_data, (void *)wr->sg_list->addr, 8);
	}
	return ibv_wr_complete(q->ex);
}

static int ud_address(struct qp *q, struct ibv_send_wr *wr)
{
	struct ibv_ah_attr av;
	char key[sizeof q->ah_key];

	snprintf(key, sizeof key, "%s %s %s %s", word("dgid", ""), word("tclass", ""), word("hops", ""),
		 word("sgid", ""));
	if (!q->ah || strcmp(key, q->ah_key)) {
		if (address(&av))
			return -1;
		if (q->ah)
			ibv_destroy_ah(q->ah);
		q->ah = ibv_create_ah(pds[0], &av);
		if (!q->ah)
			return fail_errno("ibv_create_ah", errno);
		strcpy(q->ah_key, key);
	}
	wr->wr.ud.ah = q->ah;
	wr->wr.ud.remote_qpn = num("dqpn", 0);
	wr->wr.ud.remote_qkey = num("qkey", q->qkey);
	return 0;
}

int c_post(void)
{
	struct qp *q = object(qps, "qp");
	size_t off = 0, len = 0, stride, rstride;
	struct region *r = NULL;
	unsigned n = num("n", 1);
	int opcode = -1, flags = 0;

	if (!q)
		return fail("no such qp");
	for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
		if (!strcmp(ops[i].name, word("op", "")))
			opcode = ops[i].opcode;
	if (opcode < 0)
		return fail("no such op");
	/* FLUSH has a length but no local data, LOCAL_INV neither. */
	if (opcode == WR_FLUSH || opcode == IBV_WR_LOCAL_INV)
		len = num("len", 0);
	else if (word("mr", NULL) ? !(r = span(&off, &len)) : num("len", 0) != 0)
		return r || word("mr", NULL) ? -1 : fail("len without mr");
	stride = num("stride", len);
	rstride = num("rstride", len);
	if (r && n && len + (n - 1) * stride > r->len - off)
		return fail("outside the region");
	flags |= num("signaled", 1) ? IBV_SEND_SIGNALED : 0;
	flags |= num("solicited", 0) ? IBV_SEND_SOLICITED : 0;
	flags |= num("fence", 0) ? IBV_SEND_FENCE : 0;
	flags |= num("inline", 0) ? IBV_SEND_INLINE : 0;
	for (unsigned i = 0; i < n; i++) {
		struct ibv_sge sge = { r ? (uintptr_t)r->p + off + i * stride : 0, len,
				       num("lkey", r ? r->mr->lkey : 0) };
		struct ibv_send_wr wr = { .wr_id = num("id", 0) + i, .sg_list = &sge,
					  .num_sge = r && len ? 1 : 0, .opcode = opcode,
					  .send_flags = flags }, *b;
		int rc;

		switch (opcode) {
		case IBV_WR_ATOMIC_CMP_AND_SWP:
		case IBV_WR_ATOMIC_FETCH_AND_ADD:
			wr.wr.atomic.remote_addr = num("raddr", 0) + i * rstride;
			wr.wr.atomic.rkey = num("rkey", 0);
			wr.wr.atomic.compare_add = opcode == IBV_WR_ATOMIC_CMP_AND_SWP ? num("cmp", 0) : num("add", 0);
			wr.wr.atomic.swap = num("swap", 0);
			break;
		default:
			wr.wr.rdma.remote_addr = num("raddr", 0) + i * rstride;
			wr.wr.rdma.rkey = num("rkey", 0);
		}
		if (opcode == IBV_WR_SEND_WITH_INV || opcode == IBV_WR_LOCAL_INV)
			wr.invalidate_rkey = num("inv", 0);
		else
			wr.imm_data = htonl(num("imm", 0) + i);
		if (q->qp->qp_type == IBV_QPT_UD && ud_address(q, &wr))
			return -1;
		rc = opcode == WR_FLUSH || opcode == WR_ATOMIC_WRITE ? post_new(q, &wr, opcode) :
								       ibv_post_send(q->qp, &wr, &b);
		if (rc)
			return fail("request %u of %u: %s", i, n, strerror(rc < 0 ? -rc : rc));
	}
	say("ok n=%u", n);
	return 0;
}

static const char *status_name(int s)
{
	static const char *const names[] = {
		"SUCCESS", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR", "LOC_PROT_ERR",
		"WR_FLUSH_ERR", "MW_BIND_ERR", "BAD_RESP_ERR", "LOC_ACCESS_ERR",
		"REM_INV_REQ_ERR", "REM_ACCESS_ERR", "REM_OP_ERR", "RETRY_EXC_ERR",
		"RNR_RETRY_EXC_ERR", "LOC_RDD_VIOL_ERR", "REM_INV_RD_REQ_ERR", "REM_ABORT_ERR",
		"INV_EECN_ERR", "INV_EEC_STATE_ERR", "FATAL_ERR", "RESP_TIMEOUT_ERR", "GENERAL_ERR",
	};

	return (size_t)s < sizeof names / sizeof names[0] ? names[s] : "?";
}

static const char *wc_name(int o)
{
	switch (o) {
	case IBV_WC_SEND: return "SEND";
	case IBV_WC_RDMA_WRITE: return "WRITE";
	case IBV_WC_RDMA_READ: return "READ";
	case IBV_WC_COMP_SWAP: return "CMP_SWAP";
	case IBV_WC_FETCH_ADD: return "FETCH_ADD";
	case IBV_WC_BIND_MW: return "BIND_MW";
	case IBV_WC_LOCAL_INV: return "LOCAL_INV";
	case WC_FLUSH: return "FLUSH";
	case WC_ATOMIC_WRITE: return "ATOMIC_WRITE";
	case IBV_WC_RECV: return "RECV";
	case IBV_WC_RECV_RDMA_WITH_IMM: return "RECV_WRITE_IMM";
	default: return "?";
	}
}

static void say_wc(const struct ibv_wc *w)
{
	say(" | id=%lu status=%s vendor=0x%x qpn=0x%06x", (long)w->wr_id, status_name(w->status),
	    w->vendor_err, w->qp_num);
	if (w->status != IBV_WC_SUCCESS)
		return; /* the rest is not defined */
	say(" op=%s len=%u", wc_name(w->opcode), w->byte_len);
	if (!(w->opcode & IBV_WC_RECV))
		return;
	if (w->wc_flags & IBV_WC_WITH_IMM)
		say(" imm=0x%08x", ntohl(w->imm_data));
	if (w->wc_flags & IBV_WC_WITH_INV)
		say(" inv=0x%08x", w->invalidated_rkey);
	say(" src_qp=0x%06x grh=%d", w->src_qp, !!(w->wc_flags & IBV_WC_GRH));
}

int c_poll(void)
{
	struct qp *q = object(qps, "qp");
	unsigned want = num("n", 1), got = 0;
	double end = now() + num("ms", 5000) / 1e3;
	struct ibv_wc *w;

	if (!q)
		return fail("no such qp");
	w = calloc(want + 1, sizeof *w);
	for (;;) {
		int n = ibv_poll_cq(q->cq, want - got, w + got);

		if (n < 0) {
			free(w);
			return fail("ibv_poll_cq");
		}
		got += n;
		if (got >= want || now() >= end)
			break;
		if (!n)
			usleep(200);
	}
	say("ok n=%u", got);
	for (unsigned i = 0; i < got; i++)
		say_wc(w + i);
	free(w);
	return 0;
}

int c_events(void)
{
	struct ibv_async_event e;
	unsigned n = 0;

	say("ok");
	for (; !ibv_get_async_event(ctx, &e); n++) {
		const char *s = ibv_event_type_str(e.event_type);

		say(" | type=%d name=", e.event_type);
		say_quoted((const uint8_t *)s, strlen(s));
		switch (e.event_type) {
		case IBV_EVENT_QP_FATAL: case IBV_EVENT_QP_REQ_ERR: case IBV_EVENT_QP_ACCESS_ERR:
		case IBV_EVENT_COMM_EST: case IBV_EVENT_SQ_DRAINED: case IBV_EVENT_QP_LAST_WQE_REACHED:
			say(" qpn=0x%06x", e.element.qp->qp_num);
		default:
			break;
		}
		ibv_ack_async_event(&e);
	}
	return 0;
}
