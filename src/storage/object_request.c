/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements object_request.h: requests to the server of an object. Reactors (the threads of
 * io/http.h) call object_write_head and object_judge.
 */
#include "storage/object_request.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/thread.h"
#include "core/base/clock.h"
#include "core/base/end.h"
#include "io/http_endpoint.h"
#include "s3/uri.h"

/* Maximum number of repetitions after errors that may be temporary (pst_object_call_may_pass). */
#define REPEATS_MAX 3
/* Default times in seconds: PATIENCE_S is the maximum wait for the head of a response, and
 * REPEATS_S is for the pauses between attempts. */
#define PATIENCE_S 30
#define REPEATS_S 60
/* Minimum speed in bytes per second at which a server is expected to move bytes through a
 * window. */
#define BESIDE_SLOW (1u << 20)

/* ---- the place ---- */

/* Sets the server's name and port from the endpoint's URL or, without an endpoint, from the
 * region. */
static int server_find(struct pst_object_place *place, struct pst_err *err)
{
	const struct pst_object_url *url = &place->url;
	const char *endpoint = url->endpoint[0] ? url->endpoint : place->settings.endpoint;
	char text[128];

	if (!endpoint[0]) {
		snprintf(text, sizeof(text), "https://s3.%s.amazonaws.com", place->settings.region);
		endpoint = text;
	}
	return pst_object_server_parse(endpoint, &place->server, err);
}

/* Returns whether the bucket's name is in the path (true) or in the server's name (false). An
 * option of the URL decides. Without the option, it is in the path in three cases. A bucket's name
 * with a dot does not match the wildcard in a server's certificate. An IP address has no
 * subdomains. An endpoint with a port is usually a private server, whose name has no subdomains
 * either. */
static bool uses_path_style(const struct pst_object_place *place)
{
	if (place->url.path_style >= 0)
		return place->url.path_style;
	return pst_object_server_is_plain(&place->server) || place->server.port_given ||
	       strchr(place->url.bucket, '.');
}

/* Sets the server, the host, the path and the HTTP endpoint from the URL and the settings. */
static int place_resolve(struct pst_object_place *place, struct pst_err *err)
{
	struct pst_object_server *server = &place->server;
	struct pst_http_endpoint_opts opts = {.insecure = place->url.insecure,
					      .ca_bundle = place->settings.ca_bundle};
	struct pst_text path = {NULL, 0, 0, false};
	int ret = 0;

	if (place->url.presigned)
		*server = place->url.server;
	else
		ret = server_find(place, err);
	if (ret)
		return ret;
	if (!place->url.presigned) {
		pst_text_put_str(&path, "/");
		if (uses_path_style(place)) {
			pst_text_put_str(&path, place->url.bucket);
			pst_text_put_str(&path, "/");
		} else {
			char name[sizeof(server->host)];

			if ((size_t)snprintf(name, sizeof(name), "%s.%.250s", place->url.bucket,
					     server->host) >= sizeof(name))
				ret = pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
					       "%s: the bucket's name is too long for a host",
					       place->url.name);
			memcpy(server->host, name, sizeof(name));
		}
		pst_uri_put(&path, place->url.key, place->url.key_len, true);
		free(place->path);
		place->path = path.at;
		if (path.failed)
			ret = pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a URL");
	}
	pst_object_server_authority(server, place->host);
	opts.host = server->host;
	opts.port = server->port;
	opts.tls = server->tls;
	return ret ? ret : pst_endpoint_get(&opts, &place->endpoint, err);
}

