/* SPDX-License-Identifier: Apache-2.0 */
/* The clock that deadlines, reports and statistics use. */
#ifndef PST_CORE_CLOCK_H
#define PST_CORE_CLOCK_H

#include <stdint.h>
#include <time.h>

/* Returns the time of CLOCK_MONOTONIC in nanoseconds. */
static inline uint64_t pst_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

#endif
