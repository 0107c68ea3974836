/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the results of `penstock model` as text, JSON and CSV. All names, units and sentences
 * come from the tables of src/model. */
#include "model_print.h"

#include <math.h>
#include <string.h>

#include "args.h"
#include "cases.h"
#include "contention.h"

/* Widths in characters: of a column of numbers (WIDE), of the names, and of the units. */
#define WIDE 13
#define NAMES 22
#define UNITS 6
/* Number of results that a sweep prints as text if the user selects none with --result. */
#define FEW 4

static void rule_print(const char *title)
{
	printf("%s\n", title);
}

/* Returns the unit as it is printed: "" for a number without a unit. */
static const char *unit_text(const char *unit)
{
	return !strcmp(unit, "count") || !strcmp(unit, "ratio") ? "" : unit;
}

static void row_print(const struct model_columns *c, bool is_param, unsigned i)
{
	const struct pst_model *m = c->runs[0].model;
	const struct pst_model_param *p = &m->params[is_param ? i : 0];
	const struct pst_model_result *r = &m->results[is_param ? 0 : i];
	const char *choices = is_param ? p->choices : r->choices;
	const char *unit = is_param ? p->unit : r->unit;
	char text[64];

	printf("  %-*s", NAMES, is_param ? p->name : r->name);
	for (unsigned k = 0; k < c->count; k++) {
		double value = is_param ? c->runs[k].in[i] : c->runs[k].out[i];

		printf(" %*s", WIDE, model_value_text(value, choices, text, sizeof(text)));
	}
	if (c->count > 1) {
		printf(*unit_text(unit) ? " %s\n" : "\n", unit_text(unit));
		return;
	}
	printf(" %-*s ", UNITS, unit_text(unit));
	print_words(stdout, 2 + NAMES + 1 + WIDE + 1 + UNITS + 1, is_param ? p->about : r->about);
}

static bool param_is_shown(const struct model_columns *c, unsigned i)
{
	for (unsigned k = 0; k < c->count; k++)
		if (c->runs[k].given[i])
			return true;
	return false;
}

/* Prints the bandwidth of each stream, and the utilisation of each link that has carried bytes. */
static void details_print(const struct model_run *r)
{
	const struct pst_model_space *s = r->space;
	const double *rates = s->simulated ? s->result.stream_bytes_per_s : s->closed;
	char name[32];

	rule_print("streams, GB/s");
	for (unsigned i = 0; i < (unsigned)r->in[0]; i++)
		printf("%s%10.3f", i % 8 ? "" : i ? "\n " : " ", rates[i] * 1e-9);
	fputc('\n', stdout);
	if (!s->simulated)
		return;
	rule_print("links, share of the time in use");
	for (unsigned i = 0; i < s->net.link_count; i++)
		if (s->result.link_use[i] > 0 && s->net.links[i].kind != PST_SIM_SOURCE)
			printf("  %-*s %*.3f\n", NAMES,
			       pst_contention_link_name(&s->net.links[i], name, sizeof(name)), WIDE,
			       s->result.link_use[i]);
}

static bool has_details(const struct pst_model *m)
{
	return m == pst_model_find("contention");
}

void model_print_text(const struct model_columns *c)
{
	const struct pst_model *m = c->runs[0].model;
	bool some = false;

	printf("%s: %s\n", m->name, m->summary);
	if (c->count > 1) {
		printf("  %-*s", NAMES, "");
		for (unsigned k = 0; k < c->count; k++)
			printf(" %*.*s", WIDE, WIDE, c->titles[k]);
		fputc('\n', stdout);
	}
	for (unsigned i = 0; i < m->param_count; i++) {
		if (!param_is_shown(c, i))
			continue;
		if (!some)
			rule_print("given");
		some = true;
		row_print(c, true, i);
	}
	rule_print("results");
	for (unsigned i = 0; i < m->result_count; i++)
		row_print(c, false, i);
	if (has_details(m) && c->count == 1)
		details_print(&c->runs[0]);
	printf("The other parameters have their defaults, see 'penstock model %s --help'.\n",
	       m->name);
}

