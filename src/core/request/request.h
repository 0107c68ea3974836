/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A request inside: its segments, the spans they were cut into, and the counters
 * that its lanes share. It lives in a place of its queue's pool. Life:
 *
 *	submit: cut into spans -> one lane -> (more lanes, if the path is wide)
 *	lanes: claim chunks off `next` until `limit`, add what happened
 *	the lane that ends a phase's last byte begins the next:
 *	body -> edges (writes only) -> sync (if durable) -> finished
 *
 * When all has ended and no lane has it on a list any more it goes on its queue's
 * completion list; if it was cancelled, or is too late, without waiting for those lists.
 * Its place is free when it is harvested and on none of them.
 */
#ifndef PST_CORE_REQUEST_H
#define PST_CORE_REQUEST_H

#include <stdatomic.h>

#include "core/ops.h"
#include "core/request/plan.h"

#define PST_LANES_MAX 32
#define PST_PRIORITIES 8

enum pst_phase {
	PST_PHASE_NEW,	 /* being made ready: nobody may begin it, nor end it */
	PST_PHASE_ARMED, /* waits for its stream */
	PST_PHASE_BODY,
	PST_PHASE_EDGES,
	PST_PHASE_SYNC,
	PST_PHASE_DONE
};

/*
 * A contiguous stretch of storage that belongs to consecutive segments; `start`
 * is its place in the request's own numbering of bytes, by which chunks are
 * claimed. A rowwise span is one segment whose rows lie too far apart to be worth
 * reading what is between: its numbering counts the rows' bytes only.
 */
struct pst_span {
	uint64_t off, len;
	uint64_t start;
	struct pst_route *route;
	const struct pst_plan *plan;
	uint32_t seg_first, seg_count;
	bool rowwise;
	bool shared; /* segments overlap, or leave gaps: cannot move in place */
	bool edge;
};

/* A request's place in one lane's list. */
struct pst_lane_entry {
	struct pst_request *req;
	struct pst_lane_entry *next;
	bool listed;	  /* the lane's, both */
	unsigned stalled; /* chunks claimed there that wait for room */
};

struct pst_request {
	struct penstock_queue *q;
	uint32_t index;
	_Atomic uint32_t generation; /* which use of the place this is; even: none */
	struct penstock_storage *st;
	struct pst_route *route; /* of the first span: what the report says of paths */
	struct pst_pump *pump;
	struct pst_lane *home_lane; /* which counts it, NULL: none */
	bool alone;		    /* its caller's thread moves all of it */
	uint64_t other_devices;	    /* bit i: it has parts on device i, which is not the pump's */
	enum penstock_op op;
	enum penstock_class require;
	enum penstock_effort effort;
	unsigned flags, priority;
	unsigned losses; /* the storage's, when it came */
	uint64_t deadline_ns;
	int forced;			 /* path index, -1: the plan decides */
	const struct pst_path_ops *wrap; /* starts chunks in their path's place, or NULL */
	uint64_t wrap_state[10];	 /* its arguments */
	void *user;
	penstock_done_fn *done;
	void *stream;
	struct penstock_late late;
	uint64_t *semaphores, semaphore_value; /* of stream order: front, behind */

	struct penstock_seg *segs;
	struct pst_span *spans;
	unsigned seg_count, span_count;
	uint64_t body, total; /* numbered bytes: without and with edges */

	_Atomic uint64_t next, limit;	/* claimed up to; may be claimed up to */
	_Atomic uint64_t left;		/* of this phase, not yet ended */
	_Atomic uint64_t refs;		/* PST_HOLD and the like */
	_Atomic unsigned spread;	/* lanes that have had it */
	_Atomic uint32_t residency_kib; /* residency: KiB worth asking for at once */
	_Atomic bool cancelled;		/* by pst_req_cancel */
	_Atomic int failed;		/* first failure, -errno */
	_Atomic enum pst_phase phase;	/* changed by the lane that ends one */
	_Atomic bool sync_taken;	/* by the lane that makes it durable */
	struct pst_err err;		/* of the first failure */

