/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stage of a stream-ordered request: pinned host memory through which all bytes of the request
 * pass. For a read, lanes (worker threads) fill the stage, and operations that were queued on the
 * caller's stream at submit copy from it to the device. A write goes the other way. So after
 * submit, no lane calls the driver for the request. This matters because a thread of the
 * application may hold the driver's lock until the stream is idle.
 *
 * The bytes of the request have places in the stage, which are numbered from 0. A place and its
 * storage offset are equal modulo the storage's block length, so O_DIRECT works. The places are cut
 * into pieces of equal length. The operations for one piece are a round. The stage's memory holds n
 * pieces at a time: piece k uses the memory that piece k - n used before. Lanes and the stream
 * synchronise through these words in pinned memory:
 *
 *	arrived		the stream stores 1 when it reaches the request, unless the request may
 *			start before that (flag PENSTOCK_R_EARLY), or has started at submit
 *	released	lanes store it, and it only grows. Before the operations of round k, the
 *			stream waits until it is at least k + 1. After the last round of a write,
 *			the stream waits until it is at least rounds + 1. A wait is not queued if
 *			the word has the value at submit.
 *	passed		after the operations of each of these steps, the stream stores the value of
 *			the step's wait, whether or not the wait was queued
 *
 * The operations of a captured request are nodes of a CUDA graph, and each launch of the graph
 * executes them again: this is a replay. A stage serves one replay at a time, and the words then
 * differ in three points:
 *
 *	arrived		when a replay reaches the request, the stream sets `released` and `passed`
 *			to 0, and then adds 1 to `arrived`
 *	passed		not stored after the last wait
 *	left		after the last wait and the operations that follow it, the stream adds 1
 *
 * Two executables of one graph may run at the same time. Then `arrived` is too high for the number
 * of replays that lanes have started. Lanes detect this before they store a result, and let both
 * replays pass with -EBUSY.
 */
#ifndef PST_CORE_STAGE_H
#define PST_CORE_STAGE_H

#include <stdatomic.h>

#include "core/request/request.h"
#include "core/request/spans.h"

#define PST_STAGE_ROUNDS_MAX 128u
/* A value of the words `passed` and `released` that is greater than the number of any round. */
#define PST_STAGE_PASSED_ALL (PST_STAGE_ROUNDS_MAX + 2)

/* The words in pinned memory that lanes and the GPU's stream share. The words that lanes store and
 * the words that the stream stores are on different cache lines. */
struct pst_stage_words {
	uint64_t released;
	uint64_t unused[7];
	uint64_t arrived, passed, left;
	uint64_t unused_too[5];
};

struct pst_stage {
	/* Next stage in a list. A stage is on one of three lists: of free stages, of stages whose
	 * stream has yet to pass them, or of the requests whose streams a lane polls. */
	struct pst_stage *next;
	struct pst_request *req;
	struct pst_stage_words *words;
	char *mem; /* memory of the stage, `pieces` pieces long */
	uint64_t piece_bytes;
	unsigned pieces, rounds;
	/* The value that the stream stores in `passed` when it has passed the request. */
	_Atomic unsigned last;
	/* True if a GPU kernel makes the copies of a round. The kernel reads the addresses of the
	 * copies when it runs, because they are not known at submit. If false, the copies were
	 * queued on the stream at submit. */
	bool by_kernel;
	/* For copies by the GPU kernel: the list of rounds, and the list of their copies. Both
	 * lists are in pinned memory. */
	struct pst_stream_round *round;
	struct pst_stream_copy *copies;
	unsigned copies_used, copies_max;
	/* For each round: number of bytes that lanes have not moved yet. */
	_Atomic uint64_t left[PST_STAGE_ROUNDS_MAX];
	/* Number of rounds that are complete, counted from round 0 up to the first one that is not.
	 * A round is the device's operations for one piece. */
	_Atomic unsigned complete;
	/* True while a thread counts complete rounds; then no other thread counts them. */
	_Atomic bool counting;
	/* Number of the stage's latest request. All requests of the device that take a stage are
	 * numbered from 1, in this order. */
	_Atomic uint64_t turn;
	/* The value of `turn` for which a later read of the stream may take over the memory of this
	 * stage. It is stored when all operations of the stage's request are on the stream, if the
	 * request is a read whose copies were queued at submit. */
	_Atomic uint64_t lends;
	/* The stage whose memory this stage has taken over (the lender), and the value of its
	 * `turn` then. The lender's request needs the memory until the stream has passed that
	 * request. NULL if the memory was free. */
	const struct pst_stage *lender;
	uint64_t lender_turn;
	/* Whether the lane that polls the stage must still clear the stage's memory. The stage's
	 * request has ended, but at that time the lender's request needed the memory. As soon as no
	 * other thread uses the stage's request, the lane drops it, and `req` becomes NULL. */
	_Atomic bool clear_due;
	/* For a captured request: the number of replays (executions by graph launches) that lanes
	 * have started, and whether replays have overlapped. */
	bool captured;
	_Atomic uint64_t replays;
	_Atomic bool overlapped;
	/* Where streams.c has allocated the stage's memory: the index of a block of memory, and the
	 * first unit and the number of units in that block. */
	unsigned block;
	size_t at, len;
	/* For streams.c: the stream, and the maximum number of operations of the GPU that the
	 * request queues on it. Not set for a captured request. */
	const void *stream;
	unsigned ops;
	/* True if the device's streams had yet to pass other requests when the stage's request was
	 * submitted. Captured requests do not count. */
	bool crowded;
};

