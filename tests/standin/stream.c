/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the stand-in's calls on streams and events: creation, waiting, semaphores that a
 * stream writes or waits for, and host functions. queue.c executes the queued work. A call with
 * the handle of a destroyed object is refused with CUDA error 400; the real driver may crash
 * instead.
 */
#include "standin.h"

#include <stdlib.h>

struct pst_cu_stream *stream_of(struct pst_cu_stream *handle, struct pst_cu_ctx *ctx,
				enum pst_cu_result *rc)
{
	bool null = !handle || handle == PST_CU_STREAM_LEGACY;

	*rc = PST_CU_OK;
	if (null || handle == PST_CU_STREAM_PER_THREAD) {
		if (!ctx) {
			*rc = standin_refuse(PST_CU_INVALID_CONTEXT,
					     "the default stream without a current context");
			return NULL;
		}
		return null ? ctx->null_stream : ctx->thread_stream;
	}
	for (struct pst_cu_stream *s = standin.streams; s; s = s->next)
		if (s == handle && !s->closing && !s->own)
			return s;
	*rc = standin_refuse(PST_CU_INVALID_HANDLE, "not a live stream: %p", (void *)handle);
	return NULL;
}

static struct pst_cu_event *event_of(struct pst_cu_event *handle, enum pst_cu_result *rc)
{
	*rc = PST_CU_OK;
	for (struct pst_cu_event *e = standin.events; e; e = e->next)
		if (e == handle)
			return e;
	*rc = standin_refuse(PST_CU_INVALID_HANDLE, "not a live event: %p", (void *)handle);
	return NULL;
}

/* Queues an operation and does not wait for its completion. Takes ownership of the operation. */
static enum pst_cu_result op_queue(struct op *op, struct pst_cu_stream *handle,
				   struct pst_cu_ctx *ctx, enum queue_kind queue)
{
	enum pst_cu_result rc;
	struct pst_cu_stream *s = stream_of(handle, ctx, &rc);

	if (!op)
		return PST_CU_OUT_OF_MEMORY;
	if (s && s->capturing)
		rc = capture_op(s, op, queue);
	else if (s && s->ctx->broken)
		rc = s->ctx->broken;
	else if (s)
		op_submit(op, s, queue);
	op_put(op);
	return rc;
}

static enum pst_cu_result stream_create(struct pst_cu_stream **out, unsigned int flags,
					int priority, struct pst_cu_ctx *ctx)
{
	if (!out || flags > PST_CU_STREAM_NON_BLOCKING)
		return standin_refuse(PST_CU_INVALID_VALUE, "stream flags %u", flags);
	lock();
	*out = stream_make(ctx, flags, priority);
	standin.live.streams++;
	unlock();
	return PST_CU_OK;
}

EXPORT enum pst_cu_result cuStreamCreateWithPriority(struct pst_cu_stream **out, unsigned int flags,
						     int priority)
{
	ENTER(cuStreamCreateWithPriority, NEED_CTX | NEED_TURN);
	return stream_create(out, flags, priority, ctx);
}

EXPORT enum pst_cu_result cuStreamCreate(struct pst_cu_stream **out, unsigned int flags)
{
	ENTER(cuStreamCreate, NEED_CTX | NEED_TURN);
	return stream_create(out, flags, 0, ctx);
}

/* Makes the stream's handle invalid. The stream's queued work still runs. */
EXPORT enum pst_cu_result cuStreamDestroy_v2(struct pst_cu_stream *stream)
{
	enum pst_cu_result rc;
	struct pst_cu_stream *s;

	ENTER(cuStreamDestroy_v2, NEED_INIT | NEED_EVEN_BROKEN);
	if (!stream || stream == PST_CU_STREAM_LEGACY || stream == PST_CU_STREAM_PER_THREAD)
		return standin_refuse(PST_CU_INVALID_HANDLE,
				      "a default stream cannot be destroyed");
	lock();
	s = stream_of(stream, NULL, &rc);
	if (s) {
		stream_close(s);
		standin.live.streams--;
	}
	unlock();
	return rc ? rc : standin_leave(ctx);
}

/* Refuses a query of a stream that is being captured. The query invalidates the capture. */
static enum pst_cu_result capture_end_by(struct pst_cu_stream *stream)
{
	(stream->origin ? stream->origin : stream)->invalidated = true;
	return standin_refuse(PST_CU_CAPTURE_UNSUPPORTED, "the stream is capturing");
}

