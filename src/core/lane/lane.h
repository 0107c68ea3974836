/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane: a loop that moves chunks (ranges of storage bytes), with its own staging slots, its
 * engine for system calls and its copy queues. Most lanes are threads of a pump, which is the set
 * of a device's worker threads. One pass of the loop is a turn. A lane without a thread runs its
 * turns in a thread of the application. A borrowed lane does so for one request (pump.h), an inline
 * lane inside the public functions on its queue (queue/inline_lane.h). Only the thread that runs a
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

/* Size of the buffer through which path `bounce` copies bytes from the page cache to a GPU. The
 * buffer must fit in the CPU's second-level (L2) cache, which has only 512 KiB on small
 * processors. */
#define PST_L2_BOUNCE_BYTES (128u << 10)

enum pst_lane_kind {
	PST_LANE_PUMP,	   /* has a worker thread of its device's pump */
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
	/* Why the engine (the way to make system calls) is not the preferred one, or why the slots
	 * are not registered with the engine. Constant once the lane is open, because any thread
	 * may read this member of the first lane. */
	struct pst_err engine_why;
	/* The reason of the lane's latest error of the two kinds that engine_why describes, for
	 * reports. Only the lane's thread accesses it. */
	enum penstock_why call_why;
	/* The lane has not opened its preferred engine. The first call that needs it opens it. */
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
	/* Time in ns at which the lane checks for transfers to cancel; 0 if there are none to
	 * check. It is not later than the next deadline of a request with a transfer in flight that
	 * the storage can cancel. */
	uint64_t cut_ns;
	/* The pool of all chunks, and the list of free chunks. */
	struct pst_chunk *chunks, *chunks_free;
	/* List of deferred chunks: they are claimed, but wait for a free staging slot or for their
	 * stream. */
	struct pst_chunk *deferred, **deferred_end;
	size_t slot_bytes;		    /* length of a big slot */
	struct pst_slot_counts slot_counts; /* numbers of slots in all staging memory */
	/* A chunk found no free slot, so the lane shall pin the second part of its staging
	 * memory. */
	bool wants_ring;
	/* Buffer of PST_L2_BOUNCE_BYTES for path `bounce`; NULL if the lane needs none. */
	char *l2_buffer;
	struct pst_ring ring;
	struct pst_slots slots;
	unsigned busy;	     /* number of chunks that are not complete */
	unsigned direct;     /* number of chunks in transfer between a drive and memory */
	unsigned reading;    /* number of chunks in transfer from a drive to memory */
	unsigned copies;     /* number of chunks that wait for copies */
	uint64_t copy_bytes; /* number of bytes in the copies that chunks wait for */
	/* Number of requests in `inbox` and `todo`. The pump gives new requests to lanes with low
	 * load. */
	_Atomic unsigned load;
	_Atomic unsigned busy_seen;  /* copy of `busy` for other threads */
	_Atomic unsigned turns;	     /* number of completed passes of the loop */
	_Atomic unsigned turns_seen; /* value of `turns` that the last submitting thread saw */
	/* Time in ns at which a submitting thread last saw that `turns` had changed, or that the
	 * lane was idle. An old time means that the lane may hang. */
	_Atomic uint64_t turned_ns;
	/* Number of incomplete requests that were submitted to this lane. Requests that another
	 * lane has passed on to this lane do not count. A completed request also counts until
	 * the lane has cleared its stage. */
	_Atomic unsigned requests;
	/* Copy queues that other threads have opened for this lane. */
	_Atomic(struct pst_copyq *) given;
	/* Copy queues: one for each device, and one for copies from and to the memory of the lane's
	 * own device. */
	struct pst_copyq *copyqs[PST_DEVICES_MAX + 1];
	unsigned copyq_count;
	/* While the lane starts a chunk whose path calls the device's driver for long, the storage
	 * of that chunk; otherwise NULL. The request's other lanes then pass their copies to this
	 * lane, because their own calls of the driver would wait. */
	_Atomic(struct penstock_storage *) drives;
	_Atomic(struct pst_chunk *) passed;   /* chunks of other lanes that this lane shall copy */
	_Atomic(struct pst_chunk *) returned; /* this lane's chunks that another lane has copied */
	/* Chunks that other lanes have passed to this lane: the list of those whose copies are not
	 * queued yet, and the number of those whose copies are queued. */
	struct pst_chunk *passed_todo, **passed_todo_end;
	unsigned passed_count;
	/* List of the pinned buffers (stages) of stream-ordered requests, whose streams the lane
	 * polls. */
	struct pst_stage *watched;
	uint64_t watch_asked_ns; /* time of the last check that the device works */
	bool stage_waits;	 /* a deferred chunk waits for a CUDA stream */
	unsigned idle_turns;	 /* number of consecutive passes of the loop without work */
	struct pst_spin spin;
	/* Time in ns since which the lane has had no work except waiting for copies; 0 if it has
	 * work. */
	uint64_t idle_since;
	/* Another thread is closing a storage or a device, and the lane must drop its cached state
	 * of it. */
	_Atomic bool invalidate_due;
	/* Bit mask: the cache_bit (see ops.h) of each storage that the lane has cached state of. */
	_Atomic uint64_t caches;
	_Atomic uint64_t copies_to; /* bit i is set if the lane has a copy queue for device i */
	unsigned cancel_turn;	    /* last value of pump->cancel_turn that it has handled */
	bool trim_due;		    /* when idle, the paths shall release unused state */
	void *path_state[PST_PATHS_MAX]; /* each path's state for this lane */
	_Atomic bool taken;		 /* for borrowed lanes: the lane is in use */
	struct pst_err open_err; /* why the lane, or one of its copy queues, could not be opened */
};

/* Opens a lane, on the thread that will run it. The caller has set the lane's pump, kind and slot
 * counts. */
int pst_lane_open(struct pst_lane *lane, struct pst_err *err);
/* Populates the first part of the lane's staging memory, and registers it with the device. Called
 * on the lane's thread, before its first chunk. */
void pst_lane_pin(struct pst_lane *lane);
/* Closes a lane that has no chunk in flight. Called on the lane's thread; a borrowed lane may be
 * closed by any thread. */
void pst_lane_close(struct pst_lane *lane);

/* Opens the lane's preferred engine (such as io_uring) if it is not open yet. The lane's thread
 * calls it before it submits a call to the engine. */
void pst_lane_want_engine(struct pst_lane *lane);

/* Runs one turn, which is one pass of the lane's loop. If there was nothing to do, waits until
 * another thread or a completion wakes the lane, but at most wait_us microseconds unless wait_us is
 * -1. */
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

/* Called when the lane is idle. Lets each path release some resources that no request needs any
 * more. Sets lane->trim_due to whether more are left to release. */
void pst_lane_trim(struct pst_lane *lane);

/* Makes one transfer from the storage (fill) or to it (drain), and waits until it is complete.
 * Meanwhile it processes completions of other chunks. Called on the lane's thread. */
int pst_lane_io_now(struct pst_lane *lane, struct pst_io *io);

#endif
