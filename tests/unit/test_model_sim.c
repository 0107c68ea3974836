/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares the simulator of the model `contention` with a formula (the closed form), with its own
 * exact mode, and with known results. For example, two streams share a link equally, weights divide
 * a link, and no byte is lost.
 */
#include "test.h"

#include <math.h>

#include "contention.h"
#include "model.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static const struct pst_model *model;
static struct pst_model_space *space;
static double in[PST_MODEL_PARAMS], out[PST_MODEL_RESULTS];

static int space_make(void **state)
{
	(void)state;
	model = pst_model_find("contention");
	space = calloc(1, pst_model_space_bytes());
	return space ? 0 : -1;
}

static int space_free(void **state)
{
	(void)state;
	free(space);
	return 0;
}

static double result(const char *name)
{
	return out[pst_model_result_index(model, name)];
}

static void simulate(const struct pst_model_setting *set)
{
	const char *wrong;

	pst_model_defaults(model, in);
	assert_true(pst_model_apply(model, set, in));
	wrong = model->run(in, out, space);
	if (wrong)
		fail_msg("%s", wrong);
}

static void assert_near(const char *what, double value, double wanted, double share)
{
	if (!(fabs(value - wanted) <= share * fabs(wanted)))
		fail_msg("%s: %.9g, not %.9g within %g", what, value, wanted, share);
}

/* Trees of links, each with its bottleneck at another place. */
static const struct pst_model_setting trees[][PST_MODEL_SETTINGS] = {
	{{"streams", 8}},
	{{"streams", 1}},
	{{"streams", 5}, {"placement", 1}},
	{{"streams", 8}, {"traffic", 1}},
	{{"streams", 8}, {"traffic", 1}, {"crossbar-gbps", 27.5625}},
	{{"streams", 3}, {"traffic", 3}, {"direction", 1}},
	{{"streams", 16}, {"traffic", 2}, {"nics", 2}},
	{{"streams", 8}, {"depth", 2}, {"hop-ns", 900}},
	{{"streams", 8}, {"memory-gbps", 60}, {"direction", 1}},
	{{"streams", 6}, {"crossbar-gbps", 60}, {"switch-ns", 400}},
	{{"streams", 8}, {"arbitration", 2}, {"high-streams", 2}},
	{{"streams", 8}, {"arbitration", 1}, {"high-streams", 3}},
	{{"streams", 2}, {"arbitration", 3}, {"high-streams", 1}, {"gpus", 1}, {"switches", 1}},
	{{"streams", 64}, {"chunk", 4096}},
	/* Few chunks in flight, and fast links between two slow ones. */
	{{"streams", 1},
	 {"traffic", 3},
	 {"direction", 1},
	 {"crossbar-gbps", 46},
	 {"uplink-gbps", 977},
	 {"gpu-gbps", 1478},
	 {"drive-gbps", 260},
	 {"hop-ns", 880},
	 {"depth", 4}},
};

static void as_the_closed_form(void **state)
{
	(void)state;
	for (unsigned i = 0; i < COUNT(trees); i++) {
		simulate(trees[i]);
		for (unsigned k = 0; k < space->net.stream_count; k++) {
			double simulated = space->result.stream_bytes_per_s[k];

			if (fabs(simulated - space->closed[k]) > 0.01 * space->closed[k])
				fail_msg("tree %u, stream %u: simulated %.6g, closed %.6g", i, k,
					 simulated, space->closed[k]);
		}
	}
}

/* In the exact mode, the simulator moves each TLP (a packet of PCIe) as a unit. In its usual mode
 * it moves whole chunks. Both modes must give the same rates. */
