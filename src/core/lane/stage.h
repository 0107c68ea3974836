/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The stage of a stream-ordered request: pinned host memory through which all bytes of the request
 * pass. For a read, lanes fill the stage, and operations that were queued on the caller's stream at
 * submit copy from it to the device. A write goes the other way. So after submit, no lane calls the
 * driver for the request. This matters because a thread of the application may hold the driver's
 * lock until the stream is idle.
 *
 * The bytes of the request have places in the stage, which are numbered from 0. A place and its
 * storage offset have the same remainder by the storage's block length, so O_DIRECT works. The
 * places are cut into pieces of equal length. The operations for one piece are a round. The stage's
 * memory holds n pieces at a time: piece k uses the memory that piece k - n used before. Core and
 * the stream tell each other how far they are through words in pinned memory.
 *
 *	arrived		the stream stores 1 when it reaches the request
 *	released	lanes store it, and it only grows. Before the operations of round k, the
 *			stream waits until it is at least k + 1. After the last round of a write,
 *			the stream waits until it is at least rounds + 1.
 *	passed		after each of these waits and the operations that follow it, the stream
 *			stores the value that it has waited for
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

/* The words that core and a stream share, each on a cache line of the thread that stores it. */
struct pst_stage_words {
	uint64_t released;
	uint64_t unused[7];
	uint64_t arrived, passed, left;
	uint64_t unused_too[5];
};

struct pst_stage {
	/* Next stage in a list: of free stages, of stages whose stream has yet to pass them, or of
	 * the requests that a lane watches. */
	struct pst_stage *next;
	struct pst_request *req;
	struct pst_stage_words *words;
	char *mem; /* memory of the stage; it holds `pieces` pieces */
	uint64_t piece_bytes;
	unsigned pieces, rounds;
	/* The value that the stream stores in `passed` when it has passed the request. */
	_Atomic unsigned last;
	/* A kernel executes the copies of a round. It reads their addresses when it runs, because
	 * they are not known at submit. If false, the copies were queued at submit. */
	bool by_kernel;
	/* For copies by the kernel: the rounds, and their copies. Both are in pinned memory. */
	struct pst_stream_round *round;
	struct pst_stream_copy *copies;
	unsigned copies_used, copies_max;
	/* For each round: number of bytes that lanes have yet to move. */
	_Atomic uint64_t left[PST_STAGE_ROUNDS_MAX];
	/* Number of rounds that are complete, from round 0 on: a round that is complete before an
	 * earlier one does not count yet. */
	_Atomic unsigned complete;
	/* True while a thread counts complete rounds; then no other thread counts them. */
	_Atomic bool counting;
	uint64_t turn; /* number of requests that have used the stage so far */
	/* For a captured request: number of replays that lanes have started, and whether replays
	 * have overlapped. */
	bool captured;
	_Atomic uint64_t replays;
	_Atomic bool overlapped;
	/* The memory that streams.c has allocated for the stage: index of the block, and its first
	 * unit and number of units in the block. */
	unsigned block;
	size_t at, len;
};

/* Gives every span of the request its place in the stage, for blocks of `block` bytes. Returns the
 * number of places. */
uint64_t pst_stage_place(struct pst_request *req, uint64_t block);
/* Starts to count the rounds of a request whose spans have their places. For a write by the
 * kernel, makes the lists of copies of all rounds. */
void pst_stage_start(struct pst_request *req);

/* Called for one part of a round, whose bytes are at `mem` in the stage. */
typedef int pst_stage_part_fn(void *arg, const struct pst_part *part, char *mem);
/* Calls fn for each part of a round. If fn returns a value other than 0, stops and returns it. */
int pst_stage_parts(struct pst_request *req, unsigned round, pst_stage_part_fn *fn, void *arg);

/* Returns how many bytes, from this place on, lie in the same piece. */
uint64_t pst_stage_room(const struct pst_request *req, const struct pst_place *place);
/* Returns the memory for the bytes of a chunk from storage offset `off` on, where `off` is at most
 * one block before the chunk. Returns NULL if the chunk must wait until the stream has made the
 * memory free (read) or has filled it (write). */
char *pst_stage_memory(const struct pst_chunk *chunk, uint64_t off);
/* Counts the bytes of a completed chunk. If they complete a round, lets the stream continue. */
void pst_stage_moved(const struct pst_chunk *chunk);
/* Stores the request's result for the application, and lets the stream pass the request. Does
 * nothing if this has been done. Any thread may call it that holds the request, after all phases of
 * the request are done. */
void pst_stage_finish(struct pst_request *req);

/* Ends the overlap of replays step by step: lets all of them pass without a copy, and stores -EBUSY
 * as their result. Called until it returns true, which means that all of them have passed. */
bool pst_stage_part(struct pst_request *req);

/* Returns how many replays have reached the captured request. */
static inline uint64_t pst_stage_arrivals(const struct pst_stage *stage)
{
	return __atomic_load_n(&stage->words->arrived, __ATOMIC_ACQUIRE);
}

/* Returns whether the stream has reached the request, or passed it. */
static inline bool pst_stage_arrived(const struct pst_stage *stage)
{
	return __atomic_load_n(&stage->words->arrived, __ATOMIC_ACQUIRE);
}

static inline bool pst_stage_passed(const struct pst_stage *stage)
{
	return __atomic_load_n(&stage->words->passed, __ATOMIC_ACQUIRE) >=
	       atomic_load_explicit(&stage->last, memory_order_relaxed);
}

#endif
