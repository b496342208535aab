/* librdmacm: queue pairs of identifiers, endpoints for synchronous programs, multicast
 * groups, and the rest. */
#define _GNU_SOURCE
#include "objects.h"
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>

/* Queue pairs, with CQs and SRQs. */

static int own_cqs(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *a)
{
	if (!a->send_cq && !(a->send_cq = id->send_cq)) {
		id->send_cq_channel = ibv_create_comp_channel(id->verbs);
		id->send_cq = id->send_cq_channel ? ibv_create_cq(id->verbs, a->cap.max_send_wr ? a->cap.max_send_wr : 1, id, id->send_cq_channel, 0) : NULL;
		a->send_cq = id->send_cq;
	}
	if (!a->recv_cq && !(a->recv_cq = id->recv_cq)) {
		id->recv_cq_channel = ibv_create_comp_channel(id->verbs);
		id->recv_cq = id->recv_cq_channel ? ibv_create_cq(id->verbs, a->cap.max_recv_wr ? a->cap.max_recv_wr : 1, id, id->recv_cq_channel, 0) : NULL;
		a->recv_cq = id->recv_cq;
	}
	return a->send_cq && a->recv_cq ? 0 : errno;
}

static void free_cqs(struct rdma_cm_id *id)
{
	if (id->send_cq)
		ibv_destroy_cq(id->send_cq);
	if (id->recv_cq)
		ibv_destroy_cq(id->recv_cq);
	if (id->send_cq_channel)
		ibv_destroy_comp_channel(id->send_cq_channel);
	if (id->recv_cq_channel)
		ibv_destroy_comp_channel(id->recv_cq_channel);
	id->send_cq = id->recv_cq = NULL;
	id->send_cq_channel = id->recv_cq_channel = NULL;
}

