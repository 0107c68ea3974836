/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Admission: checks a caller's request at submit, and turns it into one that lanes (worker threads)
 * can carry out. It resolves the path that the caller named, finds each segment's device and route,
 * makes the spans, and checks that paths of the required class can carry them. It refuses a request
 * that cannot be carried out, before any byte moves. queue.c calls pst_req_admit at submit.
 * stream_poll.c calls pst_admit_spans when it knows the offsets and lengths that a stream has
 * supplied. This file must never start a transfer.
 */
#include "core/route/admit.h"

#include <stdio.h>
#include <string.h>

#include "core/backends.h"
#include "core/base/clock.h"
#include "core/base/devices.h"
#include "core/base/fork.h"
#include "core/base/stats.h"
#include "core/base/struct_copy.h"
#include "core/lane/claim.h"
#include "core/lane/pump.h"
#include "core/request/spans.h"
#include "core/route/route.h"

#define KNOWN_FLAGS                                                                        \
	(PENSTOCK_R_DURABLE | PENSTOCK_R_EXACT | PENSTOCK_R_DETACHED | PENSTOCK_R_UNSURE | \
	 PENSTOCK_R_EARLY)

/* Checks the fields of the caller's request that do not depend on a route (a storage and a
 * device). */
static int admit_check(const struct penstock_req *from, unsigned segs_max, struct pst_err *err)
{
	if (from->size < sizeof(from->size) || !from->storage || (from->seg_count && !from->segs))
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"a request without storage or segments (initialise it with "
				"PENSTOCK_REQ_INIT)");
	if (from->seg_count > segs_max)
		return pst_fail_errno(err, E2BIG, PENSTOCK_WHY_FULL,
				      "%u segments, but the queue's segs_max is %u",
				      from->seg_count, segs_max);
	if ((unsigned)from->op > PENSTOCK_WRITE || (unsigned)from->require > PENSTOCK_DIRECT ||
	    (unsigned)from->effort > PENSTOCK_BALANCED || from->flags & ~KNOWN_FLAGS ||
	    from->priority < -4 || from->priority > 3)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"op, class, effort, flag or priority out of range");
	if (from->flags & PENSTOCK_R_DURABLE && !from->seg_count)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"a durable request without segments: add one of no bytes, which "
				"names a device");
	if ((from->late || from->flags & PENSTOCK_R_DETACHED) && !from->stream)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"late values and detached requests need a stream");
	if (from->flags & PENSTOCK_R_EARLY && (from->op == PENSTOCK_WRITE || !from->stream))
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"flag PENSTOCK_R_EARLY is for reads in stream order");
	return pst_fork_check(from->storage->generation, err);
}

/* Copies the caller's segments into the request, and checks that none names another storage. */
static int admit_segs(struct pst_request *req, const struct penstock_req *from, struct pst_err *err)
{
	for (unsigned i = 0; i < from->seg_count; i++) {
		int ret = pst_seg_copy_in(&req->segs[i], from, i, err);

		if (ret < 0)
			return ret;
		req->flags |= ret ? PENSTOCK_R_UNSURE : 0;
		if (req->segs[i].storage && req->segs[i].storage != from->storage)
			return pst_fail(err, PENSTOCK_WHY_UNSUPPORTED,
					"segment %u names another storage than its request", i);
	}
	req->seg_count = from->seg_count;
	return 0;
}

/* Gets the route from the storage to each segment's device. A route that does not exist yet is
 * made, which is slow. */
static int admit_routes(struct pst_request *req, struct pst_err *err)
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

/* Checks a span whose segments are on several devices. The span uses the plan of its first device,
 * so each path of that plan must meet the required class on the other devices too. */
static int check_class_of_others(const struct pst_request *req, const struct pst_span *span,
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
				return pst_fail_errno(
					err, EOPNOTSUPP, PENSTOCK_WHY_REQUIRE,
					"one range of bytes for %s and %s: path %s does "
					"not meet the class for both, request them "
					"separately",
					first->name, seg->dev->name, pst_paths[index]->name);
		}
	}
	return 0;
}

/* Stores the error that no path of the required class can carry the span, and returns its code.
 * `why` is the reason for the message. */
static int fail_span(const struct pst_request *req, const struct pst_span *span, const char *why,
		     struct pst_err *err)
{
	if (req->require > PENSTOCK_ANY || req->forced < 0)
		return pst_fail_errno(err, EOPNOTSUPP, PENSTOCK_WHY_REQUIRE,
				      "no path of the required class: %.180s", why);
	return pst_fail_errno(err, EOPNOTSUPP, span->route->paths[req->forced].err.why,
			      "the path %s is shut: %.180s", pst_paths[req->forced]->name, why);
}

