/* SPDX-License-Identifier: Apache-2.0 */
/* Loads a model in one process for `penstock load`. */
#ifndef PENSTOCK_CLI_LOAD_ONE_H
#define PENSTOCK_CLI_LOAD_ONE_H

#include "load_state.h"

/* Opens the model and the devices, loads and verifies. */
void load_run(struct loading *l);
/* Closes everything that load_run opened. */
void load_close(struct loading *l);

#endif
