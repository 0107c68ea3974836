/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Internal declarations of the stand-in CUDA driver: its objects, its only lock, and the functions
 * that its files share. Read README.md first: it describes the measured behaviour of the real
 * driver. Nothing in this file is part of Penstock, and no code of the stand-in may call Penstock.
 */
#ifndef STANDIN_H
#define STANDIN_H

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "device/cuda_api.h"
#include "pst_standin.h"

#define EXPORT __attribute__((visibility("default")))
#define DEVICES_MAX 16
#define QUEUES_MAX 64
#define BLOCK_SIZE ((size_t)2 << 20) /* Sizes of device memory are multiples of this size. */
#define PAGE 4096UL

/* Functions that cuda_api.h does not list, because only tests or other programs call them. */
/* clang-format off */
#define EXTRA_FUNCS(F) \
F(cuCtxCreate_v2, (struct pst_cu_ctx **ctx, unsigned int flags, int dev)) \
F(cuCtxDestroy_v2, (struct pst_cu_ctx *ctx)) \
F(cuStreamBeginCapture_v2, (struct pst_cu_stream *stream, enum pst_cu_capture_mode how)) \
F(cuStreamEndCapture, (struct pst_cu_stream *stream, struct pst_cu_graph **graph)) \
F(cuGraphInstantiateWithFlags, (struct pst_cu_graph_exec **exec, struct pst_cu_graph *graph, \
				unsigned long long flags)) \
F(cuGraphLaunch, (struct pst_cu_graph_exec *exec, struct pst_cu_stream *stream)) \
F(cuGraphExecDestroy, (struct pst_cu_graph_exec *exec)) \
F(cuGraphDestroy, (struct pst_cu_graph *graph)) \
F(cuGraphClone, (struct pst_cu_graph **clone, struct pst_cu_graph *graph)) \
F(cuGraphGetNodes, (struct pst_cu_graph *graph, struct pst_cu_node **nodes, size_t *count)) \
F(cuStreamCreate, (struct pst_cu_stream **stream, unsigned int flags)) \
F(cuMemcpyHtoD_v2, (pst_cu_ptr dst, const void *src, size_t len)) \
F(cuMemcpyDtoH_v2, (void *dst, pst_cu_ptr src, size_t len)) \
F(cuMemcpyDtoD_v2, (pst_cu_ptr dst, pst_cu_ptr src, size_t len)) \
F(cuMemAllocManaged, (pst_cu_ptr *dev, size_t len, unsigned int flags)) \
F(cuMemAllocAsync, (pst_cu_ptr *dev, size_t len, struct pst_cu_stream *stream)) \
F(cuMemFreeAsync, (pst_cu_ptr dev, struct pst_cu_stream *stream))
/* clang-format on */

struct pst_cu_graph_exec;

/* Declares every exported function with the type of cuda_api.h. */
#define PROTO(name, symbol, params) EXPORT enum pst_cu_result symbol params;
PST_CU_FUNCS(PROTO, PROTO)
#define PROTO_EXTRA(symbol, params) EXPORT enum pst_cu_result symbol params;
EXTRA_FUNCS(PROTO_EXTRA)

enum func {
#define FUNC(name, symbol, params) FN_##symbol,
	PST_CU_FUNCS(FUNC, FUNC)
#define FUNC_EXTRA(symbol, params) FN_##symbol,
		EXTRA_FUNCS(FUNC_EXTRA) FN_COUNT
};

/* Requirements of a call, in addition to an initialised driver. */
enum need {
	NEED_INIT = 0,
	NEED_CTX = 1, /* The call needs a current context. */
	/* The call names a stream or event. It needs a context if PENSTOCK_STANDIN_STRICT is
	 * set. */
	NEED_OBJECT = 2,
	NEED_NOTHING = 4,
	NEED_EVEN_BROKEN = 8, /* The call frees something, and does so even in a broken context. */
	/* While another thread waits for an idle context (as in cuMemFree), this call blocks. */
	NEED_TURN = 16,
	/* A capture may forbid the call; that depends on the capture modes. */
	NEED_UNCAPTURED = 32,
};

enum queue_kind {
	QUEUE_COMPUTE,
	QUEUE_TO_DEVICE,
	QUEUE_TO_HOST,
	QUEUE_KINDS,
	QUEUE_LAST, /* Hardware queue that the stream has used last. */
	QUEUE_NONE,
};

