/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Counting for cuFileGetStatsL1 to L3. All counters are relaxed atomics; with
 * statistics off a transfer pays one load. Included by the files that count.
 */
#ifndef SHIM_STATS_H
#define SHIM_STATS_H

#include <time.h>

#include "shim.h"

/* in the order of cuf_stats_l1 */
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

/* The level that is being collected, 0: nothing is. */
extern _Atomic int shim_stats_level;

struct shim_timer {
	int level;
	uint64_t start_ns;
};

static inline uint64_t shim_now_ns(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static inline struct shim_timer shim_timer_start(void)
{
	struct shim_timer timer = {atomic_load_explicit(&shim_stats_level, memory_order_relaxed),
				   0};

	if (timer.level)
		timer.start_ns = shim_now_ns();
	return timer;
}

void shim_count_(enum shim_counted what, bool ok, uint64_t times);

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

/* One read or write that took `us` and ended: ret is bytes or -errno; report where the
 * level is 3. `len` is what was asked for. */
void shim_count_io(int level, uint64_t us, enum penstock_op op, bool vector, int64_t ret,
		   const struct penstock_seg *segs, unsigned count, size_t len,
		   const struct penstock_report *report);
/* One that was refused before it began. */
static inline void shim_count_io_refused(enum penstock_op op, bool vector)
{
	shim_count((enum shim_counted)((vector ? SHIM_READV : SHIM_READ) + op), false);
}

/* One operation of a batch that ended, one that the core did not take, and a batch call
 * with what it took. */
void shim_count_batch_io(enum penstock_op op, int64_t ret, const struct penstock_seg *seg,
			 const struct penstock_report *report);
static inline void shim_count_batch_refused(void)
{
	shim_count(SHIM_BATCH_PROCESSED, false);
}
void shim_count_batch_submit(const struct shim_timer *timer, uint64_t read_bytes,
			     uint64_t write_bytes);

/* Registrations of a GPU's memory. */
void shim_count_map(int ordinal, bool ok, size_t len);
void shim_count_unmap(int ordinal, size_t len);

/* Collecting begins with the driver if the configuration says so. */
void shim_stats_opened(const struct shim_config *config);
/* What was counted ends with it, and so do the registrations that it counts. */
void shim_stats_closed(void);
void shim_stats_forked(void);

#endif
