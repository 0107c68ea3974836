/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pump of a device: its lanes (threads), its ring and their copy queues, made
 * at the first route and shared by all queues. A lane is a loop: take what came
 * in, reap system calls, reap copies, claim and start chunks, sleep. Everything of
 * a chunk happens on its lane's thread. A caller's thread may take the place of a
 * lane for a request of one chunk (pst_lane_borrow), or have a lane of its own (own.h).
 */
#ifndef PST_CORE_PUMP_H
#define PST_CORE_PUMP_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/machine/numa.h"
#include "core/ops.h"
#include "core/request/request.h"
#include "core/lane/ring.h"
#include "core/base/spin.h"

#define PST_LANE_CHUNKS 256 /* in flight on one lane */
#define PST_BORROWED_MAX 16 /* caller's threads at once in place of a lane */

/* Chunks waiting for a copier's tickets, oldest first. */
struct pst_copyq {
	struct pst_copyq *link; /* while on its way to its lane */
	struct penstock_device *dev;
	struct pst_copier *copier;
	unsigned head, tail; /* of the ring below; tail - head waiting */
	unsigned unmarked;   /* of them, the last ones have no ticket yet */
	uint64_t unmarked_bytes;
	struct {
		uint64_t ticket;
		int error; /* when no ticket could be had */
		uint64_t bytes;
		struct pst_chunk *chunk;
	} waits[PST_LANE_CHUNKS];
};

/* Stays in a second-level cache, of which small processors have half a megabyte. */
#define PST_L2_BOUNCE_BYTES (128u << 10)

struct pst_lane {
	struct pst_pump *pump;
	unsigned index;
	bool borrowed; /* by a caller's thread, for one request; calls at once */
	/* A queue's own: it sleeps while this list is empty and something is to come onto
	 * it. Else both NULL. */
	_Atomic(struct pst_request *) *completed;
	const _Atomic unsigned *inflight;
	pthread_t thread;
	const struct pst_engine_ops *engine_ops;
	struct pst_engine *engine;
	/* Why not the first engine, or not registered: as of when it opened, because anybody
	 * may read that of a pump's first lane; and what its calls say, on its own thread. */
	struct pst_err engine_why;
	enum penstock_why call_why;
	bool engine_due; /* it is opened with the first call, and until then a plain one */
	bool fixed;	 /* the slots are registered with the engine */
	int wake_fd;
	_Atomic bool asleep;
	_Atomic(struct pst_lane_entry *) inbox;
	_Atomic(struct pst_io *) io_inbox; /* ended on other threads */
	struct pst_lane_entry *todo[PST_PRIORITIES], **todo_end[PST_PRIORITIES];
	unsigned todo_count;
	uint64_t deadline_ns; /* the first of those on its lists; 0: none */
	struct pst_chunk *chunks, *chunks_free;
	struct pst_chunk *deferred, **deferred_end; /* claimed, waiting for a slot */
	size_t slot_bytes;			    /* of a big slot */
	struct pst_slot_counts slot_counts;	    /* that its ring is to have */
	bool wants_ring;			    /* all of it: it was short of slots */
	char *l2_buffer; /* PST_L2_BOUNCE_BYTES for path/past.c, within a call; NULL: has none */
	struct pst_ring ring;
	struct pst_slots slots;
	unsigned busy;			   /* chunks started, not ended */
	unsigned direct;		   /* of them, with a drive */
	unsigned reading;		   /* of those, to be read */
	unsigned copies;		   /* of them, waiting for copies */
	uint64_t copy_bytes;		   /* that they wait for */
	_Atomic unsigned load;		   /* entries in inbox and todo, for choosing a lane */
	_Atomic unsigned busy_seen;	   /* busy, as of the last turn */
	_Atomic unsigned turns;		   /* that it has ended */
	_Atomic unsigned turns_seen;	   /* by who last handed a request in, and */
	_Atomic uint64_t turned_ns;	   /* since when, or since it had nothing to do */
	_Atomic unsigned requests;	   /* handed in here first, not ended */
	_Atomic(struct pst_copyq *) given; /* that another thread opened for it */
	struct pst_copyq *copyqs[PST_DEVICES_MAX];
	unsigned copyq_count;
	struct pst_lane_entry *watched; /* armed, waiting for their stream */
	uint64_t watch_asked_ns;	/* when the device was last asked whether it works */
	unsigned idle_turns;
	struct pst_spin spin;
	uint64_t idle_since;	     /* with copies under way; 0: not idle */
	_Atomic bool invalidate_due; /* it is to drop what the pump names */
	_Atomic uint64_t caches;     /* marks of storages that it keeps something of */
	_Atomic uint64_t copies_to;  /* bit i: it has a copy queue of device i */
	unsigned cancel_turn;	     /* the last one that it has seen */
	bool trim_due;		     /* paths have something to do when idle */
	void *path_state[PST_PATHS_MAX];
	_Atomic bool taken; /* borrowed lanes: in use */
	struct pst_err open_err;
};

/* Before a call is handed to its engine, on its own thread. */
void pst_lane_want_engine(struct pst_lane *lane);