int pst_object_place_open(const char *url, struct pst_object_place *out, struct pst_err *err)
{
	char why[PENSTOCK_TEXT_MAX] = "";
	int ret;

	memset(out, 0, sizeof(*out));
	ret = pst_object_url_parse(url, &out->url, err);
	if (ret)
		goto err_close;
	ret = pst_s3_settings_read(out->url.profile[0] ? out->url.profile : NULL, &out->settings,
				   why, sizeof(why));
	if (ret && (out->url.presigned || out->url.anonymous))
		ret = 0; /* anonymous and presigned requests need no keys */
	if (ret) {
		pst_fail_errno(err, ret, PENSTOCK_WHY_BAD_ARGUMENT, "%s: %.150s", out->url.name,
			       why);
		goto err_close;
	}
	if (out->url.region[0])
		memcpy(out->settings.region, out->url.region, sizeof(out->url.region));
	if (!out->url.presigned && !out->url.anonymous && !out->settings.access_key[0]) {
		ret = pst_fail(err, PENSTOCK_WHY_NO_PERMISSION,
			       "%s: there are no keys: set AWS_ACCESS_KEY_ID and "
			       "AWS_SECRET_ACCESS_KEY, or name a profile, or add ?anonymous=1",
			       out->url.name);
		goto err_close;
	}
	out->day = pst_sigv4_day_open();
	ret = place_resolve(out, err);
	if (!ret)
		return 0;
err_close:
	pst_object_place_close(out);
	return ret;
}

void pst_object_place_close(struct pst_object_place *place)
{
	pst_object_url_clear(&place->url);
	pst_s3_settings_clear(&place->settings);
	pst_sigv4_day_close(place->day);
	place->day = NULL;
	free(place->path);
	place->path = NULL;
}

int pst_object_place_move(struct pst_object_place *place, const char *region, struct pst_err *err)
{
	if (place->moved || !strcmp(region, place->settings.region))
		return -ELOOP;
	if (!pst_object_region_is_valid(region))
		return pst_fail_errno(err, EBADMSG, PENSTOCK_WHY_IO_ERROR,
				      "%s: the server names a region that is not valid",
				      place->url.name);
	place->moved = true;
	snprintf(place->settings.region, sizeof(place->settings.region), "%s", region);
	return place_resolve(place, err);
}

/* ---- requests ---- */

static void put_header(struct pst_text *out, const char *name, const char *value)
{
	pst_text_put_str(out, name);
	pst_text_put_str(out, ": ");
	pst_text_put_str(out, value);
	pst_text_put_str(out, "\r\n");
}

/* Appends the header Authorization and the headers that it needs. `path` is the path of a PREPARE,
 * READY or CANCEL request; NULL for the path of the call's own GET or PUT. */
static void put_signature(const struct pst_object_call *call, const char *path,
			  struct pst_header *headers, unsigned count, struct pst_text *out)
{
	const struct pst_object_place *place = call->place;
	const struct pst_s3_settings *settings = &place->settings;
	struct pst_sigv4_keys keys = {settings->access_key, settings->secret,
				      settings->token[0] ? settings->token : NULL, settings->region,
				      place->day};
	struct pst_sigv4_request req = {.method = path ? "POST" : call->method,
					.path = path ? path : place->path,
					.query = path ? "" : call->query,
					.headers = headers,
					.payload = PST_SIGV4_UNSIGNED};
	char date[PST_SIGV4_DATE];
	time_t now = time(NULL);
	unsigned more = count;

	pst_sigv4_date(now, date);
	headers[more++] = (struct pst_header){"x-amz-date", date};
	headers[more++] = (struct pst_header){"x-amz-content-sha256", PST_SIGV4_UNSIGNED};
	if (keys.token)
		headers[more++] = (struct pst_header){"x-amz-security-token", keys.token};
	req.header_count = more;
	for (; count < more; count++)
		put_header(out, headers[count].name, headers[count].value);
	pst_text_put_str(out, "authorization: ");
	pst_sigv4_sign(&req, &keys, now, out);
	pst_text_put_str(out, "\r\n");
}

/* Collects the headers of the call's own request. */
static unsigned headers_put(const struct pst_object_call *call, struct pst_header *headers,
			    char range[64])
{
	unsigned count = 0;

	if (call->ranged) {
		snprintf(range, 64, "bytes=%llu-%llu",
			 (unsigned long long)(call->first + call->http.got),
			 (unsigned long long)call->last);
		headers[count++] = (struct pst_header){"range", range};
	}
	for (unsigned i = 0; i < call->header_count; i++)
		headers[count++] = call->headers[i];
	if (call->token)
		headers[count++] = (struct pst_header){"x-amz-rdma-token", call->token};
	return count;
}

