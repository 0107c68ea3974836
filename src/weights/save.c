/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes tensors to a safetensors file: first the header, then the tensors without gaps. The
 * new file gets its name only when it is committed, so a partial file never replaces an
 * existing file. Called by bindings and programs.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/text.h"
#include "penstock_ckpt.h"
#include "weights/err.h"
#include "weights/safetensors.h"

#define PAGE 4096u
/* In a file of at least this many bytes, the tensors' data begin at a page boundary. */
#define PAGES_FROM (1u << 20)

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

static void text_put_metadata(struct pst_text *t, const struct penstock_save_opts *opts)
{
	if (!opts->keys)
		return;
	pst_text_put_json(t, PST_ST_METADATA);
	pst_text_put_str(t, ":{");
	for (unsigned i = 0; i < opts->pair_count; i++) {
		pst_text_put_str(t, i ? "," : "");
		pst_text_put_json(t, opts->keys[i]);
		pst_text_put_str(t, ":");
		pst_text_put_json(t, opts->values[i]);
	}
	pst_text_put_str(t, "}");
}

static uint64_t text_put_header(struct pst_text *t, const struct item *items, uint64_t count,
				const struct penstock_save_opts *opts)
{
	uint64_t at = 0, step;
	size_t pad;

	pst_text_put(t, "\0\0\0\0\0\0\0\0{", PST_ST_PREFIX + 1);
	text_put_metadata(t, opts);
	for (uint64_t i = 0; i < count; i++) {
		pst_text_put_str(t, i || opts->keys ? "," : "");
		pst_text_put_json(t, items[i].t.name);
		pst_text_put_str(t, ":{\"dtype\":\"");
		pst_text_put_str(t, penstock_dtype_name(items[i].t.dtype));
		pst_text_put_str(t, "\",\"shape\":[");
		for (unsigned d = 0; d < items[i].t.rank; d++) {
			pst_text_put_str(t, d ? "," : "");
			pst_text_put_number(t, items[i].t.shape[d]);
		}
		pst_text_put_str(t, "],\"data_offsets\":[");
		pst_text_put_number(t, at);
		pst_text_put_str(t, ",");
		at += items[i].bytes;
		pst_text_put_number(t, at);
		pst_text_put_str(t, "]}");
	}
	pst_text_put_str(t, "}");
	step = at >= PAGES_FROM ? PAGE : 8;
	for (pad = (size_t)(-t->len % step); pad; pad--)
		pst_text_put_str(t, " ");
	return at;
}

/* Checks the header with the parser. The parser finds text that is not UTF-8, duplicate names,
 * and a header that is too long. */
static int check_header(const char *path, const struct pst_text *t, uint64_t data_len)
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

static int save_look(void *user, uint64_t bytes)
{
	const struct penstock_save_opts *opts = user;

	(void)bytes;
	return opts->look(opts->user);
}

/* Writes the header and the tensors with penstock_part_write, as the items of one file. */
static int write_file(const char *path, struct pst_text *header, const struct item *items,
		      uint64_t count, struct penstock_save_opts *opts,
		      struct penstock_load_report *report)
{
	struct penstock_part_opts how = PENSTOCK_PART_OPTS_INIT;
	struct penstock_item *parts = calloc(count + 1, sizeof(*parts));
	struct penstock_seg *segs = calloc(count + 1, sizeof(*segs));
	uint64_t at = header->len;
	int ret = parts && segs ? 0 : pst_weights_no_memory("the list of tensors");

	for (unsigned i = 0; i < PST_ST_PREFIX; i++)
		header->at[i] = (char)((header->len - PST_ST_PREFIX) >> 8 * i);
	if (!ret)
		segs[0] = (struct penstock_seg){.buf = header->at, .row_len = header->len};
	for (uint64_t i = 0; i < count && !ret; i++) {
		segs[i + 1] = (struct penstock_seg){.buf = (void *)(uintptr_t)items[i].t.ptr,
						    .dev = items[i].t.dev,
						    .off = at,
						    .row_len = items[i].bytes};
		at += items[i].bytes;
	}
	for (uint64_t i = 0; i <= count && !ret; i++)
		parts[i] = (struct penstock_item){.size = sizeof(parts[0]),
						  .name = i ? items[i - 1].t.name : NULL,
						  .off = segs[i].off,
						  .len = segs[i].row_len,
						  .segs = &segs[i],
						  .seg_count = 1};
	how.require = opts->require;
	how.effort = opts->effort;
	how.path = opts->path;
	how.durable = opts->durable;
	how.look = opts->look ? save_look : NULL;
	how.user = opts;
	if (!ret)
		ret = penstock_part_write(path, parts, count + 1, &how, report);
	free(segs);
	free(parts);
	return ret;
}

int penstock_weights_save(const char *path, const struct penstock_out *tensors, uint64_t count,
			  const struct penstock_save_opts *from,
			  struct penstock_load_report *report)
{
	struct penstock_save_opts opts;
	struct pst_text header = {.at = NULL};
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
	ret = items_copy_in(path, tensors, count, items);
	if (!ret) {
		data_len = text_put_header(&header, items, count, &opts);
		ret = header.failed ? pst_weights_no_memory("a header")
				    : check_header(path, &header, data_len);
		if (!ret)
			ret = write_file(path, &header, items, count, &opts, report);
	}
	free(header.at);
	free(items);
	return ret;
}