PUBLIC int rdma_create_qp_ex(struct rdma_cm_id *id, struct ibv_qp_init_attr_ex *a)
{
	NEED(ID(id)->magic != ALIVE || id->qp || !id->verbs ? EINVAL : 0);
	if (!(a->comp_mask & IBV_QP_INIT_ATTR_PD) || !a->pd) {
		a->comp_mask |= IBV_QP_INIT_ATTR_PD;
		a->pd = id->pd;
	}
	id->pd = a->pd;
	if (!a->srq)
		a->srq = id->srq;
	NEED(own_cqs(id, a));
	struct ibv_qp *qp = rv_create_qp(id->verbs, a);
	if (!qp) {
		int err = errno;
		free_cqs(id);
		return FAILED(err);
	}
	struct ibv_qp_attr at = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qkey = RDMA_UDP_QKEY,
		.qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC};
	int ud = qp->qp_type == IBV_QPT_UD, base = IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT;
	int err = ibv_modify_qp(qp, &at, base | (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
	if (ud && !err) {
		at.qp_state = IBV_QPS_RTR;
		err = ibv_modify_qp(qp, &at, IBV_QP_STATE);
		at.qp_state = IBV_QPS_RTS;
		err = err ? err : ibv_modify_qp(qp, &at, IBV_QP_STATE | IBV_QP_SQ_PSN);
	}
	if (err) {
		ibv_destroy_qp(qp);
		free_cqs(id);
		return FAILED(err);
	}
	id->qp = qp;
	return 0;
}
PUBLIC int rdma_create_qp(struct rdma_cm_id *id, struct ibv_pd *p, struct ibv_qp_init_attr *a)
{
	struct ibv_qp_init_attr_ex x = {.qp_context = a->qp_context, .send_cq = a->send_cq, .recv_cq = a->recv_cq, .srq = a->srq, .cap = a->cap,
		.qp_type = a->qp_type, .sq_sig_all = a->sq_sig_all, .comp_mask = p ? IBV_QP_INIT_ATTR_PD : 0, .pd = p};
	if (rdma_create_qp_ex(id, &x))
		return -1;
	a->cap = x.cap;
	return 0;
}
PUBLIC void rdma_destroy_qp(struct rdma_cm_id *id)
{
	if (!id->qp)
		return;
	ibv_destroy_qp(id->qp);
	free_cqs(id);
	id->qp = NULL;
}

PUBLIC int rdma_create_srq_ex(struct rdma_cm_id *id, struct ibv_srq_init_attr_ex *a)
{
	NEED(ID(id)->magic != ALIVE || id->srq || !id->verbs ? EINVAL : 0);
	if (a->comp_mask & IBV_SRQ_INIT_ATTR_TYPE && a->srq_type != IBV_SRQT_BASIC)
		return FAILED(EOPNOTSUPP);
	if (!(a->comp_mask & IBV_SRQ_INIT_ATTR_PD) || !a->pd) {
		a->comp_mask |= IBV_SRQ_INIT_ATTR_PD;
		a->pd = id->pd;
	}
	struct ibv_srq_init_attr plain = {.srq_context = a->srq_context, .attr = a->attr};
	id->srq = ibv_create_srq(a->pd, &plain);
	if (!id->srq)
		return -1;
	id->pd = a->pd;
	a->attr = plain.attr;
	return 0;
}
PUBLIC int rdma_create_srq(struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_srq_init_attr *a)
{
	struct ibv_srq_init_attr_ex x = {.srq_context = a->srq_context, .attr = a->attr, .comp_mask = pd ? IBV_SRQ_INIT_ATTR_PD : 0, .pd = pd};
	if (rdma_create_srq_ex(id, &x))
		return -1;
	a->attr = x.attr;
	return 0;
}
PUBLIC void rdma_destroy_srq(struct rdma_cm_id *id)
{
	if (id->srq)
		ibv_destroy_srq(id->srq);
	id->srq = NULL;
}

/* Queue pairs that the program made by itself: it asks for their attributes, and modifies
 * them. The connection manager knows its peer's, and takes such a QP to RTR and RTS itself,
 * when the connection is established; what the program does is taken as done. It is known
 * again by the numbers that it was given. */

static struct offer {
	uint32_t qpn, psn;
} offers[256];
static pthread_mutex_t offers_lock = PTHREAD_MUTEX_INITIALIZER;

PUBLIC int rdma_init_qp_attr(struct rdma_cm_id *id, struct ibv_qp_attr *a, int *mask)
{
	struct rv_id *x = ID(id);
	static uint32_t turn;
	int ud = id->qp_type == IBV_QPT_UD;
	NEED(x->magic != ALIVE || !id->verbs ? EINVAL : 0);
	enum ibv_qp_state to = a->qp_state;
	if (!ud && to != IBV_QPS_INIT && !x->peer_qpn)
		return FAILED(EINVAL); /* there is no peer yet */
	*a = (struct ibv_qp_attr){.qp_state = to};
	*mask = IBV_QP_STATE;
	switch (to) {
	case IBV_QPS_INIT:
		a->port_num = 1;
		a->qkey = RDMA_UDP_QKEY;
		a->qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ | IBV_ACCESS_REMOTE_ATOMIC;
		*mask |= IBV_QP_PKEY_INDEX | IBV_QP_PORT | (ud ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS);
		return 0;
	case IBV_QPS_RTR:
		if (ud)
			return 0;
		a->ah_attr.is_global = a->ah_attr.port_num = 1;
		a->ah_attr.grh.hop_limit = 64;
		a->ah_attr.grh.traffic_class = x->tos;
		rv_cm_gid(&id->route.addr.dst_addr, a->ah_attr.grh.dgid.raw);
		a->path_mtu = IBV_MTU_1024;
		a->dest_qp_num = x->peer_qpn;
		a->max_dest_rd_atomic = x->resources;
		a->min_rnr_timer = 12;
		*mask |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
		pthread_mutex_lock(&offers_lock);
		a->rq_psn = (++turn * 2654435761u) >> 8;
		offers[turn % 256] = (struct offer){a->dest_qp_num, a->rq_psn};
		pthread_mutex_unlock(&offers_lock);
		return 0;
	case IBV_QPS_RTS:
		*mask |= IBV_QP_SQ_PSN;
		if (ud)
			return 0;
		a->timeout = 14;
		a->retry_cnt = x->retry;
		a->rnr_retry = x->rnr;
		a->max_rd_atomic = x->depth;
		*mask |= IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
		return 0;
	default:
		return FAILED(EINVAL);
	}
}

int rv_cm_adopts(const struct ibv_qp_attr *a)
{
	int yes = 0;
	pthread_mutex_lock(&offers_lock);
	for (unsigned i = 0; i < sizeof offers / sizeof *offers && !yes; i++)
		if (a->dest_qp_num && offers[i].qpn == a->dest_qp_num && offers[i].psn == a->rq_psn) {
			offers[i] = (struct offer){0};
			yes = 1;
		}
	pthread_mutex_unlock(&offers_lock);
	return yes;
}

PUBLIC int rdma_establish(struct rdma_cm_id *id)
{
	NEED(ID(id)->magic != ALIVE || id->qp || !ID(id)->active || !ID(id)->peer_qpn ? EINVAL : 0);
	return 0; /* the RTU was sent when the REP came */
}

/* Multicast groups. */

/* group_of returns the GID that stands for a group's address in RoCE v2. */
static int group_of(const struct sockaddr *a, union ibv_gid *g)
{
	int err = a ? rv_cm_gid(a, g->raw) : EINVAL;
	if (err)
		return err;
	if (a->sa_family == AF_INET)
		return IN_MULTICAST(ntohl(((const struct sockaddr_in *)a)->sin_addr.s_addr)) ? 0 : EINVAL;
	return g->raw[0] == 0xff ? 0 : EINVAL;
}

PUBLIC int rdma_join_multicast(struct rdma_cm_id *id, struct sockaddr *a, void *ctx)
{
	struct rv_cm_event e = {.event = RDMA_CM_EVENT_MULTICAST_JOIN, .is_ud = 1, .qpn = 0xffffff, .qkey = RDMA_UDP_QKEY};
	union ibv_gid g;
	NEED(ID(id)->magic != ALIVE || !id->verbs || id->qp_type != IBV_QPT_UD ? EINVAL : group_of(a, &g));
	memcpy(e.remote, &g, 16);
	memcpy(e.data, &ctx, sizeof ctx);
	NEED(rv_cm_post(ID(id), &e));
	return rv_cm_complete(ID(id));
}
PUBLIC int rdma_join_multicast_ex(struct rdma_cm_id *id, struct rdma_cm_join_mc_attr_ex *a, void *ctx)
{
	const uint32_t need = RDMA_CM_JOIN_MC_ATTR_ADDRESS | RDMA_CM_JOIN_MC_ATTR_JOIN_FLAGS;
	NEED(a->comp_mask != need ? EINVAL : a->join_flags != RDMA_MC_JOIN_FLAG_FULLMEMBER && a->join_flags != RDMA_MC_JOIN_FLAG_SENDONLY_FULLMEMBER ? EINVAL : 0);
	return rdma_join_multicast(id, a->addr, ctx);
}
PUBLIC int rdma_leave_multicast(struct rdma_cm_id *id, struct sockaddr *a)
{
	union ibv_gid g;
	NEED(ID(id)->magic != ALIVE ? EINVAL : group_of(a, &g));
	if (id->qp)
		NEED(ibv_detach_mcast(id->qp, &g, 0));
	return 0;
}

/* Endpoints, for synchronous programs. */

PUBLIC int rdma_create_ep(struct rdma_cm_id **id, struct rdma_addrinfo *r, struct ibv_pd *p, struct ibv_qp_init_attr *a)
{
	struct rdma_cm_id *x;
	if (rdma_create_id(NULL, &x, NULL, r->ai_port_space))
		return -1;
	if (r->ai_qp_type)
		x->qp_type = r->ai_qp_type;
	int err;
	if (r->ai_flags & RAI_PASSIVE) {
		err = rdma_bind_addr(x, r->ai_src_addr);
		if (!err && a) {
			ID(x)->init = *a;
			ID(x)->has_init = 1;
		}
		if (!err && p)
			x->pd = p;
	} else {
		err = rdma_resolve_addr(x, r->ai_src_addr, r->ai_dst_addr, 2000);
		err = err ? err : rdma_resolve_route(x, 2000);
		if (!err && a) {
			if (!a->qp_type)
				a->qp_type = x->qp_type;
			err = rdma_create_qp(x, p, a);
		}
	}
	if (err) {
		err = errno;
		rdma_destroy_id(x);
		return FAILED(err);
	}
	*id = x;
	return 0;
}
PUBLIC void rdma_destroy_ep(struct rdma_cm_id *id)
{
	rdma_destroy_qp(id);
	rdma_destroy_id(id);
}
PUBLIC int rdma_get_request(struct rdma_cm_id *listen, struct rdma_cm_id **id)
{
	struct rv_id *x = ID(listen);
	struct rdma_cm_event *e;
	NEED(!x->sync ? EINVAL : 0);
	if (listen->event) {
		rdma_ack_cm_event(listen->event);
		listen->event = NULL;
	}
	if (rdma_get_cm_event(listen->channel, &e))
		return -1;
	if (e->event != RDMA_CM_EVENT_CONNECT_REQUEST) {
		int err = e->status ? e->status : EINVAL;
		rdma_ack_cm_event(e);
		return FAILED(err < 0 ? -err : err);
	}
	struct rdma_cm_id *c = e->id;
	if (x->has_init) {
		struct ibv_qp_init_attr a = x->init;
		if (!a.qp_type)
			a.qp_type = listen->qp_type;
		if (rdma_create_qp(c, listen->pd, &a)) {
			int err = errno;
			rdma_ack_cm_event(e);
			rdma_reject(c, NULL, 0);
			rdma_destroy_id(c);
			return FAILED(err);
		}
	}
	/* A channel of its own, so that it is synchronous as well. */
	struct rdma_event_channel *ch = rdma_create_event_channel();
	if (!ch)
		return -1;
	c->channel = ch;
	ID(c)->sync = 1;
	c->event = e;
	*id = c;
	return 0;
}

/* The rest. */

PUBLIC struct ibv_context **rdma_get_devices(int *n)
{
	struct ibv_context *c = rv_cm_device(), **l = c ? calloc(2, sizeof *l) : NULL;
	if (!l)
		return NULL;
	l[0] = c;
	if (n)
		*n = 1;
	return l;
}
PUBLIC void rdma_free_devices(struct ibv_context **l) { free(l); }
PUBLIC __be16 rdma_get_src_port(struct rdma_cm_id *id) { return ((struct sockaddr_in *)&id->route.addr.src_addr)->sin_port; }
PUBLIC __be16 rdma_get_dst_port(struct rdma_cm_id *id) { return ((struct sockaddr_in *)&id->route.addr.dst_addr)->sin_port; }
PUBLIC int rdma_set_option(struct rdma_cm_id *id, int level, int opt, void *val, size_t len)
{
	if (level != RDMA_OPTION_ID)
		return FAILED(ENOSYS);
	if (opt == RDMA_OPTION_ID_TOS && len == 1)
		ID(id)->tos = *(uint8_t *)val;
	else if (opt == RDMA_OPTION_ID_ACK_TIMEOUT && len == 1)
		ID(id)->ack_timeout = *(uint8_t *)val;
	else if (opt != RDMA_OPTION_ID_REUSEADDR && opt != RDMA_OPTION_ID_AFONLY)
		return FAILED(EINVAL);
	return 0;
}
PUBLIC int rdma_set_local_ece(struct rdma_cm_id *id, struct ibv_ece *e) { return e->vendor_id ? FAILED(EOPNOTSUPP) : 0; }
PUBLIC int rdma_get_remote_ece(struct rdma_cm_id *id, struct ibv_ece *e)
{
	memset(e, 0, sizeof *e); /* none */
	return 0;
}
PUBLIC const char *rdma_event_str(enum rdma_cm_event_type e)
{
#define NAME(x) [RDMA_CM_EVENT_##x] = "RDMA_CM_EVENT_" #x
	static const char *const names[] = {NAME(ADDR_RESOLVED), NAME(ADDR_ERROR), NAME(ROUTE_RESOLVED), NAME(ROUTE_ERROR),
		NAME(CONNECT_REQUEST), NAME(CONNECT_RESPONSE), NAME(CONNECT_ERROR), NAME(UNREACHABLE), NAME(REJECTED), NAME(ESTABLISHED),
		NAME(DISCONNECTED), NAME(DEVICE_REMOVAL), NAME(MULTICAST_JOIN), NAME(MULTICAST_ERROR), NAME(ADDR_CHANGE), NAME(TIMEWAIT_EXIT)};
	return (unsigned)e < sizeof names / sizeof *names ? names[e] : "UNKNOWN EVENT";
}
PUBLIC int rsocket(int domain, int type, int protocol) { return FAILED(EOPNOTSUPP); }
PUBLIC int rpoll(struct pollfd *fds, nfds_t n, int timeout) { return poll(fds, n, timeout); }

PUBLIC int rdma_getaddrinfo(const char *node, const char *service, const struct rdma_addrinfo *h, struct rdma_addrinfo **res)
{
	static const struct rdma_addrinfo none;
	if (!h)
		h = &none;
	int passive = h->ai_flags & RAI_PASSIVE;
	struct addrinfo hints = {.ai_family = h->ai_flags & RAI_FAMILY ? h->ai_family : 0, .ai_socktype = SOCK_STREAM,
		.ai_flags = (passive ? AI_PASSIVE : 0) | (h->ai_flags & RAI_NUMERICHOST ? AI_NUMERICHOST : 0)}, *ai = NULL;
	if (!node && !service && !h->ai_dst_addr && !h->ai_src_addr)
		return FAILED(EINVAL);
	if (node || service) {
		int err = getaddrinfo(node, service, &hints, &ai);
		if (err)
			return err == EAI_SYSTEM ? -1 : (errno = EADDRNOTAVAIL, err);
	}
	struct rdma_addrinfo *r = calloc(1, sizeof *r);
	r->ai_flags = h->ai_flags;
	r->ai_port_space = h->ai_port_space ? h->ai_port_space : h->ai_qp_type == IBV_QPT_UD ? RDMA_PS_UDP : RDMA_PS_TCP;
	r->ai_qp_type = h->ai_qp_type ? h->ai_qp_type : r->ai_port_space == RDMA_PS_UDP ? IBV_QPT_UD : IBV_QPT_RC;
	const struct sockaddr *src = h->ai_src_addr, *dst = h->ai_dst_addr;
	socklen_t slen = h->ai_src_len, dlen = h->ai_dst_len;
	if (ai && passive)
		src = ai->ai_addr, slen = ai->ai_addrlen;
	else if (ai)
		dst = ai->ai_addr, dlen = ai->ai_addrlen;
	if (src && slen) {
		r->ai_src_addr = malloc(slen);
		memcpy(r->ai_src_addr, src, r->ai_src_len = slen);
	}
	if (dst && dlen) {
		r->ai_dst_addr = malloc(dlen);
		memcpy(r->ai_dst_addr, dst, r->ai_dst_len = dlen);
	}
	r->ai_family = src && slen ? src->sa_family : dst ? dst->sa_family : AF_INET;
	if (ai)
		freeaddrinfo(ai);
	*res = r;
	return 0;
}
PUBLIC void rdma_freeaddrinfo(struct rdma_addrinfo *r)
{
	free(r->ai_src_addr);
	free(r->ai_dst_addr);
	free(r);
}
