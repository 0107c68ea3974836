/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the values of the planner's parameters, for the library and for the command. */
#ifndef PST_PLANNER_VALUE_H
#define PST_PLANNER_VALUE_H

#include <stdbool.h>

#include "model/table.h"

/* Parses a value: a word of a choice, or a number, which may have a unit if it is a number of
 * bytes. Returns false if `text` is no such value or the value is out of the parameter's range. */
bool pst_model_value_parse(const struct pst_model_param *p, const char *text, double *out);

#endif
