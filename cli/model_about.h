/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the tables of the models: the list, the help, and figures that others have published. */
#ifndef PENSTOCK_CLI_MODEL_ABOUT_H
#define PENSTOCK_CLI_MODEL_ABOUT_H

#include <stdbool.h>
#include <stdio.h>

#include "json.h"
#include "model.h"

/* Prints figures that others have published for a model (NULL: for all models), each with the
 * verdict whether the model yields it. Returns 0 or an exit code. */
int model_print_cases(const struct pst_model *m, struct pst_model_space *space, bool json);
/* Prints all models with their summaries. */
void model_print_list(bool json);
/* Writes the help of a model to `f`: parameters, results and presets with their sources. */
void model_print_help(FILE *f, const struct pst_model *m);
/* Writes the tables of a model as JSON: all facts that a program needs to show the model's
 * parameters to a user and to parse their values. */
void model_print_tables(struct json *j, const struct pst_model *m);

#endif
