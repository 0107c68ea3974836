/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Executes the queued work. Each stream has a thread that runs the stream's operations in order.
 * An operation also waits for its dependencies, such as the operation before it in its hardware
 * queue. Several streams share a hardware queue; README.md describes the effect. One more thread
 * polls the semaphores that streams wait for. Another thread runs the host functions one at a
 * time, as the real driver does. The caller of each function holds the lock. Only op_wait,
 * op_submit (if the hardware queue is full), stream_idle, stream_make, ctx_idle and
 * ctx_idle_exclusive may wait.
 */
#include "standin.h"

#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static pthread_once_t helpers_once = PTHREAD_ONCE_INIT;
static pthread_cond_t poll_wake = PTHREAD_COND_INITIALIZER;
static pthread_cond_t host_wake = PTHREAD_COND_INITIALIZER;
static struct op *polled, *host_first, **host_last = &host_first;

struct op *op_new(enum op_kind kind, enum func func)
{
	struct op *op = calloc(1, sizeof(*op));

	if (op) {
		op->kind = kind;
		op->func = func;
		op->refs = 1;
	}
	return op;
}

void op_put(struct op *op)
{
	if (!op || --op->refs)
		return;
	if (op->kind == OP_COPY)
		free(op->copy.staged);
	free(op->deps);
	free(op);
}

void op_depend(struct op *op, struct op *on)
{
	if (!on || on->done || on == op)
		return;
	op->deps = realloc(op->deps, (op->dep_count + 1) * sizeof(*op->deps));
	if (!op->deps)
		/* Aborts, because without this dependency the operations would run in the wrong
		 * order. */
		abort();
	op->deps[op->dep_count++] = on;
	on->refs++;
}

void op_payload(struct op *op, const struct op *from)
{
	switch (op->kind) {
	case OP_COPY:
		op->copy = from->copy;
		break;
	case OP_SET:
		op->set = from->set;
		break;
	case OP_WRITE:
	case OP_WAIT:
		op->word = from->word;
		break;
	case OP_HOST:
		op->host = from->host;
		break;
	case OP_KERNEL:
		op->kernel = from->kernel;
		break;
	case OP_MARK:
	case OP_FREE:
		break;
	}
}

/* Adds the dependencies that the default stream causes. An operation on the default stream runs
 * after all earlier work of blocking streams, and their later work runs after the operation. */
static void op_depend_default_stream(struct op *op, struct pst_cu_stream *stream)
{
	struct pst_cu_stream *null = stream->ctx->null_stream;

	if (stream->flags & PST_CU_STREAM_NON_BLOCKING)
		return;
	if (stream != null) {
		op_depend(op, null ? null->last : NULL);
		return;
	}
	for (struct pst_cu_stream *s = standin.streams; s; s = s->next)
		if (s->ctx == stream->ctx && s != stream &&
		    !(s->flags & PST_CU_STREAM_NON_BLOCKING))
			op_depend(op, s->last);
}

static struct queue *queue_of(struct pst_cu_stream *stream, enum queue_kind kind)
{
	if (kind == QUEUE_LAST)
		kind = stream->last_queue;
	if (kind >= QUEUE_KINDS)
		return NULL;
	stream->last_queue = kind;
	if (!standin.queue_count)
		return NULL;
	return &standin.devices[stream->ctx->dev].queues[kind][stream->index % standin.queue_count];
}

/* Waits while the hardware queue is full, as the real driver does. This hangs if the queue is
 * full because a stream waits for a semaphore that only the calling thread would set. */
static void queue_enter(struct op *op, struct queue *queue)
{
	while (standin.queue_depth && queue->pending >= standin.queue_depth)
		pthread_cond_wait(&standin.done, &standin.lock);
	queue->pending++;
	op->queue = queue;
}

/* Queues an operation on the stream. The caller keeps its own reference, and must pass the
 * operation to op_wait or op_put. */
struct op *op_submit(struct op *op, struct pst_cu_stream *stream, enum queue_kind kind)
{
	struct queue *queue = queue_of(stream, kind);

	if (queue)
		queue_enter(op, queue);
	op->stream = stream;
	op->seq = ++standin.seq;
	op_depend_default_stream(op, stream);
	if (queue) {
		op_depend(op, queue->last);
		op_put(queue->last);
		queue->last = op;
		op->refs++;
	}
	op_put(stream->last);
	stream->last = op;
	op->refs++;
	op->refs++; /* this reference belongs to the stream's list of operations */
	if (stream->tail)
		stream->tail->next = op;
	else
		stream->head = op;
	stream->tail = op;
	pthread_cond_signal(&stream->wake);
	return op;
}

void op_wait(struct op *op)
{
	while (!op->done)
		pthread_cond_wait(&standin.done, &standin.lock);
	op_put(op);
}

void stream_idle(struct pst_cu_stream *stream)
{
	if (stream->last) {
		stream->last->refs++;
		op_wait(stream->last);
	}
}

/* Waits until all work that was queued in the context before this call has completed. Does not
 * wait for later work. */