/* ---- JSON ---- */

static void value_json(struct json *j, const char *name, double value, const char *choices,
		       const char *unit)
{
	char text[64];

	if (choices && !isnan(value))
		json_text(j, name, model_value_text(value, choices, text, sizeof(text)));
	/* A result in the unit "count" may be an expected value, such as 8.9 evictions. */
	else if (pst_model_is_whole(unit) && fabs(value) < 9e15 && value == floor(value))
		json_int(j, name, (int64_t)value);
	else
		json_real(j, name, value);
}

static void params_json(struct json *j, const struct model_run *r)
{
	json_object(j, "parameters");
	for (unsigned i = 0; i < r->model->param_count; i++)
		value_json(j, r->model->params[i].name, r->in[i], r->model->params[i].choices,
			   r->model->params[i].unit);
	json_end(j);
}

static void results_json(struct json *j, const struct model_run *r)
{
	const struct pst_model *m = r->model;

	json_object(j, "results");
	for (unsigned i = 0; i < m->result_count; i++)
		value_json(j, m->results[i].name, r->out[i], m->results[i].choices,
			   m->results[i].unit);
	json_end(j);
}

static void units_json(struct json *j, const struct pst_model *m)
{
	json_object(j, "units");
	for (unsigned i = 0; i < m->param_count; i++)
		json_text(j, m->params[i].name, m->params[i].unit);
	for (unsigned i = 0; i < m->result_count; i++)
		if (pst_model_param_index(m, m->results[i].name) < 0)
			json_text(j, m->results[i].name, m->results[i].unit);
	json_end(j);
}

static void details_json(struct json *j, const struct model_run *r)
{
	const struct pst_model_space *s = r->space;
	const double *rates = s->simulated ? s->result.stream_bytes_per_s : s->closed;
	char name[32];

	json_array(j, "streams");
	for (unsigned i = 0; i < (unsigned)r->in[0]; i++)
		json_real(j, NULL, rates[i] * 1e-9);
	json_array_end(j);
	json_object(j, "links");
	for (unsigned i = 0; s->simulated && i < s->net.link_count; i++)
		if (s->result.link_use[i] > 0)
			json_real(j, pst_contention_link_name(&s->net.links[i], name, sizeof(name)),
				  s->result.link_use[i]);
	json_end(j);
}

static void head_json(struct json *j, const struct model_run *r)
{
	json_open(j, stdout);
	json_text(j, "model", r->model->name);
	json_text(j, "preset", r->preset);
}

void model_print_json(const struct model_columns *c)
{
	struct json j;

	head_json(&j, &c->runs[0]);
	params_json(&j, &c->runs[0]);
	results_json(&j, &c->runs[0]);
	units_json(&j, c->runs[0].model);
	if (has_details(c->runs[0].model) && c->count == 1)
		details_json(&j, &c->runs[0]);
	if (c->count > 1)
		json_object(&j, "compare");
	for (unsigned k = 1; k < c->count; k++) {
		json_object(&j, c->titles[k]);
		params_json(&j, &c->runs[k]);
		results_json(&j, &c->runs[k]);
		json_end(&j);
	}
	if (c->count > 1)
		json_end(&j);
	json_close(&j);
}

/* ---- CSV ---- */

static void value_csv(double value, const char *choices)
{
	char text[64];

	if (choices)
		printf("%s", model_value_text(value, choices, text, sizeof(text)));
	else if (isfinite(value))
		printf(value == floor(value) && fabs(value) < 1e15 ? "%.0f" : "%.9g", value);
}

