/* SPDX-License-Identifier: Apache-2.0 */
/* The values of a model's config.json that tensor parallelism needs. Used by shard.c. */
#ifndef PST_WEIGHTS_CONFIG_H
#define PST_WEIGHTS_CONFIG_H

#include "weights/model.h"

/* Reads config.json into w->config at the first call for `w`; later calls return at once. May
 * block. */
void pst_weights_read_config(struct penstock_weights *w);

#endif
