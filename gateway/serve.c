/* SPDX-License-Identifier: Apache-2.0 */
/* Starts, reloads and stops a gateway, see serve.h. */
#include "serve.h"

#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include "access_log.h"
#include "addresses.h"
#include "certificate.h"
#include "core/base/clock.h"
#include "front.h"
#include "listen.h"
#include "rdma.h"
#include "upstream.h"

#define METRICS_THREADS 1
#define METRICS_CONNECTIONS 16
/* Maximum number of HTTP servers that were started with an older certificate and still have
 * connections. */
#define OLD_MAX 8

/* Numbers of descriptors that connections must leave to other uses, besides those that are open at
 * the start. SPARE_FILES are for connections to the port for metrics, and for connections that the
 * gateway has accepted but refuses. THREAD_FILES are for the operation that a worker thread runs.
 * Each thread of an HTTP server needs SERVER_THREAD_FILES. */
#define SPARE_FILES (METRICS_CONNECTIONS + 32)
#define THREAD_FILES 4
#define SERVER_THREAD_FILES 2
/* Descriptors of a connection: its own, and during an upload the folder of the bucket and the
 * file. */
#define CONNECTION_FILES 3

struct gateway {
	const struct gw_options *options;
	struct gw_front front;
	int fd, metrics_fd;
	/* number of descriptors that were open before the HTTP server for S3 has started */
	unsigned files_at_start;
	struct gw_http *http, *metrics;
	struct gw_http_shared metrics_shared;
	struct gw_http *old[OLD_MAX];
	unsigned old_count;
	char *why;
	size_t why_len;
};

/* Starts the HTTP server for S3 with the current content of the certificate's files. */
static struct gw_http *http_start(struct gateway *g)
{
	const struct gw_options *o = g->options;
	unsigned connections = g->front.http.connections_max;
	struct gw_http_options http = {
		.fd = g->fd,
		.threads = o->threads < connections ? o->threads : connections,
		.workers = o->threads,
		.shared = &g->front.http,
		.timeout_s = o->timeout_s,
		.rate_min = o->rate_min,
		.calls = &gw_front_calls,
		.owner = &g->front,
	};
	struct gw_certificate certificate = {0};
	struct gw_http *started;

	if (o->cert && gw_certificate_read(o->cert, o->key, &certificate, g->why, g->why_len))
		return NULL;
	http.cert = certificate.chain;
	http.key = certificate.key;
	started = gw_http_start(&http, g->why, g->why_len);
	/* libmicrohttpd has copied both texts, so they can be overwritten and freed. */
	gw_certificate_free(&certificate);
	if (started && o->cert)
		atomic_store(&g->front.server.metrics.certificate_expires_s,
			     (unsigned long long)certificate.expires_s);
	return started;
}

/* ---- start ---- */

static unsigned port_of(int fd)
{
	struct sockaddr_in6 address;
	socklen_t len = sizeof(address);

	if (fd < 0 || getsockname(fd, (struct sockaddr *)&address, &len))
		return 0;
	/* sockaddr_in has the port at the same place as sockaddr_in6, so this is right for IPv4,
	 * too. */
	return ntohs(address.sin6_port);
}

static void notice(const struct gateway *g, const char *text)
{
	if (g->options->notice)
		g->options->notice(text);
}

/* Returns the number of descriptors that the process has open. */
static unsigned descriptors_open(void)
{
	DIR *folder = opendir("/proc/self/fd");
	unsigned count = 0;

	while (folder && readdir(folder))
		count++;
	if (folder)
		closedir(folder);
	return count;
}

/* Computes how many descriptors the connections must leave to other uses. The number depends on the
 * number of HTTP servers, which changes on a reload. */
static void files_reserve(struct gateway *g)
{
	unsigned threads = g->options->threads, servers = 1 + g->old_count;

	atomic_store(&g->front.http.own_files,
		     g->files_at_start + SPARE_FILES + threads * THREAD_FILES +
			     servers * threads * SERVER_THREAD_FILES);
}

/* Returns the limit of open files. */
static unsigned long long files_max(void)
{
	struct rlimit limit;

	return getrlimit(RLIMIT_NOFILE, &limit) ? 0 : limit.rlim_cur;
}

