/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Runs a scenario with one injected failure in a new process, so that the failure can also hit
 * one-time initialisation. Returns how the scenario ended, and which resources were still in use
 * after it had closed everything. test_malloc.c fails each allocation, and test_cuda_calls.c
 * fails each driver call.
 */
#ifndef PENSTOCK_FAULT_CHILD_H
#define PENSTOCK_FAULT_CHILD_H

#include "fixture.h"

/* How the scenario ended, as the child process reports it to its parent. */
struct child_result {
	int ret; /* what the scenario returned while the failure was injected */
	/* Resources that are in use at the end of the scenario. blocks: number of heap blocks.
	 * mapped: bytes of mappings. fds: number of descriptors. live: number of objects of the
	 * stand-in (simulated) CUDA driver. */
	long blocks, mapped, fds, live;
	char text[400]; /* why the case fails; empty if it passes */
};

/* Records why the case fails. Only the first message is kept. */
#define child_fail(out, ...)                                                     \
	do {                                                                     \
		if (!(out)->text[0])                                             \
			snprintf((out)->text, sizeof((out)->text), __VA_ARGS__); \
	} while (0)

/* Returns `len` zero bytes of memory that parent and child share; NULL on error. */
void *child_shared_memory(size_t len);
/* Runs child(arg) in a new process with a time limit, and waits for the process. Sets those
 * members of `out` that the child could not set, for example if a signal killed it. */
void child_run(void (*child)(void *arg), void *arg, struct child_result *out);
/* Checks that a child left no more resources in use than `clean`, the result of a child without an
 * injected failure. If `lax` is true, the child may leave objects of the simulated driver. */
void child_check_leaks(struct child_result *out, const struct child_result *clean, bool lax);

/* Returns a function of the simulated driver; NULL if the driver is not loaded. */
void *child_standin_symbol(const char *function);

/* Opens a device with little pinned memory. Sets *ret to 0 or to a negative errno. */
struct penstock_device *child_open_device(const char *name, const char *engine, int *ret);
/* Reads `len` bytes in the order of the default stream. Returns 0 or a negative errno. */
int child_read_in_stream_order(struct penstock_storage *st, struct penstock_device *dev, void *mem,
			       uint64_t len, struct child_result *out);

#endif
