/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements request.h: sends the HTTP GET or PUT of a window. A reactor (a thread of io/http.h)
 * runs most of the steps. The first attempt carries a token, the text that gives the server access
 * to the window. If the server has not moved the bytes, the window is closed to the server, and the
 * bytes move as an HTTP body instead. Closing a window may wait for the server. A separate thread
 * does that, because the reactor must not wait.
 *
 * A server that has ignored a token gets no further token from this process.
 */
#include "object/request.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/thread.h"
#include "core/base/fork.h"
#include "core/base/log.h"
#include "s3/crc.h"
#include "s3/uri.h"
#include "storage/object_request.h"
#include "storage/object_window.h"
#include "wire/common.h"
#include "wire/exchange.h"

struct pst_object_transfer {
	struct pst_object_call call; /* must be the first member */
	struct pst_object_transfer *next;
	struct pst_object_requests *requests;
	struct pst_object_target *target;
	struct pst_object_place place;
	struct pst_end *end;
	/* a reactor (thread of io/http.h) runs the call; protected by requests->lock */
	bool flying;
	bool no_body, judged;
	bool body;	/* the bytes move as an HTTP body, not through the window */
	unsigned cards; /* number of further network cards with which the request may be repeated */
	uint64_t off;
	struct penstock_object_verdict verdict;
	struct penstock_object_window_info info;
	struct iovec iov;
	/* host memory for a body, if the window is in memory of a GPU; NULL: none */
	unsigned char *staging;
	char if_match[256], etag[256];
	struct pst_err err; /* error of a step between two attempts */
};

/* ---- servers that do not know tokens ---- */

struct deaf {
	struct deaf *next;
	const struct pst_http_endpoint *endpoint;
};
static pthread_mutex_t deaf_lock = PTHREAD_MUTEX_INITIALIZER; /* protects `deafs` */
/* servers that ignore tokens; the entries are never freed, like the endpoints */
static struct deaf *deafs;

static void deaf_in_child(void)
{
	pthread_mutex_init(&deaf_lock, NULL);
}

__attribute__((constructor)) static void deaf_watch_fork(void)
{
	pst_fork_hook(deaf_in_child);
}

static bool is_deaf(const struct pst_http_endpoint *endpoint)
{
	struct deaf *d;

	pthread_mutex_lock(&deaf_lock);
	for (d = deafs; d && d->endpoint != endpoint; d = d->next)
		;
	pthread_mutex_unlock(&deaf_lock);
	return d;
}

/* Records that a server ignores tokens. If there is no memory for the record, the next request
 * sends the server a token again. */
static void deaf_add(const struct pst_http_endpoint *endpoint)
{
	struct deaf *d = is_deaf(endpoint) ? NULL : calloc(1, sizeof(*d));

	if (!d)
		return;
	d->endpoint = endpoint;
	pthread_mutex_lock(&deaf_lock);
	d->next = deafs;
	deafs = d;
	pthread_mutex_unlock(&deaf_lock);
}

/* ---- the end ---- */

static void transfer_free(struct pst_object_transfer *t)
{
	pst_object_call_clear(&t->call);
	pst_object_place_close(&t->place);
	if (t->staging)
		munmap(t->staging, t->target->len);
	free(t->end);
	free(t);
}

/* Completes a request and frees it. `result` is the number of moved bytes, or a negative errno with
 * its message in `err`. */
