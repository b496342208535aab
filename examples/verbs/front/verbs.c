/* The verbs that are no data path: devices, objects, their attributes and their events. */
#define _GNU_SOURCE
#include "objects.h"
#undef ibv_query_port
#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <linux/futex.h>
#include <time.h>

#define FAIL(e) (errno = (e), NULL)

enum { GIDS = 2 }; /* rows of the GID table; the second is empty */

struct rv_shared *rv_sh;
static pthread_mutex_t big = PTHREAD_MUTEX_INITIALIZER;   /* opening, closing, tables */
static pthread_mutex_t order = PTHREAD_MUTEX_INITIALIZER; /* one command at a time */
static struct ibv_device device = {.node_type = IBV_NODE_CA, .transport_type = IBV_TRANSPORT_IB,
	.name = "roce0", .dev_name = "uverbs0", .dev_path = "/sys/class/infiniband_verbs/uverbs0", .ibdev_path = "/sys/class/infiniband/roce0"};
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

int rv_pipe(int fd[2])
{
	if (pipe2(fd, O_CLOEXEC))
		return errno;
	fcntl(fd[1], F_SETFL, O_NONBLOCK);
	return 0;
}

/* rv_close_late closes the end of a pipe that events are written to, but not at once: a
 * thread may wait at the other end, and is to go on waiting when its descriptor is closed,
 * as it does with the kernel's. */
void rv_close_late(int fd)
{
	static int late[64];
	static uint32_t next;
	pthread_mutex_lock(&big);
	int old = late[next % 64];
	late[next++ % 64] = fd;
	pthread_mutex_unlock(&big);
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
	pthread_mutex_lock(&big);
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
	pthread_mutex_unlock(&big);
	return h;
}

void *rv_object(uint64_t h)
{
	uint32_t i = (h & 0xffffff) - 1;
	void *obj = NULL;
	pthread_mutex_lock(&big);
	if (i < table_size && table[i].turn == (h >> 24 & 0xffffff))
		obj = table[i].obj;
	pthread_mutex_unlock(&big);
	return obj;
}

void rv_unhandle(uint64_t h)
{
	if (rv_object(h)) {
		pthread_mutex_lock(&big);
		table[(h & 0xffffff) - 1].obj = NULL;
		pthread_mutex_unlock(&big);
	}
}

/* rv_bury frees an object, but not at once: a program that uses it after it was destroyed
 * finds a dead object rather than another's memory, for a while. */
