/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A simulated remote object store for tests, as different from a file as a storage can be. It has
 * no descriptor. The store's own threads complete the transfers, and not in the order of their
 * submission. Other readers see an object only after it is committed. The tests in tests/conf use
 * it. It must never complete a transfer twice, nor touch the memory of a completed transfer.
 */
#ifndef ASYNC_STORAGE_H
#define ASYNC_STORAGE_H

#include <stdint.h>

#include "core/ops.h"

#define ASYNC_LEN_MAX (24u << 20) /* maximum length of an object in bytes */

/* The remote store: the threads that move bytes, and one published object. */
struct async_remote;

struct async_opts {
	uint64_t seed; /* seed of the service order and of the failures, not 0 */
	/* N means that about one transfer in N fails, chosen by seed and offset; 0 means that
	 * none fails. */
	unsigned fail_one_in;
	bool cancels; /* true if the store can cancel a transfer that no thread has taken */
	unsigned refuse_one_in; /* N means that the store refuses about one cancel in N; 0 means
				 * that it refuses none */
};

/* Counters of the remote store. */
struct async_counts {
	unsigned fills, drains, syncs; /* number of reads, writes and syncs that were submitted */
	/* Number of transfers that completed while an older transfer was still in flight. */
	unsigned overtaken;
	unsigned failed;	     /* number of transfers that the store failed on purpose */
	unsigned cancelled, refused; /* cancelled: number of transfers that the store cancelled;
				      * refused: number that it refused to cancel */
	unsigned early_syncs; /* number of syncs submitted while writes to the same object were in
			       * flight */
	unsigned waiting;     /* number of submitted transfers that no thread has taken yet */
	unsigned open;	      /* open storages */
};

struct async_remote *async_remote_new(const struct async_opts *opts);
/* Frees the store. The caller has closed all its storages. */
void async_remote_free(struct async_remote *remote);

int async_open(struct async_remote *remote, const struct penstock_storage_opts *opts,
	       struct penstock_storage **out);

/* Returns the published object and sets *len to its length. Returns NULL if nothing was
 * published. */
const unsigned char *async_published(struct async_remote *remote, uint64_t *len);
void async_publish(struct async_remote *remote, const void *bytes, uint64_t len);

/* Holds back all transfers until async_release is called. A held transfer touches no memory and
 * completes only if it is cancelled. */
void async_hold(struct async_remote *remote);
void async_release(struct async_remote *remote);
/* Lets the `count` held transfers with the lowest offsets complete. */
void async_release_some(struct async_remote *remote, unsigned count);
/* Blocks until the store holds at least `count` transfers that no thread has taken. Returns a
 * negative errno if that takes more than a minute. */
int async_await(struct async_remote *remote, unsigned count);

/* Copies to `offs` the offsets of the transfers that were submitted after async_hold, oldest
 * first. Copies at most `max` offsets and returns their count. */
unsigned async_begun(struct async_remote *remote, uint64_t *offs, unsigned max);

void async_get_counts(struct async_remote *remote, struct async_counts *out);

#endif
