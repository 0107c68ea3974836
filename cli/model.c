/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements `penstock model`, the planner. It computes how fast a storage path would be, and the
 * cost of the time in which GPUs wait for storage. src/model has the models, which are pure
 * functions. This file parses the options; each parameter of a model is an option. It must never
 * transfer bytes.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "contention.h"
#include "model_about.h"
#include "model_data.h"
#include "model_fit.h"
#include "model_page.h"
#include "model_plot.h"
#include "model_print.h"
#include "model_setting.h"

/* The option of parameter number i has the value PARAM_BASE + i in the table for getopt_long. The
 * other options have smaller values. */
#define PARAM_BASE 1000
#define FIXED_OPTIONS 17
#define PLOTTED 4
#define FILES 32

struct model_args {
	struct model_run runs[MODEL_COLUMNS];
	struct model_columns columns;
	struct model_points points;
	struct model_measures data;
	/* the given text of each parameter; NULL: the option was not given */
	const char *values[PST_MODEL_PARAMS];
	const char *preset, *plot, *free_text, *sweep, *config, *topo_path, *html, *table;
	const char *compare[MODEL_COLUMNS - 1], *results[PLOTTED], *files[FILES];
	unsigned compare_count, result_count, file_count;
	bool json, csv, cases, serve;
	uint64_t port;
	struct model_topo *topo;
};

static bool compare_add(struct model_args *a, const char *text)
{
	if (a->compare_count == MODEL_COLUMNS - 1) {
		fail(EXIT_USAGE, "--compare '%s': give at most %u comparisons", text,
		     MODEL_COLUMNS - 1);
		return false;
	}
	a->compare[a->compare_count++] = text;
	return true;
}

static bool result_add(struct model_args *a, const char *text)
{
	if (a->result_count == PLOTTED) {
		fail(EXIT_USAGE, "--result '%s': give at most %u results", text, PLOTTED);
		return false;
	}
	a->results[a->result_count++] = text;
	return true;
}

static bool file_add(struct model_args *a, const char *path)
{
	if (a->file_count == FILES) {
		fail(EXIT_USAGE, "--calibrate '%s': give at most %u files", path, FILES);
		return false;
	}
	a->files[a->file_count++] = path;
	return true;
}

static bool port_parse(struct model_args *a, const char *text)
{
	if (parse_number(text, 0, 65535, &a->port))
		return true;
	fail(EXIT_USAGE, "--serve '%s': give a port from 0 (any) to 65535", text);
	return false;
}

static bool option_store(struct model_args *a, int c)
{
	switch (c) {
	case 'p':
		a->preset = optarg;
		return true;
	case 'T':
		a->table = optarg;
		return true;
	case 's':
		a->sweep = optarg;
		return true;
	case 'c':
		return compare_add(a, optarg);
	case 'r':
		return result_add(a, optarg);
	case 'P':
		a->plot = optarg;
		return true;
	case 'f':
		a->free_text = optarg;
		return true;
	case 't':
		a->topo_path = optarg;
		return true;
	case 'g':
		a->config = optarg;
		return true;
	case 'h' + 256:
		a->html = optarg;
		return true;
	case 'S':
		a->serve = true;
		return !optarg || port_parse(a, optarg);
	case 'j':
		return a->json = true;
	case 'v':
		return a->csv = true;
	case 'k':
		return a->cases = true;
	case 'b':
		return file_add(a, optarg);
	default:
		if (c < PARAM_BASE)
			return false;
		a->values[c - PARAM_BASE] = optarg;
		return true;
	}
}

/* Parses the options. Each parameter of the model `m` is one of them. Returns 0, -1 after it has
 * printed the help, or an exit code. */
