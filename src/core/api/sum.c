/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements penstock_sum and penstock_crc32c_join. penstock_sum sorts the caller's ranges by
 * device. So one call of a device's backend computes the checksums of all ranges on this device.
 * Starting work on a GPU takes much longer than the checksum of a short range. Read and write
 * requests do not use this file.
 */
#include <stdlib.h>

#include "common/crc32c.h"
#include "core/base/devices.h"
#include "core/base/fork.h"
#include "core/base/struct_copy.h"

/* smallest valid `size` of an element: a smaller struct would lack the output member `crc32c` */
#define SIZE_MIN (offsetof(struct penstock_sum_args, crc32c) + sizeof(uint32_t))

/* Copies element `i` of the caller's array to `out`, and finds the device of its range. An empty
 * range needs no device. */
static int range_copy_in(const struct penstock_sum_args *sums, unsigned i, struct pst_sum *out,
			 struct pst_err *err)
{
	struct penstock_sum_args c;
	const void *from;
	uintptr_t end;
	int ret = pst_struct_at(sums, i, "penstock_sum_args", &from, err);

	if (!ret)
		ret = pst_struct_copy_in(&c, sizeof(c), from, "penstock_sum_args", err);
	if (ret)
		return ret;
	if (c.size < SIZE_MIN)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"the size of penstock_sum_args has no room for the checksum");
	*out = (struct pst_sum){.ptr = c.ptr, .len = c.len, .index = i};
	if (!c.len)
		return 0;
	if (!c.ptr)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "range %u has no address", i);
	if (__builtin_add_overflow((uintptr_t)c.ptr, c.len, &end))
		return pst_fail_errno(err, EOVERFLOW, PENSTOCK_WHY_BAD_ARGUMENT,
				      "range %u ends beyond the address space", i);
	out->dev = c.dev ? c.dev : pst_device_find(c.ptr);
	if (!out->dev)
		return pst_fail(err, PENSTOCK_WHY_NO_DEVICE, "range %u belongs to no open device",
				i);
	if (pst_fork_check(out->dev->generation, err))
		return err->code;
	if (!out->dev->ops->sum)
		return pst_fail(err, PENSTOCK_WHY_UNSUPPORTED, "%s cannot compute checksums",
				out->dev->name);
	return 0;
}

/* Moves all ranges that are on the same device as list[0] to the front of the list. Returns their
 * number. */
static unsigned device_gather(struct pst_sum *list, unsigned count)
{
	unsigned end = 1;

	for (unsigned i = 1; i < count; i++) {
		struct pst_sum moved = list[i];

		if (moved.dev != list[0].dev)
			continue;
		list[i] = list[end];
		list[end++] = moved;
	}
	return end;
}

static int ranges_sum(struct pst_sum *list, unsigned count, struct pst_err *err)
{
	int ret = 0;

	while (count && !ret) {
		unsigned n = device_gather(list, count);
		struct penstock_device *dev = list[0].dev;

		if (dev)
			ret = dev->ops->sum(dev, PST_SUM_CRC32C, list, n, false, err);
		list += n;
		count -= n;
	}
	return ret;
}

static void result_copy_out(struct penstock_sum_args *sums, const struct pst_sum *sum)
{
	char *element = (char *)sums + sum->index * sums->size;
	uint32_t crc32c = pst_crc32c_finish((uint32_t)sum->raw, sum->len);

	memcpy(element + offsetof(struct penstock_sum_args, crc32c), &crc32c, sizeof(crc32c));
}

int penstock_sum(struct penstock_sum_args *sums, unsigned count)
{
	struct pst_sum *list;
	struct pst_err err;
	int ret = 0;

	if (!count)
		return 0;
	if (!sums)
		return pst_fail_null("the list of ranges");
	list = calloc(count, sizeof(*list));
	if (!list)
		return pst_fail(NULL, PENSTOCK_WHY_NO_MEMORY, "no memory for %u ranges", count);
	for (unsigned i = 0; i < count && !ret; i++)
		ret = range_copy_in(sums, i, &list[i], &err);
	if (!ret)
		ret = ranges_sum(list, count, &err);
	for (unsigned i = 0; i < count && !ret; i++)
		result_copy_out(sums, &list[i]);
	free(list);
	return ret ? pst_err_publish(&err) : 0;
}

uint32_t penstock_crc32c_join(uint32_t first, uint32_t second, uint64_t second_len)
{
	return pst_crc32c_shift(first, second_len) ^ second;
}
