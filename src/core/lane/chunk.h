/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operations on a chunk: its transfer to or from the storage, its copies to or from
 * devices, and its completion. Paths and lanes call them, on the lane's thread only. struct
 * pst_chunk is in ops.h.
 */
#ifndef PST_CORE_CHUNK_H
#define PST_CORE_CHUNK_H

#include "core/lane/claim.h"
#include "core/ops.h"

#define PST_LANE_CHUNKS 256 /* maximum number of chunks in flight on one lane */
/* maximum number of other lanes' chunks that a lane copies at a time */
#define PST_PASSED_MAX 256

/* Takes a chunk from the lane's pool, which must not be empty. */
struct pst_chunk *pst_chunk_get(struct pst_lane *lane);
/* Returns the chunk to the pool, and releases its slot and its part of the storage's
 * direct_bytes. */
void pst_chunk_put(struct pst_chunk *chunk);
/* Stores a claim's range and path in a chunk from the pool. */
void pst_chunk_claimed(struct pst_chunk *chunk, struct pst_request *req,
		       const struct pst_claim *claim);
/* Puts a chunk that found no free slot on the lane's list of deferred chunks. The lane's next turn
 * starts it again. */
void pst_chunk_defer(struct pst_lane *lane, struct pst_chunk *chunk);

/* ---- for paths ---- */

/* Finds memory for `len` bytes of the chunk, from storage offset `off` on, and stores its address
 * in chunk->mem. The memory is a slot of the lane's ring, or part of the stage of a stream-ordered
 * request. Returns false if there is none at this time. */
bool pst_chunk_memory(struct pst_chunk *chunk, uint64_t off, uint64_t len);

/* Completes a chunk. The caller passes 0 after it has set chunk->moved, or -errno after it has set
 * chunk->err. */
void pst_chunk_done(struct pst_chunk *chunk, int result);

/* Prepares the chunk's transfer (chunk->io) of `len` bytes at offset `off` of the storage, to or
 * from the memory at `mem`. When the transfer completes, the lane calls `done`. */
void pst_chunk_io(struct pst_chunk *chunk, void *mem, uint64_t off, uint64_t len, unsigned flags,
		  void (*done)(struct pst_io *io));
/* Starts the transfer that pst_chunk_io prepared. Returns the result of the storage's function
 * fill, drain or sync. If that is an error other than -EAGAIN, the reason is in chunk->err. */
int pst_chunk_io_start(struct pst_chunk *chunk);
/* Returns the chunk that a completed transfer belongs to. Each `done` function must call this
 * first. */
struct pst_chunk *pst_chunk_io_done(struct pst_io *io);
/* Stores in chunk->moved that the transfer has moved `n` bytes. A read may move fewer bytes than
 * the chunk has. For a write that is an error. */
int pst_chunk_moved(struct pst_chunk *chunk, uint64_t n);

/*
 * Mark the start and the end of a transfer between a drive and memory. pst_chunk_direct_begin
 * returns false if all lanes together have enough calls in flight for the storage. More calls
 * would only wait in the drive's queue. For example, a virtio drive reads 4.3 GB/s with 32 calls
 * of 1 MiB in flight, but 3.7 GB/s with 64. A lane that has no such transfer in flight may always
 * begin one. So a lane that gets false has one in flight, whose completion will wake the lane.
 */
#define PST_DIRECT_CALLS_MAX 32ull
bool pst_chunk_direct_begin(struct pst_chunk *chunk, uint64_t len);
void pst_chunk_direct_end(struct pst_chunk *chunk);

/* Queues the copies of the chunk's first `len` bytes. `base` is the host address of the first
 * byte, usually in the chunk's slot. A read copies from `base` to the segments' buffers, and a
 * write copies from these buffers to `base`. When all copies are done, `after` is called once,
 * with 0 or -errno. */
