/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tracks a request's progress: counts the bytes that its chunks moved, begins its phases, fails or
 * completes it, and fills its report. Worker threads (lanes) and cancelling threads call these
 * functions. The harvesting thread calls only pst_req_report. This file must never call a lane or a
 * queue: a lane acts on the return values, and the request's hooks notify its queue.
 */
#include "core/request/request.h"

#include <assert.h>
#include <string.h>

#include "core/backends.h"
#include "core/base/clock.h"
#include "core/base/stats.h"
#include "core/request/residency_probe.h"
#include "core/request/spans.h"
#include "core/request/plan.h"

#define QUERY_FIRST_KIB 8192u /* length in KiB of a request's first query of the page cache */

static void counter_add(_Atomic uint64_t *at, uint64_t value)
{
	if (value)
		atomic_fetch_add_explicit(at, value, memory_order_relaxed);
}

void pst_req_rewind(struct pst_request *req)
{
	atomic_store_explicit(&req->phase, PST_PHASE_NEW, memory_order_relaxed);
	atomic_store_explicit(&req->next, 0, memory_order_relaxed);
	atomic_store_explicit(&req->limit, 0, memory_order_relaxed);
	atomic_store_explicit(&req->spread, 0, memory_order_relaxed);
	atomic_store_explicit(&req->residency_kib, QUERY_FIRST_KIB, memory_order_relaxed);
	atomic_store_explicit(&req->mixed_kib, UINT32_MAX, memory_order_relaxed);
	atomic_store_explicit(&req->cancelled, false, memory_order_relaxed);
	atomic_store_explicit(&req->failed, 0, memory_order_relaxed);
	atomic_store_explicit(&req->end_at, UINT64_MAX, memory_order_relaxed);
	atomic_store_explicit(&req->bytes, 0, memory_order_relaxed);
	atomic_store_explicit(&req->cpu_copied, 0, memory_order_relaxed);
	atomic_store_explicit(&req->dram_laid, 0, memory_order_relaxed);
	atomic_store_explicit(&req->chunks, 0, memory_order_relaxed);
	atomic_store_explicit(&req->retries, 0, memory_order_relaxed);
	atomic_store_explicit(&req->blind, false, memory_order_relaxed);
	for (unsigned i = 0; i < pst_path_count; i++) {
		atomic_store_explicit(&req->path_engine[i], NULL, memory_order_relaxed);
		atomic_store_explicit(&req->path_bytes[i], 0, memory_order_relaxed);
		atomic_store_explicit(&req->path_why[i], 0, memory_order_relaxed);
	}
	atomic_store_explicit(&req->sync_taken, false, memory_order_relaxed);
	atomic_store_explicit(&req->stage_done, false, memory_order_relaxed);
	atomic_store_explicit(&req->stage_left, false, memory_order_relaxed);
}

void pst_req_note(struct pst_request *req, unsigned path, enum penstock_why why)
{
	unsigned none = PENSTOCK_WHY_NONE;

	if (atomic_load_explicit(&req->path_why[path], memory_order_relaxed) == none)
		atomic_compare_exchange_strong(&req->path_why[path], &none, (unsigned)why);
}

void pst_req_end_at(struct pst_request *req, uint64_t off)
{
	uint64_t old = atomic_load_explicit(&req->end_at, memory_order_relaxed);

	while (off < old && !atomic_compare_exchange_weak(&req->end_at, &old, off))
		;
}

void pst_req_count(struct pst_request *req, const struct pst_chunk *chunk)
{
	counter_add(&req->bytes, chunk->moved);
	counter_add(&req->path_bytes[chunk->path], chunk->moved);
	counter_add(&req->cpu_copied, chunk->cpu_copied);
	counter_add(&req->dram_laid, chunk->dram_laid);
	counter_add(&req->chunks, 1);
	if (chunk->residency == PST_UNKNOWN)
		atomic_store_explicit(&req->blind, true, memory_order_relaxed);
	if (chunk->engine)
		atomic_store_explicit(&req->path_engine[chunk->path], chunk->engine,
				      memory_order_relaxed);
	/* Use an atomic store, because several lanes may store the reason at once. */
	if (chunk->io.engine_why != PENSTOCK_WHY_NONE)
		__atomic_store_n(&req->report.engine_why, chunk->io.engine_why, __ATOMIC_RELAXED);
	if (chunk->moved < chunk->len)
		pst_req_end_at(req, chunk->off + chunk->moved);
}

/* Claims all unclaimed bytes of the current phase, so that no lane starts them. Returns their
 * number, and stores in *pos the position of the first of them. */
