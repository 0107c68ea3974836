/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A queue: a pool of requests, and a list of completed requests. One thread submits requests, and
 * one thread harvests them: it takes the completed requests from the list. Worker threads (lanes)
 * push completed requests onto the list without a lock.
 */
#ifndef PST_CORE_QUEUE_H
#define PST_CORE_QUEUE_H

#include <stdatomic.h>

#include "core/base/spin.h"
#include "core/queue/inline_lane.h"
#include "core/request/request.h"

struct penstock_queue {
	unsigned requests_max, segs_max, spans_max, pool_count;
	_Atomic unsigned pool_used;   /* number of requests of the pool that have ever been used */
	struct pst_request *requests; /* the pool */
	struct penstock_seg *segs;
	struct pst_span *spans;
	/* list of free requests; only the submitting thread accesses it */
	struct pst_request *free;
	/* list of released requests; the submitting thread moves them to `free` */
	_Atomic(struct pst_request *) returned;
	/* number of requests that were submitted and not yet harvested */
	_Atomic unsigned inflight;
	_Atomic(struct pst_request *) completed; /* list of completed requests, newest first */
	/* list of completed requests, oldest first; only the harvesting thread accesses it */
	struct pst_request *ready;
	struct pst_request **ready_end;
	/* list of requests that the last harvest returned, and that the next harvest frees */
	struct pst_request *harvested;
	/* number of threads that are inside queue_push; penstock_queue_close waits until it is 0 */
	_Atomic unsigned pushing;
	_Atomic unsigned outliving; /* number of references to the memory of a closed queue */
	/* time in ns that is not later than any deadline of a request in flight; 0 if no request
	 * has a deadline */
	_Atomic uint64_t deadline_ns;
	/* eventfd; a completion makes it readable if `armed` is set */
	int fd;
	_Atomic bool armed;   /* whether a completion makes fd readable */
	_Atomic bool asleep;  /* whether a thread sleeps on fd; an earlier deadline wakes it */
	_Atomic bool watched; /* whether the caller has got fd from penstock_queue_fd */
	/* in_callback: a callback runs; mute: the queue closes and calls no callbacks */
	bool in_callback, mute;
	/* maximum polling time in ns, which pst_spin_limit() returned for the last submitted
	 * request */
	_Atomic unsigned poll_ns;
	struct pst_spin spin; /* state of the short polls of penstock_wait */
	/* Times (pst_now_ns) between which the next completion is likely. Both are 0 if there is no
	 * prediction. */
	uint64_t poll_from, poll_to;
	/* lane that runs in the calls on this queue, or NULL if the queue has none */
	struct pst_inline_lane *inline_lane;
	/* pst_fork_generation() of the process that opened the queue */
	unsigned generation;
};

/* Submits one request. The calling thread carries a small request itself before this function
 * returns. The caller must then harvest the request with penstock_wait. */
int pst_queue_submit_here(struct penstock_queue *q, const struct penstock_req *from,
			  bool wants_report);

/* Frees the requests of the last harvest, then returns whether the pool has a free request. */
bool pst_queue_has_free(struct penstock_queue *q);

#endif
