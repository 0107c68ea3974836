/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Plans: the paths that a request may use, in order of preference. One function computes three
 * lists from the results of the path probes: for cold bytes (not in the page cache), for warm bytes
 * (in the page cache), and for bytes of unknown residency. The function has no side effects, does
 * no I/O and allocates nothing. Requests, `penstock explain` and the property tests call the same
 * function.
 */
#ifndef PST_CORE_PLAN_H
#define PST_CORE_PLAN_H

#include <stdatomic.h>

#include "core/ops.h"

/* The state of one path on one route, which is a storage, a device and a direction. */
struct pst_path_state {
	/* True if the path's probe succeeded. For a path that needs a canary read, a test read
	 * whose bytes are compared, that read must have succeeded, too. */
	bool usable;
	/* 1 if a canary (a test transfer) has shown that the path delivers the bytes, 0 if the path
	 * needs no canary, -1 if no canary has shown it yet. */
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

/* A plan has a list for each residency (cold, warm, unknown): the indices of the paths, the best
 * path first. A chunk that fails on one path is retried on the next. If the lists are empty, no
 * path meets the required class, and requests are refused. */
struct pst_plan {
	uint8_t count[PST_RESIDENCIES];
	uint8_t list[PST_RESIDENCIES][PST_PATHS_MAX];
	/* True if some path in the lists uses the page cache. Then lanes query for each chunk
	 * whether its bytes are cached. */
	bool residency_matters;
	/* Number of paths at the start of the list for warm bytes that are mixed: they carry bytes
	 * of one request at the same time. 1 if the list's best path carries all warm bytes, 0 if
	 * the list is empty. */
	uint8_t mixed;
	/* Prevents a chunk on a mixed path from ending long after all others, in a request that is
	 * alone in flight. A mixed path, except the last, begins a chunk only while at least
	 * mixed_tail times its chunk_quick bytes are unclaimed. */
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
	/* Reads back a chunk that was written by a path with facts.canary, and compares the bytes.
	 * The lane calls this function before the chunk completes. */
	int (*verify_write)(struct pst_chunk *chunk);
	/* For each path, what the library has found out by reading back written chunks. 0 as long
	 * as the bytes of all these chunks had arrived. After a chunk whose bytes had not arrived:
	 * the negated reason (enum penstock_why). */
	_Atomic int write_proof[PST_PATHS_MAX];
	/* For each path: bit i is set after the library has read back a write to drive i of the
	 * storage, and all bytes had arrived. */
	_Atomic uint32_t write_drives[PST_PATHS_MAX];
	void *path_priv[PST_PATHS_MAX]; /* each path's state, freed by the path's route_close */
	/* True if the test read (canary) of a path could not run, because the file had only holes
	 * and no written bytes. */
	bool unproven;
	/* The number that the storage's function `stamp` returned before the last test read. The
	 * number changes when the storage may have been written. */
	_Atomic uint64_t stamp;
	/* Earliest time in ns of the next test read; 0 if it may run at any time. */
	_Atomic uint64_t retest_after_ns;
	uint64_t retest_pause_ns; /* length of the last pause between two tests, in ns */
	unsigned retests_failed;  /* number of repeated tests that found no written bytes */
	/* Route that this one replaced, or NULL. Requests may still use the older route. */
	struct pst_route *older;
	/* Padding, because `refs` changes often and must not share a cache line with members that
	 * all worker threads read. */
	char apart[64];
	/* Number of references: one from the storage, and one from each request whose report uses
	 * the route. */
	_Atomic unsigned refs;
};

/* Computes the plan for one operation, class and effort. */
void pst_plan_make(const struct pst_plan_in *in, struct pst_plan *out);

/* Returns the minimum number of unclaimed bytes with which a lane may start a chunk on a path, in a
 * request that is alone in flight. With fewer, other paths are faster. `at` is the path's position
 * in the plan's list for a residency. */
uint64_t pst_plan_least(const struct pst_plan *plan, const struct pst_path_state *states,
			enum pst_residency residency, unsigned at);

/* Returns why path `index` is not used for bytes of this residency, or PENSTOCK_WHY_NONE if it is
 * the plan's first choice or used together with that one. Reports show the reason. */
enum penstock_why pst_plan_why(const struct pst_plan_in *in, const struct pst_plan *plan,
			       unsigned index, enum pst_residency residency);

/* Returns the index in pst_paths of the path with that name, or -1 if there is no such path. */
int pst_path_index(const char *name);

#endif
