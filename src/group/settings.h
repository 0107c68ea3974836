/* SPDX-License-Identifier: Apache-2.0 */
/* The settings of a group (processes that load a model together), and their limits. This header
 * declares no functions. */
#ifndef PST_GROUP_SETTINGS_H
#define PST_GROUP_SETTINGS_H

#include <stdint.h>

#include "penstock_weights.h"

#define PST_GROUP_MAX ((unsigned)PENSTOCK_GROUP_MAX)
#define PST_GROUP_WINDOWS_MAX 64u /* Maximum number of windows (shared buffers) of each rank. */

/* The group's options, with defaults in place of zeros. Rank 0's settings apply to all ranks. */
struct pst_group_settings {
	uint64_t window; /* Length of a window in bytes. */
	uint32_t windows, stall_ms;
	/* Maximum number of requests in flight at one store (file system); 0 if there is no
	 * limit. */
	uint32_t reads_max;
	/* Index of this host, and number of hosts that load the model. */
	uint32_t host, hosts;
	uint32_t delay_ms; /* Time that this host waits before it starts, in ms. */
};

#endif