/* Collects the headers of a PREPARE, READY or CANCEL request. A READY also has the headers of the
 * GET or PUT that it replaces, such as conditions. compose() adds the protocol's headers, which
 * replace the range and the token. */
static unsigned exchange_put(struct pst_object_call *call, const char **path,
			     struct pst_header *headers)
{
	unsigned count = 0;

	for (unsigned i = 0; i < call->header_count && call->exchange->phase == PST_OBJECT_MOVES;
	     i++)
		headers[count++] = call->headers[i];
	return count + call->exchange->ops->compose(call, path, headers + count);
}

static void object_write_head(struct pst_http_call *http, struct pst_text *out)
{
	struct pst_object_call *call = (struct pst_object_call *)http;
	const struct pst_object_place *place = call->place;
	struct pst_header headers[PST_OBJECT_HEADERS_MAX + PST_OBJECT_EXCHANGE_MAX + 6];
	unsigned count = 1;
	const char *path = NULL;
	char range[64];

	headers[0] = (struct pst_header){"host", place->host};
	count += call->exchange ? exchange_put(call, &path, headers + 1)
				: headers_put(call, headers + 1, range);
	pst_text_put_str(out, path ? "POST" : call->method);
	pst_text_put_str(out, " ");
	pst_text_put_str(out, path ? path : place->url.presigned ? place->url.target : place->path);
	if (call->query[0] && !path) {
		pst_text_put_str(out, "?");
		pst_text_put_str(out, call->query);
	}
	pst_text_put_str(out, " HTTP/1.1\r\n");
	for (unsigned i = 0; i < count; i++)
		put_header(out, headers[i].name, headers[i].value);
	if (!place->url.presigned && !place->url.anonymous)
		put_signature(call, path, headers, count, out);
	if (call->sends || path) {
		pst_text_put_str(out, "content-length: ");
		pst_text_put_number(out, path ? 0 : http->out_len);
		pst_text_put_str(out, "\r\n");
	}
	pst_text_put_str(out, "user-agent: penstock\r\n\r\n");
}

/* Returns whether the status is that of a temporary error, so that a repeated request can
 * succeed. */
static bool status_is_passing(unsigned status)
{
	return status == 408 || status == 429 || status == 500 || status == 502 || status == 503 ||
	       status == 504;
}

/* If the response has no ETag, uses that of the protocol's header x-amz-rdma-etag, with quotes. */
static void etag_take(struct pst_http_head *head)
{
	const char *etag = head->rdma_etag, *quote = etag[0] == '"' ? "" : "\"";

	if (!head->etag[0] && etag[0] && strlen(etag) + 2 < sizeof(head->etag))
		snprintf(head->etag, sizeof(head->etag), "%s%s%s", quote, etag, quote);
}

/* Judges the response to a PREPARE, READY or CANCEL request. A READY is repeated only after the
 * status 503: the server was too busy to begin the transfer. */
static enum pst_http_verdict exchange_judge(struct pst_object_call *call)
{
	const unsigned status = call->http.head.status;

	if (status == 503 ||
	    (call->exchange->phase != PST_OBJECT_MOVES && status_is_passing(status)))
		return PST_HTTP_RETRY;
	if (call->exchange->phase != PST_OBJECT_MOVES)
		return PST_HTTP_TEXT;
	etag_take(&call->http.head);
	return call->judge && status / 100 == 2 ? call->judge(call) : PST_HTTP_TEXT;
}

static enum pst_http_verdict object_judge(struct pst_http_call *http)
{
	struct pst_object_call *call = (struct pst_object_call *)http;

	if (call->exchange)
		return exchange_judge(call);
	/* With a token, the status 500 may mean that the transfer has failed. Only the response's
	 * body shows that, so the request is not repeated yet. */
	if (status_is_passing(http->head.status) && !(call->token && http->head.status == 500))
		return PST_HTTP_RETRY;
	if (call->judge && http->head.status / 100 == 2)
		return call->judge(call);
	return PST_HTTP_TEXT;
}

