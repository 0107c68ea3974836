/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans: the paths that a request may use, in order of preference. A pure function computes three
 * lists from the results of the path probes. One list is for cold bytes (not in the page cache),
 * one for warm bytes (in the page cache), and one for bytes of unknown residency. It does no I/O
 * and no allocation. Requests, `penstock explain` and the property tests call the same function.
 */
#ifndef PST_CORE_PLAN_H
#define PST_CORE_PLAN_H

#include <stdatomic.h>

#include "core/ops.h"

/* The state of one path on one route. */
struct pst_path_state {
	/* True if the path's probe succeeded and the path, if it needs a canary read, has also
	 * passed that. */
	bool usable;
	/* 1 if a canary has proven the path, 0 if it needs no canary, -1 if it is not proven. */
	int8_t proven;
	struct pst_path_facts facts;
	struct pst_err err; /* why the path is not usable, or why a usable path has a lower class
			       than it could have */
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
	/* Some path in the lists uses the page cache, so lanes ask for each chunk whether its bytes
	 * are cached. */
	bool residency_matters;
	/* Number of paths at the start of the list for warm bytes that are mixed: they carry bytes
	 * of one request at the same time. 1 if the list's best path carries all warm bytes, 0 if
	 * the list is empty. */
	uint8_t mixed;
	/* In a request that is alone in flight, a mixed path, except the last, begins a chunk only
	 * while at least this many times its chunk_quick are unclaimed. Otherwise this chunk could
	 * end long after all others. */
	uint8_t mixed_tail;
};

#define PST_CLASSES 3 /* number of values of enum penstock_class */
#define PST_EFFORTS 3 /* number of values of enum penstock_effort */

/* A route: the results of the path probes for one storage, one device and one direction, and the
 * plans made of these results. route.c creates the struct and describes its life. */
struct pst_route {
	struct penstock_storage *st;
	/* The device, which may be closed while the route exists. */
	struct penstock_device *dev;
	enum penstock_op op;
	struct pst_path_state paths[PST_PATHS_MAX];
	struct pst_plan plans[PST_CLASSES][PST_EFFORTS];
	/* Reads back a chunk that was written by a path whose facts ask for a canary. The lane
	 * calls this function before the chunk completes. */
	int (*verify_write)(struct pst_chunk *chunk);
	/* For each path: 0, or the negated reason (enum penstock_why) after the library read back a
	 * chunk that the path had written, and the bytes had not arrived. */
	_Atomic int write_proof[PST_PATHS_MAX];
	/* For each path: bit i is set after the library read back a write to drive i, and the bytes
	 * had arrived. */
	_Atomic uint32_t write_drives[PST_PATHS_MAX];
	void *path_priv[PST_PATHS_MAX]; /* each path's state, freed by the path's route_close */
	/* The canary of a path could not run, because the file had only holes and no written bytes
	 * to read. */
	bool unproven;
	/* The number that the storage's function `stamp` returned before the last test; it changes
	 * when the storage may have been written. */
	_Atomic uint64_t stamp;
	/* Earliest time of the next test; 0 if it may run at any time. */
	_Atomic uint64_t retest_after_ns;
	uint64_t retest_pause_ns; /* length of the last pause between tests */
	unsigned retests_failed;  /* number of repeated tests that found no written bytes */
	/* Route that this one replaced, or NULL. Requests may still use the older route. */
	struct pst_route *older;
	/* Padding that keeps `refs` out of the cache lines that all lanes read. */
	char apart[64];
	/* Number of references: one from the storage, and one from each request whose report uses
	 * the route. */
	_Atomic unsigned refs;
};

/* Computes the plan for one operation, class and effort. */
void pst_plan_make(const struct pst_plan_in *in, struct pst_plan *out);

/* Returns how many bytes of a request that is alone in flight must be unclaimed for a chunk on the
 * path at position `at` of the list for a residency. If fewer are unclaimed, other paths are
 * faster. */
uint64_t pst_plan_least(const struct pst_plan *plan, const struct pst_path_state *states,
			enum pst_residency residency, unsigned at);

/* Returns why path `index` is neither the plan's first choice for a residency nor mixed with the
 * first choice. Reports show it. */
enum penstock_why pst_plan_why(const struct pst_plan_in *in, const struct pst_plan *plan,
			       unsigned index, enum pst_residency residency);

/* Returns the index in pst_paths of the path with that name, or -1 if there is no such path. */
int pst_path_index(const char *name);

#endif
