/* SPDX-License-Identifier: Apache-2.0 */
/* Fits a model to measurements: `penstock model --calibrate`. */
#ifndef PENSTOCK_CLI_MODEL_FIT_H
#define PENSTOCK_CLI_MODEL_FIT_H

#include "model_data.h"
#include "model_setting.h"

/*
 * Fits the parameters that `free_text` lists, separated by commas (NULL: the usual ones of the
 * model), and prints them with the errors. r->in has the other parameters. Returns 0 or an exit
 * code.
 */
int model_calibrate(struct model_run *r, const struct model_measures *data, const char *free_text,
		    bool json);

#endif
