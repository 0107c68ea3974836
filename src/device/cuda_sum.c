/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Computes checksums of GPU memory with the kernels of crc_sum.cuh, one for each kind of checksum:
 * one launch for up to RANGES_MAX ranges. The calling thread cuts the ranges into pieces, waits for
 * the kernel and joins the pieces' checksums. One call at a time uses the GPU. It must never run on
 * a worker thread (lane) of the library.
 */
#include "device/cuda_sum.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#include "core/base/device_sync.h"
#include "device/crc32c_image.h"
#include "device/crc32c_ptx.h"
#include "device/crc64nvme_image.h"
#include "device/crc64nvme_ptx.h"

#define RANGES_MAX 2048u
/* Maximum number of pieces in one launch of the kernel. Each range may have one piece that is
 * shorter than the others, so half of the pieces are reserved for these. */
#define PIECES_MAX (2 * RANGES_MAX)
/* Length in bytes of the shortest piece: four times the 16 KiB that the kernel of CRC-32C reads at
 * a time, and twice the 32 KiB of the kernel of CRC-64/NVME. Longer pieces have a power of two
 * times this length, so that the kernel needs few multiplications to shift their checksums. */
#define PIECE_MIN ((uint64_t)64 << 10)
#define KERNEL_THREADS 128
/* Time in ns for which the calling thread polls for the end of the kernel before it sleeps. A
 * checksum of 1 GiB takes no longer than this time. A thread that sleeps takes 0.1 to 0.3 ms to
 * wake up. */
#define POLL_NS 1000000u

/* A piece of a range, in pinned memory that the kernel reads and writes. crc_sum.cuh has the same
 * layout, and describes the members. */
struct sum_piece {
	uint64_t begin, len, after, raw;
};

/* Objects that the first call creates and later calls use again. The first call for a kind adds its
 * kernel. They exist until the device closes. */
struct pst_cuda_sums {
	struct sum_kernel {
		struct pst_cu_module *module; /* NULL until the kernel is needed */
		struct pst_cu_function *function;
	} kernels[PST_SUM_KINDS];
	struct pst_cu_stream *stream;
	struct pst_cu_event *done;
	struct sum_piece *pieces; /* PIECES_MAX pieces */
};

static const struct {
	const char *name;
	const void *image, *ptx;
} sources[PST_SUM_KINDS] = {
	[PST_SUM_CRC32C] = {"pst_crc32c", pst_crc32c_image, pst_crc32c_ptx},
	[PST_SUM_CRC64NVME] = {"pst_crc64nvme", pst_crc64nvme_image, pst_crc64nvme_ptx},
};

/* ---- open and close ---- */

static void objects_free(const struct pst_cuda *api, struct pst_cuda_sums *s)
{
	if (s->stream)
		api->cuStreamDestroy(s->stream);
	if (s->done)
		api->cuEventDestroy(s->done);
	for (unsigned i = 0; i < PST_SUM_KINDS; i++)
		if (s->kernels[i].module)
			api->cuModuleUnload(s->kernels[i].module);
	if (s->pieces)
		api->cuMemFreeHost(s->pieces);
}

static enum pst_cu_result kernel_launch(const struct pst_cuda *api, const struct pst_cuda_sums *s,
					const struct sum_kernel *kernel, unsigned count)
{
	/* Host memory has the same address on the GPU (unified addressing). */
	pst_cu_ptr arg = (uintptr_t)s->pieces;
	void *pointers[] = {&arg};

	return api->cuLaunchKernel(kernel->function, count, 1, 1, KERNEL_THREADS, 1, 1, 0,
				   s->stream, pointers, NULL);
}

static enum pst_cu_result objects_make(const struct pst_cuda *api, struct pst_cuda_sums *s)
{
	enum pst_cu_result rc = api->cuMemHostAlloc((void **)&s->pieces,
						    PIECES_MAX * sizeof(*s->pieces),
						    PST_CU_HOST_PORTABLE | PST_CU_HOST_MAPPED);

	if (rc == PST_CU_OK)
		rc = api->cuStreamCreateWithPriority(&s->stream, PST_CU_STREAM_NON_BLOCKING, 0);
	if (rc == PST_CU_OK)
		rc = api->cuEventCreate(&s->done, PST_CU_EVENT_NO_TIMING | PST_CU_EVENT_BLOCKING);
	return rc;
}

