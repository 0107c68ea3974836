/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures each step of a read over path `mapped`, in which the GPU's copy engine reads the
 * page cache: map a window of the file, fault its pages in, register it with the driver, copy
 * from it, and undo all of that at the end. The first window is short, so that the copy engine
 * starts early. Each following window is as long as all windows before it together, up to
 * `window` bytes. Towards the end the windows are short again, so that little is left to copy
 * when the last window has been registered. The times show the limit of path `mapped` and the
 * best lengths of its windows. From the library it uses only the table of driver functions.
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
#define MADV_POPULATE_READ 22 /* Available since Linux 5.14. */
#endif

struct window {
	char *base;
	uint64_t len;
};

struct window_times {
	/* map: seconds to map all windows; reg: seconds to register them; there: seconds from
	 * the start until all data has arrived; unreg: seconds to undo all windows. */
	double map, reg, there, unreg;
};

static double seconds_since(uint64_t ns)
{
	return (double)(meter_ns() - ns) * 1e-9;
}

static int window_copy(struct bench *b, struct gpu *g, int fd, uint64_t off, struct window *w,
		       struct window_times *out)
{
	uint64_t began = meter_ns();
	int rc;

	w->base = mmap(NULL, w->len, PROT_READ, MAP_SHARED, fd, (off_t)off);
	if (w->base == MAP_FAILED)
		return -errno;
	if (madvise(w->base, w->len, MADV_POPULATE_READ))
		return -errno;
	out->map += seconds_since(began);
	began = meter_ns();
	rc = (int)g->api->cuMemHostRegister(w->base, w->len,
					    PST_CU_HOST_PORTABLE | PST_CU_HOST_READ_ONLY);
	out->reg += seconds_since(began);
	if (!rc)
		rc = (int)g->api->cuMemcpyHtoDAsync((uintptr_t)b->gpu + off, w->base, w->len,
						    g->stream);
	return gpu_bad("window", rc);
}

static int windows_copy(struct bench *b, int fd, uint64_t len, uint64_t first, uint64_t window,
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
		ret = window_copy(b, g, fd, off, &all[count], out);
		off += all[count++].len;
	}
	if (!ret)
		ret = gpu_bad("windows", (int)g->api->cuStreamSynchronize(g->stream));
	out->there = seconds_since(began);
	began = meter_ns();
	for (unsigned i = 0; i < count; i++) {
		if (!all[i].base || all[i].base == MAP_FAILED)
			continue;
		g->api->cuMemHostUnregister(all[i].base);
		munmap(all[i].base, all[i].len);
	}
	out->unreg = seconds_since(began);
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
	ret = windows_copy(b, fd, len, first, window, &times);
	meter_settle(&m, &s);
	if (ret || !gpu_same(b, b->file, 0, len))
		return ret ? ret : -EIO;
	s.seconds = times.there;
	snprintf(s.note, sizeof(s.note), "map %.1f ms register %.1f there %.1f undo %.1f",
		 times.map * 1e3, times.reg * 1e3, times.there * 1e3, times.unreg * 1e3);
	meter_row(b, group, name, rep, &s);
	return 0;
}
