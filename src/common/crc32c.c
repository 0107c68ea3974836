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

uint32_t pst_crc32c_shift(uint32_t raw, uint64_t len)
{
	uint32_t power = PST_CRC32C_X8;

	for (; len && raw; len >>= 1) {
		if (len & 1)
			raw = pst_crc32c_multiply(raw, power);
		power = pst_crc32c_multiply(power, power);
	}
	return raw;
}

uint32_t pst_crc32c_finish(uint32_t raw, uint64_t len)
{
	return raw ^ pst_crc32c_shift(UINT32_MAX, len) ^ UINT32_MAX;
}
