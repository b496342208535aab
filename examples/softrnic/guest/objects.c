/* Regions and queue pairs: made, filled, connected, destroyed. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "peer.h"

struct region *regions[MAX];
struct qp *qps[MAX];
struct ibv_srq *srqs[MAX];
struct ibv_mw *mws[MAX];

int access_flags(const char *s)
{
	int a = 0;

	for (; *s; s++)
		a |= *s == 'r' ? IBV_ACCESS_REMOTE_READ : *s == 'w' ? IBV_ACCESS_REMOTE_WRITE :
		     *s == 'a' ? IBV_ACCESS_REMOTE_ATOMIC : *s == 'b' ? IBV_ACCESS_MW_BIND :
		     *s == 'f' ? ACCESS_FLUSH_GLOBAL : *s == 'p' ? ACCESS_FLUSH_PERSISTENT : 0;
	return a;
}

int parse_gid(const char *s, union ibv_gid *g)
{
	struct in_addr a4;

	memset(g, 0, sizeof *g);
	if (inet_pton(AF_INET, s, &a4) == 1) {
		g->raw[10] = g->raw[11] = 0xff;
		memcpy(g->raw + 12, &a4, 4);
		return 0;
	}
	return inet_pton(AF_INET6, s, g->raw) == 1 ? 0 : -1;
}

/* The index of the guest's own GID of the same family as far: IPv4, link-local
 * or global IPv6. */
static int own_gid(const union ibv_gid *far)
{
	static const uint8_t v4[12] = { [10] = 0xff, 0xff };
	union ibv_gid g;
	int want4 = !memcmp(far->raw, v4, 12), want_ll = far->raw[0] == 0xfe;

	for (int i = 0; i < 64; i++) {
		static const union ibv_gid zero;

		if (ibv_query_gid(ctx, 1, i, &g) || !memcmp(&g, &zero, 16))
			continue;
		if (want4 == !memcmp(g.raw, v4, 12) && (want4 || want_ll == (g.raw[0] == 0xfe)))
			return i;
	}
	return -1;
}

int address(struct ibv_ah_attr *av)
{
	union ibv_gid far;
	int own;

	memset(av, 0, sizeof *av);
	if (parse_gid(word("dgid", ""), &far))
		return fail("dgid is no address");
	own = num("sgid", own_gid(&far));
	if (own < 0)
		return fail("no GID of that family");
	av->is_global = 1;
	av->port_num = 1;
	av->sl = num("sl", 0);
	av->grh.dgid = far;
	av->grh.sgid_index = own;
	av->grh.hop_limit = num("hops", 64);
	av->grh.traffic_class = num("tclass", 0);
	av->grh.flow_label = num("flow", 0);
	return 0;
}

/* The test's data: byte i of pattern seed, as README.md defines it. */
static uint8_t pattern(uint32_t seed, uint32_t i)
{
	uint32_t x = i * 0x9e3779b1u + seed * 0x85ebca6bu;

	x ^= x >> 15;
	x *= 0x2c1b3cd5u;
	return x >> 24;
}

struct region *span(size_t *off, size_t *len)
{
	struct region *r = object(regions, "mr");

	if (!r) {
		fail("no such mr");
		return NULL;
	}
	*off = num("off", 0);
	*len = num("len", *off <= r->len ? r->len - *off : 0);
	if (*off > r->len || *len > r->len - *off) {
		fail("outside the region");
		return NULL;
	}
	return r;
}

/* regions. */

int c_mr(void)
{
	unsigned p = num("pd", 0);
	void *va = (void *)num("va", 0);
	struct region *r;

	if (p > 1)
		return fail("pd is 0 or 1");
	r = calloc(1, sizeof *r);
	r->len = num("size", 4096);
	r->p = mmap(va, r->len, PROT_READ | PROT_WRITE,
		    MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE | (va ? MAP_FIXED_NOREPLACE : 0), -1, 0);
	if (r->p == MAP_FAILED) {
		free(r);
		return fail_errno("mmap", errno);
	}
	r->mr = ibv_reg_mr(pds[p], r->p, r->len,
			   IBV_ACCESS_LOCAL_WRITE | access_flags(word("access", "rwa")));
	if (!r->mr) {
		int e = errno;

		munmap(r->p, r->len);
		free(r);
		return fail_errno("ibv_reg_mr", e);
	}
	say("ok mr=%d rkey=0x%08x lkey=0x%08x addr=0x%lx size=%zu", put(regions, r), r->mr->rkey,
	    r->mr->lkey, (long)r->p, r->len);
	return 0;
}

