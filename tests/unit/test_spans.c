/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests case by case how the segments of a request (pieces of storage with their buffers) become
 * spans (contiguous ranges of storage). Bytes that several buffers receive are in one span and are
 * read once. Small gaps between rows are read together with the rows. Unaligned ends of writes
 * become separate spans after the aligned bodies. Overflowing, overlapping and oversized requests
 * are refused. The test opens no file and moves no bytes.
 */
#include "spans.h"

/* ---- reads: which segments share a span ---- */

static void one_segment(void **state)
{
	(void)state;
	seg_add(1000, 5000, arena + 7);
	check_all();
	assert_int_equal(req.span_count, 1);
	assert_int_equal(spans[0].off, 1000);
	assert_int_equal(req.total, 5000);
	assert_false(spans[0].shared || spans[0].rowwise || spans[0].edge);
}

static void no_bytes(void **state)
{
	(void)state;
	spans_make();
	assert_int_equal(req.total, 0);
	seg_add(77, 0, NULL); /* An empty segment needs no buffer. */
	seg_add_rows(5, 0, 9, 100, NULL, 100);
	spans_make();
	assert_int_equal(req.span_count, 0);
	assert_int_equal(req.total, 0);
	seg_add(100, 10, arena);
	seg_add(0, 0, NULL);
	seg_add(110, 10, arena + 10); /* continues the span of bytes 100 to 109 */
	check_all();
	assert_int_equal(req.span_count, 1);
	assert_int_equal(req.total, 20);
}

static void several_destinations_are_read_once(void **state)
{
	(void)state;
	seg_add(512, 10000, arena);
	seg_add(512, 10000, arena + 20000);
	seg_add(600, 100, arena + 40000);
	segs[1].dev = &devices[1];
	segs[2].dev = &devices[2];
	check_all();
	assert_int_equal(req.span_count, 1);
	assert_int_equal(req.total, 10000);
	assert_true(spans[0].shared);
}

static void touching_segments_move_in_place(void **state)
{
	(void)state;
	for (unsigned i = 0; i < SEGS_MAX; i++)
		seg_add(4096 * i, 4096, arena + 8192 * (SEGS_MAX - i));
	check_all();
	assert_int_equal(req.span_count, 1);
	assert_false(spans[0].shared);
}

static void gaps_and_lower_offsets_split_spans(void **state)
{
	(void)state;
	seg_add(1000, 100, arena);
	/* A gap of one byte separates this segment from the first one. */
	seg_add(1101, 100, arena + 1000);
	seg_add(500, 100, arena + 2000); /* ends before the first segment begins */
	seg_add(999, 5, arena + 3000);
	check_all();
	assert_int_equal(req.span_count, 4);
	assert_int_equal(req.total, 305);
}

static void a_shorter_segment_inside_keeps_the_span(void **state)
{
	(void)state;
	seg_add(0, 1000, arena);
	seg_add(100, 50, arena + 2000);
	/* Begins where the first segment ends; the second segment ends before that offset. */
	seg_add(1000, 24, arena + 3000);
	check_all();
	assert_int_equal(req.span_count, 1);
	assert_int_equal(req.total, 1024);
	assert_true(spans[0].shared);
}

static void touching_segments_of_two_devices(void **state)
{
	(void)state;
	seg_add(0, 4096, arena);
	seg_add(4096, 4096, arena + 8192)->dev = &devices[1];
	check_all();
	assert_int_equal(req.span_count, 1);
	/* The span is shared: a path cannot read one range directly into the memory of two devices.
	 */
	assert_true(spans[0].shared);
	for (unsigned c = PENSTOCK_NO_CPU_COPY; c <= PENSTOCK_DIRECT; c++) {
		setup(state);
		req.require = (enum penstock_class)c;
		req.seg_count = 0;
		seg_add(0, 4096, arena);
		seg_add(4096, 4096, arena + 8192)->dev = &devices[1];
		seg_add(8192, 4096, arena + 20000)->dev = &devices[1];
		check_all();
		/* With these classes, the segments of each device form a span of their own. */
		assert_int_equal(req.span_count, 2);
		assert_false(spans[0].shared || spans[1].shared);
		assert_ptr_equal(spans[1].route, &routes[PENSTOCK_READ][1]);
	}
}