static int options_read(int argc, char **argv, const struct pst_model *m, struct model_args *a)
{
	static const struct option options[FIXED_OPTIONS] = {
		{"preset", required_argument, NULL, 'p'},
		{"presets", required_argument, NULL, 'T'},
		{"sweep", required_argument, NULL, 's'},
		{"compare", required_argument, NULL, 'c'},
		{"result", required_argument, NULL, 'r'},
		{"plot", required_argument, NULL, 'P'},
		{"calibrate", required_argument, NULL, 'b'},
		{"fit", required_argument, NULL, 'f'},
		{"topo", required_argument, NULL, 't'},
		{"config", required_argument, NULL, 'g'},
		{"cases", no_argument, NULL, 'k'},
		{"html", required_argument, NULL, 'h' + 256},
		{"serve", optional_argument, NULL, 'S'},
		{"csv", no_argument, NULL, 'v'},
		{"json", no_argument, NULL, 'j'},
		{"help", no_argument, NULL, 'H'},
		{NULL, 0, NULL, 0}};
	struct option all[FIXED_OPTIONS + PST_MODEL_PARAMS];
	struct command command = cmd_model;
	unsigned n = 0;
	char name[64];
	int c;

	for (; m && n < m->param_count; n++)
		all[n] = (struct option){m->params[n].name, required_argument, NULL,
					 PARAM_BASE + (int)n};
	memcpy(all + n, options, sizeof(options));
	snprintf(name, sizeof(name), "model%s%s", m ? " " : "", m ? m->name : "");
	command.name = name;
	while ((c = next_option(argc, argv, &command, all)) != -1) {
		if (c == 'H') {
			if (m)
				model_print_help(stdout, m);
			else
				print_usage(stdout, &cmd_model);
			return -1;
		}
		if (c == 'h')
			return -1;
		if (!option_store(a, c))
			return EXIT_USAGE;
	}
	if (a->serve && optind + 1 == argc && !a->port)
		return port_parse(a, argv[optind]) ? 0 : EXIT_USAGE;
	if (optind != argc)
		return fail(EXIT_USAGE,
			    "model: '%s' is no option: parameters are options, such as "
			    "--%s",
			    argv[optind], m ? m->params[0].name : "preset");
	return 0;
}

static void config_set(struct model_run *r, const char *name, double value)
{
	int at = pst_model_param_index(r->model, name);

	if (value <= 0)
		return;
	r->in[at] = value;
	r->given[at] = true;
}

/* Sets parameters of the model `kvcache` from the config.json of a Hugging Face model. */
static int config_apply(struct model_args *a)
{
	struct model_run *r = &a->runs[0];
	struct model_config c;
	int ret;

	if (strcmp(r->model->name, "kvcache") != 0)
		return fail(EXIT_USAGE, "--config is for the model kvcache");
	ret = model_config_read(a->config, &c);
	if (ret)
		return ret;
	config_set(r, "layers", c.layers);
	config_set(r, "kv-heads", c.kv_heads);
	config_set(r, "head-dim", c.head_dim);
	config_set(r, "latent-dim", c.rank > 0 ? c.rank + c.rope : 0);
	config_set(r, "element-bytes", c.element_bytes);
	for (unsigned i = 0; i < r->model->param_count; i++)
		if (!pst_model_check(&r->model->params[i], r->in[i]))
			return fail(EXIT_FAILED, "%s: %s cannot be %g", a->config,
				    r->model->params[i].name, r->in[i]);
	return 0;
}

static int topo_apply(struct model_args *a)
{
	struct model_run *r = &a->runs[0];
	int streams = pst_model_param_index(r->model, "streams");

	if (strcmp(r->model->name, "contention") != 0)
		return fail(EXIT_USAGE, "--topo is for the model contention");
	a->topo = model_topo_read(a->topo_path);
	if (!a->topo)
		return EXIT_FAILED;
	r->topo = a->topo;
	if (!r->given[streams]) {
		unsigned gpus = model_topo_gpus(a->topo);

		r->in[streams] = gpus < PST_SIM_STREAMS ? gpus : PST_SIM_STREAMS;
		r->given[streams] = true;
	}
	return 0;
}

/* Applies the preset that a->preset names. If the user's table (--presets) and the built-in presets
 * have the same name, the user's preset applies. */
static bool preset_find(struct model_args *a)
{
	int found = 0;

	if (!a->preset)
		return true;
	if (a->table)
		found = model_table_apply(&a->runs[0], a->table, a->preset);
	if (found > 0)
		a->runs[0].preset = a->preset;
	return found ? found > 0 : model_preset_apply(&a->runs[0], "--preset", a->preset);
}

/* Applies the preset, then the config.json, then the options, each of which overrides the ones
 * before. Then applies the topology, and prepares the runs of --compare. */