static void as_the_exact_mode(void **state)
{
	(void)state;
	/* every second tree only, because the exact mode is slow */
	for (unsigned i = 0; i < COUNT(trees); i += 2) {
		struct pst_model_setting set[PST_MODEL_SETTINGS];
		unsigned n = 0;
		double chunks;

		memcpy(set, trees[i], sizeof(set));
		while (set[n].name)
			n++;
		set[n] = (struct pst_model_setting){"duration-ms", 1};
		simulate(set);
		chunks = result("total-gbps");
		set[n + 1] = (struct pst_model_setting){"exact", 1};
		simulate(set);
		assert_near("exact mode", result("total-gbps"), chunks, 0.01);
	}
}

/*
 * In this setting, the two modes give different rates: each stream has one chunk in flight, and
 * the links are almost full. In the usual mode, a link moves one whole chunk after the other. In
 * the exact mode, the TLPs of several chunks alternate on the link, so that all of these chunks
 * end late.
 */
static void one_chunk_in_flight(void **state)
{
	static const struct pst_model_setting lone[PST_MODEL_SETTINGS] = {
		{"depth", 1}, {"hop-ns", 900}, {"duration-ms", 1}, {"exact", 0}};
	struct pst_model_setting set[PST_MODEL_SETTINGS];
	double chunks;

	(void)state;
	memcpy(set, lone, sizeof(set));
	simulate(set);
	chunks = result("total-gbps");
	assert_near("closed form", chunks, result("closed-total-gbps"), 0.05);
	set[3].value = 1;
	simulate(set);
	assert_true(result("total-gbps") < chunks);
	assert_near("exact mode", result("total-gbps"), chunks, 0.3);
}

static void two_streams_halve_a_link(void **state)
{
	static const struct pst_model_setting one[PST_MODEL_SETTINGS] = {
		{"gpus", 1}, {"switches", 1}, {"streams", 1}};
	static const struct pst_model_setting two[PST_MODEL_SETTINGS] = {
		{"gpus", 1}, {"switches", 1}, {"streams", 2}};
	double alone;

	(void)state;
	simulate(one);
	alone = result("total-gbps");
	assert_near("63 GB/s with 24 bytes for each 256", alone, 63 * 256 / 280.0, 0.01);
	simulate(two);
	assert_near("slowest", result("slowest-stream-gbps"), alone / 2, 0.01);
	assert_near("fastest", result("fastest-stream-gbps"), alone / 2, 0.01);
	assert_near("fairness", result("fairness"), 1, 0.001);
	assert_near("use", result("busiest-use"), 1, 0.01);
}

static void arbiters_divide(void **state)
{
	struct pst_model_setting set[PST_MODEL_SETTINGS] = {{"gpus", 1},	{"switches", 1},
							    {"streams", 3},	{"high-streams", 1},
							    {"high-weight", 4}, {"arbitration", 0}};
	static const double shares[][2] = {
		{1 / 3.0, 1 / 3.0}, {4 / 6.0, 1 / 6.0}, {4 / 6.0, 1 / 6.0}, {1, 0}};

	(void)state;
	for (unsigned i = 0; i < 4; i++) {
		double total;

		set[5].value = i;
		simulate(set);
		total = result("total-gbps");
		assert_near("high stream", space->result.stream_bytes_per_s[0] * 1e-9,
			    shares[i][0] * total, 0.02);
		if (shares[i][1] > 0)
			assert_near("low stream", space->result.stream_bytes_per_s[2] * 1e-9,
				    shares[i][1] * total, 0.02);
		/* Strict priority stops this stream, but its units in flight at the start may
		 * still pass. */
		else
			assert_true(space->result.stream_bytes_per_s[2] * 1e-9 < 0.01 * total);
	}
}

static void no_byte_is_lost(void **state)
{
	(void)state;
	for (unsigned i = 0; i < COUNT(trees); i++) {
		simulate(trees[i]);
		if (space->result.bytes_in != space->result.bytes_out + space->result.bytes_inside)
			fail_msg("tree %u: in %llu, out %llu, inside %llu", i,
				 (unsigned long long)space->result.bytes_in,
				 (unsigned long long)space->result.bytes_out,
				 (unsigned long long)space->result.bytes_inside);
		for (unsigned l = 0; l < space->net.link_count; l++)
			assert_true(space->result.link_use[l] <= 1 + 1e-9);
	}
}