static uint64_t req_claim_rest(struct pst_request *req, uint64_t *pos)
{
	uint64_t limit = atomic_load_explicit(&req->limit, memory_order_acquire);

	*pos = atomic_load_explicit(&req->next, memory_order_acquire);
	while (*pos < limit &&
	       !atomic_compare_exchange_weak_explicit(&req->next, pos, limit, memory_order_acq_rel,
						      memory_order_acquire))
		;
	return *pos < limit ? limit - *pos : 0;
}

/* Records a failure of the request, unless an earlier one is recorded. Afterwards no further phase
 * begins, and no byte from position `pos` on counts as arrived. The caller must have claimed bytes
 * that are not complete yet. Otherwise the request could complete during this call. */
static void req_record_failure(struct pst_request *req, uint64_t pos, const struct pst_err *err)
{
	int none = 0;

	if (atomic_compare_exchange_strong(&req->failed, &none, err->code))
		req->err = *err;
	if (pos < req->total)
		pst_req_end_at(req, pst_spans_lowest(req, pos));
}

void pst_req_last_bytes_done(struct pst_request *req, uint64_t bytes)
{
	bool phase_due = pst_req_bytes_done(req, bytes);

	assert(!phase_due);
	(void)phase_due;
}

void pst_req_fail(struct pst_request *req, const struct pst_err *err)
{
	uint64_t pos, rest = req_claim_rest(req, &pos);

	req_record_failure(req, pos, err);
	if (rest)
		pst_req_last_bytes_done(req, rest);
}

void pst_req_fail_unclaimed(struct pst_request *req, const struct pst_err *err)
{
	uint64_t pos, rest = req_claim_rest(req, &pos);

	if (!rest)
		/* Lanes have claimed all bytes, so they complete the request when these bytes are
		 * done.
		 */
		return;
	req_record_failure(req, pos, err);
	pst_req_last_bytes_done(req, rest);
}

void pst_req_fail_sync(struct pst_request *req, const struct pst_err *err)
{
	if (atomic_exchange_explicit(&req->sync_taken, true, memory_order_relaxed))
		return;
	req_record_failure(req, req->total, err);
	pst_req_last_bytes_done(req, 1);
}

bool pst_req_is_abandoned(struct pst_request *req, struct pst_err *err)
{
	if (pst_req_cancelled(req))
		return pst_fail(err, PENSTOCK_WHY_CANCELLED, "cancelled by the caller");
	return req->deadline_ns && pst_now_ns() > req->deadline_ns &&
	       pst_fail(err, PENSTOCK_WHY_DEADLINE,
			"the deadline passed before all chunks were started");
}

/* ---- phases ---- */

bool pst_req_only_syncs(const struct pst_request *req)
{
	return !req->total && req->op == PENSTOCK_WRITE && req->flags & PENSTOCK_R_DURABLE &&
	       req->st->ops->sync;
}

void pst_req_open_phase(struct pst_request *req)
{
	bool body = req->body > 0, syncs = pst_req_only_syncs(req);
	uint64_t limit = body ? req->body : req->total;

	/* The store to `limit` must come last: lanes that see it may complete the request. */
	atomic_store_explicit(&req->left, syncs ? 1 : limit, memory_order_relaxed);
	atomic_store_explicit(&req->phase,
			      body    ? PST_PHASE_BODY
			      : syncs ? PST_PHASE_SYNC
				      : PST_PHASE_EDGES,
			      memory_order_release);
	atomic_store_explicit(&req->limit, limit, memory_order_release);
}

void pst_req_open(struct pst_request *req)
{
	if (req->stage)
		atomic_store_explicit(&req->phase, PST_PHASE_ARMED, memory_order_release);
	else
		pst_req_open_phase(req);
}

/* Returns the phase that follows the current one. If the request has failed, that is
 * PST_PHASE_DONE. */
static enum pst_phase req_next_phase(const struct pst_request *req)
{
	if (atomic_load_explicit(&req->failed, memory_order_acquire))
		return PST_PHASE_DONE;
	if (req->phase == PST_PHASE_BODY && req->total > req->body)
		return PST_PHASE_EDGES;
	if (req->phase == PST_PHASE_NEW)
		/* The request was never passed to a lane, so no lane can make the sync. */
		return PST_PHASE_DONE;
	if (req->phase < PST_PHASE_SYNC && req->op == PENSTOCK_WRITE &&
	    (req->flags & PENSTOCK_R_DURABLE) && req->st->ops->sync)
		return PST_PHASE_SYNC;
	return PST_PHASE_DONE;
}

bool pst_req_bytes_done(struct pst_request *req, uint64_t bytes)
{
	if (atomic_fetch_sub_explicit(&req->left, bytes, memory_order_acq_rel) != bytes)
		return false;
	if (req_next_phase(req) != PST_PHASE_DONE)
		return true;
	req->phase = PST_PHASE_DONE;
	pst_req_put(req, PST_HOLD);
	return false;
}

