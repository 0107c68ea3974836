/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the upstream, see upstream.h. Each request has a stream (stream.h), which is a ring
 * buffer, and one thread for its exchange (exchange.h). The limit --buffer-memory determines the
 * maximum number of streams. There are as many threads as streams, so that no request waits for
 * another.
 */
#include "upstream.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>

#include "auth.h"
#include "exchange.h"
#include "pool.h"
#include "rdma.h"
#include "route.h"
#include "s3/credentials.h"
#include "s3/uri.h"
#include "storage/object_url.h"
#include "stored.h"
#include "stream.h"
#include "sums.h"

#define HEADERS_MAX (PST_SIGV4_HEADERS_MAX + 8)
/* Maximum number of requests whose bytes move by RDMA at a time. The queue of the server half of
 * RDMA has room for 256 moves, which is more. */
#define WINDOWS_MAX 128

struct gw_upstream {
	struct gw_links *links;
	struct pst_http_endpoint *endpoint;
	/* the gateway's default access key at the upstream, and the region */
	struct pst_s3_settings settings;
	/* cache of signing keys for the default secret; NULL if there is no memory for it */
	struct pst_sigv4_day *day;
	char host[PST_OBJECT_AUTHORITY]; /* value of the header Host */
	struct gw_pool *pool;
	pthread_mutex_t lock; /* protects all that follows */
	bool stopping;
	unsigned streams, streams_max;
	/* number and maximum number of requests that have `has_window` set */
	unsigned windows, windows_max;
	struct passage *first; /* all passages */
	struct gw_metrics *metrics;
};

/* The state of a request on its way to the upstream. passage_free frees it when neither the
 * client's connection nor the exchange uses its stream any more. */
struct passage {
	struct passage *next, **prev; /* links of the list of all passages */
	struct gw_upstream *upstream;
	struct gw_stream *stream;
	struct gw_job job;
	struct pst_text head; /* head of the request that the upstream receives */
	bool no_body;	      /* the reply has no body */
	bool started;
	/* one of the two bodies is in a window of the client's memory and moves by RDMA */
	bool has_window;
	struct gw_window window;
};

/* ---- life ---- */

static bool upstream_start(struct gw_upstream *u, const struct gw_upstream_options *o, char *why,
			   size_t why_len)
{
	struct pst_http_endpoint_opts endpoint = {.ca_bundle = u->settings.ca_bundle};
	struct pst_object_server server;
	struct pst_err err;

	if (pst_object_server_parse(o->url, &server, &err)) {
		/* Do not print the URL: it could contain a password. */
		snprintf(why, why_len,
			 "--upstream needs http://HOST[:PORT] or https://HOST[:PORT] without a "
			 "path and without a user");
		return false;
	}
	pst_object_server_authority(&server, u->host);
	endpoint.tls = server.tls;
	endpoint.host = server.host;
	endpoint.port = server.port;
	if (pst_s3_settings_read(NULL, &u->settings, why, why_len))
		return false;
	u->day = pst_sigv4_day_open();
	if (pst_endpoint_get(&endpoint, &u->endpoint, &err)) {
		snprintf(why, why_len, "--upstream: %s", err.text);
		return false;
	}
	u->streams_max = (unsigned)(o->buffer_memory / GW_STREAM_COST < o->requests_max
					    ? o->buffer_memory / GW_STREAM_COST
					    : o->requests_max);
	if (!u->streams_max) {
		snprintf(why, why_len, "--buffer-memory is too small: a request needs %u KiB",
			 GW_STREAM_COST >> 10);
		return false;
	}
	/* At most half of the streams may wait for transfers by RDMA, so that clients that do not
	 * answer cannot use up the memory of all streams. */
	u->windows_max = u->streams_max > 1 ? u->streams_max / 2 : 1;
	if (u->windows_max > WINDOWS_MAX)
		u->windows_max = WINDOWS_MAX;
	u->links = gw_links_open(u->endpoint, o->timeout_s, o->metrics);
	u->pool = u->links ? gw_pool_start(u->streams_max) : NULL;
	if (!u->pool)
		snprintf(why, why_len, "cannot start %u threads: lower --buffer-memory",
			 u->streams_max);
	return u->pool != NULL;
}

