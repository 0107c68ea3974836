/* SPDX-License-Identifier: Apache-2.0 */
/* What the two halves of the run of `penstock gdsio` share: gdsio_open.c makes and
 * frees it, gdsio_run.c drives it. A flow is a thread's (or with -x 6 a place in the
 * batch's) range of a file, its buffer and its sequence of offsets. */
#ifndef PENSTOCK_CLI_GDSIO_FLOW_H
#define PENSTOCK_CLI_GDSIO_FLOW_H

#include <pthread.h>
#include <stdatomic.h>

#include "gdsio.h"

/* A file: opened by the library, or plainly for -x 1 and 2. */
struct place {
	char name[GDSIO_NAME_MAX + 32];
	struct penstock_storage *st;
	int fd;
	uint64_t size; /* of what is read or written, from -o on */
	bool created;
};

struct flow {
	struct place *place;
	struct penstock_device *dev;
	char *mem;  /* on dev; NULL: host is all there is */
	char *host; /* where the CPU sees the bytes: mem, a bounce, or scratch */
	bool allocated, mapped, registered;
	uint64_t from, len; /* of the file */
	uint64_t pos, moved, state, io, ops, ops_max;
	uint64_t off, n; /* of the transfer that is under way */
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
	struct place *places;
	struct flow *flows;
	struct worker *workers;
	unsigned place_count, flow_count, worker_count;
	char *error;
	bool write, replay;
	double until;	     /* 0: once through */
	_Atomic bool failed; /* a thread did: the others end */
};

/* Leaves the text of an error; EXIT_FAILED. */
int gdsio_say(char *error, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
int gdsio_say_lib(char *error);
/* Whether plain system calls move the bytes. */
bool gdsio_plain(const struct gdsio_args *a);
/* Between the flow's device memory and where the CPU sees it. */
int gdsio_copy(struct gdsio_run *r, const struct flow *f, bool to_device, size_t len, char *error);

#endif
