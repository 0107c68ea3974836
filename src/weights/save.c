/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes tensors to a safetensors file: first the header, then the tensors without gaps. The
 * new file gets its name only when it is committed, so a partial file never replaces an
 * existing file. Called by bindings and programs.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weights/err.h"
#include "weights/move.h"

#define PAGE 4096u
/* In a file of at least this many bytes, the tensors' data begin at a page boundary. */
#define PAGES_FROM (1u << 20)
#define SEGS 1024u /* Maximum number of segments of a request. */

struct text {
	char *at;
	size_t len, capacity;
	bool failed;
};

static void text_put(struct text *t, const char *bytes, size_t len)
{
	if (!t->failed && t->capacity - t->len < len + 1) {
		size_t capacity = t->capacity * 2 + len + 4096;
		char *more = realloc(t->at, capacity);

		t->failed = !more;
		t->at = more ? more : t->at;
		t->capacity = more ? capacity : t->capacity;
	}
	if (t->failed)
		return;
	memcpy(t->at + t->len, bytes, len);
	t->len += len;
	t->at[t->len] = '\0';
}

static void text_put_str(struct text *t, const char *text)
{
	text_put(t, text, strlen(text));
}

static void text_put_number(struct text *t, uint64_t n)
{
	char digits[24];

	text_put(t, digits,
		 (size_t)snprintf(digits, sizeof(digits), "%llu", (unsigned long long)n));
}

static void text_put_json(struct text *t, const char *s)
{
	char escape[8];

	text_put_str(t, "\"");
	for (; *s; s++) {
		unsigned char c = (unsigned char)*s;

		if (c == '"' || c == '\\')
			text_put(t, escape, (size_t)snprintf(escape, sizeof(escape), "\\%c", c));
		else if (c < 0x20)
			text_put(t, escape, (size_t)snprintf(escape, sizeof(escape), "\\u%04x", c));
		else
			text_put(t, s, 1);
	}
	text_put_str(t, "\"");
}

/* ---- the header ---- */

struct item {
	struct penstock_out t;
	uint64_t bytes;
};

static int save_fail(const char *path, const char *name, const char *what)
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

static int items_copy_in(const char *path, const struct penstock_out *tensors, uint64_t count,
			 struct item *items)
{
	for (uint64_t i = 0; i < count; i++) {
		struct item *item = &items[i];
		int ret = pst_weights_struct_at(&item->t, sizeof(item->t), tensors, i,
						"penstock_out");

		if (ret)
			return ret;
		if (!item->t.name || !strcmp(item->t.name, PST_ST_METADATA) ||
		    item->t.rank > PENSTOCK_RANK_MAX || (item->t.rank && !item->t.shape) ||
		    item->t.dtype == PENSTOCK_DTYPE_NONE ||
		    (unsigned)item->t.dtype >= PENSTOCK_DTYPES)
			return save_fail(path, item->t.name,
					 "its name, dtype or shape cannot be written to a file");
		if (!pst_st_bytes(item->t.dtype, item->t.shape, item->t.rank, &item->bytes))
			return save_fail(path, item->t.name,
					 "its shape has too many elements, or no whole bytes");
		if (item->bytes && !item->t.ptr)
			return save_fail(path, item->t.name, "its address is NULL");
	}
	qsort(items, count, sizeof(*items), by_size_and_name);
	return 0;
}

static void text_put_metadata(struct text *t, const struct penstock_save_opts *opts)
{
	if (!opts->keys)
		return;
	text_put_json(t, PST_ST_METADATA);
	text_put_str(t, ":{");
	for (unsigned i = 0; i < opts->pair_count; i++) {
		text_put_str(t, i ? "," : "");
		text_put_json(t, opts->keys[i]);
		text_put_str(t, ":");
		text_put_json(t, opts->values[i]);
	}
	text_put_str(t, "}");
}