void rv_bury(void *obj)
{
	static void *grave[1024];
	static uint32_t next;
	pthread_mutex_lock(&big);
	void *old = grave[next % 1024];
	grave[next++ % 1024] = obj;
	pthread_mutex_unlock(&big);
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
	pthread_mutex_lock(&order);
	sh->cmd = c;
	rv_store(&sh->state, 1);
	rv_wake();
	for (int i = 0; i < 64 && rv_load(&sh->state) == 1; i++)
		sched_yield();
	uint32_t s = 1;
	__atomic_compare_exchange_n(&sh->state, &s, 3, 0, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	while ((s = rv_load(&sh->state)) == 3)
		syscall(SYS_futex, &sh->state, FUTEX_WAIT_PRIVATE, 3, NULL, NULL, 0);
	rv_store(&sh->state, s == 9 ? 9 : 0);
	pthread_mutex_unlock(&order);
	return s == 9 ? ENODEV : c->err;
}

/* After a fork the child has the parent's objects, but no engine: they are dead to it.
 * It may open the device itself. */
static void before_fork(void)
{
	pthread_mutex_lock(&big);
	pthread_mutex_lock(&order);
}
static void after_fork(void)
{
	pthread_mutex_unlock(&order);
	pthread_mutex_unlock(&big);
}
static void in_child(void)
{
	pthread_mutex_init(&order, NULL);
	pthread_mutex_init(&big, NULL);
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
		.max_sge = RV_MAX_SGE, .max_sge_rd = RV_MAX_SGE, .max_cq = 1 << 14, .max_cqe = RV_MAX_CQE,
		.max_mr = RV_MAX_MR / 2, .max_pd = 1 << 14, .max_qp_rd_atom = RV_MAX_RD, .max_res_rd_atom = RV_MAX_RD * (RV_MAX_QP - 32),
		.max_qp_init_rd_atom = RV_MAX_RD, .atomic_cap = IBV_ATOMIC_HCA, .max_mw = RV_MAX_MR / 2,
		.max_mcast_grp = 256, .max_mcast_qp_attach = 64, .max_total_mcast_qp_attach = 1024, .max_ah = 1 << 14,
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

/* Protection domains, thread domains, XRC domains. */

static uint32_t pds;

PUBLIC struct ibv_pd *ibv_alloc_pd(struct ibv_context *c)
{
	struct rv_pd *p = rv_live() ? calloc(1, sizeof *p) : NULL;
	if (!p)
		return FAIL(rv_live() ? ENOMEM : EIO);
	p->pd.context = c;
	p->pd.handle = rv_add(&pds, 1);
	p->magic = ALIVE;
	rv_add(&ctx_of(c)->refs, 1);
	return &p->pd;
}
PUBLIC int ibv_dealloc_pd(struct ibv_pd *pd)
{
	struct rv_pd *p = (void *)pd;
	if (p->magic != ALIVE)
		return EINVAL;
	if (rv_load(&p->refs))
		return EBUSY;
	p->magic = 0;
	if (p->parent)
		rv_add(&p->parent->refs, -1);
	if (p->td)
		rv_add(&p->td->refs, -1);
	rv_add(&ctx_of(pd->context)->refs, -1);
	rv_bury(p);
	return 0;
}
static struct ibv_td *alloc_td(struct ibv_context *c, struct ibv_td_init_attr *a)
{
	if (a->comp_mask)
		return FAIL(EINVAL);
	struct rv_td *t = calloc(1, sizeof *t);
	if (!t)
		return FAIL(ENOMEM);
	t->td.context = c;
	return &t->td;
}
static int dealloc_td(struct ibv_td *t)
{
	if (rv_load(&((struct rv_td *)t)->refs))
		return EBUSY;
	free(t);
	return 0;
}
static struct ibv_pd *alloc_parent_domain(struct ibv_context *c, struct ibv_parent_domain_init_attr *a)
{
	const uint32_t known = IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS | IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT;
	if (!a->pd)
		return FAIL(EINVAL);
	if (a->comp_mask & ~known)
		return FAIL(EINVAL);
	if (a->comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS && (!a->alloc || !a->free))
		return FAIL(EINVAL);
	struct ibv_pd *pd = ibv_alloc_pd(c);
	if (!pd)
		return NULL;
	struct rv_pd *p = (void *)pd;
	p->parent = (void *)a->pd;
	p->pd.handle = a->pd->handle;
	if (a->comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS) {
		p->alloc = a->alloc;
		p->free = a->free;
	}
	if (a->comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT)
		p->context = a->pd_context;
	rv_add(&p->parent->refs, 1);
	if ((p->td = (void *)a->td))
		rv_add(&p->td->refs, 1);
	return pd;
}

void *rv_pd_alloc(struct rv_pd **pd, size_t n)
{
	if (*pd && (*pd)->alloc) {
		void *p = (*pd)->alloc(&(*pd)->pd, (*pd)->context, n, sysconf(_SC_PAGESIZE), 0);
		if (p != IBV_ALLOCATOR_USE_DEFAULT)
			return p ? memset(p, 0, n) : NULL;
	}
	*pd = NULL;
	return calloc(1, n);
}
void rv_pd_free(struct rv_pd *pd, void *p)
{
	if (p && pd)
		pd->free(&pd->pd, pd->context, p, 0);
	else
		free(p);
}

/* XRC domains that share a file are one. */
struct rv_file {
	dev_t dev;
	ino_t ino;
	uint32_t number, refs;
	struct rv_file *next;
};
static struct rv_file *files;
static uint32_t xrcds;

static struct ibv_xrcd *open_xrcd(struct ibv_context *c, struct ibv_xrcd_init_attr *a)
{
	const uint32_t need = IBV_XRCD_INIT_ATTR_FD | IBV_XRCD_INIT_ATTR_OFLAGS;
	if ((a->comp_mask & need) != need || a->comp_mask & ~need || a->oflags & ~(O_CREAT | O_EXCL))
		return FAIL(EINVAL);
	if (a->fd < 0 && !(a->oflags & O_CREAT))
		return FAIL(EINVAL);
	struct rv_xrcd *x = calloc(1, sizeof *x);
	if (!x)
		return FAIL(ENOMEM);
	x->xrcd.context = c;
	if (a->fd < 0) {
		x->number = rv_add(&xrcds, 1);
		return &x->xrcd;
	}
	struct stat st;
	int err = fstat(a->fd, &st) ? errno : 0;
	pthread_mutex_lock(&big);
	struct rv_file *f = err ? NULL : files;
	while (f && (f->dev != st.st_dev || f->ino != st.st_ino))
		f = f->next;
	if (!err && f && a->oflags & O_EXCL && a->oflags & O_CREAT)
		err = EEXIST;
	if (!err && !f && !(a->oflags & O_CREAT))
		err = EAGAIN;
	if (!err && !f && (f = calloc(1, sizeof *f))) {
		*f = (struct rv_file){st.st_dev, st.st_ino, rv_add(&xrcds, 1), 0, files};
		files = f;
	}
	if (!err) {
		f->refs++;
		x->file = f;
		x->number = f->number;
	}
	pthread_mutex_unlock(&big);
	if (err) {
		free(x);
		return FAIL(err);
	}
	return &x->xrcd;
}
static int close_xrcd(struct ibv_xrcd *xrcd)
{
	struct rv_xrcd *x = (void *)xrcd;
	if (rv_load(&x->refs))
		return EBUSY;
	pthread_mutex_lock(&big);
	if (x->file && --x->file->refs == 0) {
		struct rv_file **p = &files;
		while (*p != x->file)
			p = &(*p)->next;
		*p = x->file->next;
		free(x->file);
	}
	pthread_mutex_unlock(&big);
	free(x);
	return 0;
}

/* Memory regions and windows. */

static const unsigned mr_access = IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_READ |
	IBV_ACCESS_REMOTE_ATOMIC | IBV_ACCESS_MW_BIND | IBV_ACCESS_ZERO_BASED | IBV_ACCESS_HUGETLB;

static int access_error(unsigned access)
{
	if (access & IBV_ACCESS_ON_DEMAND)
		return EOPNOTSUPP;
	access &= ~IBV_ACCESS_OPTIONAL_RANGE;
	if (access & ~mr_access)
		return EINVAL;
	if (access & (IBV_ACCESS_REMOTE_WRITE | IBV_ACCESS_REMOTE_ATOMIC) && !(access & IBV_ACCESS_LOCAL_WRITE))
		return EINVAL;
	return 0;
}

/* mapped reports whether all pages of a range are there: the kernel would find out as
 * it pins them. */
static int mapped(void *addr, size_t len)
{
	uintptr_t page = sysconf(_SC_PAGESIZE), from = (uintptr_t)addr & ~(page - 1), end = (uintptr_t)addr + len;
	if (!len)
		return 1;
	if (end < (uintptr_t)addr)
		return 0;
	return madvise((void *)from, (end - from + page - 1) & ~(page - 1), MADV_NORMAL) == 0 || errno != ENOMEM;
}

PUBLIC struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *addr, size_t len, uint64_t iova, unsigned access)
{
	struct rv_pd *p = (void *)pd;
	int err = p->magic != ALIVE ? EINVAL : access_error(access);
	if (!err && len == 0)
		err = EINVAL;
	if (!err && !mapped(addr, len))
		err = EFAULT;
	struct rv_mr *m = err ? NULL : calloc(1, sizeof *m);
	if (!m)
		return FAIL(err ? err : ENOMEM);
	m->mr = (struct ibv_mr){.context = pd->context, .pd = pd, .addr = addr, .length = len};
	m->access = access;
	m->iova = iova;
	struct rv_cmd c = {.op = RV_REG_MR, .obj = addr, .addr = iova, .len = len, .pd = pd->handle, .access = access};
	if ((err = rv_command(&c))) {
		free(m);
		return FAIL(err);
	}
	m->mr.lkey = m->mr.rkey = m->mr.handle = c.key;
	m->magic = ALIVE;
	rv_add(&p->refs, 1);
	return &m->mr;
}
PUBLIC struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t len, int access)
{
	return ibv_reg_mr_iova2(pd, addr, len, (uintptr_t)addr, access);
}
PUBLIC struct ibv_mr *ibv_reg_mr_iova(struct ibv_pd *pd, void *addr, size_t len, uint64_t iova, int access)
{
	return ibv_reg_mr_iova2(pd, addr, len, iova, access);
}
PUBLIC struct ibv_mr *ibv_reg_dmabuf_mr(struct ibv_pd *pd, uint64_t off, size_t len, uint64_t iova, int fd, int access)
{
	return FAIL(EOPNOTSUPP);
}
PUBLIC int ibv_dereg_mr(struct ibv_mr *mr)
{
	struct rv_mr *m = (void *)mr;
	if (m->magic != ALIVE)
		return EINVAL;
	struct rv_cmd c = {.op = RV_DEREG_MR, .key = mr->lkey};
	int err = rv_command(&c);
	if (err && err != ENODEV)
		return err;
	m->magic = 0;
	rv_add(&((struct rv_pd *)mr->pd)->refs, -1);
	rv_bury(m);
	return 0;
}
PUBLIC int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t len, int access)
{
	struct rv_mr *m = (void *)mr;
	int err = m->magic != ALIVE || flags & ~IBV_REREG_MR_FLAGS_SUPPORTED || !flags ? EINVAL : 0;
	if (!err && flags & IBV_REREG_MR_CHANGE_TRANSLATION && (!len || !addr))
		err = EINVAL;
	if (!err && flags & IBV_REREG_MR_CHANGE_PD && !pd)
		err = EINVAL;
	if (!err && flags & IBV_REREG_MR_CHANGE_ACCESS)
		err = access_error(access);
	if (!err && flags & IBV_REREG_MR_CHANGE_TRANSLATION && !mapped(addr, len))
		err = EFAULT;
	if (err) {
		errno = err;
		return IBV_REREG_MR_ERR_INPUT;
	}
	struct ibv_mr to = *mr;
	uint64_t iova = m->iova;
	uint32_t rights = flags & IBV_REREG_MR_CHANGE_ACCESS ? (uint32_t)access : m->access;
	if (flags & IBV_REREG_MR_CHANGE_PD)
		to.pd = pd;
	if (flags & IBV_REREG_MR_CHANGE_TRANSLATION) {
		to.addr = addr;
		to.length = len;
		iova = (uintptr_t)addr;
	}
	struct rv_cmd c = {.op = RV_REG_MR, .obj = to.addr, .addr = iova, .len = to.length, .pd = to.pd->handle, .access = rights, .key = mr->lkey, .mask = 1};
	if ((err = rv_command(&c))) {
		errno = err;
		return IBV_REREG_MR_ERR_CMD;
	}
	to.lkey = to.rkey = to.handle = c.key;
	rv_add(&((struct rv_pd *)to.pd)->refs, 1);
	rv_add(&((struct rv_pd *)mr->pd)->refs, -1);
	m->mr = to;
	m->access = rights;
	m->iova = iova;
	return 0;
}

