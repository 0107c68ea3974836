/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters that the caller set by the API for the next open. The caller holds shim.lock. */
#ifndef SHIM_PARAMS_H
#define SHIM_PARAMS_H

#include "config.h"

/* Copies the parameters that were set over `config`. */
void shim_params_apply(struct shim_config *config);
/* Discards these parameters after an open has used them; slab arrays stay set. */
void shim_params_opened(void);

#endif
