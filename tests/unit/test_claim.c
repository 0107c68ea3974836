/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests claims: which path moves each chunk of a request, how long the chunk is and where it ends.
 * The results depend on the state of the page cache, on alignment, on the length of slots (pieces
 * of pinned memory), on the unaligned edges of a write, and on the class that the request requires.
 * Also tests what stops claims, and which path retries a failed chunk. Storage, page cache, devices
 * and pump are simulated. The path probes, the plan, the spans and the claims are the library's own
 * code.
 */
#include "claiming.h"

static void expect_path_why(const char *name, enum penstock_why want)
{
	assert_string_equal(penstock_why_name(atomic_load(&req.path_why[pst_path_index(name)])),
			    penstock_why_name(want));
}

static void expect_refusal(void)
{
	claims_reset();
	for (unsigned i = 0; i < req.span_count; i++)
		if (pst_claim_check(&req, &spans[i], &err)) {
			assert_int_equal(err.code, -EOPNOTSUPP);
			assert_int_equal(err.why, PENSTOCK_WHY_UNALIGNED);
			return;
		}
	fail_msg("no span of the request was refused");
}

static void aligned_host_reads_go_direct(void **state)
{
	(void)state;
	route_probe(&host, PENSTOCK_READ);
	path_state("odirect")->facts.chunk_max = 65536;
	seg_add(&host, 4096, 150000 / 512 * 512, 8192);
	expect_chunks("odirect 4096+65536 odirect 69632+65536 odirect 135168+18432");
}

static void misaligned_buffer_is_staged(void **state)
{
	(void)state;
	route_probe(&host, PENSTOCK_READ);
	seg_add(&host, 4096, 8192, 8192 + 256);
	expect_chunks("staged 4096+8192");
	expect_path_why("odirect", PENSTOCK_WHY_UNALIGNED);
	/* No usable path of the plan has the class that the request requires, so the claim is
	 * refused. */
	req.require = PENSTOCK_DIRECT;
	expect_refusal();
}

/* Path "odirect" reads the aligned middle of the range with O_DIRECT into the buffer. It cannot
 * read the unaligned ends, so path "staged" reads them through a slot. */
static void unaligned_ends_are_staged(void **state)
{
	(void)state;
	route_probe(&host, PENSTOCK_READ);
	seg_add(&host, 1000, 10000, 65536 + 1000);
	expect_chunks("staged 1000+24 odirect 1024+9728 staged 10752+248");
	/* The spare memory after the buffer (`room`) ends at 11264, a multiple of 512. */
	segs[0].room = 264;
	expect_chunks("staged 1000+24 odirect 1024+9976~264");
	segs[0].room = 263;
	expect_chunks("staged 1000+24 odirect 1024+9728 staged 10752+248");
	segs[0].off = 1024;
	segs[0].buf = (void *)(uintptr_t)(65536 + 1024);
	segs[0].row_len = 100;
	expect_chunks("staged 1024+100");
	segs[0].room = 412;
	expect_chunks("odirect 1024+100~412");
	req.require = PENSTOCK_DIRECT;
	segs[0].room = 0;
	expect_refusal();
}

static void several_buffers_in_place(void **state)
{
	(void)state;
	route_probe(&host, PENSTOCK_READ);
	seg_add(&host, 0, 4096, 65536);
	seg_add(&host, 4096, 8192, 1 << 20);
	expect_chunks("odirect 0+4096 odirect 4096+8192");
	req.seg_count = 0;
	/* Two segments read the same bytes into different buffers. */
	seg_add(&host, 0, 4096, 65536);
	seg_add(&host, 0, 8192, 1 << 20);
	expect_chunks("staged 0+8192");
	expect_path_why("odirect", PENSTOCK_WHY_UNALIGNED);
	req.seg_count = 0;
	/* The border between the two segments, at 1000, is not aligned. */
	seg_add(&host, 0, 1000, 65536);
	seg_add(&host, 1000, 7192, 1 << 20);
	expect_chunks("odirect 0+512 staged 512+7680");
}

static void rows_in_place(void **state)
{
	struct penstock_seg *seg;

	(void)state;
	route_probe(&host, PENSTOCK_READ);
	seg = seg_add(&host, 0, 4096, 65536);
	seg->rows = 3;
	seg->pitch = 65536;
	seg->buf_pitch = 4096;
	expect_chunks("odirect 0+4096 odirect 65536+4096 odirect 131072+4096");
	/* In memory, the second row does not start at a multiple of the alignment that path
	 * "odirect" requires, so path "staged" moves it. */
	segs[0].buf_pitch = 4096 + 256;
	expect_chunks("odirect 0+4096 staged 65536+4096 odirect 131072+4096");
}