struct ibv_mw *rv_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct rv_pd *p = (void *)pd;
	if (p->magic != ALIVE || (type != IBV_MW_TYPE_1 && type != IBV_MW_TYPE_2))
		return FAIL(EINVAL);
	struct rv_mw *w = calloc(1, sizeof *w);
	struct rv_cmd c = {.op = RV_ALLOC_MW, .pd = pd->handle, .mask = type};
	int err = w ? rv_command(&c) : ENOMEM;
	if (err) {
		free(w);
		return FAIL(err);
	}
	w->mw = (struct ibv_mw){.context = pd->context, .pd = pd, .rkey = c.key, .handle = c.key, .type = type};
	w->magic = ALIVE;
	rv_add(&p->refs, 1);
	return &w->mw;
}
int rv_dealloc_mw(struct ibv_mw *mw)
{
	struct rv_mw *w = (void *)mw;
	if (w->magic != ALIVE)
		return EINVAL;
	struct rv_cmd c = {.op = RV_DEALLOC_MW, .key = mw->handle};
	int err = rv_command(&c);
	if (err && err != ENODEV)
		return err;
	w->magic = 0;
	rv_add(&((struct rv_pd *)mw->pd)->refs, -1);
	rv_bury(w);
	return 0;
}

/* Completion queues and channels. */

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
	rv_add(&ctx_of(c)->refs, 1);
	return &h->ch;
}
PUBLIC int ibv_destroy_comp_channel(struct ibv_comp_channel *ch)
{
	struct rv_channel *h = (void *)ch;
	if (rv_load(&ch->refcnt))
		return EBUSY;
	close(ch->fd);
	rv_close_late(h->write);
	rv_add(&ctx_of(ch->context)->refs, -1);
	free(h);
	return 0;
}

