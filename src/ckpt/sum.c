/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Computes the CRC-32C (Castagnoli) of host memory, one byte at a time, by a table of 256 entries.
 * A CRC is a remainder of polynomials over GF(2): appending n zero bits multiplies it by x^n.
 */
#include "ckpt/sum.h"

#include <errno.h>
#include <string.h>

#define POLYNOMIAL 0x82f63b78u /* the CRC-32C polynomial, with the bits reversed */

static uint32_t crc32c(const unsigned char *bytes, uint64_t len)
{
	uint32_t table[256], crc = ~0u;

	for (uint32_t i = 0; i < 256; i++) {
		table[i] = i;
		for (unsigned bit = 0; bit < 8; bit++)
			table[i] = table[i] >> 1 ^ (table[i] & 1 ? POLYNOMIAL : 0);
	}
	for (uint64_t i = 0; i < len; i++)
		crc = crc >> 8 ^ table[(crc ^ bytes[i]) & 0xff];
	return ~crc;
}

int pst_sum(struct pst_sum_args *sums, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		if (strcmp(penstock_device_name(sums[i].dev), "host") != 0)
			return penstock_fail(EOPNOTSUPP, PENSTOCK_WHY_UNSUPPORTED,
					     "%s cannot compute checksums",
					     penstock_device_name(sums[i].dev));
		sums[i].crc32c = crc32c(sums[i].ptr, sums[i].len);
	}
	return 0;
}

/* Returns the product of two polynomials modulo the CRC's polynomial. Bit 31 is x^0. */
static uint32_t multiply(uint32_t a, uint32_t b)
{
	uint32_t product = 0;

	for (; a; a <<= 1) {
		product ^= a >> 31 ? b : 0;
		b = b >> 1 ^ (b & 1 ? POLYNOMIAL : 0);
	}
	return product;
}

uint32_t pst_crc32c_join(uint32_t first, uint32_t second, uint64_t second_len)
{
	uint32_t power = 1u << 23; /* x^8, for one byte of zeros */

	for (; second_len; second_len >>= 1) {
		if (second_len & 1)
			first = multiply(power, first);
		power = multiply(power, power);
	}
	return first ^ second;
}
