/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements penstock_ckpt_verify: reads the parts (data files) that the manifests list, in batches
 * of a limited number of bytes, and compares the checksums of the items (ranges of parts). After a
 * fault it continues. Only if a part cannot be read, it skips the rest of this part.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/folder.h"
#include "ckpt/manifest.h"
#include "ckpt/part.h"
#include "weights/err.h"
#include "weights/report.h"

#define PAGE 4096u
/* Number of bytes of a batch, and maximum number of its pieces. A piece is an item (a named range
 * of a file), or a range of an item that does not fit into one batch. */
#define BATCH_BYTES (128u << 20)
#define PIECES 4096u
/* Time in ns between two calls of opts.look. */
#define LOOK_NS 100000000

struct verify {
	const char *dir;
	struct pst_ckpt_folder folder;
	struct penstock_manifest *m;
	struct penstock_part_opts opts;
	void (*each)(void *user, const struct penstock_ckpt_fault *fault);
	void *user;
	struct penstock_verified done;
	char *buffer;
	struct penstock_item *pieces;
	struct penstock_seg *segs;
	unsigned piece_count;
	uint64_t buffer_len;		/* bytes of the buffer that the batch's pieces occupy */
	uint64_t moved;			/* number of bytes of earlier batches */
	uint64_t looked_ns;		/* time of the last call of opts.look, in ns */
	bool cancelled;			/* whether opts.look has cancelled the call */
	uint32_t crc;			/* checksum of an item's pieces in earlier batches */
	const struct penstock_item *at; /* item that the next piece belongs to */
};

/* Reports a fault of a part, which is a data file of the checkpoint. */
__attribute__((format(printf, 7, 8))) static void report_fault(struct verify *v, const char *part,
							       const struct penstock_item *item,
							       uint64_t off, uint64_t len, int code,
							       const char *fmt, ...)
{
	char text[PENSTOCK_TEXT_MAX];
	struct penstock_ckpt_fault fault = {
		.size = sizeof(fault),
		.part = part,
		.item = item && item->name ? item->name : "",
		.off = off,
		.len = len,
		.code = code,
		.text = text,
	};
	va_list args;

	errno = -code; /* For %m. */
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	v->done.faults++;
	if (v->each)
		v->each(v->user, &fault);
}

/* ---- batches ---- */

/* Calls the caller's callback with the number of bytes that all batches have read so far. */
static int look(void *user, uint64_t bytes)
{
	struct verify *v = user;

	v->looked_ns = pst_report_now_ns();
	v->cancelled = v->cancelled || v->opts.look(v->opts.user, v->moved + bytes);
	return v->cancelled;
}

/* Compares `crc`, the checksum of an item's bytes, with the checksum in the manifest. */
static void check_item(struct verify *v, const char *part, const struct penstock_item *item,
		       uint32_t crc)
{
	bool summed = item->flags & PENSTOCK_ITEM_SUMMED;

	if (!summed) {
		v->done.items_unsummed++;
		v->done.bytes_unsummed += item->len;
	} else if (crc == item->crc32c) {
		v->done.items++;
		v->done.bytes += item->len;
	} else {
		report_fault(v, part, item, item->off, item->len, -EBADMSG,
			     "the checksum of the bytes is %08x, the manifest has %08x", crc,
			     item->crc32c);
	}
}

/* Joins the checksums of the pieces in a batch, and compares the checksums of the items that end in
 * this batch. */
static void check_batch(struct verify *v, const char *part)
{
	for (unsigned i = 0; i < v->piece_count; i++) {
		const struct penstock_item *piece = &v->pieces[i], *item = v->at;

		v->crc = penstock_crc32c_join(v->crc, piece->crc32c, piece->len);
		if (piece->off + piece->len < item->off + item->len)
			continue;
		check_item(v, part, item, v->crc);
		v->crc = 0;
		v->at++;
	}
}

/* Reads the pieces of a batch and checks them. Returns 0, or an error. Returns 1 if the rest of the
 * part cannot be read; the function has then reported this fault. */