/* ---- slots ---- */

static void chunks_fit_slots(void **state)
{
	(void)state;
	route_probe(&gpu, PENSTOCK_READ);
	seg_add(&gpu, 1000, 2 * SLOT, 4096);
	expect_chunks("staged 1000+1048088 staged 1049088+1048576 staged 2097664+488");
	/* the drive prefers calls of this length, so chunks have this length */
	st.facts.chunk_best = 65536;
	route_probe(&gpu, PENSTOCK_READ);
	segs[0].off = 0;
	segs[0].row_len = 100000;
	expect_chunks("staged 0+65536 staged 65536+34464");
}

/* The lanes (worker threads) of the request's first device carry the whole request. The slots of
 * these lanes may be shorter than the slots of the other devices. Each chunk must fit into a slot
 * of the lane that carries it. */
static void chunks_fit_the_lane_of_the_first_device(void **state)
{
	static struct pst_pump other;

	(void)state;
	other.slot_bytes = 131072;
	other.lane_count = 1;
	route_probe(&gpu, PENSTOCK_READ);
	req.pump = &other;
	seg_add(&gpu, 0, 300000, 4096);
	expect_chunks("staged 0+131072 staged 131072+131072 staged 262144+37856");
	residency_set(0, 10 * MIB, PST_WARM);
	claim_all();
	for (unsigned i = 0; i < claimed_count; i++)
		assert_true(claimed[i].len <= 131072);
}

/* ---- the page cache ---- */

static void warm_and_cold_in_one_request(void **state)
{
	(void)state;
	route_probe(&gpu, PENSTOCK_READ);
	residency_set(2 * TILE, 4 * TILE, PST_WARM);
	residency_set(5 * TILE, 6 * TILE, PST_WARM);
	seg_add(&gpu, 0, 7 * TILE, 4096);
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
	/* For so few bytes, registering a window (a piece of the page cache) with the driver takes
	 * longer than copying by path "bounce". */
	expect_path_why("mapped", PENSTOCK_WHY_NOT_QUICK);
}

static void short_runs_are_read_as_cold(void **state)
{
	(void)state;
	route_probe(&gpu, PENSTOCK_READ);
	/* only some pages of this part of the file are cached, so it counts as not cached */
	tiles[1] = PST_MIXED;
	residency_set(0, TILE, PST_WARM);
	seg_add(&gpu, 0, 3 * TILE, 4096);
	expect_chunks("bounce 0+65536 staged 65536+65536 staged 131072+65536");
}

static void long_warm_runs_are_mapped(void **state)
{
	(void)state;
	route_probe(&gpu, PENSTOCK_READ);
	residency_set(0, 100 * MIB, PST_WARM);
	seg_add(&gpu, 0, 64 * MIB, 4096);
	claim_all();
	assert_string_equal(pst_paths[claimed[0].path]->name, "mapped");
	st.facts.mapped_quick = false;
	route_probe(&gpu, PENSTOCK_READ);
	claim_all();
	for (unsigned i = 0; i < claimed_count; i++)
		assert_string_equal(pst_paths[claimed[i].path]->name, "bounce");
	req.require = PENSTOCK_NO_CPU_COPY;
	claim_all();
	assert_string_equal(pst_paths[claimed[0].path]->name, "staged");
}

/* Claims the whole request, alternately for lane 0 and lane 1. Returns the number of bytes that
 * path "mapped" carries. */
static uint64_t claim_by_two_lanes(void)
{
	uint64_t mapped = 0;

	claims_reset();
	for (lane_number = 0; claim_next(); lane_number = 1 - lane_number) {
		const struct pst_chunk *c = &claimed[claimed_count - 1];
		bool is_mapped = !strcmp(pst_paths[c->path]->name, "mapped");

		/* Only lane 0, the request's first lane, uses path "mapped", which registers page
		 * cache with the GPU's driver. */
		assert_false(is_mapped && lane_number);
		mapped += is_mapped ? c->len : 0;
	}
	lane_number = 0;
	return mapped;
}

/* One request uses two paths at the same time: mapped, on which the GPU reads the page cache, and
 * bounce, which copies from the page cache to a slot. The request's first lane must use path
 * "mapped", and its other lanes path "bounce". Near the end of a request with effort fast, all
 * lanes must use path "bounce". */
