/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated remote object store for tests, as different from a file as a storage can be. It
 * has no descriptor. Its own threads complete the transfers, in a different order from the
 * submissions. Other readers see an object only after it is committed. The tests in tests/conf
 * use it. It must never complete a transfer twice, nor touch the transfer's memory afterwards.
 */
#ifndef ASYNC_STORAGE_H
#define ASYNC_STORAGE_H

#include <stdint.h>

#include "core/ops.h"

#define ASYNC_LEN_MAX (24u << 20) /* the longest object, in bytes */

/* The remote store: the threads that move bytes, and one published object. */
struct async_remote;

struct async_opts {
	uint64_t seed;		/* seed of the service order and of the failures; not 0 */
	unsigned fail_one_in;	/* one transfer in this many fails, by seed and offset; 0: none */
	bool cancels;		/* the store can cancel transfers that no thread has served */
	unsigned refuse_one_in; /* one cancel in this many is refused; 0: none */
};

/* Counters of the remote store. */
struct async_counts {
	unsigned fills, drains, syncs; /* transfers and syncs that were submitted */
	unsigned overtaken;	       /* transfers that were served before an older one */
	unsigned failed;	       /* transfers that failed on purpose */
	unsigned cancelled, refused; /* cancels that were carried out, cancels that were refused */
	unsigned early_syncs; /* syncs submitted while writes of that object were in flight */
	unsigned waiting;     /* transfers submitted but not served */
	unsigned open;	      /* open storages */
};

struct async_remote *async_remote_new(const struct async_opts *opts);
/* Frees the store. The caller has closed all its storages. */
void async_remote_free(struct async_remote *remote);

int async_open(struct async_remote *remote, const struct penstock_storage_opts *opts,
	       struct penstock_storage **out);

/* Returns the committed object and its length; NULL if nothing was published. */
const unsigned char *async_published(struct async_remote *remote, uint64_t *len);
void async_publish(struct async_remote *remote, const void *bytes, uint64_t len);

/* Holds all transfers until async_release: none touches memory and none completes, unless it is
 * cancelled. */
void async_hold(struct async_remote *remote);
void async_release(struct async_remote *remote);
/* Lets the `count` held transfers with the lowest offsets complete. */
void async_release_some(struct async_remote *remote, unsigned count);
/* Waits until at least `count` transfers are waiting. Returns a negative errno after a minute. */
int async_await(struct async_remote *remote, unsigned count);

/* Copies the offsets of the transfers submitted since async_hold, oldest first, and returns
 * their number. */
unsigned async_begun(struct async_remote *remote, uint64_t *offs, unsigned max);

void async_get_counts(struct async_remote *remote, struct async_counts *out);

#endif