struct gw_upstream *gw_upstream_open(const struct gw_upstream_options *options, char *why,
				     size_t why_len)
{
	struct gw_upstream *u = calloc(1, sizeof(*u));

	if (!u) {
		snprintf(why, why_len, "out of memory");
		return NULL;
	}
	pthread_mutex_init(&u->lock, NULL);
	u->metrics = options->metrics;
	if (upstream_start(u, options, why, why_len))
		return u;
	gw_upstream_stop(u);
	gw_upstream_close(u);
	return NULL;
}

unsigned gw_upstream_windows_max(const struct gw_upstream *u)
{
	return u->windows_max;
}

bool gw_upstream_check_keys(const struct gw_upstream *u, const struct gw_keys *keys, char *why,
			    size_t why_len)
{
	const struct gw_key *key = gw_keys_without_upstream(keys);

	if (!key || u->settings.access_key[0])
		return true;
	snprintf(why, why_len,
		 "section [%.128s] has no upstream-access-key and upstream-secret, and "
		 "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY are not set",
		 key->name);
	return false;
}

void gw_upstream_stop(struct gw_upstream *u)
{
	if (!u)
		return;
	pthread_mutex_lock(&u->lock);
	u->stopping = true;
	for (struct passage *p = u->first; p; p = p->next)
		gw_stream_cancel(p->stream);
	pthread_mutex_unlock(&u->lock);
	gw_pool_stop(u->pool);
}

void gw_upstream_close(struct gw_upstream *u)
{
	if (!u)
		return;
	gw_pool_free(u->pool);
	gw_links_close(u->links);
	pst_s3_settings_clear(&u->settings);
	pst_sigv4_day_close(u->day);
	pthread_mutex_destroy(&u->lock);
	free(u);
}

/* ---- passages ---- */

/* Frees a passage. Called when its stream has no more users. */
static void passage_free(void *owner)
{
	struct passage *p = owner;
	struct gw_upstream *u = p->upstream;

	pthread_mutex_lock(&u->lock);
	*p->prev = p->next;
	if (p->next)
		p->next->prev = p->prev;
	u->streams--;
	u->windows -= p->has_window;
	pthread_mutex_unlock(&u->lock);
	atomic_fetch_sub(&u->metrics->buffer_bytes, GW_STREAM_COST);
	if (p->head.at)
		explicit_bzero(p->head.at, p->head.len);
	free(p->head.at);
	free(p);
}

/* Opens a passage with its stream. Returns NULL if there are too many streams or too little memory.
 * If `window` is true, sets `has_window`, unless too many passages use a window. */
static struct passage *passage_open(struct gw_upstream *u, uint64_t want, bool window)
{
	struct passage *p = calloc(1, sizeof(*p));

	if (!p)
		return NULL;
	p->upstream = u;
	p->stream = gw_stream_open(want, passage_free, p);
	pthread_mutex_lock(&u->lock);
	if (!p->stream || u->stopping || u->streams >= u->streams_max) {
		pthread_mutex_unlock(&u->lock);
		gw_stream_discard(p->stream);
		free(p);
		return NULL;
	}
	u->streams++;
	p->has_window = window && u->windows < u->windows_max;
	u->windows += p->has_window;
	p->next = u->first;
	p->prev = &u->first;
	if (p->next)
		p->next->prev = &p->next;
	u->first = p;
	pthread_mutex_unlock(&u->lock);
	atomic_fetch_add(&u->metrics->buffer_bytes, GW_STREAM_COST);
	return p;
}

/* Runs the exchange of a passage (a request to the upstream), on a thread of the pool. */
static void passage_run(struct gw_job *job)
{
	struct passage *p = (struct passage *)((char *)job - offsetof(struct passage, job));
	const struct gw_exchange_request request = {
		.head = p->head.at,
		.head_len = p->head.len,
		.no_body = p->no_body,
		.window = p->has_window ? &p->window : NULL,
	};

	gw_exchange(p->upstream->links, p->stream, &request);
	gw_stream_release(p->stream);
}

