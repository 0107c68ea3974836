/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the planner's models (src/model): their tables, their results for settings whose results
 * are known, the verdicts on published figures, and the fit. test_model_sim tests the simulator.
 */
#include "test.h"

#include <math.h>

#include "cases.h"
#include "contention.h"
#include "fit.h"
#include "model.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static struct pst_model_space *space;

static int space_make(void **state)
{
	(void)state;
	space = calloc(1, pst_model_space_bytes());
	return space ? 0 : -1;
}

static int space_free(void **state)
{
	(void)state;
	free(space);
	return 0;
}

static void assert_text(const char *text, const char *what, const char *name)
{
	if (!text || !*text || text[strlen(text) - 1] == '.')
		fail_msg("%s of %s is missing or ends with a full stop", what, name);
}

static void assert_choices(const char *choices, double value, const char *name)
{
	if (choices && !(value < pst_model_choice_count(choices)))
		fail_msg("%s is choice %g of %s", name, value, choices);
}

static void tables_of(const struct pst_model *m)
{
	assert_in_range(m->param_count, 1, PST_MODEL_PARAMS);
	assert_in_range(m->result_count, 1, PST_MODEL_RESULTS);
	for (unsigned i = 0; i < m->param_count; i++) {
		const struct pst_model_param *p = &m->params[i];

		assert_text(p->name, "a name", m->name);
		assert_text(p->about, "the meaning", p->name);
		assert_text(p->source, "the source", p->name);
		assert_int_equal(pst_model_param_index(m, p->name), i);
		if (!pst_model_check(p, p->value))
			fail_msg("%s of %s has the default %g", p->name, m->name, p->value);
	}
	for (unsigned i = 0; i < m->result_count; i++) {
		const struct pst_model_result *r = &m->results[i];

		assert_text(r->name, "a name", m->name);
		assert_text(r->about, "the meaning", r->name);
		assert_text(r->formula, "the formula", r->name);
		assert_text(r->source, "the source", r->name);
		assert_int_equal(pst_model_result_index(m, r->name), i);
	}
}

static void tables(void **state)
{
	const struct pst_model *m;
	unsigned count = 0;

	(void)state;
	for (; (m = pst_model_at(count)) != NULL; count++) {
		assert_ptr_equal(pst_model_find(m->name), m);
		tables_of(m);
	}
	assert_int_equal(count, 10);
	assert_null(pst_model_find("nothing"));
}

/* Runs each model with its defaults and with each preset. */
static void presets(void **state)
{
	double in[PST_MODEL_PARAMS], out[PST_MODEL_RESULTS];
	const struct pst_model *m;

	(void)state;
	for (unsigned i = 0; (m = pst_model_at(i)) != NULL; i++) {
		for (unsigned k = 0; k <= m->preset_count; k++) {
			const char *name = k ? m->presets[k - 1].name : "defaults";
			const char *wrong;

			pst_model_defaults(m, in);
			if (k && !pst_model_apply(m, m->presets[k - 1].set, in))
				fail_msg("preset %s of %s names no parameter", name, m->name);
			for (unsigned p = 0; p < m->param_count; p++)
				if (!pst_model_check(&m->params[p], in[p]))
					fail_msg("preset %s of %s: %s %g", name, m->name,
						 m->params[p].name, in[p]);
			wrong = m->run(in, out, space);
			if (wrong)
				fail_msg("preset %s of %s: %s", name, m->name, wrong);
			for (unsigned r = 0; r < m->result_count; r++)
				assert_choices(m->results[r].choices, out[r], m->results[r].name);
		}
	}
}

struct wanted {
	const char *model;
	struct pst_model_setting set[6];
	const char *result;
	double low, high;
};

/* Results that the models must give. Most are figures of the publications that the models
 * describe. Comments show the calculation of the others. */
