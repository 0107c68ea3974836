/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declares the tables that describe a model. A model predicts how fast a storage system will be, or
 * what it costs, before somebody builds it. It is a pure function from parameters to results. One
 * table describes the parameters, and another one the results. The command `penstock model`, its
 * help, its JSON and its HTML page all read these tables, so that the descriptions exist only once.
 *
 * The code in src/model makes no system call and allocates no memory. It uses only <math.h> and
 * <string.h>, because tools/make-wasm also compiles it to WebAssembly for the page. models.h lists
 * the models with their formulas.
 */
#ifndef PST_MODEL_TABLE_H
#define PST_MODEL_TABLE_H

#include <stdbool.h>

/* Largest number of parameters of a model, of its results, and of the settings in a preset. */
#define PST_MODEL_PARAMS 40
#define PST_MODEL_RESULTS 32
#define PST_MODEL_SETTINGS 12

struct pst_model_param {
	const char *name;
	/* Unit of the value, such as "GB/s". Values in "bytes" or "count" are whole numbers. A
	 * choice has the unit "". */
	const char *unit;
	/* If the parameter is a choice between words: the words, separated by '|'. The value is
	 * then the index of a word. NULL if the parameter is a number. */
	const char *choices;
	double value, min, max; /* default and allowed range; a choice needs no range */
	const char *about;	/* meaning of the parameter, as a phrase without a full stop */
	const char *source;	/* where the default comes from, such as "data sheets" */
};

struct pst_model_result {
	/* name, unit and choices have the same meaning as in struct pst_model_param */
	const char *name, *unit, *choices;
	const char *about;
	const char *formula; /* text that uses the names of parameters and of other results */
	const char *source;  /* where the formula comes from, such as a publication */
};

struct pst_model_setting {
	const char *name;
	double value;
};

/* A named set of parameter values, for example those of a machine or a benchmark. */
struct pst_model_preset {
	const char *name, *about, *source;
	/* the values; after the last one, the name is NULL, unless the array is full */
	struct pst_model_setting set[PST_MODEL_SETTINGS];
};

/* Memory that the caller of a model allocates. Only the model `contention` uses it, for its
 * simulator. contention.h declares its members. */
struct pst_model_space;

struct pst_model {
	const char *name, *summary;
	const struct pst_model_param *params;
	const struct pst_model_result *results;
	const struct pst_model_preset *presets;
	unsigned param_count, result_count, preset_count;
	/*
	 * Computes the results `out` (result_count values) from the parameters `in` (param_count
	 * values). A result is NaN if it has no meaning for these parameters. Returns NULL, or an
	 * error message if the parameters contradict each other. The caller must first check every
	 * value of `in` with pst_model_check.
	 */
	const char *(*run)(const double *in, double *out, struct pst_model_space *space);
};

/* Return the index of the parameter, result or preset with this name in the model's tables, or -1
 * if the model has none. */
int pst_model_param_index(const struct pst_model *m, const char *name);
int pst_model_result_index(const struct pst_model *m, const char *name);
int pst_model_preset_index(const struct pst_model *m, const char *name);

/* Writes the default of each of the model's parameters to the array `in`. */
void pst_model_defaults(const struct pst_model *m, double *in);
/* Writes the values in `set` to those entries of `in` whose parameters they name. Returns false if
 * the model lacks one of these parameters. */
bool pst_model_apply(const struct pst_model *m, const struct pst_model_setting *set, double *in);
/* Returns whether the parameter `p` allows this value: the value is in the parameter's range, and
 * it is a whole number if the unit requires that. */
bool pst_model_check(const struct pst_model_param *p, double value);
/* Returns whether values of this unit must be whole numbers: true for "bytes" and "count". */
bool pst_model_is_whole(const char *unit);
/* Returns the number of words in a list of choices, such as 2 for "none|present". */
unsigned pst_model_choice_count(const char *choices);
/* Returns the start of word number `i` (from 0) in a list of choices such as "none|present", and
 * stores its length in *len. Returns NULL if the list has no such word. */
const char *pst_model_choice(const char *choices, unsigned i, unsigned *len);
/* Returns the number of a word in a list of choices, from 0, or -1 if the list lacks the word. */
int pst_model_choice_index(const char *choices, const char *word);

#endif
