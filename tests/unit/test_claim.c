/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which path each chunk of a request goes by, how long it is and where it ends: by
 * the page cache as it is, alignment, slots, edges and the class; what ends a claim,
 * and where a chunk goes that failed. Storage, page cache, devices and pump are made
 * up; the paths' probes, the plan, the cut and the claims are the library's.
 */
#include "claiming.h"

static void expect_note(const char *name, enum penstock_why want)
{
	assert_string_equal(penstock_why_name(atomic_load(&req.path_why[pst_path_index(name)])),
			    penstock_why_name(want));
}

static void expect_refusal(void)
{
	begin();
	for (unsigned i = 0; i < req.span_count; i++)
		if (pst_claim_check(&req, &spans[i], &err)) {
			assert_int_equal(err.code, -EOPNOTSUPP);
			assert_int_equal(err.why, PENSTOCK_WHY_UNALIGNED);
			return;
		}
	fail_msg("it was not refused");
}

static void aligned_host_reads_go_direct(void **state)
{
	(void)state;
	probe(&host, PENSTOCK_READ);
	path("odirect")->facts.chunk_max = 65536;
	add(&host, 4096, 150000 / 512 * 512, 8192);
	expect("odirect 4096+65536 odirect 69632+65536 odirect 135168+18432");
}

static void address_that_never_aligns(void **state)
{
	(void)state;
	probe(&host, PENSTOCK_READ);
	add(&host, 4096, 8192, 8192 + 256);
	expect("staged 4096+8192");
	expect_note("odirect", PENSTOCK_WHY_UNALIGNED);
	req.require = PENSTOCK_DIRECT; /* refused before anything moves */
	expect_refusal();
}

/* The ends that odirect cannot take go by staged, the middle as it can. */
static void ends_that_are_not_aligned(void **state)
{
	(void)state;
	probe(&host, PENSTOCK_READ);
	add(&host, 1000, 10000, 65536 + 1000);
	expect("staged 1000+24 odirect 1024+9728 staged 10752+248");
	segs[0].room = 264; /* up to 11264, and not one byte less */
	expect("staged 1000+24 odirect 1024+9976~264");
	segs[0].room = 263;
	expect("staged 1000+24 odirect 1024+9728 staged 10752+248");
	segs[0].off = 1024;
	segs[0].buf = (void *)(uintptr_t)(65536 + 1024);
	segs[0].row_len = 100;
	expect("staged 1024+100");
	segs[0].room = 412;
	expect("odirect 1024+100~412");
	req.require = PENSTOCK_DIRECT;
	segs[0].room = 0;
	expect_refusal();
}

static void several_buffers_in_place(void **state)
{
	(void)state;
	probe(&host, PENSTOCK_READ);
	add(&host, 0, 4096, 65536);
	add(&host, 4096, 8192, 1 << 20);
	expect("odirect 0+4096 odirect 4096+8192");
	req.seg_count = 0;
	add(&host, 0, 4096, 65536); /* the same bytes for two */
	add(&host, 0, 8192, 1 << 20);
	expect("staged 0+8192");
	expect_note("odirect", PENSTOCK_WHY_UNALIGNED);
	req.seg_count = 0;
	add(&host, 0, 1000, 65536); /* a border off the grid */
	add(&host, 1000, 7192, 1 << 20);
	expect("odirect 0+512 staged 512+7680");
}

static void rows_in_place(void **state)
{
	struct penstock_seg *seg;

	(void)state;
	probe(&host, PENSTOCK_READ);
	seg = add(&host, 0, 4096, 65536);
	seg->rows = 3;
	seg->pitch = 65536;
	seg->buf_pitch = 4096;
	expect("odirect 0+4096 odirect 65536+4096 odirect 131072+4096");
	segs[0].buf_pitch = 4096 + 256; /* the second row is not aligned */
	expect("odirect 0+4096 staged 65536+4096 odirect 131072+4096");
}

/* ---- slots ---- */

static void chunks_fit_slots(void **state)
{
	(void)state;
	probe(&gpu, PENSTOCK_READ);
	add(&gpu, 1000, 2 * SLOT, 4096);
	expect("staged 1000+1048088 staged 1049088+1048576 staged 2097664+488");
	st.facts.chunk_best = 65536; /* what the drive likes */
	probe(&gpu, PENSTOCK_READ);
	segs[0].off = 0;
	segs[0].row_len = 100000;
	expect("staged 0+65536 staged 65536+34464");
}

