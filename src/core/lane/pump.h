/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The pump of a device: its worker threads (lanes), with their staging memory and copy queues. The
 * pump starts when a storage is first used with the device, and all queues of the process share it.
 * A caller's thread may execute a request of at most 1 MiB itself. The thread then borrows a spare
 * lane, which has no thread of its own.
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

/* Number of spare lanes, and so of threads that can borrow one at the same time. */
#define PST_BORROWED_MAX 16

/*
 * State of a pump that is being started. All its lanes open first, and only after that do they pin
 * their staging memory (rings). The reason is that while one lane populates its memory, no thread
 * of the process can map memory or create a thread. The pump has started when the first lane's
 * memory is pinned. Each other lane starts work when its own memory is pinned.
 */
struct pst_pump_start {
	pthread_mutex_t lock;
	pthread_cond_t cond;
	unsigned created; /* number of created threads, set when all are created */
	/* Number of lanes that have opened or failed to open, and number of lanes that failed. */
	unsigned open, failed;
	bool pinned; /* the first lane has pinned its staging memory */
	/* Number of lanes that have finished their start, also if they could not open or pin their
	 * memory. The last lane has first prepared the device for stream-ordered requests. */
	unsigned ready;
};

/* A member of a pump: an inline lane, which uses the pump's device but has no thread and is not in
 * pump->lanes. The pump calls these functions with members_lock held. Each function does for this
 * lane what the function of the same name in pst_device_hooks does for all lanes of the pump. */
struct pst_pump_member {
	struct pst_pump_member *next;
	void (*invalidate)(struct pst_pump_member *member, struct penstock_storage *st,
			   struct penstock_device *closing);
	void (*help)(struct pst_pump_member *member);
};

/* Functions of queue/stream_poll.c that pumps call for stream-ordered requests. They are function
 * pointers because code in lane/ must not call code in queue/. */
struct pst_stream_hooks {
	/* Checks the stages on the list lane->watched. Starts the requests that streams have
	 * reached. Removes the stages that streams have passed. Returns how many requests it has
	 * started or failed, and how many stages it has removed. Called on the lane's thread. */
	int (*poll)(struct pst_lane *lane);
	/* Closes pump->streams when the GPU's pump stops. */
	void (*close)(struct pst_pump *pump);
};

struct pst_streams; /* in core/queue/streams.h */
struct pst_pump {
	struct penstock_device *dev;
	struct pst_pump_start start;
	unsigned lane_count;
	struct pst_lane *lanes; /* lanes with a thread */
	/* Lanes that callers' threads borrow, opened as needed. */
	struct pst_lane spare[PST_BORROWED_MAX];
	struct pst_numa numa;	   /* NUMA node of the lanes' threads and memory */
	size_t slot_bytes;	   /* length of a big slot of the lanes */
	_Atomic uint64_t attached; /* bit i is set if the lanes can also copy to device i */
	/* For stream-ordered requests. `streams` and `stream_hooks` are NULL until queue/streams.c
	 * sets them at the first such request of the device: first the hooks, then the streams. */
	_Atomic(struct pst_streams *) streams;
	const struct pst_stream_hooks *stream_hooks;
	/* The storage or device that is being closed, or NULL. The closing thread sets it with the
	 * lock of the table of devices held. It waits only for lanes that have cached state of the
	 * storage or device, because other lanes may hang in a system call. */
	_Atomic(struct penstock_storage *) closing_storage;
	_Atomic(struct penstock_device *) closing_device;
	_Atomic unsigned cancel_turn; /* incremented when a request in flight is cancelled */
	/* Guards `members`. A thread that takes this lock holds either no lock or the lock of the
	 * table of devices. */
	pthread_mutex_t members_lock;
	struct pst_pump_member *members;
	_Atomic unsigned outside; /* number of threads that are in pst_io_done */
	_Atomic bool growing;	  /* a lane is pinning the second part of its staging memory */
	_Atomic bool stop;
};

