/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Requests the length, the ETag and the checksum of an object when its storage is opened. Besides,
 * an open can prefetch the object's first bytes: a GET requests them while the HEAD is in flight.
 * A small object then takes one round trip to the server. Called by object.c.
 *
 * The bytes are kept only if their GET has the strong ETag that identifies the opened object. They
 * are used for PST_OBJECT_FIRST_NS, so that a read later does not return an old version.
 */
#ifndef PST_STORAGE_OBJECT_FIND_H
#define PST_STORAGE_OBJECT_FIND_H

#include "storage/object_request.h"
#include "storage/object_sum.h"

/* Maximum number of bytes that an open prefetches. */
#define PST_OBJECT_FIRST_BYTES (64u << 10)
/* Time after the open in ns during which reads use the prefetched bytes. */
#define PST_OBJECT_FIRST_NS 1000000000u

/* The prefetched bytes of an object. */
struct pst_object_first;

struct pst_object_found {
	uint64_t length;
	char etag[256]; /* "" if the server sends none */
	struct pst_object_sum sum;
	struct pst_object_first *first; /* NULL if no bytes were prefetched */
};

/* Requests the facts of an object, and stores them in *out. With `prefetch`, also requests its
 * first bytes. May change the region of `place`. Returns -ENOENT if the object does not exist. */
int pst_object_find(struct pst_object_place *place, bool prefetch, struct pst_object_found *out,
		    struct pst_err *err);

/* Copies prefetched bytes from offset `off` on to the memory in `iov`, at most `len` bytes. Returns
 * their number, which is 0 if there are none or the time for their use is over. `first` may be
 * NULL. Any thread. */
uint64_t pst_object_first_copy(struct pst_object_first *first, uint64_t off,
			       const struct iovec *iov, unsigned iov_count, uint64_t len);
/* Lets later reads use no prefetched bytes. `first` may be NULL. Any thread. */
void pst_object_first_drop(struct pst_object_first *first);
/* Frees the prefetched bytes. `first` may be NULL. */
void pst_object_first_close(struct pst_object_first *first);

#endif
