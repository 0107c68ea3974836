/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shortens the bytes of a CRC by the CPU's carry-less multiplication. A build compiles one of two
 * files, which define the table: crc_fold_x86.c for x86-64, or no_crc_fold.c for all other CPUs.
 * Only crc.c uses the table.
 */
#ifndef PST_S3_CRC_FOLD_H
#define PST_S3_CRC_FOLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PST_CRC_FOLD 64 /* number of bytes that a fold leaves */

struct pst_crc_fold {
	/* Returns whether this CPU has the instruction. */
	bool (*has)(void);
	/*
	 * Writes 64 bytes to `out` whose raw CRC equals the raw CRC of the bytes at `mem` if `raw`
	 * precedes them. `len` is a multiple of 64 and not 0. factors[0] is x^575 and factors[1] is
	 * x^511, modulo the CRC's polynomial; the highest bit of a factor is the coefficient of
	 * x^0. NULL if no CPU of this kind has an instruction.
	 */
	void (*fold)(const uint64_t factors[2], uint64_t raw, const void *mem, size_t len,
		     unsigned char out[PST_CRC_FOLD]);
};
extern const struct pst_crc_fold pst_crc_fold;

#endif
