/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fits free parameters of a model to measurements. The error of a measurement is the logarithm of
 * predicted over measured value. The method of Nelder and Mead (1965) minimises the sum of the
 * squared errors. It varies the logarithms of the parameters.
 */
#ifndef PST_MODEL_FIT_H
#define PST_MODEL_FIT_H

#include "table.h"

#define PST_FIT_FREE 6
#define PST_FIT_SET 4

/* One measurement: a result of the model, with some of the model's parameters. */
struct pst_fit_point {
	unsigned param[PST_FIT_SET];
	double value[PST_FIT_SET]; /* values of the parameters in `param` */
	unsigned set_count, result;
	double measured;
};

struct pst_fit {
	const struct pst_model *model;
	double in[PST_MODEL_PARAMS]; /* all parameters; the fit changes the free ones */
	unsigned free[PST_FIT_FREE], free_count;
	const struct pst_fit_point *points;
	unsigned point_count;
	struct pst_model_space *space;
};

/* Returns the model's value for a point, or NaN if the model rejects the parameters. */
double pst_fit_predict(const struct pst_fit *f, const struct pst_fit_point *p);
/* Fits the free parameters to all points except point number `without` (-1: no exception). Returns
 * the root mean square of ln(predicted / measured), or NaN if the model rejects all parameters. */
double pst_fit_run(struct pst_fit *f, int without);

#endif
