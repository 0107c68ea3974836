/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Threads that make driver calls beside transfers: they allocate and free device and pinned memory,
 * register and unregister host memory, synchronise the context, create and destroy streams and
 * events, and load modules. Many of these calls hold the driver's lock until every stream is idle.
 * Included by the storm tests of tests/conf and tests/shim.
 */
#ifndef TESTS_DISTURB_H
#define TESTS_DISTURB_H

#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/cuda_api.h"
#include "device/stream_copy_ptx.h"

#define DISTURB_KINDS 7
#define DISTURB_LEN (1u << 20)

/* A thread that repeats one kind of driver call. */
struct disturber {
	const struct pst_cuda *cuda;
	struct pst_cu_ctx *ctx;
	const _Atomic bool *stop;
	unsigned kind;
	_Atomic unsigned long calls; /* number of successful repetitions */
	pthread_t thread;
};

static struct disturber disturbers[DISTURB_KINDS];

/* Allocates device memory, copies into it on the default stream, and frees it at once. */
static inline bool disturb_by_copy(const struct pst_cuda *cuda)
{
	static const unsigned char zeros[4096];
	pst_cu_ptr mem;
	bool copied;

	if (cuda->cuMemAlloc(&mem, sizeof(zeros)))
		return false;
	copied = !cuda->cuMemcpyHtoDAsync(mem, zeros, sizeof(zeros), NULL);
	return !cuda->cuMemFree(mem) && copied;
}

/* Makes the calls of one kind once. Returns whether the driver has made all of them. */
static inline bool disturb_once(const struct pst_cuda *cuda, unsigned kind, void *pages)
{
	struct pst_cu_module *module;
	struct pst_cu_stream *stream;
	struct pst_cu_event *event;
	pst_cu_ptr mem;
	void *host;

	switch (kind) {
	case 0:
		return !cuda->cuMemAlloc(&mem, 4u << 20) && !cuda->cuMemFree(mem);
	case 1:
		return !cuda->cuMemHostAlloc(&host, DISTURB_LEN, 0) && !cuda->cuMemFreeHost(host);
	case 2:
		return !cuda->cuMemHostRegister(pages, DISTURB_LEN, 0) &&
		       !cuda->cuMemHostUnregister(pages);
	case 3:
		return disturb_by_copy(cuda);
	case 4:
		return !cuda->cuCtxSynchronize();
	case 5:
		return !cuda->cuStreamCreateWithPriority(&stream, PST_CU_STREAM_NON_BLOCKING, 0) &&
		       !cuda->cuStreamDestroy(stream) && !cuda->cuEventCreate(&event, 0) &&
		       !cuda->cuEventDestroy(event);
	default:
		return !cuda->cuModuleLoadData(&module, pst_stream_copy_ptx) &&
		       !cuda->cuModuleUnload(module);
	}
}

static inline void *disturb(void *arg)
{
	struct disturber *d = arg;
	void *pages = aligned_alloc(4096, DISTURB_LEN);

	memset(pages, 1, DISTURB_LEN);
	d->cuda->cuCtxSetCurrent(d->ctx);
	while (!*d->stop) {
		d->calls += disturb_once(d->cuda, d->kind, pages);
		/* Without a pause, this thread could keep the other threads from getting the
		 * driver's lock. */
		usleep(200);
	}
	free(pages);
	return NULL;
}

/* Starts a thread for each kind of call. The threads run until *stop is true. */
static inline void disturb_start(const struct pst_cuda *cuda, struct pst_cu_ctx *context,
				 const _Atomic bool *stop)
{
	for (unsigned i = 0; i < DISTURB_KINDS; i++) {
		disturbers[i] = (struct disturber){
			.cuda = cuda, .ctx = context, .stop = stop, .kind = i};
		if (pthread_create(&disturbers[i].thread, NULL, disturb, &disturbers[i]))
			abort();
	}
}

/* Returns whether each thread has made its calls at least three times. */
static inline bool disturb_has_begun(void)
{
	bool all = true;

	for (unsigned i = 0; i < DISTURB_KINDS; i++)
		all &= disturbers[i].calls > 2;
	return all;
}

/* Waits for the threads, after the caller has set *stop, and prints how often each has made its
 * calls. */
static inline void disturb_join(void)
{
	printf("# driver calls");
	for (unsigned i = 0; i < DISTURB_KINDS; i++) {
		pthread_join(disturbers[i].thread, NULL);
		printf(" %lu", disturbers[i].calls);
	}
	printf("\n");
}

/* Returns the duration of a storm in seconds: PENSTOCK_STORM_SECONDS, or else `usual`. */
static inline unsigned storm_seconds(unsigned usual)
{
	const char *text = getenv("PENSTOCK_STORM_SECONDS");

	return text ? (unsigned)strtoul(text, NULL, 10) : usual;
}

#endif