static void transfer_finish(struct pst_object_transfer *t, int64_t result,
			    const struct pst_err *err)
{
	struct pst_object_requests *requests = t->requests;
	struct penstock_object_end *end = &t->end->request;
	struct pst_object_transfer **at = &requests->all;
	struct pst_end *node = t->end;
	bool tls = t->place.server.tls;

	end->result = result;
	end->status = (int)t->call.http.head.status;
	end->next = result < 0 ? PENSTOCK_OBJECT_ERROR : t->verdict.next;
	if (result >= 0 && t->body) {
		snprintf(end->transport, sizeof(end->transport), "%s", tls ? "https" : "http");
		end->encrypted = tls;
	} else if (result >= 0) {
		snprintf(end->transport, sizeof(end->transport), "%s", t->info.transport);
		end->encrypted = t->info.encrypted;
		end->on_host = t->info.on_host;
	}
	if (result >= 0)
		snprintf(end->etag, sizeof(end->etag), "%s", t->call.http.head.etag);
	snprintf(end->text, sizeof(end->text), "%s",
		 result < 0 ? err->text
		 : t->body  ? t->verdict.text
			    : "");
	t->target->idle(t->target);
	t->end = NULL;
	pthread_mutex_lock(&requests->lock);
	while (*at != t)
		at = &(*at)->next;
	*at = t->next;
	pthread_mutex_unlock(&requests->lock);
	transfer_free(t);
	pst_ends_put(requests->ends, node);
	/* When `count` becomes 0, another thread may free `requests`. So nothing below uses it
	 * after the unlock. */
	pthread_mutex_lock(&requests->lock);
	if (!--requests->count)
		pthread_cond_broadcast(&requests->none);
	pthread_mutex_unlock(&requests->lock);
}

/* Passes the HTTP call to a reactor, a thread of io/http.h. If that fails, completes the request
 * with the error. */
static void transfer_fly(struct pst_object_transfer *t, bool repeat)
{
	struct pst_object_requests *requests = t->requests;
	int ret = -ECANCELED;

	pthread_mutex_lock(&requests->lock);
	if (requests->closing)
		pst_fail(&t->err, PENSTOCK_WHY_CANCELLED, "the client is closed");
	else
		ret = repeat ? pst_object_call_repeat(&t->call, &t->err)
			     : pst_http_start(&t->call.http, &t->err);
	t->flying = !ret;
	pthread_mutex_unlock(&requests->lock);
	if (ret)
		transfer_finish(t, ret, &t->err);
}

/* ---- the window ---- */

/* Takes the server's access to the window away. Returns 0 or -errno. May wait for the server. */
static int window_release(struct pst_object_transfer *t)
{
	struct pst_object_target *target = t->target;

	if (t->call.http.attempts > 1)
		/* The response proves only that the transfer of the last attempt has ended. An
		 * attempt without a response may have begun a transfer that still runs. */
		pst_wire_unsettle(target->grant);
	target->released = pst_wire_release(target->grant, &t->err);
	target->grant = NULL;
	return target->released;
}

/* Prepares the memory from which an HTTP body is sent, or into which it is received. For a PUT from
 * the memory of a GPU, copies the bytes into the prepared memory. */