static void mixed_paths_by_lane(void **state)
{
	uint64_t fast, balanced;

	(void)state;
	route_probe(&gpu, PENSTOCK_READ);
	path_state("mapped")->facts.chunk_first = 8 * MIB;
	residency_set(0, 128 * MIB, PST_WARM);
	seg_add(&gpu, 0, 100 * MIB, 4096);
	req.effort = PENSTOCK_FAST;
	fast = claim_by_two_lanes();
	assert_true(fast >= 64 * MIB && fast <= 90 * MIB);
	assert_string_equal(pst_paths[claimed[claimed_count - 1].path]->name, "bounce");
	for (unsigned i = 0; i < claimed_count; i++)
		if (claimed[i].off + 32 * MIB > 100 * MIB)
			assert_string_equal(pst_paths[claimed[i].path]->name, "bounce");
	expect_path_why("mapped", PENSTOCK_WHY_NOT_QUICK);
	req.effort = PENSTOCK_BALANCED;
	balanced = claim_by_two_lanes();
	assert_true(balanced > fast && balanced < 100 * MIB);
	req.effort =
		PENSTOCK_THRIFTY; /* With this effort, a request must use path "mapped" only. */
	for (lane_number = 0; lane_number < 2; lane_number++) {
		claim_all();
		assert_string_equal(pst_paths[claimed[0].path]->name, "mapped");
	}
	lane_number = 0;
}

static void short_fast_reads_are_not_mixed(void **state)
{
	(void)state;
	route_probe(&gpu, PENSTOCK_READ);
	residency_set(0, 128 * MIB, PST_WARM);
	seg_add(&gpu, 0, 32 * MIB - 1, 4096);
	req.effort = PENSTOCK_FAST;
	assert_int_equal(claim_by_two_lanes(), 0);
	segs[0].row_len = 32 * MIB;
	assert_true(claim_by_two_lanes() >= 8 * MIB);
	segs[0].row_len = 8 * MIB - 1;
	req.effort = PENSTOCK_BALANCED;
	assert_int_equal(claim_by_two_lanes(), 0);
	segs[0].row_len = 8 * MIB;
	assert_int_equal(claim_by_two_lanes(), 8 * MIB);
}

/* Near the end of a read with effort PENSTOCK_FAST, all lanes use path "bounce". A chunk of path
 * "mapped" is long, so it could complete after all other chunks and delay the read. If other
 * requests are in flight, they keep the lanes busy, so the read uses path "mapped" to its end. */
static void fast_reads_among_others_are_mixed(void **state)
{
	static struct pst_lane home;

	(void)state;
	route_probe(&gpu, PENSTOCK_READ);
	path_state("mapped")->facts.chunk_first = 8 * MIB;
	residency_set(0, 128 * MIB, PST_WARM);
	seg_add(&gpu, 0, 24 * MIB, 4096);
	req.effort = PENSTOCK_FAST;
	req.home_lane = &home;
	atomic_store(&home.requests, 1);
	assert_int_equal(claim_by_two_lanes(), 0);
	atomic_store(&home.requests, 2);
	assert_true(claim_by_two_lanes() >= 16 * MIB);
}

/* All bytes of a stream-ordered request pass through pinned memory, so no lane uses path "mapped".
 * No residency query (which bytes are cached?) covers more bytes than path "bounce" carries in a
 * chunk. */
static void stream_ordered_reads_are_not_mixed(void **state)
{
	(void)state;
	route_probe(&gpu, PENSTOCK_READ);
	residency_set(0, 128 * MIB, PST_WARM);
	seg_add(&gpu, 0, 100 * MIB, 4096);
	req.stream = &st; /* any pointer: claims only check that it is not NULL */
	for (req.effort = PENSTOCK_FAST; req.effort <= PENSTOCK_BALANCED; req.effort++) {
		assert_int_equal(claim_by_two_lanes(), 0);
		expect_path_why("mapped", PENSTOCK_WHY_STREAM_ORDER);
		for (unsigned i = 0; i < claimed_count; i++)
			assert_string_equal(pst_paths[claimed[i].path]->name, "bounce");
		assert_int_equal(longest_query, SLOT);
	}
}

/* A request of any effort does not use the paths "mapped" and "bounce" at the same time if the
 * library reuses registrations of page cache (for an immutable storage), or if path "mapped" is
 * slow. */
static void paths_that_are_not_mixed(void **state)
{
	(void)state;
	residency_set(0, 128 * MIB, PST_WARM);
	seg_add(&gpu, 0, 100 * MIB, 4096);
	req.effort = PENSTOCK_FAST;
	st.facts.immutable = true;
	route_probe(&gpu, PENSTOCK_READ);
	assert_int_equal(claim_by_two_lanes(), 0);
	st.facts.immutable = st.facts.mapped_quick = false;
	route_probe(&gpu, PENSTOCK_READ);
	assert_int_equal(claim_by_two_lanes(), 0);
	/* The required class forbids path "bounce", so lane 1 uses path "mapped" as well. */
	st.facts.mapped_quick = true;
	route_probe(&gpu, PENSTOCK_READ);
	req.require = PENSTOCK_NO_CPU_COPY;
	lane_number = 1;
	claim_all();
	assert_string_equal(pst_paths[claimed[0].path]->name, "mapped");
	lane_number = 0;
}

