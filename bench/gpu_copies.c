/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures with driver calls how fast the GPU's copy engine makes the kinds of copies that the
 * library queues. The first kind are copies as large as a ring slot, on one stream or several
 * streams, with an event after each copy or after several copies. Their speed is the limit of
 * path `bounce`. The second kind are copies of 4 KiB, one or many in a call. Their speed is the
 * limit of random reads into GPU memory.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bench.h"
#include "device/cuda_api.h"
#include "gpu.h"

#define STREAMS 8
#define EVENTS 1024
#define SMALL 4096u
#define SMALL_COUNT 20000u
#define BATCH_MAX 128

struct queues {
	struct gpu *g;
	struct pst_cu_stream *streams[STREAMS];
	struct pst_cu_event *events[EVENTS];
	char *pinned;
	size_t len;
};

static int queues_open(struct bench *b, struct queues *q)
{
	const struct pst_cuda *api;
	int rc = 0;

	memset(q, 0, sizeof(*q));
	q->g = gpu_get();
	api = q->g->api;
	q->len = b->len < 256 * MIB ? b->len : 256 * MIB;
	q->pinned = mmap(NULL, q->len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (q->pinned == MAP_FAILED)
		return -ENOMEM;
	madvise(q->pinned, q->len, MADV_HUGEPAGE);
	memset(q->pinned, 0x37, q->len);
	rc = (int)api->cuMemHostRegister(q->pinned, q->len, PST_CU_HOST_PORTABLE);
	for (int i = 0; i < STREAMS && !rc; i++)
		rc = (int)api->cuStreamCreateWithPriority(&q->streams[i],
							  PST_CU_STREAM_NON_BLOCKING, 0);
	for (int i = 0; i < EVENTS && !rc; i++)
		rc = (int)api->cuEventCreate(&q->events[i], PST_CU_EVENT_NO_TIMING);
	return gpu_bad("copy queues", rc);
}

static void queues_close(struct queues *q)
{
	const struct pst_cuda *api = q->g->api;

	for (int i = 0; i < STREAMS; i++)
		if (q->streams[i])
			api->cuStreamDestroy(q->streams[i]);
	for (int i = 0; i < EVENTS; i++)
		if (q->events[i])
			api->cuEventDestroy(q->events[i]);
	api->cuMemHostUnregister(q->pinned);
	munmap(q->pinned, q->len);
}

static int queues_sync(struct queues *q)
{
	int rc = 0;

	for (int i = 0; i < STREAMS && !rc; i++)
		rc = (int)q->g->api->cuStreamSynchronize(q->streams[i]);
	return rc;
}

/* Copies `len` bytes in pieces of `piece` bytes, on `streams` streams in turn. If `every` is not 0,
 * records an event in a stream whenever it has queued `every` more bytes there. */
static int copy_pieces(struct bench *b, struct queues *q, size_t piece, unsigned streams,
		       size_t every, unsigned rep)
{
	const struct pst_cuda *api = q->g->api;
	uint64_t len = b->len < 4 * GIB ? b->len : 4 * GIB, at = 0;
	size_t unmarked[STREAMS] = {0};
	struct sample s = {.bytes = len};
	struct meter m;
	char name[64];
	unsigned n = 0, event = 0;
	int rc = 0;

	meter_start(&m);
	for (; at < len && !rc; at += piece, n++) {
		struct pst_cu_stream *stream = q->streams[n % streams];

		rc = (int)api->cuMemcpyHtoDAsync((uintptr_t)b->gpu + at, q->pinned + at % q->len,
						 piece, stream);
		unmarked[n % streams] += piece;
		if (rc || !every || unmarked[n % streams] < every)
			continue;
		rc = (int)api->cuEventRecord(q->events[event++ % EVENTS], stream);
		unmarked[n % streams] = 0;
	}
	if (!rc)
		rc = queues_sync(q);
	meter_stop(&m, &s);
	meter_settle(&m, &s);
	if (every)
		snprintf(name, sizeof(name), "%zu KiB %u streams event per %zu KiB", piece >> 10,
			 streams, every >> 10);
	else
		snprintf(name, sizeof(name), "%zu KiB %u streams no event", piece >> 10, streams);
	if (!rc)
		meter_row(b, "copies", name, rep, &s);
	return gpu_bad("pieces", rc);
}

static int section_copies(struct bench *b)
{
	static const size_t sizes[] = {512 * KIB, 1 * MIB, 2 * MIB, 4 * MIB, 8 * MIB, 16 * MIB};
	struct queues q;
	int ret = queues_open(b, &q);

	for (unsigned rep = 0; rep < b->reps && !ret; rep++) {
		for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]) && !ret; i++) {
			ret = copy_pieces(b, &q, sizes[i], 1, 0, rep);
			if (!ret)
				ret = copy_pieces(b, &q, sizes[i], 1, sizes[i], rep);
			if (!ret)
				ret = copy_pieces(b, &q, sizes[i], STREAMS, 0, rep);
			if (!ret)
				ret = copy_pieces(b, &q, sizes[i], STREAMS, sizes[i], rep);
			if (!ret && sizes[i] < 16 * MIB)
				ret = copy_pieces(b, &q, sizes[i], STREAMS, 16 * MIB, rep);
		}
	}
	queues_close(&q);
	return ret;
}

