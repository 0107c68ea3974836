/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes manifests. A manifest consists of lines of JSON: a head, a line for each part, and a tail
 * with the checksum of all lines before it:
 *
 *	{"penstock_manifest":1,"ranks":2}
 *	{"part":"__0_0.distcp","bytes":8192,"items":[["weight",0,4096,1234],["bias",4096,8,null]]}
 *	{"parts":1,"crc32c":305419896}
 *
 * An item is an array: its name or null, its offset, its length, and its checksum or null. A
 * manifest can list the marker, such as .metadata, as a part with one item. Readers then ignore the
 * manifest if the folder has another marker. Called by bindings and programs.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/manifest.h"
#include "ckpt/part.h"
#include "common/crc32c.h"
#include "common/text.h"
#include "common/utf8.h"
#include "weights/err.h"

static int write_fail(const char *path, const char *name, const char *what)
{
	return pst_weights_fail(EINVAL, PENSTOCK_WHY_BAD_ARGUMENT, path, name, PST_NO_OFF, "%s",
				what);
}

static int by_offset(const void *a, const void *b)
{
	const struct penstock_item *x = a, *y = b;

	if (x->off != y->off)
		return x->off < y->off ? -1 : 1;
	return x->len < y->len ? -1 : x->len > y->len;
}

/* Copies and checks the items (named ranges) of a part (a data file), and sorts them. */
static int items_copy_in(const char *path, const struct penstock_part *part,
			 struct penstock_item *items)
{
	uint64_t end = 0;

	for (uint64_t i = 0; i < part->item_count; i++) {
		int ret = pst_weights_struct_at(&items[i], sizeof(items[i]), part->items, i,
						"penstock_item");

		if (ret)
			return ret;
		if (items[i].flags & ~PST_ITEM_FLAGS)
			return write_fail(path, items[i].name, PST_ITEM_FLAG_UNKNOWN);
		if (items[i].name && !pst_utf8_valid(items[i].name))
			return write_fail(path, items[i].name, "the item's name is not UTF-8");
	}
	if (part->item_count)
		qsort(items, part->item_count, sizeof(*items), by_offset);
	for (uint64_t i = 0; i < part->item_count; i++) {
		if (items[i].off < end || items[i].len > part->bytes ||
		    items[i].off > part->bytes - items[i].len)
			return write_fail(path, items[i].name,
					  "the item overlaps another, or ends beyond its part");
		end = items[i].off + items[i].len;
	}
	return 0;
}

static void put_item(struct pst_text *t, const struct penstock_item *item)
{
	pst_text_put_str(t, "[");
	if (item->name)
		pst_text_put_json(t, item->name);
	else
		pst_text_put_str(t, "null");
	pst_text_put_str(t, ",");
	pst_text_put_number(t, item->off);
	pst_text_put_str(t, ",");
	pst_text_put_number(t, item->len);
	pst_text_put_str(t, ",");
	if (item->flags & PENSTOCK_ITEM_SUMMED)
		pst_text_put_number(t, item->crc32c);
	else
		pst_text_put_str(t, "null");
	pst_text_put_str(t, "]");
}

static int put_part(struct pst_text *t, const char *path, const struct penstock_part *part)
{
	struct penstock_item *items;
	int ret;

	if (!part->name || !pst_manifest_names_part(part->name))
		return write_fail(
			path, part->name,
			"a part's name is not UTF-8, is empty, or has a slash or dots only");
	if (part->bytes > INT64_MAX || (part->item_count && !part->items))
		return write_fail(path, part->name, "the part has no items, or is too long");
	items = calloc(part->item_count ? part->item_count : 1, sizeof(*items));
	if (!items)
		return pst_weights_no_memory("the list of items");
	ret = items_copy_in(path, part, items);
	pst_text_put_str(t, "{\"part\":");
	pst_text_put_json(t, part->name);
	pst_text_put_str(t, ",\"bytes\":");
	pst_text_put_number(t, part->bytes);
	pst_text_put_str(t, ",\"items\":[");
	for (uint64_t i = 0; i < part->item_count && !ret; i++) {
		pst_text_put_str(t, i ? "," : "");
		put_item(t, &items[i]);
	}
	pst_text_put_str(t, "]}\n");
	free(items);
	return ret;
}

