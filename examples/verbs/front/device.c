/* The engine's thread, commands to it, and the device. */
#define _GNU_SOURCE
#include "objects.h"
#undef ibv_query_port
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <linux/futex.h>
#include <time.h>

enum { GIDS = 2 }; /* rows of the GID table; the second is empty */

struct rv_shared *rv_sh;
pthread_mutex_t rv_big = PTHREAD_MUTEX_INITIALIZER;       /* opening, closing, tables */
static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER; /* one command at a time */
static struct ibv_device device = {.node_type = IBV_NODE_CA, .transport_type = IBV_TRANSPORT_IB,
	.name = "roce0", .dev_name = "uverbs0", .dev_path = "/sys/class/infiniband_verbs/uverbs0", .ibdev_path = "/sys/class/infiniband/roce0"};
uint32_t rv_alive = 0x726f6365;
static int opened;	 /* contexts that are open */
static int forked_with;	 /* this process was forked with an engine running in its parent */
static char problem[256]; /* why the engine did not start */

void rv_log(const char *fmt, ...)
{
	char b[512];
	va_list a;
	va_start(a, fmt);
	vsnprintf(b, sizeof b, fmt, a);
	va_end(a);
	dprintf(2, "roce-verbs: %s\n", b);
}

/* rv_close_late closes the end of a pipe that events are written to, but not at once: a
 * thread may wait at the other end, and is to go on waiting when its descriptor is closed,
 * as it does with the kernel's. */
void rv_close_late(int fd)
{
	static int late[64];
	static uint32_t next;
	pthread_mutex_lock(&rv_big);
	int old = late[next % 64];
	late[next++ % 64] = fd;
	pthread_mutex_unlock(&rv_big);
	if (old)
		close(old);
}

/* Handles of objects that events name: the object may be gone when the event is read. */
static struct {
	void *obj;
	uint32_t turn;
} *table;
static uint32_t table_size;

uint64_t rv_handle(void *obj)
{
	uint64_t h = 0;
	pthread_mutex_lock(&rv_big);
	for (uint32_t i = 0; !h; i++) {
		if (i == table_size) {
			uint32_t n = table_size ? 2 * table_size : 256;
			void *t = realloc(table, n * sizeof *table);
			if (!t)
				break;
			table = t;
			memset(table + table_size, 0, (n - table_size) * sizeof *table);
			table_size = n;
		}
		if (!table[i].obj) {
			table[i].obj = obj;
			table[i].turn = (table[i].turn + 1) & 0xffffff;
			h = (uint64_t)table[i].turn << 24 | (i + 1);
		}
	}
	pthread_mutex_unlock(&rv_big);
	return h;
}

void *rv_object(uint64_t h)
{
	uint32_t i = (h & 0xffffff) - 1;
	void *obj = NULL;
	pthread_mutex_lock(&rv_big);
	if (i < table_size && table[i].turn == (h >> 24 & 0xffffff))
		obj = table[i].obj;
	pthread_mutex_unlock(&rv_big);
	return obj;
}

void rv_unhandle(uint64_t h)
{
	if (rv_object(h)) {
		pthread_mutex_lock(&rv_big);
		table[(h & 0xffffff) - 1].obj = NULL;
		pthread_mutex_unlock(&rv_big);
	}
}

/* rv_bury frees an object, but not at once: a program that uses it after it was destroyed
 * finds a dead object rather than another's memory, for a while. */
void rv_bury(void *obj)
{
	static void *grave[1024];
	static uint32_t next;
	pthread_mutex_lock(&rv_big);
	void *old = grave[next % 1024];
	grave[next++ % 1024] = obj;
	pthread_mutex_unlock(&rv_big);
	free(old);
}

/* The engine: a thread that loads and runs Go. */