/* ---- the head of the request ---- */

static bool starts(const char *text, const char *prefix)
{
	return !strncmp(text, prefix, strlen(prefix));
}

/* Returns whether a header goes to the upstream. */
static bool header_passes(const struct gw_request *req, const char *name)
{
	static const char *const plain[] = {
		"content-type",	    "content-md5",	 "content-disposition",
		"content-language", "cache-control",	 "expires",
		"if-match",	    "if-none-match",	 "range",
		"if-range",	    "if-modified-since", "if-unmodified-since",
	};
	static const char *const ours[] = {
		"x-amz-date",		"x-amz-content-sha256",
		"x-amz-security-token", "x-amz-decoded-content-length",
		"x-amz-trailer",
	};

	for (unsigned i = 0; i < sizeof(plain) / sizeof(plain[0]); i++)
		if (!strcmp(name, plain[i]))
			return true;
	for (unsigned i = 0; i < sizeof(ours) / sizeof(ours[0]); i++)
		if (!strcmp(name, ours[i]))
			return false;
	/* The upstream gets the checksum in a header, so its value must be known before the body is
	 * sent. The value of a trailer is known only if the whole body has arrived. */
	if (!strcmp(name, "x-amz-sdk-checksum-algorithm") && req->body.sum_in_trailer)
		return req->body.sum[0] != '\0';
	return starts(name, "x-amz-") && !starts(name, "x-amz-rdma-");
}

/* Appends the path of the request to the upstream. The decoded bucket and key are encoded again, so
 * that the upstream finds in the path what the gateway has checked. */
static void put_path(const struct gw_request *req, struct pst_text *out)
{
	pst_text_put_str(out, "/");
	if (req->bucket)
		pst_uri_put(out, req->bucket, strlen(req->bucket), false);
	if (req->key) {
		pst_text_put_str(out, "/");
		pst_uri_put(out, req->key, req->key_len, true);
	}
}

static void put_query(const struct gw_request *req, struct pst_text *out)
{
	static const char *const signature[] = {
		"x-amz-algorithm",	"x-amz-credential",	"x-amz-date",
		"x-amz-expires",	"x-amz-signedheaders",	"x-amz-signature",
		"x-amz-security-token", "x-amz-content-sha256",
	};

	for (unsigned i = 0; i < req->param_count; i++) {
		const struct gw_param *param = &req->params[i];
		bool passes = true;

		for (unsigned j = 0; j < sizeof(signature) / sizeof(signature[0]); j++)
			passes = passes && strcasecmp(param->name, signature[j]) != 0;
		if (!passes)
			continue;
		if (out->len)
			pst_text_put_str(out, "&");
		pst_uri_put(out, param->name, strlen(param->name), false);
		pst_text_put_str(out, "=");
		pst_uri_put(out, param->value, param->value_len, false);
	}
}

/* The parts of the head of the request to the upstream. */
struct head {
	struct pst_header headers[HEADERS_MAX];
	unsigned count;
	struct pst_text path, query, encoding, authorization;
	char date[PST_SIGV4_DATE];
};

static void head_add(struct head *h, const char *name, const char *value)
{
	if (h->count < HEADERS_MAX)
		h->headers[h->count++] = (struct pst_header){name, value};
}

/* Collects the headers of the request to the upstream: first those that the signature covers, then
 * the others. Returns how many headers the signature covers. */