/* Assigns a position in the stage to every span (contiguous storage range) of the request, for a
 * storage with blocks of `block` bytes. Returns the number of bytes that the spans occupy in the
 * stage. */
uint64_t pst_stage_place(struct pst_request *req, uint64_t block);
/* Sets the counters of the request's rounds to their start values, after pst_stage_place. For a
 * write whose copies a GPU kernel makes, also lists the copies of all rounds. */
void pst_stage_start(struct pst_request *req);

/* Called for one part of a round. A part is a rectangle of device memory, and its bytes are at
 * `mem` in the stage. */
typedef int pst_stage_part_fn(void *arg, const struct pst_part *part, char *mem);
/* Calls fn for each part of a round. If fn returns a value other than 0, stops and returns it. */
int pst_stage_parts(struct pst_request *req, unsigned round, pst_stage_part_fn *fn, void *arg);

/* Returns how many bytes of the request, from `place` on, are in the same piece of the stage. */
uint64_t pst_stage_room(const struct pst_request *req, const struct pst_place *place);
/* Returns the stage memory for the bytes of a chunk from storage offset `off` on. `off` is at most
 * one block before the chunk. Returns NULL if the chunk must wait: for a read until the stream has
 * emptied the memory, for a write until the stream has filled it. */
char *pst_stage_memory(const struct pst_chunk *chunk, uint64_t off);
/* Counts the bytes of a completed chunk. If they complete a round (the bytes of one piece of the
 * stage), lets the stream continue. */
void pst_stage_moved(const struct pst_chunk *chunk);
/* Stores the request's result for the application, and lets the stream pass the request. Does
 * nothing if another call has done so. Any thread that has a reference to the request may call it
 * after all phases of the request are done. If the stage's memory must be cleared first, but an
 * earlier request still uses it, leaves the rest to pst_stage_finish_later. */
void pst_stage_finish(struct pst_request *req);
/* Does what pst_stage_finish has left for a stage with clear_due, if no earlier request uses the
 * memory any more, or if the device has failed (`broken`). Returns whether it is done. `lane` is
 * the lane that polls the stage, and calls this function. */
bool pst_stage_finish_later(struct pst_stage *stage, struct pst_lane *lane, bool broken);

/* Called after replays (executions of a captured request by graph launches) have overlapped. Lets
 * all of them pass without a copy, and stores -EBUSY as their result. It must be called until it
 * returns true, which means that all of them have passed. */
bool pst_stage_part(struct pst_request *req);

/* Returns how many replays (executions by graph launches) have reached the captured request. */
static inline uint64_t pst_stage_arrivals(const struct pst_stage *stage)
{
	return __atomic_load_n(&stage->words->arrived, __ATOMIC_ACQUIRE);
}

/* Returns whether the stream has reached the request, or passed it. */
static inline bool pst_stage_arrived(const struct pst_stage *stage)
{
	return __atomic_load_n(&stage->words->arrived, __ATOMIC_ACQUIRE) ||
	       __atomic_load_n(&stage->words->passed, __ATOMIC_ACQUIRE);
}

static inline bool pst_stage_passed(const struct pst_stage *stage)
{
	return __atomic_load_n(&stage->words->passed, __ATOMIC_ACQUIRE) >=
	       atomic_load_explicit(&stage->last, memory_order_relaxed);
}

/* Returns whether only this stage's request uses the stage's memory. If the stage has taken over
 * its memory, that is so as soon as the stream has passed the request of the lender.
 *
 * The lender may be freed and taken again at any moment. Its `turn` changes only after the stream
 * has passed the request, and it never changes back. So the result is true only if the stream has
 * passed the request, even if the words of the lender belong to its next request already. */
static inline bool pst_stage_is_vacated(const struct pst_stage *stage)
{
	const struct pst_stage *lender = stage->lender;

	return !lender ||
	       atomic_load_explicit(&lender->turn, memory_order_acquire) != stage->lender_turn ||
	       pst_stage_passed(lender);
}

/* Returns whether lanes may start the request before its stream reaches it, because it has the flag
 * PENSTOCK_R_EARLY. Its stage must have room for all of its bytes. Otherwise its chunks would wait
 * for the stream and block other requests, for which the stream may be waiting. */
static inline bool pst_stage_is_early(const struct pst_stage *stage)
{
	return stage->req->flags & PENSTOCK_R_EARLY && stage->rounds <= stage->pieces;
}

/* Returns whether the request is an early read that was submitted while other stream-ordered
 * requests of the device were in flight. */
static inline bool pst_stage_is_burst(const struct pst_stage *stage)
{
	return stage->crowded && pst_stage_is_early(stage);
}

#endif
