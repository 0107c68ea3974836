/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The set of a device's allocations: see alloc_set.h. Devices host and cuda call it when they
 * allocate and free memory. No thread may hold the lock of a set during a call of the driver or of
 * the kernel. A forked child never uses a set of its parent, because the public functions refuse
 * the parent's devices.
 */
#include "device/alloc_set.h"

#include <search.h>
#include <stdint.h>
#include <stdlib.h>

static int by_address(const void *a, const void *b)
{
	uintptr_t x = (uintptr_t)((const struct pst_alloc *)a)->mem;
	uintptr_t y = (uintptr_t)((const struct pst_alloc *)b)->mem;

	return (x > y) - (x < y);
}

void pst_alloc_set_init(struct pst_alloc_set *set)
{
	pthread_mutex_init(&set->lock, NULL);
	set->tree = NULL;
}

void pst_alloc_set_destroy(struct pst_alloc_set *set)
{
	tdestroy(set->tree, free);
	pthread_mutex_destroy(&set->lock);
}

bool pst_alloc_set_add(struct pst_alloc_set *set, const struct pst_alloc *alloc)
{
	struct pst_alloc *copy = malloc(sizeof(*copy)), **node;

	if (!copy)
		return false;
	*copy = *alloc;
	pthread_mutex_lock(&set->lock);
	node = tsearch(copy, &set->tree, by_address);
	/* An allocation at the same address is in the set if the caller has freed it by a call of
	 * the system instead of penstock_free. */
	if (node && *node != copy)
		**node = *alloc;
	else if (node)
		copy = NULL; /* the tree owns it */
	pthread_mutex_unlock(&set->lock);
	free(copy);
	return node;
}

bool pst_alloc_set_take(struct pst_alloc_set *set, void *mem, struct pst_alloc *out)
{
	struct pst_alloc key = {.mem = mem}, *alloc = NULL;
	struct pst_alloc **node;

	pthread_mutex_lock(&set->lock);
	node = tfind(&key, &set->tree, by_address);
	if (node) {
		alloc = *node;
		tdelete(&key, &set->tree, by_address);
	}
	pthread_mutex_unlock(&set->lock);
	if (!alloc)
		return false;
	*out = *alloc;
	free(alloc);
	return true;
}