static void *engine_thread(void *arg)
{
	struct rv_shared *sh = arg;
	Dl_info self;
	char path[PATH_MAX];
	if (!dladdr((void *)engine_thread, &self))
		self.dli_fname = "";
	const char *slash = strrchr(self.dli_fname, '/');
	snprintf(path, sizeof path, "%.*slibroce-engine.so", slash ? (int)(slash + 1 - self.dli_fname) : 0, self.dli_fname);
	char copy[64];
	const char *from = path;
	if (forked_with) {
		/* The parent's Go cannot run here: a copy of the library is another one. */
		int in = open(path, O_RDONLY | O_CLOEXEC), out = memfd_create("roce-engine", MFD_CLOEXEC);
		char b[1 << 16];
		ssize_t n;
		while (in >= 0 && out >= 0 && (n = read(in, b, sizeof b)) > 0)
			if (write(out, b, n) != n)
				break;
		if (in >= 0)
			close(in);
		snprintf(copy, sizeof copy, "/proc/self/fd/%d", out);
		from = copy;
	}
	void *lib = dlopen(from, RTLD_NOW | RTLD_LOCAL);
	void (*run)(struct rv_shared *) = lib ? (void (*)(struct rv_shared *))dlsym(lib, "roceEngineRun") : NULL;
	if (!run) {
		snprintf(problem, sizeof problem, "cannot load the engine: %s", dlerror());
		rv_store(&sh->state, 9);
		syscall(SYS_futex, &sh->state, FUTEX_WAKE_PRIVATE, INT_MAX, NULL, NULL, 0);
		return NULL;
	}
	run(sh);
	return NULL;
}

int rv_live(void) { return rv_sh != NULL; }

/* rv_want names the address that the device is opened with where ROCE_ADDR does not. */
static char wanted[64];
void rv_want(const char *addr) { snprintf(wanted, sizeof wanted, "%s", addr ? addr : ""); }

