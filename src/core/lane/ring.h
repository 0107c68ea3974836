/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring: the pinned staging memory of one lane, divided into slots. It is one mapping, of
 * huge pages if the kernel has any. The device registers it in one piece or two: a lane starts
 * with the first piece, and pins the second when it is short of slots. Only the lane's thread
 * gets and puts slots, so it needs no lock.
 *
 * Big slots have slot_bytes. Small slots let many small chunks be in flight. A free big slot is
 * cut into parts on demand, and joined again when all its parts are free. Drives are quickest
 * with many calls of 1 MiB, copy engines with few long copies.
 */
#ifndef PST_CORE_RING_H
#define PST_CORE_RING_H

#include "core/machine/numa.h"
#include "core/ops.h"

#define PST_SLOT_SMALL (64u << 10) /* length of a small slot */
#define PST_SLOT_PART (1u << 20)   /* length of a part of a big slot */
#define PST_SLOT_SIZES 3

struct pst_slot {
	char *mem;
	uint32_t len;
	uint8_t size;		/* 0: big, 1: a part of a big one, 2: small */
	uint16_t parts_out;	/* big slots: number of parts in use */
	bool cut;		/* big slots: cut into parts */
	struct pst_slot *whole; /* parts: their big slot */
	struct pst_slot *next;	/* free slots: the next one of this size */
};

struct pst_slot_counts {
	unsigned big, small;
};

/* One lane's slots. */
struct pst_slots {
	struct pst_slot *free[PST_SLOT_SIZES];
	struct pst_slot *all; /* the big slots first, then their parts, then the small slots */
	unsigned big_count, count;
	unsigned parts;		      /* parts of a big slot; 0: big slots are never cut */
	struct pst_slot_counts first; /* slots of the pinned first part */
	bool big_wanted; /* a caller found no big slot, so callers get no parts until one is free */
	char *base;
	size_t len, first_len; /* bytes of all slots, and of the `first` ones */
};

struct pst_ring {
	char *base;
	size_t len, pinned;  /* pinned: number of bytes from base on */
	char *second;	     /* start of the second piece; NULL: one piece so far */
	char *registered[2]; /* pieces registered with the device */
	unsigned registered_count;
};

/* Returns the ring memory of a lane with these slots. */
size_t pst_slots_bytes(size_t slot_bytes, struct pst_slot_counts all);

/* Maps the ring, on the device's NUMA node. */
int pst_ring_map(struct pst_ring *ring, const struct pst_numa *numa, size_t len,
		 struct pst_err *err);
/* Populates the ring up to `end` and registers it with the device, if the device registers host
 * memory. Called at most twice; no slot spans the two pieces. */
void pst_ring_pin(struct pst_ring *ring, size_t end, struct penstock_device *dev);
/* Returns the piece that contains a slot: 0 or 1. */
static inline unsigned pst_ring_piece(const struct pst_ring *ring, const void *slot)
{
	return ring->second && (uintptr_t)slot >= (uintptr_t)ring->second;
}
/* Unregisters and unmaps the ring. */
void pst_ring_close(struct pst_ring *ring, struct penstock_device *dev);

/* Lays out `all` slots in the ring, and makes the `first` ones free to get. */
int pst_slots_open(struct pst_slots *slots, char *base, size_t slot_bytes,
		   struct pst_slot_counts all, struct pst_slot_counts first, struct pst_err *err);
/* Makes the remaining slots free to get, once their memory is pinned. */
void pst_slots_rest(struct pst_slots *slots);
void pst_slots_close(struct pst_slots *slots);

/* Returns a slot of at least `len` bytes. NULL: none is free. */
struct pst_slot *pst_slot_get(struct pst_slots *slots, uint64_t len);
void pst_slot_put(struct pst_slots *slots, struct pst_slot *slot);

#endif
