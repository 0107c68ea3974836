/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the HTTP server on libmicrohttpd, see http.h. */
#include "http.h"

#include <ctype.h>
#include <errno.h>
#include <microhttpd.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "addresses.h"
#include "core/base/clock.h"
#include "daemons.h"
#include "stream.h"
#include "watch.h"

/* Memory of a connection in bytes: half of it holds a request's head or a piece of a body. With
 * more memory, pieces would be longer, and fewer calls of pwrite() would store a body. But
 * libmicrohttpd clears all of the memory after each request. */
#define CONNECTION_MEMORY (128u << 10)
#define RATE_WINDOW_S 15
/* Maximum length in bytes of a body that one system call sends together with the headers. */
#define SHORT_BODY (16u << 10)
/* Number of bytes after the last request of a connection that are no start of a request: an empty
 * line, which clients may send (RFC 9112, section 2.2), and the end of the stream (watch.h). */
#define NO_HEAD 3

enum { STATE_NEW, STATE_BODY, STATE_DISCARD, STATE_DONE, STATE_ANSWER };

/* The connections that a thread has admitted, but that have not started yet. Only this thread uses
 * it. */
struct entrance {
	struct gw_http *http;
	struct in6_addr admitted[GW_ACCEPT_MAX]; /* addresses of the clients */
	unsigned count;
};

struct gw_http {
	struct gw_daemons *daemons;
	const struct gw_http_options *options; /* NULL after the start */
	const struct gw_http_calls *calls;
	void *owner;
	struct gw_watch *watch;
	struct gw_pool *pool; /* NULL if there are no workers */
	atomic_uint connections;
	struct gw_http_shared *shared;
	atomic_bool quiet, stopping;
	bool tls;
	char message[256]; /* last message of libmicrohttpd while the server starts */
	atomic_bool starting;
	struct entrance entrances[]; /* one for each thread */
};

void gw_reply_header(struct gw_reply *reply, const char *name, const char *value)
{
	for (const char *c = value; *c; c++)
		if ((unsigned char)*c < 0x20 || *c == 0x7f)
			return;
	pst_text_put(&reply->headers, name, strlen(name) + 1);
	pst_text_put(&reply->headers, value, strlen(value) + 1);
}

const char *gw_http_header(const struct gw_http_request *req, const char *name)
{
	for (unsigned i = 0; i < req->header_count; i++)
		if (!strcmp(req->headers[i].name, name))
			return req->headers[i].value;
	return NULL;
}

const char *gw_reply_header_find(const struct gw_reply *reply, const char *name)
{
	const char *at = reply->headers.at;

	while (at && at < reply->headers.at + reply->headers.len) {
		const char *value = at + strlen(at) + 1;

		if (!strcasecmp(at, name))
			return value;
		at = value + strlen(value) + 1;
	}
	return NULL;
}

bool gw_http_header_set(struct gw_http_request *req, const char *name, const char *value)
{
	unsigned i = 0;

	while (i < req->header_count && strcmp(req->headers[i].name, name) != 0)
		i++;
	if (i == PST_SIGV4_HEADERS_MAX)
		return false;
	req->headers[i] = (struct pst_header){name, value};
	req->header_count += i == req->header_count;
	return true;
}

/* ---- requests ---- */

/* Writes the address of a connection's client to `out`. */
static void remote_put(struct MHD_Connection *connection, char *out, size_t len)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);

	if (info && info->client_addr)
		getnameinfo(info->client_addr,
			    info->client_addr->sa_family == AF_INET6 ? sizeof(struct sockaddr_in6)
								     : sizeof(struct sockaddr_in),
			    out, (socklen_t)len, NULL, 0, NI_NUMERICHOST);
}

/* Called by libmicrohttpd for the first line of a request. `uri` is the target as the client sent
 * it, because libmicrohttpd has not decoded it yet. */