void ctx_idle(struct pst_cu_ctx *ctx)
{
	uint64_t upto = standin.seq;

	for (;;) {
		bool busy = false;

		for (struct pst_cu_stream *s = standin.streams; s && !busy; s = s->next)
			busy = s->ctx == ctx && s->head && s->head->seq <= upto;
		if (!busy)
			return;
		pthread_cond_wait(&standin.done, &standin.lock);
	}
}

/* Waits until the context is idle. Meanwhile, other threads cannot queue work, register or
 * allocate memory in this context. */
void ctx_idle_exclusive(struct pst_cu_ctx *ctx)
{
	ctx->exclusive_waits++;
	ctx_idle(ctx);
	ctx->exclusive_waits--;
	pthread_cond_broadcast(&standin.done);
}

/* Breaks the context. Its remaining operations are skipped, so that no thread waits for them
 * forever. */
void ctx_break(struct pst_cu_ctx *ctx, enum pst_cu_result rc)
{
	if (!ctx->broken)
		ctx->broken = rc;
	pthread_cond_signal(&poll_wake);
}

/* --- semaphores and host functions --- */

static bool wait_satisfied(const struct op *op)
{
	size_t avail;
	char *at = bytes_at(op->word.addr, false, &avail);
	uint64_t now, want = op->word.value;
	bool wide = op->word.width == 8;

	if (op->stream->ctx->broken)
		return true;
	if (!at) {
		ctx_break(op->stream->ctx, PST_CU_ILLEGAL_ADDRESS);
		return true;
	}
	now = wide ? __atomic_load_n((uint64_t *)at, __ATOMIC_ACQUIRE)
		   : __atomic_load_n((uint32_t *)at, __ATOMIC_ACQUIRE);
	switch (op->word.flags) {
	case PST_CU_WAIT_GEQ:
		return wide ? (int64_t)(now - want) >= 0
			    : (int32_t)((uint32_t)now - (uint32_t)want) >= 0;
	case PST_CU_WAIT_EQ:
		return now == want;
	case PST_CU_WAIT_AND:
		return (now & want) != 0;
	default:
		return wide ? ~(now | want) != 0 : (uint32_t) ~(now | want) != 0;
	}
}

static void *poll_main(void *arg)
{
	unsigned int idle_us = 10;

	(void)arg;
	lock();
	for (;;) {
		struct op **at = &polled;
		bool any = false;

		if (!polled) {
			pthread_cond_wait(&poll_wake, &standin.lock);
			idle_us = 10;
			continue;
		}
		while (*at) {
			struct op *op = *at;

			if (!wait_satisfied(op)) {
				at = &op->poll_next;
				continue;
			}
			*at = op->poll_next;
			op->hit = any = true;
			pthread_cond_signal(&op->stream->wake);
		}
		idle_us = any ? 10 : idle_us < 200 ? idle_us * 2 : 200;
		unlock();
		usleep(idle_us);
		lock();
	}
	return NULL;
}

static void *host_main(void *arg)
{
	(void)arg;
	standin_in_host_func = true;
	lock();
	for (;;) {
		struct op *op = host_first;

		if (!op) {
			pthread_cond_wait(&host_wake, &standin.lock);
			continue;
		}
		host_first = op->poll_next;
		if (!host_first)
			host_last = &host_first;
		unlock();
		op->host.fn(op->host.arg);
		lock();
		op->hit = true;
		if (op->stream)
			pthread_cond_signal(&op->stream->wake);
		else
			op_put(op);
	}
	return NULL;
}

/* Appends to the list of host functions. */
static void host_append(struct op *op)
{
	op->poll_next = NULL;
	*host_last = op;
	host_last = &op->poll_next;
	pthread_cond_signal(&host_wake);
}

void host_call(void (*fn)(void *), void *arg)
{
	struct op *op = op_new(OP_HOST, FN_cuLaunchHostFunc);

	if (!op)
		abort();
	op->host.fn = fn;
	op->host.arg = arg;
	host_append(op);
}

static void thread_start(void *(*main)(void *), void *arg)
{
	pthread_attr_t attr;
	pthread_t thread;

	pthread_attr_init(&attr);
	pthread_attr_setdetachstate(&attr, PTHREAD_CREATE_DETACHED);
	pthread_attr_setstacksize(&attr, 256 << 10);
	if (pthread_create(&thread, &attr, main, arg))
		abort();
	pthread_attr_destroy(&attr);
}

static void helpers_start(void)
{
	thread_start(poll_main, NULL);
	thread_start(host_main, NULL);
}

/* --- streams --- */

/* Sleeps for a random time, which it computes with the hash splitmix64 from the seed and the
 * operation's sequence number. So the same seed and the same order always cause the same delays. */
