/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the stand-in's graphs. A capture turns operations into nodes; capture.c begins and
 * ends captures. An executable has its own copy of the nodes. A launch queues an operation for
 * each node on one stream, in the order in which the nodes were captured. So branches do not run
 * at the same time. Launches of one executable run one after the other. Launches of two
 * executables of one graph may run at the same time. User objects exist while a graph or an
 * executable, or a launch of it, refers to them. As in the real driver, their destructors may not
 * call the driver.
 */
#include "standin.h"

#include <stdlib.h>

struct pst_cu_node {
	struct pst_cu_node *next;
	struct op *op; /* the operation that a launch queues; it is never queued itself */
	enum queue_kind queue;
};

struct pst_cu_user_object {
	struct pst_cu_user_object *next;
	void (*destroy)(void *);
	void *arg;
	unsigned int refs;
};

/* References of one graph or executable to a user object. */
struct tie {
	struct tie *next;
	struct pst_cu_user_object *object;
	unsigned int refs;
};

/* Members that graphs and executables have in common. */
struct content {
	struct pst_cu_node *nodes, **last;
	struct tie *ties;
};

struct pst_cu_graph {
	struct pst_cu_graph *next;
	struct content content;
};

struct pst_cu_graph_exec {
	struct pst_cu_graph_exec *next;
	struct content content;
	int refs; /* one for the handle, one for each launch that has not completed */
	bool destroyed;
	struct op *end; /* last operation of the latest launch */
};

/* standin.lock guards these lists. */
static struct pst_cu_user_object *objects;
static struct pst_cu_graph *graphs;
static struct pst_cu_graph_exec *execs;

/* ---- user objects; callers hold the lock ---- */

static struct pst_cu_user_object *object_of(struct pst_cu_user_object *handle)
{
	struct pst_cu_user_object *o = objects;

	while (o && o != handle)
		o = o->next;
	return o;
}

static void object_put(struct pst_cu_user_object *object, unsigned int refs)
{
	struct pst_cu_user_object **at = &objects;

	object->refs -= refs;
	if (object->refs)
		return;
	while (*at != object)
		at = &(*at)->next;
	*at = object->next;
	host_call(object->destroy, object->arg);
	free(object);
	standin.live.user_objects--;
}

static void tie_add(struct content *content, struct pst_cu_user_object *object, unsigned int refs)
{
	struct tie *tie = calloc(1, sizeof(*tie));

	if (!tie)
		abort();
	tie->object = object;
	tie->refs = refs;
	tie->next = content->ties;
	content->ties = tie;
}

/* ---- content; callers hold the lock ---- */

static void node_add(struct content *content, struct op *op, enum queue_kind queue)
{
	struct pst_cu_node *node = calloc(1, sizeof(*node));

	if (!node)
		abort();
	if (!content->last)
		content->last = &content->nodes;
	node->op = op;
	node->queue = queue;
	*content->last = node;
	content->last = &node->next;
	op->refs++;
}

static void content_copy(struct content *to, const struct content *from)
{
	for (const struct pst_cu_node *n = from->nodes; n; n = n->next)
		node_add(to, n->op, n->queue);
	for (const struct tie *t = from->ties; t; t = t->next) {
		t->object->refs += t->refs;
		tie_add(to, t->object, t->refs);
	}
}

static void content_free(struct content *content)
{
	while (content->nodes) {
		struct pst_cu_node *node = content->nodes;

		content->nodes = node->next;
		op_put(node->op);
		free(node);
	}
	while (content->ties) {
		struct tie *tie = content->ties;

		content->ties = tie->next;
		object_put(tie->object, tie->refs);
		free(tie);
	}
}

static struct pst_cu_graph *graph_of(const struct pst_cu_graph *handle)
{
	struct pst_cu_graph *g = graphs;

	while (g && g != handle)
		g = g->next;
	return g;
}

struct pst_cu_graph *graph_new(void)
{
	struct pst_cu_graph *graph = calloc(1, sizeof(*graph));

	if (!graph)
		abort();
	graph->next = graphs;
	graphs = graph;
	standin.live.graphs++;
	return graph;
}

void graph_drop(struct pst_cu_graph *graph)
{
	struct pst_cu_graph **at = &graphs;

	while (*at != graph)
		at = &(*at)->next;
	*at = graph->next;
	content_free(&graph->content);
	free(graph);
	standin.live.graphs--;
}