static int body_prepare(struct pst_object_transfer *t)
{
	const struct pst_object_target *target = t->target;
	int ret;

	t->body = true;
	t->iov = (struct iovec){target->mem, target->len};
	if (target->dev && !t->staging) {
		void *at = mmap(NULL, target->len, PROT_READ | PROT_WRITE,
				MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

		if (at == MAP_FAILED)
			return pst_fail(&t->err, PENSTOCK_WHY_NO_MEMORY,
					"%llu bytes to stage the GPU's memory: %m",
					(unsigned long long)target->len);
		t->staging = at;
	}
	if (!target->dev)
		return 0;
	t->iov.iov_base = t->staging;
	if (target->op == PENSTOCK_READ)
		return 0;
	ret = pst_wire_copy(t->requests->devices, NULL, t->staging, target->dev, target->mem,
			    target->len);
	return ret ? pst_fail_errno(&t->err, -ret, penstock_errwhy(), "%s", penstock_errmsg()) : 0;
}

/* Sends the request again without a token, so that the bytes move as an HTTP body. */
static void transfer_resend(struct pst_object_transfer *t)
{
	struct pst_http_call *http = &t->call.http;
	int ret = body_prepare(t);

	if (ret) {
		transfer_finish(t, ret, &t->err);
		return;
	}
	t->call.token = NULL;
	http->beside = 0;
	http->tries = 0;
	http->patience_s = t->place.url.timeout_s;
	memset(&http->head, 0, sizeof(http->head));
	pst_object_call_clear(&t->call);
	if (t->target->op == PENSTOCK_WRITE) {
		http->out = t->iov.iov_base;
		http->out_len = t->target->len;
	}
	transfer_fly(t, false);
}

/* Sends the request again with a token for another network card, if one is left to try. Returns
 * false if the request was not sent: the caller must then handle it. */
static bool transfer_resend_by_card(struct pst_object_transfer *t)
{
	struct pst_object_target *target = t->target;
	struct pst_http_call *http = &t->call.http;

	if (!t->cards || t->verdict.remember)
		return false;
	t->cards--;
	if (pst_wire_window_open(target->buffer, target->op, target->off, target->len,
				 &target->grant, &t->err))
		return false;
	pst_wire_window_info(target->grant, &t->info);
	http->tries = 0;
	http->patience_s = t->place.url.timeout_s;
	memset(&http->head, 0, sizeof(http->head));
	pst_object_call_clear(&t->call);
	pst_object_call_offer(&t->call, t->info.token, target->len);
	transfer_fly(t, false);
	return true;
}

static void *resend_run(void *arg)
{
	struct pst_object_transfer *t = arg;
	int ret = window_release(t);

	if (ret) {
		transfer_finish(t, ret, &t->err);
		return NULL;
	}
	if (transfer_resend_by_card(t))
		return NULL;
	if (t->no_body)
		transfer_finish(t,
				pst_fail_errno(&t->err, EOPNOTSUPP, PENSTOCK_WHY_DECLINED, "%s",
					       t->verdict.text),
				&t->err);
	else
		transfer_resend(t);
	return NULL;
}

/* Closes the window to the server, and then sends the request again, with a token for another
 * network card or with an HTTP body. */
static void transfer_begin_resend(struct pst_object_transfer *t)
{
	pthread_t thread;

	/* Without a new thread, this thread (a reactor) waits until the server's access has
	 * ended. */
	if (!pst_wire_revoke(t->target->grant) && !pst_thread_start(&thread, resend_run, t))
		pthread_detach(thread);
	else
		resend_run(t);
}

/* ---- responses ---- */

static enum penstock_object_next window_judge(struct pst_object_transfer *t, const char *error)
{
	const struct pst_http_head *head = &t->call.http.head;
	struct penstock_object_header headers[PST_OBJECT_REPLY_HEADERS];
	struct penstock_object_reply reply = PENSTOCK_OBJECT_REPLY_INIT;
	struct pst_object_reply_texts texts;

	reply.status = (int)head->status;
	reply.headers = headers;
	reply.header_count = pst_object_reply_fill(head, &texts, headers);
	reply.error = error;
	reply.ranged = t->call.ranged;
	pst_wire_judge(t->target->grant, &reply, &t->verdict);
	t->judged = true;
	if (t->verdict.remember) {
		pst_log(PST_LOG_INFO, "object", "%s: no more tokens for this server",
			t->verdict.text);
		deaf_add(t->place.endpoint);
	}
	return t->verdict.next;
}

static enum pst_http_verdict get_refuse(struct pst_object_transfer *t, int code,
					enum penstock_why why, const char *what)
{
	pst_fail_errno(&t->call.http.err, code, why, "%s", what);
	return PST_HTTP_FAIL;
}

/* Checks that the Content-Range of a response is the requested range, or the part of it that the
 * object has. If a repeated request continues a read, the ETag must be the same as before. */
static enum pst_http_verdict get_judge_body(struct pst_object_transfer *t)
{
	struct pst_object_call *call = &t->call;
	const struct pst_http_head *head = &call->http.head;
	uint64_t first = call->first + call->http.got;

	if (call->http.got && strcmp(head->etag, t->etag) != 0)
		return get_refuse(t, ESTALE, PENSTOCK_WHY_STALE,
				  "the object changed while it was read: read it again");
	if (head->status != 206 || !head->has_range || head->range_first != first ||
	    head->range_last > call->last || head->range_last < first ||
	    (head->has_total && head->range_last != call->last &&
	     head->range_last + 1 != head->range_total))
		return get_refuse(t, EIO, PENSTOCK_WHY_MALFORMED,
				  "the server sent another range than was asked for "
				  "(Content-Range)");
	call->last = head->range_last;
	call->http.in_len = call->last - call->first + 1;
	snprintf(t->etag, sizeof(t->etag), "%s", head->etag);
	return PST_HTTP_BODY;
}

/* Decides what follows a response with a status 2xx. */
static enum pst_http_verdict transfer_judge(struct pst_object_call *call)
{
	struct pst_object_transfer *t = (struct pst_object_transfer *)call;
	bool get = t->target->op == PENSTOCK_READ;

	if (!call->token)
		return get ? get_judge_body(t) : PST_HTTP_TEXT;
	switch (window_judge(t, NULL)) {
	case PENSTOCK_OBJECT_DONE:
		return PST_HTTP_TEXT;
	case PENSTOCK_OBJECT_BODY:
		/* The body will be received into the window's memory, so the server must not have
		 * access to it any more. */
		if (t->no_body || !pst_wire_revoke(t->target->grant))
			break;
		if (window_release(t) || body_prepare(t)) {
			call->http.err = t->err;
			call->token = NULL;
			return PST_HTTP_FAIL;
		}
		call->token = NULL;
		call->http.beside = 0;
		return get_judge_body(t);
	default:
		break;
	}
	if (!get)
		return PST_HTTP_TEXT;
	return get_refuse(t, EOPNOTSUPP, PENSTOCK_WHY_DECLINED, t->verdict.text);
}

/* Completes a GET or a PUT whose bytes were moved. */
static void transfer_done(struct pst_object_transfer *t)
{
	const struct pst_object_target *target = t->target;
	uint64_t len = t->body ? target->op == PENSTOCK_READ ? t->call.http.in_len : target->len
			       : t->verdict.bytes;
	int ret = 0;

	if (t->body && target->dev && target->op == PENSTOCK_READ && len)
		ret = pst_wire_copy(t->requests->devices, target->dev, target->mem, NULL,
				    t->staging, len);
	if (ret) {
		pst_fail_errno(&t->err, -ret, penstock_errwhy(), "%s", penstock_errmsg());
	} else if (!t->body && t->verdict.has_crc64 && !target->dev &&
		   ~pst_crc_raw(PST_CRC64NVME, UINT64_MAX, target->mem, len) != t->verdict.crc64) {
		ret = pst_fail_errno(&t->err, EBADMSG, PENSTOCK_WHY_MALFORMED,
				     "the bytes in the window are not those of "
				     "x-amz-rdma-checksum: repeat the request");
	}
	transfer_finish(t, ret ? ret : (int64_t)len, &t->err);
}

/* Completes a request without a token, or one whose error has nothing to do with the token. */
static void transfer_result(struct pst_object_transfer *t)
{
	bool get = t->target->op == PENSTOCK_READ;
	const struct pst_http_head *head = &t->call.http.head;
	int ret = pst_object_call_result(&t->call, get ? "read" : "write", &t->err);

	/* An S3 server replies 416 if the whole range is behind the end of the object. The read
	 * then succeeds with 0 bytes. */
	if (get && head->status == 416 && head->has_total && head->range_total <= t->off) {
		t->body = true;
		t->call.http.in_len = 0;
		t->verdict.next = PENSTOCK_OBJECT_BODY;
		t->verdict.text[0] = '\0';
		transfer_done(t);
		return;
	}
	if (head->status == 412)
		ret = get ? pst_fail_errno(&t->err, ESTALE, PENSTOCK_WHY_STALE,
					   "the object does not have the ETag of if_match")
			  : pst_fail_errno(&t->err, EEXIST, PENSTOCK_WHY_BAD_ARGUMENT,
					   "there is an object with this key");
	if (ret)
		transfer_finish(t, ret, &t->err);
	else
		transfer_done(t);
}

static void transfer_ended(struct pst_object_call *call)
{
	struct pst_object_transfer *t = (struct pst_object_transfer *)call;
	char code[64];

	pthread_mutex_lock(&t->requests->lock);
	t->flying = false;
	pthread_mutex_unlock(&t->requests->lock);
	/* transfer_judge handles only responses with a status 2xx, so any other response is judged
	 * here. */
	if (call->token && !call->http.result && call->http.head.status / 100 != 2) {
		pst_object_xml_text(&call->http.text, "Code", code, sizeof(code));
		if (window_judge(t, code) == PENSTOCK_OBJECT_ERROR &&
		    pst_object_call_may_pass(call)) {
			t->judged = false;
			transfer_fly(t, true);
			return;
		}
	}
	/* Completes the request if no response came, or if its error has nothing to do with the
	 * token. The same holds after a body has been received; call->token is then NULL. */
	if (!call->token || !t->judged || t->verdict.next == PENSTOCK_OBJECT_ERROR) {
		transfer_result(t);
		return;
	}
	if (t->verdict.next == PENSTOCK_OBJECT_DONE) {
		transfer_done(t);
	} else if (t->no_body && !t->cards) {
		transfer_finish(t,
				pst_fail_errno(&t->err, EOPNOTSUPP, PENSTOCK_WHY_DECLINED, "%s",
					       t->verdict.text),
				&t->err);
	} else {
		t->judged = false;
		transfer_begin_resend(t);
	}
}

/* ---- the start ---- */

/* Finds the server and the access keys for the request's bucket. Percent-encodes the object's key,
 * because a '?' in it would begin the options of the URL. */
static int place_find(const struct penstock_object_request *request, struct pst_object_place *out,
		      struct pst_err *err)
{
	struct pst_text url = {NULL, 0, 0, false};
	int ret;

	if (!request->bucket || !request->bucket[0] || strpbrk(request->bucket, "/?#") ||
	    !request->key || !request->key[0])
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"a request needs a bucket and a key");
	pst_text_put_str(&url, "s3://");
	pst_text_put_str(&url, request->bucket);
	pst_text_put_str(&url, "/");
	pst_uri_put(&url, request->key, strlen(request->key), true);
	ret = url.failed ? pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a URL")
			 : pst_object_place_open(url.at, out, err);
	free(url.at);
	return ret;
}

