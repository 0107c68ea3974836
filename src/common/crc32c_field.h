/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Arithmetic of CRC-32C: polynomials over GF(2), modulo the polynomial of Castagnoli. A 32-bit
 * number stands for such a polynomial. Its highest bit is the coefficient of x^0, and its lowest
 * bit that of x^31, because CRC-32C takes the bits of each byte from the lowest to the highest.
 * Only common/crc32c*.c include this header.
 */
#ifndef PST_COMMON_CRC32C_FIELD_H
#define PST_COMMON_CRC32C_FIELD_H

#include <stdint.h>

#define PST_CRC32C_POLY 0x82f63b78u /* polynomial of RFC 3720, B.4, without x^32 */
#define PST_CRC32C_ONE 0x80000000u  /* x^0 */
#define PST_CRC32C_X8 0x00800000u   /* x^8, which stands for one byte */

/* Returns the product of two polynomials. */
static inline uint32_t pst_crc32c_multiply(uint32_t a, uint32_t b)
{
	uint32_t product = 0;

	for (int bit = 31; bit >= 0; bit--) {
		product ^= -(a >> bit & 1) & b;
		b = b >> 1 ^ (-(b & 1) & PST_CRC32C_POLY);
	}
	return product;
}

#endif
