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

#define PST_CLASSES 3 /* number of values of enum penstock_class */
#define PST_EFFORTS 2 /* number of values of enum penstock_effort */

/* What was found out about a storage, a device and a direction, and the plans made of it. route.c
 * makes it and documents its life. */
struct pst_route {
	struct penstock_storage *st;
	struct penstock_device *dev; /* may be closed while the route exists */
	enum penstock_op op;
	struct pst_path_state paths[PST_PATHS_MAX];
	struct pst_plan plans[PST_CLASSES][PST_EFFORTS];
	/* Reads back a chunk that was written by a path whose facts ask for a canary. The lane
	 * calls this function before the chunk completes. */
	int (*verify_write)(struct pst_chunk *chunk);
	/* For each path: the negated reason if a write was read back and had not
	 * arrived, else 0. */
	_Atomic int write_proof[PST_PATHS_MAX];
	/* For each path: bit i is set if a write to drive i was read back and had arrived. */
	_Atomic uint32_t write_drives[PST_PATHS_MAX];
	void *path_priv[PST_PATHS_MAX]; /* each path's state, freed by the path's route_close */
	/* whether a path could not be tested because the storage had no written bytes */
	bool unproven;
	/* what the storage's function `stamp` returned before the last test */
	_Atomic uint64_t stamp;
	/* earliest time of the next test; 0 if it may run at any time */
	_Atomic uint64_t retest_after_ns;
	uint64_t retest_pause_ns; /* length of the last pause between tests */
	unsigned retests_failed;  /* number of retests that found no written bytes */
	/* route that this one replaced, or NULL; requests may still use the older one */
	struct pst_route *older;
	/* padding that keeps refs out of the cache lines that all lanes read */
	char apart[64];
	/* number of references: one from the storage, one from each request whose report uses
	 * the route */
	_Atomic unsigned refs;
};

/* Computes the plan for one operation, class and effort. */
void pst_plan_make(const struct pst_plan_in *in, struct pst_plan *out);

/* Returns why path `index` is not the plan's first choice for a residency. Reports show it. */
enum penstock_why pst_plan_why(const struct pst_plan_in *in, const struct pst_plan *plan,
			       unsigned index, enum pst_residency residency);

/* Returns the index in pst_paths of the path with that name. -1: no such path. */
int pst_path_index(const char *name);

#endif