void model_print_csv(const struct model_columns *c)
{
	const struct pst_model *m = c->runs[0].model;

	printf("name,unit");
	for (unsigned k = 0; k < c->count; k++)
		printf(c->count > 1 ? ",\"%s\"" : ",value", c->titles[k]);
	fputc('\n', stdout);
	for (unsigned i = 0; i < m->param_count + m->result_count; i++) {
		bool is_param = i < m->param_count;
		unsigned at = is_param ? i : i - m->param_count;

		printf("%s,%s", is_param ? m->params[at].name : m->results[at].name,
		       is_param ? m->params[at].unit : m->results[at].unit);
		for (unsigned k = 0; k < c->count; k++) {
			fputc(',', stdout);
			value_csv(is_param ? c->runs[k].in[at] : c->runs[k].out[at],
				  is_param ? m->params[at].choices : m->results[at].choices);
		}
		fputc('\n', stdout);
	}
}

/* ---- a sweep ---- */

/* shown_count returns the number of results to print. shown returns the index of the result in
 * column `i`. */
static unsigned shown_count(const struct model_points *p, unsigned without_choice)
{
	return p->result_count ? p->result_count : without_choice;
}

static unsigned shown(const struct model_points *p, unsigned i)
{
	return p->result_count ? p->results[i] : i;
}

void model_print_points_text(const struct model_run *r, const struct model_points *p)
{
	const struct pst_model *m = r->model;
	const struct pst_model_param *param = &m->params[p->sweep.param];
	unsigned count = shown_count(p, m->result_count < FEW ? m->result_count : FEW);
	char text[64];

	printf("%-*s", WIDE, param->name);
	for (unsigned i = 0; i < count; i++)
		printf(" %*s", NAMES, m->results[shown(p, i)].name);
	printf("\n%-*s", WIDE, unit_text(param->unit));
	for (unsigned i = 0; i < count; i++)
		printf(" %*s", NAMES, unit_text(m->results[shown(p, i)].unit));
	fputc('\n', stdout);
	for (unsigned k = 0; k < p->sweep.count; k++) {
		printf("%-*s", WIDE,
		       model_value_text(model_sweep_value(m, &p->sweep, k), NULL, text,
					sizeof(text)));
		for (unsigned i = 0; i < count; i++)
			printf(" %*s", NAMES,
			       model_value_text(p->outs[k][shown(p, i)],
						m->results[shown(p, i)].choices, text,
						sizeof(text)));
		fputc('\n', stdout);
	}
}

void model_print_points_csv(const struct model_run *r, const struct model_points *p)
{
	const struct pst_model *m = r->model;
	unsigned count = shown_count(p, m->result_count);

	printf("%s", m->params[p->sweep.param].name);
	for (unsigned i = 0; i < count; i++)
		printf(",%s", m->results[shown(p, i)].name);
	fputc('\n', stdout);
	for (unsigned k = 0; k < p->sweep.count; k++) {
		value_csv(model_sweep_value(m, &p->sweep, k), NULL);
		for (unsigned i = 0; i < count; i++) {
			fputc(',', stdout);
			value_csv(p->outs[k][shown(p, i)], m->results[shown(p, i)].choices);
		}
		fputc('\n', stdout);
	}
}

void model_print_points_json(const struct model_run *r, const struct model_points *p)
{
	const struct pst_model *m = r->model;
	unsigned count = shown_count(p, m->result_count);
	struct json j;

	head_json(&j, r);
	params_json(&j, r);
	units_json(&j, m);
	json_object(&j, "sweep");
	json_text(&j, "parameter", m->params[p->sweep.param].name);
	json_array(&j, "values");
	for (unsigned k = 0; k < p->sweep.count; k++)
		value_json(&j, NULL, model_sweep_value(m, &p->sweep, k), NULL,
			   m->params[p->sweep.param].unit);
	json_array_end(&j);
	json_object(&j, "results");
	for (unsigned i = 0; i < count; i++) {
		unsigned at = shown(p, i);

		json_array(&j, m->results[at].name);
		for (unsigned k = 0; k < p->sweep.count; k++)
			value_json(&j, NULL, p->outs[k][at], m->results[at].choices, "");
		json_array_end(&j);
	}
	json_end(&j);
	json_end(&j);
	json_close(&j);
}
