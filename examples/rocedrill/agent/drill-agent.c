/*
 * drill-agent: the device's end of rocedrill. It makes queue pairs and memory regions, posts
 * what it is told, and says what completed. It is one file of whatever length, so that it
 * can be copied to the device's host and compiled there.
 *
 *     cc -O2 -o drill-agent drill-agent.c -libverbs
 *     ./drill-agent [-d DEVICE] [-i PORT-OF-DEVICE] [-p TCP-PORT] [-a ADDRESS]
 *
 * It serves one connection at a time, at TCP port 7175 of all addresses unless told otherwise,
 * and authenticates nobody: run it on a lab's network only. A command is one line of words, and
 * so is its reply: "ok KEY=VALUE... | KEY=VALUE..." or "err TEXT". When the connection ends,
 * all that was made is destroyed.
 *
 *   info                                   device= kernel= boot= and what it can: flush= atomic_write= mw= mcast= xrc=
 *   reset                                  destroys everything
 *   mr size= access=LETTERS [pd=1]         mr= addr= rkey=; rights r w a, b binds windows, f flush
 *   dereg mr=
 *   poke mr= off= len= hex=                writes; peek mr= off= len= reads: hex=
 *   srq recvs= [xrc=1]                     srq= srqn=
 *   qp type= access= [srq= qkey=]          qp= qpn=, in INIT; rc uc ud xrc_send xrc_recv (of which srq= completes)
 *   connect qp= dqpn= psn= rpsn= dgid=     to RTS; mtu= timeout= retry= rnr= min_rnr= rd_atomic= dest_rd_atomic=
 *   modify qp= state=err|sqd, query qp= (state=), destroy qp=
 *   mcast qp= gid=                         joins an IPv4 group
 *   mw qp= mr= off= len= access=           binds a type 2 window: mw= rkey= addr=
 *   recv qp=|srq= mr= off= len= id=
 *   post qp= op= mr= off= len= id=         send send_imm send_inv write write_imm read cswap fadd flush
 *        atomic_write; raddr= rkey= imm= inv= cmp= swap= add= flush_len= solicited= fence= dgid= dqpn= qkey= srqn=
 *   poll qp= ms=                           waits for completions: a group each, id= status= op= len= imm=
 *   events                                 asynchronous events since the last time: name= qpn=
 *   log                                    lines= of warnings, oopses and the like in the kernel's log since the
 *                                          last time, the first as text= with ~ for spaces
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <netinet/tcp.h>
#include <rdma/rdma_user_rxe.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

enum { OBJECTS = 256, BIND_ID = 0x42494e44 };
enum kind { NONE, MR, SRQ, QP, MW };

/* What a handle stands for: its index, plus one. */
static struct object {
	enum kind kind;
	void *verbs; /* ibv_mr, ibv_srq, ibv_qp or ibv_mw */
	uint8_t *mem;
	size_t size;
	struct ibv_cq *cq;
	int shared; /* the CQ is that of a SRQ */
	struct ibv_ah *ah[16];
	int nah, access;
	struct rxe_queue_buf *sq;
} objects[OBJECTS];

static struct ibv_context *device;
static struct ibv_pd *domains[2];
static struct ibv_xrcd *xrc_domain;
static int device_port = 1, kmsg = -1, group = -1;

static char reply[1 << 20];
static size_t replied;
static char *args[64];
static int nargs;

static void add(const char *format, ...)
{
	va_list ap;

	va_start(ap, format);
	replied += vsnprintf(reply + replied, sizeof reply - replied, format, ap);
	va_end(ap);
	if (replied >= sizeof reply)
		replied = sizeof reply - 1;
}

/* Replaces the reply by an error: the text, and what a errno value means. */
static void refuse(const char *what, int error)
{
	replied = 0;
	add(error ? "err %s: %s" : "err %s", what, strerror(error));
}

static const char *arg(const char *key)
{
	size_t n = strlen(key);

	for (int i = 1; i < nargs; i++)
		if (strncmp(args[i], key, n) == 0 && args[i][n] == '=')
			return args[i] + n + 1;
	return NULL;
}

static uint64_t number(const char *key, uint64_t otherwise)
{
	const char *s = arg(key);

	return s ? strtoull(s, NULL, 0) : otherwise;
}

static struct object *find(enum kind kind, const char *key)
{
	uint64_t i = number(key, 0);

	return i >= 1 && i <= OBJECTS && objects[i - 1].kind == kind ? &objects[i - 1] : NULL;
}

static struct object *keep(enum kind kind, void *verbs)
{
	for (int i = 0; i < OBJECTS; i++) {
		if (objects[i].kind != NONE)
			continue;
		objects[i] = (struct object){ .kind = kind, .verbs = verbs };
		return &objects[i];
	}
	fprintf(stderr, "drill-agent: too many objects\n");
	exit(1);
}