/* A residency query of a lane (which bytes are cached?) covers only the bytes of this lane's next
 * chunk. Queries of lanes with short chunks do not shorten the queries of a lane with long
 * chunks. */
static void mixed_queries_have_the_chunks_lengths(void **state)
{
	(void)state;
	route_probe(&gpu, PENSTOCK_READ);
	residency_set(0, 128 * MIB, PST_WARM);
	seg_add(&gpu, 0, 128 * MIB, 4096);
	req.effort = PENSTOCK_FAST;
	claims_reset();
	longest_query = 0;
	for (lane_number = 1; lane_number < 8; lane_number++)
		assert_true(claim_next());
	assert_int_equal(longest_query, SLOT);
	lane_number = 0;
	for (unsigned i = 0; i < 3; i++)
		assert_true(claim_next());
	assert_int_equal(longest_query, 32 * MIB); /* 8, 16 and 32 MiB */
}

/* If registering a piece of page cache with the GPU's driver took long, the next chunk on path
 * "mapped" is shorter, but not so short that another path would be faster. */
static void slow_mixed_chunks_get_shorter(void **state)
{
	(void)state;
	route_probe(&gpu, PENSTOCK_READ);
	residency_set(0, 128 * MIB, PST_WARM);
	seg_add(&gpu, 0, 128 * MIB, 4096);
	req.effort = PENSTOCK_FAST;
	claims_reset();
	atomic_store(&req.residency_kib, 128 << 10);
	assert_true(claim_next());
	assert_int_equal(claimed[0].len, path_state("mapped")->facts.mixed_max);
	atomic_store(&req.mixed_kib, 10 << 10);
	assert_true(claim_next());
	assert_int_equal(claimed[1].len, 10 * MIB);
	atomic_store(&req.mixed_kib, 1);
	assert_true(claim_next());
	assert_int_equal(claimed[2].len, 8 * MIB);
}

/* The first and the last chunks of a read are short, so that all lanes start and end together. If
 * other requests are in flight, they keep the lanes busy, so the chunks of a read that is long
 * enough for all lanes are twice as long. */
static void chunks_among_other_requests_are_longer(void **state)
{
	static struct pst_lane home;

	(void)state;
	route_probe(&gpu, PENSTOCK_READ);
	residency_set(0, 4 * MIB, PST_WARM);
	seg_add(&gpu, 0, 2 * MIB, 4096);
	path_state("bounce")->facts.chunk_first = MIB / 4;
	path_state("bounce")->facts.lanes = 4;
	req.home_lane = &home;
	atomic_store(&home.requests, 1);
	claim_all();
	assert_int_equal(claimed_count, 8);
	atomic_store(&home.requests, 2);
	claim_all();
	assert_int_equal(claimed_count, 4);
	for (unsigned i = 0; i < claimed_count; i++)
		assert_int_equal(claimed[i].len, MIB / 2);
	segs[0].row_len = 2 * MIB - 1; /* fewer than four long chunks */
	claim_all();
	assert_int_equal(claimed[0].len, MIB / 4);
	segs[0].row_len = 2 * MIB;
	path_state("bounce")->facts.chunk_first = MIB / 2;
	claim_all();
	assert_int_equal(claimed[0].len, MIB / 2);
}

static void caller_thread_uses_one_long_chunk(void **state)
{
	(void)state;
	route_probe(&gpu, PENSTOCK_READ);
	residency_set(0, MIB, PST_WARM);
	seg_add(&gpu, 0, MIB / 2, 4096);
	path_state("bounce")->facts.chunk_first = MIB / 4;
	expect_chunks("bounce 0+262144 bounce 262144+262144");
	/* The caller's thread carries this short request itself. It borrows a spare lane with its
	 * pinned memory, whose slots have half a MiB here. */
	req.alone = true;
	pump.spare[0].slot_bytes = MIB / 2;
	expect_chunks("bounce 0+524288");
}

