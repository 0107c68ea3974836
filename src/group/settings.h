/* SPDX-License-Identifier: Apache-2.0 */
/* The settings of a group and its limits. Has no functions. */
#ifndef PST_GROUP_SETTINGS_H
#define PST_GROUP_SETTINGS_H

#include <stdint.h>

#include "penstock_weights.h"

#define PST_GROUP_MAX ((unsigned)PENSTOCK_GROUP_MAX)
#define PST_GROUP_WINDOWS_MAX 64u /* Windows of each rank. */

/* The options with their defaults filled in. Rank 0's hold for all ranks. */
struct pst_group_settings {
	uint64_t window; /* Bytes of a window. */
	uint32_t windows, stall_ms;
	uint32_t reads_max;   /* Requests in flight at one store; 0: no limit. */
	uint32_t host, hosts; /* This host's number, among the hosts that load the model. */
	uint32_t delay_ms;    /* Time that this host waits before it starts. */
};

#endif