struct pst_cu_ctx {
	struct pst_cu_ctx *next;
	int dev;
	bool primary;
	bool alive;
	unsigned int retains; /* Number of references to a primary context. */
	unsigned int flags;
	enum pst_cu_result broken;
	/* Bitmap of devices whose memory this context may access. */
	uint64_t peers;
	/* Number of streams, and number of streams that the stream pool can hold. */
	unsigned int stream_count, stream_max;
	/* Number of calls that wait until the context is idle and block other threads meanwhile. */
	unsigned int exclusive_waits;
	struct pst_cu_stream *null_stream;
	struct pst_cu_stream *thread_stream;
};

struct piece { /* A copy of one or more rows; a plain copy has one row. */
	pst_cu_ptr dst, src;
	size_t dst_pitch, src_pitch, width, rows;
	/* Copy of a pageable source. The CUDA call makes the copy, which is freed after the
	 * operation. */
	char *staged;
};

enum op_kind { OP_MARK, OP_COPY, OP_SET, OP_WRITE, OP_WAIT, OP_HOST, OP_FREE, OP_KERNEL };

struct queue;

struct op {
	enum op_kind kind;
	enum func func;
	int refs;
	bool done;
	/* OP_WAIT: the semaphore has the awaited value; OP_HOST: the function has returned */
	bool hit;
	uint64_t seq;
	struct pst_cu_stream *stream;
	struct queue *queue; /* Hardware queue of the operation; NULL if it uses none. */
	struct op *next;     /* Next operation of the stream. */
	/* Next operation in a list that one thread handles: the list of waits for semaphores, or
	 * the list of host functions. */
	struct op *poll_next;
	struct op **deps;
	size_t dep_count;
	/* Executable graph whose launch ends with this operation; NULL if there is none. */
	struct pst_cu_graph_exec *exec;
	union {
		struct piece copy;
		struct {
			pst_cu_ptr addr;
			size_t len;
			unsigned char byte;
		} set;
		struct {
			pst_cu_ptr addr;
			uint64_t value;
			unsigned int flags;
			unsigned int width; /* Width of the semaphore in bytes, 4 or 8. */
		} word;
		struct {
			void (*fn)(void *);
			void *arg;
		} host;
		struct {
			const struct pst_cu_function *function;
			unsigned int blocks;
			pst_cu_ptr args[3];
		} kernel;
		pst_cu_ptr free;
	};
};

struct pst_cu_stream {
	struct pst_cu_stream *next;
	struct pst_cu_ctx *ctx;
	unsigned int flags;
	int priority;
	/* Number that determines which hardware queue of each kind the stream uses. */
	unsigned int index;
	enum queue_kind last_queue;
	/* Whether the program has destroyed the stream; the thread then exits after the last
	 * operation. */
	bool closing;
	bool own; /* Whether this is a default stream of its context. */
	bool capturing;
	/* Whether cuStreamBeginCapture (and not pst_standin_capture) started the capture, and
	 * whether a call has invalidated the capture. */
	bool real_capture, invalidated;
	struct pst_cu_graph *graph; /* Graph into which the stream is being captured. */
	/* Stream whose capture this stream has joined; NULL if it began the capture itself. */
	struct pst_cu_stream *origin;
	uint64_t capture_id;
	enum pst_cu_capture_mode capture_mode;
	pthread_t capturer;
	pthread_cond_t wake;
	struct op *head, *tail;
	/* Operation queued last, on which the next one depends; it may have completed. */
	struct op *last;
};

struct pst_cu_event {
	struct pst_cu_event *next;
	struct pst_cu_ctx *ctx;
	/* Operation that the last cuEventRecord queued; NULL before the first cuEventRecord. The
	 * event has completed when this operation has completed. */
	struct op *mark;
	/* Capture in which the event was last recorded; 0 if it was recorded outside of one. */
	uint64_t capture_id;
};

/* A block of device memory: a memfd that is mapped at an address which the CPU may access. */
struct block {
	int fd;
	int dev;
	size_t len;
	char *alias;
	/* Number of bytes that small allocations have taken from the start of the block. */
	size_t used;
	int refs;     /* Number of ranges and handles that use the block. */
	bool foreign; /* Whether another process allocated the memory and accounts for it. */
	uint64_t id;
};

