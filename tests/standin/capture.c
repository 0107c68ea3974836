/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the effect of stream captures on other calls. While a capture is active, the stand-in
 * refuses some calls, and these calls invalidate the capture. Which calls are refused depends on
 * the mode of the capture and on the mode of the calling thread (README.md has the measurements).
 * graph.c turns operations on a capturing stream into nodes.
 */
#include "standin.h"

static _Thread_local enum pst_cu_capture_mode mode = PST_CU_CAPTURE_GLOBAL;

static uint64_t captures; /* number of captures so far; guarded by standin.lock */

static bool capture_forbids_call(const struct pst_cu_stream *s)
{
	bool own = pthread_equal(s->capturer, pthread_self());

	if (!s->real_capture || s->capture_mode == PST_CU_CAPTURE_RELAXED ||
	    mode == PST_CU_CAPTURE_RELAXED)
		return false;
	return own || (mode == PST_CU_CAPTURE_GLOBAL && s->capture_mode == PST_CU_CAPTURE_GLOBAL);
}

/* Returns an error if an active capture forbids the call, and invalidates every such capture.
 * The caller holds the lock. */
enum pst_cu_result capture_refuses(enum func func)
{
	enum pst_cu_result rc = PST_CU_OK;

	for (struct pst_cu_stream *s = standin.streams; s; s = s->next) {
		if (!capture_forbids_call(s))
			continue;
		s->invalidated = true;
		rc = standin_refuse(PST_CU_CAPTURE_UNSUPPORTED, "%s while a stream captures",
				    standin_symbol(func));
	}
	return rc;
}

static enum pst_cu_capture capture_status(const struct pst_cu_stream *s)
{
	const struct pst_cu_stream *origin = s->origin ? s->origin : s;

	return origin->invalidated ? PST_CU_CAPTURE_BROKEN
	       : s->capturing	   ? PST_CU_CAPTURE_ACTIVE
				   : PST_CU_CAPTURE_NONE;
}

EXPORT enum pst_cu_result cuThreadExchangeStreamCaptureMode(enum pst_cu_capture_mode *other)
{
	enum pst_cu_capture_mode before = mode;

	ENTER(cuThreadExchangeStreamCaptureMode, NEED_INIT | NEED_EVEN_BROKEN);
	if (!other || *other > PST_CU_CAPTURE_RELAXED)
		return standin_refuse(PST_CU_INVALID_VALUE, "no capture mode");
	mode = *other;
	*other = before;
	return PST_CU_OK;
}

EXPORT enum pst_cu_result cuStreamBeginCapture_v2(struct pst_cu_stream *stream,
						  enum pst_cu_capture_mode how)
{
	enum pst_cu_result rc;
	struct pst_cu_stream *s;

	ENTER(cuStreamBeginCapture_v2, NEED_OBJECT);
	if (how > PST_CU_CAPTURE_RELAXED)
		return standin_refuse(PST_CU_INVALID_VALUE, "no capture mode");
	lock();
	s = stream_of(stream, ctx, &rc);
	if (s && (s->capturing || s->own))
		rc = standin_refuse(PST_CU_CAPTURE_UNSUPPORTED, "the stream cannot be captured");
	else if (s) {
		s->capturing = s->real_capture = true;
		s->invalidated = false;
		s->origin = NULL;
		s->graph = graph_new();
		s->capture_id = ++captures;
		s->capture_mode = how;
		s->capturer = pthread_self();
	}
	unlock();
	return rc;
}

enum pst_cu_result capture_join(struct pst_cu_stream *stream, const struct pst_cu_event *event)
{
	for (struct pst_cu_stream *s = standin.streams; s; s = s->next) {
		if (!s->real_capture || s->origin || s->capture_id != event->capture_id)
			continue;
		if (stream->capturing)
			return stream->capture_id == s->capture_id
				       ? PST_CU_OK
				       : standin_refuse(PST_CU_CAPTURE_UNSUPPORTED,
							"an event of another capture");
		stream->capturing = true;
		stream->origin = s;
		stream->graph = s->graph;
		stream->capture_id = s->capture_id;
		return PST_CU_OK;
	}
	return standin_refuse(PST_CU_CAPTURE_UNSUPPORTED, "an event of a capture that has ended");
}