static void interleaved_columns(void **state)
{
	(void)state;
	for (unsigned c = 0; c < 4; c++)
		seg_add_rows(8 + 100 * c, 100, 50, 400, arena + 10000 * c, 128);
	check_all();
	assert_int_equal(req.span_count, 1);
	assert_int_equal(req.total, 50 * 400);
	assert_true(spans[0].shared);
}

/* ---- rows ---- */

static void rows_without_gaps_are_merged(void **state)
{
	(void)state;
	seg_add_rows(3, 700, 20, 700, arena, 700);
	check_all();
	assert_int_equal(req.span_count, 1);
	assert_int_equal(segs[0].rows, 1);
	assert_false(spans[0].shared);
	/* The rows have gaps in the buffer, but not in the storage. */
	setup(state);
	seg_add_rows(3, 700, 20, 700, arena, 1024);
	check_all();
	assert_int_equal(req.total, 14000);
	assert_false(spans[0].rowwise);
	setup(state);
	req.op = PENSTOCK_WRITE;
	seg_add_rows(EDGE, 700, 20, 700, arena, 1024);
	check_all();
	assert_false(spans[0].rowwise);
}

/* A gap between rows is read, too, if it has less than 4096 bytes or is no longer than a row. */
static void small_gaps_are_read_along(void **state)
{
	static const struct {
		uint64_t row_len, gap;
		bool merged;
	} cases[] = {
		{100, 4095, true},   {100, 4096, false}, {4096, 4096, true},  {4096, 4097, false},
		{4095, 4096, false}, {9000, 9000, true}, {9000, 9001, false},
	};

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		uint64_t row = cases[i].row_len, pitch = row + cases[i].gap;

		setup(state);
		seg_add_rows(11, row, 5, pitch, arena, row + 1);
		check_all();
		assert_int_equal(req.span_count, 1);
		assert_int_equal(spans[0].rowwise, !cases[i].merged);
		assert_int_equal(spans[0].shared, cases[i].merged);
		assert_int_equal(req.total, cases[i].merged ? 4 * pitch + row : 5 * row);
	}
}

static void pitched_buffers(void **state)
{
	uint64_t random = test_seed(7);

	(void)state;
	seg_add_rows(40, 1000, 30, 1500, arena + 33, 2000);
	expected_bytes_fill();
	spans_make();
	check_bytes(&random, 3000);
	memset(got, 0xff, sizeof(got));
	check_bytes(&random, 1700);
	memset(got, 0xff, sizeof(got));
	check_bytes(NULL, 1);
}

static void one_row_has_no_pitch(void **state)
{
	(void)state;
	seg_add_rows(10, 100, 1, 5, arena, 3);
	check_all();
	assert_int_equal(req.total, 100);
	setup(state);
	seg_add_rows(10, 100, 0, UINT64_MAX, arena, UINT64_MAX); /* 0 rows mean 1 row. */
	segs[0].buf_pitch = segs[0].pitch = 0;
	check_all();
	assert_int_equal(req.total, 100);
}

/* ---- writes ---- */

static void unaligned_write_ends_are_edges(void **state)
{
	(void)state;
	req.op = PENSTOCK_WRITE;
	seg_add(EDGE - 10, 10 + 2 * EDGE + 20, arena + 5);
	check_all();
	assert_int_equal(req.span_count, 3);
	assert_int_equal(spans[0].off, EDGE);
	assert_int_equal(spans[0].len, 2 * EDGE);
	assert_int_equal(req.body, 2 * EDGE);
	assert_int_equal(spans[1].off, EDGE - 10);
	assert_int_equal(spans[1].len, 10);
	assert_int_equal(spans[2].off, 3 * EDGE);
	assert_int_equal(spans[2].len, 20);
	assert_true(spans[1].edge && spans[2].edge && !spans[0].edge);
}

