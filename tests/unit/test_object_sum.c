/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the checksum of an object whose pieces are read in random order. */
#include "test.h"

#include "storage/object_sum.h"

#define LEN 10000u

static unsigned char bytes[LEN];

static uint64_t sum_of(enum pst_hash_kind kind, uint64_t off, uint64_t len)
{
	/* uses two entries, so that the checksum covers a border between entries */
	struct iovec iov[2] = {{bytes + off, (size_t)len / 3}, {bytes + off + len / 3, LEN}};

	return pst_object_sum_of(kind, iov, 2, 0, len);
}

/* Begins the verification of `bytes`. `wrong` is XORed with the expected checksum, so any value but
 * 0 makes it wrong. */
static void begin(struct pst_object_sum *sum, enum pst_hash_kind kind, uint64_t wrong)
{
	struct pst_http_head head = {.status = 200};

	pst_object_sum_text(kind, sum_of(kind, 0, LEN) ^ wrong,
			    kind == PST_HASH_CRC32    ? head.crc32
			    : kind == PST_HASH_CRC32C ? head.crc32c
						      : head.crc64nvme);
	pst_object_sum_open(sum, &head, LEN);
	assert_int_equal(sum->state, PST_OBJECT_SUM_OPEN);
}

static void pieces_in_any_order(void **state)
{
	uint64_t random = test_seed(5) | 1;

	(void)state;
	for (unsigned i = 0; i < LEN; i++)
		bytes[i] = (unsigned char)test_random(&random);
	for (unsigned round = 0; round < 200; round++) {
		static const enum pst_hash_kind kinds[] = {PST_HASH_CRC64NVME, PST_HASH_CRC32C,
							   PST_HASH_CRC32};
		enum pst_hash_kind kind = kinds[round % 3];
		struct pst_object_sum sum;
		unsigned cuts[64], count = 1 + (unsigned)(test_random(&random) % 60);
		uint64_t wrong = round % 5 == 0;

		begin(&sum, kind, wrong);
		for (unsigned i = 0; i < count; i++)
			cuts[i] = i;
		for (unsigned i = count; i > 1; i--) {
			unsigned j = (unsigned)(test_random(&random) % i), t = cuts[i - 1];

			cuts[i - 1] = cuts[j];
			cuts[j] = t;
		}
		for (unsigned i = 0; i < count; i++) {
			uint64_t off = (uint64_t)LEN * cuts[i] / count;
			uint64_t len = (uint64_t)LEN * (cuts[i] + 1) / count - off;
			enum pst_object_sum_state now =
				pst_object_sum_add(&sum, off, len, sum_of(kind, off, len));

			if (i + 1 < count)
				assert_int_equal(now, PST_OBJECT_SUM_OPEN);
			else
				assert_int_equal(now, wrong ? PST_OBJECT_SUM_WRONG
							    : PST_OBJECT_SUM_RIGHT);
			/* adding bytes that were added before has no effect */
			if (i + 1 < count)
				assert_int_equal(pst_object_sum_add(&sum, off, len, 77),
						 PST_OBJECT_SUM_OPEN);
		}
		pst_object_sum_close(&sum);
	}
}

/* Reads overlap in random ways. Each read adds only the bytes that were not added before. */
static void overlapping_reads(void **state)
{
	uint64_t random = test_seed(6) | 1;

	(void)state;
	for (unsigned round = 0; round < 200; round++) {
		enum pst_object_sum_state now = PST_OBJECT_SUM_OPEN;
		struct pst_object_sum sum;
		uint64_t wrong = round % 5 == 0, added = 0;

		begin(&sum, PST_HASH_CRC64NVME, wrong);
		for (unsigned reads = 0; now == PST_OBJECT_SUM_OPEN; reads++) {
			uint64_t first = test_random(&random) % LEN, at = first, n;
			uint64_t end = first + 1 + test_random(&random) % (LEN - first);
			struct iovec iov[2];

			/* the 50th read covers the whole object, so that the loop ends */
			if (reads == 50) {
				first = at = 0;
				end = LEN;
			}
			iov[0] = (struct iovec){bytes + first, (size_t)(end - first) / 3};
			iov[1] = (struct iovec){bytes + first + iov[0].iov_len, LEN};
			while (now == PST_OBJECT_SUM_OPEN &&
			       (n = pst_object_sum_gap(&sum, &at, end))) {
				uint64_t crc = pst_object_sum_of(sum.kind, iov, 2, at - first, n);

				assert_true(at >= first && at + n <= end);
				added += n;
				now = pst_object_sum_add(&sum, at, n, crc);
			}
		}
		assert_int_equal(now, wrong ? PST_OBJECT_SUM_WRONG : PST_OBJECT_SUM_RIGHT);
		assert_int_equal(added, LEN);
		pst_object_sum_close(&sum);
	}
}