static const struct wanted wanted[] = {
	{"registration", {{"size", 1 << 30}}, "cpu-registration-us", 262154, 262154},
	{"registration",
	 {{"size", 1e9}, {"cpu-fixed-us", 0}},
	 "cpu-registration-us",
	 244141,
	 244141},
	{"registration", {{"size", 1 << 20}}, "efficiency-each", 0.239, 0.240},
	{"registration", {{"size", 1e6}}, "efficiency-each", 0.238, 0.239},
	{"registration", {{"size", 1e6}, {"ios", 4}}, "efficiency-kept-gpu", 0.8648, 0.8649},
	{"registration", {{"size", 1 << 20}}, "crossover-ios", 1, 1},
	{"registration", {{"size", 4096}}, "crossover-ios", 5, 5}, /* 50 / 11 */
	{"registration", {{"mtt-set", 128}, {"access", 1}}, "mtt-hit-rate", 0.5, 0.5},
	{"registration", {{"mtt-set", 65}}, "mtt-hit-rate", 0, 0},
	{"registration", {{"mtt-set", 64}}, "mtt-hit-rate", 1, 1},
	{"fence", {{"fence-us", 0.5}}, "fence-ms", 65.5, 65.6},
	{"fence", {{"fence-us", 1.5}}, "fence-ms", 196.6, 196.7},
	{"fence", {{"batch-us", 0.2}}, "batched-ms", 6.5, 6.6},
	{"fence", {{"batch-us", 0.5}}, "batched-ms", 16.3, 16.4},
	/* One request at a time: 64 KiB / (60 + 1 + 0.5 + 10 us and the times of the three hops on
	 * the path). */
	{"pipeline", {{"size", 65536}, {"depth", 1}}, "latency-us", 77.377, 77.378},
	{"pipeline", {{"size", 65536}, {"depth", 1}}, "speed-gbps", 0.84696, 0.84697},
	{"pipeline", {{"depth", 64}}, "speed-gbps", 14, 14},
	{"pipeline", {{"drives", 8}}, "slowest-hop", 4, 4},
	{"pipeline", {{"drives", 8}, {"path", 2}, {"size", 1048576}}, "slowest-hop", 2, 2},
	{"pipeline", {{"network", 1}, {"network-gbps", 2}}, "slowest-hop", 1, 1},
	{"pipeline", {{"path", 1}, {"dram-gbps", 20}}, "speed-gbps", 10, 10},
	{"pipeline", {{"path", 2}}, "dram-traffic", 4, 4},
	/* Path "bounce", one piece: 65,536 bytes in 6.3 us (home-us, the time in the first lane) +
	 * 65,536 / 10 GB/s. */
	{"pipeline", {{"path", 2}, {"drives", 8}, {"size", 65536}}, "speed-gbps", 5.09864, 5.09865},
	/* Two pieces: the first lane (a thread) takes 6.3 us, and 7.7 us more to wake a second
	 * lane. Each lane copies one piece in 26.2 us. */
	{"pipeline",
	 {{"path", 2}, {"drives", 8}, {"size", 1 << 19}},
	 "speed-gbps",
	 13.0373,
	 13.0374},
	/* Eight pieces, one for each of eight lanes: 6.3 us + log2(8) * 7.7 us to wake them +
	 * 26.2 us to copy. */
	{"pipeline",
	 {{"path", 2}, {"drives", 8}, {"size", 1 << 21}},
	 "speed-gbps",
	 37.7087,
	 37.7088},
	{"pipeline", {{"path", 3}, {"drives", 8}}, "slowest-hop", 6, 6},
	{"pipeline", {{"path", 3}, {"drives", 8}}, "speed-gbps", 32, 32},
	/* Half of the bytes at 32 GB/s, then half at 10 GB/s. */
	{"pipeline",
	 {{"path", 3}, {"drives", 8}, {"unregistered", 0.5}},
	 "speed-gbps",
	 15.2380,
	 15.2381},
	{"pipeline", {{"path", 3}, {"unregistered", 0.5}}, "dram-traffic", 2.5, 2.5},
	{"pipeline", {{"path", 3}, {"unregistered", 0.5}}, "cpu-copies", 0.5, 0.5},
	{"pipeline",
	 {{"size", 140e9},
	  {"drive-gbps", 7},
	  {"pcie-gbps", 25},
	  {"dram-gbps", 90},
	  {"hbm-gbps", 2039}},
	 "gain-limit",
	 1.43,
	 1.44},
	{"checkpoint", {{"params", 8.03}}, "state-gb", 112.4, 112.5},
	{"checkpoint",
	 {{"bytes", 50e12}, {"nodes", 128}, {"zero", 3}, {"target", 1}, {"storage-gbps", 250}},
	 "window-s",
	 200,
	 200},
	/* A checkpoint takes d = 60 s, and a node fails every M = 6 h. Young's interval is
	 * sqrt(2 * 60 * 21600) s = 26.83 min. */
	{"checkpoint",
	 {{"bytes", 60e9}, {"nodes", 1}, {"drives", 1}, {"drive-gbps", 1}, {"node-mtbf-h", 6}},
	 "young-min",
	 26.83,
	 26.84},
	/* Daly's interval for the same setting is
	 * 1609.97 * (1 + sqrt(60 / 43200) / 3 + 60 / 388800) - 60 s = 26.17 min. */
	{"checkpoint",
	 {{"bytes", 60e9}, {"nodes", 1}, {"drives", 1}, {"drive-gbps", 1}, {"node-mtbf-h", 6}},
	 "daly-min",
	 26.17,
	 26.18},
	{"checkpoint",
	 {{"bytes", 60e9}, {"nodes", 1}, {"drives", 1}, {"drive-gbps", 1}, {"node-mtbf-h", 6}},
	 "binding",
	 1,
	 1},
	{"checkpoint", {{"mode", 1}, {"zero", 3}, {"nodes", 1}}, "stall-s", 6.125, 6.125},
	{"sizing", {{"window-s", 45}}, "needed-gbps", 1111.1, 1111.2},
	{"sizing", {{"window-s", 300}, {"preemption-s", 45}}, "needed-gbps", 1111.1, 1111.2},
	/* 166.7 GB/s * 10/8 for parity / 7 GB/s a drive = 29.8 drives */
	{"sizing", {{"daily", 0}, {"kept", 1}}, "drives", 30, 30},
	{"sizing", {{"daily", 0}, {"kept", 1}, {"redundancy", 1}}, "drives", 72, 72},
	{"sizing", {{"daily", 0}}, "binding", 1, 1},
	{"sizing", {{"daily", 48}}, "binding", 2, 2},
	{"sizing", {{"window-s", 10}, {"gpus", 8}}, "feasible", 0, 0},
	{"sizing",
	 {{"drive-price", 2}, {"node-price", 100}, {"port-price", 10}},
	 "price",
	 2432,
	 2432}, /* 196 drives * 2 + 17 nodes * 100 + 34 ports * 10 */
	{"cost", {{"gpu-hour", 2}}, "wasted-day", 102.4, 102.4},
	{"cost", {{"gpu-hour", 2}}, "break-even-days", 32.55, 32.56},
	{"kvcache", {{"layers", 32}}, "token-bytes", 131072, 131072},
	{"kvcache", {{"layers", 61}, {"latent-dim", 576}}, "token-bytes", 70272, 70272},
	{"kvcache", {{"lookup-ms", 1000}}, "hit-rate-pays", 0.1728, 0.1729},
	{"weights", {{"bytes", 16e9}, {"hosts", 64}, {"placement", 1}}, "herd-s", 163.8, 163.9},
	{"weights", {{"bytes", 16e9}, {"hosts", 64}, {"placement", 1}}, "once-s", 0.32, 0.32},
	{"training", {{"accelerators", 8}}, "needed-gbps", 48.36, 48.37},
	{"training", {{"accelerators", 9}, {"storage-gbps", 48.968}}, "reached", 0.8999, 0.9},
	{"training", {{"accelerators", 9}, {"storage-gbps", 48.968}}, "fed", 8, 8},
};

