/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Past the processor's cache: see past.h. What a read call has just written stands in the
 * second-level cache of the processor that made it, and from there a copy engine fetches it
 * at half its speed (256 KiB in 21.7 us, not 13.7; H200). In a long read it is gone from
 * there by the time that its copy begins; in one of a few MiB the engine is what everybody
 * waits for. So each piece is read into a small buffer that stays in the cache, and written
 * from there by stores that pass it by: 4 MiB in 190 us, not 290. Each byte is copied twice
 * by a CPU, and is counted so; with several such requests at once, or in one of 64 MiB,
 * processors have no time for it.
 */
#include "path/past.h"

#include <errno.h>
#include <string.h>

#include "core/lane/pump.h"
#include "core/request/request.h"
#include "core/route/route.h"

#define REQUEST_MAX (16u << 20)
#define REQUEST_MIN (2u << 20) /* from here on several lanes share it */
#define CHUNK_MIN (64u << 10)

#if defined(__x86_64__)
#include <emmintrin.h>

static void store_past(char *dst, const char *src, size_t len)
{
	size_t at = -(uintptr_t)dst % sizeof(__m128i);

	at = at < len ? at : len;
	memcpy(dst, src, at);
	for (; at + sizeof(__m128i) <= len; at += sizeof(__m128i))
		_mm_stream_si128((__m128i *)(void *)(dst + at),
				 _mm_loadu_si128((const __m128i *)(const void *)(src + at)));
	memcpy(dst + at, src + at, len - at);
	_mm_sfence(); /* before the device is told of them */
}

static bool can_store_past(void)
{
	return true;
}
#else
static void store_past(char *dst, const char *src, size_t len)
{
	memcpy(dst, src, len);
}

static bool can_store_past(void)
{
	return false;
}
#endif

/* Near enough: all that comes while its first lane has room goes there first. One that no
 * lane counts, a caller's or a wrapped one's, is not asked for it. */
static bool alone(const struct pst_request *req)
{
	return req->home_lane &&
	       atomic_load_explicit(&req->home_lane->requests, memory_order_relaxed) <= 1;
}

bool pst_past_suits(const struct pst_chunk *chunk)
{
	const struct pst_request *req = chunk->req;
	const struct pst_lane *lane = chunk->lane;

	return can_store_past() && lane->l2_buffer && req->effort == PENSTOCK_FAST &&
	       req->op == PENSTOCK_READ && req->total >= REQUEST_MIN && req->total <= REQUEST_MAX &&
	       chunk->len >= CHUNK_MIN && alone(req) && chunk->residency == PST_WARM &&
	       !chunk->timed &&
	       req->st->facts.fd >= 0; /* whose calls are made at once where asked for */
}

static void copied(struct pst_chunk *chunk, int result)
{
	pst_chunk_done(chunk, result);
}

/* What there is of it goes on. */
static int end(struct pst_chunk *chunk)
{
	if (chunk->moved)
		return pst_chunk_copy(chunk, chunk->slot->mem, chunk->moved, copied);
	pst_chunk_done(chunk, 0);
	return 0;
}

static void piece_read(struct pst_io *io);

static int read_piece(struct pst_chunk *chunk)
{
	struct pst_lane *lane = chunk->lane;
	uint64_t len = chunk->len - chunk->moved;

	len = len < PST_L2_BOUNCE_BYTES ? len : PST_L2_BOUNCE_BYTES;
	pst_chunk_io(chunk, lane->l2_buffer, chunk->off + chunk->moved, len, PST_IO_NOW,
		     piece_read);
	return pst_chunk_io_start(chunk);
}

static void piece_read(struct pst_io *io)
{
	struct pst_chunk *chunk = pst_chunk_io_done(io);
	uint64_t got = io->result > 0 ? (uint64_t)io->result : 0;
	int ret = io->result < 0 ? (int)io->result : 0;

	chunk->engine = io->engine;
	store_past(chunk->slot->mem + chunk->moved, chunk->lane->l2_buffer, got);
	chunk->moved += got;
	chunk->cpu_copied += 2 * got;
	chunk->dram_laid += got;
	if (ret)
		chunk->err = io->err;
	else if (got == io->len && chunk->moved < chunk->len)
		ret = read_piece(chunk);
	else
		ret = end(chunk);
	if (ret)
		pst_chunk_done(chunk, ret);
}

int pst_past_start(struct pst_chunk *chunk)
{
	if (!chunk->slot)
		chunk->slot = pst_slot_get(&chunk->lane->slots, chunk->len);
	return chunk->slot ? read_piece(chunk) : -EAGAIN;
}