static void *request_begin(void *cls, const char *uri, struct MHD_Connection *connection)
{
	struct entrance *entrance = cls;
	struct gw_http *http = entrance->http;
	struct gw_http_request *req = calloc(1, sizeof(*req));
	const union MHD_ConnectionInfo *info;

	if (!req)
		return NULL;
	req->http = http;
	req->thread = (unsigned)(entrance - http->entrances);
	req->connection = connection;
	req->reply.fd = -1;
	req->started_ns = pst_now_ns();
	req->too_long = strlen(uri) > GW_TARGET_MAX;
	req->target = strdup(req->too_long ? "/" : uri);
	info = MHD_get_connection_info(connection, MHD_CONNECTION_INFO_SOCKET_CONTEXT);
	req->watched = info ? info->socket_context : NULL;
	remote_put(connection, req->remote, sizeof(req->remote));
	gw_watch_phase(req->watched, GW_PHASE_HEAD);
	atomic_fetch_add(&http->shared->requests, 1);
	return req;
}

/* The state of a request's headers while they are being collected. */
struct collect {
	struct gw_http_request *req;
	size_t bytes, names;
	bool too_many;
};

static enum MHD_Result header_count(void *cls, enum MHD_ValueKind kind, const char *name,
				    const char *value)
{
	struct collect *c = cls;

	(void)kind;
	c->names += strlen(name) + 1;
	c->bytes += strlen(name) + (value ? strlen(value) : 0) + 4;
	c->req->header_count++;
	return MHD_YES;
}

static enum MHD_Result header_take(void *cls, enum MHD_ValueKind kind, const char *name,
				   const char *value)
{
	struct collect *c = cls;
	struct pst_header *header = &c->req->headers[c->req->header_count++];
	char *to = c->req->header_names + c->names;

	(void)kind;
	header->name = to;
	header->value = value ? value : "";
	for (; *name; name++)
		*to++ = (char)tolower((unsigned char)*name);
	*to++ = '\0';
	c->names = (size_t)(to - c->req->header_names);
	return MHD_YES;
}

/* Collects the request's headers. Returns false if they are too long or too many. */
static bool headers_collect(struct MHD_Connection *connection, struct gw_http_request *req)
{
	struct collect c = {.req = req};

	MHD_get_connection_values(connection, MHD_HEADER_KIND, header_count, &c);
	if (c.bytes > GW_HEAD_MAX || req->header_count > PST_SIGV4_HEADERS_MAX) {
		req->header_count = 0;
		return false;
	}
	req->header_count = 0;
	req->header_names = malloc(c.names + 1);
	c.names = 0;
	if (!req->header_names)
		return false;
	MHD_get_connection_values(connection, MHD_HEADER_KIND, header_take, &c);
	return true;
}

/* Reads a short body from its file into memory, so that it is sent together with the headers. If
 * that fails, the body is sent from the file. */
static void body_read(struct gw_reply *reply)
{
	char *bytes = malloc(reply->len);

	if (!bytes ||
	    pread(reply->fd, bytes, reply->len, (off_t)reply->at) != (ssize_t)reply->len) {
		free(bytes);
		return;
	}
	close(reply->fd);
	reply->fd = -1;
	free(reply->body.at);
	reply->body = (struct pst_text){.at = bytes, .len = reply->len, .capacity = reply->len};
}

/* Copies the next bytes of a reply's body from the request's stream (stream.h) to libmicrohttpd. */
static ssize_t stream_read(void *cls, uint64_t pos, char *bytes, size_t len)
{
	struct gw_http_request *req = cls;
	ssize_t n = gw_stream_take(req->stream, bytes, len);

	(void)pos;
	/* The watch (watch.c) ends the connections of slow clients. While the upstream sends
	 * nothing, the client is not to blame, so its time does not count. */
	if (req->waits != (n == 0))
		gw_watch_phase(req->watched, n ? GW_PHASE_REPLY : GW_PHASE_WORK);
	req->waits = n == 0;
	if (n > 0)
		req->sent_len += (uint64_t)n;
	if (n >= 0)
		return n;
	return n == -ENODATA ? MHD_CONTENT_READER_END_OF_STREAM : MHD_CONTENT_READER_END_WITH_ERROR;
}

static struct MHD_Response *stream_response(struct gw_http_request *req)
{
	uint64_t len = req->reply.has_len ? req->reply.len : MHD_SIZE_UNKNOWN;

