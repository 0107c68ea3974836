/* SPDX-License-Identifier: Apache-2.0 */
/* Lists figures that others have published, such as a bandwidth. Checks with a model whether the
 * inputs that the publisher gave lead to the figure. */
#ifndef PST_MODEL_CASES_H
#define PST_MODEL_CASES_H

#include "table.h"

/*
 * A published figure. `claim` states it in words. `set` has the inputs that its publisher gave.
 * With these inputs, the model named `model` computes its result named `result`. If this result is
 * from `low` to `high`, the figure "follows" from its inputs: the model confirms it. If not, `note`
 * says why.
 */
struct pst_model_case {
	const char *model, *name, *claim, *note;
	struct pst_model_setting set[PST_MODEL_SETTINGS];
	const char *result;
	double low, high;
};

/* Returns published figure number `i`, from 0. Returns NULL after the last figure. */
const struct pst_model_case *pst_model_case_at(unsigned i);
/* Runs the model of the published figure `c` with the publisher's inputs, and stores its result in
 * *value. Sets *follows to true if this result is from c->low to c->high, and to false otherwise.
 * Returns NULL, or an error message if the model cannot run. */
const char *pst_model_case_run(const struct pst_model_case *c, double *value, bool *follows,
			       struct pst_model_space *space);

#endif
