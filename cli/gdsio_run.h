/* SPDX-License-Identifier: Apache-2.0 */
/* Runs one pass of `penstock gdsio` over its files. */
#ifndef PENSTOCK_CLI_GDSIO_RUN_H
#define PENSTOCK_CLI_GDSIO_RUN_H

#include "gdsio_open.h"

/* Runs one pass: writes if `write` is true, else reads. If `replay` is true, reads the bytes
 * that the previous pass wrote, in the same order. Returns 0, or an exit code with the message
 * in out->error. */
int gdsio_pass(struct gdsio_run *r, bool write, bool replay, struct gdsio_result *out);

#endif