/* rv_command has the engine carry out a command, and returns an errno, 0 for none. */
int rv_command(struct rv_cmd *c)
{
	struct rv_shared *sh = rv_sh;
	if (!sh)
		return ENODEV;
	uint32_t s = 0;
	pthread_mutex_lock(&order);
	sh->cmd = c;
	if (__atomic_compare_exchange_n(&sh->state, &s, 1, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST)) { /* else 9: no engine */
		rv_wake();
		for (int i = 0; i < 64 && rv_load(&sh->state) == 1; i++)
			sched_yield();
		s = 1;
		__atomic_compare_exchange_n(&sh->state, &s, 3, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
		while ((s = rv_load(&sh->state)) == 3)
			syscall(SYS_futex, &sh->state, FUTEX_WAIT_PRIVATE, 3, NULL, NULL, 0);
		rv_store(&sh->state, s == 9 ? 9 : 0);
	}
	pthread_mutex_unlock(&order);
	return s == 9 ? ENODEV : c->err;
}

/* When the program ends, the peers of its connections are told, as a kernel tells them. A
 * kernel also responds to them afterwards: where packets get lost on purpose, so does this
 * for a while. Not where another command is being carried out: exit may have been called by
 * a signal handler in the middle of it. */
__attribute__((destructor)) static void leave(void)
{
	struct rv_cmd c = {.op = RV_LEAVE};
	if (!rv_sh || pthread_mutex_trylock(&order))
		return;
	pthread_mutex_unlock(&order);
	if (!rv_command(&c) && c.mask && rv_sh->linger)
		usleep(1000000 + 1000 * rv_sh->linger);
}

/* After a fork the child has the parent's objects, but no engine: they are dead to it, with
 * locks that other threads of the parent may have held. It may open the device itself. */
static void before_fork(void)
{
	pthread_mutex_lock(&rv_cm_lock);
	pthread_mutex_lock(&rv_big);
	pthread_mutex_lock(&order);
}
static void after_fork(void)
{
	pthread_mutex_unlock(&order);
	pthread_mutex_unlock(&rv_big);
	pthread_mutex_unlock(&rv_cm_lock);
}
static void in_child(void)
{
	rv_alive++;
	pthread_mutex_init(&rv_cm_lock, NULL);
	pthread_mutex_init(&order, NULL);
	pthread_mutex_init(&rv_big, NULL);
	if (rv_sh) {
		close(rv_sh->kick);
		forked_with = 1;
		rv_sh = NULL; /* not freed: the old objects' rings name it */
	}
	opened = 0;
}

static int engine_start(void)
{
	if (rv_sh)
		return 0;
	static int once;
	if (!once) {
		once = 1;
		pthread_atfork(before_fork, after_fork, in_child);
	}
	struct rv_shared *sh = calloc(1, sizeof *sh);
	if (!sh || (sh->kick = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0)
		return ENOMEM;
	/* Signals are the program's. Those of faults stay: a blocked one would kill. */
	sigset_t all, old;
	sigfillset(&all);
	sigdelset(&all, SIGSEGV);
	sigdelset(&all, SIGBUS);
	sigdelset(&all, SIGFPE);
	sigdelset(&all, SIGILL);
	sigdelset(&all, SIGTRAP);
	sigdelset(&all, SIGABRT);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	pthread_t t;
	int err = pthread_create(&t, NULL, engine_thread, sh);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	if (err)
		return err;
	pthread_detach(t);
	rv_sh = sh;
	return 0;
}

/* Devices. */

PUBLIC struct ibv_device **ibv_get_device_list(int *num)
{
	struct ibv_device **l = calloc(2, sizeof *l);
	if (!l)
		return NULL;
	l[0] = &device;
	if (num)
		*num = 1;
	return l;
}
PUBLIC void ibv_free_device_list(struct ibv_device **l) { free(l); }
PUBLIC const char *ibv_get_device_name(struct ibv_device *d) { return d->name; }
PUBLIC int ibv_get_device_index(struct ibv_device *d) { return 0; }
static void guid_of(const struct rv_shared *sh, __be64 *g)
{
	uint8_t b[8] = {0x02, 0, 0, 0xff, 0xfe, 0, 0, 1};
	if (sh)
		memcpy(b + 5, sh->gid + 13, 3);
	memcpy(g, b, 8);
}
PUBLIC __be64 ibv_get_device_guid(struct ibv_device *d)
{
	__be64 g;
	guid_of(rv_sh, &g); /* before the device is opened its address is not known */
	return g;
}

PUBLIC int ibv_query_device(struct ibv_context *c, struct ibv_device_attr *a)
{
	if (!rv_live())
		return EIO;
	*a = (struct ibv_device_attr){
		.max_mr_size = 1ull << 40, .page_size_cap = 0xfffff000, .vendor_id = 0x1, .vendor_part_id = 1, .hw_ver = 1,
		.max_qp = RV_MAX_QP - 32, .max_qp_wr = RV_MAX_WR,
		.device_cap_flags = IBV_DEVICE_RC_RNR_NAK_GEN | IBV_DEVICE_CURR_QP_STATE_MOD |
			IBV_DEVICE_MEM_WINDOW | IBV_DEVICE_XRC | IBV_DEVICE_MEM_MGT_EXTENSIONS |
			IBV_DEVICE_MEM_WINDOW_TYPE_2B | IBV_DEVICE_SYS_IMAGE_GUID,
		.max_sge = RV_MAX_SGE, .max_sge_rd = RV_MAX_SGE, .max_cq = RV_MAX_CQ, .max_cqe = RV_MAX_CQE,
		.max_mr = RV_MAX_MR / 2, .max_pd = RV_MAX_PD, .max_qp_rd_atom = RV_MAX_RD, .max_res_rd_atom = RV_MAX_RD * (RV_MAX_QP - 32),
		.max_qp_init_rd_atom = RV_MAX_RD, .atomic_cap = IBV_ATOMIC_HCA, .max_mw = RV_MAX_MR / 2,
		.max_mcast_grp = 256, .max_mcast_qp_attach = 64, .max_total_mcast_qp_attach = 1024, .max_ah = RV_MAX_AH,
		.max_srq = RV_MAX_SRQ, .max_srq_wr = RV_MAX_WR, .max_srq_sge = RV_MAX_SGE, .max_pkeys = 1,
		.local_ca_ack_delay = 15, .phys_port_cnt = 1};
	strcpy(a->fw_ver, "0.1");
	guid_of(rv_sh, &a->node_guid);
	a->sys_image_guid = a->node_guid;
	return 0;
}

static int query_device_ex(struct ibv_context *c, const struct ibv_query_device_ex_input *in, struct ibv_device_attr_ex *a, size_t size)
{
	memset(a, 0, size);
	int err = ibv_query_device(c, &a->orig_attr);
	if (!err && size >= offsetof(struct ibv_device_attr_ex, tso_caps)) {
		a->completion_timestamp_mask = UINT64_MAX;
		a->hca_core_clock = 1000000; /* kHz: timestamps count nanoseconds */
		a->device_cap_flags_ex = a->orig_attr.device_cap_flags;
	}
	if (!err && size >= sizeof *a)
		a->phys_port_cnt_ex = 1;
	return err;
}

static int query_rt_values(struct ibv_context *c, struct ibv_values_ex *v)
{
	if (v->comp_mask & IBV_VALUES_MASK_RAW_CLOCK)
		clock_gettime(CLOCK_REALTIME, &v->raw_clock);
	v->comp_mask &= IBV_VALUES_MASK_RAW_CLOCK;
	return 0;
}

static int mtu_code(uint32_t bytes)
{
	int c = IBV_MTU_256;
	while (c < IBV_MTU_4096 && (128u << (c + 1)) <= bytes)
		c++;
	return c;
}

static int query_port(struct ibv_context *c, uint8_t port, struct ibv_port_attr *a, size_t size)
{
	if (port != 1)
		return EINVAL;
	if (!rv_live())
		return EIO;
	struct ibv_port_attr p = {.state = IBV_PORT_ACTIVE, .max_mtu = IBV_MTU_4096, .active_mtu = mtu_code(rv_sh->mtu),
		.gid_tbl_len = GIDS, .port_cap_flags = IBV_PORT_CM_SUP | IBV_PORT_IP_BASED_GIDS, .max_msg_sz = 1u << 31, .pkey_tbl_len = 1,
		.max_vl_num = 1, .active_width = 2, .active_speed = 16, .phys_state = 5, .link_layer = IBV_LINK_LAYER_ETHERNET};
	memset(a, 0, size);
	memcpy(a, &p, size < sizeof p ? size : sizeof p);
	return 0;
}
PUBLIC int ibv_query_port(struct ibv_context *c, uint8_t port, struct _compat_ibv_port_attr *a)
{
	return query_port(c, port, (void *)a, offsetof(struct ibv_port_attr, port_cap_flags2));
}

PUBLIC int ibv_query_gid(struct ibv_context *c, uint8_t port, int i, union ibv_gid *g)
{
	if (port != 1 || i < 0 || i >= GIDS || !rv_live()) {
		errno = EINVAL;
		return -1;
	}
	memset(g, 0, 16);
	if (i == 0)
		memcpy(g, rv_sh->gid, 16);
	return 0;
}
PUBLIC int _ibv_query_gid_ex(struct ibv_context *c, uint32_t port, uint32_t i, struct ibv_gid_entry *e, uint32_t flags, size_t size)
{
	struct ibv_gid_entry x = {.gid_index = i, .port_num = port, .gid_type = IBV_GID_TYPE_ROCE_V2};
	if (flags || size < sizeof x)
		return flags ? EOPNOTSUPP : EINVAL;
	if (port != 1 || i >= GIDS || !rv_live())
		return EINVAL;
	if (i != 0)
		return ENODATA;
	memcpy(&x.gid, rv_sh->gid, 16);
	memcpy(e, &x, sizeof x);
	return 0;
}
PUBLIC ssize_t _ibv_query_gid_table(struct ibv_context *c, struct ibv_gid_entry *e, size_t max, uint32_t flags, size_t size)
{
	if (flags || !max)
		return flags ? -EOPNOTSUPP : -EINVAL;
	int err = _ibv_query_gid_ex(c, 1, 0, e, 0, size);
	return err ? -err : 1;
}
PUBLIC int ibv_query_gid_type(struct ibv_context *c, uint8_t port, unsigned i, int *type)
{
	*type = 1; /* RoCE v2, as sysfs counts them */
	return port == 1 && i == 0 ? 0 : EINVAL;
}
PUBLIC int ibv_query_pkey(struct ibv_context *c, uint8_t port, int i, __be16 *pkey)
{
	if (port != 1 || i != 0) {
		errno = EINVAL;
		return -1;
	}
	*pkey = 0xffff;
	return 0;
}
PUBLIC int ibv_get_pkey_index(struct ibv_context *c, uint8_t port, __be16 pkey)
{
	if (port == 1 && pkey == 0xffff)
		return 0;
	errno = EINVAL;
	return -1;
}

/* Collective libraries look the functions up by name and version in the library that they
 * load themselves: they get ours. */
PUBLIC void *dlvsym(void *lib, const char *name, const char *version)
{
	static void *(*real)(void *, const char *, const char *);
	Dl_info self;
	if (!strncmp(version, "IBVERBS_", 8) || !strncmp(version, "RDMACM_", 7)) {
		void *ours = dladdr((void *)engine_thread, &self) ? dlopen(self.dli_fname, RTLD_NOW | RTLD_NOLOAD) : NULL;
		void *p = ours ? dlsym(ours, name) : NULL;
		if (p)
			return p;
	}
	if (!real)
		real = (void *(*)(void *, const char *, const char *))dlsym(RTLD_NEXT, "dlvsym");
	return real ? real(lib, name, version) : NULL;
}

/* What there is not, and forks. */
PUBLIC struct ibv_context *ibv_import_device(int fd) { return FAIL(EOPNOTSUPP); }
PUBLIC struct ibv_pd *ibv_import_pd(struct ibv_context *c, uint32_t h) { return FAIL(EOPNOTSUPP); }
PUBLIC struct ibv_mr *ibv_import_mr(struct ibv_pd *pd, uint32_t h) { return FAIL(EOPNOTSUPP); }
PUBLIC struct ibv_dm *ibv_import_dm(struct ibv_context *c, uint32_t h) { return FAIL(EOPNOTSUPP); }
static struct ibv_qp *open_qp(struct ibv_context *c, struct ibv_qp_open_attr *a) { return FAIL(EOPNOTSUPP); }
PUBLIC int ibv_fork_init(void) { return 0; }
PUBLIC enum ibv_fork_status ibv_is_fork_initialized(void) { return IBV_FORK_UNNEEDED; }

PUBLIC struct ibv_context *ibv_open_device(struct ibv_device *d)
{
	pthread_mutex_lock(&rv_big);
	int err = engine_start();
	struct rv_cmd cmd = {.op = RV_OPEN};
	strcpy(cmd.text, wanted);
	if (!err && !opened)
		err = rv_command(&cmd);
	struct rv_ctx *c = err ? NULL : calloc(1, sizeof *c);
	if (!err && (!c || rv_pipe(c->async)))
		err = ENOMEM;
	if (!err)
		opened++;
	pthread_mutex_unlock(&rv_big);
	if (err) {
		free(c);
		rv_log("%s", *cmd.text && strcmp(cmd.text, wanted) ? cmd.text : *problem ? problem : strerror(err));
		return FAIL(err);
	}
	struct verbs_context *v = &c->v;
	c->magic = ALIVE;
	v->sz = sizeof *v;
	v->context.device = d;
	v->context.cmd_fd = eventfd(0, EFD_CLOEXEC); /* of no use, but a descriptor */
	v->context.async_fd = c->async[0];
	v->context.num_comp_vectors = 1;
	v->context.abi_compat = __VERBS_ABI_IS_EXTENDED;
	pthread_mutex_init(&v->context.mutex, NULL);
	v->query_port = query_port;
	v->query_device_ex = query_device_ex;
	v->query_rt_values = query_rt_values;
	v->create_qp_ex = rv_create_qp;
	v->open_qp = open_qp;
	rv_domain_verbs(v);
	rv_queue_verbs(v);
	rv_ops(c);
	return &v->context;
}
PUBLIC int ibv_close_device(struct ibv_context *context)
{
	struct rv_ctx *c = ctx_of(context);
	if (c->magic != ALIVE)
		return FAILS(EINVAL);
	c->magic = 0;
	pthread_mutex_lock(&rv_big);
	if (rv_live() && opened) {
		opened--;
		struct rv_cmd cmd = {.op = RV_CLOSE, .addr = c->async[1], .mask = !opened};
		rv_command(&cmd);
	}
	pthread_mutex_unlock(&rv_big);
	close(context->cmd_fd);
	close(c->async[0]);
	rv_close_late(c->async[1]);
	rv_bury(c);
	return 0;
}
