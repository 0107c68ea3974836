/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Device host: ordinary memory of this process. Its copies are memcpy, done when
 * they are queued. Ends the list of devices, so "auto" always finds one.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "device/cpu_copy.h"
#include "device/devices.h"

#define HUGE_PAGE (2u << 20)

/* In front of what alloc returns: how to give it back. */
struct head {
	void *map;
	size_t len;
};

static bool match(const char *name)
{
	return !strcmp(name, "host");
}

static int count(void)
{
	return 1;
}

static int host_open(struct penstock_device *dev, struct pst_err *err)
{
	(void)err;
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

static void host_close(struct penstock_device *dev)
{
	(void)dev;
}

/* A page in front holds the length; large blocks get huge pages. */
static int host_alloc(struct penstock_device *dev, size_t len, void **out, struct pst_err *err)
{
	size_t page = (size_t)sysconf(_SC_PAGESIZE), room;
	struct head *head;
	char *map, *mem;

	(void)dev;
	if (__builtin_add_overflow(len, 2 * page + HUGE_PAGE, &room))
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "%zu bytes are too many", len);
	map = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (map == MAP_FAILED)
		return pst_fail_errno(err, errno, PENSTOCK_WHY_NO_MEMORY,
				      "no memory for %zu bytes: %m", len);
	mem = map + page;
	if (len >= HUGE_PAGE) {
		mem = (char *)(((uintptr_t)mem + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
		madvise(mem, len, MADV_HUGEPAGE);
	}
	head = (struct head *)(void *)(mem - sizeof(*head));
	head->map = map;
	head->len = room;
	*out = mem;
	return 0;
}

static int host_free(struct penstock_device *dev, void *ptr, struct pst_err *err)
{
	struct head *head = (struct head *)(void *)((char *)ptr - sizeof(*head));

	(void)dev;
	if (munmap(head->map, head->len))
		return pst_fail_errno(err, errno, PENSTOCK_WHY_BAD_ARGUMENT,
				      "not memory of penstock_alloc: %m");
	return 0;
}

static int host_classify(struct penstock_device *dev, const void *ptr, struct pst_memory *out)
{
	(void)dev;
	(void)ptr;
	memset(out, 0, sizeof(*out));
	return 1; /* asked last: what nobody else knows is ours */
}

const struct pst_device_ops pst_device_host = {
	.name = "host",
	.match = match,
	.open = host_open,
	.close = host_close,
	.count = count,
	.alloc = host_alloc,
	.free = host_free,
	.classify = host_classify,
	.copier_open = pst_cpu_copier_open,
	.copier_close = pst_cpu_copier_close,
	.copy_in = pst_cpu_copy,
	.copy_out = pst_cpu_copy,
	.mark = pst_cpu_mark,
	.reached = pst_cpu_reached,
	.wait = pst_cpu_wait,
};
