/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request inside the library: its segments, the spans made of them, and the counters that
 * its lanes share. It is an element of its queue's pool. Its life:
 *
 *	submit	turns segments into spans and passes the request to one lane, which shares it
 *		with other lanes if the path needs more
 *	lanes	claim chunks between `next` and `limit`, and count the bytes that they moved
 *	phases	body -> edges (writes only) -> sync (durable writes only) -> done. The lane
 *		that completes a phase's last byte begins the next phase.
 *
 * The request completes when its last phase is done and no lane lists it any more. A request
 * that was cancelled or is past its deadline does not wait for those lists. The queue reuses
 * the element once the request has been harvested and no lane lists it.
 */
#ifndef PST_CORE_REQUEST_H
#define PST_CORE_REQUEST_H

#include <stdatomic.h>

#include "core/ops.h"
#include "core/request/plan.h"

#define PST_LANES_MAX 32
#define PST_PRIORITIES 8

enum pst_phase {
	PST_PHASE_NEW,	 /* being prepared: no thread may start or cancel it */
	PST_PHASE_ARMED, /* waits until its stream reaches it */
	PST_PHASE_BODY,
	PST_PHASE_EDGES,
	PST_PHASE_SYNC,
	PST_PHASE_DONE
};

/*
 * A contiguous range of storage that consecutive segments share. A request numbers the bytes
 * of its spans consecutively, and lanes claim chunks by these numbers. A rowwise span is one
 * segment whose rows are too far apart to move the gaps as well. Only the bytes of its rows
 * are numbered.
 */
struct pst_span {
	uint64_t off, len;
	uint64_t start; /* number of its first byte */
	struct pst_route *route;
	const struct pst_plan *plan;
	uint32_t seg_first, seg_count;
	bool rowwise;
	bool shared; /* segments overlap or leave gaps: it cannot move in place */
	bool edge;   /* an unaligned end of a write, written through the page cache */
};

/* A request as an element of one lane's list. */
struct pst_lane_entry {
	struct pst_request *req;
	struct pst_lane_entry *next;
	bool listed;	  /* on the lane's list. Only the lane accesses it, and `stalled`. */
	unsigned stalled; /* chunks that this lane has claimed and that wait for a slot */
};

/* Functions by which a request notifies its owner, a queue. Any thread may call them. */
struct pst_req_hooks {
	/* The request has completed. The hook may pass it to the caller, so the element may be
	 * in use for another request when the hook returns. */
	void (*completed)(struct pst_request *req);
	/* No thread refers to the request any more. Its element can be reused. */
	void (*released)(struct pst_request *req);
};

struct pst_request {
	struct penstock_queue *q;
	const struct pst_req_hooks *hooks;
	uint32_t index;		     /* position in the queue's pool */
	_Atomic uint32_t generation; /* raised at submit and at harvest; even: not in use */
	struct penstock_storage *st;
	struct pst_route *route; /* of the first span: the report describes its paths */
	struct pst_pump *pump;
	struct pst_lane *home_lane; /* the pump's lane that it was first passed to; NULL: none */
	bool alone;		    /* the caller's own thread moves all of it */
	uint64_t other_devices;	    /* bit i: it also uses device i, not the pump's device */
	enum penstock_op op;
	enum penstock_class require;
	enum penstock_effort effort;
	unsigned flags, priority;
	unsigned losses; /* the storage's count of failed syncs at submit */
	uint64_t deadline_ns;
	int forced; /* index of the path that the caller named; -1: the plan decides */
	const struct pst_path_ops *wrap; /* wraps the chunks' path and starts them; NULL: none */
	uint64_t wrap_state[10];	 /* the wrapping path's arguments */
	void *user;
	penstock_done_fn *done;
	void *stream;
	struct penstock_late late;
	/* Stream-ordered requests: the stream writes [0] and waits for [1]. Else NULL. */
	uint64_t *semaphores, semaphore_value;

	struct penstock_seg *segs;
	struct pst_span *spans;
	unsigned seg_count, span_count;
	uint64_t body, total; /* number of its bytes: without edges, with edges */

	_Atomic uint64_t next,
		limit;		 /* first byte not claimed; end of the bytes that may be claimed */
	_Atomic uint64_t left;	 /* bytes of this phase that are not complete */
	_Atomic uint64_t refs;	 /* see PST_HOLD below */
	_Atomic unsigned spread; /* lanes that share it */
	_Atomic uint32_t residency_kib; /* length of the next residency query, in KiB */
	_Atomic bool cancelled;		/* by the caller */
	_Atomic int failed;		/* first failure, -errno */
	_Atomic enum pst_phase phase;	/* changed by the lane that completes a phase */
	_Atomic bool sync_taken; /* a lane has started the sync, or a thread has abandoned it */
	struct pst_err err;	 /* of the first failure */

