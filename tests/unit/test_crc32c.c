/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the CRC-32C of host memory. Compares the two implementations, the CPU's instruction and the
 * tables, with the vectors of RFC 3720 and with a computation bit by bit. Also tests the join of
 * two checksums.
 */
#include "crc32c.h"
#include "test.h"

#include "common/crc32c.h"
#include "common/crc32c_cpu.h"
#include "penstock.h"

/* Length in bytes. The implementations process the bytes in pieces; this length is several pieces
 * and a remainder. */
#define LONG (5u * 65536u + 1234u)

static uint32_t crc32c(const unsigned char *at, size_t len)
{
	return pst_crc32c_finish(pst_crc32c_raw(0, at, len), len);
}

static void bytes_fill(unsigned char *at, size_t len, uint64_t *seed)
{
	for (size_t i = 0; i < len; i++)
		at[i] = (unsigned char)(test_random(seed) >> 32);
}

static void vectors_of_the_rfc(void **state)
{
	/* RFC 3720, B.4: 32 bytes of zeros, 32 bytes of ones, ascending bytes, descending bytes,
	 * and this iSCSI command. */
	static const unsigned char pdu[48] = {
		0x01, 0xc0, 0, 0, 0, 0, 0,    0, 0, 0, 0,    0,	   0, 0, 0, 0, 0x14, 0, 0, 0,	 0,
		0,    0x04, 0, 0, 0, 0, 0x14, 0, 0, 0, 0x18, 0x28, 0, 0, 0, 0, 0,    0, 0, 0x02,
	};
	unsigned char bytes[4][32];

	(void)state;
	for (unsigned i = 0; i < 32; i++) {
		bytes[0][i] = 0;
		bytes[1][i] = 0xff;
		bytes[2][i] = (unsigned char)i;
		bytes[3][i] = (unsigned char)(31 - i);
	}
	assert_int_equal(crc32c(bytes[0], 32), 0x8a9136aa);
	assert_int_equal(crc32c(bytes[1], 32), 0x62a8ab43);
	assert_int_equal(crc32c(bytes[2], 32), 0x46dd794e);
	assert_int_equal(crc32c(bytes[3], 32), 0x113fdb5c);
	assert_int_equal(crc32c(pdu, sizeof(pdu)), 0xd9963a56);
	assert_int_equal(crc32c((const unsigned char *)"123456789", 9), 0xe3069283);
	assert_int_equal(crc32c(bytes[0], 0), 0);
}

static void every_length_and_alignment(void **state)
{
	_Alignas(16) unsigned char mem[320];
	uint64_t seed = test_seed(17);

	(void)state;
	bytes_fill(mem, sizeof(mem), &seed);
	for (size_t align = 0; align < 16; align++)
		for (size_t len = 0; len <= 300; len++) {
			const uint32_t want = test_crc32c(mem + align, len);

			assert_int_equal(crc32c(mem + align, len), want);
			assert_int_equal(
				pst_crc32c_finish(pst_crc32c_raw_tables(0, mem + align, len), len),
				want);
		}
}

static void long_ranges(void **state)
{
	static unsigned char mem[LONG];
	uint64_t seed = test_seed(18);
	const size_t lens[] = {3071, 3072, 3073, 49151, 49152, 49153, 98304, 150001, LONG};

	(void)state;
	bytes_fill(mem, sizeof(mem), &seed);
	for (unsigned i = 0; i < sizeof(lens) / sizeof(lens[0]); i++) {
		const unsigned char *at = mem + LONG - lens[i];
		const uint32_t want = test_crc32c(at, lens[i]);
		const uint32_t before = (uint32_t)test_random(&seed);
		const uint32_t raw = pst_crc32c_raw_tables(before, at, lens[i]);

		assert_int_equal(crc32c(at, lens[i]), want);
		/* The computation begins with the checksum of earlier bytes instead of 0. */
		assert_int_equal(pst_crc32c_raw(before, at, lens[i]), raw);
		assert_int_equal(pst_crc32c_shift(before, lens[i]) ^ pst_crc32c_raw(0, at, lens[i]),
				 raw);
	}
}

static void joins_of_random_splits(void **state)
{
	static unsigned char mem[20000];
	uint64_t seed = test_seed(19);

	(void)state;
	bytes_fill(mem, sizeof(mem), &seed);
	for (unsigned i = 0; i < 300; i++) {
		const size_t len = test_random(&seed) % (sizeof(mem) + 1);
		const size_t split = test_random(&seed) % (len + 1);
		const uint32_t first = crc32c(mem, split);
		const uint32_t second = crc32c(mem + split, len - split);

		assert_int_equal(penstock_crc32c_join(first, second, len - split),
				 crc32c(mem, len));
	}
}

/* Checks that joins are associative for parts whose lengths need more than 32 bits. The checksum
 * of `len` zero bytes is known: the loop starts with 1024 zero bytes and doubles them by joins. */
static void joins_of_long_parts(void **state)
{
	static const unsigned char zeros[1024];
	uint32_t crc = test_crc32c(zeros, sizeof(zeros));
	uint64_t len = sizeof(zeros);

	(void)state;
	for (; len < UINT64_C(1) << 63; len *= 2) {
		const uint32_t a = crc, one = test_crc32c(zeros, 1);
		const uint32_t aa = penstock_crc32c_join(a, a, len);

		assert_int_equal(crc, pst_crc32c_finish(0, len));
		/* (a + a) + one zero byte == a + (a + one zero byte); + is a join */
		assert_int_equal(penstock_crc32c_join(aa, one, 1),
				 penstock_crc32c_join(a, penstock_crc32c_join(a, one, 1), len + 1));
		crc = aa;
	}
	/* The expected value, for 4 GiB and 5 bytes of zeros, was computed word by word. */
	assert_int_equal(pst_crc32c_finish(0, (UINT64_C(1) << 32) + 5), 0xbb3e6a6d);
	assert_int_equal(penstock_crc32c_join(0x12345678, 0, 0), 0x12345678);
	assert_int_equal(penstock_crc32c_join(0, 0x12345678, 7), 0x12345678);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(vectors_of_the_rfc),  cmocka_unit_test(every_length_and_alignment),
		cmocka_unit_test(long_ranges),	       cmocka_unit_test(joins_of_random_splits),
		cmocka_unit_test(joins_of_long_parts),
	};

	printf("# crc32c: %s\n", pst_crc32c_cpu.has() ? "instruction" : "tables only");
	return cmocka_run_group_tests(tests, NULL, NULL);
}
