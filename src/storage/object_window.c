/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements object_window.h. A client of S3 over RDMA (src/wire/client.h) has a thread and listens
 * for servers, so all endpoints that reach this host at the same addresses share one client.
 * Clients, and what was learnt about each endpoint, stay in memory until the process ends.
 */
#include "storage/object_window.h"

#include <arpa/inet.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/thread.h"
#include "core/base/clock.h"
#include "core/base/fork.h"
#include "core/base/log.h"
#include "io/http_endpoint.h"
#include "storage/object_device.h"
#include "wire/client.h"
#include "wire/exchange.h"

_Static_assert(PST_OBJECT_ADDRESSES_MAX == PST_WIRE_NICS_MAX, "see object_url.h");
_Static_assert(PST_WIRE_LISTENERS_MAX <= 64, "grant->failed has one bit for each");

/* If a server declines DECLINES_MAX tokens in a row, multiplied by the number of the client's
 * network cards, the client sends it none for PAUSE_NS. For example, the server may be busy. */
#define DECLINES_MAX 32
#define PAUSE_NS 60000000000u
/* If a test has shown that a server has no access to a device's memory, the next test is made after
 * this time in nanoseconds. */
#define REACH_NS 60000000000u
/* If a server has declined a window that takes a file, it gets no such window for this time in
 * nanoseconds. */
#define NO_FILES_NS 60000000000u
/* Length in bytes. If a window is longer, a separate thread ends its registration. */
#define LONG (1u << 20)

/* A client of the data plane of S3 over RDMA. Endpoints share it if their servers reach this host
 * at the same addresses, and if all other settings are equal. */
struct hub {
	struct hub *next;
	char addresses[PST_OBJECT_ADDRESSES]; /* numeric addresses, separated by commas */
	char transports[65];
	bool encrypt;
	bool here; /* whether the servers are on this host */
	struct pst_wire_client *client;
};

/* Whether the server can access windows in the memory of one device, as its last answer showed.
 * Each index of a device has at most one struct. After the device is closed, another device may get
 * its index. */
struct reach {
	struct reach *next;
	unsigned index;	 /* of the device */
	uint64_t serial; /* serial number of the device */
	bool reached;
	uint64_t asked_ns;  /* 0: the server was not asked */
	struct pst_err why; /* why the server cannot access the device, if `reached` is false */
	struct pst_window *kept; /* window of a test that could not be freed; NULL: none */
};

struct pst_object_windows {
	struct pst_object_windows *next;
	const struct pst_http_endpoint *endpoint;
	const struct hub *hub;
	/* 0, or the reason (enum penstock_why) why requests to the server carry no tokens */
	_Atomic unsigned shut;
	/* time (pst_now_ns) from which the server gets tokens again; 0: `shut` holds until the
	 * process ends */
	_Atomic uint64_t again_ns;
	_Atomic unsigned declines;
	/* whether windows can take a file: the server is on this host, and transport shm1 is the
	 * preferred one */
	_Atomic bool takes_files;
	/* time (pst_now_ns) until which the server gets no windows that take a file */
	_Atomic uint64_t no_files_ns;
	/* whether the server has moved the bytes of a PUT through a window */
	_Atomic bool answered;
	/* whether the last object of an open with PENSTOCK_O_PREFETCH was longer than the bytes
	 * that an open prefetches */
	_Atomic bool is_long;
	/* `why` is the message for `shut`; the lock protects it and `reaches` */
	struct pst_err why;
	struct reach *reaches;
};

