/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declares the open files, devices and buffers of a run of `penstock gdsio`. gdsio_open.c creates
 * and frees them, and gdsio_run.c uses them.
 */
#ifndef PENSTOCK_CLI_GDSIO_OPEN_H
#define PENSTOCK_CLI_GDSIO_OPEN_H

#include <pthread.h>
#include <stdatomic.h>

#include "gdsio.h"

/* An open file. If gdsio_is_plain(), it was opened by open(2), else by the library. */
struct gdsio_file {
	char name[GDSIO_NAME_MAX + 32];
	struct penstock_storage *st;
	int fd;
	uint64_t size; /* number of bytes to read or write, starting at the offset of -o */
	bool created;  /* whether this run created the file, and removes it after a failure */
};

/* A sequence of transfers, of which only one at a time is in flight. A thread has one flow; with
 * -x 6 and 7 it has one flow for each entry of its batch. A flow has a range of a file and a
 * buffer. */
struct flow {
	struct gdsio_file *file;
	struct penstock_device *dev;
	char *mem; /* buffer on `dev`; NULL if the transfers use only `host` */
	/* host memory that the CPU accesses: `mem` itself, or a copy of its content */
	char *host;
	bool allocated, mapped, registered;
	uint64_t from, len; /* range of the file */
	uint64_t pos, moved, state, io, ops, ops_max;
	uint64_t off, n; /* file offset and length of the current transfer */
};

struct worker {
	struct gdsio_run *r;
	const struct gdsio_job *job;
	struct flow *flows;
	unsigned count;
	struct penstock_queue *q;
	struct gdsio_result result;
	int code;
	pthread_t thread;
};

struct gdsio_run {
	const struct gdsio_args *a;
	struct penstock_device *host, *devs[GDSIO_JOBS_MAX];
	struct gdsio_file *files;
	struct flow *flows;
	struct worker *workers;
	unsigned file_count, flow_count, worker_count;
	char *error;
	bool write, replay;
	double until;	     /* time at which the pass ends; 0 to transfer every byte once */
	_Atomic bool failed; /* set when one thread has failed, so that the others stop */
};

/* Opens the files, devices and buffers of a run. On failure returns NULL, with a message of at
 * most GDSIO_TEXT_MAX bytes in `error`. */
struct gdsio_run *gdsio_open(const struct gdsio_args *a, char *error);
/* Commits the written files or, if `failed`, removes the files that the run created. Frees `r`.
 * Returns 0, or an exit code with the message in `error`. */
int gdsio_close(struct gdsio_run *r, bool failed, char *error);

/* Both functions write the message of a failure to `error` and return EXIT_FAILED.
 * gdsio_fail_lib() copies the library's last message. */
int gdsio_fail(char *error, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int gdsio_fail_lib(char *error);
/* Copies `len` bytes between the flow's device buffer and its host memory. */
int gdsio_copy(struct gdsio_run *r, const struct flow *f, bool to_device, size_t len, char *error);

#endif
