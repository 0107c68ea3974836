/* SPDX-License-Identifier: Apache-2.0 */
/* Parses job files of `penstock gdsio`, and the values that flags and job files share. */
#ifndef PENSTOCK_CLI_GDSIO_JOB_H
#define PENSTOCK_CLI_GDSIO_JOB_H

#include "gdsio.h"

/* Parse a value. Return false if it is not valid, without a message. */
bool gdsio_size(const char *text, uint64_t *out);
/* Parses "1M", or "4K:1M:4K" for the least size, the most, and the step. */
bool gdsio_io_size(const char *text, struct gdsio_args *a);
bool gdsio_xfer(uint64_t number, enum gdsio_xfer *out);
bool gdsio_device(const char *text, struct gdsio_job *job);

/* Returns the kind of memory for the number of -m. Penstock treats cudaMalloc (0) and cuMem (1)
 * alike: both become cuMemAlloc of the driver. */
static inline enum gdsio_memory gdsio_memory(uint64_t number)
{
	return number == 1 ? GDSIO_DEVICE : (enum gdsio_memory)number;
}

/* Parses the `len` bytes of a job file. Returns 0, or an exit code after it printed the
 * error. */
int gdsio_job_text(const char *name, const char *text, size_t len, struct gdsio_args *a);

#endif
