/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program for tests/s3/device_windows. It writes a file's bytes out of the memory of devices to
 * an object, each time that a line arrives on standard input:
 *
 *	upload URL FILE PIECE DEVICE...
 *
 * Each request writes PIECE bytes. The n-th piece is in the memory of the n-th device, and after
 * the last device comes the first one. The line says in which way:
 *
 *	forward		from the first piece to the last
 *	backward	from the last piece to the first
 *	grow		like forward, but opens the object without its length
 *	twice		writes other bytes before each piece, out of the memory of the next device.
 *			Does not do so before the last piece of a part: these bytes would complete
 *			the part, and the upload would send it
 *	all		with one request
 *
 * It prints "ready" before each line, and then what the requests and the commit have done.
 */
#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "penstock.h"

#define PART (8u << 20)
#define DEVICES_MAX 8
#define PIECES_MAX 4096

struct upload {
	struct penstock_storage *st;
	struct penstock_device *devs[DEVICES_MAX];
	char *mem[DEVICES_MAX]; /* the file's bytes in the memory of each device */
	unsigned dev_count;
	uint64_t len, piece;
	/* sums of the reports */
	uint64_t rdma, bounce, retries, dram;
	enum penstock_why why;
};

static int failed(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, penstock_errmsg());
	return 2;
}

static void report_add(struct upload *up, const struct penstock_report *done)
{
	up->retries += done->retries;
	up->dram += done->dram_laid;
	for (unsigned i = 0; i < done->path_count; i++) {
		const struct penstock_report_path *row = &done->paths[i];

		if (!strcmp(row->name, "rdma")) {
			up->rdma += row->bytes;
			up->why = row->why ? row->why : up->why;
		} else if (!strcmp(row->name, "bounce")) {
			up->bounce += row->bytes;
		}
	}
}

static struct penstock_seg seg_make(const struct upload *up, uint64_t n, unsigned dev,
				    uint64_t from)
{
	const uint64_t off = n * up->piece, left = up->len - off;
	struct penstock_seg seg = {.dev = up->devs[dev % up->dev_count],
				   .buf = up->mem[dev % up->dev_count] + from,
				   .off = off,
				   .row_len = left < up->piece ? left : up->piece,
				   .rows = 1};

	return seg;
}

static int64_t segs_write(struct upload *up, const struct penstock_seg *segs, unsigned count)
{
	struct penstock_report done = PENSTOCK_REPORT_INIT;
	struct penstock_req req = PENSTOCK_REQ_INIT;
	int64_t ret;

	req.storage = up->st;
	req.op = PENSTOCK_WRITE;
	req.segs = segs;
	req.seg_count = count;
	ret = penstock_transfer(&req, &done);
	report_add(up, &done);
	if (ret < 0)
		fprintf(stderr, "%s\n", done.text);
	return ret;
}

static int64_t piece_write(struct upload *up, uint64_t n, bool twice)
{
	struct penstock_seg seg = seg_make(up, n, (unsigned)n, n * up->piece);
	struct penstock_seg other = seg_make(up, n, (unsigned)n + 1, 0);
	int64_t ret = 0;

	if (twice && (seg.off + seg.row_len) % PART && seg.off + seg.row_len < up->len)
		ret = segs_write(up, &other, 1);
	return ret < 0 ? ret : segs_write(up, &seg, 1);
}

static int64_t write_all(struct upload *up, const char *how)
{
	static struct penstock_seg segs[PIECES_MAX];
	const uint64_t count = (up->len + up->piece - 1) / up->piece;
	int64_t ret = 0;

	for (uint64_t i = 0; i < count && i < PIECES_MAX; i++)
		segs[i] = seg_make(up, i, (unsigned)i, i * up->piece);
	if (!strcmp(how, "all"))
		return segs_write(up, segs, (unsigned)count);
	for (uint64_t i = 0; i < count && ret >= 0; i++)
		ret = piece_write(up, strcmp(how, "backward") ? i : count - 1 - i,
				  !strcmp(how, "twice"));
	return ret;
}

static int upload(struct upload *up, const char *url, const char *how)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct penstock_storage_info info = {.size = sizeof(info)};
	int64_t ret;

	up->rdma = up->bounce = up->retries = up->dram = 0;
	up->why = PENSTOCK_WHY_NONE;
	opts.flags = PENSTOCK_O_REPLACE;
	opts.length = strcmp(how, "grow") ? up->len : 0;
	if (penstock_open(url, &opts, &up->st))
		return failed("open");
	ret = write_all(up, how);
	if (ret >= 0)
		ret = penstock_commit(up->st, 1);
	if (ret < 0)
		failed("write");
	penstock_storage_get_info(up->st, &info);
	printf("%" PRId64 " rdma %" PRIu64 " %s bounce %" PRIu64 " retries %" PRIu64
	       " dram %" PRIu64 " parts %u device %u http %u\n",
	       ret, up->rdma, penstock_why_name(up->why), up->bounce, up->retries, up->dram,
	       info.parts_rdma, info.parts_device, info.parts_http);
	penstock_close(up->st);
	return 0;
}

/* Opens a device, and reads the file into its memory. */
static int device_open(struct upload *up, struct penstock_storage *file, const char *name)
{
	const unsigned i = up->dev_count++;
	void *mem;

	if (penstock_device_open(name, NULL, &up->devs[i]) < 0 ||
	    penstock_alloc(up->devs[i], up->len, &mem))
		return failed(name);
	up->mem[i] = mem;
	return penstock_read(file, up->devs[i], mem, up->len, 0) == (int64_t)up->len
		       ? 0
		       : failed("read");
}

int main(int argc, char **argv)
{
	struct penstock_storage *file;
	static struct upload up;
	char line[32];
	int ret = 0;

	if (argc < 5 || argc > 4 + DEVICES_MAX) {
		fprintf(stderr, "usage: upload URL FILE PIECE DEVICE...\n");
		return 2;
	}
	if (penstock_open(argv[2], NULL, &file))
		return failed(argv[2]);
	up.len = (uint64_t)penstock_storage_length(file);
	up.piece = strtoull(argv[3], NULL, 0);
	for (int i = 4; i < argc && !ret; i++)
		ret = device_open(&up, file, argv[i]);
	penstock_close(file);
	while (!ret && (puts("ready"), fflush(stdout), fgets(line, sizeof(line), stdin))) {
		line[strcspn(line, "\n")] = '\0';
		ret = upload(&up, argv[1], line);
	}
	for (unsigned i = 0; i < up.dev_count; i++) {
		penstock_free(up.devs[i], up.mem[i]);
		penstock_device_close(up.devs[i]);
	}
	return ret;
}
