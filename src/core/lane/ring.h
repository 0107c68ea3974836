/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring: pinned staging memory of one lane, cut into slots. One mapping, huge
 * pages where there are any, registered with the device in one piece or two: a lane
 * starts with the first, and pins the rest when it has need of it. It hands out
 * its slots without a lock. Most are of slot_bytes,
 * some are small, so that many small chunks can be in flight. A big one that is free
 * is cut into parts when those are asked for, and whole again when all are back:
 * drives like calls of 1 MiB and many, copy engines few and long copies.
 */
#ifndef PST_CORE_RING_H
#define PST_CORE_RING_H

#include "core/machine/numa.h"
#include "core/ops.h"

#define PST_SLOT_SMALL (64u << 10)
#define PST_SLOT_PART (1u << 20)
#define PST_SLOT_SIZES 3

struct pst_slot {
	char *mem;
	uint32_t len;
	uint8_t size;		/* 0: big, 1: a part of one, 2: small */
	uint16_t parts_out;	/* big: of its parts, those in use */
	bool cut;		/* big: its parts are on the list, or in use */
	struct pst_slot *whole; /* part: what it is of */
	struct pst_slot *next;
};

struct pst_slot_counts {
	unsigned big, small;
};

/* One lane's slots. */
struct pst_slots {
	struct pst_slot *free[PST_SLOT_SIZES];
	struct pst_slot *all; /* the big ones first, then their parts, then small ones */
	unsigned big_count, count, parts; /* parts: of a big slot, 0: not cut */
	struct pst_slot_counts first;	  /* so many are handed out, the rest later */
	bool big_wanted;		  /* and none was whole: no more parts until one is */
	char *base;
	size_t len, first_len; /* of all, of those that are handed out, which lie first */
};

struct pst_ring {
	char *base;
	size_t len, pinned; /* from base on */
	char *second;	    /* where the second piece begins; NULL: there is one so far */
	char *registered[2];
	unsigned registered_count;
};

/* Bytes of ring that one lane with these slots takes. */
size_t pst_slots_bytes(size_t slot_bytes, struct pst_slot_counts all);

int pst_ring_map(struct pst_ring *ring, const struct pst_numa *numa, size_t len,
		 struct pst_err *err);
/* Fills it up to `end` with pages and registers them with the device, if that wants it: in
 * two pieces at most, and no slot lies in both. */
void pst_ring_pin(struct pst_ring *ring, size_t end, struct penstock_device *dev);
/* Which of them a slot lies in. */
static inline unsigned pst_ring_piece(const struct pst_ring *ring, const void *slot)
{
	return ring->second && (uintptr_t)slot >= (uintptr_t)ring->second;
}
void pst_ring_close(struct pst_ring *ring, struct penstock_device *dev);

/* Hands out the `first` ones of `all`, until pst_slots_rest. */
int pst_slots_open(struct pst_slots *slots, char *base, size_t slot_bytes,
		   struct pst_slot_counts all, struct pst_slot_counts first, struct pst_err *err);
void pst_slots_rest(struct pst_slots *slots);
void pst_slots_close(struct pst_slots *slots);

/* A slot of at least `len` bytes, or NULL: none is free. Lane's thread only. */
struct pst_slot *pst_slot_get(struct pst_slots *slots, uint64_t len);
void pst_slot_put(struct pst_slots *slots, struct pst_slot *slot);

#endif