static int handle(struct object *o) { return o - objects + 1; }

static int destroy(struct object *o)
{
	int rc = 0;

	switch (o->kind) {
	case QP:
		rc = ibv_destroy_qp(o->verbs);
		for (int i = 0; i < o->nah; i++)
			ibv_destroy_ah(o->ah[i]);
		if (!o->shared)
			ibv_destroy_cq(o->cq);
		break;
	case MW:
		rc = ibv_dealloc_mw(o->verbs);
		break;
	case MR:
		rc = o->verbs ? ibv_dereg_mr(o->verbs) : 0;
		free(o->mem);
		break;
	case SRQ:
		rc = ibv_destroy_srq(o->verbs);
		if (rc == 0 && o->cq)
			ibv_destroy_cq(o->cq);
		break;
	default:
		break;
	}
	if (rc == 0)
		o->kind = NONE;
	return rc;
}

/* Queue pairs go before what they use, and windows before them: a driver may wait for those. */
static void reset(void)
{
	static const enum kind order[] = { MW, QP, MR, SRQ };

	for (size_t k = 0; k < sizeof order / sizeof *order; k++)
		for (int i = 0; i < OBJECTS; i++)
			if (objects[i].kind == order[k])
				destroy(&objects[i]);
}

static int rights(const char *letters)
{
	int a = 0;

	for (; letters && *letters; letters++)
		switch (*letters) {
		case 'r': a |= IBV_ACCESS_REMOTE_READ; break;
		case 'w': a |= IBV_ACCESS_REMOTE_WRITE; break;
		case 'a': a |= IBV_ACCESS_REMOTE_ATOMIC; break;
		case 'b': a |= IBV_ACCESS_MW_BIND; break;
		case 'f': a |= 1 << 8; break; /* IBV_ACCESS_FLUSH_GLOBAL of newer headers */
		}
	return a;
}

static int is_rxe(void) { return strncmp(ibv_get_device_name(device->device), "rxe", 3) == 0; }

/* FLUSH and ATOMIC WRITE came with Linux 6.2; here they are posted to rxe only. */
static int has_flush(void)
{
	struct utsname u;
	int major = 0, minor = 0;

	uname(&u);
	return is_rxe() && sscanf(u.release, "%d.%d", &major, &minor) == 2 && major * 100 + minor >= 602;
}

static void info(void)
{
	struct ibv_device_attr d;
	struct utsname u;
	char boot[64] = "";
	FILE *f;
	int rc = ibv_query_device(device, &d);

	if (rc)
		return refuse("ibv_query_device", rc);
	uname(&u);
	f = fopen("/proc/sys/kernel/random/boot_id", "r"); /* tells whether the host started anew */
	if (f && fscanf(f, "%63s", boot) != 1)
		boot[0] = 0;
	if (f)
		fclose(f);
	add("ok device=%s kernel=%s boot=%s fw=%s flush=%d atomic_write=%d mw=%d mcast=%d xrc=%d", ibv_get_device_name(device->device), u.release, boot,
	    *d.fw_ver ? d.fw_ver : "none", has_flush(), has_flush(),
	    !!(d.device_cap_flags & (IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B)), d.max_mcast_grp > 0,
	    !!(d.device_cap_flags & IBV_DEVICE_XRC));
}

static void make_mr(void)
{
	struct object *o = keep(MR, NULL);

	o->size = number("size", 4096);
	o->mem = aligned_alloc(4096, (o->size + 4095) & ~4095ul);
	memset(o->mem, 0, o->size);
	o->access = IBV_ACCESS_LOCAL_WRITE | rights(arg("access"));
	o->verbs = ibv_reg_mr(domains[number("pd", 0) & 1], o->mem, o->size, o->access);
	if (!o->verbs) {
		int error = errno;

		destroy(o);
		return refuse("ibv_reg_mr", error);
	}
	add("ok mr=%d addr=0x%lx rkey=0x%x", handle(o), (unsigned long)o->mem, ((struct ibv_mr *)o->verbs)->rkey);
}

/* The part of a region that off= and len= name; NULL for none, with an error when it is bad. */
static uint8_t *part(struct object **region, size_t *len)
{
	struct object *o = *region = find(MR, "mr");
	size_t off = number("off", 0);

	*len = number("len", 0);
	if (!o) {
		if (*len)
			refuse("no such region", 0);
		return NULL;
	}
	if (off > o->size || *len > o->size - off) {
		refuse("outside the region", 0);
		*region = NULL;
		return NULL;
	}
	return o->mem + off;
}