static void figures(void **state)
{
	double in[PST_MODEL_PARAMS], out[PST_MODEL_RESULTS];

	(void)state;
	for (unsigned i = 0; i < COUNT(wanted); i++) {
		const struct wanted *w = &wanted[i];
		const struct pst_model *m = pst_model_find(w->model);
		struct pst_model_setting set[PST_MODEL_SETTINGS] = {{0}};
		int at;

		memcpy(set, w->set, sizeof(w->set));
		assert_non_null(m);
		pst_model_defaults(m, in);
		assert_true(pst_model_apply(m, set, in));
		assert_null(m->run(in, out, space));
		at = pst_model_result_index(m, w->result);
		assert_true(at >= 0);
		if (!(out[at] >= w->low * (1 - 1e-9) && out[at] <= w->high * (1 + 1e-9)))
			fail_msg("figure %u: %s of %s is %.9g, not %g to %g", i, w->result,
				 w->model, out[at], w->low, w->high);
	}
}

/* Bytes of a token for each preset of the model `kvcache`, computed by hand: layers x 2 (key and
 * value) x heads x 128 elements x 2 bytes; DeepSeek: layers x (512 + 64) elements x 2 bytes. */
static const struct {
	const char *preset;
	double bytes;
} token_bytes[] = {
	{"llama-3.1-8b", 131072},   /* 32 layers x 2 x 8 heads x 128 x 2 bytes */
	{"llama-3.1-70b", 327680},  /* 80 layers x 2 x 8 heads x 128 x 2 bytes */
	{"llama-3.1-405b", 516096}, /* 126 layers x 2 x 8 heads x 128 x 2 bytes */
	{"qwen2.5-72b", 327680},    /* 80 layers x 2 x 8 heads x 128 x 2 bytes */
	{"qwen3-32b", 262144},	    /* 64 layers x 2 x 8 heads x 128 x 2 bytes */
	{"mistral-7b", 131072},	    /* 32 layers x 2 x 8 heads x 128 x 2 bytes */
	{"deepseek-v3", 70272},	    /* 61 x 576 x 2 */
};