static void writes_of_all_shapes(void **state)
{
	static const struct {
		uint64_t off, len;
		unsigned bodies, edges;
	} cases[] = {
		{0, EDGE, 1, 0},
		{0, EDGE - 1, 0, 1},
		{1, EDGE - 1, 0, 1},
		{1, EDGE, 0, 1},
		{1, 2 * EDGE - 1, 1, 1},
		{0, EDGE + 1, 1, 1},
		{EDGE - 1, EDGE + 2, 1, 2},
		{EDGE - 1, 2, 0, 1},
		{5, 1, 0, 1},
		{512, EDGE - 512, 0, 1},
		{512, EDGE, 0, 1},
	};

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		unsigned edges = 0;

		setup(state);
		req.op = PENSTOCK_WRITE;
		seg_add(cases[i].off, cases[i].len, arena);
		check_all();
		for (unsigned s = 0; s < req.span_count; s++) {
			edges += spans[s].edge;
			if (spans[s].edge)
				continue;
			assert_int_equal(spans[s].off % EDGE, 0);
			assert_int_equal(spans[s].len % EDGE, 0);
		}
		assert_int_equal(req.span_count - edges, cases[i].bodies);
		assert_int_equal(edges, cases[i].edges);
		assert_int_equal(req.total, cases[i].len);
	}
}

/* If every path accepts any offset, unaligned ends of a write do not become separate spans. */
static void writes_without_direct_paths(void **state)
{
	(void)state;
	routes[PENSTOCK_WRITE][0].paths[0].facts.off_align = 1;
	req.op = PENSTOCK_WRITE;
	seg_add(EDGE - 10, 3 * EDGE, arena);
	check_all();
	assert_int_equal(req.span_count, 1);
	assert_false(spans[0].edge);
	assert_int_equal(req.body, 3 * EDGE);
}

static void written_rows_are_bodies_if_all_are_aligned(void **state)
{
	(void)state;
	req.op = PENSTOCK_WRITE;
	seg_add_rows(EDGE, EDGE, 3, 2 * EDGE, arena, EDGE + 3);
	check_all();
	assert_true(spans[0].rowwise);
	assert_false(spans[0].edge);
	assert_int_equal(req.body, 3 * EDGE);
	for (unsigned i = 0; i < 3; i++) {
		setup(state);
		req.op = PENSTOCK_WRITE;
		seg_add_rows(i == 0 ? 512 : EDGE, i == 1 ? EDGE - 1 : EDGE, 3,
			     i == 2 ? 2 * EDGE + 1 : 2 * EDGE, arena, EDGE + 3);
		check_all();
		assert_true(spans[0].rowwise && spans[0].edge);
		assert_int_equal(req.body, 0);
	}
}

static void touching_writes_are_one_span(void **state)
{
	(void)state;
	req.op = PENSTOCK_WRITE;
	seg_add(0, 1000, arena);
	seg_add(1000, EDGE, arena + 5000);
	seg_add(1000 + EDGE, 100, arena + 10000);
	check_all();
	assert_int_equal(req.span_count, 2); /* the aligned body, and the unaligned tail */
	assert_int_equal(spans[0].len, EDGE);
	assert_int_equal(spans[1].len, 1100);
	assert_int_equal(spans[1].off, EDGE);
}

static void writes_that_overlap_are_refused(void **state)
{
	(void)state;
	req.op = PENSTOCK_WRITE;
	seg_add(0, 1000, arena);
	seg_add(999, 10, arena + 2000);
	assert_int_equal(pst_spans_make(&req, SPANS_MAX, &err), -EINVAL);
	assert_non_null(strstr(err.text, "segments 0 and 1"));
	segs[1].off = 1000;
	spans_make();
	segs[1].off = 0;
	segs[1].row_len = 1;
	assert_int_equal(pst_spans_make(&req, SPANS_MAX, &err), -EINVAL);
	segs[0].off = 1;
	/* the second segment ends where the first one begins, so they do not overlap */
	spans_make();
	assert_int_equal(req.total, 1001);
	segs[1].row_len = 2;
	assert_int_equal(pst_spans_make(&req, SPANS_MAX, &err), -EINVAL);
	req.op = PENSTOCK_READ;
	spans_make();
}

