/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests an object store with the client of the library: see store.h. The first request asks for the
 * object, with a short time limit, so that a server that does not respond is detected soon. If the
 * server grants this request, the test reads a range of the object with penstock_transfer. A server
 * without a bucket, such as http://host, gets one request that is not signed.
 */
#include "store.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/clock.h"
#include "storage/object_request.h"

#define READ_MAX (4u << 20)
#define SLOW_S 3 /* maximum time in s to connect */

__attribute__((format(printf, 4, 5))) static void
store_fail(struct pst_check_store *s, enum pst_store_step step, int code, const char *fmt, ...)
{
	va_list args;

	s->failed = step;
	s->code = code;
	va_start(args, fmt);
	vsnprintf(s->text, sizeof(s->text), fmt, args);
	va_end(args);
}

/* Writes the URL of the first request. If the target is a server without a path, the URL gets a
 * bucket name that nobody uses. */
static bool url_write(const char *target, char *out, size_t out_len)
{
	const char *host = strstr(target, "://");
	size_t len = host ? strcspn(host + 3, "/?#") : 0;
	bool is_server = strncmp(target, "s3://", 5) != 0 &&
			 (!host[3 + len] || !strcmp(host + 3 + len, "/"));
	int n = is_server ? snprintf(out, out_len,
				     "s3://penstock-check/"
				     "?anonymous=1&path-style=1&region=us-east-1&endpoint=%.*s",
				     (int)(host + 3 + len - target), target)
			  : snprintf(out, out_len, "%s", target);

	return n >= 0 && (size_t)n < out_len;
}

/* Finds out which step made pst_object_place_open fail with `err`. */
static void place_failed(const char *text, const struct pst_err *err, struct pst_check_store *s)
{
	enum pst_store_step step = PST_STORE_NAME;
	struct pst_s3_settings settings;
	struct pst_object_url url;
	struct pst_err other;
	char why[PENSTOCK_TEXT_MAX];
	int ret = pst_object_url_parse(text, &url, &other);

	if (ret) {
		step = PST_STORE_URL;
	} else if (!url.presigned && !url.anonymous) {
		ret = pst_s3_settings_read(url.profile[0] ? url.profile : NULL, &settings, why,
					   sizeof(why));
		if (ret || !settings.access_key[0])
			step = PST_STORE_KEYS;
		pst_s3_settings_clear(&settings);
	}
	pst_object_url_clear(&url);
	store_fail(s, step, err->code, "%s", err->text);
}

static void place_describe(const struct pst_object_place *place, struct pst_check_store *s)
{
	const struct pst_object_url *url = &place->url;

	s->tls = place->server.tls;
	s->insecure = url->insecure;
	s->port = place->server.port;
	s->names_object = url->presigned || url->key_len;
	snprintf(s->server, sizeof(s->server), "%s://%s", s->tls ? "https" : "http", place->host);
	if (url->presigned)
		snprintf(s->keys, sizeof(s->keys), "none are needed: the URL is presigned");
	else if (url->anonymous)
		snprintf(s->keys, sizeof(s->keys), "none are used: requests are anonymous");
	else
		snprintf(s->keys, sizeof(s->keys), "from %.63s, region %.60s",
			 place->settings.source, place->settings.region);
}

/* Sends a HEAD request for the object or the bucket. A presigned URL is valid only for GET, so for
 * it sends a GET request for the first byte. */
static int store_ask(struct pst_object_place *place, struct pst_check_store *s, struct pst_err *err)
{
	struct pst_object_call call;
	uint64_t began_ns;
	int ret;

	for (;;) {
		began_ns = pst_now_ns();
		memset(&call, 0, sizeof(call));
		pst_object_call_init(&call, place, place->url.presigned ? "GET" : "HEAD", "");
		call.ranged = place->url.presigned;
		call.deadline_s = PST_STORE_ANSWER_S;
		call.http.slow_s = SLOW_S;
		ret = pst_object_call_run(&call, err);
		s->status = call.http.head.status;
		if (ret || s->status / 100 == 2 || !call.http.head.region[0] ||
		    pst_object_place_move(place, call.http.head.region, &(struct pst_err){0}))
			break;
		pst_object_call_clear(&call);
	}
	s->answer_ms = (double)(pst_now_ns() - began_ns) / 1e6;
	if (!ret)
		ret = pst_object_call_result(&call, "read", err);
	pst_object_call_clear(&call);
	return ret;
}

