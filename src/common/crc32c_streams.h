/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The loop of crc32c_x86.c and crc32c_arm.c. The CPU can start a CRC instruction in each cycle, but
 * needs three cycles for its result. So the loop computes three CRCs at the same time, of three
 * pieces of equal length, and then joins them.
 */
#ifndef PST_COMMON_CRC32C_STREAMS_H
#define PST_COMMON_CRC32C_STREAMS_H

#include <stddef.h>
#include <stdint.h>

#include "common/crc32c_field.h"

/* The possible lengths of a piece, each with x^(8 * len). To join three pieces takes as long as to
 * compute the CRC of 1.7 KiB, so long pieces are best. Short pieces are for short ranges. */
static const struct {
	size_t len;
	uint32_t power;
} pst_crc32c_pieces[] = {{16384, 0xbf455269}, {1024, 0xe4172b16}};

/* Does what pst_crc32c_raw does. word_add adds 8 bytes to a raw CRC, and byte_add adds one byte.
 * They must be constants, so that the compiler can inline them. */
static inline __attribute__((always_inline)) uint32_t
pst_crc32c_streams(uint32_t raw, const unsigned char *at, size_t len,
		   uint64_t (*word_add)(uint64_t, const unsigned char *),
		   uint64_t (*byte_add)(uint64_t, unsigned char))
{
	uint64_t crc = raw;

	for (unsigned i = 0; i < 2; i++) {
		const size_t piece = pst_crc32c_pieces[i].len;

		for (; len >= 3 * piece; len -= 3 * piece) {
			const unsigned char *end = at + piece;
			uint64_t second = 0, third = 0;

			for (; at < end; at += 8) {
				crc = word_add(crc, at);
				second = word_add(second, at + piece);
				third = word_add(third, at + 2 * piece);
			}
			at += 2 * piece;
			crc = pst_crc32c_multiply((uint32_t)crc, pst_crc32c_pieces[i].power) ^
			      second;
			crc = pst_crc32c_multiply((uint32_t)crc, pst_crc32c_pieces[i].power) ^
			      third;
		}
	}
	for (; len >= 8; len -= 8, at += 8)
		crc = word_add(crc, at);
	for (; len; len--, at++)
		crc = byte_add(crc, *at);
	return (uint32_t)crc;
}

#endif
