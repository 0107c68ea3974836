/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane: a loop that moves chunks, with its slots, its engine and its copy queues. Most lanes are
 * threads of a pump. One pass of the loop is a turn. A lane without a thread runs its turns in a
 * thread of the application. A borrowed lane does so for one request (pump.h), an inline lane
 * inside the public functions on its queue (queue/inline_lane.h). Only the thread that runs a
 * lane's turns accesses its chunks.
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

/* Size of the buffer through which path bounce copies. The buffer must fit in the CPU's
 * second-level (L2) cache, which has only 512 KiB on small processors. */
#define PST_L2_BOUNCE_BYTES (128u << 10)

enum pst_lane_kind {
	PST_LANE_PUMP,	   /* runs in a thread of a pump */
	PST_LANE_BORROWED, /* used by a caller's thread for one request */
	PST_LANE_INLINE,   /* belongs to a queue and runs inside the public functions on it */
};

struct pst_lane {
	struct pst_pump *pump;
	unsigned index; /* index in pump->lanes; 0 for lanes of other kinds */
	enum pst_lane_kind kind;
	/* For an inline lane: the completion list of its queue, and the number of the queue's
	 * requests in flight. The lane sleeps only while the list is empty and the number is not 0.
	 * For other lanes `completed` and `inflight` are NULL. */
	_Atomic(struct pst_request *) *completed;
	const _Atomic unsigned *inflight;
	pthread_t thread;
	const struct pst_engine_ops *engine_ops;
	struct pst_engine *engine;
	/* Why the engine is not the preferred one, or why the slots are not registered with the
	 * engine. Constant once the lane is open, because any thread may read the member of the
	 * first lane. */
	struct pst_err engine_why;
	/* The latest such reason, for reports; only the lane's thread accesses it. */
	enum penstock_why call_why;
	/* The preferred engine is not open yet; the first call that needs it opens it. */
	bool engine_due;
	bool fixed;				/* the slots are registered with the engine */
	int wake_fd;				/* eventfd; a write to it wakes the lane */
	_Atomic bool asleep;			/* the lane may be sleeping in engine_ops->wait */
	_Atomic(struct pst_lane_entry *) inbox; /* requests that other threads have pushed */
	_Atomic(struct pst_io *) io_inbox;	/* transfers that other threads have completed */
	/* Requests that the lane claims chunks from: one list for each priority. */
	struct pst_lane_entry *todo[PST_PRIORITIES], **todo_end[PST_PRIORITIES];
	unsigned todo_count;
	/* Earliest deadline of the requests on `todo`; 0 if none has a deadline. */
	uint64_t deadline_ns;
	/* A time not later than the first deadline that has not passed of a request with a transfer
	 * in flight that the storage can cancel; 0 if there is none. */
	uint64_t cut_ns;
	/* The pool of all chunks, and the list of free chunks. */
	struct pst_chunk *chunks, *chunks_free;
	/* List of claimed chunks that wait for a slot. */
	struct pst_chunk *deferred, **deferred_end;
	size_t slot_bytes;		    /* length of a big slot */
	struct pst_slot_counts slot_counts; /* numbers of slots in the whole ring */
	/* A chunk found no free slot, so the lane shall pin the second part of its ring. */
	bool wants_ring;
	/* Buffer of PST_L2_BOUNCE_BYTES for path bounce; NULL if the lane needs none. */
	char *l2_buffer;
	struct pst_ring ring;
	struct pst_slots slots;
	unsigned busy;	     /* number of chunks that are not complete */
	unsigned direct;     /* number of chunks in transfer between a drive and memory */
	unsigned reading;    /* number of chunks in transfer from a drive to memory */
	unsigned copies;     /* number of chunks that wait for copies */
	uint64_t copy_bytes; /* number of bytes in the copies that chunks wait for */
	/* Number of entries in `inbox` and `todo`; the pump chooses a lane by it. */
	_Atomic unsigned load;
	_Atomic unsigned busy_seen;  /* value of `busy` in the last turn, for other threads */
	_Atomic unsigned turns;	     /* number of completed turns */
	_Atomic unsigned turns_seen; /* value of `turns` that the last submitting thread saw */
	/* Time at which a submitting thread last saw a new value of `turns`, or an idle lane. */
	_Atomic uint64_t turned_ns;
	/* Number of incomplete requests that were passed to this lane first. */
	_Atomic unsigned requests;
	/* Copy queues that other threads have opened for this lane. */
	_Atomic(struct pst_copyq *) given;
	/* one for each device, and one for copies within the memory of the lane's device */
	struct pst_copyq *copyqs[PST_DEVICES_MAX + 1];
	unsigned copyq_count;
	/* Storage of the mixed request for which the lane makes long calls of the device's driver;
	 * NULL if it makes none. The request's other lanes pass their copies to this lane, because
	 * their own calls of the driver would wait. */
	_Atomic(struct penstock_storage *) drives;
	_Atomic(struct pst_chunk *) passed;   /* other lanes' chunks that this lane shall copy */
	_Atomic(struct pst_chunk *) returned; /* own chunks that another lane has copied */
	/* List of passed chunks whose copies are not queued yet, and number of those that are. */
	struct pst_chunk *passed_todo, **passed_todo_end;
	unsigned passed_count;
	/* Stages of stream-ordered requests, whose streams the lane polls. */
	struct pst_stage *watched;
	uint64_t watch_asked_ns; /* time of the lane's last check that the device works */
	bool stage_waits;	 /* a deferred chunk waits for a stream */
	unsigned idle_turns;	 /* number of consecutive turns without work */
	struct pst_spin spin;
	/* Time since which the lane has only waited for copies; 0 if it does not. */
	uint64_t idle_since;
	/* The lane must drop its cached state of the closing storage or device. */
	_Atomic bool invalidate_due;
	/* The cache_bits of all storages that the lane has cached state of. */
	_Atomic uint64_t caches;
	_Atomic uint64_t copies_to; /* bit i is set if the lane has a copy queue for device i */
	unsigned cancel_turn; /* the last value of pump->cancel_turn that the lane has handled */
	bool trim_due;	      /* paths have unused state to release when the lane is idle */
	void *path_state[PST_PATHS_MAX]; /* each path's state for this lane */
	_Atomic bool taken;		 /* for borrowed lanes: the lane is in use */
	struct pst_err open_err; /* why the lane, or one of its copy queues, could not be opened */
};

