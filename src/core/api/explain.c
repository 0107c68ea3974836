/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements penstock_explain, which reports which paths a request would use, and why it would not
 * use each other path. A path is a way for bytes between storage and device, for example through
 * the page cache. The answer comes from the same plan that the request would follow. The function
 * must never move a byte of the caller's memory.
 */
#include <stdio.h>

#include "core/backends.h"
#include "core/base/fork.h"
#include "core/base/struct_copy.h"
#include "core/lane/pump.h"
#include "core/route/admit.h"
#include "core/route/route.h"

/* The properties of the explained request that decide which paths can carry it. */
struct range {
	uint64_t off, len, room;
	uint32_t edge; /* the storage's edge_align: the library splits writes at multiples of it */
	bool rows;     /* whether the segment has several rows */
};

/* How much of the caller's range a path can carry. PORTION_BLOCKS means only the whole blocks,
 * without the unaligned bytes at the start and the end of the range. */
enum portion { PORTION_NONE, PORTION_BLOCKS, PORTION_ALL };

/* Returns how much of the range path `index` can carry. A direct write, or a transfer without a
 * buffer in between, can carry only whole blocks of the drive. */
static enum portion path_portion(const struct pst_plan_in *in, unsigned index,
				 const struct range *r)
{
	const struct pst_path_facts *facts = &in->states[index].facts;
	uint64_t align = facts->off_align, head;

	if (align <= 1 || r->rows || !r->len || (in->op == PENSTOCK_READ && !facts->exact))
		return PORTION_ALL;
	if (in->op == PENSTOCK_WRITE && r->edge > align)
		align = r->edge;
	head = -r->off % align;
	if (!head && r->room >= -r->len % align)
		return PORTION_ALL;
	return head < r->len && r->len - head >= align ? PORTION_BLOCKS : PORTION_NONE;
}

/* Returns the index of the first path of the plan that can carry bytes of the range and is fast
 * enough for a range of this length. A path is fast enough from a minimum length on, which
 * pst_plan_least returns. The plan's last path counts as fast enough for any length. If no path
 * that can carry bytes of the range is fast enough, returns the first path that can carry bytes of
 * it. Returns -1 if no path can carry the range's unaligned ends. */
static int plan_first_path(const struct pst_plan_in *in, const struct pst_plan *plan,
			   enum pst_residency residency, const struct range *r)
{
	unsigned count = plan->count[residency];
	int found = -1, slow = -1;
	bool whole = false;

	for (unsigned i = 0; i < count; i++) {
		unsigned index = plan->list[residency][i];
		enum portion portion = path_portion(in, index, r);

		if (portion == PORTION_NONE)
			continue;
		whole |= portion == PORTION_ALL;
		if (found >= 0)
			continue;
		if (i + 1 == count || r->len >= pst_plan_least(plan, in->states, residency, i))
			found = (int)index;
		else if (slow < 0)
			slow = (int)index;
	}
	found = found < 0 ? slow : found;
	return whole ? found : -1;
}

/* Stores in a path's row of the result the reason why the path is not used, and the sentence that
 * penstock_why_text has for this reason. */
static void row_set_why(struct penstock_explain_path *row, enum penstock_why why)
{
	row->why = why;
	snprintf(row->text, sizeof(row->text), "%s",
		 why == PENSTOCK_WHY_NONE ? "" : penstock_why_text(why));
}

/* Sets PENSTOCK_WHY_UNALIGNED in the rows of paths that come first in the plan but cannot carry the
 * whole range, because its ends are not aligned. */
static void rows_mark_unaligned(const struct pst_plan_in *in, const struct range *r,
				struct penstock_explanation *out)
{
	for (unsigned i = 0; i < out->path_count; i++)
		if (out->paths[i].why == PENSTOCK_WHY_NONE && out->taken != (int)i &&
		    path_portion(in, i, r) != PORTION_ALL)
			row_set_why(&out->paths[i], PENSTOCK_WHY_UNALIGNED);
}

/* Corrects the reasons if the request uses another path than the one that the plan prefers, because
 * that one is slow for this length. The rows of the preferred paths get PENSTOCK_WHY_NOT_QUICK, and
 * the row of the used path gets no reason. */
static void rows_mark_short(struct penstock_explanation *out)
{
	if (out->taken < 0 || out->paths[out->taken].why == PENSTOCK_WHY_NONE)
		return;
	for (unsigned i = 0; i < out->path_count; i++)
		if (out->paths[i].why == PENSTOCK_WHY_NONE)
			row_set_why(&out->paths[i], PENSTOCK_WHY_NOT_QUICK);
	row_set_why(&out->paths[out->taken], PENSTOCK_WHY_NONE);
}

