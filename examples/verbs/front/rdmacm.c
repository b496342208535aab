/* librdmacm: identifiers, event channels, connections. The engine runs the protocol
 * (package qp/cm); its events come through the pipe of an identifier's channel. */
#define _GNU_SOURCE
#include "objects.h"
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <stdio.h>

struct rv_ev {
	struct rdma_cm_event ev;
	uint32_t magic;
	uint8_t data[256];
};

pthread_mutex_t rv_cm_lock = PTHREAD_MUTEX_INITIALIZER;
static struct ibv_context *context; /* opened by the first identifier that needs it */
static struct ibv_pd *pd;
static pid_t context_pid;

int rv_cm_gid(const struct sockaddr *a, uint8_t gid[16])
{
	memset(gid, 0, 16);
	if (a && a->sa_family == AF_INET) {
		gid[10] = gid[11] = 0xff;
		memcpy(gid + 12, &((const struct sockaddr_in *)a)->sin_addr, 4);
		return 0;
	}
	if (a && a->sa_family == AF_INET6) {
		memcpy(gid, &((const struct sockaddr_in6 *)a)->sin6_addr, 16);
		return 0;
	}
	return EAFNOSUPPORT;
}

static void sockaddr_of(struct sockaddr *a, const uint8_t gid[16], uint16_t port)
{
	static const uint8_t v4[12] = {[10] = 0xff, [11] = 0xff};
	if (!memcmp(gid, v4, 12)) {
		struct sockaddr_in *s = (void *)a;
		*s = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons(port)};
		memcpy(&s->sin_addr, gid + 12, 4);
	} else {
		struct sockaddr_in6 *s = (void *)a;
		*s = (struct sockaddr_in6){.sin6_family = AF_INET6, .sin6_port = htons(port)};
		memcpy(&s->sin6_addr, gid, 16);
	}
}

static int any(const struct sockaddr *a)
{
	static const uint8_t none[16];
	uint8_t g[16];
	return rv_cm_gid(a, g) || (a->sa_family == AF_INET ? !memcmp(g + 12, none, 4) : !memcmp(g, none, 16));
}

static size_t size_of(const struct sockaddr *a) { return a->sa_family == AF_INET ? sizeof(struct sockaddr_in) : sizeof(struct sockaddr_in6); }

static uint16_t port_of(const struct sockaddr *a) { return ntohs(((const struct sockaddr_in *)a)->sin_port); }

/* device opens the device, with the address that the program binds to where ROCE_ADDR does
 * not name one. */
static int device(const struct sockaddr *want)
{
	char text[INET6_ADDRSTRLEN];
	int err = 0;
	pthread_mutex_lock(&rv_cm_lock);
	if (context && context_pid != getpid())
		context = NULL, pd = NULL; /* those of the parent */
	if (!context) {
		if (want && !any(want) && !getenv("ROCE_ADDR")) {
			const void *a = want->sa_family == AF_INET ? (const void *)&((const struct sockaddr_in *)want)->sin_addr
								  : (const void *)&((const struct sockaddr_in6 *)want)->sin6_addr;
			rv_want(inet_ntop(want->sa_family, a, text, sizeof text));
		}
		struct ibv_device **l = ibv_get_device_list(NULL);
		context = ibv_open_device(l[0]);
		err = context ? 0 : errno;
		ibv_free_device_list(l);
		pd = context ? ibv_alloc_pd(context) : NULL;
		context_pid = getpid();
	}
	pthread_mutex_unlock(&rv_cm_lock);
	return err;
}

struct ibv_context *rv_cm_device(void)
{
	int err = device(NULL);
	errno = err;
	return err ? NULL : context;
}

/* attach binds an identifier to the device. */
static int attach(struct rv_id *x, const struct sockaddr *want)
{
	uint8_t g[16];
	int err = device(want);
	if (err)
		return err;
	if (want && !any(want)) {
		rv_cm_gid(want, g);
		if (memcmp(g, rv_sh->gid, 16))
			return EADDRNOTAVAIL;
	}
	x->id.verbs = context;
	x->id.port_num = 1;
	x->id.pd = pd;
	return 0;
}

