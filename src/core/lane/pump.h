/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pump of a device: its lanes, their rings and copy queues. It starts at the device's first
 * route, and all queues of the process share it. A caller's thread may carry a request of at
 * most 1 MiB itself; it then borrows a spare lane, which has no thread.
 */
#ifndef PST_CORE_PUMP_H
#define PST_CORE_PUMP_H

#include <pthread.h>
#include <stdatomic.h>

#include "core/base/devices.h"
#include "core/lane/lane.h"
#include "core/machine/numa.h"
#include "core/ops.h"
#include "core/request/request.h"

#define PST_BORROWED_MAX 16 /* spare lanes: callers' threads that borrow at once */

/*
 * The start of a pump. All its lanes open first, and then they pin their rings: while one lane
 * populates its ring, no thread of the process can map memory or create a thread. The pump has
 * started when the first lane's ring is pinned. Each other lane starts work when its own ring is
 * pinned.
 */
struct pst_pump_start {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	unsigned created;      /* number of threads, set when all are created */
	unsigned open, failed; /* lanes that have opened or failed to; lanes that failed */
	bool pinned;	       /* the first lane's ring */
};

/* A lane outside the pump that uses its device: an inline lane. The pump calls the functions with
 * members_lock held. They do the same as the functions of pst_device_hooks. */
struct pst_pump_member {
	struct pst_pump_member *next;
	void (*invalidate)(struct pst_pump_member *member, struct penstock_storage *st,
			   struct penstock_device *closing);
	void (*help)(struct pst_pump_member *member);
};

/* Calls to queue/stream.c, which sets them at the pump's first stream-ordered request. */
struct pst_stream_hooks {
	/* Starts the requests on lane->watched whose stream has reached them. Returns how many
	 * left the list. Called on the lane's thread. */
	int (*poll)(struct pst_lane *lane);
	/* Frees pump->semaphores when the pump stops. */
	void (*close)(struct pst_pump *pump);
};

struct pst_semaphores;
struct pst_pump {
	struct penstock_device *dev;
	struct pst_pump_start start;
	unsigned lane_count;
	struct pst_lane *lanes;			 /* each has a thread */
	struct pst_lane spare[PST_BORROWED_MAX]; /* lanes to borrow, opened as needed */
	struct pst_numa numa;			 /* NUMA node of the lanes' threads and rings */
	size_t slot_bytes;			 /* length of a lane's big slots */
	_Atomic uint64_t attached;		 /* bit i: its lanes can copy to device i as well */
	/* Stream order; queue/stream.c sets the hooks before the semaphores. NULL until needed. */
	_Atomic(struct pst_semaphores *) semaphores;
	const struct pst_stream_hooks *stream_hooks;
	/* The storage or device that closes, set under the device table's lock. The closing thread
	 * waits only for lanes that cache something of it, as others may hang in a system call. */
	_Atomic(struct penstock_storage *) closing_storage;
	_Atomic(struct penstock_device *) closing_device;
	_Atomic unsigned cancel_turn; /* raised when a request in flight is cancelled */
	pthread_mutex_t
		members_lock; /* guards `members`; taken under the device table's lock, or alone */
	struct pst_pump_member *members;
	_Atomic unsigned outside; /* threads that are in pst_io_done */
	_Atomic bool growing;	  /* a lane pins the rest of its ring */
	_Atomic bool stop;
};

/* The hooks by which the device table starts and stops a device's pump and clears its caches. */
extern const struct pst_device_hooks pst_pump_hooks;

/* Returns the ring memory of the pump's own lanes. */
size_t pst_pump_ring_bytes(const struct pst_pump *pump);

/* Attaches another device: opens a copy queue on it for every lane, before the first request with
 * segments on both devices. It may block, because creating streams can wait for the whole
 * context. A lane must not do that while a stream waits for one of its requests. */
int pst_pump_attach(struct pst_pump *pump, struct penstock_device *dev, struct pst_err *err);

/* Adds or removes an inline lane. */
void pst_pump_add_member(struct pst_pump *pump, struct pst_pump_member *member);
void pst_pump_remove_member(struct pst_pump *pump, struct pst_pump_member *member);

/* Opens a request and passes it to one of the pump's lanes. Any thread. */
void pst_pump_submit(struct pst_request *req);
/* Makes every lane check its chunks and lists for cancelled requests. Any thread that holds a
 * request of the pump. */
void pst_pump_cancel(struct pst_pump *pump);

/* Borrows a lane for this thread, which must return it. NULL: all are in use, or none opens. */
struct pst_lane *pst_pump_borrow(struct pst_pump *pump);
/* Borrows a lane, and waits while all are in use. NULL: none opens, for the reason in err. */
struct pst_lane *pst_pump_borrow_wait(struct pst_pump *pump, struct pst_err *err);
void pst_pump_return(struct pst_lane *lane);
/* Opens the request and runs it on a borrowed lane until it has completed. */
void pst_pump_run(struct pst_lane *lane, struct pst_request *req);

#endif