/* Returns the reason why the request carries no token (so its bytes move as an HTTP body), or NULL
 * if it carries one. */
static const char *token_refused(const struct pst_object_transfer *t)
{
	if (t->place.url.rdma == PST_OBJECT_RDMA_OFF)
		return "PENSTOCK_RDMA is off";
	if (t->place.server.tls && !t->info.encrypted && !t->info.on_host)
		return "the endpoint has https, and the transport does not encrypt";
	if (is_deaf(t->place.endpoint))
		return "the server has ignored a token";
	if (!t->target->grant)
		return "the window has been closed to the server";
	if (pst_wire_window_exchanges(t->target->grant))
		return "the transport has requests of its own (penstock_object_exchange)";
	return NULL;
}

static void call_prepare(struct pst_object_transfer *t,
			 const struct penstock_object_request *request)
{
	struct pst_object_call *call = &t->call;
	const struct pst_object_target *target = t->target;
	bool get = target->op == PENSTOCK_READ;

	pst_object_call_init(call, &t->place, get ? "GET" : "PUT", "");
	call->judge = transfer_judge;
	call->ended = transfer_ended;
	call->ranged = get;
	call->first = request->off;
	call->last = request->off + target->len - 1;
	call->sends = !get;
	call->http.in = get ? &t->iov : NULL;
	call->http.in_count = get;
	call->http.in_len = get ? target->len : 0;
	if (request->if_match && *request->if_match) {
		snprintf(t->if_match, sizeof(t->if_match), "%s", request->if_match);
		pst_object_call_header(call, "if-match", t->if_match);
	}
	if (request->flags & PENSTOCK_OBJECT_NO_REPLACE)
		pst_object_call_header(call, "if-none-match", "*");
}