static uint64_t text_put_header(struct text *t, const struct item *items, uint64_t count,
				const struct penstock_save_opts *opts)
{
	uint64_t at = 0, step;
	size_t pad;

	text_put(t, "\0\0\0\0\0\0\0\0{", PST_ST_PREFIX + 1);
	text_put_metadata(t, opts);
	for (uint64_t i = 0; i < count; i++) {
		text_put_str(t, i || opts->keys ? "," : "");
		text_put_json(t, items[i].t.name);
		text_put_str(t, ":{\"dtype\":\"");
		text_put_str(t, penstock_dtype_name(items[i].t.dtype));
		text_put_str(t, "\",\"shape\":[");
		for (unsigned d = 0; d < items[i].t.rank; d++) {
			text_put_str(t, d ? "," : "");
			text_put_number(t, items[i].t.shape[d]);
		}
		text_put_str(t, "],\"data_offsets\":[");
		text_put_number(t, at);
		text_put_str(t, ",");
		at += items[i].bytes;
		text_put_number(t, at);
		text_put_str(t, "]}");
	}
	text_put_str(t, "}");
	step = at >= PAGES_FROM ? PAGE : 8;
	for (pad = (size_t)(-t->len % step); pad; pad--)
		text_put_str(t, " ");
	return at;
}

/* Checks the header with the parser. The parser finds text that is not UTF-8, duplicate names,
 * and a header that is too long. */
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
		return save_fail(path, ret ? err.tensor : NULL,
				 ret ? err.text : "the header would have more than 100 MB");
	pst_st_free(&st);
	return 0;
}

/* ---- writing ---- */

struct save {
	const char *path;
	struct pst_load load;
	struct penstock_storage *st;
	struct penstock_queue *q;
	struct pst_extents extents;
};

static int save_fail_lib(const struct save *save, int code)
{
	return pst_weights_fail_lib(code, save->path, NULL, PST_NO_OFF);
}

/* Waits until the request has completed. If the caller cancels the save during the wait, cancels
 * the request, but still waits for it to complete. */
static int request_await(struct save *save, uint64_t id)
{
	struct penstock_done done;
	int n, ret = 0;

	while ((n = penstock_wait(save->q, &done, 1, 1, pst_load_wait_ns(&save->load))) == 0) {
		if (!ret && pst_load_poll_caller(&save->load)) {
			ret = save->load.failed;
			/* penstock_cancel fails if the request has completed already; that does
			 * no harm. */
			penstock_cancel(save->q, id);
		}
	}
	if (n < 0)
		return save_fail_lib(save, n);
	pst_load_add_report(&save->load, done.result, done.report);
	if (ret || done.result >= 0)
		return ret ? ret : pst_load_poll_caller(&save->load);
	return pst_weights_fail((int)done.result, done.report->why, save->path, NULL, PST_NO_OFF,
				"%s", done.report->text);
}

static int write_extents(struct save *save, size_t first, size_t count)
{
	struct penstock_req req;
	uint64_t id;
	int n;

	pst_load_request(&save->load, &req);
	req.storage = save->st;
	req.op = PENSTOCK_WRITE;
	req.segs = &save->extents.list[first].seg;
	req.seg_count = (unsigned)count;
	req.seg_size = sizeof(save->extents.list[0]);
	n = penstock_submit(save->q, &req, 1, &id);
	return n == 1 ? request_await(save, id) : save_fail_lib(save, n);
}

static int write_all(struct save *save)
{
	for (size_t at = 0; at < save->extents.count;) {
		size_t left = save->extents.count - at, count = left < SEGS ? left : SEGS;
		int ret = write_extents(save, at, count);

		if (ret)
			return ret;
		at += count;
	}
	return 0;
}

static int list_extents(struct save *save, const struct text *header, const struct item *items,
			uint64_t count, struct penstock_device *host)
{
	struct penstock_seg seg = {.buf = header->at, .dev = host, .row_len = header->len};
	uint64_t at = header->len;
	int ret;

	save->extents.apart = true;
	ret = pst_extents_add(&save->extents, 0, &seg);
	for (uint64_t i = 0; i < count && !ret; i++) {
		seg = (struct penstock_seg){.buf = (void *)(uintptr_t)items[i].t.ptr,
					    .dev = items[i].t.dev,
					    .off = at,
					    .row_len = items[i].bytes};
		if (seg.row_len && !seg.dev && penstock_device_of(seg.buf, &seg.dev))
			return save_fail(save->path, items[i].t.name,
					 "it is not on an open device");
		ret = pst_extents_add(&save->extents, 0, &seg);
		at += items[i].bytes;
	}
	return ret;
}

