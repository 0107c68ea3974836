/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the values of `penstock model` and runs a model with them. */
#include "model_setting.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "args.h"
#include "model_json.h"
#include "planner/value.h"

#define WORD_MAX 128

/* Prints an error that says which values the parameter may have. Returns false. */
static bool value_wrong(const struct pst_model_param *p, const char *option, const char *text)
{
	char words[256];
	size_t at = 0;

	if (!p->choices) {
		fail(EXIT_USAGE, "%s '%s': give %s%s%s from %.9g to %.9g", option, text,
		     pst_model_is_whole(p->unit) ? "a whole number" : "a number",
		     *p->unit && strcmp(p->unit, "count") != 0 ? " in " : "",
		     strcmp(p->unit, "count") != 0 ? p->unit : "", p->min, p->max);
		return false;
	}
	for (const char *c = p->choices; *c && at + 3 < sizeof(words); c++) {
		if (*c != '|') {
			words[at++] = *c;
			continue;
		}
		words[at++] = ',';
		words[at++] = ' ';
	}
	words[at] = '\0';
	fail(EXIT_USAGE, "%s '%s': give one of %s", option, text, words);
	return false;
}

bool model_value_parse(const struct pst_model_param *p, const char *option, const char *text,
		       double *out)
{
	return pst_model_value_parse(p, text, out) || value_wrong(p, option, text);
}

const char *model_value_text(double value, const char *choices, char *buf, size_t len)
{
	unsigned word_len = 0;
	const char *word = NULL;

	if (isnan(value))
		snprintf(buf, len, "-");
	else if (choices && (word = pst_model_choice(choices, (unsigned)value, &word_len)))
		snprintf(buf, len, "%.*s", (int)word_len, word);
	else if (fabs(value) >= 1e6 && fabs(value) < 1e15 && value == floor(value))
		snprintf(buf, len, "%.0f", value);
	else
		snprintf(buf, len, "%.6g", value);
	return buf;
}

/* Prints that the model has no parameter, result or preset (`kind`) of this name, and suggests a
 * similar name. Returns -1. */
static int name_wrong(const struct pst_model *m, const char *option, const char *kind,
		      const char *name, const char *const *names)
{
	const char *similar = closest(name, names);

	if (similar)
		return fail(-1, "%s: %s has no %s '%s', did you mean '%s'?", option, m->name, kind,
			    name, similar);
	return fail(-1, "%s: %s has no %s '%s', see 'penstock model %s --help'", option, m->name,
		    kind, name, m->name);
}

int model_param_find(const struct pst_model *m, const char *option, const char *name)
{
	const char *names[PST_MODEL_PARAMS + 1];
	int at = pst_model_param_index(m, name);

	if (at >= 0)
		return at;
	for (unsigned i = 0; i < m->param_count; i++)
		names[i] = m->params[i].name;
	names[m->param_count] = NULL;
	return name_wrong(m, option, "parameter", name, names);
}

int model_result_find(const struct pst_model *m, const char *option, const char *name)
{
	const char *names[PST_MODEL_RESULTS + 1];
	int at = pst_model_result_index(m, name);

	if (at >= 0)
		return at;
	for (unsigned i = 0; i < m->result_count; i++)
		names[i] = m->results[i].name;
	names[m->result_count] = NULL;
	return name_wrong(m, option, "result", name, names);
}

bool model_preset_apply(struct model_run *r, const char *option, const char *name)
{
	const struct pst_model *m = r->model;
	const char *names[32];
	int at = pst_model_preset_index(m, name);
	unsigned n = 0;

	if (at < 0) {
		for (; n < m->preset_count && n < 31; n++)
			names[n] = m->presets[n].name;
		names[n] = NULL;
		name_wrong(m, option, "preset", name, names);
		return false;
	}
	r->preset = m->presets[at].name;
	for (n = 0; n < PST_MODEL_SETTINGS && m->presets[at].set[n].name; n++) {
		const struct pst_model_setting *set = &m->presets[at].set[n];
		int param = pst_model_param_index(m, set->name);

		r->in[param] = set->value;
		r->given[param] = true;
	}
	return true;
}

/* Copies the text up to `end` to `out` (WORD_MAX bytes). Returns false if it is too long. */
static bool word_copy(const char *text, const char *end, char *out)
{
	size_t len = (size_t)(end - text);

	if (len >= WORD_MAX)
		return false;
	memcpy(out, text, len);
	out[len] = '\0';
	return true;
}

