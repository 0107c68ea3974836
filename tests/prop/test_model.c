/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs the planner's models with random parameters. With more bandwidth, no result may get worse.
 * With more streams, no stream may get more bandwidth. No result may be infinite or negative. The
 * simulator must agree with the closed form (a formula) within 1 %, for each arbiter that has one,
 * and lose no byte. A failure prints the parameters.
 */
#include "test.h"

#include <math.h>

#include "contention.h"
#include "model.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))
#define ROUNDS 3000
#define SIMULATIONS 150

static struct pst_model_space *space;
static uint64_t seed;

static int space_make(void **state)
{
	(void)state;
	seed = test_seed(17);
	space = calloc(1, pst_model_space_bytes());
	return space ? 0 : -1;
}

static int space_free(void **state)
{
	(void)state;
	free(space);
	return 0;
}

static double random_share(void)
{
	return (double)(test_random(&seed) >> 11) * 0x1p-53;
}

/* Returns a random value for a parameter: the default times a factor from 1/30 to 30, or one of
 * the parameter's choices. */
static double random_value(const struct pst_model_param *p)
{
	double value;

	if (p->choices)
		return (double)(test_random(&seed) % pst_model_choice_count(p->choices));
	if (p->value > 0)
		value = p->value * pow(30, 2 * random_share() - 1);
	else
		value = random_share() * fmin(p->max, 10);
	value = fmin(p->max, fmax(p->min, value));
	return pst_model_is_whole(p->unit) ? fmax(p->min, floor(value)) : value;
}

static void randomize(const struct pst_model *m, double *in)
{
	for (unsigned i = 0; i < m->param_count; i++)
		in[i] = random_value(&m->params[i]);
}

static void set(const struct pst_model *m, double *in, const char *name, double value)
{
	int at = pst_model_param_index(m, name);

	assert_true(at >= 0);
	in[at] = value;
}

static void settings_print(const struct pst_model *m, const double *in)
{
	printf("# %s", m->name);
	for (unsigned i = 0; i < m->param_count; i++)
		printf(" %s=%.17g", m->params[i].name, in[i]);
	printf("\n");
}

/* Rules for results of which the direction is known: if `param` grows, `result` must not fall
 * (sign 1), or must not rise (sign -1). */
static const struct {
	const char *model, *param, *result;
	int sign;
} rules[] = {
	{"registration", "link-gbit", "transfer-us", -1},
	{"registration", "link-gbit", "time-each-us", -1},
	{"registration", "cpu-page-us", "efficiency-each", -1},
	{"registration", "ios", "efficiency-kept-gpu", 1},
	{"registration", "mtt-entries", "mtt-us", -1},
	{"fence", "drive-gbps", "speed-gbps", 1},
	{"fence", "chunk", "fence-ms", -1},
	{"fence", "batch", "batched-ms", -1},
	{"fence", "fence-us", "speed-gbps", -1},
	{"pipeline", "drive-gbps", "speed-gbps", 1},
	{"pipeline", "drives", "speed-gbps", 1},
	{"pipeline", "network-gbps", "speed-gbps", 1},
	{"pipeline", "copy-gbps", "speed-gbps", 1},
	{"pipeline", "copy-threads", "speed-gbps", 1},
	{"pipeline", "home-us", "speed-gbps", -1},
	{"pipeline", "wake-us", "speed-gbps", -1},
	{"pipeline", "register-gbps", "mapped-gbps", 1},
	{"pipeline", "dram-gbps", "speed-gbps", 1},
	{"pipeline", "pcie-gbps", "speed-gbps", 1},
	{"pipeline", "hbm-gbps", "speed-gbps", 1},
	{"pipeline", "depth", "speed-gbps", 1},
	{"pipeline", "size", "speed-gbps", 1},
	{"pipeline", "drive-us", "speed-gbps", -1},
	{"pipeline", "pcie-gbps", "latency-us", -1},
	{"pipeline", "copy-gbps", "cpu-s-per-gb", -1},
	{"checkpoint", "drive-gbps", "window-s", -1},
	{"checkpoint", "gpu-gbps", "window-s", -1},
	{"checkpoint", "fabric-gbps", "window-s", -1},
	{"checkpoint", "storage-gbps", "window-s", -1},
	{"checkpoint", "efficiency", "window-s", -1},
	{"checkpoint", "drive-gbps", "stall-s", -1},
	{"checkpoint", "snapshot-gbps", "stall-s", -1},
	{"checkpoint", "drive-read-gbps", "recovery-s", -1},
	{"checkpoint", "node-mtbf-h", "waste", -1},
	{"sizing", "drive-gbps", "drives", -1},
	{"sizing", "window-s", "drives", -1},
	{"sizing", "dwpd", "drives", -1},
	{"sizing", "drive-tb", "drives", -1},
	{"sizing", "bytes", "nodes", 1},
	{"sizing", "port-gbit", "nodes", -1},
	{"sizing", "oversubscription", "nodes", 1},
	{"cost", "wait-s", "wasted-day", 1},
	{"cost", "direct-wait-s", "saved-day", -1},
	{"kvcache", "drive-gbps", "drive-ms", -1},
	{"kvcache", "tokens", "prompt-gb", 1},
	{"kvcache", "prefill-tokens-s", "speedup", -1},
	{"weights", "store-gbps", "herd-s", -1},
	{"weights", "store-gbps", "once-s", -1},
	{"weights", "peer-gbps", "once-s", -1},
	{"weights", "hosts", "herd-s", 1},
	{"training", "storage-gbps", "reached", 1},
	{"training", "accelerators", "reached", -1},
	{"training", "node-gbps", "fed", 1},
};

