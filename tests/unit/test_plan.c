/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests plan.c, which chooses the order of the paths that may carry a request. Each rule has a case
 * of its own, with the library's paths and invented properties of them. Also tests random path
 * tables. Covers the choice of paths for cold (not cached), warm (cached) and unknown bytes, for
 * each class and effort, for reads and writes. Also covers the reason why a path is not used. The
 * test opens no file and moves no bytes.
 */
#include "test.h"

#include <stdbool.h>

#include "core/backends.h"
#include "core/request/plan.h"

static struct pst_path_state states[PST_PATHS_MAX];
static struct pst_plan_in in;
static struct pst_plan plan;

static struct pst_path_state *path_state(const char *name)
{
	int index = pst_path_index(name);

	assert_true(index >= 0);
	return &states[index];
}

static void path_open(const char *name, enum penstock_class class_)
{
	struct pst_path_state *state = path_state(name);

	memset(state, 0, sizeof(*state));
	state->usable = true;
	state->facts.class_ = class_;
	state->facts.quick = true;
}

static void path_close(const char *name, enum penstock_why why)
{
	struct pst_path_state *state = path_state(name);

	memset(state, 0, sizeof(*state));
	state->err.why = why;
}

/* Sets up a GPU whose memory the drive can access, and a file on block devices that the allow-list
 * accepts for direct transfers. All paths to a GPU are usable, even those that a request must name
 * to use them. */
static int setup(void **state)
{
	(void)state;
	memset(states, 0, sizeof(states));
	path_open("p2p", PENSTOCK_DIRECT);
	path_close("odirect", PENSTOCK_WHY_HOST_ONLY);
	path_open("mapped", PENSTOCK_NO_CPU_COPY);
	path_open("staged", PENSTOCK_NO_CPU_COPY);
	path_open("bounce", PENSTOCK_ANY);
	path_open("null", PENSTOCK_DIRECT);
	path_open("fault", PENSTOCK_DIRECT);
	in = (struct pst_plan_in){.count = pst_path_count, .paths = pst_paths, .states = states};
	return 0;
}

/* Changes the device from the GPU to host memory. */
static void use_host_device(void)
{
	path_close("p2p", PENSTOCK_WHY_DEVICE_ONLY);
	path_open("odirect", PENSTOCK_DIRECT);
	path_close("mapped", PENSTOCK_WHY_DEVICE_ONLY);
	path_open("staged", PENSTOCK_ANY);
}

static const char *list_text(enum pst_residency residency)
{
	static char text[256];
	size_t at = 0;

	text[0] = '\0';
	for (unsigned i = 0; i < plan.count[residency]; i++)
		at += (size_t)snprintf(text + at, sizeof(text) - at, "%s%s", i ? " " : "",
				       in.paths[plan.list[residency][i]]->name);
	return text;
}

static void expect_paths(enum pst_residency residency, const char *want)
{
	memset(&plan, 0xee, sizeof(plan)); /* pst_plan_make must set every member. */
	pst_plan_make(&in, &plan);
	assert_string_equal(list_text(residency), want);
}

static void expect_why(const char *name, enum pst_residency residency, enum penstock_why want)
{
	pst_plan_make(&in, &plan);
	assert_string_equal(penstock_why_name(pst_plan_why(
				    &in, &plan, (unsigned)pst_path_index(name), residency)),
			    penstock_why_name(want));
}

/* ---- choice of the path ---- */

static void cold_reads_avoid_the_cache(void **state)
{
	(void)state;
	expect_paths(PST_COLD, "p2p staged mapped bounce");
	in.effort = PENSTOCK_FAST;
	expect_paths(PST_COLD, "p2p staged mapped bounce");
	use_host_device();
	expect_paths(PST_COLD, "odirect staged bounce");
}

static void unknown_reads_count_as_cold(void **state)
{
	(void)state;
	expect_paths(PST_UNKNOWN, "p2p staged mapped bounce");
	in.effort = PENSTOCK_FAST;
	expect_paths(PST_UNKNOWN, "p2p staged mapped bounce");
	use_host_device();
	expect_paths(PST_UNKNOWN, "odirect staged bounce");
}

static void warm_reads_use_the_cache(void **state)
{
	(void)state;
	expect_paths(PST_WARM, "mapped bounce p2p staged");
	use_host_device();
	expect_paths(PST_WARM, "bounce odirect staged");
}