static int request_check(const struct pst_object_target *target,
			 const struct penstock_object_request *request, struct pst_err *err)
{
	bool get = target->op == PENSTOCK_READ;
	const char *etag = request->if_match ? request->if_match : "";
	uint64_t end;

	if (!target->len || __builtin_add_overflow(request->off, target->len, &end) ||
	    (!get && request->off))
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"%llu bytes at offset %llu of an object are not possible",
				(unsigned long long)target->len, (unsigned long long)request->off);
	if (request->flags & ~(PENSTOCK_OBJECT_NO_BODY | PENSTOCK_OBJECT_NO_REPLACE) ||
	    (get && request->flags & PENSTOCK_OBJECT_NO_REPLACE) || (!get && *etag))
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"the flags or if_match do not fit the operation");
	if (strlen(etag) >= sizeof(((struct pst_object_transfer *)0)->if_match))
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "if_match is too long");
	for (; *etag; etag++)
		if (*etag < ' ' || *etag > '~')
			return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
					"if_match has a control character");
	return 0;
}

/* Adds the transfer to the list of requests in flight. */
static int transfer_add(struct pst_object_transfer *t, struct pst_err *err)
{
	struct pst_object_requests *requests = t->requests;
	int ret = 0;

	pthread_mutex_lock(&requests->lock);
	if (requests->count >= PENSTOCK_OBJECT_REQUESTS_MAX) {
		ret = pst_fail(err, PENSTOCK_WHY_FULL, "%u requests are in flight",
			       requests->count);
	} else {
		requests->count++;
		t->next = requests->all;
		requests->all = t;
	}
	pthread_mutex_unlock(&requests->lock);
	return ret;
}

