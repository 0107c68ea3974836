/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Lets a thread poll for a short time before it sleeps. If events come every few microseconds,
 * waking the thread costs more time than polling until the next event. If events are rare, polling
 * wastes CPU time. So after polling without success, a thread sleeps the next few times without
 * polling first. Each further failure doubles that number of times. Used by worker threads and by
 * threads that wait for requests. Each struct pst_spin belongs to one thread.
 */
#ifndef PST_CORE_SPIN_H
#define PST_CORE_SPIN_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#include "core/base/clock.h"
#include "penstock.h"

/* Maximum times in ns that a thread polls before it sleeps: PST_SPIN_THRIFTY_NS for requests with
 * effort PENSTOCK_THRIFTY, which prefer little CPU time, and PST_SPIN_NS for others. Falling asleep
 * and waking up take about 5 us of CPU time. The thrifty maximum is twice this time. */
#define PST_SPIN_THRIFTY_NS 10000u
#define PST_SPIN_NS 50000u
/* Maximum polling time in ns after a short request with effort PENSTOCK_FAST. After such a request
 * the thread always polls, because an idle CPU of a virtual machine takes hundreds of microseconds
 * to wake, which is longer than the read itself. */
#define PST_SPIN_FAST_NS 500000u
#define PST_SPIN_SHORT (64u << 10) /* a request of at most this many bytes counts as short */
#define PST_SPIN_SKIPS_MAX 63u

struct pst_spin {
	/* Maximum polling time in ns: what pst_spin_limit returned for the last request. */
	unsigned limit_ns;
	uint64_t since; /* time at which the thread began to poll, in ns; 0 if it does not poll */
	unsigned skips; /* after a failed polling, how many times to sleep without polling */
	unsigned left;	/* how many of these sleeps remain */
};

/* Returns for how long a thread may poll for the next event of a request of `len` bytes. */
static inline unsigned pst_spin_limit(enum penstock_effort effort, uint64_t len)
{
	if (effort == PENSTOCK_THRIFTY)
		return PST_SPIN_THRIFTY_NS;
	return effort == PENSTOCK_FAST && len <= PST_SPIN_SHORT ? PST_SPIN_FAST_NS : PST_SPIN_NS;
}

/* Called when the thread has found no event. Returns true if the thread shall poll again, false if
 * it shall sleep. */
static inline bool pst_spin_on(struct pst_spin *spin)
{
	bool always = spin->limit_ns == PST_SPIN_FAST_NS;
	uint64_t now;

	if (spin->left && !always) {
		spin->left--;
		return false;
	}
	now = pst_now_ns();
	if (!spin->since)
		spin->since = now;
	if (now - spin->since < spin->limit_ns)
		return true;
	spin->since = 0;
	if (always)
		spin->limit_ns = PST_SPIN_NS;
	spin->skips = spin->skips < PST_SPIN_SKIPS_MAX ? spin->skips * 2 + 1 : spin->skips;
	spin->left = spin->skips;
	return false;
}

/* Waits a moment in a loop that polls for an event. It may take as long as a read until the event
 * comes, and no other thread wakes the loop then. *times counts the calls and starts at 0. The
 * first 100 calls yield the CPU, later calls sleep for 100 us. */
static inline void pst_backoff(unsigned *times)
{
	if ((*times)++ < 100)
		sched_yield();
	else
		usleep(100);
}

/* Called when the thread has found an event. */
static inline void pst_spin_found(struct pst_spin *spin)
{
	if (spin->since)
		spin->skips = 0;
	spin->since = 0;
}

/* Executes the CPU's pause instruction `pauses` times. */
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
