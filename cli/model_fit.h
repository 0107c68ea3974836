/* SPDX-License-Identifier: Apache-2.0 */
/* Fits a model to measurements: `penstock model --calibrate`. */
#ifndef PENSTOCK_CLI_MODEL_FIT_H
#define PENSTOCK_CLI_MODEL_FIT_H

#include "model_data.h"
#include "model_setting.h"

/*
 * Fits parameters of a model to measurements, and prints them with the errors. `free_text` lists
 * the parameters to fit, separated by commas; if it is NULL, the usual parameters of the model are
 * fitted. All others keep their values in r->in. The model `pipeline` is fitted to the measurements
 * of each path separately. Returns 0 or an exit code.
 */
int model_calibrate(const struct model_run *r, const struct model_measures *data,
		    const char *free_text, bool json);

#endif
