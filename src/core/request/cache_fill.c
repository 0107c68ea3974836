/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records which bytes were in the page cache before this process read them: see cache_fill.h. A
 * storage is divided into windows of 64 MiB, and a window into units. Before the first uncached
 * bytes of a window are read, this file asks the storage which units of the window are cached. It
 * also asks for the next window, before the kernel's readahead reaches it. A unit that is not
 * cached at that time counts as filled by this process when it is first read. A storage has records
 * of WINDOWS windows at a time; a new window replaces an old one. Reads at random offsets would
 * replace records all the time, so the number of new records is limited by the number of bytes that
 * are read. This file must never make a system call while it holds the lock.
 */
#include "core/request/cache_fill.h"

#include <stdlib.h>
#include <string.h>

#include "core/base/spin.h"

#define WINDOW ((uint64_t)64 << 20)
#define UNIT ((uint64_t)128 << 10)
#define UNITS ((unsigned)(WINDOW / UNIT))
#define WINDOWS 8u
/* Minimum length in bytes of a query. A window that is cached in parts is queried in ever shorter
 * pieces, down to this length. It limits the number of queries to 127 for each window. */
#define QUERY_LEAST ((uint64_t)1 << 20)

/* The next window is recorded when a read ends fewer than this number of bytes before the start of
 * that window. No file system that we know reads ahead that far. */
#define NEAR ((uint64_t)24 << 20)
/* The credit limits the time that queries take. Each byte that is read adds 1 to the credit, up to
 * CREDIT_MAX, and each query subtracts QUERY_BYTES. A query takes about 1.5 us. Reading QUERY_BYTES
 * from a drive takes 50 us. */
#define QUERY_BYTES ((int64_t)256 << 10)
#define CREDIT_MAX (256 * QUERY_BYTES)

/* Value of window.read_end for a unit that was cached before this process began to read near it. */
#define CACHED UINT32_MAX

struct window {
	uint64_t key; /* index of the window in the storage, plus 1; 0 if the record is unused */
	/* For each unit: how far this process has read it, in bytes from the unit's start, or
	 * CACHED. */
	uint32_t read_end[UNITS];
};

struct pst_cache_fill {
	_Atomic bool lock;
	_Atomic bool used; /* whether a window has ever been recorded */
	int64_t credit;	   /* see QUERY_BYTES; queries need a positive credit */
	struct window windows[WINDOWS];
};

void pst_cache_fill_open(struct penstock_storage *st)
{
	if (!st->ops->residency)
		return;
	st->cache_fill = calloc(1, sizeof(*st->cache_fill));
	if (st->cache_fill)
		st->cache_fill->credit = CREDIT_MAX;
}

void pst_cache_fill_close(struct penstock_storage *st)
{
	free(st->cache_fill);
}

static void fill_lock(struct pst_cache_fill *fill)
{
	unsigned times = 0;

	while (atomic_exchange_explicit(&fill->lock, true, memory_order_acquire))
		pst_backoff(&times);
}

static void fill_unlock(struct pst_cache_fill *fill)
{
	atomic_store_explicit(&fill->lock, false, memory_order_release);
}

static struct window *window_slot(struct pst_cache_fill *fill, uint64_t number)
{
	return &fill->windows[number % WINDOWS];
}

/* Asks the storage which units of [off, off + len) are cached, and stores for each unit 0 (not
 * cached) or CACHED in units[]. If the range is cached in parts, halves it and queries both halves,
 * down to QUERY_LEAST. A piece of that length that is cached in parts counts as cached. Returns the
 * number of queries. */
static unsigned units_query(struct penstock_storage *st, uint64_t off, uint64_t len,
			    uint32_t *units)
{
	uint64_t half = len / 2;
	enum penstock_why why;
	enum pst_residency found = st->ops->residency(st, off, len, &why);

	if (found == PST_MIXED && len > QUERY_LEAST)
		return 1 + units_query(st, off, half, units) +
		       units_query(st, off + half, half, units + half / UNIT);
	for (uint64_t i = 0; i < len / UNIT; i++)
		units[i] = found == PST_COLD ? 0 : CACHED;
	return 1;
}