static void op_delay(const struct op *op)
{
	uint64_t x = standin.seed + op->seq * 0x9e3779b97f4a7c15ULL;
	struct timespec t = {0, 0};

	if (!standin.delay_us)
		return;
	x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ULL;
	x = (x ^ (x >> 27)) * 0x94d049bb133111ebULL;
	x = (x ^ (x >> 31)) % ((uint64_t)standin.delay_us + 1);
	t.tv_sec = (time_t)(x / 1000000);
	t.tv_nsec = (long)(x % 1000000) * 1000;
	unlock();
	nanosleep(&t, NULL);
	lock();
}

static void op_wait_hit(struct op *op, pthread_cond_t *helper)
{
	pthread_cond_signal(helper);
	while (!op->hit)
		pthread_cond_wait(&op->stream->wake, &standin.lock);
}

static enum pst_cu_result word_write(const struct op *op)
{
	size_t avail;
	char *at = bytes_at(op->word.addr, true, &avail);

	if (!at)
		return PST_CU_ILLEGAL_ADDRESS;
	if (op->word.width == 8)
		__atomic_store_n((uint64_t *)at, op->word.value, __ATOMIC_RELEASE);
	else
		__atomic_store_n((uint32_t *)at, (uint32_t)op->word.value, __ATOMIC_RELEASE);
	return PST_CU_OK;
}

static void op_run(struct op *op)
{
	struct pst_cu_ctx *ctx = op->stream->ctx;
	enum pst_cu_result rc = PST_CU_OK;
	struct range *r;

	if (op->kind != OP_MARK)
		op_delay(op);
	if (ctx->broken)
		return;
	rc = standin_exec_fails(op->func);
	if (rc) {
		ctx_break(ctx, rc);
		return;
	}
	switch (op->kind) {
	case OP_MARK:
		break;
	case OP_COPY:
		rc = copy_run(op);
		break;
	case OP_SET:
		rc = set_run(op);
		break;
	case OP_WRITE:
		rc = word_write(op);
		break;
	case OP_WAIT:
		op->poll_next = polled;
		polled = op;
		op_wait_hit(op, &poll_wake);
		break;
	case OP_HOST:
		host_append(op);
		op_wait_hit(op, &host_wake);
		break;
	case OP_KERNEL:
		rc = kernel_run(op);
		break;
	case OP_FREE:
		r = range_find(op->free);
		if (r && r->start == op->free)
			mem_free_locked(r);
		break;
	}
	if (rc)
		ctx_break(ctx, rc);
}

static void op_finish(struct op *op)
{
	struct pst_cu_stream *s = op->stream;

	s->head = op->next;
	if (!s->head)
		s->tail = NULL;
	op->done = true;
	if (op->queue)
		op->queue->pending--;
	for (size_t i = 0; i < op->dep_count; i++)
		op_put(op->deps[i]);
	op->dep_count = 0;
	if (op->exec)
		exec_put(op->exec);
	op_put(op);
	pthread_cond_broadcast(&standin.done);
}

static void stream_free(struct pst_cu_stream *stream)
{
	struct pst_cu_stream **at = &standin.streams;

	while (*at != stream)
		at = &(*at)->next;
	*at = stream->next;
	op_put(stream->last);
	pthread_cond_destroy(&stream->wake);
	free(stream);
	pthread_cond_broadcast(&standin.done);
}

void stream_close(struct pst_cu_stream *stream)
{
	stream->closing = true;
	stream->ctx->stream_count--;
	pthread_cond_signal(&stream->wake);
}

static bool op_ready(const struct op *op)
{
	for (size_t i = 0; i < op->dep_count; i++)
		if (!op->deps[i]->done)
			return false;
	return true;
}

static void *stream_main(void *arg)
{
	struct pst_cu_stream *s = arg;

	lock();
	while (s->head || !s->closing) {
		if (!s->head) {
			pthread_cond_wait(&s->wake, &standin.lock);
			continue;
		}
		while (!op_ready(s->head))
			pthread_cond_wait(&standin.done, &standin.lock);
		op_run(s->head);
		op_finish(s->head);
	}
	stream_free(s);
	unlock();
	return NULL;
}

/* If all streams of the context's stream pool are in use, adds standin.stream_pool streams to the
 * pool. The real driver enlarges its pool for about every 16th stream. Each enlargement waits until
 * the context is idle. */
static void stream_pool_grow(struct pst_cu_ctx *ctx)
{
	if (ctx->stream_count < ctx->stream_max || !standin.stream_pool)
		return;
	ctx->stream_max += standin.stream_pool;
	ctx_idle(ctx);
}

struct pst_cu_stream *stream_make(struct pst_cu_ctx *ctx, unsigned int flags, int priority)
{
	struct pst_cu_stream *s = calloc(1, sizeof(*s));

	if (!s)
		abort();
	stream_pool_grow(ctx);
	ctx->stream_count++;
	pthread_once(&helpers_once, helpers_start);
	s->ctx = ctx;
	s->flags = flags;
	s->priority = priority;
	s->index = standin.stream_count++;
	s->last_queue = QUEUE_COMPUTE;
	pthread_cond_init(&s->wake, NULL);
	s->next = standin.streams;
	standin.streams = s;
	thread_start(stream_main, s);
	return s;
}