/* With efforts fast and balanced, a plan may mix two paths: both carry bytes of one request at the
 * same time. The plan mixes two paths only if both use the page cache, have the required class and
 * are not slow (`quick` is true). */
static void mixed_paths(void **state)
{
	(void)state;
	for (unsigned effort = 0; effort < PST_EFFORTS; effort++) {
		bool mixes = effort != PENSTOCK_THRIFTY;

		in.effort = (enum penstock_effort)effort;
		path_state("mapped")->facts.mixed_max = 1;
		expect_paths(PST_WARM, "mapped bounce p2p staged");
		assert_int_equal(plan.mixed, mixes ? 2 : 1);
		expect_why("mapped", PST_WARM, PENSTOCK_WHY_NONE);
		expect_why("bounce", PST_WARM,
			   mixes ? PENSTOCK_WHY_NONE : PENSTOCK_WHY_CHOSEN_OTHER);
		expect_why("bounce", PST_COLD, PENSTOCK_WHY_COLD);
		path_state("bounce")->facts.quick = false;
		expect_paths(PST_WARM, "mapped p2p staged bounce");
		assert_int_equal(plan.mixed, 1);
		path_state("bounce")->facts.quick = true;
		path_state("mapped")->facts.quick = false;
		expect_paths(PST_WARM, "bounce p2p staged mapped");
		assert_int_equal(plan.mixed, 1);
		path_state("mapped")->facts.quick = true;
		in.require = PENSTOCK_NO_CPU_COPY;
		expect_paths(PST_WARM, "mapped p2p staged");
		assert_int_equal(plan.mixed, 1);
		in.require = PENSTOCK_ANY;
		in.op = PENSTOCK_WRITE;
		expect_paths(PST_WARM, "p2p staged bounce");
		assert_int_equal(plan.mixed, 1);
		in.op = PENSTOCK_READ;
		path_state("mapped")->facts.mixed_max = 0;
		expect_paths(PST_WARM, effort == PENSTOCK_FAST ? "bounce mapped p2p staged"
							       : "mapped bounce p2p staged");
		assert_int_equal(plan.mixed, 1);
	}
}

/* If two paths are mixed, a lane may claim a chunk on the first path only while enough other bytes
 * of the request are unclaimed. Effort fast requires more such bytes than effort balanced. */
static void mixed_paths_need_a_rest(void **state)
{
	(void)state;
	path_state("mapped")->facts.mixed_max = 1;
	path_state("mapped")->facts.chunk_quick = 1000;
	in.effort = PENSTOCK_BALANCED;
	pst_plan_make(&in, &plan);
	assert_int_equal(pst_plan_least(&plan, in.states, PST_WARM, 0), 1000);
	in.effort = PENSTOCK_FAST;
	pst_plan_make(&in, &plan);
	assert_int_equal(pst_plan_least(&plan, in.states, PST_WARM, 0), 4000);
	assert_int_equal(pst_plan_least(&plan, in.states, PST_WARM, 1), 0); /* path "bounce" */
	assert_int_equal(pst_plan_least(&plan, in.states, PST_COLD, 2), 1000);
}

static void fast_warm_reads_use_the_cpu(void **state)
{
	(void)state;
	in.effort = PENSTOCK_FAST;
	expect_paths(PST_WARM, "bounce mapped p2p staged");
	use_host_device();
	expect_paths(PST_WARM, "bounce odirect staged");
}

static void slow_paths_come_last(void **state)
{
	(void)state;
	path_state("mapped")->facts.quick = false;
	expect_paths(PST_WARM, "bounce p2p staged mapped");
	expect_paths(PST_COLD, "p2p staged bounce mapped");
	expect_paths(PST_UNKNOWN, "p2p staged bounce mapped");
	in.effort = PENSTOCK_FAST;
	expect_paths(PST_WARM, "bounce p2p staged mapped");
	/* If path "bounce" is slow, it does not come first in the plan. */
	path_state("bounce")->facts.quick = false;
	expect_paths(PST_WARM, "p2p staged bounce mapped");
	in.effort = PENSTOCK_THRIFTY;
	expect_paths(PST_WARM, "p2p staged mapped bounce");
	path_state("p2p")->facts.quick = false;
	expect_paths(PST_COLD, "staged p2p mapped bounce");
	path_state("staged")->facts.quick = false; /* No path is quick. */
	expect_paths(PST_COLD, "p2p staged mapped bounce");
}

