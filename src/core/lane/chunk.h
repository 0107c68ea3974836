/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operations on a chunk, which is a range of storage bytes that moves as one unit: its transfer
 * to or from the storage, its copies to or from devices, and its completion. Paths and lanes
 * (worker loops) call them, on the lane's thread only. struct pst_chunk is in ops.h.
 */
#ifndef PST_CORE_CHUNK_H
#define PST_CORE_CHUNK_H

#include "core/lane/claim.h"
#include "core/ops.h"

#define PST_LANE_CHUNKS 256 /* maximum number of chunks in flight on one lane */
/* maximum number of chunks that a lane copies for other lanes at a time */
#define PST_PASSED_MAX 256

/* Takes a chunk from the lane's pool, which must not be empty. */
struct pst_chunk *pst_chunk_get(struct pst_lane *lane);
/* Returns the chunk to the pool. Also frees its staging slot, and subtracts its bytes from the
 * storage's direct_bytes. */
void pst_chunk_put(struct pst_chunk *chunk);
/* Initialises a chunk from the pool with the byte range and the path that pst_claim has reserved in
 * `claim`. */
void pst_chunk_claimed(struct pst_chunk *chunk, struct pst_request *req,
		       const struct pst_claim *claim);
/* Puts a chunk for which no staging slot is free on the lane's list of deferred chunks. The lane
 * starts the chunk again in the next pass of its loop. */
void pst_chunk_defer(struct pst_lane *lane, struct pst_chunk *chunk);

/* ---- for paths ---- */

/* Finds staging memory for `len` bytes of the chunk, from storage offset `off` on, and stores its
 * address in chunk->mem. The memory is a slot of the lane's pinned memory, or part of the pinned
 * memory (stage) of a stream-ordered request. Returns false if no such memory is free. */
bool pst_chunk_memory(struct pst_chunk *chunk, uint64_t off, uint64_t len);

/* Completes a chunk. On success the caller has set chunk->moved and passes 0. After an error the
 * caller has set chunk->err and passes -errno. */
void pst_chunk_done(struct pst_chunk *chunk, int result);

/* Prepares the chunk's transfer (chunk->io) of `len` bytes at offset `off` of the storage, to or
 * from the memory at `mem`. When the transfer completes, the lane calls `done`. */
void pst_chunk_io(struct pst_chunk *chunk, void *mem, uint64_t off, uint64_t len, unsigned flags,
		  void (*done)(struct pst_io *io));
/* Starts the transfer that pst_chunk_io prepared. Returns the result of the storage's function
 * fill, drain or sync. If that is an error other than -EAGAIN, the reason is in chunk->err. */
int pst_chunk_io_start(struct pst_chunk *chunk);
/* Returns the chunk that a completed transfer belongs to. Each `done` function (see pst_chunk_io)
 * must call this first. */
struct pst_chunk *pst_chunk_io_done(struct pst_io *io);
/* Stores in chunk->moved that the transfer has moved `n` bytes. A read may move fewer bytes than
 * the chunk has. For a write that is an error. */
int pst_chunk_moved(struct pst_chunk *chunk, uint64_t n);

/*
 * Mark the start and the end of a transfer between a drive and memory. pst_chunk_direct_begin
 * returns false if the lanes together have enough calls in flight for the storage. More calls would
 * only wait in the drive's queue. For example, a virtio drive reads 4.3 GB/s with 32 calls of 1 MiB
 * in flight, but 3.7 GB/s with 64. A lane that has no such transfer in flight may always begin one.
 * So after false, the lane need not poll: the completion of its own transfer in flight will wake
 * it.
 */
#define PST_DIRECT_CALLS_MAX 32ull
bool pst_chunk_direct_begin(struct pst_chunk *chunk, uint64_t len);
void pst_chunk_direct_end(struct pst_chunk *chunk);

/* Queues the copies of the chunk's first `len` bytes between staging memory and device. `base` is
 * the host address of the first byte, usually in the chunk's slot. A read copies from `base` to the
 * segments' buffers, and a write copies from these buffers to `base`. When all copies are done,
 * `after` is called once, with 0 or -errno. */
int pst_chunk_copy(struct pst_chunk *chunk, char *base, uint64_t len,
		   void (*after)(struct pst_chunk *chunk, int result));

