/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements penstock_part_write and penstock_part_read: checks the items, opens the file, divides
 * the items' segments into slices, transfers them, and stores or compares the items' checksums.
 * Called by bindings and programs, by penstock_weights_save, and by the code that verifies
 * checkpoints.
 */
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "ckpt/part.h"
#include "ckpt/part_move.h"
#include "common/file_url.h"
#include "common/struct_copy.h"
#include "weights/err.h"

#define PAGE 4096u

/* ---- items ---- */

static int item_fail(const struct pst_part_move *m, const struct penstock_item *item,
		     const char *what)
{
	return pst_weights_fail(EINVAL, PENSTOCK_WHY_BAD_ARGUMENT, m->path, item->name, item->off,
				"%s", what);
}

/* Computes the offset of the end of a segment's last row. Returns false if it overflows. */
static bool seg_end(const struct penstock_seg *seg, uint64_t *end)
{
	uint64_t rows = seg->rows > 1 ? seg->rows - 1 : 0;

	return !__builtin_mul_overflow(rows, seg->pitch, end) &&
	       !__builtin_add_overflow(*end, seg->row_len, end) &&
	       !__builtin_add_overflow(*end, seg->off, end) && *end <= INT64_MAX;
}

/* Checks the flags, and that the segments lie inside the range of the item in the file. Sets
 * *covers to whether each segment begins where the one before it ends, and all of them together
 * cover the whole range. */
static int item_check(const struct pst_part_move *m, const struct penstock_item *item, bool *covers)
{
	uint64_t end = item->off;

	*covers = true;
	if (item->flags & ~PST_ITEM_FLAGS)
		return item_fail(m, item, PST_ITEM_FLAG_UNKNOWN);
	if (item->off > INT64_MAX || item->len > INT64_MAX - item->off)
		return item_fail(m, item, "its range ends beyond 2^63");
	if (item->seg_count && !item->segs)
		return item_fail(m, item, "it has a count of segments without their list");
	for (unsigned i = 0; i < item->seg_count; i++) {
		const struct penstock_seg *seg = &item->segs[i];
		uint64_t seg_stop;

		if (!seg->row_len)
			continue;
		if (!seg_end(seg, &seg_stop) || seg->off < item->off ||
		    seg_stop > item->off + item->len)
			return item_fail(m, item, "a segment is not inside its range");
		if (seg->off != end || (seg->rows > 1 && seg->pitch != seg->row_len))
			*covers = false;
		end = seg_stop;
	}
	*covers = *covers && end == item->off + item->len;
	return 0;
}

/* Copies and checks the caller's items and options. */
static int part_begin(struct pst_part_move *m, enum penstock_op op, const char *path,
		      const struct penstock_item *items, uint64_t count,
		      const struct penstock_part_opts *opts)
{
	int ret = pst_weights_struct_in(&m->opts, sizeof(m->opts), opts, "penstock_part_opts");

	if (ret)
		return ret;
	if (!path || (count && !items))
		return pst_weights_fail_null(path ? "the list of items" : "the file's name");
	m->path = path;
	m->slices.op = op;
	m->items = calloc(count ? count : 1, sizeof(*m->items));
	m->unsummed = calloc(count ? count : 1, sizeof(*m->unsummed));
	if (!m->items || !m->unsummed)
		return pst_weights_no_memory("the list of items");
	m->item_count = count;
	for (uint64_t i = 0; i < count && !ret; i++)
		ret = pst_weights_struct_at(&m->items[i], sizeof(m->items[i]), items, i,
					    "penstock_item");
	return ret;
}

static void part_end(struct pst_part_move *m)
{
	free(m->items);
	free(m->unsummed);
	free(m->slices.list);
}

/* Divides all items into slices (ranges that one request can transfer), and marks the slices whose
 * checksums are to be computed. */
static int list_slices(struct pst_part_move *m)
{
	struct penstock_storage_info info = {.size = sizeof(info)};
	int ret = penstock_storage_get_info(m->st, &info);

	if (ret)
		return pst_weights_fail_lib(ret, m->path, NULL, PST_NO_OFF);
	m->slices.align = info.edge_align > PAGE ? info.edge_align : PAGE;
	for (uint64_t i = 0; i < m->item_count; i++) {
		const struct penstock_item *item = &m->items[i];

		for (unsigned s = 0; s < item->seg_count && !ret; s++)
			ret = pst_slices_add(&m->slices, m->path, item->name, i, &item->segs[s],
					     !m->unsummed[i]);
		if (ret)
			return ret;
	}
	return 0;
}

/* ---- checksums ---- */

/* Returns the checksum of item `i`, joined from the checksums of its slices. The slices of the item
 * begin at index *at of the sorted list. Sets *at to the index after its last slice. */
