/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the exchange with the upstream, see exchange.h. */
#include "exchange.h"

#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/socket.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "io/http_head.h"
#include "io/tls.h"

#define CONNECT_MS 5000
#define CONNECT_TRIES 3
/* A connection that has been idle for longer than this time in ns is not used again. Most servers
 * close idle connections after more than 5 s, so the upstream has probably not closed it before. */
#define IDLE_NS 4000000000u
#define INTERIM_MAX 8 /* maximum number of interim replies (1xx) */

/* A connection with the upstream. */
struct gw_link {
	int fd;
	struct pst_tls *tls;
	uint64_t idle_since;
	char bytes[PST_HTTP_HEAD_MAX]; /* bytes that have arrived and are not used yet */
	size_t len;
};

/* State of one exchange: a request to the upstream and its reply. */
struct exchange {
	struct gw_links *links;
	struct gw_stream *stream;
	const struct gw_exchange_request *request;
	struct gw_link *link;
	/* number of attempts to connect; index of the address that the next attempt uses */
	unsigned tries, address;
	bool reused; /* the connection has carried a request before */
	/* number of bytes that window_stage has put at the start of the stream's ring buffer */
	size_t staged;
};

struct gw_links *gw_links_open(struct pst_http_endpoint *endpoint, unsigned timeout_s,
			       struct gw_metrics *metrics)
{
	struct gw_links *links = calloc(1, sizeof(*links));

	if (!links)
		return NULL;
	links->endpoint = endpoint;
	links->timeout_ms = timeout_s * 1000;
	links->metrics = metrics;
	pthread_mutex_init(&links->lock, NULL);
	return links;
}

static void link_close(struct gw_link *link)
{
	if (!link)
		return;
	pst_tls_close(link->tls);
	if (link->fd >= 0)
		close(link->fd);
	free(link);
}

void gw_links_close(struct gw_links *links)
{
	if (!links)
		return;
	while (links->idle_count)
		link_close(links->idle[--links->idle_count]);
	pthread_mutex_destroy(&links->lock);
	free(links);
}

/* ---- connections ---- */

/* Waits until one of the events occurs on a socket. Returns the events that have occurred,
 * -ETIMEDOUT or another negative errno. */
static int wait_for(int fd, short events, unsigned ms)
{
	struct pollfd p = {fd, events, 0};
	int n;

	do
		n = poll(&p, 1, (int)ms);
	while (n < 0 && errno == EINTR);
	return n > 0 ? p.revents : n ? -errno : -ETIMEDOUT;
}

static int tls_wait(struct gw_link *link, unsigned ms)
{
	int ret = wait_for(link->fd, pst_tls_wants_write(link->tls) ? POLLOUT : POLLIN, ms);

	return ret < 0 ? ret : 0;
}

