/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An inline lane (penstock_queue_opts.own_lane): a lane without a thread, turned by the calls on
 * its queue, so that a short request wakes no thread. All calls on the thread that opened it,
 * except wake and cancel.
 */
#ifndef PST_CORE_INLINE_LANE_H
#define PST_CORE_INLINE_LANE_H

#include "core/ops.h"
#include "core/request/request.h"

struct pst_inline_lane;

/* Opens an inline lane and keeps its device open. A turn's wait ends when a request is on the
 * queue's list `completed`, or when none is `inflight`. */
int pst_inline_lane_open(struct penstock_device *dev, _Atomic(struct pst_request *) *completed,
			 const _Atomic unsigned *inflight, struct pst_inline_lane **out,
			 struct pst_err *err);
/* Closes it, with nothing in flight. */
void pst_inline_lane_close(struct pst_inline_lane *il);

/* 0; -EPERM: called on another thread than its owner's. */
int pst_inline_lane_check(const struct pst_inline_lane *il, struct pst_err *err);
/* Whether this lane can carry the request. The pump carries the others. */
bool pst_inline_lane_accepts(const struct pst_inline_lane *il, const struct pst_request *req);
/* Opens the request on this lane. */
void pst_inline_lane_enqueue(struct pst_inline_lane *il, struct pst_request *req);
/* Runs one turn. With nothing to do it waits wait_us; 0: not at all, -1: until woken. */
void pst_inline_lane_turn(struct pst_inline_lane *il, int64_t wait_us);
/* Ends its wait. Any thread. */
void pst_inline_lane_wake(struct pst_inline_lane *il);
/* Makes the lane check its chunks for cancelled requests. Any thread. */
void pst_inline_lane_cancel(struct pst_inline_lane *il);

#endif