static unsigned head_collect(struct gw_request *req, struct head *h, const char *token)
{
	const struct gw_http_request *http = req->http;
	const char *payload = gw_header(req, "x-amz-content-sha256");
	const char *encoding = gw_header(req, "content-encoding");
	unsigned is_signed;

	head_add(h, "host", req->server->upstream->host);
	head_add(h, "x-amz-date", h->date);
	if (!payload || strlen(payload) != 64 || req->body.chunked)
		payload = PST_SIGV4_UNSIGNED;
	head_add(h, "x-amz-content-sha256", payload);
	if (token)
		head_add(h, "x-amz-security-token", token);
	if (req->body.sum_in_trailer && req->body.sum[0])
		head_add(h, gw_sum_of(req->body.sum_kind)->header, req->body.sum);
	for (unsigned i = 0; i < http->header_count; i++)
		if (starts(http->headers[i].name, "x-amz-") &&
		    header_passes(req, http->headers[i].name))
			head_add(h, http->headers[i].name, http->headers[i].value);
	is_signed = h->count;
	for (unsigned i = 0; i < http->header_count; i++)
		if (!starts(http->headers[i].name, "x-amz-") &&
		    header_passes(req, http->headers[i].name))
			head_add(h, http->headers[i].name, http->headers[i].value);
	if (encoding)
		gw_encoding_put(&h->encoding, encoding);
	if (h->encoding.len)
		head_add(h, "content-encoding", h->encoding.at);
	return is_signed;
}

/* Returns whether a header has a control character, which could end a line. */
static bool has_control(const struct head *h)
{
	for (unsigned i = 0; i < h->count; i++)
		for (const char *c = h->headers[i].value; *c; c++)
			if (((unsigned char)*c < 0x20 && *c != '\t') || *c == 0x7f)
				return true;
	return false;
}

static void head_write(const struct gw_request *req, const struct head *h, struct pst_text *out)
{
	const char *method = req->http->method;

	pst_text_put_str(out, method);
	pst_text_put_str(out, " ");
	pst_text_put(out, h->path.at, h->path.len);
	if (h->query.len) {
		pst_text_put_str(out, "?");
		pst_text_put(out, h->query.at, h->query.len);
	}
	pst_text_put_str(out, " HTTP/1.1\r\n");
	for (unsigned i = 0; i < h->count; i++) {
		pst_text_put_str(out, h->headers[i].name);
		pst_text_put_str(out, ": ");
		pst_text_put_str(out, h->headers[i].value);
		pst_text_put_str(out, "\r\n");
	}
	if (req->body.want || !strcmp(method, "PUT") || !strcmp(method, "POST")) {
		pst_text_put_str(out, "content-length: ");
		pst_text_put_number(out, req->body.want);
		pst_text_put_str(out, "\r\n");
	}
	pst_text_put_str(out, "authorization: ");
	pst_text_put(out, h->authorization.at, h->authorization.len);
	pst_text_put_str(out, "\r\n\r\n");
}

/* Writes the head of the request to the upstream, signed with the upstream's keys. On an error,
 * fills the reply and returns false. */
static bool head_make(struct gw_request *req, struct pst_text *out)
{
	const struct pst_s3_settings *settings = &req->server->upstream->settings;
	const struct gw_key *identity = req->identity;
	bool own = identity->upstream_key != NULL;
	struct pst_sigv4_keys keys = {
		.access_key = own ? identity->upstream_key : settings->access_key,
		.secret = own ? identity->upstream_secret : settings->secret,
		.token = own || !settings->token[0] ? NULL : settings->token,
		.region = settings->region,
		.day = own ? identity->upstream_day : req->server->upstream->day,
	};
	struct pst_sigv4_request signed_request = {.method = req->http->method};
	struct head h = {.count = 0};
	time_t now = time(NULL);
	bool bad;

	pst_sigv4_date(now, h.date);
	put_path(req, &h.path);
	put_query(req, &h.query);
	signed_request.path = h.path.at;
	signed_request.query = h.query.at ? h.query.at : "";
	signed_request.header_count = head_collect(req, &h, keys.token);
	signed_request.headers = h.headers;
	signed_request.payload = h.headers[2].value;
	bad = h.path.failed || h.query.failed || h.encoding.failed || h.count == HEADERS_MAX ||
	      has_control(&h);
	if (!bad) {
		pst_sigv4_sign(&signed_request, &keys, now, &h.authorization);
		head_write(req, &h, out);
		bad = h.authorization.failed || out->failed;
	}
	free(h.path.at);
	free(h.query.at);
	free(h.encoding.at);
	free(h.authorization.at);
	return !bad || gw_fail(req, GW_InvalidRequest,
			       "The request has too many headers, or a malformed one.") == 0;
}