/* Raises the limit of open files to the hard limit. */
static void files_raise(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit))
		return;
	limit.rlim_cur = limit.rlim_max;
	/* if this fails, the old limit remains */
	(void)setrlimit(RLIMIT_NOFILE, &limit);
}

/* Limits the connections to the number that the limit of open files allows. Fails if it allows
 * none. */
static int files_limit(struct gateway *g)
{
	g->files_at_start = descriptors_open();
	g->front.http.connection_files = CONNECTION_FILES;
	files_reserve(g);
	if (gw_http_connections_allowed(&g->front.http))
		return 0;
	snprintf(g->why, g->why_len,
		 "the limit of %llu open files is too low for %u threads: raise it with ulimit -n, "
		 "or use fewer --threads",
		 files_max(), g->options->threads);
	return -EMFILE;
}

/* Calls files_limit again when the gateway has opened everything but the HTTP server for S3. Tells
 * the operator if the limit of open files allows fewer connections than --connections. */
static int files_limit_again(struct gateway *g)
{
	const struct gw_options *o = g->options;
	int ret = files_limit(g);
	unsigned allowed = gw_http_connections_allowed(&g->front.http);
	char text[160];

	if (ret)
		return ret;
	if (allowed < o->connections_max) {
		snprintf(text, sizeof(text),
			 "the limit of %llu open files allows only %u connections, not %u: raise "
			 "it with ulimit -n",
			 files_max(), allowed, o->connections_max);
		notice(g, text);
	}
	return 0;
}

static int metrics_start(struct gateway *g)
{
	struct gw_http_options http = {
		.threads = METRICS_THREADS,
		.shared = &g->metrics_shared,
		.timeout_s = g->options->timeout_s,
		.rate_min = g->options->rate_min,
		.calls = &gw_metrics_calls,
		.owner = &g->front,
	};

	if (!g->options->metrics)
		return 0;
	g->metrics_shared.connections_max = METRICS_CONNECTIONS;
	g->metrics_fd = gw_listen(g->options->metrics, g->why, g->why_len);
	if (g->metrics_fd < 0)
		return g->metrics_fd;
	http.fd = g->metrics_fd;
	g->metrics = gw_http_start(&http, g->why, g->why_len);
	return g->metrics ? 0 : -EIO;
}

/* Opens the folder with the objects, or the connection to the upstream that has them. */
static int objects_open(struct gateway *g)
{
	const struct gw_options *o = g->options;
	struct gw_server *server = &g->front.server;
	const struct gw_upstream_options upstream = {
		.url = o->upstream,
		.buffer_memory = o->buffer_memory,
		.timeout_s = o->timeout_s,
		.requests_max = o->connections_max,
		.metrics = &server->metrics,
	};

	if (!o->upstream)
		return gw_store_open(&server->store, o->root, g->why, g->why_len);
	server->upstream = gw_upstream_open(&upstream, g->why, g->why_len);
	if (!server->upstream ||
	    !gw_upstream_check_keys(server->upstream, server->keys, g->why, g->why_len))
		return -EINVAL;
	return 0;
}

/* Opens the server side of S3 over RDMA, unless it is off. */
static int rdma_open(struct gateway *g)
{
	const struct gw_options *o = g->options;
	struct gw_server *server = &g->front.server;
	/* At most half of the worker threads may wait for RDMA, so that the others can run
	 * other requests. With an upstream, gw_upstream_windows_max sets the limit. */
	const struct gw_rdma_options rdma = {
		.transports = o->rdma,
		.networks = o->rdma_networks,
		.device = o->device,
		.moves_max = o->upstream      ? gw_upstream_windows_max(server->upstream)
			     : o->threads > 1 ? o->threads / 2
					      : 1,
		.rate_min = o->rate_min,
		/* If HTTP is encrypted, RDMA must not send bytes to another host
		 * unencrypted either. */
		.encrypt = o->cert != NULL,
		/* Each file of the store has the bytes of one object. An upstream has no
		 * files. */
		.pass_files = !o->upstream,
		.metrics = &server->metrics,
	};

	if (o->rdma && !strcmp(o->rdma, "none"))
		return 0;
	server->rdma = gw_rdma_open(&rdma, g->why, g->why_len);
	return server->rdma ? 0 : -EIO;
}

