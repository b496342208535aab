/* Domains, memory, and addresses of datagrams. */
#define _GNU_SOURCE
#include "objects.h"
#undef ibv_reg_mr
#undef ibv_reg_mr_iova
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

/* Protection domains, thread domains, XRC domains. */

static uint32_t last_pd, pds, mrs, mws, ahs;

PUBLIC struct ibv_pd *ibv_alloc_pd(struct ibv_context *c)
{
	int err = rv_live() ? rv_count(&pds, RV_MAX_PD) : EIO;
	struct rv_pd *p = err ? NULL : calloc(1, sizeof *p);
	if (!p)
		return FAIL(err ? err : ENOMEM);
	p->pd.context = p->context = c;
	p->pd.handle = p->number = rv_add(&last_pd, 1);
	p->magic = ALIVE;
	rv_add(&ctx_of(c)->refs, 1);
	return &p->pd;
}
PUBLIC int ibv_dealloc_pd(struct ibv_pd *pd)
{
	struct rv_pd *p = (void *)pd;
	int err = WRONG_PD(p);
	if (!err && rv_load(&p->refs))
		err = EBUSY;
	if (err)
		return FAILS(err);
	p->magic = 0;
	rv_add(&pds, -1);
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
	p->pd.handle = p->number = p->parent->number;
	if (a->comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_ALLOCATORS) {
		p->alloc = a->alloc;
		p->free = a->free;
	}
	if (a->comp_mask & IBV_PARENT_DOMAIN_INIT_ATTR_PD_CONTEXT)
		p->alloc_context = a->pd_context;
	rv_add(&p->parent->refs, 1);
	if ((p->td = (void *)a->td))
		rv_add(&p->td->refs, 1);
	return pd;
}

void *rv_pd_alloc(struct rv_pd **pd, size_t n)
{
	if (*pd && (*pd)->alloc) {
		void *p = (*pd)->alloc(&(*pd)->pd, (*pd)->alloc_context, n, sysconf(_SC_PAGESIZE), 0);
		if (p != IBV_ALLOCATOR_USE_DEFAULT)
			return p ? memset(p, 0, n) : NULL;
	}
	*pd = NULL;
	return calloc(1, n);
}
void rv_pd_free(struct rv_pd *pd, void *p)
{
	if (p && pd)
		pd->free(&pd->pd, pd->alloc_context, p, 0);
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
	pthread_mutex_lock(&rv_big);
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
	pthread_mutex_unlock(&rv_big);
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
	pthread_mutex_lock(&rv_big);
	if (x->file && --x->file->refs == 0) {
		struct rv_file **p = &files;
		while (*p != x->file)
			p = &(*p)->next;
		*p = x->file->next;
		free(x->file);
	}
	pthread_mutex_unlock(&rv_big);
	free(x);
	return 0;
}

