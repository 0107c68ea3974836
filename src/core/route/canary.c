/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements canaries, which test whether a direct path really delivers the bytes: see canary.h.
 * route.c runs canary reads when it makes a route, and lanes check writes through the route's
 * function verify_write. This file must never touch the caller's memory, except to read the bytes
 * of a write chunk.
 */
#include "core/route/canary.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "core/backends.h"
#include "core/base/log.h"
#include "core/base/stats.h"
#include "core/lane/chunk.h"
#include "core/lane/lane.h"
#include "core/lane/pump.h"
#include "core/base/scratch.h"
#include "core/request/spans.h"

/* The state of one canary: a test whether a path delivers the bytes of the storage. */
struct canary {
	struct pst_route *route;
	struct pst_lane *lane;
	unsigned path;
	uint64_t off, len;
	void *scratch;	  /* device memory that the tested read fills; NULL until it is allocated */
	char *want, *got; /* expected and received bytes, both in page-aligned host memory */
	struct pst_err err;
};

/* Reads bytes of the storage into host memory with the storage's own calls, without the path
 * under test. */
static int read_reference(struct canary *t, char *into, uint64_t off, uint64_t len)
{
	struct pst_io io = {
		.st = t->route->st,
		.op = PST_IO_FILL,
		.flags = t->route->st->facts.fd_direct >= 0 ? PST_IO_DIRECT : 0,
		.off = off,
		.len = len,
		.one = {into, len},
		.iov_count = 1,
	};
	int ret;

	io.iov = &io.one;
	ret = pst_lane_io_now(t->lane, &io);
	if (ret)
		return pst_fail_errno(
			&t->err, ret, pst_why_from_errno(ret),
			"reading the canary's reference bytes through host memory: %m%s",
			ret == -EBADF ? " (open the storage for reading too)" : "");
	if ((uint64_t)io.result < len)
		return pst_fail(&t->err, PENSTOCK_WHY_SHORT_IO,
				"the read of the canary's reference bytes was short");
	return 0;
}

/* Copies t->len bytes between host and device memory, and waits until they are copied. `in`
 * means towards the device. */
static int canary_copy(struct canary *t, void *dst, const void *src, bool in)
{
	struct pst_rect rect = {
		.dst = dst, .src = src, .row_len = t->len, .rows = 1, .unsure = true};
	int ret = pst_copy_now(t->lane, t->route->dev, &rect, in);

	return ret ? pst_fail_errno(&t->err, ret, PENSTOCK_WHY_DEVICE_ERROR,
				    "copying a canary's bytes: %m")
		   : 0;
}

/* A request of one chunk, with which the canary runs the path under test. It belongs to no
 * queue. */
struct lone_request {
	struct pst_request req;
	bool completed;
};

/* The chunk's on_done, which runs in place of the usual completion of a chunk. Records that the
 * test's chunk is complete. */
static void lone_done(struct pst_chunk *chunk, int result)
{
	struct lone_request *lone =
		(struct lone_request *)((char *)chunk->req - offsetof(struct lone_request, req));

	chunk->err.code = result;
	lone->completed = true;
}

/* Reads t->len bytes of the storage at offset t->off into the scratch memory, by the path under
 * test. */
static int canary_run_path(struct canary *t)
{
	struct penstock_seg seg = {.buf = t->scratch,
				   .dev = t->route->dev,
				   .off = t->off,
				   .row_len = t->len,
				   .rows = 1,
				   .pitch = t->len,
				   .buf_pitch = t->len};
	struct pst_span span = {.off = t->off, .len = t->len, .route = t->route, .seg_count = 1};
	struct lone_request *lone = calloc(1, sizeof(*lone));
	struct pst_request *req = &lone->req;
	struct pst_chunk *chunk;
	int ret;

	if (!lone)
		return pst_fail(&t->err, PENSTOCK_WHY_NO_MEMORY, "no memory for a canary");
	req->st = t->route->st;
	req->op = PENSTOCK_READ;
	req->segs = &seg;
	req->spans = &span;
	req->seg_count = req->span_count = 1;
	chunk = pst_chunk_get(t->lane);
	chunk->req = req;
	chunk->route = t->route;
	chunk->span = 0;
	chunk->off = t->off;
	chunk->len = t->len;
	chunk->pad = 0;
	chunk->path = (uint8_t)t->path;
	chunk->residency = PST_COLD;
	chunk->on_done = lone_done;
	ret = pst_paths[t->path]->start(chunk);
	while (!ret && !lone->completed)
		pst_lane_turn(t->lane, 1000);
	if (ret || chunk->err.code)
		ret = chunk->err.text[0] && chunk->err.code
			      ? (t->err = chunk->err, t->err.code)
			      : pst_fail_errno(&t->err, ret, PENSTOCK_WHY_IO_ERROR,
					       "the test transfer failed: %m");
	else if (chunk->moved != t->len)
		ret = pst_fail(&t->err, PENSTOCK_WHY_SHORT_IO, "the test transfer was short");
	pst_chunk_put(chunk);
	free(lone);
	return ret;
}

