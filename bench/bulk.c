/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures bulk transfers and their limits: reads of a cached and of an uncached file into the
 * GPU, reads of several sizes, and saves from the GPU to a durable file. Also measures reads of a
 * checkerboard file, of which every other tile is cached. One round measures each transfer and
 * each limit once; several rounds follow each other. core.c calls the sections.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

#define COLD_LEN (4 * GIB)
#define SAVE_LEN (4 * GIB)
#define CHECKER_LEN (4 * GIB)
#define TILE MIB
/* Number of bytes of the first and of the largest window (registered piece of the file), as in the
 * library's path `mapped`. */
#define WINDOW_FIRST (8 * MIB)
#define WINDOW (128 * MIB)
#define WINDOW_MIXED (32 * MIB) /* Largest window while other threads use path `bounce`, bytes. */
#define SEARCH_LEN GIB

static uint64_t min_u64(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static int file_open_cached(struct bench *b)
{
	int fd = open(b->file, O_RDONLY | O_CLOEXEC);

	if (fd < 0)
		bench_bad(b, "%s: %m", b->file);
	return fd < 0 ? -errno : fd;
}

static int row_pinned(struct bench *b, const char *group, const char *name, unsigned rep,
		      uint64_t len, bool in)
{
	struct sample s = {.bytes = len};
	struct meter m;
	double took;

	meter_start(&m);
	took = gpu_pinned(b, len, in);
	meter_settle(&m, &s);
	if (took < 0)
		return -EIO;
	s.seconds = took;
	meter_row(b, group, name, rep, &s);
	return 0;
}

static int row_read(struct bench *b, const char *group, const char *name, unsigned rep,
		    const struct transfer *t)
{
	struct sample s;
	int ret = transfer_read(b, t, &s);

	if (!ret)
		meter_row(b, group, name, rep, &s);
	return ret;
}

/* Brings all bytes into the page cache, then measures how the library reads them. */
static int row_warm(struct bench *b, const char *group, const char *name, unsigned rep, int fd,
		    const struct transfer *t)
{
	int ret = cache_warm(fd, t->off, t->len);

	if (ret)
		bench_bad(b, "%s cannot be kept in the page cache", b->file);
	return ret ? ret : row_read(b, group, name, rep, t);
}

/* ---- warm ---- */

static int warm_rounds(struct bench *b, const char *group)
{
	const struct {
		const char *name;
		struct transfer t;
	} all[] = {
		{"fast", {0, b->len, PENSTOCK_FAST, NULL, 0, false, false}},
		{"thrifty", {0, b->len, PENSTOCK_THRIFTY, NULL, 0, false, false}},
		{"kept", {0, b->len, PENSTOCK_THRIFTY, NULL, PENSTOCK_O_IMMUTABLE, false, true}},
	};
	int fd = file_open_cached(b), ret = fd < 0 ? fd : 0;

	for (unsigned rep = b->rep; rep < b->rep + b->reps && !ret; rep++) {
		ret = row_pinned(b, group, "limit", rep, b->len, true);
		for (size_t i = 0; i < sizeof(all) / sizeof(all[0]) && !ret; i++)
			ret = row_warm(b, group, all[i].name, rep, fd, &all[i].t);
		if (!ret)
			ret = gpu_window_row(b, group, "windows", rep, fd, b->len, WINDOW_FIRST,
					     WINDOW);
		if (!ret)
			ret = row_pinned(b, group, "limit-out", rep, b->len, false);
	}
	if (fd >= 0)
		close(fd);
	return ret;
}

/* Measures cached reads by path "mapped", by path "bounce", and by both paths at once (mixed). For
 * comparison, calls without Penstock (raw calls) alternate with the library's reads. The raw calls
 * do the same work, with as many threads as the library and pieces of the same length. */
static int section_mixed(struct bench *b)
{
	static const struct mixed_way raw_bounce = {8, MIB, 0, false};
	static const struct mixed_way raw_both = {7, MIB, WINDOW_MIXED, true};
	static const struct mixed_way raw_apart = {7, MIB, WINDOW_MIXED, false};
	const struct {
		const char *name;
		struct transfer t;
	} all[] = {
		{"mapped", {0, b->len, PENSTOCK_THRIFTY, "mapped", 0, true, false}},
		{"bounce", {0, b->len, PENSTOCK_FAST, "bounce", 0, true, false}},
		{"balanced", {0, b->len, PENSTOCK_BALANCED, NULL, 0, true, false}},
		{"fast", {0, b->len, PENSTOCK_FAST, NULL, 0, true, false}},
	};
	int fd = file_open_cached(b), ret = fd < 0 ? fd : 0;

	for (unsigned rep = b->rep; rep < b->rep + b->reps && !ret; rep++) {
		ret = row_pinned(b, "mixed", "limit", rep, b->len, true);
		if (!ret)
			ret = gpu_window_row(b, "mixed", "raw mapped", rep, fd, b->len,
					     WINDOW_FIRST, WINDOW);
		if (!ret)
			ret = gpu_mixed_row(b, "mixed", "raw bounce", rep, fd, b->len, &raw_bounce);
		if (!ret)
			ret = gpu_mixed_row(b, "mixed", "raw both", rep, fd, b->len, &raw_both);
		if (!ret)
			ret = gpu_mixed_row(b, "mixed", "raw both apart", rep, fd, b->len,
					    &raw_apart);
		for (size_t i = 0; i < sizeof(all) / sizeof(all[0]) && !ret; i++)
			ret = row_warm(b, "mixed", all[i].name, rep, fd, &all[i].t);
	}
	if (fd >= 0)
		close(fd);
	return ret;
}

/* Measures reads of a file that section `make` has just written, and that is therefore cached. */
static int section_warm(struct bench *b)
{
	return warm_rounds(b, "warm");
}

/* Measures warm reads. The options -g and -r set the CSV columns `group` and `rep`. bench/peers.py
 * runs this section between its measurements of other programs. */
static int section_beside(struct bench *b)
{
	return warm_rounds(b, b->group);
}

/* Measures reads of a file that was read into the page cache. The kernel's readahead has then
 * chosen the size of the folios (groups of pages). The driver registers small folios more
 * slowly. */
static int section_warm_read(struct bench *b)
{
	int fd = file_open_cached(b), ret = fd < 0 ? fd : cache_drop(fd, 0, b->len);

	if (fd >= 0)
		close(fd);
	return ret < 0 ? ret : warm_rounds(b, "warm_read");
}

/* ---- cold ---- */

struct cold {
	int fd, direct;
	struct drive_way way;
};

static int cold_start(struct bench *b, struct cold *c, const char *group, uint64_t search_at)
{
	int ret;

	c->fd = file_open_cached(b);
	c->direct = drive_open(b->file, false);
	if (c->fd < 0 || c->direct < 0) {
		if (c->fd >= 0)
			close(c->fd);
		return -EIO;
	}
	ret = cache_drop(c->fd, 0, b->len);
	if (!ret && group)
		ret = drive_best(b, c->direct, false, search_at,
				 min_u64(SEARCH_LEN, b->len - search_at), group, &c->way);
	if (ret)
		bench_bad(b, "%s cannot be dropped from the page cache", b->file);
	return ret;
}

static void cold_end(struct cold *c)
{
	close(c->fd);
	close(c->direct);
}

int drive_row(struct bench *b, const char *group, const char *name, unsigned rep, int fd,
	      bool write, uint64_t off, uint64_t len, uint64_t stride, const struct drive_way *way)
{
	uint64_t step = stride > way->block ? stride : way->block;
	uint64_t count = stride > way->block ? len / stride : len / way->block;
	struct sample s = {.bytes = count * way->block};
	struct meter m;
	int ret;

	meter_start(&m);
	if (write && fallocate(fd, 0, 0, (off_t)len))
		return -errno;
	ret = drive_move(fd, write, off, count, step, way);
	if (!ret && write)
		ret = fdatasync(fd) ? -errno : 0;
	meter_stop(&m, &s);
	meter_settle(&m, &s);
	drive_way_text(way, s.note, sizeof(s.note));
	snprintf(s.engine, sizeof(s.engine), "%s", way->engine);
	if (!ret)
		meter_row(b, group, name, rep, &s);
	else
		bench_bad(b, "raw %s: %s", write ? "write" : "read", strerror(-ret));
	return ret;
}

/* Measures a read by the library. Drops the file's range from the page cache before the read. The
 * run fails if a byte of the range is in the page cache before or after the read. */
static int row_cold(struct bench *b, const char *group, const char *name, unsigned rep, int fd,
		    const struct transfer *t)
{
	int64_t cached;
	int ret = cache_drop(fd, t->off, t->len);

	if (ret) {
		bench_bad(b, "bytes are still cached before %s", name);
		return ret;
	}
	ret = row_read(b, group, name, rep, t);
	cached = cache_bytes(fd, t->off, t->len);
	if (!ret && cached)
		bench_bad(b, "%s left %lld bytes in the page cache", name, (long long)cached);
	return ret;
}

static int cold(struct bench *b)
{
	uint64_t len = min_u64(COLD_LEN, b->len / 2);
	struct cold c;
	struct drive_way loop;
	int ret = cold_start(b, &c, "cold", 0);

	/* c.way is the fastest way to read the drive. Its threads together have threads * depth
	 * calls in flight. The loop has only one thread, with the same number of calls. */
	loop = (struct drive_way){"uring", 1, c.way.threads * c.way.depth, c.way.block};
	for (unsigned rep = 0; rep < b->reps && !ret; rep++) {
		uint64_t here = rep % 2 ? len : 0, there = rep % 2 ? 0 : len;
		struct transfer t = {.off = here, .len = len};

		ret = drive_row(b, "cold", "limit", rep, c.direct, false, there, len, 0, &c.way);
		if (!ret)
			ret = gpu_cold_row(b, "cold", "loop", rep, c.direct, there, len, &loop,
					   true);
		if (!ret)
			ret = row_cold(b, "cold", "thrifty", rep, c.fd, &t);
	}
	cold_end(&c);
	return ret;
}

/* ---- saving ---- */

static int save_limit(struct bench *b, unsigned rep, uint64_t len, const struct drive_way *way)
{
	int fd = drive_open(b->scratch, true), ret;

	if (fd < 0)
		return fd;
	ret = drive_row(b, "save", "limit", rep, fd, true, 0, len, 0, way);
	close(fd);
	unlink(b->scratch);
	return ret;
}

static int save(struct bench *b)
{
	uint64_t len = min_u64(SAVE_LEN, b->len), search = min_u64(SEARCH_LEN, len);
	struct transfer fill = {.len = len};
	struct drive_way way;
	struct sample s;
	int fd = drive_open(b->scratch, true), ret;

	if (fd < 0)
		return fd;
	ret = fallocate(fd, 0, 0, (off_t)search) ? -errno : 0;
	if (!ret)
		ret = drive_best(b, fd, true, 0, search, "save", &way);
	close(fd);
	unlink(b->scratch);
	if (!ret)
		ret = transfer_read(b, &fill, &s);
	for (unsigned rep = 0; rep < b->reps && !ret; rep++) {
		ret = save_limit(b, rep, len, &way);
		if (ret)
			break;
		ret = transfer_save(b, b->scratch, len, &s);
		if (!ret)
			meter_row(b, "save", "durable", rep, &s);
	}
	return ret;
}

/* ---- checkerboard ---- */

/* Returns the number of tiles (pieces of TILE bytes of the file) in the wrong state. Even tiles
 * must be in the page cache, and odd tiles must not be in it. */
static uint64_t tiles_wrong(int fd, uint64_t len)
{
	uint64_t off = 0;

	for (uint64_t at = 0; at < len; at += TILE) {
		int64_t want = at / TILE % 2 ? 0 : (int64_t)TILE;

		off += cache_bytes(fd, at, TILE) != want;
	}
	return off;
}

/* Brings the even tiles into the page cache. Reads without readahead, so that no folio extends
 * beyond a tile. The folios are then small, which is harder for the library than large folios. */
static int tiles_make(struct bench *b, int fd, uint64_t len)
{
	int own = open(b->file, O_RDONLY | O_CLOEXEC), ret = own < 0 ? -errno : 0;
	char *mem = malloc(TILE);
	uint64_t off;

	if (!ret)
		ret = mem ? cache_drop(fd, 0, len) : -ENOMEM;
	if (!ret)
		posix_fadvise(own, 0, 0, POSIX_FADV_RANDOM);
	for (uint64_t at = 0; at < len && !ret; at += 2 * TILE)
		if (pread(own, mem, TILE, (off_t)at) != TILE)
			ret = -EIO;
	free(mem);
	if (own >= 0)
		close(own);
	off = ret ? 0 : tiles_wrong(fd, len);
	if (off)
		bench_bad(b, "%llu tiles of the checkerboard are in the wrong cache state",
			  (unsigned long long)off);
	return ret ? ret : off ? -EBUSY : 0;
}

static int checker(struct bench *b)
{
	uint64_t len = min_u64(CHECKER_LEN, b->len / 2) / (2 * TILE) * (2 * TILE);
	struct transfer thrifty = {.len = len};
	struct transfer fast = {.len = len, .effort = PENSTOCK_FAST};
	struct cold c;
	int ret = cold_start(b, &c, "checker", len);

	if (!ret) {
		const struct drive_way tiles = {"uring", 4, 4, TILE};

		ret = tiles_make(b, c.fd, len);
		for (unsigned rep = 0; rep < b->reps && !ret; rep++) {
			ret = drive_row(b, "checker", "limit", rep, c.direct, false, len, len / 2,
					0, &c.way);
			if (!ret)
				ret = drive_row(b, "checker", "limit-tiles", rep, c.direct, false,
						TILE, len - TILE, 2 * TILE, &tiles);
			if (!ret)
				ret = row_read(b, "checker", "thrifty", rep, &thrifty);
			if (!ret)
				ret = row_read(b, "checker", "fast", rep, &fast);
			if (tiles_wrong(c.fd, len)) {
				bench_bad(b,
					  "a tile of the checkerboard has changed its cache state");
				ret = tiles_make(b, c.fd, len);
			}
		}
	}
	cold_end(&c);
	return ret;
}

/* ---- sizes ---- */

static int size_rows(struct bench *b, const char *group, uint64_t len, int fd)
{
	bool is_cold = !strcmp(group, "size_cold");
	unsigned reps = len <= GIB ? b->reps + 2 : len <= b->len ? (b->reps + 1) / 2 + 1 : 2;
	char name[64];
	int ret = 0;

	for (unsigned rep = 0; rep < reps && !ret; rep++) {
		snprintf(name, sizeof(name), "%llu MiB limit", (unsigned long long)(len / MIB));
		if (!is_cold)
			ret = row_pinned(b, group, name, rep, len, true);
		snprintf(name, sizeof(name), "%llu MiB windows", (unsigned long long)(len / MIB));
		if (!is_cold && !ret)
			ret = gpu_window_row(b, group, name, rep, fd, len, WINDOW_FIRST, WINDOW);
		for (int way = 0; way < (is_cold ? 2 : 4) && !ret; way++) {
			struct transfer t = {.len = len,
					     .opened = way & 1,
					     .effort = way & 2 ? PENSTOCK_FAST : PENSTOCK_THRIFTY};

			if (is_cold && way == 0 && len > GIB)
				/* Skips the row that includes opening the file. For more than 1
				 * GiB, opening it takes a negligible part of the time. */
				continue;
			snprintf(name, sizeof(name), "%llu MiB %s%s",
				 (unsigned long long)(len / MIB), way & 2 ? "fast" : "thrifty",
				 way & 1 ? "" : " from open");
			ret = is_cold ? row_cold(b, group, name, rep, fd, &t)
				      : row_warm(b, group, name, rep, fd, &t);
		}
	}
	return ret;
}

static int sizes(struct bench *b, bool is_cold)
{
	static const uint64_t mib[] = {64, 256, 1024, 4096, 8192};
	int fd = file_open_cached(b), ret = fd < 0 ? fd : 0;

	for (size_t i = 0; i < sizeof(mib) / sizeof(mib[0]) && !ret; i++)
		if (mib[i] * MIB <= b->len)
			ret = size_rows(b, is_cold ? "size_cold" : "size_warm", mib[i] * MIB, fd);
	if (fd >= 0)
		close(fd);
	return ret;
}

static int size_warm(struct bench *b)
{
	return sizes(b, false);
}

static int size_cold(struct bench *b)
{
	return sizes(b, true);
}

/* Reads the longer file, which section `make_long` has just written, from start to end. */
static int size_long(struct bench *b)
{
	int fd = file_open_cached(b), ret = fd < 0 ? fd : 0;

	if (!ret)
		ret = size_rows(b, "size_warm", b->long_len, fd);
	if (!ret)
		ret = size_rows(b, "size_cold", b->long_len, fd);
	if (fd >= 0)
		close(fd);
	return ret;
}

const struct bench_section bench_bulk[] = {
	{"warm", "file in the page cache, as written, to GPU", true, section_warm},
	{"warm_read", "the same, as readahead brought it in", true, section_warm_read},
	{"mixed", "two paths at once, and each alone", true, section_mixed},
	{"beside", "one round of warm under another group's name", true, section_beside},
	{"cold", "file on the drive to GPU", true, cold},
	{"save", "GPU to a durable file", true, save},
	{"checker", "every other MiB cached", true, checker},
	{"size_warm", "64 MiB to 8 GiB, cached", true, size_warm},
	{"size_cold", "64 MiB to 8 GiB, on the drive", true, size_cold},
	{"size_long", "the longest size", true, size_long},
	{NULL, NULL, false, NULL},
};