/* No thread of the pump's drives it, but the calls on a queue (own.h). */
static inline bool pst_lane_is_own(const struct pst_lane *lane)
{
	return lane->completed;
}

/* Lanes open, all of them, and then pin their rings, all of them: while one populates its
 * own no other can map memory, nor can a thread be made. The pump has started when the
 * first lane's ring is pinned; the others join in as they come. */
struct pst_pump_start {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	unsigned made; /* threads, when all are */
	unsigned open, failed;
	bool pinned;
};

struct pst_pump {
	struct penstock_device *dev;
	struct pst_pump_start start;
	unsigned lane_count;
	struct pst_lane *lanes;
	struct pst_lane spare[PST_BORROWED_MAX]; /* for callers, opened as needed */
	struct pst_numa numa;			 /* where lanes and rings belong */
	size_t slot_bytes;
	_Atomic uint64_t attached; /* bit i: its lanes can copy to device i as well */
	_Atomic(struct pst_semaphores *) semaphores; /* stream.c's, NULL until needed */
	/* What closes; set under the device lock. Lanes that have nothing of it are neither asked
	 * nor waited for: one may hang in a call. */
	_Atomic(struct penstock_storage *) forget;
	_Atomic(struct penstock_device *) forget_device;
	_Atomic unsigned cancel_turn;	      /* raised when a request in hand is cancelled */
	pthread_mutex_t inline_lanes_lock;    /* taken under the device lock, or alone */
	struct pst_inline_lane *inline_lanes; /* lanes of queues, for own.c */
	_Atomic unsigned outside;	      /* threads in pst_io_done */
	_Atomic bool growing;		      /* a lane pins the rest of its ring */
	_Atomic bool stop;
};

/* Starts the pump if it does not run. Under the device table's lock. */
int pst_pump_start(struct penstock_device *dev, struct pst_err *err);
/* Of its lanes, callers' apart. */
size_t pst_pump_ring_bytes(const struct pst_pump *pump);
/* When all that was handed to it has ended. Under the same lock, in the process that started
 * it. */
void pst_pump_stop(struct penstock_device *dev);

/* Gives every lane a copy queue of another device, before its first request with parts on
 * both. May block: making streams waits for the whole context now and then, which a lane
 * that a stream waits for must not. */
int pst_pump_attach(struct pst_pump *pump, struct penstock_device *dev, struct pst_err *err);
/* In the child of a fork. */
void pst_pumps_forked(void);

/* Hands a request, cut and counted, to the pump, opened. Any thread. */
void pst_pump_submit(struct pst_request *req);
/* Has every lane look for chunks of cancelled requests. Any thread that keeps a request of
 * the pump from ending. */
void pst_pump_cancel(struct pst_pump *pump);
/* Drops what lanes keep of a storage or another device that closes (the other NULL);
 * returns when all that keep something have. */
void pst_pump_invalidate(struct pst_pump *pump, struct penstock_storage *st,
			 struct penstock_device *dev);
/* Lets up to `lanes` lanes (0: all) work on it. A lane's thread. */
void pst_pump_spread(struct pst_request *req, struct pst_lane *lane, unsigned lanes);
/* Puts the request back on this lane's own list. */
void pst_lane_list(struct pst_lane *lane, struct pst_request *req);

/* A lane for this thread, or NULL: all are taken. Give it back when done. */
struct pst_lane *pst_lane_borrow(struct pst_pump *pump);
/* The same, but waits for one. NULL: none could be opened, and why. */
struct pst_lane *pst_lane_borrow_wait(struct pst_pump *pump, struct pst_err *err);
void pst_lane_return(struct pst_lane *lane);
/* Runs the request on a borrowed lane, opened, until it has ended. */
void pst_lane_run(struct pst_lane *lane, struct pst_request *req);
/* One turn; waits at most wait_us if there was nothing to do. For canaries. */
void pst_lane_turn(struct pst_lane *lane, int64_t wait_us);

/* ---- for paths, on the lane's thread ---- */

struct pst_chunk *pst_chunk_get(struct pst_lane *lane);
void pst_chunk_put(struct pst_chunk *chunk);

/* Before bytes go between a drive and memory, and after: false when so many calls are on
 * their way that more would only wait in front of the drive (virtio, 1 MiB each: 32 4.3 GB/s,
 * 64 3.7), whatever number of lanes they come from. A lane that has none there may always
 * begin, so that whoever is refused is woken by an end of his own. */
#define PST_DIRECT_CALLS_MAX 32ull
bool pst_chunk_direct_begin(struct pst_chunk *chunk, uint64_t len);
void pst_chunk_direct_end(struct pst_chunk *chunk);

/* Queues copies between the slot memory `base` (its first byte is storage offset
 * chunk->off) and the parts of the chunk, both ways by the request's op, over the
 * first `len` bytes; then `after` is called once, with 0 or -errno. */
int pst_chunk_copy(struct pst_chunk *chunk, char *base, uint64_t len,
		   void (*after)(struct pst_chunk *chunk, int result));

#endif
