/* SPDX-License-Identifier: Apache-2.0 */
/* Implements `penstock load --verify`. */
#ifndef PENSTOCK_CLI_LOAD_VERIFY_H
#define PENSTOCK_CLI_LOAD_VERIFY_H

#include "load_state.h"

/* Copies all tensors back to host memory and compares them with plain reads of the files. */
void load_verify(struct loading *l);

#endif
