/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Exports the models of `penstock model` to JavaScript. The page that `penstock model --html`
 * writes runs them in the browser. tools/make-wasm compiles this file and src/model to the
 * WebAssembly module model.wasm. The scripts core.js and page.js call the exported functions. These
 * return a model's parameters, results and presets, or compute its results. They use only static
 * memory.
 */
#include <stddef.h>
#include <string.h>

#include "cases.h"
#include "contention.h"
#include "model.h"

#define EXPORT(name) __attribute__((export_name(#name), visibility("default")))

/* Arguments of part_count, part_text and param_number: `part` is a table of a model, `field` a text
 * of a table's row, `number` a value of a parameter. core.js passes them as numbers, so its lists
 * PARTS and FIELDS have the same order. */
enum part { PARAMS, RESULTS, PRESETS };
enum field { NAME, UNIT, CHOICES, ABOUT, SOURCE, FORMULA };
enum number { DEFAULT, MIN, MAX };

static double in[PST_MODEL_PARAMS], out[PST_MODEL_RESULTS];
static _Alignas(16) unsigned char memory[4 << 20];

static struct pst_model_space *space(void)
{
	return (struct pst_model_space *)(void *)memory;
}

static const char *or_empty(const char *text)
{
	return text ? text : "";
}

EXPORT(model_text) const char *model_text(unsigned model, unsigned field)
{
	const struct pst_model *m = pst_model_at(model);

	return !m ? "" : field == NAME ? m->name : m->summary;
}

EXPORT(part_count) unsigned part_count(unsigned model, unsigned part)
{
	const struct pst_model *m = pst_model_at(model);

	return part == PARAMS	 ? m->param_count
	       : part == RESULTS ? m->result_count
				 : m->preset_count;
}

static const char *param_text(const struct pst_model_param *p, unsigned field)
{
	switch (field) {
	case NAME:
		return p->name;
	case UNIT:
		return p->unit;
	case CHOICES:
		return or_empty(p->choices);
	case ABOUT:
		return p->about;
	default:
		return field == SOURCE ? p->source : "";
	}
}

static const char *result_text(const struct pst_model_result *r, unsigned field)
{
	switch (field) {
	case NAME:
		return r->name;
	case UNIT:
		return r->unit;
	case CHOICES:
		return or_empty(r->choices);
	case ABOUT:
		return r->about;
	case SOURCE:
		return r->source;
	default:
		return r->formula;
	}
}

EXPORT(part_text) const char *part_text(unsigned model, unsigned part, unsigned i, unsigned field)
{
	const struct pst_model *m = pst_model_at(model);

	if (part == PARAMS)
		return param_text(&m->params[i], field);
	if (part == RESULTS)
		return result_text(&m->results[i], field);
	return field == NAME	? m->presets[i].name
	       : field == ABOUT ? m->presets[i].about
				: m->presets[i].source;
}

EXPORT(param_number) double param_number(unsigned model, unsigned i, unsigned number)
{
	const struct pst_model_param *p = &pst_model_at(model)->params[i];

	return number == DEFAULT ? p->value : number == MIN ? p->min : p->max;
}

EXPORT(input) double *input(void)
{
	return in;
}

EXPORT(output) double *output(void)
{
	return out;
}

/* Writes the default of each parameter of the model to the array `in`, and then the values that
 * preset number `preset` sets. With preset -1, all parameters have their defaults. */
EXPORT(model_preset) void model_preset(unsigned model, int preset)
{
	const struct pst_model *m = pst_model_at(model);

	pst_model_defaults(m, in);
	if (preset >= 0)
		pst_model_apply(m, m->presets[preset].set, in);
}

/* Returns 1 if parameter number `i` of the model allows the value, and 0 if the value is out of
 * range, or not whole where the parameter's unit requires it. */
EXPORT(param_check) int param_check(unsigned model, unsigned i, double value)
{
	return pst_model_check(&pst_model_at(model)->params[i], value);
}

/* Runs a model with the parameters in the array `in`, and writes its results to the array `out`.
 * Returns "", or the error message of a model that cannot run with these parameters. */
EXPORT(model_run) const char *model_run(unsigned model)
{
	if (pst_model_space_bytes() > sizeof(memory))
		return "the page has too little memory";
	return or_empty(pst_model_at(model)->run(in, out, space()));
}

/* ---- the details of the last run of the model `contention` ---- */

EXPORT(link_count) unsigned link_count(void)
{
	return space()->net.link_count;
}

EXPORT(link_name) const char *link_name(unsigned i)
{
	static char name[32];

	return pst_contention_link_name(&space()->net.links[i], name, sizeof(name));
}

EXPORT(link_kind) unsigned link_kind(unsigned i)
{
	return space()->net.links[i].kind;
}

/* Returns the share of the simulated time in which link `i` was busy, from 0 to 1. Returns -1 if
 * the last run computed the streams' bandwidth only with a formula, without a simulation. */
EXPORT(link_use) double link_use(unsigned i)
{
	return space()->simulated ? space()->result.link_use[i] : -1;
}

EXPORT(stream_hops) unsigned stream_hops(unsigned stream)
{
	return space()->net.streams[stream].hops;
}

EXPORT(stream_hop) unsigned stream_hop(unsigned stream, unsigned hop)
{
	return space()->net.streams[stream].path[hop];
}

EXPORT(stream_rate) double stream_rate(unsigned stream)
{
	const struct pst_model_space *s = space();

	return s->simulated ? s->result.stream_bytes_per_s[stream] : s->closed[stream];
}

/* ---- published figures ---- */

enum case_field { CASE_MODEL, CASE_CLAIM, CASE_RESULT, CASE_NOTE };

EXPORT(case_count) unsigned case_count(void)
{
	unsigned n = 0;

	while (pst_model_case_at(n))
		n++;
	return n;
}

EXPORT(case_text) const char *case_text(unsigned i, unsigned field)
{
	const struct pst_model_case *c = pst_model_case_at(i);

	switch (field) {
	case CASE_MODEL:
		return c->model;
	case CASE_CLAIM:
		return c->claim;
	case CASE_RESULT:
		return c->result;
	default:
		return or_empty(c->note);
	}
}

/* Runs a model with the inputs of published figure number `i`. Writes the model's result to out[0],
 * and the lowest and highest value that confirm the figure to out[1] and out[2]. Returns 1 if the
 * result is in this range, 0 if it is not, and -1 if the model cannot run. */
EXPORT(case_run) int case_run(unsigned i)
{
	const struct pst_model_case *c = pst_model_case_at(i);
	bool follows;

	if (pst_model_case_run(c, &out[0], &follows, space()))
		return -1;
	out[1] = c->low;
	out[2] = c->high;
	return follows;
}