static int read_batch(struct verify *v, struct penstock_storage *st, const char *part)
{
	struct penstock_part_opts opts = v->opts;
	struct penstock_weights_place place = {.size = sizeof(place)};
	int ret;

	if (!v->piece_count)
		return 0;
	opts.size = sizeof(opts); /* opts.size is 0 if the caller gave no options */
	opts.look = v->opts.look ? look : NULL;
	opts.user = v;
	ret = pst_part_read_sums(st, part, v->pieces, v->piece_count, &opts);
	if (!ret) {
		check_batch(v, part);
	} else if (!v->cancelled && !pst_ckpt_error_is_ours(ret)) {
		penstock_weights_get_place(&place);
		report_fault(v, part, v->at, place.off == PST_NO_OFF ? v->at->off : place.off, 0,
			     ret, "%s", penstock_errmsg());
		ret = 1;
	}
	v->piece_count = 0;
	v->moved += v->buffer_len;
	v->buffer_len = 0;
	if (!ret && v->opts.look && pst_report_now_ns() - v->looked_ns >= LOOK_NS && look(v, 0))
		ret = pst_weights_fail(ECANCELED, PENSTOCK_WHY_CANCELLED, v->folder.dir.path, NULL,
				       PST_NO_OFF, "cancelled by the caller");
	return ret;
}

/* Adds a piece of an item to the batch. Returns its length, or 0 if the batch is full. Direct paths
 * need the memory's offset within its page to equal the offset in the file's page, so the function
 * chooses such memory. */
static uint64_t add_piece(struct verify *v, uint64_t off, uint64_t len)
{
	uint64_t at = v->buffer_len + (off - v->buffer_len) % PAGE;

	if (v->piece_count == PIECES || (len && at >= BATCH_BYTES))
		return 0;
	len = len < BATCH_BYTES - at ? len : BATCH_BYTES - at;
	v->segs[v->piece_count] =
		(struct penstock_seg){.buf = v->buffer + at, .off = off, .row_len = len};
	v->pieces[v->piece_count] = (struct penstock_item){.size = sizeof(v->pieces[0]),
							   .off = off,
							   .len = len,
							   .segs = &v->segs[v->piece_count],
							   .seg_count = 1};
	v->piece_count++;
	v->buffer_len = at + len;
	return len;
}

/* Reads all items of a part, which ends at offset `end`. */
static int read_items(struct verify *v, struct penstock_storage *st,
		      const struct pst_manifest_part *part, uint64_t end)
{
	const struct penstock_item *items = v->m->items + part->first;
	int ret = 0;

	v->at = items;
	v->crc = 0;
	for (uint64_t i = 0; i < part->count && !ret; i++) {
		uint64_t done = 0, n;

		if (items[i].off + items[i].len > end)
			break;
		do {
			n = add_piece(v, items[i].off + done, items[i].len - done);
			done += n;
			if (n < items[i].len - (done - n) || v->piece_count == PIECES)
				ret = read_batch(v, st, part->name);
		} while (!ret && done < items[i].len);
	}
	if (!ret)
		ret = read_batch(v, st, part->name);
	v->piece_count = 0;
	v->buffer_len = 0;
	return ret;
}

/* ---- parts ---- */

/* Reports a fault if the part's length differs from the length in the manifest. */
static void check_length(struct verify *v, const struct pst_manifest_part *part, uint64_t bytes)
{
	const struct penstock_item *items = v->m->items + part->first, *cut = NULL;

	for (uint64_t i = 0; i < part->count && !cut; i++)
		if (items[i].off + items[i].len > bytes)
			cut = &items[i];
	if (bytes < part->bytes)
		report_fault(v, part->name, cut, bytes, part->bytes - bytes, -ENODATA,
			     "the file has %llu bytes instead of %llu", (unsigned long long)bytes,
			     (unsigned long long)part->bytes);
	else if (bytes > part->bytes)
		report_fault(v, part->name, NULL, part->bytes, bytes - part->bytes, -EBADMSG,
			     "the file has %llu bytes instead of %llu", (unsigned long long)bytes,
			     (unsigned long long)part->bytes);
}

/* Reads the items of a part of `bytes` bytes, and closes `st`. `opened` is the result of opening
 * the part: 0, or an error, which the function reports as a fault. */
static int verify_storage(struct verify *v, const struct pst_manifest_part *part, int opened,
			  struct penstock_storage *st, uint64_t bytes)
{
	int ret;

	if (pst_ckpt_error_is_ours(opened))
		return pst_weights_fail_lib(opened, part->name, NULL, PST_NO_OFF);
	if (opened) {
		report_fault(v, part->name, NULL, 0, part->bytes, opened, "%s", penstock_errmsg());
		return 0;
	}
	ret = read_items(v, st, part, bytes);
	penstock_close(st);
	return ret < 0 ? ret : 0;
}

