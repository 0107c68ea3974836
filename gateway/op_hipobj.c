/* SPDX-License-Identifier: Apache-2.0 */
/* Handles the requests of protocol hipobj-rc-v2: see op_hipobj.h. */
#include "op_hipobj.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "auth.h"
#include "rdma.h"
#include "s3/hipobj.h"
#include "session.h"

static const char *header_find(const void *user, const char *name)
{
	return gw_header(user, name);
}

/* Adds the header that shows a client that this server supports hipobj-rc-v2. */
static void put_protocol(struct gw_request *req)
{
	gw_header_add(req, PST_HIPOBJ_H_PROTOCOL, PST_HIPOBJ);
}

/* Fills the reply with the status that makes a client use HTTP instead. */
static void unsupported(struct gw_request *req)
{
	gw_fail(req, GW_NotImplemented, "This gateway does not serve hipobj-rc-v2.");
	gw_header_add(req, PST_HIPOBJ_H_STATUS, "unsupported");
}

bool gw_hipobj_check(struct gw_request *req)
{
	/* With an upstream, the bytes pass through a small ring buffer. A session of hipobj-rc-v2
	 * needs memory for all of them, so this gateway has no sessions then. */
	if (!req->server->upstream && gw_rdma_pairs(req->server->rdma))
		return true;
	unsupported(req);
	return false;
}

/* Fills the reply with the error for a malformed message or for a failed
 * penstock_object_prepare. */
static void message_fail(struct gw_request *req, int code)
{
	enum gw_decline decline = GW_DECLINE_TRANSPORT;

	switch (code) {
	case -EBADMSG:
	case -EINVAL:
		decline = GW_DECLINE_MESSAGE;
		gw_fail(req, GW_InvalidRequest, "A header x-amz-rdma-* is missing or malformed.");
		put_protocol(req);
		break;
	case -EFBIG:
		decline = GW_DECLINE_TOO_LONG;
		gw_fail(req, GW_RDMATooLarge, NULL);
		put_protocol(req);
		break;
	case -EAGAIN:
	case -ENOMEM:
		decline = GW_DECLINE_BUSY;
		gw_fail(req, GW_SlowDown, NULL);
		put_protocol(req);
		break;
	default:
		unsupported(req);
	}
	atomic_fetch_add(&req->server->metrics.rdma_declined[decline], 1);
}

/* ---- PREPARE ---- */

/* Checks that the access key may make the request that the session prepares. The READY, which
 * starts the transfer later, is checked again. */
static bool target_check(struct gw_request *req, const struct pst_hipobj_prepare *prepare)
{
	bool stores = prepare->op == PENSTOCK_WRITE;

	if (!gw_request_retarget(req, stores ? "PUT" : "GET", prepare->target))
		return false;
	if (!req->key)
		return gw_fail(req, GW_InvalidRequest, "x-amz-rdma-target names no object.") == 0;
	if (gw_key_allows(req->identity, req->bucket) && (!stores || req->identity->write))
		return true;
	return gw_fail(req, GW_AccessDenied, NULL) == 0;
}

/* Fills the reply with the numbers (QPN, PSN, address, key) with which the client connects its
 * queue pair. */
static void prepare_reply(struct gw_request *req, const struct penstock_object_pairing *pairing,
			  const char *id)
{
	char text[PST_HIPOBJ_TOKEN + 16];

	gw_reply_empty(req, 200);
	put_protocol(req);
	snprintf(text, sizeof(text), "200:%s", pairing->token);
	gw_header_add(req, PST_HIPOBJ_H_REPLY, text);
	gw_header_add(req, PST_HIPOBJ_H_SESSION, id);
	snprintf(text, sizeof(text), "%06x", pairing->server_psn);
	gw_header_add(req, PST_HIPOBJ_H_PSN, text);
	snprintf(text, sizeof(text), "%x", pairing->qpn);
	gw_header_add(req, PST_HIPOBJ_H_QPN, text);
	if (!pairing->address)
		return;
	snprintf(text, sizeof(text), "%llx", (unsigned long long)pairing->address);
	gw_header_add(req, PST_HIPOBJ_H_ADDR, text);
	snprintf(text, sizeof(text), "%x", pairing->key);
	gw_header_add(req, PST_HIPOBJ_H_KEY, text);
}

