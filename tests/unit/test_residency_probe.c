/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the residency probe. If a storage cannot report whether bytes are in the page cache, the
 * library reads one chunk through the page cache and measures the time. The test covers which
 * chunks are read this way, what the time implies, and which path the other chunks use. Storage,
 * page cache and clock are simulated, so that the speed of the machine does not matter.
 */
#include "claiming.h"

#include "core/backends.h"
#include "core/base/clock.h"
#include "core/request/plan.h"
#include "core/request/residency_probe.h"

/* One chunk is probed: read through the page cache and timed. No other chunk is probed until the
 * first one has completed. */
static void one_chunk_of_unknown_residency_is_probed(void **state)
{
	(void)state;
	route_probe(&gpu, PENSTOCK_READ);
	residency_set(0, TILES * TILE, PST_UNKNOWN);
	seg_add(&gpu, 0, 3 * MIB, 4096);
	expect_chunks("bounce 0+1048576 staged 1048576+1048576 staged 2097152+1048576");
	assert_true(claimed[0].timed && !claimed[1].timed);
	assert_int_equal(claimed[0].residency, PST_UNKNOWN);
	assert_int_equal(claimed[1].residency, PST_UNKNOWN);
	expect_chunks("staged 0+1048576 staged 1048576+1048576 staged 2097152+1048576");
	atomic_store(&st.residency_probe, PST_PROBE_WARM);
	expect_chunks("bounce 0+1048576 bounce 1048576+1048576 bounce 2097152+1048576");
	/* While the probes find cached bytes, every chunk is timed, to detect when the bytes are no
	 * longer cached. */
	assert_true(claimed[2].timed);
	assert_int_equal(claimed[2].residency, PST_WARM);
	atomic_store(&st.residency_probe, PST_PROBE_SLOW);
	segs[0].row_len = MIB;
	expect_chunks("bounce 0+1048576");
	atomic_store(&st.residency_probe, PST_PROBE_COLD);
	expect_chunks("staged 0+1048576");
	assert_int_equal(claimed[0].residency, PST_COLD);
	/* The bytes are not cached, so the library probes again only after 64 MiB without a
	 * probe. */
	atomic_store(&st.unprobed_bytes, 0);
	segs[0].row_len = 64 * MIB;
	claim_all();
	for (unsigned i = 0; i < claimed_count; i++)
		assert_false(claimed[i].timed);
	segs[0].row_len = 2 * MIB;
	expect_chunks("bounce 0+1048576 staged 1048576+1048576");
}

/* If the probe (a timed read through the page cache) was quick, the library must use the plan for
 * cached bytes. A chunk may have at most 32 MiB, so that little time is lost if its bytes are not
 * cached after all. */
static void quick_probe_selects_the_cached_plan(void **state)
{
	(void)state;
	route_probe(&gpu, PENSTOCK_READ);
	residency_set(0, TILES * TILE, PST_UNKNOWN);
	seg_add(&gpu, 0, 75 * MIB, 4096);
	atomic_store(&st.residency_probe, PST_PROBE_WARM);
	expect_chunks("mapped 0+33554432 mapped 33554432+33554432 mapped 67108864+11534336");
	assert_true(claimed[0].timed && claimed[2].timed);
	assert_int_equal(claimed[0].residency, PST_WARM);
	req.require = PENSTOCK_NO_CPU_COPY;
	expect_chunks("mapped 0+33554432 mapped 33554432+33554432 mapped 67108864+11534336");
	assert_true(claimed[0].timed);
	req.require = PENSTOCK_ANY;
	/* After a slow chunk, the next chunks must be short, so that little time is lost if the
	 * bytes are no longer cached. */
	atomic_store(&st.residency_probe, PST_PROBE_SLOW);
	claims_reset();
	assert_true(claim_next() && claim_next());
	for (unsigned i = 0; i < 2; i++) {
		assert_string_equal(pst_paths[claimed[i].path]->name, "bounce");
		assert_int_equal(claimed[i].len, MIB);
	}
	atomic_store(&st.residency_probe, PST_PROBE_WARM);
	/* with this effort, only lane 0, the first worker thread, uses path "mapped" */
	req.effort = PENSTOCK_FAST;
	claims_reset();
	lane_number = 1;
	assert_true(claim_next());
	lane_number = 0;
	assert_true(claim_next());
	assert_string_equal(pst_paths[claimed[0].path]->name, "bounce");
	assert_string_equal(pst_paths[claimed[1].path]->name, "mapped");
	req.effort = PENSTOCK_THRIFTY;
	st.facts.mapped_quick = false;
	route_probe(&gpu, PENSTOCK_READ);
	claims_reset();
	assert_true(claim_next());
	assert_string_equal(pst_paths[claimed[0].path]->name, "bounce");
}