/* Loads the kernel of a kind. Then runs it once, for a piece of 0 bytes, because the driver may
 * load a kernel only when it is first launched. */
static enum pst_cu_result kernel_load(const struct pst_cuda *api, struct pst_cuda_sums *s,
				      enum pst_sum_kind kind)
{
	struct sum_kernel kernel = {0};
	enum pst_cu_result rc = api->cuModuleLoadData(&kernel.module, sources[kind].image);

	/* The image has machine code for most GPUs. For others the driver compiles the PTX text. */
	if (rc != PST_CU_OK)
		rc = api->cuModuleLoadData(&kernel.module, sources[kind].ptx);
	if (rc != PST_CU_OK)
		return rc;
	rc = api->cuModuleGetFunction(&kernel.function, kernel.module, sources[kind].name);
	s->pieces[0] = (struct sum_piece){0};
	if (rc == PST_CU_OK)
		rc = kernel_launch(api, s, &kernel, 1);
	if (rc == PST_CU_OK)
		rc = api->cuStreamSynchronize(s->stream);
	if (rc == PST_CU_OK)
		s->kernels[kind] = kernel;
	else
		api->cuModuleUnload(kernel.module);
	return rc;
}

static int streams_fail(const struct penstock_device *dev, struct pst_err *err)
{
	return pst_fail_errno(err, EAGAIN, PENSTOCK_WHY_STREAM_ORDER,
			      "a stream waits for a request, and may hold up checksums of memory "
			      "of %s",
			      dev->name);
}

/* Makes the objects that the kind needs. Loading a module, creating a stream and allocating pinned
 * memory may wait until all streams are idle. So the function first waits until no stream waits for
 * a request of the library, or fails if `unless_waiting` is true. */
static int sums_open(struct penstock_device *dev, enum pst_sum_kind kind, bool unless_waiting,
		     struct pst_err *err)
{
	struct pst_cuda_device *c = dev->priv;
	struct pst_cuda_sums *s = c->sums;
	enum pst_cu_result rc = PST_CU_OK;

	if (s && s->kernels[kind].module)
		return 0;
	if (!unless_waiting)
		pst_device_sync_await(dev);
	else if (!pst_device_sync_begin(dev))
		return streams_fail(dev, err);
	if (!s)
		s = calloc(1, sizeof(*s));
	if (!s) {
		pst_device_sync_end(dev);
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for checksums");
	}
	if (!c->sums)
		rc = objects_make(c->api, s);
	if (rc == PST_CU_OK) {
		c->sums = s;
		rc = kernel_load(c->api, s, kind);
	} else {
		objects_free(c->api, s);
		free(s);
	}
	pst_device_sync_end(dev);
	return rc == PST_CU_OK ? 0 : pst_cuda_fail(err, rc, "preparing checksums");
}

void pst_cuda_sum_close(struct pst_cuda_device *c)
{
	if (c->sums)
		objects_free(c->api, c->sums);
}

/* ---- ranges and pieces ---- */

/* Checks that the whole range is memory of the device, because a kernel that reads another address
 * breaks the application's context. `known` is the allocation that the last call found. */
static int range_check(struct penstock_device *dev, const struct pst_sum *sum,
		       struct pst_memory *known, struct pst_err *err)
{
	const uint64_t begin = (uintptr_t)sum->ptr, end = begin + sum->len;

	for (uint64_t at = begin; at < end; at = known->base + known->len) {
		if (at - known->base < known->len)
			continue;
		if (dev->ops->classify(dev, (const void *)(uintptr_t)at, known) == 1 &&
		    at - known->base < known->len)
			continue;
		*known = (struct pst_memory){0};
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"the %" PRIu64 " bytes at %p are not memory of %s: byte %" PRIu64
				" is not",
				sum->len, sum->ptr, dev->name, at - begin);
	}
	return 0;
}

static uint64_t piece_len(const struct pst_sum *sums, unsigned count)
{
	uint64_t len = PIECE_MIN, total = 0;

	for (unsigned i = 0; i < count; i++)
		total += sums[i].len;
	while (len * RANGES_MAX < total)
		len *= 2;
	return len;
}

