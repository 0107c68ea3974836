/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the check of signatures and rights, see auth.h. */
#include "auth.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "route.h"

/* Returns the name of a header on which the gateway acts and that occurs twice, or NULL. Such a
 * request is refused, because a proxy on the way could have acted on the other value. */
static const char *double_header_find(const struct gw_request *req)
{
	static const char *const single[] = {"authorization",	  "content-length", "content-md5",
					     "content-type",	  "host",	    "if-match",
					     "if-none-match",	  "range",	    "date",
					     "transfer-encoding", "expect"};

	for (unsigned i = 0; i < req->http->header_count; i++) {
		const char *name = req->http->headers[i].name;
		bool matters = !strncmp(name, "x-amz-", 6);

		for (unsigned j = 0; j < sizeof(single) / sizeof(single[0]); j++)
			matters = matters || !strcmp(name, single[j]);
		for (unsigned j = i + 1; matters && j < req->http->header_count; j++)
			if (!strcmp(name, req->http->headers[j].name))
				return name;
	}
	return NULL;
}

static bool refuse(struct gw_request *req, enum pst_sigv4_result result)
{
	enum gw_error error = gw_error_find(pst_sigv4_code(result));

	if (error == GW_AuthorizationHeaderMalformed && gw_param_find(req, "X-Amz-Algorithm"))
		error = GW_AuthorizationQueryParametersError;
	/* The hint becomes the element Region of the error. Some clients, such as s3cmd, then sign
	 * the request again for this region. */
	if (result == PST_SIGV4_WRONG_REGION)
		req->hint = req->server->region;
	if (result == PST_SIGV4_WRONG_REGION)
		gw_fail(req, error, "The region or the service is wrong; expecting '%s' and s3",
			req->server->region ? req->server->region : "any");
	else if (result == PST_SIGV4_OLD_VERSION)
		gw_fail(req, error,
			"The authorization mechanism you have provided is not supported. Please "
			"use AWS4-HMAC-SHA256.");
	else
		gw_fail(req, error, result == PST_SIGV4_EXPIRED ? "Request has expired" : NULL);
	return false;
}

/* Checks the request's signature. On an error, fills the reply and returns false. */
static bool signature_check(struct gw_request *req)
{
	const char *payload = gw_header(req, "x-amz-content-sha256");
	struct pst_sigv4_request signed_request = {
		.method = req->http->method,
		.path = req->path,
		.query = req->query,
		.headers = req->http->headers,
		.header_count = req->http->header_count,
		.payload = payload ? payload : PST_SIGV4_UNSIGNED,
	};
	enum pst_sigv4_result result;

	req->claim = calloc(1, sizeof(*req->claim));
	if (!req->claim) {
		gw_fail(req, GW_SlowDown, NULL);
		return false;
	}
	result = pst_sigv4_claim(&signed_request, req->claim);
	if (result != PST_SIGV4_OK)
		return refuse(req, result);
	if (!req->claim->presigned && !payload) {
		gw_fail(req, GW_InvalidRequest,
			"Missing required header for this request: x-amz-content-sha256");
		return false;
	}
	pthread_mutex_lock(&req->server->keys_lock);
	req->keys = gw_keys_hold(req->server->keys);
	pthread_mutex_unlock(&req->server->keys_lock);
	req->identity = gw_keys_find(req->keys, req->claim->access_key);
	result = pst_sigv4_verify(
		&signed_request, req->claim, req->identity ? req->identity->secret : NULL,
		req->identity ? req->identity->day : NULL, req->server->region, time(NULL));
	return result == PST_SIGV4_OK || refuse(req, result);
}

bool gw_auth_rights(struct gw_request *req)
{
	if ((req->bucket && !gw_key_allows(req->identity, req->bucket)) ||
	    (req->op->write && !req->identity->write)) {
		gw_fail(req, GW_AccessDenied, NULL);
		return false;
	}
	return true;
}

bool gw_auth(struct gw_request *req)
{
	const char *twice = double_header_find(req);

	if (twice) {
		gw_fail(req, GW_InvalidRequest, "The header %s is there twice.", twice);
		return false;
	}
	if (req->http->ambiguous) {
		gw_fail(req, GW_InvalidRequest,
			"The end of the body is ambiguous: send either Content-Length or "
			"Transfer-Encoding: chunked.");
		return false;
	}
	if (!signature_check(req)) {
		atomic_fetch_add(&req->server->metrics.refused_auth, 1);
		return false;
	}
	return gw_auth_rights(req);
}

bool gw_auth_may_read(const struct gw_request *req, const char *bucket)
{
	return gw_key_allows(req->identity, bucket);
}
