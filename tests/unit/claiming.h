/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Claims all chunks of a request on the simulated storage of claim.h, in the same way as the
 * library's worker threads (lanes). Compares the chunks with an expected list. Included by
 * test_claim.c and test_residency_probe.c. No bytes move.
 */
#ifndef PENSTOCK_TEST_CLAIMING_H
#define PENSTOCK_TEST_CLAIMING_H

#include "core/backends.h"
#include "core/lane/chunk.h"
#include "core/lane/claim.h"
#include "core/request/spans.h"
#include "claim.h"

#define CHUNKS 256

static struct pst_lane lane;
static struct pst_err err;
static struct pst_chunk claimed[CHUNKS];
static unsigned claimed_count;
/* index of the claiming lane (worker thread) among the lanes of the request */
static unsigned lane_number;

static struct penstock_seg *seg_add(struct penstock_device *dev, uint64_t off, uint64_t len,
				    uintptr_t address)
{
	struct penstock_seg *seg = &segs[req.seg_count++];

	*seg = (struct penstock_seg){
		.buf = (void *)address, .dev = dev, .off = off, .row_len = len};
	return seg;
}

static void claims_reset(void)
{
	if (pst_spans_make(&req, 12, &err))
		fail_msg("the request could not be split into spans: %s", err.text);
	atomic_store(&req.next, 0);
	atomic_store(&req.limit, req.body);
	atomic_store(&req.left, UINT64_MAX / 2);
	atomic_store(&req.refs, 1000);
	atomic_store(&req.failed, 0);
	atomic_store(&req.residency_kib, 8192);
	atomic_store(&req.mixed_kib, UINT32_MAX);
	for (unsigned i = 0; i < PST_PATHS_MAX; i++)
		atomic_store(&req.path_why[i], 0);
	memset(&lane, 0, sizeof(lane));
	lane.pump = &pump;
	claimed_count = 0;
}

static bool claim_next(void)
{
	struct pst_claim claim;

	if (!pst_claim(&lane, &req, lane_number, &claim))
		return false;
	assert_true(claimed_count < CHUNKS);
	claimed[claimed_count] = (struct pst_chunk){.lane = &lane};
	pst_chunk_claimed(&claimed[claimed_count++], &req, &claim);
	return true;
}

/* Claims every chunk of the request in the order in which lanes do: first the aligned bodies, then
 * the unaligned edges. */
static void claim_all(void)
{
	uint64_t end = 0;

	queried_end = 0;
	claims_reset();
	while (claim_next())
		;
	atomic_store(&req.limit, req.total);
	while (!atomic_load(&req.failed) && claim_next())
		;
	for (unsigned i = 0; i < req.span_count; i++)
		end = spans[i].off + spans[i].len > end ? spans[i].off + spans[i].len : end;
	/* No residency query (is this range cached?) went beyond the end of the request. */
	assert_true(queried_end <= end);
}

/* Claims the whole request and compares the chunks with `want`, such as "staged 1000+24 odirect
 * 1024+4096": path, offset and length of each chunk, and "~PAD" after a chunk with padding. */
static void expect_chunks(const char *want)
{
	static char text[8192];
	size_t at = 0;

	claim_all();
	text[0] = '\0';
	for (unsigned i = 0; i < claimed_count; i++) {
		const struct pst_chunk *c = &claimed[i];

		at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%s %llu+%llu", i ? " " : "",
				       pst_paths[c->path]->name, (unsigned long long)c->off,
				       (unsigned long long)c->len);
		if (c->pad)
			at += (size_t)snprintf(text + at, sizeof(text) - at, "~%u", c->pad);
	}
	assert_string_equal(text, want);
}

#endif
