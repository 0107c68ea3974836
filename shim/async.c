/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stream-ordered reads and writes on the core's stream submit. Sizes and offsets are
 * read when the stream comes to them, unless the stream was registered with flags
 * that fix them. What the core orders on no stream (host memory, the NULL stream)
 * waits for the stream in front and then moves at once. Ended requests are looked
 * at by later calls; until then they hold their file.
 * Lock order: shim.lock, then async_lock, then streams_lock.
 */
#include <errno.h>
#include <stdlib.h>
#include <time.h>

#include "shim.h"
#include "stats.h"

#define OUT_MAX 1024u /* what the core takes of one device; more wait their turn */
#define KNOWN_FLAGS                                                                                \
	(CUF_STREAM_FIXED_BUF_OFFSET | CUF_STREAM_FIXED_FILE_OFFSET | CUF_STREAM_FIXED_FILE_SIZE | \
	 CUF_STREAM_PAGE_ALIGNED)
#define PAUSE_NS 50000
#define LAST_WAIT_NS 1000000000

/* What is remembered of a request until it is looked at. */
struct out {
	struct out *next;
	struct shim_move m; /* m.file NULL: the place is free */
	uint64_t id;
	int level; /* of statistics, when it was handed in */
};

static pthread_mutex_t async_lock = PTHREAD_MUTEX_INITIALIZER;
static struct penstock_queue *queue; /* under async_lock, as the next three */
static struct out *outs, *free_outs;
static unsigned out_count;

/* ---- registered streams ---- */

struct stream {
	void *stream;
	unsigned flags;
};
static pthread_mutex_t streams_lock = PTHREAD_MUTEX_INITIALIZER;
static struct stream *streams; /* under streams_lock, as the next two */
static unsigned stream_count, stream_room;
static _Atomic bool any_stream;

static struct stream *find_stream(void *stream)
{
	for (unsigned i = 0; i < stream_count; i++)
		if (streams[i].stream == stream)
			return &streams[i];
	return NULL;
}

static unsigned flags_of(void *stream)
{
	const struct stream *s;
	unsigned flags = 0;

	if (!atomic_load_explicit(&any_stream, memory_order_acquire))
		return 0;
	pthread_mutex_lock(&streams_lock);
	s = find_stream(stream);
	if (s)
		flags = s->flags;
	pthread_mutex_unlock(&streams_lock);
	return flags;
}

