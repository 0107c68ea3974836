/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reduces the bytes of a CRC to 64 bytes with the same CRC, by the CPU's carry-less multiplication.
 * A build compiles one of three files, which define the table `pst_crc_fold`: crc_fold_x86.c for
 * x86-64, crc_fold_arm.c for 64-bit ARM, or no_crc_fold.c for all other CPUs. Only crc.c uses the
 * table.
 */
#ifndef PST_S3_CRC_FOLD_H
#define PST_S3_CRC_FOLD_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PST_CRC_FOLD 64 /* number of bytes that fold() writes */

struct pst_crc_fold {
	/* Returns whether this CPU has an instruction for carry-less multiplication. */
	bool (*has)(void);
	/*
	 * Reduces the bytes at `mem` to 64 bytes at `out` with the same raw CRC. `raw` is the raw
	 * CRC of the bytes before `mem`, and is contained in the result. `len` is a multiple of 64
	 * and not 0. factors[0] is x^575 and factors[1] is x^511, modulo the CRC's polynomial; the
	 * highest bit of a factor is the coefficient of x^0. The pointer is NULL in builds for CPUs
	 * for which the library uses no such instruction.
	 */
	void (*fold)(const uint64_t factors[2], uint64_t raw, const void *mem, size_t len,
		     unsigned char out[PST_CRC_FOLD]);
};
extern const struct pst_crc_fold pst_crc_fold;

#endif
