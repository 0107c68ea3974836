/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans: the paths that a request may use, in order of preference. A pure function computes
 * three lists from the results of the path probes: one for cold bytes (not in the page cache),
 * one for warm bytes (in the page cache) and one for bytes of unknown residency. It does no I/O
 * and no allocation. Requests, `penstock explain` and the property tests call the same function.
 */
#ifndef PST_CORE_PLAN_H
#define PST_CORE_PLAN_H

#include "core/ops.h"

/* The state of one path on one route. */
struct pst_path_state {
	bool usable; /* its probe passed, and so did its canary read if the path needs one */
	/* 1 if a canary has proven the path, 0 if it needs no canary, -1 if it is not proven. */
	int8_t proven;
	struct pst_path_facts facts;
	struct pst_err err; /* why the path is not usable, or why it misses its highest class */
	char fix[PENSTOCK_TEXT_MAX]; /* advice how to make the path usable */
};

/* The input of a plan. */
struct pst_plan_in {
	enum penstock_op op;
	enum penstock_class require;
	enum penstock_effort effort;
	unsigned count;
	const struct pst_path_ops *const *paths; /* all paths, the most direct path first */
	const struct pst_path_state *states;
};

/* For each residency, the indices of the paths, the best path first. A chunk that fails on one path
 * is retried on the next. If the lists are empty, no path meets the class, and requests are
 * refused. */
struct pst_plan {
	uint8_t count[PST_RESIDENCIES];
	uint8_t list[PST_RESIDENCIES][PST_PATHS_MAX];
	/* A listed path uses the page cache, so lanes query the residency of each chunk. */
	bool residency_matters;
};

/* Computes the plan for one operation, class and effort. */
void pst_plan_make(const struct pst_plan_in *in, struct pst_plan *out);

/* Returns why path `index` is not the plan's first choice for a residency. Reports show it. */
enum penstock_why pst_plan_why(const struct pst_plan_in *in, const struct pst_plan *plan,
			       unsigned index, enum pst_residency residency);

/* Returns the index in pst_paths of the path with that name, or -1 if there is no such path. */
int pst_path_index(const char *name);

#endif
