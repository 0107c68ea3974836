/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tests the public functions of the planner (penstock_model.h), which predicts the speed and the
 * cost of storage with several models. Their results must be those of the models, and settings must
 * change the results. Wrong calls must return an error and change nothing.
 */
#include "test.h"

#include <errno.h>
#include <math.h>

#include "contention.h"
#include "model.h"
#include "penstock_model.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

/* With default settings, the public functions must return for each model the results that the model
 * itself computes. */
static void results_are_those_of_the_models(void **state)
{
	struct pst_model_space *space = calloc(1, pst_model_space_bytes());
	const struct pst_model *m;
	unsigned count = 0;

	(void)state;
	assert_non_null(space);
	for (unsigned i = 0; (m = pst_model_at(i)) != NULL; i++) {
		double in[PST_MODEL_PARAMS], out[PST_MODEL_RESULTS], values[PST_MODEL_RESULTS];
		const char *names[PST_MODEL_RESULTS];

		pst_model_defaults(m, in);
		assert_null(m->run(in, out, space));
		for (unsigned k = 0; k < m->result_count; k++)
			names[k] = m->results[k].name;
		assert_int_equal(penstock_model_run(m->name, NULL, names, values, m->result_count),
				 0);
		for (unsigned k = 0; k < m->result_count; k++)
			if (memcmp(&values[k], &out[k], sizeof(out[k])) &&
			    !(isnan(values[k]) && isnan(out[k])))
				fail_msg("%s %s: %.17g, the model gives %.17g", m->name, names[k],
					 values[k], out[k]);
		count++;
	}
	assert_int_equal(count, 10);
	free(space);
}

static void settings_change_results(void **state)
{
	static const struct {
		const char *model, *settings, *name;
		double wanted;
	} rows[] = {
		{"fence", "", "fences", 131072},
		{"fence", "chunk=32KiB", "fences", 65536},
		{"fence", "chunk=32768", "fences", 65536},
		{"fence", "chunk=32KiB,bytes=1GiB", "fences", 32768},
		{"fence", "preset=slow", "fence-ms", 196.608},
		{"fence", "preset=slow,fence-us=0.5", "fence-ms", 65.536},
		{"fence", "fence-us=0.5,preset=slow", "fence-ms", 196.608},
		{"pipeline", "path=staged", "dram-traffic", 2},
		{"sizing", "", "price", NAN},
	};

	(void)state;
	for (unsigned i = 0; i < COUNT(rows); i++) {
		double value = -1;
		int ret = penstock_model_run(rows[i].model, rows[i].settings, &rows[i].name, &value,
					     1);

		if (ret || (fabs(value - rows[i].wanted) > 1e-9 * rows[i].wanted) ||
		    isnan(value) != isnan(rows[i].wanted))
			fail_msg("%s %s: %d, %s is %.9g, not %.9g", rows[i].model, rows[i].settings,
				 ret, rows[i].name, value, rows[i].wanted);
	}
}

static void wrong_calls(void **state)
{
	char longest[200];
	const struct {
		const char *model, *settings, *name, *words;
	} rows[] = {
		{NULL, NULL, "fences", "no model ''"},
		{"fense", NULL, "fences", "no model 'fense'"},
		{"fence", NULL, "fence", "no result 'fence'"},
		{"fence", NULL, NULL, "no result ''"},
		{"fence", "chunk", "fences", "'chunk' is no setting"},
		{"fence", "size=4", "fences", "no parameter 'size'"},
		{"fence", "preset=fast", "fences", "no preset 'fast'"},
		{"fence", "chunk=1", "fences", "'1' is no value of chunk"},
		{"fence", "chunk=", "fences", "'' is no value of chunk"},
		{"fence", "chunk=4KiBx", "fences", "'4KiBx' is no value"},
		{"fence", "fence-us=1us", "fences", "'1us' is no value"},
		{"fence", "fence-us=nan", "fences", "'nan' is no value"},
		{"fence", "chunk=4KiB,", "fences", "after the last comma"},
		{"fence", ",chunk=4KiB", "fences", "'' is no setting"},
		{"fence", longest, "fences", "199 characters"},
		{"pipeline", "path=fast", "iops", "'fast' is no value of path"},
		{"checkpoint", "nodes=1,model-gpus=16", "stall-s", "model-gpus is larger"},
	};

	(void)state;
	memset(longest, 'x', sizeof(longest) - 1);
	longest[sizeof(longest) - 1] = '\0';
	for (unsigned i = 0; i < COUNT(rows); i++) {
		double value = -1;
		int ret = penstock_model_run(rows[i].model, rows[i].settings, &rows[i].name, &value,
					     1);

		if (ret != -EINVAL || !strstr(penstock_errmsg(), rows[i].words) || !(value < 0))
			fail_msg("row %u: %d, '%s', value %g", i, ret, penstock_errmsg(), value);
		assert_int_equal(penstock_errwhy(), PENSTOCK_WHY_BAD_ARGUMENT);
	}
	assert_int_equal(penstock_model_run("fence", NULL, NULL, NULL, 1), -EINVAL);
	assert_int_equal(penstock_model_run("fence", NULL, NULL, NULL, 0), 0);
}

static void words(void **state)
{
	const char *name = "slowest-hop";
	double value = -1;
	char buf[32] = "kept";

	(void)state;
	assert_int_equal(penstock_model_run("pipeline", "drives=8", &name, &value, 1), 0);
	assert_int_equal(penstock_model_word("pipeline", name, value, buf, sizeof(buf)), 0);
	assert_string_equal(buf, "pcie");
	assert_int_equal(penstock_model_word("pipeline", name, value, buf, 5), 0);
	assert_int_equal(penstock_model_word("pipeline", name, value, buf, 4), -ENOSPC);
	assert_int_equal(penstock_model_word("pipeline", name, 7, buf, sizeof(buf)), -EINVAL);
	assert_int_equal(penstock_model_word("pipeline", name, -1, buf, sizeof(buf)), -EINVAL);
	assert_int_equal(penstock_model_word("pipeline", name, NAN, buf, sizeof(buf)), -EINVAL);
	assert_int_equal(penstock_model_word("pipeline", "iops", 0, buf, sizeof(buf)), -EINVAL);
	assert_int_equal(penstock_model_word("pipeline", NULL, 0, buf, sizeof(buf)), -EINVAL);
	assert_int_equal(penstock_model_word("nothing", name, 0, buf, sizeof(buf)), -EINVAL);
	assert_int_equal(penstock_model_word("pipeline", name, 0, NULL, 9), -EINVAL);
	assert_string_equal(buf, "pcie");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(results_are_those_of_the_models),
		cmocka_unit_test(settings_change_results),
		cmocka_unit_test(wrong_calls),
		cmocka_unit_test(words),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