	return MHD_create_response_from_callback(len, GW_STREAM_BLOCK, stream_read, req, NULL);
}

/* Replaces an incomplete reply by an error. A reply is incomplete if memory for it was missing. */
static void reply_refuse(struct gw_reply *reply)
{
	if (reply->fd >= 0)
		close(reply->fd);
	reply->fd = -1;
	free(reply->body.at);
	memset(&reply->body, 0, sizeof(reply->body));
	reply->headers.len = 0;
	reply->status = 503;
	reply->close = true;
}

static struct MHD_Response *response_make(struct gw_http_request *req)
{
	struct gw_reply *reply = &req->reply;
	struct MHD_Response *response;

	if (reply->body.failed || reply->headers.failed)
		reply_refuse(reply);
	if (reply->fd >= 0 && reply->len && reply->len <= SHORT_BODY &&
	    strcmp(req->method, "HEAD") != 0)
		body_read(reply);
	if (reply->streams && (!reply->has_len || reply->len))
		return stream_response(req);
	/* For HEAD, this response is right, too: libmicrohttpd sends only its headers. */
	if (reply->fd >= 0 && reply->len) {
		response =
			MHD_create_response_from_fd_at_offset64(reply->len, reply->fd, reply->at);
		if (response)
			reply->fd = -1;
		return response;
	}
	if (reply->fd >= 0)
		close(reply->fd);
	reply->fd = -1;
	reply->len = reply->body.len;
	response = MHD_create_response_from_buffer(reply->len, reply->body.at,
						   reply->body.at ? MHD_RESPMEM_MUST_FREE
								  : MHD_RESPMEM_PERSISTENT);
	if (response)
		memset(&reply->body, 0, sizeof(reply->body));
	return response;
}

static enum MHD_Result reply_send(struct gw_http *http, struct MHD_Connection *connection,
				  struct gw_http_request *req)
{
	struct MHD_Response *response = response_make(req);
	const char *at = req->reply.headers.at;
	enum MHD_Result ret;

	if (!response)
		return MHD_NO;
	while (at && at < req->reply.headers.at + req->reply.headers.len) {
		const char *value = at + strlen(at) + 1;

		/* libmicrohttpd refuses an empty value, so send a blank instead, which clients
		 * ignore. */
		MHD_add_response_header(response, at, *value ? value : " ");
		at = value + strlen(value) + 1;
	}
	if (req->reply.close || atomic_load(&http->quiet))
		MHD_add_response_header(response, MHD_HTTP_HEADER_CONNECTION, "close");
	/* The client may send its next request as soon as it has the reply. So settle before. */
	gw_watch_settle(req->watched, false);
	gw_watch_phase(req->watched, GW_PHASE_REPLY);
	ret = MHD_queue_response(connection, req->reply.status ? req->reply.status : 500, response);
	MHD_destroy_response(response);
	return ret;
}

/* Called for a request whose body is not wanted. Returns whether the gateway sends the reply only
 * after the whole body has arrived. If it replied before, libmicrohttpd would close the connection.
 * So it replies before only if the body is longer than GW_DISCARD_MAX or of unknown length, or if
 * the client waits for "100 Continue". */
static bool reply_waits(const struct gw_http_request *req)
{
	const char *length = gw_http_header(req, "content-length");

	if (gw_http_header(req, "transfer-encoding") || req->ambiguous)
		return false;
	if (!length || strtoull(length, NULL, 10) == 0)
		return true;
	return strtoull(length, NULL, 10) <= GW_DISCARD_MAX && !gw_http_header(req, "expect");
}

/* Returns whether a proxy on the way may see another end of the request's body than libmicrohttpd,
 * and so another start of the next request (RFC 9112, section 6.3). */
static bool length_is_ambiguous(const struct gw_http_request *req)
{
	const char *coding = gw_http_header(req, "transfer-encoding");
	unsigned count = 0;

	for (unsigned i = 0; i < req->header_count; i++)
		count += !strcmp(req->headers[i].name, "content-length") ||
			 !strcmp(req->headers[i].name, "transfer-encoding");
	return count > 1 || (coding && strcasecmp(coding, "chunked") != 0);
}

