/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From what a caller asks to a request that can be met: its path named, each segment's
 * device found, their routes made, spans cut, the class held against what the routes can
 * do. What cannot be met is refused here, before anything moves. Called by queue.c at
 * submit, and by stream.c when late values are known; must never start anything.
 */
#include <stdio.h>
#include <string.h>

#include "core/base/clock.h"
#include "core/base/objects.h"
#include "core/lane/pump.h"
#include "core/queue/queue.h"
#include "core/route/route.h"
#include "core/base/stats.h"

#define KNOWN_FLAGS \
	(PENSTOCK_R_DURABLE | PENSTOCK_R_EXACT | PENSTOCK_R_DETACHED | PENSTOCK_R_UNSURE)
#define LOOK_FIRST_KIB 8192u /* residency is first asked for this much */

static int check(const struct penstock_queue *q, const struct penstock_req *from,
		 struct pst_err *err)
{
	int ret;

	if (from->size < sizeof(from->size) || !from->storage || (from->seg_count && !from->segs))
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"a request without storage or segments (start from "
				"PENSTOCK_REQ_INIT)");
	if (from->seg_count > q->segs_max)
		return pst_fail_errno(err, E2BIG, PENSTOCK_WHY_FULL,
				      "%u segments, this queue takes %u", from->seg_count,
				      q->segs_max);
	if ((unsigned)from->op > PENSTOCK_WRITE || (unsigned)from->require > PENSTOCK_DIRECT ||
	    (unsigned)from->effort > PENSTOCK_FAST || from->flags & ~KNOWN_FLAGS ||
	    from->priority < -4 || from->priority > 3)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"op, class, effort, flag or priority out of range");
	if (from->flags & PENSTOCK_R_DURABLE && !from->seg_count)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"a durable request without segments: name a device by one of no "
				"bytes");
	if ((from->late || from->flags & PENSTOCK_R_DETACHED) && !from->stream)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"late values and detached requests need a stream");
	ret = pst_fork_check(from->storage->generation, err);
	return ret ? ret : pst_fork_check(q->generation, err);
}

static int take_segs(struct pst_request *req, const struct penstock_req *from, struct pst_err *err)
{
	for (unsigned i = 0; i < from->seg_count; i++) {
		int ret = pst_seg_copy_in(&req->segs[i], from, i, err);

		if (ret < 0)
			return ret;
		req->flags |= ret ? PENSTOCK_R_UNSURE : 0;
		if (req->segs[i].storage && req->segs[i].storage != from->storage)
			return pst_fail(err, PENSTOCK_WHY_UNSUPPORTED,
					"segment %u lies in another storage than its request", i);
	}
	req->seg_count = from->seg_count;
	return 0;
}

static int make_routes(struct pst_request *req, struct pst_err *err)
{
	struct penstock_device *last = NULL;

	for (unsigned i = 0; i < req->seg_count; i++) {
		struct penstock_device *dev = req->segs[i].dev;
		struct pst_route *route;
		int ret;

		if (dev == last)
			continue;
		last = dev;
		ret = pst_fork_check(dev->generation, err);
		if (!ret)
			ret = pst_route_get(req->st, dev, req->op, &route, err);
		if (!ret)
			ret = pst_pump_attach(
				atomic_load_explicit(&req->segs[0].dev->pump, memory_order_acquire),
				dev, err);
		if (ret)
			return ret;
		if (dev != req->segs[0].dev)
			req->other_devices |= (uint64_t)1 << dev->index;
	}
	return 0;
}

/* A span that feeds several devices goes by the plan of its first: the class must hold
 * for the others too. */
static int check_others(const struct pst_request *req, const struct pst_span *span,
			struct pst_err *err)
{
	const struct penstock_device *first = req->segs[span->seg_first].dev;

