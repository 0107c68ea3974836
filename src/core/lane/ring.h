/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The ring: the pinned staging memory of one lane (a worker loop), divided into slots. Each chunk
 * of bytes in transfer uses one slot. The ring is one mapping, of huge pages if the kernel has any.
 * The lane registers the mapping with the device in one piece or in two. With two, it starts with
 * the first piece, and pins the second when it is short of slots. Only the lane's thread gets and
 * puts slots, so the slots need no lock.
 *
 * A big slot has slot_bytes bytes. Small slots let many small chunks be in flight. A free big slot
 * is cut into parts on demand, and joined again when all its parts are free. Parts serve drives,
 * which are fastest with many calls of 1 MiB. Whole big slots serve copy engines, which are fastest
 * with few long copies.
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
	/* Kind of slot: 0 is a big slot, 1 a part of a big slot, 2 a small slot. */
	uint8_t size;
	uint16_t parts_out;	/* for a big slot: number of its parts in use */
	bool cut;		/* for a big slot: whether it is cut into parts */
	struct pst_slot *whole; /* for a part: the big slot that it belongs to */
	struct pst_slot *next;	/* for a free slot: the next free slot of this size */
};

struct pst_slot_counts {
	unsigned big, small;
};

/* One lane's slots. */
struct pst_slots {
	struct pst_slot *free[PST_SLOT_SIZES];
	/* All slots: the big slots first, then their parts, then the small slots. */
	struct pst_slot *all;
	unsigned big_count, count;
	unsigned parts; /* number of parts in a big slot; 0 if big slots are never cut */
	/* Numbers of big and of small slots that the lane can use from its start. It gets the
	 * others when it first runs out of slots. */
	struct pst_slot_counts first;
	/* True if a chunk waits for a big slot. Then no parts are handed out until a big slot is
	 * free. */
	bool big_wanted;
	char *base;
	/* Total number of bytes in all slots (len), and in the slots that `first` counts
	 * (first_len). */
	size_t len, first_len;
};

struct pst_ring {
	char *base;
	/* Length of the ring, and number of its bytes, from `base` on, that are pinned. */
	size_t len, pinned;
	char *second;	     /* start of the second piece; NULL while there is only one */
	char *registered[2]; /* addresses of the pieces that are registered with the device */
	unsigned registered_count;
};

/* Returns the length in bytes of the ring (staging memory) of a lane with the slots in `all`. */
size_t pst_slots_bytes(size_t slot_bytes, struct pst_slot_counts all);

/* Maps the ring's memory, on the device's NUMA node if possible. */
int pst_ring_map(struct pst_ring *ring, const struct pst_numa *numa, size_t len,
		 struct pst_err *err);
/* Populates the pages of the ring up to offset `end`, and registers this piece of memory with the
 * device if the device can register host memory. Called at most twice for a ring. No slot lies in
 * both pieces. */
void pst_ring_pin(struct pst_ring *ring, size_t end, struct penstock_device *dev);
/* Returns which piece of the ring contains the slot: 0 (first) or 1 (second). */
static inline unsigned pst_ring_piece(const struct pst_ring *ring, const void *slot)
{
	return ring->second && (uintptr_t)slot >= (uintptr_t)ring->second;
}
/* Unregisters and unmaps the ring. */
void pst_ring_close(struct pst_ring *ring, struct penstock_device *dev);

/* Divides the ring into slots. `all` has the number of big slots and the number of small slots.
 * Until pst_slots_rest is called, only the slots that `first` counts can be used. */
int pst_slots_open(struct pst_slots *slots, char *base, size_t slot_bytes,
		   struct pst_slot_counts all, struct pst_slot_counts first, struct pst_err *err);
/* Makes the remaining slots usable. Must be called after their memory is pinned. */
void pst_slots_rest(struct pst_slots *slots);
void pst_slots_close(struct pst_slots *slots);

/* Returns a slot of at least `len` bytes, or NULL if no such slot is free. */
struct pst_slot *pst_slot_get(struct pst_slots *slots, uint64_t len);
void pst_slot_put(struct pst_slots *slots, struct pst_slot *slot);

#endif
