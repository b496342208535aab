/*
 * What the files of the agent share: the words of a command, its answer, the
 * objects that handles name. peer.c runs commands, objects.c makes regions and
 * queue pairs, work.c posts and polls.
 */
#ifndef PEER_H
#define PEER_H

#include <infiniband/verbs.h>
#include <stdint.h>
#include <stddef.h>

#define MAX 1024 /* handles of a kind */

/* Newer than the verbs.h of Debian 12; values of the kernel's uapi. */
#define ACCESS_FLUSH_GLOBAL (1 << 8)
#define ACCESS_FLUSH_PERSISTENT (1 << 9)
#define WR_FLUSH 14
#define WR_ATOMIC_WRITE 15
#define WC_FLUSH 8
#define WC_ATOMIC_WRITE 9

extern struct ibv_context *ctx;
extern struct ibv_pd *pds[2]; /* two, so that a key of the other one can be tried */

struct region {
	uint8_t *p;
	size_t len;
	struct ibv_mr *mr;
};

struct rxe_queue_buf;

struct qp {
	struct ibv_qp *qp;
	struct ibv_qp_ex *ex;
	struct ibv_cq *cq;
	struct ibv_ah *ah; /* UD: for the address of the last post */
	char ah_key[128];
	int access;
	uint32_t qkey;
	struct rxe_queue_buf *sq; /* mapped by the user-space driver */
};

extern struct region *regions[MAX];
extern struct qp *qps[MAX];
extern struct ibv_srq *srqs[MAX];
extern struct ibv_mw *mws[MAX];

/* Handles are slot numbers plus one; the argument key=HANDLE names one. */
void *object(void *table, const char *key);
int put(void *table, void *object);
void drop(void *table, const char *key);

/* The value of key=VALUE among the command's words, or dflt. */
const char *word(const char *key, const char *dflt);
uint64_t num(const char *key, uint64_t dflt);

/* The answer grows with say; fail replaces it by an error and returns -1. */
void say(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
void say_quoted(const uint8_t *p, size_t n);
int fail(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
int fail_errno(const char *what, int err);

/* off= and len= inside the region mr=; NULL after fail. */
struct region *span(size_t *off, size_t *len);
int access_flags(const char *s);
int parse_gid(const char *s, union ibv_gid *g);
int address(struct ibv_ah_attr *av); /* of dgid= and its friends */
double now(void);
/* Whether the kernel's driver has FLUSH and ATOMIC WRITE (Linux 6.2). */
int kernel_has_flush(void);

/* The commands, as README.md describes them. */
int c_mr(void);
int c_dereg(void);
int c_fill(void);
int c_check(void);
int c_peek(void);
int c_poke(void);
int c_srq(void);
int c_qp(void);
int c_connect(void);
int c_modify(void);
int c_query(void);
int c_destroy(void);
int c_mcast(void);
int c_recv(void);
int c_mw(void);
int c_post(void);
int c_poll(void);
int c_events(void);

#endif
