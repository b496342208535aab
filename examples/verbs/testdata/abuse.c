/* A program that misuses verbs, or is misused: each case by name. It ends with 0 when the
 * errors were those that verbs have, and says what was wrong otherwise. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define CHECK(x)                                                                                   \
	do {                                                                                       \
		if (!(x)) {                                                                        \
			fprintf(stderr, "line %d: %s (errno %d)\n", __LINE__, #x, errno);          \
			exit(1);                                                                   \
		}                                                                                  \
	} while (0)

enum { SIZE = 1 << 16 };

static struct ibv_context *ctx;
static struct ibv_pd *pd;
static struct ibv_cq *cq;
static struct ibv_mr *mr;
static struct ibv_qp *a, *b; /* connected to each other */
static char *buf;
static union ibv_gid gid;

static struct ibv_qp *make_qp(int depth)
{
	struct ibv_qp_init_attr i = {.send_cq = cq, .recv_cq = cq, .qp_type = IBV_QPT_RC, .sq_sig_all = 1,
		.cap = {.max_send_wr = depth, .max_recv_wr = depth, .max_send_sge = 1, .max_recv_sge = 1}};
	struct ibv_qp *q = ibv_create_qp(pd, &i);
	CHECK(q);
	return q;
}

static void connect_qp(struct ibv_qp *q, uint32_t to, union ibv_gid *g)
{
	struct ibv_qp_attr t = {.qp_state = IBV_QPS_INIT, .port_num = 1, .qp_access_flags = IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ};
	CHECK(!ibv_modify_qp(q, &t, IBV_QP_STATE | IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS));
	t = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTR, .path_mtu = IBV_MTU_1024, .dest_qp_num = to, .max_dest_rd_atomic = 1, .min_rnr_timer = 1,
		.ah_attr = {.is_global = 1, .port_num = 1, .grh = {.dgid = *g, .hop_limit = 1}}};
	CHECK(!ibv_modify_qp(q, &t, IBV_QP_STATE | IBV_QP_AV | IBV_QP_PATH_MTU | IBV_QP_DEST_QPN | IBV_QP_RQ_PSN | IBV_QP_MAX_DEST_RD_ATOMIC | IBV_QP_MIN_RNR_TIMER));
	t = (struct ibv_qp_attr){.qp_state = IBV_QPS_RTS, .timeout = 10, .retry_cnt = 3, .rnr_retry = 7, .max_rd_atomic = 1};
	CHECK(!ibv_modify_qp(q, &t, IBV_QP_STATE | IBV_QP_SQ_PSN | IBV_QP_TIMEOUT | IBV_QP_RETRY_CNT | IBV_QP_RNR_RETRY | IBV_QP_MAX_QP_RD_ATOMIC));
}

