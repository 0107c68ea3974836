/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Settings of a model as `penstock model` gets them from its options: values, presets, a sweep and
 * comparisons. Also runs a model with a setting.
 */
#ifndef PENSTOCK_CLI_MODEL_SETTING_H
#define PENSTOCK_CLI_MODEL_SETTING_H

#include <stdbool.h>
#include <stddef.h>

#include "model.h"
#include "model_topo.h"

struct model_run {
	const struct pst_model *model;
	double in[PST_MODEL_PARAMS], out[PST_MODEL_RESULTS];
	bool given[PST_MODEL_PARAMS]; /* set by an option or a preset */
	const char *preset;	      /* name, or NULL */
	struct pst_model_space *space;
	/* the machine, read from the file of --topo; NULL: parameters describe the machine */
	const struct model_topo *topo;
};

struct model_sweep {
	int param; /* -1: no sweep */
	double from, to;
	unsigned count;
	bool log; /* whether successive values have equal ratios; else equal differences */
};

/* Parses the value of a parameter. Prints an error that begins with `option`. */
bool model_value_parse(const struct pst_model_param *p, const char *option, const char *text,
		       double *out);
/* Writes a value as text: a word for a choice, otherwise a number. "-" stands for no value. */
const char *model_value_text(double value, const char *choices, char *buf, size_t len);
/* Returns the parameter or result of this name, or -1 after an error message. */
int model_param_find(const struct pst_model *m, const char *option, const char *name);
int model_result_find(const struct pst_model *m, const char *option, const char *name);
/* Sets the parameters of a preset. Returns false after an error message. */
bool model_preset_apply(struct model_run *r, const char *option, const char *name);
/* Looks a preset up in a table of the user, whose lines are "MODEL PRESET NAME=VALUE,...", and sets
 * its parameters. Returns 1 if the table has the preset, 0 if not, -1 after an error message. */
int model_table_apply(struct model_run *r, const char *path, const char *name);
/* Parses "NAME=VALUE,NAME=VALUE" and sets these parameters. A name may also be "preset". After an
 * error prints a message and returns false. */
bool model_settings_parse(struct model_run *r, const char *option, const char *text);
/* Parses "name=from:to:count" or "name=from:to:count:log". After an error prints a message and
 * returns false. */
bool model_sweep_parse(const struct pst_model *m, const char *text, struct model_sweep *out);
/* Returns value number `i` of a sweep. */
double model_sweep_value(const struct pst_model *m, const struct model_sweep *s, unsigned i);
/* Runs the model. Returns 0, or an exit code after an error message. */
int model_run(struct model_run *r);

#endif
