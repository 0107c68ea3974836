/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The choice of paths: a pure function from what the probes found to ordered
 * lists of paths, one for cold, warm and unknown chunks. No I/O, no allocation;
 * the library, `penstock explain` and the property tests call the same one.
 */
#ifndef PST_CORE_PLAN_H
#define PST_CORE_PLAN_H

#include "core/ops.h"

/* What is known of one path on one route. */
struct pst_path_state {
	bool usable;   /* probe passed, and the canary where one is asked */
	int8_t proven; /* 1: by canary, 0: none needed, -1: not yet */
	struct pst_path_facts facts;
	struct pst_err err; /* why not usable */
	char fix[PENSTOCK_TEXT_MAX];
};

struct pst_plan_in {
	enum penstock_op op;
	enum penstock_class require;
	enum penstock_effort effort;
	unsigned count;
	const struct pst_path_ops *const *paths; /* most direct first */
	const struct pst_path_state *states;
};

/* Per residency, indices of paths, best first; a chunk that fails on one goes to
 * the next. Empty lists mean that the class is refused. */
struct pst_plan {
	uint8_t count[PST_RESIDENCIES];
	uint8_t list[PST_RESIDENCIES][PST_PATHS_MAX];
	bool residency_matters; /* a listed path uses the page cache: lanes ask per chunk */
};

void pst_plan_make(const struct pst_plan_in *in, struct pst_plan *out);

/* Why path `index` is not the one taken for a residency: for reports. */
enum penstock_why pst_plan_why(const struct pst_plan_in *in, const struct pst_plan *plan,
			       unsigned index, enum pst_residency residency);

#endif
