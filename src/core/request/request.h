/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request inside the library: its segments, the spans (contiguous storage ranges) made of them,
 * and the counters that its lanes (worker threads) share. It is an element of its queue's pool. Its
 * life:
 *
 *	submit	turns segments into spans and passes the request to one lane, which shares it
 *		with other lanes if the path needs more
 *	lanes	claim chunks between `next` and `limit`, and count the bytes that they moved
 *	phases	body -> edges (writes only) -> sync (durable writes only) -> done. The lane
 *		that completes a phase's last byte begins the next phase.
 *
 * The request completes when its last phase is done and no lane lists it any more. A request that
 * was cancelled or is past its deadline does not wait for those lists. The queue reuses the element
 * once the request has been harvested and no lane lists it.
 */
#ifndef PST_CORE_REQUEST_H
#define PST_CORE_REQUEST_H

#include <stdatomic.h>

#include "core/ops.h"
#include "core/request/plan.h"

#define PST_LANES_MAX 32
#define PST_PRIORITIES 8

enum pst_phase {
	PST_PHASE_NEW,	 /* being prepared, so no thread may start or cancel it */
	PST_PHASE_ARMED, /* waits until its CUDA stream reaches it */
	PST_PHASE_BODY,
	PST_PHASE_EDGES,
	PST_PHASE_SYNC,
	PST_PHASE_DONE
};

/*
 * A contiguous range of storage that consecutive segments of a request cover together. A request
 * numbers the bytes of its spans consecutively, and lanes claim chunks by these numbers. A rowwise
 * span consists of one segment with rows that are far apart. The gaps between its rows do not move,
 * and only the bytes of the rows are numbered.
 */
struct pst_span {
	uint64_t off, len;
	uint64_t start; /* index of the span's first byte among the bytes of the request */
	struct pst_route *route;
	const struct pst_plan *plan;
	uint32_t seg_first, seg_count;
	bool rowwise;
	/* True if the span's segments overlap or leave gaps, so that a transfer of the whole range
	 * cannot go to one buffer. Then no path may move the span directly: its bytes need a
	 * staging slot and a copy to each buffer. */
	bool shared;
	bool edge;	   /* an unaligned end of a write, written through the page cache */
	uint64_t stage_at; /* position of its first byte in the stage (lane/stage.h) */
};

/* A request's entry in the inbox or the list of one lane. Each lane that shares the request has an
 * entry of its own. */
struct pst_lane_entry {
	struct pst_request *req;
	struct pst_lane_entry *next;
	/* The entry is on the lane's own list. Only the lane's thread accesses this member and
	 * `stalled`. */
	bool listed;
	bool watch;	  /* the lane shall poll the request's stream */
	unsigned stalled; /* number of claimed chunks that wait for a slot */
};

/* Functions by which a request notifies its owner, a queue. Any thread may call them. */
struct pst_req_hooks {
	/* Called when the request has completed. The hook may hand it to the application at once,
	 * and then the struct may serve another request before the hook returns. */
	void (*completed)(struct pst_request *req);
	/* Called when no thread refers to the request any more, so that its struct can be
	 * reused. */
	void (*released)(struct pst_request *req);
};

