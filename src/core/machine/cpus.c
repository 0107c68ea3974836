/* SPDX-License-Identifier: Apache-2.0 */
/* Parses the kernel's lists of CPUs into sets of CPUs: see cpus.h. */
#include "core/machine/cpus.h"

#include <errno.h>

/* Parses one decimal number at *text, and moves *text to the character after the number. */
static int cpu_number_parse(const char **text, unsigned *out)
{
	unsigned value = 0, digits = 0;

	for (; **text >= '0' && **text <= '9'; (*text)++) {
		if (++digits > 7)
			return -ERANGE;
		value = value * 10 + (unsigned)(**text - '0');
	}
	if (!digits)
		return -EINVAL;
	if (value >= PST_CPUS_MAX)
		return -ERANGE;
	*out = value;
	return 0;
}

int pst_cpus_parse(const char *text, struct pst_cpus *out)
{
	struct pst_cpus cpus = {{0}};
	unsigned first, last;
	int ret;

	while (*text) {
		ret = cpu_number_parse(&text, &first);
		if (ret < 0)
			return ret;
		last = first;
		if (*text == '-') {
			text++;
			ret = cpu_number_parse(&text, &last);
			if (ret < 0)
				return ret;
		}
		if (last < first)
			return -EINVAL;
		for (; first <= last; first++)
			cpus.bits[first / 64] |= 1ULL << (first % 64);
		if (*text == ',' && text[1])
			text++;
		else if (*text)
			return -EINVAL;
	}
	*out = cpus;
	return 0;
}

unsigned pst_cpus_count(const struct pst_cpus *cpus)
{
	unsigned i, count = 0;

	for (i = 0; i < PST_CPUS_MAX / 64; i++)
		count += (unsigned)__builtin_popcountll(cpus->bits[i]);
	return count;
}
