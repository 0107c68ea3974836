/* SPDX-License-Identifier: Apache-2.0 */
/*
 * bench_shim: measures one way of reading a file into GPU memory. The way is either the core
 * (Penstock's own API) or a libcufile that is named by its path: Penstock's or NVIDIA's.
 * bench/shim/run runs this program for each way in turn, and computes the ratios. It must never
 * print a figure of bytes that it has not compared. It must also never print a figure of an
 * uncached read without checking that the file was not cached.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "device/cuda_api.h"
#include "shim.h"

static struct {
	const struct pst_cuda *api;
	struct pst_cu_ctx *ctx;
	struct pst_cu_stream *stream;
} gpu;

void bench_bad(struct bench *b, const char *format, ...)
{
	va_list args;

	va_start(args, format);
	fprintf(stderr, "bench_shim: ");
	vfprintf(stderr, format, args);
	fprintf(stderr, "\n");
	va_end(args);
	b->wrong = true;
}

static void usage(FILE *to)
{
	fprintf(to, "usage: bench_shim [option...] SECTION...\n"
		    "  -f FILE    file that all sections read\n"
		    "  -c LIB     path of a libcufile (default: the core)\n"
		    "  -N NAME    name of the rows\n"
		    "  -D         open the file with O_DIRECT\n"
		    "  -C         drop the file from the page cache before each run\n"
		    "  -o CSV     file that measurements are appended to (standard output)\n"
		    "  -l MIB     bytes of the file to use (all)\n"
		    "  -n REPS    repetitions (1); -r REP number of the first one\n"
		    "  -t SECONDS duration of random reads (0.5)\n");
	for (const struct shim_section *s = shim_sections; s->name; s++)
		fprintf(to, "%10s  %s\n", s->name, s->what);
}

/* ---- the GPU ---- */

void shim_gpu_thread(void)
{
	gpu.api->cuCtxSetCurrent(gpu.ctx);
}

static int gpu_start(struct shim_run *r)
{
	const char *why = "";
	pst_cu_ptr ptr = 0;
	int dev, rc;

	gpu.api = pst_cuda_get(&why);
	if (!gpu.api) {
		fprintf(stderr, "bench_shim: %s\n", why);
		return -ENODEV;
	}
	rc = (int)gpu.api->cuDeviceGet(&dev, 0);
	if (!rc)
		rc = (int)gpu.api->cuDevicePrimaryCtxRetain(&gpu.ctx, dev);
	shim_gpu_thread();
	if (!rc)
		rc = (int)gpu.api->cuStreamCreateWithPriority(&gpu.stream,
							      PST_CU_STREAM_NON_BLOCKING, 0);
	r->side.gpu_len = r->b.len > BATCH * MIB ? r->b.len : BATCH * MIB;
	if (!rc)
		rc = (int)gpu.api->cuMemAlloc(&ptr, r->side.gpu_len);
	if (!rc)
		rc = (int)gpu.api->cuMemsetD8Async(ptr, 0x5c, r->side.gpu_len, gpu.stream);
	if (!rc)
		rc = (int)gpu.api->cuStreamSynchronize(gpu.stream);
	r->side.gpu = (void *)(uintptr_t)ptr;
	if (rc)
		fprintf(stderr, "bench_shim: setting up the GPU failed with CUDA error %d\n", rc);
	return rc ? -EIO : 0;
}

bool shim_gpu_same(struct shim_run *r, uint64_t buf_off, uint64_t off, size_t len)
{
	char *want = malloc(len), *have = malloc(len);
	int fd = open(r->b.file, O_RDONLY | O_CLOEXEC);
	bool same = want && have && fd >= 0;
	pst_cu_ptr at = (uintptr_t)r->side.gpu + buf_off;

	same = same && pread(fd, want, len, (off_t)off) == (ssize_t)len;
	same = same && !gpu.api->cuMemcpyDtoHAsync(have, at, len, gpu.stream) &&
	       !gpu.api->cuStreamSynchronize(gpu.stream) && !memcmp(want, have, len);
	/* Overwrites the compared bytes, so that the next run cannot pass with bytes that this
	 * run has read. */
	if (same && gpu.api->cuMemsetD8Async(at, 0x5c, len, gpu.stream) +
			    gpu.api->cuStreamSynchronize(gpu.stream))
		same = false;
	if (fd >= 0)
		close(fd);
	free(want);
	free(have);
	return same;
}

