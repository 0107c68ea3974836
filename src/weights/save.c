/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes tensors as a safetensors file: header, then the tensors without gaps, into an
 * object that takes its name when it is committed. Called by bindings and programs; it
 * never leaves half a file where a whole one was.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "job/json_pull.h"
#include "weights/weights.h"

#define PAGE 4096u
#define PAGES_FROM (1u << 20) /* from here on the data begin with a page */
#define SEGS 1024u	      /* of one request */

struct text {
	char *at;
	size_t len, room;
	bool failed;
};

static void put(struct text *t, const char *bytes, size_t len)
{
	if (!t->failed && t->room - t->len < len + 1) {
		size_t room = t->room * 2 + len + 4096;
		char *more = realloc(t->at, room);

		t->failed = !more;
		t->at = more ? more : t->at;
		t->room = more ? room : t->room;
	}
	if (t->failed)
		return;
	memcpy(t->at + t->len, bytes, len);
	t->len += len;
	t->at[t->len] = '\0';
}

static void put_text(struct text *t, const char *text)
{
	put(t, text, strlen(text));
}

static void put_number(struct text *t, uint64_t n)
{
	char digits[24];

	put(t, digits, (size_t)snprintf(digits, sizeof(digits), "%llu", (unsigned long long)n));
}

static void put_string(struct text *t, const char *s)
{
	char escape[8];

	put_text(t, "\"");
	for (; *s; s++) {
		unsigned char c = (unsigned char)*s;

		if (c == '"' || c == '\\')
			put(t, escape, (size_t)snprintf(escape, sizeof(escape), "\\%c", c));
		else if (c < 0x20)
			put(t, escape, (size_t)snprintf(escape, sizeof(escape), "\\u%04x", c));
		else
			put(t, s, 1);
	}
	put_text(t, "\"");
}

/* ---- what goes where ---- */

struct item {
	struct penstock_out t;
	uint64_t bytes;
};

static int wrong(const char *path, const char *name, const char *what)
{
	return pst_weights_fail(EINVAL, PENSTOCK_WHY_BAD_ARGUMENT, path, name, PST_NO_OFF, "%s",
				what);
}

static int by_size_and_name(const void *a, const void *b)
{
	const struct penstock_out *x = &((const struct item *)a)->t;
	const struct penstock_out *y = &((const struct item *)b)->t;
	unsigned bits_x = penstock_dtype_bits(x->dtype), bits_y = penstock_dtype_bits(y->dtype);

	if (bits_x != bits_y)
		return bits_x > bits_y ? -1 : 1;
	return strcmp(x->name, y->name);
}

static int take_items(const char *path, const struct penstock_out *tensors, uint64_t count,
		      struct item *items)
{
	for (uint64_t i = 0; i < count; i++) {
		struct item *item = &items[i];
		const char *from = (const char *)tensors + i * tensors[0].size;
		int ret = pst_weights_take(&item->t, sizeof(item->t), from, "penstock_out");

		if (ret)
			return ret;
		if (!item->t.name || !strcmp(item->t.name, PST_ST_METADATA) ||
		    item->t.rank > PENSTOCK_RANK_MAX || (item->t.rank && !item->t.shape) ||
		    item->t.dtype == PENSTOCK_DTYPE_NONE ||
		    (unsigned)item->t.dtype >= PENSTOCK_DTYPES)
			return wrong(path, item->t.name,
				     "no name, dtype or shape that a file can "
				     "hold");
		if (!pst_st_bytes(item->t.dtype, item->t.shape, item->t.rank, &item->bytes))
			return wrong(path, item->t.name,
				     "its shape has too many elements, or no whole bytes");
		if (item->bytes && !item->t.ptr)
			return wrong(path, item->t.name, "it has no address");
	}
	qsort(items, count, sizeof(*items), by_size_and_name);
	return 0;
}

static void put_metadata(struct text *t, const struct penstock_save_opts *opts)
{
	if (!opts->keys)
		return;
	put_string(t, PST_ST_METADATA);
	put_text(t, ":{");
	for (unsigned i = 0; i < opts->pair_count; i++) {
		put_text(t, i ? "," : "");
		put_string(t, opts->keys[i]);
		put_text(t, ":");
		put_string(t, opts->values[i]);
	}
	put_text(t, "}");
}

