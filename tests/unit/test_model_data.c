/* SPDX-License-Identifier: Apache-2.0 */
/* Tests the parsers of `penstock model`: measurements of several programs, config.json files and
 * topologies. */
#include "test.h"

#include <math.h>

#include "../../cli/model_data.h"
#include "../../cli/model_topo.h"
#include "contention.h"

#define COUNT(a) (sizeof(a) / sizeof((a)[0]))

static struct model_measures data;

/* Parses a copy of the text, because the parser changes its input. Returns the error, or NULL if
 * there is none. */
static const char *parse(const char *text)
{
	static char copy[8192];
	unsigned line;

	data.count = 0;
	snprintf(copy, sizeof(copy), "%s", text);
	return model_data_parse(copy, strlen(copy), &data, &line);
}

static void assert_measure(unsigned i, double block, double depth, double gbps, const char *path)
{
	const struct model_measure *m = &data.list[i];

	assert_true(i < data.count);
	if (fabs(m->block - block) > 0.5 || fabs(m->depth - depth) > 0.5 ||
	    fabs(m->gbps / gbps - 1) > 1e-9 || strcmp(m->path, path) != 0)
		fail_msg("measurement %u: block %g depth %g, %.9g GB/s, path '%s'", i, m->block,
			 m->depth, m->gbps, m->path);
}

static void penstock_bench(void **state)
{
	(void)state;
	assert_null(
		parse("{\"bytes\": 8, \"gb_per_s\": 4.5, \"block\": 65536, \"depth\": 8, "
		      "\"path\": \"bounce\", \"paths\": {\"bounce\": 8}, \"cpu_s_per_gb\": 0.1}\n"
		      "{\"gb_per_s\": 9, \"block\": 131072, \"depth\": 4, \"path\": \"p2p\"}"));
	assert_int_equal(data.count, 2);
	assert_measure(0, 65536, 8, 4.5, "bounce");
	assert_true(fabs(data.list[0].cpu_s_per_gb - 0.1) < 1e-12);
	assert_measure(1, 131072, 4, 9, "p2p");
	assert_true(fabs(data.list[0].bytes - 8) + fabs(data.list[0].path_bytes - 8) < 1e-9);
	assert_true(data.list[1].bytes + data.list[1].path_bytes <= 0);
	/* Two paths carried the bytes. The parser must not take the path names in "reasons" for
	 * paths that carried bytes. */
	assert_null(parse("{\"gb_per_s\": 20, \"block\": 8388608, \"path\": \"mapped\", "
			  "\"paths\": {\"bounce\": 2, \"mapped\": 6}, \"dram_passes\": 0.25, "
			  "\"reasons\": {\"staged\": {\"code\": \"cached\"}}}"));
	assert_true(fabs(data.list[0].bytes - 8) + fabs(data.list[0].path_bytes - 6) +
			    fabs(data.list[0].dram_passes - 0.25) <
		    1e-9);
	/* the first line's CPU time must not apply to the second line */
	assert_true(data.list[1].cpu_s_per_gb <= 0);
}

static void penstock_gdsio(void **state)
{
	(void)state;
	assert_null(parse("{\"gib_per_s\": 2, \"io_min\": 4096, \"io_max\": 8192, \"threads\": 3, "
			  "\"path\": \"staged\"}"));
	assert_measure(0, 8192, 3, 2.147483648, "staged");
}

static void fio(void **state)
{
	(void)state;
	assert_null(parse("{\"global options\": {\"bs\": \"64k\", \"iodepth\": \"8\"}, \"jobs\": ["
			  "{\"read\": {\"bw_bytes\": 2000000000}, \"write\": {\"bw_bytes\": 0}},"
			  "{\"job options\": {\"bs\": \"1m\", \"numjobs\": \"2\"}, \"read\": "
			  "{\"bw_bytes\": 0},"
			  " \"write\": {\"bw_bytes\": 3000000000}}]}"
			  "{\"jobs\": [{\"read\": {\"bw_bytes\": 1000000000}}]}"));
	assert_int_equal(data.count, 3);
	assert_measure(0, 65536, 8, 2, "");
	assert_measure(1, 1048576, 16, 3, "");
	/* fio's default block size and depth, because the job names neither */
	assert_measure(2, 4096, 1, 1, "");
}

static void gdsio(void **state)
{
	(void)state;
	assert_null(parse(
		"IoType: READ XferType: GPUD Threads: 8 DataSetSize: 818796544/4096000(KiB) "
		"IOSize: "
		"1024(KiB) Throughput: 6.5 GiB/sec, Avg_Latency: 1197.0 usecs ops: 7 total_time 1 "
		"secs\nVerifying data\n"
		"IoType: READ XferType: CPU_GPU Threads: 4 DataSetSize: 1/1(KiB) IOSize: 64(KiB) "
		"Throughput: 1 GiB/sec, x\n"));
	assert_int_equal(data.count, 2);
	assert_measure(0, 1048576, 8, 6.5 * 1.073741824, "");
	assert_measure(1, 65536, 4, 1.073741824, "staged");
}

