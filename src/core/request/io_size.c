/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chooses the length of the calls that read a storage: see io_size.h. Measures the rate of the
 * length in use over windows of 64 MiB. After a change of length, the first window is ignored,
 * because it started with calls of the other length in flight. When both rates are known, the
 * faster length stays in use. The other length is measured again after 64 windows, or used at
 * once if the rate of the length in use falls below its rate. A window in which the drive had
 * few calls in flight, or was idle, is not counted. Lanes call this for each chunk: no lock.
 */
#include "core/request/io_size.h"

#define CALLS_LEAST 8 /* calls in flight at once, at some time in a counted window */
/* Counted windows from one measurement of the other length to the next. The measurement itself
 * uses 2 windows. */
#define WINDOWS_KEPT 64
/* Two measurements of the same length differ by up to 1/16. */
#define BETTER(a, b) ((a) > (b) + (b) / 16)

/* The first length is used at the start, and stays in use unless the other one is better. */
const uint32_t pst_io_sizes[PST_IO_SIZES] = {512u << 10, 1u << 20};

/* Returns the index of the length for the next window: one that is to be measured, otherwise
 * the best. */
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
