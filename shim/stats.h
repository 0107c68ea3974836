/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counters for cuFileGetStatsL1 to L3, which every file with exported calls updates. All counters
 * are relaxed atomics. While no statistics are collected, a transfer only loads one variable.
 */
#ifndef SHIM_STATS_H
#define SHIM_STATS_H

#include <stdatomic.h>
#include <time.h>

#include "config.h"
#include "penstock.h"

/* The batch counters must be in the same order as in struct cuf_stats_l1. */
enum shim_counted {
	SHIM_READ,
	SHIM_WRITE,
	SHIM_HDL_REGISTER,
	SHIM_HDL_DEREGISTER,
	SHIM_BUF_REGISTER,
	SHIM_BUF_DEREGISTER,
	SHIM_BATCH_SUBMIT,
	SHIM_BATCH_COMPLETE,
	SHIM_BATCH_SETUP,
	SHIM_BATCH_CANCEL,
	SHIM_BATCH_DESTROY,
	SHIM_BATCH_ENQUEUED,
	SHIM_BATCH_POSIX_ENQUEUED,
	SHIM_BATCH_PROCESSED,
	SHIM_BATCH_POSIX_PROCESSED,
	SHIM_BATCH_NVFS,
	SHIM_BATCH_P2P,
	SHIM_BATCH_AIO,
	SHIM_BATCH_URING,
	SHIM_BATCH_MIXED,
	SHIM_BATCH_TOTAL,
	SHIM_READV,
	SHIM_WRITEV,
	SHIM_COUNTED,
};

/* Level of the statistics that are being collected, 0 if none are. */
extern _Atomic int shim_stats_level;

struct shim_timer {
	int level; /* level of statistics when the timer was started; 0 if the timer does not run */
	uint64_t start_ns;
};

static inline uint64_t shim_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

/* Starts a timer. The timer does not run if no statistics are being collected. */
static inline struct shim_timer shim_timer_start(void)
{
	struct shim_timer timer = {atomic_load_explicit(&shim_stats_level, memory_order_relaxed),
				   0};

	if (timer.level)
		timer.start_ns = shim_now_ns();
	return timer;
}

/* Adds to a counter even if no statistics are being collected. Only the functions below call it. */
void shim_count_(enum shim_counted what, bool ok, uint64_t times);

/* Adds `times` successes (`ok` is true) or failures to a counter if statistics are being
 * collected. */
static inline void shim_count_many(enum shim_counted what, bool ok, uint64_t times)
{
	if (atomic_load_explicit(&shim_stats_level, memory_order_relaxed))
		shim_count_(what, ok, times);
}

static inline void shim_count(enum shim_counted what, bool ok)
{
	shim_count_many(what, ok, 1);
}

static inline uint64_t shim_timer_us(const struct shim_timer *timer)
{
	return (shim_now_ns() - timer->start_ns) / 1000;
}

/* Counts a read or write that took `us` microseconds. `ret` is the number of bytes or a -errno,
 * `len` the length that the program requested. If `level` is 3, `report` must not be NULL. */
void shim_count_io(int level, uint64_t us, enum penstock_op op, bool vector, int64_t ret,
		   const struct penstock_seg *segs, unsigned count, size_t len,
		   const struct penstock_report *report);
/* Counts a synchronous read or write that was refused before it started. */
static inline void shim_count_io_refused(enum penstock_op op, bool vector)
{
	shim_count((enum shim_counted)((vector ? SHIM_READV : SHIM_READ) + op), false);
}

/* Counts an operation of a batch that completed. */
void shim_count_batch_io(enum penstock_op op, int64_t ret, const struct penstock_seg *seg,
			 const struct penstock_report *report);
/* Counts an operation of a batch that the library refused. */
static inline void shim_count_batch_refused(void)
{
	shim_count(SHIM_BATCH_PROCESSED, false);
}
/* Counts the bytes and the duration of one cuFileBatchIOSubmit. */
void shim_count_batch_submit(const struct shim_timer *timer, uint64_t read_bytes,
			     uint64_t write_bytes);

/* Count the registration and the deregistration of a buffer in a GPU's memory. */
void shim_count_map(int ordinal, bool ok, size_t len);
void shim_count_unmap(int ordinal, size_t len);

/* Starts the collection when the driver is opened, if the configuration enables statistics. */
void shim_stats_opened(const struct shim_config *config);
/* Clears the counters at the last close of the driver. */
void shim_stats_closed(void);
/* Clears the counters and resets the lock in the child of a fork. */
void shim_stats_forked(void);

#endif
