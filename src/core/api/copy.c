/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements penstock_copy, which copies between the memories of two devices or within one device.
 * For this, the calling thread borrows a lane, which is a set of copy queues and pinned staging
 * memory of one device. It queues copies between a GPU and pinned host memory on the lane's copy
 * queue, and waits only for the last of them. Any other copy is made directly by the destination
 * device's backend, if the backend can do so. Else it goes through a slot, which is a piece of
 * the lane's staging memory. Read and write requests do not use this file.
 */
#include <stdatomic.h>

#include "core/base/fork.h"
#include "core/base/struct_copy.h"
#include "core/lane/chunk.h"
#include "core/lane/pump.h"
#include "core/lane/ring.h"

/* Copies `rows` rows of `len` bytes from the source c->src to the staging buffer `slot`, and from
 * there to the destination c->dst. The copied bytes begin at byte `col` of row `row`. They must fit
 * in the slot. */
static int copy_through_slot(struct pst_lane *lane, const struct penstock_copy_args *c,
			     struct pst_slot *slot, uint64_t row, uint64_t col, uint64_t len,
			     uint64_t rows)
{
	struct pst_rect out = {
		.dst = slot->mem,
		.src = (const char *)c->src + row * c->src_pitch + col,
		.dst_pitch = len,
		.src_pitch = c->src_pitch,
		.row_len = len,
		.rows = rows,
		.unsure = true,
	};
	struct pst_rect in = {
		.dst = (char *)c->dst + row * c->dst_pitch + col,
		.src = slot->mem,
		.dst_pitch = c->dst_pitch,
		.src_pitch = len,
		.row_len = len,
		.rows = rows,
		.unsure = true,
	};
	int ret = pst_copy_now(lane, c->src_dev, &out, false);

	return ret ? ret : pst_copy_now(lane, c->dst_dev, &in, true);
}

/* Copies through host memory, with the staging memory and the copy queues of one device's lane. The
 * lane has a copy queue on its own device, and must open a second one on the other device. Opening
 * is fast only on host memory, so the function borrows a lane of the device that the CPU cannot
 * address. */
static int copy_through_host(const struct penstock_copy_args *c, struct pst_err *err)
{
	struct penstock_device *by = c->dst_dev->facts.cpu_addressable ? c->src_dev : c->dst_dev;
	struct pst_lane *lane;
	struct pst_slot *slot;
	uint64_t row = 0, step;
	int ret = pst_device_start(by, err);

	if (ret)
		return ret;
	lane = pst_pump_borrow_wait(atomic_load(&by->pump), err);
	if (!lane)
		return err->code;
	slot = pst_slot_get(&lane->slots, lane->slot_bytes);
	if (!slot) {
		pst_pump_return(lane);
		return pst_fail(err, PENSTOCK_WHY_FULL, "all staging slots of the lane are in use");
	}
	step = c->row_len < slot->len ? slot->len / c->row_len : 1;
	for (; row < c->rows && !ret; row += step) {
		uint64_t rows = c->rows - row < step ? c->rows - row : step;

		for (uint64_t col = 0; col < c->row_len && !ret; col += slot->len) {
			uint64_t len = c->row_len - col < slot->len ? c->row_len - col : slot->len;

			ret = copy_through_slot(lane, c, slot, row, col, len, rows);
		}
	}
	pst_slot_put(&lane->slots, slot);
	pst_pump_return(lane);
	return ret ? pst_fail_errno(err, ret, PENSTOCK_WHY_DEVICE_ERROR,
				    "copying from %s to %s: %m", c->src_dev->name, c->dst_dev->name)
		   : 0;
}

/* ---- copies between a device and pinned host memory ---- */

/* A run: copies of the same direction that are queued on one borrowed lane's copy queue, and may
 * not be done yet. */
struct copy_run {
	struct penstock_device *dev; /* the device that is not host memory */
	bool in;		     /* true: copies to the device */
	struct pst_lane *lane;	     /* NULL if no copy is queued */
	struct pst_copyq *copyq;
	unsigned queued; /* number of copies not yet waited for */
};

/* Number of queued copies after which the calling thread waits for them. The limit keeps the
 * driver's queue from filling up. */
#define RUN_MAX 256u

/* Waits until all copies of the run are done. */
static int run_wait(struct copy_run *run, struct pst_err *err)
{
	uint64_t ticket;
	int ret;

	if (!run->queued)
		return 0;
	run->queued = 0;
	ret = run->dev->ops->record(run->copyq->copier, &ticket);
	if (!ret)
		ret = run->dev->ops->wait(run->copyq->copier, ticket);
	return ret ? pst_fail_errno(err, ret, PENSTOCK_WHY_DEVICE_ERROR, "copying with %s: %m",
				    run->dev->name)
		   : 0;
}

/* Waits for the copies of the run, and gives the borrowed lane back to the device's pump. */
static int run_end(struct copy_run *run, struct pst_err *err)
{
	int ret = run_wait(run, err);

	if (run->lane)
		pst_pump_return(run->lane);
	run->lane = NULL;
	return ret;
}

