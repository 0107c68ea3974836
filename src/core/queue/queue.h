/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A queue: a pool of requests, and a list of completed ones. One thread submits and one thread
 * harvests. Lanes push completed requests onto the list without a lock.
 */
#ifndef PST_CORE_QUEUE_H
#define PST_CORE_QUEUE_H

#include <stdatomic.h>

#include "core/base/spin.h"
#include "core/queue/inline_lane.h"
#include "core/request/request.h"

struct penstock_queue {
	unsigned requests_max, segs_max, spans_max, pool_count;
	_Atomic unsigned pool_used;   /* requests of the pool that were ever used */
	struct pst_request *requests; /* the pool */
	struct penstock_seg *segs;
	struct pst_span *spans;
	struct pst_request *free; /* free requests; only the submitter accesses it */
	_Atomic(struct pst_request *)
		returned;	   /* released requests, which the submitter moves to `free` */
	_Atomic unsigned inflight; /* requests submitted and not harvested */
	_Atomic(struct pst_request *) completed; /* completed requests */
	struct pst_request *ready; /* completed, in order; only the harvester accesses it */
	struct pst_request **ready_end;
	struct pst_request *harvested; /* requests of the last harvest; the next one frees them */
	_Atomic unsigned pushing;      /* threads that are in queue_push; close waits for them */
	_Atomic unsigned outliving;    /* references to a closed queue's memory */
	_Atomic uint64_t deadline_ns;  /* at or before every deadline in flight; 0: none */
	int fd;			       /* eventfd, readable after a completion if `armed` */
	_Atomic bool armed;	       /* a thread waits on fd */
	_Atomic bool asleep;	       /* a thread sleeps in penstock_wait */
	_Atomic bool watched;	       /* the caller got fd from penstock_queue_fd */
	bool in_callback, mute;	       /* a callback runs; callbacks are off, the queue closes */
	_Atomic bool fast;	       /* the last request was short and of effort fast */
	struct pst_spin spin;	       /* of penstock_wait */
	uint64_t poll_from, poll_to;   /* ns: when a completion is likely; 0: unknown */
	struct pst_inline_lane *inline_lane; /* runs in the calls on this queue, or NULL */
	unsigned generation;		     /* pst_fork_generation() of the opening process */
};

/* Submits one request, and carries it on the calling thread if it is small. The caller must then
 * harvest it with penstock_wait. */
int pst_queue_submit_here(struct penstock_queue *q, const struct penstock_req *from,
			  bool wants_report);

/* Whether the pool has a free request. Frees the requests of the last harvest first. */
bool pst_queue_has_free(struct penstock_queue *q);

#endif