	_Atomic uint64_t end_at; /* first storage byte that was not there */
	_Atomic uint64_t bytes, cpu_copied, dram_laid, chunks, retries;
	_Atomic uint64_t path_bytes[PST_PATHS_MAX];
	_Atomic unsigned path_why[PST_PATHS_MAX]; /* why chunks left or missed this path */
	_Atomic bool blind;			  /* nobody says what the page cache holds */
	_Atomic(const char *) engine;
	uint64_t start_ns, end_ns;
	int64_t result;
	struct penstock_report report;

	struct pst_lane_entry entries[PST_LANES_MAX];
	struct pst_request *link; /* free list or completion list */
};

/*
 * Who has to do with a request, in one word. To end and to be forgotten are two things: a
 * lane may hang in a call for one request with others on its lists.
 *
 *	holds	its data until all of them have ended, a lane as long as it works on it,
 *		who ends it early
 *	names	each lane that has it on a list: its place stays
 *	use	from submit until it is harvested: the same
 *	over	it was asked to end early
 *
 * It ends when nobody holds nor names it, or if it is over, when nobody holds it.
 */
#define PST_HOLD ((uint64_t)1)
#define PST_LISTED ((uint64_t)1 << 32)
#define PST_SUBMITTED ((uint64_t)1 << 62)
#define PST_ABANDONED ((uint64_t)1 << 63)
#define PST_HOLDS (PST_LISTED - 1)
#define PST_LISTS (PST_SUBMITTED - PST_LISTED)

/* Ends a use of its place, so that ids name that and not the place. */
static inline void pst_req_retire_id(struct pst_request *req)
{
	atomic_fetch_add_explicit(&req->generation, 1, memory_order_relaxed);
}

static inline bool pst_req_cancelled(struct pst_request *req)
{
	return atomic_load_explicit(&req->cancelled, memory_order_relaxed);
}

/* What is known of unknown residency: trial.c. SLOW: the last chunk was, those before it
 * were not. */
enum pst_residency_probe {
	PST_PROBE_NONE,
	PST_PROBE_RUNNING,
	PST_PROBE_WARM,
	PST_PROBE_SLOW,
	PST_PROBE_COLD,
};

/* admit.c: what is given into a place of a queue, or why not. */
int pst_req_admit(struct pst_request *req, const struct penstock_req *given, struct pst_err *err);
/* Cuts the request (anew) and refuses what its class forbids. */
int pst_req_make_spans(struct pst_request *req, struct pst_err *err);
/* A write of nothing, which makes durable what was written before. */
bool pst_req_only_syncs(const struct pst_request *req);
/* From here on lanes may begin it, or watch its stream, and others may end it. Who calls it
 * holds or names it. */
void pst_req_open(struct pst_request *req);
/* The same without a stream, or once that has come. */
void pst_req_open_phase(struct pst_request *req);

/* cut.c: the caller's segment `i`, and its device if it names none: then 1. */
int pst_seg_copy_in(struct penstock_seg *out, const struct penstock_req *from, unsigned i,
		    struct pst_err *err);
/* Segments into spans. */
int pst_spans_make(struct pst_request *req, unsigned spans_max, struct pst_err *err);
unsigned pst_span_at(const struct pst_request *req, uint64_t pos);
/* overlap.c: -EINVAL if two segments of a checked write have a storage byte in common.
 * `room`, as aligned as any struct, is for 24 bytes a segment. */
int pst_spans_overlap(const struct pst_request *req, void *room, size_t room_len,
		      struct pst_err *err);
/* How much behind a write's span may be written along with its tail: the segment's room,
 * where nobody can own those bytes (the end of an object that is ours until commit and
 * is cut to its length then), else nothing. */
uint64_t pst_span_slack(const struct pst_request *req, const struct pst_span *span);

/* A rectangle of device memory that storage bytes [off + at, ...) belong to. */
struct pst_part {
	struct penstock_device *dev;
	char *mem;
	uint64_t mem_pitch;
	uint64_t at, pitch; /* from the start of the range asked for */
	uint64_t row_len, rows;
	uint64_t slack; /* behind it, if it is its segment's end */
};
typedef int pst_part_fn(void *arg, const struct pst_part *part);