static void written_columns_may_interleave(void **state)
{
	(void)state;
	req.op = PENSTOCK_WRITE;
	seg_add_rows(0, 100, 50, 400, arena, 100);
	seg_add_rows(100, 200, 50, 400, arena + 10000, 200);
	seg_add_rows(300, 100, 50, 400, arena + 30000, 100);
	check_all();
	assert_int_equal(req.total, 50 * 400);
	/* Two interleaved segments that overlap by one byte, at either end, are refused. */
	for (unsigned i = 0; i < 2; i++) {
		setup(state);
		req.op = PENSTOCK_WRITE;
		seg_add_rows(400, 100, 50, 400, arena, 100);
		seg_add_rows(i ? 299 : 300, i ? 100 : 101, 50, 400, arena + 10000, 200);
		assert_int_equal(pst_spans_make(&req, SPANS_MAX, &err), i ? 0 : -EINVAL);
		segs[1].off = i ? 499 : 500;
		assert_int_equal(pst_spans_make(&req, SPANS_MAX, &err), i ? -EINVAL : 0);
	}
}

/*
 * A write whose end is unaligned may be padded to the alignment only if it ends exactly at the end
 * of a growing storage. The commit then cuts the padding off.
 */
static void padded_tail_only_at_end_of_growing_storage(void **state)
{
	static const struct {
		bool growing;
		uint64_t length, room;
		bool merged;
	} cases[] = {
		{true, 5000, EDGE, true},   {true, 5000, 2 * EDGE - 5000, true},
		{true, 4999, EDGE, true},   {true, 5000, 2 * EDGE - 5001, false},
		{false, 5000, EDGE, false}, {true, 5001, EDGE, false},
		{true, 5000, 0, false},
	};

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
		setup(state);
		req.op = PENSTOCK_WRITE;
		st.facts.growing = cases[i].growing;
		st.facts.length = cases[i].length;
		seg_add(0, 5000, arena)->room = cases[i].room;
		check_all();
		assert_int_equal(req.span_count, cases[i].merged ? 1 : 2);
		assert_int_equal(spans[0].len, cases[i].merged ? 5000 : EDGE);
		assert_int_equal(pst_span_slack(&req, &spans[0]),
				 cases[i].merged ? cases[i].room : 0);
	}
}

static int room_sum(void *arg, const struct pst_part *part)
{
	*(uint64_t *)arg += part->slack;
	return 0;
}

/* The spare memory of a segment (`room`) follows the segment's last row. A part of a span has spare
 * memory (`slack`) only if it contains the end of that row. */
static void room_follows_the_last_row(void **state)
{
	struct pst_part part;

	(void)state;
	seg_add_rows(0, 100, 3, 5000, arena, 100)->room = 77;
	spans_make();
	assert_true(spans[0].rowwise);
	for (uint64_t off = 0; off < 15000; off += 10) {
		int ret = pst_span_part_at(&req, &spans[0], off, &part);

		assert_int_equal(ret, off % 5000 < 100 ? 0 : -EINVAL);
		if (!ret)
			assert_int_equal(part.slack, off >= 10000 ? 77 : 0);
	}
	setup(state);
	seg_add_rows(0, 100, 3, 200, arena, 100)->room = 77;
	spans_make();
	for (uint64_t off = 0; off < 500; off += 50)
		for (uint64_t end = off + 50; end <= 500; end += 50) {
			uint64_t room = 0;

			assert_int_equal(
				pst_span_parts(&req, &spans[0], off, end - off, room_sum, &room),
				0);
			assert_int_equal(room, end == 500 ? 77 : 0);
		}
	setup(state);
	seg_add(0, 100, arena)->room = 5;
	seg_add(100, 100, arena + 1000)->room = 9;
	spans_make();
	assert_int_equal(pst_span_part_at(&req, &spans[0], 50, &part), 0);
	assert_int_equal(part.slack, 5);
	assert_int_equal(pst_span_part_at(&req, &spans[0], 150, &part), 0);
	assert_int_equal(part.slack, 9);
}