static void more_is_never_worse(void **state)
{
	double in[PST_MODEL_PARAMS], out[PST_MODEL_RESULTS], before;
	unsigned tried = 0;

	(void)state;
	for (unsigned i = 0; i < ROUNDS; i++) {
		unsigned k = i % COUNT(rules);
		const struct pst_model *m = pst_model_find(rules[k].model);
		int param = pst_model_param_index(m, rules[k].param);
		int result = pst_model_result_index(m, rules[k].result);
		double more;

		assert_true(param >= 0 && result >= 0);
		randomize(m, in);
		/* A longer request, or one that more threads copy, causes more wake-ups of
		 * threads, so it can be slower. Wake-ups that take no time exclude this effect. */
		if (!strcmp(m->name, "pipeline") && (!strcmp(rules[k].param, "size") ||
						     !strcmp(rules[k].param, "copy-threads")))
			set(m, in, "wake-us", 0);
		if (m->run(in, out, space))
			continue; /* the random parameters contradict each other */
		before = out[result];
		more = in[param] * (1 + 3 * random_share());
		more = pst_model_is_whole(m->params[param].unit) ? ceil(more) : more;
		in[param] = fmin(m->params[param].max, more);
		if (m->run(in, out, space))
			continue;
		tried++;
		/* Rounding may change the last digit. */
		if (rules[k].sign * (out[result] - before) < -1e-12 * fabs(before)) {
			settings_print(m, in);
			fail_msg("more %s: %s from %.17g to %.17g", rules[k].param, rules[k].result,
				 before, out[result]);
		}
	}
	assert_true(tried > ROUNDS / 2);
}

static void results_are_sane(void **state)
{
	double in[PST_MODEL_PARAMS], out[PST_MODEL_RESULTS];
	const struct pst_model *m;

	(void)state;
	for (unsigned i = 0; i < ROUNDS; i++) {
		m = pst_model_at(i % 10);
		randomize(m, in);
		if (!strcmp(m->name, "contention"))
			set(m, in, "duration-ms", 0);
		if (m->run(in, out, space))
			continue;
		for (unsigned k = 0; k < m->result_count; k++) {
			const char *name = m->results[k].name;
			/* These results are differences of two values, so they may be negative. */
			bool any_sign = !strncmp(name, "saved", 5) || !strcmp(name, "difference");

			if (isinf(out[k]) || (out[k] < 0 && !any_sign) ||
			    (!strcmp(m->results[k].unit, "count") && out[k] < 1e15 &&
			     fabs(out[k] - round(out[k])) > 1e-6 * out[k] &&
			     strcmp(name, "mtt-evictions") != 0)) {
				settings_print(m, in);
				fail_msg("%s is %.17g", name, out[k]);
			}
		}
	}
}

