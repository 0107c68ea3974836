/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream-ordered requests on device cuda. The application's stream writes a semaphore when it
 * reaches the request, and a lane then starts the request. The stream waits for a second
 * semaphore, which the lane writes when the request completes.
 *
 * A waiting stream also holds up every other stream whose work comes next in the same hardware
 * queue: the queue that the waiting stream used last. So before it waits, the stream is made to
 * use a compute queue, where no copy of the library ever runs (tests/standin/README.md has the
 * measurement). If a device has no memory operations, one host function writes the first
 * semaphore, and another polls the second one. Neither host function makes a CUDA call or I/O.
 */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include <time.h>

#include "device/cuda_stream.h"
#include "device/cuda_context.h"

/* Interval at which a host function polls the semaphore that it waits for. */
#define POLL_NS 20000
/* Bytes of scratch memory. Each wait of a stream writes the next byte, so that streams rarely
 * write the same one. */
#define SCRATCH_BYTES 4096

static size_t stream_page_bytes(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

static size_t semaphores_bytes(size_t count)
{
	size_t page = stream_page_bytes();

	return (count * sizeof(uint64_t) + page - 1) / page * page;
}

static enum pst_cu_result scratch_open(struct pst_cuda_device *c)
{
	enum pst_cu_result rc = PST_CU_OK;

	pthread_mutex_lock(&c->lock);
	if (!c->scratch)
		rc = c->api->cuMemAlloc(&c->scratch, SCRATCH_BYTES);
	pthread_mutex_unlock(&c->lock);
	return rc;
}

static int semaphores_pin(struct pst_cuda_device *c, char *semaphores, size_t len,
			  struct pst_err *err)
{
	enum pst_cu_result rc;
	struct pst_cuda_scope in;
	int ret = pst_cuda_begin(c, &in, err);

	if (ret)
		return ret;
	rc = c->api->cuMemHostRegister(semaphores, len, PST_CU_HOST_PORTABLE | PST_CU_HOST_MAPPED);
	if (rc == PST_CU_OK) {
		rc = scratch_open(c);
		if (rc != PST_CU_OK)
			c->api->cuMemHostUnregister(semaphores);
	}
	pst_cuda_leave(c->api, &in);
	return rc == PST_CU_OK ? 0 : pst_cuda_fail(err, rc, "registering stream semaphores");
}

/* The length of the semaphores is kept in the page before them. */
int pst_cuda_semaphores_alloc(struct penstock_device *dev, size_t count, uint64_t **out,
			      struct pst_err *err)
{
	size_t len = semaphores_bytes(count), page = stream_page_bytes();
	char *map =
		mmap(NULL, len + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int ret;

	if (map == MAP_FAILED)
		return pst_fail_errno(err, errno, PENSTOCK_WHY_NO_MEMORY,
				      "no memory for stream semaphores: %m");
	madvise(map, len + page, MADV_DONTFORK);
	*(size_t *)(void *)map = len;
	ret = semaphores_pin(dev->priv, map + page, len, err);
	if (ret) {
		munmap(map, len + page);
		return ret;
	}
	*out = (uint64_t *)(void *)(map + page);
	return 0;
}

void pst_cuda_semaphores_free(struct penstock_device *dev, uint64_t *semaphores)
{
	struct pst_cuda_device *c = dev->priv;
	size_t page = stream_page_bytes();
	char *map = (char *)semaphores - page;
	struct pst_cuda_scope in;

	/* If this call fails, the context is broken, and a broken context has nothing
	 * registered. */
	if (pst_cuda_enter(c->api, atomic_load(&c->ctx), &in) == PST_CU_OK)
		c->api->cuMemHostUnregister(semaphores);
	pst_cuda_leave(c->api, &in);
	munmap(map, *(size_t *)(void *)map + page);
}

static bool has_memops(const struct penstock_device *dev, const struct pst_cuda *api)
{
	return dev->facts.stream_memops && api->cuStreamWriteValue64 && api->cuStreamWaitValue64;
}

/* The argument of a host function. The host function frees it. */
struct host_job {
	uint64_t *semaphore, value;
};

static void host_store(void *arg)
{
	struct host_job *job = arg;

	__atomic_store_n(job->semaphore, job->value, __ATOMIC_RELEASE);
	free(job);
}

static void host_poll(void *arg)
{
	struct host_job *job = arg;
	struct timespec pause = {0, POLL_NS};

	while (__atomic_load_n(job->semaphore, __ATOMIC_ACQUIRE) < job->value)
		nanosleep(&pause, NULL);
	free(job);
}

static enum pst_cu_result host_launch(const struct pst_cuda *api, struct pst_cu_stream *stream,
				      void (*fn)(void *), uint64_t *semaphore, uint64_t value)
{
	struct host_job *job = malloc(sizeof(*job));
	enum pst_cu_result rc;

	if (!job)
		return PST_CU_OUT_OF_MEMORY;
	job->semaphore = semaphore;
	job->value = value;
	rc = api->cuLaunchHostFunc(stream, fn, job);
	if (rc != PST_CU_OK)
		free(job);
	return rc;
}

/* Makes the stream's context current. A default stream belongs to whatever context is current,
 * so for a default stream the function uses the device's primary context. */
static enum pst_cu_result stream_enter(struct pst_cuda_device *c, struct pst_cu_stream *stream,
				       struct pst_cu_ctx *ctx, struct pst_cuda_scope *scope)
{
	struct pst_cu_ctx *own = NULL;
	enum pst_cu_result rc = pst_cuda_enter(c->api, ctx, scope);

	if (rc != PST_CU_OK || c->api->cuStreamGetCtx(stream, &own) != PST_CU_OK || own == ctx)
		return rc;
	pst_cuda_leave(c->api, scope);
	return pst_cuda_enter(c->api, own, scope);
}

static int stream_check(const struct penstock_device *dev, struct pst_cu_stream *stream,
			struct pst_err *err)
{
	const struct pst_cuda_device *c = dev->priv;
	enum pst_cu_capture capture = PST_CU_CAPTURE_NONE;
	enum pst_cu_result rc = c->api->cuStreamIsCapturing(stream, &capture);
	int ordinal = -1;

	if (rc == PST_CU_OK)
		rc = c->api->cuCtxGetDevice(&ordinal);
	if (rc != PST_CU_OK)
		return pst_cuda_fail(err, rc, "the stream");
	if (capture != PST_CU_CAPTURE_NONE)
		return pst_fail(err, PENSTOCK_WHY_UNSUPPORTED,
				"the stream is being captured into a graph: submit outside the "
				"capture");
	if (ordinal != c->ordinal)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"the stream belongs to cuda:%d, but the first segment is on %s",
				ordinal, dev->name);
	return 0;
}

static enum pst_cu_result semaphore_write(const struct penstock_device *dev,
					  const struct pst_cuda *api, struct pst_cu_stream *stream,
					  uint64_t *semaphore, uint64_t value)
{
	enum pst_cu_result rc;
	pst_cu_ptr at;

	if (!has_memops(dev, api))
		return host_launch(api, stream, host_store, semaphore, value);
	rc = api->cuMemHostGetDevicePointer(&at, semaphore, 0);
	if (rc == PST_CU_OK)
		rc = api->cuStreamWriteValue64(stream, at, value, PST_CU_WRITE_DEFAULT);
	return rc;
}

int pst_cuda_stream_write(struct penstock_device *dev, void *stream, uint64_t *semaphore,
			  uint64_t value, struct pst_err *err)
{
	struct pst_cuda_device *c = dev->priv;
	struct pst_cu_ctx *ctx;
	enum pst_cu_result rc;
	struct pst_cuda_scope in;
	int ret = pst_cuda_retain(c, &ctx, err);

	if (ret)
		return ret;
	rc = stream_enter(c, stream, ctx, &in);
	if (rc == PST_CU_OK)
		ret = stream_check(dev, stream, err);
	if (rc == PST_CU_OK && !ret)
		rc = semaphore_write(dev, c->api, stream, semaphore, value);
	pst_cuda_leave(c->api, &in);
	if (rc != PST_CU_OK)
		return pst_cuda_fail(err, rc, "writing a semaphore in stream order");
	return ret;
}

static enum pst_cu_result semaphore_wait(const struct penstock_device *dev,
					 struct pst_cuda_device *c, struct pst_cu_stream *stream,
					 uint64_t *semaphore, uint64_t value)
{
	unsigned turn = atomic_fetch_add_explicit(&c->scratch_turn, 1, memory_order_relaxed);
	enum pst_cu_result rc;
	pst_cu_ptr at;

	if (!has_memops(dev, c->api))
		return host_launch(c->api, stream, host_poll, semaphore, value);
	rc = c->api->cuMemHostGetDevicePointer(&at, semaphore, 0);
	/* Make the stream use a compute queue before the wait, because a wait in a copy queue
	 * would hold up copies. */
	if (rc == PST_CU_OK)
		rc = c->api->cuMemsetD8Async(c->scratch + turn % SCRATCH_BYTES, 0, 1, stream);
	if (rc == PST_CU_OK)
		rc = c->api->cuStreamWaitValue64(stream, at, value, PST_CU_WAIT_GEQ);
	return rc;
}

int pst_cuda_stream_wait(struct penstock_device *dev, void *stream, uint64_t *semaphore,
			 uint64_t value, struct pst_err *err)
{
	struct pst_cuda_device *c = dev->priv;
	struct pst_cu_ctx *ctx;
	enum pst_cu_result rc;
	struct pst_cuda_scope in;
	int ret = pst_cuda_retain(c, &ctx, err);

	if (ret)
		return ret;
	rc = stream_enter(c, stream, ctx, &in);
	if (rc == PST_CU_OK)
		rc = semaphore_wait(dev, c, stream, semaphore, value);
	pst_cuda_leave(c->api, &in);
	return rc == PST_CU_OK ? 0 : pst_cuda_fail(err, rc, "waiting in stream order");
}
