/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A storage for tests, of the kind that is furthest from a file: no descriptor,
 * transfers that end on threads of its own in another order than they were begun,
 * and objects that are seen by others only once they are committed. Used by the
 * tests of tests/conf. It may never end a transfer twice, nor touch its memory after.
 */
#ifndef ASYNC_STORAGE_H
#define ASYNC_STORAGE_H

#include <stdint.h>

#include "core/ops.h"

#define ASYNC_ROOM (24u << 20) /* an object's longest length */

/* The far side: threads that move bytes, and one published object. */
struct async_far;

struct async_opts {
	uint64_t seed;		/* of the order and of the failures; not 0 */
	unsigned fail_one_in;	/* so many transfers, by seed and offset; 0: none */
	bool cancels;		/* it can end transfers that it has not begun to serve */
	unsigned refuse_one_in; /* of those that it is asked to end; 0: none */
};

/* What the far side has seen so far. */
struct async_seen {
	unsigned fills, drains, syncs; /* begun */
	unsigned overtaken;	       /* times that one was served before an older one */
	unsigned failed;	       /* on purpose */
	unsigned cancelled, refused;   /* ended early, or not although asked */
	unsigned early_syncs;	       /* begun while writes of that object were under way */
	unsigned waiting;	       /* begun, not yet served */
	unsigned open;		       /* storages */
};

struct async_far *async_far_new(const struct async_opts *opts);
/* All its storages are closed. */
void async_far_free(struct async_far *far);

int async_open(struct async_far *far, const struct penstock_storage_opts *opts,
	       struct penstock_storage **out);

/* The object as everybody else sees it, NULL: there is none. */
const unsigned char *async_published(struct async_far *far, uint64_t *len);
void async_publish(struct async_far *far, const void *bytes, uint64_t len);

/* Between the two no transfer touches memory, and none ends that is not cancelled,
 * however long it takes. */
void async_hold(struct async_far *far);
void async_release(struct async_far *far);
/* While it is held: lets the `count` transfers with the lowest offsets end. */
void async_let(struct async_far *far, unsigned count);
/* Returns when at least `count` transfers are waiting; a minute is a failure. */
int async_await(struct async_far *far, unsigned count);

/* The offsets of the transfers begun since async_hold, in that order; how many. */
unsigned async_begun(struct async_far *far, uint64_t *offs, unsigned max);

void async_seen(struct async_far *far, struct async_seen *out);

#endif