static void set_path(struct rv_id *x)
{
	struct rdma_route *r = &x->id.route;
	rv_cm_gid(&r->addr.src_addr, r->addr.addr.ibaddr.sgid.raw);
	rv_cm_gid(&r->addr.dst_addr, r->addr.addr.ibaddr.dgid.raw);
	r->addr.addr.ibaddr.pkey = 0xffff;
	x->path = (struct ibv_sa_path_rec){.dgid = r->addr.addr.ibaddr.dgid, .sgid = r->addr.addr.ibaddr.sgid, .pkey = 0xffff, .mtu = IBV_MTU_4096, .hop_limit = 64};
	r->path_rec = &x->path;
	r->num_paths = 1;
}

PUBLIC struct rdma_event_channel *rdma_create_event_channel(void)
{
	int fd[2];
	struct rv_evch *c = calloc(1, sizeof *c);
	if (!c || rv_pipe(fd)) {
		free(c);
		return NULL;
	}
	c->ch.fd = fd[0];
	c->write = fd[1];
	c->magic = ALIVE;
	fcntl(fd[1], F_SETPIPE_SZ, 1 << 20); /* three thousand events */
	return &c->ch;
}
PUBLIC void rdma_destroy_event_channel(struct rdma_event_channel *ch)
{
	struct rv_evch *c = (void *)ch;
	if (c->magic != ALIVE)
		return;
	c->magic = 0;
	close(ch->fd);
	rv_close_late(c->write);
	rv_bury(c);
}

static int write_fd(struct rv_id *x) { return ((struct rv_evch *)x->id.channel)->write; }

int rv_cm_post(struct rv_id *x, struct rv_cm_event *e)
{
	e->id = x->handle;
	return write(write_fd(x), e, sizeof *e) == sizeof *e ? 0 : ENOBUFS;
}
static int post(struct rv_id *x, enum rdma_cm_event_type t)
{
	struct rv_cm_event e = {.event = t};
	return rv_cm_post(x, &e);
}

static struct rv_id *new_id(struct rdma_event_channel *ch, void *ctx, enum rdma_port_space ps)
{
	struct rv_id *x = calloc(1, sizeof *x);
	if (!x)
		return NULL;
	x->id.context = ctx;
	x->id.ps = ps;
	x->id.qp_type = ps == RDMA_PS_UDP || ps == RDMA_PS_IPOIB ? IBV_QPT_UD : IBV_QPT_RC;
	x->id.channel = ch;
	pthread_mutex_init(&x->lock, NULL);
	pthread_cond_init(&x->cond, NULL);
	x->handle = rv_handle(x);
	x->magic = ALIVE;
	return x;
}

PUBLIC int rdma_create_id(struct rdma_event_channel *ch, struct rdma_cm_id **id, void *ctx, enum rdma_port_space ps)
{
	if (ps != RDMA_PS_TCP && ps != RDMA_PS_UDP && ps != RDMA_PS_IB)
		return FAILED(EPROTONOSUPPORT);
	int sync = !ch;
	if (sync && !(ch = rdma_create_event_channel()))
		return -1;
	struct rv_id *x = new_id(ch, ctx, ps);
	if (!x)
		return FAILED(ENOMEM);
	x->sync = sync;
	*id = &x->id;
	return 0;
}

/* complete waits for the event of a call of a synchronous identifier. */
int rv_cm_complete(struct rv_id *x)
{
	if (!x->sync)
		return 0;
	if (x->id.event) {
		rdma_ack_cm_event(x->id.event);
		x->id.event = NULL;
	}
	if (rdma_get_cm_event(x->id.channel, &x->id.event))
		return -1;
	struct rdma_cm_event *e = x->id.event;
	if (!e->status)
		return 0;
	return FAILED(e->event == RDMA_CM_EVENT_REJECTED ? ECONNREFUSED : e->status < 0 ? -e->status : e->status);
}

