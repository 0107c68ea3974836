/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which length a storage gets: see grain.h. What comes is counted in turns. Of a length that
 * was not in use before the first turn is let go by, the next one measured; when each has
 * been, the quickest is kept, and the others are asked again when much has gone by, or at
 * once when the one that is kept falls behind them. A turn in which the drive never had many
 * calls to do, or none for a while, says nothing. Called by lanes for each chunk: no lock.
 */
#include "core/request/io_size.h"

#define TURN (64ull << 20)
#define LONG (256u << 10) /* shorter calls are somebody's own */
#define CALLS_LEAST 8	  /* on their way at once, some time in a turn that counts */
#define REST_NS 2000000u  /* longer than a lane takes to begin more */
/* Turns between two measurements of the others: 2 of 64 go to them. */
#define TURNS_KEPT 64
/* Measurements differ by as much. */
#define BETTER(a, b) ((a) > (b) + (b) / 16)

/* The first is where all begin, and stay if others are not better. */
static const uint32_t lengths[PST_IO_SIZES] = {512u << 10, 1u << 20};

uint64_t pst_io_size_get(const struct pst_io_size *g)
{
	return lengths[atomic_load_explicit(&g->now, memory_order_relaxed)];
}

static uint32_t choose(struct pst_io_size *g, uint32_t now)
{
	uint32_t best = 0;

	if (++g->turns % TURNS_KEPT == 0)
		for (uint32_t i = 0; i < PST_IO_SIZES; i++)
			g->rate[i] = i == now ? g->rate[i] : 0;
	for (uint32_t i = 0; i < PST_IO_SIZES; i++) {
		if (!g->rate[i])
			return i;
		if (BETTER(g->rate[i], g->rate[best]))
			best = i;
	}
	return best;
}

static void turn_over(struct pst_io_size *g, uint64_t now)
{
	uint32_t was = atomic_load_explicit(&g->now, memory_order_relaxed), next = was;
	uint64_t since = g->since, most = atomic_exchange(&g->most, 0);
	bool rested = atomic_exchange(&g->rested, false);

	g->since = now;
	if (rested || !since || now <= since || most < CALLS_LEAST * (uint64_t)lengths[was])
		return;
	if (!g->fresh) {
		uint64_t rate = TURN * 1000000000u / (now - since);

		g->rate[was] = g->rate[was] ? (3 * g->rate[was] + rate) / 4 : rate;
		next = choose(g, was);
	}
	g->fresh = next != was;
	atomic_store_explicit(&g->now, next, memory_order_relaxed);
}

void pst_io_size_started(struct pst_io_size *g, uint64_t len, uint64_t before,
			 uint64_t (*now)(void))
{
	uint64_t rests;

	if (len < LONG)
		return;
	if (before + len > atomic_load_explicit(&g->most, memory_order_relaxed))
		atomic_store_explicit(&g->most, before + len, memory_order_relaxed);
	if (before)
		return;
	rests = atomic_exchange_explicit(&g->rests, 0, memory_order_relaxed);
	if (rests && now() - rests > REST_NS)
		atomic_store_explicit(&g->rested, true, memory_order_relaxed);
}

void pst_io_size_completed(struct pst_io_size *g, uint64_t len, uint64_t before,
			   uint64_t (*now)(void))
{
	uint64_t ended;

	if (len < LONG)
		return;
	if (before == len)
		atomic_store_explicit(&g->rests, now(), memory_order_relaxed);
	ended = atomic_fetch_add_explicit(&g->ended, len, memory_order_relaxed);
	if (ended / TURN == (ended + len) / TURN ||
	    atomic_exchange_explicit(&g->busy, true, memory_order_acquire))
		return;
	turn_over(g, now());
	atomic_store_explicit(&g->busy, false, memory_order_release);
}
