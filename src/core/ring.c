/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Ring memory: see ring.h. Called when a pump opens and closes, never in between.
 * Plain mmap and cuMemHostRegister of populated huge pages cost half of what the
 * driver's own pinned allocation does (0.35 s a GiB on an H200 machine).
 */
#include "core/ring.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "core/log.h"

#define HUGE_PAGE (2u << 20)

size_t pst_slots_bytes(size_t slot_bytes, unsigned big, unsigned small)
{
	size_t len = slot_bytes * big + (size_t)PST_SLOT_SMALL * small;

	return (len + HUGE_PAGE - 1) & ~(size_t)(HUGE_PAGE - 1);
}

static char *map_aligned(size_t len, bool *huge)
{
	size_t room = len + HUGE_PAGE;
	char *base = mmap(NULL, room, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *start;

	if (base == MAP_FAILED)
		return NULL;
	start = (char *)(((uintptr_t)base + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
	if (start > base)
		munmap(base, (size_t)(start - base));
	if (start + len < base + room)
		munmap(start + len, (size_t)(base + room - (start + len)));
	*huge = madvise(start, len, MADV_HUGEPAGE) == 0;
	/* A child's write would move pinned pages from under the DMA. */
	madvise(start, len, MADV_DONTFORK);
	return start;
}

int pst_ring_open(struct pst_ring *ring, struct penstock_device *dev,
		  const struct pst_near *near, size_t len, struct pst_err *err)
{
	struct pst_err reason;
	int ret;

	ring->len = len;
	ring->registered = false;
	ring->base = map_aligned(len, &ring->huge);
	if (!ring->base)
		return pst_fail_errno(err, errno, PENSTOCK_WHY_NO_MEMORY,
				      "mapping a ring of %zu MiB: %m", len >> 20);
	pst_near_memory(near, ring->base, len);
	if (!dev->ops->host_register)
		return 0;
	madvise(ring->base, len, MADV_POPULATE_WRITE);
	ret = dev->ops->host_register(dev, ring->base, len, false, &reason);
	if (ret < 0)
		pst_log(PST_LOG_WARN, dev->ops->name, "ring not pinned, copies are slower: %s",
			reason.text);
	ring->registered = ret == 0;
	return 0;
}

void pst_ring_close(struct pst_ring *ring, struct penstock_device *dev)
{
	if (!ring->base)
		return;
	if (ring->registered)
		dev->ops->host_unregister(dev, ring->base, NULL);
	munmap(ring->base, ring->len);
	ring->base = NULL;
}

int pst_slots_open(struct pst_slots *slots, char *base, size_t slot_bytes, unsigned big,
		   unsigned small, struct pst_err *err)
{
	slots->count = big + small;
	slots->base = base;
	slots->len = pst_slots_bytes(slot_bytes, big, small);
	slots->big = slots->small = NULL;
	slots->all = calloc(slots->count, sizeof(*slots->all));
	if (!slots->all)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for slots");
	for (unsigned i = slots->count; i-- > 0;) {
		struct pst_slot *slot = &slots->all[i];

		slot->small = i >= big;
		slot->len = slot->small ? PST_SLOT_SMALL : (uint32_t)slot_bytes;
		slot->mem = slot->small ? base + slot_bytes * big +
						  (size_t)PST_SLOT_SMALL * (i - big)
					: base + slot_bytes * i;
		pst_slot_put(slots, slot);
	}
	return 0;
}

void pst_slots_close(struct pst_slots *slots)
{
	free(slots->all);
	slots->all = NULL;
}