	_Atomic uint64_t end_at; /* offset of the first storage byte that did not arrive */
	_Atomic uint64_t bytes, cpu_copied, dram_laid, chunks, retries;
	_Atomic uint64_t path_bytes[PST_PATHS_MAX];
	_Atomic unsigned
		path_why[PST_PATHS_MAX]; /* why chunks left this path or could not use it */
	_Atomic bool blind;		 /* its residency could not be queried */
	_Atomic(const char *) engine;	 /* name of the engine that carried its last chunk */
	uint64_t start_ns, end_ns;
	int64_t result;
	bool wants_report; /* false: the report is filled only if the request fails */
	struct penstock_report report;

	struct pst_lane_entry entries[PST_LANES_MAX];
	struct pst_request *link; /* next on the free list or the completion list */
};

/*
 * The references to a request are fields of one atomic integer.
 *
 *	PST_HOLD	a counter: one for the data until all phases are done, one for each
 *			lane that works on the request, one for each thread that cancels it.
 *	PST_LISTED	a counter of lanes that have the request on a list
 *	PST_SUBMITTED	a flag, set from submit until the request is harvested
 *	PST_ABANDONED	a flag: the request was cancelled, or its deadline has passed
 *
 * A request completes when no thread holds it and no lane lists it. An abandoned request
 * completes as soon as no thread holds it, because a lane that lists it may hang in a system
 * call for another request. The element can be reused when the first three are all 0.
 */
#define PST_HOLD ((uint64_t)1)
#define PST_LISTED ((uint64_t)1 << 32)
#define PST_SUBMITTED ((uint64_t)1 << 62)
#define PST_ABANDONED ((uint64_t)1 << 63)
#define PST_HOLDS (PST_LISTED - 1)
#define PST_LISTS (PST_SUBMITTED - PST_LISTED)

/* Makes the request's id invalid, at harvest. */
static inline void pst_req_retire_id(struct pst_request *req)
{
	atomic_fetch_add_explicit(&req->generation, 1, memory_order_relaxed);
}

static inline bool pst_req_cancelled(struct pst_request *req)
{
	return atomic_load_explicit(&req->cancelled, memory_order_relaxed);
}

/* Whether the request is a durable write of no bytes, which syncs earlier writes. */
bool pst_req_only_syncs(const struct pst_request *req);
/* Opens the request: lanes may start it or poll its stream, and other threads may cancel it.
 * The caller must have a reference to it. */
void pst_req_open(struct pst_request *req);
/* Opens the first phase of a request without a stream, or of one that its stream has reached. */
void pst_req_open_phase(struct pst_request *req);

/* Whether the request was cancelled or is past its deadline, with the reason in `err`. */
bool pst_req_is_abandoned(struct pst_request *req, struct pst_err *err);

/* Records why a path was not used. Only the first reason is kept. */
void pst_req_note(struct pst_request *req, unsigned path, enum penstock_why why);
/* Adds the bytes that a chunk has moved, and their cost, to the request's counters. */
void pst_req_count(struct pst_request *req, const struct pst_chunk *chunk);

/*
 * Counts completed bytes of the current phase. Returns true if they were the last ones and
 * another phase follows. The caller, a lane, must then put the request on its list and call
 * pst_req_begin_phase. After false the request may have completed and be gone.
 */
__attribute__((warn_unused_result)) bool pst_req_bytes_done(struct pst_request *req,
							    uint64_t bytes);
/* Begins the next phase: edges or sync. */
void pst_req_begin_phase(struct pst_request *req);
/* The same for bytes after which no phase follows: those of the last phase, or of a request that
 * has failed. */
void pst_req_last_bytes_done(struct pst_request *req, uint64_t bytes);

/* Fails the request, and claims its unclaimed bytes, so that no lane starts them. The caller
 * must have claimed bytes of this phase that are not complete. */
void pst_req_fail(struct pst_request *req, const struct pst_err *err);
/* Does the same for a caller without claimed bytes, on any thread. Does nothing if all bytes of
 * the phase are claimed. */
void pst_req_fail_unclaimed(struct pst_request *req, const struct pst_err *err);
/* Fails a request in phase SYNC whose sync no lane has started. Any thread that holds it. */
void pst_req_fail_sync(struct pst_request *req, const struct pst_err *err);

/* Adds a hold. Returns false if the request has completed. */
bool pst_req_hold(struct pst_request *req);
/* Drops references: PST_HOLD, PST_LISTED, their sum, or PST_SUBMITTED. The request may complete,
 * or be reused, before this returns. */
void pst_req_put(struct pst_request *req, uint64_t refs);

/* Fills req->report. Only the harvesting thread calls it. */
void pst_req_report(struct pst_request *req);

#endif