static void open_all(int cqe)
{
	struct ibv_device **l = ibv_get_device_list(NULL);
	CHECK(l && l[0]);
	ctx = ibv_open_device(l[0]);
	CHECK(ctx);
	ibv_free_device_list(l);
	CHECK(pd = ibv_alloc_pd(ctx));
	CHECK(cq = ibv_create_cq(ctx, cqe, NULL, NULL, 0));
	buf = mmap(NULL, SIZE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	CHECK(mr = ibv_reg_mr(pd, buf, SIZE, IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ));
	CHECK(!ibv_query_gid(ctx, 1, 0, &gid));
	a = make_qp(16);
	b = make_qp(16);
	connect_qp(a, b->qp_num, &gid);
	connect_qp(b, a->qp_num, &gid);
}

static int write_at(struct ibv_qp *q, uint64_t from, uint64_t to, uint32_t n, enum ibv_wr_opcode op)
{
	struct ibv_sge s = {from, n, mr->lkey};
	struct ibv_send_wr w = {.wr_id = 7, .sg_list = &s, .num_sge = 1, .opcode = op, .wr.rdma = {to, mr->rkey}}, *bad;
	return ibv_post_send(q, &w, &bad);
}

/* next waits for a completion, five seconds at most. */
static struct ibv_wc next(void)
{
	struct ibv_wc wc;
	time_t end = time(NULL) + 20;
	int n;
	while (!(n = ibv_poll_cq(cq, 1, &wc)) && time(NULL) < end)
		;
	CHECK(n == 1);
	return wc;
}

static void works(void)
{
	strcpy(buf, "hello");
	CHECK(!write_at(a, (uintptr_t)buf, (uintptr_t)buf + 4096, 4000, IBV_WR_RDMA_WRITE));
	CHECK(next().status == IBV_WC_SUCCESS);
	CHECK(!strcmp(buf + 4096, "hello"));
}

/* Memory that was unmapped, or may not be written any more, is refused like a wrong key. */
static void unmapped(void)
{
	open_all(64);
	works();
	CHECK(!munmap(buf + 8192, 4096));
	CHECK(!write_at(a, (uintptr_t)buf + 8192, (uintptr_t)buf, 100, IBV_WR_RDMA_WRITE));
	CHECK(next().status == IBV_WC_LOC_PROT_ERR);
	struct ibv_qp *c = make_qp(4), *d = make_qp(4);
	connect_qp(c, d->qp_num, &gid);
	connect_qp(d, c->qp_num, &gid);
	CHECK(!write_at(c, (uintptr_t)buf, (uintptr_t)buf + 8192, 100, IBV_WR_RDMA_WRITE));
	CHECK(next().status == IBV_WC_REM_ACCESS_ERR);
	c = make_qp(4), d = make_qp(4);
	connect_qp(c, d->qp_num, &gid);
	connect_qp(d, c->qp_num, &gid);
	CHECK(!mprotect(buf + 4096, 4096, PROT_READ));
	CHECK(!write_at(c, (uintptr_t)buf + 4096, (uintptr_t)buf, 100, IBV_WR_RDMA_READ));
	CHECK(next().status == IBV_WC_LOC_PROT_ERR);
	c = make_qp(4), d = make_qp(4);
	connect_qp(c, d->qp_num, &gid);
	connect_qp(d, c->qp_num, &gid);
	CHECK(!write_at(c, (uintptr_t)buf + 4096, (uintptr_t)buf, 100, IBV_WR_RDMA_WRITE)); /* to be read it is */
	CHECK(next().status == IBV_WC_SUCCESS);
	CHECK(!ibv_reg_mr(pd, (void *)0x1000, 4096, 0) && errno == EFAULT);
}

static void fault(int s)
{
	static const char m[] = "the program has the engine's fault\n";
	_exit(write(2, m, sizeof m - 1) ? 1 : 2);
}

/* The same with a program that has come to handle faults by itself. */
static void handler(void)
{
	struct sigaction sa = {.sa_handler = fault};
	open_all(64);
	works();
	CHECK(!sigaction(SIGSEGV, &sa, NULL) && !sigaction(SIGBUS, &sa, NULL));
	usleep(20000);
	works();
	CHECK(!munmap(buf + 8192, 4096));
	CHECK(!write_at(a, (uintptr_t)buf + 8192, (uintptr_t)buf, 100, IBV_WR_RDMA_WRITE));
	CHECK(next().status == IBV_WC_LOC_PROT_ERR);
	a = make_qp(4), b = make_qp(4);
	connect_qp(a, b->qp_num, &gid);
	connect_qp(b, a->qp_num, &gid);
	works();
	CHECK(!mprotect(buf, 4096, PROT_READ));
	CHECK(!write_at(a, (uintptr_t)buf + 4096, (uintptr_t)buf, 100, IBV_WR_RDMA_WRITE));
	CHECK(next().status == IBV_WC_REM_ACCESS_ERR);
}

/* Objects that were destroyed, in the wrong order, or are in use. */
static void destroyed(void)
{
	open_all(64);
	works();
	CHECK(ibv_dealloc_pd(pd) == EBUSY);
	CHECK(ibv_destroy_cq(cq) == EBUSY);
	CHECK(!ibv_destroy_qp(a));
	CHECK(write_at(a, (uintptr_t)buf, (uintptr_t)buf, 4, IBV_WR_RDMA_WRITE) == EINVAL);
	CHECK(ibv_destroy_qp(a) == EINVAL);
	struct ibv_qp_attr t = {.qp_state = IBV_QPS_ERR};
	CHECK(ibv_modify_qp(a, &t, IBV_QP_STATE) == EINVAL);
	CHECK(!ibv_destroy_qp(b));
	CHECK(!ibv_dereg_mr(mr));
	CHECK(ibv_dereg_mr(mr) == EINVAL);
	CHECK(!ibv_destroy_cq(cq));
	struct ibv_wc wc;
	CHECK(ibv_poll_cq(cq, 1, &wc) < 0);
	CHECK(!ibv_dealloc_pd(pd));
	CHECK(ibv_dealloc_pd(pd) == EINVAL);
	CHECK(!ibv_close_device(ctx));
	open_all(64); /* once more */
	works();
}

/* A region that goes while requests are posted. */
static void deregistered(void)
{
	open_all(64);
	struct ibv_sge s = {(uintptr_t)buf, 100, mr->lkey};
	struct ibv_recv_wr r = {.sg_list = &s, .num_sge = 1}, *bad;
	CHECK(!ibv_post_recv(b, &r, &bad));
	struct ibv_mr *other = ibv_reg_mr(pd, buf + 4096, 4096, 0);
	CHECK(other && !ibv_dereg_mr(mr));
	mr = other;
	CHECK(!write_at(a, (uintptr_t)buf + 4096, 0, 10, IBV_WR_SEND));
	int prot = 0, op = 0;
	for (int i = 0; i < 2; i++) {
		struct ibv_wc wc = next();
		prot += wc.status == IBV_WC_LOC_PROT_ERR && wc.qp_num == b->qp_num;
		op += wc.status == IBV_WC_REM_OP_ERR && wc.qp_num == a->qp_num;
	}
	CHECK(prot == 1 && op == 1);
}

/* A CQ that is too small tells of it, and the QP goes to Error. */
static void overrun(void)
{
	open_all(2);
	for (int i = 0; i < 4; i++)
		CHECK(!write_at(a, (uintptr_t)buf, (uintptr_t)buf + 4096, 4, IBV_WR_RDMA_WRITE));
	struct ibv_async_event e;
	struct pollfd p = {ctx->async_fd, POLLIN, 0};
	int cqerr = 0;
	while (!cqerr && poll(&p, 1, 20000) == 1 && !ibv_get_async_event(ctx, &e)) {
		cqerr = e.event_type == IBV_EVENT_CQ_ERR && e.element.cq == cq;
		ibv_ack_async_event(&e);
	}
	CHECK(cqerr);
}

/* Forks: the child's old objects are dead, and it may open the device itself. */
static void forks(void)
{
	open_all(64);
	works();
	struct ibv_context *oldctx = ctx;
	struct ibv_comp_channel *ch = ibv_create_comp_channel(ctx);
	struct rdma_event_channel *ev = rdma_create_event_channel();
	CHECK(ch && ev);
	pid_t p = fork();
	if (!p) {
		struct ibv_async_event ae;
		struct rdma_cm_event *ce;
		struct ibv_cq *from;
		void *c;
		alarm(40);
		CHECK(ibv_get_async_event(oldctx, &ae) && errno == EINVAL && ibv_get_cq_event(ch, &from, &c) && errno == EINVAL);
		CHECK(rdma_get_cm_event(ev, &ce) && errno == EINVAL);
		CHECK(write_at(a, (uintptr_t)buf, (uintptr_t)buf, 4, IBV_WR_RDMA_WRITE) == EINVAL);
		struct ibv_qp *old = a;
		struct ibv_cq *oldcq = cq;
		struct ibv_wc wc;
		open_all(64);
		works();
		CHECK(write_at(old, (uintptr_t)buf, (uintptr_t)buf, 4, IBV_WR_RDMA_WRITE) == EINVAL && ibv_poll_cq(oldcq, 1, &wc) < 0);
		CHECK(ibv_destroy_qp(old) == EINVAL && ibv_destroy_cq(oldcq) == EINVAL);
		_exit(0);
	}
	int s;
	CHECK(waitpid(p, &s, 0) == p && s == 0);
	works();
}

static volatile int stop;
static void *busy(void *arg)
{
	while (!stop)
		works();
	return arg;
}

/* Forks while a thread posts and polls, whose locks the children inherit. */
static void forking(void)
{
	pthread_t t;
	struct ibv_wc wc;
	int s;
	open_all(64);
	CHECK(!pthread_create(&t, NULL, busy, NULL));
	for (int i = 0; i < 60; i++) {
		usleep(i * 37 % 500);
		pid_t p = fork();
		if (!p) {
			alarm(40);
			CHECK(ibv_poll_cq(cq, 1, &wc) < 0 && write_at(a, (uintptr_t)buf, (uintptr_t)buf, 4, IBV_WR_RDMA_WRITE) == EINVAL);
			CHECK(ibv_dereg_mr(mr) == EINVAL && ibv_close_device(ctx) == EINVAL);
			if (i % 20 == 0) {
				open_all(64);
				works();
			}
			if (i % 2)
				_exit(0);
			exit(0);
		}
		CHECK(p > 0 && waitpid(p, &s, 0) == p && s == 0);
	}
	stop = 1;
	CHECK(!pthread_join(t, NULL));
	works();
}

static void *leaving(void *arg)
{
	usleep(20000);
	exit(0);
}

/* A thread ends the program while others post, poll and create objects. */
static void exiting(void)
{
	pthread_t t;
	open_all(64);
	CHECK(!pthread_create(&t, NULL, busy, NULL) && !pthread_create(&t, NULL, leaving, NULL));
	for (;;) {
		struct ibv_mr *m = ibv_reg_mr(pd, buf, 4096, IBV_ACCESS_LOCAL_WRITE);
		CHECK(m && !ibv_dereg_mr(m));
	}
}

/* Objects that are in use, and two ends of everything. */
static void order(void)
{
	struct ibv_wc wc;
	open_all(64);
	struct ibv_context *first = ctx;
	struct ibv_qp *old = a;
	open_all(64); /* another context */
	struct ibv_comp_channel *ch = ibv_create_comp_channel(ctx);
	struct ibv_cq *q = ibv_create_cq(ctx, 4, NULL, ch, 0);
	struct ibv_srq_init_attr si = {.attr = {4, 1, 0}};
	struct ibv_srq *srq = ibv_create_srq(pd, &si);
	struct ibv_qp_init_attr i = {.send_cq = q, .recv_cq = q, .srq = srq, .qp_type = IBV_QPT_RC, .cap = {1, 0, 1, 0, 0}};
	struct ibv_qp *x = ibv_create_qp(pd, &i);
	CHECK(ch && q && srq && x);
	CHECK(ibv_destroy_comp_channel(ch) == EBUSY && ibv_destroy_cq(q) == EBUSY && ibv_destroy_srq(srq) == EBUSY && ibv_dealloc_pd(pd) == EBUSY);
	CHECK(!ibv_destroy_qp(x) && ibv_destroy_comp_channel(ch) == EBUSY && !ibv_destroy_srq(srq) && ibv_destroy_srq(srq) == EINVAL);
	CHECK(!ibv_destroy_cq(q) && ibv_destroy_cq(q) == EINVAL && !ibv_destroy_comp_channel(ch) && ibv_destroy_comp_channel(ch) == EINVAL);
	struct ibv_ah_attr ha = {.is_global = 1, .port_num = 1, .grh = {.dgid = gid}};
	struct ibv_ah *ah = ibv_create_ah(pd, &ha);
	struct ibv_mw *mw = ibv_alloc_mw(pd, IBV_MW_TYPE_1);
	CHECK(ah && !ibv_destroy_ah(ah) && ibv_destroy_ah(ah) == EINVAL);
	CHECK(mw && !ibv_dealloc_mw(mw) && ibv_dealloc_mw(mw) == EINVAL);
	/* A context that is closed with all it has, twice: the other one is as it was. */
	CHECK(!ibv_close_device(first) && ibv_close_device(first) == EINVAL);
	CHECK(write_at(old, (uintptr_t)buf, (uintptr_t)buf, 4, IBV_WR_RDMA_WRITE) == EINVAL);
	works();
	CHECK(!ibv_poll_cq(cq, 1, &wc) && !ibv_poll_cq(cq, 0, &wc) && !ibv_poll_cq(cq, -1, &wc));
	CHECK(!ibv_close_device(ctx) && ibv_close_device(ctx) == EINVAL);
	CHECK(write_at(a, (uintptr_t)buf, (uintptr_t)buf, 4, IBV_WR_RDMA_WRITE) == EINVAL);
	struct rdma_event_channel *ev = rdma_create_event_channel();
	struct rdma_cm_id *id;
	struct rdma_cm_event *e;
	struct sockaddr_in at = {.sin_family = AF_INET};
	CHECK(1 == inet_pton(AF_INET, "127.0.0.1", &at.sin_addr));
	CHECK(!rdma_create_id(ev, &id, NULL, RDMA_PS_TCP) && !rdma_resolve_addr(id, NULL, (void *)&at, 1000) && !rdma_get_cm_event(ev, &e));
	CHECK(!rdma_ack_cm_event(e) && rdma_ack_cm_event(e) && errno == EINVAL);
	CHECK(!rdma_destroy_id(id) && rdma_destroy_id(id) && errno == EINVAL);
	rdma_destroy_event_channel(ev);
	rdma_destroy_event_channel(ev);
}

static void *acks(void *arg)
{
	usleep(200000);
	stop = 1;
	ibv_ack_cq_events(arg, 3);
	return NULL;
}

/* Events by epoll, without blocking; a CQ goes only when all of its events are
 * acknowledged, and those that nobody has read go with it. */
static void events(void)
{
	struct ibv_async_event ae;
	struct ibv_cq *from, *old;
	struct epoll_event e = {.events = EPOLLIN | EPOLLET}, got;
	pthread_t t;
	void *c;
	open_all(2);
	old = cq;
	struct ibv_comp_channel *ch = ibv_create_comp_channel(ctx);
	int ep = epoll_create1(0);
	CHECK(ch && (cq = ibv_create_cq(ctx, 64, &e, ch, 0)));
	CHECK(!fcntl(ch->fd, F_SETFL, O_NONBLOCK) && !fcntl(ctx->async_fd, F_SETFL, O_NONBLOCK));
	CHECK(ibv_get_cq_event(ch, &from, &c) && errno == EAGAIN && ibv_get_async_event(ctx, &ae) && errno == EAGAIN);
	CHECK(!epoll_ctl(ep, EPOLL_CTL_ADD, ch->fd, &e) && !epoll_ctl(ep, EPOLL_CTL_ADD, ctx->async_fd, &e));
	struct ibv_qp *x = make_qp(4), *y = make_qp(4);
	connect_qp(x, y->qp_num, &gid);
	connect_qp(y, x->qp_num, &gid);
	for (int i = 0; i < 4; i++) {
		CHECK(!ibv_req_notify_cq(cq, 0) && !write_at(x, (uintptr_t)buf, (uintptr_t)buf + 4096, 4, IBV_WR_RDMA_WRITE));
		CHECK(epoll_wait(ep, &got, 1, 20000) == 1 && next().status == IBV_WC_SUCCESS);
		if (i < 3)
			CHECK(!ibv_get_cq_event(ch, &from, &c) && from == cq && c == &e);
	}
	CHECK(!ibv_destroy_qp(x) && !ibv_destroy_qp(y) && !pthread_create(&t, NULL, acks, cq));
	CHECK(!ibv_destroy_cq(cq) && stop && !pthread_join(t, NULL));
	CHECK(ibv_get_cq_event(ch, &from, &c) && errno == EAGAIN); /* the fourth */
	for (int i = 0; i < 4; i++)
		CHECK(!write_at(a, (uintptr_t)buf, (uintptr_t)buf + 4096, 4, IBV_WR_RDMA_WRITE));
	CHECK(epoll_wait(ep, &got, 1, 20000) == 1 && !ibv_get_async_event(ctx, &ae));
	CHECK(ae.event_type == IBV_EVENT_CQ_ERR && ae.element.cq == old);
	ibv_ack_async_event(&ae);
	CHECK(!ibv_destroy_qp(a) && !ibv_destroy_qp(b) && !ibv_destroy_cq(old));
	while (!ibv_get_async_event(ctx, &ae)) /* of objects that are gone */
		CHECK(0);
	CHECK(errno == EAGAIN && !ibv_destroy_comp_channel(ch));
}

static volatile int ticks;
static void tick(int s) { ticks++; }

/* Signals all the time, on the program's stack. */
static void signals(void)
{
	struct sigaction sa = {.sa_handler = tick};
	sigaction(SIGALRM, &sa, NULL);
	sigaction(SIGPROF, &sa, NULL);
	sigaction(SIGURG, &sa, NULL);
	struct itimerval v = {{0, 500}, {0, 500}};
	setitimer(ITIMER_REAL, &v, NULL);
	setitimer(ITIMER_PROF, &v, NULL);
	open_all(64);
	time_t end = time(NULL) + 2;
	while (time(NULL) < end) {
		works();
		raise(SIGURG);
	}
	CHECK(ticks > 100);
}

static void *thread(void *arg)
{
	for (int i = 0; i < 300; i++) {
		struct ibv_mr *m = ibv_reg_mr(pd, buf, 4096, IBV_ACCESS_LOCAL_WRITE);
		struct ibv_qp *q = make_qp(4);
		CHECK(m && !ibv_dereg_mr(m) && !ibv_destroy_qp(q));
	}
	return NULL;
}

/* Several threads make and destroy objects while another has traffic. */
static void threads(void)
{
	pthread_t t[4];
	open_all(64);
	for (int i = 0; i < 4; i++)
		CHECK(!pthread_create(&t[i], NULL, thread, NULL));
	for (int i = 0; i < 500; i++)
		works();
	for (int i = 0; i < 4; i++)
		pthread_join(t[i], NULL);
}

/* The peer is killed: retries are exhausted. */
static void killed(void)
{
	int up[2], down[2];
	char go;
	CHECK(!pipe(up) && !pipe(down));
	struct {
		uint32_t qpn, rkey;
		uint64_t addr;
		union ibv_gid gid;
	} me, peer;
	pid_t p = fork();
	CHECK(!(p ? 0 : setenv("ROCE_ADDR", "127.0.0.9", 1)));
	open_all(64);
	a = make_qp(16);
	memset(&me, 0, sizeof me);
	me.qpn = a->qp_num, me.rkey = mr->rkey, me.addr = (uintptr_t)buf, me.gid = gid;
	CHECK(write(p ? up[1] : down[1], &me, sizeof me) == sizeof me && read(p ? down[0] : up[0], &peer, sizeof peer) == sizeof peer);
	connect_qp(a, peer.qpn, &peer.gid);
	CHECK(write(p ? up[1] : down[1], "x", 1) == 1 && read(p ? down[0] : up[0], &go, 1) == 1);
	if (!p)
		for (;;)
			pause();
	struct ibv_sge s = {(uintptr_t)buf, 10, mr->lkey};
	struct ibv_send_wr w = {.sg_list = &s, .num_sge = 1, .opcode = IBV_WR_RDMA_WRITE, .wr.rdma = {peer.addr, peer.rkey}}, *bad;
	CHECK(!ibv_post_send(a, &w, &bad));
	CHECK(next().status == IBV_WC_SUCCESS);
	kill(p, SIGKILL);
	waitpid(p, NULL, 0);
	CHECK(!ibv_post_send(a, &w, &bad));
	CHECK(next().status == IBV_WC_RETRY_EXC_ERR);
}

static void full(void)
{
	open_all(64);
	for (int i = 0; i < 200; i++)
		works();
}

/* A program that loads the library itself. */
static void loaded(void)
{
	void *lib = dlopen("libibverbs.so.1", RTLD_NOW | RTLD_LOCAL);
	CHECK(lib);
	struct ibv_device **(*list)(int *) = (struct ibv_device **(*)(int *))dlvsym(lib, "ibv_get_device_list", "IBVERBS_1.1");
	const char *(*name)(struct ibv_device *) = (const char *(*)(struct ibv_device *))dlvsym(lib, "ibv_get_device_name", "IBVERBS_1.1");
	int n = 0;
	CHECK(list && name && !strcmp(name(list(&n)[0]), "roce0") && n == 1);
	CHECK(dlvsym(lib, "ibv_copy_qp_attr_from_kern", "IBVERBS_1.0")); /* which is not ours */
	CHECK(!dlvsym(lib, "ibv_no_such_function", "IBVERBS_1.1"));
}

/* Connections of queue pairs that the program made by itself, to its own address. No
 * misuse. */
static struct rdma_cm_id *expect(struct rdma_event_channel *ch, enum rdma_cm_event_type want)
{
	struct rdma_cm_event *e;
	CHECK(!rdma_get_cm_event(ch, &e));
	if (e->event != want)
		fprintf(stderr, "%s, not %s\n", rdma_event_str(e->event), rdma_event_str(want));
	CHECK(e->event == want && !e->status);
	struct rdma_cm_id *id = e->id;
	rdma_ack_cm_event(e);
	return id;
}

static void step(struct rdma_cm_id *id, struct ibv_qp *q, enum ibv_qp_state to)
{
	struct ibv_qp_attr t = {.qp_state = to};
	int mask;
	CHECK(!rdma_init_qp_attr(id, &t, &mask));
	CHECK(!ibv_modify_qp(q, &t, mask));
}

static void external(void)
{
	struct rdma_event_channel *ch = rdma_create_event_channel();
	struct rdma_cm_id *l, *c, *s;
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(7471)};
	CHECK(1 == inet_pton(AF_INET, getenv("ROCE_ADDR"), &at.sin_addr));
	open_all(64);
	CHECK(!rdma_create_id(ch, &l, NULL, RDMA_PS_TCP) && !rdma_bind_addr(l, (void *)&at) && !rdma_listen(l, 1));
	CHECK(!rdma_create_id(ch, &c, NULL, RDMA_PS_TCP) && !rdma_resolve_addr(c, NULL, (void *)&at, 1000));
	expect(ch, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_resolve_route(c, 1000));
	expect(ch, RDMA_CM_EVENT_ROUTE_RESOLVED);
	struct ibv_qp *q = make_qp(4), *r = make_qp(4);
	struct rdma_conn_param p = {.qp_num = q->qp_num, .responder_resources = 1, .initiator_depth = 1, .retry_count = 3, .rnr_retry_count = 7};
	struct ibv_qp_attr t = {.qp_state = IBV_QPS_RTR};
	int mask;
	CHECK(rdma_init_qp_attr(c, &t, &mask) && errno == EINVAL); /* no peer yet */
	step(c, q, IBV_QPS_INIT);
	CHECK(!rdma_connect(c, &p));
	s = expect(ch, RDMA_CM_EVENT_CONNECT_REQUEST);
	for (int i = IBV_QPS_INIT; i <= IBV_QPS_RTS; i++)
		step(s, r, i);
	struct ibv_sge g = {(uintptr_t)buf + 100, 100, mr->lkey};
	struct ibv_recv_wr rw = {.wr_id = 2, .sg_list = &g, .num_sge = 1}, *rbad;
	CHECK(!ibv_post_recv(r, &rw, &rbad));
	p.qp_num = r->qp_num;
	CHECK(!rdma_accept(s, &p));
	expect(ch, RDMA_CM_EVENT_CONNECT_RESPONSE);
	step(c, q, IBV_QPS_RTR);
	step(c, q, IBV_QPS_RTS);
	CHECK(!rdma_establish(c));
	expect(ch, RDMA_CM_EVENT_ESTABLISHED);
	strcpy(buf, "hello");
	CHECK(!write_at(q, (uintptr_t)buf, 0, 6, IBV_WR_SEND));
	struct ibv_wc wc;
	for (int done = 0; done < 2;)
		if (ibv_poll_cq(cq, 1, &wc)) {
			CHECK(wc.status == IBV_WC_SUCCESS);
			done++;
		}
	CHECK(!strcmp(buf + 100, "hello"));
	CHECK(!rdma_disconnect(c));
	expect(ch, RDMA_CM_EVENT_DISCONNECTED);
	expect(ch, RDMA_CM_EVENT_DISCONNECTED);
}