/* Resumes the connection of a request. The connection's thread may then free the request at once.
 * So the caller must not use the request any more, unless it holds a lock that request_done needs.
 */
static void request_resume(struct gw_http_request *req)
{
	struct gw_http *http = req->http;
	unsigned thread = req->thread;

	MHD_resume_connection(req->connection);
	gw_daemons_wake(http->daemons, thread);
}

static void stream_suspend(void *req)
{
	MHD_suspend_connection(((struct gw_http_request *)req)->connection);
}

static void stream_resume(void *req)
{
	request_resume(req);
}

/* Returns whether `len` more bytes complete the request's body. */
static bool body_completes(const struct gw_http_request *req, size_t len)
{
	const char *length = gw_http_header(req, "content-length");

	return length && !gw_http_header(req, "transfer-encoding") &&
	       strtoull(length, NULL, 10) == req->body_len + len;
}

/* Copies a piece of a request's body into the ring buffer of its stream, as far as the ring has
 * room. `len` receives the number of bytes that did not fit. If there are such bytes, suspends the
 * connection. */
static void stream_take(struct gw_http *http, struct gw_http_request *req, const char *data,
			size_t *len)
{
	/* While the stream was full, the client could not send. So this time does not count against
	 * the client's minimum rate. */
	if (req->waits)
		gw_watch_phase(req->watched, GW_PHASE_BODY);
	req->waits = false;
	while (*len && req->state == STATE_BODY) {
		size_t room = gw_stream_room(req->stream);

		if (!room) {
			req->waits = true;
			gw_watch_phase(req->watched, GW_PHASE_WORK);
			return;
		}
		room = room < *len ? room : *len;
		req->body_len += room;
		if (!http->calls->body(http->owner, req, data, room))
			req->state = STATE_DISCARD;
		data += room;
		*len -= room;
	}
	req->body_len += *len;
	*len = 0;
}

/* Copies the end of a request's body from libmicrohttpd's memory to the spill, if it does not fit
 * into the ring of the stream. Otherwise, the connection would have to be suspended with these
 * bytes in libmicrohttpd's memory. When it is resumed, libmicrohttpd (version 0.9.75) reads from it
 * before it passes the bytes on. If the client has closed its half of the connection, this read
 * ends the connection, and the bytes are lost. Returns false if it has copied nothing. */
static bool spill_take(struct gw_http_request *req, const char *data, size_t len)
{
	if (!body_completes(req, len) || gw_stream_room_now(req->stream) >= len)
		return false;
	req->spill.bytes = malloc(len);
	if (!req->spill.bytes)
		return false;
	memcpy(req->spill.bytes, data, len);
	req->spill.len = len;
	return true;
}

/* Copies bytes from the spill into the ring. Returns false if not all bytes fit: then the function
 * has suspended the connection, and must be called again. */
static bool spill_put(struct gw_http *http, struct gw_http_request *req)
{
	size_t left = req->spill.len - req->spill.at;

	if (!left)
		return true;
	stream_take(http, req, req->spill.bytes + req->spill.at, &left);
	req->spill.at = req->spill.len - left;
	return !left;
}

/* Sends the upstream's reply to the client if it has arrived in the stream. */
static enum MHD_Result stream_answer(struct gw_http *http, struct MHD_Connection *connection,
				     struct gw_http_request *req)
{
	if (!gw_stream_replied(req->stream))
		return MHD_YES;
	req->state = STATE_DONE;
	http->calls->answer(http->owner, req);
	return reply_send(http, connection, req);
}

