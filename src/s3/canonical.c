/* SPDX-License-Identifier: Apache-2.0 */
/* Implements canonical.h. */
#include "s3/canonical.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "s3/uri.h"

/* A parameter of a query, encoded. */
struct param {
	const char *name, *value;
};

/* Appends a piece of a URI, decoded and then encoded again. Clients may encode the same characters
 * differently; encoding them again gives them one form. `scratch` has room for `len` + 1 bytes. */
static int uri_put_again(struct pst_text *out, const char *bytes, size_t len, bool path,
			 char *scratch)
{
	long n = pst_uri_parse(bytes, len, !path, scratch);

	if (n < 0)
		return (int)n;
	pst_uri_put(out, scratch, (size_t)n, path);
	return 0;
}

/* Appends the name and the value of each parameter with a NUL after each, and counts the
 * parameters. */
static int params_put(const char *query, char *scratch, struct pst_text *out, size_t *count)
{
	const char *name, *value;
	size_t name_len, value_len;

	while (pst_uri_next(&query, &name, &name_len, &value, &value_len)) {
		size_t start = out->len;
		int rc = uri_put_again(out, name, name_len, false, scratch);

		pst_text_put(out, "", 1);
		if (!rc && !out->failed && !strcmp(out->at + start, "X-Amz-Signature")) {
			out->len = start;
			continue;
		}
		rc = rc ? rc : uri_put_again(out, value, value_len, false, scratch);
		if (rc)
			return rc;
		pst_text_put(out, "", 1);
		if (++*count > PST_QUERY_MAX)
			return -EINVAL;
	}
	return out->failed ? -ENOMEM : 0;
}

static int param_compare(const void *a, const void *b)
{
	const struct param *left = a, *right = b;
	int order = strcmp(left->name, right->name);

	return order ? order : strcmp(left->value, right->value);
}

static int query_put(const char *query, struct pst_text *out)
{
	struct param params[PST_QUERY_MAX];
	char *scratch = malloc(strlen(query) + 1);
	struct pst_text parts = {0};
	size_t count = 0;
	int rc = scratch ? params_put(query, scratch, &parts, &count) : -ENOMEM;
	const char *at = parts.at;

	for (size_t i = 0; !rc && i < count; i++) {
		params[i].name = at;
		params[i].value = at + strlen(at) + 1;
		at = params[i].value + strlen(params[i].value) + 1;
	}
	if (!rc)
		qsort(params, count, sizeof(params[0]), param_compare);
	for (size_t i = 0; !rc && i < count; i++) {
		pst_text_put_str(out, i ? "&" : "");
		pst_text_put_str(out, params[i].name);
		pst_text_put_str(out, "=");
		pst_text_put_str(out, params[i].value);
	}
	free(parts.at);
	free(scratch);
	return rc;
}

static int path_put(const char *path, struct pst_text *out)
{
	size_t len = strlen(path);
	char *scratch = malloc(len + 1);
	int rc = scratch ? uri_put_again(out, path, len, true, scratch) : -ENOMEM;

	if (!len)
		pst_text_put_str(out, "/");
	free(scratch);
	return rc;
}

/* Appends a value without blanks at its ends, and with one space for each group of blanks. A line
 * break counts as a blank, so that a value cannot look like two headers. */
static void value_put(const char *value, struct pst_text *out)
{
	static const char blanks[] = " \t\r\n\v\f";
	bool first = true;

	for (value += strspn(value, blanks); *value; value += strspn(value, blanks)) {
		size_t len = strcspn(value, blanks);

		pst_text_put_str(out, first ? "" : " ");
		pst_text_put(out, value, len);
		value += len;
		first = false;
	}
}

/* Appends the line of one header. If a request has a header more than once, the line has all
 * values. */
static int header_put(const struct pst_sigv4_request *req, const char *name, size_t len,
		      struct pst_text *out)
{
	bool found = false;

	pst_text_put(out, name, len);
	pst_text_put_str(out, ":");
	for (unsigned i = 0; i < req->header_count; i++) {
		const struct pst_header *header = &req->headers[i];

		if (strlen(header->name) != len || memcmp(header->name, name, len))
			continue;
		pst_text_put_str(out, found ? "," : "");
		value_put(header->value, out);
		found = true;
	}
	pst_text_put_str(out, "\n");
	return found ? 0 : -ENOENT;
}

int pst_canonical_put(const struct pst_sigv4_request *req, const char *signed_headers,
		      const char *payload, struct pst_text *out)
{
	int rc;

	pst_text_put_str(out, req->method);
	pst_text_put_str(out, "\n");
	rc = path_put(req->path, out);
	pst_text_put_str(out, "\n");
	rc = rc ? rc : query_put(req->query, out);
	pst_text_put_str(out, "\n");
	for (const char *at = signed_headers; !rc && *at;) {
		size_t len = strcspn(at, ";");

		rc = header_put(req, at, len, out);
		at += len + (at[len] == ';');
	}
	pst_text_put_str(out, "\n");
	pst_text_put_str(out, signed_headers);
	pst_text_put_str(out, "\n");
	pst_text_put_str(out, payload);
	return !rc && out->failed ? -ENOMEM : rc;
}