static void poke(int write)
{
	struct object *o;
	size_t len;
	uint8_t *p = part(&o, &len);
	const char *hex = arg("hex");
	unsigned byte;

	if (!o)
		return;
	if (write) {
		for (size_t i = 0; i < len && hex && sscanf(hex + 2 * i, "%2x", &byte) == 1; i++)
			p[i] = byte;
		return add("ok");
	}
	add("ok hex=");
	for (size_t i = 0; i < len; i++)
		add("%02x", p[i]);
}

static void make_srq(void)
{
	struct ibv_srq_init_attr a = { .attr = { .max_wr = number("recvs", 64), .max_sge = 1 } };
	struct ibv_srq_init_attr_ex x = { .attr = a.attr, .comp_mask = IBV_SRQ_INIT_ATTR_TYPE | IBV_SRQ_INIT_ATTR_PD | IBV_SRQ_INIT_ATTR_XRCD |
					  IBV_SRQ_INIT_ATTR_CQ, .srq_type = IBV_SRQT_XRC, .pd = domains[0] };
	struct ibv_xrcd_init_attr d = { .comp_mask = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS, .fd = -1, .oflags = O_CREAT };
	struct ibv_srq *s;
	struct object *o;
	uint32_t num = 0;
	int error;

	if (!number("xrc", 0)) {
		if (!(s = ibv_create_srq(domains[0], &a)))
			return refuse("ibv_create_srq", errno);
		return add("ok srq=%d", handle(keep(SRQ, s)));
	}
	if (!xrc_domain && !(xrc_domain = ibv_open_xrcd(device, &d)))
		return refuse("ibv_open_xrcd", errno);
	x.xrcd = xrc_domain;
	if (!(x.cq = ibv_create_cq(device, 512, NULL, NULL, 0)))
		return refuse("ibv_create_cq", errno);
	if (!(s = ibv_create_srq_ex(device, &x)) || ibv_get_srq_num(s, &num)) {
		error = errno;
		if (s)
			ibv_destroy_srq(s);
		ibv_destroy_cq(x.cq);
		return refuse("ibv_create_srq_ex", error);
	}
	o = keep(SRQ, s);
	o->cq = x.cq;
	add("ok srq=%d srqn=%u", handle(o), num);
}

static void make_qp(void)
{
	static const struct { const char *name; enum ibv_qp_type type; } types[] = { { "rc", IBV_QPT_RC }, { "uc", IBV_QPT_UC },
		{ "ud", IBV_QPT_UD }, { "xrc_send", IBV_QPT_XRC_SEND }, { "xrc_recv", IBV_QPT_XRC_RECV } };
	const char *type = arg("type") ? arg("type") : "rc";
	struct object *srq = find(SRQ, "srq"), *o;
	struct ibv_qp_init_attr_ex a = {
		.qp_type = IBV_QPT_DRIVER,
		.cap = { .max_send_wr = 128, .max_recv_wr = 256, .max_send_sge = 1, .max_recv_sge = 1 },
		.comp_mask = IBV_QP_INIT_ATTR_PD,
		.pd = domains[0],
	};
	struct ibv_qp_attr init = { .qp_state = IBV_QPS_INIT, .port_num = device_port,
				    .qp_access_flags = rights(arg("access")), .qkey = number("qkey", 0x11111111) };
	struct ibv_cq *cq;
	struct ibv_qp *q;
	int rc, shared = 0;

	for (size_t i = 0; i < sizeof types / sizeof *types; i++)
		if (strcmp(types[i].name, type) == 0)
			a.qp_type = types[i].type;
	if (a.qp_type == IBV_QPT_DRIVER)
		return refuse("no such type of queue pair", 0);
	if (a.qp_type == IBV_QPT_XRC_RECV) {
		if (!srq || !srq->cq)
			return refuse("needs a SRQ with xrc=1", 0);
		a = (struct ibv_qp_init_attr_ex){ .qp_type = IBV_QPT_XRC_RECV, .comp_mask = IBV_QP_INIT_ATTR_XRCD, .xrcd = xrc_domain };
		cq = srq->cq;
		shared = 1;
	} else {
		if (!(cq = ibv_create_cq(device, 512, NULL, NULL, 0)))
			return refuse("ibv_create_cq", errno);
		a.send_cq = a.recv_cq = cq;
		a.srq = srq ? srq->verbs : NULL;
		if (a.qp_type == IBV_QPT_XRC_SEND) {
			a.cap.max_recv_wr = a.cap.max_recv_sge = 0;
			a.recv_cq = NULL;
		}
	}
	if (a.qp_type == IBV_QPT_RC && has_flush()) {
		a.comp_mask |= IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
		a.send_ops_flags = IBV_QP_EX_WITH_RDMA_WRITE;
	}
	q = ibv_create_qp_ex(device, &a);
	if (!q) {
		rc = errno;
		if (!shared)
			ibv_destroy_cq(cq);
		return refuse("ibv_create_qp", rc);
	}
	o = keep(QP, q);
	o->cq = cq;
	o->shared = shared;
	rc = ibv_modify_qp(q, &init, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT |
			   (a.qp_type == IBV_QPT_UD ? IBV_QP_QKEY : IBV_QP_ACCESS_FLAGS));
	if (rc) {
		destroy(o);
		return refuse("to INIT", rc);
	}
	add("ok qp=%d qpn=%u", handle(o), q->qp_num);
}