static void a_seed_repeats(void **state)
{
	struct pst_model_setting set[PST_MODEL_SETTINGS] = {
		{"traffic", 1}, {"jitter", 0.3}, {"seed", 7}, {"drive-gbps", 40}};
	double first[PST_MODEL_RESULTS];
	struct pst_sim_result kept;

	(void)state;
	simulate(set);
	memcpy(first, out, sizeof(first));
	kept = space->result;
	/* Another run in between must leave no trace in the simulator's memory. */
	simulate(trees[9]);
	simulate(set);
	assert_memory_equal(first, out, model->result_count * sizeof(out[0]));
	assert_memory_equal(&kept.latency, &space->result.latency, sizeof(kept.latency));
	set[2].value = 8;
	simulate(set);
	assert_memory_not_equal(&kept.latency, &space->result.latency, sizeof(kept.latency));
}

static void percentiles(void **state)
{
	static struct pst_sim_result r;
	static const struct pst_model_setting slow[PST_MODEL_SETTINGS] = {
		{"streams", 1}, {"depth", 1}, {"jitter", 0}};

	(void)state;
	assert_true(isnan(pst_sim_percentile(&r, 0.5)));
	simulate(slow);
	/* With one chunk in flight, a chunk's latency is its length divided by the throughput. */
	assert_near("p50", result("p50-us"), 65536e-3 / result("total-gbps"), 0.05);
	assert_near("p99.9", result("p999-us"), result("p50-us"), 0.05);
}

/* A stream waits only for the links of its own path. So a slow link must not hold up streams that
 * share other links with the slow stream. */
static void a_slow_link_blocks_no_other(void **state)
{
	static const struct pst_model_setting slow[PST_MODEL_SETTINGS] = {
		{"streams", 4}, {"gpus", 4},   {"switches", 1},
		{"traffic", 1}, {"drives", 4}, {"drive-gbps", 14.2}};

	(void)state;
	simulate(slow);
	assert_near("4 * 14.2", result("total-gbps"), 56.8, 0.01);
}

static void best_number_of_streams(void **state)
{
	static const struct pst_model_setting cross[PST_MODEL_SETTINGS] = {
		{"gpus", 8},	{"switches", 1}, {"crossbar-gbps", 63},
		{"traffic", 1}, {"drives", 8},	 {"duration-ms", 0}};

	(void)state;
	simulate(cross);
	assert_near("best", result("best-streams"), 5, 0); /* 57.6 / 14.2 = 4.06 */
	assert_near("total", result("best-total-gbps"), 57.6, 0.001);
	assert_true(isnan(result("events")));
	assert_near("closed", result("total-gbps"), result("closed-total-gbps"), 1e-12);
}

static void names_of_links(void **state)
{
	struct pst_sim_link l = {.kind = PST_SIM_UPLINK, .number = 12, .reverse = true};
	char buf[24];

	(void)state;
	assert_string_equal(pst_contention_link_name(&l, buf, sizeof(buf)), "uplink 12 up");
	l = (struct pst_sim_link){.kind = PST_SIM_GPU};
	assert_string_equal(pst_contention_link_name(&l, buf, sizeof(buf)), "gpu 0");
	assert_string_equal(pst_contention_link_name(&l, buf, 5), "");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(as_the_closed_form),
		cmocka_unit_test(as_the_exact_mode),
		cmocka_unit_test(one_chunk_in_flight),
		cmocka_unit_test(two_streams_halve_a_link),
		cmocka_unit_test(arbiters_divide),
		cmocka_unit_test(no_byte_is_lost),
		cmocka_unit_test(a_seed_repeats),
		cmocka_unit_test(percentiles),
		cmocka_unit_test(a_slow_link_blocks_no_other),
		cmocka_unit_test(best_number_of_streams),
		cmocka_unit_test(names_of_links),
	};

	return cmocka_run_group_tests(tests, space_make, space_free);
}
