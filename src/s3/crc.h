/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRCs that take the bits of a byte from the lowest to the highest: CRC-32 of RFC 1952 and
 * CRC-64/NVME. The raw CRC has no initial value and no final exclusive-or, so it is linear; see
 * common/crc32c.h, which has CRC-32C. Called by hash.c, the gateway, src/object and src/wire. No
 * function can fail.
 */
#ifndef PST_S3_CRC_H
#define PST_S3_CRC_H

#include <stddef.h>
#include <stdint.h>

enum pst_crc_kind {
	PST_CRC32,
	PST_CRC64NVME,
	PST_CRC_KINDS,
};

/* Returns the raw CRC of some bytes followed by the `len` bytes at `mem`. `raw` is the raw CRC of
 * the bytes before; 0 if there are none. */
uint64_t pst_crc_raw(enum pst_crc_kind kind, uint64_t raw, const void *mem, size_t len);
/* Does the same as pst_crc_raw by tables, for CPUs without a carry-less multiplication. */
uint64_t pst_crc_raw_tables(enum pst_crc_kind kind, uint64_t raw, const void *mem, size_t len);

/* Returns the raw CRC of some bytes followed by `len` zero bytes. `raw` is the raw CRC of the bytes
 * before them. The run time grows with the number of binary digits of `len`. */
uint64_t pst_crc_shift(enum pst_crc_kind kind, uint64_t raw, uint64_t len);

#endif
