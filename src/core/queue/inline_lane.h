/* SPDX-License-Identifier: Apache-2.0 */
/*
 * An inline lane (penstock_queue_opts.own_lane): a worker loop (lane) without a thread. The calls
 * on its queue run the loop, so that a short request wakes no thread. One pass of the loop is a
 * turn. The thread that opened the lane is its owner. Only the owner may call these functions,
 * except pst_inline_lane_wake and _cancel.
 */
#ifndef PST_CORE_INLINE_LANE_H
#define PST_CORE_INLINE_LANE_H

#include "core/ops.h"
#include "core/request/request.h"

struct pst_inline_lane;

/* Opens an inline lane on the device, and keeps the device open as long as the lane. `completed` is
 * the queue's list of completed requests, and `inflight` its number of requests in flight. A turn
 * of the lane waits only while the list is empty and the number is not 0. */
int pst_inline_lane_open(struct penstock_device *dev, _Atomic(struct pst_request *) *completed,
			 const _Atomic unsigned *inflight, struct pst_inline_lane **out,
			 struct pst_err *err);
/* Closes the lane, which must have no request in flight. */
void pst_inline_lane_close(struct pst_inline_lane *il);

/* Checks that the calling thread is the one that opened the lane's queue. Returns -EPERM if it is
 * not. */
int pst_inline_lane_check(const struct pst_inline_lane *il, struct pst_err *err);
/* Returns whether this lane can carry the request. Other requests are carried by the worker threads
 * of the device (its pump). */
bool pst_inline_lane_accepts(const struct pst_inline_lane *il, const struct pst_request *req);
/* Puts the request on this lane's list of requests, and sets the request to its first phase. */
void pst_inline_lane_enqueue(struct pst_inline_lane *il, struct pst_request *req);
/* Runs one turn of the lane, which is one pass of its loop. A turn that finds nothing to do waits
 * up to wait_us microseconds. It does not wait if wait_us is 0, and waits until the lane is woken
 * if wait_us is -1. */
void pst_inline_lane_turn(struct pst_inline_lane *il, int64_t wait_us);
/* Wakes the thread that owns the lane if it sleeps in pst_inline_lane_turn. Any thread may call
 * this function. */
void pst_inline_lane_wake(struct pst_inline_lane *il);
/* Makes the lane check in its next turn whether its chunks belong to cancelled requests. Any thread
 * may call this function. */
void pst_inline_lane_cancel(struct pst_inline_lane *il);

#endif