static uint64_t put_header(struct text *t, const struct item *items, uint64_t count,
			   const struct penstock_save_opts *opts)
{
	uint64_t at = 0, step;
	size_t pad;

	put(t, "\0\0\0\0\0\0\0\0{", PST_ST_PREFIX + 1);
	put_metadata(t, opts);
	for (uint64_t i = 0; i < count; i++) {
		put_text(t, i || opts->keys ? "," : "");
		put_string(t, items[i].t.name);
		put_text(t, ":{\"dtype\":\"");
		put_text(t, penstock_dtype_name(items[i].t.dtype));
		put_text(t, "\",\"shape\":[");
		for (unsigned d = 0; d < items[i].t.rank; d++) {
			put_text(t, d ? "," : "");
			put_number(t, items[i].t.shape[d]);
		}
		put_text(t, "],\"data_offsets\":[");
		put_number(t, at);
		put_text(t, ",");
		at += items[i].bytes;
		put_number(t, at);
		put_text(t, "]}");
	}
	put_text(t, "}");
	step = at >= PAGES_FROM ? PAGE : 8;
	for (pad = (size_t)(-t->len % step); pad; pad--)
		put_text(t, " ");
	return at;
}

/* By the reader: text that is no UTF-8, names twice, more than it takes. */
static int check_header(const char *path, const struct text *t, uint64_t data_len)
{
	size_t len = t->len - PST_ST_PREFIX;
	char *copy = malloc(len + 1);
	struct pst_st_error err;
	struct pst_st st;
	int ret;

	if (!copy)
		return pst_weights_no_memory("a header");
	memcpy(copy, t->at + PST_ST_PREFIX, len);
	ret = pst_st_parse(copy, len, data_len, &st, &err);
	if (ret == -ENOMEM)
		return pst_weights_no_memory("a header");
	if (ret || len > PST_ST_HEADER_MAX)
		return wrong(path, ret ? err.tensor : NULL,
			     ret ? err.text : "the header would have more than 100 MB");
	pst_st_free(&st);
	return 0;
}

/* ---- moving ---- */

struct job {
	const char *path;
	struct pst_load load;
	struct penstock_storage *st;
	struct penstock_queue *q;
	struct pst_bits bits;
};

static int lib_fail(const struct job *job, int code)
{
	return pst_weights_retell(code, job->path, NULL, PST_NO_OFF);
}

/* Until the request has ended, also if the caller wants no more of it. */
static int await(struct job *job, uint64_t id)
{
	struct penstock_done done;
	int n, ret = 0;

	while ((n = penstock_wait(job->q, &done, 1, 1, pst_load_patience(&job->load))) == 0) {
		if (!ret && pst_load_look(&job->load)) {
			ret = job->load.failed;
			penstock_cancel(job->q, id); /* it may have ended */
		}
	}
	if (n < 0)
		return lib_fail(job, n);
	pst_load_count(&job->load, done.result, done.report);
	if (ret || done.result >= 0)
		return ret ? ret : pst_load_look(&job->load);
	return pst_weights_fail((int)done.result, done.report->why, job->path, NULL, PST_NO_OFF,
				"%s", done.report->text);
}

static int write_bits(struct job *job, size_t first, size_t count)
{
	struct penstock_req req;
	uint64_t id;
	int n;

	pst_load_request(&job->load, &req);
	req.storage = job->st;
	req.op = PENSTOCK_WRITE;
	req.segs = &job->bits.list[first].seg;
	req.seg_count = (unsigned)count;
	req.seg_size = sizeof(job->bits.list[0]);
	n = penstock_submit(job->q, &req, 1, &id);
	return n == 1 ? await(job, id) : lib_fail(job, n);
}

static int write_all(struct job *job)
{
	for (size_t at = 0; at < job->bits.count;) {
		size_t left = job->bits.count - at, count = left < SEGS ? left : SEGS;
		int ret = write_bits(job, at, count);

		if (ret)
			return ret;
		at += count;
	}
	return 0;
}

