/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_core: measures Penstock and the limits of the hardware in alternation. bench/gpu.sh runs
 * it once for each section. Each measurement is one line of CSV. This program must never print a
 * figure of a transfer whose bytes it has not compared. It must also never print a figure of an
 * uncached read without checking that the file was not cached.
 */
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "bench.h"

static const struct bench_section *const tables[] = {bench_prep,  bench_bulk,	bench_small,
						     bench_tune,  bench_copies, bench_stream,
						     bench_graph, bench_sum,	bench_calls};
#define TABLES (sizeof(tables) / sizeof(tables[0]))

void bench_bad(struct bench *b, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fprintf(stderr, "bench: ");
	vfprintf(stderr, format, args);
	fprintf(stderr, "\n");
	va_end(args);
	b->wrong = true;
}

int bench_device_open(struct bench *b, const struct penstock_device_opts *opts)
{
	int ret = penstock_device_open(b->device, opts, &b->dev);

	if (ret == 1)
		bench_bad(b, "%s is already open, so the new options were ignored", b->device);
	else if (ret)
		bench_bad(b, "%s", penstock_errmsg());
	return ret < 0 ? ret : 0;
}

void bench_device_close(struct bench *b)
{
	penstock_device_close(b->dev);
	b->dev = NULL;
}

static void usage(FILE *to)
{
	fprintf(to, "usage: bench_core [option...] SECTION...\n"
		    "  -f FILE    file that all sections read; `make` writes it\n"
		    "  -o CSV     file that measurements are appended to (standard output)\n"
		    "  -s FILE    file that `save` writes and removes (FILE.scratch)\n"
		    "  -d DEVICE  device (cuda:0)\n"
		    "  -l MIB     length of a bulk transfer (8192)\n"
		    "  -L MIB     longest size (16384)\n"
		    "  -n REPS    repetitions (5)\n"
		    "  -N LANES   lanes of the device (the library's default)\n"
		    "  -W NAME    only this row of `stream`, such as \"cached 4 KiB 1 stream\"\n"
		    "  -g GROUP   group of the rows of `beside` (beside)\n"
		    "  -r REP     number of the first repetition of `beside` (0)\n"
		    "  -t SECONDS duration of a run of random reads (1.5)\n"
		    "  -T TAG     suffix of each group, to compare builds\n"
		    "  -F COMMAND command that runs fio\n");
	for (size_t t = 0; t < TABLES; t++)
		for (const struct bench_section *s = tables[t]; s->name; s++)
			fprintf(to, "  %-10s %s\n", s->name, s->what);
}

static const struct bench_section *section_find(const char *name)
{
	for (size_t t = 0; t < TABLES; t++)
		for (const struct bench_section *s = tables[t]; s->name; s++)
			if (!strcmp(s->name, name))
				return s;
	return NULL;
}

/* Calls penstock_prepare, which starts the device's lanes (the library's threads), and allocates
 * pinned memory. Otherwise the first measurement would include the time of these two steps. */
static int pump_warm_up(struct bench *b)
{
	struct penstock_storage *st;
	int ret = penstock_open(b->file, NULL, &st);

	if (!ret) {
		ret = penstock_prepare(st, b->dev, PENSTOCK_READ);
		penstock_close(st);
	}
	if (ret)
		bench_bad(b, "%s", penstock_errmsg());
	return ret || gpu_pinned(b, b->len, true) < 0 ? -EIO : 0;
}

/* Opens the GPU and allocates device memory for the longest transfer of the requested sections. */
static int gpu_start(struct bench *b, uint64_t len)
{
	struct penstock_device_opts opts = PENSTOCK_DEVICE_OPTS_INIT;
	int ret = gpu_open(b);

	opts.lanes = b->lanes;
	if (!ret)
		ret = bench_device_open(b, &opts);
	/* This program allocates the memory by the CUDA driver instead of Penstock, so that the
	 * memory stays when section `lanes` closes and reopens the device. */
	if (!ret)
		ret = gpu_alloc(b, len);
	return ret ? ret : pump_warm_up(b);
}

static int sections_run(struct bench *b, char **names, int count)
{
	uint64_t len = b->len;
	int ret = 0;

	for (int i = 0; i < count && !ret; i++) {
		const struct bench_section *s = section_find(names[i]);

		if (!s) {
			bench_bad(b, "section '%s' does not exist", names[i]);
			return -EINVAL;
		}
		if (!strcmp(s->name, "size_long"))
			len = b->long_len;
		if (s->needs_gpu && !b->gpu)
			ret = gpu_start(b, len);
		if (!ret)
			ret = s->run(b);
		if (ret)
			bench_bad(b, "section %s: %s", s->name, strerror(-ret));
	}
	bench_device_close(b);
	gpu_close(b);
	return ret;
}

static int options_parse(struct bench *b, int argc, char **argv)
{
	int c;

	while ((c = getopt(argc, argv, "f:o:s:d:l:L:n:N:g:r:t:T:F:W:h")) >= 0) {
		switch (c) {
		case 'f':
			b->file = optarg;
			break;
		case 'o':
			b->csv = fopen(optarg, "ae");
			break;
		case 's':
			b->scratch = optarg;
			break;
		case 'd':
			b->device = optarg;
			break;
		case 'l':
			b->len = strtoull(optarg, NULL, 10) * MIB;
			break;
		case 'L':
			b->long_len = strtoull(optarg, NULL, 10) * MIB;
			break;
		case 'n':
			b->reps = (unsigned)strtoul(optarg, NULL, 10);
			break;
		case 'W':
			b->only = optarg;
			break;
		case 'N':
			b->lanes = (unsigned)strtoul(optarg, NULL, 10);
			break;
		case 'g':
			b->group = optarg;
			break;
		case 'r':
			b->rep = (unsigned)strtoul(optarg, NULL, 10);
			break;
		case 't':
			b->seconds = atof(optarg);
			break;
		case 'T':
			b->tag = optarg;
			break;
		case 'F':
			b->fio = optarg;
			break;
		default:
			return -EINVAL;
		}
	}
	return !b->file || !b->csv || !b->len || optind == argc ? -EINVAL : 0;
}

int main(int argc, char **argv)
{
	struct bench b = {.device = "cuda:0",
			  .len = 8 * GIB,
			  .long_len = 16 * GIB,
			  .reps = 5,
			  .group = "beside",
			  .seconds = 1.5,
			  .csv = stdout};
	static char scratch[4096];
	int ret;

	if (options_parse(&b, argc, argv)) {
		usage(stderr);
		return 2;
	}
	if (!b.scratch) {
		snprintf(scratch, sizeof(scratch), "%s.scratch", b.file);
		b.scratch = scratch;
	}
	ret = sections_run(&b, argv + optind, argc - optind);
	if (b.csv != stdout)
		fclose(b.csv);
	return ret || b.wrong ? 1 : 0;
}