/* Returns the index of the path that carries cached bytes of the same request at the same time as
 * path `warm`. Returns -1 if the plan does not use two paths at the same time. */
static int plan_mixed_path(const struct pst_plan *plan, int warm)
{
	const uint8_t *list = plan->list[PST_WARM];

	return plan->mixed > 1 && warm == list[0] ? list[1] : -1;
}

/* A plan may use several paths for one request at the same time. If the request has too few bytes
 * for some of these paths, this function sets PENSTOCK_WHY_NOT_QUICK in the rows of those paths. */
static void rows_mark_mixed(const struct pst_plan *plan, struct penstock_explanation *out)
{
	for (unsigned i = 0; i < plan->mixed; i++) {
		int index = plan->list[PST_WARM][i];

		if (index != out->taken && index != out->mixed &&
		    out->paths[index].why == PENSTOCK_WHY_NONE)
			row_set_why(&out->paths[index], PENSTOCK_WHY_NOT_QUICK);
	}
}

/* Returns general advice on what the user can change so that a path that is not usable for the
 * reason `why` becomes usable. Called if the path's probe has given no advice of its own. */
static const char *why_fix(enum penstock_why why)
{
	switch (why) {
	case PENSTOCK_WHY_NOT_READ:
		return "nothing, the path carries writes only";
	case PENSTOCK_WHY_NOT_WRITE:
		return "nothing, the path carries reads only";
	case PENSTOCK_WHY_HOST_ONLY:
		return "name host as the device";
	case PENSTOCK_WHY_DEVICE_ONLY:
	case PENSTOCK_WHY_UNSUPPORTED: /* the device has no copy engine */
		return "name a GPU as the device";
	case PENSTOCK_WHY_NO_FD:
	case PENSTOCK_WHY_NOT_MAPPABLE:
		return "put the bytes into a file";
	case PENSTOCK_WHY_NOT_LISTED:
	case PENSTOCK_WHY_NO_ODIRECT:
	case PENSTOCK_WHY_NOT_REAL:
		return "put the file on ext4 or xfs on a local drive";
	case PENSTOCK_WHY_NO_READONLY_REG:
		return "use a GPU and a driver that register read-only host memory "
		       "(CU_DEVICE_ATTRIBUTE_READ_ONLY_HOST_REGISTER_SUPPORTED)";
	case PENSTOCK_WHY_NO_ROUTE:
	case PENSTOCK_WHY_CANARY:
		return "put drive and device beneath one PCIe switch, without an IOMMU that "
		       "translates between them; 'penstock check' shows the topology";
	case PENSTOCK_WHY_UNPROVEN:
		return "write a block on each of its drives first";
	default:
		return "remove the cause, and open the storage again";
	}
}

/* Sets the advice in a path's row: how to make the path usable for this request. */
static void row_set_fix(const struct pst_plan_in *in, unsigned i, struct penstock_explain_path *row)
{
	static const char *const classes[] = {"any", "no-cpu-copy", "direct"};
	const struct pst_path_state *state = &in->states[i];
	bool carries =
		in->op == PENSTOCK_READ ? pst_paths[i]->traits.reads : pst_paths[i]->traits.writes;

	row->fix[0] = '\0';
	if (!carries || !state->usable)
		snprintf(row->fix, sizeof(row->fix), "%s",
			 carries && state->fix[0] ? state->fix : why_fix(row->why));
	else if (state->facts.class_ >= in->require)
		return; /* this request can use the path, so no advice is needed */
	else if (row->why == PENSTOCK_WHY_REQUIRE)
		snprintf(row->fix, sizeof(row->fix), "require no more than %s",
			 classes[state->facts.class_]);
	else
		snprintf(row->fix, sizeof(row->fix), "%s", why_fix(row->why));
}

/* Fills the result's row of path i for a range with this residency in the page cache. */
static void row_fill(const struct pst_plan_in *in, const struct pst_plan *plan, unsigned i,
		     enum pst_residency residency, struct penstock_explain_path *row)
{
	const struct pst_path_state *state = &in->states[i];
	const char *text;

	row->name = pst_paths[i]->name;
	row->usable = state->usable;
	row->meets = state->usable ? state->facts.class_ : PENSTOCK_ANY;
	row->proven = state->proven;
	row->why = pst_plan_why(in, plan, i, residency);
	/* The path is of the required class in general, but not between this storage and this
	 * device. So report the more exact reason that the path's probe stored for this pair. */
	if (row->why == PENSTOCK_WHY_REQUIRE && state->err.code &&
	    pst_paths[i]->traits.class_ >= in->require)
		row->why = state->err.why;
	text = penstock_why_text(row->why);
	if (row->why == PENSTOCK_WHY_NONE && in->op == PENSTOCK_WRITE && state->facts.canary)
		text = penstock_why_text(PENSTOCK_WHY_FIRST_WRITE);
	else if (row->why == PENSTOCK_WHY_NONE)
		text = state->facts.note;
	else if (row->why == state->err.why && state->err.text[0])
		text = state->err.text;
	snprintf(row->text, sizeof(row->text), "%s", text);
	row_set_fix(in, i, row);
}

