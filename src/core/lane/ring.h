/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring: the pinned staging memory of one lane, cut into slots. It is one mapping, of huge
 * pages where the kernel has any, registered with the device in one piece or two: a lane starts
 * with the first piece and pins the second when it is short of slots. Only the lane's thread
 * gets and puts slots, so there is no lock.
 *
 * Most slots have slot_bytes; some are small, so that many small chunks can be in flight. A free
 * big slot is cut into parts on demand, and joined again when all parts are back: drives are
 * quickest with many calls of 1 MiB, copy engines with few and long copies.
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
	uint8_t size;		/* 0: big, 1: a part of a big one, 2: small */
	uint16_t parts_out;	/* big slots: parts in use */
	bool cut;		/* big slots: its parts are free or in use */
	struct pst_slot *whole; /* parts: the big slot */
	struct pst_slot *next;
};

struct pst_slot_counts {
	unsigned big, small;
};

/* One lane's slots. */
struct pst_slots {
	struct pst_slot *free[PST_SLOT_SIZES];
	struct pst_slot *all; /* the big ones first, then their parts, then small ones */
	unsigned big_count, count, parts; /* parts of a big slot; 0: it is never cut */
	struct pst_slot_counts first;	  /* slots that are pinned and in use */
	bool big_wanted; /* a big slot was wanted and none was free: hand out no parts */
	char *base;
	size_t len, first_len; /* bytes of all slots, and of those in use, which come first */
};

struct pst_ring {
	char *base;
	size_t len, pinned; /* pinned: bytes from base on */
	char *second;	    /* start of the second piece; NULL: there is one piece */
	char *registered[2];
	unsigned registered_count;
};

/* Ring memory of a lane with these slots. */
size_t pst_slots_bytes(size_t slot_bytes, struct pst_slot_counts all);

/* Maps the ring, near the device. */
int pst_ring_map(struct pst_ring *ring, const struct pst_numa *numa, size_t len,
		 struct pst_err *err);
/* Populates the ring up to `end` and registers it with the device, if the device registers host
 * memory. Called at most twice; no slot spans the two pieces. */
void pst_ring_pin(struct pst_ring *ring, size_t end, struct penstock_device *dev);
/* The piece that contains a slot: 0 or 1. */
static inline unsigned pst_ring_piece(const struct pst_ring *ring, const void *slot)
{
	return ring->second && (uintptr_t)slot >= (uintptr_t)ring->second;
}
void pst_ring_close(struct pst_ring *ring, struct penstock_device *dev);

/* Lays out `all` slots and puts the `first` ones in use. */
int pst_slots_open(struct pst_slots *slots, char *base, size_t slot_bytes,
		   struct pst_slot_counts all, struct pst_slot_counts first, struct pst_err *err);
/* Puts the remaining slots in use. */
void pst_slots_rest(struct pst_slots *slots);
void pst_slots_close(struct pst_slots *slots);

/* Returns a slot of at least `len` bytes. NULL: none is free. */
struct pst_slot *pst_slot_get(struct pst_slots *slots, uint64_t len);
void pst_slot_put(struct pst_slots *slots, struct pst_slot *slot);

#endif
