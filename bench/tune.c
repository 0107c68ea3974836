/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Measures different settings, from which the defaults of the library are chosen. For the paths
 * `bounce` and `staged`, these are the number of lanes (threads), and the number and size of the
 * slots in a lane's ring of pinned memory. For path `mapped`, it is the size of the windows (pieces
 * of the page cache that are registered in one call). The device is reopened for each setting.
 * Rounds go through all settings in turn, so that a slow change of the machine's speed affects all
 * settings alike.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

#define COLD_LEN (1 * GIB)

struct setting {
	unsigned lanes, slots;
	size_t slot;
	const char *engine;
};

static void setting_apply(const struct setting *s, struct penstock_device_opts *opts)
{
	opts->lanes = s->lanes;
	opts->slot_bytes = s->slot;
	opts->ring_bytes = s->slots * s->slot * s->lanes;
	opts->engine = s->engine;
}

static int setting_measure(struct bench *b, const char *group, const struct setting *set,
			   unsigned rep, const struct transfer *t)
{
	struct penstock_device_opts opts = PENSTOCK_DEVICE_OPTS_INIT;
	struct sample s;
	char name[64];
	int ret;

	setting_apply(set, &opts);
	snprintf(name, sizeof(name), "%u lanes %u x %zu KiB %s", set->lanes, set->slots,
		 set->slot >> 10, set->engine ? set->engine : "");
	bench_device_close(b);
	ret = bench_device_open(b, &opts);
	if (!ret)
		ret = transfer_read(b, t, &s);
	if (!ret)
		meter_row(b, group, name, rep, &s);
	return ret;
}

static int section_lanes(struct bench *b)
{
	static const struct setting sets[] = {
		{4, 8, 2 * MIB, NULL},	{6, 8, 2 * MIB, NULL},	{8, 8, 2 * MIB, NULL},
		{10, 8, 2 * MIB, NULL}, {12, 8, 2 * MIB, NULL}, {16, 8, 2 * MIB, NULL},
		{8, 3, 2 * MIB, NULL},	{8, 4, 4 * MIB, NULL},	{8, 8, 1 * MIB, NULL},
		{10, 3, 2 * MIB, NULL}, {10, 4, 4 * MIB, NULL}, {10, 8, 1 * MIB, NULL},
		{6, 8, 4 * MIB, NULL},	{8, 8, 4 * MIB, NULL},	{8, 4, 8 * MIB, NULL},
	};
	struct transfer t = {
		.len = b->len, .effort = PENSTOCK_FAST, .path = "bounce", .opened = true};
	int fd = open(b->file, O_RDONLY | O_CLOEXEC), ret = fd < 0 ? -errno : 0;

	if (!ret)
		ret = cache_warm(fd, 0, b->len);
	for (unsigned rep = 0; rep < b->reps && !ret; rep++)
		for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]) && !ret; i++)
			ret = setting_measure(b, "lanes", &sets[i], rep, &t);
	if (fd >= 0)
		close(fd);
	return ret;
}

/* Measures three cases: the drive alone; a loop that reads the drive and copies to the GPU; and
 * path `staged`. Each measurement uses the next part of the file, so that no two measurements
 * read the same bytes. */
static int section_staged(struct bench *b)
{
	static const struct drive_way ways[] = {
		{"uring", 1, 8, 1 * MIB}, {"uring", 1, 16, 1 * MIB}, {"uring", 1, 32, 1 * MIB}};
	static const struct setting sets[] = {
		{2, 16, 1 * MIB, "uring"}, {2, 8, 1 * MIB, "uring"},   {2, 4, 1 * MIB, "uring"},
		{1, 16, 1 * MIB, "uring"}, {1, 8, 1 * MIB, "uring"},   {2, 16, 512 * KIB, "uring"},
		{4, 4, 1 * MIB, "uring"},  {2, 8, 1 * MIB, "threads"},
	};
	uint64_t len = b->len < 8 * COLD_LEN ? b->len / 8 : COLD_LEN, parts = b->len / len;
	struct transfer t = {.len = len, .path = "staged", .opened = true};
	uint64_t part = 0;
	int fd = drive_open(b->file, false), ret = fd < 0 ? fd : cache_drop(fd, 0, b->len);

	for (unsigned rep = 0; rep < b->reps && !ret; rep++) {
		for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]) && !ret; i++) {
			char loop[64];

			ret = drive_row(b, "staged", "limit", rep, fd, false, part++ % parts * len,
					len, 0, &ways[i]);
			for (int sleeps = 0; sleeps < 2 && !ret; sleeps++) {
				snprintf(loop, sizeof(loop), "loop %u x %zu KiB%s", ways[i].depth,
					 ways[i].block >> 10, sleeps ? " sleeps" : "");
				ret = gpu_cold_row(b, "staged", loop, rep, fd, part++ % parts * len,
						   len, &ways[i], sleeps);
			}
		}
		for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]) && !ret; i++) {
			t.off = part++ % parts * len;
			ret = setting_measure(b, "staged", &sets[i], rep, &t);
		}
	}
	if (fd >= 0)
		close(fd);
	return ret;
}

