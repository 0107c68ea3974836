/* SPDX-License-Identifier: Apache-2.0 */
/* Prints the output of `penstock check` for people. A gate is a requirement of a path. These
 * functions also return the names of a gate's states, layers and needs. */
#ifndef PENSTOCK_CLI_CHECK_PRINT_H
#define PENSTOCK_CLI_CHECK_PRINT_H

#include <stdio.h>

#include "result.h"

void check_print(FILE *f, const struct pst_check *check, bool verbose);

/* Returns where uncached bytes of the target come from: "drive", or "memory" if its drive is in
 * memory. */
const char *check_drive_name(const struct pst_check *check);
const char *check_state_name(enum pst_check_state state);
const char *check_layer_name(enum pst_check_layer layer);
const char *check_need_name(enum pst_check_need need);

#endif