/* Starts the request that follows a PREPARE or CANCEL. Returns false if the call has ended. If it
 * returns true, another thread may already have freed the call. */
static bool exchange_continue(struct pst_object_call *call)
{
	struct pst_object_exchange *exchange = call->exchange;
	struct pst_http_call *http = &call->http;
	bool was_cancel = exchange->phase == PST_OBJECT_CANCELS;
	int ret;

	if (exchange->phase == PST_OBJECT_MOVES || (http->result && !was_cancel))
		return false;
	exchange->phase = was_cancel ? PST_OBJECT_REFUSED : exchange->ops->paired(call);
	if (atomic_load(&http->cancelled)) {
		http->result = pst_fail(&http->err, PENSTOCK_WHY_CANCELLED, "cancelled");
		return false;
	}
	if (exchange->phase == PST_OBJECT_REFUSED) {
		http->result = 0;
		http->head.status = 501;
		return false;
	}
	/* Counts the attempts of the next request from 0. */
	http->tries = http->attempts = 0;
	http->beside = exchange->phase == PST_OBJECT_MOVES ? exchange->beside : 0;
	memset(&http->head, 0, sizeof(http->head));
	pst_object_call_clear(call);
	ret = pst_http_start(http, &http->err);
	if (ret)
		http->result = ret;
	return !ret;
}

static void object_done(struct pst_http_call *http)
{
	struct pst_object_call *call = (struct pst_object_call *)http;

	if (call->exchange && exchange_continue(call))
		return;
	call->ended(call);
}

static const struct pst_http_ops object_ops = {object_write_head, object_judge, object_done};

void pst_object_call_init(struct pst_object_call *call, const struct pst_object_place *place,
			  const char *method, const char *query)
{
	call->place = place;
	call->method = method;
	call->query = query;
	call->http.ops = &object_ops;
	call->http.endpoint = place->endpoint;
	call->http.no_body = !strcmp(method, "HEAD");
	call->http.slow_s = call->http.patience_s = place->url.timeout_s;
}

void pst_object_call_header(struct pst_object_call *call, const char *name, const char *value)
{
	if (call->header_count == PST_OBJECT_HEADERS_MAX)
		abort(); /* PST_OBJECT_HEADERS_MAX is too small */
	call->headers[call->header_count++] = (struct pst_header){name, value};
}

void pst_object_call_offer(struct pst_object_call *call, const char *token, uint64_t len)
{
	unsigned patience_s = call->http.patience_s ? call->http.patience_s : PATIENCE_S;

	call->token = token;
	call->http.beside = len;
	call->http.out = NULL;
	call->http.out_len = 0;
	call->http.patience_s = patience_s + (unsigned)(len / BESIDE_SLOW);
}

void pst_object_call_clear(struct pst_object_call *call)
{
	free(call->http.text.at);
	call->http.text = (struct pst_text){NULL, 0, 0, false};
}

/* Returns whether a response's body is an error in XML. */
static bool text_is_error(const struct pst_text *text)
{
	const char *at = text->len ? text->at : "";

	for (;;) {
		at += strspn(at, " \t\r\n");
		if (strncmp(at, "<?", 2))
			return !strncmp(at, "<Error>", 7) || !strncmp(at, "<Error ", 7);
		at += strcspn(at, ">");
		at += *at == '>';
	}
}

bool pst_object_code_is(const char *code, const char *const *list)
{
	for (; *list; list++)
		if (!strcmp(code, *list))
			return true;
	return false;
}

bool pst_object_call_is_passing(const struct pst_object_call *call)
{
	static const char *const passing[] = {"RequestTimeout", "InternalError", "SlowDown",
					      "ServiceUnavailable", NULL};
	char code[64];

	if (call->http.result || call->exchange ||
	    (call->http.head.status != 400 && call->http.head.status != 200 &&
	     call->http.head.status != 500))
		return false;
	pst_object_xml_text(&call->http.text, "Code", code, sizeof(code));
	/* If a request without a token got 500, io/http.c has repeated it as object_judge demands.
	 * With a token, codes that begin with "RDMA" report a failed transfer. */
	if (call->http.head.status == 500)
		return strncmp(code, "RDMA", 4);
	return strcmp(call->method, "GET") && text_is_error(&call->http.text) &&
	       pst_object_code_is(code, passing);
}

