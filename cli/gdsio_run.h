/* SPDX-License-Identifier: Apache-2.0 */
/* One pass of `penstock gdsio` over its files. */
#ifndef PENSTOCK_CLI_GDSIO_RUN_H
#define PENSTOCK_CLI_GDSIO_RUN_H

#include "gdsio_open.h"

/* Runs one pass that reads or writes. With `replay`, reads the bytes that the last pass
 * wrote, in the same order. Returns 0, or an exit code with the message in out->error. */
int gdsio_pass(struct gdsio_run *r, bool write, bool replay, struct gdsio_result *out);

#endif
