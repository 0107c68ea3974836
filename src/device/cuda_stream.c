/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream order on device cuda: in front the stream writes a word, behind it waits
 * for one. A waiting stream holds up every stream behind it in the hardware queue
 * that it used last; so it is first made to use a compute queue, where no copy of
 * ours ever is (tests/standin/README.md has the measurement). Where the device has
 * no memory operations a host function stores the word, and another one looks at
 * the other; neither makes a CUDA call or I/O.
 */
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>
#include <time.h>

#include "device/cuda.h"

#define LOOK_NS 20000	   /* a host function that waits looks so often */
#define SCRATCH_BYTES 4096 /* a byte each in turn, so that streams do not share one */

static size_t page_bytes(void)
{
	return (size_t)sysconf(_SC_PAGESIZE);
}

static size_t words_bytes(size_t count)
{
	size_t page = page_bytes();

	return (count * sizeof(uint64_t) + page - 1) / page * page;
}

static enum pst_cu_result open_scratch(struct pst_cuda_device *c)
{
	enum pst_cu_result rc = PST_CU_OK;

	pthread_mutex_lock(&c->lock);
	if (!c->scratch)
		rc = c->api->cuMemAlloc(&c->scratch, SCRATCH_BYTES);
	pthread_mutex_unlock(&c->lock);
	return rc;
}

static int pin_words(struct pst_cuda_device *c, char *words, size_t len, struct pst_err *err)
{
	enum pst_cu_result rc;
	struct pst_cuda_scope in;
	int ret = pst_cuda_begin(c, &in, err);

	if (ret)
		return ret;
	rc = c->api->cuMemHostRegister(words, len, PST_CU_HOST_PORTABLE | PST_CU_HOST_MAPPED);
	if (rc == PST_CU_OK) {
		rc = open_scratch(c);
		if (rc != PST_CU_OK)
			c->api->cuMemHostUnregister(words);
	}
	pst_cuda_leave(c->api, &in);
	return rc == PST_CU_OK ? 0 : pst_cuda_fail(err, rc, "registering stream words");
}

/* A page in front holds the length. */
int pst_cuda_semaphores_alloc(struct penstock_device *dev, size_t count, uint64_t **out,
			      struct pst_err *err)
{
	size_t len = words_bytes(count), page = page_bytes();
	char *map =
		mmap(NULL, len + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	int ret;

	if (map == MAP_FAILED)
		return pst_fail_errno(err, errno, PENSTOCK_WHY_NO_MEMORY,
				      "no memory for stream words: %m");
	madvise(map, len + page, MADV_DONTFORK);
	*(size_t *)(void *)map = len;
	ret = pin_words(dev->priv, map + page, len, err);
	if (ret) {
		munmap(map, len + page);
		return ret;
	}
	*out = (uint64_t *)(void *)(map + page);
	return 0;
}

void pst_cuda_semaphores_free(struct penstock_device *dev, uint64_t *words)
{
	struct pst_cuda_device *c = dev->priv;
	size_t page = page_bytes();
	char *map = (char *)words - page;
	struct pst_cuda_scope in;

	/* That it fails means that the context is broken: nothing is pinned then. */
	if (pst_cuda_enter(c->api, atomic_load(&c->ctx), &in) == PST_CU_OK)
		c->api->cuMemHostUnregister(words);
	pst_cuda_leave(c->api, &in);
	munmap(map, *(size_t *)(void *)map + page);
}

static bool has_memops(const struct penstock_device *dev, const struct pst_cuda *api)
{
	return dev->facts.stream_memops && api->cuStreamWriteValue64 && api->cuStreamWaitValue64;
}

/* A job for a host function: it frees itself. */
struct job {
	uint64_t *word, value;
};

static void store(void *arg)
{
	struct job *job = arg;

	__atomic_store_n(job->word, job->value, __ATOMIC_RELEASE);
	free(job);
}

static void look(void *arg)
{
	struct job *job = arg;
	struct timespec pause = {0, LOOK_NS};

	while (__atomic_load_n(job->word, __ATOMIC_ACQUIRE) < job->value)
		nanosleep(&pause, NULL);
	free(job);
}

static enum pst_cu_result launch(const struct pst_cuda *api, struct pst_cu_stream *stream,
				 void (*fn)(void *), uint64_t *word, uint64_t value)
{
	struct job *job = malloc(sizeof(*job));
	enum pst_cu_result rc;

	if (!job)
		return PST_CU_OUT_OF_MEMORY;
	job->word = word;
	job->value = value;
	rc = api->cuLaunchHostFunc(stream, fn, job);
	if (rc != PST_CU_OK)
		free(job);
	return rc;
}

/* Enters the context that the stream belongs to; for the default streams, which belong
 * to whatever is current, the device's primary one. */
static enum pst_cu_result enter_stream(struct pst_cuda_device *c, struct pst_cu_stream *stream,
				       struct pst_cu_ctx *ctx, struct pst_cuda_scope *scope)
{
	struct pst_cu_ctx *own = NULL;
	enum pst_cu_result rc = pst_cuda_enter(c->api, ctx, scope);

