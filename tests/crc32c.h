/* SPDX-License-Identifier: Apache-2.0 */
/* Computes the CRC-32C of RFC 3720 one bit at a time. Tests compare the library's results with
 * it. */
#ifndef TESTS_CRC32C_H
#define TESTS_CRC32C_H

#include <stdint.h>

static inline uint32_t test_crc32c(const void *bytes, uint64_t len)
{
	const unsigned char *at = bytes;
	uint32_t crc = UINT32_MAX;

	for (uint64_t i = 0; i < len; i++) {
		crc ^= at[i];
		for (unsigned bit = 0; bit < 8; bit++)
			crc = crc & 1 ? crc >> 1 ^ 0x82f63b78u : crc >> 1;
	}
	return ~crc;
}

#endif
