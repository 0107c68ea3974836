/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the output of `penstock check --fix-script`. */
#ifndef PENSTOCK_CLI_CHECK_SCRIPT_H
#define PENSTOCK_CLI_CHECK_SCRIPT_H

#include <stdio.h>

#include "result.h"

void check_print_script(FILE *f, const struct pst_check *check);

#endif
