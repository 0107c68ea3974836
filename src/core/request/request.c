/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The end of chunks and requests: counting what happened, going from one phase to
 * the next, stopping after a failure, and the report. Called by lanes; the report
 * is put together by the caller's thread when it harvests.
 */
#include <string.h>

#include "core/base/clock.h"
#include "core/base/objects.h"
#include "core/lane/pump.h"
#include "core/queue/queue.h"
#include "core/request/request.h"
#include "core/route/route.h"
#include "core/base/stats.h"
#include "core/queue/stream.h"

static void add(_Atomic uint64_t *at, uint64_t value)
{
	if (value)
		atomic_fetch_add_explicit(at, value, memory_order_relaxed);
}

void pst_req_note(struct pst_request *req, unsigned path, enum penstock_why why)
{
	unsigned none = PENSTOCK_WHY_NONE;

	/* The first reason stands. */
	if (atomic_load_explicit(&req->path_why[path], memory_order_relaxed) == none)
		atomic_compare_exchange_strong(&req->path_why[path], &none, (unsigned)why);
}

/* The bytes at `off` did not arrive. */
static void end_at(struct pst_request *req, uint64_t off)
{
	uint64_t old = atomic_load_explicit(&req->end_at, memory_order_relaxed);

	while (off < old && !atomic_compare_exchange_weak(&req->end_at, &old, off))
		;
}

void pst_req_count(struct pst_request *req, const struct pst_chunk *chunk)
{
	add(&req->bytes, chunk->moved);
	add(&req->path_bytes[chunk->path], chunk->moved);
	add(&req->cpu_copied, chunk->cpu_copied);
	add(&req->dram_laid, chunk->dram_laid);
	add(&req->chunks, 1);
	if (chunk->residency == PST_UNKNOWN)
		atomic_store_explicit(&req->blind, true, memory_order_relaxed);
	if (chunk->engine)
		atomic_store_explicit(&req->engine, chunk->engine, memory_order_relaxed);
	if (chunk->io.engine_why != PENSTOCK_WHY_NONE) /* several lanes may say so */
		__atomic_store_n(&req->report.engine_why, chunk->io.engine_why, __ATOMIC_RELAXED);
	if (chunk->moved < chunk->len)
		end_at(req, chunk->off + chunk->moved);
}

/* Claims what is left of the phase, so that nobody else does: how much, from *pos on. */
static uint64_t take_rest(struct pst_request *req, uint64_t *pos)
{
	uint64_t limit = atomic_load_explicit(&req->limit, memory_order_acquire);

	*pos = atomic_load_explicit(&req->next, memory_order_acquire);
	while (*pos < limit &&
	       !atomic_compare_exchange_weak_explicit(&req->next, pos, limit, memory_order_acq_rel,
						      memory_order_acquire))
		;
	return *pos < limit ? limit - *pos : 0;
}

/* The first failure stands. No phase begins after it: nothing from `pos` on arrives. The
 * caller has bytes in hand, so the request does not end meanwhile. */
static void fail(struct pst_request *req, uint64_t pos, const struct pst_err *err)
{
	int none = 0;

	if (atomic_compare_exchange_strong(&req->failed, &none, err->code))
		req->err = *err;
	if (pos < req->total)
		end_at(req, pst_spans_lowest(req, pos));
}

void pst_req_fail(struct pst_request *req, struct pst_lane *lane, const struct pst_err *err)
{
	uint64_t pos, rest = take_rest(req, &pos);

	fail(req, pos, err);
	if (rest)
		pst_req_bytes_done(req, lane, rest);
}

void pst_req_abandon_rest(struct pst_request *req, struct pst_lane *lane, const struct pst_err *err)
{
	uint64_t pos, rest = take_rest(req, &pos);

	if (!rest)
		return; /* others have all of it in hand, and end it as they will */
	fail(req, pos, err);
	pst_req_bytes_done(req, lane, rest);
}

static bool begin_phase(struct pst_request *req, struct pst_lane *lane)
{
	bool ok = !atomic_load_explicit(&req->failed, memory_order_acquire);

	if (ok && req->phase == PST_PHASE_BODY && req->total > req->body) {
		req->phase = PST_PHASE_EDGES;
		atomic_store(&req->left, req->total - req->body);
		pst_lane_list(lane, req);
		atomic_store(&req->limit, req->total); /* now it may be ended by others */
		return true;
	}
	if (ok && lane && req->phase < PST_PHASE_SYNC && req->op == PENSTOCK_WRITE &&
	    (req->flags & PENSTOCK_R_DURABLE) && req->st->ops->sync) {
		atomic_store(&req->left, 1);
		pst_lane_list(lane, req);
		req->phase = PST_PHASE_SYNC; /* the same */
		return true;
	}
	return false;
}

