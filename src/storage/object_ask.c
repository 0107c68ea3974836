/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements penstock_s3_ask: small requests about objects and buckets, such as HEAD requests,
 * lists and deletions. They use the same keys, servers and connections as transfers of objects.
 * Programs and bindings call it. All strings of the caller are checked before they are sent, so
 * that none of them can add a header or change the request in another way.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/struct_copy.h"
#include "s3/credentials.h"
#include "storage/object_request.h"

/* Maximum number of headers of the caller. This file adds further headers, and all together are at
 * most PST_OBJECT_HEADERS_MAX. */
#define HEADERS_MAX 4u
/* Maximum wait in seconds for the reply to a copy inside the object store. A server may reply only
 * after it has copied all bytes, at most 5 GiB. An earlier repeat of the request would begin the
 * copy anew. */
#define COPY_PATIENCE_S 600u

static bool method_is_known(const char *method)
{
	return !strcmp(method, "HEAD") || !strcmp(method, "GET") || !strcmp(method, "PUT") ||
	       !strcmp(method, "DELETE");
}

/* Returns whether all bytes are printable ASCII, and none is in `without`. */
static bool is_printable(const char *text, const char *without)
{
	for (; *text; text++)
		if (*text < ' ' || *text > '~' || strchr(without, *text))
			return false;
	return true;
}

/* Checks the caller's request, and stores the number of its headers in *headers. */
static int ask_check(const struct penstock_s3_question *ask, unsigned *headers, struct pst_err *err)
{
	*headers = 0;
	if (!ask->url || !ask->method)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "the URL or the method is NULL");
	if (strncmp(ask->url, "s3://", 5) != 0)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"a request needs a URL s3://BUCKET/KEY or s3://BUCKET/");
	if (!method_is_known(ask->method))
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"the method must be HEAD, GET, PUT or DELETE");
	if (ask->query && !is_printable(ask->query, " #"))
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"the query must be percent-encoded");
	for (; ask->headers && ask->headers[2 * *headers]; ++*headers) {
		const char *name = ask->headers[2 * *headers],
			   *value = ask->headers[2 * *headers + 1];

		if (*headers == HEADERS_MAX)
			return pst_fail_errno(err, E2BIG, PENSTOCK_WHY_BAD_ARGUMENT,
					      "a request has at most %u headers", HEADERS_MAX);
		if (!*name || !value ||
		    name[strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-")] ||
		    !is_printable(value, ""))
			return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
					"header '%.40s' is not in lower case, or has no printable "
					"value",
					name);
	}
	return 0;
}

/* Sends the request. If the server replies that the bucket is in another region, sends the request
 * once more to that region. */
static int ask_run(const struct penstock_s3_question *ask, unsigned headers, size_t body_max,
		   struct pst_object_place *place, struct pst_object_call *call,
		   struct pst_err *err)
{
	int ret;

	for (;;) {
		memset(call, 0, sizeof(*call));
		pst_object_call_init(call, place, ask->method, ask->query ? ask->query : "");
		for (unsigned i = 0; i < headers; i++) {
			pst_object_call_header(call, ask->headers[2 * i], ask->headers[2 * i + 1]);
			if (!strcmp(ask->headers[2 * i], "x-amz-copy-source") &&
			    call->http.patience_s < COPY_PATIENCE_S)
				call->http.patience_s = COPY_PATIENCE_S;
		}
		/* A PUT without a body gets Content-Length: 0, because some servers wait for a body
		 * otherwise. */
		call->sends = !strcmp(ask->method, "PUT");
		if (body_max >= PST_HTTP_TEXT_MAX)
			call->http.text_max = body_max + 1;
		ret = pst_object_call_run(call, err);
		if (ret || !call->http.head.region[0] || call->http.head.status / 100 == 2 ||
		    pst_object_place_move(place, call->http.head.region, err))
			return ret;
		pst_object_call_clear(call);
	}
}

int penstock_s3_give_keys(const char *profile, const char *access_key, const char *secret,
			  const char *session_token)
{
	char why[PENSTOCK_TEXT_MAX] = "";
	int ret;

	if (!profile || (access_key && !secret))
		return pst_fail_null(profile ? "the secret" : "the profile");
	ret = pst_s3_keys_give(profile, access_key, secret, session_token, why, sizeof(why));
	return ret ? pst_fail_errno(NULL, -ret, PENSTOCK_WHY_BAD_ARGUMENT, "%.200s", why) : 0;
}

/* Copies the response to the caller. Returns the length of its body in bytes. */
static int64_t ask_answer(const struct pst_object_call *call, char *body, size_t body_max,
			  struct pst_err *err)
{
	const struct pst_text *text = &call->http.text;

	if (text->failed)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for an answer");
	if (text->len > body_max)
		return pst_fail_errno(err, E2BIG, PENSTOCK_WHY_BAD_ARGUMENT,
				      "%s: the answer has more than %zu bytes: ask for less",
				      call->place->url.name, body_max);
	if (text->len)
		memcpy(body, text->at, text->len);
	return (int64_t)text->len;
}

int64_t penstock_s3_ask(const struct penstock_s3_question *from, struct penstock_s3_answer *answer,
			void *body, size_t body_max)
{
	struct penstock_s3_answer ours = {.size = sizeof(ours)};
	struct pst_err err = {0, PENSTOCK_WHY_NONE, ""};
	struct penstock_s3_question ask;
	struct pst_object_place place;
	struct pst_object_call call;
	unsigned headers;
	int64_t ret;

	if (!from || !answer || (!body && body_max))
		return pst_fail_null(from ? answer ? "the body" : "the answer" : "the request");
	ret = pst_struct_copy_in(&ask, sizeof(ask), from, "penstock_s3_question", &err);
	if (!ret)
		ret = ask_check(&ask, &headers, &err);
	if (!ret)
		ret = pst_object_place_open(ask.url, &place, &err);
	if (ret)
		return pst_err_publish(&err);
	ret = ask_run(&ask, headers, body_max, &place, &call, &err);
	if (!ret) {
		ours.status = call.http.head.status;
		ours.length = call.http.head.has_length ? call.http.head.length : 0;
		memcpy(ours.etag, call.http.head.etag, sizeof(ours.etag));
		memcpy(ours.modified, call.http.head.modified, sizeof(ours.modified));
		ret = pst_object_call_result(&call, "ask", &err);
		if (!ret)
			ret = ask_answer(&call, body, body_max, &err);
		if (pst_struct_copy_out(answer, &ours, sizeof(ours)))
			ret = pst_fail(&err, PENSTOCK_WHY_BAD_ARGUMENT,
				       "the size of the answer is not set");
	}
	pst_object_call_clear(&call);
	pst_object_place_close(&place);
	return ret < 0 ? pst_err_publish(&err) : ret;
}
