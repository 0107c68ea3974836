/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device host: ordinary memory of this process. It copies by memcpy, so a copy is done when the
 * call that queues it returns. It is the last device of the list, so "auto" always finds a device.
 * Memory that no other device recognises counts as host memory, even the freed address of a GPU. So
 * before a copy, device host checks memory that the caller has not declared to be host memory. If
 * the memory is not mapped, the copy fails, and the process gets no SIGSEGV. Device host also
 * checks every range whose checksum it computes.
 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/crc32c.h"
#include "device/alloc_set.h"
#include "device/cpu_copy.h"
#include "device/host.h"
#include "s3/crc.h"

#define HUGE_PAGE (2u << 20)
#define PAGE ((uintptr_t)4096) /* 4 KiB divides every page size */
#define SUM_PIECE ((uint64_t)64 << 20)
/* Older C headers do not define these flags of madvise. Kernels before 5.14 return EINVAL for
 * them. */
#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22
#define MADV_POPULATE_WRITE 23
#endif

static bool host_match(const char *name)
{
	return !strcmp(name, "host");
}

static int host_count(void)
{
	return 1;
}

static int host_open(struct penstock_device *dev, struct pst_err *err)
{
	struct pst_alloc_set *allocs = malloc(sizeof(*allocs));

	if (!allocs)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a device");
	pst_alloc_set_init(allocs);
	dev->priv = allocs;
	dev->facts.cpu_addressable = true;
	dev->facts.is_host = true;
	dev->facts.lanes_best = 8;
	pst_fail(&dev->facts.why_peer, PENSTOCK_WHY_DEVICE_ONLY, "%s",
		 penstock_why_text(PENSTOCK_WHY_DEVICE_ONLY));
	pst_fail(&dev->facts.why_mapped, PENSTOCK_WHY_DEVICE_ONLY, "%s",
		 penstock_why_text(PENSTOCK_WHY_DEVICE_ONLY));
	snprintf(dev->facts.text, sizeof(dev->facts.text), "host memory, %ld CPUs",
		 sysconf(_SC_NPROCESSORS_ONLN));
	return 0;
}

/* Allocations that the caller has not freed stay mapped. */
static void host_close(struct penstock_device *dev)
{
	pst_alloc_set_destroy(dev->priv);
	free(dev->priv);
}

/* Allocates host memory by mmap. Large allocations get huge pages. */
static int host_alloc(struct penstock_device *dev, size_t len, void **out, struct pst_err *err)
{
	struct pst_alloc alloc;
	size_t room;
	char *map;

	if (__builtin_add_overflow(len, HUGE_PAGE, &room))
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "%zu bytes are too many", len);
	map = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (map == MAP_FAILED)
		return pst_fail_errno(err, errno, PENSTOCK_WHY_NO_MEMORY,
				      "no memory for %zu bytes: %m", len);
	alloc = (struct pst_alloc){map, map, room};
	if (len >= HUGE_PAGE) {
		alloc.mem =
			(void *)(((uintptr_t)map + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
		madvise(alloc.mem, len, MADV_HUGEPAGE);
	}
	if (!pst_alloc_set_add(dev->priv, &alloc)) {
		munmap(map, room);
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for an allocation");
	}
	*out = alloc.mem;
	return 0;
}

static int host_free(struct penstock_device *dev, void *ptr, struct pst_err *err)
{
	struct pst_alloc alloc;
	int code;

	if (!pst_alloc_set_take(dev->priv, ptr, &alloc))
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"%p is not memory that penstock_alloc returned for host", ptr);
	if (!munmap(alloc.map, alloc.len))
		return 0;
	code = errno;
	/* Without memory for the entry the allocation leaks, and the caller gets this error. */
	pst_alloc_set_add(dev->priv, &alloc);
	return pst_fail_errno(err, code, PENSTOCK_WHY_NO_MEMORY, "unmapping memory: %m");
}

static int host_classify(struct penstock_device *dev, const void *ptr, struct pst_memory *out)
{
	(void)dev;
	(void)ptr;
	memset(out, 0, sizeof(*out));
	return 1; /* host is queried last, so no other device owns the memory */
}

/* ---- memory of callers ---- */

/* Returns true if the kernel can read the byte, or, if `write_it` is true, can write it. A test
 * write stores a zero, which is harmless because the copy that follows replaces the byte. */