/* ---- rights ---- */

/* Checks that the access key may read the source of a copy. */
static bool source_check(struct gw_request *req)
{
	const char *text = gw_header(req, "x-amz-copy-source");
	char *name, *slash;
	bool right;
	long len;

	if (!text)
		return true;
	text += *text == '/';
	name = malloc(strlen(text) + 1);
	if (!name)
		return gw_fail(req, GW_SlowDown, NULL) == 0;
	len = pst_uri_parse(text, strcspn(text, "?"), false, name);
	slash = len < 0 ? NULL : memchr(name, '/', (size_t)len);
	right = slash && !memchr(name, '\0', (size_t)len);
	if (right)
		*slash = '\0';
	if (!right)
		gw_fail(req, GW_InvalidArgument,
			"Copy Source must mention the source bucket and key: "
			"sourcebucket/sourcekey");
	else if (!gw_auth_may_read(req, name))
		gw_fail(req, GW_AccessDenied, NULL);
	free(name);
	return !req->failed;
}

static bool rights_check(struct gw_request *req)
{
	/* A bucket's name must not be "." or "..", or contain a slash. A proxy in front of the
	 * upstream could resolve such a name as a part of a path, and so reach another bucket. */
	if (req->bucket &&
	    (!strcmp(req->bucket, ".") || !strcmp(req->bucket, "..") || strchr(req->bucket, '/')))
		return gw_fail(req, GW_InvalidURI, NULL) == 0;
	/* A list of all buckets would show buckets that this access key may not use. */
	if (!req->bucket && strcmp(req->identity->buckets, "*") != 0)
		return gw_fail(req, GW_AccessDenied,
			       "This access key may use some buckets only, and so it cannot list "
			       "them all.") == 0;
	return source_check(req);
}

/* ---- windows of S3 over RDMA ---- */

/* The functions below access the client's window by RDMA, on the thread of the exchange. Meanwhile
 * the client's connection is suspended, so that the request is not freed. */

static int64_t window_read(void *owner, uint64_t at, char *bytes, size_t len)
{
	int64_t moved = gw_rdma_move(owner, PENSTOCK_WRITE, at, bytes, len);

	if (moved >= 0)
		gw_body_note(owner, bytes, len);
	return moved;
}

static int64_t window_write(void *owner, uint64_t at, char *bytes, size_t len)
{
	return gw_rdma_move(owner, PENSTOCK_READ, at, bytes, len);
}

static bool window_check(void *owner)
{
	return gw_body_end(owner);
}

/* Checks the request's RDMA token, and finds the window of the client's memory that it describes.
 * On an error, fills the reply and returns false. */
static bool window_find(struct gw_request *req, bool stores)
{
	bool reads = !strcmp(req->op->name, "GetObject");

	if (stores)
		return gw_rdma_check(req);
	return (!reads && strcmp(req->op->name, "HeadObject") != 0) || gw_rdma_check_read(req);
}

/* Prepares the transfer by RDMA between the client's window and the passage. On an error, fills the
 * reply and returns false. */
static bool window_begin(struct gw_request *req, bool stores)
{
	struct passage *p = req->passage;

	if (!p->has_window) {
		req->decline = GW_DECLINE_BUSY;
		if (stores)
			gw_rdma_store_fail(req, -EOPNOTSUPP);
		return !stores;
	}
	p->window = (struct gw_window){
		.reads = stores,
		.length = gw_rdma_window_length(req),
		.move = stores ? window_read : window_write,
		.check = window_check,
		.owner = req,
	};
	return true;
}

/* ---- one request ---- */

static bool passage_start(struct gw_request *req)
{
	struct passage *p = req->passage;

	if (!head_make(req, &p->head))
		return false;
	p->no_body = !strcmp(req->http->method, "HEAD");
	p->started = true;
	p->job.run = passage_run;
	gw_stream_hold(p->stream);
	if (gw_pool_add(req->server->upstream->pool, &p->job))
		return true;
	gw_stream_release(p->stream);
	return gw_fail(req, GW_ServiceUnavailable, "The gateway is about to stop.") == 0;
}