static void mapped_stops_at_its_registration_limit(void **state)
{
	(void)state;
	route_probe(&gpu, PENSTOCK_READ);
	residency_set(0, 8 * MIB, PST_WARM);
	seg_add(&gpu, 0, 8 * MIB, 4096);
	path_state("mapped")->facts.held_max = path_state("bounce")->facts.chunk_max = 8 * MIB;
	pump.slot_bytes = 8 * MIB;
	atomic_store(&gpu.page_cache, 6 * MIB - 1);
	expect_chunks("mapped 0+8388608");
	/* Path "mapped" may register up to 8 MiB of page cache. A quarter of this limit is only for
	 * immutable storages, so a file that may change gets no more once 6 MiB are registered. */
	atomic_store(&gpu.page_cache, 6 * MIB);
	expect_chunks("bounce 0+8388608");
	expect_path_why("mapped", PENSTOCK_WHY_HELD);
	st.facts.immutable = true;
	expect_chunks("mapped 0+8388608");
	atomic_store(&gpu.page_cache, 8 * MIB);
	expect_chunks("bounce 0+8388608");
	expect_path_why("mapped", PENSTOCK_WHY_HELD);
}

/* If the required class forbids path "bounce" and no other path is usable, path "mapped" moves even
 * a short range. */
static void mapped_moves_short_ranges_as_last_resort(void **state)
{
	(void)state;
	st.facts.fd_direct = -1;
	pst_fail(&st.facts.why_direct, PENSTOCK_WHY_NOT_REAL, "it is memory");
	st.facts.listed = false;
	route_probe(&gpu, PENSTOCK_READ);
	residency_set(0, MIB, PST_WARM);
	req.require = PENSTOCK_NO_CPU_COPY;
	seg_add(&gpu, 10, 1000, 4096);
	expect_chunks("mapped 10+1000");
}

static void residency_queries_cover_long_runs(void **state)
{
	(void)state;
	route_probe(&gpu, PENSTOCK_READ);
	residency_set(0, 128 * MIB, PST_WARM);
	req.effort = PENSTOCK_FAST;
	lane_number = 1;
	seg_add(&gpu, 0, 100 * MIB, 4096);
	claim_all();
	lane_number = 0;
	/* The library asks at most once for each chunk whether its bytes are cached. */
	assert_true(queries <= claimed_count);
	/* No query (which bytes are cached?) covers more bytes than one chunk can hold. */
	assert_int_equal(longest_query, SLOT);
	assert_int_equal(queried_end, 100 * MIB);
	queries = 0;
	route_probe(&host, PENSTOCK_READ);
	segs[0].dev = &host;
	/* Paths of class PENSTOCK_DIRECT do not use the page cache, so the library does not ask
	 * whether bytes are cached. */
	req.require = PENSTOCK_DIRECT;
	claim_all();
	assert_true(claimed_count > 0);
	assert_int_equal(queries, 0);
}

/* A short remainder at the end of a span does not shorten the residency query (are these bytes
 * cached?) in the next span. */
static void short_end_does_not_limit_next_query(void **state)
{
	(void)state;
	route_probe(&host, PENSTOCK_READ);
	seg_add(&host, 0, 4096 + 300, 65536);
	seg_add(&host, MIB, 1000, 1 << 20);
	expect_chunks("odirect 0+4096 staged 4096+300 odirect 1048576+512 staged 1049088+488");
}

/* No chunk of a GPU read has a single byte, even if the read starts or ends one byte before or
 * after a border between cached and other bytes. A copy of one byte may wait for other streams
 * (device/cuda_copy.c). */
static void no_single_byte_chunk_at_residency_borders(void **state)
{
	(void)state;
	for (unsigned i = 1; i < 100; i += 2)
		residency_set(i * TILE, (i + 1) * TILE, PST_WARM);
	for (uint64_t off = TILE - 4; off <= TILE + 4; off++)
		for (uint64_t len = 5 * TILE - 4; len < 5 * TILE + 4; len++) {
			memset(segs, 0, sizeof(segs));
			req.seg_count = 0;
			seg_add(&gpu, off, len, 65536);
			seg_add(&gpu, off + len, 3 * TILE - 1, 40 * MIB);
			route_probe(&gpu, PENSTOCK_READ);
			claim_all();
			for (unsigned k = 0; k < claimed_count; k++) {
				assert_true(claimed[k].len > 1);
				assert_true(claimed[k].off + 1 != off + len);
				assert_true(claimed[k].off != off + len + 1);
			}
		}
}

/* Makes a request of one segment, whose memory address and storage offset are equal modulo 4096. */
static void seg_set_only(uint64_t off, uint64_t len, uint64_t rows)
{
	req.seg_count = 0;
	seg_add(&gpu, off, len, MIB + off % 4096);
	segs[0].rows = rows;
	segs[0].pitch = segs[0].buf_pitch = MIB;
}

/* Even if one path moves the whole blocks and other paths move the bytes around them, no chunk may
 * consist of a single byte. */