static void writes_prefer_the_most_direct_path(void **state)
{
	(void)state;
	in.op = PENSTOCK_WRITE;
	for (unsigned r = 0; r < PST_RESIDENCIES; r++)
		for (unsigned effort = 0; effort < PST_EFFORTS; effort++) {
			in.effort = (enum penstock_effort)effort;
			expect_paths((enum pst_residency)r, "p2p staged bounce");
		}
	use_host_device();
	for (unsigned r = 0; r < PST_RESIDENCIES; r++)
		expect_paths((enum pst_residency)r, "odirect staged bounce");
}

/* A write must never use path "mapped", even if the path's probe says that it could. */
static void writes_are_never_mapped(void **state)
{
	(void)state;
	in.op = PENSTOCK_WRITE;
	assert_true(path_state("mapped")->usable);
	for (unsigned r = 0; r < PST_RESIDENCIES; r++)
		for (unsigned c = 0; c <= PENSTOCK_DIRECT; c++) {
			in.require = (enum penstock_class)c;
			pst_plan_make(&in, &plan);
			assert_null(strstr(list_text((enum pst_residency)r), "mapped"));
		}
	expect_why("mapped", PST_COLD, PENSTOCK_WHY_NOT_WRITE);
}

static void write_only_paths_do_not_read(void **state)
{
	static const struct pst_path_ops out = {.name = "out", .traits = {.writes = true}};
	static const struct pst_path_ops *const table[] = {&out};

	(void)state;
	states[0] = (struct pst_path_state){.usable = true, .facts = {.quick = true}};
	in.paths = table;
	in.count = 1;
	expect_paths(PST_COLD, "");
	assert_int_equal(pst_plan_why(&in, &plan, 0, PST_COLD), PENSTOCK_WHY_NOT_READ);
	in.op = PENSTOCK_WRITE;
	expect_paths(PST_COLD, "out");
}

static void by_name_only_is_never_planned(void **state)
{
	(void)state;
	for (unsigned i = 0; i < pst_path_count; i++)
		if (!pst_paths[i]->traits.by_name_only)
			states[i].usable = false;
	for (unsigned op = 0; op < 2; op++) {
		in.op = (enum penstock_op)op;
		for (unsigned r = 0; r < PST_RESIDENCIES; r++)
			expect_paths((enum pst_residency)r, "");
	}
}

static void plan_is_limited_to_the_table(void **state)
{
	(void)state;
	in.count = (unsigned)pst_path_index("bounce");
	expect_paths(PST_COLD, "p2p staged mapped");
	in.count = 0;
	expect_paths(PST_COLD, "");
}

/* ---- classes ---- */

static void required_no_cpu_copy(void **state)
{
	(void)state;
	in.require = PENSTOCK_NO_CPU_COPY;
	expect_paths(PST_COLD, "p2p staged mapped");
	expect_paths(PST_WARM, "mapped p2p staged");
	expect_paths(PST_UNKNOWN, "p2p staged mapped");
	in.op = PENSTOCK_WRITE;
	expect_paths(PST_COLD, "p2p staged");
	/* with host memory as the destination, path "staged" copies with the CPU */
	use_host_device();
	expect_paths(PST_COLD, "odirect");
}

static void required_direct(void **state)
{
	(void)state;
	in.require = PENSTOCK_DIRECT;
	expect_paths(PST_COLD, "p2p");
	expect_paths(PST_WARM, "p2p");
	expect_paths(PST_UNKNOWN, "p2p");
	in.op = PENSTOCK_WRITE;
	expect_paths(PST_COLD, "p2p");
	use_host_device();
	expect_paths(PST_COLD, "odirect");
}

/* A plan compares the required class with the class that each path's probe found for this storage
 * and device. */
static void class_is_that_of_the_route(void **state)
{
	(void)state;
	for (unsigned i = 0; i < pst_path_count; i++)
		/* On a block device that the allow-list does not accept, paths have class
		 * PENSTOCK_ANY. */
		states[i].facts.class_ = PENSTOCK_ANY;
	expect_paths(PST_COLD, "p2p staged mapped bounce");
	for (unsigned c = PENSTOCK_NO_CPU_COPY; c <= PENSTOCK_DIRECT; c++) {
		in.require = (enum penstock_class)c;
		for (unsigned r = 0; r < PST_RESIDENCIES; r++)
			expect_paths((enum pst_residency)r, "");
	}
}

