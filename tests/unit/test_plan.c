/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The rules of plan.c, one case each, over the library's own paths with facts made
 * up here, and over made-up paths by chance: which path for cold, warm and unknown
 * bytes, for each class and effort, for reads and writes, and the reason of each
 * path that is not the one taken. Nothing is opened and nothing moves.
 */
#include "test.h"

#include <stdbool.h>

#include "core/base/objects.h"
#include "core/request/plan.h"

static struct pst_path_state states[PST_PATHS_MAX];
static struct pst_plan_in in;
static struct pst_plan plan;

static struct pst_path_state *state_of(const char *name)
{
	int index = pst_path_index(name);

	assert_true(index >= 0);
	return &states[index];
}

static void open_path(const char *name, enum penstock_class class_)
{
	struct pst_path_state *state = state_of(name);

	memset(state, 0, sizeof(*state));
	state->usable = true;
	state->facts.class_ = class_;
	state->facts.quick = true;
}

static void shut_path(const char *name, enum penstock_why why)
{
	struct pst_path_state *state = state_of(name);

	memset(state, 0, sizeof(*state));
	state->err.why = why;
}

/* A GPU whose memory the drive can reach, and a file on a listed block stack. Every
 * path is open that a GPU can have, and so are those that only a name takes. */
static int setup(void **state)
{
	(void)state;
	memset(states, 0, sizeof(states));
	open_path("p2p", PENSTOCK_DIRECT);
	shut_path("odirect", PENSTOCK_WHY_HOST_ONLY);
	open_path("mapped", PENSTOCK_NO_CPU_COPY);
	open_path("staged", PENSTOCK_NO_CPU_COPY);
	open_path("bounce", PENSTOCK_ANY);
	open_path("null", PENSTOCK_DIRECT);
	open_path("fault", PENSTOCK_DIRECT);
	in = (struct pst_plan_in){.count = pst_path_count, .paths = pst_paths, .states = states};
	return 0;
}

