/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the output of `penstock check --json`. */
#ifndef PENSTOCK_CLI_CHECK_JSON_H
#define PENSTOCK_CLI_CHECK_JSON_H

#include <stdio.h>

#include "result.h"

/* Prints the JSON object. `code` is the exit code, which the object contains. */
void check_print_json(FILE *f, const struct pst_check *check, int code);

#endif
