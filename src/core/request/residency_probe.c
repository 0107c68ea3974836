/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Residency probes: see residency_probe.h. claim.c begins them, and chunk.c ends them. After a
 * quick probe the next chunks use the plan for cached bytes, on a path whose calls are timed as
 * well. After one slow chunk the next chunk probes again, and after two slow chunks in a row
 * the storage counts as cold. It also does after a slow first probe. A cold storage is probed
 * again after AGAIN bytes. It must never delay a request: while no verdict exists, bytes follow
 * the plan's order for unknown residency.
 */
#include "core/request/residency_probe.h"

#include "core/backends.h"
#include "core/base/clock.h"
#include "core/request/plan.h"

/* A call that takes longer than 10 us plus its bytes at this rate (4.5 GB/s) did not find them
 * cached. One thread reads the page cache at 8 to 10 GB/s, and cold bytes through it at less
 * than 3. */
#define WARM_BYTES_US 4500u
#define WARM_BASE_US 10u
#define PROBE_BYTES_MIN (64u << 10) /* a shorter call's duration is no evidence */
#define AGAIN                                                                               \
	(64u << 20) /* bytes between probes. A probe of 256 KiB is less than 0.5 % of them. \
		     */

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
	/* Only one thread begins the first probe. Later, the last verdict stands until the next. */
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
		return; /* a failure is no evidence of residency */
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
