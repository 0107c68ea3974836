/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A queue's own lane (penstock_queue_opts.own_lane). All but forget and wake on the thread
 * that opened it.
 */
#ifndef PST_CORE_OWN_H
#define PST_CORE_OWN_H

#include "core/ops.h"
#include "core/request/request.h"

struct pst_inline_lane;
struct pst_pump;

/* Keeps the device open until it is closed. A turn's wait ends when something is on the
 * queue's list `ended`, and when nothing of it is in flight. */
int pst_inline_lane_open(struct penstock_device *dev, _Atomic(struct pst_request *) *ended,
			 const _Atomic unsigned *inflight, struct pst_inline_lane **out,
			 struct pst_err *err);
/* Nothing in flight. */
void pst_inline_lane_close(struct pst_inline_lane *o);

/* -EPERM on another thread. */
int pst_inline_lane_check(const struct pst_inline_lane *o, struct pst_err *err);
/* Is the request one for this lane? The others are the pump's. */
bool pst_inline_lane_accepts(const struct pst_inline_lane *o, const struct pst_request *req);
void pst_inline_lane_enqueue(struct pst_inline_lane *o, struct pst_request *req);
/* One turn; where there is nothing to do it waits wait_us (0: not, -1: as long as it takes). */
void pst_inline_lane_turn(struct pst_inline_lane *o, int64_t wait_us);
/* For a thread that waits elsewhere for what may be on its queues' own lanes: a turn of
 * each. */
void pst_inline_lanes_help(struct pst_pump *pump);
/* Ends its wait. Any thread. */
void pst_inline_lane_wake(struct pst_inline_lane *o);

/* Has the lane look for chunks of cancelled requests. Any thread. */
void pst_inline_lane_cancel(struct pst_inline_lane *o);

/* What pst_pump_invalidate announced, done by each such lane; any thread. */
void pst_inline_lanes_invalidate(struct pst_pump *pump, struct penstock_storage *st,
				 struct penstock_device *dev);

#endif
