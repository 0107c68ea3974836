/* SPDX-License-Identifier: Apache-2.0 */
/* penstock check in four parts: options and exit code (check.c), what is printed for
 * people (check_print.c), JSON (check_json.c), the script (check_script.c). What is
 * found comes from src/check. */
#ifndef PENSTOCK_CLI_CHECK_PRINT_H
#define PENSTOCK_CLI_CHECK_PRINT_H

#include "check.h"
#include "cli.h"

void check_print(FILE *f, const struct pst_check *check, bool verbose);
void check_print_json(FILE *f, const struct pst_check *check, int code);
void check_print_script(FILE *f, const struct pst_check *check);

const char *check_state_name(enum pst_check_state state);
const char *check_layer_name(enum pst_check_layer layer);
const char *check_need_name(enum pst_check_need need);

#endif