void pst_req_bytes_done(struct pst_request *req, struct pst_lane *lane, uint64_t bytes)
{
	if (atomic_fetch_sub_explicit(&req->left, bytes, memory_order_acq_rel) != bytes)
		return;
	if (begin_phase(req, lane))
		return;
	req->phase = PST_PHASE_DONE;
	pst_req_put(req, PST_HOLD);
}

/* Bytes up to the first that the storage did not have. */
static int64_t reach(const struct pst_request *req)
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

static int64_t result_of(struct pst_request *req)
{
	int failed = atomic_load_explicit(&req->failed, memory_order_acquire);
	uint64_t end;
	int64_t n;

	if (failed)
		return failed;
	n = reach(req);
	end = atomic_load(&req->end_at);
	if ((req->flags & PENSTOCK_R_EXACT) && end != UINT64_MAX)
		return pst_fail(&req->err,
				end < req->st->facts.length ? PENSTOCK_WHY_SHRANK
							    : PENSTOCK_WHY_SHORT_IO,
				"the storage ends at byte %llu, more was asked for",
				(unsigned long long)end);
	return n;
}

static void end(struct pst_request *req)
{
	req->end_ns = pst_now_ns();
	req->result = result_of(req);
	if (req->result < 0)
		atomic_fetch_add_explicit(&pst_stats_get()->failed, 1, memory_order_relaxed);
	if (atomic_load_explicit(&req->st->residency_probe, memory_order_relaxed) != PST_PROBE_NONE)
		atomic_store_explicit(&req->blind, true, memory_order_relaxed);
	if (req->semaphores)
		pst_stream_release(req);
	pst_devices_release(req->other_devices);
	if (req->home_lane) /* from here on the pump may close */
		atomic_fetch_sub_explicit(&req->home_lane->requests, 1, memory_order_release);
	atomic_fetch_sub_explicit(&req->st->inflight, 1, memory_order_release);
	pst_queue_push(req->q, req);
}

/* It has not ended. */
static bool is_alive(uint64_t refs)
{
	return refs & PST_HOLDS || (refs & PST_LISTS && !(refs & PST_ABANDONED));
}

bool pst_req_hold(struct pst_request *req)
{
	uint64_t refs = atomic_load_explicit(&req->refs, memory_order_relaxed);

	while (is_alive(refs))
		if (atomic_compare_exchange_weak_explicit(&req->refs, &refs, refs + PST_HOLD,
							  memory_order_acquire,
							  memory_order_relaxed))
			return true;
	return false;
}

void pst_req_put(struct pst_request *req, uint64_t what)
{
	uint64_t refs = atomic_load_explicit(&req->refs, memory_order_acquire);

	if (refs != PST_SUBMITTED) /* else nobody comes any more */
		refs = atomic_fetch_sub_explicit(&req->refs, what, memory_order_acq_rel);
	if (is_alive(refs - what))
		return;
	if (is_alive(refs))
		end(req);
	else if (!((refs - what) & ~PST_ABANDONED))
		pst_queue_return(req->q, req);
}

/* ---- early ends ---- */

/* Those that may have begun something of it, or wait for room to begin. */
static void tell_lanes(struct pst_request *req)
{
	struct pst_inline_lane *own = req->q->inline_lane;

	if (req->home_lane)
		pst_pump_cancel(req->home_lane->pump);
	else if (own && pst_inline_lane_accepts(own, req))
		pst_inline_lane_cancel(own);
}

/* What nobody has begun ends here, because its lanes may hang; what has begun runs to its end,
 * unless its storage can end it. Who calls it holds the request. */
static void end_early(struct pst_request *req)
{
	struct pst_err err;

	atomic_fetch_or_explicit(&req->refs, PST_ABANDONED, memory_order_relaxed);
	if (req->phase == PST_PHASE_ARMED) {
		pst_stream_abandon(req);
		return;
	}
	if (!pst_req_is_abandoned(req, &err))
		return;
	pst_req_abandon_rest(req, NULL, &err);
	if (req->phase != PST_PHASE_SYNC || !pst_req_cancelled(req) ||
	    atomic_exchange_explicit(&req->sync_taken, true, memory_order_relaxed))
		return;
	fail(req, req->total, &err);
	pst_req_bytes_done(req, NULL, 1);
}

