/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures how long the CPU needs for each driver call that a read in stream order may make. A row
 * has the mean time of one call in batches of BATCH calls. Before each batch, the streams are idle.
 * The time until the GPU has executed the operations is not included, except for the synchronous
 * copy.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "bench.h"
#include "core/ops.h"
#include "device/cuda_api.h"
#include "device/stream_copy_image.h"
#include "gpu.h"

#define BATCH 128u
#define BATCHES 20u
#define STREAMS 8u
#define TRIPS_MADE 300u

struct calls {
	const struct pst_cuda *api;
	struct pst_cu_stream *streams[STREAMS];
	struct pst_cu_ctx *ctx;
	struct pst_cu_module *module;
	struct pst_cu_function *copy;
	char *pinned, *pageable;
	uint64_t *words;
	pst_cu_ptr to;
};

typedef enum pst_cu_result call_fn(struct calls *c, struct pst_cu_stream *s, unsigned i);

static enum pst_cu_result push_pop(struct calls *c, struct pst_cu_stream *s, unsigned i)
{
	struct pst_cu_ctx *was;

	(void)s;
	(void)i;
	c->api->cuCtxPushCurrent(c->ctx);
	return c->api->cuCtxPopCurrent(&was);
}

static enum pst_cu_result get_current(struct calls *c, struct pst_cu_stream *s, unsigned i)
{
	struct pst_cu_ctx *was;

	(void)s;
	(void)i;
	return c->api->cuCtxGetCurrent(&was);
}

static enum pst_cu_result stream_ctx(struct calls *c, struct pst_cu_stream *s, unsigned i)
{
	struct pst_cu_ctx *own;

	(void)i;
	return c->api->cuStreamGetCtx(s, &own);
}

static enum pst_cu_result capturing(struct calls *c, struct pst_cu_stream *s, unsigned i)
{
	enum pst_cu_capture capture;

	(void)i;
	return c->api->cuStreamIsCapturing(s, &capture);
}

static enum pst_cu_result get_device(struct calls *c, struct pst_cu_stream *s, unsigned i)
{
	int ordinal;

	(void)s;
	(void)i;
	return c->api->cuCtxGetDevice(&ordinal);
}

static enum pst_cu_result flags(struct calls *c, struct pst_cu_stream *s, unsigned i)
{
	unsigned int out;

	(void)i;
	return c->api->cuStreamGetFlags(s, &out);
}

static enum pst_cu_result query(struct calls *c, struct pst_cu_stream *s, unsigned i)
{
	enum pst_cu_result rc = c->api->cuStreamQuery(s);

	(void)i;
	return rc == PST_CU_NOT_READY ? PST_CU_OK : rc;
}

static enum pst_cu_result host_pointer(struct calls *c, struct pst_cu_stream *s, unsigned i)
{
	pst_cu_ptr at;

	(void)s;
	return c->api->cuMemHostGetDevicePointer(&at, c->pinned + i * 4096, 0);
}

static enum pst_cu_result attributes(struct calls *c, struct pst_cu_stream *s, unsigned i)
{
	unsigned type;
	int ordinal;
	enum pst_cu_ptr_attr attrs[] = {PST_CU_PTR_MEMORY_TYPE, PST_CU_PTR_DEVICE_ORDINAL};
	void *data[] = {&type, &ordinal};

	(void)s;
	return c->api->cuPointerGetAttributes(2, attrs, data, c->to + i * 4096);
}

static enum pst_cu_result copy_4k(struct calls *c, struct pst_cu_stream *s, unsigned i)
{
	return c->api->cuMemcpyHtoDAsync(c->to + i * 4096, c->pinned + i * 4096, 4096, s);
}

static enum pst_cu_result copy_64k(struct calls *c, struct pst_cu_stream *s, unsigned i)
{
	return c->api->cuMemcpyHtoDAsync(c->to + i * 65536, c->pinned + i * 65536, 65536, s);
}

static enum pst_cu_result copy_sync(struct calls *c, struct pst_cu_stream *s, unsigned i)
{
	enum pst_cu_result rc = copy_4k(c, s, i);

	return rc == PST_CU_OK ? c->api->cuStreamSynchronize(s) : rc;
}

