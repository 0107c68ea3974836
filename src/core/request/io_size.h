/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chooses the length of the calls that read a storage. With longer calls there are fewer of
 * them. But 16 long calls in flight hold more bytes than a drive needs, and more than the cache
 * of the CPU that serves a virtual drive. Only a measurement tells which length is better:
 * virtual drives of one kind read 2.7 GB/s with 512 KiB and 2.0 GB/s with 1 MiB on one host, 5.0
 * and 5.5 GB/s on another. So the rate of each storage is measured with both lengths, and again
 * from time to time.
 *
 * Claims read the length, and lanes report every call, so it must never take a lock. The caller
 * passes the clock, so that a test can simulate one.
 */
#ifndef PST_CORE_IO_SIZE_H
#define PST_CORE_IO_SIZE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define PST_IO_SIZES 2 /* number of lengths to choose from */

/* The measurement of one storage; zeroed memory is its initial state. A measurement window ends
 * each time another 64 MiB were read. */
struct pst_io_size {
	_Atomic uint64_t completed_bytes;
	_Atomic uint64_t in_flight_most; /* most bytes in flight at once in this window */
	_Atomic uint64_t idle_since; /* when the last call in flight completed, ns; 0: not idle */
	_Atomic bool was_idle;	     /* no calls in flight for over 2 ms in this window */
	_Atomic uint32_t current;    /* index of the length in use */
	_Atomic bool closing;	     /* a thread ends a window and owns the members below */
	bool mixed;	       /* this window started with calls of the other length in flight */
	uint32_t windows;      /* number of rates measured */
	uint64_t window_start; /* ns */
	uint64_t rate[PST_IO_SIZES]; /* bytes a second with each length; 0: to be measured */
};

#define PST_IO_WINDOW_BYTES (64ull << 20)
#define PST_IO_COUNTED_MIN (256u << 10) /* shorter calls are not counted */
#define PST_IO_IDLE_NS 2000000u		/* longer than a lane takes to start more calls */

extern const uint32_t pst_io_sizes[PST_IO_SIZES];

/* Ends a window at the time `now` and starts the next one. The caller has set g->closing. */
void pst_io_size_close_window(struct pst_io_size *g, uint64_t now);

/* Returns the length in use, in bytes. */
static inline uint64_t pst_io_size_get(const struct pst_io_size *g)
{
	return pst_io_sizes[atomic_load_explicit(&g->current, memory_order_relaxed)];
}

/* Reports a call of `len` bytes that starts while `before` bytes are in flight. Reads the clock
 * only if the drive was idle. */
static inline void pst_io_size_started(struct pst_io_size *g, uint64_t len, uint64_t before,
				       uint64_t (*now)(void))
{
	uint64_t idle_since;

	if (len < PST_IO_COUNTED_MIN)
		return;
	if (before + len > atomic_load_explicit(&g->in_flight_most, memory_order_relaxed))
		atomic_store_explicit(&g->in_flight_most, before + len, memory_order_relaxed);
	if (before)
		return;
	idle_since = atomic_exchange_explicit(&g->idle_since, 0, memory_order_relaxed);
	if (idle_since && now() - idle_since > PST_IO_IDLE_NS)
		atomic_store_explicit(&g->was_idle, true, memory_order_relaxed);
}

/* Reports a call of `len` bytes that completed; `before` bytes, with its own, were in flight.
 * Reads the clock only if the drive gets idle or a window ends. */
static inline void pst_io_size_completed(struct pst_io_size *g, uint64_t len, uint64_t before,
					 uint64_t (*now)(void))
{
	uint64_t done;

	if (len < PST_IO_COUNTED_MIN)
		return;
	if (before == len)
		atomic_store_explicit(&g->idle_since, now(), memory_order_relaxed);
	done = atomic_fetch_add_explicit(&g->completed_bytes, len, memory_order_relaxed);
	if (done / PST_IO_WINDOW_BYTES == (done + len) / PST_IO_WINDOW_BYTES ||
	    atomic_exchange_explicit(&g->closing, true, memory_order_acquire))
		return;
	pst_io_size_close_window(g, now());
	atomic_store_explicit(&g->closing, false, memory_order_release);
}

#endif
