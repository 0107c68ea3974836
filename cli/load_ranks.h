/* SPDX-License-Identifier: Apache-2.0 */
/* `penstock load --ranks`. */
#ifndef PENSTOCK_CLI_LOAD_RANKS_H
#define PENSTOCK_CLI_LOAD_RANKS_H

#include "load_state.h"

/* Loads by a->ranks processes and adds their results up in `l`. */
void load_by_ranks(struct loading *l, struct args *a);

#endif
