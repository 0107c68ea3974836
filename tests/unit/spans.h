/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fixture for the tests of spans.c, which turns the segments of a request into spans (contiguous
 * ranges of storage): a simulated storage with routes to three devices, and a request on it. The
 * fixture checks that every byte of the buffers receives the right byte of the storage exactly
 * once, for any length of the chunks. Included by test_spans.c and test_spans_any.c. The fixture
 * compares addresses only and moves no bytes.
 */
#ifndef PENSTOCK_TEST_CUT_H
#define PENSTOCK_TEST_CUT_H

#include "test.h"

#include <errno.h>
#include <stdbool.h>

#include "core/request/request.h"
#include "core/request/spans.h"
#include "core/route/route.h"

#define SEGS_MAX 24
#define SPANS_MAX (3 * SEGS_MAX)
/* Size of the simulated device memory in bytes. got and want have one entry for each byte. */
#define ARENA (1u << 18)
#define UNTOUCHED UINT32_MAX
#define EDGE 4096u

static struct penstock_device devices[3];
static struct pst_route routes[2][3];
static struct penstock_storage st;
static struct penstock_seg segs[SEGS_MAX];
static struct pst_span spans[SPANS_MAX];
static struct pst_request req;
static struct pst_err err;
/* The simulated device memory. Only its addresses are used; no byte is written. */
static char arena[ARENA];
/* offset in the storage of the byte that each byte of the arena has received */
static uint32_t got[ARENA];
static uint32_t want[ARENA];

static void route_make(enum penstock_op op, unsigned d)
{
	struct pst_route *route = &routes[op][d];

	memset(route, 0, sizeof(*route));
	route->st = &st;
	route->dev = &devices[d];
	route->op = op;
	/* only path 0 is direct: it requires aligned offsets */
	route->paths[0].facts.off_align = 512;
	route->paths[1].facts.off_align = 1;
	for (unsigned c = 0; c < PST_CLASSES; c++)
		for (unsigned e = 0; e < PST_EFFORTS; e++) {
			struct pst_plan *plan = &route->plans[c][e];

			for (unsigned r = 0; r < PST_RESIDENCIES; r++) {
				plan->count[r] = 2;
				plan->list[r][1] = 1;
			}
		}
	atomic_store(&st.routes[op][d], route);
}

static int setup(void **state)
{
	(void)state;
	memset(&st, 0, sizeof(st));
	memset(&req, 0, sizeof(req));
	memset(segs, 0, sizeof(segs));
	memset(spans, 0xee, sizeof(spans));
	st.facts.off_align = 512;
	st.facts.edge_align = EDGE;
	for (unsigned d = 0; d < 3; d++) {
		devices[d].index = d;
		route_make(PENSTOCK_READ, d);
		route_make(PENSTOCK_WRITE, d);
	}
	req.st = &st;
	req.segs = segs;
	req.spans = spans;
	req.forced = -1;
	return 0;
}

static struct penstock_seg *seg_add(uint64_t off, uint64_t row_len, char *buf)
{
	struct penstock_seg *seg = &segs[req.seg_count++];

	*seg = (struct penstock_seg){
		.buf = buf, .dev = &devices[0], .off = off, .row_len = row_len};
	return seg;
}

static struct penstock_seg *seg_add_rows(uint64_t off, uint64_t row_len, uint64_t rows,
					 uint64_t pitch, char *buf, uint64_t buf_pitch)
{
	struct penstock_seg *seg = seg_add(off, row_len, buf);

	seg->rows = rows;
	seg->pitch = pitch;
	seg->buf_pitch = buf_pitch;
	return seg;
}

static void spans_make(void)
{
	int ret = pst_spans_make(&req, SPANS_MAX, &err);

	if (ret)
		fail_msg("splitting into spans returned %d: %s", ret, err.text);
}

/* ---- expected content of each arena byte, computed from the segments ---- */

static void expected_bytes_fill(void)
{
	memset(want, 0xff, sizeof(want));
	memset(got, 0xff, sizeof(got));
	for (unsigned i = 0; i < req.seg_count; i++) {
		const struct penstock_seg *seg = &segs[i];
		uint64_t rows = seg->rows ? seg->rows : 1;

		for (uint64_t r = 0; r < rows; r++)
			for (uint64_t b = 0; b < seg->row_len; b++) {
				size_t at = (size_t)((char *)seg->buf - arena) + seg->buf_off +
					    r * seg->buf_pitch + b;

				assert_true(at < ARENA && want[at] == UNTOUCHED);
				want[at] = (uint32_t)(seg->off + r * seg->pitch + b);
			}
	}
}

static struct {
	uint64_t off, len;
	const struct pst_span *span;
} chunk;

