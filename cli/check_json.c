/* SPDX-License-Identifier: Apache-2.0 */
/* The same for programs: one object, and the script that opens what can be opened. */
#include "check_print.h"

void check_print_json(FILE *f, const struct pst_check *check, int code)
{
	struct json j;

	json_open(&j, f);
	json_text(&j, "verdict", check->verdict);
	json_int(&j, "exit", code);
	json_close(&j);
}

void check_print_script(FILE *f, const struct pst_check *check)
{
	for (unsigned i = 0; i < check->line_count; i++)
		fputs(check->lines[i].script, f);
}