static int gid_of(const char *text, union ibv_gid *g)
{
	memset(g, 0, sizeof *g);
	g->raw[10] = g->raw[11] = 0xff;
	return text && (inet_pton(AF_INET, text, g->raw + 12) == 1 || inet_pton(AF_INET6, text, g->raw) == 1);
}

/* The first RoCE v2 GID of the family of far, or -1. */
static int own_gid(const union ibv_gid *far, uint32_t *interface)
{
	static const uint8_t mapped[12] = { [10] = 0xff, [11] = 0xff };

	for (int i = 0; i < 256; i++) {
		struct ibv_gid_entry e;

		if (ibv_query_gid_ex(device, device_port, i, &e, 0) || e.gid_type != IBV_GID_TYPE_ROCE_V2)
			continue;
		if (e.gid.raw[0] == 0xfe && far->raw[0] != 0xfe)
			continue;
		if (!memcmp(e.gid.raw, mapped, 12) != !memcmp(far->raw, mapped, 12))
			continue;
		*interface = e.ndev_ifindex;
		return i;
	}
	return -1;
}

/* The address vector to dgid=, from the RoCE v2 GID of the same family. */
static int vector(struct ibv_ah_attr *av)
{
	union ibv_gid far;
	uint32_t interface;
	int own;

	memset(av, 0, sizeof *av);
	if (!gid_of(arg("dgid"), &far)) {
		refuse("dgid is no address", 0);
		return -1;
	}
	av->is_global = 1;
	av->port_num = device_port;
	av->grh.dgid = far;
	av->grh.hop_limit = 64;
	av->grh.traffic_class = number("tclass", 0);
	if ((own = own_gid(&far, &interface)) >= 0) {
		av->grh.sgid_index = own;
		return 0;
	}
	refuse("the device has no RoCE v2 address of that family", 0);
	return -1;
}

static void connect_qp(struct object *o)
{
	struct ibv_qp *q = o->verbs;
	int rc, mtu = number("mtu", 1024), rtr = IBV_QP_STATE, rts = IBV_QP_STATE | IBV_QP_SQ_PSN;
	struct ibv_qp_attr a = { .qp_state = IBV_QPS_RTR, .dest_qp_num = number("dqpn", 0), .rq_psn = number("rpsn", 0),
				 .max_dest_rd_atomic = number("dest_rd_atomic", 16), .min_rnr_timer = number("min_rnr", 12) };
	struct ibv_qp_attr b = { .qp_state = IBV_QPS_RTS, .sq_psn = number("psn", 0), .timeout = number("timeout", 18),
				 .retry_cnt = number("retry", 7), .rnr_retry = number("rnr", 7),
				 .max_rd_atomic = number("rd_atomic", 16) };

	for (a.path_mtu = IBV_MTU_256; 128 << a.path_mtu < mtu; a.path_mtu++)
		;
	if (q->qp_type != IBV_QPT_UD) {
		if (vector(&a.ah_attr))
			return;
		rtr |= IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN;
	}
	if (q->qp_type == IBV_QPT_RC || q->qp_type == IBV_QPT_XRC_RECV)
		rtr |= IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER;
	if (q->qp_type == IBV_QPT_RC || q->qp_type == IBV_QPT_XRC_SEND)
		rts |= IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC;
	if (q->qp_type != IBV_QPT_UC && q->qp_type != IBV_QPT_UD)
		rts |= IBV_QP_TIMEOUT;
	if ((rc = ibv_modify_qp(q, &a, rtr)))
		return refuse("to RTR", rc);
	if ((rc = ibv_modify_qp(q, &b, rts)))
		return refuse("to RTS", rc);
	add("ok");
}

static void modify(struct object *o)
{
	const char *state = arg("state");
	struct ibv_qp_attr a = { .qp_state = state && strcmp(state, "sqd") == 0 ? IBV_QPS_SQD : IBV_QPS_ERR };
	int rc = ibv_modify_qp(o->verbs, &a, IBV_QP_STATE);

	if (rc)
		return refuse("ibv_modify_qp", rc);
	add("ok");
}