int c_dereg(void)
{
	struct region *r = object(regions, "mr");
	int rc;

	if (!r)
		return fail("no such mr");
	if ((rc = ibv_dereg_mr(r->mr)))
		return fail_errno("ibv_dereg_mr", rc);
	munmap(r->p, r->len);
	drop(regions, "mr");
	free(r);
	say("ok");
	return 0;
}

int c_fill(void)
{
	size_t off, len;
	struct region *r = span(&off, &len);
	uint32_t seed = num("seed", 0);

	if (!r)
		return -1;
	if (word("byte", NULL))
		memset(r->p + off, num("byte", 0), len);
	else
		for (size_t i = 0; i < len; i++)
			r->p[off + i] = pattern(seed, i);
	say("ok");
	return 0;
}

int c_check(void)
{
	size_t off, len;
	struct region *r = span(&off, &len);
	uint32_t seed = num("seed", 0), from = num("from", 0);
	int fixed = word("byte", NULL) != NULL, byte = num("byte", 0);

	if (!r)
		return -1;
	for (size_t i = 0; i < len; i++) {
		uint8_t want = fixed ? byte : pattern(seed, from + i);

		if (r->p[off + i] != want) {
			say("ok match=0 at=%zu got=0x%02x want=0x%02x", i, r->p[off + i], want);
			return 0;
		}
	}
	say("ok match=1");
	return 0;
}

int c_peek(void)
{
	size_t off, len;
	struct region *r = span(&off, &len);

	if (!r)
		return -1;
	say("ok hex=");
	for (size_t i = 0; i < len; i++)
		say("%02x", r->p[off + i]);
	return 0;
}

int c_poke(void)
{
	size_t off, len, n = 0;
	struct region *r = span(&off, &len);
	const char *h = word("hex", "");
	unsigned b;

	if (!r)
		return -1;
	for (; n < len && sscanf(h + 2 * n, "%2x", &b) == 1; n++)
		r->p[off + n] = b;
	say("ok n=%zu", n);
	return 0;
}

/* queue pairs. */

static int to_init(struct qp *q)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_INIT, .port_num = 1,
				 .qp_access_flags = q->access, .qkey = q->qkey };

	return ibv_modify_qp(q->qp, &a, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
			     (q->qp->qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
}

int c_srq(void)
{
	struct ibv_srq_init_attr a = { .attr = { .max_wr = num("recvs", 512), .max_sge = 1 } };
	struct ibv_srq *s = ibv_create_srq(pds[0], &a);

	if (!s)
		return fail_errno("ibv_create_srq", errno);
	say("ok srq=%d", put(srqs, s));
	return 0;
}

int c_qp(void)
{
	const char *t = word("type", "rc");
	struct ibv_qp_init_attr_ex a = {
		.qp_type = !strcmp(t, "ud") ? IBV_QPT_UD : !strcmp(t, "uc") ? IBV_QPT_UC : IBV_QPT_RC,
		.cap = { .max_send_wr = num("sends", 128), .max_recv_wr = num("recvs", 512),
			 .max_send_sge = 1, .max_recv_sge = 1, .max_inline_data = num("inline", 0) },
		.comp_mask = IBV_QP_INIT_ATTR_PD,
		.pd = pds[0],
	};
	struct ibv_srq *srq = object(srqs, "srq");
	struct qp *q;
	int rc;

	if (word("srq", NULL) && !srq)
		return fail("no such srq");
	q = calloc(1, sizeof *q);
	q->access = access_flags(word("access", "rwa"));
	q->qkey = num("qkey", 0x11111111);
	q->cq = ibv_create_cq(ctx, num("cqe", a.cap.max_send_wr + a.cap.max_recv_wr + 8), NULL, NULL, 0);
	if (!q->cq) {
		free(q);
		return fail_errno("ibv_create_cq", errno);
	}
	a.send_cq = a.recv_cq = q->cq;
	a.srq = srq;
	if (a.qp_type == IBV_QPT_RC) { /* the extended calls carry FLUSH and ATOMIC WRITE */
		a.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		a.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE;
	}
	q->qp = ibv_create_qp_ex(ctx, &a);
	if (!q->qp) {
		rc = errno;
		ibv_destroy_cq(q->cq);
		free(q);
		return fail_errno("ibv_create_qp_ex", rc);
	}
	if (a.qp_type == IBV_QPT_RC)
		q->ex = ibv_qp_to_qp_ex(q->qp);
	if ((rc = to_init(q)))
		return fail_errno("to INIT", rc);
	say("ok qp=%d qpn=0x%06x", put(qps, q), q->qp->qp_num);
	return 0;
}

static enum ibv_mtu mtu_code(unsigned m)
{
	return m >= 4096 ? IBV_MTU_4096 : m >= 2048 ? IBV_MTU_2048 : m >= 1024 ? IBV_MTU_1024 :
	       m >= 512 ? IBV_MTU_512 : IBV_MTU_256;
}

static int to_rts(struct qp *q)
{
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTS, .sq_psn = num("psn", 0) & 0xffffff };
	int m = IBV_QP_STATE | IBV_QP_SQ_PSN;

	if (q->qp->qp_type == IBV_QPT_RC) {
		a.timeout = num("timeout", 14);
		a.retry_cnt = num("retry", 7);
		a.rnr_retry = num("rnr", 7);
		a.max_rd_atomic = num("rd_atomic", 16);
		m |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	}
	return ibv_modify_qp(q->qp, &a, m);
}