static int list_bits(struct job *job, const struct text *header, const struct item *items,
		     uint64_t count, struct penstock_device *host)
{
	struct penstock_seg seg = {.buf = header->at, .dev = host, .row_len = header->len};
	uint64_t at = header->len;
	int ret;

	job->bits.apart = true;
	ret = pst_bits_add(&job->bits, 0, &seg);
	for (uint64_t i = 0; i < count && !ret; i++) {
		seg = (struct penstock_seg){.buf = (void *)(uintptr_t)items[i].t.ptr,
					    .dev = items[i].t.dev,
					    .off = at,
					    .row_len = items[i].bytes};
		if (seg.row_len && !seg.dev && penstock_device_of(seg.buf, &seg.dev))
			return wrong(job->path, items[i].t.name, "it is on no open device");
		ret = pst_bits_add(&job->bits, 0, &seg);
		at += items[i].bytes;
	}
	return ret;
}

/* By the name by which it is read again: a colon in it makes no address. */
static int open_file(struct job *job, const struct penstock_storage_opts *how)
{
	const char *path = job->path, *colon = strchr(path, ':'), *slash = strchr(path, '/');
	char name[PATH_MAX];

	if (!colon || (slash && slash < colon) || !strncmp(colon, "://", 3))
		return penstock_open(path, how, &job->st);
	if (snprintf(name, sizeof(name), "./%s", path) >= (int)sizeof(name))
		return penstock_fail(ENAMETOOLONG, PENSTOCK_WHY_NOT_FOUND, "%m");
	return penstock_open(name, how, &job->st);
}

static int write_file(struct job *job, struct text *header, uint64_t data_len,
		      const struct item *items, uint64_t count,
		      const struct penstock_save_opts *opts)
{
	struct penstock_storage_opts how = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_queue_opts queue = PENSTOCK_QUEUE_OPTS_INIT;
	struct penstock_device *host = NULL;
	int ret = penstock_device_open("host", NULL, &host);

	if (ret < 0)
		return lib_fail(job, ret);
	for (unsigned i = 0; i < PST_ST_PREFIX; i++)
		header->at[i] = (char)((header->len - PST_ST_PREFIX) >> 8 * i);
	how.flags = PENSTOCK_O_REPLACE;
	how.length = header->len + data_len;
	ret = open_file(job, &how);
	if (ret)
		lib_fail(job, ret);
	queue.requests_max = 1;
	queue.segs_max = SEGS;
	if (!ret) {
		ret = penstock_queue_open(&queue, &job->q);
		if (ret)
			lib_fail(job, ret);
	}
	if (!ret)
		ret = list_bits(job, header, items, count, host);
	if (!ret)
		ret = write_all(job);
	if (!ret) {
		ret = penstock_commit(job->st, opts->durable);
		if (ret)
			lib_fail(job, ret);
	}
	penstock_queue_close(job->q);
	penstock_close(job->st); /* uncommitted: nothing was there */
	penstock_device_close(host);
	return ret;
}

int penstock_weights_save(const char *path, const struct penstock_out *tensors, uint64_t count,
			  const struct penstock_save_opts *from,
			  struct penstock_load_report *report)
{
	struct penstock_save_opts opts;
	struct text header = {.at = NULL};
	struct job job = {.path = path};
	struct item *items;
	uint64_t data_len;
	int ret = pst_weights_take(&opts, sizeof(opts), from, "penstock_save_opts");

	if (ret)
		return ret;
	if (!path || (count && !tensors) || (opts.pair_count && (!opts.keys || !opts.values)))
		return wrong(path, NULL, "no path, or a count without its list");
	for (unsigned i = 0; i < opts.pair_count; i++)
		if (!opts.keys[i] || !opts.values[i])
			return wrong(path, NULL, "a key or a value is NULL");
	items = calloc(count ? count : 1, sizeof(*items));
	if (!items)
		return pst_weights_no_memory("the list of tensors");
	ret = pst_load_take(&job.load, NULL, NULL);
	job.load.opts.require = opts.require;
	job.load.opts.effort = opts.effort;
	job.load.opts.path = opts.path;
	job.load.opts.look = opts.look;
	job.load.opts.user = opts.user;
	if (!ret)
		ret = take_items(path, tensors, count, items);
	if (!ret) {
		data_len = put_header(&header, items, count, &opts);
		ret = header.failed ? pst_weights_no_memory("a header")
				    : check_header(path, &header, data_len);
		if (!ret)
			ret = write_file(&job, &header, data_len, items, count, &opts);
	}
	if (report)
		pst_load_report(&job.load, report);
	free(job.bits.list);
	free(header.at);
	free(items);
	return ret;
}
