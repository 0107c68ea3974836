/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pump of a device: its lanes, their rings and copy queues, made at the first route and
 * shared by all queues of the process. A caller's thread may take the place of a lane for a
 * request of one chunk: it borrows one.
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

#define PST_BORROWED_MAX 16 /* caller's threads at once in place of a lane */

/*
 * All lanes of a pump open first, and then all of them pin their rings: while one populates its
 * ring, no other can map memory, nor can a thread be created. The pump has started when the
 * first lane's ring is pinned; the other lanes join in when theirs are.
 */
struct pst_pump_start {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	unsigned created; /* threads, once all are */
	unsigned open, failed;
	bool pinned;
};

/* What a lane that is not the pump's registers with it. Called with members_lock held. */
struct pst_pump_member {
	struct pst_pump_member *next;
	/* As in pst_device_hooks. */
	void (*invalidate)(struct pst_pump_member *member, struct penstock_storage *st,
			   struct penstock_device *closing);
	void (*help)(struct pst_pump_member *member);
};

/* What stream order registers with the pump at the first stream-ordered request. */
struct pst_stream_hooks {
	/* Begins the lane's watched requests whose stream has arrived. Returns how many left the
	 * list. The lane's thread. */
	int (*poll)(struct pst_lane *lane);
	/* Frees pump->semaphores when the pump stops. */
	void (*close)(struct pst_pump *pump);
};

struct pst_semaphores;
struct pst_pump {
	struct penstock_device *dev;
	struct pst_pump_start start;
	unsigned lane_count;
	struct pst_lane *lanes;
	struct pst_lane spare[PST_BORROWED_MAX]; /* for callers' threads, opened as needed */
	struct pst_numa numa;			 /* where lanes run and rings are */
	size_t slot_bytes;
	_Atomic uint64_t attached; /* bit i: its lanes can copy to device i as well */
	/* queue/stream.c's; the hooks are set before the semaphores. NULL until needed. */
	_Atomic(struct pst_semaphores *) semaphores;
	const struct pst_stream_hooks *stream_hooks;
	/* What closes; set under the device table's lock. Lanes that cache nothing of it are
	 * neither asked nor waited for: one may hang in a system call. */
	_Atomic(struct penstock_storage *) closing_storage;
	_Atomic(struct penstock_device *) closing_device;
	_Atomic unsigned cancel_turn; /* raised when a request in flight is cancelled */
	pthread_mutex_t members_lock; /* taken under the device table's lock, or alone */
	struct pst_pump_member *members;
	_Atomic unsigned outside; /* threads in pst_io_done */
	_Atomic bool growing;	  /* a lane pins the rest of its ring */
	_Atomic bool stop;
};

/* How the device table starts and stops a device's pump. */
extern const struct pst_device_hooks pst_pump_hooks;

/* Ring memory of the pump's own lanes. */
size_t pst_pump_ring_bytes(const struct pst_pump *pump);

/* Gives every lane a copy queue on another device, before its first request with segments on
 * both. May block: creating streams at times waits for the whole context, which a lane that a
 * stream waits for must not do. */
int pst_pump_attach(struct pst_pump *pump, struct penstock_device *dev, struct pst_err *err);

void pst_pump_add_member(struct pst_pump *pump, struct pst_pump_member *member);
void pst_pump_remove_member(struct pst_pump *pump, struct pst_pump_member *member);

/* Hands a request to a lane and opens it. Any thread. */
void pst_pump_submit(struct pst_request *req);
/* Makes every lane check its chunks and lists for cancelled requests. Any thread that keeps a
 * request of the pump from completing. */
void pst_pump_cancel(struct pst_pump *pump);

/* Borrows a lane for this thread, to be returned. NULL: all are in use, or none opens. */
struct pst_lane *pst_lane_borrow(struct pst_pump *pump);
/* The same, but waits while all are in use. NULL: none opens, for the reason in err. */
struct pst_lane *pst_lane_borrow_wait(struct pst_pump *pump, struct pst_err *err);
void pst_lane_return(struct pst_lane *lane);
/* Opens the request and runs it on a borrowed lane until it has completed. */
void pst_lane_run(struct pst_lane *lane, struct pst_request *req);

#endif
