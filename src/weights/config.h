/* SPDX-License-Identifier: Apache-2.0 */
/* The model's config.json, as far as tensor parallelism needs it. Used by shard.c. */
#ifndef PST_WEIGHTS_CONFIG_H
#define PST_WEIGHTS_CONFIG_H

#include "weights/model.h"

/* Fills w->config at the first call; later calls return at once. May block. */
void pst_weights_read_config(struct penstock_weights *w);

#endif