static double result_with(const struct pst_model *m, const struct pst_model_setting *set,
			  const char *result)
{
	double in[PST_MODEL_PARAMS], out[PST_MODEL_RESULTS];
	const char *wrong;

	pst_model_defaults(m, in);
	assert_true(pst_model_apply(m, set, in));
	wrong = m->run(in, out, space);
	if (wrong)
		fail_msg("%s: %s", m->name, wrong);
	return out[pst_model_result_index(m, result)];
}

/* Parameters at the ends of their ranges, for which a result has a known limit. */
static const struct {
	const char *model;
	struct pst_model_setting set[PST_MODEL_SETTINGS];
	const char *result;
	double wanted, tolerance;
} extremes[] = {
	/* registration: with many transfers for one registration the efficiency approaches 1. With
	 * transfers of one byte it approaches 0. Random accesses to a large set miss the MTT
	 * cache. */
	{"registration", {{"ios", 1e12}}, "efficiency-kept-gpu", 1, 1e-9},
	{"registration", {{"ios", 1e12}}, "efficiency-kept-cpu", 1, 1e-9},
	{"registration", {{"ios", 1e12}, {"size", 1}}, "efficiency-each", 0, 1e-5},
	{"registration", {{"ios", 1}, {"size", 1}}, "efficiency-kept-gpu", 0, 1e-5},
	{"registration", {{"mtt-set", 1e9}, {"access", 1}}, "mtt-hit-rate", 0, 1e-7},
	/* fence: if fences take no time, or if one fence is enough for all bytes, the speed is the
	 * full 7 GB/s. If each chunk needs a long fence, the speed approaches 0. */
	{"fence", {{"fence-us", 0}}, "speed-gbps", 7, 1e-12},
	{"fence", {{"batch", 1e9}}, "batched-fences", 1, 0},
	{"fence", {{"batch", 1e9}}, "batched-speed-gbps", 7, 1e-5},
	{"fence", {{"chunk", 512}, {"fence-us", 1e6}}, "speed-gbps", 0, 1e-6},
	/* pipeline: with one byte at a time the speed approaches 0. With an endless request or many
	 * requests in flight, the speed is that of the slowest hop, 14 GB/s. */
	{"pipeline", {{"depth", 1}, {"size", 1}}, "speed-gbps", 0, 1e-4},
	{"pipeline", {{"depth", 1}, {"size", 1e15}}, "speed-gbps", 14, 1e-5},
	{"pipeline", {{"depth", 1e6}, {"size", 65536}}, "speed-gbps", 14, 1e-9},
	{"pipeline",
	 {{"path", 1}, {"order", 1}, {"size", 1e15}},
	 "gain-limit",
	 14 * (1 / 14.0 + 2 / 200.0 + 1 / 55.4 + 1 / 4800.0),
	 1e-5},
	/* contention, with 8 streams: they share one slow link equally, or each stream is so slow
	 * that no link limits it. */
	{"contention", {{"memory-gbps", 0.8}, {"duration-ms", 0}}, "stream-gbps", 0.1, 1e-9},
	{"contention", {{"stream-gbps", 0.001}, {"duration-ms", 0}}, "total-gbps", 0.008, 1e-9},
	{"contention", {{"stream-gbps", 0.001}, {"duration-ms", 0}}, "kept-share", 1, 1e-9},
	/* checkpoint: without failures no time is wasted. With too frequent checkpoints or
	 * failures, nearly all time is wasted. */
	{"checkpoint", {{"node-mtbf-h", 1e12}, {"interval-min", 1e6}}, "waste", 0, 1e-5},
	{"checkpoint", {{"node-mtbf-h", 1e12}}, "best-waste", 0, 1e-6},
	{"checkpoint", {{"interval-min", 0.001}}, "lost-share", 1, 0.02},
	{"checkpoint", {{"node-mtbf-h", 0.001}}, "waste", 1, 0},
	/* sizing and cost: if the time window is endless, one drive is fast enough. Without daily
	 * writes no drive wears out, and without waits no money is wasted. */
	{"sizing", {{"window-s", 1e9}, {"daily", 0}}, "drives-for-speed", 1, 0},
	{"sizing", {{"daily", 0}}, "drives-for-endurance", 0, 0},
	{"cost", {{"wait-s", 0}}, "wasted-year", 0, 0},
	{"kvcache", {{"tokens", 1}, {"lookup-ms", 0}, {"fixed-ms", 0}}, "hit-rate-pays", 0, 0},
	{"kvcache", {{"prefill-tokens-s", 1e12}}, "hit-rate-pays", NAN, 0},
	{"weights",
	 {{"hosts", 1e6},
	  {"spread-gbps", 1e6},
	  {"store-gbps", 1e9},
	  {"host-gbps", 1e6},
	  {"peer-gbps", 1e6},
	  {"gpu-gbps", 1e6}},
	 "once-s",
	 0,
	 1e-3},
	{"training", {{"storage-gbps", 1e9}, {"node-gbps", 1e6}}, "reached", 1, 0},
	{"training", {{"storage-gbps", 0.001}}, "reached", 0, 1e-4},
};

