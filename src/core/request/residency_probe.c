/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements residency probes, which find out by the duration of a read whether bytes are in the
 * page cache: see residency_probe.h. claim.c begins a probe, and chunk.c ends it. After a fast
 * probe the next chunks use the plan's paths for cached bytes, and their calls are timed, too. If
 * one of these chunks is slow, the next chunk is a probe again. After two slow chunks in a row, or
 * if the first probe is slow, the bytes of the storage count as not cached. Such a storage is
 * probed again after AGAIN bytes. A probe must never delay a request: until the first probe has
 * ended, other chunks follow the plan's order for unknown residency.
 */
#include "core/request/residency_probe.h"

#include "core/backends.h"
#include "core/base/clock.h"
#include "core/request/plan.h"

/* The bytes of a call count as cached if the call took at most WARM_BASE_US plus one microsecond
 * for each WARM_BYTES_US bytes (4.5 GB/s). One thread reads 8 to 10 GB/s if the bytes are in the
 * page cache, and less than 3 GB/s through the page cache if they are not. */
#define WARM_BYTES_US 4500u
#define WARM_BASE_US 10u
/* minimum length of a probe; the duration of a shorter call does not show whether its bytes were
 * cached */
#define PROBE_BYTES_MIN (64u << 10)
/* Number of bytes that are claimed from one residency probe to the next. A probe of 256 KiB is less
 * than 0.5 % of them. */
#define AGAIN (64u << 20)

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
		if (pst_paths[plan->list[PST_UNKNOWN][i]]->traits.probes_residency)
			return plan->list[PST_UNKNOWN][i];
	return -1;
}

bool pst_residency_probe_begin(struct penstock_storage *st, uint64_t len)
{
	int was = atomic_load_explicit(&st->residency_probe, memory_order_relaxed);

	if (len < PROBE_BYTES_MIN ||
	    (was != PST_PROBE_NONE &&
	     atomic_load_explicit(&st->unprobed_bytes, memory_order_relaxed) < AGAIN))
		return false;
	/* Let only one thread begin the first probe. While a later probe runs, the result of the
	 * previous one remains valid. */
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
	_Atomic int *probe = &chunk->route->st->residency_probe;
	uint64_t now = pst_now_ns();
	uint64_t took_us = now > chunk->timed_ns ? (now - chunk->timed_ns) / 1000 : 0;
	int was;

	chunk->timed_ns = 0;
	if (bytes <= 0)
		return; /* a failed call does not show whether the bytes were cached */
	if (took_us <= WARM_BASE_US + (uint64_t)bytes / WARM_BYTES_US) {
		chunk->residency = PST_WARM;
		atomic_store_explicit(probe, PST_PROBE_WARM, memory_order_relaxed);
		return;
	}
	chunk->residency = PST_COLD;
	was = atomic_load_explicit(probe, memory_order_relaxed);
	atomic_store_explicit(probe, was == PST_PROBE_WARM ? PST_PROBE_SLOW : PST_PROBE_COLD,
			      memory_order_relaxed);
}
