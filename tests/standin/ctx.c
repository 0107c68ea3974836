/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements the stand-in's initialisation and exit, its devices, and its contexts. Each thread has
 * a stack of contexts. Each device has a primary context with a reference count. A context may
 * access the memory of other devices (peer access). cuInit reads the settings from the environment
 * once (README.md lists them).
 */
#include "standin.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STACK_MAX 32

struct standin standin = {
	.lock = PTHREAD_MUTEX_INITIALIZER,
	.done = PTHREAD_COND_INITIALIZER,
};

static _Thread_local struct pst_cu_ctx *stack[STACK_MAX];
static _Thread_local int depth;

struct pst_cu_ctx *ctx_current(void)
{
	return depth ? stack[depth - 1] : NULL;
}

bool ctx_known(const struct pst_cu_ctx *ctx)
{
	for (int i = 0; i < standin.device_count; i++)
		if (ctx == &standin.devices[i].primary)
			return ctx->alive;
	for (const struct pst_cu_ctx *c = standin.ctxs; c; c = c->next)
		if (c == ctx)
			return c->alive;
	return false;
}

bool ctx_reaches(const struct pst_cu_ctx *ctx, int dev)
{
	return ctx->dev == dev || (ctx->peers >> dev & 1);
}

/* Returns the number in an environment variable. The number may have the unit KiB, MiB or GiB.
 * Returns `fallback` if the variable is not set. */
uint64_t env_size(const char *name, uint64_t fallback)
{
	const char *text = getenv(name);
	char *end;
	uint64_t value;

	if (!text || !*text)
		return fallback;
	value = strtoull(text, &end, 0);
	if (!strcmp(end, "KiB"))
		return value << 10;
	if (!strcmp(end, "MiB"))
		return value << 20;
	if (!strcmp(end, "GiB"))
		return value << 30;
	if (*end || end == text) {
		fprintf(stderr, "stand-in libcuda: %s: cannot read '%s'\n", name, text);
		abort();
	}
	return value;
}

static void fork_child(void)
{
	/* Another thread of the parent may have held the lock during the fork. That thread does not
	 * exist in the child, so the lock must be initialised again. */
	pthread_mutex_init(&standin.lock, NULL);
	standin.forked = true;
}

static void driver_start(void)
{
	size_t mem = env_size("PENSTOCK_STANDIN_MEM", (size_t)1 << 30);
	int count = (int)env_size("PENSTOCK_STANDIN_DEVICES", 1);

	standin.device_count = count < DEVICES_MAX ? count : DEVICES_MAX;
	standin.queue_count = (unsigned int)env_size("PENSTOCK_STANDIN_HW_QUEUES", 4);
	if (standin.queue_count > QUEUES_MAX)
		standin.queue_count = QUEUES_MAX;
	standin.queue_depth = (unsigned int)env_size("PENSTOCK_STANDIN_QUEUE_DEPTH", 1020);
	standin.stream_pool = (unsigned int)env_size("PENSTOCK_STANDIN_STREAM_POOL", 16);
	standin.strict = env_size("PENSTOCK_STANDIN_STRICT", 1);
	standin.memops = !env_size("PENSTOCK_STANDIN_NO_MEMOPS", 0);
	standin.peer = env_size("PENSTOCK_STANDIN_PEER", 1);
	standin.dmabuf = env_size("PENSTOCK_STANDIN_DMABUF", 0);
	standin.read_only = !env_size("PENSTOCK_STANDIN_NO_READ_ONLY", 0);
	standin.ipc = !env_size("PENSTOCK_STANDIN_NO_IPC", 0);
	standin.verbose = env_size("PENSTOCK_STANDIN_VERBOSE", 0);
	standin.delay_us = (unsigned int)env_size("PENSTOCK_STANDIN_DELAY_US", 0);
	standin.load_ms = (unsigned int)env_size("PENSTOCK_STANDIN_LOAD_MS", 0);
	standin.seed = env_size("PENSTOCK_STANDIN_SEED", 1);
	for (int i = 0; i < standin.device_count; i++) {
		standin.devices[i].primary.dev = i;
		standin.devices[i].primary.primary = true;
		standin.devices[i].mem_total = mem;
	}
	pthread_atfork(NULL, NULL, fork_child);
	standin.started = true;
}