static enum pst_cu_result copy_pageable(struct calls *c, struct pst_cu_stream *s, unsigned i)
{
	return c->api->cuMemcpyHtoDAsync(c->to + i * 4096, c->pageable + i * 4096, 4096, s);
}

static enum pst_cu_result write_word(struct calls *c, struct pst_cu_stream *s, unsigned i)
{
	return c->api->cuStreamWriteValue64(s, (uintptr_t)&c->words[i * 8], 1,
					    PST_CU_WRITE_DEFAULT);
}

static enum pst_cu_result wait_word(struct calls *c, struct pst_cu_stream *s, unsigned i)
{
	return c->api->cuStreamWaitValue64(s, (uintptr_t)&c->words[i * 8], 0, PST_CU_WAIT_GEQ);
}

static enum pst_cu_result batch_of_two(struct calls *c, struct pst_cu_stream *s, unsigned i)
{
	union pst_cu_mem_op ops[2] = {
		{.word = {PST_CU_OP_WRITE_64, (uintptr_t)&c->words[i * 8], 1, 0, 0}},
		{.word = {PST_CU_OP_WAIT_64, (uintptr_t)&c->words[i * 8], 0, PST_CU_WAIT_GEQ, 0}},
	};

	if (!c->api->cuStreamBatchMemOp)
		return PST_CU_NOT_SUPPORTED;
	return c->api->cuStreamBatchMemOp(s, 2, ops, 0);
}

static enum pst_cu_result copy_write(struct calls *c, struct pst_cu_stream *s, unsigned i)
{
	enum pst_cu_result rc = copy_4k(c, s, i);

	return rc == PST_CU_OK ? write_word(c, s, i) : rc;
}

static enum pst_cu_result copy_write_64k(struct calls *c, struct pst_cu_stream *s, unsigned i)
{
	enum pst_cu_result rc = copy_64k(c, s, i);

	return rc == PST_CU_OK ? write_word(c, s, i) : rc;
}

/* Launches the library's kernel that copies, with an empty list of copies. */
static enum pst_cu_result launch(struct calls *c, struct pst_cu_stream *s, unsigned i)
{
	pst_cu_ptr args[] = {(uintptr_t)&c->words[BATCH * 8], (uintptr_t)c->pinned};
	void *pointers[] = {&args[0], &args[1]};

	(void)i;
	return c->api->cuLaunchKernel(c->copy, 1, 1, 1, 512, 1, 1, 0, s, pointers, NULL);
}

static enum pst_cu_result launch_write(struct calls *c, struct pst_cu_stream *s, unsigned i)
{
	enum pst_cu_result rc = launch(c, s, i);

	return rc == PST_CU_OK ? write_word(c, s, i) : rc;
}

static enum pst_cu_result write_launch_write(struct calls *c, struct pst_cu_stream *s, unsigned i)
{
	enum pst_cu_result rc = write_word(c, s, i);

	return rc == PST_CU_OK ? launch_write(c, s, i) : rc;
}

static enum pst_cu_result memset_byte(struct calls *c, struct pst_cu_stream *s, unsigned i)
{
	return c->api->cuMemsetD8Async(c->to + i, 0, 1, s);
}

static const struct {
	const char *name;
	call_fn *fn;
} calls[] = {
	{"context push and pop", push_pop},
	{"context get current", get_current},
	{"context get device", get_device},
	{"stream get context", stream_ctx},
	{"stream is capturing", capturing},
	{"stream get flags", flags},
	{"stream query", query},
	{"host get device pointer", host_pointer},
	{"pointer attributes", attributes},
	{"copy 4 KiB", copy_4k},
	{"copy 4 KiB pageable", copy_pageable},
	{"copy 4 KiB + synchronize", copy_sync},
	{"copy 64 KiB", copy_64k},
	{"write", write_word},
	{"wait", wait_word},
	{"write and wait in one call", batch_of_two},
	{"copy 4 KiB + write", copy_write},
	{"copy 64 KiB + write", copy_write_64k},
	{"kernel", launch},
	{"kernel + write", launch_write},
	{"write + kernel + write", write_launch_write},
	{"memset", memset_byte},
};

