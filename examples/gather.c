/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reads scattered blocks of a file into device memory through a queue. Each request reads 32
 * blocks and has a single completion. Up to 16 requests are in flight. Then the program copies
 * all blocks to host memory and compares them with blocks that pread(2) reads.
 *
 *	gather FILE [DEVICE]
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <penstock.h>

#define BLOCK 4096u
#define PARTS 32u    /* number of blocks in each request */
#define REQUESTS 64u /* total number of requests */
#define BLOCKS (PARTS * REQUESTS)

struct gather {
	struct penstock_storage *st;
	struct penstock_device *dev;
	struct penstock_queue *q;
	char *mem;
	uint64_t blocks; /* number of whole blocks in the file */
	struct penstock_seg segs[REQUESTS][PARTS];
	struct penstock_req reqs[REQUESTS];
};

/* Prints the library's message for the last error. */
static int fail(const char *what)
{
	fprintf(stderr, "%s: %s\n", what, penstock_errmsg());
	return 1;
}

/* Returns the file offset of the n-th block to read. The offsets are scattered over the file. */
static uint64_t block_offset(const struct gather *g, uint64_t n)
{
	return n * 7919 % g->blocks * BLOCK;
}

/*
 * Fills the requests and their segments. penstock_submit copies them, so a program may change them
 * afterwards. This program keeps them, because it submits a request again if the queue was full.
 */
static void make_requests(struct gather *g)
{
	for (uint64_t i = 0; i < REQUESTS; i++) {
		for (uint64_t k = 0; k < PARTS; k++)
			g->segs[i][k] = (struct penstock_seg){.buf = g->mem,
							      .dev = g->dev,
							      .buf_off = (i * PARTS + k) * BLOCK,
							      .off = block_offset(g, i * PARTS + k),
							      .row_len = BLOCK};
		g->reqs[i] = (struct penstock_req)PENSTOCK_REQ_INIT;
		g->reqs[i].storage = g->st;
		g->reqs[i].segs = g->segs[i];
		g->reqs[i].seg_count = PARTS;
		g->reqs[i].flags = PENSTOCK_R_EXACT; /* A read that ends early shall fail. */
	}
}

/* Submits all requests and waits until all have completed. */
static int run_requests(struct gather *g)
{
	unsigned submitted = 0, completed = 0;

	while (completed < REQUESTS) {
		struct penstock_done done[REQUESTS];
		int n = 0;

		if (submitted < REQUESTS)
			n = penstock_submit(g->q, &g->reqs[submitted], REQUESTS - submitted, NULL);
		/* -EAGAIN: the queue is full until completions are harvested. */
		if (n < 0 && n != -EAGAIN)
			return fail("submit");
		submitted += n > 0 ? (unsigned)n : 0;
		n = penstock_wait(g->q, done, 1, REQUESTS, -1);
		if (n < 0)
			return fail("wait");
		for (int i = 0; i < n; i++)
			if (done[i].result < 0) {
				fprintf(stderr, "request: %s\n", done[i].report->text);
				/* The caller closes the queue, which waits for the requests in
				 * flight. */
				return 1;
			}
		completed += (unsigned)n;
	}
	return 0;
}

/* Copies the blocks to host memory and compares each block with the file. */
static int compare(const struct gather *g, const char *file)
{
	struct penstock_copy_args back = {
		.size = sizeof(back), .src_dev = g->dev, .src = g->mem, .row_len = BLOCKS * BLOCK};
	char *host = malloc(BLOCKS * BLOCK), block[BLOCK];
	int fd = open(file, O_RDONLY | O_CLOEXEC), ret = 0;

	back.dst = host;
	if (!host || fd < 0 || penstock_device_open("host", NULL, &back.dst_dev) < 0)
		return 1;
	if (penstock_copy(&back, 1) < 0)
		ret = fail("copy");
	for (uint64_t n = 0; !ret && n < BLOCKS; n++)
		if (pread(fd, block, BLOCK, (off_t)block_offset(g, n)) != (ssize_t)BLOCK ||
		    memcmp(block, host + n * BLOCK, BLOCK) != 0) {
			fprintf(stderr, "block %" PRIu64 " differs\n", n);
			ret = 1;
		}
	penstock_device_close(back.dst_dev);
	close(fd);
	free(host);
	return ret;
}

/* Opens file, device and queue, runs the requests and compares the result. */
static int gather(struct gather *g, const char *file, const char *device)
{
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;
	void *mem = NULL;
	int ret;

	opts.requests_max = 16;
	opts.segs_max = PARTS;
	/* penstock_prepare starts the device's threads, so that the first submit is quick. */
	if (penstock_device_open(device, NULL, &g->dev) < 0 ||
	    penstock_open(file, NULL, &g->st) < 0 || penstock_queue_open(&opts, &g->q) < 0 ||
	    penstock_alloc(g->dev, BLOCKS * BLOCK, &mem) < 0 ||
	    penstock_prepare(g->st, g->dev, PENSTOCK_READ) < 0)
		return fail("opening");
	g->mem = mem;
	g->blocks = (uint64_t)penstock_storage_length(g->st) / BLOCK;
	if (!g->blocks) {
		fprintf(stderr, "%s is shorter than a block\n", file);
		return 1;
	}
	make_requests(g);
	ret = run_requests(g);
	/* Close the queue first, because its requests use the memory, storage and device. */
	penstock_queue_close(g->q);
	if (!ret)
		ret = compare(g, file);
	penstock_free(g->dev, mem);
	penstock_close(g->st);
	penstock_device_close(g->dev);
	return ret;
}

int main(int argc, char **argv)
{
	static struct gather g;
	int ret;

	if (argc < 2) {
		fprintf(stderr, "usage: gather FILE [DEVICE]\n");
		return 2;
	}
	ret = gather(&g, argv[1], argc > 2 ? argv[2] : "auto");
	if (!ret)
		printf("%u blocks in %u requests: the same\n", BLOCKS, REQUESTS);
	return ret;
}