/* A plan leaves out a path whose test read (canary) found wrong bytes or no bytes to compare. */
static void unproven_path_is_not_planned(void **state)
{
	static const enum penstock_why whys[] = {PENSTOCK_WHY_UNPROVEN, PENSTOCK_WHY_CANARY,
						 PENSTOCK_WHY_NO_PEER_PAGES};

	for (unsigned i = 0; i < 3; i++) {
		setup(state);
		path_close("p2p", whys[i]);
		/* Sets the facts as a successful probe does, so that only the failed test read
		 * excludes the path. */
		path_state("p2p")->facts.class_ = PENSTOCK_DIRECT;
		path_state("p2p")->facts.quick = true;
		path_state("p2p")->proven = -1;
		/* the other paths remain in the plan */
		expect_paths(PST_COLD, "staged mapped bounce");
		expect_paths(PST_WARM, "mapped bounce staged");
		expect_why("p2p", PST_COLD, whys[i]);
		in.require = PENSTOCK_NO_CPU_COPY;
		expect_paths(PST_COLD, "staged mapped");
		in.require = PENSTOCK_DIRECT;
		for (unsigned r = 0; r < PST_RESIDENCIES; r++)
			expect_paths((enum pst_residency)r, ""); /* No path remains. */
		expect_why("p2p", PST_COLD, whys[i]);
	}
}

/* For writes, the first chunk of a write proves that a path works. So the plan of a write may use a
 * path that is not proven yet. */
static void unproven_write_is_planned(void **state)
{
	(void)state;
	in.op = PENSTOCK_WRITE;
	in.require = PENSTOCK_DIRECT;
	path_state("p2p")->proven = -1;
	expect_paths(PST_COLD, "p2p");
}

/* ---- whether the residency of the bytes matters ---- */

static bool residency_matters(void)
{
	memset(&plan, 0xee, sizeof(plan));
	pst_plan_make(&in, &plan);
	return plan.residency_matters;
}

static void residency_matters_if_a_path_uses_the_cache(void **state)
{
	(void)state;
	assert_true(residency_matters());
	in.require = PENSTOCK_NO_CPU_COPY;
	/* This class allows path "mapped", which uses the page cache, so it matters which bytes are
	 * cached. */
	assert_true(residency_matters());
	in.require = PENSTOCK_DIRECT;
	assert_false(residency_matters());
	in.require = PENSTOCK_ANY;
	in.op = PENSTOCK_WRITE;
	assert_false(residency_matters());
	in.op = PENSTOCK_READ;
	in.count = (unsigned)pst_path_index("p2p") + 1;
	assert_false(residency_matters());
}

/* ---- reasons ---- */

static void reasons_of_a_cold_read(void **state)
{
	(void)state;
	expect_why("p2p", PST_COLD, PENSTOCK_WHY_NONE);
	expect_why("odirect", PST_COLD, PENSTOCK_WHY_HOST_ONLY);
	expect_why("staged", PST_COLD, PENSTOCK_WHY_CHOSEN_OTHER);
	expect_why("mapped", PST_COLD, PENSTOCK_WHY_COLD);
	expect_why("bounce", PST_COLD, PENSTOCK_WHY_COLD);
	expect_why("bounce", PST_UNKNOWN, PENSTOCK_WHY_COLD);
	path_close("p2p", PENSTOCK_WHY_NO_PEER_PAGES);
	expect_why("p2p", PST_COLD, PENSTOCK_WHY_NO_PEER_PAGES);
	expect_why("staged", PST_COLD, PENSTOCK_WHY_NONE);
}

static void reasons_of_a_warm_read(void **state)
{
	(void)state;
	expect_why("p2p", PST_WARM, PENSTOCK_WHY_WARM);
	expect_why("staged", PST_WARM, PENSTOCK_WHY_WARM);
	expect_why("mapped", PST_WARM, PENSTOCK_WHY_NONE);
	expect_why("bounce", PST_WARM, PENSTOCK_WHY_CHOSEN_OTHER);
	in.effort = PENSTOCK_FAST;
	expect_why("mapped", PST_WARM, PENSTOCK_WHY_CHOSEN_OTHER);
	expect_why("bounce", PST_WARM, PENSTOCK_WHY_NONE);
}