	if (rc != PST_CU_OK || c->api->cuStreamGetCtx(stream, &own) != PST_CU_OK || own == ctx)
		return rc;
	pst_cuda_leave(c->api, scope);
	return pst_cuda_enter(c->api, own, scope);
}

static int check(const struct penstock_device *dev, struct pst_cu_stream *stream,
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
				"the stream is of cuda:%d, but the first segment lies on %s",
				ordinal, dev->name);
	return 0;
}

static enum pst_cu_result put_front(const struct penstock_device *dev, const struct pst_cuda *api,
				    struct pst_cu_stream *stream, uint64_t *word, uint64_t value)
{
	enum pst_cu_result rc;
	pst_cu_ptr at;

	if (!has_memops(dev, api))
		return launch(api, stream, store, word, value);
	rc = api->cuMemHostGetDevicePointer(&at, word, 0);
	if (rc == PST_CU_OK)
		rc = api->cuStreamWriteValue64(stream, at, value, PST_CU_WRITE_DEFAULT);
	return rc;
}

int pst_cuda_stream_write(struct penstock_device *dev, void *stream, uint64_t *word, uint64_t value,
			  struct pst_err *err)
{
	struct pst_cuda_device *c = dev->priv;
	struct pst_cu_ctx *ctx;
	enum pst_cu_result rc;
	struct pst_cuda_scope in;
	int ret = pst_cuda_retain(c, &ctx, err);

	if (ret)
		return ret;
	rc = enter_stream(c, stream, ctx, &in);
	if (rc == PST_CU_OK)
		ret = check(dev, stream, err);
	if (rc == PST_CU_OK && !ret)
		rc = put_front(dev, c->api, stream, word, value);
	pst_cuda_leave(c->api, &in);
	if (rc != PST_CU_OK)
		return pst_cuda_fail(err, rc, "writing a word in stream order");
	return ret;
}

static enum pst_cu_result put_behind(const struct penstock_device *dev, struct pst_cuda_device *c,
				     struct pst_cu_stream *stream, uint64_t *word, uint64_t value)
{
	unsigned turn = atomic_fetch_add_explicit(&c->scratch_turn, 1, memory_order_relaxed);
	enum pst_cu_result rc;
	pst_cu_ptr at;

	if (!has_memops(dev, c->api))
		return launch(c->api, stream, look, word, value);
	rc = c->api->cuMemHostGetDevicePointer(&at, word, 0);
	/* To a compute queue first: a copy queue must not be waited in. */
	if (rc == PST_CU_OK)
		rc = c->api->cuMemsetD8Async(c->scratch + turn % SCRATCH_BYTES, 0, 1, stream);
	if (rc == PST_CU_OK)
		rc = c->api->cuStreamWaitValue64(stream, at, value, PST_CU_WAIT_GEQ);
	return rc;
}

int pst_cuda_stream_wait(struct penstock_device *dev, void *stream, uint64_t *word, uint64_t value,
			 struct pst_err *err)
{
	struct pst_cuda_device *c = dev->priv;
	struct pst_cu_ctx *ctx;
	enum pst_cu_result rc;
	struct pst_cuda_scope in;
	int ret = pst_cuda_retain(c, &ctx, err);

	if (ret)
		return ret;
	rc = enter_stream(c, stream, ctx, &in);
	if (rc == PST_CU_OK)
		rc = put_behind(dev, c, stream, word, value);
	pst_cuda_leave(c->api, &in);
	return rc == PST_CU_OK ? 0 : pst_cuda_fail(err, rc, "waiting in stream order");
}