bool gw_upstream_begin(struct gw_request *req)
{
	bool stores = req->op->body == GW_BODY_FILE, window;

	if (!rights_check(req) || !window_find(req, stores))
		return false;
	if (stores && !gw_header(req, "content-length"))
		return gw_fail(req, GW_MissingContentLength, NULL) == 0;
	if (!gw_body_begin(req, GW_BODY_STREAM))
		return false;
	if (stores && req->remote && !gw_rdma_length(req))
		return false;
	window = req->remote && strcmp(req->http->method, "HEAD") != 0;
	req->passage = passage_open(req->server->upstream, req->body.want, window);
	if (!req->passage) {
		atomic_fetch_add(&req->server->metrics.buffer_refused, 1);
		return gw_fail(req, GW_SlowDown, NULL) == 0;
	}
	req->http->stream = req->passage->stream;
	if (window && !window_begin(req, stores))
		return false;
	/* If one of the bodies moves by RDMA, the exchange starts in gw_upstream_end. */
	if (req->passage->has_window)
		return true;
	return req->body.want <= GW_STREAM_WHOLE || passage_start(req);
}

bool gw_upstream_end(struct gw_request *req)
{
	struct passage *p = req->passage;

	if (p->has_window && p->window.reads)
		return passage_start(req);
	/* The upstream has replied before it got the whole body, and takes no more bytes of it. */
	if (gw_stream_discards(p->stream))
		return true;
	if (!gw_body_end(req))
		return false;
	gw_stream_check(p->stream);
	return p->started || passage_start(req);
}

/* Adds the headers that report the transfer by RDMA to a successful reply. */
static void rdma_answer(struct gw_request *req)
{
	const struct passage *p = req->passage;

	if (!gw_header(req, "x-amz-rdma-token") || p->stream->status / 100 != 2)
		return;
	if (p->has_window && p->window.reads)
		gw_rdma_stored(req);
	else if (p->has_window && p->window.complete)
		gw_rdma_sent(req, p->window.moved, p->stream->status == 206);
	else
		gw_rdma_decline(req, p->has_window ? p->window.error : 0);
}

void gw_upstream_answer(struct gw_request *req)
{
	static const char *const why[] = {
		[GW_STREAM_REFUSED] = "The storage behind this gateway cannot be reached.",
		[GW_STREAM_TIMEOUT] = "The storage behind this gateway does not answer in time.",
		[GW_STREAM_LOST] = "The connection with the storage behind this gateway broke.",
	};
	struct gw_stream *s = req->passage->stream;
	struct gw_reply *reply = &req->http->reply;
	const char *at = s->headers.at;

	if (s->failure == GW_STREAM_NO_BODY) {
		if (!req->failed)
			gw_rdma_store_fail(req, req->passage->window.error);
		return;
	}
	if (s->failure) {
		gw_fail(req, GW_ServiceUnavailable, "%s", why[s->failure]);
		return;
	}
	reply->status = s->status;
	reply->headers.len = 0;
	gw_header_add(req, "x-penstock-request-id", req->id);
	while (at && at < s->headers.at + s->headers.len) {
		const char *value = at + strlen(at) + 1;

		gw_header_add(req, at, value);
		at = value + strlen(value) + 1;
	}
	rdma_answer(req);
	reply->streams = true;
	reply->has_len = s->has_length;
	reply->len = s->has_length ? s->length : 0;
	if (s->status == 204 || s->status == 304)
		reply->streams = false;
	if (req->passage->no_body && !s->has_length)
		reply->streams = false;
}

void gw_upstream_done(struct gw_request *req)
{
	struct passage *p = req->passage;

	if (!p)
		return;
	req->passage = NULL;
	req->http->stream = NULL;
	gw_stream_cancel(p->stream);
	gw_stream_release(p->stream);
}