int shim_cache(struct shim_run *r)
{
	int fd = open(r->b.file, O_RDONLY | O_CLOEXEC), ret;

	if (fd < 0)
		return -errno;
	ret = r->cold ? cache_drop(fd, 0, r->b.len) : cache_warm(fd, 0, r->b.len);
	close(fd);
	if (ret)
		bench_bad(&r->b, "the page cache cannot be made %s for the file: %d",
			  r->cold ? "cold" : "warm", ret);
	return ret;
}

/* ---- the run ---- */

static int sections_run(struct shim_run *r, char **names, int count)
{
	int ret = r->side.ops->open(&r->side, r->b.file);

	if (ret)
		return ret;
	/* The first read of the file into the GPU is slower, and is not measured. */
	if (r->side.ops->read(&r->side, r->side.gpu, 4 * MIB, 0, 0) != 4 * MIB) {
		bench_bad(&r->b, "%s: the first read failed", r->side.name);
		return -EIO;
	}
	for (int i = 0; i < count; i++) {
		const struct shim_section *s = shim_sections;

		while (s->name && strcmp(s->name, names[i]))
			s++;
		if (!s->name)
			bench_bad(&r->b, "section '%s' does not exist", names[i]);
		else if (s->run(r))
			bench_bad(&r->b, "%s: %s failed", r->side.name, names[i]);
	}
	r->side.ops->close(&r->side);
	return 0;
}

static uint64_t file_len(const char *path, uint64_t most)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);
	off_t len = fd < 0 ? 0 : lseek(fd, 0, SEEK_END);

	if (fd >= 0)
		close(fd);
	len -= len % (off_t)MIB;
	return most && most < (uint64_t)len ? most : (uint64_t)len;
}

int main(int argc, char **argv)
{
	struct shim_run r = {.b = {.device = "cuda:0", .reps = 1, .seconds = 0.5}};
	const char *csv = NULL;
	uint64_t most = 0;
	int c;

	r.side.name = "core";
	while ((c = getopt(argc, argv, "f:c:N:DCo:l:n:r:t:h")) != -1) {
		switch (c) {
		case 'f':
			r.b.file = optarg;
			break;
		case 'c':
			r.side.lib = optarg;
			break;
		case 'N':
			r.side.name = optarg;
			break;
		case 'D':
			r.side.direct = true;
			break;
		case 'C':
			r.cold = true;
			break;
		case 'o':
			csv = optarg;
			break;
		case 'l':
			most = strtoull(optarg, NULL, 10) * MIB;
			break;
		case 'n':
			r.b.reps = (unsigned)strtoul(optarg, NULL, 10);
			break;
		case 'r':
			r.b.rep = (unsigned)strtoul(optarg, NULL, 10);
			break;
		case 't':
			r.b.seconds = strtod(optarg, NULL);
			break;
		default:
			usage(c == 'h' ? stdout : stderr);
			return 2;
		}
	}
	r.b.len = r.b.file ? file_len(r.b.file, most) : 0;
	if (optind == argc || r.b.len < 8 * MIB) {
		usage(stderr);
		return 2;
	}
	r.side.ops = r.side.lib ? &side_cufile : &side_core;
	r.b.csv = csv ? fopen(csv, "ae") : stdout;
	if (!r.b.csv || gpu_start(&r))
		return 77;
	if (sections_run(&r, argv + optind, argc - optind) || r.b.wrong)
		return 1;
	return fclose(r.b.csv) ? 1 : 0;
}
