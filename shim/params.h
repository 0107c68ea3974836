/* SPDX-License-Identifier: Apache-2.0 */
/* Parameters that the program has set through the API for the next open of the driver. The
 * caller of these functions holds shim.lock. */
#ifndef SHIM_PARAMS_H
#define SHIM_PARAMS_H

#include "config.h"

/* Overwrites in `config` the parameters that the program has set. */
void shim_params_apply(struct shim_config *config);
/* Discards the set parameters after an open has used them. Arrays of slabs (pools of buffers) stay
 * set, because they also apply to later opens. */
void shim_params_opened(void);

#endif
