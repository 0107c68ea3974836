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

#define PST_LANE_CHUNKS 256 /* chunks in flight on one lane */

/* Takes a chunk from the lane's pool, which must not be empty. */
struct pst_chunk *pst_chunk_get(struct pst_lane *lane);
/* Releases the chunk's slot and its share of direct_bytes, and returns it to the pool. */
void pst_chunk_put(struct pst_chunk *chunk);
/* Fills a chunk from the pool with the bytes that were claimed for it. */
void pst_chunk_claimed(struct pst_chunk *chunk, struct pst_request *req,
		       const struct pst_claim *claim);
/* Keeps a chunk that found no slot. The lane's next turn starts it again. */
void pst_chunk_defer(struct pst_lane *lane, struct pst_chunk *chunk);

/* ---- for paths ---- */

/* Completes a chunk. `result`: 0, with chunk->moved set; or -errno, with chunk->err set. */
void pst_chunk_done(struct pst_chunk *chunk, int result);

/* Prepares the chunk's io: `len` bytes of its storage at `off`, to or from `mem`. */
void pst_chunk_io(struct pst_chunk *chunk, void *mem, uint64_t off, uint64_t len, unsigned flags,
		  void (*done)(struct pst_io *io));
/* Starts the chunk's io. Returns what the storage's fill, drain or sync returns, with the error in
 * chunk->err. */
int pst_chunk_io_start(struct pst_chunk *chunk);
/* Returns the chunk of a completed io. Each `done` function must call it first. */
struct pst_chunk *pst_chunk_io_done(struct pst_io *io);
/* Records that n bytes were moved in place. A read may be short; a short write is an error. */
int pst_chunk_moved(struct pst_chunk *chunk, uint64_t n);

/*
 * Mark the start and the end of a transfer between a drive and memory. pst_chunk_direct_begin
 * returns false if all lanes together have enough calls in flight for the storage. More calls
 * would only wait in the drive's queue (virtio, calls of 1 MiB: 32 calls reach 4.3 GB/s, 64
 * reach 3.7). A lane without such a transfer may always begin one, so every refused lane has a
 * completion that will wake it.
 */
#define PST_DIRECT_CALLS_MAX 32ull
bool pst_chunk_direct_begin(struct pst_chunk *chunk, uint64_t len);
void pst_chunk_direct_end(struct pst_chunk *chunk);

/* Queues the copies between slot memory and the chunk's parts, in the direction of the request,
 * for the chunk's first `len` bytes. `base` is the slot address of the first byte. When all
 * copies are done, `after` is called once, with 0 or -errno. */
int pst_chunk_copy(struct pst_chunk *chunk, char *base, uint64_t len,
		   void (*after)(struct pst_chunk *chunk, int result));

/* ---- for lanes ---- */

/* Asks the storage to cancel the chunk's io, if its request was cancelled. Returns whether it
 * asked. */
bool pst_chunk_cancel(struct pst_chunk *chunk);
/* Fails a chunk that has not started, if its request is abandoned. False: the lane starts it. */
bool pst_chunk_abandon(struct pst_chunk *chunk);

/* ---- copy queues ---- */

/* A lane's copy queue on one device: a copier, and the chunks that wait for its tickets. */
struct pst_copyq {
	struct pst_copyq *link; /* next in the list lane->given, until the lane adopts it */
	struct penstock_device *dev;
	struct pst_copier *copier;
	unsigned head, tail; /* of `waits`, which is a ring; head is the oldest */
	unsigned unrecorded; /* number of the newest entries, which have no ticket yet */
	uint64_t unrecorded_bytes;
	struct {
		uint64_t ticket;
		int error; /* of record() */
		uint64_t bytes;
		struct pst_chunk *chunk;
	} waits[PST_LANE_CHUNKS];
};

/* Opens a copy queue. `alone`: for a lane with one request at a time. NULL: see err. */
struct pst_copyq *pst_copyq_open(struct penstock_device *dev, bool alone, struct pst_err *err);
void pst_copyq_close(struct pst_copyq *copyq);
/* Adopts the copy queues that pst_pump_attach opened for the lane. */
void pst_copyqs_adopt(struct pst_lane *lane);
/* Finds the lane's copy queue on a device, or opens it. NULL: see lane->open_err. */
struct pst_copyq *pst_copyq_of(struct pst_lane *lane, struct penstock_device *dev);

/* Processes completed copies and returns their number. LOOK leaves copies without a ticket.
 * RECORD records a ticket for them first. */
enum pst_reap { PST_REAP_LOOK, PST_REAP_RECORD };
int pst_copyqs_reap(struct pst_lane *lane, enum pst_reap how);

/* Makes one copy and waits for it. */
int pst_copy_now(struct pst_lane *lane, struct penstock_device *dev, const struct pst_rect *rect,
		 bool in);

#endif
