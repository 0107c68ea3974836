/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream-ordered reads and writes. Each of them is a request in stream order, and one queue of the
 * library takes all these requests. The library reads sizes and offsets when the stream reaches the
 * request, unless the caller registered the stream with flags that fix them. The request's file
 * stays in use until a later call of the drop-in collects the completed request.
 *
 * The library offers no stream order for host memory, and none for the NULL stream. In these cases,
 * the call itself waits until the stream's earlier work is done, and moves the bytes before it
 * returns.
 *
 * While a stream is being captured, a call must never wait for the stream or query it, because the
 * capture would then fail. The request becomes a part of the graph, and each launch of the graph
 * transfers the bytes again. Calls with host memory or the NULL stream are refused.
 *
 * Lock order: shim.lock, then async_lock, then streams_lock.
 */
#include "async.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <time.h>

#include "buffer.h"
#include "cuda.h"
#include "abi/cufile_calls.h"
#include "fail.h"
#include "handle.h"
#include "log.h"
#include "move.h"
#include "open.h"
#include "prepare.h"
#include "state.h"
#include "stats.h"
#include "sync.h"

#define REQS_MAX 1024u /* the library's limit for one device; a call beyond it waits */
#define KNOWN_FLAGS                                                                                \
	(CUF_STREAM_FIXED_BUF_OFFSET | CUF_STREAM_FIXED_FILE_OFFSET | CUF_STREAM_FIXED_FILE_SIZE | \
	 CUF_STREAM_PAGE_ALIGNED)
#define PAUSE_NS 50000
#define LAST_WAIT_NS 1000000000

/* A stream request, from its submission until it is collected. */
struct stream_req {
	struct stream_req *next;
	struct shim_move m; /* m.file is NULL if the entry is free */
	uint64_t id;
	int level; /* level of statistics when the request was submitted */
};

/* Guards queue, reqs, free_reqs and req_count. */
static pthread_mutex_t async_lock = PTHREAD_MUTEX_INITIALIZER;
static struct penstock_queue *queue;
static struct stream_req *reqs, *free_reqs;
/* Number of requests not yet collected, plus number of calls that wait for a free entry. */
static unsigned req_count;

/* ---- registered streams ---- */

struct stream {
	void *stream;
	unsigned flags;
};
/* Guards streams, stream_count and stream_capacity. */
static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER;
static struct stream *streams;
static unsigned stream_count, stream_capacity;
static _Atomic bool any_stream;

static struct stream *stream_find(void *stream)
{
	for (unsigned i = 0; i < stream_count; i++)
		if (streams[i].stream == stream)
			return &streams[i];
	return NULL;
}

static unsigned stream_flags(void *stream)
{
	const struct stream *s;
	unsigned flags = 0;

	if (!atomic_load_explicit(&any_stream, memory_order_acquire))
		return 0;
	pthread_mutex_lock(&streams_lock);
	s = stream_find(stream);
	if (s)
		flags = s->flags;
	pthread_mutex_unlock(&streams_lock);
	return flags;
}

static int stream_add(void *stream, unsigned flags)
{
	struct stream *s = stream_find(stream);

	if (!s && stream_count == stream_capacity) {
		unsigned capacity = stream_capacity ? stream_capacity * 2 : 16;
		struct stream *more = realloc(streams, capacity * sizeof(*more));

		if (!more)
			return CUF_NOMEM_ERROR;
		streams = more;
		stream_capacity = capacity;
	}
	if (!s)
		s = &streams[stream_count++];
	*s = (struct stream){stream, flags};
	atomic_store_explicit(&any_stream, true, memory_order_release);
	return 0;
}

struct cuf_error cuFileStreamRegister(void *stream, unsigned flags)
{
	bool capturing;
	int code = flags & ~KNOWN_FLAGS ? CUF_INVALID_VALUE : shim_need();

	if (!code)
		code = shim_cuda_stream(stream, &capturing);
	if (code)
		return shim_err(code);
	pthread_mutex_lock(&streams_lock);
	code = stream_add(stream, flags);
	pthread_mutex_unlock(&streams_lock);
	if (!code)
		shim_prepare(shim_cuda_stream_ordinal(stream), stream);
	return shim_err(code);
}

/* ---- collecting completed requests; under async_lock ---- */