EXPORT enum pst_cu_result cuInit(unsigned int flags)
{
	bool first;

	ENTER(cuInit, NEED_NOTHING);
	if (flags)
		return standin_refuse(PST_CU_INVALID_VALUE, "cuInit: flags %u", flags);
	lock();
	first = !standin.started;
	if (first)
		driver_start();
	unlock();
	if (first)
		standin_fail_start();
	if (!standin.device_count)
		return standin_refuse(PST_CU_NO_DEVICE, "PENSTOCK_STANDIN_DEVICES is 0");
	for (int i = 0; first && i < standin.device_count; i++)
		if (arena_start(i) < 0)
			return standin_refuse(PST_CU_OUT_OF_MEMORY, "cannot reserve addresses: %m");
	return PST_CU_OK;
}

/* If PENSTOCK_STANDIN_LEAKS is set, prints the number of leaked objects. If the value of this
 * variable is 2 and objects have leaked, the process exits with status 97. */
__attribute__((destructor)) static void driver_end(void)
{
	const char *leaks = getenv("PENSTOCK_STANDIN_LEAKS");
	struct pst_standin_live l;

	if (!standin.started || standin.forked)
		return;
	pst_standin_live(&l);
	lock();
	standin.ended = true;
	unlock();
	if (!leaks || !strtol(leaks, NULL, 10))
		return;
	if (l.allocs + l.ipc_opens + l.host_allocs + l.registrations + l.streams + l.events +
		    l.modules + l.graphs + l.graph_execs + l.user_objects + l.ctx_retains + l.ctxs +
		    l.vmm_handles + l.vmm_ranges + l.lost ==
	    0)
		return;
	fprintf(stderr,
		"stand-in libcuda: left behind: allocations %zu opened handles %zu "
		"host allocations %zu registrations %zu streams %zu events %zu modules %zu graphs "
		"%zu "
		"executables %zu user objects %zu retains %zu "
		"contexts %zu vmm handles %zu vmm ranges %zu lost with a context %zu\n",
		l.allocs, l.ipc_opens, l.host_allocs, l.registrations, l.streams, l.events,
		l.modules, l.graphs, l.graph_execs, l.user_objects, l.ctx_retains, l.ctxs,
		l.vmm_handles, l.vmm_ranges, l.lost);
	if (strtol(leaks, NULL, 10) > 1)
		_exit(97);
}

/* --- contexts --- */

static void ctx_start(struct pst_cu_ctx *ctx)
{
	ctx->alive = true;
	ctx->broken = PST_CU_OK;
	ctx->peers = 0;
	ctx->null_stream = stream_make(ctx, 0, 0);
	ctx->thread_stream = stream_make(ctx, 0, 0);
	ctx->null_stream->own = ctx->thread_stream->own = true;
}

/* Destroys a context and all objects that belong to it, as the real driver does. Counts these
 * objects in `lost`. */
static void ctx_end(struct pst_cu_ctx *ctx)
{
	struct pst_cu_event **e = &standin.events;

	ctx_idle(ctx);
	ctx->alive = false;
	for (struct pst_cu_stream *s = standin.streams; s; s = s->next) {
		if (s->ctx != ctx || s->closing)
			continue;
		if (!s->own) {
			standin.live.lost++;
			standin.live.streams--;
		}
		stream_close(s);
	}
	while (*e) {
		struct pst_cu_event *gone = *e;

		if (gone->ctx != ctx) {
			e = &gone->next;
			continue;
		}
		*e = gone->next;
		op_put(gone->mark);
		free(gone);
		standin.live.lost++;
		standin.live.events--;
	}
	mem_free_ctx(ctx);
	ctx->null_stream = ctx->thread_stream = NULL;
}

