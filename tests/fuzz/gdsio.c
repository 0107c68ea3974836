/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the parsers of `penstock gdsio` for job files and sizes. libFuzzer runs this target,
 * or replay.c does with its corpus. A failure is a read beyond the text, or a job file that is
 * accepted although it has values outside the limits.
 */
#include <stdlib.h>
#include <string.h>

#include "../../cli/gdsio_job.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

static void check_args(const struct gdsio_args *a)
{
	if (!a->job_count || a->job_count > GDSIO_JOBS_MAX || !a->io_min || a->io_min > a->io_max ||
	    (a->io_min < a->io_max && !a->io_step))
		abort();
	for (unsigned i = 0; i < a->job_count; i++) {
		const struct gdsio_job *job = &a->jobs[i];

		if (!job->threads || job->threads > GDSIO_THREADS_MAX || job->node < -1 ||
		    !memchr(job->file, 0, sizeof(job->file)) ||
		    !memchr(job->dir, 0, sizeof(job->dir)) ||
		    !memchr(job->device, 0, sizeof(job->device)))
			abort();
	}
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	struct gdsio_args *a = calloc(1, sizeof(*a));

	if (!a || len_bytes > GDSIO_FILE_MAX) {
		free(a);
		return 0;
	}
	a->io_min = a->io_max = 1u << 20;
	if (!gdsio_job_text("job", (const char *)data, len_bytes, a))
		check_args(a);
	free(a);
	return 0;
}