static void copy_addr(struct sockaddr_storage *to, const struct sockaddr *a) { memcpy(to, a, size_of(a)); }

PUBLIC int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *a)
{
	struct rv_id *x = ID(id);
	uint8_t g[16];
	NEED(x->magic != ALIVE ? EINVAL : rv_cm_gid(a, g));
	if (!any(a))
		NEED(attach(x, a));
	copy_addr(&id->route.addr.src_storage, a);
	if (!port_of(a))
		((struct sockaddr_in *)&id->route.addr.src_addr)->sin_port = htons(32768 + (rand() ^ getpid()) % 28000);
	x->bound = 1;
	return 0;
}

PUBLIC int rdma_resolve_addr(struct rdma_cm_id *id, struct sockaddr *src, struct sockaddr *dst, int timeout)
{
	struct rv_id *x = ID(id);
	uint8_t g[16];
	NEED(!id || x->magic != ALIVE ? EINVAL : rv_cm_gid(dst, g));
	if (!src && x->bound)
		src = &id->route.addr.src_addr;
	uint16_t port = src ? port_of(src) : 0;
	NEED(attach(x, src));
	sockaddr_of(&id->route.addr.src_addr, rv_sh->gid, port ? port : 32768 + (rand() ^ getpid()) % 28000);
	copy_addr(&id->route.addr.dst_storage, dst);
	if (id->route.addr.src_addr.sa_family != dst->sa_family)
		return FAILED(ENETUNREACH);
	set_path(x);
	NEED(post(x, RDMA_CM_EVENT_ADDR_RESOLVED));
	return rv_cm_complete(x);
}
PUBLIC int rdma_resolve_route(struct rdma_cm_id *id, int timeout)
{
	NEED(!id->verbs ? EINVAL : post(ID(id), RDMA_CM_EVENT_ROUTE_RESOLVED));
	return rv_cm_complete(ID(id));
}

static void param_of(struct rv_id *x, struct rv_cm_param *p, const struct rdma_conn_param *c)
{
	*p = (struct rv_cm_param){.id = x->handle, .events = write_fd(x), .qp = (void *)x->id.qp, .call = x->call, .ps = x->id.ps,
		.port = port_of(&x->id.route.addr.dst_addr), .sport = port_of(&x->id.route.addr.src_addr), .tos = x->tos, .timeout = x->ack_timeout};
	rv_cm_gid(&x->id.route.addr.dst_addr, p->remote);
	if (x->id.qp)
		p->qpn = x->id.qp->qp_num;
	p->qkey = RDMA_UDP_QKEY;
	if (!c) {
		p->resources = p->depth = 0xff;
		p->retry = p->rnr = 7;
		return;
	}
	p->resources = c->responder_resources;
	p->depth = c->initiator_depth;
	p->flow = c->flow_control;
	p->retry = c->retry_count;
	p->rnr = c->rnr_retry_count;
	p->srq = x->id.qp ? x->id.qp->srq != NULL : c->srq;
	if (!x->id.qp)
		p->qpn = c->qp_num;
	p->len = c->private_data_len;
	if (c->private_data_len > sizeof p->data)
		p->len = sizeof p->data;
	if (p->len && c->private_data)
		memcpy(p->data, c->private_data, p->len);
}

static int call(struct rv_id *x, uint32_t op, struct rv_cm_param *p)
{
	struct rv_cmd c = {.op = op, .attr = p};
	int err = rv_command(&c);
	if (!err && p->call)
		x->call = p->call;
	return err;
}

PUBLIC int rdma_listen(struct rdma_cm_id *id, int backlog)
{
	struct rv_id *x = ID(id);
	struct rv_cm_param p;
	NEED(x->magic != ALIVE ? EINVAL : 0);
	if (!x->bound) {
		struct sockaddr_in a = {.sin_family = AF_INET};
		if (rdma_bind_addr(id, (void *)&a))
			return -1;
	}
	NEED(device(&id->route.addr.src_addr));
	param_of(x, &p, NULL);
	p.port = p.sport;
	p.backlog = backlog;
	NEED(call(x, RV_CM_LISTEN, &p));
	x->listening = 1;
	return 0;
}

