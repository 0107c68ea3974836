/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures which driver calls wait while another thread registers page cache. One thread registers
 * windows of a cached file. Meanwhile the calling thread repeats one driver call and measures the
 * time of each. Because of the results, the library lets one thread register the windows of a
 * request, and queue the copies of the request's other threads too. From the library this file uses
 * only the table of driver functions.
 */
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench.h"
#include "device/cuda_api.h"
#include "gpu.h"

#define WINDOW (128 * MIB)
#define WINDOWS 24u
#define TIMES_MAX 200000u

struct registrar {
	struct bench *b;
	int fd;
	pthread_t thread;
	char *base[WINDOWS];
	/* registers: the thread is inside cuMemHostRegister. ended: the thread has ended. */
	_Atomic bool registers, ended;
	int ret;
};

static void *registrar_main(void *arg)
{
	struct registrar *r = arg;
	struct gpu *g = gpu_get();

	g->api->cuCtxSetCurrent(g->ctx);
	for (unsigned i = 0; i < WINDOWS && (i + 1) * WINDOW <= r->b->len && !r->ret; i++) {
		r->base[i] = mmap(NULL, WINDOW, PROT_READ, MAP_SHARED | MAP_POPULATE, r->fd,
				  (off_t)(i * WINDOW));
		if (r->base[i] == MAP_FAILED) {
			r->ret = -errno;
			break;
		}
		atomic_store(&r->registers, true);
		r->ret = (int)g->api->cuMemHostRegister(
			r->base[i], WINDOW, PST_CU_HOST_PORTABLE | PST_CU_HOST_READ_ONLY);
		atomic_store(&r->registers, false);
	}
	atomic_store(&r->ended, true);
	return NULL;
}

static void registrar_close(struct registrar *r)
{
	for (unsigned i = 0; i < WINDOWS; i++) {
		if (!r->base[i] || r->base[i] == MAP_FAILED)
			continue;
		gpu_get()->api->cuMemHostUnregister(r->base[i]);
		munmap(r->base[i], WINDOW);
	}
}

/* Arguments of the measured driver calls. Each function call_* makes one of these calls. */
struct caller {
	struct bench *b;
	struct gpu *g;
	char *mem;
	struct pst_cu_event *event;
};

static int call_copy(struct caller *c)
{
	return (int)c->g->api->cuMemcpyHtoDAsync((uintptr_t)c->b->gpu, c->mem, 64 * KIB,
						 c->g->stream);
}

static int call_record(struct caller *c)
{
	return (int)c->g->api->cuEventRecord(c->event, c->g->stream);
}

static int call_query(struct caller *c)
{
	int rc = (int)c->g->api->cuEventQuery(c->event);

	return rc == PST_CU_NOT_READY ? 0 : rc;
}

static int call_batch(struct caller *c)
{
	pst_cu_ptr to = (uintptr_t)c->b->gpu, from = (uintptr_t)c->mem;
	size_t len = 64 * KIB, zero = 0;
	struct pst_cu_copy_attr attr = {.source_order = PST_CU_SOURCE_IN_STREAM};

	return c->g->api->cuMemcpyBatchAsync
		       ? (int)c->g->api->cuMemcpyBatchAsync(&to, &from, &len, 1, &attr, &zero, 1,
							    c->g->stream)
		       : 0;
}

static int call_write(struct caller *c)
{
	return c->g->api->cuStreamWriteValue32 ? (int)c->g->api->cuStreamWriteValue32(
							 c->g->stream, (uintptr_t)c->b->gpu, 1, 0)
					       : 0;
}

static int call_measure(struct bench *b, const char *name, unsigned rep, struct caller *c,
			int (*call)(struct caller *c), int fd)
{
	static uint32_t ns[TIMES_MAX];
	struct registrar r = {.b = b, .fd = fd};
	struct sample s = {.bytes = 0};
	uint64_t began = meter_ns();
	unsigned n = 0;
	int rc = -pthread_create(&r.thread, NULL, registrar_main, &r);

	if (rc)
		return rc;
	while (!atomic_load(&r.ended) && !rc) {
		bool during = atomic_load(&r.registers);
		uint64_t from = meter_ns();

		rc = call(c);
		if (during && n < TIMES_MAX)
			ns[n++] = (uint32_t)(meter_ns() - from);
		usleep(5);
	}
	pthread_join(r.thread, NULL);
	if (!rc)
		rc = (int)c->g->api->cuStreamSynchronize(c->g->stream);
	s.seconds = (double)(meter_ns() - began) * 1e-9;
	registrar_close(&r);
	if (rc || r.ret || !n)
		return gpu_bad(name, rc ? rc : r.ret ? r.ret : -EAGAIN);
	qsort(ns, n, sizeof(ns[0]), meter_compare_u32);
	s.ops = n;
	s.p50_us = ns[n / 2] * 1e-3;
	s.p99_us = ns[n * 99 / 100] * 1e-3;
	snprintf(s.note, sizeof(s.note), "longest %.3f us", ns[n - 1] * 1e-3);
	meter_row(b, "blocked", name, rep, &s);
	return 0;
}

int gpu_blocked(struct bench *b)
{
	static const struct {
		const char *name;
		int (*call)(struct caller *c);
	} calls[] = {
		{"copy to device", call_copy}, {"event record", call_record},
		{"event query", call_query},   {"batch of one copy", call_batch},
		{"stream write", call_write},
	};
	struct caller c = {.b = b, .g = gpu_get(), .mem = gpu_pinned_mem(MIB)};
	int fd = open(b->file, O_RDONLY | O_CLOEXEC), ret = fd < 0 ? -errno : 0;

	if (!ret)
		ret = c.mem ? cache_warm(fd, 0, b->len) : -ENOMEM;
	if (!ret)
		ret = gpu_bad("event",
			      (int)c.g->api->cuEventCreate(&c.event, PST_CU_EVENT_NO_TIMING));
	for (size_t i = 0; i < sizeof(calls) / sizeof(calls[0]) && !ret; i++)
		ret = call_measure(b, calls[i].name, 0, &c, calls[i].call, fd);
	if (c.event)
		c.g->api->cuEventDestroy(c.event);
	if (fd >= 0)
		close(fd);
	return ret;
}
