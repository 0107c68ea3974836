/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the buffers of an upload whose length is unknown, and whose later parts are longer. It
 * includes the source, because only an object of many GiB reaches such parts. The buffers are never
 * touched, except their first bytes.
 */
#include "test.h"

#include "../../src/storage/object_upload.c"

/* Takes as many buffers as there are, while a part is on its way. */
static unsigned take_all(struct pst_object_upload *up, uint64_t len, char **buffers, unsigned max)
{
	unsigned count = 0;

	while (count < max && (buffers[count] = buffer_get(up, len)))
		count++;
	return count;
}

static void longer_parts(void **state)
{
	struct pst_object_upload *up = calloc(1, sizeof(*up));
	char *buffers[64];

	(void)state;
	assert_non_null(up);
	up->part_bytes = PART_BYTES;
	up->sending = 1;
	for (uint64_t len = PART_BYTES; len <= 32 * PART_BYTES; len *= 2) {
		uint64_t want =
			BUFFERS_BYTES / len > BUFFERS_MIN ? BUFFERS_BYTES / len : BUFFERS_MIN;
		unsigned count = take_all(up, len, buffers, 64);

		print_message("# parts of %llu MiB: %u buffers, expected %llu\n",
			      (unsigned long long)(len >> 20), count, (unsigned long long)want);
		assert_int_equal(count, want);
		assert_int_equal(up->buffer_bytes, count * len);
		while (count)
			buffer_put(up, buffers[--count], len);
	}
	assert_int_equal(up->buffer_bytes, 0);
	free(up);
}

/* Free buffers are used again while the parts have their length. */
static void equal_parts(void **state)
{
	struct pst_object_upload *up = calloc(1, sizeof(*up));
	char *buffers[64], *again;
	unsigned count;

	(void)state;
	assert_non_null(up);
	up->part_bytes = PART_BYTES;
	up->sending = 1;
	count = take_all(up, PART_BYTES, buffers, 64);
	assert_int_equal(count, BUFFERS_BYTES / PART_BYTES);
	buffer_put(up, buffers[3], PART_BYTES);
	again = buffer_get(up, PART_BYTES);
	assert_ptr_equal(again, buffers[3]);
	assert_null(buffer_get(up, PART_BYTES));
	while (count)
		free(buffers[--count]);
	free(up);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(longer_parts),
		cmocka_unit_test(equal_parts),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