static int part_record(void *arg, const struct pst_part *part)
{
	uint64_t *bytes = arg;
	size_t at = (size_t)(part->mem - arena);
	bool ours = false;

	for (unsigned i = 0; i < chunk.span->seg_count; i++) {
		const struct penstock_seg *seg = &segs[chunk.span->seg_first + i];

		ours |= part->dev == seg->dev && part->mem >= (char *)seg->buf;
	}
	assert_true(ours);
	assert_true(part->row_len && part->rows);
	for (uint64_t r = 0; r < part->rows; r++)
		for (uint64_t b = 0; b < part->row_len; b++) {
			size_t to = at + r * part->mem_pitch + b;
			uint64_t from = part->at + r * part->pitch + b;

			assert_true(from < chunk.len); /* The part starts inside the chunk. */
			assert_true(to < ARENA);
			if (got[to] != UNTOUCHED)
				fail_msg("buffer byte %zu is written twice", to);
			got[to] = (uint32_t)(chunk.off + from);
			(*bytes)++;
		}
	return 0;
}

/* Sets the current chunk: at most `max` bytes of one span, from position `pos` of the request. */
static void chunk_locate(uint64_t pos, uint64_t max)
{
	const struct pst_span *span = &spans[pst_span_at(&req, pos)];
	uint64_t at = pos - span->start;

	chunk.span = span;
	chunk.off = span->off + at;
	chunk.len = span->len - at;
	if (span->rowwise) {
		const struct penstock_seg *seg = &segs[span->seg_first];

		chunk.off = seg->off + at / seg->row_len * seg->pitch + at % seg->row_len;
		chunk.len = seg->row_len - at % seg->row_len;
	}
	if (chunk.len > max)
		chunk.len = max;
}

/* Checks what pst_span_part_at returns for the start of the current chunk. The returned part must
 * have one row, must begin in memory where the chunk's first byte belongs, and must end inside the
 * span. If the segments of the span overlap or leave gaps (`shared` in request.h), pst_span_part_at
 * must return -EINVAL. */
static void check_part_at(void)
{
	struct pst_part part;
	uint64_t from;

	if (chunk.span->shared) {
		assert_int_equal(pst_span_part_at(&req, chunk.span, chunk.off, &part), -EINVAL);
		return;
	}
	assert_int_equal(pst_span_part_at(&req, chunk.span, chunk.off, &part), 0);
	assert_int_equal(part.rows, 1);
	from = (uint64_t)(part.mem - arena);
	assert_int_equal(want[from], chunk.off);
	assert_int_equal(want[from + part.row_len - 1], chunk.off + part.row_len - 1);
	assert_true(chunk.off + part.row_len <= chunk.span->off + chunk.span->len);
}

/* Cuts the request into chunks of 1 to `max` bytes, collects the parts of the chunks in `got`, and
 * compares `got` with `want`. */
static void check_bytes(uint64_t *random, uint64_t max)
{
	uint64_t bytes = 0, wanted = 0;

	for (uint64_t pos = 0; pos < req.total; pos += chunk.len) {
		uint64_t here = max;

		if (random)
			here = 1 + test_random(random) % max;
		chunk_locate(pos, here);
		check_part_at();
		assert_int_equal(
			pst_span_parts(&req, chunk.span, chunk.off, chunk.len, part_record, &bytes),
			0);
	}
	for (size_t i = 0; i < ARENA; i++) {
		wanted += want[i] != UNTOUCHED;
		if (got[i] != want[i])
			fail_msg("buffer byte %zu got storage byte %d, expected %d", i, (int)got[i],
				 (int)want[i]);
	}
	assert_int_equal(bytes, wanted);
}

/* Checks the numbers that the library gives to the request's bytes: each byte of a span has one
 * number, spans follow each other without gaps, and the aligned bodies of a write precede its
 * unaligned edges. */
static void check_numbers(void)
{
	uint64_t at = 0;
	bool edges = false;

	for (unsigned i = 0; i < req.span_count; i++) {
		const struct pst_span *span = &spans[i];
		const struct penstock_seg *seg = &segs[span->seg_first];

		if (span->edge && !edges)
			assert_int_equal(req.body, at);
		assert_true(span->edge || !edges);
		edges |= span->edge;
		assert_int_equal(span->start, at);
		assert_true(span->len > 0);
		at += span->rowwise ? seg->rows * seg->row_len : span->len;
		assert_ptr_equal(span->route, &routes[req.op][seg->dev->index]);
		assert_ptr_equal(span->plan, &span->route->plans[req.require][req.effort]);
	}
	assert_int_equal(req.total, at);
	if (!edges)
		assert_int_equal(req.body, at);
}

static inline void check_all(void)
{
	expected_bytes_fill();
	spans_make();
	check_numbers();
	check_bytes(NULL, UINT64_MAX);
}

#endif
