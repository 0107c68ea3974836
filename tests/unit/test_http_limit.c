/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests how the library adapts its limit of HTTP requests in flight to the server. The servers are
 * simulated: the bytes per second are a function of the number of requests, and the time is a
 * variable.
 */
#include "test.h"

#include "io/http_limit.h"

#define MS 1000000u
#define BYTES (4u << 20)

/* A simulated server. It reaches its full speed with `knee` requests in flight. Each further
 * request lowers the speed by loss_percent. */
struct sim {
	struct pst_http_limit limit;
	uint64_t now_ns;
	unsigned knee, loss_percent;
};

/* Simulates `seconds` seconds, in which requests end one by one. Reports the end of each request to
 * the limit. */
static void sim_run(struct sim *sim, unsigned seconds, bool saturated)
{
	uint64_t end = sim->now_ns + seconds * 1000ull * MS;

	while (sim->now_ns < end) {
		unsigned n = sim->limit.now < sim->knee ? sim->limit.now : sim->knee;
		double speed = 100e6 * n; /* speed of `n` requests, at 100 MB/s for each */

		for (unsigned i = sim->knee; i < sim->limit.now; i++)
			speed *= 1 - sim->loss_percent / 100.0;
		sim->now_ns += (uint64_t)(BYTES * 1e9 / speed);
		if (saturated)
			pst_http_limit_wait(&sim->limit);
		pst_http_limit_end(&sim->limit, BYTES, sim->now_ns);
	}
}

static struct sim sim_new(unsigned knee, unsigned loss_percent)
{
	struct sim sim = {.now_ns = 1, .knee = knee, .loss_percent = loss_percent};

	pst_http_limit_init(&sim.limit);
	return sim;
}

static void climbs_as_far_as_it_helps(void **state)
{
	(void)state;
	for (unsigned knee = 4; knee <= 200; knee *= 2) {
		struct sim sim = sim_new(knee, 2);
		unsigned sum = 0;

		sim_run(&sim, 30, true);
		for (unsigned i = 0; i < 20; i++, sum += sim.limit.now)
			sim_run(&sim, 1, true);
		printf("# knee %u: limit %u on average\n", knee, sum / 20);
		assert_in_range(sum / 20, knee / 2, knee * 2);
	}
}

static void stays_within_its_bounds(void **state)
{
	struct sim fast = sim_new(100000, 0), bad = sim_new(1, 30);

	(void)state;
	sim_run(&fast, 60, true);
	assert_in_range(fast.limit.now, PST_HTTP_INFLIGHT_MAX / 2, PST_HTTP_INFLIGHT_MAX);
	for (unsigned i = 0; i < 60; i++) {
		sim_run(&bad, 1, true);
		assert_in_range(bad.limit.now, PST_HTTP_INFLIGHT_MIN, PST_HTTP_INFLIGHT_FIRST * 2);
	}
}

static void does_not_climb_without_demand(void **state)
{
	struct sim sim = sim_new(64, 0);

	(void)state;
	sim_run(&sim, 10, false);
	assert_int_equal(sim.limit.now, PST_HTTP_INFLIGHT_FIRST);
}

static void halves_when_asked_to(void **state)
{
	struct sim sim = sim_new(64, 0);
	unsigned before;

	(void)state;
	sim_run(&sim, 30, true);
	before = sim.limit.now;
	assert_in_range(before, 17, PST_HTTP_INFLIGHT_MAX);
	/* All requests in flight get the answer "slow down", but the limit is halved only once. */
	for (unsigned i = 0; i < before; i++)
		pst_http_limit_slow_down(&sim.limit, sim.now_ns + i);
	assert_int_equal(sim.limit.now, before / 2);
	sim_run(&sim, 1, true);
	assert_int_equal(sim.limit.now, before / 2);
	for (unsigned i = 0; i < 20; i++)
		pst_http_limit_slow_down(&sim.limit, sim.now_ns += 2000u * MS);
	assert_int_equal(sim.limit.now, PST_HTTP_INFLIGHT_MIN);
	sim_run(&sim, 60, true);
	assert_in_range(sim.limit.now, 17, PST_HTTP_INFLIGHT_MAX);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(climbs_as_far_as_it_helps),
		cmocka_unit_test(stays_within_its_bounds),
		cmocka_unit_test(does_not_climb_without_demand),
		cmocka_unit_test(halves_when_asked_to),
	};

	cmocka_set_message_output(CM_OUTPUT_TAP);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