static int verify_open_part(struct verify *v, const struct pst_manifest_part *part, int fd)
{
	struct penstock_storage *st;
	struct stat stat;
	int ret;

	if (fstat(fd, &stat) || !S_ISREG(stat.st_mode)) {
		report_fault(v, part->name, NULL, 0, part->bytes, -EBADMSG,
			     "it is no regular file");
		return 0;
	}
	check_length(v, part, (uint64_t)stat.st_size);
	ret = penstock_open_fd(fd, NULL, &st);
	return verify_storage(v, part, ret, st, (uint64_t)stat.st_size);
}

/* Verifies a part (a data file of the checkpoint) that is an object of a store. */
static int verify_object(struct verify *v, const struct pst_manifest_part *part)
{
	const struct pst_objects *objects = &v->folder.dir.objects;
	struct penstock_storage *st = NULL;
	uint64_t bytes = 0;
	char *url = pst_objects_url(objects, part->name);
	int ret;

	if (!url)
		return -ENOMEM;
	ret = pst_objects_length(objects, part->name, &bytes);
	if (!ret) {
		check_length(v, part, bytes);
		ret = penstock_open(url, NULL, &st);
	}
	free(url);
	return verify_storage(v, part, ret, st, bytes);
}

static int verify_part(struct verify *v, const struct pst_manifest_part *part)
{
	char target[PATH_MAX];
	bool linked = pst_part_link(&v->folder.dir, part->name, target);
	int flags = O_RDONLY | O_NONBLOCK | O_CLOEXEC | (linked ? 0 : O_NOFOLLOW);
	int fd = openat(v->folder.dir.fd, part->name, flags), ret;

	if (fd < 0) {
		int code = errno == ELOOP ? -EBADMSG : -errno;

		if (pst_ckpt_error_is_ours(code))
			return pst_weights_fail_errno(code, v->dir, part->name, PST_NO_OFF,
						      "cannot open: %m");
		report_fault(v, part->name, NULL, 0, part->bytes, code,
			     code == -EBADMSG ? "it is a symbolic link" : "cannot open: %m");
		return 0;
	}
	ret = verify_open_part(v, part, fd);
	close(fd);
	return ret;
}

static int verify_parts(struct verify *v)
{
	int ret = 0;

	v->pieces = calloc(PIECES, sizeof(*v->pieces));
	v->segs = calloc(PIECES, sizeof(*v->segs));
	if (posix_memalign((void **)&v->buffer, PAGE, BATCH_BYTES))
		v->buffer = NULL;
	if (!v->pieces || !v->segs || !v->buffer)
		ret = pst_weights_no_memory("the bytes to verify");
	if (!ret && v->folder.ckpt.state == PENSTOCK_CKPT_INCOMPLETE)
		report_fault(v, "", NULL, 0, 0, -ENOENT, "%s", v->folder.text);
	for (uint64_t i = 0; i < v->m->part_count && !ret; i++)
		ret = v->folder.dir.remote ? verify_object(v, &v->m->parts[i])
					   : verify_part(v, &v->m->parts[i]);
	free(v->pieces);
	free(v->segs);
	free(v->buffer);
	if (!ret && v->done.faults)
		ret = pst_weights_fail(EBADMSG, PENSTOCK_WHY_MALFORMED, v->folder.dir.path, NULL,
				       PST_NO_OFF, "%llu faults",
				       (unsigned long long)v->done.faults);
	return ret;
}

static int verify_folder(struct verify *v)
{
	struct penstock_device *host;
	int ret = penstock_device_open("host", NULL, &host);

	if (ret < 0)
		return pst_weights_fail_lib(ret, v->dir, NULL, PST_NO_OFF);
	ret = pst_ckpt_folder_open(NULL, v->dir, v->dir, &v->folder);
	if (!ret) {
		ret = pst_manifest_open_at(&v->folder.dir, &v->m);
		if (!ret)
			ret = verify_parts(v);
		penstock_manifest_close(v->m);
		pst_ckpt_folder_close(&v->folder);
	}
	penstock_device_close(host);
	return ret;
}

int penstock_ckpt_verify(const char *dir, const struct penstock_part_opts *opts,
			 void (*each)(void *user, const struct penstock_ckpt_fault *fault),
			 void *user, struct penstock_verified *out)
{
	struct verify v = {.dir = dir, .each = each, .user = user};
	int ret = pst_weights_struct_in(&v.opts, sizeof(v.opts), opts, "penstock_part_opts");

	if (ret)
		return ret;
	if (!dir)
		return pst_weights_fail_null("the folder's name");
	v.looked_ns = pst_report_now_ns();
	ret = verify_folder(&v);
	v.done.size = sizeof(v.done);
	if (out)
		pst_weights_struct_out(out, &v.done, sizeof(v.done));
	return ret;
}
