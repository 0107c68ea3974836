/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An inline lane (penstock_queue_opts.own_lane): a lane without a thread. Its turns run in the
 * calls on its queue, so that a short request wakes no thread. Only the thread that opened it,
 * its owner, may call these functions, except wake and cancel.
 */
#ifndef PST_CORE_INLINE_LANE_H
#define PST_CORE_INLINE_LANE_H

#include "core/ops.h"
#include "core/request/request.h"

struct pst_inline_lane;

/* Opens an inline lane, which keeps its device open. A turn waits only while the queue's list
 * `completed` is empty and `inflight` is not 0. */
int pst_inline_lane_open(struct penstock_device *dev, _Atomic(struct pst_request *) *completed,
			 const _Atomic unsigned *inflight, struct pst_inline_lane **out,
			 struct pst_err *err);
/* Closes the lane, with nothing in flight. */
void pst_inline_lane_close(struct pst_inline_lane *il);

/* Checks that the calling thread is the owner. -EPERM: it is not. */
int pst_inline_lane_check(const struct pst_inline_lane *il, struct pst_err *err);
/* Whether this lane can carry the request. The pump carries all others. */
bool pst_inline_lane_accepts(const struct pst_inline_lane *il, const struct pst_request *req);
/* Opens the request and puts it on this lane's list. */
void pst_inline_lane_enqueue(struct pst_inline_lane *il, struct pst_request *req);
/* Runs one turn of the lane. If it found nothing to do, it waits at most wait_us; 0: not at all,
 * -1: until woken. */
void pst_inline_lane_turn(struct pst_inline_lane *il, int64_t wait_us);
/* Wakes the owner from the wait of a turn. Any thread. */
void pst_inline_lane_wake(struct pst_inline_lane *il);
/* Makes the lane check its chunks for cancelled requests. Any thread. */
void pst_inline_lane_cancel(struct pst_inline_lane *il);

#endif
