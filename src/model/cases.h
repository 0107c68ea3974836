/* SPDX-License-Identifier: Apache-2.0 */
/* Published figures, with the verdict of the models. */
#ifndef PST_MODEL_CASES_H
#define PST_MODEL_CASES_H

#include "table.h"

/*
 * A published figure with the inputs that its publisher gave. The figure follows if the model,
 * with these inputs, gives a result from `low` to `high`.
 */
struct pst_model_case {
	const char *model, *name, *claim, *note;
	struct pst_model_setting set[PST_MODEL_SETTINGS];
	const char *result;
	double low, high;
};

/* Returns published figure number `i`, or NULL after the last one. */
const struct pst_model_case *pst_model_case_at(unsigned i);
/* Runs the model with the inputs of a published figure. Stores its result, and whether the
 * published figure follows. Returns NULL, or the message of an error. */
const char *pst_model_case_run(const struct pst_model_case *c, double *value, bool *follows,
			       struct pst_model_space *space);

#endif
