/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements metrics.h. It serves one connection at a time, each for at most a few seconds, because
 * metrics are requested rarely. It parses only the first line of a request.
 */
#include "metrics.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "common/thread.h"
#include "core/base/clock.h"

#define REQUEST_MAX 4096
#define PAUSE_MS 100 /* time in ms until the next attempt to accept a connection */
#define REQUEST_MS 2000

struct pl_metrics {
	struct pl_plane *plane;
	int fd;
	pthread_t thread;
};

/* ---- the text ---- */

static void put_head(struct pst_text *out, const char *name, const char *type, const char *help)
{
	pst_text_printf(out, "# HELP penstock_plane_%s %s\n# TYPE penstock_plane_%s %s\n", name,
			help, name, type);
}

static void put_one(struct pst_text *out, const char *name, const char *type, const char *help,
		    uint64_t value)
{
	put_head(out, name, type, help);
	pst_text_printf(out, "penstock_plane_%s %llu\n", name, (unsigned long long)value);
}

static void put_requests(const struct pl_counts *c, struct pst_text *out)
{
	static const char *const ops[] = {"get", "put"};
	static const char *const by[PL_OUTCOMES] = {"window", "body", "error"};

	put_head(out, "requests_total", "counter",
		 "Requests by operation, and by the way that the bytes moved.");
	for (unsigned op = 0; op < 2; op++)
		for (unsigned i = 0; i < PL_OUTCOMES; i++)
			pst_text_printf(
				out,
				"penstock_plane_requests_total{operation=\"%s\",by=\"%s\"} %llu\n",
				ops[op], by[i],
				(unsigned long long)atomic_load(&c->requests[op][i]));
	put_head(out, "bytes_total", "counter", "Bytes of these requests.");
	for (unsigned op = 0; op < 2; op++)
		for (unsigned i = 0; i < PL_FAILED; i++)
			pst_text_printf(
				out,
				"penstock_plane_bytes_total{operation=\"%s\",by=\"%s\"} %llu\n",
				ops[op], by[i], (unsigned long long)atomic_load(&c->bytes[op][i]));
}

static void put_refusals(const struct pl_counts *c, struct pst_text *out)
{
	static const char *const limits[PL_LIMITS] = {"tenants", "user", "memory", "windows",
						      "in-flight"};
	const struct {
		const char *reason;
		uint64_t count;
	} others[] = {
		{"user", atomic_load(&c->refused_user)},
		{"version", atomic_load(&c->refused_version)},
		{"name", atomic_load(&c->refused_name)},
		{"policy", atomic_load(&c->refused_policy)},
		{"malformed", atomic_load(&c->malformed)},
	};

	put_head(out, "refused_total", "counter", "Connections and questions that were refused.");
	for (unsigned i = 0; i < sizeof(others) / sizeof(others[0]); i++)
		pst_text_printf(out, "penstock_plane_refused_total{reason=\"%s\"} %llu\n",
				others[i].reason, (unsigned long long)others[i].count);
	for (unsigned i = 0; i < PL_LIMITS; i++)
		pst_text_printf(out, "penstock_plane_refused_total{reason=\"limit-%s\"} %llu\n",
				limits[i], (unsigned long long)atomic_load(&c->refused[i]));
}

void pl_metrics_write(const struct pl_counts *c, struct pst_text *out)
{
	put_one(out, "tenants", "gauge", "Connected tenants.", atomic_load(&c->tenants));
	put_head(out, "tenants_total", "counter", "Tenants by role.");
	pst_text_printf(out, "penstock_plane_tenants_total{role=\"client\"} %llu\n",
			(unsigned long long)atomic_load(&c->tenants_total[0]));
	pst_text_printf(out, "penstock_plane_tenants_total{role=\"server\"} %llu\n",
			(unsigned long long)atomic_load(&c->tenants_total[1]));
	put_one(out, "memory_bytes", "gauge", "Memory that tenants share.",
		atomic_load(&c->memory));
	put_one(out, "in_flight", "gauge", "Requests and moves without an end.",
		atomic_load(&c->in_flight));
	put_requests(c, out);
	put_head(out, "moves_total", "counter", "Moves of servers by result.");
	pst_text_printf(out, "penstock_plane_moves_total{result=\"done\"} %llu\n",
			(unsigned long long)atomic_load(&c->moves[0]));
	pst_text_printf(out, "penstock_plane_moves_total{result=\"error\"} %llu\n",
			(unsigned long long)atomic_load(&c->moves[1]));
	put_one(out, "moved_bytes_total", "counter", "Bytes of these moves.",
		atomic_load(&c->moved_bytes));
	put_refusals(c, out);
	put_one(out, "lost_total", "counter", "Tenants that ended with open windows or moves.",
		atomic_load(&c->lost));
	put_one(out, "lost_windows_total", "counter",
		"Windows of these tenants, which the plane has released.",
		atomic_load(&c->lost_windows));
	put_one(out, "cut_off_total", "counter",
		"Releases after which the tenant had to replace the pages.",
		atomic_load(&c->cut_off));
}

/* ---- the thread ---- */

/* Receives the head of a request. Returns false if its end does not arrive in time. */
static bool head_receive(int fd, char *head, size_t size)
{
	uint64_t until = pst_now_ns() + REQUEST_MS * UINT64_C(1000000);
	size_t len = 0;

	while (len + 1 < size) {
		uint64_t now = pst_now_ns();
		struct pollfd wait = {fd, POLLIN, 0};
		ssize_t n;

		if (now >= until || poll(&wait, 1, (int)((until - now) / 1000000) + 1) <= 0)
			return false;
		n = recv(fd, head + len, size - 1 - len, MSG_DONTWAIT);
		if (n <= 0)
			return false;
		len += (size_t)n;
		head[len] = '\0';
		if (strstr(head, "\r\n\r\n"))
			return true;
	}
	return false;
}