static void req_free(struct stream_req *req)
{
	req->m.file = NULL;
	req->next = free_reqs;
	free_reqs = req;
	req_count--;
}

static void req_collect(const struct penstock_done *done)
{
	struct stream_req *req = done->user;
	int64_t ret = done->result;

	if (ret >= 0 && shim_is_first(&req->m))
		shim_log_first_use(&req->m, done->report);
	if (ret < 0)
		shim_log_failed(&req->m, "a stream's ", shim_code(ret, done->report->why),
				done->report->text);
	if (req->level)
		shim_count_io(req->level, (done->report->end_ns - done->report->start_ns) / 1000,
			      req->m.req.op, false, ret, &req->m.seg, 1, ret > 0 ? (size_t)ret : 0,
			      done->report);
	shim_move_end(&req->m);
	req_free(req);
}

/* Collects completed requests. Waits at most `wait_ns` for the first of them. */
static void reqs_harvest(int64_t wait_ns)
{
	struct penstock_done done[16];
	int n;

	if (!queue || !req_count)
		return;
	do {
		n = penstock_wait(queue, done, wait_ns ? 1 : 0, 16, wait_ns);
		for (int i = 0; i < n; i++)
			req_collect(&done[i]);
	} while (n == 16);
}

/* Cancels the requests of a failed stream, because the stream will never reach them. If
 * `stream` is NULL, cancels the requests of all failed streams. */
static void broken_cancel(void *stream)
{
	for (unsigned i = 0; reqs && i < REQS_MAX; i++)
		if (reqs[i].m.file && (!stream || reqs[i].m.req.stream == stream) &&
		    shim_cuda_stream_broken(reqs[i].m.req.stream))
			penstock_cancel(queue, reqs[i].id);
}

/* Waits for the stream, as NVIDIA's documentation demands, so that the caller may then free the
 * memory that the stream's transfers used. */
struct cuf_error cuFileStreamDeregister(void *stream)
{
	bool capturing = false;
	struct stream *s;

	pthread_mutex_lock(&streams_lock);
	s = stream_find(stream);
	if (s)
		*s = streams[--stream_count];
	pthread_mutex_unlock(&streams_lock);
	if (s && !shim_cuda_stream(stream, &capturing) && !capturing)
		shim_cuda_wait(stream); /* returns at once if the stream has failed */
	pthread_mutex_lock(&async_lock);
	broken_cancel(stream);
	reqs_harvest(0);
	pthread_mutex_unlock(&async_lock);
	return shim_err(s ? CUF_SUCCESS : CUF_INVALID_VALUE);
}

void shim_streams_drop(void)
{
	pthread_mutex_lock(&streams_lock);
	stream_count = 0;
	atomic_store(&any_stream, false);
	pthread_mutex_unlock(&streams_lock);
}

/* Collects completed requests. shim_harvest calls this function through shim.harvest. */
static void async_harvest(void)
{
	/* If another thread holds the lock, that thread collects the requests. */
	if (pthread_mutex_trylock(&async_lock))
		return;
	reqs_harvest(0);
	pthread_mutex_unlock(&async_lock);
}

int shim_async_close(void)
{
	uint64_t until = shim_now_ns() + LAST_WAIT_NS;
	int code = 0;

	pthread_mutex_lock(&async_lock);
	reqs_harvest(0);
	broken_cancel(NULL);
	while (req_count && shim_now_ns() < until)
		reqs_harvest(PAUSE_NS);
	if (req_count) {
		code = CUF_DRIVER_CLOSING;
	} else {
		penstock_queue_close(queue);
		queue = NULL;
		free(reqs);
		reqs = free_reqs = NULL;
	}
	pthread_mutex_unlock(&async_lock);
	return code;
}

void shim_async_forked(void)
{
	pthread_mutex_init(&async_lock, NULL);
	pthread_mutex_init(&streams_lock, NULL);
	queue = NULL;
	reqs = free_reqs = NULL;
	req_count = stream_count = 0;
}

/* ---- submit ---- */