EXPORT enum pst_cu_result cuStreamQuery(struct pst_cu_stream *stream)
{
	enum pst_cu_result rc;
	struct pst_cu_stream *s;

	ENTER(cuStreamQuery, NEED_OBJECT | NEED_UNCAPTURED);
	lock();
	s = stream_of(stream, ctx, &rc);
	if (s && s->ctx->broken)
		rc = s->ctx->broken;
	else if (s && s->capturing)
		rc = capture_end_by(s);
	else if (s && s->head)
		rc = PST_CU_NOT_READY;
	unlock();
	return rc;
}

EXPORT enum pst_cu_result cuStreamSynchronize(struct pst_cu_stream *stream)
{
	enum pst_cu_result rc;
	struct pst_cu_stream *s;
	struct pst_cu_ctx *owner;
	struct op *op;

	ENTER(cuStreamSynchronize, NEED_OBJECT | NEED_UNCAPTURED);
	lock();
	s = stream_of(stream, ctx, &rc);
	if (s && s->capturing) {
		rc = capture_end_by(s);
	} else if (s) {
		owner = s->ctx;
		/* The default stream is idle only if all blocking streams are idle. So this branch
		 * queues a mark, an operation without effect, on the default stream. The mark
		 * completes after the work of the blocking streams. */
		if (s == owner->null_stream) {
			op = op_new(OP_MARK, FN_cuStreamSynchronize);
			if (op)
				op_put(op_submit(op, s, QUEUE_NONE));
		}
		stream_idle(s);
		rc = owner->broken;
	}
	unlock();
	return rc;
}

EXPORT enum pst_cu_result cuStreamGetCtx(struct pst_cu_stream *stream, struct pst_cu_ctx **out)
{
	enum pst_cu_result rc;
	struct pst_cu_stream *s;

	ENTER(cuStreamGetCtx, NEED_OBJECT);
	lock();
	s = stream_of(stream, ctx, &rc);
	if (s && out)
		*out = s->ctx;
	unlock();
	return rc;
}

EXPORT enum pst_cu_result cuStreamGetFlags(struct pst_cu_stream *stream, unsigned int *flags)
{
	enum pst_cu_result rc;
	struct pst_cu_stream *s;

	ENTER(cuStreamGetFlags, NEED_OBJECT);
	lock();
	s = stream_of(stream, ctx, &rc);
	if (s && flags)
		*flags = s->flags;
	unlock();
	return rc;
}

/* --- events --- */

EXPORT enum pst_cu_result cuEventCreate(struct pst_cu_event **out, unsigned int flags)
{
	struct pst_cu_event *e;

	ENTER(cuEventCreate, NEED_CTX);
	if (!out || flags > 7 ||
	    (flags & (PST_CU_EVENT_INTERPROCESS | PST_CU_EVENT_NO_TIMING)) ==
		    PST_CU_EVENT_INTERPROCESS)
		return standin_refuse(PST_CU_INVALID_VALUE, "event flags %u", flags);
	e = calloc(1, sizeof(*e));
	if (!e)
		return PST_CU_OUT_OF_MEMORY;
	e->ctx = ctx;
	lock();
	e->next = standin.events;
	standin.events = e;
	standin.live.events++;
	unlock();
	*out = e;
	return PST_CU_OK;
}

EXPORT enum pst_cu_result cuEventDestroy_v2(struct pst_cu_event *event)
{
	enum pst_cu_result rc;
	struct pst_cu_event *e, **at = &standin.events;

	ENTER(cuEventDestroy_v2, NEED_INIT | NEED_EVEN_BROKEN);
	lock();
	e = event_of(event, &rc);
	if (e) {
		while (*at != e)
			at = &(*at)->next;
		*at = e->next;
		op_put(e->mark);
		free(e);
		standin.live.events--;
	}
	unlock();
	return rc ? rc : standin_leave(ctx);
}

