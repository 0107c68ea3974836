/* SPDX-License-Identifier: Apache-2.0 */
/* Implements value.h: parses the text of a parameter's value. */
#include "planner/value.h"

#include <stdlib.h>
#include <string.h>

#include "common/size.h"

bool pst_model_value_parse(const struct pst_model_param *p, const char *text, double *out)
{
	uint64_t bytes;
	const char *rest;
	char *end;
	double value;

	if (p->choices) {
		int index = pst_model_choice_index(p->choices, text);

		if (index >= 0)
			*out = index;
		return index >= 0;
	}
	value = strtod(text, &end);
	if (end == text)
		return false;
	if (*end) {
		rest = strcmp(p->unit, "bytes") ? NULL : pst_size_parse(text, &bytes);
		if (!rest || *rest)
			return false;
		value = (double)bytes;
	}
	if (!pst_model_check(p, value))
		return false;
	*out = value;
	return true;
}
