/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Segments into spans and back, by chance: any segments, reads and writes, rows,
 * several devices, cut into chunks of any length. Every byte of every buffer gets its
 * byte of the storage exactly once and nothing beside it is touched.
 */
#include "cut.h"

/* Buffers one behind the other in the arena, some with rows further apart. */
static void any_segments(uint64_t *random)
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
			off = last; /* the same once more */
		else if (req.op == PENSTOCK_READ && kind == 1)
			off = off > 700 ? off - test_random(random) % 700 : off;
		else if (kind == 2)
			off += test_random(random) % 10000;
		else if (kind == 3)
			off = (off + EDGE - 1) / EDGE * EDGE;
		at += test_random(random) % 8; /* guards between some */
		seg = add_rows(off, row, rows, pitch, arena + at, buf_pitch);
		seg->dev = &devices[req.op == PENSTOCK_READ ? test_random(random) % 3 : 0];
		seg->buf_off = test_random(random) % 5;
		seg->buf = (char *)seg->buf + 5 - seg->buf_off;
		last = off;
		rows = rows ? rows : 1;
		off += rows == 1 ? row : (rows - 1) * pitch + row;
		at += 5 + rows * buf_pitch;
	}
}

static void any_request(void **state)
{
	uint64_t random = test_seed(20261121);

	for (unsigned turn = 0; turn < 400; turn++) {
		unsigned bodies = 0;

		setup(state);
		any_segments(&random);
		expect_bytes();
		cut();
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

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(any_request, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
