/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The set of a device's allocations. With the set, a device recognises an address that it has not
 * allocated, and refuses to free it.
 */
#ifndef PST_DEVICE_ALLOC_SET_H
#define PST_DEVICE_ALLOC_SET_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>

/* An allocation of a device. */
struct pst_alloc {
	void *mem; /* address that the caller got */
	void *map; /* mapping that contains `mem`, and its length in bytes; host memory only */
	size_t len;
};

/* The allocations, as a tree of tsearch(3) ordered by address. */
struct pst_alloc_set {
	pthread_mutex_t lock;
	void *tree;
};

void pst_alloc_set_init(struct pst_alloc_set *set);
/* Frees the set. The allocations in it stay allocated. */
void pst_alloc_set_destroy(struct pst_alloc_set *set);
/* Adds a copy of `alloc`. Replaces an allocation at the same address. Returns false if there is no
 * memory for the copy. */
bool pst_alloc_set_add(struct pst_alloc_set *set, const struct pst_alloc *alloc);
/* Removes the allocation at address `mem`, and copies it to *out. Returns false if the set does not
 * have it. Call this function before the memory is freed: as soon as it is free, another thread may
 * allocate memory at the same address and add it. */
bool pst_alloc_set_take(struct pst_alloc_set *set, void *mem, struct pst_alloc *out);

#endif
