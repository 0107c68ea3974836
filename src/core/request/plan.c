/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes plans, which are lists of paths in order of preference: see plan.h. route.c makes a plan
 * for every class and effort. explain.c and reports call pst_plan_why. This file must never do I/O
 * or allocate memory. The rules of a plan:
 *
 * - It lists only usable paths that meet the required class.
 * - The lists for cold bytes (not in the page cache) and for bytes of unknown residency begin with
 *   the paths that avoid the page cache, the most direct path first. The paths that use the page
 *   cache follow.
 * - The list for warm bytes (in the page cache) begins with the paths that use the page cache,
 *   because memory is faster than any drive. Among them, efforts thrifty and balanced prefer the
 *   path that costs the least CPU time, and effort fast the path that costs the most. There is one
 *   exception with effort fast: a path that can be used at the same time as another one (mixed)
 *   comes before that other path. The other paths follow, the most direct path first.
 * - In each list, the paths whose facts.quick is false for this route come last.
 * - With efforts balanced and fast, a path that can be mixed carries bytes together with the next
 *   path of the list for warm bytes, if both have facts.quick and use the page cache.
 */
#include "core/request/plan.h"

#include <string.h>

#include "core/backends.h"

/* Value of the factor pst_plan.mixed_tail with effort fast. While one worker thread registers 8 MiB
 * of page cache with the GPU's driver, the other threads copy 8 to 16 MiB. If 32 MiB are unclaimed
 * when the registration starts, 8 MiB or more are left at its end, so that no thread is idle. */
#define FAST_TAIL 4

/* Returns whether path i may be in the plan: it is usable, suits the operation, and meets the
 * required class. */
static bool plan_allows(const struct pst_plan_in *in, unsigned i)
{
	const struct pst_path_traits *traits = &in->paths[i]->traits;

	return in->states[i].usable && !traits->by_name_only &&
	       (in->op == PENSTOCK_READ ? traits->reads : traits->writes) &&
	       in->states[i].facts.class_ >= in->require;
}

/* Returns the sort key of path i in the list for bytes of this residency. The path with the
 * smallest key comes first. */
static unsigned plan_rank(const struct pst_plan_in *in, unsigned i, enum pst_residency residency)
{
	const struct pst_path_traits *traits = &in->paths[i]->traits;
	const struct pst_path_facts *facts = &in->states[i].facts;
	bool cached = residency == PST_WARM && in->op == PENSTOCK_READ;
	unsigned r = i; /* the position in pst_paths, where the most direct path is first */

	if (traits->uses_cache != cached)
		r += 2 * PST_PATHS_MAX;
	else if (cached && in->effort == PENSTOCK_FAST && !facts->mixed_max)
		/* Reverse the order of these paths for effort fast: a path that uses more CPU time
		 * moves more bytes a second. */
		r = 2 * PST_PATHS_MAX - 1 - i;
	if (!facts->quick)
		r += 4 * PST_PATHS_MAX;
	return r;
}

/* Inserts a path into the plan's list for one residency, in the order of plan_rank. */
static void plan_insert(const struct pst_plan_in *in, struct pst_plan *out,
			enum pst_residency residency, unsigned path)
{
	uint8_t *list = out->list[residency];
	unsigned n = out->count[residency]++;

	while (n && plan_rank(in, list[n - 1], residency) > plan_rank(in, path, residency)) {
		list[n] = list[n - 1];
		n--;
	}
	list[n] = (uint8_t)path;
}

/* Returns whether the path at position `at` of the list for warm (cached) bytes uses the page cache
 * and is fast on this route (facts.quick). */
static bool plan_warm_quick(const struct pst_plan_in *in, const struct pst_plan *plan, unsigned at)
{
	unsigned i = plan->list[PST_WARM][at];

	return in->paths[i]->traits.uses_cache && in->states[i].facts.quick;
}

/* Returns how many paths at the start of the list for warm bytes are mixed, which means that they
 * carry bytes of one request at the same time. 1 means that only the first path carries them. */
static unsigned plan_count_mixed(const struct pst_plan_in *in, const struct pst_plan *plan)
{
	unsigned n = 1, count = plan->count[PST_WARM];

	if (in->op != PENSTOCK_READ || in->effort == PENSTOCK_THRIFTY || !count)
		return count ? 1 : 0;
	while (n < count && in->states[plan->list[PST_WARM][n - 1]].facts.mixed_max &&
	       plan_warm_quick(in, plan, n - 1) && plan_warm_quick(in, plan, n))
		n++;
	return n;
}

void pst_plan_make(const struct pst_plan_in *in, struct pst_plan *out)
{
	memset(out, 0, sizeof(*out));
	for (unsigned i = 0; i < in->count; i++) {
		if (!plan_allows(in, i))
			continue;
		for (unsigned r = 0; r < PST_RESIDENCIES; r++)
			plan_insert(in, out, (enum pst_residency)r, i);
	}
	for (unsigned i = 0; i < out->count[PST_COLD] && in->op == PENSTOCK_READ; i++)
		if (in->paths[out->list[PST_COLD][i]]->traits.uses_cache)
			out->residency_matters = true;
	out->mixed = (uint8_t)plan_count_mixed(in, out);
	out->mixed_tail = in->effort == PENSTOCK_FAST ? FAST_TAIL : 1;
}

uint64_t pst_plan_least(const struct pst_plan *plan, const struct pst_path_state *states,
			enum pst_residency residency, unsigned at)
{
	bool tail = residency == PST_WARM && at + 1 < plan->mixed;

	return states[plan->list[residency][at]].facts.chunk_quick * (tail ? plan->mixed_tail : 1);
}

enum penstock_why pst_plan_why(const struct pst_plan_in *in, const struct pst_plan *plan,
			       unsigned index, enum pst_residency residency)
{
	const struct pst_path_traits *traits = &in->paths[index]->traits;
	const struct pst_path_state *state = &in->states[index];

	unsigned used = residency == PST_WARM ? plan->mixed : plan->count[residency] > 0;

	for (unsigned i = 0; i < used; i++)
		if (plan->list[residency][i] == index)
			return PENSTOCK_WHY_NONE;
	if (in->op == PENSTOCK_READ && !traits->reads)
		return PENSTOCK_WHY_NOT_READ;
	if (in->op == PENSTOCK_WRITE && !traits->writes)
		return PENSTOCK_WHY_NOT_WRITE;
	if (!state->usable)
		return state->err.why;
	if (state->facts.class_ < in->require)
		return PENSTOCK_WHY_REQUIRE;
	if (!state->facts.quick)
		return PENSTOCK_WHY_NOT_QUICK;
	if (in->op == PENSTOCK_READ && residency == PST_WARM && !traits->uses_cache)
		return PENSTOCK_WHY_WARM;
	if (in->op == PENSTOCK_READ && residency != PST_WARM && traits->uses_cache)
		return PENSTOCK_WHY_COLD;
	return PENSTOCK_WHY_CHOSEN_OTHER;
}

int pst_path_index(const char *name)
{
	for (unsigned i = 0; i < pst_path_count; i++)
		if (!strcmp(pst_paths[i]->name, name))
			return (int)i;
	return -1;
}