/* Frees a transfer that is not in the list of requests in flight yet. Returns `ret`, the error. */
static int start_fail(struct pst_object_transfer *t, int ret)
{
	transfer_free(t);
	return ret;
}

int pst_object_request_start(struct pst_object_requests *requests, struct pst_object_target *target,
			     const struct penstock_object_request *request, struct pst_err *err)
{
	struct pst_object_transfer *t;
	const char *refused;
	int ret = request_check(target, request, err);

	if (ret)
		return ret;
	t = calloc(1, sizeof(*t));
	if (!t)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a request");
	t->requests = requests;
	t->target = target;
	t->off = request->off;
	t->verdict.next = PENSTOCK_OBJECT_ERROR;
	t->no_body = request->flags & PENSTOCK_OBJECT_NO_BODY;
	t->end = calloc(1, sizeof(*t->end));
	ret = t->end ? place_find(request, &t->place, err)
		     : pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a request");
	if (ret)
		return start_fail(t, ret);
	t->end->request.user = request->user;
	t->info.size = sizeof(t->info);
	if (target->grant) {
		pst_wire_window_info(target->grant, &t->info);
		t->cards = pst_wire_window_cards(target->grant) - 1;
	}
	t->no_body |= t->place.url.rdma == PST_OBJECT_RDMA_REQUIRE;
	call_prepare(t, request);
	refused = token_refused(t);
	if (refused && t->no_body)
		return start_fail(
			t, pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_NO_WINDOW, "%s", refused));
	if (!refused) {
		pst_object_call_offer(&t->call, t->info.token, target->len);
	} else {
		t->verdict.next = PENSTOCK_OBJECT_RESEND;
		snprintf(t->verdict.text, sizeof(t->verdict.text), "%s", refused);
	}
	ret = transfer_add(t, err);
	if (ret)
		return start_fail(t, ret);
	if (refused)
		transfer_resend(t);
	else
		transfer_fly(t, false);
	return 0;
}

/* ---- open and close ---- */

int pst_object_requests_open(struct pst_object_requests *requests, struct pst_ends *ends,
			     const struct pst_wire_devices *devices)
{
	pthread_mutex_init(&requests->lock, NULL);
	pthread_cond_init(&requests->none, NULL);
	requests->ends = ends;
	requests->devices = devices;
	return 0;
}

/* Cancels one request. If that request still waits for its turn to be sent, returns the request,
 * which the caller must complete. Otherwise asks the reactor to end the request. The caller holds
 * requests->lock. */
static struct pst_object_transfer *cancel_one(struct pst_object_requests *requests)
{
	for (struct pst_object_transfer *t = requests->all; t; t = t->next)
		if (t->flying && pst_http_cancel(&t->call.http)) {
			t->flying = false;
			return t;
		}
	return NULL;
}

void pst_object_requests_cancel(struct pst_object_requests *requests)
{
	struct pst_object_transfer *t;

	pthread_mutex_lock(&requests->lock);
	requests->closing = true;
	while ((t = cancel_one(requests))) {
		pthread_mutex_unlock(&requests->lock);
		transfer_finish(t, pst_fail(&t->err, PENSTOCK_WHY_CANCELLED, "cancelled"), &t->err);
		pthread_mutex_lock(&requests->lock);
	}
	while (requests->count)
		pthread_cond_wait(&requests->none, &requests->lock);
	pthread_mutex_unlock(&requests->lock);
}

void pst_object_requests_close(struct pst_object_requests *requests)
{
	pst_object_requests_cancel(requests);
	pthread_cond_destroy(&requests->none);
	pthread_mutex_destroy(&requests->lock);
}
