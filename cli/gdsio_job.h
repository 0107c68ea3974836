/* SPDX-License-Identifier: Apache-2.0 */
/* Parses job files of `penstock gdsio`, and values, such as sizes, that command-line flags and job
 * files have in common. */
#ifndef PENSTOCK_CLI_GDSIO_JOB_H
#define PENSTOCK_CLI_GDSIO_JOB_H

#include "gdsio.h"

/* These functions parse a value. If the value is not valid they return false, but print no
 * message. */
bool gdsio_size(const char *text, uint64_t *out);
/* Parses one size such as "1M", or a minimum, a maximum and a step such as "4K:1M:4K". */
bool gdsio_io_size(const char *text, struct gdsio_args *a);
bool gdsio_xfer(uint64_t number, enum gdsio_xfer *out);
bool gdsio_device(const char *text, struct gdsio_job *job);

/* Returns the kind of memory that a number of -m stands for. Penstock treats the types
 * cudaMalloc (0) and cuMem (1) alike: it allocates both with cuMemAlloc of the driver. */
static inline enum gdsio_memory gdsio_memory(uint64_t number)
{
	return number == 1 ? GDSIO_DEVICE : (enum gdsio_memory)number;
}

/* Parses a job file, which has `len` bytes. Returns 0, or an exit code after it has printed the
 * error. */
int gdsio_job_text(const char *name, const char *text, size_t len, struct gdsio_args *a);

#endif