/* In both branches, the last store lets other threads work on the phase, and they may complete the
 * request at once. So nothing may access the request after it. */
void pst_req_begin_phase(struct pst_request *req)
{
	if (req_next_phase(req) == PST_PHASE_EDGES) {
		atomic_store(&req->left, req->total - req->body);
		req->phase = PST_PHASE_EDGES;
		atomic_store(&req->limit, req->total);
	} else {
		atomic_store(&req->left, 1);
		req->phase = PST_PHASE_SYNC;
	}
}

/* ---- completion ---- */

/* Returns the number of requested bytes that are before the first storage byte that did not
 * arrive. */
static int64_t req_reach(const struct pst_request *req)
{
	uint64_t end = atomic_load(&req->end_at), sum = 0;

	if (end == UINT64_MAX)
		end = INT64_MAX;
	for (unsigned i = 0; i < req->seg_count; i++) {
		const struct penstock_seg *seg = &req->segs[i];
		uint64_t full, rest;

		if (!seg->row_len || end <= seg->off)
			continue;
		full = (end - seg->off) / seg->pitch;
		rest = (end - seg->off) % seg->pitch;
		if (full >= seg->rows) {
			sum += seg->rows * seg->row_len;
			continue;
		}
		sum += full * seg->row_len + (rest < seg->row_len ? rest : seg->row_len);
	}
	return (int64_t)sum;
}

/* Sets req->err to the error that the storage ends before the request's range. `end` is the lowest
 * offset that did not arrive. If a whole chunk is behind the end of the storage, `end` is only the
 * chunk's start. So the function asks the storage for its exact length. */
static int64_t req_fail_short(struct pst_request *req, uint64_t end)
{
	struct penstock_storage *st = req->st;
	enum penstock_why why =
		end < st->facts.length ? PENSTOCK_WHY_SHRANK : PENSTOCK_WHY_SHORT_IO;
	struct pst_err ignored; /* if the length is unknown, `end` is reported */
	uint64_t length;

	if (st->ops->length && !st->ops->length(st, &length, &ignored) && length < end)
		end = length;
	return pst_fail(&req->err, why,
			"the storage ends at byte %llu, before the end of the request",
			(unsigned long long)end);
}

int64_t pst_req_result(struct pst_request *req)
{
	int failed = atomic_load_explicit(&req->failed, memory_order_acquire);
	uint64_t end;
	int64_t n;

	if (failed)
		return failed;
	n = req_reach(req);
	end = atomic_load(&req->end_at);
	if ((req->flags & PENSTOCK_R_EXACT) && end != UINT64_MAX)
		return req_fail_short(req, end);
	return n;
}

static void req_complete(struct pst_request *req)
{
	req->end_ns = pst_now_ns();
	req->result = pst_req_result(req);
	if (req->result < 0)
		atomic_fetch_add_explicit(&pst_stats_get()->failed, 1, memory_order_relaxed);
	if (atomic_load_explicit(&req->st->residency_probe, memory_order_relaxed) != PST_PROBE_NONE)
		atomic_store_explicit(&req->blind, true, memory_order_relaxed);
	req->hooks->completed(req);
}

/* Returns whether the reference counts `refs` (see PST_HOLD in request.h) keep a request from
 * completing. */
static bool refs_keep_alive(uint64_t refs)
{
	return refs & PST_HOLDS || (refs & PST_LISTS && !(refs & PST_ABANDONED));
}

bool pst_req_hold(struct pst_request *req)
{
	uint64_t refs = atomic_load_explicit(&req->refs, memory_order_relaxed);

	while (refs_keep_alive(refs))
		if (atomic_compare_exchange_weak_explicit(&req->refs, &refs, refs + PST_HOLD,
							  memory_order_acquire,
							  memory_order_relaxed))
			return true;
	return false;
}

void pst_req_put(struct pst_request *req, uint64_t dropped)
{
	uint64_t refs = atomic_load_explicit(&req->refs, memory_order_acquire);

	/* If PST_SUBMITTED is the only reference, no other thread can change the count, so no
	 * atomic subtraction is needed. */
	if (refs != PST_SUBMITTED)
		refs = atomic_fetch_sub_explicit(&req->refs, dropped, memory_order_acq_rel);
	if (refs_keep_alive(refs - dropped))
		return;
	if (refs_keep_alive(refs))
		req_complete(req);
	else if (!((refs - dropped) & ~PST_ABANDONED))
		req->hooks->released(req);
}

/* ---- the report ---- */

/* Which kinds of paths carried a read's bytes. This shows whether the bytes were in the page cache.
 * `known` is false if the storage could not report that, or if the caller named the path. */
