/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the hash functions of S3: published values, input in pieces of all lengths, the CPU's
 * instructions compared with the tables, and combinations of CRCs.
 */
#include "test.h"

#include <errno.h>

#include "common/digits.h"
#include "s3/crc.h"
#include "s3/hash.h"

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

/* Computes a digest as hex digits, in pieces of `piece` bytes. */
static const char *digest(enum pst_hash_kind kind, const void *bytes, size_t len, size_t piece)
{
	static char hex[2 * PST_HASH_MAX + 1];
	unsigned char out[PST_HASH_MAX];
	struct pst_hash *hash = pst_hash_open(kind);

	assert_non_null(hash);
	for (size_t at = 0; at < len; at += piece)
		pst_hash_put(hash, (const char *)bytes + at, len - at < piece ? len - at : piece);
	assert_int_equal(pst_hash_end(hash, out), pst_hash_len(kind));
	pst_hash_close(hash);
	pst_hex(out, pst_hash_len(kind), hex);
	return hex;
}

/* Compares digests with the check values of RFC 1321, FIPS 180 and the catalogue of CRC algorithms
 * (reveng). */
static void published_values(void **state)
{
	static const struct {
		enum pst_hash_kind kind;
		const char *name, *text, *hex;
	} cases[] = {
		{PST_HASH_MD5, "md5", "", "d41d8cd98f00b204e9800998ecf8427e"},
		{PST_HASH_MD5, "md5", "message digest", "f96b697d7cb7938d525a2f31aaf161d0"},
		{PST_HASH_SHA1, "sha1", "abc", "a9993e364706816aba3e25717850c26c9cd0d89d"},
		{PST_HASH_SHA256, "sha256", "abc",
		 "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"},
		{PST_HASH_CRC32, "crc32", "123456789", "cbf43926"},
		{PST_HASH_CRC32, "crc32", "", "00000000"},
		{PST_HASH_CRC32C, "crc32c", "123456789", "e3069283"},
		{PST_HASH_CRC32C, "crc32c", "", "00000000"},
		{PST_HASH_CRC64NVME, "crc64nvme", "123456789", "ae8b14860a799888"},
		{PST_HASH_CRC64NVME, "crc64nvme", "", "0000000000000000"},
	};

	(void)state;
	for (unsigned i = 0; i < COUNT(cases); i++) {
		size_t len = strlen(cases[i].text);

		assert_string_equal(digest(cases[i].kind, cases[i].text, len, 4096), cases[i].hex);
		assert_string_equal(digest(cases[i].kind, cases[i].text, len, 1), cases[i].hex);
		assert_string_equal(pst_hash_name(cases[i].kind), cases[i].name);
	}
}

/* Compares the CRCs of 4 KiB of zeros, of ones, of rising bytes and of falling bytes with the
 * values in the NVM Command Set Specification. */
static void crc64_of_blocks(void **state)
{
	static const char *const hex[] = {"6482d367eb22b64e", "c0ddba7302eca3ac",
					  "3e729f5f6750449c", "9a2df64b8e9e517e"};
	unsigned char block[4096];

	(void)state;
	for (unsigned kind = 0; kind < COUNT(hex); kind++) {
		for (unsigned i = 0; i < sizeof(block); i++)
			block[i] = (unsigned char)(kind == 0   ? 0
						   : kind == 1 ? 0xff
						   : kind == 2 ? i
							       : 255 - i);
		assert_string_equal(digest(PST_HASH_CRC64NVME, block, sizeof(block), 4096),
				    hex[kind]);
	}
}

/* Computes the raw CRC bit by bit, as its definition says. */
static uint64_t crc_by_bits(uint64_t poly, uint64_t raw, const unsigned char *at, size_t len)
{
	for (; len; len--, at++) {
		raw ^= *at;
		for (unsigned bit = 0; bit < 8; bit++)
			raw = raw & 1 ? raw >> 1 ^ poly : raw >> 1;
	}
	return raw;
}