/* If a request names its path, that path moves the whole request, including the unaligned ends of a
 * write. */
static void named_paths_get_no_edges(void **state)
{
	(void)state;
	req.op = PENSTOCK_WRITE;
	req.forced = 0;
	seg_add(10, 3 * EDGE, arena);
	check_all();
	assert_int_equal(req.span_count, 1);
	assert_false(spans[0].edge);
}

/* ---- refusals ---- */

static void expect_refusal(int code, const char *words)
{
	memset(&err, 0, sizeof(err));
	assert_int_equal(pst_spans_make(&req, SPANS_MAX, &err), code);
	assert_int_equal(err.code, code);
	if (!strstr(err.text, words))
		fail_msg("'%s' does not contain '%s'", err.text, words);
}

static void overflow_is_refused(void **state)
{
	static const struct {
		uint64_t off, row_len, rows, pitch, buf_off, buf_pitch;
	} cases[] = {
		{INT64_MAX, 1, 1, 0, 0, 0},
		{INT64_MAX - 9, 11, 1, 0, 0, 0},
		{UINT64_MAX, 1, 1, 0, 0, 0},
		{UINT64_MAX, UINT64_MAX, 1, 0, 0, 0},
		{1, INT64_MAX, 1, 0, 0, 0},
		{0, 10, UINT64_MAX, 1 << 20, 0, 10},
		{0, 10, 1ull << 44, 1 << 20, 0, 10},
		{0, 10, (1ull << 44) + 1, 1 << 20, 0, 10},
		{0, 10, 2, INT64_MAX - 9, 0, 10},
		{0, UINT64_MAX, 2, UINT64_MAX, 0, UINT64_MAX},
		{0, 10, 1ull << 44, 10, 0,
		 1ull << 30}, /* Only the offset in the buffer overflows. */
		{0, 10, 1, 0, UINT64_MAX - 15, 0},
		{0, 10, 1, 0, UINT64_MAX, 0},
	};

	for (unsigned i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
		for (unsigned op = 0; op < 2; op++) {
			setup(state);
			req.op = (enum penstock_op)op;
			seg_add_rows(cases[i].off, cases[i].row_len, cases[i].rows, cases[i].pitch,
				     arena, cases[i].buf_pitch)
				->buf_off = cases[i].buf_off;
			expect_refusal(-EOVERFLOW, "segment 0");
		}
	setup(state);
	seg_add(INT64_MAX - 10, 10, arena); /* Ends at the highest offset. */
	spans_make();
	assert_int_equal(req.total, 10);
}

/* A request is refused if its total length exceeds INT64_MAX, even if its segments name the same
 * bytes. */
static void oversized_total_is_refused(void **state)
{
	const uint64_t half = 1ull << 62;

	(void)state;
	seg_add(0, half, arena);
	seg_add(0, half - 1, arena);
	spans_make();
	assert_int_equal(req.total, half);
	seg_add(0, 1, arena);
	expect_refusal(-EOVERFLOW, "segment 2");
	/* The gaps between these rows are read, so their bytes count, too. */
	setup(state);
	for (unsigned i = 0; i < 3; i++)
		seg_add_rows((i % 2) * half, 1, half / 4096, 4096, arena, 1);
	expect_refusal(-EOVERFLOW, "segment 2");
}

static void invalid_segments_are_refused(void **state)
{
	(void)state;
	seg_add(0, 1, NULL);
	expect_refusal(-EINVAL, "buffer");
	setup(state);
	seg_add_rows(0, 100, 2, 99, arena, 100);
	expect_refusal(-EINVAL, "pitch");
	setup(state);
	seg_add(0, 1, arena);
	seg_add_rows(0, 100, 2, 100, arena, 99);
	expect_refusal(-EINVAL, "segment 1");
	setup(state); /* the device of the next request has no route to the storage */
	seg_add(0, 1, arena);
	atomic_store(&st.routes[PENSTOCK_READ][0], NULL);
	expect_refusal(-EOPNOTSUPP, "route");
}

static void too_many_spans_are_refused(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 5; i++)
		seg_add(100000 * i, 10, arena + 10 * i);
	assert_int_equal(pst_spans_make(&req, 4, &err), -E2BIG);
	assert_int_equal(pst_spans_make(&req, 5, &err), 0);
	/* in a write, all five segments are edges (unaligned ends), and need a span each */
	req.op = PENSTOCK_WRITE;
	assert_int_equal(pst_spans_make(&req, 5, &err), 0);
	for (unsigned i = 0; i < 5; i++)
		segs[i].row_len = 3 * EDGE; /* No segment has more than three spans. */
	assert_int_equal(pst_spans_make(&req, 13, &err), 0);
	/* The first segment is aligned and needs one span, the other four need three each. */
	assert_int_equal(req.span_count, 13);
	for (unsigned max = 5; max < 13; max++)
		assert_int_equal(pst_spans_make(&req, max, &err), -E2BIG);
	/* pst_spans_make writes nothing after the last span. */
	assert_int_equal(spans[13].len, 0xeeeeeeeeeeeeeeee);
}

