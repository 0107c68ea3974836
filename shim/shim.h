/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of the drop-in share: the process's one state, handles, buffers,
 * the driver library, the log. Internal; the functions that callers see are in
 * cufile_calls.h. Nothing here is used before shim_open or after the last close
 * but the handle table, which is never freed.
 * Lock order: shim.lock, then batch and stream locks; the log's is a leaf.
 */
#ifndef SHIM_H
#define SHIM_H

#include <limits.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>

#include "cufile_calls.h"
#include "penstock.h"

#define SHIM_GPUS_MAX 64 /* ordinals that are looked at */

/* What is said once is known by its hash (FNV-1a); start with SHIM_HASH. */
#define SHIM_HASH 1469598103934665603u
static inline uint64_t shim_hash(uint64_t hash, const char *text)
{
	while (*text)
		hash = (hash ^ (unsigned char)*text++) * 1099511628211u;
	return hash;
}

/* ---- results ---- */

static inline struct cuf_error shim_ok(void)
{
	return (struct cuf_error){CUF_SUCCESS, 0};
}

static inline struct cuf_error shim_err(int code)
{
	return (struct cuf_error){code, 0};
}

/* The code that stands for a -errno of the core that just failed on this thread; 0:
 * none does, it is the file system's and errno says it. */
int shim_code(int64_t ret, enum penstock_why why);
/* The same as cuFileRead returns it: -1 with errno, or a negated code. */
ssize_t shim_result(int64_t ret, enum penstock_why why);

/* ---- configuration: config.c, params.c ---- */

#define SHIM_TEXT 512
#define SHIM_SLABS 64

struct shim_slabs {
	int count;
	size_t kb[SHIM_SLABS], number[SHIM_SLABS];
};
struct shim_config {
	size_t size[CUF_SIZE_PARAMS];
	bool flag[CUF_BOOL_PARAMS];
	char text[CUF_STRING_PARAMS][SHIM_TEXT];
	struct shim_slabs posix, gpu;
	char file[SHIM_TEXT]; /* the cufile.json that was read, "" for none */
};

void shim_config_defaults(struct shim_config *config);
/* Defaults, then cufile.json, then the environment. What it finds wrong it says
 * through shim_log, so logging must have been set up from `config` afterwards:
 * notes are kept and said then. */
void shim_config_load(struct shim_config *config);
/* Reads one cufile.json from memory, for config.c and the fuzz target. */
void shim_config_text(struct shim_config *config, const char *text, size_t len);
/* Says the notes that loading left, once. */
void shim_config_say(void);
/* Puts what was set by API over it; at open, under shim.lock. */
void shim_params_apply(struct shim_config *config);
/* From here on nothing may be set, until the last close. */
void shim_params_opened(void);
void shim_params_closed(void);

/* Peer-to-peer flags, p2p.c: whether something fixed the parameters already. */
bool shim_p2p_loaded(void);
void shim_p2p_opened(void);
void shim_p2p_closed(void);

/* ---- the driver: driver.c ---- */

struct shim {
	pthread_mutex_t lock;
	_Atomic bool open;
	long uses;
	_Atomic int require;	   /* enum penstock_class of every transfer */
	_Atomic int version;	   /* 1150; 0: not looked up yet */
	struct shim_config config; /* live while open; under lock */
	_Atomic(struct penstock_device *) host;
	_Atomic(struct penstock_device *) gpus[SHIM_GPUS_MAX];
};
extern struct shim shim;

/* What cuFileGetVersion says, and by which layouts follow. */
int shim_version(void);
/* Opens the driver if it is not, as the calls do that need it; 0 or a code. */
int shim_need(void);
/* The same with shim.lock held. */
int shim_need_locked(void);
/* The device of a GPU, opened at its first use, or a code: CUF_DRIVER_CLOSING when the
 * driver was closed meanwhile. */
int shim_gpu(int ordinal, struct penstock_device **dev);
/* The same with shim.lock held. */
int shim_gpu_locked(int ordinal, struct penstock_device **dev);

/* ---- files: handle.c ---- */