static void query(struct object *o)
{
	static const char *const states[] = { "reset", "init", "rtr", "rts", "sqd", "sqe", "err" };
	struct ibv_qp_init_attr init;
	struct ibv_qp_attr a;
	int rc = ibv_query_qp(o->verbs, &a, IBV_QP_STATE, &init);

	if (rc)
		return refuse("ibv_query_qp", rc);
	add("ok state=%s", (unsigned)a.qp_state < 7 ? states[a.qp_state] : "unknown");
}

/* Joins a group, on the network as well: a socket of its own holds the membership. */
static void join(struct object *o)
{
	union ibv_gid g;
	struct ip_mreqn m = { .imr_ifindex = 0 };
	uint32_t interface;
	int rc;

	if (!gid_of(arg("gid"), &g))
		return refuse("gid is no address", 0);
	if (own_gid(&g, &interface) < 0)
		return refuse("the device has no address of that family", 0);
	memcpy(&m.imr_multiaddr, g.raw + 12, 4);
	m.imr_ifindex = interface;
	if (group < 0)
		group = socket(AF_INET, SOCK_DGRAM, 0);
	if (setsockopt(group, IPPROTO_IP, IP_ADD_MEMBERSHIP, &m, sizeof m) && errno != EADDRINUSE)
		return refuse("joining the group", errno);
	if ((rc = ibv_attach_mcast(o->verbs, &g, 0)))
		return refuse("ibv_attach_mcast", rc);
	add("ok");
}

static double seconds(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

static void window(struct object *o)
{
	struct object *m;
	size_t len;
	uint8_t *p = part(&m, &len);
	struct ibv_send_wr wr = { .wr_id = BIND_ID, .opcode = IBV_WR_BIND_MW, .send_flags = IBV_SEND_SIGNALED }, *bad;
	struct ibv_mw *w;
	struct ibv_wc wc;
	int rc;

	if (!m)
		return;
	if (!(w = ibv_alloc_mw(domains[0], IBV_MW_TYPE_2)))
		return refuse("ibv_alloc_mw", errno);
	wr.bind_mw.mw = w;
	wr.bind_mw.rkey = ibv_inc_rkey(w->rkey);
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){ m->verbs, (uintptr_t)p, len, rights(arg("access")) };
	if ((rc = ibv_post_send(o->verbs, &wr, &bad))) {
		ibv_dealloc_mw(w);
		return refuse("BIND_MW", rc);
	}
	for (double end = seconds() + 2; ibv_poll_cq(o->cq, 1, &wc) != 1 && seconds() < end;)
		usleep(100);
	add("ok mw=%d rkey=0x%x addr=0x%lx", handle(keep(MW, w)), wr.bind_mw.rkey, (unsigned long)p);
}

static void receive(void)
{
	struct object *q = find(QP, "qp"), *s = find(SRQ, "srq"), *m;
	size_t len;
	uint8_t *p = part(&m, &len);
	struct ibv_sge sge = { (uintptr_t)p, len, m && m->verbs ? ((struct ibv_mr *)m->verbs)->lkey : 0 };
	struct ibv_recv_wr wr = { .wr_id = number("id", 0), .sg_list = &sge, .num_sge = len ? 1 : 0 }, *bad;
	int rc = EINVAL;

	if (len && !m)
		return;
	if (s)
		rc = ibv_post_srq_recv(s->verbs, &wr, &bad);
	else if (q)
		rc = ibv_post_recv(q->verbs, &wr, &bad);
	if (rc)
		return refuse("receive", rc);
	add("ok");
}

/*
 * rdma-core 44 cannot post FLUSH and ATOMIC WRITE, the kernel's driver can. The send queue is
 * memory that both share: a WRITE is put there through the extended calls, found by its ID,
 * and made another request before the kernel is told of it.
 */