/* Checks that paths of the required class can carry every span. */
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
			why = state->err.code ? state->err.text : "the named path does not meet it";
		} else if (!span->plan->count[PST_COLD]) {
			ret = -EOPNOTSUPP;
			why = pst_route_why(span->route, req->require);
		}
		if (ret)
			return fail_span(req, span, why, err);
		if (req->require > PENSTOCK_ANY)
			ret = check_class_of_others(req, span, err);
		if (!ret)
			ret = pst_claim_check(req, span, err);
		if (ret)
			return ret;
	}
	return 0;
}

/* Resets an element of the queue's request pool for its next request. */
static void req_reset(struct pst_request *req)
{
	pst_req_rewind(req);
	req->stage = NULL;
	atomic_store_explicit(&req->retracted, false, memory_order_relaxed);
	req->home_lane = NULL;
	req->alone = false;
	req->other_devices = 0;
	req->span_count = 0;
	req->body = req->total = 0;
}

/* Fails with a message that lists the names of all paths. */
static int fail_unknown_path(const char *text, struct pst_err *err)
{
	char names[100] = "";
	size_t n = 0;

	for (unsigned i = 0; i < pst_path_count && n < sizeof(names); i++)
		n += (size_t)snprintf(names + n, sizeof(names) - n, "%s%s", i ? ", " : "",
				      pst_paths[i]->name);
	return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "there is no path '%.60s': %s", text,
			names);
}

/* Parses the name of a path in the form "WRAP[:NAME][?ARGS]": the path WRAP, such as fault, wraps
 * the path NAME, and gets the arguments ARGS. */
static int admit_wrap(struct pst_request *req, const char *text, struct pst_err *err)
{
	size_t len = strcspn(text, ":?"), at = len;
	char name[32] = "";
	int index;

	if (len < sizeof(name))
		memcpy(name, text, len);
	index = pst_path_index(name);
	if (index < 0 || !pst_paths[index]->wrap)
		return fail_unknown_path(text, err);
	req->wrap = pst_paths[index];
	if (text[at] == ':') {
		len = strcspn(text + at + 1, "?");
		memset(name, 0, sizeof(name));
		if (len < sizeof(name))
			memcpy(name, text + at + 1, len);
		req->forced = pst_path_index(name);
		at += 1 + len;
		if (req->forced < 0 || pst_paths[req->forced]->wrap ||
		    pst_paths[req->forced]->traits.synchronous)
			return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
					"'%.60s': it names no path that can be wrapped", text);
	}
	return req->wrap->wrap(text + at + (text[at] == '?'), req->wrap_state, err);
}

/* Resolves the path that the caller named, if the caller named one. */
static int admit_path(struct pst_request *req, const char *text, struct pst_err *err)
{
	req->wrap = NULL;
	req->forced = text ? pst_path_index(text) : -1;
	if (!text || (req->forced >= 0 && !pst_paths[req->forced]->wrap))
		return 0;
	req->forced = -1;
	return admit_wrap(req, text, err);
}

int pst_seg_copy_in(struct penstock_seg *out, const struct penstock_req *from, unsigned i,
		    struct pst_err *err)
{
	size_t stride = from->seg_size ? from->seg_size : sizeof(*out);

	if (stride < sizeof(*out))
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"seg_size is %zu: a segment alone has %zu bytes", stride,
				sizeof(*out));
	memcpy(out, (const char *)from->segs + i * stride, sizeof(*out));
	if (out->dev)
		return 0;
	out->dev = pst_device_find((char *)out->buf + out->buf_off);
	if (!out->dev)
		return pst_fail(err, PENSTOCK_WHY_NO_DEVICE,
				"segment %u: its buffer belongs to no open device", i);
	return 1;
}

int pst_admit_spans(struct pst_request *req, unsigned spans_max, struct pst_err *err)
{
	int ret = pst_spans_make(req, spans_max, err);

	if (ret)
		return ret;
	ret = check_class(req, err);
	if (ret)
		atomic_fetch_add_explicit(&pst_stats_get()->refused, 1, memory_order_relaxed);
	return ret;
}

int pst_req_admit(struct pst_request *req, const struct penstock_req *given, unsigned segs_max,
		  unsigned spans_max, struct pst_err *err)
{
	struct penstock_req from;
	int ret = pst_struct_copy_in(&from, sizeof(from), given, "penstock_req", err);

	if (!ret)
		ret = admit_check(&from, segs_max, err);
	if (ret)
		return ret;
	req_reset(req);
	req->spans_max = spans_max;
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
		ret = admit_path(req, from.path, err);
	if (!ret)
		ret = admit_segs(req, &from, err);
	if (!ret)
		ret = admit_routes(req, err);
	if (ret)
		return ret;
	req->pump = req->seg_count
			    ? atomic_load_explicit(&req->segs[0].dev->pump, memory_order_acquire)
			    : NULL;
	return pst_admit_spans(req, spans_max, err);
}
