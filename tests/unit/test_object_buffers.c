/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the buffers of an upload, which hold the parts of an object until they are sent. If the
 * length of an object is not known, its parts become longer after many parts. Only an object of
 * many GiB has such parts, so the test includes the source and requests buffers without an upload.
 * It writes only the first bytes of the buffers.
 */
#include "test.h"

#include "../../src/storage/object_buffer.c"
#include "../../src/storage/object_upload.c"

/* which of the following calls of calloc fails: 1 is the next one; 0: none fails */
static unsigned callocs_left;

void *__real_calloc(size_t count, size_t size);
void *__wrap_calloc(size_t count, size_t size);

void *__wrap_calloc(size_t count, size_t size)
{
	if (callocs_left && !--callocs_left)
		return NULL;
	return __real_calloc(count, size);
}

/* Requests buffers of `len` bytes until the upload returns none. The caller must set up->sending to
 * 1, because an upload without parts in flight may get buffers beyond its limit. */
static unsigned take_all(struct pst_object_upload *up, uint64_t len, char **buffers, unsigned max)
{
	unsigned count = 0;

	while (count < max && (buffers[count] = pst_object_buffer_get(up, len)))
		count++;
	return count;
}

static void longer_parts(void **state)
{
	struct pst_object_upload *up = calloc(1, sizeof(*up));
	char *buffers[64];

	(void)state;
	assert_non_null(up);
	up->part_bytes = PST_OBJECT_PART_BYTES;
	up->sending = 1;
	for (uint64_t len = PST_OBJECT_PART_BYTES; len <= 32 * PST_OBJECT_PART_BYTES; len *= 2) {
		uint64_t want =
			BUFFERS_BYTES / len > BUFFERS_MIN ? BUFFERS_BYTES / len : BUFFERS_MIN;
		unsigned count = take_all(up, len, buffers, 64);

		print_message("# parts of %llu MiB: %u buffers, expected %llu\n",
			      (unsigned long long)(len >> 20), count, (unsigned long long)want);
		assert_int_equal(count, want);
		assert_int_equal(up->buffer_bytes, count * len);
		while (count)
			pst_object_buffer_put(up, buffers[--count], len);
	}
	assert_int_equal(up->buffer_bytes, 0);
	free(up);
}

/* Buffers that were given back are used again as long as the length of the parts does not
 * change. */
static void equal_parts(void **state)
{
	struct pst_object_upload *up = calloc(1, sizeof(*up));
	char *buffers[64], *again;
	unsigned count;

	(void)state;
	assert_non_null(up);
	up->part_bytes = PST_OBJECT_PART_BYTES;
	up->sending = 1;
	count = take_all(up, PST_OBJECT_PART_BYTES, buffers, 64);
	assert_int_equal(count, BUFFERS_BYTES / PST_OBJECT_PART_BYTES);
	pst_object_buffer_put(up, buffers[3], PST_OBJECT_PART_BYTES);
	again = pst_object_buffer_get(up, PST_OBJECT_PART_BYTES);
	assert_ptr_equal(again, buffers[3]);
	assert_null(pst_object_buffer_get(up, PST_OBJECT_PART_BYTES));
	while (count)
		free(buffers[--count]);
	free(up);
}

/* Opens the last part of an upload, which is shorter than its buffer. One of the two calls of
 * calloc for the part fails, or none fails. up->buffer_bytes must be the length of the allocated
 * buffers in each case. */
static void no_memory_for_a_part(void **state)
{
	(void)state;
	for (unsigned failing = 1; failing <= 3; failing++) {
		struct pst_object_upload *up = calloc(1, sizeof(*up));
		struct pst_err err = {0, PENSTOCK_WHY_NONE, ""};
		uint64_t allocated = 0;
		struct part *part;

		assert_non_null(up);
		up->part_bytes = PST_OBJECT_PART_BYTES;
		up->length = 2 * PST_OBJECT_PART_BYTES + 1;
		callocs_left = failing;
		part = part_open(up, 2, &err);
		callocs_left = 0;
		assert_int_equal(part != NULL, failing == 3);
		assert_int_equal(err.code, part ? 0 : -ENOMEM);
		for (; up->spare; allocated += PST_OBJECT_PART_BYTES)
			free(spare_take(up));
		if (part)
			allocated += part->mem_len;
		print_message("# calloc %u fails: %llu bytes counted, %llu allocated\n", failing,
			      (unsigned long long)up->buffer_bytes, (unsigned long long)allocated);
		assert_int_equal(up->buffer_bytes, allocated);
		pst_object_send_free(part);
		free(up);
	}
}

/* The next upload uses the buffers of a closed upload again. The process keeps at most KEPT_MAX of
 * them, and only those of the usual length. */
static void kept_buffers(void **state)
{
	struct pst_object_upload *up = calloc(1, sizeof(*up));
	char *first[KEPT_MAX + 1], *again[KEPT_MAX + 1], *longer;
	unsigned same = 0;

	(void)state;
	assert_non_null(up);
	while (kept_count)
		free(kept[--kept_count]);
	for (unsigned i = 0; i <= KEPT_MAX; i++) {
		first[i] = pst_object_buffer_alloc(up, KEPT_BYTES);
		first[i][0] = first[i][KEPT_BYTES - 1] = 1;
	}
	longer = pst_object_buffer_alloc(up, 2 * KEPT_BYTES);
	pst_object_buffer_free(up, longer, 2 * KEPT_BYTES);
	assert_int_equal(kept_count, 0);
	for (unsigned i = 0; i <= KEPT_MAX; i++)
		pst_object_buffer_free(up, first[i], KEPT_BYTES);
	assert_int_equal(kept_count, KEPT_MAX);
	for (unsigned i = 0; i < KEPT_MAX; i++)
		again[i] = pst_object_buffer_alloc(up, KEPT_BYTES);
	assert_int_equal(kept_count, 0);
	for (unsigned i = 0; i < KEPT_MAX; i++)
		for (unsigned k = 0; k < KEPT_MAX; k++)
			same += again[i] == first[k];
	print_message("# %u of %llu buffers were used again\n", same,
		      (unsigned long long)KEPT_MAX);
	assert_int_equal(same, KEPT_MAX);
	for (unsigned i = 0; i < KEPT_MAX; i++)
		free(again[i]);
	free(up);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(longer_parts),
		cmocka_unit_test(equal_parts),
		cmocka_unit_test(no_memory_for_a_part),
		cmocka_unit_test(kept_buffers),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