static struct rv_cq *create_cq(struct ibv_context *c, struct rv_pd *pd, uint32_t cqe, void *context, struct ibv_comp_channel *ch, int vector)
{
	if (cqe < 1 || cqe > RV_MAX_CQE || vector < 0 || vector >= c->num_comp_vectors)
		return FAIL(EINVAL);
	if (!rv_live())
		return FAIL(EIO);
	struct rv_cq *q = calloc(1, sizeof *q);
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
	if (q->magic != ALIVE || cqe < 1 || cqe > RV_MAX_CQE)
		return EINVAL;
	struct rv_cq to = {.size = 1, .depth = cqe, .owner = q->pd};
	while (to.size < to.depth)
		to.size *= 2;
	to.ring = rv_pd_alloc(&to.owner, (size_t)to.size * sizeof *to.ring);
	if (!to.ring)
		return ENOMEM;
	pthread_mutex_lock(&q->lock);
	/* The engine moves what waits into the other ring, and the rings change places. */
	struct rv_cmd c = {.op = RV_RESIZE_CQ, .obj = q, .attr = &to};
	int err = rv_command(&c);
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

/* await waits until all events that were got are acknowledged. */
static void await(pthread_mutex_t *m, pthread_cond_t *c, uint32_t *done, uint32_t *got)
{
	pthread_mutex_lock(m);
	while (*done != *got)
		pthread_cond_wait(c, m);
	pthread_mutex_unlock(m);
}

PUBLIC int ibv_destroy_cq(struct ibv_cq *cq)
{
	struct rv_cq *q = (void *)cq;
	if (q->magic != ALIVE)
		return EINVAL;
	if (rv_load(&q->refs))
		return EBUSY;
	rv_unhandle(q->handle);
	await(&cq->mutex, &cq->cond, &cq->comp_events_completed, &q->comp_got);
	await(&cq->mutex, &cq->cond, &cq->async_events_completed, &q->async_got);
	q->magic = 0;
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
	if (a->attr.max_wr < 1 || a->attr.max_wr > RV_MAX_WR || a->attr.max_sge > RV_MAX_SGE)
		return FAIL(EINVAL);
	struct rv_srq *s = calloc(1, sizeof *s);
	if (!s)
		return FAIL(ENOMEM);
	s->rq.bell = -1;
	if (!a->attr.max_sge)
		a->attr.max_sge = 1;
	int err = rv_queue_init(&s->rq, (void *)a->pd, a->attr.max_wr, a->attr.max_sge, 0, 0);
	if (err) {
		free(s);
		return FAIL(err);
	}
	s->srq.context = c;
	s->srq.srq_context = a->srq_context;
	s->srq.pd = a->pd;
	s->pd = a->pd->handle;
	s->async = ctx_of(c)->async[1];
	s->handle = rv_handle(s);
	if (type == IBV_SRQT_XRC) {
		s->xrcd = (void *)a->xrcd;
		s->xrcdn = s->xrcd->number;
		s->cq = (void *)a->cq;
	}
	pthread_mutex_init(&s->srq.mutex, NULL);
	pthread_cond_init(&s->srq.cond, NULL);
	struct rv_cmd cmd = {.op = RV_CREATE_SRQ, .obj = s, .pd = a->pd->handle};
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
	if (((struct rv_pd *)pd)->magic != ALIVE)
		return FAIL(EINVAL);
	struct ibv_srq *s = create_srq_ex(pd->context, &x);
	if (s)
		a->attr = x.attr;
	return s;
}
PUBLIC int ibv_modify_srq(struct ibv_srq *srq, struct ibv_srq_attr *a, int mask)
{
	struct rv_srq *s = (void *)srq;
	if (s->magic != ALIVE || mask & ~(IBV_SRQ_MAX_WR | IBV_SRQ_LIMIT))
		return EINVAL;
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
	if (s->magic != ALIVE)
		return EINVAL;
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
	if (s->magic != ALIVE)
		return EINVAL;
	if (rv_load(&s->refs))
		return EBUSY;
	struct rv_cmd c = {.op = RV_DESTROY_SRQ, .obj = s};
	int err = rv_command(&c);
	if (err && err != ENODEV)
		return err;
	rv_unhandle(s->handle);
	await(&srq->mutex, &srq->cond, &srq->events_completed, &s->async_got);
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

/* Queue pairs. */

static void hold(struct rv_qp *qp, int n)
{
	if (qp->qp.pd)
		rv_add(&((struct rv_pd *)qp->qp.pd)->refs, n);
	if (qp->scq)
		rv_add(&qp->scq->refs, n);
	if (qp->rcq)
		rv_add(&qp->rcq->refs, n);
	if (qp->srq)
		rv_add(&qp->srq->refs, n);
	if (qp->xrcd)
		rv_add(&qp->xrcd->refs, n);
	rv_add(&ctx_of(qp->qp.context)->refs, n);
}

/* caps checks and rounds what a QP is to have. */
static int caps(struct ibv_qp_cap *c, int sends, int receives)
{
	if (!sends)
		c->max_send_wr = c->max_send_sge = c->max_inline_data = 0;
	if (!receives)
		c->max_recv_wr = c->max_recv_sge = 0;
	if (c->max_send_wr > RV_MAX_WR || c->max_recv_wr > RV_MAX_WR || c->max_send_sge > RV_MAX_SGE || c->max_recv_sge > RV_MAX_SGE ||
		c->max_inline_data > RV_MAX_INLINE)
		return EINVAL;
	return 0;
}

struct ibv_qp *rv_create_qp(struct ibv_context *c, struct ibv_qp_init_attr_ex *a)
{
	const uint32_t known = IBV_QP_INIT_ATTR_PD | IBV_QP_INIT_ATTR_XRCD | IBV_QP_INIT_ATTR_CREATE_FLAGS | IBV_QP_INIT_ATTR_SEND_OPS_FLAGS;
	const uint64_t ops = IBV_QP_EX_WITH_RDMA_WRITE | IBV_QP_EX_WITH_RDMA_WRITE_WITH_IMM | IBV_QP_EX_WITH_SEND | IBV_QP_EX_WITH_SEND_WITH_IMM |
		IBV_QP_EX_WITH_RDMA_READ | IBV_QP_EX_WITH_ATOMIC_CMP_AND_SWP | IBV_QP_EX_WITH_ATOMIC_FETCH_AND_ADD | IBV_QP_EX_WITH_LOCAL_INV |
		IBV_QP_EX_WITH_BIND_MW | IBV_QP_EX_WITH_SEND_WITH_INV | IBV_QP_EX_WITH_ATOMIC_WRITE;
	int target = a->qp_type == IBV_QPT_XRC_RECV;
	struct rv_pd *pd = a->comp_mask & IBV_QP_INIT_ATTR_PD ? (void *)a->pd : NULL;
	struct rv_xrcd *xrcd = target && a->comp_mask & IBV_QP_INIT_ATTR_XRCD ? (void *)a->xrcd : NULL;
	if (a->comp_mask & ~known || (a->comp_mask & IBV_QP_INIT_ATTR_CREATE_FLAGS && a->create_flags) ||
		(a->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS && a->send_ops_flags & ~ops))
		return FAIL(EOPNOTSUPP);
	switch (a->qp_type) {
	case IBV_QPT_RC:
	case IBV_QPT_UC:
	case IBV_QPT_UD:
	case IBV_QPT_XRC_SEND:
		if (!pd || pd->magic != ALIVE)
			return FAIL(EINVAL);
		break;
	case IBV_QPT_XRC_RECV:
		if (!xrcd)
			return FAIL(EINVAL);
		break;
	default:
		return FAIL(EOPNOTSUPP);
	}
	int receives = !target && a->qp_type != IBV_QPT_XRC_SEND;
	struct rv_cq *scq = target ? NULL : (void *)a->send_cq, *rcq = receives ? (void *)a->recv_cq : NULL;
	struct rv_srq *srq = receives ? (void *)a->srq : NULL;
	if ((!target && (!scq || scq->magic != ALIVE)) || (receives && (!rcq || rcq->magic != ALIVE)) || (srq && (srq->magic != ALIVE || a->qp_type == IBV_QPT_UC)))
		return FAIL(EINVAL);
	int err = caps(&a->cap, !target, receives && !srq);
	struct rv_qp *qp = err ? NULL : calloc(1, sizeof *qp);
	if (!qp)
		return FAIL(err ? err : ENOMEM);
	qp->sq.bell = qp->rq.bell = -1;
	if (!target)
		err = rv_queue_init(&qp->sq, pd, a->cap.max_send_wr, a->cap.max_send_sge, a->cap.max_inline_data, 1);
	if (!err && receives && !srq)
		err = rv_queue_init(&qp->rq, pd, a->cap.max_recv_wr, a->cap.max_recv_sge, 0, 0);
	qp->qp = (struct ibv_qp){.context = c, .qp_context = a->qp_context, .pd = &pd->pd, .send_cq = target ? NULL : a->send_cq, .recv_cq = receives ? a->recv_cq : NULL,
		.srq = receives ? a->srq : NULL, .state = IBV_QPS_RESET, .qp_type = a->qp_type};
	pthread_mutex_init(&qp->qp.mutex, NULL);
	pthread_cond_init(&qp->qp.cond, NULL);
	qp->scq = scq, qp->rcq = rcq, qp->srq = srq, qp->xrcd = xrcd;
	qp->receives = srq ? &srq->rq : receives ? &qp->rq : NULL;
	qp->pd = pd ? pd->pd.handle : 0;
	qp->xrcdn = xrcd ? xrcd->number : 0;
	qp->cap = a->cap;
	qp->sq_sig_all = a->sq_sig_all;
	qp->async = ctx_of(c)->async[1];
	qp->handle = err ? 0 : rv_handle(qp);
	struct rv_cmd cmd = {.op = RV_CREATE_QP, .obj = qp};
	if (!err)
		err = rv_command(&cmd);
	if (err) {
		if (qp->handle)
			rv_unhandle(qp->handle);
		rv_queue_free(&qp->sq);
		rv_queue_free(&qp->rq);
		free(qp);
		return FAIL(err);
	}
	qp->qp.handle = qp->qp.qp_num;
	if (a->comp_mask & IBV_QP_INIT_ATTR_SEND_OPS_FLAGS)
		rv_qp_ops(qp, a->send_ops_flags);
	qp->magic = ALIVE;
	hold(qp, 1);
	return &qp->qp;
}
PUBLIC struct ibv_qp *ibv_create_qp(struct ibv_pd *pd, struct ibv_qp_init_attr *a)
{
	struct ibv_qp_init_attr_ex x = {.qp_context = a->qp_context, .send_cq = a->send_cq, .recv_cq = a->recv_cq, .srq = a->srq, .cap = a->cap,
		.qp_type = a->qp_type, .sq_sig_all = a->sq_sig_all, .comp_mask = IBV_QP_INIT_ATTR_PD, .pd = pd};
	struct ibv_qp *qp = rv_create_qp(pd->context, &x);
	if (qp)
		a->cap = x.cap;
	return qp;
}
PUBLIC struct ibv_qp_ex *ibv_qp_to_qp_ex(struct ibv_qp *qp) { return ((struct rv_qp *)qp)->with_ex ? &((struct rv_qp *)qp)->ex : NULL; }
static struct ibv_qp *open_qp(struct ibv_context *c, struct ibv_qp_open_attr *a) { return FAIL(EOPNOTSUPP); }

PUBLIC int ibv_modify_qp(struct ibv_qp *ibqp, struct ibv_qp_attr *a, int mask)
{
	struct rv_qp *qp = (void *)ibqp;
	if (qp->magic != ALIVE)
		return EINVAL;
	struct rv_cmd c = {.op = RV_MODIFY_QP, .obj = qp, .attr = a, .mask = mask};
	int err = rv_command(&c);
	if (err)
		return err;
	if (mask & IBV_QP_STATE)
		ibqp->state = a->qp_state;
	if (mask & IBV_QP_STATE && a->qp_state == IBV_QPS_RESET) {
		rv_clean(qp->scq, qp);
		rv_clean(qp->rcq, qp);
		if (qp->sq.slots) {
			pthread_mutex_lock(&qp->sq.lock);
			rv_queue_reset(&qp->sq);
			pthread_mutex_unlock(&qp->sq.lock);
		}
		if (qp->rq.slots) {
			pthread_mutex_lock(&qp->rq.lock);
			rv_queue_reset(&qp->rq);
			pthread_mutex_unlock(&qp->rq.lock);
		}
	}
	return 0;
}
PUBLIC int ibv_query_qp(struct ibv_qp *ibqp, struct ibv_qp_attr *a, int mask, struct ibv_qp_init_attr *init)
{
	struct rv_qp *qp = (void *)ibqp;
	if (qp->magic != ALIVE)
		return EINVAL;
	memset(a, 0, sizeof *a);
	struct rv_cmd c = {.op = RV_QUERY_QP, .obj = qp, .attr = a};
	int err = rv_command(&c);
	if (err)
		return err;
	a->cap = qp->cap;
	a->cur_qp_state = a->qp_state;
	ibqp->state = a->qp_state;
	*init = (struct ibv_qp_init_attr){.qp_context = ibqp->qp_context, .send_cq = ibqp->send_cq, .recv_cq = ibqp->recv_cq, .srq = ibqp->srq, .cap = qp->cap,
		.qp_type = ibqp->qp_type, .sq_sig_all = qp->sq_sig_all};
	return 0;
}
/* linger waits where packets get lost on purpose: the peer may lack our last
 * acknowledgement, and a program that is done ends at once. */
static void linger(void)
{
	static time_t last;
	struct timespec now;
	uint32_t ms = rv_live() ? rv_sh->linger : 0;
	clock_gettime(CLOCK_MONOTONIC, &now);
	if (!ms || now.tv_sec - last < 2)
		return;
	usleep(1000 * ms);
	clock_gettime(CLOCK_MONOTONIC, &now);
	last = now.tv_sec;
}

PUBLIC int ibv_destroy_qp(struct ibv_qp *ibqp)
{
	struct rv_qp *qp = (void *)ibqp;
	if (qp->magic != ALIVE)
		return EINVAL;
	if (rv_load(&qp->groups))
		return EBUSY;
	linger();
	struct rv_cmd c = {.op = RV_DESTROY_QP, .obj = qp};
	int err = rv_command(&c);
	if (err && err != ENODEV)
		return err;
	rv_unhandle(qp->handle);
	await(&ibqp->mutex, &ibqp->cond, &ibqp->events_completed, &qp->async_got);
	qp->magic = 0;
	rv_clean(qp->scq, qp);
	if (qp->rcq != qp->scq)
		rv_clean(qp->rcq, qp);
	hold(qp, -1);
	rv_queue_free(&qp->sq);
	rv_queue_free(&qp->rq);
	rv_bury(qp);
	return 0;
}
PUBLIC int ibv_query_qp_data_in_order(struct ibv_qp *qp, enum ibv_wr_opcode op, uint32_t flags) { return 0; }
PUBLIC int ibv_query_ece(struct ibv_qp *qp, struct ibv_ece *e)
{
	memset(e, 0, sizeof *e);
	return EOPNOTSUPP;
}
PUBLIC int ibv_set_ece(struct ibv_qp *qp, struct ibv_ece *e) { return e->vendor_id ? EOPNOTSUPP : 0; }

static int mcast(struct ibv_qp *qp, const union ibv_gid *g, int attach)
{
	struct rv_qp *q = (void *)qp;
	if (q->magic != ALIVE || qp->qp_type != IBV_QPT_UD)
		return EINVAL;
	struct rv_cmd c = {.op = RV_MCAST, .obj = q, .attr = (void *)g, .mask = attach};
	int err = rv_command(&c);
	if (!err)
		rv_add(&q->groups, attach ? 1 : -1);
	return err;
}
PUBLIC int ibv_attach_mcast(struct ibv_qp *qp, const union ibv_gid *g, uint16_t lid) { return mcast(qp, g, 1); }
PUBLIC int ibv_detach_mcast(struct ibv_qp *qp, const union ibv_gid *g, uint16_t lid) { return mcast(qp, g, 0); }

/* Address handles. */

PUBLIC struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *a)
{
	struct rv_pd *p = (void *)pd;
	if (p->magic != ALIVE || !a->is_global || a->port_num != 1)
		return FAIL(EINVAL);
	struct rv_ah *h = calloc(1, sizeof *h);
	struct rv_cmd c = {.op = RV_CREATE_AH, .attr = a};
	int err = h ? rv_command(&c) : ENOMEM;
	if (err) {
		free(h);
		return FAIL(err);
	}
	h->ah = (struct ibv_ah){pd->context, pd, c.key};
	h->magic = ALIVE;
	rv_add(&p->refs, 1);
	return &h->ah;
}
PUBLIC int ibv_destroy_ah(struct ibv_ah *ah)
{
	struct rv_ah *h = (void *)ah;
	if (h->magic != ALIVE)
		return EINVAL;
	struct rv_cmd c = {.op = RV_DESTROY_AH, .key = ah->handle};
	rv_command(&c);
	h->magic = 0;
	rv_add(&((struct rv_pd *)ah->pd)->refs, -1);
	rv_bury(h);
	return 0;
}
PUBLIC int ibv_init_ah_from_wc(struct ibv_context *c, uint8_t port, struct ibv_wc *wc, struct ibv_grh *grh, struct ibv_ah_attr *a)
{
	memset(a, 0, sizeof *a);
	a->port_num = port;
	a->sl = wc->sl;
	if (!(wc->wc_flags & IBV_WC_GRH))
		return 0;
	const uint8_t *b = (void *)grh;
	a->is_global = 1;
	if (b[0] >> 4 != 6 && b[20] >> 4 == 4) {
		/* An IPv4 header behind 20 bytes of nothing. */
		a->grh.dgid.raw[10] = a->grh.dgid.raw[11] = 0xff;
		memcpy(a->grh.dgid.raw + 12, b + 32, 4);
		a->grh.traffic_class = b[21];
	} else {
		a->grh.dgid = grh->sgid;
		uint32_t v = (uint32_t)b[0] << 24 | b[1] << 16 | b[2] << 8 | b[3];
		a->grh.flow_label = v & 0xfffff;
		a->grh.traffic_class = v >> 20;
	}
	a->grh.hop_limit = 64;
	return 0;
}
PUBLIC struct ibv_ah *ibv_create_ah_from_wc(struct ibv_pd *pd, struct ibv_wc *wc, struct ibv_grh *grh, uint8_t port)
{
	struct ibv_ah_attr a;
	ibv_init_ah_from_wc(pd->context, port, wc, grh, &a);
	return ibv_create_ah(pd, &a);
}
PUBLIC int ibv_resolve_eth_l2_from_gid(struct ibv_context *c, struct ibv_ah_attr *a, uint8_t mac[6], uint16_t *vid) { return EOPNOTSUPP; }

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
PUBLIC int ibv_fork_init(void) { return 0; }
PUBLIC enum ibv_fork_status ibv_is_fork_initialized(void) { return IBV_FORK_UNNEEDED; }

PUBLIC struct ibv_context *ibv_open_device(struct ibv_device *d)
{
	pthread_mutex_lock(&big);
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
	pthread_mutex_unlock(&big);
	if (err) {
		free(c);
		rv_log("%s", *cmd.text && strcmp(cmd.text, wanted) ? cmd.text : *problem ? problem : strerror(err));
		return FAIL(err);
	}
	struct verbs_context *v = &c->v;
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
	v->alloc_td = alloc_td;
	v->dealloc_td = dealloc_td;
	v->alloc_parent_domain = alloc_parent_domain;
	v->open_xrcd = open_xrcd;
	v->close_xrcd = close_xrcd;
	v->create_srq_ex = create_srq_ex;
	v->get_srq_num = get_srq_num;
	v->create_qp_ex = rv_create_qp;
	v->open_qp = open_qp;
	v->create_cq_ex = create_cq_ex;
	v->modify_cq = modify_cq;
	rv_ops(c);
	return &v->context;
}
PUBLIC int ibv_close_device(struct ibv_context *context)
{
	struct rv_ctx *c = ctx_of(context);
	pthread_mutex_lock(&big);
	if (rv_live() && opened) {
		opened--;
		struct rv_cmd cmd = {.op = RV_CLOSE, .addr = c->async[1], .mask = !opened};
		rv_command(&cmd);
	}
	pthread_mutex_unlock(&big);
	close(context->cmd_fd);
	close(c->async[0]);
	rv_close_late(c->async[1]);
	rv_bury(c);
	return 0;
}