/* Opens the output file. The name is always treated as a path, as in the functions that read
 * models. So a name with a colon is not taken for the address of another kind of storage. */
static int open_output(struct save *save, const struct penstock_storage_opts *how)
{
	const char *path = save->path, *colon = strchr(path, ':'), *slash = strchr(path, '/');
	char name[PATH_MAX];

	if (!colon || (slash && slash < colon) || !strncmp(colon, "://", 3))
		return penstock_open(path, how, &save->st);
	if (snprintf(name, sizeof(name), "./%s", path) >= (int)sizeof(name))
		return penstock_fail(ENAMETOOLONG, PENSTOCK_WHY_NOT_FOUND, "%m");
	return penstock_open(name, how, &save->st);
}

static int write_file(struct save *save, struct text *header, uint64_t data_len,
		      const struct item *items, uint64_t count,
		      const struct penstock_save_opts *opts)
{
	struct penstock_storage_opts how = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_queue_opts queue = PENSTOCK_QUEUE_OPTS_INIT;
	struct penstock_device *host = NULL;
	int ret = penstock_device_open("host", NULL, &host);

	if (ret < 0)
		return save_fail_lib(save, ret);
	for (unsigned i = 0; i < PST_ST_PREFIX; i++)
		header->at[i] = (char)((header->len - PST_ST_PREFIX) >> 8 * i);
	how.flags = PENSTOCK_O_REPLACE;
	how.length = header->len + data_len;
	ret = open_output(save, &how);
	if (ret)
		save_fail_lib(save, ret);
	queue.requests_max = 1;
	queue.segs_max = SEGS;
	if (!ret) {
		ret = penstock_queue_open(&queue, &save->q);
		if (ret)
			save_fail_lib(save, ret);
	}
	if (!ret)
		ret = list_extents(save, header, items, count, host);
	if (!ret)
		ret = write_all(save);
	if (!ret) {
		ret = penstock_commit(save->st, opts->durable);
		if (ret)
			save_fail_lib(save, ret);
	}
	penstock_queue_close(save->q);
	/* If the file was not committed, closing it removes what was written. */
	penstock_close(save->st);
	penstock_device_close(host);
	return ret;
}

int penstock_weights_save(const char *path, const struct penstock_out *tensors, uint64_t count,
			  const struct penstock_save_opts *from,
			  struct penstock_load_report *report)
{
	struct penstock_save_opts opts;
	struct text header = {.at = NULL};
	struct save save = {.path = path};
	struct item *items;
	uint64_t data_len;
	int ret = pst_weights_struct_in(&opts, sizeof(opts), from, "penstock_save_opts");

	if (ret)
		return ret;
	if (!path || (count && !tensors) || (opts.pair_count && (!opts.keys || !opts.values)))
		return save_fail(path, NULL, "no path, or a count without its list");
	for (unsigned i = 0; i < opts.pair_count; i++)
		if (!opts.keys[i] || !opts.values[i])
			return save_fail(path, NULL, "a key or a value is NULL");
	items = calloc(count ? count : 1, sizeof(*items));
	if (!items)
		return pst_weights_no_memory("the list of tensors");
	ret = pst_load_init(&save.load, NULL, NULL);
	save.load.opts.require = opts.require;
	save.load.opts.effort = opts.effort;
	save.load.opts.path = opts.path;
	save.load.opts.look = opts.look;
	save.load.opts.user = opts.user;
	if (!ret)
		ret = items_copy_in(path, tensors, count, items);
	if (!ret) {
		data_len = text_put_header(&header, items, count, &opts);
		ret = header.failed ? pst_weights_no_memory("a header")
				    : check_header(path, &header, data_len);
		if (!ret)
			ret = write_file(&save, &header, data_len, items, count, &opts);
	}
	if (report)
		pst_load_report(&save.load, report);
	free(save.extents.list);
	free(header.at);
	free(items);
	return ret;
}
