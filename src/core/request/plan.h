/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans: the paths that a request may use, in order of preference. A pure function computes
 * three lists from the results of the path probes: for cold bytes, for warm bytes (in the page
 * cache) and for bytes of unknown residency. It does no I/O and no allocation. Requests,
 * `penstock explain` and the property tests call the same function.
 */
#ifndef PST_CORE_PLAN_H
#define PST_CORE_PLAN_H

#include <stdatomic.h>

#include "core/ops.h"

/* The state of one path on one route. */
struct pst_path_state {
	bool usable;   /* its probe passed, and its canary read if it needs one */
	int8_t proven; /* 1: by a canary; 0: needs no canary; -1: not proven */
	struct pst_path_facts facts;
	struct pst_err err;	     /* why it is not usable, or misses its highest class */
	char fix[PENSTOCK_TEXT_MAX]; /* advice how to make it usable */
};

/* The input of a plan. */
struct pst_plan_in {
	enum penstock_op op;
	enum penstock_class require;
	enum penstock_effort effort;
	unsigned count;
	const struct pst_path_ops *const *paths; /* most direct first */
	const struct pst_path_state *states;
};

/* For each residency, the indices of paths, best first. A chunk that fails on one path is
 * retried on the next. If the lists are empty, no path meets the class and requests are
 * refused. */
struct pst_plan {
	uint8_t count[PST_RESIDENCIES];
	uint8_t list[PST_RESIDENCIES][PST_PATHS_MAX];
	bool residency_matters; /* a listed path uses the page cache: lanes query each chunk */
};

#define PST_CLASSES 3 /* values of enum penstock_class */
#define PST_EFFORTS 2 /* values of enum penstock_effort */

/* What was found out about a storage, a device and a direction, and the plans made of it. route.c
 * makes it and documents its life. */
struct pst_route {
	struct penstock_storage *st;
	struct penstock_device *dev; /* may close before the storage does */
	enum penstock_op op;
	struct pst_path_state paths[PST_PATHS_MAX];
	struct pst_plan plans[PST_CLASSES][PST_EFFORTS];
	/* Reads back a write chunk of a path with a canary, before it completes. */
	int (*verify_write)(struct pst_chunk *chunk);
	_Atomic int write_proof[PST_PATHS_MAX]; /* negated reason of a write that did not arrive; 0:
						   none */
	_Atomic uint32_t write_drives[PST_PATHS_MAX]; /* bit i: a write to drive i was read back */
	void *path_priv[PST_PATHS_MAX];	  /* the path's state, freed by its route_close */
	bool unproven;			  /* a path could not be tested for lack of written bytes */
	_Atomic uint64_t stamp;		  /* the storage's stamp before the last test */
	_Atomic uint64_t retest_after_ns; /* no new test before this time; 0: at any time */
	uint64_t retest_pause_ns;	  /* the last pause between tests */
	unsigned retests_failed;	  /* retests that found no written bytes */
	struct pst_route *older; /* the route that this one replaced; requests may still use it */
	char apart[64];		 /* separates refs from the cache lines that all lanes read */
	_Atomic unsigned refs;	 /* one of the storage, and one of each report that contains it */
};

/* Computes the plan for one operation, class and effort. */
void pst_plan_make(const struct pst_plan_in *in, struct pst_plan *out);

/* Returns why path `index` is not the plan's first choice for a residency. Reports show it. */
enum penstock_why pst_plan_why(const struct pst_plan_in *in, const struct pst_plan *plan,
			       unsigned index, enum pst_residency residency);

/* Returns the index in pst_paths of the path with that name. -1: no such path. */
int pst_path_index(const char *name);

#endif