static void streams(void **state)
{
	(void)state;
	assert_null(parse("{\"streams\": 4, \"gb_per_s\": 117}"));
	assert_int_equal(data.count, 1);
	assert_true(fabs(data.list[0].streams - 4) < 1e-9);
}

static void wrong_texts(void **state)
{
	static const struct {
		const char *text, *word;
	} rows[] = {
		{"", "no measurement"},
		{"hello\n", "no measurement"},
		{"{}", "no measurement"},
		{"{\"gb_per_s\": 4}", "no measurement"},
		{"{\"gb_per_s\": 0, \"block\": 4096}", "no measurement"},
		{"{\"gb_per_s\": 1e999, \"block\": 4096}", "no measurement"},
		{"{\"gb_per_s\": 4, \"block\": 4096", ""},
		{"{\"gb_per_s\": 4 \"block\": 4096}", ""},
		{"{\"gb_per_s\": }", "value"},
		{"{\"a\": [[[[[[[[[[[[[[[[[1]]]]]]]]]]]]]]]]]}", "deeply"},
		{"{\"gb_per_s\": \"4\", \"block\": 4096}", "no measurement"},
		{"IoType: READ Threads: 8 IOSize: 4-64(KiB) Throughput: 1 GiB/sec\n",
		 "no measurement"},
		{"IoType: READ Threads: 8 IOSize: 64(KiB) Throughput: 1 GB/sec\n",
		 "no measurement"},
	};

	(void)state;
	for (unsigned i = 0; i < COUNT(rows); i++) {
		const char *wrong = parse(rows[i].text);

		if (!wrong || !strstr(wrong, rows[i].word))
			fail_msg("'%s': %s", rows[i].text, wrong ? wrong : "accepted");
	}
}

static void too_many(void **state)
{
	static char text[80 * (MODEL_MEASURES + 1)];
	const char *wrong;
	unsigned line;
	size_t at = 0;

	(void)state;
	for (unsigned i = 0; i <= MODEL_MEASURES; i++)
		at += (size_t)snprintf(text + at, sizeof(text) - at,
				       "{\"streams\": 1, \"gb_per_s\": 1}");
	data.count = 0;
	wrong = model_data_parse(text, at, &data, &line);
	assert_non_null(wrong);
	assert_non_null(strstr(wrong, "256"));
	assert_int_equal(data.count, MODEL_MEASURES);
}

static const char *config(const char *text, struct model_config *out)
{
	static char copy[1024];
	unsigned line;

	snprintf(copy, sizeof(copy), "%s", text);
	return model_config_parse(copy, strlen(copy), out, &line);
}

static void configs(void **state)
{
	struct model_config c;

	(void)state;
	assert_null(config("{\"num_hidden_layers\": 32, \"num_attention_heads\": 32, "
			   "\"num_key_value_heads\": 8, \"hidden_size\": 4096, "
			   "\"torch_dtype\": \"float32\", \"rope\": {\"head_dim\": 9}}",
			   &c));
	assert_true(fabs(c.layers - 32) + fabs(c.kv_heads - 8) + fabs(c.head_dim - 128) +
			    fabs(c.element_bytes - 4) <
		    1e-9);
	/* Without num_key_value_heads, each attention head has its own keys. head_dim is given,
	 * not derived. */
	assert_null(config("{\"text_config\": {\"num_hidden_layers\": 2, \"num_attention_heads\": "
			   "12, \"head_dim\": 64}}",
			   &c));
	assert_true(fabs(c.kv_heads - 12) + fabs(c.head_dim - 64) + fabs(c.element_bytes - 2) <
		    1e-9);
	assert_null(config("{\"num_hidden_layers\": 61, \"kv_lora_rank\": 512, "
			   "\"qk_rope_head_dim\": 64}",
			   &c));
	assert_true(fabs(c.rank + c.rope - 576) < 1e-9);
	/* Qwen3: head_dim is not hidden_size / num_attention_heads, which would be 80. */
	assert_null(config("{\"num_hidden_layers\": 64, \"num_attention_heads\": 64, "
			   "\"num_key_value_heads\": 8, \"hidden_size\": 5120, \"head_dim\": 128, "
			   "\"torch_dtype\": \"bfloat16\"}",
			   &c));
	assert_true(fabs(c.layers - 64) + fabs(c.kv_heads - 8) + fabs(c.head_dim - 128) +
			    fabs(c.element_bytes - 2) <
		    1e-9);
	assert_non_null(config("{\"num_hidden_layers\": 2}", &c));
	assert_non_null(config("[", &c));
}