struct shim_file {
	_Atomic uint64_t state; /* generation << 32 | LIVE | CLOSING | ENDING | users */
	struct penstock_storage *st;
	unsigned index;
	int fd; /* the caller's number, with dev and ino to know it again */
	uint64_t dev, ino;
	_Atomic unsigned said; /* 1: first read was logged, 2: first write */
	char *name;
	struct shim_file *next_free;
};

/* The file of a handle, held until shim_file_leave; NULL: closed or foreign. Any
 * thread, no lock. */
struct shim_file *shim_file_enter(void *fh);
void shim_file_leave(struct shim_file *f);
/* Closes all files, for the last close of the driver: a code if one is in use. Waits a
 * moment for who just came in. */
int shim_files_close(void);
/* In the child of a fork: every handle is foreign from here on. */
void shim_files_forked(void);

/* ---- buffers: buffer.c ---- */

/* Where base + off lies: its address and device. Length is what will be moved.
 * 0 or a code. Any thread, no lock. */
int shim_resolve(const void *base, off_t off, size_t len, void **addr,
		 struct penstock_device **dev);
/* How many bytes from base on are registered together with it; 0: it is not. Any thread,
 * no lock. */
size_t shim_registered(const void *base);
/* All registrations go; their devices are no longer to be found in `shim`. */
void shim_buffers_drop(void);
void shim_buffers_forked(void);

/* ---- moving: move.c ---- */

/* One transfer as a caller asks for it; checked, resolved and held. */
struct shim_move {
	struct shim_file *file;
	struct penstock_seg seg;
	struct penstock_req req;
};
/* 0, or a code: the handle, range or memory is wrong. shim_move_end lets go. */
int shim_move_begin(struct shim_move *m, void *fh, const void *base, size_t len, off_t file_off,
		    off_t base_off, enum penstock_op op);
void shim_move_end(struct shim_move *m);
/* Says what could not be moved, and why; `how` is "", "a batch's " or "a stream's ". */
void shim_say_failed(const struct shim_move *m, const char *how, int code, const char *text);
/* The first time that a file is read or written: path and reason to the log. */
void shim_first_use(const struct shim_move *m, const struct penstock_report *report);
static inline bool shim_is_first(const struct shim_move *m)
{
	return !(atomic_load_explicit(&m->file->said, memory_order_relaxed) & (1u << m->req.op));
}

/* ---- stream order: async.c ---- */

/* Looks at what has ended: its file is let go, its result counted. Any thread. */
void shim_async_harvest(void);
/* For the last close: a code if a stream has not come to its transfer yet. */
int shim_async_close(void);
/* All registered streams go. */
void shim_streams_drop(void);
void shim_async_forked(void);
void shim_batch_forked(void);

/* ---- libcuda: cuda.c ---- */

struct shim_memory {
	int ordinal; /* -1: host memory */
	uintptr_t start;
	size_t len;
};
/* What the driver knows of an address; 0 or a code. */
int shim_cuda_memory(const void *ptr, struct shim_memory *out);
/* 0, or a code: the stream is none, or no context is current. */
int shim_cuda_stream(void *stream, bool *capturing);
/* The stream failed: what is queued on it never comes. */
bool shim_cuda_stream_broken(void *stream);
/* Waits for what is queued on a stream, NULL for the legacy default one; a CUresult. */
int shim_cuda_wait(void *stream);
int shim_cuda_count(void);
/* 16 bytes, or false. */
bool shim_cuda_uuid(int ordinal, char *uuid);
void shim_cuda_forked(void);

/* ---- the log: log.c ---- */

enum shim_level { SHIM_NOTICE, SHIM_ERROR, SHIM_WARN, SHIM_INFO, SHIM_DEBUG, SHIM_TRACE };

void shim_log(enum shim_level level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* What compat mode off refuses: a line of level NOTICE, and a note for penstock stats. */
void shim_log_refused(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* Level and place, from the configuration; under shim.lock. */
void shim_log_setup(const struct shim_config *config);
bool shim_log_to_file(void);
int shim_log_level(const char *name); /* -1: no such level */

#endif
