/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements `penstock load --verify`: copies every tensor from its device back to host memory and
 * compares it, block by block, with a plain read of its file. Called by load.c. It changes no
 * tensor and no file.
 */
#include "load_verify.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BLOCK (8u << 20) /* Number of bytes that are compared at a time. */

static bool pread_all(int fd, char *to, size_t len, uint64_t off)
{
	while (len) {
		ssize_t n = pread(fd, to, len, (off_t)off);

		if (n < 0 && errno == EINTR)
			continue;
		if (n <= 0)
			return false;
		to += n;
		off += (uint64_t)n;
		len -= (size_t)n;
	}
	return true;
}

struct check {
	struct loading *l;
	struct penstock_device *host;
	const char *name;
	char *blocks;		     /* Buffer for two blocks of BLOCK bytes each. */
	int fd;			     /* the file, or -1 */
	struct penstock_storage *st; /* the object, or NULL */
};

/* Reads bytes of the file or the object again. Returns false if that fails. */
static bool read_again(const struct check *c, char *to, size_t len, uint64_t off)
{
	return c->st ? penstock_read(c->st, c->host, to, len, off) == (int64_t)len
		     : pread_all(c->fd, to, len, off);
}

/* Opens the file or the object again. Returns false if that fails. */
static bool open_again(struct check *c, const char *path)
{
	if (c->fd >= 0)
		close(c->fd);
	penstock_close(c->st);
	c->fd = -1;
	c->st = NULL;
	if (!storage_path(path))
		return !penstock_open(path, NULL, &c->st);
	/* O_NONBLOCK prevents that open(2) blocks if a FIFO has replaced the file. */
	c->fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	return c->fd >= 0;
}

/* Returns whether the `len` bytes at address `at` of a device are equal to the bytes of the
 * file at offset `off`. */
static bool same_bytes(const struct check *c, unsigned dev, const char *at, uint64_t off,
		       uint64_t len)
{
	for (uint64_t done = 0; done < len; done += BLOCK) {
		uint64_t part = len - done < BLOCK ? len - done : BLOCK;
		struct penstock_copy_args copy = {.size = sizeof(copy),
						  .dst_dev = c->host,
						  .dst = c->blocks,
						  .src_dev = c->l->devs[dev],
						  .src = at + done,
						  .row_len = part};

		if (load_stopped)
			return false;
		if (penstock_copy(&copy, 1)) {
			load_note_lib(c->l);
			return false;
		}
		if (!read_again(c, c->blocks + BLOCK, part, off + done)) {
			load_note(c->l, EXIT_FAILED, "%s: it could not be read again", c->name);
			return false;
		}
		if (memcmp(c->blocks, c->blocks + BLOCK, part)) {
			load_note(c->l, EXIT_FAILED, "%s: what was loaded differs from the file",
				  c->name);
			return false;
		}
	}
	return true;
}

/* Returns whether each row of a piece (a part of a tensor) in device memory equals the bytes of
 * that row in the file. */
static bool same_piece(const struct check *c, unsigned dev, const char *base,
		       const struct penstock_tensor *t, const struct penstock_piece *p)
{
	uint64_t rows = 1, inner = penstock_dtype_bits(t->dtype), extent, len;

	if (!t->rank || (!p->dim && !p->count))
		return same_bytes(c, dev, base, t->off, t->bytes);
	for (unsigned i = 0; i < p->dim; i++)
		rows *= t->shape[i];
	for (unsigned i = p->dim + 1; i < t->rank; i++)
		inner *= t->shape[i];
	extent = t->shape[p->dim] * inner / 8;
	len = p->count * inner / 8;
	for (uint64_t r = 0; r < rows; r++)
		if (!same_bytes(c, dev, base + (uintptr_t)p->ptr + r * p->pitch,
				t->off + r * extent + p->first * inner / 8, len))
			return false;
	return true;
}

static bool same_tensor(struct check *c, unsigned dev, uint64_t index,
			const struct penstock_tensor *t)
{
	const char *base = penstock_loaded_ptr(c->l->loaded, dev, index);
	struct penstock_shard s = {.size = sizeof(s), .piece_count = 1};

	c->name = t->name;
	if (c->l->a->load.shard &&
	    penstock_weights_shard(c->l->w, index, c->l->a->load.shard, &s)) {
		load_note_lib(c->l);
		return false;
	}
	for (unsigned i = 0; i < s.piece_count; i++)
		if (!same_piece(c, dev, base, t, &s.pieces[i]))
			return false;
	return true;
}

void load_verify(struct loading *l)
{
	struct check c = {.l = l, .blocks = malloc(2 * BLOCK), .fd = -1};
	struct penstock_weights_file f = {.size = sizeof(f)};
	unsigned file = UINT32_MAX;

	if (!c.blocks || penstock_device_open("host", NULL, &c.host) < 0)
		load_note(l, EXIT_FAILED, "%s",
			  c.blocks ? penstock_errmsg() : "no memory to verify");
	for (uint64_t i = 0; !l->code && i < penstock_weights_count(l->w); i++) {
		struct penstock_tensor t = {.size = sizeof(t)};

		penstock_weights_get(l->w, i, &t);
		if (t.file != file) {
			file = t.file;
			penstock_weights_get_file(l->w, file, &f);
			if (!open_again(&c, f.path))
				load_note(l, EXIT_FAILED, "%s: it could not be opened again",
					  f.path);
		}
		for (unsigned d = 0; !l->code && d < l->dev_count; d++)
			same_tensor(&c, d, i, &t);
		if (load_stopped)
			load_note(l, 128 + (int)load_stopped, "stopped by %s",
				  strsignal((int)load_stopped));
	}
	if (c.fd >= 0)
		close(c.fd);
	penstock_close(c.st);
	free(c.blocks);
	penstock_device_close(c.host);
	l->verified = !l->code;
}
