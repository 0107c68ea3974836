/* SPDX-License-Identifier: Apache-2.0 */
/* Sums up the reports of the requests that belong to one operation: a load, a save, or a read or
 * write of a checkpoint's part. Does no I/O. */
#ifndef PST_WEIGHTS_REPORT_H
#define PST_WEIGHTS_REPORT_H

#include "penstock_weights.h"

struct pst_report_sum {
	struct penstock_load_report report;
	/* Largest number of bytes that one path carried in one request; report.path is that
	 * path. */
	uint64_t path_bytes;
};

/* Returns the time of the monotonic clock in ns. */
uint64_t pst_report_now_ns(void);
/* Clears the sum, and stores the present time as its start. */
void pst_report_begin(struct pst_report_sum *sum);
/* Adds the report of one completed request, whose result is `result`. */
void pst_report_add(struct pst_report_sum *sum, int64_t result, const struct penstock_report *r);

#endif
