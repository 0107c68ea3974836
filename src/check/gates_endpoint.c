/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the gates that check an object store: the endpoint is reachable, no device between
 * blocks the connection, and the endpoint supports RDMA. The test opens one connection and
 * sends one unsigned request that changes nothing. Called by check.c for URLs on the real
 * machine. The test must never send a credential, nor wait longer than its time limits.
 */
#include "gates_endpoint.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "http.h"
#include "line.h"

#define CONNECT_MS 3000
#define ANSWER_MS 3000

static const char *endpoint_url(const struct pst_check_facts *f)
{
	const char *target = f->opts->target, *url;

	if (strncmp(target, "s3://", 5))
		return target;
	url = getenv("AWS_ENDPOINT_URL_S3");
	if (!url || !url[0])
		url = getenv("AWS_ENDPOINT_URL");
	return url && url[0] ? url : NULL;
}

static double now_ms(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (double)ts.tv_sec * 1e3 + (double)ts.tv_nsec * 1e-6;
}

/* Waits until one of `events` occurs on the socket or `deadline` has passed. Returns 0, or an
 * errno. */
static int socket_wait(int fd, short events, double deadline)
{
	struct pollfd p = {.fd = fd, .events = events};

	for (;;) {
		double left = deadline - now_ms();
		int n = poll(&p, 1, left > 0 ? (int)left + 1 : 0);

		if (n > 0)
			return 0;
		if (n < 0 && errno != EINTR)
			return errno;
		if (!n && left <= 0)
			return ETIMEDOUT;
	}
}

/* Returns a connected socket, or -1 with the errno in *error. */
static int socket_connect(const struct addrinfo *to, double deadline, int *error)
{
	int fd = socket(to->ai_family, to->ai_socktype | SOCK_NONBLOCK | SOCK_CLOEXEC,
			to->ai_protocol);
	socklen_t len = sizeof(*error);

	if (fd < 0) {
		*error = errno;
		return -1;
	}
	*error = connect(fd, to->ai_addr, to->ai_addrlen) < 0 ? errno : 0;
	if (*error == EINPROGRESS) {
		*error = socket_wait(fd, POLLOUT, deadline);
		if (!*error && getsockopt(fd, SOL_SOCKET, SO_ERROR, error, &len) < 0)
			*error = errno;
	}
	if (!*error)
		return fd;
	close(fd);
	return -1;
}

/* Sends a GET request with an invalid RDMA token. A server that supports S3 over RDMA mentions
 * the token in its response. */
static void endpoint_query(struct pst_check_facts *f, int fd, const struct pst_http_url *url)
{
	char text[8192];
	double deadline = now_ms() + ANSWER_MS;
	size_t len = 0;
	int n = snprintf(text, sizeof(text),
			 "GET / HTTP/1.1\r\nHost: %s%s%s:%s\r\nUser-Agent: penstock/%s\r\n"
			 "x-amz-rdma-token: check\r\nConnection: close\r\n\r\n",
			 strchr(url->host, ':') ? "[" : "", url->host,
			 strchr(url->host, ':') ? "]" : "", url->port, penstock_version());

	if (send(fd, text, (size_t)n, MSG_NOSIGNAL) != n)
		return;
	while (len < sizeof(text) && !socket_wait(fd, POLLIN, deadline)) {
		ssize_t got = recv(fd, text + len, sizeof(text) - len, 0);

		if (got < 0 && (errno == EINTR || errno == EAGAIN))
			continue;
		if (got <= 0)
			break;
		len += (size_t)got;
	}
	f->endpoint.is_http = !pst_http_answer_parse(text, len, &f->endpoint.answer);
}

void pst_check_try_endpoint(struct pst_check_facts *f)
{
	const char *text = endpoint_url(f);
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *list = NULL, *at;
	struct pst_http_url *url = &f->endpoint.url;
	double start = now_ms();
	int fd = -1;

	if (!text)
		return;
	if (pst_http_url_parse(text, url) < 0) {
		f->endpoint.error = EINVAL;
		return;
	}
	f->endpoint.given = true;
	f->endpoint.name_error = getaddrinfo(url->host, url->port, &hints, &list);
	if (f->endpoint.name_error)
		return;
	f->endpoint.error = EHOSTUNREACH;
	for (at = list; at && fd < 0; at = at->ai_next) {
		start = now_ms();
		fd = socket_connect(at, start + CONNECT_MS, &f->endpoint.error);
	}
	freeaddrinfo(list);
	f->endpoint.connect_ms = now_ms() - start;
	if (fd < 0)
		return;
	if (!url->tls)
		endpoint_query(f, fd, url);
	close(fd);
}

