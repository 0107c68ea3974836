/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Uses the GPU by driver calls alone: measures copies of pinned memory, fills device memory with
 * a pattern before a run, and compares it with the file after the run. From the library it uses
 * only the table of driver functions (device/cuda_api.h). The benchmark keeps the GPU's context
 * during the whole run, so that the library never has to create one.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "bench.h"
#include "device/cuda_api.h"
#include "gpu.h"

#define PINNED (1u << 30)
#define PLACES 24
#define PLACE 4096u

static struct gpu gpu;
static char *pinned;
static size_t pinned_len;

struct gpu *gpu_get(void)
{
	return gpu.api ? &gpu : NULL;
}

int gpu_bad(const char *what, int rc)
{
	if (rc)
		fprintf(stderr, "bench: %s: %s\n", what, pst_cuda_name((enum pst_cu_result)rc));
	return rc ? pst_cuda_errno((enum pst_cu_result)rc) : 0;
}

int gpu_copy_two_rows(const char *from, pst_cu_ptr to, unsigned len, struct pst_cu_stream *stream)
{
	const struct pst_cu_memcpy2d c = {.src_type = PST_CU_MEMTYPE_HOST,
					  .src_host = from,
					  .src_pitch = len / 2,
					  .dst_type = PST_CU_MEMTYPE_DEVICE,
					  .dst_dev = to,
					  .dst_pitch = len / 2,
					  .width_bytes = len / 2,
					  .height = 2};

	return (int)gpu.api->cuMemcpy2DAsync(&c, stream);
}

int gpu_open(struct bench *b)
{
	const char *why = "the device is not a GPU";
	const struct pst_cuda *api = NULL;
	int ret;

	if (!strncmp(b->device, "cuda:", 5))
		api = pst_cuda_get(&why);
	if (!api) {
		fprintf(stderr, "bench: %s\n", why);
		return -ENODEV;
	}
	ret = gpu_bad("cuDeviceGet",
		      (int)api->cuDeviceGet(&gpu.ordinal, (int)strtol(b->device + 5, NULL, 10)));
	if (!ret)
		ret = gpu_bad("cuDevicePrimaryCtxRetain",
			      (int)api->cuDevicePrimaryCtxRetain(&gpu.ctx, gpu.ordinal));
	if (ret)
		return ret;
	api->cuCtxSetCurrent(gpu.ctx);
	ret = gpu_bad("stream", (int)api->cuStreamCreateWithPriority(
					&gpu.stream, PST_CU_STREAM_NON_BLOCKING, 0));
	gpu.api = api;
	return ret;
}

int gpu_alloc(struct bench *b, uint64_t len)
{
	pst_cu_ptr ptr = 0;
	int ret = gpu_bad("cuMemAlloc", (int)gpu.api->cuMemAlloc(&ptr, len));

	if (!ret)
		b->gpu = (void *)(uintptr_t)ptr;
	return ret;
}

void gpu_close(struct bench *b)
{
	if (!gpu.api)
		return;
	if (b->gpu)
		gpu.api->cuMemFree((uintptr_t)b->gpu);
	b->gpu = NULL;
	if (pinned) {
		gpu.api->cuMemHostUnregister(pinned);
		munmap(pinned, pinned_len);
	}
	gpu.api->cuStreamDestroy(gpu.stream);
	gpu.api->cuCtxSetCurrent(NULL);
	gpu.api->cuDevicePrimaryCtxRelease(gpu.ordinal);
	gpu.api = NULL;
}

static int pinned_alloc(uint64_t len)
{
	if (pinned)
		return 0;
	pinned_len = len < PINNED ? len : PINNED;
	pinned = mmap(NULL, pinned_len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	if (pinned == MAP_FAILED) {
		pinned = NULL;
		return -ENOMEM;
	}
	madvise(pinned, pinned_len, MADV_HUGEPAGE);
	for (size_t i = 0; i < pinned_len; i += 8)
		*(uint64_t *)(pinned + i) = i * 0x9e3779b97f4a7c15u + 1;
	return gpu_bad("cuMemHostRegister",
		       (int)gpu.api->cuMemHostRegister(pinned, pinned_len, PST_CU_HOST_PORTABLE));
}

char *gpu_pinned_mem(uint64_t len)
{
	return pinned_alloc(PINNED) || len > pinned_len ? NULL : pinned;
}

double gpu_pinned(struct bench *b, uint64_t len, bool in)
{
	uint64_t began;
	int rc = 0;

	if (pinned_alloc(len))
		return -1;
	began = meter_ns();
	for (uint64_t at = 0; at < len && !rc;) {
		uint64_t n = len - at < pinned_len ? len - at : pinned_len;
		pst_cu_ptr dev = (uintptr_t)b->gpu + at;

		if (in)
			rc = (int)gpu.api->cuMemcpyHtoDAsync(dev, pinned, n, gpu.stream);
		else
			rc = (int)gpu.api->cuMemcpyDtoHAsync(pinned, dev, n, gpu.stream);
		at += n;
	}
	if (!rc)
		rc = (int)gpu.api->cuStreamSynchronize(gpu.stream);
	if (gpu_bad("pinned copy", rc))
		return -1;
	return (double)(meter_ns() - began) * 1e-9;
}

void gpu_poison(struct bench *b, uint64_t len)
{
	int rc = (int)gpu.api->cuMemsetD8Async((uintptr_t)b->gpu, 0x5c, len, gpu.stream);

	if (!rc)
		rc = (int)gpu.api->cuStreamSynchronize(gpu.stream);
	if (gpu_bad("poison", rc))
		b->wrong = true;
}

/* Compares the first block, the last block and blocks between them. Reads the drive with
 * O_DIRECT, so that an uncached range stays uncached. */
bool gpu_same(struct bench *b, const char *path, uint64_t off, uint64_t len)
{
	uint64_t blocks = len / PLACE, step = blocks > PLACES ? blocks / PLACES : 1;
	char *mem = NULL;
	int fd = drive_open(path, false);
	bool same = fd >= 0;

	if (fd < 0 || posix_memalign((void **)&mem, PLACE, (size_t)PLACE * 2)) {
		bench_bad(b, "cannot compare with %s", path);
		return false;
	}
	for (uint64_t i = 0; i <= PLACES && same; i++) {
		uint64_t block = i == PLACES || i * step >= blocks ? blocks - 1 : i * step;
		pst_cu_ptr dev = (uintptr_t)b->gpu + block * PLACE;

		if (pread(fd, mem, PLACE, (off_t)(off + block * PLACE)) != PLACE ||
		    gpu.api->cuMemcpyDtoHAsync(mem + PLACE, dev, PLACE, gpu.stream) ||
		    gpu.api->cuStreamSynchronize(gpu.stream) || memcmp(mem, mem + PLACE, PLACE)) {
			bench_bad(b, "the bytes at %llu of %s are not those of the GPU",
				  (unsigned long long)(off + block * PLACE), path);
			same = false;
		}
	}
	close(fd);
	free(mem);
	return same;
}