static int queue_open(void)
{
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;

	if (queue)
		return 0;
	opts.requests_max = REQS_MAX;
	opts.segs_max = 1;
	reqs = calloc(REQS_MAX, sizeof(*reqs));
	if (!reqs || penstock_queue_open(&opts, &queue) < 0) {
		free(reqs);
		reqs = NULL;
		return CUF_NOMEM_ERROR;
	}
	atomic_store_explicit(&shim.harvest, async_harvest, memory_order_release);
	for (unsigned i = 0; i < REQS_MAX; i++) {
		reqs[i].next = free_reqs;
		free_reqs = &reqs[i];
	}
	return 0;
}

/* Returns a free entry of reqs. If all entries are in use, waits for one, as a kernel launch
 * waits for space on a full stream. Releases async_lock while it waits. */
static struct stream_req *req_alloc(void)
{
	const struct timespec pause = {0, PAUSE_NS};
	struct stream_req *req;

	/* This counts the request before the wait, so that no thread closes the queue during the
	 * wait. */
	req_count++;
	reqs_harvest(0);
	while (!free_reqs) {
		pthread_mutex_unlock(&async_lock);
		nanosleep(&pause, NULL);
		pthread_mutex_lock(&async_lock);
		reqs_harvest(0);
	}
	req = free_reqs;
	free_reqs = req->next;
	return req;
}

/* Returns a cuFile code for every refusal, because stream-ordered calls cannot return an errno. */
static int refusal_code(int64_t ret, int code)
{
	if (code)
		return code;
	switch (ret) {
	case -EINVAL:
		return CUF_INVALID_VALUE;
	case -ENOMEM:
		return CUF_NOMEM_ERROR;
	case -EBADF:
	case -EACCES:
		return CUF_PERMISSION_DENIED;
	default:
		return CUF_IO_ERROR;
	}
}

/* Submits a request in stream order. `file_off` is the file offset that the program's variable had
 * when it called cuFile. The variable may change until the stream reaches the request; statistics
 * count the request with `file_off` all the same. */
static int req_submit(struct shim_move *m, off_t file_off, bool capturing)
{
	const struct timespec pause = {0, PAUSE_NS};
	struct stream_req *req = req_alloc();
	int ret, code;

	m->req.user = req;
	*req = (struct stream_req){.m = *m};
	if (!capturing) /* the statistics do not count what a capture records */
		req->level = atomic_load_explicit(&shim_stats_level, memory_order_relaxed);
	/* If a limit of the stream or of the device is reached, waits without async_lock: calls of
	 * other threads for other streams must continue, because the stream may wait for them. */
	while ((ret = penstock_submit(queue, &m->req, 1, &req->id)) == -EAGAIN) {
		pthread_mutex_unlock(&async_lock);
		nanosleep(&pause, NULL);
		pthread_mutex_lock(&async_lock);
		reqs_harvest(0);
	}
	if (ret == 1) {
		req->m.seg.off = (uint64_t)file_off;
		return 0; /* the file is released when the request is collected */
	}
	code = shim_code(ret, penstock_errwhy());
	shim_log_failed(m, "a stream's ", code, penstock_errmsg());
	req_free(req);
	shim_move_end(m);
	return capturing && ret == -EOPNOTSUPP ? CUF_ASYNC_NOT_SUPPORTED : refusal_code(ret, code);
}

/* The arguments of cuFileReadAsync or cuFileWriteAsync. */
struct args {
	void *fh, *base;
	const size_t *len;
	const off_t *file_off, *base_off;
	ssize_t *bytes;
	void *stream;
	enum penstock_op op;
	bool capturing; /* the stream is being captured into a graph */
};

static struct cuf_error refuse_capture(const char *why)
{
	shim_log(SHIM_ERROR, "a stream that is being captured into a graph: %s", why);
	return shim_err(CUF_ASYNC_NOT_SUPPORTED);
}

/* Waits for the stream, then moves the bytes, so that the transfer keeps its order on the stream.
 * A length or offset that a flag of the stream fixes is read before the wait. Otherwise it is read
 * after the wait. */
static struct cuf_error move_after_stream(const struct args *a)
{
	unsigned flags = stream_flags(a->stream);
	size_t len = *a->len;
	off_t file_off = *a->file_off, base_off = *a->base_off;
	int rc = shim_cuda_wait(a->stream);
	ssize_t ret;