static uint32_t item_sum(const struct pst_slices *slices, uint64_t i, uint64_t *at)
{
	uint32_t crc = 0;

	for (; *at < slices->count && slices->list[*at].item == i; (*at)++) {
		const struct pst_slice *slice = &slices->list[*at];
		uint64_t rows = slice->seg.rows ? slice->seg.rows : 1;

		crc = penstock_crc32c_join(crc, slice->crc32c, rows * slice->seg.row_len);
	}
	return crc;
}

static int sum_fail(const struct pst_part_move *m, const struct penstock_item *item, uint32_t crc)
{
	return pst_weights_fail(EBADMSG, PENSTOCK_WHY_MALFORMED, m->path, item->name, item->off,
				"the checksum of %llu bytes is %08x, but %08x was recorded: the "
				"bytes have changed",
				(unsigned long long)item->len, crc, item->crc32c);
}

/* Stores the checksums in the items if m->store_sums is set, otherwise compares them with the
 * items' checksums. Compares all items, but reports only the first wrong checksum. */
static int finish_sums(struct pst_part_move *m)
{
	uint64_t at = 0;
	int ret = 0;

	pst_slices_sort_by_item(&m->slices);
	for (uint64_t i = 0; i < m->item_count; i++) {
		struct penstock_item *item = &m->items[i];
		uint32_t crc = item_sum(&m->slices, i, &at);

		if (m->store_sums) {
			item->flags &= ~PENSTOCK_ITEM_SUMMED;
			item->flags |= m->unsummed[i] ? 0 : PENSTOCK_ITEM_SUMMED;
			item->crc32c = m->unsummed[i] ? 0 : crc;
		} else if (m->unsummed[i]) {
			continue;
		} else if (crc == item->crc32c) {
			item->flags |= PENSTOCK_ITEM_CHECKED;
		} else {
			ret = ret ? ret : sum_fail(m, item, crc);
		}
	}
	return ret;
}

/* Copies the items' flags and checksums to the caller's items. */
static void give_items(const struct pst_part_move *m, struct penstock_item *items)
{
	for (uint64_t i = 0; i < m->item_count; i++)
		pst_weights_struct_out((void *)(uintptr_t)pst_struct_element(items, i),
				       &m->items[i], sizeof(m->items[i]));
}

/* ---- files ---- */

/* Opens the file. Treats the name as a path, as the functions that read models do. So a file name
 * with a colon, such as "mem:1", does not open another kind of storage. */
static int open_part(struct pst_part_move *m, const struct penstock_storage_opts *how)
{
	const char *path = m->path, *colon = strchr(path, ':'), *slash = strchr(path, '/');
	char name[PATH_MAX];
	int ret;

	if (!colon || (slash && slash < colon) || !strncmp(colon, "://", 3))
		ret = penstock_open(path, how, &m->st);
	else if (snprintf(name, sizeof(name), "./%s", path) < (int)sizeof(name))
		ret = penstock_open(name, how, &m->st);
	else
		ret = penstock_fail(ENAMETOOLONG, PENSTOCK_WHY_NOT_FOUND, "%m");
	return ret ? pst_weights_fail_lib(ret, path, NULL, PST_NO_OFF) : 0;
}

/* Fails if the file system has too few free bytes for the new file. Without this check, the write
 * could fail late, because not all file systems can reserve space. If the free space is not known,
 * the function succeeds. */
static int check_space(const struct pst_part_move *m, uint64_t length)
{
	const char *path = pst_file_url_path(m->path), *slash;
	char dir[PATH_MAX];
	struct statvfs fs;
	struct stat file;
	uint64_t space;

	if (!path)
		return 0; /* penstock_open reports why the URL is invalid */
	slash = strrchr(path, '/');
	if (!slash)
		snprintf(dir, sizeof(dir), ".");
	else
		snprintf(dir, sizeof(dir), "%.*s", (int)(slash + 1 - path), path);
	if ((!stat(path, &file) && S_ISBLK(file.st_mode)) || statvfs(dir, &fs) || !fs.f_blocks)
		return 0;
	if (__builtin_mul_overflow((uint64_t)fs.f_bavail, (uint64_t)fs.f_frsize, &space) ||
	    length <= space)
		return 0;
	return pst_weights_fail(ENOSPC, PENSTOCK_WHY_NO_SPACE, m->path, NULL, PST_NO_OFF,
				"the file needs %llu bytes, but the file system has %llu free: "
				"%llu bytes are missing",
				(unsigned long long)length, (unsigned long long)space,
				(unsigned long long)(length - space));
}

/* ---- write ---- */

/* Checks that the items are sorted by offset, do not overlap, and are covered by their segments.
 * Sets the length of the file. */
