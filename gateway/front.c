/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the functions that handle the requests to the S3 server and to the server for metrics,
 * see front.h. */
#include "front.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "access_log.h"
#include "auth.h"
#include "core/base/clock.h"
#include "op_hipobj.h"
#include "rdma.h"
#include "route.h"
#include "upstream.h"

/* Opens the request's bucket. On an error, fills the reply and returns false. */
static bool bucket_open(struct gw_request *req)
{
	if (!req->bucket || req->op->no_bucket)
		return true;
	req->bucket_fd = gw_bucket_open(&req->server->store, req->bucket);
	if (req->bucket_fd < 0) {
		gw_fail_errno(req, req->bucket_fd, GW_NoSuchBucket);
		return false;
	}
	return true;
}

/* Returns whether a body follows the head. */
static bool has_body(const struct gw_http_request *http)
{
	const char *length = gw_http_header(http, "content-length");

	return gw_http_header(http, "transfer-encoding") || (length && strcmp(length, "0") != 0);
}

/* Returns whether a worker thread shall run the request, because it may take long. For example, a
 * request with an RDMA token waits for its transfer. */
static bool is_long(const struct gw_request *req)
{
	return gw_op_is_long(req->op) || gw_header(req, "x-amz-rdma-token") || req->session;
}

/* Finds the request's operation, and checks its signature and rights. On an error, fills the reply
 * and returns false. */
static bool operation_find(struct gw_request *req)
{
	if (!gw_route(req) || !gw_auth(req))
		return false;
	/* READY is a message of the protocol hipobj-rc-v2 (op_hipobj.h). It becomes the GET or PUT
	 * that its session has prepared. So its operation and its rights are determined again. */
	return req->op->run != gw_op_ready ||
	       (gw_hipobj_begin(req) && gw_route(req) && gw_auth_rights(req));
}

static bool front_head(void *owner, struct gw_http_request *http)
{
	struct gw_front *front = owner;
	struct gw_request *req = calloc(1, sizeof(*req));

	if (!req) {
		http->reply.status = 503;
		return false;
	}
	http->user = req;
	req->http = http;
	req->server = &front->server;
	req->query = "";
	req->bucket_fd = req->body.draft.fd = -1;
	req->body.sum_kind = req->body.sum_default = PST_HASH_KINDS;
	req->op_number = gw_op_count() - 1;
	if (!gw_request_parse(req, front->server.domain))
		return false;
	gw_header_add(req, "x-amz-request-id", req->id);
	if (req->control && !gw_hipobj_check(req))
		return false;
	if (front->server.upstream) {
		gw_route_any(req);
		return gw_auth(req) && gw_upstream_begin(req);
	}
	if (!operation_find(req) || !bucket_open(req))
		return false;
	if (req->op->check && !req->op->check(req))
		return false;
	if (req->op->body == GW_BODY_NONE && !has_body(http) && !is_long(req)) {
		req->op->run(req);
		return false;
	}
	return gw_body_begin(req, req->op->body);
}

static bool front_body(void *owner, struct gw_http_request *http, const char *bytes, size_t len)
{
	(void)owner;
	return gw_body_put(http->user, bytes, len);
}

static void front_end(void *owner, struct gw_http_request *http)
{
	struct gw_request *req = http->user;

	(void)owner;
	if (atomic_load(&req->server->stopping)) {
		http->reply.close = true;
		gw_fail(req, GW_ServiceUnavailable, "The gateway is about to end.");
		return;
	}
	if (req->passage) {
		http->answers = gw_upstream_end(req);
		return;
	}
	if (!gw_rdma_receive(req) || !gw_body_end(req))
		return;
	req->op->run(req);
	gw_rdma_stored(req);
	gw_hipobj_end(req);
}

static bool front_is_long(void *owner, struct gw_http_request *http)
{
	(void)owner;
	/* A request with a stream goes to the upstream. It needs no worker thread, because the
	 * thread of its exchange waits for the upstream. */
	return !http->stream && is_long(http->user);
}

static void front_answer(void *owner, struct gw_http_request *http)
{
	(void)owner;
	gw_upstream_answer(http->user);
}

/* Returns the number of bytes of the reply's body that were sent. If the connection ended before
 * the end of the reply, this number is not known, and the function returns 0. */