struct found {
	bool known;
	bool cached; /* whether paths that use the page cache carried bytes */
	bool other;  /* whether paths that avoid the page cache carried bytes */
};

static struct found req_found(const struct pst_request *req)
{
	struct found found = {false, false, false};

	if (req->op == PENSTOCK_WRITE || req->forced >= 0 ||
	    atomic_load_explicit(&req->blind, memory_order_relaxed))
		return found;
	for (unsigned i = 0; i < pst_path_count; i++) {
		if (!atomic_load_explicit(&req->path_bytes[i], memory_order_relaxed))
			continue;
		found.known = true;
		found.cached |= pst_paths[i]->traits.uses_cache;
		found.other |= !pst_paths[i]->traits.uses_cache;
	}
	return found;
}

/* Returns why a usable path carried no bytes although it did not fail. The plan gives the reason,
 * which depends on whether the bytes were cached. `found` shows that. */
static enum penstock_why path_why_unused(const struct pst_request *req,
					 const struct pst_route *route, unsigned i,
					 const struct found *found)
{
	const struct pst_plan_in in = {.op = req->op,
				       .require = req->require,
				       .effort = req->effort,
				       .count = pst_path_count,
				       .paths = pst_paths,
				       .states = route->paths};
	bool warm = pst_paths[i]->traits.uses_cache ? found->cached : !found->other;
	enum penstock_why why;

	if (route->paths[i].facts.class_ < req->require)
		return PENSTOCK_WHY_REQUIRE;
	if (!found->known)
		return PENSTOCK_WHY_CHOSEN_OTHER;
	why = pst_plan_why(&in, &route->plans[req->require][req->effort], i,
			   warm ? PST_WARM : PST_COLD);
	return why == PENSTOCK_WHY_NONE ? PENSTOCK_WHY_CHOSEN_OTHER : why;
}

/* Fills the report's row of one path. */
static void report_path(const struct pst_request *req, const struct pst_route *route, unsigned i,
			const struct found *found, struct penstock_report_path *row)
{
	row->name = pst_paths[i]->name;
	row->bytes = atomic_load_explicit(&req->path_bytes[i], memory_order_relaxed);
	row->why = atomic_load_explicit(&req->path_why[i], memory_order_relaxed);
	row->text = "";
	row->engine = atomic_load_explicit(&req->path_engine[i], memory_order_relaxed);
	if (!row->engine)
		row->engine = "none";
	if (row->why == PENSTOCK_WHY_NONE && !row->bytes && route) {
		const struct pst_path_state *state = &route->paths[i];

		row->why = state->usable ? path_why_unused(req, route, i, found) : state->err.why;
		row->text = state->usable ? "" : state->err.text;
	}
	if (!row->text[0] && row->why == PENSTOCK_WHY_NONE && route)
		row->text = route->paths[i].facts.note;
	if (!row->text[0])
		row->text = penstock_why_text(row->why);
}

void pst_req_report(struct pst_request *req)
{
	struct penstock_report *report = &req->report;
	const struct found found = req_found(req);
	uint64_t most = 0;

	report->size = sizeof(*report);
	report->result = req->result;
	report->bytes = atomic_load_explicit(&req->bytes, memory_order_relaxed);
	report->start_ns = req->start_ns;
	report->end_ns = req->end_ns;
	report->cpu_copied = atomic_load_explicit(&req->cpu_copied, memory_order_relaxed);
	report->dram_laid = atomic_load_explicit(&req->dram_laid, memory_order_relaxed);
	report->chunks = atomic_load_explicit(&req->chunks, memory_order_relaxed);
	report->retries = atomic_load_explicit(&req->retries, memory_order_relaxed);
	report->stop_off = atomic_load_explicit(&req->end_at, memory_order_relaxed);
	report->path = report->engine = "none";
	report->path_count = 0;
	for (unsigned i = 0; i < pst_path_count; i++) {
		struct penstock_report_path *row = &report->paths[report->path_count];

		report_path(req, req->route, i, &found, row);
		if (pst_paths[i]->traits.by_name_only && !row->bytes)
			/* Leave out the paths for tests (null and fault) unless they carried
			 * bytes. */
			continue;
		report->path_count++;
		if (row->bytes > most) {
			most = row->bytes;
			report->path = row->name;
			report->engine = row->engine;
		} else if (!most && strcmp(row->engine, "none") != 0) {
			report->engine = row->engine; /* no path so far carried bytes */
		}
	}
	report->why = req->result < 0 ? req->err.why : PENSTOCK_WHY_NONE;
	if (req->result < 0)
		memcpy(report->text, req->err.text, sizeof(report->text));
	else
		report->text[0] = '\0';
}