static void crcs_of_all_lengths(void **state)
{
	static const uint64_t polys[] = {0xedb88320u, 0x9a6c9329ac4bc9b5u};
	uint64_t seed = test_seed(7);
	unsigned char bytes[1200];

	(void)state;
	for (unsigned i = 0; i < sizeof(bytes); i++)
		bytes[i] = (unsigned char)test_random(&seed);
	for (enum pst_crc_kind kind = 0; kind < PST_CRC_KINDS; kind++)
		for (size_t len = 0; len < 1100; len++) {
			uint64_t raw = test_random(&seed) >> (kind == PST_CRC32 ? 32 : 0);
			const unsigned char *at = bytes + test_random(&seed) % 64;
			uint64_t wanted = crc_by_bits(polys[kind], raw, at, len);

			assert_int_equal(pst_crc_raw_tables(kind, raw, at, len), wanted);
			assert_int_equal(pst_crc_raw(kind, raw, at, len), wanted);
		}
}

/* Returns the CRC of `len` bytes as a number. */
static uint64_t crc(enum pst_hash_kind kind, const unsigned char *bytes, size_t len)
{
	return strtoull(digest(kind, bytes, len, 1000), NULL, 16);
}

static void combined_crcs(void **state)
{
	static const enum pst_hash_kind kinds[] = {PST_HASH_CRC32, PST_HASH_CRC32C,
						   PST_HASH_CRC64NVME};
	uint64_t seed = test_seed(8);
	unsigned char bytes[3000];

	(void)state;
	for (unsigned i = 0; i < sizeof(bytes); i++)
		bytes[i] = (unsigned char)test_random(&seed);
	for (unsigned i = 0; i < 600; i++) {
		enum pst_hash_kind kind = kinds[i % 3];
		size_t a = test_random(&seed) % 1500, b = test_random(&seed) % 1500;

		if (i < 6)
			b = 0;
		assert_int_equal(
			pst_crc_combine(kind, crc(kind, bytes, a), crc(kind, bytes + a, b), b),
			crc(kind, bytes, a + b));
	}
}

/* Combines random numbers as the CRCs of ranges that are too long for a test to read. The
 * combination must be associative: (x + y) + z and x + (y + z) have the same CRC. */
static void combined_long_crcs(void **state)
{
	static const enum pst_hash_kind kinds[] = {PST_HASH_CRC32, PST_HASH_CRC32C,
						   PST_HASH_CRC64NVME};
	uint64_t seed = test_seed(9);

	(void)state;
	for (unsigned i = 0; i < 60; i++) {
		enum pst_hash_kind kind = kinds[i % 3];
		uint64_t mask = i % 3 == 2 ? UINT64_MAX : UINT32_MAX;
		uint64_t x = test_random(&seed) & mask, y = test_random(&seed) & mask;
		uint64_t z = test_random(&seed) & mask;
		uint64_t y_len = test_random(&seed) >> 2, z_len = test_random(&seed) >> 2;
		uint64_t xy = pst_crc_combine(kind, x, y, y_len);
		uint64_t yz = pst_crc_combine(kind, y, z, z_len);

		assert_int_equal(pst_crc_combine(kind, xy, z, z_len),
				 pst_crc_combine(kind, x, yz, y_len + z_len));
	}
}

/* Compares an HMAC-SHA256 with case 2 of RFC 4231. */
static void keyed(void **state)
{
	unsigned char mac[32];
	char hex[65];

	(void)state;
	assert_true(pst_hmac_sha256("Jefe", 4, "what do ya want for nothing?", 28, mac));
	pst_hex(mac, 32, hex);
	assert_string_equal(hex,
			    "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
	assert_true(pst_sha256_hex("abc", 3, hex));
	assert_string_equal(hex,
			    "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
	assert_int_equal(pst_compare_secret("same", "same", 4), 0);
	assert_int_not_equal(pst_compare_secret("same", "sama", 4), 0);
	assert_int_not_equal(pst_compare_secret("same", "tame", 4), 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(published_values),    cmocka_unit_test(crc64_of_blocks),
		cmocka_unit_test(crcs_of_all_lengths), cmocka_unit_test(combined_crcs),
		cmocka_unit_test(combined_long_crcs),  cmocka_unit_test(keyed),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