/* Fills `into` with the complement of the bytes at `of`. If a transfer then leaves out a word of
 * `into`, that word differs from the one in `of`. */
static void fill_complement(char *into, const char *of, uint64_t len)
{
	for (uint64_t i = 0; i < len; i++)
		into[i] = (char)~of[i];
}

/* Counts the 8-byte words that differ between `want` and `got`. */
static size_t count_differing(const char *want, const char *got, uint64_t len)
{
	size_t words = 0;

	for (uint64_t i = 0; i < len; i += sizeof(uint64_t)) {
		uint64_t a = 0, b = 0, n = len - i < sizeof(a) ? len - i : sizeof(a);

		memcpy(&a, want + i, n);
		memcpy(&b, got + i, n);
		words += a != b;
	}
	return words;
}

/* Tests the path on one extent: t->len bytes of the storage at offset t->off. Returns 0 if every
 * word arrived. */
static int canary_try_extent(struct canary *t)
{
	size_t wrong;
	int ret = read_reference(t, t->want, t->off, t->len);

	if (ret)
		return ret;
	fill_complement(t->got, t->want, t->len);
	ret = canary_copy(t, t->scratch, t->got, true);
	if (!ret)
		ret = canary_run_path(t);
	if (!ret)
		ret = canary_copy(t, t->got, t->scratch, false);
	if (ret)
		return ret;
	wrong = count_differing(t->want, t->got, t->len);
	if (wrong)
		return pst_fail(&t->err, PENSTOCK_WHY_CANARY,
				"a read of %llu bytes reported success but %zu of %llu words "
				"did not arrive (an IOMMU or bridge between drive and device?)",
				(unsigned long long)t->len, wrong,
				(unsigned long long)((t->len + 7) / 8));
	return 0;
}

/* Tests the path on one extent (range of written bytes) of each drive of the storage. Returns 0 if
 * the path delivered all bytes. */
static int canary_try_drives(struct canary *t)
{
	const struct pst_storage_facts *facts = &t->route->st->facts;
	const uint32_t off_align = t->route->paths[t->path].facts.off_align;
	uint64_t align = off_align > 4096 ? off_align : 4096;
	unsigned drives = facts->stripe_len && facts->drive_count > 1 ? facts->drive_count : 1;
	bool striped = facts->stripe_len && facts->stripe_len < PST_SCRATCH_BYTES;
	uint64_t max = striped ? facts->stripe_len : PST_SCRATCH_BYTES;

	t->off = 0;
	for (unsigned i = 0; i < drives; i++) {
		uint64_t from = t->off;
		int ret = pst_written_blocks(t->route->st, align, max, &t->off, &t->len);

		if (ret)
			return pst_fail(
				&t->err, PENSTOCK_WHY_UNPROVEN,
				"%u of %u drives proven: the next one has no written extent to "
				"test, write a block first",
				i, drives);
		ret = canary_try_extent(t);
		if (ret)
			return ret;
		/* Continue one stripe length further on, where the bytes are on the next drive. */
		t->off = (t->off > from ? t->off : from) + (drives > 1 ? facts->stripe_len : 0);
	}
	return 0;
}