static int call_row(struct bench *b, struct calls *c, unsigned which, unsigned streams,
		    unsigned rep)
{
	struct sample s = {.ops = (uint64_t)BATCH * BATCHES};
	uint64_t ns = 0, drained = 0, began;
	int rc = 0;
	char name[64];

	for (unsigned batch = 0; batch < BATCHES && !rc; batch++) {
		began = meter_ns();
		for (unsigned i = 0; i < BATCH && !rc; i++)
			rc = (int)calls[which].fn(c, c->streams[i % streams], i);
		ns += meter_ns() - began;
		began = meter_ns();
		for (unsigned i = 0; i < streams && !rc; i++)
			rc = (int)c->api->cuStreamSynchronize(c->streams[i]);
		drained += meter_ns() - began;
	}
	if (rc == PST_CU_NOT_SUPPORTED)
		return 0;
	if (rc)
		return gpu_bad(calls[which].name, rc);
	s.seconds = (double)ns * 1e-9;
	s.p50_us = (double)ns * 1e-3 / (double)s.ops;
	snprintf(s.note, sizeof(s.note),
		 "%.2f us a call and then %.2f us a call until all are executed", s.p50_us,
		 (double)drained * 1e-3 / (double)s.ops);
	snprintf(name, sizeof(name), "calls %u streams", streams);
	meter_row(b, name, calls[which].name, rep, &s);
	return 0;
}

/* ---- round trips ---- */

/* The operations that the stream of a round trip executes, in this order. */
enum trip { TRIP_WRITE, TRIP_COPY, TRIP_MEMSET_COPY, TRIP_KERNEL, TRIP_KERNEL_ALONE, TRIPS };
static const char *const trip_names[TRIPS] = {
	"wait + write",	       "wait + copy + write",	   "memset + wait + copy + write",
	"wait + kernel + write", "wait + kernel that writes",
};

/* Queues the operations of one round trip of a copy of `len` bytes. */
static int trip_queue(struct calls *c, enum trip trip, uint64_t len)
{
	struct pst_cu_stream *s = c->streams[0];
	uint64_t *released = &c->words[0], *passed = &c->words[8];
	struct pst_stream_round *round = (struct pst_stream_round *)(void *)&c->words[16];
	struct pst_stream_copy *copy = (struct pst_stream_copy *)(void *)&c->words[24];
	pst_cu_ptr args[] = {(uintptr_t)round, (uintptr_t)copy};
	void *pointers[] = {&args[0], &args[1]};
	int rc = 0;

	*round = (struct pst_stream_round){0, 1};
	*copy = (struct pst_stream_copy){c->to, (uintptr_t)c->pinned, len, len, len, 1};
	if (trip == TRIP_KERNEL_ALONE) /* the kernel's copy sets the word */
		*copy = (struct pst_stream_copy){
			(uintptr_t)passed, (uintptr_t)released, 8, 8, 8, 1};
	*released = *passed = 0;
	if (trip == TRIP_MEMSET_COPY)
		rc = (int)c->api->cuMemsetD8Async(c->to + len, 0, 1, s);
	if (!rc)
		rc = (int)c->api->cuStreamWaitValue64(s, (uintptr_t)released, 1, PST_CU_WAIT_GEQ);
	if (!rc && (trip == TRIP_COPY || trip == TRIP_MEMSET_COPY))
		rc = (int)c->api->cuMemcpyHtoDAsync(c->to, c->pinned, len, s);
	if (!rc && (trip == TRIP_KERNEL || trip == TRIP_KERNEL_ALONE))
		rc = (int)c->api->cuLaunchKernel(c->copy, 1, 1, 1, 512, 1, 1, 0, s, pointers, NULL);
	if (!rc && trip != TRIP_KERNEL_ALONE)
		rc = (int)c->api->cuStreamWriteValue64(s, (uintptr_t)passed, 1,
						       PST_CU_WRITE_DEFAULT);
	return rc;
}

static int compare_ns(const void *a, const void *b)
{
	const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return (x > y) - (x < y);
}

/* Measures the time from the CPU's store to the word that a stream waits for, to the arrival of the
 * stream's own store after the copy. Then measures how long the driver still reports that the
 * stream is busy. */
