/* SPDX-License-Identifier: Apache-2.0 */
/*
 * penstock_explain: what the plan would do, and why, without moving the caller's
 * bytes. Reads the same route and the same plan that a request would.
 */
#include <stdio.h>
#include <string.h>

#include "core/objects.h"
#include "core/pump.h"
#include "core/route.h"

static int first(const struct pst_plan *plan, enum pst_residency residency)
{
	return plan->count[residency] ? plan->list[residency][0] : -1;
}

static void explain_path(const struct pst_plan_in *in, const struct pst_plan *plan, unsigned i,
			 enum pst_residency residency, struct penstock_explain_path *row)
{
	const struct pst_path_state *state = &in->states[i];
	const char *text;

	row->name = pst_paths[i]->name;
	row->usable = state->usable;
	row->meets = state->usable ? state->facts.class_ : PENSTOCK_ANY;
	row->proven = state->proven;
	row->why = pst_plan_why(in, plan, i, residency);
	text = penstock_why_text(row->why);
	if (row->why == PENSTOCK_WHY_NONE && in->op == PENSTOCK_WRITE &&
		 state->facts.canary)
		text = penstock_why_text(PENSTOCK_WHY_FIRST_WRITE);
	else if (row->why == PENSTOCK_WHY_NONE)
		text = "";
	else if (!state->usable && state->err.text[0])
		text = state->err.text;
	snprintf(row->text, sizeof(row->text), "%s", text);
	snprintf(row->fix, sizeof(row->fix), "%s", state->fix);
}

/* The plan treats what is not known as not cached; that is no reason to say so. */
static void say_unknown(struct penstock_explanation *out)
{
	for (unsigned i = 0; i < out->path_count; i++) {
		struct penstock_explain_path *row = &out->paths[i];

		if (row->why != PENSTOCK_WHY_COLD)
			continue;
		row->why = out->resident_why;
		snprintf(row->text, sizeof(row->text), "%s", penstock_why_text(row->why));
	}
}

/* The page cache's answer for the range, put together from its pieces. */
static int resident(struct penstock_storage *st, const struct penstock_seg *seg,
		    enum penstock_why *why)
{
	uint64_t len = seg->row_len ? seg->row_len : st->facts.length;

	*why = PENSTOCK_WHY_NONE;
	if (!st->ops->residency)
		return 0;
	switch (st->ops->residency(st, seg->off, len ? len : 1, why)) {
	case PST_WARM:
		return 1;
	case PST_UNKNOWN:
		return -1;
	default:
		return 0;
	}
}

int penstock_explain(const struct penstock_req *given, struct penstock_explanation *out)
{
	struct penstock_explanation ours = { .size = sizeof(ours) };
	struct penstock_req req;
	struct pst_route *route;
	const struct pst_plan *plan;
	struct pst_plan_in in;
	const struct pst_lane *lane;
	enum pst_residency residency;
	struct pst_err err;
	struct penstock_device *dev;
	int ret = pst_take(&req, sizeof(req), given, "penstock_req", &err);

	if (ret)
		return pst_err_publish(&err);
	if (!req.storage || !req.seg_count || (unsigned)req.require > PENSTOCK_DIRECT ||
	    (unsigned)req.effort > PENSTOCK_FAST || (unsigned)req.op > PENSTOCK_WRITE)
		return pst_fail(NULL, PENSTOCK_WHY_BAD_ARGUMENT,
				"explain needs a storage and one segment");
	dev = req.segs[0].dev ? req.segs[0].dev : pst_device_find(req.segs[0].buf);
	if (!dev)
		return pst_fail(NULL, PENSTOCK_WHY_NO_DEVICE, "no device is open for it");
	if (pst_route_get(req.storage, dev, req.op, &route, &err))
		return pst_err_publish(&err);
	plan = &route->plans[req.require][req.effort];
	in = (struct pst_plan_in){ req.op, req.require, req.effort, pst_path_count, pst_paths,
				   route->paths };
	ours.resident = resident(req.storage, &req.segs[0], &ours.resident_why);
	residency = ours.resident == 1 ? PST_WARM : ours.resident ? PST_UNKNOWN : PST_COLD;
	if (req.op == PENSTOCK_WRITE)
		residency = PST_COLD;
	ours.taken = first(plan, residency);
	ours.cold = first(plan, PST_COLD);
	ours.warm = first(plan, PST_WARM);
	ours.unknown = first(plan, PST_UNKNOWN);
	lane = &atomic_load(&dev->pump)->lanes[0];
	ours.engine = lane->engine_ops->name;
	ours.engine_why = lane->engine_why.why;
	snprintf(ours.engine_text, sizeof(ours.engine_text), "%s", lane->engine_why.text);
	snprintf(ours.storage_text, sizeof(ours.storage_text), "%s", req.storage->facts.text);
	snprintf(ours.device_text, sizeof(ours.device_text), "%s", dev->facts.text);
	/* Those that are taken by name only stand last, and nobody expects them. */
	for (unsigned i = 0; i < pst_path_count && !pst_paths[i]->traits.by_name_only; i++)
		explain_path(&in, plan, ours.path_count++, residency, &ours.paths[i]);
	if (residency == PST_UNKNOWN)
		say_unknown(&ours);
	return pst_give(out, &ours, sizeof(ours));
}
