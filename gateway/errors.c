/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the table of error codes, see errors.h. */
#include "errors.h"

#include <string.h>

struct row {
	const char *code;
	unsigned status;
	const char *text;
};

#define ROW(code, status, text) {#code, status, text},
static const struct row rows[] = {GW_ERRORS(ROW)};

const char *gw_error_code(enum gw_error error)
{
	return rows[error].code;
}

unsigned gw_error_status(enum gw_error error)
{
	return rows[error].status;
}

const char *gw_error_text(enum gw_error error)
{
	return rows[error].text;
}

enum gw_error gw_error_find(const char *code)
{
	for (unsigned i = 0; i < GW_ERROR_COUNT; i++)
		if (!strcmp(rows[i].code, code))
			return (enum gw_error)i;
	return GW_InternalError;
}