/* A request's lanes are its first device's; their slots may be shorter. */
static void chunks_fit_the_slots_of_the_lane(void **state)
{
	static struct pst_pump other;

	(void)state;
	other.slot_bytes = 131072;
	other.lane_count = 1;
	probe(&gpu, PENSTOCK_READ);
	req.pump = &other;
	add(&gpu, 0, 300000, 4096);
	expect("staged 0+131072 staged 131072+131072 staged 262144+37856");
	cached(0, 10 * MIB, PST_WARM);
	claim_all();
	for (unsigned i = 0; i < claimed_count; i++)
		assert_true(claimed[i].len <= 131072);
}

/* ---- the page cache ---- */

static void warm_and_cold_in_one_request(void **state)
{
	(void)state;
	probe(&gpu, PENSTOCK_READ);
	cached(2 * TILE, 4 * TILE, PST_WARM);
	cached(5 * TILE, 6 * TILE, PST_WARM);
	add(&gpu, 0, 7 * TILE, 4096);
	claim_all();
	for (unsigned i = 0; i < claimed_count; i++) {
		const struct pst_chunk *c = &claimed[i];
		enum pst_residency first = tiles[c->off / TILE];

		assert_int_equal(first, tiles[(c->off + c->len - 1) / TILE]);
		assert_int_equal(c->residency, first);
		assert_string_equal(pst_paths[c->path]->name,
				    first == PST_WARM ? "bounce" : "staged");
	}
	assert_true(claimed_count >= 5);
	expect_note("mapped", PENSTOCK_WHY_NOT_QUICK); /* a window takes longer than that */
}

static void short_runs_are_read_as_cold(void **state)
{
	(void)state;
	probe(&gpu, PENSTOCK_READ);
	tiles[1] = PST_MIXED; /* some pages of it */
	cached(0, TILE, PST_WARM);
	add(&gpu, 0, 3 * TILE, 4096);
	expect("bounce 0+65536 staged 65536+65536 staged 131072+65536");
}

static void long_warm_runs_are_mapped(void **state)
{
	(void)state;
	probe(&gpu, PENSTOCK_READ);
	cached(0, 100 * MIB, PST_WARM);
	add(&gpu, 0, 64 * MIB, 4096);
	claim_all();
	assert_string_equal(pst_paths[claimed[0].path]->name, "mapped");
	req.effort = PENSTOCK_FAST; /* the CPUs are quicker */
	claim_all();
	assert_string_equal(pst_paths[claimed[0].path]->name, "bounce");
	req.effort = PENSTOCK_THRIFTY;
	st.facts.mapped_quick = false;
	probe(&gpu, PENSTOCK_READ);
	claim_all();
	for (unsigned i = 0; i < claimed_count; i++)
		assert_string_equal(pst_paths[claimed[i].path]->name, "bounce");
	req.require = PENSTOCK_NO_CPU_COPY;
	claim_all();
	assert_string_equal(pst_paths[claimed[0].path]->name, "staged");
}

static void one_thread_takes_it_whole(void **state)
{
	(void)state;
	probe(&gpu, PENSTOCK_READ);
	cached(0, MIB, PST_WARM);
	add(&gpu, 0, MIB / 2, 4096);
	path("bounce")->facts.chunk_first = MIB / 4;
	expect("bounce 0+262144 bounce 262144+262144");
	req.alone = true; /* with slots of its own, not those of the lanes */
	pump.spare[0].slot_bytes = MIB / 2;
	expect("bounce 0+524288");
}

static void what_holds_all_it_may_takes_no_more(void **state)
{
	(void)state;
	probe(&gpu, PENSTOCK_READ);
	cached(0, 8 * MIB, PST_WARM);
	add(&gpu, 0, 8 * MIB, 4096);
	path("mapped")->facts.held_max = path("bounce")->facts.chunk_max = 8 * MIB;
	pump.slot_bytes = 8 * MIB;
	atomic_store(&gpu.page_cache, 8 * MIB - 1);
	expect("mapped 0+8388608");
	atomic_store(&gpu.page_cache, 8 * MIB);
	expect("bounce 0+8388608");
	expect_note("mapped", PENSTOCK_WHY_HELD);
}

/* Under a class that forbids bounce a short window is taken if nothing else is there. */
static void short_windows_if_nothing_else(void **state)
{
	(void)state;
	st.facts.fd_direct = -1;
	pst_fail(&st.facts.why_direct, PENSTOCK_WHY_NOT_REAL, "it is memory");
	st.facts.listed = false;
	probe(&gpu, PENSTOCK_READ);
	cached(0, MIB, PST_WARM);
	req.require = PENSTOCK_NO_CPU_COPY;
	add(&gpu, 10, 1000, 4096);
	expect("mapped 10+1000");
}

