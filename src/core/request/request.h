/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request inside the library: its segments, the spans made of them, and the counters that
 * its lanes share. It is an element of its queue's pool. Its life:
 *
 *	submit	segments -> spans -> one lane, or more if the path wants more
 *	lanes	claim chunks between `next` and `limit` and count what they moved
 *	phases	the lane that completes a phase's last byte begins the next one:
 *		body -> edges (writes only) -> sync (durable writes only) -> done
 *
 * The request completes when its last phase is done and no lane has it on a list any more. A
 * request that was cancelled or is past its deadline does not wait for those lists. The queue
 * reuses its element once it has been harvested and no lane lists it.
 */
#ifndef PST_CORE_REQUEST_H
#define PST_CORE_REQUEST_H

#include <stdatomic.h>

#include "core/ops.h"
#include "core/request/plan.h"

#define PST_LANES_MAX 32
#define PST_PRIORITIES 8

enum pst_phase {
	PST_PHASE_NEW,	 /* being prepared: no thread may begin or cancel it */
	PST_PHASE_ARMED, /* waits for its stream */
	PST_PHASE_BODY,
	PST_PHASE_EDGES,
	PST_PHASE_SYNC,
	PST_PHASE_DONE
};

/*
 * A contiguous range of storage that consecutive segments share. A request numbers the bytes
 * of its spans one after the other; chunks are claimed by these numbers. A rowwise span is one
 * segment whose rows are too far apart to read the gaps too: only the rows' bytes are numbered.
 */
struct pst_span {
	uint64_t off, len;
	uint64_t start; /* number of its first byte */
	struct pst_route *route;
	const struct pst_plan *plan;
	uint32_t seg_first, seg_count;
	bool rowwise;
	bool shared; /* segments overlap or leave gaps: it cannot move in place */
	bool edge;
};

/* A request as an element of one lane's list. */
struct pst_lane_entry {
	struct pst_request *req;
	struct pst_lane_entry *next;
	bool listed;	  /* on the lane's list; like `stalled` touched by the lane only */
	unsigned stalled; /* chunks claimed by this lane that wait for a slot */
};

/* What the owner of a request does at the two ends of its life. Any thread calls them. */
struct pst_req_hooks {
	/* The request has completed. The hook may hand it to the caller, so that it is gone
	 * when the hook returns. */
	void (*completed)(struct pst_request *req);
	/* No thread refers to the request any more: its element can be used again. */
	void (*released)(struct pst_request *req);
};

struct pst_request {
	struct penstock_queue *q;
	const struct pst_req_hooks *hooks;
	uint32_t index;		     /* in the queue's pool */
	_Atomic uint32_t generation; /* counts uses of the element; even: not in use */
	struct penstock_storage *st;
	struct pst_route *route; /* of the first span: the report describes its paths */
	struct pst_pump *pump;
	struct pst_lane *home_lane; /* the lane that counts it; NULL: none */
	bool alone;		    /* its caller's thread moves all of it */
	uint64_t other_devices;	    /* bit i: it uses device i, which is not the pump's */
	enum penstock_op op;
	enum penstock_class require;
	enum penstock_effort effort;
	unsigned flags, priority;
	unsigned losses; /* the storage's failed syncs when it was submitted */
	uint64_t deadline_ns;
	int forced;			 /* path index; -1: the plan decides */
	const struct pst_path_ops *wrap; /* starts chunks in their path's place, or NULL */
	uint64_t wrap_state[10];	 /* the wrapping path's arguments */
	void *user;
	penstock_done_fn *done;
	void *stream;
	struct penstock_late late;
	/* Of stream order: [0] is written by the stream, [1] waited for by it. */
	uint64_t *semaphores, semaphore_value;

	struct penstock_seg *segs;
	struct pst_span *spans;
	unsigned seg_count, span_count;
	uint64_t body, total; /* numbered bytes: without and with edges */

	_Atomic uint64_t next, limit;	/* first byte not claimed; end of what may be claimed */
	_Atomic uint64_t left;		/* bytes of this phase that are not complete */
	_Atomic uint64_t refs;		/* PST_HOLD and the like */
	_Atomic unsigned spread;	/* lanes that it was given to */
	_Atomic uint32_t residency_kib; /* length of the next residency query */
	_Atomic bool cancelled;		/* by the caller */
	_Atomic int failed;		/* first failure, -errno */
	_Atomic enum pst_phase phase;	/* changed by the lane that completes a phase */
	_Atomic bool sync_taken;	/* by the lane that makes it durable */
	struct pst_err err;		/* of the first failure */