static int settings_apply(struct model_args *a)
{
	struct model_run *r = &a->runs[0];
	const struct pst_model *m = r->model;
	char option[64];
	int ret = 0;

	pst_model_defaults(m, r->in);
	if (!preset_find(a))
		return EXIT_USAGE;
	if (a->config)
		ret = config_apply(a);
	for (unsigned i = 0; !ret && i < m->param_count; i++) {
		if (!a->values[i])
			continue;
		snprintf(option, sizeof(option), "--%s", m->params[i].name);
		if (!model_value_parse(&m->params[i], option, a->values[i], &r->in[i]))
			return EXIT_USAGE;
		r->given[i] = true;
	}
	if (!ret && a->topo_path)
		ret = topo_apply(a);
	a->columns = (struct model_columns){.runs = a->runs, .titles = {"as given"}, .count = 1};
	for (unsigned i = 0; !ret && i < a->compare_count; i++) {
		a->runs[i + 1] = *r;
		a->columns.titles[a->columns.count++] = a->compare[i];
		if (!model_settings_parse(&a->runs[i + 1], "--compare", a->compare[i]))
			return EXIT_USAGE;
	}
	return ret;
}

static int results_find(struct model_args *a)
{
	const struct pst_model *m = a->runs[0].model;

	for (unsigned i = 0; i < a->result_count; i++) {
		int at = model_result_find(m, "--result", a->results[i]);

		if (at < 0)
			return EXIT_USAGE;
		if (a->plot && m->results[at].choices)
			return fail(EXIT_USAGE, "--plot: %s is no number", a->results[i]);
		a->points.results[a->points.result_count++] = (unsigned)at;
	}
	if (a->plot && !a->result_count)
		a->points.result_count = 1; /* the first result */
	return 0;
}

static int sweep_run(struct model_args *a)
{
	struct model_run *r = &a->runs[0];
	struct model_points *p = &a->points;
	struct model_run one = *r;
	int ret = 0;

	if (!model_sweep_parse(r->model, a->sweep, &p->sweep))
		return EXIT_USAGE;
	ret = results_find(a);
	if (ret)
		return ret;
	p->outs = calloc(p->sweep.count, sizeof(*p->outs));
	if (!p->outs)
		return fail(EXIT_FAILED, "out of memory");
	for (unsigned i = 0; !ret && i < p->sweep.count; i++) {
		one.in[p->sweep.param] = model_sweep_value(r->model, &p->sweep, i);
		ret = model_run(&one);
		memcpy(p->outs[i], one.out, sizeof(one.out));
	}
	if (!ret && a->plot)
		ret = model_plot(a->plot, r, p);
	else if (!ret && a->json)
		model_print_points_json(r, p);
	else if (!ret && a->csv)
		model_print_points_csv(r, p);
	else if (!ret)
		model_print_points_text(r, p);
	free(p->outs);
	return ret;
}

static int compare_run(struct model_args *a)
{
	int ret = 0;

	/* Runs the first setting last, because the models share one memory for their details. So
	 * the details that are printed belong to the first setting. */
	for (unsigned i = a->columns.count; !ret && i-- > 0;)
		ret = model_run(&a->runs[i]);
	if (ret)
		return ret;
	if (a->json)
		model_print_json(&a->columns);
	else if (a->csv)
		model_print_csv(&a->columns);
	else
		model_print_text(&a->columns);
	return EXIT_DONE;
}

/* Returns an error for options that contradict each other, or 0. */
static int args_check(const struct model_args *a)
{
	const struct pst_model *m = a->runs[0].model;

	if (a->json && a->csv)
		return fail(EXIT_USAGE, "--json and --csv exclude each other");
	if (!m && (a->preset || a->sweep || a->compare_count || a->config || a->topo_path ||
		   a->result_count || a->csv))
		return fail(EXIT_USAGE, "model: name a model first, see 'penstock model'");
	if (a->plot && !a->sweep)
		return fail(EXIT_USAGE, "--plot draws a sweep: add --sweep NAME=FROM:TO:COUNT");
	if (a->result_count && !a->sweep)
		return fail(EXIT_USAGE,
			    "--result chooses results of a sweep: add --sweep NAME=FROM:TO:COUNT");
	if (a->sweep && a->compare_count)
		return fail(EXIT_USAGE, "--sweep and --compare exclude each other");
	if (a->table && !a->preset)
		return fail(EXIT_USAGE, "--presets names a table: choose one with --preset");
	if (a->free_text && !a->file_count)
		return fail(EXIT_USAGE, "--fit chooses parameters for --calibrate: add it");
	if (a->file_count && m && strcmp(m->name, "pipeline") && strcmp(m->name, "contention"))
		return fail(EXIT_USAGE, "--calibrate is for the models pipeline and contention");
	return 0;
}

