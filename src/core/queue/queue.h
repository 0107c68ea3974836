/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A queue: a pool of requests and a list of ended ones. One thread submits, one
 * harvests; lanes only push onto the completion list.
 */
#ifndef PST_CORE_QUEUE_H
#define PST_CORE_QUEUE_H

#include <stdatomic.h>

#include "core/queue/inline_lane.h"
#include "core/request/request.h"
#include "core/base/spin.h"

struct penstock_queue {
	unsigned requests_max, segs_max, spans_max, place_count;
	_Atomic unsigned place_used; /* the first so many; the submitter's */
	struct pst_request *requests;
	struct penstock_seg *segs;
	struct pst_span *spans;
	struct pst_request *free;		 /* the submitter's */
	_Atomic(struct pst_request *) returned;	 /* places that came free, for the submitter */
	_Atomic unsigned inflight;		 /* submitted, not harvested */
	_Atomic(struct pst_request *) completed; /* a stack; harvest turns it round */
	struct pst_request *ready;		 /* the harvester's: ended, in order */
	struct pst_request **ready_end;
	struct pst_request *harvested; /* by its last call; freed by the next */
	_Atomic unsigned pushing;      /* in pst_queue_push, which it must outlive */
	_Atomic unsigned outliving;    /* places that lanes name, of one that is closed */
	_Atomic uint64_t deadline_ns;  /* the first of those in flight, or before; 0: none */
	int fd;			       /* eventfd */
	_Atomic bool armed;	       /* somebody waits on fd */
	_Atomic bool asleep;	       /* in penstock_wait */
	_Atomic bool watched;	       /* the caller has it, for good */
	bool in_callback, mute;
	_Atomic bool fast;		     /* the last request was short and to be so */
	struct pst_spin spin;		     /* the harvester's */
	uint64_t look_from, look_to;	     /* ns: when a completion is likely; 0: no idea */
	struct pst_inline_lane *inline_lane; /* a lane that its calls turn, or NULL */
	unsigned generation;
};

/* May this thread use it? Not behind a fork, nor a lane of another thread's. */
int pst_queue_check(const struct penstock_queue *q, struct pst_err *err);

/* Puts an ended request on its queue's list. Any thread. */
void pst_queue_push(struct penstock_queue *q, struct pst_request *req);

/* Makes a place that nobody names free for the submitter. Any thread. */
void pst_queue_return(struct penstock_queue *q, struct pst_request *req);

/* Gives up the use of the places of the last harvest. */
void pst_queue_free_harvested(struct penstock_queue *q);

/* Has it a place for one more at once? What was harvested is given up. */
bool pst_queue_has_place(struct penstock_queue *q);

/* From here on whoever waits ends what is too late, where its lane does not. */
void pst_queue_expect(struct penstock_queue *q, uint64_t deadline_ns);

/* Submits one request that the caller waits for: on its own thread if it is small. */
int pst_queue_submit_here(struct penstock_queue *q, const struct penstock_req *from);

#endif