	_Atomic uint64_t end_at; /* first storage byte that was not there */
	_Atomic uint64_t bytes, cpu_copied, dram_laid, chunks, retries;
	_Atomic uint64_t path_bytes[PST_PATHS_MAX];
	_Atomic unsigned path_why[PST_PATHS_MAX]; /* why chunks left or missed this path */
	_Atomic bool blind;			  /* its residency could not be queried */
	_Atomic(const char *) engine;
	uint64_t start_ns, end_ns;
	int64_t result;
	struct penstock_report report;

	struct pst_lane_entry entries[PST_LANES_MAX];
	struct pst_request *link; /* next on the free list or the completion list */
};

/*
 * The references to a request, in one word. A request can complete while a lane still lists
 * it, because a lane may hang in a system call for another request.
 *
 *	PST_HOLD	counts: one for its data until all phases are done, one for each lane
 *			that works on it, one for a thread that cancels it
 *	PST_LISTED	counts lanes that have it on a list: its element cannot be reused
 *	PST_SUBMITTED	from submit until it is harvested: likewise
 *	PST_ABANDONED	it was cancelled, or its deadline has passed
 *
 * It completes when no thread holds it and no lane lists it; if it is abandoned, as soon as
 * no thread holds it.
 */
#define PST_HOLD ((uint64_t)1)
#define PST_LISTED ((uint64_t)1 << 32)
#define PST_SUBMITTED ((uint64_t)1 << 62)
#define PST_ABANDONED ((uint64_t)1 << 63)
#define PST_HOLDS (PST_LISTED - 1)
#define PST_LISTS (PST_SUBMITTED - PST_LISTED)

/* Makes the request's id invalid: the caller has harvested it. */
static inline void pst_req_retire_id(struct pst_request *req)
{
	atomic_fetch_add_explicit(&req->generation, 1, memory_order_relaxed);
}

static inline bool pst_req_cancelled(struct pst_request *req)
{
	return atomic_load_explicit(&req->cancelled, memory_order_relaxed);
}

/* Whether it is a durable write of no bytes, which syncs what was written before. */
bool pst_req_only_syncs(const struct pst_request *req);
/* Lets lanes begin it, or poll its stream, and other threads cancel it. The caller holds or
 * lists it. */
void pst_req_open(struct pst_request *req);
/* The same for a request without a stream, or once the stream has arrived. */
void pst_req_open_phase(struct pst_request *req);

/* Whether its remaining bytes are not wanted any more, and why: cancelled or too late. */
bool pst_req_is_abandoned(struct pst_request *req, struct pst_err *err);

/* Records why a path was not used. The first reason stands. */
void pst_req_note(struct pst_request *req, unsigned path, enum penstock_why why);
/* Adds what a chunk has moved, and what that cost, to the report. */
void pst_req_count(struct pst_request *req, const struct pst_chunk *chunk);

/*
 * Counts completed bytes of the current phase. True: they were the last ones and another
 * phase is due. The caller, a lane, then puts the request on its list and calls
 * pst_req_begin_phase. Otherwise the request may have completed and be gone.
 */
bool pst_req_bytes_done(struct pst_request *req, uint64_t bytes);
void pst_req_begin_phase(struct pst_request *req);

/* Fails the request. Claims its unclaimed bytes, so that no lane begins them. The caller has
 * claimed bytes of this phase that are not complete. */
void pst_req_fail(struct pst_request *req, const struct pst_err *err);
/* The same for any thread. Does nothing if all bytes of the phase are claimed. */
void pst_req_abandon_rest(struct pst_request *req, const struct pst_err *err);
/* The same for a sync that no lane has started. */
void pst_req_abandon_sync(struct pst_request *req, const struct pst_err *err);

/* Takes a hold. False: the request has completed. */
bool pst_req_hold(struct pst_request *req);
/* Gives back references: PST_HOLD, PST_LISTED, their sum, or PST_SUBMITTED. */
void pst_req_put(struct pst_request *req, uint64_t refs);

/* Fills req->report. The harvesting thread calls it. */
void pst_req_report(struct pst_request *req);

#endif