EXPORT enum pst_cu_result cuDevicePrimaryCtxRetain(struct pst_cu_ctx **out, int dev)
{
	ENTER(cuDevicePrimaryCtxRetain, NEED_INIT | NEED_EVEN_BROKEN);
	if (!out)
		return PST_CU_INVALID_VALUE;
	if (dev < 0 || dev >= standin.device_count)
		return standin_refuse(PST_CU_INVALID_DEVICE, "no device %d", dev);
	lock();
	if (!standin.devices[dev].primary.retains++)
		ctx_start(&standin.devices[dev].primary);
	standin.live.ctx_retains++;
	*out = &standin.devices[dev].primary;
	unlock();
	return PST_CU_OK;
}

EXPORT enum pst_cu_result cuDevicePrimaryCtxRelease_v2(int dev)
{
	enum pst_cu_result rc = PST_CU_OK;

	ENTER(cuDevicePrimaryCtxRelease_v2, NEED_INIT | NEED_EVEN_BROKEN);
	if (dev < 0 || dev >= standin.device_count)
		return standin_refuse(PST_CU_INVALID_DEVICE, "no device %d", dev);
	lock();
	if (!standin.devices[dev].primary.retains) {
		rc = standin_refuse(PST_CU_INVALID_CONTEXT, "released more often than retained");
	} else {
		standin.live.ctx_retains--;
		if (!--standin.devices[dev].primary.retains)
			ctx_end(&standin.devices[dev].primary);
	}
	unlock();
	return rc;
}

EXPORT enum pst_cu_result cuDevicePrimaryCtxGetState(int dev, unsigned int *flags, int *active)
{
	ENTER(cuDevicePrimaryCtxGetState, NEED_INIT | NEED_EVEN_BROKEN);
	if (!flags || !active)
		return PST_CU_INVALID_VALUE;
	if (dev < 0 || dev >= standin.device_count)
		return standin_refuse(PST_CU_INVALID_DEVICE, "no device %d", dev);
	lock();
	*flags = standin.devices[dev].primary.flags;
	*active = standin.devices[dev].primary.retains > 0;
	unlock();
	return PST_CU_OK;
}

EXPORT enum pst_cu_result cuCtxCreate_v2(struct pst_cu_ctx **out, unsigned int flags, int dev)
{
	struct pst_cu_ctx *made;

	ENTER(cuCtxCreate_v2, NEED_INIT);
	if (!out || dev < 0 || dev >= standin.device_count || depth == STACK_MAX)
		return PST_CU_INVALID_VALUE;
	made = calloc(1, sizeof(*made));
	if (!made)
		return PST_CU_OUT_OF_MEMORY;
	made->dev = dev;
	made->flags = flags;
	lock();
	ctx_start(made);
	made->next = standin.ctxs;
	standin.ctxs = made;
	standin.live.ctxs++;
	unlock();
	stack[depth++] = made;
	*out = made;
	return PST_CU_OK;
}

/* Destroys a context, but keeps its struct in the list, so that a call with the old handle is
 * recognised. */
EXPORT enum pst_cu_result cuCtxDestroy_v2(struct pst_cu_ctx *gone)
{
	bool known;

	ENTER(cuCtxDestroy_v2, NEED_INIT | NEED_EVEN_BROKEN);
	lock();
	known = gone && ctx_known(gone) && !gone->primary;
	if (known) {
		ctx_end(gone);
		standin.live.ctxs--;
	}
	unlock();
	if (!known)
		return standin_refuse(PST_CU_INVALID_CONTEXT, "not a live context of cuCtxCreate");
	if (ctx_current() == gone)
		depth--;
	return PST_CU_OK;
}

EXPORT enum pst_cu_result cuCtxGetCurrent(struct pst_cu_ctx **out)
{
	ENTER(cuCtxGetCurrent, NEED_INIT | NEED_EVEN_BROKEN);
	if (!out)
		return PST_CU_INVALID_VALUE;
	*out = ctx_current();
	return PST_CU_OK;
}