int c_connect(void)
{
	struct qp *q = object(qps, "qp");
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTR };
	int m = IBV_QP_STATE, rc;

	if (!q)
		return fail("no such qp");
	if (q->qp->qp_type != IBV_QPT_UD) {
		if (address(&a.ah_attr))
			return -1;
		a.path_mtu = mtu_code(num("mtu", 1024));
		a.dest_qp_num = num("dqpn", 0);
		a.rq_psn = num("rpsn", 0) & 0xffffff;
		m |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	}
	if (q->qp->qp_type == IBV_QPT_RC) {
		a.max_dest_rd_atomic = num("dest_rd_atomic", 16);
		a.min_rnr_timer = num("min_rnr", 12);
		m |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	}
	if ((rc = ibv_modify_qp(q->qp, &a, m)))
		return fail_errno("to RTR", rc);
	if (!num("rtr", 0) && (rc = to_rts(q)))
		return fail_errno("to RTS", rc);
	say("ok");
	return 0;
}

int c_modify(void)
{
	struct qp *q = object(qps, "qp");
	const char *s = word("state", "");
	struct ibv_qp_attr a = { 0 };
	int rc;

	if (!q)
		return fail("no such qp");
	if (!strcmp(s, "init")) {
		rc = to_init(q);
	} else if (!strcmp(s, "rts")) {
		rc = to_rts(q);
	} else {
		if (!strcmp(s, "err"))
			a.qp_state = IBV_QPS_ERR;
		else if (!strcmp(s, "sqd"))
			a.qp_state = IBV_QPS_SQD;
		else if (strcmp(s, "reset"))
			return fail("state is reset, init, rts, sqd or err");
		rc = ibv_modify_qp(q->qp, &a, IBV_QP_STATE);
	}
	if (rc)
		return fail_errno("ibv_modify_qp", rc);
	say("ok");
	return 0;
}

int c_query(void)
{
	static const char *const names[] = { "reset", "init", "rtr", "rts", "sqd", "sqe", "err" };
	struct qp *q = object(qps, "qp");
	struct ibv_qp_init_attr ia;
	struct ibv_qp_attr a;
	int rc;

	if (!q)
		return fail("no such qp");
	if ((rc = ibv_query_qp(q->qp, &a, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_RQ_PSN, &ia)))
		return fail_errno("ibv_query_qp", rc);
	say("ok state=%s sq_psn=0x%06x rq_psn=0x%06x", a.qp_state < 7 ? names[a.qp_state] : "?",
	    a.sq_psn, a.rq_psn);
	return 0;
}

int c_destroy(void)
{
	struct qp *q = object(qps, "qp");
	struct ibv_srq *s = object(srqs, "srq");
	struct ibv_mw *w = object(mws, "mw");
	int rc;

	if (q) {
		if ((rc = ibv_destroy_qp(q->qp)))
			return fail_errno("ibv_destroy_qp", rc);
		ibv_destroy_cq(q->cq);
		if (q->ah)
			ibv_destroy_ah(q->ah);
		free(q);
		drop(qps, "qp");
	} else if (s) {
		if ((rc = ibv_destroy_srq(s)))
			return fail_errno("ibv_destroy_srq", rc);
		drop(srqs, "srq");
	} else if (w) {
		if ((rc = ibv_dealloc_mw(w)))
			return fail_errno("ibv_dealloc_mw", rc);
		drop(mws, "mw");
	} else {
		return fail("no such object");
	}
	say("ok");
	return 0;
}

int c_mcast(void)
{
	struct qp *q = object(qps, "qp");
	union ibv_gid g;
	int rc;

	if (!q)
		return fail("no such qp");
	if (parse_gid(word("gid", ""), &g))
		return fail("gid is no address");
	rc = num("leave", 0) ? ibv_detach_mcast(q->qp, &g, 0) : ibv_attach_mcast(q->qp, &g, 0);
	if (rc)
		return fail_errno("multicast", rc);
	say("ok");
	return 0;
}
