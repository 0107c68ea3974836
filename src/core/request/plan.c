/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans: see plan.h. The rules, in one place:
 *
 * - only usable paths that meet the required class are listed;
 * - cold and unknown bytes: the paths that leave the page cache alone, most direct
 *   first, then those that go through it;
 * - warm bytes: the paths that use the cache first, because memory is quicker than
 *   any drive; thrifty prefers the one that costs the CPU least, where it is quick,
 *   fast the other way round; then the rest, most direct first;
 * - a path that is not quick here stands behind all quick ones of its list.
 */
#include "core/request/plan.h"

#include <string.h>

static bool allowed(const struct pst_plan_in *in, unsigned i)
{
	const struct pst_path_traits *traits = &in->paths[i]->traits;

	return in->states[i].usable && !traits->by_name_only &&
	       (in->op == PENSTOCK_READ ? traits->reads : traits->writes) &&
	       in->states[i].facts.class_ >= in->require;
}

/* Smaller goes first. */
static unsigned rank(const struct pst_plan_in *in, unsigned i, enum pst_residency residency)
{
	const struct pst_path_traits *traits = &in->paths[i]->traits;
	bool cached = residency == PST_WARM && in->op == PENSTOCK_READ;
	unsigned r = i; /* the table's order: most direct first */

	if (traits->uses_cache != cached)
		r += PST_PATHS_MAX;
	else if (cached && in->effort == PENSTOCK_FAST)
		r = PST_PATHS_MAX - 1 - i; /* more CPUs, more bytes a second */
	if (!in->states[i].facts.quick)
		r += 2 * PST_PATHS_MAX;
	return r;
}

static void sort_in(const struct pst_plan_in *in, struct pst_plan *out,
		    enum pst_residency residency, unsigned path)
{
	uint8_t *list = out->list[residency];
	unsigned n = out->count[residency]++;

	while (n && rank(in, list[n - 1], residency) > rank(in, path, residency)) {
		list[n] = list[n - 1];
		n--;
	}
	list[n] = (uint8_t)path;
}

void pst_plan_make(const struct pst_plan_in *in, struct pst_plan *out)
{
	memset(out, 0, sizeof(*out));
	for (unsigned i = 0; i < in->count; i++) {
		if (!allowed(in, i))
			continue;
		for (unsigned r = 0; r < PST_RESIDENCIES; r++)
			sort_in(in, out, (enum pst_residency)r, i);
	}
	for (unsigned i = 0; i < out->count[PST_COLD] && in->op == PENSTOCK_READ; i++)
		if (in->paths[out->list[PST_COLD][i]]->traits.uses_cache)
			out->residency_matters = true;
}

enum penstock_why pst_plan_why(const struct pst_plan_in *in, const struct pst_plan *plan,
			       unsigned index, enum pst_residency residency)
{
	const struct pst_path_traits *traits = &in->paths[index]->traits;
	const struct pst_path_state *state = &in->states[index];

	if (plan->count[residency] && plan->list[residency][0] == index)
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
