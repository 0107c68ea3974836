/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring: pinned staging memory of one pump, cut into slots. One mapping, huge
 * pages where there are any, registered once with the device; each lane owns a
 * stretch of it and hands out its slots without a lock. Most are of slot_bytes,
 * some are small, so that many small chunks can be in flight.
 */
#ifndef PST_CORE_RING_H
#define PST_CORE_RING_H

#include "core/near.h"
#include "core/ops.h"

#define PST_SLOT_SMALL (64u << 10)

struct pst_slot {
	char *mem;
	uint32_t len;
	bool small;
	struct pst_slot *next;
};

/* One lane's slots. */
struct pst_slots {
	struct pst_slot *big, *small; /* free ones */
	struct pst_slot *all;
	unsigned count;
	char *base;
	size_t len;
};

struct pst_ring {
	char *base;
	size_t len;
	bool registered;
	bool huge;
};

/* Bytes of ring that one lane with these slots takes. */
size_t pst_slots_bytes(size_t slot_bytes, unsigned big, unsigned small);

/* Maps `len` bytes; registers them with the device if it wants that. */
int pst_ring_open(struct pst_ring *ring, struct penstock_device *dev,
		  const struct pst_near *near, size_t len, struct pst_err *err);
void pst_ring_close(struct pst_ring *ring, struct penstock_device *dev);

int pst_slots_open(struct pst_slots *slots, char *base, size_t slot_bytes, unsigned big,
		   unsigned small, struct pst_err *err);
void pst_slots_close(struct pst_slots *slots);

/* A slot of at least `len` bytes, or NULL: none is free. Lane's thread only. */
static inline struct pst_slot *pst_slot_get(struct pst_slots *slots, uint64_t len)
{
	struct pst_slot **list = len <= PST_SLOT_SMALL && slots->small ? &slots->small
								       : &slots->big;
	struct pst_slot *slot = *list;

	if (!slot || slot->len < len)
		return NULL;
	*list = slot->next;
	return slot;
}

static inline void pst_slot_put(struct pst_slots *slots, struct pst_slot *slot)
{
	struct pst_slot **list = slot->small ? &slots->small : &slots->big;

	slot->next = *list;
	*list = slot;
}

#endif