static int gateway_start(struct gateway *g)
{
	const struct gw_options *o = g->options;
	struct gw_server *server = &g->front.server;
	int ret;

	if (o->cert && !gw_http_has_tls()) {
		snprintf(g->why, g->why_len,
			 "this build of libmicrohttpd has no TLS: use a proxy "
			 "in front of the gateway");
		return -ENOTSUP;
	}
	files_raise();
	g->front.http.connections_max = o->connections_max;
	ret = files_limit(g);
	if (ret)
		return ret;
	server->region = o->region;
	server->domain = o->domain;
	server->md5 = !o->no_md5;
	server->body_max = o->body_max;
	pthread_mutex_init(&server->keys_lock, NULL);
	server->keys = gw_keys_read(o->keys, g->why, g->why_len);
	if (!server->keys)
		return -EINVAL;
	ret = objects_open(g);
	if (ret)
		return ret;
	if (o->access_log) {
		server->log = gw_access_log_open(o->access_log, g->why, g->why_len);
		if (!server->log)
			return -EIO;
	}
	ret = rdma_open(g);
	if (ret)
		return ret;
	g->fd = gw_listen(o->listen, g->why, g->why_len);
	if (g->fd < 0)
		return g->fd;
	if (o->connections_per_address_max) {
		g->front.http.addresses =
			gw_addresses_open(o->connections_max, o->connections_per_address_max);
		if (!g->front.http.addresses) {
			snprintf(g->why, g->why_len, "out of memory");
			return -ENOMEM;
		}
	}
	ret = metrics_start(g);
	if (!ret)
		ret = files_limit_again(g);
	if (ret)
		return ret;
	g->http = http_start(g);
	if (!g->http)
		return -EIO;
	gw_metrics_reload(&server->metrics, GW_RELOAD_KEYS, true);
	if (o->cert)
		gw_metrics_reload(&server->metrics, GW_RELOAD_CERTIFICATE, true);
	if (o->access_log)
		gw_metrics_reload(&server->metrics, GW_RELOAD_LOG, true);
	return 0;
}

/* ---- reload ---- */

static void keys_reload(struct gateway *g)
{
	struct gw_keys *keys = gw_keys_read(g->options->keys, g->why, g->why_len), *old;

	if (keys && g->front.server.upstream &&
	    !gw_upstream_check_keys(g->front.server.upstream, keys, g->why, g->why_len)) {
		gw_keys_release(keys);
		keys = NULL;
	}
	gw_metrics_reload(&g->front.server.metrics, GW_RELOAD_KEYS, keys != NULL);
	if (!keys) {
		notice(g, g->why);
		notice(g, "the access keys are unchanged");
		return;
	}
	pthread_mutex_lock(&g->front.server.keys_lock);
	old = g->front.server.keys;
	g->front.server.keys = keys;
	pthread_mutex_unlock(&g->front.server.keys_lock);
	gw_keys_release(old);
}

/* Stops the HTTP servers with an older certificate that have no more connections, or all of them if
 * `all` is true. */
static void old_stop(struct gateway *g, bool all)
{
	unsigned kept = 0;

	for (unsigned i = 0; i < g->old_count; i++)
		if (all || !gw_http_connections(g->old[i]))
			gw_http_stop(g->old[i]);
		else
			g->old[kept++] = g->old[i];
	g->old_count = kept;
	files_reserve(g);
}

/* Starts an HTTP server with the new certificate on the same socket. The server with the old
 * certificate keeps its connections. */
static void certificate_reload(struct gateway *g)
{
	struct gw_http *http;

	if (!g->options->cert)
		return;
	old_stop(g, false);
	http = g->old_count < OLD_MAX ? http_start(g) : NULL;
	gw_metrics_reload(&g->front.server.metrics, GW_RELOAD_CERTIFICATE, http != NULL);
	if (!http) {
		notice(g,
		       g->old_count < OLD_MAX ? g->why : "too many old connections are still open");
		notice(g, "the certificate is unchanged");
		return;
	}
	gw_http_quiesce(g->http);
	g->old[g->old_count++] = g->http;
	g->http = http;
	files_reserve(g);
}