/* A server that sends as soon as it has accepted, and then ends without disconnecting: its
 * peer has the message, and is told that the connection has ended, as by a kernel. */
static void ended(void)
{
	struct sockaddr_in at = {.sin_family = AF_INET, .sin_port = htons(7472)};
	struct ibv_qp_init_attr i = {.qp_type = IBV_QPT_RC, .sq_sig_all = 1, .cap = {2, 2, 1, 1, 8}};
	struct rdma_conn_param p = {.retry_count = 3, .rnr_retry_count = 7};
	struct rdma_cm_id *l, *c;
	struct ibv_wc wc;
	int up[2], n;
	CHECK(1 == inet_pton(AF_INET, "127.0.0.9", &at.sin_addr) && !pipe(up));
	if (!fork()) {
		setenv("ROCE_ADDR", "127.0.0.9", 1);
		struct rdma_event_channel *ch = rdma_create_event_channel();
		CHECK(!rdma_create_id(ch, &l, NULL, RDMA_PS_TCP) && !rdma_bind_addr(l, (void *)&at) && !rdma_listen(l, 1));
		CHECK(write(up[1], "", 1) == 1);
		c = expect(ch, RDMA_CM_EVENT_CONNECT_REQUEST);
		CHECK(!rdma_create_qp(c, NULL, &i));
		struct ibv_sge g = {(uintptr_t) "hello", 6};
		struct ibv_send_wr w = {.sg_list = &g, .num_sge = 1, .opcode = IBV_WR_SEND, .send_flags = IBV_SEND_INLINE}, *bad;
		CHECK(!rdma_accept(c, &p) && !ibv_post_send(c->qp, &w, &bad));
		while (!(n = ibv_poll_cq(c->qp->send_cq, 1, &wc)))
			;
		CHECK(n == 1 && wc.status == IBV_WC_SUCCESS);
		exit(0);
	}
	CHECK(read(up[0], &n, 1) == 1);
	struct rdma_event_channel *ch = rdma_create_event_channel();
	CHECK(!rdma_create_id(ch, &c, NULL, RDMA_PS_TCP) && !rdma_resolve_addr(c, NULL, (void *)&at, 1000));
	expect(ch, RDMA_CM_EVENT_ADDR_RESOLVED);
	CHECK(!rdma_resolve_route(c, 1000));
	expect(ch, RDMA_CM_EVENT_ROUTE_RESOLVED);
	CHECK(!rdma_create_qp(c, NULL, &i));
	char got[8] = "";
	struct ibv_mr *m = ibv_reg_mr(c->pd, got, sizeof got, IBV_ACCESS_LOCAL_WRITE);
	CHECK(m);
	struct ibv_sge g = {(uintptr_t)got, sizeof got, m->lkey};
	struct ibv_recv_wr r = {.sg_list = &g, .num_sge = 1}, *bad;
	CHECK(!ibv_post_recv(c->qp, &r, &bad) && !rdma_connect(c, &p));
	expect(ch, RDMA_CM_EVENT_ESTABLISHED);
	while (!(n = ibv_poll_cq(c->qp->recv_cq, 1, &wc)))
		;
	CHECK(n == 1 && wc.status == IBV_WC_SUCCESS && !strcmp(got, "hello"));
	struct pollfd f = {.fd = ch->fd, .events = POLLIN};
	CHECK(poll(&f, 1, 10000) == 1);
	expect(ch, RDMA_CM_EVENT_DISCONNECTED);
	CHECK(wait(&n) > 0 && n == 0);
}