struct pst_stage;
struct pst_request {
	struct penstock_queue *q;
	const struct pst_req_hooks *hooks;
	uint32_t index; /* position in the queue's pool */
	/* Incremented at submit and at harvest, so that an old request id does not match. An even
	 * number means that the struct is not in use. */
	_Atomic uint32_t generation;
	struct penstock_storage *st;
	/* Route of the first span; the report describes the paths of this route. */
	struct pst_route *route;
	struct pst_pump *pump;
	/* The lane to which the pump (the device's set of worker threads) passed the request first;
	 * NULL if there is none. */
	struct pst_lane *home_lane;
	bool alone; /* the caller's own thread moves all bytes */
	/* Bit i is set if the request has a segment on device i, which is not the device of
	 * `pump`. */
	uint64_t other_devices;
	enum penstock_op op;
	enum penstock_class require;
	enum penstock_effort effort;
	unsigned flags, priority;
	/* the storage's count of failed syncs when this request was submitted; if it has grown when
	 * the request ends, written bytes may be lost */
	unsigned losses;
	uint64_t deadline_ns;
	int forced; /* index of the path that the caller named; -1 if the plan decides */
	/* Path that wraps the path of the chunks, and starts the chunks in its place; for example,
	 * path fault, which injects errors. NULL if there is none. */
	const struct pst_path_ops *wrap;
	uint64_t wrap_state[10]; /* the wrapping path's arguments */
	void *user;
	penstock_done_fn *done;
	void *stream;
	struct penstock_late late;
	/* The stage of a stream-ordered request, which is its pinned memory (lane/stage.h); NULL
	 * for other requests. */
	struct pst_stage *stage;
	_Atomic bool stage_done; /* its CUDA stream may pass the request */
	/* The thread that has set stage_done has stopped using the stage. */
	_Atomic bool stage_left;
	/* The request's operations could not be queued on its stream, so the submit has failed. The
	 * queue reports no completion. */
	_Atomic bool retracted;

	struct penstock_seg *segs;
	struct pst_span *spans;
	unsigned seg_count, span_count, spans_max;
	/* Number of bytes without the edges of a write (its unaligned ends), and number of all
	 * bytes. */
	uint64_t body, total;

	/* `next`: index of the first byte that no lane has claimed. `limit`: index after the last
	 * byte that lanes may claim in this phase. */
	_Atomic uint64_t next, limit;
	/* Number of bytes of the current phase that are not complete. */
	_Atomic uint64_t left;
	_Atomic uint64_t refs;	 /* see PST_HOLD below */
	_Atomic unsigned spread; /* number of lanes that share the request */
	/* length in KiB of the next query whether bytes are in the page cache */
	_Atomic uint32_t residency_kib;
	/* Maximum length, in KiB, of the next chunk on the first path, if the plan uses several
	 * paths at the same time (mixed paths). */
	_Atomic uint32_t mixed_kib;
	_Atomic bool cancelled; /* the caller has cancelled the request */
	_Atomic int failed;	/* negative errno of its first failure; 0 if none */
	/* The current phase; the lane that completes it sets the next. */
	_Atomic enum pst_phase phase;
	_Atomic bool sync_taken; /* a lane has started the sync, or it was cancelled */
	struct pst_err err;	 /* code, reason and text of its first failure */

	/* Lowest storage offset of a byte that did not arrive, for example because the file ends
	 * before it; UINT64_MAX if all arrived. */
	_Atomic uint64_t end_at;
	_Atomic uint64_t bytes, cpu_copied, dram_laid, chunks, retries;
	_Atomic uint64_t path_bytes[PST_PATHS_MAX];
	/* For each path, the reason why a chunk left it or could not use it; PENSTOCK_WHY_NONE if
	 * there is none. */
	_Atomic unsigned path_why[PST_PATHS_MAX];
	_Atomic bool blind; /* for some bytes it is unknown whether they are cached */
	/* For each path, name of the engine that carried its last chunk; NULL if there is none. */
	_Atomic(const char *) path_engine[PST_PATHS_MAX];
	uint64_t start_ns, end_ns;
	int64_t result;
	bool wants_report; /* fill the report; if false, it is filled only if the request fails */
	struct penstock_report report;