static void log_reload(struct gateway *g)
{
	struct gw_access_log *log = g->front.server.log;
	int ret = log ? gw_access_log_reopen(log) : 0;

	if (!log)
		return;
	gw_metrics_reload(&g->front.server.metrics, GW_RELOAD_LOG, !ret);
	if (!ret)
		return;
	snprintf(g->why, g->why_len, "cannot open the access log %s again: %s",
		 g->options->access_log, strerror(-ret));
	notice(g, g->why);
	notice(g, "the access log stays in its old file");
}

/* Waits for a signal. Meanwhile, stops HTTP servers with an older certificate whose last connection
 * has ended. Returns the signal, or -1 if the wait was interrupted. */
static int signal_wait(struct gateway *g, const sigset_t *signals)
{
	const struct timespec step = {.tv_sec = 1};
	int signal = -1;

	while (g->old_count) {
		signal = sigtimedwait(signals, NULL, &step);
		if (signal > 0)
			return signal;
		old_stop(g, false);
	}
	return sigwaitinfo(signals, NULL);
}

/* ---- end ---- */

/* Waits until the requests in flight have ended, but not longer than the time limit. A second
 * signal ends the wait, too. */
static void drain(struct gateway *g, const sigset_t *signals)
{
	const uint64_t until = pst_now_ns() + g->options->drain_s * UINT64_C(1000000000);
	const struct timespec step = {.tv_nsec = 20000000};

	atomic_store(&g->front.draining, true);
	gw_http_quiesce(g->http);
	/* Without this call, the kernel would go on to establish connections, whose clients would
	 * wait for a reply until the process ends. With it, clients turn to another gateway. */
	shutdown(g->fd, SHUT_RDWR);
	while (atomic_load(&g->front.http.requests) && pst_now_ns() < until) {
		int signal = sigtimedwait(signals, NULL, &step);

		if (signal == SIGTERM || signal == SIGINT)
			break;
	}
}

static void gateway_stop(struct gateway *g)
{
	struct gw_server *server = &g->front.server;

	atomic_store(&server->stopping, true);
	/* This call ends all transfers by RDMA. It must come first: the HTTP servers wait for their
	 * worker threads, and these wait for the transfers. */
	gw_rdma_cancel(server->rdma);
	/* This call must come before the HTTP servers stop, because the threads of the upstream
	 * resume the connections of clients that wait for the upstream. */
	gw_upstream_stop(server->upstream);
	old_stop(g, true);
	gw_http_stop(g->metrics);
	gw_http_stop(g->http);
	gw_addresses_close(g->front.http.addresses);
	if (g->fd >= 0)
		close(g->fd);
	if (g->metrics_fd >= 0)
		close(g->metrics_fd);
	gw_upstream_close(server->upstream);
	gw_rdma_close(server->rdma);
	gw_access_log_close(server->log);
	gw_store_close(&server->store);
	gw_keys_release(server->keys);
	pthread_mutex_destroy(&server->keys_lock);
}

int gw_serve(const struct gw_options *options, char *why, size_t why_len)
{
	struct gateway *g = calloc(1, sizeof(*g));
	sigset_t signals;
	int ret, signal = 0;

	if (!g) {
		snprintf(why, why_len, "out of memory");
		return -ENOMEM;
	}
	g->options = options;
	g->why = why;
	g->why_len = why_len;
	g->fd = g->metrics_fd = -1;
	g->front.server.store =
		(struct gw_store){.root = -1, .tmp = -1, .meta = -1, .multipart = -1};
	sigemptyset(&signals);
	sigaddset(&signals, SIGTERM);
	sigaddset(&signals, SIGINT);
	sigaddset(&signals, SIGHUP);
	/* Threads inherit the mask of blocked signals. So only this thread receives the signals. */
	pthread_sigmask(SIG_BLOCK, &signals, NULL);
	ret = gateway_start(g);
	if (!ret) {
		if (options->ready)
			options->ready(port_of(g->fd), port_of(g->metrics_fd));
		while (signal != SIGTERM && signal != SIGINT) {
			signal = signal_wait(g, &signals);
			if (signal == SIGHUP) {
				keys_reload(g);
				certificate_reload(g);
				log_reload(g);
			}
		}
		drain(g, &signals);
	}
	gateway_stop(g);
	free(g);
	return ret;
}
