/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A lane's pinned staging memory (its ring) and its slots: see ring.h. A lane maps its ring when it
 * opens. The lane pins the first part at that time, and the second part when it is short of slots.
 * Paths get and put slots. Pinned memory from the CUDA driver's own allocator would take 0.35 s for
 * each GiB (H200 machine). Mapping huge pages, populating them and calling cuMemHostRegister takes
 * half of that time. Only the lane's thread may get or put a slot.
 */
#include "core/lane/ring.h"

#include <stdlib.h>
#include <sys/mman.h>

#include "core/base/device_sync.h"
#include "core/base/log.h"

#define HUGE_PAGE (2u << 20)

size_t pst_slots_bytes(size_t slot_bytes, struct pst_slot_counts all)
{
	size_t len = slot_bytes * all.big + (size_t)PST_SLOT_SMALL * all.small;

	return (len + HUGE_PAGE - 1) & ~(size_t)(HUGE_PAGE - 1);
}

/* Maps `len` bytes of memory that begin and end on the boundary of a huge page. */
static char *ring_map_aligned(size_t len)
{
	size_t mapped = len + HUGE_PAGE;
	char *base = mmap(NULL, mapped, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	char *start;

	if (base == MAP_FAILED)
		return NULL;
	start = (char *)(((uintptr_t)base + HUGE_PAGE - 1) & ~(uintptr_t)(HUGE_PAGE - 1));
	if (start > base)
		munmap(base, (size_t)(start - base));
	if (start + len < base + mapped)
		munmap(start + len, (size_t)(base + mapped - (start + len)));
	madvise(start, len, MADV_HUGEPAGE);
	/* Keep the memory out of forked children. Otherwise the parent's first write to a page
	 * after a fork could replace the pinned page by a copy that is not pinned. */
	madvise(start, len, MADV_DONTFORK);
	return start;
}

/* Populates the pages of new ring memory. This takes most of the time to open a ring, because the
 * kernel zeroes the pages. Each madvise populates only one huge page, because during the call no
 * other thread of the process can map memory or create a thread. Errors are ignored: registering
 * the pages with the device then fails for the same reason, and that error is reported. */
static void ring_populate(char *base, size_t len)
{
	for (size_t at = 0; at < len; at += HUGE_PAGE)
		madvise(base + at, len - at < HUGE_PAGE ? len - at : HUGE_PAGE,
			MADV_POPULATE_WRITE);
}

int pst_ring_map(struct pst_ring *ring, const struct pst_numa *numa, size_t len,
		 struct pst_err *err)
{
	*ring = (struct pst_ring){.len = len};
	ring->base = ring_map_aligned(len);
	if (!ring->base)
		return pst_fail_errno(err, errno, PENSTOCK_WHY_NO_MEMORY,
				      "mapping a ring of %zu MiB: %m", len >> 20);
	pst_numa_bind_memory(numa, ring->base, len);
	return 0;
}

void pst_ring_pin(struct pst_ring *ring, size_t end, struct penstock_device *dev)
{
	char *base = ring->base + ring->pinned;
	size_t len = end - ring->pinned;
	struct pst_err reason;
	int ret;

	if (ring->pinned)
		ring->second = base;
	ring->pinned = end;
	if (!dev->ops->host_register || !len)
		return;
	ring_populate(base, len);
	ret = dev->ops->host_register(dev, base, len, false, &reason);
	if (ret == 0)
		ring->registered[ring->registered_count++] = base;
	else
		pst_log(PST_LOG_WARN, dev->ops->name,
			"cannot pin the ring, copies will be slower: %s", reason.text);
}

void pst_ring_close(struct pst_ring *ring, struct penstock_device *dev)
{
	if (!ring->base)
		return;
	while (ring->registered_count) {
		pst_device_sync_await(dev);
		dev->ops->host_unregister(dev, ring->registered[--ring->registered_count], NULL);
		pst_device_sync_end(dev);
	}
	munmap(ring->base, ring->len);
	ring->base = NULL;
}

static void slot_add_free(struct pst_slots *slots, struct pst_slot *slot)
{
	slot->next = slots->free[slot->size];
	slots->free[slot->size] = slot;
}

static struct pst_slot *slot_take_free(struct pst_slots *slots, unsigned size)
{
	struct pst_slot *slot = slots->free[size];

	if (slot)
		slots->free[size] = slot->next;
	return slot;
}

/* Joins the parts of a big slot that was cut. All its parts must be free. Removes them from the
 * free list. */
static void slot_join(struct pst_slots *slots, struct pst_slot *whole)
{
	struct pst_slot **at = &slots->free[1];

	while (*at) {
		if ((*at)->whole == whole)
			*at = (*at)->next;
		else
			at = &(*at)->next;
	}
	whole->cut = false;
}

/* Takes a free big slot. If there is none, joins the parts of a slot that was cut, if all its parts
 * are free. */
static struct pst_slot *slot_get_big(struct pst_slots *slots)
{
	struct pst_slot *slot = slot_take_free(slots, 0);

	for (unsigned i = 0; !slot && slots->parts && i < slots->big_count; i++) {
		if (slots->all[i].cut && !slots->all[i].parts_out) {
			slot = &slots->all[i];
			slot_join(slots, slot);
		}
	}
	slots->big_wanted = !slot;
	return slot;
}

/* Returns whether a big slot is free, or can be joined from its parts. */
static bool slots_have_big(const struct pst_slots *slots)
{
	bool whole = slots->free[0];

	for (unsigned i = 0; !whole && i < slots->big_count; i++)
		whole = slots->all[i].cut && !slots->all[i].parts_out;
	return whole;
}

/* Takes a free part of a big slot. If there is none, cuts a free big slot into parts and takes one
 * of them. */
static struct pst_slot *slot_get_part(struct pst_slots *slots)
{
	struct pst_slot *slot, *whole;

	/* While a chunk waits for a big slot (big_wanted), hand out no parts until a big slot is
	 * free. Otherwise chunks that need parts could starve that chunk. */
	if (slots->big_wanted && !slots_have_big(slots))
		return NULL;
	slots->big_wanted = false;
	slot = slot_take_free(slots, 1);
	if (slot) {
		slot->whole->parts_out++;
		return slot;
	}
	whole = slot_take_free(slots, 0);
	if (!whole)
		return NULL;
	whole->cut = true;
	slot = &slots->all[slots->big_count + (unsigned)(whole - slots->all) * slots->parts];
	for (unsigned i = slots->parts; i-- > 0;)
		slot_add_free(slots, &slot[i]);
	return slot_get_part(slots);
}

struct pst_slot *pst_slot_get(struct pst_slots *slots, uint64_t len)
{
	struct pst_slot *slot = NULL;

	if (len <= PST_SLOT_SMALL)
		slot = slot_take_free(slots, 2);
	if (!slot && len <= PST_SLOT_PART && slots->parts)
		slot = slot_get_part(slots);
	if (!slot && (!slots->parts || len > PST_SLOT_PART))
		slot = slot_get_big(slots);
	if (slot && slot->len < len) {
		pst_slot_put(slots, slot);
		return NULL;
	}
	return slot;
}

void pst_slot_put(struct pst_slots *slots, struct pst_slot *slot)
{
	if (slot->size == 1)
		slot->whole->parts_out--;
	slot_add_free(slots, slot);
}

static void slot_init(struct pst_slot *slot, uint8_t size, char *mem, size_t len)
{
	slot->size = size;
	slot->mem = mem;
	slot->len = (uint32_t)len;
}

/* Adds slots of each size to the free lists: the slots with the indices from `from` up to, but not
 * including, `to`. */
static void slots_hand_out(struct pst_slots *slots, struct pst_slot_counts from,
			   struct pst_slot_counts to)
{
	struct pst_slot *small = &slots->all[slots->big_count + slots->big_count * slots->parts];

	for (unsigned i = to.small; i-- > from.small;)
		slot_add_free(slots, &small[i]);
	for (unsigned i = to.big; i-- > from.big;)
		slot_add_free(slots, &slots->all[i]);
}

/* Returns the address of the slot that has `small` small and `big` big slots before it. The
 * ring begins with the small slots and then the big slots of the first part. The small slots
 * and then the big slots of the second part follow. */
static char *slot_address(const struct pst_slots *slots, size_t slot_bytes, unsigned small,
			  unsigned big)
{
	return slots->base + slot_bytes * big + (size_t)PST_SLOT_SMALL * small;
}

int pst_slots_open(struct pst_slots *slots, char *base, size_t slot_bytes,
		   struct pst_slot_counts all, struct pst_slot_counts first, struct pst_err *err)
{
	unsigned parts = (unsigned)(slot_bytes / PST_SLOT_PART), at = 0;

	*slots = (struct pst_slots){.parts = parts > 1 ? parts : 0};
	slots->big_count = all.big;
	slots->count = all.big + all.big * slots->parts + all.small;
	slots->first = first;
	slots->base = base;
	slots->len = slots->first_len = pst_slots_bytes(slot_bytes, all);
	if (first.big < all.big || first.small < all.small)
		slots->first_len = slot_bytes * first.big + PST_SLOT_SMALL * first.small;
	slots->all = calloc(slots->count, sizeof(*slots->all));
	if (!slots->all)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for slots");
	for (unsigned i = 0; i < all.big; i++) {
		unsigned before = i < first.big ? first.small : all.small;

		slot_init(&slots->all[at++], 0, slot_address(slots, slot_bytes, before, i),
			  slot_bytes);
	}
	for (unsigned i = 0; i < all.big * slots->parts; i++) {
		slots->all[at].whole = &slots->all[i / slots->parts];
		slot_init(&slots->all[at], 1,
			  slots->all[at].whole->mem + (size_t)PST_SLOT_PART * (i % slots->parts),
			  PST_SLOT_PART);
		at++;
	}
	for (unsigned i = 0; i < all.small; i++) {
		unsigned before = i < first.small ? 0 : first.big;

		slot_init(&slots->all[at++], 2, slot_address(slots, slot_bytes, i, before),
			  PST_SLOT_SMALL);
	}
	slots_hand_out(slots, (struct pst_slot_counts){0, 0}, first);
	return 0;
}

void pst_slots_rest(struct pst_slots *slots)
{
	struct pst_slot_counts all = {slots->big_count, 0};

	all.small = slots->count - all.big - all.big * slots->parts;
	slots_hand_out(slots, slots->first, all);
	slots->first = all;
	slots->first_len = slots->len;
}

void pst_slots_close(struct pst_slots *slots)
{
	free(slots->all);
	slots->all = NULL;
}