static enum MHD_Result request_head(struct gw_http *http, struct MHD_Connection *connection,
				    struct gw_http_request *req, const char *method)
{
	req->method = method;
	gw_watch_phase(req->watched, GW_PHASE_WORK);
	if (!req->target)
		return MHD_NO;
	if (req->too_long || !headers_collect(connection, req)) {
		static const char body[] =
			"<?xml version=\"1.0\" encoding=\"UTF-8\"?>\n<Error><Code>"
			"RequestHeaderSectionTooLarge</Code><Message>Your request header section "
			"exceeds the maximum allowed request header section "
			"size.</Message></Error>";

		req->refused = true;
		req->error = "RequestHeaderSectionTooLarge";
		req->reply.status = 400;
		req->reply.close = true;
		gw_reply_header(&req->reply, "Content-Type", "application/xml");
		pst_text_put(&req->reply.body, body, sizeof(body) - 1);
		return reply_send(http, connection, req);
	}
	req->ambiguous = req->reply.close = length_is_ambiguous(req);
	if (http->calls->head(http->owner, req)) {
		req->state = STATE_BODY;
		if (req->stream)
			gw_stream_attach(req->stream, req, stream_suspend, stream_resume);
		gw_watch_phase(req->watched, GW_PHASE_BODY);
		return MHD_YES;
	}
	if (reply_waits(req)) {
		req->state = STATE_DISCARD;
		gw_watch_phase(req->watched, GW_PHASE_BODY);
		return MHD_YES;
	}
	return reply_send(http, connection, req);
}

/* Runs the operation of a request on a worker thread, after the body has arrived. The connection's
 * own thread then sends the reply. */
static void request_work(struct gw_job *job)
{
	struct gw_http_request *req =
		(struct gw_http_request *)((char *)job - offsetof(struct gw_http_request, job));

	req->http->calls->end(req->http->owner, req);
	request_resume(req);
}

/* Lets a worker thread run a request that may take long. If the pool does not accept the request,
 * runs it on this thread. Returns false if the request cannot take long or the server has no
 * workers. */
static bool request_defer(struct gw_http *http, struct MHD_Connection *connection,
			  struct gw_http_request *req)
{
	if (!http->pool || !http->calls->is_long(http->owner, req))
		return false;
	req->job.run = request_work;
	MHD_suspend_connection(connection);
	if (gw_pool_add(http->pool, &req->job))
		return true;
	request_work(&req->job);
	return true;
}

/* Returns whether the connection may be suspended between the end of the request and the reply.
 * libmicrohttpd (version 0.9.75) reads from a resumed connection if it waited for bytes of the
 * client when it was suspended. If the client has closed its half of the connection, libmicrohttpd
 * then closes the connection without a reply. So at the end of such a request, request_go_on first
 * returns without a reply. libmicrohttpd then no longer waits for bytes, and calls request_go_on
 * again at once. */
static bool is_suspendable(const struct gw_http *http, struct gw_http_request *req)
{
	return req->state == STATE_BODY &&
	       (req->stream || (http->pool && http->calls->is_long(http->owner, req)));
}

/* Called by libmicrohttpd for the head of a request, for each piece of its body, and at its end. */
static enum MHD_Result request_go_on(void *cls, struct MHD_Connection *connection, const char *url,
				     const char *method, const char *version, const char *data,
				     size_t *len, void **user)
{
	struct gw_http *http = cls;
	struct gw_http_request *req = *user;

	(void)url;
	(void)version;
	if (!req)
		return MHD_NO;
	if (req->state == STATE_NEW)
		return request_head(http, connection, req, method);
	if (*len && req->stream) {
		if (spill_take(req, data, *len))
			*len = 0;
		else
			stream_take(http, req, data, len);
		return MHD_YES;
	}
	if (*len) {
		req->body_len += *len;
		if (req->state == STATE_BODY && !http->calls->body(http->owner, req, data, *len))
			req->state = STATE_DISCARD;
		*len = 0;
		return MHD_YES;
	}
	if (!req->settled && is_suspendable(http, req)) {
		req->settled = true;
		return MHD_YES;
	}
	if (!spill_put(http, req))
		return MHD_YES;
	gw_watch_phase(req->watched, GW_PHASE_WORK);
	if (req->state == STATE_BODY) {
		req->state = STATE_DONE;
		if (request_defer(http, connection, req))
			return MHD_YES;
		http->calls->end(http->owner, req);
		if (req->answers)
			req->state = STATE_ANSWER;
	}
	if (req->state == STATE_ANSWER)
		return stream_answer(http, connection, req);
	return reply_send(http, connection, req);
}

/* Records that libmicrohttpd has refused a head, or that the head is incomplete. If the reason is a
 * slow client, only `slow` says so: each head counts once. */