void rv_domain_verbs(struct verbs_context *v)
{
	v->alloc_td = alloc_td;
	v->dealloc_td = dealloc_td;
	v->alloc_parent_domain = alloc_parent_domain;
	v->open_xrcd = open_xrcd;
	v->close_xrcd = close_xrcd;
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
	int err = WRONG_PD(p);
	if (!err)
		err = access_error(access);
	if (!err && len == 0)
		err = EINVAL;
	if (!err && !mapped(addr, len))
		err = EFAULT;
	if (!err)
		err = rv_count(&mrs, RV_MAX_MR / 2);
	struct rv_mr *m = err ? NULL : calloc(1, sizeof *m);
	if (!m)
		return FAIL(err ? err : ENOMEM);
	m->mr = (struct ibv_mr){.context = pd->context, .pd = pd, .addr = addr, .length = len};
	m->access = access;
	m->iova = iova;
	struct rv_cmd c = {.op = RV_REG_MR, .obj = addr, .addr = iova, .len = len, .pd = p->number, .access = access};
	if ((err = rv_command(&c))) {
		rv_add(&mrs, -1);
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
	struct rv_cmd c = {.op = RV_DEREG_MR, .key = mr->lkey};
	int err = WRONG_MR(m);
	if (!err)
		err = rv_command(&c);
	if (err && err != ENODEV)
		return FAILS(err);
	m->magic = 0;
	rv_add(&mrs, -1);
	rv_add(&((struct rv_pd *)mr->pd)->refs, -1);
	rv_bury(m);
	return 0;
}
PUBLIC int ibv_rereg_mr(struct ibv_mr *mr, int flags, struct ibv_pd *pd, void *addr, size_t len, int access)
{
	struct rv_mr *m = (void *)mr;
	int err = flags & ~IBV_REREG_MR_FLAGS_SUPPORTED || !flags || (flags & IBV_REREG_MR_CHANGE_TRANSLATION && (!len || !addr)) ||
		(flags & IBV_REREG_MR_CHANGE_PD && !pd) ? EINVAL : WRONG_MR(m);
	if (err) {
		errno = err;
		return IBV_REREG_MR_ERR_INPUT;
	}
	if (flags & IBV_REREG_MR_CHANGE_PD)
		err = WRONG_PD((struct rv_pd *)pd);
	if (!err && flags & IBV_REREG_MR_CHANGE_ACCESS)
		err = access_error(access);
	if (!err && flags & IBV_REREG_MR_CHANGE_TRANSLATION && !mapped(addr, len))
		err = EFAULT;
	if (err) { /* which the kernel would find */
		errno = err;
		return IBV_REREG_MR_ERR_CMD;
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
	struct rv_cmd c = {.op = RV_REG_MR, .obj = to.addr, .addr = iova, .len = to.length, .pd = ((struct rv_pd *)to.pd)->number, .access = rights, .key = mr->lkey, .mask = 1};
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
	int err = type != IBV_MW_TYPE_1 && type != IBV_MW_TYPE_2 ? EINVAL : WRONG_PD(p);
	if (!err)
		err = rv_count(&mws, RV_MAX_MR / 2);
	if (err)
		return FAIL(err);
	struct rv_mw *w = calloc(1, sizeof *w);
	struct rv_cmd c = {.op = RV_ALLOC_MW, .pd = p->number, .mask = type};
	if ((err = w ? rv_command(&c) : ENOMEM)) {
		rv_add(&mws, -1);
		free(w);
		return FAIL(err);
	}
	w->number = c.key;
	w->mw = (struct ibv_mw){.context = pd->context, .pd = pd, .rkey = c.key, .handle = c.key, .type = type};
	w->magic = ALIVE;
	rv_add(&p->refs, 1);
	return &w->mw;
}
int rv_dealloc_mw(struct ibv_mw *mw)
{
	struct rv_mw *w = (void *)mw;
	struct rv_cmd c = {.op = RV_DEALLOC_MW, .key = w->number};
	int err = WRONG_MW(w);
	if (!err)
		err = rv_command(&c);
	if (err && err != ENODEV)
		return FAILS(err);
	w->magic = 0;
	rv_add(&mws, -1);
	rv_add(&((struct rv_pd *)mw->pd)->refs, -1);
	rv_bury(w);
	return 0;
}

/* Address handles. */

PUBLIC struct ibv_ah *ibv_create_ah(struct ibv_pd *pd, struct ibv_ah_attr *a)
{
	struct rv_pd *p = (void *)pd;
	int err = !a->is_global || a->port_num != 1 ? EINVAL : WRONG_PD(p);
	if (!err)
		err = rv_count(&ahs, RV_MAX_AH);
	if (err)
		return FAIL(err);
	struct rv_ah *h = calloc(1, sizeof *h);
	struct rv_cmd c = {.op = RV_CREATE_AH, .attr = a};
	if ((err = h ? rv_command(&c) : ENOMEM)) {
		rv_add(&ahs, -1);
		free(h);
		return FAIL(err);
	}
	h->ah = (struct ibv_ah){pd->context, pd, c.key};
	h->number = c.key;
	h->magic = ALIVE;
	rv_add(&p->refs, 1);
	return &h->ah;
}
PUBLIC int ibv_destroy_ah(struct ibv_ah *ah)
{
	struct rv_ah *h = (void *)ah;
	int err = WRONG_AH(h);
	if (err)
		return FAILS(err);
	struct rv_cmd c = {.op = RV_DESTROY_AH, .key = h->number};
	rv_command(&c);
	h->magic = 0;
	rv_add(&ahs, -1);
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