EXPORT enum pst_cu_result cuCtxSetCurrent(struct pst_cu_ctx *wanted)
{
	bool known;

	ENTER(cuCtxSetCurrent, NEED_INIT | NEED_EVEN_BROKEN);
	lock();
	known = !wanted || ctx_known(wanted);
	unlock();
	if (!known)
		return standin_refuse(PST_CU_INVALID_CONTEXT, "not a live context");
	if (depth)
		depth--;
	if (wanted)
		stack[depth++] = wanted;
	return PST_CU_OK;
}

EXPORT enum pst_cu_result cuCtxPushCurrent_v2(struct pst_cu_ctx *wanted)
{
	bool known;

	ENTER(cuCtxPushCurrent_v2, NEED_INIT | NEED_EVEN_BROKEN);
	lock();
	known = wanted && ctx_known(wanted);
	unlock();
	if (!known || depth == STACK_MAX)
		return standin_refuse(PST_CU_INVALID_CONTEXT, "not a live context");
	stack[depth++] = wanted;
	return PST_CU_OK;
}

EXPORT enum pst_cu_result cuCtxPopCurrent_v2(struct pst_cu_ctx **out)
{
	ENTER(cuCtxPopCurrent_v2, NEED_INIT | NEED_EVEN_BROKEN);
	if (!depth)
		return standin_refuse(PST_CU_INVALID_CONTEXT, "the context stack is empty");
	depth--;
	if (out)
		*out = stack[depth];
	return PST_CU_OK;
}

EXPORT enum pst_cu_result cuCtxGetDevice(int *dev)
{
	ENTER(cuCtxGetDevice, NEED_CTX);
	if (!dev)
		return PST_CU_INVALID_VALUE;
	*dev = ctx->dev;
	return PST_CU_OK;
}

EXPORT enum pst_cu_result cuCtxSynchronize(void)
{
	ENTER(cuCtxSynchronize, NEED_CTX);
	lock();
	ctx_idle(ctx);
	unlock();
	return standin_leave(ctx);
}

EXPORT enum pst_cu_result cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
	ENTER(cuCtxGetStreamPriorityRange, NEED_CTX);
	if (least)
		*least = 0;
	if (greatest)
		*greatest = -5;
	return PST_CU_OK;
}

EXPORT enum pst_cu_result cuCtxEnablePeerAccess(struct pst_cu_ctx *peer, unsigned int flags)
{
	enum pst_cu_result rc = PST_CU_OK;

	ENTER(cuCtxEnablePeerAccess, NEED_CTX);
	if (flags)
		return standin_refuse(PST_CU_INVALID_VALUE, "peer access: flags %u", flags);
	lock();
	if (!peer || !ctx_known(peer))
		rc = standin_refuse(PST_CU_INVALID_CONTEXT, "not a live context");
	else if (peer->dev == ctx->dev || !standin.peer)
		rc = standin_refuse(PST_CU_PEER_ACCESS_UNSUPPORTED,
				    "no peer access from device %d to %d", ctx->dev, peer->dev);
	else if (ctx->peers >> peer->dev & 1)
		rc = standin_refuse(PST_CU_PEER_ACCESS_ALREADY_ENABLED,
				    "peer access is already enabled");
	else
		ctx->peers |= (uint64_t)1 << peer->dev;
	unlock();
	return rc;
}

EXPORT int pst_standin_break(int dev, enum pst_cu_result rc)
{
	if (dev < 0 || dev >= standin.device_count)
		return -1;
	lock();
	ctx_break(&standin.devices[dev].primary, rc);
	unlock();
	return 0;
}

EXPORT void pst_standin_live(struct pst_standin_live *out)
{
	lock();
	*out = standin.live;
	out->alloc_bytes = 0;
	for (int i = 0; i < standin.device_count; i++)
		out->alloc_bytes += standin.devices[i].mem_used;
	out->ops_pending = 0;
	for (struct pst_cu_stream *s = standin.streams; s; s = s->next)
		for (struct op *op = s->head; op; op = op->next)
			out->ops_pending++;
	unlock();
}