enum pst_cu_result capture_op(struct pst_cu_stream *stream, struct op *op, enum queue_kind queue)
{
	if ((stream->origin ? stream->origin : stream)->invalidated)
		return standin_refuse(PST_CU_CAPTURE_INVALIDATED, "the capture was invalidated");
	if (!stream->graph) /* no graph: pst_standin_capture began this capture */
		return standin_refuse(PST_CU_CAPTURE_UNSUPPORTED, "the stream is capturing");
	node_add(&stream->graph->content, op, queue);
	return PST_CU_OK;
}

/* ---- executables; callers hold the lock ---- */

static struct pst_cu_graph_exec *exec_of(const struct pst_cu_graph_exec *handle)
{
	struct pst_cu_graph_exec *e = execs;

	while (e && (e != handle || e->destroyed))
		e = e->next;
	return e;
}

void exec_put(struct pst_cu_graph_exec *exec)
{
	struct pst_cu_graph_exec **at = &execs;

	if (--exec->refs)
		return;
	while (*at != exec)
		at = &(*at)->next;
	*at = exec->next;
	op_put(exec->end);
	content_free(&exec->content);
	free(exec);
}

/* Queues an operation that does nothing, but completes only after the operation `after` (which may
 * be NULL) has completed. */
static struct op *mark_queue(struct pst_cu_stream *stream, struct op *after)
{
	struct op *op = op_new(OP_MARK, FN_cuGraphLaunch);

	if (!op)
		abort();
	op_depend(op, after);
	return op_submit(op, stream, QUEUE_NONE);
}

static void exec_launch(struct pst_cu_graph_exec *exec, struct pst_cu_stream *stream)
{
	struct op *end;

	exec->refs++;
	op_put(mark_queue(stream, exec->end));
	for (const struct pst_cu_node *n = exec->content.nodes; n; n = n->next) {
		struct op *op = op_new(n->op->kind, n->op->func);

		if (!op)
			abort();
		op_payload(op, n->op);
		op_put(op_submit(op, stream, n->queue));
	}
	end = op_new(OP_MARK, FN_cuGraphLaunch);
	if (!end)
		abort();
	end->exec = exec; /* op_finish drops this launch's reference */
	op_put(exec->end);
	exec->end = op_submit(end, stream, QUEUE_NONE);
}

/* ---- the driver's functions ---- */

EXPORT enum pst_cu_result cuUserObjectCreate(struct pst_cu_user_object **out, void *arg,
					     void (*destroy)(void *), unsigned int refs,
					     unsigned int flags)
{
	struct pst_cu_user_object *object;

	ENTER(cuUserObjectCreate, NEED_INIT);
	if (!out || !destroy || !refs || flags != PST_CU_USER_OBJECT_NO_SYNC)
		return standin_refuse(PST_CU_INVALID_VALUE, "a user object with flags %u", flags);
	object = calloc(1, sizeof(*object));
	if (!object)
		return PST_CU_OUT_OF_MEMORY;
	object->destroy = destroy;
	object->arg = arg;
	object->refs = refs;
	lock();
	object->next = objects;
	objects = object;
	standin.live.user_objects++;
	unlock();
	*out = object;
	return PST_CU_OK;
}

EXPORT enum pst_cu_result cuUserObjectRelease(struct pst_cu_user_object *object, unsigned int refs)
{
	enum pst_cu_result rc = PST_CU_OK;

	ENTER(cuUserObjectRelease, NEED_INIT | NEED_EVEN_BROKEN);
	lock();
	if (!object_of(object) || refs > object->refs)
		rc = standin_refuse(PST_CU_INVALID_VALUE, "not a user object");
	else
		object_put(object, refs);
	unlock();
	return rc;
}

EXPORT enum pst_cu_result cuGraphRetainUserObject(struct pst_cu_graph *graph,
						  struct pst_cu_user_object *object,
						  unsigned int refs, unsigned int flags)
{
	enum pst_cu_result rc = PST_CU_OK;

	ENTER(cuGraphRetainUserObject, NEED_INIT);
	lock();
	if (!graph_of(graph) || !object_of(object) || !refs || flags > PST_CU_GRAPH_MOVE_REFS) {
		rc = standin_refuse(PST_CU_INVALID_VALUE, "not a graph and a user object");
	} else {
		if (!(flags & PST_CU_GRAPH_MOVE_REFS))
			object->refs += refs;
		tie_add(&graph->content, object, refs);
	}
	unlock();
	return rc;
}

