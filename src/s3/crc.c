/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements crc.h: chooses between the CPU's carry-less multiplication (crc_fold.h) and tables,
 * and shifts CRCs. The tables are made when they are first needed.
 *
 * A raw CRC of n bits is a polynomial over GF(2) of a degree below n: its highest bit is the
 * coefficient of x^0.
 */
#include "s3/crc.h"

#include <endian.h>
#include <pthread.h>
#include <string.h>

#include "s3/crc_fold.h"

/* Minimum number of bytes for which the CPU's carry-less multiplication is used. The multiplication
 * always leaves 64 bytes, whose CRC the tables compute. For fewer bytes than this minimum, that
 * remainder would be too large a part. */
#define FOLD_MIN 256

static struct crc {
	/* the CRC's polynomial without its highest power, with the bits in reverse order */
	uint64_t poly;
	unsigned bits;
	uint64_t factors[2]; /* see crc_fold.h */
	/* tables[n][byte] is the raw CRC of the byte followed by n zero bytes. */
	uint64_t tables[8][256];
} crcs[PST_CRC_KINDS] = {
	[PST_CRC32] = {.poly = 0xedb88320u, .bits = 32},
	[PST_CRC64NVME] = {.poly = 0x9a6c9329ac4bc9b5u, .bits = 64},
};
static pthread_once_t crcs_once = PTHREAD_ONCE_INIT;

/* Returns a times x. */
static uint64_t times_x(const struct crc *crc, uint64_t a)
{
	return a >> 1 ^ (-(a & 1) & crc->poly);
}

static uint64_t multiply(const struct crc *crc, uint64_t a, uint64_t b)
{
	uint64_t product = 0;

	for (unsigned bit = crc->bits; bit--;) {
		product ^= -(a >> bit & 1) & b;
		b = times_x(crc, b);
	}
	return product;
}

/* Returns x^n. */
static uint64_t power(const struct crc *crc, unsigned n)
{
	uint64_t a = 1ull << (crc->bits - 1);

	while (n--)
		a = times_x(crc, a);
	return a;
}

static void crc_make(struct crc *crc)
{
	crc->factors[0] = power(crc, 575) << (64 - crc->bits);
	crc->factors[1] = power(crc, 511) << (64 - crc->bits);
	for (unsigned byte = 0; byte < 256; byte++) {
		uint64_t sum = byte;

		for (unsigned n = 0; n < 8; n++) {
			for (unsigned bit = 0; bit < 8; bit++)
				sum = times_x(crc, sum);
			crc->tables[n][byte] = sum;
		}
	}
}

static void crcs_make(void)
{
	for (unsigned kind = 0; kind < PST_CRC_KINDS; kind++)
		crc_make(&crcs[kind]);
}

uint64_t pst_crc_raw_tables(enum pst_crc_kind kind, uint64_t raw, const void *mem, size_t len)
{
	const struct crc *crc = &crcs[kind];
	const unsigned char *at = mem;

	pthread_once(&crcs_once, crcs_make);
	for (; len >= 8; len -= 8, at += 8) {
		uint64_t word;

		memcpy(&word, at, sizeof(word));
		word = le64toh(word) ^ raw;
		raw = 0;
		for (unsigned n = 0; n < 8; n++)
			raw ^= crc->tables[7 - n][word >> 8 * n & 0xff];
	}
	for (; len; len--, at++)
		raw = raw >> 8 ^ crc->tables[0][(raw ^ *at) & 0xff];
	return raw;
}

uint64_t pst_crc_raw(enum pst_crc_kind kind, uint64_t raw, const void *mem, size_t len)
{
	const unsigned char *at = mem;
	size_t whole = len & ~(size_t)(PST_CRC_FOLD - 1);
	unsigned char rest[PST_CRC_FOLD];

	if (len >= FOLD_MIN && pst_crc_fold.has()) {
		pthread_once(&crcs_once, crcs_make);
		pst_crc_fold.fold(crcs[kind].factors, raw, at, whole, rest);
		raw = pst_crc_raw_tables(kind, 0, rest, sizeof(rest));
		at += whole;
		len -= whole;
	}
	return pst_crc_raw_tables(kind, raw, at, len);
}

uint64_t pst_crc_shift(enum pst_crc_kind kind, uint64_t raw, uint64_t len)
{
	const struct crc *crc = &crcs[kind];
	uint64_t by = power(crc, 8);

	for (; len; len >>= 1, by = multiply(crc, by, by))
		if (len & 1)
			raw = multiply(crc, raw, by);
	return raw;
}
