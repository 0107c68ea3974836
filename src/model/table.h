/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tables of the planner. A model predicts how fast a storage path is before it exists: it is a
 * pure function from parameters to results, described by two tables. The command `penstock model`,
 * its help, its JSON and its HTML page all read these tables, so that each fact exists once.
 *
 * The code in src/model makes no system call and allocates no memory. It uses only <math.h> and
 * <string.h>, because tools/make-wasm also compiles it to WebAssembly for the page. models.h lists
 * the models with their formulas.
 */
#ifndef PST_MODEL_TABLE_H
#define PST_MODEL_TABLE_H

#include <stdbool.h>

/* Largest number of parameters and of results of a model. */
#define PST_MODEL_PARAMS 40
#define PST_MODEL_RESULTS 32
#define PST_MODEL_SETTINGS 12

struct pst_model_param {
	const char *name;
	/* Unit of the value. "bytes" and "count" mean whole numbers; "" means a choice or a ratio
	 * without a unit. */
	const char *unit;
	/* The words of a choice, separated by '|'; the value is then the index of a word. NULL if
	 * the parameter is a number. */
	const char *choices;
	double value, min, max; /* default and range; a choice needs no range */
	const char *about;	/* meaning, as a sentence without a full stop */
	const char *source;	/* origin of the default */
};

struct pst_model_result {
	/* name, unit and choices, with the same meaning as for a parameter */
	const char *name, *unit, *choices;
	const char *about;
	const char *formula; /* formula, written with the names of parameters and other results */
	const char *source;  /* origin of the formula */
};

struct pst_model_setting {
	const char *name;
	double value;
};

/* A named set of parameters, for example a machine or a benchmark. */
struct pst_model_preset {
	const char *name, *about, *source;
	struct pst_model_setting set[PST_MODEL_SETTINGS]; /* ends with a NULL name */
};

/* Memory of the simulator, which the caller allocates; see contention.h. */
struct pst_model_space;

struct pst_model {
	const char *name, *summary;
	const struct pst_model_param *params;
	const struct pst_model_result *results;
	const struct pst_model_preset *presets;
	unsigned param_count, result_count, preset_count;
	/*
	 * Computes `out` (result_count values) from `in` (param_count values). A result is NaN if
	 * it has no meaning for these parameters. Returns NULL, or a message if the parameters
	 * contradict each other. Every value of `in` must have passed pst_model_check.
	 */
	const char *(*run)(const double *in, double *out, struct pst_model_space *space);
};

/* Return the index of a parameter, result or preset of a model, or -1 if the model has none of
 * this name. */
int pst_model_param_index(const struct pst_model *m, const char *name);
int pst_model_result_index(const struct pst_model *m, const char *name);
int pst_model_preset_index(const struct pst_model *m, const char *name);

/* Writes the default of each parameter to `in`. */
void pst_model_defaults(const struct pst_model *m, double *in);
/* Copies settings to `in`. Returns false if the model lacks a parameter that a setting names. */
bool pst_model_apply(const struct pst_model *m, const struct pst_model_setting *set, double *in);
/* Returns whether a parameter may have this value: the value must be in the parameter's range, and
 * whole if the unit requires that. */
bool pst_model_check(const struct pst_model_param *p, double value);
/* Returns whether values of this unit are whole numbers. */
bool pst_model_is_whole(const char *unit);
/* Returns the number of words in a list of choices. */
unsigned pst_model_choice_count(const char *choices);
/* Finds word number `i` of a list of choices. Returns its start and stores its length, or returns
 * NULL if the list is shorter. */
const char *pst_model_choice(const char *choices, unsigned i, unsigned *len);
/* Returns the index of a word in a list of choices, or -1. */
int pst_model_choice_index(const char *choices, const char *word);

#endif