static void reasons_of_a_write(void **state)
{
	(void)state;
	in.op = PENSTOCK_WRITE;
	for (unsigned r = 0; r < PST_RESIDENCIES; r++) {
		expect_why("p2p", (enum pst_residency)r, PENSTOCK_WHY_NONE);
		expect_why("staged", (enum pst_residency)r, PENSTOCK_WHY_CHOSEN_OTHER);
		expect_why("bounce", (enum pst_residency)r, PENSTOCK_WHY_CHOSEN_OTHER);
		expect_why("mapped", (enum pst_residency)r, PENSTOCK_WHY_NOT_WRITE);
	}
	path_close("mapped", PENSTOCK_WHY_NO_READONLY_REG);
	/* The reason PENSTOCK_WHY_NOT_WRITE takes precedence over the reason that the path's probe
	 * found. */
	expect_why("mapped", PST_COLD, PENSTOCK_WHY_NOT_WRITE);
}

static void reasons_of_class_and_speed(void **state)
{
	(void)state;
	path_state("mapped")->facts.quick = false;
	expect_why("mapped", PST_WARM, PENSTOCK_WHY_NOT_QUICK);
	expect_why("mapped", PST_COLD, PENSTOCK_WHY_NOT_QUICK);
	in.require = PENSTOCK_DIRECT;
	/* If the required class forbids a path that is also slow, the report gives the class as the
	 * reason. */
	expect_why("mapped", PST_WARM, PENSTOCK_WHY_REQUIRE);
	expect_why("staged", PST_COLD, PENSTOCK_WHY_REQUIRE);
	expect_why("bounce", PST_WARM, PENSTOCK_WHY_REQUIRE);
	path_close("staged", PENSTOCK_WHY_NO_ODIRECT);
	/* If the path's probe found the path unusable, the probe's reason takes precedence over the
	 * class. */
	expect_why("staged", PST_COLD, PENSTOCK_WHY_NO_ODIRECT);
}

/* A slow path that is used because no other path is usable has the reason PENSTOCK_WHY_NONE. */
static void used_path_has_no_reason(void **state)
{
	(void)state;
	path_close("p2p", PENSTOCK_WHY_NO_PEER_PAGES);
	path_close("staged", PENSTOCK_WHY_NO_ODIRECT);
	path_close("bounce", PENSTOCK_WHY_UNSUPPORTED);
	path_state("mapped")->facts.quick = false;
	expect_paths(PST_COLD, "mapped");
	expect_why("mapped", PST_COLD, PENSTOCK_WHY_NONE);
	in.require = PENSTOCK_DIRECT; /* No usable path has this class. */
	expect_paths(PST_COLD, "");
	expect_why("mapped", PST_COLD, PENSTOCK_WHY_REQUIRE);
	expect_why("p2p", PST_COLD, PENSTOCK_WHY_NO_PEER_PAGES);
}

/* ---- random tables and facts ---- */

static struct pst_path_ops random_paths[PST_PATHS_MAX];
static const struct pst_path_ops *random_table[PST_PATHS_MAX];

static void random_facts(uint64_t *random)
{
	memset(states, 0, sizeof(states));
	in.count = (unsigned)(test_random(random) % (PST_PATHS_MAX + 1));
	in.paths = random_table;
	in.op = (enum penstock_op)(test_random(random) % 2);
	in.require = (enum penstock_class)(test_random(random) % 3);
	in.effort = (enum penstock_effort)(test_random(random) % PST_EFFORTS);
	for (unsigned i = 0; i < PST_PATHS_MAX; i++) {
		uint64_t bits = test_random(random);

		random_table[i] = &random_paths[i];
		random_paths[i] = (struct pst_path_ops){
			.name = "made",
			.traits = {.reads = bits & 3,
				   .writes = bits & 12,
				   .uses_cache = bits & 16,
				   .by_name_only = !(bits & 0xe0),
				   .class_ = PENSTOCK_DIRECT},
		};
		states[i].usable = bits & 0x700;
		states[i].facts.quick = bits & 0x1800;
		states[i].facts.mixed_max = !(bits & 0xe000);
		states[i].facts.class_ = (enum penstock_class)((bits >> 16) % 3);
	}
}

static bool may_be_planned(unsigned i)
{
	return states[i].usable && !random_paths[i].traits.by_name_only &&
	       (in.op == PENSTOCK_READ ? random_paths[i].traits.reads
				       : random_paths[i].traits.writes) &&
	       states[i].facts.class_ >= in.require;
}

