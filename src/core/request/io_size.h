/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How long the calls are by which a drive is read. Long ones are the fewest; but with 16 of
 * them on their way there is more under way than a drive needs, and than the processor that
 * serves a virtual one keeps in its cache. Which is better only a measurement says: virtual
 * drives of one kind gave 2.7 GB/s by 512 KiB and 2.0 by 1 MiB on one host, 5.0 and 5.5 on
 * another. So each storage is read both ways for a while, and now and then again. Used by
 * claims; the clock is the caller's, so that a test can make it up.
 */
#ifndef PST_CORE_GRAIN_H
#define PST_CORE_GRAIN_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define PST_IO_SIZES 2

/* Of one storage. Zeroed memory is one that has begun. */
struct pst_io_size {
	_Atomic uint64_t ended; /* bytes that have come, since it began */
	_Atomic uint64_t most;	/* on their way at once in this turn */
	_Atomic uint64_t rests; /* since then the drive has nothing to do, ns; 0: it has */
	_Atomic bool rested;	/* in this turn, for a moment that counts */
	_Atomic uint32_t now;	/* which of the lengths there are */
	_Atomic bool busy;	/* somebody is at what follows */
	bool fresh;		/* this turn began with calls of another length on their way */
	uint32_t turns;
	uint64_t since;		     /* when this turn began, ns */
	uint64_t rate[PST_IO_SIZES]; /* bytes a second; 0: not known, or no longer */
};

/* Bytes of one call. */
uint64_t pst_io_size_get(const struct pst_io_size *g);
/* `len` bytes go on their way, where `before` are. The clock is asked when the drive begins
 * and ends to have something to do, and at the end of a turn. */
void pst_io_size_started(struct pst_io_size *g, uint64_t len, uint64_t before,
			 uint64_t (*now)(void));
/* `len` of `before` bytes that were on their way have come. */
void pst_io_size_completed(struct pst_io_size *g, uint64_t len, uint64_t before,
			   uint64_t (*now)(void));

#endif