static int trip_row(struct bench *b, struct calls *c, enum trip trip, uint64_t len, unsigned rep)
{
	uint64_t ns[TRIPS_MADE], late[TRIPS_MADE];
	struct sample s = {.ops = TRIPS_MADE, .bytes = len * TRIPS_MADE};
	char name[64];

	for (unsigned i = 0; i < TRIPS_MADE; i++) {
		int rc = trip_queue(c, trip, len);
		uint64_t began;

		if (rc)
			return gpu_bad(trip_names[trip], rc);
		began = meter_ns();
		while (meter_ns() - began < 100000) /* until the stream waits */
			;
		began = meter_ns();
		__atomic_store_n(&c->words[0], 1, __ATOMIC_RELEASE);
		while (!__atomic_load_n(&c->words[8], __ATOMIC_ACQUIRE))
			;
		ns[i] = meter_ns() - began;
		while (c->api->cuStreamQuery(c->streams[0]) == PST_CU_NOT_READY)
			;
		late[i] = meter_ns() - began - ns[i];
		s.seconds += (double)ns[i] * 1e-9;
	}
	qsort(ns, TRIPS_MADE, sizeof(ns[0]), compare_ns);
	qsort(late, TRIPS_MADE, sizeof(late[0]), compare_ns);
	s.p50_us = (double)ns[TRIPS_MADE / 2] * 1e-3;
	s.p99_us = (double)ns[TRIPS_MADE * 99 / 100] * 1e-3;
	snprintf(s.note, sizeof(s.note), "the driver reports it %.1f us later; p99 %.1f",
		 (double)late[TRIPS_MADE / 2] * 1e-3, (double)late[TRIPS_MADE * 99 / 100] * 1e-3);
	snprintf(name, sizeof(name), "trips %llu KiB", (unsigned long long)(len / KIB));
	meter_row(b, name, trip_names[trip], rep, &s);
	return 0;
}

static int trip_rows(struct bench *b, struct calls *c, unsigned rep)
{
	int ret = 0;

	for (int trip = 0; trip < TRIPS && !ret; trip++)
		for (uint64_t len = 4 * KIB; len <= 64 * KIB && !ret; len *= 16)
			ret = trip_row(b, c, (enum trip)trip, len, rep);
	return ret;
}

static int section_calls(struct bench *b)
{
	struct calls c = {.api = gpu_get()->api, .ctx = gpu_get()->ctx};
	const struct pst_cuda *api = c.api;
	static char pageable[BATCH * 4096];
	int rc;

	c.to = (uintptr_t)b->gpu;
	c.pinned = gpu_pinned_mem(BATCH * 64 * KIB);
	c.pageable = pageable;
	memset(pageable, 7, sizeof(pageable));
	if (!c.pinned)
		return -ENOMEM;
	rc = (int)api->cuMemHostAlloc((void **)&c.words, (BATCH + 2) * 64,
				      PST_CU_HOST_PORTABLE | PST_CU_HOST_MAPPED);
	if (!rc)
		memset(c.words, 0, (BATCH + 2) * 64);
	for (unsigned i = 0; i < STREAMS && !rc; i++)
		rc = (int)api->cuStreamCreateWithPriority(&c.streams[i], PST_CU_STREAM_NON_BLOCKING,
							  0);
	if (!rc)
		rc = (int)api->cuModuleLoadData(&c.module, pst_stream_copy_image);
	if (!rc)
		rc = (int)api->cuModuleGetFunction(&c.copy, c.module, "pst_stream_copy");
	for (unsigned rep = 0; rep < b->reps && !rc; rep++)
		for (unsigned i = 0; i < sizeof(calls) / sizeof(calls[0]) && !rc; i++) {
			rc = call_row(b, &c, i, 1, rep);
			if (!rc)
				rc = call_row(b, &c, i, STREAMS, rep);
		}
	for (unsigned rep = 0; rep < b->reps && !rc; rep++)
		rc = trip_rows(b, &c, rep);
	for (unsigned i = 0; i < STREAMS; i++)
		if (c.streams[i])
			api->cuStreamDestroy(c.streams[i]);
	if (c.module)
		api->cuModuleUnload(c.module);
	if (c.words)
		api->cuMemFreeHost(c.words);
	return rc < 0 ? rc : gpu_bad("calls", rc);
}

const struct bench_section bench_calls[] = {
	{"calls", "the time of each driver call of reads in stream order", true, section_calls},
	{0},
};