/* Rates, as the library converts them. No misuse. */
int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size);
static void rates(void)
{
	for (int i = 0; i < 40; i++)
		printf("%d: %d %d, back %d %d\n", i, ibv_rate_to_mult(i), ibv_rate_to_mbps(i), mult_to_ibv_rate(ibv_rate_to_mult(i)), mbps_to_ibv_rate(ibv_rate_to_mbps(i)));
	for (int i = -1; i < 30; i++)
		CHECK(ibv_wc_status_str(i) && ibv_event_type_str(i) && ibv_port_state_str(i) && ibv_node_type_str(i));
	char b[8];
	CHECK(ibv_read_sysfs_file("/proc/sys/kernel", "ostype", b, sizeof b) == 5 && !strcmp(b, "Linux"));
	CHECK(ibv_read_sysfs_file("/proc/sys/kernel", "ostype", b, 4) < 0);
	CHECK(ibv_read_sysfs_file("/proc", "no_such_file", b, sizeof b) < 0);
}

static double ns(const struct timespec *from)
{
	struct timespec to;
	clock_gettime(CLOCK_MONOTONIC, &to);
	return (to.tv_sec - from->tv_sec) * 1e9 + (to.tv_nsec - from->tv_nsec);
}

/* What a post and a poll cost the program's thread, beside a system call: the least of many
 * rounds of 64, so that a loaded machine does not count. No misuse. */
