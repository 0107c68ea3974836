/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Names in the order of strcmp, also the millions of them that a header may hold, whatever
 * they begin with alike. Called by safetensors.c; allocates nothing but what qsort does.
 */
#ifndef PST_WEIGHTS_SORT_NAMES_H
#define PST_WEIGHTS_SORT_NAMES_H

#include <stddef.h>
#include <stdint.h>

struct pst_named {
	uint64_t head; /* the sort's own */
	const char *name;
	uint32_t at; /* where it was: the caller's */
};
void pst_sort_names(struct pst_named *list, size_t count);

#endif