/* Returns whether path a must come before path b. Computes this from the rules, without the
 * arithmetic of plan.c. */
static bool precedes(unsigned a, unsigned b, bool warm)
{
	bool a_first = random_paths[a].traits.uses_cache == warm;
	bool b_first = random_paths[b].traits.uses_cache == warm;

	if (states[a].facts.quick != states[b].facts.quick)
		return states[a].facts.quick;
	if (a_first != b_first)
		return a_first;
	if (warm && a_first && in.effort == PENSTOCK_FAST) {
		if (states[a].facts.mixed_max != states[b].facts.mixed_max)
			return states[a].facts.mixed_max;
		return states[a].facts.mixed_max ? a < b : a > b;
	}
	return a < b;
}

/* Returns the number of paths that may carry bytes of one request at the same time, according to
 * the rules. */
static unsigned count_mixed(void)
{
	unsigned n = 1;

	if (in.effort == PENSTOCK_THRIFTY || in.op == PENSTOCK_WRITE || !plan.count[PST_WARM])
		return plan.count[PST_WARM] > 0;
	for (; n < plan.count[PST_WARM]; n++) {
		unsigned a = plan.list[PST_WARM][n - 1], b = plan.list[PST_WARM][n];

		if (!states[a].facts.mixed_max || !states[a].facts.quick ||
		    !states[b].facts.quick || !random_paths[a].traits.uses_cache ||
		    !random_paths[b].traits.uses_cache)
			break;
	}
	return n;
}

static void random_tables(void **state)
{
	uint64_t random = test_seed(20261121);

	(void)state;
	for (unsigned turn = 0; turn < 20000; turn++) {
		bool cache = false;

		random_facts(&random);
		pst_plan_make(&in, &plan);
		for (unsigned r = 0; r < PST_RESIDENCIES; r++) {
			bool warm = r == PST_WARM && in.op == PENSTOCK_READ;
			unsigned allowed = 0;

			for (unsigned i = 0; i < in.count; i++)
				allowed += may_be_planned(i);
			assert_int_equal(plan.count[r], allowed);
			for (unsigned i = 0; i < allowed; i++) {
				assert_true(plan.list[r][i] < in.count &&
					    may_be_planned(plan.list[r][i]));
				cache |= random_paths[plan.list[r][i]].traits.uses_cache;
				if (i)
					assert_true(precedes(plan.list[r][i - 1], plan.list[r][i],
							     warm));
			}
		}
		assert_int_equal(plan.residency_matters, cache && in.op == PENSTOCK_READ);
		assert_int_equal(plan.mixed, count_mixed());
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(cold_reads_avoid_the_cache, setup),
		cmocka_unit_test_setup(unknown_reads_count_as_cold, setup),
		cmocka_unit_test_setup(warm_reads_use_the_cache, setup),
		cmocka_unit_test_setup(fast_warm_reads_use_the_cpu, setup),
		cmocka_unit_test_setup(mixed_paths, setup),
		cmocka_unit_test_setup(mixed_paths_need_a_rest, setup),
		cmocka_unit_test_setup(slow_paths_come_last, setup),
		cmocka_unit_test_setup(writes_prefer_the_most_direct_path, setup),
		cmocka_unit_test_setup(writes_are_never_mapped, setup),
		cmocka_unit_test_setup(write_only_paths_do_not_read, setup),
		cmocka_unit_test_setup(by_name_only_is_never_planned, setup),
		cmocka_unit_test_setup(plan_is_limited_to_the_table, setup),
		cmocka_unit_test_setup(required_no_cpu_copy, setup),
		cmocka_unit_test_setup(required_direct, setup),
		cmocka_unit_test_setup(class_is_that_of_the_route, setup),
		cmocka_unit_test_setup(unproven_path_is_not_planned, setup),
		cmocka_unit_test_setup(unproven_write_is_planned, setup),
		cmocka_unit_test_setup(residency_matters_if_a_path_uses_the_cache, setup),
		cmocka_unit_test_setup(reasons_of_a_cold_read, setup),
		cmocka_unit_test_setup(reasons_of_a_warm_read, setup),
		cmocka_unit_test_setup(reasons_of_a_write, setup),
		cmocka_unit_test_setup(reasons_of_class_and_speed, setup),
		cmocka_unit_test_setup(used_path_has_no_reason, setup),
		cmocka_unit_test_setup(random_tables, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
