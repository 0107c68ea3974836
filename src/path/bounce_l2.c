/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The L2 bounce. A read call leaves its bytes in the L2 cache of the CPU that made it, and a
 * copy engine fetches them from there at half its speed: 256 KiB take 21.7 us instead of 13.7
 * (H200). In a long read the bytes have left the cache by the time their copy starts. In a read
 * of a few MiB the copy engine is the bottleneck.
 *
 * So this file reads each piece into a small buffer that stays in the L2 cache, and copies it
 * from there to the slot with non-temporal stores, which bypass the cache: 4 MiB take 190 us
 * instead of 290. The CPU copies each byte twice, and both copies are counted. With several
 * such requests at once, or in one of 64 MiB, the CPUs have no time for the second copy.
 */
#include "path/bounce_l2.h"

#include <errno.h>
#include <string.h>

#include "core/lane/pump.h"
#include "core/request/request.h"
#include "core/route/route.h"

#define REQUEST_MAX (16u << 20)
#define REQUEST_MIN (2u << 20) /* From this length on several lanes share a request. */
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
	_mm_sfence(); /* Makes the stores visible before the device learns of them. */
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

/* Returns true if the request is probably the only one in flight: the pump gives requests to
 * its first lane while that has capacity, and that lane counts them. A request that no lane
 * counts, because a caller's thread or a wrapper path drives it, never qualifies. */
static bool req_is_alone(const struct pst_request *req)
{
	return req->home_lane &&
	       atomic_load_explicit(&req->home_lane->requests, memory_order_relaxed) <= 1;
}

bool pst_bounce_l2_suits(const struct pst_chunk *chunk)
{
	const struct pst_request *req = chunk->req;
	const struct pst_lane *lane = chunk->lane;

	return can_store_nontemporal() && lane->l2_buffer && req->effort == PENSTOCK_FAST &&
	       req->op == PENSTOCK_READ && req->total >= REQUEST_MIN && req->total <= REQUEST_MAX &&
	       chunk->len >= CHUNK_MIN && req_is_alone(req) && chunk->residency == PST_WARM &&
	       !chunk->timed &&
	       req->st->facts.fd >= 0; /* A storage with a descriptor obeys PST_IO_NOW. */
}

static void bounce_l2_copied(struct pst_chunk *chunk, int result)
{
	pst_chunk_done(chunk, result);
}

/* Queues the copy of the bytes that were read, or completes the chunk if there are none. */
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
	chunk->dram_laid += got;
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