/* Opens a lane, on the thread that will run it. The caller has set the lane's pump, kind and slot
 * counts. */
int pst_lane_open(struct pst_lane *lane, struct pst_err *err);
/* Populates and registers the first part of the lane's ring. Called on the lane's thread, before
 * its first chunk. */
void pst_lane_pin(struct pst_lane *lane);
/* Closes a lane that has nothing in flight. Called on the lane's thread; a borrowed lane may be
 * closed by any thread. */
void pst_lane_close(struct pst_lane *lane);

/* Opens the lane's preferred engine if it is not open yet. The lane's thread calls it before it
 * submits a call to the engine. */
void pst_lane_want_engine(struct pst_lane *lane);

/* Runs one turn of the lane's loop. If there was nothing to do, waits until another thread or a
 * completion wakes the lane, but at most wait_us microseconds unless wait_us is -1. */
void pst_lane_turn(struct pst_lane *lane, int64_t wait_us);

/* Drops the lane's cached state of a storage, or of a device together with the copy queue on it.
 * The other argument may be NULL. No chunk of that storage or device may be in flight on the
 * lane. */
void pst_lane_invalidate(struct pst_lane *lane, struct penstock_storage *st,
			 struct penstock_device *dev);
/* Returns whether the lane has cached state of the storage, or a copy queue on the device. Any
 * thread may call it while no chunk of that storage or device is in flight. */
bool pst_lane_caches(const struct pst_lane *lane, const struct penstock_storage *st,
		     const struct penstock_device *dev);

/* Lets the paths release resources that no request needs any more. Sets lane->trim_due if some are
 * left to release. */
void pst_lane_trim(struct pst_lane *lane);

/* Makes one fill or drain and waits until it is complete. Meanwhile it processes completions of
 * other chunks. Called on the lane's thread. */
int pst_lane_io_now(struct pst_lane *lane, struct pst_io *io);

#endif
