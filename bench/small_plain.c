/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements small_plain.h: random reads by plain system calls and driver calls. Section `small`
 * compares the library with them.
 */
#include "small_plain.h"

#include <errno.h>
#include <stdlib.h>
#include <unistd.h>

#include "../cli/ring.h"
#include "device/cuda_api.h"
#include "gpu.h"

uint64_t small_random(uint64_t *state)
{
	*state ^= *state << 13;
	*state ^= *state >> 7;
	*state ^= *state << 17;
	return *state;
}

void small_percentiles(struct small_latencies *l, struct sample *s)
{
	uint64_t n = l->count < SMALL_SAMPLES ? l->count : SMALL_SAMPLES;

	if (!n)
		return;
	qsort(l->ns, n, sizeof(*l->ns), meter_compare_u32);
	s->p50_us = l->ns[n / 2] * 1e-3;
	s->p99_us = l->ns[n - 1 - n / 100] * 1e-3;
}

/* ---- one read at a time ---- */

/* Makes one pread and one copy, and polls until the copy is done. */
static int plain_read(const struct gpu *g, int fd, char *pinned, pst_cu_ptr to, uint64_t off)
{
	int rc;

	if (pread(fd, pinned, SMALL_BLOCK, (off_t)off) != SMALL_BLOCK)
		return -EIO;
	rc = gpu_copy_two_rows(pinned, to, SMALL_BLOCK, g->stream);
	while (!rc && (rc = (int)g->api->cuStreamQuery(g->stream)) == PST_CU_NOT_READY)
		rc = 0;
	return gpu_bad("plain read", rc);
}

int small_plain_row(struct bench *b, struct small_plain *r, unsigned rep)
{
	char *pinned = gpu_pinned_mem(MIB);
	int fd = drive_open(b->file, false), ret = pinned && fd >= 0 ? 0 : -EIO;
	struct sample s = {0};
	struct meter m;
	uint64_t until;

	r->lat->count = 0;
	meter_start(&m);
	until = meter_ns() + (uint64_t)(b->seconds * 1e9);
	while (!ret && meter_ns() < until) {
		uint64_t began = meter_ns();

		ret = plain_read(gpu_get(), fd, pinned, (uintptr_t)b->gpu,
				 small_random(&r->state) % r->blocks * SMALL_BLOCK);
		r->lat->ns[r->lat->count++ % SMALL_SAMPLES] = (uint32_t)(meter_ns() - began);
	}
	meter_stop(&m, &s);
	meter_settle(&m, &s);
	s.ops = r->lat->count;
	s.bytes = s.ops * SMALL_BLOCK;
	small_percentiles(r->lat, &s);
	if (!ret)
		meter_row(b, "small1", "gpu plain calls", rep, &s);
	if (fd >= 0)
		close(fd);
	return ret;
}

/* ---- plain reads with an io_uring ---- */

#define PLAIN_DEPTH 32u

/* Reads with PLAIN_DEPTH calls in flight, without Penstock. One thread submits them to an io_uring,
 * and queues the copies to the GPU if `gpu` is true. Each read has a block of pinned memory. After
 * each group of copies follows an event, and the reads of the group are done when the event is. */
struct plain_ring {
	struct small_plain *r;
	struct ring ring;
	int fd;
	char *pinned;
	bool gpu;
	uint64_t began[PLAIN_DEPTH];
	unsigned in_drive; /* number of reads that the drive has */
	/* The copies: events[i % PLAIN_DEPTH] follows group i, whose reads are the bits of its
	 * mask. Groups from `first` up to `next` are under way. */
	struct pst_cu_event *events[PLAIN_DEPTH];
	uint32_t masks[PLAIN_DEPTH];
	unsigned first, next;
};

/* Submits the reads whose bits are set in `mask`, at random offsets. */
static int plain_submit(struct plain_ring *p, uint32_t mask)
{
	unsigned count = 0;

	for (unsigned i = 0; i < PLAIN_DEPTH; i++) {
		if (!(mask >> i & 1))
			continue;
		p->began[i] = meter_ns();
		ring_queue(&p->ring, &(struct ring_io){.fd = p->fd,
						       .fixed = true,
						       .mem = p->pinned + i * SMALL_BLOCK,
						       .len = SMALL_BLOCK,
						       .off = small_random(&p->r->state) %
							      p->r->blocks * SMALL_BLOCK,
						       .tag = i});
		count++;
	}
	p->in_drive += count;
	return count ? ring_enter(&p->ring, count, 0) : 0;
}

/* Counts the reads whose bits are set in `mask` as done. */
static void plain_done(struct plain_ring *p, uint32_t mask)
{
	struct small_latencies *lat = p->r->lat;
	uint64_t now = meter_ns();

	for (unsigned i = 0; i < PLAIN_DEPTH; i++)
		if (mask >> i & 1)
			lat->ns[lat->count++ % SMALL_SAMPLES] = (uint32_t)(now - p->began[i]);
}