EXPORT enum pst_cu_result cuEventRecord(struct pst_cu_event *event, struct pst_cu_stream *stream)
{
	enum pst_cu_result rc;
	struct pst_cu_event *e;
	struct pst_cu_stream *s;
	struct op *op;

	ENTER(cuEventRecord, NEED_OBJECT | NEED_TURN);
	lock();
	e = event_of(event, &rc);
	s = e ? stream_of(stream, ctx, &rc) : NULL;
	if (s && s->ctx != e->ctx) {
		rc = standin_refuse(PST_CU_INVALID_HANDLE, "an event of another context");
	} else if (s) {
		op = op_new(OP_MARK, FN_cuEventRecord);
		if (op)
			op->refs++;
		rc = op_queue(op, stream, ctx, QUEUE_NONE);
		if (!rc) {
			e->capture_id = s->capturing ? s->capture_id : 0;
			op_put(e->mark);
			e->mark = s->capturing ? NULL : op;
			if (s->capturing)
				op_put(op);
		} else {
			op_put(op);
		}
	}
	unlock();
	return rc;
}

EXPORT enum pst_cu_result cuEventQuery(struct pst_cu_event *event)
{
	enum pst_cu_result rc;
	struct pst_cu_event *e;

	ENTER(cuEventQuery, NEED_OBJECT | NEED_UNCAPTURED);
	lock();
	e = event_of(event, &rc);
	if (e && e->ctx->broken)
		rc = e->ctx->broken;
	else if (e && e->mark && !e->mark->done)
		rc = PST_CU_NOT_READY;
	unlock();
	return rc;
}

EXPORT enum pst_cu_result cuEventSynchronize(struct pst_cu_event *event)
{
	enum pst_cu_result rc;
	struct pst_cu_event *e;
	struct pst_cu_ctx *owner;

	ENTER(cuEventSynchronize, NEED_OBJECT | NEED_UNCAPTURED);
	lock();
	e = event_of(event, &rc);
	if (e) {
		owner = e->ctx;
		if (e->mark) {
			e->mark->refs++;
			op_wait(e->mark);
		}
		rc = owner->broken;
	}
	unlock();
	return rc;
}

static bool stream_captures(struct pst_cu_stream *handle, struct pst_cu_ctx *ctx)
{
	enum pst_cu_result rc;
	const struct pst_cu_stream *s = stream_of(handle, ctx, &rc);

	return s && s->capturing;
}

EXPORT enum pst_cu_result cuStreamWaitEvent(struct pst_cu_stream *stream,
					    struct pst_cu_event *event, unsigned int flags)
{
	enum pst_cu_result rc;
	struct pst_cu_event *e;
	struct op *op;

	ENTER(cuStreamWaitEvent, NEED_OBJECT);
	if (flags > 1)
		return standin_refuse(PST_CU_INVALID_VALUE, "wait flags %u", flags);
	lock();
	e = event_of(event, &rc);
	if (e && e->capture_id) {
		struct pst_cu_stream *s = stream_of(stream, ctx, &rc);

		if (s)
			rc = capture_join(s, e);
	} else if (e && stream_captures(stream, ctx)) {
		rc = standin_refuse(PST_CU_CAPTURE_UNSUPPORTED, "an event of no capture");
	} else if (e) {
		op = op_new(OP_MARK, FN_cuStreamWaitEvent);
		if (op && e->mark && !e->mark->done) {
			op->deps = malloc(sizeof(*op->deps));
			if (!op->deps)
				abort();
			op->deps[op->dep_count++] = e->mark;
			e->mark->refs++;
		}
		rc = op_queue(op, stream, ctx, QUEUE_NONE);
	}
	unlock();
	return rc;
}

/* --- semaphores and host functions --- */

static enum pst_cu_result semaphore_op(enum op_kind kind, enum func func,
				       struct pst_cu_stream *stream, struct pst_cu_ctx *ctx,
				       pst_cu_ptr addr, uint64_t value, unsigned int flags,
				       unsigned int width)
{
	enum pst_cu_result rc;
	struct pst_cu_stream *s;
	struct where at;
	struct op *op;

	if (!standin.memops || (kind == OP_WAIT && (flags & PST_CU_WAIT_FLUSH)))
		return standin_refuse(PST_CU_NOT_SUPPORTED,
				      "stream memory operations are not supported");
	if (addr % width || flags > (kind == OP_WAIT ? PST_CU_WAIT_NOR : PST_CU_WRITE_NO_BARRIER))
		return standin_refuse(PST_CU_INVALID_VALUE, "semaphore at %llx, flags %u", addr,
				      flags);
	lock();
	s = stream_of(stream, ctx, &rc);
	at = resolve(addr, width);
	if (s && (at.place == PLACE_BAD || at.place == PLACE_PAGEABLE))
		rc = standin_refuse(PST_CU_INVALID_VALUE,
				    "a semaphore that the device cannot access");
	else if (s && kind == OP_WRITE && !at.writable)
		rc = standin_refuse(PST_CU_INVALID_VALUE, "a write into read-only memory");
	else if (s && at.place == PLACE_DEVICE && !ctx_reaches(s->ctx, at.range->dev))
		rc = standin_refuse(PST_CU_INVALID_VALUE,
				    "a semaphore of another device without peer access");
	if (!rc) {
		op = op_new(kind, func);
		if (op) {
			op->word.addr = addr;
			op->word.value = value;
			op->word.flags = flags;
			op->word.width = width;
		}
		rc = op_queue(op, stream, ctx, QUEUE_LAST);
	}
	unlock();
	return rc;
}