/* The functions by which the table of devices (base/devices.c) starts and stops a device's pump and
 * makes its lanes drop cached state. */
extern const struct pst_device_hooks pst_pump_hooks;

/*
 * Starts another pump for the stream-ordered requests of the GPU that the pump `of` belongs to. The
 * new pump's lanes move bytes only between storage and host memory, so they never call the GPU's
 * driver. `host` is a host device that the caller has opened. The table of devices does not know
 * the new pump: the caller stops it with pst_pump_close_plain when none of its requests is in
 * flight.
 */
int pst_pump_open_plain(const struct pst_pump *of, struct penstock_device *host,
			struct pst_streams *streams, const struct pst_stream_hooks *hooks,
			struct pst_pump **out, struct pst_err *err);
void pst_pump_close_plain(struct pst_pump *pump);

/* Waits until all lanes are ready: see struct pst_pump_start. Then the lanes' threads make no call
 * of the driver before they get a request. Any thread. */
void pst_pump_await_ready(struct pst_pump *pump);

/* Returns the number of bytes in the staging memory of all lanes in pump->lanes. */
size_t pst_pump_ring_bytes(const struct pst_pump *pump);

/* Attaches another device to the pump, so that its lanes can also copy to and from that device.
 * Opens a copy queue on the device for every lane. Called before the first request with segments on
 * both devices. It may block, because creating CUDA streams can wait for all streams of the
 * context. A lane must not call it while a stream waits for one of the lane's requests. */
int pst_pump_attach(struct pst_pump *pump, struct penstock_device *dev, struct pst_err *err);

/*
 * Returns the index of a lane among the lanes that share a request. If the plan uses several paths
 * at the same time (mixed paths), the lane with index 0 carries chunks on the first of these paths.
 * The home lane, to which the pump passed the request first, has the last index. The reason is that
 * the pump also passes the next short requests to the home lane. Starting a chunk on the first
 * mixed path would block the home lane for milliseconds.
 */
static inline unsigned pst_pump_lane_number(const struct pst_request *req,
					    const struct pst_lane *lane)
{
	unsigned count = lane->pump->lane_count;

	return req->home_lane ? (lane->index + count - 1 - req->home_lane->index + count) % count
			      : 0;
}
/* Returns the lane for which pst_pump_lane_number is 0, for a request that has a home lane. */
static inline struct pst_lane *pst_pump_first_lane(const struct pst_request *req)
{
	const struct pst_pump *pump = req->pump;

	return &pump->lanes[(req->home_lane->index + 1) % pump->lane_count];
}

/* Add an inline lane (a lane inside a queue, without a thread) to the pump's list of members, or
 * remove it. */
void pst_pump_add_member(struct pst_pump *pump, struct pst_pump_member *member);
void pst_pump_remove_member(struct pst_pump *pump, struct pst_pump_member *member);

/* Makes the request known to other threads (pst_req_open), and passes it to one of the pump's
 * lanes. Any thread may call it. */
void pst_pump_submit(struct pst_request *req);
/* Makes every lane check its chunks and lists for cancelled requests. Any thread that has a
 * reference to a request of the pump may call it. */
void pst_pump_cancel(struct pst_pump *pump);

/* Borrows a spare lane for the calling thread, which must give it back with pst_pump_return.
 * Returns NULL if all are in use, or if the lane cannot be opened. */
struct pst_lane *pst_pump_borrow(struct pst_pump *pump);
/* Borrows a spare lane, and waits while all are in use. Returns NULL if the lane cannot be opened,
 * with the reason in `err`. */
struct pst_lane *pst_pump_borrow_wait(struct pst_pump *pump, struct pst_err *err);
void pst_pump_return(struct pst_lane *lane);
/* Runs the request on a borrowed lane until all of its bytes have moved. A request that is not in
 * stream order has then completed. */
void pst_pump_run(struct pst_lane *lane, struct pst_request *req);

#endif
