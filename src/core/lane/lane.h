/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane from inside: lane.c is its loop, lane_copy.c its copies, chunk.c its
 * chunks. pump.c opens, wakes and closes lanes; canaries take single steps.
 */
#ifndef PST_CORE_LANE_H
#define PST_CORE_LANE_H

#include "core/lane/pump.h"

/* On the thread that will drive it, its pump and the number of its slots set. */
int pst_lane_open(struct pst_lane *lane, struct pst_err *err);
/* On the same thread, before its first chunk: its ring gets pages, and is registered. */
void pst_lane_pin(struct pst_lane *lane);
/* On the same thread: the rest of its ring, if it wants it and has not got it; one lane of a
 * pump at a time, the others go on meanwhile. 1: it has more slots, 0: as before. */
int pst_lane_grow(struct pst_lane *lane);
static inline bool pst_lane_may_grow(const struct pst_lane *lane)
{
	return lane->wants_ring && lane->slots.first_len < lane->slots.len &&
	       !atomic_load_explicit(&lane->pump->growing, memory_order_relaxed);
}
/* On the same thread (borrowed lanes: any), nothing in flight. */
void pst_lane_close(struct pst_lane *lane);
/* After something was put in one of its inboxes. Any thread. */
void pst_lane_wake(struct pst_lane *lane);

/* lane_copy.c: the copy queue of a device, opened now if nobody has yet; NULL and
 * lane->open_err. */
struct pst_copyq *pst_lane_copyq(struct pst_lane *lane, struct penstock_device *dev);
/* For a lane with a thread, or `alone`: for one that has a request at a time. */
struct pst_copyq *pst_copyq_open(struct penstock_device *dev, bool alone, struct pst_err *err);
void pst_copyq_close(struct pst_copyq *copyq);
/* Takes over what pst_pump_attach opened for it. */
void pst_lane_take_copyqs(struct pst_lane *lane);
/* Takes up finished copies. LOOK: those without a ticket may get one later, MARK: they
 * get one now. */
enum pst_reap { PST_REAP_LOOK, PST_REAP_MARK };
int pst_lane_reap_copies(struct pst_lane *lane, enum pst_reap how);

/* chunk.c: keeps a chunk that has no room until the lane's next turn. */
void pst_chunk_defer(struct pst_lane *lane, struct pst_chunk *chunk);
/* Of a cancelled request: asks its storage to end the chunk's io, where that has it. */
bool pst_chunk_cancel(struct pst_chunk *chunk);
/* Of a request that is over: ends a chunk that has not begun. False: it is to begin. */
bool pst_chunk_abandon(struct pst_chunk *chunk);

/* Drops what it keeps of a storage, and its copy queue on a device (either may be
 * NULL), nothing of them in flight. */
void pst_lane_invalidate(struct pst_lane *lane, struct penstock_storage *st,
			 struct penstock_device *dev);
/* Does it keep anything of them? Any thread, nothing of them in flight. */
bool pst_lane_caches(const struct pst_lane *lane, const struct penstock_storage *st,
		     const struct penstock_device *dev);

/* Before it closes: what is on its lists has ended elsewhere, and is dropped. */
void pst_lane_unlist_all(struct pst_lane *lane);

/* Drops what no request needs any more; lane->trim_due: there is more of it. */
void pst_lane_trim(struct pst_lane *lane);

/* One fill or drain, one copy, waited for; other chunks' completions are taken up
 * meanwhile. The lane's thread. */
int pst_lane_io_now(struct pst_lane *lane, struct pst_io *io);
int pst_lane_copy_now(struct pst_lane *lane, struct penstock_device *dev,
		      const struct pst_rect *rect, bool in);

#endif