bool pst_object_call_may_pass(const struct pst_object_call *call)
{
	return call->repeats < REPEATS_MAX && pst_object_call_is_passing(call);
}

bool pst_object_call_is_slowed(const struct pst_object_call *call)
{
	static const char *const slow[] = {"SlowDown", "ServiceUnavailable", NULL};
	char code[64];

	pst_object_xml_text(&call->http.text, "Code", code, sizeof(code));
	return pst_object_code_is(code, slow);
}

int pst_object_call_repeat(struct pst_object_call *call, struct pst_err *err)
{
	char code[64];

	/* the message if the call is cancelled before it ends again */
	pst_object_xml_text(&call->http.text, "Code", code, sizeof(code));
	pst_fail_errno(&call->http.err, EIO, PENSTOCK_WHY_IO_ERROR, "%s answered %u%s%s",
		       pst_path_tail(call->http.endpoint->host), call->http.head.status,
		       code[0] ? " " : "", code);
	call->repeats++;
	call->http.tries++;
	call->http.slowed = pst_object_call_is_slowed(call);
	pst_object_call_clear(call);
	return pst_http_start_later(&call->http, err);
}

bool pst_object_call_lacks_sums(const struct pst_object_call *call)
{
	static const char *const unknown[] = {"", "InvalidArgument", "InvalidRequest",
					      "NotImplemented", NULL};
	char code[64];

	if (call->http.head.status != 400)
		return call->http.head.status == 501;
	pst_object_xml_text(&call->http.text, "Code", code, sizeof(code));
	return pst_object_code_is(code, unknown);
}

static void wait_ended(struct pst_object_call *call)
{
	struct pst_object_wait *wait = call->user;

	pthread_mutex_lock(&wait->lock);
	wait->ended = true;
	pthread_cond_signal(&wait->changed);
	pthread_mutex_unlock(&wait->lock);
}

/* Returns the maximum time in seconds that a call with all its repetitions may take. */
static unsigned call_seconds(const struct pst_object_call *call)
{
	unsigned patience_s = call->http.patience_s ? call->http.patience_s : PATIENCE_S;

	if (call->deadline_s)
		return call->deadline_s;
	return 2 * patience_s + REPEATS_S + (unsigned)(call->http.out_len / PST_HTTP_SLOW);
}

/* Returns 0 if the call may continue. Returns -errno if the call's deadline has passed, or if the
 * caller's limits (such as a cancellation) demand its end. */
static int call_check(const struct pst_object_call *call, uint64_t until_ns, struct pst_err *err)
{
	int ret = pst_end_check(call->limits, err);

	if (ret || pst_now_ns() < until_ns)
		return ret;
	return pst_fail_errno(err, ETIMEDOUT, PENSTOCK_WHY_DEADLINE,
			      "%s: the server did not serve the request within %u s",
			      call->place->url.name, call_seconds(call));
}

/* Appends the error of the last attempt to the error of call_check. */
static int call_late(const struct pst_object_call *call, struct pst_err *err)
{
	bool failed = call->http.attempts > 1 || call->http.tries;
	size_t len = strlen(err->text);

	if (err->code == -ETIMEDOUT)
		snprintf(err->text + len, sizeof(err->text) - len, ", in %u attempt%s%s%s",
			 call->http.attempts, call->http.attempts == 1 ? "" : "s",
			 failed && call->http.err.text[0] ? ": " : "",
			 failed ? call->http.err.text : "");
	return err->code;
}

