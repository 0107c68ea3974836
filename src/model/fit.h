/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fits parameters of a model to measurements. The fit varies some of the parameters, the "free"
 * ones, until the model predicts the measurements best. The error of a prediction is ln(predicted /
 * measured). The method of Nelder and Mead (1965) minimises the mean of the squared errors. It
 * varies the logarithms of the free parameters.
 */
#ifndef PST_MODEL_FIT_H
#define PST_MODEL_FIT_H

#include "table.h"

#define PST_FIT_FREE 6
#define PST_FIT_SET 4

/* One measurement: `measured` is the value of the model's result number `result`. `value` has the
 * parameters that are known for this measurement, and `param` has their numbers in the model. */
struct pst_fit_point {
	unsigned param[PST_FIT_SET];
	double value[PST_FIT_SET];
	unsigned set_count, result;
	double measured;
};

struct pst_fit {
	const struct pst_model *model;
	/* Values of all parameters. The fit changes those whose numbers are in `free`. */
	double in[PST_MODEL_PARAMS];
	unsigned free[PST_FIT_FREE], free_count;
	const struct pst_fit_point *points;
	unsigned point_count;
	struct pst_model_space *space;
};

/* Returns the model's prediction for the measurement `p`. It uses the parameters in f->in, replaced
 * by those that `p` sets. Returns NaN if the model rejects the parameters. */
double pst_fit_predict(const struct pst_fit *f, const struct pst_fit_point *p);
/* Fits the free parameters to all measurements except number `without`, or to all if `without` is
 * -1. Stores the fitted values in f->in. Returns the root mean square of ln(predicted / measured).
 * Returns NaN if the model rejects every set of parameters that the fit tries. */
double pst_fit_run(struct pst_fit *f, int without);

#endif