static int post_to_rxe(struct object *o, struct ibv_send_wr *wr, int flush)
{
	struct ibv_qp_ex *x = ibv_qp_to_qp_ex(o->verbs);
	static uint64_t mark = 0xd1117ull << 32;
	struct rxe_send_wqe *w = NULL;
	char line[256];
	FILE *maps;

	if (!x || !has_flush())
		return EOPNOTSUPP;
	ibv_wr_start(x);
	x->wr_id = ++mark;
	x->wr_flags = wr->send_flags;
	ibv_wr_rdma_write(x, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr);
	ibv_wr_set_sge(x, wr->sg_list->lkey, wr->sg_list->addr, wr->sg_list->length);
	maps = fopen("/proc/self/maps", "r");
	while (!w && maps && fgets(line, sizeof line, maps)) {
		unsigned long from, to;
		struct rxe_queue_buf *b;
		struct rxe_send_wqe *e;

		if (!strstr(line, "/uverbs") || sscanf(line, "%lx-%lx", &from, &to) != 2)
			continue;
		b = (void *)from;
		e = (void *)(b->data + ((size_t)(b->producer_index & b->index_mask) << b->log2_elem_size));
		if ((unsigned long)(e + 1) <= to && e->wr.wr_id == mark)
			w = e;
	}
	if (maps)
		fclose(maps);
	if (!w) {
		ibv_wr_abort(x);
		return EPROTO;
	}
	w->wr.wr_id = wr->wr_id;
	w->wr.opcode = flush ? 14 : 15; /* IB_WR_FLUSH, IB_WR_ATOMIC_WRITE */
	w->dma.num_sge = 0;
	if (flush) {
		struct { uint64_t addr; uint32_t length, rkey; uint8_t type, level; } f = {
			wr->wr.rdma.remote_addr, number("flush_len", 0), wr->wr.rdma.rkey, 1, 0 };

		memcpy(&w->wr.wr, &f, sizeof f);
		w->dma.length = w->dma.resid = f.length;
	} else {
		memcpy(w->dma.inline_data, (void *)(uintptr_t)wr->sg_list->addr, 8);
	}
	return ibv_wr_complete(x);
}

static void post(struct object *o)
{
	static const struct { const char *name; int opcode; } ops[] = {
		{ "send", IBV_WR_SEND }, { "send_imm", IBV_WR_SEND_WITH_IMM }, { "send_inv", IBV_WR_SEND_WITH_INV },
		{ "write", IBV_WR_RDMA_WRITE }, { "write_imm", IBV_WR_RDMA_WRITE_WITH_IMM }, { "read", IBV_WR_RDMA_READ },
		{ "cswap", IBV_WR_ATOMIC_CMP_AND_SWP }, { "fadd", IBV_WR_ATOMIC_FETCH_AND_ADD }, { "flush", -1 }, { "atomic_write", -2 } };
	const char *name = arg("op");
	struct object *m;
	size_t len;
	uint8_t *p = part(&m, &len);
	struct ibv_sge sge = { (uintptr_t)p, len, m ? ((struct ibv_mr *)m->verbs)->lkey : 0 };
	struct ibv_send_wr wr = { .wr_id = number("id", 0), .sg_list = &sge, .num_sge = len ? 1 : 0, .send_flags = IBV_SEND_SIGNALED }, *bad;
	int opcode = -3, rc;

	if (len && !m)
		return;
	for (size_t i = 0; i < sizeof ops / sizeof *ops; i++)
		if (name && strcmp(ops[i].name, name) == 0)
			opcode = ops[i].opcode;
	if (opcode == -3)
		return refuse("no such operation", 0);
	wr.opcode = opcode;
	wr.send_flags |= (number("solicited", 0) ? IBV_SEND_SOLICITED : 0) | (number("fence", 0) ? IBV_SEND_FENCE : 0);
	if (opcode == IBV_WR_SEND_WITH_INV)
		wr.invalidate_rkey = number("inv", 0);
	else
		wr.imm_data = htonl(number("imm", 0));
	if (opcode == IBV_WR_ATOMIC_CMP_AND_SWP || opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		wr.wr.atomic.remote_addr = number("raddr", 0);
		wr.wr.atomic.rkey = number("rkey", 0);
		wr.wr.atomic.compare_add = number("cmp", number("add", 0));
		wr.wr.atomic.swap = number("swap", 0);
	} else {
		wr.wr.rdma.remote_addr = number("raddr", 0);
		wr.wr.rdma.rkey = number("rkey", 0);
	}
	if (((struct ibv_qp *)o->verbs)->qp_type == IBV_QPT_UD) {
		struct ibv_ah_attr av;

		if (vector(&av))
			return;
		if (o->nah == 16 || !(o->ah[o->nah] = ibv_create_ah(domains[0], &av)))
			return refuse("ibv_create_ah", errno);
		wr.wr.ud.ah = o->ah[o->nah++];
		wr.wr.ud.remote_qpn = number("dqpn", 0);
		wr.wr.ud.remote_qkey = number("qkey", 0x11111111);
	}
	if (((struct ibv_qp *)o->verbs)->qp_type == IBV_QPT_XRC_SEND)
		wr.qp_type.xrc.remote_srqn = number("srqn", 0);
	rc = opcode < 0 ? post_to_rxe(o, &wr, opcode == -1) : ibv_post_send(o->verbs, &wr, &bad);
	if (rc)
		return refuse("post", rc < 0 ? -rc : rc);
	add("ok");
}

