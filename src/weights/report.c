/* SPDX-License-Identifier: Apache-2.0 */
/* Implements sums of reports, see report.h. */
#include "weights/report.h"

#include <string.h>
#include <time.h>

uint64_t pst_report_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

void pst_report_begin(struct pst_report_sum *sum)
{
	memset(sum, 0, sizeof(*sum));
	sum->report.path = sum->report.engine = "none";
	sum->report.start_ns = sum->report.end_ns = pst_report_now_ns();
}

void pst_report_add(struct pst_report_sum *sum, int64_t result, const struct penstock_report *r)
{
	struct penstock_load_report *report = &sum->report;

	for (unsigned i = 0; i < r->path_count; i++) {
		if (r->paths[i].bytes <= sum->path_bytes)
			continue;
		sum->path_bytes = r->paths[i].bytes;
		report->path = r->path;
		report->engine = r->engine;
	}
	report->read += r->bytes;
	report->bytes += result > 0 ? (uint64_t)result : 0;
	report->cpu_copied += r->cpu_copied;
	report->dram_laid += r->dram_laid;
	report->retries += r->retries;
	report->requests++;
	report->end_ns = pst_report_now_ns();
}
