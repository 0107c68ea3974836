/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements crc32c.h: chooses between the CPU's instruction (crc32c_cpu.h) and tables, and shifts
 * CRCs. The tables are made when they are first needed.
 */
#include "common/crc32c.h"

#include <endian.h>
#include <pthread.h>
#include <string.h>

#include "common/crc32c_cpu.h"
#include "common/crc32c_field.h"

/* tables[n][byte] is the raw CRC of the byte followed by n zero bytes. */
static uint32_t tables[8][256];
static pthread_once_t tables_once = PTHREAD_ONCE_INIT;

static void tables_make(void)
{
	for (unsigned byte = 0; byte < 256; byte++) {
		uint32_t crc = pst_crc32c_multiply(byte, PST_CRC32C_X8);

		for (unsigned n = 0; n < 8; n++) {
			tables[n][byte] = crc;
			crc = pst_crc32c_multiply(crc, PST_CRC32C_X8);
		}
	}
}

uint32_t pst_crc32c_raw_tables(uint32_t raw, const void *mem, size_t len)
{
	const unsigned char *at = mem;

	pthread_once(&tables_once, tables_make);
	for (; len >= 8; len -= 8, at += 8) {
		uint64_t word, sum = 0;

		memcpy(&word, at, sizeof(word));
		word = le64toh(word) ^ raw;
		for (unsigned n = 0; n < 8; n++)
			sum ^= tables[7 - n][word >> 8 * n & 0xff];
		raw = (uint32_t)sum;
	}
	for (; len; len--, at++)
		raw = raw >> 8 ^ tables[0][(raw ^ *at) & 0xff];
	return raw;
}

uint32_t pst_crc32c_raw(uint32_t raw, const void *mem, size_t len)
{
	return pst_crc32c_cpu.has() ? pst_crc32c_cpu.raw(raw, mem, len)
				    : pst_crc32c_raw_tables(raw, mem, len);
}

/* Entry k is x^(8 * 2^k) modulo the CRC's polynomial, so each entry is the square of the entry
 * before it. The square of the last entry equals the first, so no further entries are needed. */
static const uint32_t powers[31] = {
	0x00800000, 0x00008000, 0x82f63b78, 0x6ea2d55c, 0x18b8ea18, 0x510ac59a, 0xb82be955,
	0xb8fdb1e7, 0x88e56f72, 0x74c360a4, 0xe4172b16, 0x0d65762a, 0x35d73a62, 0x28461564,
	0xbf455269, 0xe2ea32dc, 0xfe7740e6, 0xf946610b, 0x3c204f8f, 0x538586e3, 0x59726915,
	0x734d5309, 0xbc1ac763, 0x7d0722cc, 0xd289cabe, 0xe94ca9bc, 0x05b74f3f, 0xa51e1f42,
	0x40000000, 0x20000000, 0x08000000,
};

uint32_t pst_crc32c_shift(uint32_t raw, uint64_t len)
{
	for (unsigned k = 0; len; len >>= 1, k = k == 30 ? 0 : k + 1)
		if (len & 1)
			raw = pst_crc32c_multiply(raw, powers[k]);
	return raw;
}

uint32_t pst_crc32c_finish(uint32_t raw, uint64_t len)
{
	return raw ^ pst_crc32c_shift(UINT32_MAX, len) ^ UINT32_MAX;
}