static void kv_presets(void **state)
{
	const struct pst_model *m = pst_model_find("kvcache");
	int at = pst_model_result_index(m, "token-bytes");
	double in[PST_MODEL_PARAMS], out[PST_MODEL_RESULTS];

	(void)state;
	assert_int_equal(m->preset_count, COUNT(token_bytes));
	for (unsigned i = 0; i < COUNT(token_bytes); i++) {
		const struct pst_model_preset *p = &m->presets[i];

		assert_string_equal(p->name, token_bytes[i].preset);
		pst_model_defaults(m, in);
		assert_true(pst_model_apply(m, p->set, in));
		assert_null(m->run(in, out, space));
		if (fabs(out[at] - token_bytes[i].bytes) > 1e-6)
			fail_msg("%s: %.17g bytes, not %.17g", p->name, out[at],
				 token_bytes[i].bytes);
		/* A source must name a file of a model's repository. */
		if (!strstr(p->source, "/") ||
		    (!strstr(p->source, "config.json") && !strstr(p->source, ".py")))
			fail_msg("%s: the source '%s' names no file", p->name, p->source);
	}
}

/* The published figures that the models must not confirm. They must confirm all others. */
static const char *const refuted[] = {
	"each-1mb",	  "crossover-third", "evictions-640",	"batched-low",
	"batched-high",	  "staged-292",	     "direct-gain",	"eight-plain",
	"45-seconds-250", "zero3-5s",	     "mlperf-1t-rules", "mlperf-1t-code",
};

static bool is_refuted(const char *name)
{
	for (unsigned i = 0; i < COUNT(refuted); i++)
		if (!strcmp(refuted[i], name))
			return true;
	return false;
}

static void published(void **state)
{
	const struct pst_model_case *c;
	unsigned count = 0, no = 0;

	(void)state;
	for (; (c = pst_model_case_at(count)) != NULL; count++) {
		double value;
		bool follows;
		const char *wrong = pst_model_case_run(c, &value, &follows, space);

		if (wrong)
			fail_msg("%s %s: %s", c->model, c->name, wrong);
		if (follows == is_refuted(c->name))
			fail_msg("%s %s: %s is %g, published %g to %g", c->model, c->name,
				 c->result, value, c->low, c->high);
		no += !follows;
		if (!follows && !c->note)
			fail_msg("%s %s does not follow, and no note says why", c->model, c->name);
	}
	assert_true(count > 30);
	assert_int_equal(no, COUNT(refuted));
}

