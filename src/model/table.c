/* SPDX-License-Identifier: Apache-2.0 */
/* Implements table.h: finds the parameters, results and presets of a model by name, and checks
 * whether values are in the range of their parameter. */
#include "table.h"

#include <math.h>
#include <string.h>

int pst_model_param_index(const struct pst_model *m, const char *name)
{
	for (unsigned i = 0; i < m->param_count; i++)
		if (!strcmp(m->params[i].name, name))
			return (int)i;
	return -1;
}

int pst_model_result_index(const struct pst_model *m, const char *name)
{
	for (unsigned i = 0; i < m->result_count; i++)
		if (!strcmp(m->results[i].name, name))
			return (int)i;
	return -1;
}

int pst_model_preset_index(const struct pst_model *m, const char *name)
{
	for (unsigned i = 0; i < m->preset_count; i++)
		if (!strcmp(m->presets[i].name, name))
			return (int)i;
	return -1;
}

void pst_model_defaults(const struct pst_model *m, double *in)
{
	for (unsigned i = 0; i < m->param_count; i++)
		in[i] = m->params[i].value;
}

bool pst_model_apply(const struct pst_model *m, const struct pst_model_setting *set, double *in)
{
	for (unsigned i = 0; i < PST_MODEL_SETTINGS && set[i].name; i++) {
		int at = pst_model_param_index(m, set[i].name);

		if (at < 0)
			return false;
		in[at] = set[i].value;
	}
	return true;
}

bool pst_model_is_whole(const char *unit)
{
	return !strcmp(unit, "bytes") || !strcmp(unit, "count");
}

bool pst_model_check(const struct pst_model_param *p, double value)
{
	if (p->choices)
		return value >= 0 && value == floor(value) &&
		       value < (double)pst_model_choice_count(p->choices);
	/* The negated condition also rejects NaN, because every comparison with NaN is false. */
	if (!(value >= p->min && value <= p->max))
		return false;
	return !pst_model_is_whole(p->unit) || value == floor(value);
}

const char *pst_model_choice(const char *choices, unsigned i, unsigned *len)
{
	for (; i; i--) {
		choices = strchr(choices, '|');
		if (!choices)
			return NULL;
		choices++;
	}
	*len = (unsigned)strcspn(choices, "|");
	return choices;
}

unsigned pst_model_choice_count(const char *choices)
{
	unsigned count = 1;

	for (; *choices; choices++)
		count += *choices == '|';
	return count;
}

int pst_model_choice_index(const char *choices, const char *word)
{
	unsigned len;
	const char *at;

	for (unsigned i = 0; (at = pst_model_choice(choices, i, &len)) != NULL; i++)
		if (strlen(word) == len && !strncmp(at, word, len))
			return (int)i;
	return -1;
}