EXPORT enum pst_cu_result cuGraphInstantiateWithFlags(struct pst_cu_graph_exec **out,
						      struct pst_cu_graph *graph,
						      unsigned long long flags)
{
	struct pst_cu_graph_exec *exec;
	enum pst_cu_result rc = PST_CU_OK;

	ENTER(cuGraphInstantiateWithFlags, NEED_CTX | NEED_TURN);
	exec = calloc(1, sizeof(*exec));
	if (!exec)
		return PST_CU_OUT_OF_MEMORY;
	lock();
	if (!out || flags || !graph_of(graph)) {
		rc = standin_refuse(PST_CU_INVALID_VALUE, "not a graph, or flags %llu", flags);
		free(exec);
	} else {
		exec->refs = 1;
		content_copy(&exec->content, &graph->content);
		exec->next = execs;
		execs = exec;
		standin.live.graph_execs++;
		*out = exec;
	}
	unlock();
	return rc;
}

EXPORT enum pst_cu_result cuGraphLaunch(struct pst_cu_graph_exec *exec,
					struct pst_cu_stream *stream)
{
	enum pst_cu_result rc;
	struct pst_cu_stream *s;

	ENTER(cuGraphLaunch, NEED_OBJECT | NEED_TURN);
	lock();
	s = stream_of(stream, ctx, &rc);
	if (s && s->capturing)
		rc = standin_refuse(PST_CU_CAPTURE_UNSUPPORTED, "a launch inside a capture");
	else if (s && s->ctx->broken)
		rc = s->ctx->broken;
	else if (s && !exec_of(exec))
		rc = standin_refuse(PST_CU_INVALID_VALUE, "not an executable graph");
	else if (s)
		exec_launch(exec, s);
	unlock();
	return rc;
}

EXPORT enum pst_cu_result cuGraphExecDestroy(struct pst_cu_graph_exec *exec)
{
	enum pst_cu_result rc = PST_CU_OK;

	ENTER(cuGraphExecDestroy, NEED_INIT | NEED_EVEN_BROKEN);
	lock();
	if (!exec_of(exec)) {
		rc = standin_refuse(PST_CU_INVALID_VALUE, "not an executable graph");
	} else {
		exec->destroyed = true;
		standin.live.graph_execs--;
		exec_put(exec);
	}
	unlock();
	return rc;
}

EXPORT enum pst_cu_result cuGraphDestroy(struct pst_cu_graph *graph)
{
	enum pst_cu_result rc = PST_CU_OK;

	ENTER(cuGraphDestroy, NEED_INIT | NEED_EVEN_BROKEN);
	lock();
	if (!graph_of(graph))
		rc = standin_refuse(PST_CU_INVALID_VALUE, "not a graph");
	else
		graph_drop(graph);
	unlock();
	return rc;
}

EXPORT enum pst_cu_result cuGraphClone(struct pst_cu_graph **out, struct pst_cu_graph *graph)
{
	enum pst_cu_result rc = PST_CU_OK;

	ENTER(cuGraphClone, NEED_INIT);
	lock();
	if (!out || !graph_of(graph)) {
		rc = standin_refuse(PST_CU_INVALID_VALUE, "not a graph");
	} else {
		*out = graph_new();
		content_copy(&(*out)->content, &graph->content);
	}
	unlock();
	return rc;
}

/* Stores the number of nodes in *count. Does not store the nodes. */
EXPORT enum pst_cu_result cuGraphGetNodes(struct pst_cu_graph *graph, struct pst_cu_node **nodes,
					  size_t *count)
{
	enum pst_cu_result rc = PST_CU_OK;
	size_t n = 0;

	ENTER(cuGraphGetNodes, NEED_INIT);
	lock();
	if (nodes || !count || !graph_of(graph))
		rc = standin_refuse(PST_CU_INVALID_VALUE, "not a graph, or a list of nodes");
	for (const struct pst_cu_node *at = rc ? NULL : graph->content.nodes; at; at = at->next)
		n++;
	if (!rc)
		*count = n;
	unlock();
	return rc;
}