static void head_refuse(struct gw_http_request *req)
{
	req->refused = !req->slow;
	req->error = req->slow ? "RequestTimeout" : "BadRequest";
}

/* Records in a request how it has ended, if libmicrohttpd has refused it, or if its client was too
 * slow. Returns whether a reply was sent to its end. */
static bool request_judge(struct gw_http *http, struct MHD_Connection *connection,
			  struct gw_http_request *req, enum MHD_RequestTerminationCode code)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(connection, MHD_CONNECTION_INFO_HTTP_STATUS);
	bool complete = code == MHD_REQUEST_TERMINATED_COMPLETED_OK;

	if (!complete && !req->reply.status && info && info->http_status >= 400) {
		/* libmicrohttpd has sent an error of its own, for example after a malformed chunk
		 * of the body. */
		req->reply.status = info->http_status;
		req->error = "BadRequest";
		complete = true;
	} else if (!complete) {
		req->slow = code == MHD_REQUEST_TERMINATED_TIMEOUT_REACHED ||
			    gw_watch_is_over(http->watch, req->watched);
	}
	if (req->slow)
		req->error = "RequestTimeout";
	if (req->method)
		return complete;
	req->body_len = gw_watch_received(req->watched);
	head_refuse(req);
	return complete;
}

/* Reports a head to done() if a connection ends within the first line, or because this line is
 * malformed. Then libmicrohttpd does not call request_begin. With TLS, such a head cannot be told
 * from a connection without a request. */
static void first_line_end(struct gw_http *http, struct MHD_Connection *connection,
			   struct gw_watched *watched)
{
	struct gw_http_request req = {.http = http, .reply.fd = -1};

	req.body_len = gw_watch_received(watched);
	if (req.body_len <= NO_HEAD || atomic_load(&http->stopping))
		return;
	req.started_ns = pst_now_ns();
	req.slow = gw_watch_is_over(http->watch, watched);
	head_refuse(&req);
	remote_put(connection, req.remote, sizeof(req.remote));
	http->calls->done(http->owner, &req, false);
}

static void request_done(void *cls, struct MHD_Connection *connection, void **user,
			 enum MHD_RequestTerminationCode code)
{
	struct gw_http *http = cls;
	struct gw_http_request *req = *user;
	bool complete;

	if (!req)
		return;
	complete = request_judge(http, connection, req, code);
	/* In STATE_NEW, the reply was sent before the body had arrived. Then and after each error,
	 * libmicrohttpd closes the connection, and bytes that have arrived are no next request. */
	if (code != MHD_REQUEST_TERMINATED_COMPLETED_OK || req->state == STATE_NEW ||
	    req->reply.close || atomic_load(&http->quiet))
		gw_watch_settle(req->watched, true);
	gw_watch_phase(req->watched, GW_PHASE_HEAD);
	/* The end of the server is not the fault of a client whose head is incomplete. */
	if (req->method || code != MHD_REQUEST_TERMINATED_DAEMON_SHUTDOWN)
		http->calls->done(http->owner, req, complete);
	if (req->reply.fd >= 0)
		close(req->reply.fd);
	free(req->reply.headers.at);
	free(req->reply.body.at);
	free(req->spill.bytes);
	free(req->header_names);
	free(req->target);
	free(req);
	*user = NULL;
	atomic_fetch_sub(&http->shared->requests, 1);
}

unsigned gw_http_connections_allowed(const struct gw_http_shared *shared)
{
	unsigned own = atomic_load(&shared->own_files);
	struct rlimit limit;
	rlim_t allowed;

	if (!shared->connection_files || getrlimit(RLIMIT_NOFILE, &limit) ||
	    limit.rlim_cur == RLIM_INFINITY)
		return shared->connections_max;
	allowed = limit.rlim_cur > own ? (limit.rlim_cur - own) / shared->connection_files : 0;
	return allowed < shared->connections_max ? (unsigned)allowed : shared->connections_max;
}

