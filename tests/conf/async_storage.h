/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated remote object store for tests, as different from a file as a storage can be. It
 * has no descriptor. Its own threads complete the transfers, in another order than they were
 * submitted. Other readers see an object only after it is committed. The tests in tests/conf
 * use it. It must never complete a transfer twice, nor touch the memory of a completed
 * transfer.
 */
#ifndef ASYNC_STORAGE_H
#define ASYNC_STORAGE_H

#include <stdint.h>

#include "core/ops.h"

#define ASYNC_LEN_MAX (24u << 20) /* maximum length of an object in bytes */

/* The remote store: the threads that move bytes, and one published object. */
struct async_remote;

struct async_opts {
	uint64_t seed;	      /* seed of the service order and of the failures, not 0 */
	unsigned fail_one_in; /* one transfer in this many fails, chosen by seed and offset; 0 if
				 none shall fail */
	bool cancels;	      /* whether the store can cancel transfers that no thread has taken */
	unsigned
		refuse_one_in; /* the store refuses one cancel in this many; 0 if it refuses none */
};

/* Counters of the remote store. */
struct async_counts {
	unsigned fills, drains, syncs; /* number of reads, writes and syncs that were submitted */
	unsigned overtaken; /* number of transfers that were completed before an older one */
	unsigned failed;    /* number of transfers that the store failed on purpose */
	unsigned cancelled,
		refused; /* number of cancels that the store carried out, and that it refused */
	unsigned early_syncs; /* number of syncs submitted while writes to the same object were in
				 flight */
	unsigned waiting; /* number of transfers that were submitted and that no thread has taken */
	unsigned open;	  /* open storages */
};

struct async_remote *async_remote_new(const struct async_opts *opts);
/* Frees the store. The caller has closed all its storages. */
void async_remote_free(struct async_remote *remote);

int async_open(struct async_remote *remote, const struct penstock_storage_opts *opts,
	       struct penstock_storage **out);

/* Returns the committed object and its length; NULL if nothing was published. */
const unsigned char *async_published(struct async_remote *remote, uint64_t *len);
void async_publish(struct async_remote *remote, const void *bytes, uint64_t len);

/* Holds all transfers until async_release. A held transfer touches no memory and does not complete,
 * unless it is cancelled. */
void async_hold(struct async_remote *remote);
void async_release(struct async_remote *remote);
/* Lets those `count` held transfers complete that have the lowest offsets. */
void async_release_some(struct async_remote *remote, unsigned count);
/* Waits until at least `count` transfers are waiting. Returns a negative errno if that takes more
 * than a minute. */
int async_await(struct async_remote *remote, unsigned count);

/* Copies the offsets of the transfers that were submitted since async_hold, oldest first, but no
 * more than `max`. Returns the number of offsets. */
unsigned async_begun(struct async_remote *remote, uint64_t *offs, unsigned max);

void async_get_counts(struct async_remote *remote, struct async_counts *out);

#endif
