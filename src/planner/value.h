/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the values of a model's parameters, for libpenstock and for `penstock model`. */
#ifndef PST_PLANNER_VALUE_H
#define PST_PLANNER_VALUE_H

#include <stdbool.h>

#include "model/table.h"

/* Parses the value of the parameter `p`: one of its words if it is a choice, otherwise a number. A
 * number of bytes may have a unit, such as "4MiB". Stores the value in *out. Returns false if the
 * text is no value of this parameter, or if the value is out of range. */
bool pst_model_value_parse(const struct pst_model_param *p, const char *text, double *out);

#endif
