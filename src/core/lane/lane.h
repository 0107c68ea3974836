/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane: the loop that drives chunks, with its slots, its engine and its copy queues. Most
 * lanes are threads of a pump. A lane without a thread is turned by a caller: a borrowed one
 * for one request (pump.h), an inline one by the calls on its queue (queue/inline_lane.h).
 * Everything about a chunk happens on the thread that turns its lane.
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

/* The buffer of path bounce_l2. It stays in a second-level cache, which has half a megabyte on
 * small processors. */
#define PST_L2_BOUNCE_BYTES (128u << 10)

enum pst_lane_kind {
	PST_LANE_PUMP,	   /* a thread of a pump */
	PST_LANE_BORROWED, /* turned by a caller's thread for one request */
	PST_LANE_INLINE,   /* a queue's own, turned by the calls on the queue */
};

struct pst_lane {
	struct pst_pump *pump;
	unsigned index;
	enum pst_lane_kind kind;
	/* Inline lanes: the queue's completion list and count of requests in flight. Such a lane
	 * sleeps only while the list is empty and the count is not 0. Else both NULL. */
	_Atomic(struct pst_request *) *completed;
	const _Atomic unsigned *inflight;
	pthread_t thread;
	const struct pst_engine_ops *engine_ops;
	struct pst_engine *engine;
	/* Why the engine is not the preferred one, or its slots are not registered. Constant
	 * once the lane is open, because any thread may read it of a pump's first lane. */
	struct pst_err engine_why;
	enum penstock_why call_why; /* the same for its calls; on its own thread */
	bool engine_due; /* plain calls until the first one for the engine, which opens it */
	bool fixed;	 /* the slots are registered with the engine */
	int wake_fd;
	_Atomic bool asleep;
	_Atomic(struct pst_lane_entry *) inbox; /* requests from other threads */
	_Atomic(struct pst_io *) io_inbox;	/* transfers that other threads completed */
	struct pst_lane_entry *todo[PST_PRIORITIES], **todo_end[PST_PRIORITIES];
	unsigned todo_count;
	uint64_t deadline_ns; /* the earliest of the requests on its lists; 0: none */
	struct pst_chunk *chunks, *chunks_free;
	struct pst_chunk *deferred, **deferred_end; /* claimed, waiting for a slot */
	size_t slot_bytes;			    /* of a big slot */
	struct pst_slot_counts slot_counts;	    /* of the whole ring */
	bool wants_ring; /* was short of slots: pin the rest of the ring */
	char *l2_buffer; /* PST_L2_BOUNCE_BYTES, used within one call; NULL: none */
	struct pst_ring ring;
	struct pst_slots slots;
	unsigned busy;			   /* chunks that are not complete */
	unsigned direct;		   /* of them, chunks in transfer to or from a drive */
	unsigned reading;		   /* of those, reads */
	unsigned copies;		   /* chunks that wait for copies */
	uint64_t copy_bytes;		   /* bytes of those copies */
	_Atomic unsigned load;		   /* entries in inbox and todo, for choosing a lane */
	_Atomic unsigned busy_seen;	   /* busy, as of the last turn */
	_Atomic unsigned turns;		   /* completed turns */
	_Atomic unsigned turns_seen;	   /* turns when a request was last handed to it */
	_Atomic uint64_t turned_ns;	   /* when turns_seen last changed, or it was idle */
	_Atomic unsigned requests;	   /* handed to it first, not complete */
	_Atomic(struct pst_copyq *) given; /* opened for it by other threads */
	struct pst_copyq *copyqs[PST_DEVICES_MAX];
	unsigned copyq_count;
	struct pst_lane_entry *watched; /* armed requests, waiting for their stream */
	uint64_t watch_asked_ns;	/* when the device was last asked whether it works */
	unsigned idle_turns;
	struct pst_spin spin;
	uint64_t idle_since;	     /* start of an idle time with copies in flight; 0: not idle */
	_Atomic bool invalidate_due; /* drop what the pump names */
	_Atomic uint64_t caches;     /* cache_bit of each storage that it caches something of */
	_Atomic uint64_t copies_to;  /* bit i: it has a copy queue for device i */
	unsigned cancel_turn;	     /* the pump's cancel_turn that it has seen */
	bool trim_due;		     /* paths have something to trim when it is idle */
	void *path_state[PST_PATHS_MAX];
	_Atomic bool taken; /* borrowed lanes: in use */
	struct pst_err open_err;
};

/* Opens a lane whose pump, kind and slot counts are set, on the thread that will turn it. */
int pst_lane_open(struct pst_lane *lane, struct pst_err *err);
/* Populates the first part of its ring and registers it. Same thread, before its first chunk. */
void pst_lane_pin(struct pst_lane *lane);
/* Closes a lane with nothing in flight, on the same thread; a borrowed lane on any. */
void pst_lane_close(struct pst_lane *lane);

/* Opens the lane's engine if that is due. Its thread calls this before it hands the engine a
 * call. */
void pst_lane_want_engine(struct pst_lane *lane);

/* Runs one turn. If there was nothing to do, waits at most wait_us; -1: until woken. */
void pst_lane_turn(struct pst_lane *lane, int64_t wait_us);

/* Drops what it caches of a storage, and its copy queue on a device (either may be NULL), with
 * nothing of them in flight. */
void pst_lane_invalidate(struct pst_lane *lane, struct penstock_storage *st,
			 struct penstock_device *dev);
/* Whether it caches anything of them. Any thread, nothing of them in flight. */
bool pst_lane_caches(const struct pst_lane *lane, const struct penstock_storage *st,
		     const struct penstock_device *dev);

/* Lets paths release what no request needs any more. Sets lane->trim_due if there is more. */
void pst_lane_trim(struct pst_lane *lane);

/* Carries out one fill or drain and waits for it. Completions of other chunks are processed
 * meanwhile. The lane's thread. */
int pst_lane_io_now(struct pst_lane *lane, struct pst_io *io);

#endif
