/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Computes a hash of 64-bit values. Ranks use it to compare their models. It detects accidental
 * differences; it is not cryptographic.
 */
#ifndef PST_GROUP_HASH_H
#define PST_GROUP_HASH_H

#include <stdint.h>

/* Adds a value to a hash: returns the hash of all values so far. `h` is the hash of the values
 * before `value`. */
static inline uint64_t pst_hash_add(uint64_t h, uint64_t value)
{
	h = (h ^ value) * 0x9e3779b97f4a7c15u;
	return h ^ h >> 29;
}

#endif