static int section_window(struct bench *b)
{
	static const uint64_t sets[][2] = {{2, 32},  {8, 128},	 {32, 128}, {128, 128},
					   {8, 512}, {512, 512}, {2, 8}};
	int fd = open(b->file, O_RDONLY | O_CLOEXEC), ret = fd < 0 ? -errno : 0;

	if (!ret)
		ret = cache_warm(fd, 0, b->len);
	for (unsigned rep = 0; rep < b->reps && !ret; rep++)
		for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]) && !ret; i++) {
			char name[64];

			snprintf(name, sizeof(name), "%llu to %llu MiB",
				 (unsigned long long)sets[i][0], (unsigned long long)sets[i][1]);
			ret = gpu_window_row(b, "window", name, rep, fd, b->len, sets[i][0] * MIB,
					     sets[i][1] * MIB);
		}
	if (fd >= 0)
		close(fd);
	return ret;
}

/* Measures mixed reads. First measures raw calls (without Penstock): one thread registers page
 * cache, and other threads read pieces of it into pinned memory. The number of threads and the
 * length of the pieces vary. Then measures the library with several numbers of lanes (threads). */
static int section_mixed_ways(struct bench *b)
{
	static const struct mixed_way ways[] = {
		{3, MIB, 32 * MIB, true},  {5, MIB, 32 * MIB, true},	 {7, MIB, 32 * MIB, true},
		{7, MIB, 128 * MIB, true}, {7, MIB, 64 * MIB, true},	 {7, MIB, 16 * MIB, true},
		{7, MIB, 8 * MIB, true},   {7, 2 * MIB, 64 * MIB, true}, {11, MIB, 32 * MIB, true},
	};
	static const struct setting sets[] = {{3, 4, 4 * MIB, NULL},
					      {4, 4, 4 * MIB, NULL},
					      {6, 4, 4 * MIB, NULL},
					      {8, 4, 4 * MIB, NULL},
					      {12, 4, 4 * MIB, NULL}};
	struct transfer t = {.len = b->len, .effort = PENSTOCK_FAST, .opened = true};
	int fd = open(b->file, O_RDONLY | O_CLOEXEC), ret = fd < 0 ? -errno : 0;

	if (!ret)
		ret = cache_warm(fd, 0, b->len);
	for (unsigned rep = 0; rep < b->reps && !ret; rep++) {
		for (size_t i = 0; i < sizeof(ways) / sizeof(ways[0]) && !ret; i++) {
			char name[64];

			snprintf(name, sizeof(name), "raw %u x %llu KiB %llu MiB", ways[i].threads,
				 (unsigned long long)(ways[i].piece / KIB),
				 (unsigned long long)(ways[i].window / MIB));
			ret = gpu_mixed_row(b, "mixed_ways", name, rep, fd, b->len, &ways[i]);
		}
		for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]) && !ret; i++)
			ret = setting_measure(b, "mixed_ways", &sets[i], rep, &t);
	}
	if (fd >= 0)
		close(fd);
	return ret;
}

const struct bench_section bench_tune[] = {
	{"lanes", "lanes, slots and ring of bounce", true, section_lanes},
	{"staged", "lanes and slots of staged", true, section_staged},
	{"mixed_ways", "threads, pieces and lanes of two paths at once", true, section_mixed_ways},
	{"window", "windows over the page cache, by raw driver calls", true, section_window},
	{NULL, NULL, false, NULL},
};