static uint64_t bytes_sent(const struct gw_http_request *http, bool complete)
{
	return complete && http->method && strcmp(http->method, "HEAD") != 0 ? http->reply.len : 0;
}

static void front_done(void *owner, struct gw_http_request *http, bool complete)
{
	struct gw_front *front = owner;
	struct gw_request *req = http->user;
	struct gw_metrics *metrics = &front->server.metrics;
	uint64_t duration = pst_now_ns() - http->started_ns;
	unsigned op = req ? req->op_number : gw_op_count() - 1;

	if (http->reply.streams && !http->reply.has_len)
		http->reply.len = http->sent_len;
	if (http->refused)
		atomic_fetch_add(&metrics->refused_head, 1);
	else if (!complete && http->method)
		atomic_fetch_add(&metrics->aborted, 1);
	if (http->slow)
		atomic_fetch_add(&metrics->slow, 1);
	if (http->method)
		gw_metrics_count(metrics, op, http->reply.status, http->body_len,
				 bytes_sent(http, complete), duration);
	gw_access_log_put(front->server.log, http, gw_op_name(op), bytes_sent(http, complete),
			  duration, complete);
	if (!req)
		return;
	gw_body_close(req);
	gw_upstream_done(req);
	gw_rdma_leave(req);
	gw_request_close(req);
	http->user = NULL;
}

const struct gw_http_calls gw_front_calls = {
	.head = front_head,
	.body = front_body,
	.end = front_end,
	.answer = front_answer,
	.is_long = front_is_long,
	.done = front_done,
};

/* ---- the second port ---- */

static void metrics_reply(struct gw_front *front, struct gw_http_request *http)
{
	gw_metrics_write(&front->server.metrics, gw_op_count(), gw_op_name, &http->reply.body);
	gw_metrics_write_connections(atomic_load(&front->http.connections),
				     atomic_load(&front->http.refused),
				     atomic_load(&front->http.requests), &http->reply.body);
	if (front->server.upstream)
		gw_metrics_write_upstream(&front->server.metrics, &http->reply.body);
	gw_reply_header(&http->reply, "Content-Type", "text/plain; version=0.0.4");
	http->reply.status = 200;
}

/* Returns a line about the root's file system, if the gateway can only read there. Then it is
 * still healthy. */
static const char *root_note(const struct gw_front *front)
{
	struct statvfs fs;

	if (front->server.upstream || fstatvfs(front->server.store.root, &fs))
		return "";
	if (fs.f_flag & ST_RDONLY)
		return "the root is read-only\n";
	return fs.f_blocks && !fs.f_bavail ? "the root is full\n" : "";
}

/* Fills the reply to a health check: status 503 if the root must not be used or the gateway is
 * about to stop, else 200. */
static void health_reply(struct gw_front *front, struct gw_http_request *http)
{
	const char *fault = front->server.upstream ? NULL : gw_store_fault(&front->server.store);

	if (!fault && atomic_load(&front->draining))
		fault = "draining";
	http->reply.status = fault ? 503 : 200;
	pst_text_printf(&http->reply.body, "%s\n%s", fault ? fault : "ok",
			fault ? "" : root_note(front));
	gw_reply_header(&http->reply, "Content-Type", "text/plain");
}

static bool metrics_head(void *owner, struct gw_http_request *http)
{
	size_t len = strcspn(http->target, "?");

	if (strcmp(http->method, "GET") != 0 && strcmp(http->method, "HEAD") != 0)
		http->reply.status = 405;
	else if (len == 8 && !strncmp(http->target, "/metrics", len))
		metrics_reply(owner, http);
	else if (len == 8 && !strncmp(http->target, "/healthz", len))
		health_reply(owner, http);
	else
		http->reply.status = 404;
	return false;
}

static bool metrics_body(void *owner, struct gw_http_request *http, const char *bytes, size_t len)
{
	(void)owner;
	(void)http;
	(void)bytes;
	(void)len;
	return false;
}

static void metrics_end(void *owner, struct gw_http_request *http)
{
	(void)owner;
	(void)http;
}

static void metrics_done(void *owner, struct gw_http_request *http, bool complete)
{
	(void)owner;
	(void)http;
	(void)complete;
}

const struct gw_http_calls gw_metrics_calls = {
	.head = metrics_head,
	.body = metrics_body,
	.end = metrics_end,
	.done = metrics_done,
};