/* ---- gates ----------------------------------------------------------------------- */

static void inspect_objects(const struct pst_check_facts *f, struct pst_check_line *line)
{
	if (f->is_url)
		pst_line_no(line, "this version cannot read objects; it only checks the endpoint");
}

static void inspect_endpoint(const struct pst_check_facts *f, struct pst_check_line *line)
{
	const struct pst_check_endpoint *e = &f->endpoint;
	char at[300];

	if (!f->is_url)
		return;
	snprintf(at, sizeof(at), "%.200s port %s", e->url.host, e->url.port);
	if (f->captured) {
		pst_line_unknown(line, "not probed: a captured machine cannot connect");
	} else if (e->error == EINVAL && !e->given) {
		pst_line_no(line, "the endpoint is not an http:// or https:// address");
	} else if (!e->given) {
		pst_line_unknown(line, "no endpoint is configured");
		pst_line_todo(
			line,
			"set AWS_ENDPOINT_URL_S3, or name the endpoint's URL to penstock check");
	} else if (e->name_error) {
		pst_line_no(line, "%.150s: %s", e->url.host, gai_strerror(e->name_error));
		pst_line_todo(line, "check the name, and the DNS resolver of this machine");
	} else if (e->error) {
		pst_line_no(line, "%s: %s", at, strerror(e->error));
	} else if (!e->url.tls && !e->is_http) {
		pst_line_no(line, "%s accepts connections but does not answer HTTP", at);
	} else if (e->url.tls) {
		pst_line_ok(line, "%s connects in %.1f ms; TLS, so no request was sent", at,
			    e->connect_ms);
	} else {
		pst_line_ok(line, "%s connects in %.1f ms, HTTP %d%s%s%s", at, e->connect_ms,
			    e->answer.status, e->answer.server[0] ? ", " : "", e->answer.server,
			    e->answer.rdma ? ", supports S3 over RDMA" : "");
	}
}

static void inspect_firewall(const struct pst_check_facts *f, struct pst_check_line *line)
{
	const struct pst_check_endpoint *e = &f->endpoint;

	if (!f->is_url || f->captured || !e->given || e->name_error)
		return;
	if (e->error == EPERM || e->error == EACCES)
		pst_line_no(line, "a firewall rule of this machine forbids port %s", e->url.port);
	else if (e->error == ETIMEDOUT)
		pst_line_no(line, "no answer in %d s: a firewall drops packets to port %s",
			    CONNECT_MS / 1000, e->url.port);
	else if (e->error == EHOSTUNREACH || e->error == ENETUNREACH)
		pst_line_no(line, "no network route, or a firewall rejects port %s", e->url.port);
	else
		pst_line_ok(line, "nothing blocks port %s", e->url.port);
}

static void inspect_s3_rdma(const struct pst_check_facts *f, struct pst_check_line *line)
{
	const struct pst_check_endpoint *e = &f->endpoint;

	if (!f->is_url)
		return;
	if (!f->nic_count)
		pst_line_no(line, "this machine has no RDMA NIC");
	else if (e->answer.rdma)
		pst_line_ok(line, "the endpoint answers with headers of S3 over RDMA");
	else
		pst_line_unknown(line, "%s",
				 f->captured   ? "not probed: a captured machine cannot connect"
				 : !e->given   ? "no endpoint is configured"
				 : e->url.tls  ? "not queried, the endpoint uses TLS"
				 : !e->is_http ? "the endpoint did not answer"
				 : e->answer.status == 403
					 ? "the endpoint does not tell without a signed request"
					 : "the endpoint does not tell");
}

const struct pst_check_gate pst_check_endpoint_gates[] = {
	{"endpoint", PST_CHECK_FABRIC, PST_NEED_WORK, inspect_endpoint,
	 "the endpoint serves the objects", "check the address, the port and that the store runs"},
	{"firewall", PST_CHECK_FABRIC, PST_NEED_WORK, inspect_firewall,
	 "a firewall on the way to the endpoint blocks every byte",
	 "open the port: see nft list ruleset on this machine, and the firewalls on the way"},
	{"s3-rdma", PST_CHECK_FABRIC, PST_NEED_DIRECT, inspect_s3_rdma,
	 "with RDMA the store writes the destination itself, without a CPU copy",
	 "ask the store's operator for S3 over RDMA; the first signed request shows it"},
	{"objects", PST_CHECK_FABRIC, PST_NEED_WORK, inspect_objects,
	 "Penstock itself must read the objects", "read the objects with another program"},
	{.name = NULL},
};