/* Lanes look at the mark before each claim. The place may be used again meanwhile: while it
 * is held it is not, and the next use has another generation and is not meant. */
void pst_req_cancel(struct pst_request *req, uint32_t generation)
{
	if (!pst_req_hold(req))
		return; /* it has ended */
	if (atomic_load_explicit(&req->generation, memory_order_relaxed) == generation) {
		atomic_store_explicit(&req->cancelled, true, memory_order_relaxed);
		end_early(req);
		tell_lanes(req);
	}
	pst_req_put(req, PST_HOLD);
}

uint64_t pst_req_expire(struct pst_request *req)
{
	uint64_t deadline_ns;

	if (!pst_req_hold(req))
		return 0;
	deadline_ns = req->deadline_ns;
	if (deadline_ns && pst_now_ns() > deadline_ns) {
		end_early(req);
		deadline_ns = 0;
	}
	pst_req_put(req, PST_HOLD);
	return deadline_ns;
}

/* ---- the report ---- */

/* Where the bytes of a read were: some went by paths through the page cache, or by those that
 * leave it alone. Not known where nobody could say, or the plan was not asked. */
struct whereabouts {
	bool known, cached, other;
};

static struct whereabouts find_out(const struct pst_request *req)
{
	struct whereabouts found = {false, false, false};

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

/* Of an open path that has carried nothing, nor tried to: the plan's reason for bytes that
 * were where none of its kind has carried any. */
static enum penstock_why why_not(const struct pst_request *req, const struct pst_route *route,
				 unsigned i, const struct whereabouts *found)
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

static void path_row(const struct pst_request *req, const struct pst_route *route, unsigned i,
		     const struct whereabouts *found, struct penstock_report_path *row)
{
	row->name = pst_paths[i]->name;
	row->bytes = atomic_load_explicit(&req->path_bytes[i], memory_order_relaxed);
	row->why = atomic_load_explicit(&req->path_why[i], memory_order_relaxed);
	row->text = "";
	if (row->why == PENSTOCK_WHY_NONE && !row->bytes && route) {
		const struct pst_path_state *state = &route->paths[i];

		row->why = state->usable ? why_not(req, route, i, found) : state->err.why;
		row->text = state->usable ? "" : state->err.text;
	}
	if (!row->text[0])
		row->text = penstock_why_text(row->why);
}

void pst_req_report(struct pst_request *req)
{
	struct penstock_report *report = &req->report;
	const struct whereabouts found = find_out(req);
	uint64_t most = 0;

	report->size = sizeof(*report);
	report->result = req->result;
	report->bytes = atomic_load_explicit(&req->bytes, memory_order_relaxed);
	report->start_ns = req->start_ns;
	report->end_ns = req->end_ns;
	report->engine = atomic_load_explicit(&req->engine, memory_order_relaxed);
	report->cpu_copied = atomic_load_explicit(&req->cpu_copied, memory_order_relaxed);
	report->dram_laid = atomic_load_explicit(&req->dram_laid, memory_order_relaxed);
	report->chunks = atomic_load_explicit(&req->chunks, memory_order_relaxed);
	report->retries = atomic_load_explicit(&req->retries, memory_order_relaxed);
	report->stop_off = atomic_load_explicit(&req->end_at, memory_order_relaxed);
	report->path = "none";
	report->path_count = 0;
	for (unsigned i = 0; i < pst_path_count; i++) {
		struct penstock_report_path *row = &report->paths[report->path_count];

		path_row(req, req->route, i, &found, row);
		if (pst_paths[i]->traits.by_name_only && !row->bytes)
			continue; /* nobody expects it */
		report->path_count++;
		if (row->bytes > most) {
			most = row->bytes;
			report->path = row->name;
		}
	}
	report->why = req->result < 0 ? req->err.why : PENSTOCK_WHY_NONE;
	if (!report->engine)
		report->engine = "none";
	if (req->result < 0)
		memcpy(report->text, req->err.text, sizeof(report->text));
	else
		report->text[0] = '\0';
}
