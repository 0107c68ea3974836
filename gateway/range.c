/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the parser of ranges, see range.h. */
#include "range.h"

#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

/* Parses decimal digits. Returns the text after them, or NULL if there are none. */
static const char *digits(const char *text, uint64_t *out)
{
	size_t len = strspn(text, "0123456789");

	if (!len)
		return NULL;
	/* A number that is too large becomes UINT64_MAX. */
	*out = strtoull(text, NULL, 10);
	return text + len;
}

enum gw_range gw_range_parse(const char *text, uint64_t size, uint64_t *at, uint64_t *len)
{
	uint64_t first, last;

	if (!text || strncmp(text, "bytes=", 6) != 0)
		return GW_RANGE_NONE;
	text += 6;
	if (*text == '-') {
		text = digits(text + 1, &last);
		if (!text || *text)
			return GW_RANGE_NONE;
		if (!last || !size)
			return GW_RANGE_BEYOND;
		*len = last < size ? last : size;
		*at = size - *len;
		return GW_RANGE_OK;
	}
	text = digits(text, &first);
	if (!text || *text != '-')
		return GW_RANGE_NONE;
	last = UINT64_MAX;
	if (text[1]) {
		text = digits(text + 1, &last);
		if (!text || *text || last < first)
			return GW_RANGE_NONE;
	}
	if (first >= size)
		return GW_RANGE_BEYOND;
	*at = first;
	*len = (last < size ? last : size - 1) - first + 1;
	return GW_RANGE_OK;
}