static void values_out_of_range(void **state)
{
	static const struct {
		const char *model, *param;
		double value;
		bool ok;
	} rows[] = {
		{"registration", "size", 0, false},
		{"registration", "size", 1.5, false},
		{"registration", "size", -1, false},
		{"registration", "link-gbit", 0, false},
		{"registration", "link-gbit", NAN, false},
		{"registration", "link-gbit", INFINITY, false},
		{"registration", "link-gbit", 0.5, true},
		{"registration", "access", 1, true},
		{"registration", "access", 2, false},
		{"registration", "access", 0.5, false},
		{"registration", "access", -1, false},
		{"contention", "streams", 65, false},
	};

	(void)state;
	for (unsigned i = 0; i < COUNT(rows); i++) {
		const struct pst_model *m = pst_model_find(rows[i].model);
		int at = pst_model_param_index(m, rows[i].param);

		if (pst_model_check(&m->params[at], rows[i].value) != rows[i].ok)
			fail_msg("%s %g: should be %d", rows[i].param, rows[i].value, rows[i].ok);
	}
}

static void contradictions(void **state)
{
	static const struct {
		const char *model;
		struct pst_model_setting set[PST_MODEL_SETTINGS];
		const char *word;
	} rows[] = {
		{"checkpoint", {{"nodes", 1}, {"model-gpus", 16}}, "model-gpus"},
		{"checkpoint",
		 {{"weight-bytes", 0}, {"master-bytes", 0}, {"moment-bytes", 0}},
		 "no bytes"},
		{"contention", {{"traffic", 1}, {"drives", 1}}, "drive"},
		{"contention", {{"traffic", 2}, {"nics", 1}}, "network card"},
		{"contention", {{"traffic", 3}, {"switches", 1}}, "two switches"},
		{"contention", {{"exact", 1}, {"chunk", 1 << 20}, {"streams", 64}}, "in flight"},
	};
	double in[PST_MODEL_PARAMS], out[PST_MODEL_RESULTS];

	(void)state;
	for (unsigned i = 0; i < COUNT(rows); i++) {
		const struct pst_model *m = pst_model_find(rows[i].model);
		const char *wrong;

		pst_model_defaults(m, in);
		assert_true(pst_model_apply(m, rows[i].set, in));
		wrong = m->run(in, out, space);
		if (!wrong || !strstr(wrong, rows[i].word))
			fail_msg("row %u of %s: %s", i, rows[i].model, wrong ? wrong : "accepted");
	}
}

/* Makes measurements from a model with known parameters, and fits the parameters to them. */
static void fit_finds_parameters(void **state)
{
	const struct pst_model *m = pst_model_find("pipeline");
	struct pst_fit_point points[10];
	struct pst_fit fit = {
		.model = m, .free_count = 2, .points = points, .point_count = 10, .space = space};
	unsigned size = (unsigned)pst_model_param_index(m, "size");
	unsigned drive = (unsigned)pst_model_param_index(m, "drive-gbps");
	unsigned request = (unsigned)pst_model_param_index(m, "request-us");
	double error;

	(void)state;
	pst_model_defaults(m, fit.in);
	fit.in[drive] = 9.5;
	fit.in[request] = 250;
	for (unsigned i = 0; i < 10; i++) {
		points[i] = (struct pst_fit_point){
			.param = {size}, .value = {65536 << i}, .set_count = 1, .result = 0};
		points[i].measured = pst_fit_predict(&fit, &points[i]);
	}
	pst_model_defaults(m, fit.in);
	fit.free[0] = drive;
	fit.free[1] = request;
	error = pst_fit_run(&fit, -1);
	if (!(error < 1e-4) || fabs(fit.in[drive] / 9.5 - 1) > 1e-3 ||
	    fabs(fit.in[request] / 250 - 1) > 1e-3)
		fail_msg("error %g, drive %g, request %g", error, fit.in[drive], fit.in[request]);
	/* pst_fit_run leaves out point 3, so a wrong value of this point has no effect on the
	 * fit. */
	points[3].measured *= 2;
	error = pst_fit_run(&fit, 3);
	assert_true(error < 1e-4);
	assert_true(fabs(2 * pst_fit_predict(&fit, &points[3]) / points[3].measured - 1) < 1e-3);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(tables),	  cmocka_unit_test(presets),
		cmocka_unit_test(figures),	  cmocka_unit_test(kv_presets),
		cmocka_unit_test(published),	  cmocka_unit_test(values_out_of_range),
		cmocka_unit_test(contradictions), cmocka_unit_test(fit_finds_parameters),
	};

	return cmocka_run_group_tests(tests, space_make, space_free);
}
