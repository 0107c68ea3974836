/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A list of completions of asynchronous operations. The code that completes an operation appends to
 * the list, and one thread of the application removes completions from it. The completion is
 * allocated when the operation starts, so that completing it cannot fail for lack of memory.
 */
#ifndef PST_OBJECT_ENDS_H
#define PST_OBJECT_ENDS_H

#include <pthread.h>
#include <stdbool.h>

#include "penstock_object.h"

struct pst_end {
	struct pst_end *next;
	/* object to which the operation belongs; the list itself does not use it */
	void *owner;
	union {
		struct penstock_object_end request;
		struct penstock_object_done move;
	};
};

struct pst_ends {
	pthread_mutex_t lock;
	struct pst_end *first, **last;
	int event; /* eventfd that is readable while the list has entries */
};

/* Opens an empty list. Returns 0 or -errno. */
int pst_ends_open(struct pst_ends *ends);
/* Frees the list, and the completions that the application has not taken from it. */
void pst_ends_close(struct pst_ends *ends);
void pst_ends_put(struct pst_ends *ends, struct pst_end *end);
/* Removes up to `max` completions from the list. Returns them as a linked list, whose elements the
 * caller frees. If there is none, waits up to `timeout_ms` milliseconds for the first one; -1:
 * without limit. */
struct pst_end *pst_ends_take(struct pst_ends *ends, unsigned max, int timeout_ms);

#endif
