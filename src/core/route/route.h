/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A route: one storage, one device, one direction; what each path found out about
 * it, and a ready plan for every class and effort. Made once, by penstock_prepare
 * or the first submit, never changed after, used until its storage closes; only where a
 * path had nothing to be tried on another takes its place when there is something. The
 * texts in it are those of reports, so it stays as long as one of them is not harvested.
 */
#ifndef PST_CORE_ROUTE_H
#define PST_CORE_ROUTE_H

#include "core/ops.h"
#include "core/request/plan.h"

#define PST_CLASSES 3
#define PST_EFFORTS 2

struct pst_route {
	struct penstock_storage *st;
	struct penstock_device *dev; /* which may close before the storage does */
	enum penstock_op op;
	struct pst_path_state paths[PST_PATHS_MAX];
	struct pst_plan plans[PST_CLASSES][PST_EFFORTS];
	_Atomic int write_proof[PST_PATHS_MAX]; /* -why of a write that did not arrive, 0: none */
	_Atomic uint32_t write_drives[PST_PATHS_MAX]; /* that one was read back from, a bit each */
	void *path_priv[PST_PATHS_MAX];		      /* the path's, freed by route_close */
	bool unproven;		   /* a path had nothing to be tried on, when the storage's */
	_Atomic uint64_t stamp;	   /* stamp was this */
	_Atomic uint64_t rests_ns; /* until when nothing is tried anew; 0: whenever it may help */
	uint64_t rest_ns;	   /* how long it was the last time */
	unsigned vain;		   /* trials that found nothing, but for the first */
	struct pst_route *older;   /* whose place this took: requests may have it still */
	char apart[64];		   /* what is above is read all the time */
	_Atomic unsigned refs;	   /* the storage's, and of reports that name it */
};

/* The route, made if need be (slow then). Serialised inside; any thread. */
int pst_route_get(struct penstock_storage *st, struct penstock_device *dev, enum penstock_op op,
		  struct pst_route **out, struct pst_err *err);

/* What keeps it from a class: the layer beneath a path that works, but with the CPU's help;
 * else what shuts the first path that such a device can have. Lives as long as it. */
const char *pst_route_why(const struct pst_route *route, enum penstock_class require);

/* In the child of a fork. */
void pst_routes_forked(void);

/* Gives up every route of a storage that closes. */
void pst_routes_drop(struct penstock_storage *st);
/* Gives back one reference; the last frees it. */
void pst_route_put(struct pst_route *route);

/* memory.c: device memory for a trial transfer, PST_SCRATCH_BYTES. What is given may be kept
 * for the next one, with what is in it. */
#define PST_SCRATCH_BYTES (64u << 10)
int pst_scratch_get(struct penstock_device *dev, void **out, struct pst_err *err);
void pst_scratch_put(struct penstock_device *dev, void *mem);

/* The trial transfer: canary.c. Runs path `index` on known bytes into scratch memory
 * and compares; sets states[index].proven, or usable = false with the reason. */
void pst_canary_read(struct pst_route *route, unsigned index);

/* Whole blocks of a written extent at or behind *off, at most max bytes of them. -ENODATA:
 * there are none. */
int pst_written_blocks(struct penstock_storage *st, uint64_t align, uint64_t max, uint64_t *off,
		       uint64_t *len);

/* Reads back what a write chunk carried, through host memory, unless all drives that it lies
 * on have delivered by this path before. 0: the same. */
int pst_canary_write(struct pst_chunk *chunk);

#endif
