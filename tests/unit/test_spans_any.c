/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests, with random requests, how the segments of a request become spans: reads and writes, rows,
 * several devices, and chunks of any length. Every byte of every buffer must receive the right byte
 * of the storage exactly once, and no byte beside the buffers may change.
 */
#include "spans.h"

/* Makes random segments. Their buffers follow each other in the arena, some with gaps between
 * their rows. */
static void random_segments(uint64_t *random)
{
	size_t at = 0;
	uint64_t off = test_random(random) % 20000, last = off;

	req.op = (enum penstock_op)(test_random(random) % 2);
	routes[req.op][0].paths[0].facts.off_align = test_random(random) % 4 ? 512 : 1;
	for (unsigned n = 1 + (unsigned)(test_random(random) % SEGS_MAX); n; n--) {
		uint64_t row = test_random(random) % (test_random(random) % 4 ? 900 : 9000);
		uint64_t rows = test_random(random) % 3 ? 1 : test_random(random) % 6;
		uint64_t pitch = row + test_random(random) % (row + 10) / (1 + n % 2);
		uint64_t buf_pitch = row + test_random(random) % 30;
		uint64_t kind = test_random(random) % 6;
		struct penstock_seg *seg;

		if (test_random(random) % 8 == 0)
			pitch = row + 4000 + test_random(random) % 500;
		if (test_random(random) % 8 == 0)
			pitch = row = row / EDGE * EDGE;
		if (at + (rows + 1) * (buf_pitch + 8) > ARENA)
			break;
		if (req.op == PENSTOCK_READ && kind == 0)
			off = last; /* Reads the previous segment's bytes again. */
		else if (req.op == PENSTOCK_READ && kind == 1)
			off = off > 700 ? off - test_random(random) % 700 : off;
		else if (kind == 2)
			off += test_random(random) % 10000;
		else if (kind == 3)
			off = (off + EDGE - 1) / EDGE * EDGE;
		at += test_random(random) % 8; /* Leaves up to 7 bytes between buffers. */
		seg = seg_add_rows(off, row, rows, pitch, arena + at, buf_pitch);
		seg->dev = &devices[req.op == PENSTOCK_READ ? test_random(random) % 3 : 0];
		seg->buf_off = test_random(random) % 5;
		seg->buf = (char *)seg->buf + 5 - seg->buf_off;
		last = off;
		rows = rows ? rows : 1;
		off += rows == 1 ? row : (rows - 1) * pitch + row;
		at += 5 + rows * buf_pitch;
	}
}

static void random_requests(void **state)
{
	uint64_t random = test_seed(20261121);

	for (unsigned turn = 0; turn < 400; turn++) {
		unsigned bodies = 0;

		setup(state);
		random_segments(&random);
		expected_bytes_fill();
		spans_make();
		check_numbers();
		check_bytes(&random, 1 + test_random(&random) % 20000);
		for (unsigned i = 0; i < req.span_count; i++) {
			const struct pst_span *span = &spans[i];
			bool direct = routes[PENSTOCK_WRITE][0].paths[0].facts.off_align > 1;

			bodies += !span->edge;
			if (req.op == PENSTOCK_READ || !direct)
				assert_false(span->edge);
			else if (!span->edge && !span->rowwise)
				assert_false(span->off % EDGE || span->len % EDGE);
			else if (!span->rowwise)
				assert_true(span->len < 2 * EDGE);
		}
	}
}

/* Makes random writes to a small storage. The rows of one write may be between the rows of another
 * write. Returns whether any byte is written twice. */
static bool random_writes(uint64_t *random)
{
	static unsigned char writes[4096];
	uint64_t pitch = 8 + test_random(random) % 90;
	unsigned count = 2 + (unsigned)(test_random(random) % 6), twice = 0;

	memset(writes, 0, sizeof(writes));
	for (unsigned i = 0; i < count; i++) {
		uint64_t p = test_random(random) % 4 ? pitch : 8 + test_random(random) % 90;
		uint64_t len = test_random(random) % (p / 2 + 1);
		uint64_t rows = test_random(random) % 3 ? 1 + test_random(random) % 12 : 1;
		uint64_t off = test_random(random) % 1500;

		seg_add_rows(off, len, rows, p, arena + i * 8192, p);
		for (uint64_t r = 0; r < rows; r++)
			for (uint64_t b = 0; b < len; b++)
				twice += writes[off + r * p + b]++ > 0;
	}
	return twice > 0;
}

static void random_overlaps(void **state)
{
	uint64_t random = test_seed(20261122);
	unsigned refused = 0, accepted = 0;

	for (unsigned turn = 0; turn < 4000; turn++) {
		bool twice;
		int ret;

		setup(state);
		req.op = PENSTOCK_WRITE;
		twice = random_writes(&random);
		ret = pst_spans_make(&req, SPANS_MAX, &err);
		if (ret != (twice ? -EINVAL : 0))
			fail_msg("turn %u: returned %d, but bytes are%s written twice", turn, ret,
				 twice ? "" : " not");
		refused += twice;
		accepted += !twice;
		req.seg_count = 0;
	}
	assert_true(refused > 500 && accepted > 500);
}

/* Writes 20000 columns of a matrix. The check for overlapping segments would be too slow if it
 * compared each pair of segments. */
static void overlap_check_of_many_columns(void **state)
{
	enum { COLUMNS = 20000, ROWS = 8 };
	struct penstock_seg *all = calloc(COLUMNS, sizeof(*all));
	struct pst_span *room = calloc((size_t)3 * COLUMNS, sizeof(*room));
	uint64_t pitch = COLUMNS * 16;

	(void)state;
	assert_true(all && room);
	req.op = PENSTOCK_WRITE;
	req.segs = all;
	req.spans = room;
	req.seg_count = COLUMNS;
	for (unsigned i = 0; i < COLUMNS; i++)
		all[i] = (struct penstock_seg){.buf = arena,
					       .dev = &devices[0],
					       .off = (i * 7919ull % COLUMNS) * 16,
					       .row_len = 16,
					       .rows = ROWS,
					       .pitch = pitch,
					       .buf_pitch = 16};
	assert_int_equal(pst_spans_make(&req, 3 * COLUMNS, &err), 0);
	all[1234].off++;
	assert_int_equal(pst_spans_make(&req, 3 * COLUMNS, &err), -EINVAL);
	assert_int_equal(err.why, PENSTOCK_WHY_BAD_ARGUMENT);
	free(all);
	free(room);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(random_requests, setup),
		cmocka_unit_test_setup(random_overlaps, setup),
		cmocka_unit_test_setup(overlap_check_of_many_columns, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
