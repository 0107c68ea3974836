/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the values of the planner's parameters, for the library and for the command. */
#ifndef PST_PLANNER_VALUE_H
#define PST_PLANNER_VALUE_H

#include <stdbool.h>

#include "model/table.h"

/* Parses the value of a parameter: one of the words of a choice, or a number. A number of bytes may
 * have a unit. Returns false if the text is no valid value of this parameter, or if it is out of
 * range. */
bool pst_model_value_parse(const struct pst_model_param *p, const char *text, double *out);

#endif
