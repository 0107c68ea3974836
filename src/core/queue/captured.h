/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Captured requests: requests that were submitted to a CUDA stream during a stream capture, so that
 * their operations are nodes of a CUDA graph. Each launch of the graph executes the operations
 * again, which is a replay. A captured request belongs to no queue. It and its pinned memory (its
 * stage) exist until the graph and all its executables are destroyed. stream.c captures requests,
 * and stream_poll.c starts the work of their replays. This file creates and frees captured
 * requests. It also makes a replay fail if the request's storage has been closed.
 */
#ifndef PST_CORE_CAPTURED_H
#define PST_CORE_CAPTURED_H

#include <stddef.h>

#include "core/lane/stage.h"
#include "core/request/request.h"

struct pst_captured_tie;
struct pst_lane;

struct pst_captured {
	struct pst_captured *next;    /* next in the list of all captured requests */
	struct pst_captured_tie *tie; /* shows whether the graph is destroyed */
	struct pst_request req;
	struct penstock_device *gpu;
	/* Copy of segment 0 as it was submitted. Each replay starts from this copy. When the stream
	 * reaches the request, the replay sets the members whose values the stream supplies (struct
	 * penstock_late). */
	struct penstock_seg first;
	uint64_t body, total; /* values of req.body and req.total at submit */
	bool running;	      /* lanes work on a replay; only the polling lane uses it */
	_Atomic bool serving; /* a replay uses the storage: do not close it */
	_Atomic bool closed;  /* the storage is closed or being closed */
};

static inline struct pst_captured *pst_captured_of(struct pst_request *req)
{
	return (struct pst_captured *)((char *)req - offsetof(struct pst_captured, req));
}

/* Makes a captured request from the queue's request `from`, and takes over its stage (pinned
 * memory). The stream of `seq` is being captured into a graph. */
int pst_captured_make(struct pst_request *from, struct pst_stream_seq *seq,
		      struct pst_captured **out, struct pst_err *err);
/* Frees a captured request after its stage has been given back. Lanes call it. */
void pst_captured_free(struct pst_captured *cap);
/* Returns whether the graph and its executables are destroyed. */
bool pst_captured_gone(const struct pst_captured *cap);

/* Waits until a lane has freed a captured request of this device whose graph is destroyed. Returns
 * false if there is no such request, or if the lane takes longer than a second. */
bool pst_captured_await_free(const struct penstock_device *gpu);

/* Prepares the request for a replay, and sets its phase to PST_PHASE_ARMED, from which req_start of
 * stream_poll.c starts it. Returns an error if its storage is closed. Only the lane that polls the
 * request's stream calls this and the next function. */
int pst_captured_begin(struct pst_captured *cap, struct pst_lane *lane, struct pst_err *err);
/* Ends a replay, after all threads have stopped using its request. */
void pst_captured_end(struct pst_captured *cap);

/* Makes all later replays (executions of captured requests) that use this storage fail, and waits
 * for those that have started. penstock_close calls it. */
void pst_captured_close_storage(const struct penstock_storage *st);

#endif
