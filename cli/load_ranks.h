/* SPDX-License-Identifier: Apache-2.0 */
/* Implements `penstock load --ranks`. */
#ifndef PENSTOCK_CLI_LOAD_RANKS_H
#define PENSTOCK_CLI_LOAD_RANKS_H

#include "load_state.h"

/* Loads with a->ranks processes and adds up their results in `l`. */
void load_by_ranks(struct loading *l, struct args *a);

#endif
