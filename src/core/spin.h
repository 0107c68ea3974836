/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Looking on for a moment before sleeping. To be woken costs a thread more than what
 * it waits for, where that comes every few microseconds; where it does not, looking
 * is a waste. So who looked in vain sleeps at once the next few times, more of them
 * the longer it goes on. Used by lanes and by callers that wait; one thread each.
 */
#ifndef PST_CORE_SPIN_H
#define PST_CORE_SPIN_H

#include <stdbool.h>
#include <stdint.h>
#include <time.h>

/* As long as a wake-up takes on a virtual machine whose processor had gone idle. */
#define PST_SPIN_NS 50000u
#define PST_SPIN_SKIPS_MAX 63u

struct pst_spin {
	uint64_t since;	/* 0: not looking */
	unsigned skips; /* sleeps that go without looking after a look in vain */
	unsigned left;	/* of them */
};

/* Nothing was there. True: look again; false: sleep now. */
static inline bool pst_spin_on(struct pst_spin *spin)
{
	struct timespec ts;
	uint64_t now;

	if (spin->left) {
		spin->left--;
		return false;
	}
	clock_gettime(CLOCK_MONOTONIC, &ts);
	now = (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
	if (!spin->since)
		spin->since = now;
	if (now - spin->since < PST_SPIN_NS)
		return true;
	spin->since = 0;
	spin->skips = spin->skips < PST_SPIN_SKIPS_MAX ? spin->skips * 2 + 1 : spin->skips;
	spin->left = spin->skips;
	return false;
}

/* Something was there. */
static inline void pst_spin_found(struct pst_spin *spin)
{
	if (spin->since)
		spin->skips = 0;
	spin->since = 0;
}

#endif