static bool setting_parse(struct model_run *r, const char *option, const char *text)
{
	const char *equals = strchr(text, '=');
	char name[WORD_MAX];
	int at;

	if (!equals || !word_copy(text, equals, name)) {
		fail(EXIT_USAGE, "%s '%s': give NAME=VALUE, or several with commas", option, text);
		return false;
	}
	if (!strcmp(name, "preset"))
		return model_preset_apply(r, option, equals + 1);
	at = model_param_find(r->model, option, name);
	if (at < 0 || !model_value_parse(&r->model->params[at], option, equals + 1, &r->in[at]))
		return false;
	r->given[at] = true;
	return true;
}

bool model_settings_parse(struct model_run *r, const char *option, const char *text)
{
	char one[WORD_MAX];

	do {
		size_t len = strcspn(text, ",");

		if (!word_copy(text, text + len, one)) {
			fail(EXIT_USAGE, "%s: a setting is too long: shorten it", option);
			return false;
		}
		if (!setting_parse(r, option, one))
			return false;
		text += len;
	} while (*text++ == ',');
	return true;
}

/* Returns the next word of the line, and moves *line behind it. Returns NULL if there is none. */
static char *word_cut(char **line)
{
	char *word = *line + strspn(*line, " \t\r");

	*line = word + strcspn(word, " \t\r");
	if (**line)
		*(*line)++ = '\0';
	return *word ? word : NULL;
}

int model_table_apply(struct model_run *r, const char *path, const char *name)
{
	size_t len;
	char *text = model_file_read(path, &len), *line = text, *next;
	int found = text ? 0 : -1;

	for (unsigned number = 1; !found && line; line = next, number++) {
		char *model, *preset, *settings;

		next = strchr(line, '\n');
		if (next)
			*next++ = '\0';
		line[strcspn(line, "#")] = '\0';
		model = word_cut(&line);
		preset = word_cut(&line);
		settings = word_cut(&line);
		if (model && (!settings || word_cut(&line)))
			found = fail(-1, "%s: line %u: give MODEL PRESET NAME=VALUE,...", path,
				     number);
		else if (model && !strcmp(model, r->model->name) && !strcmp(preset, name))
			found = model_settings_parse(r, path, settings) ? 1 : -1;
	}
	free(text);
	return found;
}

bool model_sweep_parse(const struct pst_model *m, const char *text, struct model_sweep *out)
{
	const char *equals = strchr(text, '=');
	char word[WORD_MAX], *from, *to, *count, *log;
	uint64_t n;

	if (!equals || !word_copy(text, equals, word))
		return fail(EXIT_USAGE, "--sweep '%s': give NAME=FROM:TO:COUNT", text), false;
	out->param = model_param_find(m, "--sweep", word);
	if (out->param < 0)
		return false;
	if (m->params[out->param].choices)
		return fail(EXIT_USAGE,
			    "--sweep: %s is a choice, compare its values with --compare", word),
		       false;
	if (!word_copy(equals + 1, equals + 1 + strlen(equals + 1), word))
		word[0] = '\0';
	from = word;
	to = strchr(from, ':');
	count = to ? strchr(to + 1, ':') : NULL;
	log = count ? strchr(count + 1, ':') : NULL;
	if (!count || (log && strcmp(log, ":log") != 0))
		return fail(EXIT_USAGE, "--sweep '%s': give NAME=FROM:TO:COUNT, or with ':log'",
			    text),
		       false;
	*to++ = *count++ = '\0';
	if (log)
		*log = '\0';
	out->log = log != NULL;
	if (!model_value_parse(&m->params[out->param], "--sweep", from, &out->from) ||
	    !model_value_parse(&m->params[out->param], "--sweep", to, &out->to))
		return false;
	if (!parse_number(count, 2, 10000, &n))
		return fail(EXIT_USAGE, "--sweep: '%s' values: give 2 to 10000", count), false;
	if (out->log && !(out->from > 0 && out->to > 0))
		return fail(EXIT_USAGE, "--sweep with ':log' needs values above 0"), false;
	out->count = (unsigned)n;
	return true;
}

double model_sweep_value(const struct pst_model *m, const struct model_sweep *s, unsigned i)
{
	double part = (double)i / (s->count - 1), value;

	if (!i || i + 1 == s->count)
		return i ? s->to : s->from;
	value = s->log ? s->from * pow(s->to / s->from, part) : s->from + (s->to - s->from) * part;
	return pst_model_is_whole(m->params[s->param].unit) ? round(value) : value;
}

int model_run(struct model_run *r)
{
	const char *wrong = r->topo ? model_topo_build(r->topo, r->model, r->in, r->space) : NULL;

	if (!wrong)
		wrong = r->model->run(r->in, r->out, r->space);
	return wrong ? fail(EXIT_USAGE, "%s: %s", r->model->name, wrong) : 0;
}
