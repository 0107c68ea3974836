/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Residency probes: how a request finds out whether bytes are in the page cache if the kernel does
 * not report it (another user's file, overlayfs, a kernel before 6.5). The probe reads one chunk
 * through the page cache and measures the time. If its system call is fast, later chunks count as
 * cached, otherwise as not cached.
 */
#ifndef PST_CORE_RESIDENCY_PROBE_H
#define PST_CORE_RESIDENCY_PROBE_H

#include "core/ops.h"
#include "core/request/plan.h"

/* The result of a storage's residency probes so far. */
enum pst_residency_probe {
	PST_PROBE_NONE,	   /* no probe has begun */
	PST_PROBE_RUNNING, /* the first probe has begun */
	PST_PROBE_WARM,	   /* the last probe was fast: the bytes were cached */
	PST_PROBE_SLOW,	   /* the last probe was slow, the one before it fast */
	PST_PROBE_COLD,	   /* the last two probes, or the first one, were slow */
};

/* Returns whether bytes of the storage are probably cached, according to the last probe. Returns
 * PST_UNKNOWN if no probe has completed. */
enum pst_residency pst_residency_verdict(const struct penstock_storage *st);
/* Returns whether the last probe found its bytes cached. */
bool pst_residency_sure(const struct penstock_storage *st);
/* Returns the index of the plan's first path that can make a probe, or -1 if there is none. */
int pst_residency_probe_path(const struct pst_plan *plan);
/* If a probe is due, begins one with a chunk of `len` bytes and returns true. Else returns
 * false. */
bool pst_residency_probe_begin(struct penstock_storage *st, uint64_t len);
/* Counts `len` bytes that were claimed without a residency probe. After 64 MiB of such bytes a new
 * probe is due. */
void pst_residency_probe_skipped(struct penstock_storage *st, uint64_t len);
/* Called when the timed call of a chunk ends. The call began at chunk->timed_ns and moved `bytes`
 * bytes. Records whether these bytes were cached, judged by the duration of the call. */
void pst_residency_probe_end(struct pst_chunk *chunk, int64_t bytes);

#endif
