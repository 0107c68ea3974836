/* SPDX-License-Identifier: Apache-2.0 */
/*
 * splitmix64 (Steele, Lea, Flood 2014): a hash of 64 bits. The hashes of successive numbers look
 * random, but are the same in every run. Used for test bytes and for faults that are generated
 * from a seed; never for secrets.
 */
#ifndef PST_CORE_SPLITMIX64_H
#define PST_CORE_SPLITMIX64_H

#include <stdint.h>

/* Returns the hash of `x`. */
static inline uint64_t pst_splitmix64(uint64_t x)
{
	x += 0x9e3779b97f4a7c15u;
	x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
	x = (x ^ x >> 27) * 0x94d049bb133111ebu;
	return x ^ x >> 31;
}

#endif