static void cost(void)
{
	double post = 1e9, poll = 1e9, empty = 1e9, call = 1e9;
	struct ibv_wc wc[64];
	struct timespec t;
	open_all(1024);
	a = make_qp(64), b = make_qp(64);
	connect_qp(a, b->qp_num, &gid);
	connect_qp(b, a->qp_num, &gid);
	for (int i = 0; i < 3000; i++) {
		double v;
		clock_gettime(CLOCK_MONOTONIC, &t);
		for (int j = 0; j < 64; j++)
			CHECK(!write_at(a, (uintptr_t)buf, (uintptr_t)buf + 4096, 8, IBV_WR_RDMA_WRITE));
		if ((v = ns(&t) / 64) < post)
			post = v;
		usleep(1000);
		int got = 0, n;
		clock_gettime(CLOCK_MONOTONIC, &t);
		for (int j = 0; j < 64 && (n = ibv_poll_cq(cq, 1, wc)) == 1; j++)
			got++;
		v = ns(&t) / 64;
		if (got == 64 && v < poll)
			poll = v;
		while (got < 64)
			got += ibv_poll_cq(cq, 64, wc);
		clock_gettime(CLOCK_MONOTONIC, &t);
		for (int j = 0; j < 16; j++)
			CHECK(!ibv_poll_cq(cq, 1, wc));
		if ((v = ns(&t) / 16) < empty)
			empty = v;
		clock_gettime(CLOCK_MONOTONIC, &t);
		for (int j = 0; j < 64; j++)
			getppid();
		if ((v = ns(&t) / 64) < call)
			call = v;
	}
	printf("post_send %.0f ns, poll_cq %.0f ns, empty poll_cq %.0f ns; getppid %.0f ns\n", post, poll, empty, call);
}

int main(int argc, char **argv)
{
	static const struct {
		const char *name;
		void (*f)(void);
	} cases[] = {{"unmapped", unmapped}, {"handler", handler}, {"destroyed", destroyed}, {"deregistered", deregistered}, {"overrun", overrun}, {"forks", forks},
		{"forking", forking}, {"exiting", exiting}, {"order", order}, {"events", events},
		{"signals", signals}, {"threads", threads}, {"killed", killed}, {"full", full}, {"loaded", loaded}, {"rates", rates}, {"external", external}, {"ended", ended}, {"cost", cost}};
	alarm(55);
	for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++)
		if (argc == 2 && !strcmp(argv[1], cases[i].name)) {
			cases[i].f();
			return 0;
		}
	fprintf(stderr, "no such case\n");
	return 2;
}
