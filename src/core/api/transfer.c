/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements penstock_read, _write, _transfer and _prepare. A transfer submits one request to a
 * queue that the caller does not see, and waits for its completion. A request of at most 1 MiB runs
 * on the calling thread, so that no other thread must wake. A request that starts when a CUDA
 * stream reaches it is refused: the waiting thread may be the thread whose work the stream waits
 * for.
 */
#include <string.h>

#include "core/base/devices.h"
#include "core/base/fork.h"
#include "core/base/struct_copy.h"
#include "core/lane/pump.h"
#include "core/queue/queue.h"
#include "core/route/route.h"

/* Open queues for synchronous transfers, which are kept to avoid opening a queue for each transfer.
 * A call takes a queue from this table, and at the end of the call puts it back. The queues belong
 * to no thread, so a thread that exits leaves no queue open. */
#define SPARE_MAX 64
static _Atomic(struct penstock_queue *) spare[SPARE_MAX];

/* Puts a queue back into the table `spare`, or closes it if the table is full. */
static void spare_put(struct penstock_queue *q)
{
	for (unsigned i = 0; i < SPARE_MAX; i++) {
		struct penstock_queue *none = NULL;

		if (atomic_compare_exchange_strong_explicit(
			    &spare[i], &none, q, memory_order_release, memory_order_relaxed))
			return;
	}
	penstock_queue_close(q);
}

/* Takes a queue from the table `spare` that accepts as many segments as the request has, or opens
 * one. While searching, it closes the first queue with too small a limit, so that the table has
 * room for a newly opened queue. */
static int spare_get(const struct penstock_req *req, struct penstock_queue **out)
{
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;
	struct penstock_queue *q;
	bool closed_one = false;

	for (unsigned i = 0; i < SPARE_MAX; i++) {
		q = atomic_load_explicit(&spare[i], memory_order_relaxed);
		if (!q)
			continue;
		q = atomic_exchange_explicit(&spare[i], NULL, memory_order_acquire);
		if (!q)
			continue;
		if (q->generation != pst_fork_generation() || !pst_queue_has_free(q)) {
			penstock_queue_close(q);
			continue;
		}
		if (req->seg_count <= q->segs_max) {
			*out = q;
			return 0;
		}
		if (closed_one)
			spare_put(q);
		else
			penstock_queue_close(q);
		closed_one = true;
	}
	opts.requests_max = 1;
	opts.segs_max = req->seg_count > 16 ? req->seg_count : 16;
	return penstock_queue_open(&opts, out);
}

int64_t penstock_transfer(const struct penstock_req *req, struct penstock_report *report)
{
	struct penstock_queue *q;
	struct penstock_done done;
	int64_t result;
	int ret;

	if (!req || req->stream)
		return pst_fail(
			NULL, PENSTOCK_WHY_BAD_ARGUMENT,
			"the request is NULL or stream-ordered: submit the latter to a queue");
	if (report && report->size < sizeof(report->size))
		return pst_fail(
			NULL, PENSTOCK_WHY_BAD_ARGUMENT,
			"the report's size is not set: initialise it with PENSTOCK_REPORT_INIT");
	ret = spare_get(req, &q);
	if (ret)
		return ret;
	ret = pst_queue_submit_here(q, req, report != NULL);
	if (ret < 0) {
		spare_put(q);
		return ret;
	}
	penstock_wait(q, &done, 1, 1, -1);
	result = done.result;
	if (result < 0) {
		struct pst_err err = {(int)result, done.report->why, ""};

		memcpy(err.text, done.report->text, sizeof(err.text));
		pst_err_publish(&err);
	}
	if (report)
		pst_struct_copy_out(report, done.report, sizeof(*report));
	spare_put(q);
	return result;
}

/* Transfers one contiguous range: `len` bytes between offset `off` of the storage and the
 * buffer. */
static int64_t transfer_one(struct penstock_storage *st, struct penstock_device *dev, void *buf,
			    size_t len, uint64_t off, enum penstock_op op)
{
	struct penstock_seg seg = {.buf = buf, .dev = dev, .off = off, .row_len = len, .rows = 1};
	struct penstock_req req = PENSTOCK_REQ_INIT;

	req.storage = st;
	req.segs = &seg;
	req.seg_count = 1;
	req.op = op;
	return penstock_transfer(&req, NULL);
}

int64_t penstock_read(struct penstock_storage *st, struct penstock_device *dev, void *buf,
		      size_t len, uint64_t off)
{
	return transfer_one(st, dev, buf, len, off, PENSTOCK_READ);
}

int64_t penstock_write(struct penstock_storage *st, struct penstock_device *dev, const void *buf,
		       size_t len, uint64_t off)
{
	return transfer_one(st, dev, (void *)(uintptr_t)buf, len, off, PENSTOCK_WRITE);
}

int penstock_prepare(struct penstock_storage *st, struct penstock_device *dev, enum penstock_op op)
{
	struct pst_route *route;
	struct pst_lane *lane;
	struct pst_err err;

	if (!dev || (unsigned)op > PENSTOCK_WRITE)
		return pst_fail(NULL, PENSTOCK_WHY_BAD_ARGUMENT,
				"the device is NULL, or the op is unknown");
	if ((st && pst_fork_check(st->generation, &err)) || pst_fork_check(dev->generation, &err))
		return pst_err_publish(&err);
	if (st ? pst_route_get(st, dev, op, &route, &err) : pst_device_start(dev, &err))
		return pst_err_publish(&err);
	/* Borrow a lane of this device and give it back at once. The first borrowing opens the
	 * lane, which takes time. So the first transfer need not open it. */
	lane = pst_pump_borrow(atomic_load(&dev->pump));
	if (lane)
		pst_pump_return(lane);
	pst_pump_await_ready(atomic_load(&dev->pump));
	return 0;
}
