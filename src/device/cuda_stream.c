/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Queues operations on the application's CUDA streams, for stream-ordered requests.
 * core/queue/stream.c calls these functions at submit.
 *
 * A stream that waits also delays other streams: every stream whose work comes next in the hardware
 * queue that the waiting stream used last. So this file makes the stream use a compute queue before
 * it waits; then the copies of other streams continue (tests/standin/README.md has the
 * measurement). On a device without stream memory operations, one host function stores a word, and
 * another polls a word. Neither makes a CUDA call or I/O.
 *
 * If the stream is being captured, each operation becomes a node of a graph. The functions then
 * make only calls that a capture allows: stream writes, stream waits and kernel launches.
 */
#include "device/cuda_stream.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/base/clock.h"
#include "device/stream_copy_image.h"
#include "device/stream_copy_ptx.h"

/* Interval in ns at which a host function polls the word in memory that it waits for. */
#define POLL_NS 20000
/* Length of the scratch memory. Before each wait, a stream writes the next byte of this memory, so
 * that two streams rarely write the same byte. */
#define SCRATCH_BYTES 4096
/* Number of threads in each block of the kernel that copies. A launch has one block for up to
 * KERNEL_ONE_BLOCK bytes, and two blocks for more. Two blocks nearly fill a PCIe 5 link. More
 * blocks would take multiprocessors from the application's kernels. */
#define KERNEL_THREADS 512
#define KERNEL_ONE_BLOCK ((uint64_t)512 << 10)

static bool has_memops(const struct penstock_device *dev, const struct pst_cuda *api)
{
	return dev->facts.stream_memops && api->cuStreamWriteValue64 && api->cuStreamWaitValue64;
}

/* ---- what the first operation makes ---- */

/* Creates the scratch memory, and the event that pst_cuda_alive queries. Neither driver call waits
 * for streams. */
static enum pst_cu_result scratch_open(struct pst_cuda_device *c)
{
	struct pst_cu_event *queried = NULL;
	enum pst_cu_result rc = PST_CU_OK;

	if (atomic_load_explicit(&c->queried, memory_order_acquire))
		return rc;
	pthread_mutex_lock(&c->lock);
	if (!c->scratch)
		rc = c->api->cuMemAlloc(&c->scratch, SCRATCH_BYTES);
	if (rc == PST_CU_OK && !atomic_load(&c->queried))
		rc = c->api->cuEventCreate(&queried, PST_CU_EVENT_NO_TIMING);
	if (queried)
		atomic_store_explicit(&c->queried, queried, memory_order_release);
	pthread_mutex_unlock(&c->lock);
	return rc;
}

/* Loads the kernels that copy and count. This waits until the context is idle. The image has
 * machine code for most GPUs. For other GPUs the driver compiles the PTX text, which takes about
 * 0.1 s. */
static enum pst_cu_result kernel_open(struct pst_cuda_device *c)
{
	struct pst_cu_function *kernel = NULL;
	enum pst_cu_result rc = PST_CU_OK;

	if (atomic_load_explicit(&c->kernel, memory_order_acquire))
		return rc;
	pthread_mutex_lock(&c->lock);
	if (!c->module)
		rc = c->api->cuModuleLoadData(&c->module, pst_stream_copy_image);
	if (rc != PST_CU_OK)
		rc = c->api->cuModuleLoadData(&c->module, pst_stream_copy_ptx);
	if (rc == PST_CU_OK && !c->counter)
		rc = c->api->cuModuleGetFunction(&c->counter, c->module, "pst_stream_count");
	if (rc == PST_CU_OK)
		rc = c->api->cuModuleGetFunction(&kernel, c->module, "pst_stream_copy");
	if (rc == PST_CU_OK)
		atomic_store_explicit(&c->kernel, kernel, memory_order_release);
	pthread_mutex_unlock(&c->lock);
	return rc;
}

/* Launches the kernel that sets the words at `zero` and `zero_too` to 0, and adds 1 to the word at
 * `count`. If the address `zero` or `zero_too` is 0, there is no such word. */