int pst_chunk_copy(struct pst_chunk *chunk, char *base, uint64_t len,
		   void (*after)(struct pst_chunk *chunk, int result));

/* Changes the chunk's path to the next path that its class allows. A path calls it when the chunk's
 * bytes have moved in the way of that next path, for the reason `why`, so that the report names the
 * right path. Returns false if there is no such path: the caller must then fail the chunk. */
bool pst_chunk_demote(struct pst_chunk *chunk, const struct pst_err *why);

/* Counts a retry of the chunk on its own path, for the reason `why`, which reports then show. */
void pst_chunk_note(struct pst_chunk *chunk, const struct pst_err *why);
/* Does the same as pst_chunk_note, and defers the chunk, so that the lane starts it again on its
 * path. */
void pst_chunk_again(struct pst_chunk *chunk, const struct pst_err *why);

/* ---- for lanes ---- */

/* If the chunk's request was cancelled or is past its deadline, asks the storage to cancel the
 * chunk's transfer, if the storage can do so. Returns whether it has asked. */
bool pst_chunk_cancel(struct pst_chunk *chunk);
/* If the request is cancelled or past its deadline, fails the chunk, which must not have started,
 * and returns true. Else returns false, and the lane starts the chunk. */
bool pst_chunk_abandon(struct pst_chunk *chunk);

/* ---- copy queues ---- */

/* A lane's copy queue on one device: a copier, and the chunks that wait for the copier's
 * tickets. */
struct pst_copyq {
	/* Next copy queue on the list lane->given, until the lane adopts this one. */
	struct pst_copyq *link;
	struct penstock_device *dev;
	bool within; /* for copies within the device's memory (struct pst_rect) */
	struct pst_copier *copier;
	/* Positions in the circular array `waits`: of its oldest entry, and after its newest
	 * entry. */
	unsigned head, tail;
	/* Number of entries, the newest ones in `waits`, that have no ticket yet. */
	unsigned unrecorded;
	uint64_t unrecorded_bytes;
	struct {
		uint64_t ticket;
		int error; /* error of record(), or 0 */
		uint64_t bytes;
		struct pst_chunk *chunk;
	} waits[PST_LANE_CHUNKS + PST_PASSED_MAX];
};

/* Opens a copy queue. `alone` is true for a lane that runs one request at a time. Returns NULL on
 * an error, with the reason in `err`. */
struct pst_copyq *pst_copyq_open(struct penstock_device *dev, bool alone, struct pst_err *err);
void pst_copyq_close(struct pst_copyq *copyq);
/* Makes the lane use the copy queues that pst_pump_attach has opened for it. */
void pst_copyqs_adopt(struct pst_lane *lane);
/* Returns the lane's copy queue on a device, and opens it if there is none. Returns NULL on an
 * error, with the reason in lane->open_err. */
struct pst_copyq *pst_copyq_of(struct pst_lane *lane, struct penstock_device *dev);
/* Like pst_copyq_of, for the lane's queue of copies within the memory of the device. */
struct pst_copyq *pst_copyq_within(struct pst_lane *lane, struct penstock_device *dev);

/* Processes completed copies and returns their count. PST_REAP_RECORD also records a ticket for the
 * copies that have none, unless they are few bytes and older copies are not done. PST_REAP_LOOK
 * leaves these copies for a later call. */
enum pst_reap { PST_REAP_LOOK, PST_REAP_RECORD };
int pst_copyqs_reap(struct pst_lane *lane, enum pst_reap how);

/* Queues the copies of chunks that other lanes have passed to this lane, and continues the chunks
 * whose copies another lane has completed. Returns the number of queued copies plus the number of
 * continued chunks. */
int pst_chunks_exchange(struct pst_lane *lane);

/* Makes one copy, to the device if `in` is true, else from the device. Waits until the copy is
 * done. */
int pst_copy_now(struct pst_lane *lane, struct penstock_device *dev, const struct pst_rect *rect,
		 bool in);

#endif
