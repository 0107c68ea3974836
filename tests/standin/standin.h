/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared inside the stand-in CUDA driver: its objects, its one lock, and what
 * each file offers the others. Read README.md first: it says what the driver
 * was seen to do. Nothing here is part of Penstock, and nothing may call into
 * Penstock.
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
#define BLOCK_SIZE ((size_t)2 << 20) /* granularity of device memory */
#define PAGE 4096UL

/* What cuda_api.h does not list and tests or other programs still call. */
/* clang-format off */
#define EXTRA_FUNCS(F) \
F(cuCtxCreate_v2, (struct pst_cu_ctx **ctx, unsigned int flags, int dev)) \
F(cuCtxDestroy_v2, (struct pst_cu_ctx *ctx)) \
F(cuStreamBeginCapture_v2, (struct pst_cu_stream *stream, enum pst_cu_capture_mode how)) \
F(cuStreamEndCapture, (struct pst_cu_stream *stream, void **graph)) \
F(cuStreamCreate, (struct pst_cu_stream **stream, unsigned int flags)) \
F(cuMemcpyHtoD_v2, (pst_cu_ptr dst, const void *src, size_t len)) \
F(cuMemcpyDtoH_v2, (void *dst, pst_cu_ptr src, size_t len)) \
F(cuMemcpyDtoD_v2, (pst_cu_ptr dst, pst_cu_ptr src, size_t len)) \
F(cuMemAllocManaged, (pst_cu_ptr *dev, size_t len, unsigned int flags)) \
F(cuMemAllocAsync, (pst_cu_ptr *dev, size_t len, struct pst_cu_stream *stream)) \
F(cuMemFreeAsync, (pst_cu_ptr dev, struct pst_cu_stream *stream))
/* clang-format on */

/* Every function is exported, and has the type that cuda_api.h says. */
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

/* What a call needs, beside a driver that is initialised. */
enum need {
	NEED_INIT = 0,
	NEED_CTX = 1,	 /* a current context */
	NEED_OBJECT = 2, /* names a stream or event: a context if strict */
	NEED_NOTHING = 4,
	NEED_EVEN_BROKEN = 8, /* gives back: does its work in a broken context */
	NEED_TURN = 16,	      /* waits while somebody waits for the whole context */
	NEED_UNCAPTURED = 32, /* refused while a stream captures, by the modes */
};

enum queue_kind {
	QUEUE_COMPUTE,
	QUEUE_TO_DEVICE,
	QUEUE_TO_HOST,
	QUEUE_KINDS,
	QUEUE_LAST, /* the one that the stream used last */
	QUEUE_NONE,
};

struct pst_cu_ctx {
	struct pst_cu_ctx *next;
	int dev;
	bool primary;
	bool alive;
	unsigned int retains; /* of a primary context */
	unsigned int flags;
	enum pst_cu_result broken;
	uint64_t peers;			       /* bit of each device whose memory may be reached */
	unsigned int stream_count, stream_max; /* living, and room made for */
	unsigned int alone;		       /* calls that wait for all its work */
	struct pst_cu_stream *null_stream;
	struct pst_cu_stream *thread_stream;
};

struct piece { /* one copy of rows; rows = 1: plain */
	pst_cu_ptr dst, src;
	size_t dst_pitch, src_pitch, width, rows;
	char *staged; /* the source's bytes, taken at the call; freed after */
};

enum op_kind { OP_MARK, OP_COPY, OP_SET, OP_WRITE, OP_WAIT, OP_HOST, OP_FREE };

struct queue;

struct op {
	enum op_kind kind;
	enum func func;
	int refs;
	bool done;
	bool hit; /* OP_WAIT: the word is right; OP_HOST: it has returned */
	uint64_t seq;
	struct pst_cu_stream *stream;
	struct queue *queue;  /* NULL: in none */
	struct op *next;      /* in its stream */
	struct op *poll_next; /* in the list of waits or of host functions */
	struct op **deps;
	size_t dep_count;
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
			unsigned int width; /* 4 or 8 bytes */
		} word;
		struct {
			void (*fn)(void *);
			void *arg;
		} host;
		pst_cu_ptr free;
	};
};

struct pst_cu_stream {
	struct pst_cu_stream *next;
	struct pst_cu_ctx *ctx;
	unsigned int flags;
	int priority;
	unsigned int index; /* picks the queue in each pool */
	enum queue_kind last_queue;
	bool closing; /* destroyed by the caller; ends when it is empty */
	bool own;     /* a default stream of its context */
	bool capturing;
	bool begun, spoilt; /* a capture by its function, not by pst_standin_capture */
	enum pst_cu_capture_mode capture_mode;
	pthread_t capturer;
	pthread_cond_t wake;
	struct op *head, *tail;
	struct op *last; /* done or not: what the next operation comes after */
};

struct pst_cu_event {
	struct pst_cu_event *next;
	struct pst_cu_ctx *ctx;
	struct op *mark; /* NULL until recorded */
};