static void limits(void **state)
{
	(void)state;
	for (unsigned i = 0; i < COUNT(extremes); i++) {
		double value = result_with(pst_model_find(extremes[i].model), extremes[i].set,
					   extremes[i].result);
		bool both_nan = isnan(value) && isnan(extremes[i].wanted);

		if (!both_nan && !(fabs(value - extremes[i].wanted) <= extremes[i].tolerance))
			fail_msg("row %u: %s of %s is %.9g, not %.9g", i, extremes[i].result,
				 extremes[i].model, value, extremes[i].wanted);
	}
}

/* The rarer the failures, the closer are the checkpoint intervals of Young's and of Daly's
 * formula. */
static void young_and_daly_agree(void **state)
{
	const struct pst_model *m = pst_model_find("checkpoint");
	double before = INFINITY;

	(void)state;
	for (double hours = 10; hours < 1e9; hours *= 10) {
		const struct pst_model_setting set[] = {{"node-mtbf-h", hours}, {NULL, 0}};
		double apart = fabs(
			result_with(m, set, "daly-min") / result_with(m, set, "young-min") - 1);

		if (!(apart < before))
			fail_msg("%g h: %g apart, before %g", hours, apart, before);
		before = apart;
	}
	assert_true(before < 1e-5);
}

/* Sets random parameters of a tree of links. Each stream has at least four chunks in flight, as a
 * real DMA engine has, so that the streams can use the links fully. */
static void randomize_tree(const struct pst_model *m, double *in)
{
	do {
		randomize(m, in);
		set(m, in, "arbitration", 0);
		set(m, in, "depth", (double)(4 + test_random(&seed) % 12));
		set(m, in, "chunk", 65536);
		set(m, in, "payload", 256);
		set(m, in, "jitter", 0.05 * random_share());
		set(m, in, "streams", (double)(1 + test_random(&seed) % 16));
		set(m, in, "exact", 0);
		set(m, in, "duration-ms", 0);
	} while (m->run(in, space->closed, space));
}

/* Sets a random arbiter. Strict priority is left out, because it has no closed form: it may stop a
 * stream. A stream with a weight above 1 sends several chunks in turn, so it gets more chunks in
 * flight. The switch time is then 0: the closed form counts it for each chunk of a shared link, but
 * successive chunks of one stream need no switch. */
static void randomize_arbiter(const struct pst_model *m, double *in)
{
	unsigned weight = (unsigned)(1 + test_random(&seed) % 4);

	set(m, in, "arbitration", (double)(test_random(&seed) % 3));
	set(m, in, "high-streams", (double)(test_random(&seed) % 5));
	set(m, in, "high-weight", weight);
	set(m, in, "depth", (double)(4 * weight + test_random(&seed) % 12));
	if (weight > 1)
		set(m, in, "switch-ns", 0);
}

static void run_tree(const struct pst_model *m, const double *in, double *out)
{
	const char *wrong = m->run(in, out, space);

	if (wrong) {
		settings_print(m, in);
		fail_msg("%s", wrong);
	}
}

static const char *const links[] = {"gpu-gbps",	  "uplink-gbps", "crossbar-gbps", "memory-gbps",
				    "drive-gbps", "nic-gbps",	 "stream-gbps"};

