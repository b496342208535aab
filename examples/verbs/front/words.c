/* What libibverbs has besides objects: names of codes, rates, sysfs. A program that is
 * preloaded could use its own; that of the replacement (run -build) has none. */
#define _GNU_SOURCE
#include "objects.h"
#include <fcntl.h>
#include <stdio.h>

#define COUNT(a) (sizeof(a) / sizeof *(a))

PUBLIC const char *ibv_wc_status_str(enum ibv_wc_status s)
{
	static const char *const names[] = {"success", "local length error", "local QP operation error", "local EE context operation error",
		"local protection error", "Work Request Flushed Error", "memory management operation error", "bad response error",
		"local access error", "remote invalid request error", "remote access error", "remote operation error",
		"transport retry counter exceeded", "RNR retry counter exceeded", "local RDD violation error", "remote invalid RD request",
		"aborted error", "invalid EE context number", "invalid EE context state", "fatal error", "response timeout error", "general error",
		"tag matching error", "tag matching rendezvous incomplete"};
	return (unsigned)s < COUNT(names) ? names[s] : "unknown";
}

PUBLIC const char *ibv_event_type_str(enum ibv_event_type e)
{
	static const char *const names[] = {"CQ error", "local work queue catastrophic error", "invalid request local work queue error",
		"local access violation work queue error", "communication established", "send queue drained", "path migrated",
		"path migration request error", "local catastrophic error", "port active", "port error", "LID change", "P_Key change",
		"SM change", "SRQ catastrophic error", "SRQ limit reached", "last WQE reached", "client reregistration", "GID table change",
		"WQ fatal"};
	return (unsigned)e < COUNT(names) ? names[e] : "unknown";
}

PUBLIC const char *ibv_node_type_str(enum ibv_node_type t) { return t == IBV_NODE_CA ? "InfiniBand channel adapter" : "unknown"; }

PUBLIC const char *ibv_port_state_str(enum ibv_port_state s)
{
	static const char *const names[] = {"no state change (NOP)", "down", "init", "armed", "active", "active deferred"};
	return (unsigned)s < COUNT(names) ? names[s] : "invalid state";
}

/* Rates: the code, the multiple of 2.5 Gb/s where there is one, and Mb/s. */
static const struct {
	enum ibv_rate code;
	int mult, mbps;
} rates[] = {{IBV_RATE_2_5_GBPS, 1, 2500}, {IBV_RATE_5_GBPS, 2, 5000}, {IBV_RATE_10_GBPS, 4, 10000}, {IBV_RATE_20_GBPS, 8, 20000},
	{IBV_RATE_30_GBPS, 12, 30000}, {IBV_RATE_40_GBPS, 16, 40000}, {IBV_RATE_60_GBPS, 24, 60000}, {IBV_RATE_80_GBPS, 32, 80000},
	{IBV_RATE_120_GBPS, 48, 120000}, {IBV_RATE_14_GBPS, -1, 14062}, {IBV_RATE_56_GBPS, -1, 56250}, {IBV_RATE_112_GBPS, -1, 112500},
	{IBV_RATE_168_GBPS, -1, 168750}, {IBV_RATE_25_GBPS, -1, 25781}, {IBV_RATE_100_GBPS, -1, 103125}, {IBV_RATE_200_GBPS, -1, 206250},
	{IBV_RATE_300_GBPS, -1, 309375}, {IBV_RATE_28_GBPS, 11, 28125}, {IBV_RATE_50_GBPS, 20, 53125}, {IBV_RATE_400_GBPS, 160, 425000},
	{IBV_RATE_600_GBPS, 240, 637500}, {IBV_RATE_800_GBPS, 320, 850000}, {IBV_RATE_1200_GBPS, 480, 1275000}};

PUBLIC int ibv_rate_to_mult(enum ibv_rate r)
{
	for (unsigned i = 0; i < COUNT(rates); i++)
		if (rates[i].code == r)
			return rates[i].mult;
	return -1;
}
PUBLIC enum ibv_rate mult_to_ibv_rate(int mult)
{
	for (unsigned i = 0; i < COUNT(rates); i++)
		if (rates[i].mult == mult && mult > 0)
			return rates[i].code;
	return IBV_RATE_MAX;
}
PUBLIC int ibv_rate_to_mbps(enum ibv_rate r)
{
	for (unsigned i = 0; i < COUNT(rates); i++)
		if (rates[i].code == r)
			return rates[i].mbps;
	return -1;
}
PUBLIC enum ibv_rate mbps_to_ibv_rate(int mbps)
{
	for (unsigned i = 0; i < COUNT(rates); i++)
		if (rates[i].mbps == mbps)
			return rates[i].code;
	return IBV_RATE_MAX;
}

PUBLIC const char *ibv_get_sysfs_path(void) { return "/sys"; }
PUBLIC int ibv_read_sysfs_file(const char *dir, const char *file, char *buf, size_t size)
{
	char path[4096];
	if (!size || snprintf(path, sizeof path, "%s/%s", dir, file) >= (int)sizeof path)
		return -1;
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	ssize_t n = fd < 0 ? -1 : read(fd, buf, size);
	if (fd >= 0)
		close(fd);
	if (n > 0 && buf[n - 1] == '\n')
		n--;
	if (n < 0 || (size_t)n == size)
		return -1;
	buf[n] = 0;
	return n;
}
PUBLIC int ibv_dontfork_range(void *base, size_t n) { return 0; }
PUBLIC int ibv_dofork_range(void *base, size_t n) { return 0; }
PUBLIC void ibv_unimport_pd(struct ibv_pd *pd) {}
PUBLIC void ibv_unimport_mr(struct ibv_mr *mr) {}
PUBLIC void ibv_unimport_dm(struct ibv_dm *dm) {}