/* Every part of the span's segments inside storage range [off, off + len). */
int pst_span_parts(const struct pst_request *req, const struct pst_span *span, uint64_t off,
		   uint64_t len, pst_part_fn *fn, void *arg);

/* The single part that begins at storage offset `off` and where it ends, for paths
 * that move in place. -EINVAL if the span is shared. */
int pst_span_part_at(const struct pst_request *req, const struct pst_span *span, uint64_t off,
		     struct pst_part *out);

/* Does a chunk of a read that ends at `off` leave a single byte of a longer piece, on either
 * side of it? */
bool pst_span_isolates_byte(const struct pst_request *req, const struct pst_span *span,
			    uint64_t off);

/* claim.c: the next chunk for this lane, or NULL when none is left (or on a refusal,
 * which fails the request). */
struct pst_chunk *pst_claim(struct pst_request *req, struct pst_lane *lane);
/* trial.c: what the page cache holds, where it cannot be asked: UNKNOWN, what is known of
 * others there; the path that tells (-1: none of the plan); is a chunk of `len` bytes to be
 * tried by it now (then it is); so many went by without. */
enum pst_residency pst_residency_verdict(const struct penstock_storage *st);
bool pst_residency_sure(const struct penstock_storage *st); /* WARM, and the last one too */
int pst_residency_probe_path(const struct pst_plan *plan);
bool pst_residency_probe_begin(struct penstock_storage *st, uint64_t len);
void pst_residency_probe_skipped(struct penstock_storage *st, uint64_t len);
/* The call of a chunk with timed_ns has moved so many bytes: where they were. */
void pst_residency_probe_end(struct pst_chunk *chunk, int64_t bytes);
/* Whether nobody waits for the rest any more, and why: cancelled, or too late. */
bool pst_req_is_abandoned(struct pst_request *req, struct pst_err *err);
/* Then what is not claimed is given up. */
bool pst_claim_abandon(struct pst_request *req, struct pst_lane *lane);
/* Can the span be carried in full by its plan? -EOPNOTSUPP: alignment forbids. */
int pst_claim_check(const struct pst_request *req, const struct pst_span *span,
		    struct pst_err *err);
/* A path for the front of a chunk, `next`: behind its own in its list, after a failure;
 * and how much of it that takes as one. -1: none. */
int pst_claim_retry(const struct pst_chunk *chunk, bool next, uint64_t *len, uint32_t *pad);

/* The lowest storage offset among the request's bytes from `pos` on, which is below total. */
uint64_t pst_spans_lowest(const struct pst_request *req, uint64_t pos);

/* finish.c */
/* It has failed, and what nobody has claimed is nobody's. Called by whom has bytes of this
 * phase in hand. */
void pst_req_fail(struct pst_request *req, struct pst_lane *lane, const struct pst_err *err);
/* The same, by who may have none, on any thread (`lane` NULL): nothing happens where all of
 * the phase is claimed. */
void pst_req_abandon_rest(struct pst_request *req, struct pst_lane *lane,
			  const struct pst_err *err);
void pst_req_count(struct pst_request *req, const struct pst_chunk *chunk);
void pst_req_bytes_done(struct pst_request *req, struct pst_lane *lane, uint64_t bytes);
/* A hold, if it has not ended. */
bool pst_req_hold(struct pst_request *req);
/* Gives back a hold, a name, or both, or the use. */
void pst_req_put(struct pst_request *req, uint64_t what);
/* Asks that one use of its place ends early. Any thread, also behind its end. */
void pst_req_cancel(struct pst_request *req, uint32_t generation);
/* If its deadline has passed: the same, and 0. Else the deadline, 0: none. */
uint64_t pst_req_expire(struct pst_request *req);
void pst_req_note(struct pst_request *req, unsigned path, enum penstock_why why);
void pst_req_report(struct pst_request *req);

#endif