PUBLIC int rdma_connect(struct rdma_cm_id *id, struct rdma_conn_param *c)
{
	struct rv_id *x = ID(id);
	struct rv_cm_param p;
	NEED(x->magic != ALIVE || !id->verbs ? EINVAL : 0);
	x->active = 1;
	param_of(x, &p, c);
	NEED(call(x, id->qp_type == IBV_QPT_UD ? RV_CM_SIDR : RV_CM_CONNECT, &p));
	return rv_cm_complete(x);
}

PUBLIC int rdma_accept(struct rdma_cm_id *id, struct rdma_conn_param *c)
{
	struct rv_id *x = ID(id);
	struct rv_cm_param p;
	NEED(x->magic != ALIVE || !x->call ? EINVAL : 0);
	param_of(x, &p, c);
	NEED(call(x, RV_CM_ACCEPT, &p));
	return id->qp_type == IBV_QPT_UD ? 0 : rv_cm_complete(x);
}
PUBLIC int rdma_reject(struct rdma_cm_id *id, const void *data, uint8_t len)
{
	struct rv_cm_param p;
	struct rdma_conn_param c = {.private_data = data, .private_data_len = len};
	param_of(ID(id), &p, &c);
	NEED(call(ID(id), RV_CM_REJECT, &p));
	return 0;
}
PUBLIC int rdma_reject_ece(struct rdma_cm_id *id, const void *data, uint8_t len) { return rdma_reject(id, data, len); }
PUBLIC int rdma_disconnect(struct rdma_cm_id *id)
{
	struct rv_cm_param p;
	NEED(ID(id)->magic != ALIVE ? EINVAL : 0);
	param_of(ID(id), &p, NULL);
	NEED(call(ID(id), RV_CM_DISCONNECT, &p));
	return rv_cm_complete(ID(id));
}
PUBLIC int rdma_notify(struct rdma_cm_id *id, enum ibv_event_type event) { return 0; }

PUBLIC int rdma_destroy_id(struct rdma_cm_id *id)
{
	struct rv_id *x = ID(id);
	struct rv_cm_param p;
	NEED(x->magic != ALIVE ? EINVAL : 0);
	if (x->call || x->listening) {
		param_of(x, &p, NULL);
		p.port = p.sport;
		p.backlog = x->listening;
		call(x, RV_CM_DESTROY, &p);
	}
	rv_unhandle(x->handle);
	if (id->event) {
		rdma_ack_cm_event(id->event);
		id->event = NULL;
	}
	pthread_mutex_lock(&x->lock);
	while (x->got != x->acked)
		pthread_cond_wait(&x->cond, &x->lock);
	pthread_mutex_unlock(&x->lock);
	x->magic = 0;
	if (x->sync)
		rdma_destroy_event_channel(id->channel);
	rv_bury(x);
	return 0;
}

/* Events. */

