/* SPDX-License-Identifier: Apache-2.0 */
/*
 * splitmix64 (Steele, Lea, Flood 2014): a good word for any counter, the same each time.
 * For bytes and faults that are made from a seed; never for secrets.
 */
#ifndef PST_CORE_MIX_H
#define PST_CORE_MIX_H

#include <stdint.h>

static inline uint64_t pst_splitmix64(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

#endif
