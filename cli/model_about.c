/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the tables of the models for `penstock model`: the list of models, the help of a model,
 * its tables as JSON, and figures that others have published, each with the verdict whether the
 * model yields it. */
#include "model_about.h"

#include <math.h>
#include <string.h>

#include "args.h"
#include "cases.h"
#include "model_setting.h"

/* Column at which the sentences of the help begin. */
#define COLUMN 4

void model_print_list(bool json)
{
	const struct pst_model *m;
	struct json j;

	if (!json) {
		for (unsigned i = 0; (m = pst_model_at(i)) != NULL; i++)
			printf("  %-12s  %s\n", m->name, m->summary);
		printf("'penstock model NAME' computes with the defaults, and 'penstock model NAME "
		       "--help'\nlists the parameters.\n");
		return;
	}
	json_open(&j, stdout);
	json_array(&j, "models");
	for (unsigned i = 0; (m = pst_model_at(i)) != NULL; i++) {
		json_object(&j, NULL);
		model_print_tables(&j, m);
		json_end(&j);
	}
	json_array_end(&j);
	json_close(&j);
}

/* Writes a number as an integer with all its digits if it is whole. */
static void number_json(struct json *j, const char *name, double value)
{
	if (value == floor(value) && fabs(value) < 9e15)
		json_int(j, name, (int64_t)value);
	else
		json_real(j, name, value);
}

static void choices_json(struct json *j, const char *choices)
{
	unsigned len;
	const char *word;
	char text[64];

	json_array(j, "choices");
	for (unsigned i = 0; choices && (word = pst_model_choice(choices, i, &len)); i++) {
		snprintf(text, sizeof(text), "%.*s", (int)len, word);
		json_text(j, NULL, text);
	}
	json_array_end(j);
}

static void preset_json(struct json *j, const struct pst_model_preset *p)
{
	json_object(j, NULL);
	json_text(j, "name", p->name);
	json_text(j, "about", p->about);
	json_text(j, "source", p->source);
	json_object(j, "set");
	for (unsigned i = 0; i < PST_MODEL_SETTINGS && p->set[i].name; i++)
		number_json(j, p->set[i].name, p->set[i].value);
	json_end(j);
	json_end(j);
}

void model_print_tables(struct json *j, const struct pst_model *m)
{
	json_text(j, "name", m->name);
	json_text(j, "summary", m->summary);
	json_array(j, "parameters");
	for (unsigned i = 0; i < m->param_count; i++) {
		const struct pst_model_param *p = &m->params[i];

		json_object(j, NULL);
		json_text(j, "name", p->name);
		json_text(j, "unit", p->unit);
		choices_json(j, p->choices);
		number_json(j, "default", p->value);
		number_json(j, "min", p->min);
		number_json(j, "max", p->max);
		json_text(j, "about", p->about);
		json_text(j, "source", p->source);
		json_end(j);
	}
	json_array_end(j);
	json_array(j, "results");
	for (unsigned i = 0; i < m->result_count; i++) {
		const struct pst_model_result *r = &m->results[i];

		json_object(j, NULL);
		json_text(j, "name", r->name);
		json_text(j, "unit", r->unit);
		choices_json(j, r->choices);
		json_text(j, "about", r->about);
		json_text(j, "formula", r->formula);
		json_text(j, "source", r->source);
		json_end(j);
	}
	json_array_end(j);
	json_array(j, "presets");
	for (unsigned i = 0; i < m->preset_count; i++)
		preset_json(j, &m->presets[i]);
	json_array_end(j);
}

/* ---- the help ---- */

/* Prints a text, wrapped to 80 columns and indented by COLUMN. */
static void words_print(FILE *f, const char *text)
{
	fprintf(f, "%*s", COLUMN, "");
	print_words(f, COLUMN, text);
}

static void param_help(FILE *f, const struct pst_model_param *p)
{
	char text[1024], first[64];

	if (p->choices)
		fprintf(f, "  --%s %s\n", p->name, p->choices);
	else
		fprintf(f, "  --%s %s\n", p->name, *p->unit ? p->unit : "NUMBER");
	if (p->choices)
		snprintf(text, sizeof(text), "%s (%s: %s)", p->about,
			 model_value_text(p->value, p->choices, first, sizeof(first)), p->source);
	else
		snprintf(text, sizeof(text), "%s (%s: %s; %.9g to %.9g)", p->about,
			 model_value_text(p->value, NULL, first, sizeof(first)), p->source, p->min,
			 p->max);
	words_print(f, text);
}