/* Records which units of the window with this index are cached, unless there is a record or the
 * credit is used up. */
static void window_record(struct penstock_storage *st, uint64_t number)
{
	struct pst_cache_fill *fill = st->cache_fill;
	struct window *w = window_slot(fill, number);
	uint32_t units[UNITS];
	unsigned queries;
	bool wanted;

	fill_lock(fill);
	wanted = w->key != number + 1 && number < INT64_MAX / WINDOW && fill->credit > 0;
	fill_unlock(fill);
	if (!wanted)
		return;
	queries = units_query(st, number * WINDOW, WINDOW, units);
	fill_lock(fill);
	fill->credit -= queries * QUERY_BYTES;
	/* If another thread has recorded the window meanwhile, keep its record, which is older: it
	 * shows better what was cached before this process read. */
	if (w->key != number + 1) {
		w->key = number + 1;
		memcpy(w->read_end, units, sizeof(units));
	}
	fill_unlock(fill);
	atomic_store_explicit(&fill->used, true, memory_order_relaxed);
}

/* Called when [off, end) is read and is not cached. If the record shows that this process has read
 * a whole unit of the range before, the kernel has dropped the unit from the cache. The record is
 * then wrong, and the function removes it. */
static void window_forget_stale(struct pst_cache_fill *fill, uint64_t number, uint64_t off,
				uint64_t end)
{
	struct window *w = window_slot(fill, number);
	uint64_t first = (off + UNIT - 1) / UNIT;

	if (first / UNITS != number || (first + 1) * UNIT > end)
		return;
	fill_lock(fill);
	if (w->key == number + 1 && w->read_end[first % UNITS] == UNIT)
		w->key = 0;
	fill_unlock(fill);
}

/* Records that [off, end), which is in one window, is read. Returns how many of the bytes are read
 * for the first time and were not cached before this process began to read near them. */
static uint64_t window_read(struct pst_cache_fill *fill, uint64_t off, uint64_t end)
{
	uint64_t number = off / WINDOW, sum = 0;
	struct window *w = window_slot(fill, number);

	fill_lock(fill);
	fill->credit += (int64_t)(end - off);
	if (fill->credit > CREDIT_MAX)
		fill->credit = CREDIT_MAX;
	while (w->key == number + 1 && off < end) {
		uint64_t start = off / UNIT * UNIT;
		uint64_t stop = end < start + UNIT ? end : start + UNIT;
		uint32_t *read_end = &w->read_end[off / UNIT % UNITS];

		if (*read_end != CACHED && stop - start > *read_end) {
			uint64_t from = off - start > *read_end ? off - start : *read_end;

			sum += stop - start - from;
			*read_end = (uint32_t)(stop - start);
		}
		off = stop;
	}
	fill_unlock(fill);
	return sum;
}

bool pst_cache_fill_note(struct penstock_storage *st, uint64_t off, uint64_t len,
			 enum pst_residency found)
{
	struct pst_cache_fill *fill = st->cache_fill;
	uint64_t end = off + len, sum = 0;

	if (found == PST_UNKNOWN || !fill || !len)
		return found == PST_COLD;
	if (found == PST_WARM && !atomic_load_explicit(&fill->used, memory_order_relaxed))
		return false;
	for (uint64_t at = off; at < end; at = (at / WINDOW + 1) * WINDOW) {
		uint64_t stop = (at / WINDOW + 1) * WINDOW;

		stop = stop < end ? stop : end;
		if (found == PST_COLD) {
			window_forget_stale(fill, at / WINDOW, at, stop);
			window_record(st, at / WINDOW);
		}
		sum += window_read(fill, at, stop);
	}
	if (found == PST_WARM && sum < len / 2 + 1)
		return false;
	if (end % WINDOW >= WINDOW - NEAR)
		window_record(st, end / WINDOW + 1);
	return true;
}