/* A machine with two GPUs and a drive below one switch, a GPU below another switch, and a drive
 * at the root. */
static const char machine[] =
	"{\"schema\": \"penstock-topo-1\", \"devices\": ["
	"{\"kind\": \"gpu\", \"numa\": 0, \"link\": {\"mts\": 32000, \"width\": 16},"
	" \"bridges\": [\"d0\", \"u0\", \"r0\"]},"
	"{\"kind\": \"gpu\", \"numa\": 0, \"link\": {\"mts\": 32000, \"width\": 16},"
	" \"bridges\": [\"d1\", \"u0\", \"r0\"]},"
	"{\"kind\": \"gpu\", \"numa\": 1, \"link\": {\"mts\": null},"
	" \"bridges\": [\"d2\", \"u1\", \"r1\"]},"
	"{\"kind\": \"drive\", \"numa\": 0, \"link\": {\"mts\": 8000, \"width\": 4},"
	" \"bridges\": [\"d3\", \"u0\", \"r0\"]},"
	"{\"kind\": \"drive\", \"numa\": 1, \"link\": {\"mts\": 32000, \"width\": 4},"
	" \"bridges\": []}],"
	"\"bridges\": [{\"bdf\": \"u0\", \"role\": \"switch-up\","
	" \"link\": {\"mts\": 16000, \"width\": 16}},"
	"{\"bdf\": \"u1\", \"role\": \"switch-up\", \"link\": {\"mts\": null}},"
	"{\"bdf\": \"d0\", \"role\": \"switch-down\"}]}";

static void topology(void **state)
{
	const struct pst_model *m = pst_model_find("contention");
	struct pst_model_space *space = calloc(1, pst_model_space_bytes());
	struct model_topo *t = calloc(1, model_topo_bytes());
	static char text[sizeof(machine)];
	double in[PST_MODEL_PARAMS], out[PST_MODEL_RESULTS];
	unsigned line;

	(void)state;
	memcpy(text, machine, sizeof(machine));
	assert_null(model_topo_parse(text, sizeof(machine) - 1, t, &line));
	assert_int_equal(model_topo_gpus(t), 3);
	pst_model_defaults(m, in);
	in[pst_model_param_index(m, "streams")] = 3;
	in[pst_model_param_index(m, "overhead")] = 0;
	in[pst_model_param_index(m, "duration-ms")] = 5;
	assert_null(model_topo_build(t, m, in, space));
	assert_null(m->run(in, out, space));
	/* Two GPUs share the link of their switch: 16 lanes of 32 GT/s. The topology has no link
	 * for the third GPU's switch, so a parameter of the model gives the bandwidth. */
	assert_true(fabs(space->closed[0] / (31.507692e9 / 2) - 1) < 1e-6);
	assert_true(fabs(space->closed[1] / (31.507692e9 / 2) - 1) < 1e-6);
	assert_true(fabs(space->closed[2] / 63e9 - 1) < 1e-6);
	/* The drive below the switch has a link of 4 lanes at 8 GT/s, and serves both GPUs of its
	 * switch. */
	in[pst_model_param_index(m, "traffic")] = 1;
	assert_null(model_topo_build(t, m, in, space));
	assert_null(m->run(in, out, space));
	assert_true(fabs(space->closed[0] / (3.938462e9 / 2) - 1) < 1e-6);
	assert_true(fabs(space->closed[2] / 14.2e9 - 1) < 1e-6);
	in[pst_model_param_index(m, "traffic")] = 2;
	assert_non_null(model_topo_build(t, m, in, space));
	free(t);
	free(space);
}

static void wrong_topologies(void **state)
{
	static const char *const texts[] = {
		"{}", "{\"schema\": \"other\"}", "{\"schema\": \"penstock-topo-1\"}", "[",
		"{\"schema\": \"penstock-topo-1\", \"devices\": [{\"kind\": \"drive\"}]}"};

	(void)state;
	for (unsigned i = 0; i < COUNT(texts); i++) {
		struct model_topo *t = calloc(1, model_topo_bytes());
		char text[128];
		unsigned line;

		snprintf(text, sizeof(text), "%s", texts[i]);
		if (!model_topo_parse(text, strlen(text), t, &line))
			fail_msg("'%s' is accepted", texts[i]);
		free(t);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(penstock_bench),
		cmocka_unit_test(penstock_gdsio),
		cmocka_unit_test(fio),
		cmocka_unit_test(gdsio),
		cmocka_unit_test(streams),
		cmocka_unit_test(wrong_texts),
		cmocka_unit_test(too_many),
		cmocka_unit_test(configs),
		cmocka_unit_test(topology),
		cmocka_unit_test(wrong_topologies),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