/* Two threads add overlapping pieces. The piece that is added second is ignored. */
static void ignores_overlap(void **state)
{
	struct pst_object_sum sum;
	uint64_t at = 150;

	(void)state;
	begin(&sum, PST_HASH_CRC32C, 0);
	pst_object_sum_add(&sum, 100, 100, 1);
	assert_int_equal(pst_object_sum_add(&sum, 150, 100, 1), PST_OBJECT_SUM_OPEN);
	assert_int_equal(sum.count, 1);
	assert_int_equal(sum.pieces[0].len, 100);
	assert_int_equal(pst_object_sum_gap(&sum, &at, 250), 50);
	assert_int_equal(at, 200);
	pst_object_sum_close(&sum);
}

/* After a wrong checksum, the verification begins again with all bytes. */
static void begins_again(void **state)
{
	struct pst_object_sum sum;
	uint64_t half = LEN / 2, first = sum_of(PST_HASH_CRC32C, 0, half);
	uint64_t second = sum_of(PST_HASH_CRC32C, half, half);

	(void)state;
	begin(&sum, PST_HASH_CRC32C, 0);
	assert_int_equal(pst_object_sum_add(&sum, 0, half, first), PST_OBJECT_SUM_OPEN);
	for (unsigned round = 0; round < 3; round++) {
		assert_int_equal(pst_object_sum_add(&sum, half, half, second ^ 1),
				 PST_OBJECT_SUM_WRONG);
		assert_int_equal(pst_object_sum_add(&sum, 0, half, first), PST_OBJECT_SUM_OPEN);
	}
	assert_int_equal(pst_object_sum_add(&sum, half, half, second), PST_OBJECT_SUM_RIGHT);
	pst_object_sum_close(&sum);
}

static void gives_up(void **state)
{
	struct pst_object_sum sum;

	(void)state;
	begin(&sum, PST_HASH_CRC32C, 0);
	for (unsigned i = 0; i < PST_OBJECT_SUM_PIECES_MAX; i++)
		assert_int_equal(pst_object_sum_add(&sum, 2ull * i, 1, 1), PST_OBJECT_SUM_OPEN);
	assert_int_equal(pst_object_sum_add(&sum, 5000, 1, 1), PST_OBJECT_SUM_GIVEN_UP);
	pst_object_sum_close(&sum);
}

static void ignores_other_checksums(void **state)
{
	struct pst_http_head head = {
		.status = 200, .crc32c = "AAAAAA==", .checksum_type = "COMPOSITE"};
	struct pst_object_sum sum;

	(void)state;
	pst_object_sum_open(&sum, &head, LEN);
	assert_int_equal(sum.state, PST_OBJECT_SUM_NONE);
	head.checksum_type[0] = '\0';
	snprintf(head.crc32c, sizeof(head.crc32c), "AAAA");
	pst_object_sum_open(&sum, &head, LEN);
	assert_int_equal(sum.state, PST_OBJECT_SUM_NONE);
}

/* A server that does not tell the type of the checksum of an object in parts: moto 5.2.5, for
 * example, sends the composite CRC32 without a type. */
static void ignores_checksums_that_may_be_composite(void **state)
{
	struct pst_http_head head = {
		.status = 200, .crc32 = "AAAAAA==", .etag = "\"9b2cf535-3\""};
	struct pst_object_sum sum;

	(void)state;
	pst_object_sum_open(&sum, &head, LEN);
	assert_int_equal(sum.state, PST_OBJECT_SUM_NONE);
	snprintf(head.checksum_type, sizeof(head.checksum_type), "FULL_OBJECT");
	pst_object_sum_open(&sum, &head, LEN);
	assert_int_equal(sum.state, PST_OBJECT_SUM_OPEN);
	pst_object_sum_close(&sum);
	head.checksum_type[0] = '\0';
	snprintf(head.crc64nvme, sizeof(head.crc64nvme), "AAAAAAAAAAA=");
	pst_object_sum_open(&sum, &head, LEN);
	assert_int_equal(sum.state, PST_OBJECT_SUM_OPEN);
	pst_object_sum_close(&sum);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(pieces_in_any_order),
		cmocka_unit_test(overlapping_reads),
		cmocka_unit_test(ignores_overlap),
		cmocka_unit_test(begins_again),
		cmocka_unit_test(gives_up),
		cmocka_unit_test(ignores_other_checksums),
		cmocka_unit_test(ignores_checksums_that_may_be_composite),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
