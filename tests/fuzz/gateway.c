/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the parsers of the gateway. The first byte of the input selects a parser: for the target
 * and the headers of a request, for the XML of a request, for a key, or for a name of a file.
 * libFuzzer runs this target, or replay.c does with its corpus. Failures are: a path that leads out
 * of its bucket, a path that is parsed to another key than its own, a request with a key that is
 * too long, and an XML path that begins and does not end.
 */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "gateway/auth.h"
#include "gateway/condition.h"
#include "gateway/partlist.h"
#include "gateway/range.h"
#include "gateway/request.h"
#include "gateway/route.h"
#include "gateway/xml_read.h"
#include "gateway_key.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

static void check_key(const char *key, size_t len)
{
	char path[GW_PATH_MAX], back[GW_PATH_MAX];
	int ret = gw_keypath(key, len, path);

	if (ret < 0)
		return;
	if (gateway_key(path, back) != (long)len || memcmp(back, key, len) != 0)
		abort();
}

static void check_name(const char *text)
{
	char part[256], path[GW_PATH_MAX];
	size_t len;

	if (strchr(text, '/') || gw_name_parse(text, "", 0, part, &len) != GW_NAME_WHOLE)
		return;
	/* An empty component of a key, as in "a//b", has a special file name. No object has this
	 * file name alone as its path: `len` is then 0, and the target checks nothing. */
	if (len && (gw_keypath(part, len, path) < 0 || strcmp(path, text) != 0))
		abort();
}

static int xml_begin(void *user, const char *path)
{
	*(size_t *)user += strlen(path);
	return 0;
}

static int xml_end(void *user, const char *path, const char *text, size_t len)
{
	if (strlen(path) == 0 || text[len] != '\0')
		abort();
	*(size_t *)user -= strlen(path);
	return 0;
}

static void check_xml(const char *text, size_t len)
{
	static const struct gw_xml_calls calls = {xml_begin, xml_end};
	size_t open = 0;

	if (!gw_xml_read(text, len, &calls, &open) && open)
		abort();
}

/* Parses the lines of a text: the target, then headers as "name: value". */
static void check_request(char *text)
{
	static struct gw_server server;
	struct gw_http_request http = {.method = "PUT", .reply.fd = -1};
	struct gw_request *req = calloc(1, sizeof(*req));
	struct gw_object object = {.st.st_size = 100};
	uint64_t at, len;

	if (!req)
		return;
	http.target = strsep(&text, "\n");
	while (text && *text && http.header_count < 8) {
		char *value = strsep(&text, "\n"), *name = strsep(&value, ":");

		http.headers[http.header_count++] =
			(struct pst_header){name, value ? value + (*value == ' ') : ""};
	}
	req->http = &http;
	req->server = &server;
	req->query = "";
	req->bucket_fd = -1;
	if (gw_request_parse(req, "s3.test")) {
		if (req->key_len > GW_KEY_MAX || (req->key && strlen(req->key) != req->key_len))
			abort();
		if (req->key)
			check_key(req->key, req->key_len);
		gw_route(req);
	}
	gw_meta_add(&object.meta, "etag", "abc");
	gw_condition_check(req, "", &object);
	if (gw_range_parse(gw_header(req, "range"), 100, &at, &len) == GW_RANGE_OK &&
	    (at >= 100 || len > 100 - at || !len))
		abort();
	gw_meta_close(&object.meta);
	free(http.reply.headers.at);
	free(http.reply.body.at);
	gw_request_close(req);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	struct gw_partlist list = {0};
	uint64_t len;
	char *text;

	if (!len_bytes || len_bytes > 100000)
		return 0;
	text = malloc(len_bytes);
	if (!text)
		return 0;
	memcpy(text, data + 1, len_bytes - 1);
	text[len_bytes - 1] = '\0';
	switch (data[0]) {
	case 'r':
		check_request(text);
		break;
	case 'x':
		check_xml(text, len_bytes - 1);
		break;
	case 'k':
		check_key(text, len_bytes - 1);
		break;
	case 'n':
		check_name(text);
		break;
	case 'p':
		list.at = text;
		for (unsigned i = 0; i < 1000 && gw_partlist_next(&list, &len); i++)
			;
		break;
	}
	free(text);
	return 0;
}