static enum pst_cu_result counter_launch(struct pst_cuda_device *c, struct pst_cu_stream *stream,
					 pst_cu_ptr count, pst_cu_ptr zero, pst_cu_ptr zero_too)
{
	void *pointers[] = {&count, &zero, &zero_too};

	return c->api->cuLaunchKernel(c->counter, 1, 1, 1, 1, 1, 1, 0, stream, pointers, NULL);
}

/* Runs each kernel once, without copying anything. The driver may load a kernel only when it is
 * first launched, and then waits until the context is idle. Uses the thread's default stream,
 * because creating a stream could wait, too. */
static void kernel_warm(struct pst_cuda_device *c)
{
	pst_cu_ptr args[] = {c->scratch, c->scratch};
	void *pointers[] = {&args[0], &args[1]};
	struct pst_cu_stream *stream = PST_CU_STREAM_PER_THREAD;

	if (c->api->cuMemsetD8Async(c->scratch, 0, sizeof(struct pst_stream_round), stream) ==
	    PST_CU_OK)
		c->api->cuLaunchKernel(atomic_load(&c->kernel), 1, 1, 1, KERNEL_THREADS, 1, 1, 0,
				       stream, pointers, NULL);
	counter_launch(c, stream, c->scratch, 0, 0);
}

void pst_cuda_stream_prepare(struct penstock_device *dev)
{
	struct pst_cuda_device *c = dev->priv;
	struct pst_cuda_scope in;
	struct pst_err err; /* not used: the first request that needs the kernel gets the error */

	if (pst_cuda_begin(c, &in, &err))
		return;
	if (scratch_open(c) == PST_CU_OK && kernel_open(c) == PST_CU_OK)
		kernel_warm(c);
	pst_cuda_leave(c->api, &in);
}

void pst_cuda_stream_close(struct pst_cuda_device *c)
{
	if (c->module)
		c->api->cuModuleUnload(c->module);
	if (atomic_load(&c->queried))
		c->api->cuEventDestroy(atomic_load(&c->queried));
	if (c->scratch)
		c->api->cuMemFree(c->scratch);
}

/* ---- begin and end ---- */

/* Returns the part of seq->state that stores the thread's former CUDA context and capture mode,
 * which pst_cuda_leave restores at the end of the sequence. */
static struct pst_cuda_scope *seq_scope(struct pst_stream_seq *seq)
{
	_Static_assert(sizeof(struct pst_cuda_scope) <= sizeof(seq->state), "the scope must fit");
	return (struct pst_cuda_scope *)(void *)seq->state;
}

static struct pst_cuda_device *seq_cuda(const struct pst_stream_seq *seq)
{
	return seq->dev->priv;
}

/* Makes the stream's context current. A default stream belongs to whatever context is current, so
 * for a default stream the function makes the device's primary context current. */
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
			bool *capturing, struct pst_err *err)
{
	const struct pst_cuda_device *c = dev->priv;
	enum pst_cu_capture capture = PST_CU_CAPTURE_NONE;
	enum pst_cu_result rc = c->api->cuStreamIsCapturing(stream, &capture);
	int ordinal = -1;

	if (rc == PST_CU_OK)
		rc = c->api->cuCtxGetDevice(&ordinal);
	if (rc != PST_CU_OK)
		return pst_cuda_fail(err, rc, "the stream");
	if (capture == PST_CU_CAPTURE_BROKEN)
		return pst_fail(err, PENSTOCK_WHY_UNSUPPORTED,
				"the stream's capture into a graph has already failed");
	*capturing = capture == PST_CU_CAPTURE_ACTIVE;
	if (*capturing && !has_memops(dev, c->api))
		return pst_fail(err, PENSTOCK_WHY_UNSUPPORTED,
				"the stream is being captured into a graph, and this driver or GPU "
				"has no graph nodes that write and wait for words of 64 bits");
	if (ordinal != c->ordinal)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"the stream belongs to cuda:%d, but the first segment is on %s",
				ordinal, dev->name);
	return 0;
}