static void connection_serve(const struct pl_metrics *metrics, int fd)
{
	struct timeval time = {REQUEST_MS / 1000, 0};
	struct pst_text body = {NULL, 0, 0, false};
	struct pst_text reply = {NULL, 0, 0, false};
	const char *status = "200 OK";
	char head[REQUEST_MAX];

	(void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &time, sizeof(time));
	if (!head_receive(fd, head, sizeof(head)))
		return;
	if (!strncmp(head, "GET /metrics ", 13))
		pl_metrics_write(&metrics->plane->counts, &body);
	else if (strncmp(head, "GET /healthz ", 13) != 0)
		status = "404 Not Found";
	else if (atomic_load(&metrics->plane->draining))
		status = "503 Service Unavailable";
	else
		pst_text_put_str(&body, "ok\n");
	pst_text_put_str(&reply, "HTTP/1.1 ");
	pst_text_put_str(&reply, status);
	pst_text_put_str(&reply, "\r\nContent-Type: text/plain; version=0.0.4\r\n"
				 "Connection: close\r\nContent-Length: ");
	pst_text_put_number(&reply, body.len);
	pst_text_put_str(&reply, "\r\n\r\n");
	if (body.len)
		pst_text_put(&reply, body.at, body.len);
	/* ignores an error, which means that the client has disconnected */
	if (!reply.failed && !body.failed)
		(void)!send(fd, reply.at, reply.len, MSG_NOSIGNAL);
	free(body.at);
	free(reply.at);
}

static void *metrics_run(void *arg)
{
	struct pl_metrics *metrics = arg;

	for (;;) {
		struct pollfd fds[2] = {{metrics->fd, POLLIN, 0},
					{metrics->plane->stop, POLLIN, 0}};
		int fd;

		poll(fds, 2, -1);
		if (fds[1].revents)
			return NULL;
		fd = accept4(metrics->fd, NULL, NULL, SOCK_CLOEXEC);
		if (fd < 0) {
			/* If no descriptor is free, the connection stays in the queue, and the
			 * socket stays readable. So pause, to avoid a busy loop. */
			poll(&fds[1], 1, PAUSE_MS);
			continue;
		}
		connection_serve(metrics, fd);
		close(fd);
	}
}

/* ---- open and close ---- */

/* Splits ADDRESS:PORT into host and port. An IPv6 address is in brackets. */
static bool where_parse(const char *where, char *host, size_t host_len, const char **port)
{
	const char *colon = strrchr(where, ':');
	size_t len = colon ? (size_t)(colon - where) : 0;

	if (len > 1 && where[0] == '[' && where[len - 1] == ']') {
		where++;
		len -= 2;
	}
	if (!len || len >= host_len || !colon[1])
		return false;
	memcpy(host, where, len);
	host[len] = '\0';
	*port = colon + 1;
	return true;
}

static int socket_listen(const char *where, char *why, size_t why_len)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM,
				 .ai_flags = AI_PASSIVE | AI_NUMERICHOST | AI_NUMERICSERV};
	struct addrinfo *found = NULL;
	const char *port;
	char host[64];
	int fd = -1, on = 1;

	if (!where_parse(where, host, sizeof(host), &port) ||
	    getaddrinfo(host, port, &hints, &found)) {
		snprintf(why, why_len, "--metrics %s: want a numeric ADDRESS:PORT", where);
		return -1;
	}
	fd = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd >= 0)
		(void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on));
	if (fd < 0 || bind(fd, found->ai_addr, found->ai_addrlen) || listen(fd, 16)) {
		snprintf(why, why_len, "--metrics %s: %s", where, strerror(errno));
		if (fd >= 0)
			close(fd);
		fd = -1;
	}
	freeaddrinfo(found);
	return fd;
}

static unsigned port_of(int fd)
{
	struct sockaddr_storage address;
	socklen_t len = sizeof(address);

	if (getsockname(fd, (struct sockaddr *)&address, &len))
		return 0;
	return ntohs(address.ss_family == AF_INET6 ? ((struct sockaddr_in6 *)&address)->sin6_port
						   : ((struct sockaddr_in *)&address)->sin_port);
}

struct pl_metrics *pl_metrics_open(struct pl_plane *plane, const char *where, unsigned *port,
				   char *why, size_t why_len)
{
	struct pl_metrics *metrics = calloc(1, sizeof(*metrics));

	if (!metrics) {
		snprintf(why, why_len, "out of memory");
		return NULL;
	}
	metrics->plane = plane;
	metrics->fd = socket_listen(where, why, why_len);
	if (metrics->fd >= 0 && pst_thread_start(&metrics->thread, metrics_run, metrics)) {
		snprintf(why, why_len, "no thread for the metrics");
		close(metrics->fd);
		metrics->fd = -1;
	}
	if (metrics->fd < 0) {
		free(metrics);
		return NULL;
	}
	*port = port_of(metrics->fd);
	return metrics;
}

/* Frees the metrics. The caller has made plane->stop readable, which ends the thread. */
void pl_metrics_close(struct pl_metrics *metrics)
{
	if (!metrics)
		return;
	pthread_join(metrics->thread, NULL);
	close(metrics->fd);
	free(metrics);
}