static void the_cache_is_asked_for_long_runs_at_once(void **state)
{
	(void)state;
	probe(&gpu, PENSTOCK_READ);
	cached(0, 128 * MIB, PST_WARM);
	req.effort = PENSTOCK_FAST;
	add(&gpu, 0, 100 * MIB, 4096);
	claim_all();
	assert_true(asked <= claimed_count);   /* not once more than there are chunks */
	assert_int_equal(asked_longest, SLOT); /* nor for more than one of them takes */
	assert_int_equal(asked_end, 100 * MIB);
	asked = 0;
	probe(&host, PENSTOCK_READ);
	segs[0].dev = &host;
	req.require = PENSTOCK_DIRECT; /* where no path uses the cache, nobody asks */
	claim_all();
	assert_true(claimed_count > 0);
	assert_int_equal(asked, 0);
}

/* A span's last bytes say nothing of how far to look in the next. */
static void looking_on_behind_a_short_end(void **state)
{
	(void)state;
	probe(&host, PENSTOCK_READ);
	add(&host, 0, 4096 + 300, 65536);
	add(&host, MIB, 1000, 1 << 20);
	expect("odirect 0+4096 staged 4096+300 odirect 1048576+512 staged 1049088+488");
}

/* A read that begins a byte before the border of what is cached is not begun with that one,
 * nor has it one left when it ends so: of a GPU's that would be refused now and then. */
static void no_byte_alone(void **state)
{
	(void)state;
	for (unsigned i = 1; i < 100; i += 2)
		cached(i * TILE, (i + 1) * TILE, PST_WARM);
	for (uint64_t off = TILE - 4; off <= TILE + 4; off++)
		for (uint64_t len = 5 * TILE - 4; len < 5 * TILE + 4; len++) {
			memset(segs, 0, sizeof(segs));
			req.seg_count = 0;
			add(&gpu, off, len, 65536);
			add(&gpu, off + len, 3 * TILE - 1, 40 * MIB);
			probe(&gpu, PENSTOCK_READ);
			claim_all();
			for (unsigned k = 0; k < claimed_count; k++) {
				assert_true(claimed[k].len > 1);
				assert_true(claimed[k].off + 1 != off + len);
				assert_true(claimed[k].off != off + len + 1);
			}
		}
}

/* Alone in the request; its memory lies as the drive wants it. */
static void only(uint64_t off, uint64_t len, uint64_t rows)
{
	req.seg_count = 0;
	add(&gpu, off, len, MIB + off % 4096);
	segs[0].rows = rows;
	segs[0].pitch = segs[0].buf_pitch = MIB;
}

/* Nor at the ends of what goes in whole blocks, of which the others take the rest. */
static void no_byte_beside_blocks(void **state)
{
	(void)state;
	gpu.facts.peer_pages = true;
	for (unsigned rows = 1; rows <= 2; rows++)
		for (uint64_t off = 8192 - 4; off <= 8192 + 4; off++)
			for (uint64_t end = 16384 - 4; end <= 16384 + 4; end++) {
				only(off, end - off, rows);
				probe(&gpu, PENSTOCK_READ);
				claim_all();
				for (unsigned k = 0; k < claimed_count; k++)
					assert_true(claimed[k].len > 1);
			}
	only(0, 65536, 1);
	expect("p2p 0+65536");
	path("p2p")->facts.chunk_max = 8192;
	for (uint64_t len = 8192 - 2; len <= 8192 + 2; len++) {
		only(0, len, 1);
		claim_all();
		for (unsigned k = 0; k < claimed_count; k++)
			assert_true(claimed[k].len > 1);
	}
}

static void storage_without_a_cache(void **state)
{
	static const struct pst_storage_ops ops = {.name = "mem"};

	(void)state;
	st.ops = &ops;
	probe(&gpu, PENSTOCK_READ);
	add(&gpu, 0, 65536, 4096);
	expect("staged 0+65536");
	assert_int_equal(claimed[0].residency, PST_COLD);
}

/* ---- writes ---- */

static void ends_of_writes_go_through_the_cache(void **state)
{
	(void)state;
	probe(&host, PENSTOCK_WRITE);
	add(&host, 4000, 10000, 65536 + 4000);
	expect("odirect 4096+8192 bounce 4000+96 bounce 12288+1712");
	expect_note("odirect", PENSTOCK_WHY_UNALIGNED);
	assert_int_equal(asked, 0);		      /* wherever the bytes are */
	segs[0].buf = (void *)(uintptr_t)(65536 + 1); /* no matter for the drive */
	expect("staged 4096+8192 bounce 4000+96 bounce 12288+1712");
	req.require = PENSTOCK_DIRECT;
	expect_refusal();
}