/* If it is unknown whether the range is cached, the plan treats the range as not cached. So in each
 * row with the reason "not cached", this function replaces that reason by the reason why the state
 * of the cache is unknown. */
static void rows_mark_unknown(struct penstock_explanation *out)
{
	for (unsigned i = 0; i < out->path_count; i++)
		if (out->paths[i].why == PENSTOCK_WHY_COLD)
			row_set_why(&out->paths[i], out->resident_why);
}

/* Returns 1 if the range is in the kernel's page cache, or 0 if it is not. If that is unknown,
 * returns -1 and stores the reason in `why`. */
static int range_resident(struct penstock_storage *st, const struct penstock_seg *seg,
			  enum penstock_why *why)
{
	uint64_t len = seg->row_len ? seg->row_len : st->facts.length;

	*why = PENSTOCK_WHY_NONE;
	if (!st->ops->residency || seg->off > INT64_MAX || len > INT64_MAX - seg->off)
		/* Report the range as not cached: the storage has no page cache, or the range is so
		 * long that a request for it would be refused. */
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

/* Returns the number of bytes of the segment, or the length of the storage if the segment's
 * row_len is 0. */
static uint64_t range_length(const struct penstock_storage *st, const struct penstock_seg *seg)
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

	if (!given || !out)
		return pst_fail_null("the request or the output pointer");
	if (pst_struct_copy_in(&req, sizeof(req), given, "penstock_req", &err))
		return pst_err_publish(&err);
	if (!req.storage || !req.seg_count || !req.segs ||
	    (unsigned)req.require > PENSTOCK_DIRECT || (unsigned)req.effort > PENSTOCK_BALANCED ||
	    (unsigned)req.op > PENSTOCK_WRITE)
		return pst_fail(
			NULL, PENSTOCK_WHY_BAD_ARGUMENT,
			"explain needs a storage, a segment, and a valid op, class and effort");
	if (pst_seg_copy_in(&seg, &req, 0, &err) < 0 ||
	    pst_fork_check(req.storage->generation, &err) ||
	    pst_fork_check(seg.dev->generation, &err) ||
	    pst_route_get(req.storage, seg.dev, req.op, &route, &err))
		return pst_err_publish(&err);
	plan = &route->plans[req.require][req.effort];
	in = (struct pst_plan_in){req.op,	  req.require, req.effort,
				  pst_path_count, pst_paths,   route->paths};
	ours.resident = range_resident(req.storage, &seg, &ours.resident_why);
	residency = ours.resident == 1 ? PST_WARM : ours.resident ? PST_UNKNOWN : PST_COLD;
	if (req.op == PENSTOCK_WRITE)
		residency = PST_COLD;
	range = (struct range){seg.off, range_length(req.storage, &seg), seg.room,
			       req.storage->facts.edge_align, seg.rows > 1};
	ours.taken = plan_first_path(&in, plan, residency, &range);
	ours.cold = plan_first_path(&in, plan, PST_COLD, &range);
	ours.warm = plan_first_path(&in, plan, PST_WARM, &range);
	ours.unknown = plan_first_path(&in, plan, PST_UNKNOWN, &range);
	ours.mixed = plan_mixed_path(plan, ours.warm);
	lane = &atomic_load(&seg.dev->pump)->lanes[0];
	ours.engine = lane->engine_ops->name;
	ours.engine_why = lane->engine_why.why;
	snprintf(ours.engine_text, sizeof(ours.engine_text), "%s", lane->engine_why.text);
	snprintf(ours.storage_text, sizeof(ours.storage_text), "%s", req.storage->facts.text);
	snprintf(ours.device_text, sizeof(ours.device_text), "%s", seg.dev->facts.text);
	/* Do not list the paths that are used only if a request names them. They come last in the
	 * table. */
	for (unsigned i = 0; i < pst_path_count && !pst_paths[i]->traits.by_name_only; i++)
		row_fill(&in, plan, ours.path_count++, residency, &ours.paths[i]);
	if (residency == PST_UNKNOWN)
		rows_mark_unknown(&ours);
	rows_mark_unaligned(&in, &range, &ours);
	rows_mark_short(&ours);
	if (residency == PST_WARM)
		rows_mark_mixed(plan, &ours);
	return pst_struct_copy_out(out, &ours, sizeof(ours));
}