/* ---- copies of 4 KiB ---- */

enum small { PLAIN, ROWS, BATCHED, BATCHED_ROWS };

/* Queues `count` copies of `len` bytes each with one driver call. */
static int copy_batch(struct bench *b, struct queues *q, size_t len, uint64_t first, unsigned count,
		      struct pst_cu_stream *stream)
{
	pst_cu_ptr to[BATCH_MAX], from[BATCH_MAX];
	size_t lens[BATCH_MAX], zero = 0;
	struct pst_cu_copy_attr attr = {.source_order = PST_CU_SOURCE_IN_STREAM};

	for (unsigned i = 0; i < count; i++) {
		uint64_t at = (first + i) * 2 * len % (q->len - len);

		to[i] = (uintptr_t)b->gpu + at;
		from[i] = (uintptr_t)q->pinned + at;
		lens[i] = len;
	}
	return (int)q->g->api->cuMemcpyBatchAsync(to, from, lens, count, &attr, &zero, 1, stream);
}

/* Queues `count` two-dimensional copies with one driver call. Each copies SMALL bytes in two
 * rows. */
static int copy_rows_batch(struct bench *b, struct queues *q, uint64_t first, unsigned count,
			   struct pst_cu_stream *stream)
{
	static struct pst_cu_copy3d copies[BATCH_MAX];

	for (unsigned i = 0; i < count; i++) {
		uint64_t at = (first + i) * 2 * SMALL % (q->len - SMALL);

		copies[i] = (struct pst_cu_copy3d){
			.src = {PST_CU_OPERAND_POINTER, (uintptr_t)q->pinned + at, SMALL / 2},
			.dst = {PST_CU_OPERAND_POINTER, (uintptr_t)b->gpu + at, SMALL / 2},
			.width_bytes = SMALL / 2,
			.rows = 2,
			.layers = 1,
			.source_order = PST_CU_SOURCE_IN_STREAM,
		};
	}
	return (int)q->g->api->cuMemcpy3DBatchAsync(count, copies, 0, stream);
}

static int small_run(struct bench *b, struct queues *q, enum small kind, unsigned streams,
		     unsigned per_event, unsigned rep)
{
	static const char *const kinds[] = {"plain", "two rows", "batched", "batched rows"};
	struct sample s = {.bytes = (uint64_t)SMALL_COUNT * SMALL, .ops = SMALL_COUNT};
	struct meter m;
	char name[64];
	unsigned event = 0;
	int rc = 0;

	meter_start(&m);
	for (unsigned n = 0; n < SMALL_COUNT && !rc; n += per_event) {
		struct pst_cu_stream *stream = q->streams[n / per_event % streams];

		if (kind == BATCHED)
			rc = copy_batch(b, q, SMALL, n, per_event, stream);
		else if (kind == BATCHED_ROWS)
			rc = copy_rows_batch(b, q, n, per_event, stream);
		for (unsigned i = 0; i < per_event && kind < BATCHED && !rc; i++) {
			uint64_t at = (uint64_t)(n + i) * 2 * SMALL % (q->len - SMALL);

			rc = kind == ROWS
				     ? gpu_copy_two_rows(q->pinned + at, (uintptr_t)b->gpu + at,
							 SMALL, stream)
				     : (int)q->g->api->cuMemcpyHtoDAsync((uintptr_t)b->gpu + at,
									 q->pinned + at, SMALL,
									 stream);
		}
		if (!rc)
			rc = (int)q->g->api->cuEventRecord(q->events[event++ % EVENTS], stream);
	}
	if (!rc)
		rc = queues_sync(q);
	meter_stop(&m, &s);
	meter_settle(&m, &s);
	snprintf(name, sizeof(name), "%s %u streams event per %u", kinds[kind], streams, per_event);
	snprintf(s.note, sizeof(s.note), "%.2f us a copy", s.seconds * 1e6 / SMALL_COUNT);
	if (!rc)
		meter_row(b, "copies4k", name, rep, &s);
	return gpu_bad("4 KiB copies", rc);
}

