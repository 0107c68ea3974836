/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements penstock_copy, which copies between the memories of two devices or within one device.
 * The destination device's backend copies directly if it can. Otherwise a borrowed lane copies
 * blocks of rows through a slot of its ring. No request passes through this file.
 */
#include <stdatomic.h>

#include "core/base/fork.h"
#include "core/base/struct_copy.h"
#include "core/lane/chunk.h"
#include "core/lane/pump.h"
#include "core/lane/ring.h"

/* Copies `rows` rows of `len` bytes, from column `col` of row `row` on, from `src` to the slot
 * and from there to `dst`. The bytes must fit in the slot. */
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

/* Copies through host memory, on a lane of one of the two devices. It takes a lane of a device that
 * the CPU cannot address, because a lane always has a copy queue on its own device. The lane opens
 * another copy queue for the second device; if this device is host memory, that takes little time.
 */
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

/* Carries out one element of the array that penstock_copy was given. */
static int copy_one(struct penstock_copy_args *c, struct pst_err *err)
{
	struct pst_rect rect;
	int ret = -EXDEV;

	if (!c->dst_dev || !c->src_dev || !c->dst || !c->src)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"a copy needs two devices and two addresses");
	if (pst_fork_check(c->dst_dev->generation, err) ||
	    pst_fork_check(c->src_dev->generation, err))
		return err->code;
	c->rows = c->rows ? c->rows : 1;
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
	if (c->dst_dev->ops->copy_peer)
		ret = c->dst_dev->ops->copy_peer(c->dst_dev, c->src_dev, &rect, err);
	return ret == -EXDEV ? copy_through_host(c, err) : ret;
}

int penstock_copy(const struct penstock_copy_args *copies, unsigned count)
{
	struct pst_err err;

	if (count && !copies)
		return pst_fail_null("the list of copies");
	for (unsigned i = 0; i < count; i++) {
		struct penstock_copy_args c;
		const void *from;
		int ret = pst_struct_at(copies, i, "penstock_copy_args", &from, &err);

		if (!ret)
			ret = pst_struct_copy_in(&c, sizeof(c), from, "penstock_copy_args", &err);
		if (!ret)
			ret = copy_one(&c, &err);
		if (ret)
			return pst_err_publish(&err);
	}
	return 0;
}