/* Waits until wait_ended signals the end of the call, or until call_check must be called again. */
static void wait_some(const struct pst_object_call *call, struct pst_object_wait *wait,
		      uint64_t until_ns)
{
	uint64_t next_ns = pst_now_ns() + PST_END_CHECK_NS;
	struct timespec until;

	if (!call->limits || next_ns > until_ns)
		next_ns = until_ns;
	until = (struct timespec){(time_t)(next_ns / 1000000000u), (long)(next_ns % 1000000000u)};
	pthread_cond_timedwait(&wait->changed, &wait->lock, &until);
}

int pst_object_call_begin(struct pst_object_call *call, struct pst_object_wait *wait,
			  struct pst_err *err)
{
	int ret;

	pthread_mutex_init(&wait->lock, NULL);
	pst_cond_init(&wait->changed);
	wait->ended = false;
	call->ended = wait_ended;
	call->user = wait;
	ret = pst_http_start(&call->http, err);
	if (ret)
		pst_object_wait_close(wait);
	return ret;
}

void pst_object_wait_close(struct pst_object_wait *wait)
{
	pthread_cond_destroy(&wait->changed);
	pthread_mutex_destroy(&wait->lock);
}

int pst_object_call_wait(struct pst_object_call *call, struct pst_object_wait *wait,
			 uint64_t until_ns, struct pst_err *err)
{
	int late = 0;

	pthread_mutex_lock(&wait->lock);
	while (!wait->ended && !(late = call_check(call, until_ns, err)))
		wait_some(call, wait, until_ns);
	if (!wait->ended) {
		pthread_mutex_unlock(&wait->lock);
		if (pst_http_cancel(&call->http))
			/* the call was still in the queue, so wait_ended will not be called */
			return call_late(call, err);
		pthread_mutex_lock(&wait->lock);
	}
	while (!wait->ended)
		pthread_cond_wait(&wait->changed, &wait->lock);
	wait->ended = false;
	pthread_mutex_unlock(&wait->lock);
	return late && call->http.result == -ECANCELED ? call_late(call, err) : 0;
}

/* Waits for the end of a call that has been started. Repeats the call after an error that may be
 * temporary. */
static int wait_and_repeat(struct pst_object_call *call, struct pst_object_wait *wait,
			   struct pst_err *err)
{
	uint64_t until_ns = pst_now_ns() + call_seconds(call) * 1000000000ull;
	int ret = 0;

	while (!ret) {
		ret = pst_object_call_wait(call, wait, until_ns, err);
		if (ret || !pst_object_call_may_pass(call))
			return ret;
		ret = pst_object_call_repeat(call, err);
	}
	return ret;
}

int pst_object_call_run(struct pst_object_call *call, struct pst_err *err)
{
	struct pst_object_wait wait;
	int ret = pst_object_call_begin(call, &wait, err);

	if (ret)
		return ret;
	ret = wait_and_repeat(call, &wait, err);
	pst_object_wait_close(&wait);
	if (ret)
		return ret;
	return call->http.result ? pst_object_call_result(call, "be reached", err) : 0;
}

/* ---- errors ---- */

/* Decodes an XML escape at the start of `text` and stores the character in *out. Returns the
 * escape's length, or 1 if there is no escape. */
static size_t xml_unescape(const char *text, char *out)
{
	static const struct {
		const char *escape;
		char c;
	} escapes[] = {{"&quot;", '"'}, {"&#34;", '"'}, {"&amp;", '&'},
		       {"&lt;", '<'},	{"&gt;", '>'},	{"&apos;", '\''}};

	*out = *text;
	for (unsigned i = 0; i < sizeof(escapes) / sizeof(escapes[0]); i++)
		if (!strncmp(text, escapes[i].escape, strlen(escapes[i].escape))) {
			*out = escapes[i].c;
			return strlen(escapes[i].escape);
		}
	return 1;
}

