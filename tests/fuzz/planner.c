/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the files that `penstock model` reads: measurements, topologies and the config.json of a
 * model. Fuzzes the settings of penstock_model_run, too. libFuzzer runs this target, or replay.c
 * does with its corpus. A failure is a parsed measurement that no model can use, a config.json that
 * is accepted without a layer, a topology from which no tree can be built, or an infinite result.
 */
#include <math.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "../../cli/model_data.h"
#include "../../cli/model_topo.h"
#include "contention.h"
#include "penstock_model.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

/* Returns a copy of the input that ends with a NUL. The heap block has exactly this length, so that
 * a sanitizer detects a read of one byte too many. */
static char *input_copy(const uint8_t *data, size_t len)
{
	char *text = malloc(len + 1);

	if (!text)
		abort();
	memcpy(text, data, len);
	text[len] = '\0';
	return text;
}

static void check_data(const uint8_t *data, size_t len)
{
	static struct model_measures measures;
	char *text = input_copy(data, len);
	unsigned line;

	measures.count = 0;
	model_data_parse(text, len, &measures, &line);
	if (measures.count > MODEL_MEASURES)
		abort();
	for (unsigned i = 0; i < measures.count; i++) {
		const struct model_measure *m = &measures.list[i];

		if (!(m->gbps > 0) || !isfinite(m->gbps) ||
		    !memchr(m->path, '\0', sizeof(m->path)) || (m->block < 1 && m->streams < 1))
			abort();
	}
	free(text);
}

static void check_config(const uint8_t *data, size_t len)
{
	char *text = input_copy(data, len);
	struct model_config config;
	unsigned line;

	if (!model_config_parse(text, len, &config, &line) && !(config.layers >= 1))
		abort();
	free(text);
}

static void check_topo(const uint8_t *data, size_t len)
{
	static struct pst_model_space *space;
	const struct pst_model *m = pst_model_find("contention");
	double in[PST_MODEL_PARAMS];
	struct model_topo *topo = calloc(1, model_topo_bytes());
	char *text = input_copy(data, len);
	unsigned line;

	if (!space)
		space = calloc(1, pst_model_space_bytes());
	if (!topo || !space)
		abort();
	pst_model_defaults(m, in);
	if (!model_topo_parse(text, len, topo, &line) && model_topo_build(topo, m, in, space))
		/* With the model's default parameters, no data moves to drives, so every valid
		 * topology must give a tree, even one without a drive. */
		abort();
	free(text);
	free(topo);
}

static void check_settings(const uint8_t *data, size_t len)
{
	static const char *const names[] = {"speed-gbps", "latency-us"};
	char *text = input_copy(data, len);
	double values[2];

	if (!penstock_model_run("pipeline", text, names, values, 2) &&
	    (!isfinite(values[0]) || !isfinite(values[1])))
		abort();
	free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	check_data(data, len_bytes);
	check_config(data, len_bytes);
	check_topo(data, len_bytes);
	check_settings(data, len_bytes);
	return 0;
}
