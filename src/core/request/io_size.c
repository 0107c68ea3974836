/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chooses the length of the system calls that read a storage: see io_size.h. There are two lengths:
 * 512 KiB and 1 MiB. The read rate with the length in use is measured in windows; a window is the
 * time in which 64 MiB are read. After a change of the length, the first window is ignored, because
 * calls of the old length are still in flight. When the rates of both lengths are known, the faster
 * length stays in use. After 64 windows the slower length is measured again. The slower length is
 * also used when the rate of the length in use falls below the last rate of the slower length. A
 * window is ignored if the drive had few calls in flight or was idle. Worker threads call these
 * functions for each chunk, so the functions take no lock.
 */
#include "core/request/io_size.h"

/* A measurement window is ignored if the drive never had at least this number of calls in flight
 * during it. */
#define CALLS_LEAST 8
/* Number of measurement windows after which the length that is not in use is measured again.
 * Ignored windows do not count. The measurement itself takes 2 windows. */
#define WINDOWS_KEPT 64
/* Whether rate a is clearly greater than rate b: two measurements of the same length differ by up
 * to 1/16. */
#define BETTER(a, b) ((a) > (b) + (b) / 16)

/* The two lengths in bytes of a read call. The first is used at the start, and stays in use unless
 * the second is faster. */
const uint32_t pst_io_sizes[PST_IO_SIZES] = {512u << 10, 1u << 20};

/* Returns the index of the length to use in the next measurement window: a length whose rate is not
 * known, or, if both are known, the one with the better rate. */
static uint32_t length_choose(struct pst_io_size *g, uint32_t current)
{
	uint32_t best = 0;

	if (++g->windows % WINDOWS_KEPT == 0)
		for (uint32_t i = 0; i < PST_IO_SIZES; i++)
			g->rate[i] = i == current ? g->rate[i] : 0;
	for (uint32_t i = 0; i < PST_IO_SIZES; i++) {
		if (!g->rate[i])
			return i;
		if (BETTER(g->rate[i], g->rate[best]))
			best = i;
	}
	return best;
}

void pst_io_size_close_window(struct pst_io_size *g, uint64_t now)
{
	uint32_t current = atomic_load_explicit(&g->current, memory_order_relaxed), next = current;
	uint64_t start = g->window_start, most = atomic_exchange(&g->in_flight_most, 0);
	bool was_idle = atomic_exchange(&g->was_idle, false);

	g->window_start = now;
	if (was_idle || !start || now <= start ||
	    most < CALLS_LEAST * (uint64_t)pst_io_sizes[current])
		return;
	if (!g->mixed) {
		uint64_t rate = PST_IO_WINDOW_BYTES * 1000000000u / (now - start);

		g->rate[current] = g->rate[current] ? (3 * g->rate[current] + rate) / 4 : rate;
		next = length_choose(g, current);
	}
	g->mixed = next != current;
	atomic_store_explicit(&g->current, next, memory_order_relaxed);
}
