/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes of which nobody says whether they are cached: which chunks are tried through the
 * page cache, what their time tells, and which way the others go. Storage, page cache and
 * clock are made up, so that no machine is too slow for it.
 */
#include "claiming.h"

#include "core/base/clock.h"

/* One chunk, and no other while its call has not ended. */
static void what_nobody_knows_is_tried(void **state)
{
	(void)state;
	probe(&gpu, PENSTOCK_READ);
	cached(0, TILES * TILE, PST_UNKNOWN);
	add(&gpu, 0, 3 * MIB, 4096);
	expect("bounce 0+1048576 staged 1048576+1048576 staged 2097152+1048576");
	assert_true(claimed[0].timed && !claimed[1].timed);
	assert_int_equal(claimed[0].residency, PST_UNKNOWN);
	assert_int_equal(claimed[1].residency, PST_UNKNOWN);
	expect("staged 0+1048576 staged 1048576+1048576 staged 2097152+1048576");
	atomic_store(&st.residency_probe, PST_PROBE_WARM);
	expect("bounce 0+1048576 bounce 1048576+1048576 bounce 2097152+1048576");
	assert_true(claimed[2].timed); /* each, whether it stays so */
	assert_int_equal(claimed[2].residency, PST_WARM);
	atomic_store(&st.residency_probe, PST_PROBE_SLOW);
	segs[0].row_len = MIB;
	expect("bounce 0+1048576");
	atomic_store(&st.residency_probe, PST_PROBE_COLD);
	expect("staged 0+1048576");
	assert_int_equal(claimed[0].residency, PST_COLD);
	/* When so much has gone by, another is tried. */
	atomic_store(&st.unprobed_bytes, 0);
	segs[0].row_len = 64 * MIB;
	claim_all();
	for (unsigned i = 0; i < claimed_count; i++)
		assert_false(claimed[i].timed);
	segs[0].row_len = 2 * MIB;
	expect("bounce 0+1048576 staged 1048576+1048576");
}

/* Then the plan for cached bytes holds, in steps that cost little if they are not any more. */
static void what_was_quick_goes_as_cached(void **state)
{
	(void)state;
	probe(&gpu, PENSTOCK_READ);
	cached(0, TILES * TILE, PST_UNKNOWN);
	add(&gpu, 0, 75 * MIB, 4096);
	atomic_store(&st.residency_probe, PST_PROBE_WARM);
	expect("mapped 0+33554432 mapped 33554432+33554432 mapped 67108864+11534336");
	assert_true(claimed[0].timed && claimed[2].timed);
	assert_int_equal(claimed[0].residency, PST_WARM);
	req.require = PENSTOCK_NO_CPU_COPY;
	expect("mapped 0+33554432 mapped 33554432+33554432 mapped 67108864+11534336");
	assert_true(claimed[0].timed);
	req.require = PENSTOCK_ANY;
	atomic_store(&st.residency_probe, PST_PROBE_SLOW); /* a short one tells */
	begin();
	assert_true(claim() && claim());
	for (unsigned i = 0; i < 2; i++) {
		assert_string_equal(pst_paths[claimed[i].path]->name, "bounce");
		assert_int_equal(claimed[i].len, MIB);
	}
	atomic_store(&st.residency_probe, PST_PROBE_WARM);
	req.effort = PENSTOCK_FAST; /* whose plan begins with the CPU */
	begin();
	assert_true(claim());
	assert_string_equal(pst_paths[claimed[0].path]->name, "bounce");
	req.effort = PENSTOCK_THRIFTY;
	st.facts.mapped_quick = false;
	probe(&gpu, PENSTOCK_READ);
	begin();
	assert_true(claim());
	assert_string_equal(pst_paths[claimed[0].path]->name, "bounce");
}

static void what_is_not_tried(void **state)
{
	(void)state;
	probe(&gpu, PENSTOCK_READ);
	assert_true(path("bounce")->usable);
	cached(0, TILES * TILE, PST_UNKNOWN);
	add(&gpu, 0, 65535, 4096); /* too short to tell */
	expect("staged 0+65535");
	segs[0].row_len = MIB;
	req.require = PENSTOCK_NO_CPU_COPY;
	expect("staged 0+1048576");
	assert_int_equal(atomic_load(&st.residency_probe), PST_PROBE_NONE);
	req.require = PENSTOCK_ANY; /* a path that is named tells of itself only */
	req.forced = pst_path_index("staged");
	expect("staged 0+1048576");
	assert_int_equal(atomic_load(&st.residency_probe), PST_PROBE_NONE);
	req.forced = pst_path_index("bounce");
	expect("bounce 0+1048576");
	assert_true(claimed[0].timed);
}

/* A call that began `us` microseconds ago, or will, has moved so many bytes. */
static struct pst_chunk ended(int64_t us, int64_t bytes)
{
	struct pst_chunk chunk = {.route = route, .residency = PST_UNKNOWN, .timed = true};

	chunk.timed_ns = (uint64_t)((int64_t)pst_now_ns() - us * 1000);
	pst_residency_probe_end(&chunk, bytes);
	return chunk;
}

static void how_long_it_took_tells(void **state)
{
	enum { QUICK = -1000000, LONG = 1000000 };

	(void)state;
	probe(&gpu, PENSTOCK_READ);
	assert_int_equal(pst_residency_verdict(&st), PST_UNKNOWN);
	ended(LONG, -EIO);
	ended(LONG, 0);
	assert_int_equal(pst_residency_verdict(&st), PST_UNKNOWN); /* these say nothing */
	assert_int_equal(ended(QUICK, MIB).residency, PST_WARM);
	assert_int_equal(pst_residency_verdict(&st), PST_WARM);
	/* Once may be by chance. */
	assert_int_equal(ended(LONG, MIB).residency, PST_COLD);
	assert_int_equal(pst_residency_verdict(&st), PST_WARM);
	ended(QUICK, MIB);
	ended(LONG, MIB);
	assert_int_equal(pst_residency_verdict(&st), PST_WARM);
	ended(LONG, MIB);
	assert_int_equal(pst_residency_verdict(&st), PST_COLD);
	ended(LONG, MIB);
	assert_int_equal(pst_residency_verdict(&st), PST_COLD);
	ended(QUICK, MIB);
	assert_int_equal(pst_residency_verdict(&st), PST_WARM);
	/* The first one decides by itself, by the length of what it moved. */
	atomic_store(&st.residency_probe, PST_PROBE_RUNNING);
	ended(500, 1ll << 40);
	assert_int_equal(pst_residency_verdict(&st), PST_WARM);
	atomic_store(&st.residency_probe, PST_PROBE_RUNNING);
	assert_int_equal(ended(500, MIB).timed_ns, 0);
	assert_int_equal(pst_residency_verdict(&st), PST_COLD);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(what_nobody_knows_is_tried, setup),
		cmocka_unit_test_setup(what_was_quick_goes_as_cached, setup),
		cmocka_unit_test_setup(what_is_not_tried, setup),
		cmocka_unit_test_setup(how_long_it_took_tells, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