/* Takes the completions of the drive. Sleeps until there is one if nothing else is under way. */
static int plain_take(struct plain_ring *p, uint32_t *mask)
{
	int ret = 0;

	*mask = 0;
	if (p->first == p->next && !ring_has_completion(&p->ring))
		ret = ring_enter(&p->ring, 0, 1);
	while (!ret && ring_has_completion(&p->ring)) {
		uint64_t tag;

		ret = ring_take(&p->ring, &tag) == SMALL_BLOCK ? 0 : -EIO;
		*mask |= 1u << tag;
		p->in_drive--;
	}
	return ret;
}

/* Queues the copies of a group of reads, and an event after them. */
static int plain_copy(struct plain_ring *p, struct bench *b, uint32_t mask)
{
	struct gpu *g = gpu_get();
	int rc = 0;

	for (unsigned i = 0; i < PLAIN_DEPTH && !rc; i++)
		if (mask >> i & 1)
			rc = gpu_copy_two_rows(p->pinned + i * SMALL_BLOCK,
					       (uintptr_t)b->gpu + i * SMALL_BLOCK, SMALL_BLOCK,
					       g->stream);
	if (!rc)
		rc = (int)g->api->cuEventRecord(p->events[p->next % PLAIN_DEPTH], g->stream);
	p->masks[p->next++ % PLAIN_DEPTH] = mask;
	return gpu_bad("plain copies", rc);
}

/* Returns the reads whose copies are done, as bits. */
static uint32_t plain_copied(struct plain_ring *p)
{
	uint32_t mask = 0;

	while (p->first != p->next &&
	       gpu_get()->api->cuEventQuery(p->events[p->first % PLAIN_DEPTH]) == PST_CU_OK)
		mask |= p->masks[p->first++ % PLAIN_DEPTH];
	return mask;
}

static int plain_turn(struct plain_ring *p, struct bench *b)
{
	uint32_t mask;
	int ret = plain_take(p, &mask);

	if (!ret && p->gpu) {
		ret = mask ? plain_copy(p, b, mask) : 0;
		mask = plain_copied(p);
	}
	plain_done(p, mask);
	return ret ? ret : plain_submit(p, mask);
}

static int plain_ring_open(struct plain_ring *p, struct bench *b)
{
	int ret;

	p->pinned = gpu_get() ? gpu_pinned_mem(MIB) : aligned_alloc(MIB, MIB);
	p->fd = drive_open(b->file, false);
	ret = p->pinned && p->fd >= 0 ? ring_open(&p->ring, PLAIN_DEPTH) : -EIO;
	if (ret)
		p->ring.fd = -1;
	else
		ret = ring_register(&p->ring, p->pinned, PLAIN_DEPTH * SMALL_BLOCK);
	for (unsigned i = 0; i < PLAIN_DEPTH && p->gpu && !ret; i++)
		ret = gpu_bad("event", (int)gpu_get()->api->cuEventCreate(&p->events[i],
									  PST_CU_EVENT_NO_TIMING));
	return ret;
}

static void plain_ring_close(struct plain_ring *p)
{
	if (p->ring.fd >= 0)
		ring_close(&p->ring);
	if (p->gpu)
		gpu_get()->api->cuStreamSynchronize(gpu_get()->stream);
	for (unsigned i = 0; i < PLAIN_DEPTH && p->gpu; i++)
		if (p->events[i])
			gpu_get()->api->cuEventDestroy(p->events[i]);
	if (!gpu_get())
		free(p->pinned);
	if (p->fd >= 0)
		close(p->fd);
}

int small_plain_ring_row(struct bench *b, struct small_plain *r, bool gpu, unsigned rep)
{
	struct plain_ring p = {.r = r, .gpu = gpu};
	int ret = plain_ring_open(&p, b);
	struct sample s = {0};
	struct meter m;
	uint64_t until;

	r->lat->count = 0;
	meter_start(&m);
	until = meter_ns() + (uint64_t)(b->seconds * 1e9);
	if (!ret)
		ret = plain_submit(&p, UINT32_MAX);
	while (!ret && meter_ns() < until)
		ret = plain_turn(&p, b);
	meter_stop(&m, &s);
	meter_settle(&m, &s);
	while (!ret && p.in_drive) { /* before the file and the memory are closed */
		uint32_t mask;

		if (!ring_has_completion(&p.ring))
			ret = ring_enter(&p.ring, 0, 1);
		if (!ret)
			ret = plain_take(&p, &mask);
	}
	s.ops = r->lat->count;
	s.bytes = s.ops * SMALL_BLOCK;
	small_percentiles(r->lat, &s);
	if (!ret)
		meter_row(b, "small32", gpu ? "gpu plain calls" : "host plain calls", rep, &s);
	plain_ring_close(&p);
	return ret;
}