/* A path calls this function if it finds that the chunk's bytes have in fact moved over the next
 * path that the required class allows, for the reason `why`. Sets chunk->path to that path, so
 * that the report names the right path, and moves no bytes. Returns false if no such path exists:
 * the caller must then fail the chunk. */
bool pst_chunk_demote(struct pst_chunk *chunk, const struct pst_err *why);

/* Counts a retry of the chunk on the same path. Reports then show `why` as the reason. */
void pst_chunk_note(struct pst_chunk *chunk, const struct pst_err *why);
/* Does the same as pst_chunk_note, and puts the chunk on the lane's list of deferred chunks. The
 * lane then starts it again on its path. */
void pst_chunk_again(struct pst_chunk *chunk, const struct pst_err *why);

/* ---- for lanes ---- */

/* Asks the storage to cancel the chunk's transfer if the chunk's request was cancelled or is past
 * its deadline. Does not ask if no transfer is in progress, or if the storage cannot cancel.
 * Returns whether it has asked. */
bool pst_chunk_cancel(struct pst_chunk *chunk);
/* If the request is cancelled or past its deadline, fails the chunk, which must not have started,
 * and returns true. Else returns false, and the lane starts the chunk. */
bool pst_chunk_abandon(struct pst_chunk *chunk);

/* ---- copy queues ---- */

/* A lane's copy queue on one device. It consists of the backend's object that makes copies
 * (`copier`) and a list of the chunks whose copies are not done. A ticket is a number by which the
 * copier reports whether all copies before it are done. */
struct pst_copyq {
	/* Next element of the list lane->given, on which another thread has put copy queues that
	 * the lane shall use. */
	struct pst_copyq *link;
	struct penstock_device *dev;
	bool within; /* for copies from and to the same device's memory (see struct pst_rect) */
	struct pst_copier *copier;
	/* Positions in the circular array `waits`: `head` of the oldest entry, `tail` after the
	 * newest entry. */
	unsigned head, tail;
	/* Number of the newest entries in `waits` that have no ticket yet. */
	unsigned unrecorded;
	uint64_t unrecorded_bytes;
	struct {
		uint64_t ticket;
		int error; /* error of the backend's record(), or 0 */
		uint64_t bytes;
		struct pst_chunk *chunk;
	} waits[PST_LANE_CHUNKS + PST_PASSED_MAX];
};

/* Opens a copy queue. `alone` is true for a lane that runs only one request at a time, and so needs
 * fewer tickets. Returns NULL on an error, with the reason in `err`. */
struct pst_copyq *pst_copyq_open(struct penstock_device *dev, bool alone, struct pst_err *err);
void pst_copyq_close(struct pst_copyq *copyq);
/* Makes the lane use the copy queues that pst_pump_attach has opened for it on another device. */
void pst_copyqs_adopt(struct pst_lane *lane);
/* Returns the lane's copy queue on a device, and opens it if there is none. Returns NULL on an
 * error, with the reason in lane->open_err. */
struct pst_copyq *pst_copyq_of(struct pst_lane *lane, struct penstock_device *dev);
/* Like pst_copyq_of, but returns the separate queue for copies from and to the memory of the same
 * device. */
struct pst_copyq *pst_copyq_within(struct pst_lane *lane, struct penstock_device *dev);

/* Processes completed copies and returns their count. PST_REAP_RECORD also records a ticket for the
 * copies that have none, unless they have few bytes and older copies are not done. PST_REAP_LOOK
 * records no tickets. */
enum pst_reap { PST_REAP_LOOK, PST_REAP_RECORD };
int pst_copyqs_reap(struct pst_lane *lane, enum pst_reap how);

/* Queues the copies of chunks that other lanes have passed to this lane, and continues the chunks
 * whose copies another lane has completed. Returns the number of queued copies plus the number of
 * continued chunks. */
int pst_chunks_exchange(struct pst_lane *lane);

/* Makes the copy `rect` with the lane's copy queue, to the device if `in` is true, else from the
 * device. Waits until the copy is done. */
int pst_copy_now(struct pst_lane *lane, struct penstock_device *dev, const struct pst_rect *rect,
		 bool in);

#endif