/* Called by a thread that has accepted a connection. Counts the connection, or refuses it if there
 * are too many. So the connections always leave descriptors for files. libmicrohttpd's own limits
 * cannot be used: they count for each thread, and a thread at its limit no longer answers some of
 * its connections (version 0.9.75). So daemon_start() sets a limit that no thread reaches. */
static bool connection_admit(void *owner, unsigned thread, const struct sockaddr *address)
{
	struct gw_http *http = owner;
	struct gw_http_shared *shared = http->shared;
	struct entrance *entrance = &http->entrances[thread];
	struct in6_addr ip = gw_address_of(address);

	if (atomic_fetch_add(&shared->connections, 1) < gw_http_connections_allowed(shared) &&
	    gw_addresses_enter(shared->addresses, &ip)) {
		entrance->admitted[entrance->count++] = ip;
		return true;
	}
	atomic_fetch_sub(&shared->connections, 1);
	atomic_fetch_add(&shared->refused, 1);
	return false;
}

static void connection_uncount(struct gw_http *http, const struct in6_addr *ip)
{
	gw_addresses_leave(http->shared->addresses, ip);
	atomic_fetch_sub(&http->shared->connections, 1);
}

/* Uncounts the admitted connections that libmicrohttpd has not started. It has closed them, for
 * example because there was no memory. libmicrohttpd 0.9.75 starts a connection when it is added,
 * and 1.0.1 starts it in the next turn of the daemon. */
static void connections_settle(void *owner, unsigned thread)
{
	struct entrance *entrance = &((struct gw_http *)owner)->entrances[thread];

	while (entrance->count)
		connection_uncount(entrance->http, &entrance->admitted[--entrance->count]);
}

static struct in6_addr address_of(struct MHD_Connection *connection)
{
	const union MHD_ConnectionInfo *info =
		MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CLIENT_ADDRESS);

	return info && info->client_addr ? gw_address_of(info->client_addr) : (struct in6_addr){0};
}

/* Takes the address of a connection that has started from the admitted ones. From then on, it is
 * uncounted when libmicrohttpd closes the connection. */
static void entrance_pass(struct entrance *entrance, const struct in6_addr *ip)
{
	for (unsigned i = 0; i < entrance->count; i++)
		if (!memcmp(&entrance->admitted[i], ip, sizeof(*ip))) {
			entrance->admitted[i] = entrance->admitted[--entrance->count];
			return;
		}
}

static void connection_change(void *cls, struct MHD_Connection *connection, void **context,
			      enum MHD_ConnectionNotificationCode code)
{
	struct entrance *entrance = cls;
	struct gw_http *http = entrance->http;
	struct in6_addr ip = address_of(connection);

	if (code == MHD_CONNECTION_NOTIFY_STARTED) {
		const union MHD_ConnectionInfo *info =
			MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD);

		*context = info ? gw_watch_add(http->watch, info->connect_fd) : NULL;
		/* The bytes of a TLS handshake are not a head. */
		if (http->tls)
			gw_watch_settle(*context, true);
		entrance_pass(entrance, &ip);
		atomic_fetch_add(&http->connections, 1);
	} else {
		first_line_end(http, connection, *context);
		gw_watch_remove(http->watch, *context);
		*context = NULL;
		atomic_fetch_sub(&http->connections, 1);
		connection_uncount(http, &ip);
	}
}

/* Called by libmicrohttpd to decode escapes; changes nothing, because request.c decodes the
 * target. */
static size_t no_unescape(void *cls, struct MHD_Connection *connection, char *text)
{
	(void)cls;
	(void)connection;
	return strlen(text);
}

static void message_take(void *cls, const char *fmt, va_list args)
{
	struct gw_http *http = cls;

	/* After the start, messages are about mistakes of clients. request_done and first_line_end
	 * report them. */
	if (http->starting)
		vsnprintf(http->message, sizeof(http->message), fmt, args);
}

/* ---- the server ---- */

bool gw_http_has_tls(void)
{
	return MHD_is_feature_supported(MHD_FEATURE_TLS) == MHD_YES;
}

