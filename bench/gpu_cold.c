/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures the limit of reading an uncached range into the GPU. One thread uses one io_uring,
 * whose O_DIRECT reads fill a pinned ring. One CUDA stream copies from the ring to the GPU, with
 * an event for each block. This is the work of path `staged` with the fewest possible calls. A
 * comparison with this limit and with the limit of the drive shows which losses are in the
 * library. From the library it uses only the table of driver functions.
 */
#include <errno.h>
#include <string.h>

#include "bench.h"
#include "device/cuda_api.h"
#include "gpu.h"

struct copies {
	struct bench *b;
	struct gpu *gpu;
	struct pst_cu_event *event[RAW_DEPTH_MAX];
	unsigned slot[RAW_DEPTH_MAX]; /* Indexes of the ring's slots whose copies are queued, in
				       * the order in which they were queued. */
	unsigned head, tail;
};

static int copy_block(void *arg, unsigned slot, char *mem, uint64_t at, size_t len)
{
	struct copies *c = arg;
	int rc = (int)c->gpu->api->cuMemcpyHtoDAsync((uintptr_t)c->b->gpu + at, mem, len,
						     c->gpu->stream);

	if (!rc)
		rc = (int)c->gpu->api->cuEventRecord(c->event[slot], c->gpu->stream);
	c->slot[c->tail++ % RAW_DEPTH_MAX] = slot;
	return gpu_bad("cold copy", rc);
}

static int copy_poll(void *arg)
{
	struct copies *c = arg;
	unsigned slot = c->slot[c->head % RAW_DEPTH_MAX];

	if (c->gpu->api->cuEventQuery(c->event[slot]) == PST_CU_NOT_READY)
		/* The copy is not done. With any other result, even an error, the copy counts as
		 * done, because the comparison of the bytes detects a failed copy. */
		return -1;
	c->head++;
	return (int)slot;
}

int gpu_cold_row(struct bench *b, const char *group, const char *name, unsigned rep, int fd,
		 uint64_t off, uint64_t len, const struct drive_way *way, bool sleeps)
{
	struct copies c = {.b = b, .gpu = gpu_get()};
	struct raw_sink sink = {copy_block, copy_poll, &c, sleeps};
	struct raw_move move = {.fd = fd,
				.buf = gpu_pinned_mem(way->depth * way->block),
				.off = off,
				.count = len / way->block,
				.stride = way->block,
				.way = way,
				.sink = &sink};
	struct sample s = {.bytes = len / way->block * way->block};
	unsigned made = 0;
	struct meter m;
	int ret = move.buf ? 0 : -ENOMEM;

	for (; made < way->depth && !ret; made++)
		ret = gpu_bad("event", (int)c.gpu->api->cuEventCreate(&c.event[made],
								      PST_CU_EVENT_NO_TIMING));
	gpu_poison(b, len);
	meter_start(&m);
	if (!ret)
		ret = rawring_move(&move);
	meter_stop(&m, &s);
	meter_settle(&m, &s);
	while (made)
		c.gpu->api->cuEventDestroy(c.event[--made]);
	if (ret || !gpu_same(b, b->file, off, s.bytes))
		return ret ? ret : -EIO;
	drive_way_text(way, s.note, sizeof(s.note));
	meter_row(b, group, name, rep, &s);
	return 0;
}
