/*
 * peer: the far end of the interoperability test. It runs inside the guest,
 * reads one command a line on standard input and answers each with one line
 * on standard output: "ok ..." or "err ...". README.md lists the commands.
 */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <infiniband/verbs.h>
#include <net/if.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "peer.h"

#define OUTPUT_MAX 1000000 /* bytes of a job's output that are reported */

extern char **environ;

struct ibv_context *ctx;
struct ibv_pd *pds[2];

struct job {
	pid_t pid;
	int done, status;
};

static struct job *jobs[MAX];

/* Answers. */

static char *ans;
static size_t ans_len, ans_cap;

static void vsay(const char *fmt, va_list ap)
{
	va_list aq;
	size_t n;

	va_copy(aq, ap);
	n = vsnprintf(NULL, 0, fmt, aq);
	va_end(aq);
	if (ans_len + n + 1 > ans_cap) {
		ans_cap = 2 * (ans_len + n + 1);
		ans = realloc(ans, ans_cap);
	}
	vsnprintf(ans + ans_len, n + 1, fmt, ap);
	ans_len += n;
}

void say(const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	vsay(fmt, ap);
	va_end(ap);
}

int fail(const char *fmt, ...)
{
	va_list ap;

	ans_len = 0;
	say("err ");
	va_start(ap, fmt);
	vsay(fmt, ap);
	va_end(ap);
	return -1;
}

int fail_errno(const char *what, int err)
{
	return fail("%s: %s", what, strerror(err));
}

/* A quoted string that Go's strconv.Unquote takes. */
void say_quoted(const uint8_t *p, size_t n)
{
	say("\"");
	for (size_t i = 0; i < n; i++) {
		if (p[i] == '"' || p[i] == '\\')
			say("\\%c", p[i]);
		else if (p[i] == '\n')
			say("\\n");
		else if (p[i] < 0x20 || p[i] > 0x7e)
			say("\\x%02x", p[i]);
		else
			say("%c", p[i]);
	}
	say("\"");
}

/* The words of a command. */

static char *words[64];
static int nwords;

const char *word(const char *key, const char *dflt)
{
	size_t n = strlen(key);

	for (int i = 1; i < nwords; i++)
		if (!strncmp(words[i], key, n) && words[i][n] == '=')
			return words[i] + n + 1;
	return dflt;
}

uint64_t num(const char *key, uint64_t dflt)
{
	const char *v = word(key, NULL);

	return v && *v ? strtoull(v, NULL, 0) : dflt;
}

void *object(void *table, const char *key)
{
	uint64_t h = num(key, 0);

	return h >= 1 && h <= MAX ? ((void **)table)[h - 1] : NULL;
}

int put(void *table, void *object)
{
	for (int i = 0; i < MAX; i++)
		if (!((void **)table)[i]) {
			((void **)table)[i] = object;
			return i + 1;
		}
	fprintf(stderr, "peer: out of handles\n");
	exit(1);
}

void drop(void *table, const char *key)
{
	((void **)table)[num(key, 1) - 1] = NULL;
}

double now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return t.tv_sec + t.tv_nsec / 1e9;
}

int kernel_has_flush(void)
{
	struct utsname u;
	int a = 0, b = 0;

	uname(&u);
	sscanf(u.release, "%d.%d", &a, &b);
	return a > 6 || (a == 6 && b >= 2);
}

/* Commands: the guest. */

static int link_mtu(int set)
{
	struct ifreq r = { .ifr_name = "eth0", .ifr_mtu = set };
	int s = socket(AF_INET, SOCK_DGRAM, 0);
	int rc = ioctl(s, set ? SIOCSIFMTU : SIOCGIFMTU, &r);

	close(s);
	return rc ? -1 : r.ifr_mtu;
}

static int c_mtu(void)
{
	struct ibv_port_attr p;
	int m = link_mtu(num("set", 0));

	if (m < 0)
		return fail_errno("mtu", errno);
	if (ibv_query_port(ctx, 1, &p))
		return fail("ibv_query_port");
	say("ok mtu=%d path_mtu=%d", m, 128 << p.active_mtu);
	return 0;
}

static int c_info(void)
{
	struct ibv_device_attr d;
	struct utsname u;
	union ibv_gid g;
	char s[64];

	if (ibv_query_device(ctx, &d))
		return fail("ibv_query_device");
	uname(&u);
	say("ok kernel=%s flush=%d atomic_write=%d max_qp_rd_atom=%d max_qp_init_rd_atom=%d max_mr_size=0x%lx mtu=%d",
	    u.release, kernel_has_flush(), kernel_has_flush(), d.max_qp_rd_atom, d.max_qp_init_rd_atom,
	    (long)d.max_mr_size, link_mtu(0));
	for (int i = 0; i < 16; i++) {
		static const union ibv_gid zero;

		if (!ibv_query_gid(ctx, 1, i, &g) && memcmp(&g, &zero, 16))
			say(" gid%d=%s", i, inet_ntop(AF_INET6, g.raw, s, sizeof s));
	}
	return 0;
}

/* Jobs: shell commands. Spawned without a copy of this address space, so that
 * registered pages stay where they are. */

static char *shell_words; /* what stands after " -- " */