/* Returns whether a stream that is idle has reached the operation that comes next. The next
 * operation of a blocking stream also waits for the legacy default stream, which no query of the
 * stream reports. */
static bool stream_reached(const struct pst_cuda *api, struct pst_cu_stream *stream)
{
	unsigned int flags = 0;

	return api->cuStreamGetFlags(stream, &flags) == PST_CU_OK &&
	       flags & PST_CU_STREAM_NON_BLOCKING;
}

/* Returns the identity of a stream. For the per-thread default stream, this is an odd number above
 * 1. No other thread of the process gets it, also after this thread has ended. */
static const void *stream_id(const struct pst_cu_stream *stream)
{
	static _Atomic uintptr_t last = 1;
	static _Thread_local uintptr_t own;

	if (stream != PST_CU_STREAM_PER_THREAD)
		return stream;
	if (!own)
		own = atomic_fetch_add_explicit(&last, 2, memory_order_relaxed) + 2;
	return (const void *)own;
}

int pst_cuda_stream_begin(struct penstock_device *dev, void *stream, struct pst_stream_seq *seq,
			  struct pst_err *err)
{
	struct pst_cuda_device *c = dev->priv;
	struct pst_cu_ctx *ctx;
	enum pst_cu_result rc;
	int ret = pst_cuda_retain(c, &ctx, err);

	if (ret)
		return ret;
	*seq = (struct pst_stream_seq){.dev = dev, .stream = stream, .id = stream_id(stream)};
	rc = stream_enter(c, stream, ctx, seq_scope(seq));
	if (rc == PST_CU_OK) {
		ret = stream_check(dev, stream, &seq->capturing, err);
		if (!ret)
			rc = scratch_open(c);
		/* A query of a stream that is being captured would invalidate the capture. */
		seq->asked = seq->capturing;
	}
	if (rc != PST_CU_OK)
		ret = pst_cuda_fail(err, rc, "preparing requests in stream order");
	if (ret)
		pst_cuda_leave(c->api, seq_scope(seq));
	return ret;
}

bool pst_cuda_stream_idle(struct pst_stream_seq *seq, uint64_t wait_ns)
{
	const struct pst_cuda *api = seq_cuda(seq)->api;
	uint64_t until;

	if (seq->asked)
		return seq->idle;
	seq->asked = true;
	until = wait_ns ? pst_now_ns() + wait_ns : 0;
	do
		seq->idle = api->cuStreamQuery(seq->stream) == PST_CU_OK;
	while (!seq->idle && wait_ns && pst_now_ns() < until);
	seq->reached = seq->idle && stream_reached(api, seq->stream);
	return seq->idle;
}

void pst_cuda_stream_end(struct pst_stream_seq *seq)
{
	pst_cuda_leave(seq_cuda(seq)->api, seq_scope(seq));
}

/* Returns 0 if the driver's result `rc` is success. Otherwise stores the error that operation
 * `what` could not be queued, or could not become a node of a graph. */
static int op_result(const struct pst_stream_seq *seq, enum pst_cu_result rc, const char *what,
		     struct pst_err *err)
{
	char text[64];

	if (rc == PST_CU_OK)
		return 0;
	snprintf(text, sizeof(text), "%s %s", what,
		 seq->capturing ? "as a node of a graph" : "in stream order");
	return pst_cuda_fail(err, rc, text);
}

/* ---- words ---- */

/* The argument of a host function, which the driver runs when the stream reaches it. The host
 * function frees the argument. */
struct host_job {
	uint64_t *word, value;
};

static void host_store(void *arg)
{
	struct host_job *job = arg;

	__atomic_store_n(job->word, job->value, __ATOMIC_RELEASE);
	free(job);
}

static void host_poll(void *arg)
{
	struct host_job *job = arg;
	struct timespec pause = {0, POLL_NS};

	while (__atomic_load_n(job->word, __ATOMIC_ACQUIRE) < job->value)
		nanosleep(&pause, NULL);
	free(job);
}