PUBLIC int rdma_get_cm_event(struct rdma_event_channel *ch, struct rdma_cm_event **out)
{
	struct rv_cm_event e;
	NEED(((struct rv_evch *)ch)->magic != ALIVE ? EINVAL : 0);
	for (;;) {
		ssize_t n = read(ch->fd, &e, sizeof e);
		if (n != sizeof e)
			return n < 0 ? -1 : FAILED(EIO);
		struct rv_id *x = rv_object(e.id);
		if (!x)
			continue; /* it was destroyed since */
		struct rv_ev *v = calloc(1, sizeof *v);
		if (!v)
			return FAILED(ENOMEM);
		v->magic = ALIVE;
		v->ev = (struct rdma_cm_event){.id = &x->id, .event = e.event, .status = e.status};
		memcpy(v->data, e.data, sizeof e.data);
		if (e.event == RDMA_CM_EVENT_CONNECT_REQUEST) {
			struct rv_id *child = new_id(x->id.channel, x->id.context, x->id.ps);
			if (!child) {
				free(v);
				return FAILED(ENOMEM);
			}
			child->call = e.call;
			attach(child, NULL);
			sockaddr_of(&child->id.route.addr.src_addr, rv_sh->gid, port_of(&x->id.route.addr.src_addr));
			sockaddr_of(&child->id.route.addr.dst_addr, e.remote, e.rport);
			set_path(child);
			v->ev.id = &child->id;
			v->ev.listen_id = &x->id;
			x = child;
		}
		if (e.is_ud) {
			struct rdma_ud_param *u = &v->ev.param.ud;
			*u = (struct rdma_ud_param){.private_data = v->data, .private_data_len = e.len, .qp_num = e.qpn, .qkey = e.qkey};
			u->ah_attr.is_global = u->ah_attr.port_num = 1;
			u->ah_attr.grh.hop_limit = 64;
			memcpy(u->ah_attr.grh.dgid.raw, e.remote, 16);
		} else
			v->ev.param.conn = (struct rdma_conn_param){.private_data = v->data, .private_data_len = e.len, .responder_resources = e.resources,
				.initiator_depth = e.depth, .flow_control = e.flow, .retry_count = e.retry, .rnr_retry_count = e.rnr, .srq = e.srq, .qp_num = e.qpn};
		if (!e.len)
			v->ev.param.conn.private_data = NULL;
		if (e.event == RDMA_CM_EVENT_MULTICAST_JOIN) {
			memcpy(&v->ev.param.ud.private_data, e.data, sizeof(void *)); /* the program's */
			if (x->id.qp)
				v->ev.status = -ibv_attach_mcast(x->id.qp, &v->ev.param.ud.ah_attr.grh.dgid, 0);
			if (v->ev.status)
				v->ev.event = RDMA_CM_EVENT_MULTICAST_ERROR;
		}
		if (e.event == RDMA_CM_EVENT_CONNECT_REQUEST || (e.event == RDMA_CM_EVENT_ESTABLISHED && x->active)) {
			x->peer_qpn = e.qpn;
			x->resources = e.resources, x->depth = e.depth, x->retry = e.retry, x->rnr = e.rnr;
		}
		if (x->id.qp && e.event == RDMA_CM_EVENT_ESTABLISHED)
			x->id.qp->state = IBV_QPS_RTS;
		else if (e.event == RDMA_CM_EVENT_ESTABLISHED && x->active && !e.is_ud)
			v->ev.event = RDMA_CM_EVENT_CONNECT_RESPONSE; /* the program has the QP, and says rdma_establish */
		pthread_mutex_lock(&x->lock);
		x->got++;
		pthread_mutex_unlock(&x->lock);
		*out = &v->ev;
		return 0;
	}
}
PUBLIC int rdma_ack_cm_event(struct rdma_cm_event *e)
{
	struct rv_ev *v = (void *)e;
	if (!e || v->magic != ALIVE)
		return FAILED(EINVAL);
	v->magic = 0;
	struct rv_id *x = ID(e->id);
	pthread_mutex_lock(&x->lock);
	x->acked++;
	pthread_cond_signal(&x->cond);
	pthread_mutex_unlock(&x->lock);
	rv_bury(v);
	return 0;
}
PUBLIC int rdma_migrate_id(struct rdma_cm_id *id, struct rdma_event_channel *ch)
{
	struct rv_id *x = ID(id);
	struct rv_cm_param p;
	NEED(x->magic != ALIVE ? EINVAL : 0);
	int own = x->sync;
	struct rdma_event_channel *old = id->channel;
	if (!ch && !(ch = rdma_create_event_channel()))
		return -1;
	else
		x->sync = 0;
	id->channel = ch;
	param_of(x, &p, NULL);
	struct rv_cmd c = {.op = RV_CM_MIGRATE, .attr = &p};
	if (rv_live())
		rv_command(&c);
	if (own) {
		if (id->event)
			rdma_ack_cm_event(id->event);
		id->event = NULL;
		rdma_destroy_event_channel(old);
	}
	return 0;
}