static int run_begin(struct copy_run *run, struct penstock_device *dev, struct pst_err *err)
{
	int ret = pst_device_start(dev, err);

	if (ret)
		return ret;
	run->dev = dev;
	run->lane = pst_pump_borrow_wait(atomic_load(&dev->pump), err);
	if (!run->lane)
		return err->code;
	run->copyq = pst_copyq_of(run->lane, dev);
	if (run->copyq)
		return 0;
	*err = run->lane->open_err;
	pst_pump_return(run->lane);
	run->lane = NULL;
	return err->code;
}

/* Queues a copy between a device and pinned host memory. Returns -EXDEV, and queues nothing, for a
 * copy between other kinds of memory. */
static int run_copy(struct copy_run *run, const struct penstock_copy_args *c,
		    const struct pst_rect *rect, struct pst_err *err)
{
	bool in = c->src_dev->facts.is_host;
	struct penstock_device *dev = in ? c->dst_dev : c->src_dev;
	const void *host = in ? c->src : c->dst;
	uint64_t pitch = in ? c->src_pitch : c->dst_pitch;
	int ret = 0;

	if (c->src_dev->facts.is_host == c->dst_dev->facts.is_host || !dev->ops->host_pinned ||
	    !dev->ops->host_pinned(dev, host, (c->rows - 1) * pitch + c->row_len))
		return -EXDEV;
	/* A device has one copy queue for each direction, and a copy in one queue does not wait for
	 * earlier copies in the other. So end the run before the direction changes. */
	if (run->lane && (run->dev != dev || run->in != in))
		ret = run_end(run, err);
	if (!ret && !run->lane)
		ret = run_begin(run, dev, err);
	if (ret)
		return ret;
	run->in = in;
	ret = in ? dev->ops->copy_in(run->copyq->copier, rect)
		 : dev->ops->copy_out(run->copyq->copier, rect);
	if (ret)
		return pst_fail_errno(err, ret, PENSTOCK_WHY_DEVICE_ERROR,
				      "copying from %s to %s: %m", c->src_dev->name,
				      c->dst_dev->name);
	return ++run->queued < RUN_MAX ? 0 : run_wait(run, err);
}

static bool rows_fit(uint64_t rows, uint64_t pitch, uint64_t row_len)
{
	uint64_t end;

	return rows == 1 || (!__builtin_mul_overflow(rows - 1, pitch, &end) &&
			     !__builtin_add_overflow(end, row_len, &end));
}

/* Carries out one element `c` of the array that the caller passed to penstock_copy. */
static int copy_one(struct copy_run *run, struct penstock_copy_args *c, struct pst_err *err)
{
	struct pst_rect rect;
	int ret;

	if (!c->dst_dev || !c->src_dev || !c->dst || !c->src)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"a copy needs two devices and two addresses");
	if (pst_fork_check(c->dst_dev->generation, err) ||
	    pst_fork_check(c->src_dev->generation, err))
		return err->code;
	c->rows = c->rows ? c->rows : 1;
	if (!rows_fit(c->rows, c->dst_pitch, c->row_len) ||
	    !rows_fit(c->rows, c->src_pitch, c->row_len))
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"the rows of the copy would end beyond the address space");
	if (c->rows == 1)
		c->dst_pitch = c->src_pitch = c->row_len;
	if (c->dst_pitch < c->row_len || c->src_pitch < c->row_len)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"a pitch of the copy is shorter than its rows");
	if (!c->row_len)
		return 0;
	rect = (struct pst_rect){.dst = c->dst,
				 .src = c->src,
				 .dst_pitch = c->dst_pitch,
				 .src_pitch = c->src_pitch,
				 .row_len = c->row_len,
				 .rows = c->rows};
	ret = run_copy(run, c, &rect, err);
	if (ret != -EXDEV)
		return ret;
	/* The copies are made in the order of the caller's array, so that a copy may read what an
	 * earlier one wrote. So wait for the queued copies before this copy starts. */
	ret = run_end(run, err);
	if (ret)
		return ret;
	ret = c->dst_dev->ops->copy_peer
		      ? c->dst_dev->ops->copy_peer(c->dst_dev, c->src_dev, &rect, err)
		      : -EXDEV;
	return ret == -EXDEV ? copy_through_host(c, err) : ret;
}

/* Carries out element `i` of the array `copies` of penstock_copy_args. */
static int copy_at(struct copy_run *run, const struct penstock_copy_args *copies, unsigned i,
		   struct pst_err *err)
{
	struct penstock_copy_args c;
	const void *from;
	int ret = pst_struct_at(copies, i, "penstock_copy_args", &from, err);

	if (!ret)
		ret = pst_struct_copy_in(&c, sizeof(c), from, "penstock_copy_args", err);
	return ret ? ret : copy_one(run, &c, err);
}

int penstock_copy(const struct penstock_copy_args *copies, unsigned count)
{
	struct copy_run run = {.lane = NULL};
	struct pst_err err, last;
	int ret = 0, end;

	if (count && !copies)
		return pst_fail_null("the list of copies");
	for (unsigned i = 0; i < count && !ret; i++)
		ret = copy_at(&run, copies, i, &err);
	/* Wait also after an error, because no copy may be in flight when the call returns. */
	end = run_end(&run, &last);
	if (end && !ret)
		err = last;
	return ret || end ? pst_err_publish(&err) : 0;
}