/* Cuts a range into pieces of `len` bytes, starting at its last whole word (4 bytes) and going
 * backwards to its begin. So all pieces but the first begin at a whole word. The last piece also
 * has the bytes after the last whole word. Returns the number of pieces. */
static unsigned range_cut(const struct pst_sum *sum, uint64_t len, struct sum_piece *pieces)
{
	const uint64_t begin = (uintptr_t)sum->ptr, end = begin + sum->len;
	uint64_t piece_end = end, words_end = end & ~(uint64_t)3;
	unsigned count = 0;

	while (piece_end > begin) {
		const uint64_t from =
			words_end > begin && words_end - begin > len ? words_end - len : begin;

		pieces[count++] = (struct sum_piece){from, piece_end - from, end - piece_end, 0};
		piece_end = words_end = from;
	}
	return count;
}

/* Queues the kernel for the pieces. See ops.h for `unless_waiting`. */
static int pieces_launch(struct penstock_device *dev, enum pst_sum_kind kind, unsigned count,
			 bool unless_waiting, struct pst_err *err)
{
	const struct pst_cuda_device *c = dev->priv;
	const struct pst_cuda_sums *s = c->sums;
	enum pst_cu_result rc;

	/* A stream that begins to wait after the launch does not hold up the kernel. */
	if (unless_waiting && !pst_device_sync_begin(dev))
		return streams_fail(dev, err);
	rc = kernel_launch(c->api, s, &s->kernels[kind], count);
	if (rc == PST_CU_OK)
		rc = c->api->cuEventRecord(s->done, s->stream);
	if (unless_waiting)
		pst_device_sync_end(dev);
	if (rc == PST_CU_OK)
		return 0;
	c->api->cuStreamSynchronize(s->stream); /* the kernel may still write its results */
	return pst_cuda_fail(err, rc, "computing checksums");
}

/* Computes the checksums of at most RANGES_MAX ranges. The caller has made the context current and
 * holds sum_lock. */
static int ranges_sum(struct penstock_device *dev, enum pst_sum_kind kind, struct pst_sum *sums,
		      unsigned count, bool unless_waiting, struct pst_err *err)
{
	const struct pst_cuda_device *c = dev->priv;
	const struct pst_cuda_sums *s = c->sums;
	const uint64_t len = piece_len(sums, count);
	const struct sum_piece *piece = s->pieces;
	unsigned pieces = 0;
	enum pst_cu_result rc;
	int ret;

	for (unsigned i = 0; i < count; i++)
		pieces += range_cut(&sums[i], len, s->pieces + pieces);
	ret = pieces_launch(dev, kind, pieces, unless_waiting, err);
	if (ret)
		return ret;
	rc = pst_cuda_event_await(c->api, s->done, POLL_NS);
	if (rc != PST_CU_OK) {
		c->api->cuStreamSynchronize(s->stream); /* the kernel may still write its results */
		return pst_cuda_fail(err, rc, "computing checksums");
	}
	for (unsigned i = 0; i < count; i++) {
		sums[i].raw = 0;
		for (uint64_t left = sums[i].len; left; left -= piece++->len)
			sums[i].raw ^= piece->raw;
	}
	return 0;
}

int pst_cuda_sum(struct penstock_device *dev, enum pst_sum_kind kind, struct pst_sum *sums,
		 unsigned count, bool unless_waiting, struct pst_err *err)
{
	struct pst_cuda_device *c = dev->priv;
	struct pst_memory known = {0};
	struct pst_cuda_scope entered;
	int ret = 0;

	for (unsigned i = 0; i < count && !ret; i++)
		ret = range_check(dev, &sums[i], &known, err);
	if (!ret)
		ret = pst_cuda_begin(c, &entered, err);
	if (ret)
		return ret;
	pthread_mutex_lock(&c->sum_lock);
	ret = sums_open(dev, kind, unless_waiting, err);
	for (unsigned i = 0; i < count && !ret; i += RANGES_MAX)
		ret = ranges_sum(dev, kind, sums + i,
				 count - i < RANGES_MAX ? count - i : RANGES_MAX, unless_waiting,
				 err);
	pthread_mutex_unlock(&c->sum_lock);
	pst_cuda_leave(c->api, &entered);
	return ret;
}
