/* SPDX-License-Identifier: Apache-2.0 */
/*
 * penstock_explain: what the plan would do, and why, without moving the caller's
 * bytes. Reads the same route and the same plan that a request would.
 */
#include <stdio.h>
#include <string.h>

#include "core/base/objects.h"
#include "core/lane/pump.h"
#include "core/route/route.h"

/* What is asked for, as far as it decides. */
struct range {
	uint64_t off, len, room;
	uint32_t edge; /* of the storage: writes are cut there */
	bool rows;     /* several, each somewhere else */
};

enum takes { NOTHING, BLOCKS, ALL };

/* Paths without a slot in between carry whole blocks of the drive, and so do direct writes. */
static enum takes takes(const struct pst_plan_in *in, unsigned index, const struct range *r)
{
	const struct pst_path_facts *facts = &in->states[index].facts;
	uint64_t align = facts->off_align, head;

	if (align <= 1 || r->rows || !r->len || (in->op == PENSTOCK_READ && !facts->exact))
		return ALL;
	if (in->op == PENSTOCK_WRITE && r->edge > align)
		align = r->edge;
	head = -r->off % align;
	if (!head && r->room >= -r->len % align)
		return ALL;
	return head < r->len && r->len - head >= align ? BLOCKS : NOTHING;
}

/* The first of the plan that takes runs of such a length, the last takes any; -1: none, or
 * none the ends that it would leave. */
static int first(const struct pst_plan_in *in, const struct pst_plan *plan,
		 enum pst_residency residency, const struct range *r)
{
	unsigned count = plan->count[residency];
	int found = -1, slow = -1;
	bool whole = false;

	for (unsigned i = 0; i < count; i++) {
		unsigned index = plan->list[residency][i];
		enum takes some = takes(in, index, r);

		if (some == NOTHING)
			continue;
		whole |= some == ALL;
		if (found >= 0)
			continue;
		if (i + 1 == count || r->len >= in->states[index].facts.chunk_quick)
			found = (int)index;
		else if (slow < 0)
			slow = (int)index;
	}
	found = found < 0 ? slow : found;
	return whole ? found : -1;
}

static void put_why(struct penstock_explain_path *row, enum penstock_why why)
{
	row->why = why;
	snprintf(row->text, sizeof(row->text), "%s",
		 why == PENSTOCK_WHY_NONE ? "" : penstock_why_text(why));
}

/* The plan knows neither offset nor length; a lane passes over what cannot take those. */
static void say_unaligned(const struct pst_plan_in *in, const struct range *r,
			  struct penstock_explanation *out)
{
	for (unsigned i = 0; i < out->path_count; i++)
		if (out->paths[i].why == PENSTOCK_WHY_NONE && out->taken != (int)i &&
		    takes(in, i, r) != ALL)
			put_why(&out->paths[i], PENSTOCK_WHY_UNALIGNED);
}

/* And over what is slow for its length. */
static void say_short(struct penstock_explanation *out)
{
	if (out->taken < 0 || out->paths[out->taken].why == PENSTOCK_WHY_NONE)
		return;
	for (unsigned i = 0; i < out->path_count; i++)
		if (out->paths[i].why == PENSTOCK_WHY_NONE)
			put_why(&out->paths[i], PENSTOCK_WHY_NOT_QUICK);
	put_why(&out->paths[out->taken], PENSTOCK_WHY_NONE);
}

/* What would open a path that is shut for this reason, where its probe knows no better. */
static const char *fix_of(enum penstock_why why)
{
	switch (why) {
	case PENSTOCK_WHY_NOT_READ:
		return "nothing does, it carries writes only";
	case PENSTOCK_WHY_NOT_WRITE:
		return "nothing does, it carries reads only";
	case PENSTOCK_WHY_HOST_ONLY:
		return "name host as the device";
	case PENSTOCK_WHY_DEVICE_ONLY:
	case PENSTOCK_WHY_UNSUPPORTED: /* a device without a copy engine */
		return "name a GPU as the device";
	case PENSTOCK_WHY_NO_FD:
	case PENSTOCK_WHY_NOT_MAPPABLE:
		return "put the bytes into a file";
	case PENSTOCK_WHY_NOT_LISTED:
	case PENSTOCK_WHY_NO_ODIRECT:
	case PENSTOCK_WHY_NOT_REAL:
		return "put the file on ext4 or xfs on a local drive";
	case PENSTOCK_WHY_NO_READONLY_REG:
		return "take a GPU and a driver that register read-only host memory "
		       "(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED)";
	case PENSTOCK_WHY_NO_ROUTE:
	case PENSTOCK_WHY_CANARY:
		return "put drive and device beneath one PCIe switch, without an IOMMU that "
		       "translates between them; 'penstock check' shows what lies there";
	case PENSTOCK_WHY_UNPROVEN:
		return "write a block on each of its drives first";
	default:
		return "mend what is named here, and open the storage anew";
	}
}