	for (unsigned i = 1; i < span->seg_count; i++) {
		const struct penstock_seg *seg = &req->segs[span->seg_first + i];
		const struct pst_route *route;

		if (seg->dev == first || !seg->row_len)
			continue;
		route = atomic_load_explicit(&req->st->routes[req->op][seg->dev->index],
					     memory_order_acquire);
		for (unsigned p = 0; p < span->plan->count[PST_COLD]; p++) {
			unsigned index = span->plan->list[PST_COLD][p];
			const struct pst_path_state *state = &route->paths[index];

			if (!span->route->paths[index].facts.exact &&
			    (!state->usable || state->facts.class_ < req->require))
				return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_REQUIRE,
						      "bytes for %s and %s at once: %s has not the "
						      "required class for both, ask for them apart",
						      first->name, seg->dev->name,
						      pst_paths[index]->name);
		}
	}
	return 0;
}

static int refuse(const struct pst_request *req, const struct pst_span *span, const char *why,
		  struct pst_err *err)
{
	if (req->require > PENSTOCK_ANY || req->forced < 0)
		return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_REQUIRE,
				      "no path of the required class: %.180s", why);
	return pst_fail_errno(err, EOPNOTSUPP, span->route->paths[req->forced].err.why,
			      "the path %s is shut: %.180s", pst_paths[req->forced]->name, why);
}

/* No path of the required class: refused here, before anything moves. */
static int check_class(struct pst_request *req, struct pst_err *err)
{
	for (unsigned i = 0; i < req->span_count; i++) {
		const struct pst_span *span = &req->spans[i];
		const char *why = "";
		int ret = 0;

		if (req->forced >= 0) {
			const struct pst_path_state *state = &span->route->paths[req->forced];

			if (!state->usable || state->facts.class_ < req->require)
				ret = -EOPNOTSUPP;
			why = state->err.code ? state->err.text : "the path asked for is not of it";
		} else if (!span->plan->count[PST_COLD]) {
			ret = -EOPNOTSUPP;
			why = pst_route_why(span->route, req->require);
		}
		if (ret)
			return refuse(req, span, why, err);
		if (req->require > PENSTOCK_ANY)
			ret = check_others(req, span, err);
		if (!ret)
			ret = pst_claim_check(req, span, err);
		if (ret)
			return ret;
	}
	return 0;
}

static void reset(struct pst_request *req)
{
	atomic_store_explicit(&req->phase, PST_PHASE_NEW, memory_order_relaxed);
	atomic_store_explicit(&req->next, 0, memory_order_relaxed);
	atomic_store_explicit(&req->limit, 0, memory_order_relaxed);
	atomic_store_explicit(&req->spread, 0, memory_order_relaxed);
	atomic_store_explicit(&req->residency_kib, LOOK_FIRST_KIB, memory_order_relaxed);
	atomic_store_explicit(&req->cancelled, false, memory_order_relaxed);
	atomic_store_explicit(&req->failed, 0, memory_order_relaxed);
	atomic_store_explicit(&req->end_at, UINT64_MAX, memory_order_relaxed);
	atomic_store_explicit(&req->bytes, 0, memory_order_relaxed);
	atomic_store_explicit(&req->cpu_copied, 0, memory_order_relaxed);
	atomic_store_explicit(&req->dram_laid, 0, memory_order_relaxed);
	atomic_store_explicit(&req->chunks, 0, memory_order_relaxed);
	atomic_store_explicit(&req->retries, 0, memory_order_relaxed);
	atomic_store_explicit(&req->blind, false, memory_order_relaxed);
	atomic_store_explicit(&req->engine, NULL, memory_order_relaxed);
	for (unsigned i = 0; i < pst_path_count; i++) {
		atomic_store_explicit(&req->path_bytes[i], 0, memory_order_relaxed);
		atomic_store_explicit(&req->path_why[i], 0, memory_order_relaxed);
	}
	atomic_store_explicit(&req->sync_taken, false, memory_order_relaxed);
	req->semaphores = NULL;
	req->home_lane = NULL;
	req->alone = false;
	req->other_devices = 0;
	req->span_count = 0;
	req->body = req->total = 0;
}