static const char *status_text(int s)
{
	static const char *const names[] = { "SUCCESS", "LOC_LEN_ERR", "LOC_QP_OP_ERR", "LOC_EEC_OP_ERR", "LOC_PROT_ERR", "WR_FLUSH_ERR",
		"MW_BIND_ERR", "BAD_RESP_ERR", "LOC_ACCESS_ERR", "REM_INV_REQ_ERR", "REM_ACCESS_ERR", "REM_OP_ERR", "RETRY_EXC_ERR",
		"RNR_RETRY_EXC_ERR" };

	return (size_t)s < sizeof names / sizeof *names ? names[s] : "OTHER";
}

static const char *op_text(int op)
{
	switch (op) {
	case IBV_WC_SEND: return "SEND";
	case IBV_WC_RDMA_WRITE: return "RDMA_WRITE";
	case IBV_WC_RDMA_READ: return "RDMA_READ";
	case IBV_WC_COMP_SWAP: return "ATOMIC_CMP_AND_SWP";
	case IBV_WC_FETCH_ADD: return "ATOMIC_FETCH_AND_ADD";
	case IBV_WC_RECV: return "RECV";
	case IBV_WC_RECV_RDMA_WITH_IMM: return "RECV_RDMA_WITH_IMM";
	case 8: return "FLUSH";
	case 9: return "ATOMIC_WRITE";
	default: return "OTHER";
	}
}

static void poll_cq(struct object *o)
{
	double end = seconds() + number("ms", 0) / 1e3;
	struct ibv_wc wc;
	int n = 0, rc;

	add("ok");
	for (;;) {
		while ((rc = ibv_poll_cq(o->cq, 1, &wc)) == 1) {
			n++;
			add(" | id=%llu status=%s", (unsigned long long)wc.wr_id, status_text(wc.status));
			if (wc.status != IBV_WC_SUCCESS)
				continue; /* the rest means nothing */
			add(" op=%s len=%u src_qp=%u", op_text(wc.opcode), wc.byte_len, wc.src_qp);
			if (wc.wc_flags & IBV_WC_WITH_IMM)
				add(" imm=0x%x", ntohl(wc.imm_data));
		}
		if (rc < 0)
			return refuse("ibv_poll_cq", 0);
		if (n || seconds() >= end)
			return;
		usleep(200);
	}
}

static void events(void)
{
	static const struct { int type; const char *name; } names[] = {
		{ IBV_EVENT_QP_FATAL, "QP_FATAL" }, { IBV_EVENT_QP_REQ_ERR, "QP_REQ_ERR" }, { IBV_EVENT_QP_ACCESS_ERR, "QP_ACCESS_ERR" },
		{ IBV_EVENT_COMM_EST, "COMM_EST" }, { IBV_EVENT_SQ_DRAINED, "SQ_DRAINED" },
		{ IBV_EVENT_QP_LAST_WQE_REACHED, "QP_LAST_WQE_REACHED" } };
	struct ibv_async_event e;

	add("ok");
	while (ibv_get_async_event(device, &e) == 0) {
		for (size_t i = 0; i < sizeof names / sizeof *names; i++)
			if (names[i].type == (int)e.event_type)
				add(" | name=%s qpn=%u", names[i].name, e.element.qp->qp_num);
		ibv_ack_async_event(&e);
	}
}

/* Counts lines of the kernel's log that tell of trouble: critical ones, and whatever a warning or an
 * oops prints. */
static void kernel_log(void)
{
	static const char *const bad[] = { "WARNING:", "BUG:", "Oops", "general protection", "Call Trace", "stall", "hung task" };
	char b[8192], first[200] = "";
	ssize_t n;
	int lines = 0;

	while (kmsg >= 0 && ((n = read(kmsg, b, sizeof b - 1)) > 0 || (n < 0 && errno == EPIPE))) {
		char *text;
		int trouble;

		if (n < 0)
			continue; /* some were overwritten */
		b[n] = 0;
		trouble = (atoi(b) & 7) <= 2;
		if (!(text = strchr(b, ';')))
			continue;
		for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
			trouble |= strstr(text, bad[i]) != NULL;
		if (trouble && lines++ == 0)
			for (size_t i = 0; i + 1 < sizeof first && text[i + 1] && text[i + 1] != '\n'; i++)
				first[i] = isspace((unsigned char)text[i + 1]) || text[i + 1] == '|' ? '~' : text[i + 1];
	}
	add("ok lines=%d text=%s", lines, first);
}