/* Measures the time from queueing a copy until polling finds that the event after the copy has
 * happened. */
static int small_latency(struct bench *b, struct queues *q, enum small kind, unsigned rep)
{
	const struct pst_cuda *api = q->g->api;
	static uint32_t ns[2000];
	struct sample s = {.ops = 2000, .bytes = 2000 * SMALL};
	uint64_t begun = meter_ns();
	int rc = 0;

	for (unsigned i = 0; i < 2000 && !rc; i++) {
		uint64_t began = meter_ns();

		rc = kind == ROWS
			     ? gpu_copy_two_rows(q->pinned, (uintptr_t)b->gpu, SMALL, q->streams[0])
			     : (int)api->cuMemcpyHtoDAsync((uintptr_t)b->gpu, q->pinned, SMALL,
							   q->streams[0]);
		if (!rc)
			rc = (int)api->cuEventRecord(q->events[0], q->streams[0]);
		while (!rc && (rc = (int)api->cuEventQuery(q->events[0])) == PST_CU_NOT_READY)
			rc = 0;
		ns[i] = (uint32_t)(meter_ns() - began);
	}
	s.seconds = (double)(meter_ns() - begun) * 1e-9;
	qsort(ns, 2000, sizeof(ns[0]), meter_compare_u32);
	s.p50_us = ns[1000] * 1e-3;
	s.p99_us = ns[1980] * 1e-3;
	if (!rc)
		meter_row(b, "copies4k",
			  kind == ROWS ? "two rows one at a time" : "plain one at a time", rep, &s);
	return gpu_bad("4 KiB copies", rc);
}

static int section_copies4k(struct bench *b)
{
	struct queues q;
	int ret = queues_open(b, &q);
	bool batches = !ret && q.g->api->cuMemcpyBatchAsync;
	bool pitched = !ret && q.g->api->cuMemcpy3DBatchAsync;

	for (unsigned rep = 0; rep < b->reps && !ret; rep++) {
		for (enum small kind = PLAIN; kind <= ROWS && !ret; kind++) {
			ret = small_latency(b, &q, kind, rep);
			for (unsigned streams = 1; streams <= 2 && !ret; streams++) {
				ret = small_run(b, &q, kind, streams, 1, rep);
				if (!ret)
					ret = small_run(b, &q, kind, streams, 32, rep);
			}
		}
		for (unsigned per = 8; per <= BATCH_MAX && !ret && batches; per *= 4)
			ret = small_run(b, &q, BATCHED, 1, per, rep);
		for (unsigned per = 2; per <= BATCH_MAX && !ret && pitched; per *= 2)
			ret = small_run(b, &q, BATCHED_ROWS, 1, per, rep);
	}
	queues_close(&q);
	return ret;
}

/* ---- batches of large copies ---- */

static int batch_run(struct bench *b, struct queues *q, size_t len, unsigned count, unsigned rep)
{
	uint64_t total = 2 * GIB, n = 0;
	struct sample s = {.bytes = total};
	struct meter m;
	char name[64];
	int rc = 0;

	meter_start(&m);
	for (uint64_t at = 0; at < total && !rc; at += len * count, n += count)
		rc = copy_batch(b, q, len, n, count, q->streams[0]);
	if (!rc)
		rc = queues_sync(q);
	meter_stop(&m, &s);
	meter_settle(&m, &s);
	snprintf(name, sizeof(name), "%u x %zu KiB", count, len >> 10);
	if (!rc)
		meter_row(b, "batches", name, rep, &s);
	return gpu_bad("batches", rc);
}

static int section_batches(struct bench *b)
{
	struct queues q;
	int ret = queues_open(b, &q);

	for (unsigned rep = 0; rep < b->reps && !ret && q.g->api->cuMemcpyBatchAsync; rep++)
		for (size_t len = 256 * KIB; len <= 4 * MIB && !ret; len *= 2)
			for (unsigned count = 1; count <= 8 && !ret; count *= 2)
				ret = batch_run(b, &q, len, count, rep);
	queues_close(&q);
	return ret;
}

const struct bench_section bench_copies[] = {
	{"copies", "pinned copies of a slot's size, by raw driver calls", true, section_copies},
	{"batches", "several copies queued by one call, by raw driver calls", true,
	 section_batches},
	{"copies4k", "pinned copies of 4 KiB, by raw driver calls", true, section_copies4k},
	{"blocked", "driver calls while another thread registers page cache", true, gpu_blocked},
	{"written", "copies of what a processor has just written", true, gpu_written},
	{NULL, NULL, false, NULL},
};