/* Any chunk may go on through the page cache, which would write back all of a page: of
 * bytes that a neighbour has on their way to the drive too, as they were before. */
static void written_chunks_share_no_page(void **state)
{
	(void)state;
	probe(&host, PENSTOCK_WRITE);
	add(&host, 0, 5120, 65536);
	add(&host, 5120, 7168, 1 << 20);
	expect("odirect 0+4096 staged 4096+8192");
	segs[0].row_len = segs[1].off = 8192;
	segs[1].row_len = 4096;
	expect("odirect 0+8192 odirect 8192+4096");
	segs[0].row_len = segs[1].off = 5120;
	segs[1].row_len = 7168;
	req.require = PENSTOCK_DIRECT; /* never through it: what the drive can do */
	expect("odirect 0+5120 odirect 5120+7168");
	req.require = PENSTOCK_ANY;
	st.facts.edge_align = 4 * SLOT; /* longer than any chunk */
	segs[1].row_len = 4 * SLOT - 5120;
	pump.slot_bytes = 16384;
	probe(&gpu, PENSTOCK_WRITE);
	segs[0].dev = segs[1].dev = &gpu;
	begin();
	assert_true(claim());
	assert_int_equal(claimed[0].len, 16384);
}

static void what_was_tried_in_vain(void **state)
{
	(void)state;
	probe(&host, PENSTOCK_WRITE);
	add(&host, 0, 8192, 65536);
	route->write_proof[pst_path_index("odirect")] = -(int)PENSTOCK_WHY_CANARY;
	expect("staged 0+8192");
	expect_note("odirect", PENSTOCK_WHY_CANARY);
	req.require = PENSTOCK_DIRECT; /* nothing else is left: it says so by itself */
	expect("odirect 0+8192");
}

static void tails_of_what_is_ours_are_padded(void **state)
{
	(void)state;
	probe(&host, PENSTOCK_WRITE);
	add(&host, 0, 10000, 65536)->room = 4096;
	expect("odirect 0+8192 bounce 8192+1808");
	st.facts.growing = true;
	st.facts.length = 10000;
	expect("odirect 0+10000~240");
	req.require = PENSTOCK_DIRECT;
	expect("odirect 0+10000~240");
	req.require = PENSTOCK_ANY;
	segs[0].buf = (void *)(uintptr_t)(65536 + 1);
	expect("staged 0+10000~240");
	st.facts.length = 10001; /* somebody else's byte follows */
	expect("staged 0+8192 bounce 8192+1808");
	req.forced = pst_path_index("staged"); /* by name neither */
	expect_refusal();
}

static void written_rows_that_are_not_aligned(void **state)
{
	struct penstock_seg *seg;

	(void)state;
	probe(&gpu, PENSTOCK_WRITE);
	seg = add(&gpu, 4096, 4096, 65536);
	seg->rows = 2;
	seg->pitch = 8192;
	seg->buf_pitch = 4096;
	expect("staged 4096+4096 staged 12288+4096");
	segs[0].pitch = 8192 + 512;
	expect("bounce 4096+4096 bounce 12800+4096");
}

/* Where the first chunk goes when it has failed, and how much of it at once. */
static void expect_next(const char *want)
{
	struct pst_chunk *chunk = &claimed[0];
	uint64_t len = 0;
	uint32_t pad = 0;
	int next = pst_claim_retry(chunk, true, &len, &pad);

	assert_string_equal(next < 0 ? "none" : pst_paths[next]->name, want);
	if (next < 0)
		return;
	assert_true(len > 0 && len <= chunk->len);
	chunk->path = (uint8_t)next;
	chunk->pad = pad;
}

/* ---- by name ---- */

static void named_paths(void **state)
{
	(void)state;
	probe(&host, PENSTOCK_READ);
	cached(0, MIB, PST_WARM);
	add(&host, 0, 1000, 65536);
	req.forced = pst_path_index("bounce");
	expect("bounce 0+1000");
	assert_int_equal(claimed[0].residency, PST_WARM);
	req.forced = pst_path_index("staged");
	expect("staged 0+1000");
	req.forced = pst_path_index("odirect");
	expect_refusal();
	segs[0].row_len = 1024;
	expect("odirect 0+1024");
	expect_next("none");
	probe(&host, PENSTOCK_WRITE);
	req.forced = pst_path_index("bounce");
	asked = 0;
	expect("bounce 0+1024");
	assert_int_equal(asked, 0);
}