static void requests_that_are_not_probed(void **state)
{
	(void)state;
	route_probe(&gpu, PENSTOCK_READ);
	assert_true(path_state("bounce")->usable);
	residency_set(0, TILES * TILE, PST_UNKNOWN);
	seg_add(&gpu, 0, 65535, 4096); /* Chunks below 64 KiB are not timed. */
	expect_chunks("staged 0+65535");
	segs[0].row_len = MIB;
	req.require = PENSTOCK_NO_CPU_COPY;
	expect_chunks("staged 0+1048576");
	assert_int_equal(atomic_load(&st.residency_probe), PST_PROBE_NONE);
	/* If a request names its path, the library times chunks only if that path reads through the
	 * page cache. */
	req.require = PENSTOCK_ANY;
	req.forced = pst_path_index("staged");
	expect_chunks("staged 0+1048576");
	assert_int_equal(atomic_load(&st.residency_probe), PST_PROBE_NONE);
	req.forced = pst_path_index("bounce");
	expect_chunks("bounce 0+1048576");
	assert_true(claimed[0].timed);
}

/* Completes a timed chunk that moved `bytes` bytes in `us` microseconds. If `us` is negative, the
 * chunk's start is in the future, which always counts as quick. */
static struct pst_chunk timed_chunk_complete(int64_t us, int64_t bytes)
{
	struct pst_chunk chunk = {.route = route, .residency = PST_UNKNOWN, .timed = true};

	chunk.timed_ns = (uint64_t)((int64_t)pst_now_ns() - us * 1000);
	pst_residency_probe_end(&chunk, bytes);
	return chunk;
}

static void verdict_follows_duration(void **state)
{
	enum { QUICK = -1000000, LONG = 1000000 };

	(void)state;
	route_probe(&gpu, PENSTOCK_READ);
	assert_int_equal(pst_residency_verdict(&st), PST_UNKNOWN);
	timed_chunk_complete(LONG, -EIO);
	timed_chunk_complete(LONG, 0);
	/* A chunk that failed or moved no bytes does not show whether bytes are cached. */
	assert_int_equal(pst_residency_verdict(&st), PST_UNKNOWN);
	assert_int_equal(timed_chunk_complete(QUICK, MIB).residency, PST_WARM);
	assert_int_equal(pst_residency_verdict(&st), PST_WARM);
	/* A single slow chunk may be slow by chance, so it does not change the verdict. */
	assert_int_equal(timed_chunk_complete(LONG, MIB).residency, PST_COLD);
	assert_int_equal(pst_residency_verdict(&st), PST_WARM);
	timed_chunk_complete(QUICK, MIB);
	timed_chunk_complete(LONG, MIB);
	assert_int_equal(pst_residency_verdict(&st), PST_WARM);
	timed_chunk_complete(LONG, MIB);
	assert_int_equal(pst_residency_verdict(&st), PST_COLD);
	timed_chunk_complete(LONG, MIB);
	assert_int_equal(pst_residency_verdict(&st), PST_COLD);
	timed_chunk_complete(QUICK, MIB);
	assert_int_equal(pst_residency_verdict(&st), PST_WARM);
	/* The first probe decides alone. It counts as quick (the bytes are cached) if its duration
	 * is short for its number of bytes. */
	atomic_store(&st.residency_probe, PST_PROBE_RUNNING);
	timed_chunk_complete(500, 1ll << 40);
	assert_int_equal(pst_residency_verdict(&st), PST_WARM);
	atomic_store(&st.residency_probe, PST_PROBE_RUNNING);
	assert_int_equal(timed_chunk_complete(500, MIB).timed_ns, 0);
	assert_int_equal(pst_residency_verdict(&st), PST_COLD);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(one_chunk_of_unknown_residency_is_probed, setup),
		cmocka_unit_test_setup(quick_probe_selects_the_cached_plan, setup),
		cmocka_unit_test_setup(requests_that_are_not_probed, setup),
		cmocka_unit_test_setup(verdict_follows_duration, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