void pst_canary_read(struct pst_route *route, unsigned index)
{
	struct pst_path_state *state = &route->paths[index];
	struct penstock_device *dev = route->dev;
	struct pst_stats *stats = pst_stats_get();
	struct canary t = {.route = route, .path = index};
	int ret;

	atomic_fetch_add_explicit(&stats->canaries, 1, memory_order_relaxed);
	t.lane = pst_pump_borrow_wait(atomic_load(&dev->pump), &t.err);
	t.want = aligned_alloc(4096, 2 * PST_SCRATCH_BYTES);
	t.got = t.want ? t.want + PST_SCRATCH_BYTES : NULL;
	if (!t.lane)
		ret = t.err.code;
	else if (!t.want)
		ret = pst_fail(&t.err, PENSTOCK_WHY_NO_MEMORY, "no memory for a canary");
	else
		ret = pst_scratch_get(dev, &t.scratch, &t.err);
	if (!ret) {
		/* Overwrite the buffer for the expected bytes. aligned_alloc may return memory that
		 * still contains the expected bytes of an earlier test, and a read that delivers
		 * nothing would then look correct. */
		memset(t.want, 0x5a, PST_SCRATCH_BYTES);
		ret = canary_try_drives(&t);
	}
	if (t.scratch)
		pst_scratch_put(dev, t.scratch);
	if (t.lane)
		pst_pump_return(t.lane);
	free(t.want);
	state->proven = ret ? -1 : 1;
	if (!ret)
		return;
	state->usable = false;
	state->err = t.err;
	if (t.err.why == PENSTOCK_WHY_CANARY) {
		atomic_fetch_add_explicit(&stats->canaries_failed, 1, memory_order_relaxed);
		pst_log(PST_LOG_WARN, pst_paths[index]->name, "%s", t.err.text);
	}
}

/* Returns a mask of the drives that hold the chunk's bytes: bit i stands for drive i of the
 * stripe. Returns 1 if the storage is not striped. */
static uint32_t chunk_drives(const struct pst_chunk *chunk)
{
	const struct pst_storage_facts *facts = &chunk->route->st->facts;
	uint64_t first, last;
	uint32_t bits = 0;

	if (!facts->stripe_len || facts->drive_count < 2)
		return 1;
	first = chunk->off / facts->stripe_len;
	last = (chunk->off + chunk->len - 1) / facts->stripe_len;
	for (unsigned i = 0; i < facts->drive_count && first + i <= last; i++)
		bits |= 1u << (first + i) % facts->drive_count;
	return bits;
}

/* Returns whether the library has read back earlier writes of the same path from every drive that
 * holds this chunk, and all had arrived. If one had not arrived, it returns false for all later
 * chunks of the path, so that each of them is read back. */
static bool chunk_is_proven(const struct pst_chunk *chunk)
{
	const struct pst_route *route = chunk->route;
	uint32_t drives = chunk_drives(chunk);

	return !atomic_load_explicit(&route->write_proof[chunk->path], memory_order_acquire) &&
	       !(drives &
		 ~atomic_load_explicit(&route->write_drives[chunk->path], memory_order_acquire));
}

int pst_canary_write(struct pst_chunk *chunk)
{
	struct pst_route *route = chunk->route;
	struct canary t = {.route = route,
			   .lane = chunk->lane,
			   .path = chunk->path,
			   .off = chunk->off,
			   .len = chunk->len};
	uint64_t buf_len = (chunk->len + chunk->pad + 4095) / 4096 * 4096;
	struct pst_part part;
	size_t wrong;
	int ret;

	if (chunk_is_proven(chunk))
		return 0;
	t.want = aligned_alloc(4096, 2 * buf_len);
	if (!t.want)
		return pst_fail(&chunk->err, PENSTOCK_WHY_NO_MEMORY, "no memory for a canary");
	t.got = t.want + buf_len;
	ret = pst_span_part_at(chunk->req, &chunk->req->spans[chunk->span], chunk->off, &part);
	if (!ret)
		ret = canary_copy(&t, t.want, part.mem, false);
	if (!ret) {
		fill_complement(t.got, t.want, t.len);
		ret = read_reference(&t, t.got, t.off, chunk->len + chunk->pad);
	}
	if (!ret) {
		wrong = count_differing(t.want, t.got, t.len);
		if (wrong)
			ret = pst_fail(&t.err, PENSTOCK_WHY_CANARY,
				       "a write of %llu bytes reported success but %zu words read "
				       "back through host memory differ",
				       (unsigned long long)t.len, wrong);
	}
	free(t.want);
	if (!ret) {
		atomic_fetch_or_explicit(&route->write_drives[chunk->path], chunk_drives(chunk),
					 memory_order_release);
		return 0;
	}
	chunk->err = t.err;
	atomic_store_explicit(&route->write_proof[chunk->path], -(int)t.err.why,
			      memory_order_release);
	return ret;
}