/* Memory of a device: one memfd, mapped where host code may touch it. */
struct block {
	int fd;
	int dev;
	size_t len;
	char *alias;
	size_t used;  /* of small allocations, a bump pointer */
	int refs;     /* ranges and handles */
	bool foreign; /* another process accounts for it */
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

/* Addresses that the driver knows, of the device or of the host. */
struct range {
	pst_cu_ptr start;
	size_t len;
	enum range_kind kind;
	char *alias;		/* where the bytes really are; a snapshot if `snapshot` */
	char *snapshot;		/* of a file registered read-only: mapped, map_len */
	struct pst_cu_ctx *ctx; /* NULL: pool, VMM */
	int dev;
	uint64_t id, block_id;
	int access; /* 0, 1 read, 3 both */
	pst_cu_ptr map_start;
	size_t map_len;
	struct block *block;
	unsigned int opens; /* RANGE_IPC */
	int exporter;	    /* its process, whose ids are not ours */
};

struct span { /* addresses in use in a device's arena */
	pst_cu_ptr start;
	size_t len;
	bool reserved; /* by cuMemAddressReserve */
	struct span *next;
};

struct queue { /* of the hardware */
	struct op *last;
	unsigned int pending;
};

struct device {
	struct pst_cu_ctx primary;
	size_t mem_total, mem_used;
	pst_cu_ptr arena;
	size_t arena_len;
	struct span *spans;  /* sorted */
	struct block *small; /* being filled */
	pst_cu_ptr small_start;
	struct queue queues[QUEUE_KINDS][QUEUES_MAX];
};

struct standin {
	pthread_mutex_t lock; /* holds everything below; no other lock inside */
	pthread_cond_t done;  /* some operation is done */
	bool started, ended, forked;
	int device_count;
	unsigned int queue_count, queue_depth, stream_pool;
	bool strict, memops, peer, dmabuf, read_only, ipc, verbose;
	struct device devices[DEVICES_MAX];
	struct pst_cu_ctx *ctxs; /* made by cuCtxCreate */
	struct pst_cu_stream *streams;
	struct pst_cu_event *events;
	unsigned int stream_count;
	struct range **ranges; /* sorted by start */
	size_t range_count, range_max;
	uint64_t seq, id, block_id;
	unsigned int delay_us;
	uint64_t seed;
	struct pst_standin_live live;
};

extern struct standin standin;

/* fail.c */
enum pst_cu_result standin_enter(enum func func, int need, struct pst_cu_ctx **ctx);
enum pst_cu_result standin_leave(const struct pst_cu_ctx *ctx);
enum pst_cu_result standin_exec_fails(enum func func);
void standin_fail_start(void);
const char *standin_symbol(enum func func);
__attribute__((format(printf, 2, 3))) enum pst_cu_result standin_refuse(enum pst_cu_result rc,
									const char *fmt, ...);
extern _Thread_local bool standin_in_host_func;

/* The first line of every function: counts it, fails it if asked to, and
 * checks what it needs. Returns from the function on failure.
 */
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

/* ctx.c: with the lock held, but for the first */
struct pst_cu_ctx *ctx_current(void);
bool ctx_known(const struct pst_cu_ctx *ctx);
bool ctx_reaches(const struct pst_cu_ctx *ctx, int dev);
uint64_t env_size(const char *name, uint64_t fallback);

/* range.c: with the lock held */
struct range *range_find(pst_cu_ptr ptr);
struct range *range_overlap(pst_cu_ptr start, size_t len);
struct range *range_add(enum range_kind kind, pst_cu_ptr start, size_t len);
void range_drop(struct range *range);
bool in_arena(pst_cu_ptr ptr);
struct span *span_take(int dev, size_t len, size_t align);
struct span *span_find(int dev, pst_cu_ptr start);
void span_give(int dev, pst_cu_ptr start);
int arena_start(int dev);
struct block *block_make(int dev, size_t len);
struct block *block_adopt(int dev, int fd, size_t len);
void block_put(struct block *block);

/* What an address range is to a copy. */
enum place { PLACE_BAD, PLACE_EMPTY, PLACE_PAGEABLE, PLACE_HOST, PLACE_DEVICE };
struct where {
	enum place place;
	struct range *range; /* of the first byte, if the driver knows it */
	bool writable;
};
struct where resolve(pst_cu_ptr ptr, size_t len);
char *bytes_at(pst_cu_ptr ptr, bool write, size_t *avail);

/* queue.c: with the lock held */
struct op *op_new(enum op_kind kind, enum func func);
void op_put(struct op *op);
struct op *op_submit(struct op *op, struct pst_cu_stream *stream, enum queue_kind kind);
void op_wait(struct op *op); /* takes a reference away */
struct pst_cu_stream *stream_make(struct pst_cu_ctx *ctx, unsigned int flags, int priority);
/* With the lock held: its place is free at once, its queued work still happens. */
void stream_close(struct pst_cu_stream *stream);
void ctx_idle(struct pst_cu_ctx *ctx);	     /* all that was submitted so far */
void ctx_idle_alone(struct pst_cu_ctx *ctx); /* and holds others up meanwhile */
void stream_idle(struct pst_cu_stream *stream);
void ctx_break(struct pst_cu_ctx *ctx, enum pst_cu_result rc);

/* capture.c: with the lock held */
enum pst_cu_result capture_refuses(enum func func);

/* stream.c: with the lock held; NULL and a reason in *rc if there is none */
struct pst_cu_stream *stream_of(struct pst_cu_stream *handle, struct pst_cu_ctx *ctx,
				enum pst_cu_result *rc);

/* copy.c: in a stream's thread, with the lock held, which they may let go */
enum pst_cu_result copy_run(struct op *op);
enum pst_cu_result set_run(struct op *op);

/* mem.c */
void mem_free_locked(struct range *range);
void mem_drop_ctx(struct pst_cu_ctx *ctx);

#endif