/* Ends the capture on the stream that began it, and on all streams that have joined it. Returns
 * the graph of the capture. */
static struct pst_cu_graph *capture_end(struct pst_cu_stream *origin)
{
	struct pst_cu_graph *graph = origin->graph;

	for (struct pst_cu_stream *s = standin.streams; s; s = s->next)
		if (s == origin || s->origin == origin) {
			s->capturing = s->real_capture = s->invalidated = false;
			s->graph = NULL;
			s->origin = NULL;
		}
	return graph;
}

EXPORT enum pst_cu_result cuStreamEndCapture(struct pst_cu_stream *stream,
					     struct pst_cu_graph **out)
{
	struct pst_cu_graph *graph = NULL;
	enum pst_cu_result rc;
	struct pst_cu_stream *s;

	ENTER(cuStreamEndCapture, NEED_OBJECT);
	lock();
	s = stream_of(stream, ctx, &rc);
	if (s && !s->real_capture)
		rc = standin_refuse(PST_CU_ILLEGAL_STATE, "the stream is not capturing");
	else if (s && s->invalidated)
		rc = standin_refuse(PST_CU_CAPTURE_INVALIDATED, "the capture was invalidated");
	if (s && s->real_capture)
		graph = capture_end(s);
	if (graph && rc) {
		graph_drop(graph);
		graph = NULL;
	}
	unlock();
	if (out)
		*out = graph;
	return rc;
}

/* Stores the status, the id and the graph of the stream's capture. Fails if `lists` is set, because
 * then the caller also requests nodes, which the stand-in does not return. */
static enum pst_cu_result capture_info(struct pst_cu_ctx *ctx, struct pst_cu_stream *stream,
				       enum pst_cu_capture *status, uint64_t *id,
				       struct pst_cu_graph **graph, bool lists)
{
	enum pst_cu_result rc;
	struct pst_cu_stream *s;

	if (!status || lists)
		return standin_refuse(PST_CU_INVALID_VALUE, "no status, or a list of nodes");
	lock();
	s = stream_of(stream, ctx, &rc);
	if (s) {
		*status = capture_status(s);
		if (*status == PST_CU_CAPTURE_ACTIVE && id)
			*id = s->capture_id;
		if (*status == PST_CU_CAPTURE_ACTIVE && graph)
			*graph = s->graph;
	}
	unlock();
	return rc;
}

EXPORT enum pst_cu_result
cuStreamGetCaptureInfo_v3(struct pst_cu_stream *stream, enum pst_cu_capture *status, uint64_t *id,
			  struct pst_cu_graph **graph, struct pst_cu_node *const **deps,
			  const struct pst_cu_edge **edges, size_t *dep_count)
{
	ENTER(cuStreamGetCaptureInfo_v3, NEED_OBJECT);
	return capture_info(ctx, stream, status, id, graph, deps || edges || dep_count);
}

EXPORT enum pst_cu_result cuStreamGetCaptureInfo_v2(struct pst_cu_stream *stream,
						    enum pst_cu_capture *status, uint64_t *id,
						    struct pst_cu_graph **graph,
						    struct pst_cu_node *const **deps,
						    size_t *dep_count)
{
	ENTER(cuStreamGetCaptureInfo_v2, NEED_OBJECT);
	return capture_info(ctx, stream, status, id, graph, deps || dep_count);
}

EXPORT enum pst_cu_result cuStreamIsCapturing(struct pst_cu_stream *stream,
					      enum pst_cu_capture *status)
{
	enum pst_cu_result rc;
	struct pst_cu_stream *s;

	ENTER(cuStreamIsCapturing, NEED_OBJECT);
	if (!status)
		return PST_CU_INVALID_VALUE;
	lock();
	s = stream_of(stream, ctx, &rc);
	if (s)
		*status = capture_status(s);
	unlock();
	return rc;
}

EXPORT int pst_standin_capture(struct pst_cu_stream *stream, int on)
{
	enum pst_cu_result rc;
	struct pst_cu_stream *s;

	lock();
	s = stream_of(stream, NULL, &rc);
	if (s) {
		s->capturing = on;
		s->invalidated = false;
	}
	unlock();
	return s ? 0 : -1;
}
