/* SPDX-License-Identifier: Apache-2.0 */
/* Implements conditional requests, see condition.h. */
#include "condition.h"

#include <stdio.h>
#include <string.h>

bool gw_etag_matches(const char *list, const char *etag)
{
	while (*list) {
		size_t len;

		list += strspn(list, " \t,");
		if (!strncmp(list, "W/", 2))
			list += 2;
		len = strcspn(list, ",");
		while (len && (list[len - 1] == ' ' || list[len - 1] == '\t'))
			len--;
		if (len == 1 && *list == '*')
			return true;
		if (len >= 2 && list[0] == '"' && list[len - 1] == '"') {
			if (strlen(etag) == len - 2 && !strncmp(list + 1, etag, len - 2))
				return true;
		} else if (len && strlen(etag) == len && !strncmp(list, etag, len)) {
			return true;
		}
		list += strcspn(list, ",");
	}
	return false;
}

static const char *condition_header(const struct gw_request *req, const char *prefix,
				    const char *name)
{
	char full[64];

	snprintf(full, sizeof(full), "%s%s", prefix, name);
	return gw_header(req, full);
}

unsigned gw_condition_check(const struct gw_request *req, const char *prefix,
			    const struct gw_object *object)
{
	const char *etag = gw_meta_get(&object->meta, "etag");
	const char *match = condition_header(req, prefix, "if-match");
	const char *none = condition_header(req, prefix, "if-none-match");
	const char *since = condition_header(req, prefix, "if-modified-since");
	const char *unless = condition_header(req, prefix, "if-unmodified-since");
	/* 304 is an answer to GET and HEAD only. If a condition on the source of a copy fails, the
	 * answer is 412. */
	unsigned unchanged = *prefix ? 412 : 304;
	time_t when;

	if (match && !gw_etag_matches(match, etag))
		return 412;
	if (!match && unless && gw_http_date_parse(unless, &when) &&
	    object->st.st_mtim.tv_sec > when)
		return 412;
	if (none && gw_etag_matches(none, etag))
		return unchanged;
	if (!none && since && gw_http_date_parse(since, &when) && object->st.st_mtim.tv_sec <= when)
		return unchanged;
	return 0;
}

bool gw_condition_store(struct gw_request *req, bool *exclusive)
{
	const char *match = gw_header(req, "if-match"), *none = gw_header(req, "if-none-match");
	struct gw_object object;
	bool ok;
	int ret;

	*exclusive = none != NULL;
	if (none && strcmp(none, "*") != 0) {
		gw_fail(req, GW_NotImplemented,
			"If-None-Match of a request that stores must be *.");
		return false;
	}
	if (!match)
		return true;
	ret = gw_object_open(&req->server->store, req->bucket_fd, req->key, req->key_len, &object);
	if (ret) {
		gw_fail_errno(req, ret, GW_NoSuchKey);
		return false;
	}
	ok = gw_etag_matches(match, gw_meta_get(&object.meta, "etag"));
	gw_object_close(&object);
	if (!ok)
		gw_fail(req, GW_PreconditionFailed, NULL);
	return ok;
}