EXPORT enum pst_cu_result cuStreamWriteValue32_v2(struct pst_cu_stream *stream, pst_cu_ptr addr,
						  uint32_t value, unsigned int flags)
{
	ENTER(cuStreamWriteValue32_v2, NEED_OBJECT);
	return semaphore_op(OP_WRITE, FN_cuStreamWriteValue32_v2, stream, ctx, addr, value, flags,
			    4);
}

EXPORT enum pst_cu_result cuStreamWriteValue64_v2(struct pst_cu_stream *stream, pst_cu_ptr addr,
						  uint64_t value, unsigned int flags)
{
	ENTER(cuStreamWriteValue64_v2, NEED_OBJECT);
	return semaphore_op(OP_WRITE, FN_cuStreamWriteValue64_v2, stream, ctx, addr, value, flags,
			    8);
}

EXPORT enum pst_cu_result cuStreamWaitValue32_v2(struct pst_cu_stream *stream, pst_cu_ptr addr,
						 uint32_t value, unsigned int flags)
{
	ENTER(cuStreamWaitValue32_v2, NEED_OBJECT);
	return semaphore_op(OP_WAIT, FN_cuStreamWaitValue32_v2, stream, ctx, addr, value, flags, 4);
}

EXPORT enum pst_cu_result cuStreamWaitValue64_v2(struct pst_cu_stream *stream, pst_cu_ptr addr,
						 uint64_t value, unsigned int flags)
{
	ENTER(cuStreamWaitValue64_v2, NEED_OBJECT);
	return semaphore_op(OP_WAIT, FN_cuStreamWaitValue64_v2, stream, ctx, addr, value, flags, 8);
}

/* Knows only writes and waits of 64 bits. If an operation is refused, the ones before it stay
 * queued. */
EXPORT enum pst_cu_result cuStreamBatchMemOp_v2(struct pst_cu_stream *stream, unsigned int count,
						union pst_cu_mem_op *ops, unsigned int flags)
{
	enum pst_cu_result rc = PST_CU_OK;

	ENTER(cuStreamBatchMemOp_v2, NEED_OBJECT);
	if (!count || count >= 256 || !ops || flags)
		return standin_refuse(PST_CU_INVALID_VALUE, "a batch of %u, flags %u", count,
				      flags);
	for (unsigned i = 0; i < count; i++)
		if (ops[i].word.operation != PST_CU_OP_WRITE_64 &&
		    ops[i].word.operation != PST_CU_OP_WAIT_64)
			return standin_refuse(PST_CU_NOT_SUPPORTED, "operation %u in a batch",
					      ops[i].word.operation);
	for (unsigned i = 0; i < count && !rc; i++)
		rc = semaphore_op(ops[i].word.operation == PST_CU_OP_WRITE_64 ? OP_WRITE : OP_WAIT,
				  FN_cuStreamBatchMemOp_v2, stream, ctx, ops[i].word.addr,
				  ops[i].word.value, ops[i].word.flags, 8);
	return rc;
}

EXPORT enum pst_cu_result cuLaunchHostFunc(struct pst_cu_stream *stream, void (*fn)(void *),
					   void *arg)
{
	enum pst_cu_result rc;
	struct op *op;

	ENTER(cuLaunchHostFunc, NEED_OBJECT);
	if (!fn)
		return PST_CU_INVALID_VALUE;
	lock();
	op = op_new(OP_HOST, FN_cuLaunchHostFunc);
	if (op) {
		op->host.fn = fn;
		op->host.arg = arg;
	}
	rc = op_queue(op, stream, ctx, QUEUE_NONE);
	unlock();
	return rc;
}
