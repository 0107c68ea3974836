/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Chooses the length of the system calls that read a storage. Longer calls mean fewer calls. But 16
 * long calls in flight hold more bytes than a drive needs. If the drive is virtual, these bytes do
 * not fit in the cache of the CPU that emulates the drive. Only a measurement shows which length is
 * better. On one machine a virtual drive read 2.7 GB/s with calls of 512 KiB and 2.0 GB/s with
 * calls of 1 MiB. On another machine a drive of the same kind read 5.0 GB/s with 512 KiB and 5.5
 * GB/s with 1 MiB. So the library measures the read rate of each storage with both lengths, and
 * repeats this from time to time.
 *
 * Worker threads get the length for each chunk and report every call, so these functions must never
 * take a lock. The caller passes the function that reads the clock, so that a test can simulate a
 * clock.
 */
#ifndef PST_CORE_IO_SIZE_H
#define PST_CORE_IO_SIZE_H

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define PST_IO_SIZES 2 /* number of call lengths among which the library chooses */

/* State of the measurement for one storage; zeroed memory is its initial state. The read rate is
 * measured in windows: a window is the time in which 64 MiB of the storage are read. */
struct pst_io_size {
	_Atomic uint64_t completed_bytes;
	/* Largest number of bytes in flight at once since the window began. */
	_Atomic uint64_t in_flight_most;
	/* Time at which the last call in flight completed, in ns; 0 if calls are in flight. */
	_Atomic uint64_t idle_since;
	/* Set if the drive had no call in flight for more than 2 ms since the window began. */
	_Atomic bool was_idle;
	_Atomic uint32_t current; /* index in pst_io_sizes of the length in use */
	/* True while a thread ends a measurement window. Only this thread may access the members
	 * below. */
	_Atomic bool closing;
	bool mixed;	  /* this window started while calls of the old length were in flight */
	uint32_t windows; /* number of windows that were not ignored */
	uint64_t window_start; /* time at which this window started, in ns */
	/* Read rate with each length, in bytes a second; 0 if it shall be measured. */
	uint64_t rate[PST_IO_SIZES];
};

#define PST_IO_WINDOW_BYTES (64ull << 20)
#define PST_IO_COUNTED_MIN (256u << 10) /* calls of fewer bytes are ignored */
/* If the drive has no call in flight for more than this time in ns, it counts as idle. A worker
 * thread that has work starts its next call sooner. */
#define PST_IO_IDLE_NS 2000000u

extern const uint32_t pst_io_sizes[PST_IO_SIZES];

/* Ends a measurement window at the time `now`, and starts the next window. The caller has set
 * g->closing, so that no other thread does so at the same time. */
void pst_io_size_close_window(struct pst_io_size *g, uint64_t now);

/* Returns the length of read calls that is in use, in bytes. */
static inline uint64_t pst_io_size_get(const struct pst_io_size *g)
{
	return pst_io_sizes[atomic_load_explicit(&g->current, memory_order_relaxed)];
}

/* Reports that a call of `len` bytes starts while `before` other bytes are in flight. Reads the
 * clock only if no bytes were in flight. */
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

/* Reports that a call of `len` bytes has completed. `before` is the number of bytes that were in
 * flight, including this call's. Reads the clock only if no bytes remain in flight or a window
 * ends. */
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
