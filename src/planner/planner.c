/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements penstock_model.h, the C API to the models in src/model. A model only computes, so this
 * code must never transfer bytes or open a device.
 */
#include "penstock_model.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "core/base/err.h"
#include "model/contention.h"
#include "model/model.h"
#include "planner/value.h"

/* Size in bytes of the buffer for one setting NAME=VALUE, with its terminating NUL. */
#define SETTING_MAX 128

static const struct pst_model *model_named(const char *name)
{
	const struct pst_model *m = name ? pst_model_find(name) : NULL;

	if (!m)
		pst_fail(NULL, PENSTOCK_WHY_BAD_ARGUMENT,
			 "there is no model '%s': 'penstock model' lists the models",
			 name ? name : "");
	return m;
}

/* Sets the error that the model has no parameter, result or preset `name`. `kind` says which of the
 * three words the message uses. Returns a negative errno value. */
static int name_wrong(const struct pst_model *m, const char *kind, const char *name)
{
	return pst_fail(NULL, PENSTOCK_WHY_BAD_ARGUMENT,
			"the model %s has no %s '%s': see 'penstock model %s --help'", m->name,
			kind, name, m->name);
}

/* Writes the value of one setting NAME=VALUE or preset=NAME to the parameters `in`. Replaces the
 * "=" in `text` by a NUL. Returns 0 or a negative errno value. */
static int setting_apply(const struct pst_model *m, char *text, double *in)
{
	char *value = strchr(text, '=');
	int at;

	if (!value)
		return pst_fail(NULL, PENSTOCK_WHY_BAD_ARGUMENT,
				"'%s' is no setting: give NAME=VALUE", text);
	*value++ = '\0';
	if (!strcmp(text, "preset")) {
		at = pst_model_preset_index(m, value);
		if (at < 0)
			return name_wrong(m, "preset", value);
		pst_model_apply(m, m->presets[at].set, in);
		return 0;
	}
	at = pst_model_param_index(m, text);
	if (at < 0)
		return name_wrong(m, "parameter", text);
	if (!pst_model_value_parse(&m->params[at], value, &in[at]))
		return pst_fail(NULL, PENSTOCK_WHY_BAD_ARGUMENT,
				"'%s' is no value of %s: 'penstock model %s --help' has its range",
				value, text, m->name);
	return 0;
}

static int settings_apply(const struct pst_model *m, const char *settings, double *in)
{
	char one[SETTING_MAX];
	int ret = 0;

	while (!ret && settings && *settings) {
		size_t len = strcspn(settings, ",");

		if (len >= sizeof(one))
			return pst_fail(NULL, PENSTOCK_WHY_BAD_ARGUMENT,
					"a setting has %zu characters: shorten it to %d", len,
					SETTING_MAX - 1);
		memcpy(one, settings, len);
		one[len] = '\0';
		ret = setting_apply(m, one, in);
		settings += len;
		if (*settings == ',' && !*++settings)
			return pst_fail(NULL, PENSTOCK_WHY_BAD_ARGUMENT,
					"a setting is missing after the last comma");
	}
	return ret;
}

int penstock_model_run(const char *model, const char *settings, const char *const *names,
		       double *values, unsigned count)
{
	const struct pst_model *m = model_named(model);
	double in[PST_MODEL_PARAMS], out[PST_MODEL_RESULTS];
	struct pst_model_space *space;
	const char *wrong;
	int ret;

	if (!m)
		return -EINVAL;
	if (count && (!names || !values))
		return pst_fail_null(names ? "the array for the results" : "the array of names");
	for (unsigned i = 0; i < count; i++)
		if (!names[i] || pst_model_result_index(m, names[i]) < 0)
			return name_wrong(m, "result", names[i] ? names[i] : "");
	pst_model_defaults(m, in);
	ret = settings_apply(m, settings, in);
	if (ret)
		return ret;
	space = calloc(1, pst_model_space_bytes());
	if (!space)
		return pst_fail(NULL, PENSTOCK_WHY_NO_MEMORY, "no memory for the model %s", model);
	wrong = m->run(in, out, space);
	free(space);
	if (wrong)
		return pst_fail(NULL, PENSTOCK_WHY_BAD_ARGUMENT, "%s: %s", model, wrong);
	for (unsigned i = 0; i < count; i++)
		values[i] = out[pst_model_result_index(m, names[i])];
	return 0;
}

int penstock_model_word(const char *model, const char *name, double value, char *buf, size_t size)
{
	const struct pst_model *m = model_named(model);
	const char *word = NULL;
	unsigned len = 0;
	int at;

	if (!m)
		return -EINVAL;
	if (!buf)
		return pst_fail_null("the memory for the word");
	at = name ? pst_model_result_index(m, name) : -1;
	if (at < 0)
		return name_wrong(m, "result", name ? name : "");
	if (m->results[at].choices && value >= 0 && value < PST_MODEL_PARAMS)
		word = pst_model_choice(m->results[at].choices, (unsigned)value, &len);
	if (!word)
		return pst_fail(NULL, PENSTOCK_WHY_BAD_ARGUMENT, "%s of %s has no word for %g",
				name, model, value);
	if (len >= size)
		return pst_fail_errno(NULL, ENOSPC, PENSTOCK_WHY_BAD_ARGUMENT,
				      "the word of %s needs %u bytes", name, len + 1);
	memcpy(buf, word, len);
	buf[len] = '\0';
	return 0;
}