struct object_window {
	struct pst_window window; /* must be the first member */
	struct pst_wire_buffer *buffer;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER; /* protects the lists */
static struct hub *hubs;
static struct pst_object_windows *all;

/* Resets the lists in a forked child, because the parent's clients have no threads there. */
static void windows_in_child(void)
{
	pthread_mutex_init(&lock, NULL);
	hubs = NULL;
	all = NULL;
}

__attribute__((constructor)) static void windows_watch_fork(void)
{
	pst_fork_hook(windows_in_child);
}

/* ---- where the server is ---- */

/* Returns a socket that is bound to an address of the server, or -1. A socket can only be bound to
 * addresses of this host. So success shows that the server is on this host. */
static int socket_here(struct pst_http_endpoint *endpoint, sa_family_t family)
{
	struct sockaddr_storage address;
	unsigned count = 1;
	socklen_t len;

	for (unsigned i = 0; i < count; i++) {
		int fd;

		count = pst_endpoint_address(endpoint, i, &address, &len);
		if (address.ss_family != family)
			continue;
		if (family == AF_INET6)
			((struct sockaddr_in6 *)&address)->sin6_port = 0;
		else
			((struct sockaddr_in *)&address)->sin_port = 0;
		fd = socket(family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
		if (fd >= 0 && !bind(fd, (const struct sockaddr *)&address, len))
			return fd;
		if (fd >= 0)
			close(fd);
	}
	return -1;
}

/* Returns a UDP socket that is connected to the server's first address, or -1. The kernel then
 * chooses the local address. No packet is sent. */
static int socket_there(struct pst_http_endpoint *endpoint)
{
	struct sockaddr_storage address;
	socklen_t len;
	int fd;

	pst_endpoint_address(endpoint, 0, &address, &len);
	fd = socket(address.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd >= 0 && !connect(fd, (const struct sockaddr *)&address, len))
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}

/* Stores the address of this host at which the server can reach it in `out`, which has at least
 * INET6_ADDRSTRLEN bytes. Returns 1 if the server is on this host, 0 if it is on another host, or
 * -errno. "localhost" has an IPv4 and an IPv6 address, and most servers listen only on the IPv4
 * address. So this function tries IPv4 first. */
static int local_address(struct pst_http_endpoint *endpoint, char *out, struct pst_err *err)
{
	struct sockaddr_storage own;
	socklen_t len = sizeof(own);
	int fd = socket_here(endpoint, AF_INET), here;

	if (fd < 0)
		fd = socket_here(endpoint, AF_INET6);
	here = fd >= 0;
	if (!here)
		fd = socket_there(endpoint);
	if (fd < 0 || getsockname(fd, (struct sockaddr *)&own, &len))
		here = pst_fail_errno(err, errno, PENSTOCK_WHY_NO_WINDOW,
				      "the address of this host is unknown: %m");
	else
		inet_ntop(own.ss_family,
			  own.ss_family == AF_INET6
				  ? (const void *)&((struct sockaddr_in6 *)&own)->sin6_addr
				  : (const void *)&((struct sockaddr_in *)&own)->sin_addr,
			  out, INET6_ADDRSTRLEN);
	if (fd >= 0)
		close(fd);
	return here;
}

/* Finds the client with these settings, or opens one. The caller holds the lock. */
static const struct hub *hub_find(const struct hub *wanted, struct pst_err *err)
{
	struct penstock_object_client_opts opts = PENSTOCK_OBJECT_CLIENT_OPTS_INIT;
	struct hub *hub;

	for (hub = hubs; hub; hub = hub->next)
		if (!strcmp(hub->addresses, wanted->addresses) &&
		    !strcmp(hub->transports, wanted->transports) &&
		    hub->encrypt == wanted->encrypt && hub->here == wanted->here)
			return hub;
	hub = calloc(1, sizeof(*hub));
	if (!hub) {
		pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for windows");
		return NULL;
	}
	*hub = *wanted;
	opts.address = hub->addresses;
	opts.transports = hub->transports[0] ? hub->transports : NULL;
	opts.require_encryption = hub->encrypt;
	/* A slow transport is no gain for a storage, which can receive the bytes by HTTP. */
	if (pst_wire_client_open(&opts, &pst_object_device_table,
				 PST_WIRE_OMIT_SLOW | (hub->here ? 0 : PST_WIRE_OMIT_ON_HOST),
				 &hub->client, err)) {
		free(hub);
		return NULL;
	}
	hub->next = hubs;
	hubs = hub;
	return hub;
}

/* Returns whether the server currently gets no tokens. If its pause is over, ends the pause. The
 * caller holds the lock. */
static bool is_shut(struct pst_object_windows *windows)
{
	uint64_t again_ns = atomic_load(&windows->again_ns);

	if (again_ns && pst_now_ns() >= again_ns) {
		atomic_store(&windows->again_ns, 0);
		atomic_store(&windows->declines, 0);
		atomic_store(&windows->shut, 0);
	}
	return atomic_load(&windows->shut);
}

/* Finds the state of an endpoint, or makes it. The caller holds the lock. */
static struct pst_object_windows *windows_find(const struct pst_http_endpoint *endpoint,
					       const struct hub *hub, struct pst_err *err)
{
	struct pst_object_windows *windows;

	for (windows = all; windows; windows = windows->next)
		if (windows->endpoint == endpoint && windows->hub == hub)
			break;
	/* During a pause the storage still gets its windows, because the pause may end while the
	 * storage is open. The storage gets no windows only if the server gets no tokens for the
	 * rest of the process. */
	if (windows && is_shut(windows) && !atomic_load(&windows->again_ns)) {
		*err = windows->why;
		return NULL;
	}
	if (windows)
		return windows;
	windows = calloc(1, sizeof(*windows));
	if (!windows) {
		pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for windows");
		return NULL;
	}
	windows->endpoint = endpoint;
	windows->hub = hub;
	windows->next = all;
	all = windows;
	return windows;
}

struct pst_object_windows *pst_object_windows_find(const struct pst_object_place *place,
						   struct pst_err *why)
{
	struct pst_object_windows *windows = NULL;
	/* With https, the user expects encryption. So only transports that encrypt the bytes, or do
	 * not leave the host, are allowed. */
	struct hub wanted = {.encrypt = place->server.tls};
	const struct hub *hub;
	int here;

	why->code = 0;
	if (place->url.rdma == PST_OBJECT_RDMA_OFF)
		pst_fail(why, PENSTOCK_WHY_NO_WINDOW, "rdma=off in the URL or PENSTOCK_RDMA");
	else if (place->url.presigned || place->url.anonymous)
		pst_fail(why, PENSTOCK_WHY_NO_WINDOW,
			 "a token must be signed, and this request is not signed with keys");
	if (why->code)
		return NULL;
	here = local_address(place->endpoint, wanted.addresses, why);
	if (here < 0)
		return NULL;
	if (!here && place->url.rdma == PST_OBJECT_RDMA_AUTO) {
		pst_fail(why, PENSTOCK_WHY_NO_WINDOW,
			 "the server is on another host, which gets tokens with rdma=on only");
		return NULL;
	}
	wanted.here = here;
	if (place->url.addresses[0])
		snprintf(wanted.addresses, sizeof(wanted.addresses), "%s", place->url.addresses);
	snprintf(wanted.transports, sizeof(wanted.transports), "%s", place->url.transports);
	pthread_mutex_lock(&lock);
	hub = hub_find(&wanted, why);
	if (hub)
		windows = windows_find(place->endpoint, hub, why);
	if (windows)
		atomic_store(&windows->takes_files,
			     here && pst_wire_client_takes_files(hub->client));
	pthread_mutex_unlock(&lock);
	return windows;
}

void pst_object_windows_facts(const struct pst_object_windows *windows, const struct pst_err *why,
			      bool only, struct pst_storage_facts *facts)
{
	facts->windows_only = only;
	if (!windows) {
		facts->why_windows = *why;
		return;
	}
	/* A server that has had access to a window may still access its memory when the window is
	 * used again. So a window of one server is never used for another. */
	facts->windows = windows;
	facts->windows_class =
		pst_wire_client_is_dma(windows->hub->client) ? PENSTOCK_NO_CPU_COPY : PENSTOCK_ANY;
	facts->windows_shut = &windows->shut;
	facts->windows_files = atomic_load(&windows->takes_files);
}

/* ---- what responses tell about the server ---- */

/* Stops sending tokens to the server: for PAUSE_NS if `pause` is true, else for the rest of the
 * process. */
static void windows_shut(struct pst_object_windows *windows, const char *what, bool pause)
{
	enum penstock_why why = pause ? PENSTOCK_WHY_DECLINED : PENSTOCK_WHY_NO_WINDOW;
	bool first;

	pthread_mutex_lock(&lock);
	first = !atomic_load(&windows->shut);
	if (first) {
		pst_fail_errno(&windows->why, EOPNOTSUPP, why, "%s%s", what,
			       pause ? ", many times in a row" : "");
		atomic_store(&windows->again_ns, pause ? pst_now_ns() + PAUSE_NS : 0);
		atomic_store(&windows->shut, why);
	}
	pthread_mutex_unlock(&lock);
	if (first)
		pst_log(PST_LOG_INFO, "object", "%s: no more tokens for %s%s", what,
			windows->endpoint->host, pause ? " for a minute" : "");
}

int pst_object_windows_check(struct pst_object_windows *windows, struct pst_err *err)
{
	int ret = 0;

	if (!atomic_load(&windows->shut))
		return 0;
	pthread_mutex_lock(&lock);
	if (is_shut(windows)) {
		*err = windows->why;
		ret = err->code;
	}
	pthread_mutex_unlock(&lock);
	return ret;
}

bool pst_object_windows_decline(const struct pst_object_windows *windows)
{
	return atomic_load(&windows->declines);
}

bool pst_object_windows_answered(const struct pst_object_windows *windows)
{
	return atomic_load(&windows->answered);
}

void pst_object_windows_note_long(struct pst_object_windows *windows, bool is_long)
{
	atomic_store(&windows->is_long, is_long);
}

bool pst_object_windows_are_long(const struct pst_object_windows *windows)
{
	return atomic_load(&windows->is_long);
}

/* ---- which devices the server reaches ---- */

/* Finds the last test of whether the server can access the memory of a device. The caller holds the
 * lock. */
static struct reach *reach_find(const struct pst_object_windows *windows,
				const struct penstock_device *dev)
{
	struct reach *reach = windows->reaches;

	while (reach && reach->index != dev->index)
		reach = reach->next;
	return reach;
}

/* Returns the entry for a device, and makes it if necessary. Returns NULL if there is no memory.
 * The caller holds the lock. */
static struct reach *reach_make(struct pst_object_windows *windows,
				const struct penstock_device *dev)
{
	struct reach *reach = reach_find(windows, dev);

	if (reach && reach->serial == dev->serial)
		return reach;
	if (!reach) {
		reach = calloc(1, sizeof(*reach));
		if (!reach)
			return NULL;
		reach->next = windows->reaches;
		windows->reaches = reach;
	}
	/* Forgets the window kept for an earlier device with this index, whose close has ended the
	 * window. */
	*reach = (struct reach){.next = reach->next, .index = dev->index, .serial = dev->serial};
	return reach;
}

int pst_object_windows_reach(struct pst_object_windows *windows, const struct penstock_device *dev,
			     struct pst_err *why)
{
	const struct reach *reach;
	int ret = -EAGAIN;

	pthread_mutex_lock(&lock);
	reach = reach_find(windows, dev);
	if (reach && reach->serial == dev->serial && reach->asked_ns &&
	    (reach->reached || pst_now_ns() - reach->asked_ns < REACH_NS)) {
		ret = reach->reached;
		*why = reach->why;
	}
	pthread_mutex_unlock(&lock);
	return ret;
}

void pst_object_windows_tested(struct pst_object_windows *windows,
			       const struct penstock_device *dev, const struct pst_err *why)
{
	struct reach *reach;

	pthread_mutex_lock(&lock);
	reach = reach_make(windows, dev);
	if (reach) {
		reach->reached = !why;
		reach->asked_ns = pst_now_ns();
		if (why)
			reach->why = *why;
	}
	pthread_mutex_unlock(&lock);
	if (why) {
		char note[PENSTOCK_TEXT_MAX + 160];

		snprintf(note, sizeof(note), "%.60s: windows in host memory, not in %s: %s",
			 windows->endpoint->host, dev->name, why->text);
		penstock_stats_note(note);
		pst_log(PST_LOG_INFO, "object", "%s", note);
	}
}

struct pst_window *pst_object_windows_take(struct pst_object_windows *windows,
					   const struct penstock_device *dev)
{
	struct pst_window *window = NULL;
	struct reach *reach;

	pthread_mutex_lock(&lock);
	reach = reach_find(windows, dev);
	if (reach && reach->serial == dev->serial) {
		window = reach->kept;
		reach->kept = NULL;
	}
	pthread_mutex_unlock(&lock);
	return window;
}

bool pst_object_windows_keep(struct pst_object_windows *windows, const struct penstock_device *dev,
			     struct pst_window *window)
{
	struct reach *reach;
	bool kept;

	pthread_mutex_lock(&lock);
	reach = reach_make(windows, dev);
	kept = reach && !reach->kept;
	if (kept)
		reach->kept = window;
	pthread_mutex_unlock(&lock);
	return kept;
}

/* ---- memory ---- */

static void window_close(struct pst_window *window)
{
	struct object_window *own = (struct object_window *)window;
	struct pst_err err;

	if (pst_wire_buffer_close(own->buffer, &err))
		pst_log(PST_LOG_WARN, "object", "a window stays: %s", err.text);
	free(own);
}

int pst_object_window_open(struct pst_object_windows *windows, struct penstock_device *dev,
			   size_t len, struct pst_window **out, struct pst_err *err)
{
	struct object_window *own = calloc(1, sizeof(*own));
	int ret;

	if (!own)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a window");
	ret = pst_wire_buffer_open(windows->hub->client, dev, NULL, len, &own->buffer, err);
	if (ret) {
		free(own);
		/* Replaces -EAGAIN, after which a worker thread would repeat the call until a
		 * buffer is closed. Perhaps no buffer is ever closed. */
		return ret == -EAGAIN ? pst_fail_errno(err, ENOBUFS, PENSTOCK_WHY_NO_MEMORY,
						       "there are too many windows")
				      : ret;
	}
	if (dev)
		pst_wire_buffer_direct(own->buffer);
	own->window.mem = pst_wire_buffer_ptr(own->buffer);
	own->window.len = len;
	own->window.dev = dev;
	own->window.kind = windows;
	own->window.close = window_close;
	*out = &own->window;
	return 0;
}

/* ---- one request ---- */

/* Sets the members of a grant whose inner grant has been opened. */
static void grant_set(struct pst_object_grant *grant, struct pst_object_windows *windows,
		      struct pst_window *window, enum penstock_op op, uint64_t len)
{
	struct penstock_object_window_info info = {.size = sizeof(info)};

	pst_wire_window_info(grant->inner, &info);
	if (grant->window != window)
		grant->tries = 0;
	grant->card = pst_wire_window_card(grant->inner);
	grant->cards = pst_wire_window_cards(grant->inner);
	grant->card_failed = false;
	grant->windows = windows;
	grant->window = window;
	grant->op = op;
	grant->len = len;
	grant->judged = NULL;
	grant->steps.target = NULL;
	grant->transport = info.transport;
	grant->dma = pst_wire_window_is_dma(grant->inner);
	grant->verdict = (struct penstock_object_verdict)PENSTOCK_OBJECT_VERDICT_INIT;
}

/* Fails if a window that was opened to repeat a request has a network card that has already failed
 * for this request, and closes the window. pst_wire_window_open chooses such a card if no other
 * card has a link or can register the memory. */
static int grant_check_card(struct pst_object_grant *grant, struct pst_err *err)
{
	char note[PENSTOCK_TEXT_MAX + 160];

	if (grant->failed >> pst_wire_window_card(grant->inner) & 1) {
		pst_object_grant_wait(grant); /* no server has its token */
		return pst_object_grant_why(grant, err);
	}
	snprintf(note, sizeof(note),
		 "%.60s: a request is repeated through another network card: %s",
		 grant->windows->endpoint->host, grant->verdict.text);
	penstock_stats_note(note);
	pst_log(PST_LOG_INFO, "object", "%s", note);
	return 0;
}

int pst_object_grant_open(struct pst_object_grant *grant, struct pst_object_windows *windows,
			  struct pst_window *window, enum penstock_op op, uint64_t len,
			  struct pst_err *err)
{
	bool repeats = grant->repeats && grant->window == window;
	int ret = pst_object_windows_check(windows, err);

	grant->repeats = false;
	if (!ret)
		ret = pst_wire_window_open(((struct object_window *)window)->buffer, op, 0, len,
					   &grant->inner, err);
	if (!ret && repeats)
		ret = grant_check_card(grant, err);
	if (!ret)
		grant_set(grant, windows, window, op, len);
	return ret;
}

int pst_object_grant_take(struct pst_object_grant *grant, struct pst_object_windows *windows,
			  void *mem, uint64_t len, struct pst_err *err)
{
	int ret = pst_object_windows_check(windows, err);

	if (!ret && (!atomic_load(&windows->takes_files) ||
		     pst_now_ns() < atomic_load(&windows->no_files_ns)))
		ret = pst_fail(err, PENSTOCK_WHY_UNSUPPORTED, "the server passes no files");
	if (!ret)
		ret = pst_wire_window_take(windows->hub->client, mem, len, &grant->inner, err);
	if (!ret)
		grant_set(grant, windows, NULL, PENSTOCK_READ, len);
	return ret;
}

void pst_object_grant_offer(struct pst_object_grant *grant, struct pst_object_call *call)
{
	struct penstock_object_window_info info = {.size = sizeof(info)};

	pst_wire_window_info(grant->inner, &info);
	pst_object_call_offer(call, info.token, grant->len);
	if (pst_wire_window_exchanges(grant->inner))
		pst_object_steps_open(&grant->steps, grant->inner, call);
}

bool pst_object_grant_again(struct pst_object_grant *grant, struct pst_object_call *call)
{
	struct pst_err err;

	if (!pst_object_grant_next(grant) ||
	    pst_object_grant_open(grant, grant->windows, grant->window, grant->op, grant->len,
				  &err))
		return false;
	pst_object_call_clear(call);
	call->exchange = NULL;
	/* Counts the attempts of the next request from 0. */
	call->http.tries = call->http.attempts = 0;
	memset(&call->http.head, 0, sizeof(call->http.head));
	call->http.patience_s = call->place->url.timeout_s; /* before the offer adds to it */
	pst_object_grant_offer(grant, call);
	return true;
}

bool pst_object_grant_restart(struct pst_object_grant *grant, struct pst_object_call *call,
			      pthread_mutex_t *guard)
{
	struct pst_err err;
	bool started;

	if (!pst_object_grant_again(grant, call))
		return false;
	/* A call that was cancelled before it is started would wait until the limit of calls in
	 * flight lets it end. */
	pthread_mutex_lock(guard);
	started = !atomic_load(&call->http.cancelled) && !pst_http_start(&call->http, &err);
	pthread_mutex_unlock(guard);
	if (!started)
		pst_object_grant_wait(grant); /* the server never received the token */
	return started;
}

unsigned pst_object_reply_fill(const struct pst_http_head *head,
			       struct pst_object_reply_texts *texts,
			       struct penstock_object_header *out)
{
	unsigned count = 0;

	if (head->has_length) {
		snprintf(texts->length, sizeof(texts->length), "%llu",
			 (unsigned long long)head->length);
		out[count++] = (struct penstock_object_header){"content-length", texts->length};
	}
	if (head->has_range) {
		int n = snprintf(texts->range, sizeof(texts->range), "bytes %llu-%llu/",
				 (unsigned long long)head->range_first,
				 (unsigned long long)head->range_last);

		if (head->has_total)
			snprintf(texts->range + n, sizeof(texts->range) - (size_t)n, "%llu",
				 (unsigned long long)head->range_total);
		else
			snprintf(texts->range + n, sizeof(texts->range) - (size_t)n, "*");
		out[count++] = (struct penstock_object_header){"content-range", texts->range};
	}
	if (head->etag[0])
		out[count++] = (struct penstock_object_header){"etag", head->etag};
	return count + pst_object_rdma_headers(head, out + count);
}

/* Records that the server has moved bytes through a window. After a PUT, `answered` shows that the
 * server accepts tokens of PUTs. A GET does not prove that. */
static void answered(struct pst_object_windows *windows, enum penstock_op op)
{
	atomic_store(&windows->declines, 0);
	if (op == PENSTOCK_WRITE)
		atomic_store(&windows->answered, true);
}

/* Returns whether the response reports a wrong checksum. A server that ignores tokens compares the
 * checksum of the window's bytes with the empty body, and reports this error. A server that accepts
 * tokens reports the same error if bytes were damaged. */
static bool is_body_checked(const struct pst_object_grant *grant, const struct pst_http_head *head,
			    const char *error)
{
	static const char *const codes[] = {"BadDigest", "InvalidRequest", "InvalidDigest",
					    "XAmzContentChecksumMismatch", NULL};

	return grant->op == PENSTOCK_WRITE && head->status == 400 && !head->rdma_reply[0] &&
	       error && pst_object_code_is(error, codes);
}

/* Changes the verdict about a window in the memory of a device. The request must be sent again for
 * another window in two cases: the bytes came in the body of the response, or they have a checksum
 * that the device cannot compute. The CPU cannot compute it either. */
static void judge_device(struct pst_object_grant *grant)
{
	struct penstock_object_verdict *verdict = &grant->verdict;

	if (verdict->next == PENSTOCK_OBJECT_DONE && verdict->has_crc64 &&
	    !grant->window->dev->ops->sum) {
		verdict->next = PENSTOCK_OBJECT_RESEND;
		snprintf(verdict->text, sizeof(verdict->text),
			 "the server sent a checksum of bytes that are in a GPU's memory");
	}
	if (verdict->next == PENSTOCK_OBJECT_BODY)
		verdict->next = PENSTOCK_OBJECT_RESEND;
	/* This response is no reason to stop sending tokens: only a request with a window in host
	 * memory shows whether the server accepts them. */
	verdict->remember = 0;
}

/* Changes the verdict about a window that takes a file, if the server has not passed the file: the
 * request is repeated with another window. This is no reason to stop sending tokens, unless the
 * server ignores all tokens. Then the body of the response has the bytes. */
static void judge_file(struct pst_object_grant *grant)
{
	struct penstock_object_verdict *verdict = &grant->verdict;

	if (verdict->next == PENSTOCK_OBJECT_BODY && verdict->remember)
		return;
	if (verdict->next == PENSTOCK_OBJECT_BODY || verdict->next == PENSTOCK_OBJECT_RESEND) {
		verdict->next = PENSTOCK_OBJECT_RESEND;
		verdict->remember = 0;
		atomic_store(&grant->windows->no_files_ns, pst_now_ns() + NO_FILES_NS);
	}
}

/* Records what the verdict shows about the server. Returns the verdict's member `next`. */
static enum penstock_object_next grant_note(struct pst_object_grant *grant)
{
	struct pst_object_windows *windows = grant->windows;
	/* If the server does not reach one of several cards, it declines the tokens of all windows
	 * that are open with this card. The other cards must still get their turn. */
	const unsigned declines_max = DECLINES_MAX * (grant->cards ? grant->cards : 1);

	if (!grant->window)
		judge_file(grant);
	if (!grant->window && grant->verdict.next == PENSTOCK_OBJECT_RESEND)
		return grant->verdict.next;
	if (grant->window && grant->window->dev) {
		judge_device(grant);
		if (grant->verdict.next == PENSTOCK_OBJECT_DONE && grant->op == PENSTOCK_WRITE)
			answered(windows, grant->op);
	} else if (grant->verdict.next == PENSTOCK_OBJECT_DONE)
		answered(windows, grant->op);
	else if (grant->verdict.remember)
		windows_shut(windows, grant->verdict.text, false);
	else if (grant->verdict.next != PENSTOCK_OBJECT_ERROR &&
		 atomic_fetch_add(&windows->declines, 1) + 1 >= declines_max)
		windows_shut(windows, grant->verdict.text, true);
	return grant->verdict.next;
}

enum penstock_object_next pst_object_grant_judge(struct pst_object_grant *grant,
						 const struct pst_object_call *call,
						 const char *error)
{
	struct pst_object_windows *windows = grant->windows;
	const struct pst_http_head *head = &call->http.head;
	struct penstock_object_header headers[PST_OBJECT_REPLY_HEADERS];
	struct penstock_object_reply reply = PENSTOCK_OBJECT_REPLY_INIT;
	struct pst_object_reply_texts texts;

	grant->judged = call;
	if (call->exchange && call->exchange->phase == PST_OBJECT_REFUSED) {
		grant->verdict = grant->steps.verdict;
		return grant_note(grant);
	}
	reply.status = (int)head->status;
	reply.headers = headers;
	reply.header_count = pst_object_reply_fill(head, &texts, headers);
	reply.error = error;
	reply.expect = grant->op == PENSTOCK_READ ? grant->len : 0;
	reply.ranged = call->ranged;
	pst_wire_judge(grant->inner, &reply, &grant->verdict);
	grant->card_failed = !grant->verdict.remember &&
			     (grant->verdict.next == PENSTOCK_OBJECT_RESEND ||
			      grant->verdict.next == PENSTOCK_OBJECT_BODY);
	if (is_body_checked(grant, head, error)) {
		grant->verdict.next = PENSTOCK_OBJECT_RESEND;
		grant->verdict.remember = !pst_object_windows_answered(windows);
		snprintf(grant->verdict.text, sizeof(grant->verdict.text), "the server %s (%s)",
			 grant->verdict.remember ? "ignored the token"
						 : "got damaged bytes from the window",
			 error);
	}
	/* Without an ETag, the bytes may be those of another version. */
	if (call->exchange && grant->op == PENSTOCK_READ && !head->etag[0] &&
	    grant->verdict.next == PENSTOCK_OBJECT_DONE) {
		grant->verdict.next = PENSTOCK_OBJECT_RESEND;
		grant->verdict.remember = 1;
		snprintf(grant->verdict.text, sizeof(grant->verdict.text),
			 "the server does not tell the ETag of what it has moved");
	}
	return grant_note(grant);
}

bool pst_object_grant_has_card(const struct pst_object_grant *grant)
{
	return grant->window && grant->card_failed && grant->tries + 1 < grant->cards;
}

bool pst_object_grant_next(struct pst_object_grant *grant)
{
	if (!pst_object_grant_has_card(grant) || grant->result)
		return false;
	if (!grant->tries++)
		grant->failed = 0;
	grant->failed |= UINT64_C(1) << grant->card;
	grant->repeats = true;
	return true;
}

int pst_object_grant_why(const struct pst_object_grant *grant, struct pst_err *err)
{
	return pst_fail_errno(err, EOPNOTSUPP,
			      grant->verdict.remember ? PENSTOCK_WHY_NO_WINDOW
						      : PENSTOCK_WHY_DECLINED,
			      "%s", grant->verdict.text);
}

void pst_object_grant_wait(struct pst_object_grant *grant)
{
	struct object_window *own = (struct object_window *)grant->window;

	grant->err.code = 0;
	/* The response shows only that the transfer of the last attempt has ended. A lost attempt
	 * may have begun another transfer, so the release must wait for the server. */
	if (grant->judged && grant->judged->http.attempts > 1)
		pst_wire_unsettle(grant->inner);
	grant->result = pst_wire_release(grant->inner, &grant->err);
	grant->inner = NULL;
	pst_object_steps_close(&grant->steps);
	/* No server accesses the memory of a window that takes a file. */
	if (!grant->result && (!own || !pst_wire_buffer_is_cut(own->buffer)))
		return;
	if (own)
		atomic_store(&own->window.spoiled, true);
	if (!grant->result)
		grant->result = pst_fail_errno(&grant->err, EIO, PENSTOCK_WHY_NO_WINDOW,
					       "the server did not confirm the end of its "
					       "transfer and was cut off");
	pst_log(PST_LOG_WARN, "object", "%s: %s", grant->windows->endpoint->host, grant->err.text);
}

bool pst_object_grant_close(struct pst_object_grant *grant)
{
	if (!pst_wire_revoke(grant->inner))
		return false;
	pst_object_grant_wait(grant);
	return true;
}

static void *release_run(void *arg)
{
	struct pst_object_grant *grant = arg;

	pst_object_grant_wait(grant);
	grant->released(grant);
	return NULL;
}

void pst_object_grant_release(struct pst_object_grant *grant,
			      void (*released)(struct pst_object_grant *grant))
{
	bool waits = !pst_wire_revoke(grant->inner) ||
		     (grant->len >= LONG && pst_wire_window_is_bound(grant->inner));
	pthread_t thread;

	grant->released = released;
	/* Ending a network card's registration of a long window takes long. On this thread, a
	 * reactor, it would delay other requests. */
	if (waits && !pst_thread_start(&thread, release_run, grant)) {
		pthread_detach(thread);
		return;
	}
	/* If no thread can be started, the calling thread waits. */
	release_run(grant);
}
