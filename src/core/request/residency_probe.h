/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Residency probes: how a request finds out whether bytes are in the page cache where the
 * kernel does not tell (another user's file, overlayfs, a kernel before 6.5). One chunk goes
 * through the page cache, and the duration of its call is the answer for those after it.
 */
#ifndef PST_CORE_RESIDENCY_PROBE_H
#define PST_CORE_RESIDENCY_PROBE_H

#include "core/ops.h"
#include "core/request/plan.h"

/* What a storage's probes have found so far. */
enum pst_residency_probe {
	PST_PROBE_NONE,
	PST_PROBE_RUNNING, /* the first one */
	PST_PROBE_WARM,
	PST_PROBE_SLOW, /* the last one was slow, those before it were not */
	PST_PROBE_COLD,
};

/* The residency that the last probe suggests; PST_UNKNOWN if there was none. */
enum pst_residency pst_residency_verdict(const struct penstock_storage *st);
/* Whether the last probe found its bytes cached. */
bool pst_residency_sure(const struct penstock_storage *st);
/* The path of the plan that can probe. -1: none. */
int pst_residency_probe_path(const struct pst_plan *plan);
/* Whether a chunk of `len` bytes is to probe. If so, the probe has begun. */
bool pst_residency_probe_begin(struct penstock_storage *st, uint64_t len);
/* Counts bytes that were claimed without a probe. */
void pst_residency_probe_skipped(struct penstock_storage *st, uint64_t len);
/* The timed call of a chunk (chunk->timed_ns) has moved `bytes`: records where they were. */
void pst_residency_probe_end(struct pst_chunk *chunk, int64_t bytes);

#endif