static int add_stream(void *stream, unsigned flags)
{
	struct stream *s = find_stream(stream);

	if (!s && stream_count == stream_room) {
		unsigned room = stream_room ? stream_room * 2 : 16;
		struct stream *more = realloc(streams, room * sizeof(*more));

		if (!more)
			return CUF_NOMEM_ERROR;
		streams = more;
		stream_room = room;
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
	code = add_stream(stream, flags);
	pthread_mutex_unlock(&streams_lock);
	return shim_err(code);
}

/* ---- what has ended; under async_lock ---- */

static void give_out(struct out *o)
{
	o->m.file = NULL;
	o->next = free_outs;
	free_outs = o;
	out_count--;
}

static void look_at(const struct penstock_done *done)
{
	struct out *o = done->user;
	int64_t ret = done->result;

	if (ret >= 0 && shim_is_first(&o->m))
		shim_first_use(&o->m, done->report);
	if (ret < 0)
		shim_say_failed(&o->m, "a stream's ", shim_code(ret, done->report->why),
				done->report->text);
	if (o->level) /* not until now: nobody had to look before */
		shim_count_io(o->level, (done->report->end_ns - done->report->start_ns) / 1000,
			      o->m.req.op, false, ret, &o->m.seg, 1, ret > 0 ? (size_t)ret : 0,
			      done->report);
	shim_move_end(&o->m);
	give_out(o);
}

static void harvest(int64_t wait_ns)
{
	struct penstock_done done[16];
	int n;

	if (!queue || !out_count)
		return;
	do {
		n = penstock_wait(queue, done, wait_ns ? 1 : 0, 16, wait_ns);
		for (int i = 0; i < n; i++)
			look_at(&done[i]);
	} while (n == 16);
}

/* A stream that failed never comes to what waits for it: that ends here. All streams
 * for NULL. */
static void drop_broken(void *stream)
{
	for (unsigned i = 0; outs && i < OUT_MAX; i++)
		if (outs[i].m.file && (!stream || outs[i].m.req.stream == stream) &&
		    shim_cuda_stream_broken(outs[i].m.req.stream))
			penstock_cancel(queue, outs[i].id);
}

/* As documented, it waits for the stream: what the caller lent to its transfers is the
 * caller's again. */
struct cuf_error cuFileStreamDeregister(void *stream)
{
	bool capturing = false;
	struct stream *s;

	pthread_mutex_lock(&streams_lock);
	s = find_stream(stream);
	if (s)
		*s = streams[--stream_count];
	pthread_mutex_unlock(&streams_lock);
	if (s && !shim_cuda_stream(stream, &capturing) && !capturing)
		shim_cuda_wait(stream); /* at once, if it is broken */
	pthread_mutex_lock(&async_lock);
	drop_broken(stream);
	harvest(0);
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

void shim_async_harvest(void)
{
	/* Somebody else who has the lock looks as well. */
	if (pthread_mutex_trylock(&async_lock))
		return;
	harvest(0);
	pthread_mutex_unlock(&async_lock);
}

int shim_async_close(void)
{
	uint64_t until = shim_now_ns() + LAST_WAIT_NS;
	int code = 0;

	pthread_mutex_lock(&async_lock);
	harvest(0);
	drop_broken(NULL);
	while (out_count && shim_now_ns() < until)
		harvest(PAUSE_NS);
	if (out_count) {
		code = CUF_DRIVER_CLOSING;
	} else {
		penstock_queue_close(queue);
		queue = NULL;
		free(outs);
		outs = free_outs = NULL;
	}
	pthread_mutex_unlock(&async_lock);
	return code;
}

void shim_async_forked(void)
{
	pthread_mutex_init(&async_lock, NULL);
	pthread_mutex_init(&streams_lock, NULL);
	queue = NULL; /* the parent's, as its streams are */
	outs = free_outs = NULL;
	out_count = stream_count = 0;
}

/* ---- submit ---- */

static int open_queue(void)
{
	struct penstock_queue_opts opts = PENSTOCK_QUEUE_OPTS_INIT;

	if (queue)
		return 0;
	opts.requests_max = OUT_MAX;
	opts.segs_max = 1;
	outs = calloc(OUT_MAX, sizeof(*outs));
	if (!outs || penstock_queue_open(&opts, &queue) < 0) {
		free(outs);
		outs = NULL;
		return CUF_NOMEM_ERROR;
	}
	for (unsigned i = 0; i < OUT_MAX; i++) {
		outs[i].next = free_outs;
		free_outs = &outs[i];
	}
	return 0;
}

/* A place for one more. When all are taken the call waits, as a launch on a full
 * stream does; others may come in meanwhile. */
static struct out *take_out(void)
{
	const struct timespec pause = {0, PAUSE_NS};
	struct out *o;

	out_count++; /* from here on: nobody may close while the lock is let go */
	harvest(0);
	while (!free_outs) {
		pthread_mutex_unlock(&async_lock);
		nanosleep(&pause, NULL);
		pthread_mutex_lock(&async_lock);
		harvest(0);
	}
	o = free_outs;
	free_outs = o->next;
	return o;
}

/* No errno can be returned here: what shim_code leaves to one has a code all the same. */
static int code_of_refusal(int64_t ret, int code)
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

/* `file_off` is what it is now: of a late one statistics know no better. */
static int hand_in(struct shim_move *m, off_t file_off)
{
	const struct timespec pause = {0, PAUSE_NS};
	struct out *o = take_out();
	int ret, code;

	m->req.user = o;
	*o = (struct out){.m = *m,
			  .level = atomic_load_explicit(&shim_stats_level, memory_order_relaxed)};
	while ((ret = penstock_submit(queue, &m->req, 1, &o->id)) == -EAGAIN) {
		pthread_mutex_unlock(&async_lock);
		nanosleep(&pause, NULL);
		pthread_mutex_lock(&async_lock);
		harvest(0);
	}
	if (ret == 1) {
		o->m.seg.off = (uint64_t)file_off;
		return 0; /* the file is let go when it was looked at */
	}
	code = shim_code(ret, penstock_errwhy());
	shim_say_failed(m, "a stream's ", code, penstock_errmsg());
	give_out(o);
	shim_move_end(m);
	return code_of_refusal(ret, code);
}

/* The caller's pointers, read at submit. */
struct args {
	void *fh, *base;
	const size_t *len;
	const off_t *file_off, *base_off;
	ssize_t *bytes;
	void *stream;
	enum penstock_op op;
};

/* Waits for the stream, then moves at once: the order is the same, and what a flag fixes
 * is what it was at the call. */
static struct cuf_error after_stream(const struct args *a)
{
	unsigned flags = flags_of(a->stream);
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
	ret = a->op == PENSTOCK_READ ? cuFileRead(a->fh, a->base, len, file_off, base_off)
				     : cuFileWrite(a->fh, a->base, len, file_off, base_off);
	/* Codes that mean that nothing was tried are the call's own. */
	if (ret <= -CUF_DRIVER_NOT_INITIALIZED)
		return shim_err((int)-ret);
	*a->bytes = ret == -1 && errno ? -errno : ret;
	return shim_ok();
}

static struct cuf_error in_order(const struct args *a)
{
	unsigned flags = flags_of(a->stream);
	bool late_base = !(flags & CUF_STREAM_FIXED_BUF_OFFSET);
	bool late_off = !(flags & CUF_STREAM_FIXED_FILE_OFFSET);
	struct penstock_late late = {.size = sizeof(late)};
	struct shim_move m;
	int code;

	/* A value that is not there yet is checked when it is: the length may not exceed
	 * what is given here, the offset not leave the registration or the allocation. */
	code = shim_move_begin(&m, a->fh, a->base, *a->len, late_off ? 0 : *a->file_off,
			       late_base ? 0 : *a->base_off, a->op);
	if (code)
		return shim_err(code);
	if (m.seg.dev == atomic_load_explicit(&shim.host, memory_order_relaxed)) {
		shim_move_end(&m);
		return after_stream(a);
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
	code = open_queue();
	if (code)
		shim_move_end(&m);
	else
		code = hand_in(&m, *a->file_off);
	pthread_mutex_unlock(&async_lock);
	return shim_err(code);
}

static struct cuf_error order(const struct args *a)
{
	bool capturing = false;
	int code;

	if (!a->base || !a->len || !a->file_off || !a->base_off || !a->bytes)
		return shim_err(CUF_INVALID_VALUE);
	/* Asked first: waiting for it, or what a first transfer sets up, would end the
	 * capture. */
	code = shim_cuda_stream(a->stream, &capturing);
	if (code && a->stream)
		return shim_err(code);
	if (!code && capturing) {
		shim_log(SHIM_ERROR, "a stream that is being captured into a graph takes no "
				     "cuFile call: make it outside of the capture");
		return shim_err(CUF_ASYNC_NOT_SUPPORTED);
	}
	return a->stream ? in_order(a) : after_stream(a);
}

struct cuf_error cuFileReadAsync(void *fh, void *base, size_t *len, off_t *file_off,
				 off_t *base_off, ssize_t *bytes, void *stream)
{
	const struct args a = {fh, base, len, file_off, base_off, bytes, stream, PENSTOCK_READ};

	return order(&a);
}

struct cuf_error cuFileWriteAsync(void *fh, void *base, size_t *len, off_t *file_off,
				  off_t *base_off, ssize_t *bytes, void *stream)
{
	const struct args a = {fh, base, len, file_off, base_off, bytes, stream, PENSTOCK_WRITE};

	return order(&a);
}