	struct pst_lane_entry entries[PST_LANES_MAX];
	struct pst_request *link; /* next request in the free list or in the completion list */
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
 * A request completes when PST_HOLD and PST_LISTED are 0. An abandoned request completes as soon as
 * PST_HOLD is 0, because a lane that has it on its list may hang in a system call for another
 * request. The queue can reuse the struct when the first three are all 0.
 */
#define PST_HOLD ((uint64_t)1)
#define PST_LISTED ((uint64_t)1 << 32)
#define PST_SUBMITTED ((uint64_t)1 << 62)
#define PST_ABANDONED ((uint64_t)1 << 63)
#define PST_HOLDS (PST_LISTED - 1)
#define PST_LISTS (PST_SUBMITTED - PST_LISTED)

/* Makes the request's id invalid. Called at harvest. */
static inline void pst_req_retire_id(struct pst_request *req)
{
	atomic_fetch_add_explicit(&req->generation, 1, memory_order_relaxed);
}

static inline bool pst_req_cancelled(struct pst_request *req)
{
	return atomic_load_explicit(&req->cancelled, memory_order_relaxed);
}

/* Resets the request's counters, so that no byte counts as moved. Called before its submit, and
 * before each replay (execution) of a captured request. */
void pst_req_rewind(struct pst_request *req);
/* Returns whether the request is a durable write of no bytes, which syncs earlier writes. */
bool pst_req_only_syncs(const struct pst_request *req);
/* Makes the request known to other threads: after this call lanes may start it or poll its stream,
 * and other threads may cancel it. The caller must have a reference to it. */
void pst_req_open(struct pst_request *req);
/* Lets lanes claim bytes of the request's first phase. If the request is in stream order, its CUDA
 * stream must have reached it. */
void pst_req_open_phase(struct pst_request *req);

/* Returns whether the request was cancelled or is past its deadline. If so, fills `err` with the
 * reason. */
bool pst_req_is_abandoned(struct pst_request *req, struct pst_err *err);

/* Records why a path was not used for the request. Later reasons for the same path are ignored. */
void pst_req_note(struct pst_request *req, unsigned path, enum penstock_why why);
/* Records that the storage byte at offset `off` did not arrive. If several such offsets are
 * recorded, the lowest one remains. */
void pst_req_end_at(struct pst_request *req, uint64_t off);
/* Returns the result of a request whose bytes have all moved or failed: bytes or -errno. */
int64_t pst_req_result(struct pst_request *req);
/* Adds three numbers to the request's counters: the bytes that a chunk has moved, the bytes that
 * the CPU copied for it, and the bytes that were written to host memory for it. */
void pst_req_count(struct pst_request *req, const struct pst_chunk *chunk);

/*
 * Counts completed bytes of the current phase. Returns true if they were the last ones and
 * another phase follows. The caller, a lane, must then put the request on its list and call
 * pst_req_begin_phase. If the function returns false, the request may have completed and not
 * exist any more.
 */
__attribute__((warn_unused_result)) bool pst_req_bytes_done(struct pst_request *req,
							    uint64_t bytes);
/* Begins the phase that follows the one just completed: edges or sync. */
void pst_req_begin_phase(struct pst_request *req);
/* Like pst_req_bytes_done, for bytes after which no phase can follow: bytes of the last phase, or
 * bytes of a request that has failed. */
void pst_req_last_bytes_done(struct pst_request *req, uint64_t bytes);

/* Fails the request, and claims its unclaimed bytes, so that no lane starts them. The caller must
 * have claimed bytes of this phase that are not complete yet, so that the request cannot complete
 * meanwhile. */
void pst_req_fail(struct pst_request *req, const struct pst_err *err);
/* Does the same as pst_req_fail for a caller that has claimed no bytes. Any thread may call it.
 * Does nothing if all bytes of the phase are claimed. */
void pst_req_fail_unclaimed(struct pst_request *req, const struct pst_err *err);
/* Fails a request in phase PST_PHASE_SYNC, unless a lane has started its sync. Any thread with a
 * reference to the request may call it. */
void pst_req_fail_sync(struct pst_request *req, const struct pst_err *err);

/* Adds a reference PST_HOLD. Returns false, and adds none, if the request has completed. */
bool pst_req_hold(struct pst_request *req);
/* Drops references: PST_HOLD, PST_LISTED, their sum, or PST_SUBMITTED. The request may complete,
 * and its struct may be reused, before this function returns. */
void pst_req_put(struct pst_request *req, uint64_t refs);

/* Fills req->report. Only the harvesting thread calls it. */
void pst_req_report(struct pst_request *req);

#endif
