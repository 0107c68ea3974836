/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares the checksum of a whole object with the server's, while callers read ranges of the
 * object in any order. The checksums of the ranges (pieces) are combined, so no byte is read twice.
 * object.c holds its lock while it calls pst_object_sum_gap and pst_object_sum_add.
 *
 * If bytes are read again, their checksum is not computed again: pst_object_sum_gap returns the
 * bytes that are new. The check is given up if the bytes that have been read form more than
 * PST_OBJECT_SUM_PIECES_MAX separate pieces.
 */
#ifndef PST_STORAGE_OBJECT_SUM_H
#define PST_STORAGE_OBJECT_SUM_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#include "io/http_head.h"
#include "s3/hash.h"

#define PST_OBJECT_SUM_PIECES_MAX 1024

enum pst_object_sum_state {
	PST_OBJECT_SUM_NONE, /* the server has no checksum of the whole object */
	PST_OBJECT_SUM_OPEN, /* the check is in progress: not all bytes have been read */
	PST_OBJECT_SUM_GIVEN_UP,
	PST_OBJECT_SUM_RIGHT,
	PST_OBJECT_SUM_WRONG, /* the checksum differs; returned once, then the check begins again */
};

struct pst_object_piece {
	uint64_t off, len, crc;
};

struct pst_object_sum {
	enum pst_object_sum_state state;
	enum pst_hash_kind kind;
	uint64_t length;   /* length of the object */
	uint64_t expected; /* checksum of the object */
	/* checksum of the bytes that were read; set when all bytes have been read */
	uint64_t found;
	/* ranges that were read, sorted; adjacent ranges are joined into one piece */
	struct pst_object_piece *pieces;
	unsigned count;
};

/* Starts the check if the response's head contains a checksum of the whole object. */
void pst_object_sum_open(struct pst_object_sum *sum, const struct pst_http_head *head,
			 uint64_t length);
void pst_object_sum_close(struct pst_object_sum *sum);
/* Called before a device computes a checksum. Devices compute no CRC-32, so this gives up the check
 * of a CRC-32. Returns true if it has given up the check. */
bool pst_object_sum_by_device(struct pst_object_sum *sum);

/* Computes the checksum of `len` bytes of the memory in `iov`, of which it skips the first `skip`
 * bytes. */
uint64_t pst_object_sum_of(enum pst_hash_kind kind, const struct iovec *iov, unsigned iov_count,
			   uint64_t skip, uint64_t len);
/* Finds the first gap between *off and `end`: bytes that have not been added to the checksum.
 * Returns its length, and sets *off to its offset. Returns 0 if there is no gap, or if no check is
 * in progress. */
uint64_t pst_object_sum_gap(const struct pst_object_sum *sum, uint64_t *off, uint64_t end);
/* Adds the checksum `crc` of a range that has been read. Ignores a range that overlaps earlier
 * ones. Returns the state, or PST_OBJECT_SUM_WRONG if all bytes have been added and the checksum
 * differs from the server's. */
enum pst_object_sum_state pst_object_sum_add(struct pst_object_sum *sum, uint64_t off, uint64_t len,
					     uint64_t crc);
/* Writes a checksum in base64, as S3's headers have it. `out` needs 17 bytes. */
void pst_object_sum_text(enum pst_hash_kind kind, uint64_t crc, char *out);

#endif
