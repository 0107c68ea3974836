/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A queue: a pool of requests and a list of completed ones. One thread submits and one harvests;
 * lanes push completed requests onto the list without a lock.
 */
#ifndef PST_CORE_QUEUE_H
#define PST_CORE_QUEUE_H

#include <stdatomic.h>

#include "core/base/spin.h"
#include "core/queue/inline_lane.h"
#include "core/request/request.h"

struct penstock_queue {
	unsigned requests_max, segs_max, spans_max, pool_count;
	_Atomic unsigned pool_used; /* requests of the pool that were ever used; the submitter's */
	struct pst_request *requests; /* the pool */
	struct penstock_seg *segs;
	struct pst_span *spans;
	struct pst_request *free;		 /* the submitter's */
	_Atomic(struct pst_request *) returned;	 /* free again, for the submitter to take */
	_Atomic unsigned inflight;		 /* submitted, not harvested */
	_Atomic(struct pst_request *) completed; /* a stack; harvesting reverses it */
	struct pst_request *ready;		 /* the harvester's: completed, in order */
	struct pst_request **ready_end;
	struct pst_request *harvested; /* by the last call; the next call frees them */
	_Atomic unsigned pushing;      /* threads in queue_push, which the queue must outlive */
	_Atomic unsigned outliving;    /* requests of a closed queue that lanes still list */
	_Atomic uint64_t deadline_ns;  /* not after any deadline of those in flight; 0: none */
	int fd;			       /* eventfd */
	_Atomic bool armed;	       /* a thread waits on fd */
	_Atomic bool asleep;	       /* in penstock_wait */
	_Atomic bool watched;	       /* the caller has fd, for good */
	bool in_callback, mute;
	_Atomic bool fast;		     /* the last request was short, and submitted as fast */
	struct pst_spin spin;		     /* the harvester's */
	uint64_t poll_from, poll_to;	     /* ns: when a completion is likely; 0: unknown */
	struct pst_inline_lane *inline_lane; /* turned by the calls on this queue, or NULL */
	unsigned generation;
};

/* Submits one request and lets the calling thread carry it if it is small. The caller then waits
 * for it. */
int pst_queue_submit_here(struct penstock_queue *q, const struct penstock_req *from);

/* Whether the pool has a free request. Frees what the last call harvested. */
bool pst_queue_has_free(struct penstock_queue *q);

#endif