static int no_path(const char *text, struct pst_err *err)
{
	char names[100] = "";
	size_t n = 0;

	for (unsigned i = 0; i < pst_path_count && n < sizeof(names); i++)
		n += (size_t)snprintf(names + n, sizeof(names) - n, "%s%s", i ? ", " : "",
				      pst_paths[i]->name);
	return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "there is no path '%.60s': %s", text,
			names);
}

/* "WRAP[:NAME][?ARGS]" for a path that wraps others. */
static int take_wrap(struct pst_request *req, const char *text, struct pst_err *err)
{
	size_t len = strcspn(text, ":?"), at = len;
	char name[32] = "";
	int index;

	if (len < sizeof(name))
		memcpy(name, text, len);
	index = pst_path_index(name);
	if (index < 0 || !pst_paths[index]->wrap)
		return no_path(text, err);
	req->wrap = pst_paths[index];
	if (text[at] == ':') {
		len = strcspn(text + at + 1, "?");
		memset(name, 0, sizeof(name));
		if (len < sizeof(name))
			memcpy(name, text + at + 1, len);
		req->forced = pst_path_index(name);
		at += 1 + len;
		if (req->forced < 0 || pst_paths[req->forced]->wrap ||
		    pst_paths[req->forced]->traits.at_once)
			return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
					"'%.60s': there is no such path to wrap", text);
	}
	return req->wrap->wrap(text + at + (text[at] == '?'), req->wrap_state, err);
}

static int take_path(struct pst_request *req, const char *text, struct pst_err *err)
{
	req->wrap = NULL;
	req->forced = text ? pst_path_index(text) : -1;
	if (!text || (req->forced >= 0 && !pst_paths[req->forced]->wrap))
		return 0;
	req->forced = -1;
	return take_wrap(req, text, err);
}

bool pst_req_only_syncs(const struct pst_request *req)
{
	return !req->total && req->op == PENSTOCK_WRITE && req->flags & PENSTOCK_R_DURABLE &&
	       req->st->ops->sync;
}

void pst_req_open_phase(struct pst_request *req)
{
	bool body = req->body > 0, syncs = pst_req_only_syncs(req);
	uint64_t limit = body ? req->body : req->total;

	/* Behind the last of these it may be ended by others. */
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
	if (req->semaphores)
		atomic_store_explicit(&req->phase, PST_PHASE_ARMED, memory_order_release);
	else
		pst_req_open_phase(req);
}

int pst_req_make_spans(struct pst_request *req, struct pst_err *err)
{
	int ret = pst_spans_make(req, req->q->spans_max, err);

	if (ret)
		return ret;
	ret = check_class(req, err);
	if (ret)
		atomic_fetch_add_explicit(&pst_stats_get()->refused, 1, memory_order_relaxed);
	return ret;
}

int pst_req_admit(struct pst_request *req, const struct penstock_req *given, struct pst_err *err)
{
	struct penstock_req from;
	int ret = pst_struct_copy_in(&from, sizeof(from), given, "penstock_req", err);

	if (!ret)
		ret = check(req->q, &from, err);
	if (ret)
		return ret;
	reset(req);
	req->st = from.storage;
	req->op = from.op;
	req->require = from.require;
	req->effort = from.effort;
	req->flags = from.flags;
	req->losses = atomic_load_explicit(&req->st->losses, memory_order_relaxed);
	req->priority = (unsigned)(from.priority + 4);
	req->deadline_ns = from.deadline_ns;
	req->user = from.user;
	req->done = from.done;
	req->stream = from.stream;
	req->start_ns = pst_now_ns();
	ret = pst_struct_copy_in(&req->late, sizeof(req->late), from.late, "penstock_late", err);
	if (!ret)
		ret = take_path(req, from.path, err);
	if (!ret)
		ret = take_segs(req, &from, err);
	if (!ret)
		ret = make_routes(req, err);
	if (ret)
		return ret;
	req->pump = req->seg_count
			    ? atomic_load_explicit(&req->segs[0].dev->pump, memory_order_acquire)
			    : NULL;
	return pst_req_make_spans(req, err);
}