/* Connects to the upstream, by one of its addresses. */
static int link_connect(struct exchange *x, struct gw_link *link)
{
	struct pst_http_endpoint *endpoint = x->links->endpoint;
	struct sockaddr_storage address;
	int ret, error = 0, one = 1;
	socklen_t len;
	struct pst_err err;

	if (!x->tries++)
		x->address = pst_endpoint_address_first(endpoint);
	pst_endpoint_address(endpoint, x->address++, &address, &len);
	link->fd = socket(address.ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	if (link->fd < 0)
		return -errno;
	setsockopt(link->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	if (!gw_stream_socket(x->stream, link->fd))
		return -ECANCELED;
	if (connect(link->fd, (struct sockaddr *)&address, len) && errno != EINPROGRESS)
		return -errno;
	ret = wait_for(link->fd, POLLOUT, CONNECT_MS);
	len = sizeof(error);
	if (ret < 0 || getsockopt(link->fd, SOL_SOCKET, SO_ERROR, &error, &len) || error)
		return ret < 0 ? ret : -(error ? error : EIO);
	if (!endpoint->tls)
		return 0;
	link->tls = pst_tls_open(endpoint->tls_context, link->fd, endpoint->host);
	ret = link->tls ? -EAGAIN : -ENOMEM;
	while (ret == -EAGAIN) {
		ret = pst_tls_shake(link->tls, &err);
		if (ret == -EAGAIN && tls_wait(link, CONNECT_MS))
			return -ETIMEDOUT;
	}
	return ret;
}

/* Returns an idle connection that the upstream has not closed, or NULL. */
static struct gw_link *link_take(struct gw_links *links)
{
	struct gw_link *link = NULL;

	pthread_mutex_lock(&links->lock);
	while (!link && links->idle_count) {
		struct pollfd p;

		link = links->idle[--links->idle_count];
		p = (struct pollfd){link->fd, POLLIN, 0};
		if (poll(&p, 1, 0) != 0 || pst_now_ns() - link->idle_since > IDLE_NS) {
			link_close(link);
			link = NULL;
		}
	}
	pthread_mutex_unlock(&links->lock);
	return link;
}

static void link_give(struct gw_links *links, struct gw_link *link)
{
	pthread_mutex_lock(&links->lock);
	link->idle_since = pst_now_ns();
	if (links->idle_count < GW_LINKS_IDLE_MAX) {
		links->idle[links->idle_count++] = link;
		link = NULL;
	}
	pthread_mutex_unlock(&links->lock);
	link_close(link);
}

static void link_drop(struct exchange *x)
{
	gw_stream_socket(x->stream, -1);
	link_close(x->link);
	x->link = NULL;
}

/* Gets a connection: an idle one, or a new one if `fresh` is true or none is idle. */
static int link_get(struct exchange *x, bool fresh)
{
	int ret = -EHOSTUNREACH;

	x->link = fresh ? NULL : link_take(x->links);
	x->reused = x->link != NULL;
	if (x->link)
		return gw_stream_socket(x->stream, x->link->fd) ? 0 : -ECANCELED;
	for (unsigned try = 0; try < CONNECT_TRIES; try++) {
		x->link = calloc(1, sizeof(*x->link));
		if (!x->link)
			return -ENOMEM;
		x->link->fd = -1;
		ret = link_connect(x, x->link);
		if (!ret)
			return 0;
		link_drop(x);
		if (ret == -ECANCELED || try + 1 >= x->links->endpoint->address_count)
			break;
	}
	pst_endpoint_refresh(x->links->endpoint);
	return ret;
}

/* Sends bytes. Returns 0, 1 if the upstream has replied before it received all of them, or a
 * negative errno. */
static int link_write(struct exchange *x, const char *bytes, size_t len)
{
	struct gw_link *link = x->link;

	while (len) {
		ssize_t n = link->tls ? pst_tls_write(link->tls, bytes, len)
				      : send(link->fd, bytes, len, MSG_NOSIGNAL);
		int ret;

		if (n < 0 && !link->tls)
			n = -errno;
		if (n > 0) {
			bytes += n;
			len -= (size_t)n;
			atomic_fetch_add(&x->links->metrics->upstream_bytes[0],
					 (unsigned long long)n);
			continue;
		}
		if (n != -EAGAIN)
			return n == -EPIPE || n == -ECONNRESET ? 1 : (int)n;
		if (link->tls) {
			ret = tls_wait(link, x->links->timeout_ms);
			if (ret)
				return ret;
			continue;
		}
		ret = wait_for(link->fd, POLLOUT | POLLIN, x->links->timeout_ms);
		if (ret < 0)
			return ret;
		if (ret & POLLIN)
			return 1;
	}
	return 0;
}

/* Receives bytes. Returns their number, 0 if the upstream has closed the connection, or a negative
 * errno. */
static ssize_t link_read(struct exchange *x, char *bytes, size_t len)
{
	struct gw_link *link = x->link;

	for (;;) {
		ssize_t n = link->tls ? pst_tls_read(link->tls, bytes, len)
				      : recv(link->fd, bytes, len, 0);
		int ret;

		if (n < 0 && !link->tls)
			n = -errno;
		if (n > 0)
			atomic_fetch_add(&x->links->metrics->upstream_bytes[1],
					 (unsigned long long)n);
		if (n != -EAGAIN && n != -EINTR)
			return n;
		ret = link->tls ? tls_wait(link, x->links->timeout_ms)
				: wait_for(link->fd, POLLIN, x->links->timeout_ms);
		if (ret < 0)
			return ret;
	}
}

/* ---- the request ---- */

/* Sends a body that is longer than the stream's ring buffer. The body passes through the ring piece
 * by piece, and bytes that are sent leave the ring. */
static int body_send(struct exchange *x)
{
	const char *bytes;
	ssize_t n;

	while ((n = gw_stream_next(x->stream, &bytes)) > 0) {
		int ret = link_write(x, bytes, (size_t)n);

		if (ret)
			return ret;
		gw_stream_sent(x->stream, (size_t)n);
	}
	return (int)n;
}

/* Reads the next bytes of a body from the client's window (memory of the client, read by RDMA) to
 * the start of the ring. With the last bytes, also checks the whole body. If a step fails, sets the
 * window's `error` and returns false. */
static bool window_stage(struct exchange *x, uint64_t at)
{
	struct gw_window *window = x->request->window;
	uint64_t left = x->stream->want - at;
	int64_t moved = 0;

	x->staged = left < GW_STREAM_RING ? (size_t)left : GW_STREAM_RING;
	if (left)
		moved = window->move(window->owner, at, x->stream->ring, x->staged);
	if (moved < 0)
		window->error = (int)moved;
	else if (x->staged == left && !window->check(window->owner))
		window->error = -EBADMSG;
	return !window->error;
}

/* Sends a body that the gateway reads by RDMA from the client's window. window_stage has already
 * put the first bytes into the ring. */
static int window_send(struct exchange *x)
{
	uint64_t at = 0;

	for (;;) {
		int ret = link_write(x, x->stream->ring, x->staged);

		at += x->staged;
		if (ret || at == x->stream->want)
			return ret;
		if (!window_stage(x, at))
			return -EIO;
	}
}

/* Sends the head and the body of the request. A body that fits in the stream's ring buffer stays
 * there, so that the request can be repeated. */
static int request_send(struct exchange *x)
{
	const struct gw_exchange_request *request = x->request;
	int ret = link_write(x, request->head, request->head_len);

	if (ret || !x->stream->want)
		return ret;
	if (request->window && request->window->reads)
		return window_send(x);
	if (x->stream->want > GW_STREAM_WHOLE)
		return body_send(x);
	return link_write(x, x->stream->ring, (size_t)x->stream->want);
}

/* ---- the reply ---- */

/* Returns whether a header of the upstream's reply must not be passed to the client: it describes
 * the connection to the upstream, or a transfer by RDMA, which this gateway makes itself. */
static bool is_hop(const char *name, size_t len)
{
	static const char *const names[] = {
		"connection", "keep-alive", "transfer-encoding", "content-length",
		"trailer",    "upgrade",    "proxy-connection",	 "te",
		"date",	      "server",	    "proxy-authenticate"};
	static const char rdma[] = "x-amz-rdma-";

	for (unsigned i = 0; i < sizeof(names) / sizeof(names[0]); i++)
		if (strlen(names[i]) == len && !strncasecmp(names[i], name, len))
			return true;
	return len >= strlen(rdma) && !strncasecmp(rdma, name, strlen(rdma));
}

/* Appends the headers of the reply to `out`. pst_http_head_parse has accepted the head. */
static void headers_collect(struct pst_text *out, const char *head, size_t len)
{
	const char *at = memchr(head, '\n', len), *end = head + len;

	for (at++; at < end && *at != '\r' && *at != '\n';) {
		const char *line_end = memchr(at, '\n', (size_t)(end - at));
		const char *colon = memchr(at, ':', (size_t)(line_end - at));
		const char *value = colon + 1, *value_end = line_end;

		while (value < value_end && (*value == ' ' || *value == '\t'))
			value++;
		while (value_end > value && (unsigned char)value_end[-1] <= ' ')
			value_end--;
		if (!is_hop(at, (size_t)(colon - at))) {
			pst_text_put(out, at, (size_t)(colon - at));
			pst_text_put(out, "", 1);
			pst_text_put(out, value, (size_t)(value_end - value));
			pst_text_put(out, "", 1);
		}
		at = line_end + 1;
	}
}

/* Reads the head of the reply, and skips interim replies (1xx). */
static int head_read(struct exchange *x, struct pst_http_head *head)
{
	struct gw_link *link = x->link;
	unsigned interim = 0;

	for (;;) {
		long len = pst_http_head_parse(link->bytes, link->len, head);
		ssize_t n;

		if (len < 0)
			return (int)len;
		if (len > 0 && head->status >= 200) {
			/* drop the headers of the reply to an earlier attempt */
			x->stream->headers.len = 0;
			headers_collect(&x->stream->headers, link->bytes, (size_t)len);
			link->len -= (size_t)len;
			memmove(link->bytes, link->bytes + len, link->len);
			return x->stream->headers.failed ? -ENOMEM : 0;
		}
		if (len > 0) {
			if (++interim > INTERIM_MAX)
				return -EBADMSG;
			link->len -= (size_t)len;
			memmove(link->bytes, link->bytes + len, link->len);
			continue;
		}
		n = link_read(x, link->bytes + link->len, sizeof(link->bytes) - link->len);
		if (n <= 0)
			return n ? (int)n : -ECONNRESET;
		link->len += (size_t)n;
	}
}

/* Appends bytes of the reply's body to the ring, from which the client's connection takes them. */
static int bytes_pass(struct exchange *x, const char *bytes, size_t len)
{
	while (len) {
		ssize_t n;
		char *to;

		n = gw_stream_space(x->stream, &to);
		if (n < 0)
			return (int)n;
		if ((size_t)n > len)
			n = (ssize_t)len;
		memcpy(to, bytes, (size_t)n);
		gw_stream_filled(x->stream, (size_t)n);
		bytes += n;
		len -= (size_t)n;
	}
	return 0;
}

/* Reads bytes of a body that is not chunked: first those that arrived together with the head. */
static ssize_t body_read(struct exchange *x, char *bytes, size_t len)
{
	struct gw_link *link = x->link;

	if (!link->len)
		return link_read(x, bytes, len);
	len = len < link->len ? len : link->len;
	memcpy(bytes, link->bytes, len);
	link->len -= len;
	memmove(link->bytes, link->bytes + len, link->len);
	return (ssize_t)len;
}

/* Passes the last `left` bytes of a body to the client. If the length of the body is not known,
 * passes all bytes until the upstream closes the connection. */
static int plain_pass(struct exchange *x, const struct pst_http_head *head, uint64_t left)
{
	while (left) {
		char *to;
		ssize_t n = gw_stream_space(x->stream, &to);

		if (n > 0)
			n = body_read(x, to, (uint64_t)n < left ? (size_t)n : (size_t)left);
		if (n <= 0)
			return n || head->has_length ? -EPIPE : 0;
		gw_stream_filled(x->stream, (size_t)n);
		left -= (uint64_t)n;
	}
	return 0;
}

/* Writes a reply's body of *left bytes into the client's window (memory of the client, written by
 * RDMA), piece by piece through the ring. If the first write fails, its bytes stay in the ring, and
 * the client gets the body by HTTP. *left becomes the number of bytes that have not been read.
 * Returns 0, -EPIPE if the body cannot be read to its end, or -EAGAIN if a later write has failed,
 * so that the request must be repeated. */
static int window_fill(struct exchange *x, uint64_t *left)
{
	const uint64_t length = *left;
	struct gw_window *window = x->request->window;

	for (uint64_t at = 0; at < length;) {
		size_t have = 0, most;
		int64_t moved;
		char *to;
		ssize_t n = gw_stream_space(x->stream, &to);

		if (n < 0)
			return -EPIPE;
		most = (uint64_t)n < length - at ? (size_t)n : (size_t)(length - at);
		for (; have < most; have += (size_t)n) {
			n = body_read(x, to + have, most - have);
			if (n <= 0)
				return -EPIPE;
		}
		moved = window->move(window->owner, at, to, have);
		if (moved < 0) {
			window->error = (int)moved;
			if (at) {
				/* A part of the body is in the window already. So report a failed
				 * transfer (-EPIPE), and not that the gateway has declined the
				 * window. */
				window->error = -EPIPE;
				return -EAGAIN;
			}
			gw_stream_filled(x->stream, have);
			*left = length - have;
			return 0;
		}
		at += have;
	}
	window->complete = true;
	window->moved = length;
	*left = 0;
	return 0;
}

/* Returns whether the reply's body shall be written into the client's window by RDMA. */
static bool window_takes(struct gw_window *window, const struct pst_http_head *head)
{
	if (!window || window->reads || window->error ||
	    (head->status != 200 && head->status != 206))
		return false;
	/* If the length of the body is not known, or the window is too short, the client gets the
	 * body by HTTP. */
	if (head->chunked || !head->has_length)
		window->error = -EOPNOTSUPP;
	else if (head->length > window->length)
		window->error = -ERANGE;
	return !window->error;
}

static int chunks_pass(struct exchange *x)
{
	struct pst_http_chunks chunks = {0};
	struct gw_link *link = x->link;
	bool ended = false;

	while (!ended) {
		size_t decoded = 0;
		ssize_t n;
		long used;
		int ret;

		if (!link->len) {
			n = link_read(x, link->bytes, sizeof(link->bytes));
			if (n <= 0)
				return -EPIPE;
			link->len = (size_t)n;
		}
		used = pst_http_chunks_take(&chunks, link->bytes, link->len, &decoded, &ended);
		if (used < 0)
			return (int)used;
		ret = bytes_pass(x, link->bytes, decoded);
		if (ret)
			return ret;
		link->len -= (size_t)used;
		memmove(link->bytes, link->bytes + used, link->len);
	}
	return 0;
}

static void exchange_fail(struct exchange *x, enum gw_stream_failure failure)
{
	/* If the client has closed its connection, do not count this as a failure of the
	 * upstream. */
	if (gw_stream_socket(x->stream, -1) && failure != GW_STREAM_NO_BODY)
		atomic_fetch_add(&x->links->metrics->upstream_failed[failure - 1], 1);
	gw_stream_reply(x->stream, failure);
}

/* Passes the reply to the client: first its head, then its body. Then keeps the connection to the
 * upstream, or closes it. Returns false if the request must be repeated. */
static bool reply_pass(struct exchange *x, const struct pst_http_head *head, bool whole)
{
	bool no_body = x->request->no_body || head->status == 204 || head->status == 304;
	uint64_t left = head->has_length ? head->length : UINT64_MAX;
	struct gw_stream *s = x->stream;
	bool arrived;
	int ret = 0;

	s->status = head->status;
	s->has_length = !head->chunked && head->has_length;
	s->length = head->length;
	atomic_fetch_add(&x->links->metrics->upstream_replies[head->status / 100 % 6], 1);
	gw_stream_turn(s);
	if (!no_body && window_takes(x->request->window, head)) {
		ret = window_fill(x, &left);
		if (ret) {
			link_drop(x);
			if (ret == -EPIPE)
				exchange_fail(x, GW_STREAM_LOST);
			return ret == -EPIPE;
		}
		if (x->request->window->complete)
			s->length = 0;
	}
	/* If the whole reply has arrived, release the connection to the upstream before the client
	 * gets the reply. The client's next request can then use this connection. */
	arrived = no_body || (s->has_length && left <= x->link->len);
	if (!arrived)
		gw_stream_reply(s, GW_STREAM_NONE);
	if (!no_body)
		ret = head->chunked ? chunks_pass(x) : plain_pass(x, head, left);
	if (!ret && whole && head->keeps && !x->link->len &&
	    (no_body || head->chunked || head->has_length) && gw_stream_socket(s, -1)) {
		link_give(x->links, x->link);
		x->link = NULL;
	} else {
		link_drop(x);
	}
	if (ret && ret != -ECANCELED)
		atomic_fetch_add(&x->links->metrics->upstream_failed[2], 1);
	gw_stream_finish(s, ret ? GW_STREAM_BROKEN : GW_STREAM_COMPLETE);
	if (arrived)
		gw_stream_reply(s, GW_STREAM_NONE);
	return true;
}

/* Sends the request and passes the reply to the client. Returns false if the request must be
 * repeated. */
static bool exchange_run(struct exchange *x)
{
	/* A long body cannot be sent again, and the upstream may close an idle connection at any
	 * moment. So a long body needs a new connection. */
	bool fresh = x->stream->want > GW_STREAM_WHOLE;
	const struct gw_window *window = x->request->window;
	struct pst_http_head reply;
	int sent, ret;

	for (;;) {
		ret = link_get(x, fresh);
		if (ret) {
			link_drop(x);
			exchange_fail(x, ret == -ETIMEDOUT ? GW_STREAM_TIMEOUT : GW_STREAM_REFUSED);
			return true;
		}
		sent = request_send(x);
		ret = sent < 0 ? sent : head_read(x, &reply);
		if (!ret)
			return reply_pass(x, &reply, sent == 0);
		/* The upstream may have closed the idle connection while the request was on its
		 * way. Repeat the request only in this case. */
		if (!x->reused || ret == -ETIMEDOUT || ret == -ECANCELED || x->link->len)
			break;
		link_drop(x);
		fresh = true;
	}
	link_drop(x);
	exchange_fail(x, window && window->reads && window->error ? GW_STREAM_NO_BODY
			 : ret == -ETIMEDOUT			  ? GW_STREAM_TIMEOUT
								  : GW_STREAM_LOST);
	return true;
}

void gw_exchange(struct gw_links *links, struct gw_stream *stream,
		 const struct gw_exchange_request *request)
{
	struct exchange x = {.links = links, .stream = stream, .request = request};

	/* Send nothing to the upstream before the first bytes have been read from the client's
	 * window. This read fails if the RDMA token in the request is invalid. */
	if (request->window && request->window->reads && !window_stage(&x, 0)) {
		exchange_fail(&x, GW_STREAM_NO_BODY);
		return;
	}
	/* This loop runs at most twice. If a write to the client's window has failed, the second
	 * run repeats the request and passes the reply's body to the client by HTTP. */
	while (!exchange_run(&x))
		;
}