static void command(void)
{
	const char *c = args[0];
	struct object *q = find(QP, "qp"), *m = find(MR, "mr");
	int rc = 0;

	if (strcmp(c, "info") == 0)
		return info();
	if (strcmp(c, "reset") == 0) {
		reset();
		return add("ok");
	}
	if (strcmp(c, "mr") == 0)
		return make_mr();
	if (strcmp(c, "dereg") == 0 && m) {
		rc = ibv_dereg_mr(m->verbs);
		if (rc == 0)
			m->verbs = NULL; /* the memory stays until reset */
		return rc ? refuse("ibv_dereg_mr", rc) : add("ok");
	}
	if (strcmp(c, "poke") == 0 || strcmp(c, "peek") == 0)
		return poke(c[1] == 'o');
	if (strcmp(c, "srq") == 0)
		return make_srq();
	if (strcmp(c, "qp") == 0)
		return make_qp();
	if (strcmp(c, "recv") == 0)
		return receive();
	if (strcmp(c, "events") == 0)
		return events();
	if (strcmp(c, "log") == 0)
		return kernel_log();
	if (!q)
		return refuse("no such command or object", 0);
	if (strcmp(c, "connect") == 0)
		return connect_qp(q);
	if (strcmp(c, "modify") == 0)
		return modify(q);
	if (strcmp(c, "query") == 0)
		return query(q);
	if (strcmp(c, "post") == 0)
		return post(q);
	if (strcmp(c, "poll") == 0)
		return poll_cq(q);
	if (strcmp(c, "mw") == 0)
		return window(q);
	if (strcmp(c, "destroy") == 0)
		return (rc = destroy(q)) ? refuse("ibv_destroy_qp", rc) : add("ok");
	if (strcmp(c, "mcast") == 0)
		return join(q);
	refuse("no such command", 0);
}

static void serve(FILE *in, int out)
{
	char *line = NULL, *save, *w;
	size_t size = 0;

	while (getline(&line, &size, in) > 0 && size <= sizeof reply) {
		nargs = 0;
		replied = 0;
		for (w = strtok_r(line, " \t\r\n", &save); w && nargs < 64; w = strtok_r(NULL, " \t\r\n", &save))
			args[nargs++] = w;
		if (!nargs)
			continue;
		command();
		add("\n");
		for (size_t at = 0; at < replied;) {
			ssize_t n = write(out, reply + at, replied - at);

			if (n <= 0)
				goto end;
			at += n;
		}
	}
end:
	free(line);
	reset();
}

static void die(const char *what)
{
	fprintf(stderr, "drill-agent: %s: %s\n", what, strerror(errno));
	exit(1);
}

int main(int argc, char **argv)
{
	struct sockaddr_in at = { .sin_family = AF_INET, .sin_port = htons(7175) };
	struct ibv_device **list = ibv_get_device_list(NULL);
	const char *name = NULL;
	int option, s, c, one = 1;

	while ((option = getopt(argc, argv, "d:i:p:a:h")) != -1) {
		switch (option) {
		case 'd': name = optarg; break;
		case 'i': device_port = atoi(optarg); break;
		case 'p': at.sin_port = htons(atoi(optarg)); break;
		case 'a':
			if (inet_pton(AF_INET, optarg, &at.sin_addr) == 1)
				break;
			/* fallthrough */
		default:
			fprintf(stderr, "usage: drill-agent [-d DEVICE] [-i PORT-OF-DEVICE] [-p TCP-PORT] [-a ADDRESS]\n");
			return 2;
		}
	}
	for (int i = 0; list && list[i] && !device; i++)
		if (!name || strcmp(name, ibv_get_device_name(list[i])) == 0)
			device = ibv_open_device(list[i]);
	if (!device) {
		fprintf(stderr, "drill-agent: no RDMA device%s%s; ibv_devices lists them\n", name ? " called " : "", name ? name : "");
		return 1;
	}
	for (int i = 0; i < 2; i++)
		if (!(domains[i] = ibv_alloc_pd(device)))
			die("ibv_alloc_pd");
	fcntl(device->async_fd, F_SETFL, fcntl(device->async_fd, F_GETFL) | O_NONBLOCK);
	kmsg = open("/dev/kmsg", O_RDONLY | O_NONBLOCK);
	if (kmsg >= 0)
		lseek(kmsg, 0, SEEK_END);
	signal(SIGPIPE, SIG_IGN);
	s = socket(AF_INET, SOCK_STREAM, 0);
	setsockopt(s, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (bind(s, (struct sockaddr *)&at, sizeof at) || listen(s, 1))
		die("listen");
	fprintf(stderr, "drill-agent: %s, TCP port %d\n", ibv_get_device_name(device->device), ntohs(at.sin_port));
	while ((c = accept(s, NULL, NULL)) >= 0) {
		FILE *in = fdopen(c, "r");
		int idle = 10, gap = 5, count = 3;

		/* A peer whose host went away frees the agent in half a minute. */
		setsockopt(c, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
		setsockopt(c, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof idle);
		setsockopt(c, IPPROTO_TCP, TCP_KEEPINTVL, &gap, sizeof gap);
		setsockopt(c, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof count);

		if (!in)
			die("fdopen");
		serve(in, c);
		fclose(in);
	}
	die("accept");
}
