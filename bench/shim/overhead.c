/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures the time that the drop-in (Penstock's libcufile) adds to a call. Makes small reads by
 * cuFileRead, and the same requests by penstock_transfer, a hundred of each in turn. All calls use
 * the same libpenstock in one process. Writes the time of every call; bench/shim/table.py compares
 * the medians. The file is in the page cache. main.c calls this file.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "abi/cufile_calls.h"
#include "shim.h"

#define CALLS 20000u
#define TURN 100u
#define ROOM (1 * MIB)

struct times {
	uint32_t ns[CALLS];
	unsigned count;
};

static int calls_measure(struct side *s, void *buf, size_t len, struct times *t)
{
	for (unsigned i = 0; i < TURN; i++) {
		uint64_t off = (uint64_t)(t->count % 256) * 4096, began = meter_ns();
		int64_t got = s->ops->read(s, buf, len, off, 0);

		t->ns[t->count++] = (uint32_t)(meter_ns() - began);
		if (got != (int64_t)len)
			return -EIO;
	}
	return 0;
}

static void times_row(struct shim_run *r, const char *group, const char *name, struct times *t,
		      size_t len)
{
	struct sample s = {.bytes = (uint64_t)t->count * len, .ops = t->count};

	for (unsigned i = 0; i < t->count; i++)
		s.seconds += t->ns[i] * 1e-9;
	qsort(t->ns, t->count, sizeof(t->ns[0]), meter_compare_u32);
	s.p50_us = t->ns[t->count / 2] * 1e-3;
	s.p99_us = t->ns[t->count - 1 - t->count / 100] * 1e-3;
	meter_row(&r->b, group, name, r->b.rep, &s);
}

static int pair_measure(struct shim_run *r, const char *group, void *buf, size_t len,
			unsigned calls)
{
	static struct times core, shim;
	int ret = 0;

	core.count = shim.count = 0;
	while (!ret && core.count < calls) {
		ret = calls_measure(&r->other, buf, len, &core);
		if (!ret)
			ret = calls_measure(&r->side, buf, len, &shim);
	}
	if (ret) {
		bench_bad(&r->b, "overhead: %s", penstock_errmsg());
		return ret;
	}
	times_row(r, group, "core", &core, len);
	times_row(r, group, r->side.name, &shim, len);
	return 0;
}

int shim_overhead(struct shim_run *r)
{
	struct penstock_device *host = NULL, *gpu;
	void *memory;
	int ret = shim_cache(r);

	if (ret || !r->side.lib)
		return ret;
	memory = mmap(NULL, ROOM, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (memory == MAP_FAILED)
		return -ENOMEM;
	memset(memory, 1, ROOM);
	r->other = (struct side){.ops = &side_core, .name = "core"};
	ret = side_core.open(&r->other, r->b.file);
	if (!ret)
		ret = penstock_device_open("host", NULL, &host) < 0 ? -EIO : 0;
	for (unsigned rep = 0; !ret && rep < r->b.reps; rep++) {
		gpu = r->other.dev;
		ret = pair_measure(r, "overhead GPU 4 KiB", r->side.gpu, 4096, CALLS / 2);
		r->other.dev = host;
		if (!ret)
			ret = pair_measure(r, "overhead host 4 KiB", memory, 4096, CALLS);
		if (!ret)
			ret = pair_measure(r, "overhead host 1 byte", memory, 1, CALLS);
		r->other.dev = gpu;
	}
	if (host)
		penstock_device_close(host);
	if (!ret)
		side_core.close(&r->other);
	munmap(memory, ROOM);
	return ret;
}