/* The same file and host memory. */
static void to_host(void)
{
	shut_path("p2p", PENSTOCK_WHY_DEVICE_ONLY);
	open_path("odirect", PENSTOCK_DIRECT);
	shut_path("mapped", PENSTOCK_WHY_DEVICE_ONLY);
	open_path("staged", PENSTOCK_ANY);
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

static void expect(enum pst_residency residency, const char *want)
{
	memset(&plan, 0xee, sizeof(plan)); /* nothing of a former plan stays */
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

/* ---- which path ---- */

static void cold_reads_leave_the_cache_alone(void **state)
{
	(void)state;
	expect(PST_COLD, "p2p staged mapped bounce");
	in.effort = PENSTOCK_FAST;
	expect(PST_COLD, "p2p staged mapped bounce");
	to_host();
	expect(PST_COLD, "odirect staged bounce");
}

static void unknown_reads_are_taken_for_cold(void **state)
{
	(void)state;
	expect(PST_UNKNOWN, "p2p staged mapped bounce");
	in.effort = PENSTOCK_FAST;
	expect(PST_UNKNOWN, "p2p staged mapped bounce");
	to_host();
	expect(PST_UNKNOWN, "odirect staged bounce");
}

static void warm_reads_use_the_cache(void **state)
{
	(void)state;
	expect(PST_WARM, "mapped bounce p2p staged");
	to_host();
	expect(PST_WARM, "bounce odirect staged");
}

static void fast_warm_reads_spend_the_cpu(void **state)
{
	(void)state;
	in.effort = PENSTOCK_FAST;
	expect(PST_WARM, "bounce mapped p2p staged");
	to_host();
	expect(PST_WARM, "bounce odirect staged");
}

static void slow_paths_stand_behind_all_quick_ones(void **state)
{
	(void)state;
	state_of("mapped")->facts.quick = false;
	expect(PST_WARM, "bounce p2p staged mapped");
	expect(PST_COLD, "p2p staged bounce mapped");
	expect(PST_UNKNOWN, "p2p staged bounce mapped");
	in.effort = PENSTOCK_FAST;
	expect(PST_WARM, "bounce p2p staged mapped");
	state_of("bounce")->facts.quick = false; /* among slow ones the order is as ever */
	expect(PST_WARM, "p2p staged bounce mapped");
	in.effort = PENSTOCK_THRIFTY;
	expect(PST_WARM, "p2p staged mapped bounce");
	state_of("p2p")->facts.quick = false;
	expect(PST_COLD, "staged p2p mapped bounce");
	state_of("staged")->facts.quick = false; /* none is quick */
	expect(PST_COLD, "p2p staged mapped bounce");
}

static void writes_go_most_direct_first(void **state)
{
	(void)state;
	in.op = PENSTOCK_WRITE;
	for (unsigned r = 0; r < PST_RESIDENCIES; r++)
		for (unsigned effort = 0; effort < 2; effort++) {
			in.effort = (enum penstock_effort)effort;
			expect((enum pst_residency)r, "p2p staged bounce");
		}
	to_host();
	for (unsigned r = 0; r < PST_RESIDENCIES; r++)
		expect((enum pst_residency)r, "odirect staged bounce");
}

/* Even if its probe said that it could. */
static void writes_are_never_mapped(void **state)
{
	(void)state;
	in.op = PENSTOCK_WRITE;
	assert_true(state_of("mapped")->usable);
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
	expect(PST_COLD, "");
	assert_int_equal(pst_plan_why(&in, &plan, 0, PST_COLD), PENSTOCK_WHY_NOT_READ);
	in.op = PENSTOCK_WRITE;
	expect(PST_COLD, "out");
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
			expect((enum pst_residency)r, "");
	}
}

static void only_the_paths_given_are_planned(void **state)
{
	(void)state;
	in.count = (unsigned)pst_path_index("bounce");
	expect(PST_COLD, "p2p staged mapped");
	in.count = 0;
	expect(PST_COLD, "");
}

/* ---- classes ---- */

static void required_no_cpu_copy(void **state)
{
	(void)state;
	in.require = PENSTOCK_NO_CPU_COPY;
	expect(PST_COLD, "p2p staged mapped");
	expect(PST_WARM, "mapped p2p staged");
	expect(PST_UNKNOWN, "p2p staged mapped");
	in.op = PENSTOCK_WRITE;
	expect(PST_COLD, "p2p staged");
	to_host(); /* there the slot is emptied by a memcpy */
	expect(PST_COLD, "odirect");
}

static void required_direct(void **state)
{
	(void)state;
	in.require = PENSTOCK_DIRECT;
	expect(PST_COLD, "p2p");
	expect(PST_WARM, "p2p");
	expect(PST_UNKNOWN, "p2p");
	in.op = PENSTOCK_WRITE;
	expect(PST_COLD, "p2p");
	to_host();
	expect(PST_COLD, "odirect");
}

/* What a path could be elsewhere does not count, only what it is on this route. */
static void class_is_what_the_route_gives(void **state)
{
	(void)state;
	for (unsigned i = 0; i < pst_path_count; i++)
		states[i].facts.class_ = PENSTOCK_ANY; /* not on the allow-list */
	expect(PST_COLD, "p2p staged mapped bounce");
	for (unsigned c = PENSTOCK_NO_CPU_COPY; c <= PENSTOCK_DIRECT; c++) {
		in.require = (enum penstock_class)c;
		for (unsigned r = 0; r < PST_RESIDENCIES; r++)
			expect((enum pst_residency)r, "");
	}
}

/* The canary found no bytes to prove it on, or other bytes than it should. */
static void unproven_is_refused_like_no(void **state)
{
	static const enum penstock_why whys[] = {PENSTOCK_WHY_UNPROVEN, PENSTOCK_WHY_CANARY,
						 PENSTOCK_WHY_NO_PEER_PAGES};

	for (unsigned i = 0; i < 3; i++) {
		setup(state);
		shut_path("p2p", whys[i]);
		state_of("p2p")->facts.class_ = PENSTOCK_DIRECT; /* as its probe left it */
		state_of("p2p")->facts.quick = true;
		state_of("p2p")->proven = -1;
		expect(PST_COLD, "staged mapped bounce"); /* the next one is taken */
		expect(PST_WARM, "mapped bounce staged");
		expect_why("p2p", PST_COLD, whys[i]);
		in.require = PENSTOCK_NO_CPU_COPY;
		expect(PST_COLD, "staged mapped");
		in.require = PENSTOCK_DIRECT;
		for (unsigned r = 0; r < PST_RESIDENCIES; r++)
			expect((enum pst_residency)r, ""); /* refused */
		expect_why("p2p", PST_COLD, whys[i]);
	}
}

/* A write is proven by its first chunk, so it is planned before that. */
static void unproven_write_is_planned(void **state)
{
	(void)state;
	in.op = PENSTOCK_WRITE;
	in.require = PENSTOCK_DIRECT;
	state_of("p2p")->proven = -1;
	expect(PST_COLD, "p2p");
}

/* ---- does it matter where the bytes are? ---- */

static bool matters(void)
{
	memset(&plan, 0xee, sizeof(plan));
	pst_plan_make(&in, &plan);
	return plan.residency_matters;
}

static void residency_matters_where_a_path_uses_the_cache(void **state)
{
	(void)state;
	assert_true(matters());
	in.require = PENSTOCK_NO_CPU_COPY;
	assert_true(matters()); /* mapped */
	in.require = PENSTOCK_DIRECT;
	assert_false(matters());
	in.require = PENSTOCK_ANY;
	in.op = PENSTOCK_WRITE;
	assert_false(matters());
	in.op = PENSTOCK_READ;
	in.count = (unsigned)pst_path_index("p2p") + 1;
	assert_false(matters());
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
	shut_path("p2p", PENSTOCK_WHY_NO_PEER_PAGES);
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
	shut_path("mapped", PENSTOCK_WHY_NO_READONLY_REG);
	expect_why("mapped", PST_COLD, PENSTOCK_WHY_NOT_WRITE); /* the stronger one */
}

static void reasons_of_class_and_pace(void **state)
{
	(void)state;
	state_of("mapped")->facts.quick = false;
	expect_why("mapped", PST_WARM, PENSTOCK_WHY_NOT_QUICK);
	expect_why("mapped", PST_COLD, PENSTOCK_WHY_NOT_QUICK);
	in.require = PENSTOCK_DIRECT;
	expect_why("mapped", PST_WARM, PENSTOCK_WHY_REQUIRE); /* before its pace */
	expect_why("staged", PST_COLD, PENSTOCK_WHY_REQUIRE);
	expect_why("bounce", PST_WARM, PENSTOCK_WHY_REQUIRE);
	shut_path("staged", PENSTOCK_WHY_NO_ODIRECT);
	expect_why("staged", PST_COLD, PENSTOCK_WHY_NO_ODIRECT); /* before the class */
}

/* A slow path that is taken because nothing else is there has no reason against it. */
static void the_one_taken_has_no_reason(void **state)
{
	(void)state;
	shut_path("p2p", PENSTOCK_WHY_NO_PEER_PAGES);
	shut_path("staged", PENSTOCK_WHY_NO_ODIRECT);
	shut_path("bounce", PENSTOCK_WHY_UNSUPPORTED);
	state_of("mapped")->facts.quick = false;
	expect(PST_COLD, "mapped");
	expect_why("mapped", PST_COLD, PENSTOCK_WHY_NONE);
	in.require = PENSTOCK_DIRECT; /* an empty list takes nothing */
	expect(PST_COLD, "");
	expect_why("mapped", PST_COLD, PENSTOCK_WHY_REQUIRE);
	expect_why("p2p", PST_COLD, PENSTOCK_WHY_NO_PEER_PAGES);
}

/* ---- any table, any facts ---- */

static struct pst_path_ops made[PST_PATHS_MAX];
static const struct pst_path_ops *made_table[PST_PATHS_MAX];

static void make_up(uint64_t *random)
{
	memset(states, 0, sizeof(states));
	in.count = (unsigned)(test_random(random) % (PST_PATHS_MAX + 1));
	in.paths = made_table;
	in.op = (enum penstock_op)(test_random(random) % 2);
	in.require = (enum penstock_class)(test_random(random) % 3);
	in.effort = (enum penstock_effort)(test_random(random) % 2);
	for (unsigned i = 0; i < PST_PATHS_MAX; i++) {
		uint64_t bits = test_random(random);

		made_table[i] = &made[i];
		made[i] = (struct pst_path_ops){
			.name = "made",
			.traits = {.reads = bits & 3,
				   .writes = bits & 12,
				   .uses_cache = bits & 16,
				   .by_name_only = !(bits & 0xe0),
				   .class_ = PENSTOCK_DIRECT},
		};
		states[i].usable = bits & 0x700;
		states[i].facts.quick = bits & 0x1800;
		states[i].facts.class_ = (enum penstock_class)((bits >> 16) % 3);
	}
}

static bool may(unsigned i)
{
	return states[i].usable && !made[i].traits.by_name_only &&
	       (in.op == PENSTOCK_READ ? made[i].traits.reads : made[i].traits.writes) &&
	       states[i].facts.class_ >= in.require;
}

/* Does path a stand before b? The rules in words, not plan.c's arithmetic. */
static bool before(unsigned a, unsigned b, bool warm)
{
	bool a_first = made[a].traits.uses_cache == warm;
	bool b_first = made[b].traits.uses_cache == warm;

	if (states[a].facts.quick != states[b].facts.quick)
		return states[a].facts.quick;
	if (a_first != b_first)
		return a_first;
	return warm && a_first && in.effort == PENSTOCK_FAST ? a > b : a < b;
}

static void any_table(void **state)
{
	uint64_t random = test_seed(20261121);

	(void)state;
	for (unsigned turn = 0; turn < 20000; turn++) {
		bool cache = false;

		make_up(&random);
		pst_plan_make(&in, &plan);
		for (unsigned r = 0; r < PST_RESIDENCIES; r++) {
			bool warm = r == PST_WARM && in.op == PENSTOCK_READ;
			unsigned allowed = 0;

			for (unsigned i = 0; i < in.count; i++)
				allowed += may(i);
			assert_int_equal(plan.count[r], allowed);
			for (unsigned i = 0; i < allowed; i++) {
				assert_true(plan.list[r][i] < in.count && may(plan.list[r][i]));
				cache |= made[plan.list[r][i]].traits.uses_cache;
				if (i)
					assert_true(
						before(plan.list[r][i - 1], plan.list[r][i], warm));
			}
		}
		assert_int_equal(plan.residency_matters, cache && in.op == PENSTOCK_READ);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test_setup(cold_reads_leave_the_cache_alone, setup),
		cmocka_unit_test_setup(unknown_reads_are_taken_for_cold, setup),
		cmocka_unit_test_setup(warm_reads_use_the_cache, setup),
		cmocka_unit_test_setup(fast_warm_reads_spend_the_cpu, setup),
		cmocka_unit_test_setup(slow_paths_stand_behind_all_quick_ones, setup),
		cmocka_unit_test_setup(writes_go_most_direct_first, setup),
		cmocka_unit_test_setup(writes_are_never_mapped, setup),
		cmocka_unit_test_setup(write_only_paths_do_not_read, setup),
		cmocka_unit_test_setup(by_name_only_is_never_planned, setup),
		cmocka_unit_test_setup(only_the_paths_given_are_planned, setup),
		cmocka_unit_test_setup(required_no_cpu_copy, setup),
		cmocka_unit_test_setup(required_direct, setup),
		cmocka_unit_test_setup(class_is_what_the_route_gives, setup),
		cmocka_unit_test_setup(unproven_is_refused_like_no, setup),
		cmocka_unit_test_setup(unproven_write_is_planned, setup),
		cmocka_unit_test_setup(residency_matters_where_a_path_uses_the_cache, setup),
		cmocka_unit_test_setup(reasons_of_a_cold_read, setup),
		cmocka_unit_test_setup(reasons_of_a_warm_read, setup),
		cmocka_unit_test_setup(reasons_of_a_write, setup),
		cmocka_unit_test_setup(reasons_of_class_and_pace, setup),
		cmocka_unit_test_setup(the_one_taken_has_no_reason, setup),
		cmocka_unit_test_setup(any_table, setup),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