enum range_kind {
	RANGE_DEVICE = 1,
	RANGE_MANAGED = 2,
	RANGE_POOL = 4,
	RANGE_IPC = 8,
	RANGE_VMM = 16,
	RANGE_HOST = 32,
	RANGE_REGISTERED = 64,
};
#define RANGE_ON_HOST (RANGE_HOST | RANGE_REGISTERED)

/* A range of device or host addresses that the stand-in knows. */
struct range {
	pst_cu_ptr start;
	size_t len;
	enum range_kind kind;
	/* Address at which the CPU can access the bytes; the snapshot's address if there is a
	 * snapshot. */
	char *alias;
	/* Copy of the bytes of a file that is registered read-only: a mapping of map_len bytes. */
	char *snapshot;
	/* Context that owns the memory; NULL if it is from a pool or from cuMemCreate. */
	struct pst_cu_ctx *ctx;
	int dev;
	uint64_t id, block_id;
	int access; /* Allowed access: 0 for none, 1 to read, 3 to read and write. */
	pst_cu_ptr map_start;
	size_t map_len;
	struct block *block;
	unsigned int opens; /* RANGE_IPC: number of times the handle was opened. */
	/* Process that exported the memory; block_id and id are that process's numbers. */
	int exporter;
};

struct span { /* A range of addresses in use in a device's arena. */
	pst_cu_ptr start;
	size_t len;
	bool reserved; /* Whether cuMemAddressReserve reserved the addresses. */
	struct span *next;
};

struct queue { /* A hardware queue. */
	struct op *last;
	unsigned int pending;
};

struct device {
	struct pst_cu_ctx primary;
	size_t mem_total, mem_used;
	pst_cu_ptr arena;
	size_t arena_len;
	struct span *spans;  /* Sorted by start. */
	struct block *small; /* Block from which small allocations are taken. */
	pst_cu_ptr small_start;
	struct queue queues[QUEUE_KINDS][QUEUES_MAX];
};

struct standin {
	/* Guards all members below. A thread that holds it takes no other lock. */
	pthread_mutex_t lock;
	pthread_cond_t done; /* Signalled whenever an operation has completed. */
	bool started, ended, forked;
	int device_count;
	unsigned int queue_count, queue_depth, stream_pool;
	bool strict, memops, peer, dmabuf, read_only, ipc, verbose;
	struct device devices[DEVICES_MAX];
	struct pst_cu_ctx *ctxs; /* Contexts that cuCtxCreate has created. */
	struct pst_cu_stream *streams;
	struct pst_cu_event *events;
	unsigned int stream_count;
	struct range **ranges; /* Sorted by start. */
	size_t range_count, range_max;
	uint64_t seq, id, block_id;
	unsigned int delay_us;
	unsigned int load_ms; /* Duration of cuModuleLoadData before it waits. */
	uint64_t seed;
	struct pst_standin_live live;
};

extern struct standin standin;

/* ---- fail.c ---- */
enum pst_cu_result standin_enter(enum func func, int need, struct pst_cu_ctx **ctx);
enum pst_cu_result standin_leave(const struct pst_cu_ctx *ctx);
enum pst_cu_result standin_exec_fails(enum func func);
void standin_fail_start(void);
const char *standin_symbol(enum func func);
__attribute__((format(printf, 2, 3))) enum pst_cu_result standin_refuse(enum pst_cu_result rc,
									const char *fmt, ...);
extern _Thread_local bool standin_in_host_func;

/* First line of every exported function. Counts the call, injects a failure if one is set, and
 * checks the call's requirements. The exported function returns an error if a failure is injected
 * or a requirement is not met. */