/* Starts the daemon of a thread, see daemons.h. */
static struct MHD_Daemon *daemon_start(void *owner, unsigned thread)
{
	struct gw_http *http = owner;
	const struct gw_http_options *o = http->options;
	unsigned flags = MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_USE_ERROR_LOG |
			 MHD_ALLOW_SUSPEND_RESUME;
	struct MHD_OptionItem tls[] = {{MHD_OPTION_HTTPS_MEM_CERT, 0, (void *)(uintptr_t)o->cert},
				       {MHD_OPTION_HTTPS_MEM_KEY, 0, (void *)(uintptr_t)o->key},
				       {MHD_OPTION_END, 0, NULL}};

	if (o->cert)
		flags |= MHD_USE_TLS;
	else
		tls[0].option = MHD_OPTION_END;
	http->entrances[thread].http = http;
	return MHD_start_daemon(
		flags, 0, NULL, NULL, request_go_on, http, MHD_OPTION_EXTERNAL_LOGGER, message_take,
		http, MHD_OPTION_CONNECTION_LIMIT, o->shared->connections_max + 1,
		MHD_OPTION_CONNECTION_TIMEOUT, o->timeout_s, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
		(size_t)CONNECTION_MEMORY, MHD_OPTION_CONNECTION_MEMORY_INCREMENT,
		(size_t)CONNECTION_MEMORY / 4, MHD_OPTION_STRICT_FOR_CLIENT, 1,
		MHD_OPTION_SIGPIPE_HANDLED_BY_APP, 1, MHD_OPTION_UNESCAPE_CALLBACK, no_unescape,
		NULL, MHD_OPTION_URI_LOG_CALLBACK, request_begin, &http->entrances[thread],
		MHD_OPTION_NOTIFY_CONNECTION, connection_change, &http->entrances[thread],
		MHD_OPTION_NOTIFY_COMPLETED, request_done, http, MHD_OPTION_ARRAY, tls,
		MHD_OPTION_END);
}

struct gw_http *gw_http_start(const struct gw_http_options *o, char *why, size_t why_len)
{
	struct gw_http *http = calloc(1, sizeof(*http) + o->threads * sizeof(http->entrances[0]));
	const struct gw_daemons_options daemons = {
		.fd = o->fd,
		.threads = o->threads,
		.start = daemon_start,
		.admit = connection_admit,
		.turned = connections_settle,
		.owner = http,
	};
	bool started = false;

	if (!http) {
		snprintf(why, why_len, "out of memory");
		return NULL;
	}
	http->options = o;
	http->calls = o->calls;
	http->owner = o->owner;
	http->shared = o->shared;
	http->watch = gw_watch_start(o->timeout_s, RATE_WINDOW_S, o->rate_min);
	http->pool = o->workers ? gw_pool_start(o->workers) : NULL;
	http->starting = true;
	http->tls = o->cert;
	if (http->watch && (http->pool || !o->workers))
		started = gw_daemons_start(&daemons, &http->daemons);
	http->starting = false;
	http->options = NULL;
	if (!started) {
		http->message[strcspn(http->message, "\n")] = '\0';
		snprintf(why, why_len, "the HTTP server cannot start: %s",
			 http->message[0] ? http->message : strerror(errno));
		if (strstr(http->message, "TLS"))
			snprintf(
				why, why_len,
				"the certificate or its key cannot be used: check that both are in "
				"PEM form and belong together");
		gw_watch_stop(http->watch);
		gw_pool_stop(http->pool);
		gw_pool_free(http->pool);
		free(http);
		return NULL;
	}
	return http;
}

void gw_http_quiesce(struct gw_http *http)
{
	if (!atomic_exchange(&http->quiet, true))
		gw_daemons_quiesce(http->daemons);
}

unsigned gw_http_connections(const struct gw_http *http)
{
	return atomic_load(&http->connections);
}

void gw_http_stop(struct gw_http *http)
{
	if (!http)
		return;
	/* libmicrohttpd requires that suspended connections are resumed before its daemon stops. So
	 * first end the workers' jobs, which resume them. */
	gw_pool_stop(http->pool);
	atomic_store(&http->stopping, true);
	gw_daemons_stop(http->daemons);
	gw_pool_free(http->pool);
	gw_watch_stop(http->watch);
	free(http);
}
