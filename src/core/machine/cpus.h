/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sets of CPUs, and a parser of the kernel's CPU lists ("0-3,8"). The topology uses them to report
 * which CPUs are near a device. The parser must fail unless the whole text is a list. It must never
 * accept only a part of the text.
 */
#ifndef PST_CORE_CPUS_H
#define PST_CORE_CPUS_H

#include <stdbool.h>
#include <stdint.h>

#define PST_CPUS_MAX 8192 /* number of CPUs that Linux on x86 supports at most */

struct pst_cpus {
	uint64_t bits[PST_CPUS_MAX / 64];
};

/* Parses a list such as "0-3,8"; "" is the empty set. Returns 0, -EINVAL if the text is not a list,
 * or -ERANGE if a CPU number is PST_CPUS_MAX or more. */
int pst_cpus_parse(const char *text, struct pst_cpus *out);
/* Returns the number of CPUs in the set. */
unsigned pst_cpus_count(const struct pst_cpus *cpus);
/* Returns whether the set contains `cpu`. */
static inline bool pst_cpus_has(const struct pst_cpus *cpus, unsigned cpu)
{
	return cpu < PST_CPUS_MAX && (cpus->bits[cpu / 64] >> (cpu % 64) & 1);
}

#endif
