/* SPDX-License-Identifier: Apache-2.0 */
/* One process's part of `penstock load`. */
#ifndef PENSTOCK_CLI_LOAD_ONE_H
#define PENSTOCK_CLI_LOAD_ONE_H

#include "load_state.h"

/* Opens, loads and verifies in one process. */
void load_run(struct loading *l);
/* Closes everything that load_run opened. */
void load_close(struct loading *l);

#endif