static bool byte_is_mapped(char *byte, bool write_it)
{
	char c = 0;
	ssize_t n;
	int fds[2], code = 0;

	if (pipe2(fds, O_CLOEXEC | O_NONBLOCK))
		/* without a pipe the byte cannot be checked, so assume that it is mapped */
		return true;
	n = write(fds[1], write_it ? &c : byte, 1);
	if (n == 1 && write_it)
		n = read(fds[0], byte, 1);
	code = n == 1 ? 0 : errno;
	close(fds[0]);
	close(fds[1]);
	return code != EFAULT;
}

/* Checks that the bytes [mem, mem + len) are mapped, by populating their pages. If the kernel
 * cannot do that (before 5.14, for mappings of device memory, or without permission), only the
 * first and the last byte are checked. */
static int range_check(char *mem, uint64_t len, bool write_it)
{
	uintptr_t start = (uintptr_t)mem & ~(PAGE - 1), end;

	if (!len)
		return 0;
	if (__builtin_add_overflow((uintptr_t)mem, len, &end))
		return -EFAULT;
	if (!madvise((void *)start, end - start,
		     write_it ? MADV_POPULATE_WRITE : MADV_POPULATE_READ))
		return 0;
	if (errno == ENOMEM || errno == EFAULT)
		return -EFAULT;
	return byte_is_mapped(mem, write_it) && byte_is_mapped(mem + len - 1, write_it) ? 0
											: -EFAULT;
}

/* Checks that all rows are mapped. If there is less than a page between two rows, it checks one
 * range that covers all rows. */
static int rows_check(char *mem, const struct pst_rect *rect, uint64_t pitch, bool write_it)
{
	int ret = 0;

	if (!rect->rows)
		return 0;
	if (pitch - rect->row_len < PAGE)
		return range_check(mem, pitch * (rect->rows - 1) + rect->row_len, write_it);
	for (uint64_t i = 0; i < rect->rows && !ret; i++)
		ret = range_check(mem + i * pitch, rect->row_len, write_it);
	return ret;
}

static int host_copy_in(struct pst_copier *copier, const struct pst_rect *rect)
{
	int ret = rect->unsure ? rows_check(rect->dst, rect, rect->dst_pitch, true) : 0;

	return ret ? ret : pst_cpu_copy(copier, rect);
}

static int host_copy_out(struct pst_copier *copier, const struct pst_rect *rect)
{
	char *src = (char *)(uintptr_t)rect->src;
	int ret = rect->unsure ? rows_check(src, rect, rect->src_pitch, false) : 0;

	return ret ? ret : pst_cpu_copy(copier, rect);
}

/* Checks and sums pieces of SUM_PIECE bytes one after the other. So a long file mapping is not read
 * as a whole before its first bytes are used. */
static int range_sum(enum pst_sum_kind kind, struct pst_sum *sum)
{
	char *at = (char *)(uintptr_t)sum->ptr;
	uint64_t raw = 0;

	for (uint64_t left = sum->len; left;) {
		uint64_t len = left < SUM_PIECE ? left : SUM_PIECE;
		int ret = range_check(at, len, false);

		if (ret)
			return ret;
		raw = kind == PST_SUM_CRC32C ? pst_crc32c_raw((uint32_t)raw, at, len)
					     : pst_crc_raw(PST_CRC64NVME, raw, at, len);
		at += len;
		left -= len;
	}
	sum->raw = raw;
	return 0;
}

static int host_sum(struct penstock_device *dev, enum pst_sum_kind kind, struct pst_sum *sums,
		    unsigned count, bool unless_waiting, struct pst_err *err)
{
	(void)unless_waiting; /* the CPU's work waits for no stream */
	for (unsigned i = 0; i < count; i++) {
		int ret = range_sum(kind, &sums[i]);

		if (ret)
			return pst_fail_errno(err, ret, PENSTOCK_WHY_BAD_ARGUMENT,
					      "%s: reading %" PRIu64 " bytes at %p: %m", dev->name,
					      sums[i].len, sums[i].ptr);
	}
	return 0;
}

const struct pst_device_ops pst_device_host = {
	.name = "host",
	.match = host_match,
	.open = host_open,
	.close = host_close,
	.count = host_count,
	.alloc = host_alloc,
	.free = host_free,
	.classify = host_classify,
	.copier_open = pst_cpu_copier_open,
	.copier_close = pst_cpu_copier_close,
	.copy_in = host_copy_in,
	.copy_out = host_copy_out,
	.record = pst_cpu_record,
	.query = pst_cpu_query,
	.wait = pst_cpu_wait,
	.sum = host_sum,
};
