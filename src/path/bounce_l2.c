/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The L2 bounce. A read from the page cache leaves its bytes in the L2 cache of the CPU that made
 * the call. If the copy engine then fetches them from the L2 cache, it runs at half speed: 256 KiB
 * take 21.7 us instead of 13.7 (H200). In a long read the bytes have left the L2 cache before
 * their copy starts. In a read of a few MiB the bytes are still there, and the slow copy engine is
 * the bottleneck.
 *
 * So this file reads each piece into a small buffer that stays in the L2 cache. From there it
 * copies the piece to the slot (the pinned memory from which the GPU copies) with non-temporal
 * stores, which bypass the cache. A read of 4 MiB then takes 190 us instead of 290. The CPU copies
 * each byte twice, and both copies are counted. The L2 bounce is used only for a read of at most
 * REQUEST_MAX bytes that is alone in flight. With several reads at once, or with a read of 64 MiB,
 * the CPUs have no time for the second copy.
 */
#include "path/bounce_l2.h"

#include <errno.h>
#include <string.h>

#include "core/lane/chunk.h"
#include "core/lane/lane.h"
#include "core/lane/ring.h"
#include "core/request/request.h"

#define REQUEST_MAX (16u << 20)
/* Minimum length of the request in bytes. The library does not divide shorter requests among its
 * threads. */
#define REQUEST_MIN (2u << 20)
#define CHUNK_MIN (64u << 10)

#if defined(__x86_64__)
#include <emmintrin.h>

static void store_nontemporal(char *dst, const char *src, size_t len)
{
	size_t at = -(uintptr_t)dst % sizeof(__m128i);

	at = at < len ? at : len;
	memcpy(dst, src, at);
	for (; at + sizeof(__m128i) <= len; at += sizeof(__m128i))
		_mm_stream_si128((__m128i *)(void *)(dst + at),
				 _mm_loadu_si128((const __m128i *)(const void *)(src + at)));
	memcpy(dst + at, src + at, len - at);
	/* Makes the stores visible to the device before the device's copy is queued. */
	_mm_sfence();
}

static bool can_store_nontemporal(void)
{
	return true;
}
#else
static void store_nontemporal(char *dst, const char *src, size_t len)
{
	memcpy(dst, src, len);
}

static bool can_store_nontemporal(void)
{
	return false;
}
#endif

/* Returns true if the request is probably the only one in flight. A device's requests go to the
 * device's first thread (lane) while this lane has capacity, and it counts them in `requests`.
 * Requests that a caller's thread or a wrapper path carries out are not counted. For such a
 * request, the function returns false. */
static bool req_is_alone(const struct pst_request *req)
{
	return req->home_lane &&
	       atomic_load_explicit(&req->home_lane->requests, memory_order_relaxed) <= 1;
}

bool pst_bounce_l2_suits(const struct pst_chunk *chunk)
{
	const struct pst_request *req = chunk->req;
	const struct pst_lane *lane = chunk->lane;

	/* The L2 bounce reads with PST_IO_NOW, for which the storage must have a descriptor. */
	return can_store_nontemporal() && lane->l2_buffer && req->effort == PENSTOCK_FAST &&
	       req->op == PENSTOCK_READ && req->total >= REQUEST_MIN && req->total <= REQUEST_MAX &&
	       chunk->len >= CHUNK_MIN && req_is_alone(req) && chunk->residency == PST_WARM &&
	       !chunk->timed && req->st->facts.fd >= 0;
}

static void bounce_l2_copied(struct pst_chunk *chunk, int result)
{
	pst_chunk_done(chunk, result);
}

/* After the read, queues the copy from the slot (pinned memory) to the device. If no byte was read,
 * completes the chunk instead. */
static int bounce_l2_copy(struct pst_chunk *chunk)
{
	if (chunk->moved)
		return pst_chunk_copy(chunk, chunk->slot->mem, chunk->moved, bounce_l2_copied);
	pst_chunk_done(chunk, 0);
	return 0;
}

static void l2_piece_filled(struct pst_io *io);

static int l2_piece_read(struct pst_chunk *chunk)
{
	struct pst_lane *lane = chunk->lane;
	uint64_t len = chunk->len - chunk->moved;

	len = len < PST_L2_BOUNCE_BYTES ? len : PST_L2_BOUNCE_BYTES;
	pst_chunk_io(chunk, lane->l2_buffer, chunk->off + chunk->moved, len, PST_IO_NOW,
		     l2_piece_filled);
	return pst_chunk_io_start(chunk);
}

static void l2_piece_filled(struct pst_io *io)
{
	struct pst_chunk *chunk = pst_chunk_io_done(io);
	uint64_t got = io->result > 0 ? (uint64_t)io->result : 0;
	int ret = io->result < 0 ? (int)io->result : 0;

	chunk->engine = io->engine;
	store_nontemporal(chunk->slot->mem + chunk->moved, chunk->lane->l2_buffer, got);
	chunk->moved += got;
	chunk->cpu_copied += 2 * got;
	chunk->dram_laid += chunk->fills_cache ? 2 * got : got;
	if (ret)
		chunk->err = io->err;
	else if (got == io->len && chunk->moved < chunk->len)
		ret = l2_piece_read(chunk);
	else
		ret = bounce_l2_copy(chunk);
	if (ret)
		pst_chunk_done(chunk, ret);
}

int pst_bounce_l2_start(struct pst_chunk *chunk)
{
	if (!chunk->slot)
		chunk->slot = pst_slot_get(&chunk->lane->slots, chunk->len);
	return chunk->slot ? l2_piece_read(chunk) : -EAGAIN;
}
