/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Where nobody says what the page cache holds (another user's file, an overlay, a kernel
 * without cachestat), a chunk is tried: it goes through the cache, and how long its call
 * took tells. If it was quick, what follows goes as cached bytes do, by a path that tells
 * when that ends: each chunk is timed again. Behind a slow one the next goes as the first
 * did, and two slow ones in a row end it. If it was slow the drive is asked, until so many
 * bytes have gone by that another is tried. Claims ask, chunks answer as their call ends.
 * Must never hold up anybody: what is not known goes by the plan.
 */
#include "core/base/clock.h"
#include "core/request/request.h"
#include "core/route/route.h"

/* A call that was slower than this (and 10 us) did not find its bytes in memory: the page
 * cache gives 8 to 10 GB/s to one thread, a cold read through it under 3. */
#define WARM_BYTES_US 4500u
#define WARM_BASE_US 10u
#define LEAST (64u << 10) /* shorter ones tell little */
#define AGAIN (64u << 20) /* then the next is tried: of 256 KiB, less than half a per cent */

enum pst_residency pst_residency_verdict(const struct penstock_storage *st)
{
	switch (atomic_load_explicit(&st->residency_probe, memory_order_relaxed)) {
	case PST_PROBE_WARM:
	case PST_PROBE_SLOW:
		return PST_WARM;
	case PST_PROBE_COLD:
		return PST_COLD;
	default:
		return PST_UNKNOWN;
	}
}

bool pst_residency_sure(const struct penstock_storage *st)
{
	return atomic_load_explicit(&st->residency_probe, memory_order_relaxed) == PST_PROBE_WARM;
}

int pst_residency_probe_path(const struct pst_plan *plan)
{
	for (unsigned i = 0; i < plan->count[PST_UNKNOWN]; i++)
		if (pst_paths[plan->list[PST_UNKNOWN][i]]->traits.times)
			return plan->list[PST_UNKNOWN][i];
	return -1;
}

bool pst_residency_probe_begin(struct penstock_storage *st, uint64_t len)
{
	int was = atomic_load_explicit(&st->residency_probe, memory_order_relaxed);

	if (len < LEAST ||
	    (was != PST_PROBE_NONE &&
	     atomic_load_explicit(&st->unprobed_bytes, memory_order_relaxed) < AGAIN))
		return false;
	/* One at a time; a verdict that stands does so until there is another. */
	if (was == PST_PROBE_NONE &&
	    !atomic_compare_exchange_strong(&st->residency_probe, &was, PST_PROBE_RUNNING))
		return false;
	return atomic_exchange_explicit(&st->unprobed_bytes, 0, memory_order_relaxed) >= AGAIN ||
	       was == PST_PROBE_NONE;
}

void pst_residency_probe_skipped(struct penstock_storage *st, uint64_t len)
{
	atomic_fetch_add_explicit(&st->unprobed_bytes, len, memory_order_relaxed);
}

void pst_residency_probe_end(struct pst_chunk *chunk, int64_t bytes)
{
	_Atomic int *trial = &chunk->route->st->residency_probe;
	uint64_t now = pst_now_ns();
	uint64_t took_us = now > chunk->timed_ns ? (now - chunk->timed_ns) / 1000 : 0;
	int was;

	chunk->timed_ns = 0;
	if (bytes <= 0)
		return; /* a failure says nothing */
	if (took_us <= WARM_BASE_US + (uint64_t)bytes / WARM_BYTES_US) {
		chunk->residency = PST_WARM;
		atomic_store_explicit(trial, PST_PROBE_WARM, memory_order_relaxed);
		return;
	}
	chunk->residency = PST_COLD;
	was = atomic_load_explicit(trial, memory_order_relaxed);
	atomic_store_explicit(trial, was == PST_PROBE_WARM ? PST_PROBE_SLOW : PST_PROBE_COLD,
			      memory_order_relaxed);
}