static enum pst_cu_result host_launch(const struct pst_cuda *api, struct pst_cu_stream *stream,
				      void (*fn)(void *), uint64_t *word, uint64_t value)
{
	struct host_job *job = malloc(sizeof(*job));
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

int pst_cuda_stream_write(struct pst_stream_seq *seq, uint64_t *word, uint64_t value,
			  struct pst_err *err)
{
	const struct pst_cuda *api = seq_cuda(seq)->api;
	enum pst_cu_result rc;
	pst_cu_ptr at;

	if (!has_memops(seq->dev, api)) {
		rc = host_launch(api, seq->stream, host_store, word, value);
	} else {
		rc = api->cuMemHostGetDevicePointer(&at, word, 0);
		if (rc == PST_CU_OK)
			rc = api->cuStreamWriteValue64(seq->stream, at, value,
						       PST_CU_WRITE_DEFAULT);
	}
	return op_result(seq, rc, "storing a word", err);
}

/* Queues a memset of one byte, so that the stream uses a compute queue. If the stream then waits,
 * it does not block a copy queue. */
static enum pst_cu_result leave_copy_queue(struct pst_cuda_device *c, struct pst_cu_stream *stream)
{
	unsigned turn = atomic_fetch_add_explicit(&c->scratch_turn, 1, memory_order_relaxed);

	return c->api->cuMemsetD8Async(c->scratch + turn % SCRATCH_BYTES, 0, 1, stream);
}

static enum pst_cu_result word_wait(struct pst_stream_seq *seq, uint64_t *word, uint64_t value)
{
	struct pst_cuda_device *c = seq_cuda(seq);
	enum pst_cu_result rc;
	pst_cu_ptr at;

	if (!has_memops(seq->dev, c->api))
		return host_launch(c->api, seq->stream, host_poll, word, value);
	rc = c->api->cuMemHostGetDevicePointer(&at, word, 0);
	if (rc == PST_CU_OK && seq->copying)
		rc = leave_copy_queue(c, seq->stream);
	seq->copying = false;
	if (rc == PST_CU_OK)
		rc = c->api->cuStreamWaitValue64(seq->stream, at, value, PST_CU_WAIT_GEQ);
	return rc;
}

int pst_cuda_stream_wait(struct pst_stream_seq *seq, uint64_t *word, uint64_t value,
			 struct pst_err *err)
{
	enum pst_cu_result rc = word_wait(seq, word, value);

	return op_result(seq, rc, "waiting for a word", err);
}

/* Queues the store and the wait in one call of the driver. Returns PST_CU_NOT_SUPPORTED if the
 * driver has no such call. */
static enum pst_cu_result batch_write_wait(struct pst_stream_seq *seq, uint64_t *word,
					   uint64_t value, uint64_t *waited, uint64_t least)
{
	struct pst_cuda_device *c = seq_cuda(seq);
	union pst_cu_mem_op ops[2] = {
		{.word = {PST_CU_OP_WRITE_64, .value = value, .flags = PST_CU_WRITE_DEFAULT}},
		{.word = {PST_CU_OP_WAIT_64, .value = least, .flags = PST_CU_WAIT_GEQ}},
	};
	enum pst_cu_result rc;

	if (!has_memops(seq->dev, c->api) || !c->api->cuStreamBatchMemOp || seq->capturing)
		return PST_CU_NOT_SUPPORTED;
	rc = c->api->cuMemHostGetDevicePointer(&ops[0].word.addr, word, 0);
	if (rc == PST_CU_OK)
		rc = c->api->cuMemHostGetDevicePointer(&ops[1].word.addr, waited, 0);
	if (rc == PST_CU_OK && seq->copying)
		rc = leave_copy_queue(c, seq->stream);
	if (rc == PST_CU_OK)
		rc = c->api->cuStreamBatchMemOp(seq->stream, 2, ops, 0);
	if (rc == PST_CU_OK)
		seq->copying = false;
	return rc;
}

int pst_cuda_stream_write_wait(struct pst_stream_seq *seq, uint64_t *word, uint64_t value,
			       uint64_t *waited, uint64_t least, struct pst_err *err)
{
	enum pst_cu_result rc = batch_write_wait(seq, word, value, waited, least);
	int ret;

	if (rc != PST_CU_NOT_SUPPORTED)
		return op_result(seq, rc, "storing a word and waiting for another", err);
	ret = pst_cuda_stream_write(seq, word, value, err);
	return ret ? ret : pst_cuda_stream_wait(seq, waited, least, err);
}

/* ---- copies ---- */

static enum pst_cu_result copy_row(const struct pst_stream_seq *seq, void *dst, const void *src,
				   uint64_t len, bool in)
{
	const struct pst_cuda *api = seq_cuda(seq)->api;

	return in ? api->cuMemcpyHtoDAsync((uintptr_t)dst, src, len, seq->stream)
		  : api->cuMemcpyDtoHAsync(dst, (uintptr_t)src, len, seq->stream);
}

static enum pst_cu_result copy_rows(const struct pst_stream_seq *seq, const struct pst_rect *r,
				    bool in)
{
	const struct pst_cu_memcpy2d copy = {
		.src_type = in ? PST_CU_MEMTYPE_HOST : PST_CU_MEMTYPE_DEVICE,
		.src_host = r->src,
		.src_dev = (uintptr_t)r->src,
		.src_pitch = r->src_pitch,
		.dst_type = in ? PST_CU_MEMTYPE_DEVICE : PST_CU_MEMTYPE_HOST,
		.dst_host = r->dst,
		.dst_dev = (uintptr_t)r->dst,
		.dst_pitch = r->dst_pitch,
		.width_bytes = r->row_len,
		.height = r->rows,
	};
	enum pst_cu_result rc = PST_CU_OK;

	if (r->rows == 1)
		return copy_row(seq, r->dst, r->src, r->row_len, in);
	if (r->dst_pitch <= PST_CUDA_PITCH_MAX && r->src_pitch <= PST_CUDA_PITCH_MAX)
		return seq_cuda(seq)->api->cuMemcpy2DAsync(&copy, seq->stream);
	for (uint64_t row = 0; row < r->rows && rc == PST_CU_OK; row++)
		rc = copy_row(seq, (char *)r->dst + row * r->dst_pitch,
			      (const char *)r->src + row * r->src_pitch, r->row_len, in);
	return rc;
}

int pst_cuda_stream_copy(struct pst_stream_seq *seq, const struct pst_rect *rect,
			 enum penstock_op op, struct pst_err *err)
{
	enum pst_cu_result rc = copy_rows(seq, rect, op == PENSTOCK_READ);

	seq->copying = true;
	return op_result(seq, rc, "copying", err);
}

int pst_cuda_stream_run(struct pst_stream_seq *seq, const struct pst_stream_round *round,
			const struct pst_stream_copy *copies, uint64_t len_bytes,
			struct pst_err *err)
{
	struct pst_cuda_device *c = seq_cuda(seq);
	/* Host memory has the same address on the GPU (unified addressing). */
	pst_cu_ptr args[] = {(uintptr_t)round, (uintptr_t)copies};
	void *pointers[] = {&args[0], &args[1]};
	enum pst_cu_result rc = kernel_open(c);

	if (rc == PST_CU_OK)
		rc = c->api->cuLaunchKernel(atomic_load(&c->kernel),
					    len_bytes <= KERNEL_ONE_BLOCK ? 1 : 2, 1, 1,
					    KERNEL_THREADS, 1, 1, 0, seq->stream, pointers, NULL);
	return op_result(seq, rc, "launching a copy", err);
}

/* ---- graphs ---- */

int pst_cuda_stream_count(struct pst_stream_seq *seq, uint64_t *count, uint64_t *zero,
			  uint64_t *zero_too, struct pst_err *err)
{
	struct pst_cuda_device *c = seq_cuda(seq);
	enum pst_cu_result rc = kernel_open(c);

	if (rc == PST_CU_OK)
		rc = counter_launch(c, seq->stream, (uintptr_t)count, (uintptr_t)zero,
				    (uintptr_t)zero_too);
	return op_result(seq, rc, "launching a counter", err);
}

/* Finds the graph into which the stream is being captured. Calls the newer driver function (CUDA
 * 12.3) if the driver has it, because the older one may fail if the graph's edges have data. */
static enum pst_cu_result capture_graph(const struct pst_cuda *api, struct pst_cu_stream *stream,
					struct pst_cu_graph **graph)
{
	enum pst_cu_capture status = PST_CU_CAPTURE_NONE;
	enum pst_cu_result rc;

	*graph = NULL;
	if (api->cuStreamGetCaptureInfo)
		rc = api->cuStreamGetCaptureInfo(stream, &status, NULL, graph, NULL, NULL, NULL);
	else
		rc = api->cuStreamGetCaptureInfoNoEdges(stream, &status, NULL, graph, NULL, NULL);
	if (rc == PST_CU_OK && (status != PST_CU_CAPTURE_ACTIVE || !*graph))
		rc = PST_CU_CAPTURE_INVALIDATED;
	return rc;
}

/* Makes a user object, whose destructor calls gone(arg). */
static int user_object_create(struct pst_stream_seq *seq, void (*gone)(void *arg), void *arg,
			      struct pst_cu_graph **graph, struct pst_cu_user_object **object,
			      struct pst_err *err)
{
	const struct pst_cuda *api = seq_cuda(seq)->api;
	enum pst_cu_result rc;

	if ((!api->cuStreamGetCaptureInfo && !api->cuStreamGetCaptureInfoNoEdges) ||
	    !api->cuUserObjectCreate || !api->cuUserObjectRelease || !api->cuGraphRetainUserObject)
		return pst_fail(err, PENSTOCK_WHY_UNSUPPORTED,
				"the stream is being captured into a graph, and the driver cannot "
				"tell when the graph is destroyed: it is older than CUDA 11.3");
	rc = capture_graph(api, seq->stream, graph);
	if (rc != PST_CU_OK)
		return pst_cuda_fail(err, rc, "finding the graph of a capture");
	rc = api->cuUserObjectCreate(object, arg, gone, 1, PST_CU_USER_OBJECT_NO_SYNC);
	return rc == PST_CU_OK ? 0 : pst_cuda_fail(err, rc, "creating a user object for a graph");
}

/* The driver destroys a user object, and so calls gone(arg), when the graph, its copies and its
 * executables are all destroyed. */
int pst_cuda_stream_tie(struct pst_stream_seq *seq, void (*gone)(void *arg), void *arg,
			struct pst_err *err)
{
	const struct pst_cuda *api = seq_cuda(seq)->api;
	struct pst_cu_user_object *object;
	struct pst_cu_graph *graph;
	enum pst_cu_result rc;
	int ret = user_object_create(seq, gone, arg, &graph, &object, err);

	if (ret) {
		gone(arg);
		return ret;
	}
	rc = api->cuGraphRetainUserObject(graph, object, 1, PST_CU_GRAPH_MOVE_REFS);
	if (rc == PST_CU_OK)
		return 0;
	api->cuUserObjectRelease(object, 1); /* calls gone(arg) */
	return pst_cuda_fail(err, rc, "adding a user object to a graph");
}

/* ---- failures ---- */

/* Checks whether the context is broken. In a broken context every driver call fails, so the
 * function queries an event. The query has no other effect. */
int pst_cuda_alive(struct penstock_device *dev)
{
	struct pst_cuda_device *c = dev->priv;
	struct pst_cu_event *queried = atomic_load_explicit(&c->queried, memory_order_acquire);
	struct pst_cuda_scope in;
	enum pst_cu_result rc;

	if (!queried)
		return 0;
	rc = pst_cuda_enter(c->api, atomic_load(&c->ctx), &in);
	if (rc == PST_CU_OK)
		rc = c->api->cuEventQuery(queried);
	pst_cuda_leave(c->api, &in);
	return rc == PST_CU_OK || rc == PST_CU_NOT_READY ? 0 : pst_cuda_errno(rc);
}