static void span_lookup_by_position(void **state)
{
	(void)state;
	for (unsigned i = 0; i < 9; i++)
		seg_add(10000 * (9 - i), 7, arena + 10 * i);
	spans_make();
	for (uint64_t pos = 0; pos < req.total; pos++)
		assert_int_equal(pst_span_at(&req, pos), pos / 7);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(one_segment, setup),
		cmocka_unit_test_setup(no_bytes, setup),
		cmocka_unit_test_setup(several_destinations_are_read_once, setup),
		cmocka_unit_test_setup(touching_segments_move_in_place, setup),
		cmocka_unit_test_setup(gaps_and_lower_offsets_split_spans, setup),
		cmocka_unit_test_setup(a_shorter_segment_inside_keeps_the_span, setup),
		cmocka_unit_test_setup(touching_segments_of_two_devices, setup),
		cmocka_unit_test_setup(interleaved_columns, setup),
		cmocka_unit_test_setup(rows_without_gaps_are_merged, setup),
		cmocka_unit_test_setup(small_gaps_are_read_along, setup),
		cmocka_unit_test_setup(pitched_buffers, setup),
		cmocka_unit_test_setup(one_row_has_no_pitch, setup),
		cmocka_unit_test_setup(unaligned_write_ends_are_edges, setup),
		cmocka_unit_test_setup(writes_of_all_shapes, setup),
		cmocka_unit_test_setup(writes_without_direct_paths, setup),
		cmocka_unit_test_setup(written_rows_are_bodies_if_all_are_aligned, setup),
		cmocka_unit_test_setup(touching_writes_are_one_span, setup),
		cmocka_unit_test_setup(writes_that_overlap_are_refused, setup),
		cmocka_unit_test_setup(written_columns_may_interleave, setup),
		cmocka_unit_test_setup(padded_tail_only_at_end_of_growing_storage, setup),
		cmocka_unit_test_setup(room_follows_the_last_row, setup),
		cmocka_unit_test_setup(named_paths_get_no_edges, setup),
		cmocka_unit_test_setup(overflow_is_refused, setup),
		cmocka_unit_test_setup(oversized_total_is_refused, setup),
		cmocka_unit_test_setup(invalid_segments_are_refused, setup),
		cmocka_unit_test_setup(too_many_spans_are_refused, setup),
		cmocka_unit_test_setup(span_lookup_by_position, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
