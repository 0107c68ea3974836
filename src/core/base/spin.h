/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking on for a moment before sleeping. To be woken costs a thread more than what
 * it waits for, where that comes every few microseconds; where it does not, looking
 * is a waste. So who looked in vain sleeps at once the next few times, more of them
 * the longer it goes on. Used by lanes and by callers that wait; one thread each.
 */
#ifndef PST_CORE_SPIN_H
#define PST_CORE_SPIN_H

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>
#include <unistd.h>

#include "core/base/clock.h"

#define PST_SPIN_NS 50000u
/* For short requests that are to be fast: so long nobody sleeps, every time. A
 * processor of a virtual machine that went idle takes hundreds of microseconds to come
 * back, longer than the read itself. */
#define PST_SPIN_FAST_NS 500000u
#define PST_SPIN_SHORT (64u << 10) /* bytes of a short one */
#define PST_SPIN_SKIPS_MAX 63u

struct pst_spin {
	bool fast;	/* the last request was short and to be fast */
	uint64_t since; /* 0: not looking */
	unsigned skips; /* sleeps that go without looking after a look in vain */
	unsigned left;	/* of them */
};

/* Nothing was there. True: look again; false: sleep now. */
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

/* For who waits for something that wakes nobody, and that may last as long as a read: at
 * first gives way, then sleeps a little each time. */
static inline void pst_backoff(unsigned *times)
{
	if ((*times)++ < 100)
		sched_yield();
	else
		usleep(100);
}

/* A request, or a part of one, of so many bytes has been taken in. */
static inline void pst_spin_took(struct pst_spin *spin, bool fast, uint64_t len)
{
	spin->fast = fast && len <= PST_SPIN_SHORT;
}

/* Something was there. */
static inline void pst_spin_found(struct pst_spin *spin)
{
	if (spin->since)
		spin->skips = 0;
	spin->since = 0;
}

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