/* Checks the bandwidth of the slowest stream, computed by the closed form (a formula). It must
 * not rise with one more stream, and must not fall with more bandwidth of a link. */
static void shares_are_monotone(void **state)
{
	const struct pst_model *m = pst_model_find("contention");
	int least = pst_model_result_index(m, "closed-slowest-gbps");
	double in[PST_MODEL_PARAMS], out[PST_MODEL_RESULTS], before;

	(void)state;
	for (unsigned i = 0; i < ROUNDS / 4; i++) {
		int link = pst_model_param_index(m, links[i % COUNT(links)]);

		randomize_tree(m, in);
		run_tree(m, in, out);
		before = out[least];
		in[0]++;
		run_tree(m, in, out);
		if (out[least] > before * (1 + 1e-12)) {
			settings_print(m, in);
			fail_msg("with a stream more: %.17g after %.17g", out[least], before);
		}
		before = out[least];
		in[link] = fmin(m->params[link].max, in[link] * 1.5);
		run_tree(m, in, out);
		if (out[least] < before * (1 - 1e-12)) {
			settings_print(m, in);
			fail_msg("with more %s: %.17g after %.17g", m->params[link].name,
				 out[least], before);
		}
	}
}

/* Simulates as long as the slowest stream needs for a thousand chunks. At the call, `out` has the
 * results of the closed form (a formula). The results of the simulation replace them. */
static void simulate(const struct pst_model *m, double *in, double *out)
{
	int least = pst_model_result_index(m, "slowest-stream-gbps");

	set(m, in, "duration-ms", fmin(5000, 1000 * 65536e-6 / out[least]));
	run_tree(m, in, out);
	if (space->result.bytes_in != space->result.bytes_out + space->result.bytes_inside) {
		settings_print(m, in);
		fail_msg("bytes are lost");
	}
}

static void simulator_agrees(void **state)
{
	const struct pst_model *m = pst_model_find("contention");
	int total = pst_model_result_index(m, "total-gbps");
	int closed = pst_model_result_index(m, "closed-total-gbps");
	double in[PST_MODEL_PARAMS], out[PST_MODEL_RESULTS];

	(void)state;
	for (unsigned i = 0; i < SIMULATIONS; i++) {
		randomize_tree(m, in);
		if (i % 2)
			randomize_arbiter(m, in);
		run_tree(m, in, out);
		simulate(m, in, out);
		if (fabs(out[total] / out[closed] - 1) > 0.01) {
			settings_print(m, in);
			fail_msg("simulated %.9g, closed form %.9g", out[total], out[closed]);
		}
	}
}

/* In the simulator, the slowest stream must not get more bandwidth when a stream is added. It must
 * not get less when a link gets more bandwidth. The tolerance is 1 %. All streams have the same
 * weight: a stream with a larger weight may take what another stream had. */
static void simulator_is_monotone(void **state)
{
	const struct pst_model *m = pst_model_find("contention");
	int least = pst_model_result_index(m, "slowest-stream-gbps");
	double in[PST_MODEL_PARAMS], out[PST_MODEL_RESULTS], before;

	(void)state;
	for (unsigned i = 0; i < SIMULATIONS / 2; i++) {
		int link = pst_model_param_index(m, links[i % COUNT(links)]);

		randomize_tree(m, in);
		run_tree(m, in, out);
		simulate(m, in, out);
		before = out[least];
		in[0]++;
		run_tree(m, in, out);
		if (out[least] > before * 1.01) {
			settings_print(m, in);
			fail_msg("with a stream more: %.9g after %.9g", out[least], before);
		}
		before = out[least];
		in[link] = fmin(m->params[link].max, in[link] * 1.5);
		run_tree(m, in, out);
		if (out[least] < before * 0.99) {
			settings_print(m, in);
			fail_msg("with more %s: %.9g after %.9g", m->params[link].name, out[least],
				 before);
		}
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(more_is_never_worse),
		cmocka_unit_test(results_are_sane),
		cmocka_unit_test(limits),
		cmocka_unit_test(young_and_daly_agree),
		cmocka_unit_test(shares_are_monotone),
		cmocka_unit_test(simulator_agrees),
		cmocka_unit_test(simulator_is_monotone),
	};

	return cmocka_run_group_tests(tests, space_make, space_free);
}