/* ---- what else ends a claim ---- */

static void nothing_is_claimed_too_late(void **state)
{
	(void)state;
	probe(&host, PENSTOCK_READ);
	path("odirect")->facts.chunk_max = 4096;
	add(&host, 0, 65536, 65536);
	begin();
	assert_true(claim());
	atomic_store(&req.cancelled, true);
	assert_false(claim());
	assert_int_equal(atomic_load(&req.failed), -ECANCELED);
	atomic_store(&req.cancelled, 0);
	begin();
	assert_true(claim());
	req.deadline_ns = 1; /* long ago */
	assert_false(claim());
	assert_int_equal(atomic_load(&req.failed), -ETIME);
	assert_int_equal(req.err.why, PENSTOCK_WHY_DEADLINE);
	req.deadline_ns = UINT64_MAX;
	begin();
	assert_true(claim());
}

static void what_failed_goes_on_by_the_next_path(void **state)
{
	(void)state;
	probe(&host, PENSTOCK_READ);
	add(&host, 0, 4096, 65536);
	claim_all();
	expect_next("staged");
	expect_next("bounce");
	expect_next("none");
	req.require = PENSTOCK_DIRECT; /* by none of a lower class */
	claim_all();
	expect_next("none");
	req.require = PENSTOCK_ANY;
	probe(&host, PENSTOCK_WRITE);
	segs[0].row_len = 100; /* an edge */
	claim_all();
	assert_string_equal(pst_paths[claimed[0].path]->name, "bounce");
	expect_next("none");
	st.facts.growing = true;
	segs[0].room = 4096;
	st.facts.length = 100;
	claim_all();
	assert_string_equal(pst_paths[claimed[0].path]->name, "odirect");
	assert_int_equal(claimed[0].pad, 412);
	expect_next("staged");
	assert_int_equal(claimed[0].pad, 412);
	expect_next("bounce");
	assert_int_equal(claimed[0].pad, 0); /* which needs none */
	claim_all();
	claimed[0].err.why = PENSTOCK_WHY_IO_ERROR; /* the drive's: it is asked once more, */
	expect_next("staged");
	expect_next("none"); /* but the page cache may not swallow it */
	claim_all();
	claimed[0].err.why = PENSTOCK_WHY_NO_SPACE;
	expect_next("staged");
	expect_next("none");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(aligned_host_reads_go_direct, setup),
		cmocka_unit_test_setup(address_that_never_aligns, setup),
		cmocka_unit_test_setup(ends_that_are_not_aligned, setup),
		cmocka_unit_test_setup(several_buffers_in_place, setup),
		cmocka_unit_test_setup(rows_in_place, setup),
		cmocka_unit_test_setup(chunks_fit_slots, setup),
		cmocka_unit_test_setup(chunks_fit_the_slots_of_the_lane, setup),
		cmocka_unit_test_setup(warm_and_cold_in_one_request, setup),
		cmocka_unit_test_setup(short_runs_are_read_as_cold, setup),
		cmocka_unit_test_setup(long_warm_runs_are_mapped, setup),
		cmocka_unit_test_setup(one_thread_takes_it_whole, setup),
		cmocka_unit_test_setup(what_holds_all_it_may_takes_no_more, setup),
		cmocka_unit_test_setup(short_windows_if_nothing_else, setup),
		cmocka_unit_test_setup(the_cache_is_asked_for_long_runs_at_once, setup),
		cmocka_unit_test_setup(looking_on_behind_a_short_end, setup),
		cmocka_unit_test_setup(no_byte_alone, setup),
		cmocka_unit_test_setup(no_byte_beside_blocks, setup),
		cmocka_unit_test_setup(storage_without_a_cache, setup),
		cmocka_unit_test_setup(ends_of_writes_go_through_the_cache, setup),
		cmocka_unit_test_setup(written_chunks_share_no_page, setup),
		cmocka_unit_test_setup(what_was_tried_in_vain, setup),
		cmocka_unit_test_setup(tails_of_what_is_ours_are_padded, setup),
		cmocka_unit_test_setup(written_rows_that_are_not_aligned, setup),
		cmocka_unit_test_setup(named_paths, setup),
		cmocka_unit_test_setup(nothing_is_claimed_too_late, setup),
		cmocka_unit_test_setup(what_failed_goes_on_by_the_next_path, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