static int check_written(struct pst_part_move *m)
{
	uint64_t end = 0;

	for (uint64_t i = 0; i < m->item_count; i++) {
		const struct penstock_item *item = &m->items[i];
		bool covers;
		int ret = item_check(m, item, &covers);

		if (ret)
			return ret;
		if (!covers)
			return item_fail(m, item, "its segments do not cover its range");
		if (item->off < end)
			return item_fail(m, item, "it begins before the end of the item before it");
		end = item->off + item->len;
		m->unsummed[i] = !m->opts.sum;
	}
	m->slices.length = m->opts.length ? m->opts.length : end;
	if (m->slices.length < end)
		return pst_weights_fail(EINVAL, PENSTOCK_WHY_BAD_ARGUMENT, m->path, NULL, end,
					"an item ends beyond the length of the file");
	return 0;
}

static int write_file(struct pst_part_move *m)
{
	struct penstock_storage_opts how = PENSTOCK_STORAGE_OPTS_INIT;
	int ret = check_space(m, m->slices.length);

	how.flags = PENSTOCK_O_REPLACE;
	how.length = m->slices.length;
	if (!ret)
		ret = open_part(m, &how);
	if (!ret)
		ret = list_slices(m);
	if (!ret)
		ret = pst_part_move(m);
	if (!ret) {
		ret = penstock_commit(m->st, m->opts.durable);
		if (ret)
			pst_weights_fail_lib(ret, m->path, NULL, PST_NO_OFF);
	}
	/* If the file was not committed, closing it removes what was written. */
	penstock_close(m->st);
	return ret;
}

static int read_file(struct pst_part_move *m)
{
	int ret = open_part(m, NULL);

	if (!ret)
		ret = list_slices(m);
	if (!ret)
		ret = pst_part_move(m);
	penstock_close(m->st);
	return ret;
}

/* Runs `move` while the device "host" is open. The library then takes memory that belongs to no
 * other open device for host memory. */
static int with_host(struct pst_part_move *m, int (*move)(struct pst_part_move *m))
{
	struct penstock_device *host;
	int ret = penstock_device_open("host", NULL, &host);

	if (ret < 0)
		return pst_weights_fail_lib(ret, m->path, NULL, PST_NO_OFF);
	ret = move(m);
	penstock_device_close(host);
	return ret;
}

int penstock_part_write(const char *path, struct penstock_item *items, uint64_t count,
			const struct penstock_part_opts *opts, struct penstock_load_report *report)
{
	struct pst_part_move m = {.path = path, .store_sums = true};
	int ret;

	pst_report_begin(&m.sum);
	ret = part_begin(&m, PENSTOCK_WRITE, path, items, count, opts);
	if (!ret)
		ret = check_written(&m);
	if (!ret)
		ret = with_host(&m, write_file);
	if (!ret && m.opts.sum) {
		ret = finish_sums(&m);
		give_items(&m, items);
	}
	if (report)
		pst_weights_struct_out(report, &m.sum.report, sizeof(m.sum.report));
	part_end(&m);
	return ret;
}

/* ---- read ---- */

/* Checks the items, and marks the items whose checksums can be compared. */
static int check_read(struct pst_part_move *m)
{
	for (uint64_t i = 0; i < m->item_count; i++) {
		struct penstock_item *item = &m->items[i];
		bool covers;
		int ret = item_check(m, item, &covers);

		if (ret)
			return ret;
		item->flags &= ~PENSTOCK_ITEM_CHECKED;
		m->unsummed[i] = !m->opts.sum || !(item->flags & PENSTOCK_ITEM_SUMMED) || !covers;
	}
	return 0;
}

int penstock_part_read(const char *path, struct penstock_item *items, uint64_t count,
		       const struct penstock_part_opts *opts, struct penstock_load_report *report)
{
	struct pst_part_move m = {.path = path};
	int ret;

	pst_report_begin(&m.sum);
	ret = part_begin(&m, PENSTOCK_READ, path, items, count, opts);
	if (!ret)
		ret = check_read(&m);
	if (!ret) {
		ret = with_host(&m, read_file);
		if (!ret && m.opts.sum)
			ret = finish_sums(&m);
		give_items(&m, items);
	}
	if (report)
		pst_weights_struct_out(report, &m.sum.report, sizeof(m.sum.report));
	part_end(&m);
	return ret;
}

int pst_part_read_sums(struct penstock_storage *st, const char *path, struct penstock_item *items,
		       uint64_t count, const struct penstock_part_opts *opts)
{
	struct pst_part_move m = {.st = st, .store_sums = true};
	int ret;

	pst_report_begin(&m.sum);
	ret = part_begin(&m, PENSTOCK_READ, path, items, count, opts);
	if (!ret)
		ret = list_slices(&m);
	if (!ret)
		ret = pst_part_move(&m);
	if (!ret)
		ret = finish_sums(&m);
	if (!ret)
		give_items(&m, items);
	part_end(&m);
	return ret;
}
