/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane: a loop that moves chunks, with its slots, its engine and its copy queues. Most lanes
 * are threads of a pump. A lane without a thread runs turns of the loop in a caller's thread: a
 * borrowed lane for one request (pump.h), an inline lane in the calls on its queue
 * (queue/inline_lane.h). Only the thread that runs a lane's turns touches its chunks.
 */
#ifndef PST_CORE_LANE_H
#define PST_CORE_LANE_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/base/spin.h"
#include "core/lane/chunk.h"
#include "core/lane/ring.h"
#include "core/ops.h"
#include "core/request/request.h"

/* Size of the L2 bounce buffer of path bounce. It must stay in a second-level cache, which has
 * half a megabyte on small processors. */
#define PST_L2_BOUNCE_BYTES (128u << 10)

enum pst_lane_kind {
	PST_LANE_PUMP,	   /* a thread of a pump */
	PST_LANE_BORROWED, /* used by a caller's thread for one request */
	PST_LANE_INLINE,   /* belongs to a queue and runs in the calls on it */
};

struct pst_lane {
	struct pst_pump *pump;
	unsigned index; /* in pump->lanes; other kinds: 0 */
	enum pst_lane_kind kind;
	/* Inline lanes: the queue's completion list and count of requests in flight. Such a lane
	 * sleeps only while the list is empty and the count is not 0. Else both NULL. */
	_Atomic(struct pst_request *) *completed;
	const _Atomic unsigned *inflight;
	pthread_t thread;
	const struct pst_engine_ops *engine_ops;
	struct pst_engine *engine;
	/* Why the engine is not the preferred one, or the slots are not registered with it.
	 * Constant once the lane is open, because any thread may read the first lane's. */
	struct pst_err engine_why;
	enum penstock_why call_why; /* the same, for its calls; only its thread accesses it */
	bool engine_due;	    /* the preferred engine opens at the first call that needs it */
	bool fixed;		    /* the slots are registered with the engine */
	int wake_fd;		    /* eventfd; a write to it wakes the lane */
	_Atomic bool asleep;	    /* it may wait in engine_ops->wait */
	_Atomic(struct pst_lane_entry *) inbox; /* requests from other threads */
	_Atomic(struct pst_io *) io_inbox;	/* transfers that other threads completed */
	/* Lists of requests to claim chunks from, by priority. */
	struct pst_lane_entry *todo[PST_PRIORITIES], **todo_end[PST_PRIORITIES];
	unsigned todo_count;
	uint64_t deadline_ns; /* the earliest deadline of the requests on `todo`; 0: none */
	struct pst_chunk *chunks, *chunks_free;	    /* the pool, and its free chunks */
	struct pst_chunk *deferred, **deferred_end; /* claimed, waiting for a slot */
	size_t slot_bytes;			    /* length of a big slot */
	struct pst_slot_counts slot_counts;	    /* slots of the whole ring */
	bool wants_ring; /* a chunk found no slot, so pin the rest of the ring */
	char *l2_buffer; /* PST_L2_BOUNCE_BYTES, used within one call of a path; NULL: none */
	struct pst_ring ring;
	struct pst_slots slots;
	unsigned busy;			   /* chunks that are not complete */
	unsigned direct;		   /* of the busy chunks: in transfer to or from a drive */
	unsigned reading;		   /* of the direct chunks: reads */
	unsigned copies;		   /* chunks that wait for copies */
	uint64_t copy_bytes;		   /* bytes of the copies that they wait for */
	_Atomic unsigned load;		   /* entries in inbox and todo; the pump chooses by it */
	_Atomic unsigned busy_seen;	   /* value of `busy` in the last turn */
	_Atomic unsigned turns;		   /* completed turns */
	_Atomic unsigned turns_seen;	   /* value of `turns` at the last submit that read it */
	_Atomic uint64_t turned_ns;	   /* when turns_seen last changed or the lane was idle */
	_Atomic unsigned requests;	   /* requests passed to it first that are not complete */
	_Atomic(struct pst_copyq *) given; /* copy queues that other threads opened for it */
	struct pst_copyq *copyqs[PST_DEVICES_MAX];
	unsigned copyq_count;
	struct pst_lane_entry *watched; /* armed requests, whose streams it polls */
	uint64_t watch_asked_ns;	/* when it last checked that the device works */
	unsigned idle_turns;		/* consecutive turns without work */
	struct pst_spin spin;
	uint64_t idle_since;	     /* when it became idle with copies in flight; 0: not idle */
	_Atomic bool invalidate_due; /* drop caches of the pump's closing storage or device */
	_Atomic uint64_t caches;     /* cache_bit of each storage that it has cached state of */
	_Atomic uint64_t copies_to;  /* bit i: it has a copy queue for device i */
	unsigned cancel_turn;	     /* the last value of the pump's cancel_turn that it handled */
	bool trim_due;		     /* paths have unused state to release when the lane is idle */
	void *path_state[PST_PATHS_MAX]; /* the paths' state of this lane */
	_Atomic bool taken;		 /* borrowed lanes: in use */
	struct pst_err open_err;	 /* why it, or a copy queue, did not open */
};

/* Opens a lane whose pump, kind and slot counts are set, on the thread that will run it. */
int pst_lane_open(struct pst_lane *lane, struct pst_err *err);
/* Populates and registers the ring's first part. Same thread, before the lane's first chunk. */
void pst_lane_pin(struct pst_lane *lane);
/* Closes a lane with nothing in flight: on the same thread, or on any thread if borrowed. */
void pst_lane_close(struct pst_lane *lane);

/* Opens the lane's preferred engine, if that is due. The lane's thread calls it before it submits
 * a call to the engine. */
void pst_lane_want_engine(struct pst_lane *lane);

/* Runs one turn of the lane's loop. If it found nothing to do, it waits at most wait_us; -1: until
 * woken. */
void pst_lane_turn(struct pst_lane *lane, int64_t wait_us);

/* Drops the lane's caches of a storage, and its copy queue on a device. Either may be NULL.
 * Nothing of them may be in flight. */
void pst_lane_invalidate(struct pst_lane *lane, struct penstock_storage *st,
			 struct penstock_device *dev);
/* Whether the lane caches anything of them. Any thread, with nothing of them in flight. */
bool pst_lane_caches(const struct pst_lane *lane, const struct penstock_storage *st,
		     const struct penstock_device *dev);

/* Lets paths release resources that no request needs any more. Sets lane->trim_due if more is left.
 */
void pst_lane_trim(struct pst_lane *lane);

/* Makes one fill or drain and waits for it. Completions of other chunks are processed meanwhile.
 * Called on the lane's thread. */
int pst_lane_io_now(struct pst_lane *lane, struct pst_io *io);

#endif