static void no_single_byte_chunk_beside_blocks(void **state)
{
	(void)state;
	gpu.facts.peer_pages = true;
	for (unsigned rows = 1; rows <= 2; rows++)
		for (uint64_t off = 8192 - 4; off <= 8192 + 4; off++)
			for (uint64_t end = 16384 - 4; end <= 16384 + 4; end++) {
				seg_set_only(off, end - off, rows);
				route_probe(&gpu, PENSTOCK_READ);
				claim_all();
				for (unsigned k = 0; k < claimed_count; k++)
					assert_true(claimed[k].len > 1);
			}
	seg_set_only(0, 65536, 1);
	expect_chunks("p2p 0+65536");
	path_state("p2p")->facts.chunk_max = 8192;
	for (uint64_t len = 8192 - 2; len <= 8192 + 2; len++) {
		seg_set_only(0, len, 1);
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
	route_probe(&gpu, PENSTOCK_READ);
	seg_add(&gpu, 0, 65536, 4096);
	expect_chunks("staged 0+65536");
	assert_int_equal(claimed[0].residency, PST_COLD);
}

/* ---- writes ---- */

static void write_edges_use_the_page_cache(void **state)
{
	(void)state;
	route_probe(&host, PENSTOCK_WRITE);
	seg_add(&host, 4000, 10000, 65536 + 4000);
	expect_chunks("odirect 4096+8192 bounce 4000+96 bounce 12288+1712");
	expect_path_why("odirect", PENSTOCK_WHY_UNALIGNED);
	/* For a write, the library does not ask whether bytes are cached. */
	assert_int_equal(queries, 0);
	/* Path "staged" writes from a slot of its own pinned memory, so the buffer need not be
	 * aligned. */
	segs[0].buf = (void *)(uintptr_t)(65536 + 1);
	expect_chunks("staged 4096+8192 bounce 4000+96 bounce 12288+1712");
	req.require = PENSTOCK_DIRECT;
	expect_refusal();
}

/* Two chunks of a write never share a page. If a chunk is retried through the page cache, the
 * kernel writes back whole pages. In a shared page, older bytes would then overwrite the bytes
 * that the other chunk has written to the drive. */
static void written_chunks_share_no_page(void **state)
{
	(void)state;
	route_probe(&host, PENSTOCK_WRITE);
	seg_add(&host, 0, 5120, 65536);
	seg_add(&host, 5120, 7168, 1 << 20);
	expect_chunks("odirect 0+4096 staged 4096+8192");
	segs[0].row_len = segs[1].off = 8192;
	segs[1].row_len = 4096;
	expect_chunks("odirect 0+8192 odirect 8192+4096");
	segs[0].row_len = segs[1].off = 5120;
	segs[1].row_len = 7168;
	/* With class PENSTOCK_DIRECT no chunk is retried through the page cache. Chunks then need
	 * only the drive's alignment. */
	req.require = PENSTOCK_DIRECT;
	expect_chunks("odirect 0+5120 odirect 5120+7168");
	req.require = PENSTOCK_ANY;
	st.facts.edge_align = 4 * SLOT; /* no chunk is as long as this alignment */
	segs[1].row_len = 4 * SLOT - 5120;
	pump.slot_bytes = 16384;
	route_probe(&gpu, PENSTOCK_WRITE);
	segs[0].dev = segs[1].dev = &gpu;
	claims_reset();
	assert_true(claim_next());
	assert_int_equal(claimed[0].len, 16384);
}

static void path_with_failed_write_proof_is_skipped(void **state)
{
	(void)state;
	route_probe(&host, PENSTOCK_WRITE);
	seg_add(&host, 0, 8192, 65536);
	route->write_proof[pst_path_index("odirect")] = -(int)PENSTOCK_WHY_CANARY;
	expect_chunks("staged 0+8192");
	expect_path_why("odirect", PENSTOCK_WHY_CANARY);
	/* No other path has this class, so the request uses odirect although its test write
	 * failed. */
	req.require = PENSTOCK_DIRECT;
	expect_chunks("odirect 0+8192");
}

static void tails_of_growing_files_are_padded(void **state)
{
	(void)state;
	route_probe(&host, PENSTOCK_WRITE);
	seg_add(&host, 0, 10000, 65536)->room = 4096;
	expect_chunks("odirect 0+8192 bounce 8192+1808");
	st.facts.growing = true;
	st.facts.length = 10000;
	expect_chunks("odirect 0+10000~240");
	req.require = PENSTOCK_DIRECT;
	expect_chunks("odirect 0+10000~240");
	req.require = PENSTOCK_ANY;
	segs[0].buf = (void *)(uintptr_t)(65536 + 1);
	expect_chunks("staged 0+10000~240");
	/* the file has one byte after the end of this write, so the tail must not be padded */
	st.facts.length = 10001;
	expect_chunks("staged 0+8192 bounce 8192+1808");
	/* If the request names the only path to use, its tail is not padded either, so the claim is
	 * refused. */
	req.forced = pst_path_index("staged");
	expect_refusal();
}

static void unaligned_written_rows_are_bounced(void **state)
{
	struct penstock_seg *seg;

	(void)state;
	route_probe(&gpu, PENSTOCK_WRITE);
	seg = seg_add(&gpu, 4096, 4096, 65536);
	seg->rows = 2;
	seg->pitch = 8192;
	seg->buf_pitch = 4096;
	expect_chunks("staged 4096+4096 staged 12288+4096");
	segs[0].pitch = 8192 + 512;
	expect_chunks("bounce 4096+4096 bounce 12800+4096");
}

/* Reports a failure of the first chunk, checks that path `want` retries it, and assigns the chunk
 * to that path. */
static void expect_retry(const char *want)
{
	struct pst_chunk *chunk = &claimed[0];
	uint64_t len = 0;
	uint32_t pad = 0;
	int next;

	chunk->tried |= (uint16_t)(1u << chunk->path);
	next = pst_claim_retry(chunk, true, &len, &pad);
	assert_string_equal(next < 0 ? "none" : pst_paths[next]->name, want);
	if (next < 0)
		return;
	assert_true(len > 0 && len <= chunk->len);
	chunk->path = (uint8_t)next;
	chunk->pad = pad;
}

/* ---- paths by name ---- */

static void named_paths(void **state)
{
	uint64_t len = 0;
	uint32_t pad = 0;

	(void)state;
	route_probe(&host, PENSTOCK_READ);
	residency_set(0, MIB, PST_WARM);
	seg_add(&host, 0, 1000, 65536);
	req.forced = pst_path_index("bounce");
	expect_chunks("bounce 0+1000");
	assert_int_equal(claimed[0].residency, PST_WARM);
	req.forced = pst_path_index("staged");
	expect_chunks("staged 0+1000");
	req.forced = pst_path_index("odirect");
	expect_refusal();
	segs[0].row_len = 1024;
	expect_chunks("odirect 0+1024");
	expect_retry("none");
	/* The rest of a chunk that its path has shortened stays on the named path. */
	assert_int_equal(pst_claim_retry(&claimed[0], false, &len, &pad), req.forced);
	assert_int_equal(len, 1024);
	route_probe(&host, PENSTOCK_WRITE);
	req.forced = pst_path_index("bounce");
	queries = 0;
	expect_chunks("bounce 0+1024");
	assert_int_equal(queries, 0);
}

/* ---- conditions that stop claims, and retries ---- */

static void no_claim_after_cancel_or_deadline(void **state)
{
	(void)state;
	route_probe(&host, PENSTOCK_READ);
	path_state("odirect")->facts.chunk_max = 4096;
	seg_add(&host, 0, 65536, 65536);
	claims_reset();
	assert_true(claim_next());
	atomic_store(&req.cancelled, true);
	assert_false(claim_next());
	assert_int_equal(atomic_load(&req.failed), -ECANCELED);
	atomic_store(&req.cancelled, 0);
	claims_reset();
	assert_true(claim_next());
	req.deadline_ns = 1; /* a deadline that has passed */
	assert_false(claim_next());
	assert_int_equal(atomic_load(&req.failed), -ETIME);
	assert_int_equal(req.err.why, PENSTOCK_WHY_DEADLINE);
	req.deadline_ns = UINT64_MAX;
	claims_reset();
	assert_true(claim_next());
}

static void failed_chunk_is_retried_on_next_path(void **state)
{
	(void)state;
	route_probe(&host, PENSTOCK_READ);
	seg_add(&host, 0, 4096, 65536);
	claim_all();
	expect_retry("staged");
	expect_retry("bounce");
	expect_retry("none");
	/* Only a path of class PENSTOCK_DIRECT may retry the chunk, and no other path has this
	 * class. */
	req.require = PENSTOCK_DIRECT;
	claim_all();
	expect_retry("none");
	req.require = PENSTOCK_ANY;
	route_probe(&host, PENSTOCK_WRITE);
	/* A write shorter than a block has no aligned body. All of it is an unaligned edge, which
	 * path "bounce" writes through the page cache. */
	segs[0].row_len = 100;
	claim_all();
	assert_string_equal(pst_paths[claimed[0].path]->name, "bounce");
	expect_retry("none");
	st.facts.growing = true;
	segs[0].room = 4096;
	st.facts.length = 100;
	claim_all();
	assert_string_equal(pst_paths[claimed[0].path]->name, "odirect");
	assert_int_equal(claimed[0].pad, 412);
	expect_retry("staged");
	assert_int_equal(claimed[0].pad, 412);
	expect_retry("bounce");
	/* Path "bounce" writes through the page cache and needs no padding to a whole block. */
	assert_int_equal(claimed[0].pad, 0);
	claim_all();
	/* After an I/O error of the drive, the other path that uses O_DIRECT retries the chunk. */
	claimed[0].err.why = PENSTOCK_WHY_IO_ERROR;
	expect_retry("staged");
	/* After such an error, no path may retry the chunk through the page cache, because the
	 * kernel would report success before the drive has the bytes. */
	expect_retry("none");
	claim_all();
	claimed[0].err.why = PENSTOCK_WHY_NO_SPACE;
	expect_retry("staged");
	expect_retry("none");
}

/* A request uses the paths "mapped" and "bounce" at the same time. A chunk that fails on path
 * "mapped" must be retried on path "bounce", and the reverse. Only after that may the chunk use a
 * path that reads from the drive. */
static void failed_chunk_is_retried_on_the_other_mixed_path(void **state)
{
	(void)state;
	route_probe(&gpu, PENSTOCK_READ);
	residency_set(0, 128 * MIB, PST_WARM);
	seg_add(&gpu, 0, 64 * MIB, 4096);
	req.effort = PENSTOCK_FAST;
	claims_reset();
	assert_true(claim_next());
	assert_string_equal(pst_paths[claimed[0].path]->name, "mapped");
	expect_retry("bounce");
	expect_retry("staged");
	expect_retry("none");
	claims_reset();
	lane_number = 1;
	assert_true(claim_next());
	lane_number = 0;
	assert_string_equal(pst_paths[claimed[0].path]->name, "bounce");
	expect_retry("mapped");
	expect_retry("staged");
	expect_retry("none");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(aligned_host_reads_go_direct, setup),
		cmocka_unit_test_setup(misaligned_buffer_is_staged, setup),
		cmocka_unit_test_setup(unaligned_ends_are_staged, setup),
		cmocka_unit_test_setup(several_buffers_in_place, setup),
		cmocka_unit_test_setup(rows_in_place, setup),
		cmocka_unit_test_setup(chunks_fit_slots, setup),
		cmocka_unit_test_setup(chunks_fit_the_lane_of_the_first_device, setup),
		cmocka_unit_test_setup(warm_and_cold_in_one_request, setup),
		cmocka_unit_test_setup(short_runs_are_read_as_cold, setup),
		cmocka_unit_test_setup(long_warm_runs_are_mapped, setup),
		cmocka_unit_test_setup(mixed_paths_by_lane, setup),
		cmocka_unit_test_setup(short_fast_reads_are_not_mixed, setup),
		cmocka_unit_test_setup(fast_reads_among_others_are_mixed, setup),
		cmocka_unit_test_setup(stream_ordered_reads_are_not_mixed, setup),
		cmocka_unit_test_setup(paths_that_are_not_mixed, setup),
		cmocka_unit_test_setup(mixed_queries_have_the_chunks_lengths, setup),
		cmocka_unit_test_setup(slow_mixed_chunks_get_shorter, setup),
		cmocka_unit_test_setup(chunks_among_other_requests_are_longer, setup),
		cmocka_unit_test_setup(caller_thread_uses_one_long_chunk, setup),
		cmocka_unit_test_setup(mapped_stops_at_its_registration_limit, setup),
		cmocka_unit_test_setup(mapped_moves_short_ranges_as_last_resort, setup),
		cmocka_unit_test_setup(residency_queries_cover_long_runs, setup),
		cmocka_unit_test_setup(short_end_does_not_limit_next_query, setup),
		cmocka_unit_test_setup(no_single_byte_chunk_at_residency_borders, setup),
		cmocka_unit_test_setup(no_single_byte_chunk_beside_blocks, setup),
		cmocka_unit_test_setup(storage_without_a_cache, setup),
		cmocka_unit_test_setup(write_edges_use_the_page_cache, setup),
		cmocka_unit_test_setup(written_chunks_share_no_page, setup),
		cmocka_unit_test_setup(path_with_failed_write_proof_is_skipped, setup),
		cmocka_unit_test_setup(tails_of_growing_files_are_padded, setup),
		cmocka_unit_test_setup(unaligned_written_rows_are_bounced, setup),
		cmocka_unit_test_setup(named_paths, setup),
		cmocka_unit_test_setup(no_claim_after_cancel_or_deadline, setup),
		cmocka_unit_test_setup(failed_chunk_is_retried_on_next_path, setup),
		cmocka_unit_test_setup(failed_chunk_is_retried_on_the_other_mixed_path, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