static int calibrate_run(struct model_args *a)
{
	if (a->sweep || a->compare_count)
		return fail(EXIT_USAGE, "--calibrate excludes --sweep and --compare");
	return model_calibrate(&a->runs[0], &a->data, a->free_text, a->json);
}

static int args_run(struct model_args *a)
{
	struct model_run *r = &a->runs[0];
	int ret = args_check(a);

	if (ret)
		return ret;
	if (a->html)
		return model_page_write(a->html);
	if (a->serve)
		return model_page_serve((uint16_t)a->port);
	if (a->cases)
		return model_print_cases(r->model, r->space, a->json);
	for (unsigned i = 0; !ret && i < a->file_count; i++)
		ret = model_data_read(a->files[i], &a->data);
	if (ret)
		return ret;
	if (!r->model && a->file_count)
		r->model = pst_model_find(a->data.list[0].streams >= 1 ? "contention" : "pipeline");
	if (!r->model) {
		model_print_list(a->json);
		return EXIT_DONE;
	}
	ret = settings_apply(a);
	if (ret)
		return ret;
	if (a->file_count)
		return calibrate_run(a);
	return a->sweep ? sweep_run(a) : compare_run(a);
}

/* Returns the model that the first argument names. Returns NULL if that argument is an option or
 * missing. If the argument is no name of a model, prints an error, sets *wrong and returns NULL. */
static const struct pst_model *named_model(int argc, char **argv, bool *wrong)
{
	const struct pst_model *m = NULL, *each;
	const char *names[16], *similar;
	unsigned n = 0;

	*wrong = false;
	if (argc < 2 || argv[1][0] == '-')
		return NULL;
	m = pst_model_find(argv[1]);
	if (m)
		return m;
	for (; n < 15 && (each = pst_model_at(n)) != NULL; n++)
		names[n] = each->name;
	names[n] = NULL;
	similar = closest(argv[1], names);
	*wrong = true;
	if (similar)
		fail(EXIT_USAGE, "there is no model '%s', did you mean '%s'?", argv[1], similar);
	else
		fail(EXIT_USAGE, "there is no model '%s', see 'penstock model'", argv[1]);
	return NULL;
}

static int model_main(int argc, char **argv)
{
	struct model_args *a = calloc(1, sizeof(*a));
	bool wrong;
	const struct pst_model *m = named_model(argc, argv, &wrong);
	int ret = EXIT_USAGE;

	if (a)
		a->runs[0].space = calloc(1, pst_model_space_bytes());
	if (!a || !a->runs[0].space)
		ret = fail(EXIT_FAILED, "out of memory");
	else if (!wrong) {
		a->runs[0].model = m;
		ret = options_read(argc - (m ? 1 : 0), argv + (m ? 1 : 0), m, a);
		ret = ret ? ret : args_run(a);
	}
	if (a) {
		free(a->runs[0].space);
		free(a->topo);
	}
	free(a);
	return ret < 0 ? EXIT_DONE : ret;
}

const struct command cmd_model = {
	.name = "model",
	.usage = "[NAME] [--PARAMETER VALUE]... [options]",
	.summary = "size a storage path before buying it: models of speed and cost",
	.help = "  --preset P       start from a named set of parameters\n"
		"  --presets F      first look for P in the file F: lines MODEL P NAME=VALUE,...\n"
		"  --compare S      show the settings NAME=VALUE,... beside the others; repeat\n"
		"                   it for up to 5 columns\n"
		"  --sweep S        NAME=FROM:TO:COUNT: compute for each value; ':log' at the\n"
		"                   end means equal ratios\n"
		"  --result R       show this result of a sweep; repeat it for up to 4\n"
		"  --plot F         draw the sweep to the SVG file F\n"
		"  --calibrate F    fit the model pipeline or contention to measurements in F:\n"
		"                   output of penstock bench --json, fio or gdsio; repeatable\n"
		"  --fit P          fit these parameters, with commas between them\n"
		"  --topo F         contention: the machine in F, from penstock topo --json\n"
		"  --config F       kvcache: the model of the Hugging Face config.json F\n"
		"  --html F         write the page, which computes in a browser, to the file F\n"
		"  --serve          serve the page on this machine until a signal;\n"
		"                   --serve=PORT chooses a port\n"
		"  --cases          check published figures against the models\n"
		"  --csv            print comma-separated values\n"
		"  --json           print one JSON object, see penstock-json(5)\n"
		"\n"
		"'penstock model' lists the models; 'penstock model NAME --help' lists the\n"
		"parameters of a model, each of which is an option.\n",
	.run = model_main,
};
