/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRC-32C (Castagnoli), the checksum of RFC 3720, section B.4. The raw CRC of bytes has the initial
 * value 0 and no final exclusive-or, so it is linear: the raw CRC of A followed by B is the raw CRC
 * of A, shifted by the length of B, XOR the raw CRC of B. So the raw CRCs of the parts of a range
 * can be computed in any order. Each is shifted by the number of bytes after its part, and the
 * results are combined by XOR. pst_crc32c_finish turns the raw CRC into the CRC-32C.
 *
 * src/core/api/sum.c and the devices call these functions. No function fails.
 */
#ifndef PST_COMMON_CRC32C_H
#define PST_COMMON_CRC32C_H

#include <stddef.h>
#include <stdint.h>

/* Returns the raw CRC of some bytes followed by the `len` bytes at `mem`. `raw` is the raw CRC of
 * the bytes before; 0 if there are none. */
uint32_t pst_crc32c_raw(uint32_t raw, const void *mem, size_t len);
/* Does the same as pst_crc32c_raw, but with tables, for CPUs that have no instruction for it. */
uint32_t pst_crc32c_raw_tables(uint32_t raw, const void *mem, size_t len);

/* Returns the raw CRC of some bytes followed by `len` zero bytes. `raw` is the raw CRC of the bytes
 * before them. Makes one multiplication for each binary digit of `len` that is 1. */
uint32_t pst_crc32c_shift(uint32_t raw, uint64_t len);
/* Returns the CRC-32C of `len` bytes with the raw CRC `raw`. */
uint32_t pst_crc32c_finish(uint32_t raw, uint64_t len);

#endif