	if (rc)
		return (struct cuf_error){CUF_CUDA_DRIVER_ERROR, rc};
	if (!(flags & CUF_STREAM_FIXED_FILE_SIZE))
		len = *(volatile const size_t *)a->len;
	if (!(flags & CUF_STREAM_FIXED_FILE_OFFSET))
		file_off = *(volatile const off_t *)a->file_off;
	if (!(flags & CUF_STREAM_FIXED_BUF_OFFSET))
		base_off = *(volatile const off_t *)a->base_off;
	errno = 0;
	ret = shim_move_sync(a->fh, a->base, len, file_off, base_off, a->op);
	/* A negated cuFile code means that no byte was moved, so the call itself fails. */
	if (ret <= -CUF_DRIVER_NOT_INITIALIZED)
		return shim_err((int)-ret);
	*a->bytes = ret == -1 && errno ? -errno : ret;
	return shim_ok();
}

/* Submits the transfer as a stream request: the request waits for the earlier work on the
 * stream, and later work on the stream waits for the request. */
static struct cuf_error move_in_stream(const struct args *a)
{
	unsigned flags = stream_flags(a->stream);
	bool late_base = !(flags & CUF_STREAM_FIXED_BUF_OFFSET);
	bool late_off = !(flags & CUF_STREAM_FIXED_FILE_OFFSET);
	struct penstock_late late = {.size = sizeof(late)};
	struct shim_move m;
	int code;

	/* If the stream reads a length or an offset later, the library checks the value at that
	 * time. The length must not exceed the length at the call. The offset must stay in the
	 * registered buffer, or in the allocation if the buffer is not registered. */
	code = shim_move_begin(&m, a->fh, a->base, *a->len, late_off ? 0 : *a->file_off,
			       late_base ? 0 : *a->base_off, a->op);
	if (code)
		return shim_err(code);
	if (m.seg.dev == atomic_load_explicit(&shim.host, memory_order_relaxed)) {
		shim_move_end(&m);
		if (a->capturing)
			return refuse_capture("a transfer to host memory cannot be part of it");
		return move_after_stream(a);
	}
	if (!(flags & CUF_STREAM_FIXED_FILE_SIZE))
		late.row_len = a->len;
	if (late_off)
		late.off = (const uint64_t *)a->file_off;
	if (late_base) {
		late.buf_off = (const uint64_t *)a->base_off;
		late.buf_len = shim_registered(a->base);
	}
	late.result = (int64_t *)a->bytes;
	m.req.late = &late;
	m.req.stream = a->stream;
	pthread_mutex_lock(&async_lock);
	code = queue_open();
	if (code)
		shim_move_end(&m);
	else
		code = req_submit(&m, *a->file_off, a->capturing);
	pthread_mutex_unlock(&async_lock);
	return shim_err(code);
}

static struct cuf_error move_ordered(struct args *a)
{
	int code;

	if (!a->base || !a->len || !a->file_off || !a->base_off || !a->bytes)
		return shim_err(CUF_INVALID_VALUE);
	if (!shim_file_permits(a->fh, a->op)) {
		shim_log(SHIM_ERROR, "a stream's %s failed: the file was opened for %s only",
			 a->op == PENSTOCK_READ ? "read" : "write",
			 a->op == PENSTOCK_READ ? "writing" : "reading");
		return shim_err(CUF_INVALID_FILE_OPEN_FLAG);
	}
	/* First queries whether the stream is being captured, because a wait for the stream would
	 * make the capture fail. */
	code = shim_cuda_stream(a->stream, &a->capturing);
	if (code && a->stream)
		return shim_err(code);
	if (a->stream)
		return move_in_stream(a);
	if (!code && a->capturing)
		return refuse_capture("a call on the NULL stream would make the capture fail");
	return move_after_stream(a);
}

struct cuf_error cuFileReadAsync(void *fh, void *base, size_t *len, off_t *file_off,
				 off_t *base_off, ssize_t *bytes, void *stream)
{
	struct args a = {fh, base, len, file_off, base_off, bytes, stream, PENSTOCK_READ, false};

	return move_ordered(&a);
}

struct cuf_error cuFileWriteAsync(void *fh, void *base, size_t *len, off_t *file_off,
				  off_t *base_off, ssize_t *bytes, void *stream)
{
	struct args a = {fh, base, len, file_off, base_off, bytes, stream, PENSTOCK_WRITE, false};

	return move_ordered(&a);
}