/* Stores which path and engine carried the bytes of a read, as its report says. */
static void read_describe(const struct pst_object_place *place,
			  const struct penstock_report *report, struct pst_check_store *s)
{
	s->bytes = report->bytes;
	s->read_ms = (double)(report->end_ns - report->start_ns) / 1e6;
	/* The client copies each byte once, from the window (memory that the server writes) to this
	 * test's buffer. More copies mean that a CPU filled the window. If nothing was written to a
	 * window, the client's CPU has copied the bytes out of the server's file. */
	s->by_cpu = report->cpu_copied > report->bytes || !report->dram_laid;
	snprintf(s->engine, sizeof(s->engine), "%s", report->engine);
	for (unsigned i = 0; i < report->path_count; i++) {
		const struct penstock_report_path *row = &report->paths[i];

		if (strcmp(row->name, "rdma") != 0)
			continue;
		s->by_rdma = row->bytes;
		if (row->text && row->why)
			snprintf(s->why_rdma, sizeof(s->why_rdma), "%s", row->text);
	}
	/* A server can use RDMA only if the library sends it a token. Without the URL option
	 * `rdma`, the library sends a token only to servers on this host. */
	s->rdma_not_asked = !s->by_rdma && place->url.rdma == PST_OBJECT_RDMA_AUTO &&
			    strstr(s->why_rdma, "another host");
}

/* Reads the first bytes of the object. */
static int store_read(const char *url, const struct pst_object_place *place,
		      struct pst_check_store *s)
{
	struct penstock_report report = PENSTOCK_REPORT_INIT;
	struct penstock_seg seg = {.rows = 1};
	struct penstock_req req = PENSTOCK_REQ_INIT;
	struct penstock_storage *st = NULL;
	struct penstock_device *dev = NULL;
	void *mem = NULL;
	int64_t ret = penstock_open(url, NULL, &st);

	if (!ret)
		ret = penstock_device_open("host", NULL, &dev);
	if (!ret)
		ret = penstock_alloc(dev, READ_MAX, &mem);
	if (!ret) {
		int64_t len = penstock_storage_length(st);

		seg.buf = mem;
		seg.dev = dev;
		seg.row_len = len > 0 && len < READ_MAX ? (uint64_t)len : READ_MAX;
		req.storage = st;
		req.segs = &seg;
		req.seg_count = 1;
		ret = len ? penstock_transfer(&req, &report) : 0;
		if (len && ret >= 0)
			read_describe(place, &report, s);
	}
	if (ret < 0)
		store_fail(s, PST_STORE_READ, (int)ret, "%s", penstock_errmsg());
	if (mem)
		penstock_free(dev, mem);
	penstock_device_close(dev);
	penstock_close(st);
	return ret < 0 ? (int)ret : 0;
}

void pst_check_store_try(const char *target, struct pst_check_store *s)
{
	struct pst_object_place *place = calloc(1, sizeof(*place));
	struct pst_err err = {0, PENSTOCK_WHY_NONE, ""};
	char url[8192];
	int ret;

	*s = (struct pst_check_store){.failed = PST_STORE_DONE};
	if (!place || !url_write(target, url, sizeof(url))) {
		store_fail(s, PST_STORE_URL, -EINVAL, "the URL is too long");
		free(place);
		return;
	}
	ret = pst_object_place_open(url, place, &err);
	if (ret) {
		place_failed(url, &err, s);
		free(place);
		return;
	}
	place_describe(place, s);
	ret = store_ask(place, s, &err);
	if (ret)
		store_fail(s, s->status ? PST_STORE_FOUND : PST_STORE_ANSWER, ret, "%s", err.text);
	else if (s->names_object)
		store_read(url, place, s);
	pst_object_place_close(place);
	free(place);
}