static void result_help(FILE *f, const struct pst_model_result *r)
{
	char text[1024];

	if (r->choices)
		fprintf(f, "  %s %s\n", r->name, r->choices);
	else
		fprintf(f, "  %s%s%s%s\n", r->name, *r->unit ? " [" : "", r->unit,
			*r->unit ? "]" : "");
	snprintf(text, sizeof(text), "%s = %s (%s)", r->about, r->formula, r->source);
	words_print(f, text);
}

static void preset_help(FILE *f, const struct pst_model *m, const struct pst_model_preset *p)
{
	char text[1024], value[64];
	size_t at = 0;

	fprintf(f, "  %s\n", p->name);
	at += (size_t)snprintf(text, sizeof(text), "%s (%s):", p->about, p->source);
	for (unsigned i = 0; i < PST_MODEL_SETTINGS && p->set[i].name; i++) {
		int param = pst_model_param_index(m, p->set[i].name);

		if (at < sizeof(text))
			at += (size_t)snprintf(
				text + at, sizeof(text) - at, " %s=%s", p->set[i].name,
				model_value_text(p->set[i].value, m->params[param].choices, value,
						 sizeof(value)));
	}
	words_print(f, text);
}

void model_print_help(FILE *f, const struct pst_model *m)
{
	fprintf(f, "usage: penstock model %s [--PARAMETER VALUE]... [OPTIONS]\n\n%s\n\n", m->name,
		m->summary);
	fprintf(f, "Parameters, with default, source and range:\n");
	for (unsigned i = 0; i < m->param_count; i++)
		param_help(f, &m->params[i]);
	fprintf(f, "\nResults, with formula and source:\n");
	for (unsigned i = 0; i < m->result_count; i++)
		result_help(f, &m->results[i]);
	fprintf(f, "\nPresets (--preset NAME):\n");
	for (unsigned i = 0; i < m->preset_count; i++)
		preset_help(f, m, &m->presets[i]);
	fprintf(f, "\n'penstock help model' lists the options that all models have.\n");
}

/* ---- published figures ---- */

static void case_print(const struct pst_model_case *c, double value, bool follows)
{
	printf("%-17s %s\n", follows ? "follows" : "does not follow", c->claim);
	printf("%*s%s %s gives %.6g, published %.6g", 18, "", c->model, c->result, value, c->low);
	printf(c->high > c->low ? " to %.6g\n" : "\n", c->high);
	if (c->note) {
		printf("%*s", 18, "");
		print_words(stdout, 18, c->note);
	}
}

static void case_json(struct json *j, const struct pst_model_case *c, double value, bool follows)
{
	json_object(j, NULL);
	json_text(j, "model", c->model);
	json_text(j, "name", c->name);
	json_text(j, "claim", c->claim);
	json_object(j, "set");
	for (unsigned i = 0; i < PST_MODEL_SETTINGS && c->set[i].name; i++)
		number_json(j, c->set[i].name, c->set[i].value);
	json_end(j);
	json_text(j, "result", c->result);
	json_real(j, "value", value);
	json_real(j, "low", c->low);
	json_real(j, "high", c->high);
	json_text(j, "verdict", follows ? "follows" : "does not follow");
	json_text(j, "note", c->note);
	json_end(j);
}

int model_print_cases(const struct pst_model *m, struct pst_model_space *space, bool json)
{
	const struct pst_model_case *c;
	struct json j;

	if (json) {
		json_open(&j, stdout);
		json_array(&j, "cases");
	}
	for (unsigned i = 0; (c = pst_model_case_at(i)) != NULL; i++) {
		const char *wrong;
		double value;
		bool follows;

		if (m && strcmp(c->model, m->name) != 0)
			continue;
		wrong = pst_model_case_run(c, &value, &follows, space);
		if (wrong)
			return fail(EXIT_FAILED, "%s %s: %s", c->model, c->name, wrong);
		if (json)
			case_json(&j, c, value, follows);
		else
			case_print(c, value, follows);
	}
	if (json) {
		json_array_end(&j);
		json_close(&j);
	}
	return EXIT_DONE;
}