void gw_op_prepare(struct gw_request *req)
{
	struct penstock_object_pairing pairing = PENSTOCK_OBJECT_PAIRING_INIT;
	const struct pst_hipobj_source source = {header_find, req};
	struct pst_hipobj_prepare prepare;
	struct gw_session *session;
	char id[GW_SESSION_ID];
	int ret = pst_hipobj_prepare_parse(&source, &prepare);

	if (ret) {
		message_fail(req, ret);
		return;
	}
	if (!target_check(req, &prepare)) {
		put_protocol(req);
		return;
	}
	session = gw_session_make(req->identity->name, prepare.target);
	if (!session) {
		message_fail(req, -ENOMEM);
		return;
	}
	session->op = pairing.op = prepare.op;
	session->len = pairing.length = prepare.len;
	session->offset = prepare.offset;
	session->cookie = pairing.cookie = prepare.cookie;
	pairing.psn = prepare.psn;
	ret = gw_rdma_prepare(req, prepare.token, &pairing, session, id);
	if (ret) {
		gw_session_free(session);
		message_fail(req, ret);
		return;
	}
	prepare_reply(req, &pairing, id);
}

/* ---- READY ---- */

/* Finds the session that a READY names, among those of its access key. Returns NULL after it has
 * filled the reply. */
static struct gw_session *session_find(struct gw_request *req, const struct pst_hipobj_ready *ready)
{
	struct gw_session *session =
		gw_rdma_session(req->server->rdma, ready->session, req->identity->name);

	if (session && session->cookie == ready->cookie)
		return session;
	/* A wrong cookie ends the session, so that a cookie cannot be guessed. The reply does not
	 * reveal whether another access key has a session with this ID. */
	gw_session_free(session);
	gw_fail(req, GW_NoSuchRDMASession, NULL);
	put_protocol(req);
	return NULL;
}

/* Changes headers of the READY to those of the GET or PUT that its session has prepared. The
 * signature has been checked before, with the headers that the client has sent. */
static bool headers_change(struct gw_request *req)
{
	const struct gw_session *s = req->session;

	/* The READY's x-amz-content-sha256 is the hash of its empty body, and not of the object. So
	 * it is replaced. */
	if (!gw_http_header_set(req->http, "x-amz-content-sha256", PST_SIGV4_UNSIGNED) ||
	    !gw_http_header_set(req->http, "content-length", "0"))
		return false;
	if (s->op == PENSTOCK_WRITE)
		return true;
	snprintf(req->range, sizeof(req->range), "bytes=%llu-%llu", (unsigned long long)s->offset,
		 (unsigned long long)(s->offset + s->len - 1));
	return gw_http_header_set(req->http, "range", req->range);
}

bool gw_hipobj_begin(struct gw_request *req)
{
	const struct pst_hipobj_source source = {header_find, req};
	struct pst_hipobj_ready ready;
	struct gw_session *session;
	int ret = pst_hipobj_ready_parse(&source, &ready);

	if (ret) {
		message_fail(req, ret);
		return false;
	}
	/* If too many transfers are in progress, the READY is refused, and its session stays in the
	 * table. So the client can repeat the READY. */
	if (!gw_rdma_enter(req)) {
		message_fail(req, -EAGAIN);
		return false;
	}
	session = session_find(req, &ready);
	if (!session)
		return false;
	/* From here on, the session belongs to the request and ends with it. */
	req->session = session;
	req->remote = session->remote;
	session->remote = NULL;
	if (penstock_object_ready(req->remote, ready.qpn, ready.address, ready.key)) {
		message_fail(req, -EINVAL);
		return false;
	}
	if (!headers_change(req))
		return gw_fail(req, GW_InvalidRequest, "There are too many headers.") == 0;
	return gw_request_retarget(req, session->op == PENSTOCK_WRITE ? "PUT" : "GET",
				   session->target);
}

void gw_hipobj_end(struct gw_request *req)
{
	struct gw_reply *reply = &req->http->reply;
	char cookie[12];
	const char *etag;

	if (!req->session)
		return;
	put_protocol(req);
	if (req->failed || reply->status / 100 != 2)
		return;
	/* The operation may have set status 206, because a session has a range. But the reply to a
	 * READY has status 200. */
	reply->status = 200;
	snprintf(cookie, sizeof(cookie), "%08x", req->session->cookie);
	gw_header_add(req, PST_HIPOBJ_H_COOKIE, cookie);
	etag = gw_reply_header_find(reply, "ETag");
	if (etag)
		gw_header_add(req, PST_HIPOBJ_H_ETAG, etag);
}

void gw_op_ready(struct gw_request *req)
{
	/* Not called: gw_hipobj_begin has replaced the operation by a GET or PUT. */
	gw_fail(req, GW_InternalError, NULL);
}

/* ---- CANCEL ---- */

void gw_op_cancel(struct gw_request *req)
{
	const struct pst_hipobj_source source = {header_find, req};
	struct pst_hipobj_ready cancel;
	int ret = pst_hipobj_cancel_parse(&source, &cancel);

	if (ret) {
		message_fail(req, ret);
		return;
	}
	/* If the session has already ended, the CANCEL succeeds. */
	gw_session_free(gw_rdma_session(req->server->rdma, cancel.session, req->identity->name));
	gw_reply_empty(req, 200);
	put_protocol(req);
}