static int put_all(struct pst_text *t, const char *path, unsigned ranks,
		   const struct penstock_part *parts, uint64_t count)
{
	struct penstock_part part;
	uint32_t crc;
	int ret = 0;

	pst_text_put_str(t, "{\"penstock_manifest\":1,\"ranks\":");
	pst_text_put_number(t, ranks);
	pst_text_put_str(t, "}\n");
	for (uint64_t i = 0; i < count && !ret; i++) {
		ret = pst_weights_struct_at(&part, sizeof(part), parts, i, "penstock_part");
		if (!ret)
			ret = put_part(t, path, &part);
	}
	if (ret || t->failed)
		return ret ? ret : pst_weights_no_memory("a manifest");
	crc = pst_crc32c_finish(pst_crc32c_raw(0, t->at, t->len), t->len);
	pst_text_put_str(t, "{\"parts\":");
	pst_text_put_number(t, count);
	pst_text_put_str(t, ",\"crc32c\":");
	pst_text_put_number(t, crc);
	pst_text_put_str(t, "}\n");
	return t->failed ? pst_weights_no_memory("a manifest") : 0;
}

/* Parses the text of the manifest before it is written, because manifest.c must be able to read it.
 * This also finds duplicate parts. */
static int check_text(const char *path, const struct pst_text *t)
{
	struct penstock_manifest *m = calloc(1, sizeof(*m));
	char *copy = malloc(t->len + 1);
	int ret;

	if (!m || !copy) {
		free(m);
		free(copy);
		return pst_weights_no_memory("a manifest");
	}
	memcpy(copy, t->at, t->len + 1);
	ret = pst_manifest_add(m, path, copy, t->len);
	if (!ret)
		ret = pst_manifest_sort(m, path);
	penstock_manifest_close(m);
	return ret == -EBADMSG ? pst_weights_fail(EINVAL, PENSTOCK_WHY_BAD_ARGUMENT, NULL, NULL,
						  PST_NO_OFF, "%s", penstock_errmsg())
			       : ret;
}

int penstock_manifest_write(const char *path, unsigned ranks, const struct penstock_part *parts,
			    uint64_t count)
{
	struct penstock_part_opts opts = PENSTOCK_PART_OPTS_INIT;
	struct pst_text t = {.at = NULL};
	struct penstock_seg seg = {.off = 0};
	struct penstock_item item = {.size = sizeof(item), .segs = &seg, .seg_count = 1};
	/* The URL of an object may have options behind its name. */
	size_t len = !path ? 0 : pst_objects_named(path) ? strcspn(path, "?") : strlen(path);
	size_t end = strlen(PST_MANIFEST_END);
	int ret;

	if (!path || (count && !parts))
		return pst_weights_fail_null(path ? "the list of parts" : "the file's name");
	if (len < end || memcmp(path + len - end, PST_MANIFEST_END, end) != 0)
		return write_fail(path, NULL, "the name of a manifest ends with " PST_MANIFEST_END);
	ret = put_all(&t, path, ranks, parts, count);
	if (!ret && t.len > PST_MANIFEST_WRITE_MAX)
		ret = write_fail(path, NULL,
				 "the list of items would have more than 512 MiB; save without "
				 "checksums, or shorten the names");
	if (!ret)
		ret = check_text(path, &t);
	if (!ret) {
		seg.buf = t.at;
		seg.row_len = item.len = t.len;
		opts.durable = 1;
		ret = penstock_part_write(path, &item, 1, &opts, NULL);
	}
	free(t.at);
	return ret;
}