static void put_fix(const struct pst_plan_in *in, unsigned i, struct penstock_explain_path *row)
{
	static const char *const classes[] = {"any", "no-cpu-copy", "direct"};
	const struct pst_path_state *state = &in->states[i];
	bool carries =
		in->op == PENSTOCK_READ ? pst_paths[i]->traits.reads : pst_paths[i]->traits.writes;

	row->fix[0] = '\0';
	if (!carries || !state->usable)
		snprintf(row->fix, sizeof(row->fix), "%s",
			 carries && state->fix[0] ? state->fix : fix_of(row->why));
	else if (state->facts.class_ >= in->require)
		return; /* it is open */
	else if (row->why == PENSTOCK_WHY_REQUIRE)
		snprintf(row->fix, sizeof(row->fix), "require no more than %s",
			 classes[state->facts.class_]);
	else
		snprintf(row->fix, sizeof(row->fix), "%s", fix_of(row->why));
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
	/* It could meet the class elsewhere. */
	if (row->why == PENSTOCK_WHY_REQUIRE && state->err.code &&
	    pst_paths[i]->traits.class_ >= in->require)
		row->why = state->err.why;
	text = penstock_why_text(row->why);
	if (row->why == PENSTOCK_WHY_NONE && in->op == PENSTOCK_WRITE && state->facts.canary)
		text = penstock_why_text(PENSTOCK_WHY_FIRST_WRITE);
	else if (row->why == PENSTOCK_WHY_NONE)
		text = "";
	else if (row->why == state->err.why && state->err.text[0])
		text = state->err.text;
	snprintf(row->text, sizeof(row->text), "%s", text);
	put_fix(in, i, row);
}

/* The plan treats what is not known as not cached; that is no reason to say so. */
static void say_unknown(struct penstock_explanation *out)
{
	for (unsigned i = 0; i < out->path_count; i++)
		if (out->paths[i].why == PENSTOCK_WHY_COLD)
			put_why(&out->paths[i], out->resident_why);
}

/* The page cache's answer for the range, put together from its pieces. */
static int resident(struct penstock_storage *st, const struct penstock_seg *seg,
		    enum penstock_why *why)
{
	uint64_t len = seg->row_len ? seg->row_len : st->facts.length;

	*why = PENSTOCK_WHY_NONE;
	if (!st->ops->residency || seg->off > INT64_MAX || len > INT64_MAX - seg->off)
		return 0; /* a request would be refused */
	switch (st->ops->residency(st, seg->off, len ? len : 1, why)) {
	case PST_WARM:
		return 1;
	case PST_UNKNOWN:
		return -1;
	default:
		return 0;
	}
}

static uint64_t length_of(const struct penstock_storage *st, const struct penstock_seg *seg)
{
	uint64_t len;

	if (!seg->row_len)
		return st->facts.length;
	return __builtin_mul_overflow(seg->row_len, seg->rows ? seg->rows : 1, &len) ? UINT64_MAX
										     : len;
}

int penstock_explain(const struct penstock_req *given, struct penstock_explanation *out)
{
	struct penstock_explanation ours = {.size = sizeof(ours)};
	struct penstock_req req;
	struct pst_route *route;
	const struct pst_plan *plan;
	struct pst_plan_in in;
	const struct pst_lane *lane;
	enum pst_residency residency;
	struct range range;
	struct pst_err err;
	struct penstock_seg seg;
	int ret = pst_struct_copy_in(&req, sizeof(req), given, "penstock_req", &err);

	if (ret)
		return pst_err_publish(&err);
	if (!req.storage || !req.seg_count || !req.segs ||
	    (unsigned)req.require > PENSTOCK_DIRECT || (unsigned)req.effort > PENSTOCK_FAST ||
	    (unsigned)req.op > PENSTOCK_WRITE)
		return pst_fail(NULL, PENSTOCK_WHY_BAD_ARGUMENT,
				"explain needs a storage and one segment");
	if (pst_seg_copy_in(&seg, &req, 0, &err) < 0 ||
	    pst_fork_check(req.storage->generation, &err) ||
	    pst_fork_check(seg.dev->generation, &err) ||
	    pst_route_get(req.storage, seg.dev, req.op, &route, &err))
		return pst_err_publish(&err);
	plan = &route->plans[req.require][req.effort];
	in = (struct pst_plan_in){req.op,	  req.require, req.effort,
				  pst_path_count, pst_paths,   route->paths};
	ours.resident = resident(req.storage, &seg, &ours.resident_why);
	residency = ours.resident == 1 ? PST_WARM : ours.resident ? PST_UNKNOWN : PST_COLD;
	if (req.op == PENSTOCK_WRITE)
		residency = PST_COLD;
	range = (struct range){seg.off, length_of(req.storage, &seg), seg.room,
			       req.storage->facts.edge_align, seg.rows > 1};
	ours.taken = first(&in, plan, residency, &range);
	ours.cold = first(&in, plan, PST_COLD, &range);
	ours.warm = first(&in, plan, PST_WARM, &range);
	ours.unknown = first(&in, plan, PST_UNKNOWN, &range);
	lane = &atomic_load(&seg.dev->pump)->lanes[0];
	ours.engine = lane->engine_ops->name;
	ours.engine_why = lane->engine_why.why;
	snprintf(ours.engine_text, sizeof(ours.engine_text), "%s", lane->engine_why.text);
	snprintf(ours.storage_text, sizeof(ours.storage_text), "%s", req.storage->facts.text);
	snprintf(ours.device_text, sizeof(ours.device_text), "%s", seg.dev->facts.text);
	/* Those that are taken by name only stand last, and nobody expects them. */
	for (unsigned i = 0; i < pst_path_count && !pst_paths[i]->traits.by_name_only; i++)
		explain_path(&in, plan, ours.path_count++, residency, &ours.paths[i]);
	if (residency == PST_UNKNOWN)
		say_unknown(&ours);
	say_unaligned(&in, &range, &ours);
	say_short(&ours);
	return pst_struct_copy_out(out, &ours, sizeof(ours));
}