static int spawn(void)
{
	char *argv[] = { "sh", "-c", shell_words, NULL }, name[32];
	posix_spawn_file_actions_t fa;
	posix_spawnattr_t at;
	sigset_t none;
	struct job *j;
	int h, rc;

	if (!shell_words)
		return fail("no command after --");
	j = calloc(1, sizeof *j);
	h = put(jobs, j);
	snprintf(name, sizeof name, "/tmp/job.%d", h);
	sigemptyset(&none);
	posix_spawnattr_init(&at);
	posix_spawnattr_setflags(&at, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
	posix_spawnattr_setsigmask(&at, &none);
	posix_spawn_file_actions_init(&fa);
	posix_spawn_file_actions_addopen(&fa, 0, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_addopen(&fa, 1, name, O_WRONLY | O_CREAT | O_TRUNC | O_APPEND, 0600);
	posix_spawn_file_actions_adddup2(&fa, 1, 2);
	rc = posix_spawn(&j->pid, "/bin/sh", &fa, &at, argv, environ);
	posix_spawn_file_actions_destroy(&fa);
	posix_spawnattr_destroy(&at);
	if (rc) {
		jobs[h - 1] = NULL;
		free(j);
		return fail_errno("spawn", rc);
	}
	return h;
}

static void await(struct job *j, unsigned ms)
{
	double end = now() + ms / 1e3;
	int st;

	while (!j->done) {
		if (waitpid(j->pid, &st, WNOHANG) == j->pid) {
			j->done = 1;
			j->status = WIFEXITED(st) ? WEXITSTATUS(st) : 128 + WTERMSIG(st);
		} else if (now() >= end) {
			return;
		} else {
			usleep(1000);
		}
	}
}

/* Says how job h stands, with its output so far; forgets it when it is over. */
static int report(int h)
{
	struct job *j = jobs[h - 1];
	char name[32];
	uint8_t *b = malloc(OUTPUT_MAX);
	ssize_t n;
	int f;

	snprintf(name, sizeof name, "/tmp/job.%d", h);
	f = open(name, O_RDONLY);
	n = f < 0 ? 0 : read(f, b, OUTPUT_MAX);
	close(f);
	say("ok job=%d done=%d status=%d out=", h, j->done, j->status);
	say_quoted(b, n < 0 ? 0 : n);
	free(b);
	if (j->done) {
		unlink(name);
		jobs[h - 1] = NULL;
		free(j);
	}
	return 0;
}

static int c_sh(void)
{
	int h = spawn();

	if (h < 0)
		return -1;
	await(jobs[h - 1], num("ms", 30000));
	if (!jobs[h - 1]->done) {
		kill(-jobs[h - 1]->pid, SIGKILL);
		await(jobs[h - 1], 5000);
	}
	return report(h);
}

static int c_bg(void)
{
	int h = spawn();

	if (h < 0)
		return -1;
	say("ok job=%d", h);
	return 0;
}

static int c_wait(void)
{
	struct job *j = object(jobs, "job");

	if (!j)
		return fail("no such job");
	if (num("kill", 0))
		kill(-j->pid, num("kill", SIGKILL));
	await(j, num("ms", 30000));
	return report(num("job", 0));
}

static const struct {
	const char *name;
	int (*run)(void);
} commands[] = {
	{ "info", c_info }, { "mtu", c_mtu },
	{ "mr", c_mr }, { "dereg", c_dereg }, { "fill", c_fill }, { "check", c_check },
	{ "peek", c_peek }, { "poke", c_poke },
	{ "srq", c_srq }, { "qp", c_qp }, { "connect", c_connect }, { "modify", c_modify },
	{ "query", c_query }, { "destroy", c_destroy }, { "mcast", c_mcast },
	{ "recv", c_recv }, { "mw", c_mw }, { "post", c_post }, { "poll", c_poll },
	{ "events", c_events },
	{ "sh", c_sh }, { "bg", c_bg }, { "wait", c_wait },
};

static void answer(void)
{
	struct pollfd p = { .fd = 1, .events = POLLOUT };

	/* A virtio port whose other end is gone would block for ever. */
	if (poll(&p, 1, -1) == 1 && p.revents & POLLHUP)
		exit(1);
	say("\n");
	for (size_t at = 0; at < ans_len;) {
		ssize_t n = write(1, ans + at, ans_len - at);

		if (n < 0 && errno != EINTR)
			exit(1);
		at += n > 0 ? n : 0;
	}
}

static void run(char *line)
{
	char *save = NULL, *w;

	shell_words = strstr(line, " -- ");
	if (shell_words) {
		*shell_words = 0;
		shell_words += 4;
	}
	nwords = 0;
	for (w = strtok_r(line, " \t\r\n", &save); w && nwords < 64; w = strtok_r(NULL, " \t\r\n", &save))
		words[nwords++] = w;
	if (!nwords)
		return;
	for (size_t i = 0; i < sizeof commands / sizeof commands[0]; i++)
		if (!strcmp(commands[i].name, words[0])) {
			commands[i].run();
			answer();
			return;
		}
	fail("no such command");
	answer();
}

int main(void)
{
	struct ibv_device **list = ibv_get_device_list(NULL);
	char *line = NULL;
	size_t cap = 0;
	ssize_t n;

	for (int i = 0; list && list[i]; i++)
		if (!strcmp(ibv_get_device_name(list[i]), "rxe0"))
			ctx = ibv_open_device(list[i]);
	for (int i = 0; ctx && i < 2; i++)
		pds[i] = ibv_alloc_pd(ctx);
	if (!ctx || !pds[0] || !pds[1]) {
		fail("cannot open rxe0");
		answer();
		return 1;
	}
	fcntl(ctx->async_fd, F_SETFL, fcntl(ctx->async_fd, F_GETFL) | O_NONBLOCK);
	c_info(); /* unasked, to say that the guest is up */
	answer();
	while (ans_len = 0, (n = getline(&line, &cap, stdin)) > 0) {
		while (n && isspace((unsigned char)line[n - 1]))
			line[--n] = 0;
		if (!strcmp(line, "quit"))
			break;
		run(line);
	}
	return 0;
}
