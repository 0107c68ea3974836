/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Polling for a short time before a thread sleeps. While events come every few microseconds,
 * waking a thread costs more than the wait for its event. When events are rare, polling wastes
 * CPU time. So after a thread has polled without success, it sleeps at once the next few times,
 * and the number of these times grows with each failure. Used by lanes and by callers that
 * wait. Each pst_spin belongs to one thread.
 */
#ifndef PST_CORE_SPIN_H
#define PST_CORE_SPIN_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#include "core/base/clock.h"

#define PST_SPIN_NS 50000u /* longest time of polling */
/* Time of polling after a short request with effort PENSTOCK_FAST; such a poll is never left
 * out. An idle CPU of a virtual machine takes hundreds of microseconds to wake, longer than the
 * read itself. */
#define PST_SPIN_FAST_NS 500000u
#define PST_SPIN_SHORT (64u << 10) /* bytes of the longest short request */
#define PST_SPIN_SKIPS_MAX 63u

struct pst_spin {
	bool fast;	/* the last request was short and has effort PENSTOCK_FAST */
	uint64_t since; /* start of the polling, ns; 0: the thread does not poll */
	unsigned skips; /* times that the thread sleeps at once after polling without success */
	unsigned left;	/* remaining times of these */
};

/* Call it when the thread found no event. Returns true: poll again; false: sleep. */
static inline bool pst_spin_on(struct pst_spin *spin)
{
	uint64_t now;

	if (spin->left && !spin->fast) {
		spin->left--;
		return false;
	}
	now = pst_now_ns();
	if (!spin->since)
		spin->since = now;
	if (now - spin->since < (spin->fast ? PST_SPIN_FAST_NS : PST_SPIN_NS))
		return true;
	spin->since = 0;
	spin->fast = false;
	spin->skips = spin->skips < PST_SPIN_SKIPS_MAX ? spin->skips * 2 + 1 : spin->skips;
	spin->left = spin->skips;
	return false;
}

/* Waits a moment for an event that wakes no thread and that may take as long as a read. Call it
 * in a loop with a counter that starts at 0. The first 100 calls yield the CPU, later ones sleep
 * for 100 us. */
static inline void pst_backoff(unsigned *times)
{
	if ((*times)++ < 100)
		sched_yield();
	else
		usleep(100);
}

/* Call it when the thread starts a request, or a part of one, of `len` bytes. `fast`: the
 * request has effort PENSTOCK_FAST. */
static inline void pst_spin_took(struct pst_spin *spin, bool fast, uint64_t len)
{
	spin->fast = fast && len <= PST_SPIN_SHORT;
}

/* Call it when the thread found an event. */
static inline void pst_spin_found(struct pst_spin *spin)
{
	if (spin->since)
		spin->skips = 0;
	spin->since = 0;
}

/* Keeps the CPU busy for a number of its pause instructions. */
static inline void pst_relax(unsigned pauses)
{
	while (pauses--)
#if defined(__x86_64__)
		__builtin_ia32_pause();
#elif defined(__aarch64__)
		__asm__ volatile("yield");
#else
		__asm__ volatile("");
#endif
}

#endif