#define ENTER(symbol, need)                                                           \
	struct pst_cu_ctx *ctx = NULL;                                                \
	{                                                                             \
		enum pst_cu_result enter_rc = standin_enter(FN_##symbol, need, &ctx); \
		if (enter_rc)                                                         \
			return enter_rc;                                              \
	}                                                                             \
	(void)ctx

static inline void lock(void)
{
	pthread_mutex_lock(&standin.lock);
}

static inline void unlock(void)
{
	pthread_mutex_unlock(&standin.lock);
}

/* ---- ctx.c: callers hold the lock, except of ctx_current ---- */
struct pst_cu_ctx *ctx_current(void);
bool ctx_known(const struct pst_cu_ctx *ctx);
bool ctx_reaches(const struct pst_cu_ctx *ctx, int dev);
uint64_t env_size(const char *name, uint64_t fallback);

/* ---- range.c: callers hold the lock ---- */
struct range *range_find(pst_cu_ptr ptr);
struct range *range_overlap(pst_cu_ptr start, size_t len);
struct range *range_add(enum range_kind kind, pst_cu_ptr start, size_t len);
void range_drop(struct range *range);
bool in_arena(pst_cu_ptr ptr);
struct span *span_alloc(int dev, size_t len, size_t align);
struct span *span_find(int dev, pst_cu_ptr start);
void span_free(int dev, pst_cu_ptr start);
int arena_start(int dev);
struct block *block_make(int dev, size_t len);
struct block *block_adopt(int dev, int fd, size_t len);
void block_put(struct block *block);

/* Kinds of memory that a copy may find at an address range. */
enum place { PLACE_BAD, PLACE_EMPTY, PLACE_PAGEABLE, PLACE_HOST, PLACE_DEVICE };
struct where {
	enum place place;
	struct range *range; /* Known range that contains the first byte, NULL if none does. */
	bool writable;
};
struct where resolve(pst_cu_ptr ptr, size_t len);
char *bytes_at(pst_cu_ptr ptr, bool write, size_t *avail);

/* ---- queue.c: callers hold the lock ---- */
struct op *op_new(enum op_kind kind, enum func func);
void op_put(struct op *op);
/* Makes `op` do the same as `from`, which has the same kind. */
void op_payload(struct op *op, const struct op *from);
/* Makes `op` run after `on`, which may be NULL. */
void op_depend(struct op *op, struct op *on);
/* Makes the thread that runs host functions call this function. Returns at once. */
void host_call(void (*fn)(void *), void *arg);
struct op *op_submit(struct op *op, struct pst_cu_stream *stream, enum queue_kind kind);
/* Waits until the operation has completed, then drops a reference to it. */
void op_wait(struct op *op);
struct pst_cu_stream *stream_make(struct pst_cu_ctx *ctx, unsigned int flags, int priority);
/* Removes the stream from the stream pool at once. Its queued work still runs. */
void stream_close(struct pst_cu_stream *stream);
/* Waits until all work that was queued in the context before this call has completed. */
void ctx_idle(struct pst_cu_ctx *ctx);
/* Waits like ctx_idle, and blocks other threads meanwhile. */
void ctx_idle_exclusive(struct pst_cu_ctx *ctx);
void stream_idle(struct pst_cu_stream *stream);
void ctx_break(struct pst_cu_ctx *ctx, enum pst_cu_result rc);

/* ---- capture.c: the caller holds the lock ---- */
enum pst_cu_result capture_refuses(enum func func);
/* Makes a stream join the capture in which an event was recorded. */
enum pst_cu_result capture_join(struct pst_cu_stream *stream, const struct pst_cu_event *event);

/* ---- graph.c: the caller holds the lock ---- */
struct pst_cu_graph *graph_new(void);
void graph_drop(struct pst_cu_graph *graph);
/* Adds the operation to the graph into which the stream is being captured. */
enum pst_cu_result capture_op(struct pst_cu_stream *stream, struct op *op, enum queue_kind queue);
void exec_put(struct pst_cu_graph_exec *exec);

/* ---- stream.c: the caller holds the lock. Returns NULL and an error in *rc for no live stream
 * ---- */
struct pst_cu_stream *stream_of(struct pst_cu_stream *handle, struct pst_cu_ctx *ctx,
				enum pst_cu_result *rc);

/* ---- copy.c: called in a stream's thread with the lock held; releases it while bytes move
 * ---- */
enum pst_cu_result copy_run(struct op *op);
enum pst_cu_result set_run(struct op *op);

/* ---- kernel.c: called like copy_run ---- */
enum pst_cu_result kernel_run(struct op *op);

/* ---- mem.c: callers hold the lock ---- */
void mem_free_locked(struct range *range);
void mem_free_ctx(struct pst_cu_ctx *ctx);

#endif
