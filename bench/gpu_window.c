/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How the copy engine gets at the page cache, one step at a time: a mapping, its
 * pages brought in, registered, copied from, and all undone at the end. The first
 * window is short and each further one as long as all before it, up to `window`, so
 * that the copy engine starts early; towards the end they are short again, so that
 * little is left to be copied when the last is registered. The times of the steps say
 * what bounds the path and which windows are best; nothing of the library is used.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "bench.h"
#include "device/cuda_api.h"
#include "gpu.h"

#define WINDOWS 4096

#ifndef MADV_POPULATE_READ
#define MADV_POPULATE_READ 22 /* Linux 5.14 */
#endif

struct window {
	char *base;
	uint64_t len;
};

struct window_times {
	double map, reg, there, unreg; /* seconds: mapping, registering, data there, undoing */
};

static double since(uint64_t ns)
{
	return (double)(meter_ns() - ns) * 1e-9;
}

static int one(struct bench *b, struct gpu *g, int fd, uint64_t off, struct window *w,
	       struct window_times *out)
{
	uint64_t began = meter_ns();
	int rc;

	w->base = mmap(NULL, w->len, PROT_READ, MAP_SHARED, fd, (off_t)off);
	if (w->base == MAP_FAILED)
		return -errno;
	if (madvise(w->base, w->len, MADV_POPULATE_READ))
		return -errno;
	out->map += since(began);
	began = meter_ns();
	rc = (int)g->api->cuMemHostRegister(w->base, w->len,
					    PST_CU_HOST_PORTABLE | PST_CU_HOST_READ_ONLY);
	out->reg += since(began);
	if (!rc)
		rc = (int)g->api->cuMemcpyHtoDAsync((uintptr_t)b->gpu + off, w->base, w->len,
						    g->stream);
	return gpu_bad("window", rc);
}

static int windows(struct bench *b, int fd, uint64_t len, uint64_t first, uint64_t window,
		   struct window_times *out)
{
	struct window *all = calloc(WINDOWS, sizeof(*all));
	struct gpu *g = gpu_get();
	uint64_t began = meter_ns(), off = 0;
	unsigned count = 0;
	int ret = all ? 0 : -ENOMEM;

	memset(out, 0, sizeof(*out));
	while (off < len && !ret && count < WINDOWS) {
		uint64_t rest = len - off, n = off < rest / 2 ? off : rest / 2 / first * first;

		n = n < first ? first : n < window ? n : window;
		all[count].len = n < rest ? n : rest;
		ret = one(b, g, fd, off, &all[count], out);
		off += all[count++].len;
	}
	if (!ret)
		ret = gpu_bad("windows", (int)g->api->cuStreamSynchronize(g->stream));
	out->there = since(began);
	began = meter_ns();
	for (unsigned i = 0; i < count; i++) {
		if (!all[i].base || all[i].base == MAP_FAILED)
			continue;
		g->api->cuMemHostUnregister(all[i].base);
		munmap(all[i].base, all[i].len);
	}
	out->unreg = since(began);
	free(all);
	return off < len && !ret ? -E2BIG : ret;
}

int gpu_window_row(struct bench *b, const char *group, const char *name, unsigned rep, int fd,
		   uint64_t len, uint64_t first, uint64_t window)
{
	struct sample s = {.bytes = len};
	struct window_times times;
	struct meter m;
	int ret;

	gpu_poison(b, len);
	meter_start(&m);
	ret = windows(b, fd, len, first, window, &times);
	meter_settle(&m, &s);
	if (ret || !gpu_same(b, b->file, 0, len))
		return ret ? ret : -EIO;
	s.seconds = times.there;
	snprintf(s.note, sizeof(s.note), "map %.1f ms register %.1f there %.1f undo %.1f",
		 times.map * 1e3, times.reg * 1e3, times.there * 1e3, times.unreg * 1e3);
	meter_row(b, group, name, rep, &s);
	return 0;
}