void pst_object_xml_text(const struct pst_text *body, const char *name, char *out, size_t out_len)
{
	char tag[64];
	const char *at;
	size_t len = 0;

	out[0] = '\0';
	snprintf(tag, sizeof(tag), "<%s>", name);
	/* body->at ends with a NUL. If the response itself contains a NUL, it is not XML, and what
	 * follows the NUL is ignored. */
	at = body->at && body->len ? strstr(body->at, tag) : NULL;
	if (!at)
		return;
	for (at += strlen(tag); *at && *at != '<';) {
		at += xml_unescape(at, &out[len]);
		if ((unsigned char)out[len] < ' ' || out[len] == 127)
			out[len] = ' ';
		if (++len == out_len) {
			out[0] = '\0';
			return;
		}
	}
	out[len] = '\0';
}

/* Writes advice on what to do about the error in a response, or "" if there is none. */
static void advice_write(const struct pst_object_call *call, const char *code, char *out,
			 size_t out_len)
{
	const struct pst_object_place *place = call->place;
	const struct pst_http_head *head = &call->http.head;

	out[0] = '\0';
	if (!strcmp(code, "RequestTimeTooSkewed"))
		snprintf(out, out_len, ": set this machine's clock");
	else if (head->region[0] && strcmp(head->region, place->settings.region))
		snprintf(out, out_len, ": the bucket is in region %s", head->region);
	else if (head->status == 301 || head->status == 302 || head->status == 307)
		snprintf(out, out_len, ": set the endpoint and the region of the bucket");
	else if ((head->status == 401 || head->status == 403) && place->url.presigned)
		snprintf(out, out_len, ": the presigned URL is not valid, or no longer");
	else if ((head->status == 401 || head->status == 403) && place->url.anonymous)
		snprintf(out, out_len, ": anonymous=1 sends no keys");
	else if (head->status == 401 || head->status == 403)
		snprintf(out, out_len, " (the keys are from %.63s)", place->settings.source);
}

static int status_errno(unsigned status, enum penstock_why *why)
{
	*why = PENSTOCK_WHY_IO_ERROR;
	switch (status) {
	case 401:
	case 403:
		*why = PENSTOCK_WHY_NO_PERMISSION;
		return EACCES;
	case 404:
	case 410:
		*why = PENSTOCK_WHY_NOT_FOUND;
		return ENOENT;
	case 400:
		*why = PENSTOCK_WHY_BAD_ARGUMENT;
		return EINVAL;
	case 405:
	case 501:
		*why = PENSTOCK_WHY_UNSUPPORTED;
		return EOPNOTSUPP;
	case 412:
		*why = PENSTOCK_WHY_STALE;
		return ESTALE;
	case 507:
		*why = PENSTOCK_WHY_NO_SPACE;
		return ENOSPC;
	default:
		return EIO;
	}
}

int pst_object_call_result(const struct pst_object_call *call, const char *what,
			   struct pst_err *err)
{
	const struct pst_http_call *http = &call->http;
	const char *name = call->place->url.name;
	char code[64], message[96], advice[120];
	enum penstock_why why;
	int value;

	if (http->result == -ECANCELED)
		return pst_fail(err, PENSTOCK_WHY_CANCELLED, "cancelled");
	if (http->result && (!http->head.status || http->head.status / 100 == 2))
		return pst_fail_errno(err, http->err.code, http->err.why, "%s: %s", name,
				      http->err.text);
	if (!http->result && http->head.status / 100 == 2)
		return 0;
	pst_object_xml_text(&http->text, "Code", code, sizeof(code));
	pst_object_xml_text(&http->text, "Message", message, sizeof(message));
	advice_write(call, code, advice, sizeof(advice));
	value = status_errno(http->head.status, &why);
	return pst_fail_errno(err, value, why, "%s: cannot %s: the server answered %u%s%s%s%s%s%s",
			      name, what, http->head.status, code[0] ? " " : "", code, advice,
			      message[0] ? " (" : "", message, message[0] ? ")" : "");
}

bool pst_object_etag_is_strong(const char *etag)
{
	return etag[0] && strncmp(etag, "W/", 2);
}

uint64_t pst_object_etag_hash(const char *etag)
{
	uint64_t hash = 0xcbf29ce484222325;

	if (!etag[0])
		return 0;
	for (; *etag; etag++)
		hash = (hash ^ (unsigned char)*etag) * 0x100000001b3;
	return hash ? hash : 1;
}
