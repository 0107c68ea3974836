/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Generates the bytes that `penstock gdsio` writes. With -V the bytes must depend only on the
 * seed and on the offset in the file. A later run can then verify them with another number of
 * threads, another transfer size or another order.
 */
#include "gdsio_data.h"

#include <string.h>

uint64_t gdsio_splitmix64(uint64_t n)
{
	n += 0x9e3779b97f4a7c15u;
	n = (n ^ n >> 30) * 0xbf58476d1ce4e5b9u;
	n = (n ^ n >> 27) * 0x94d049bb133111ebu;
	return n ^ n >> 31;
}

uint64_t gdsio_random(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * 0x2545f4914f6cdd1du;
}

static uint64_t pattern_word(uint64_t index, uint64_t seed)
{
	return gdsio_splitmix64(index ^ gdsio_splitmix64(seed));
}

void gdsio_pattern(void *to, size_t len, uint64_t off, uint64_t seed)
{
	char *at = to;

	while (len) {
		uint64_t value = pattern_word(off / 8, seed);
		size_t skip = off % 8, n = 8 - skip < len ? 8 - skip : len;

		memcpy(at, (char *)&value + skip, n);
		at += n;
		off += n;
		len -= n;
	}
}

size_t gdsio_differs(const void *bytes, size_t len, uint64_t off, uint64_t seed)
{
	const char *at = bytes;
	char wanted[4096];

	for (size_t done = 0; done < len;) {
		size_t n = len - done < sizeof(wanted) ? len - done : sizeof(wanted), i = 0;

		gdsio_pattern(wanted, n, off + done, seed);
		if (memcmp(at + done, wanted, n)) {
			while (at[done + i] == wanted[i])
				i++;
			return done + i;
		}
		done += n;
	}
	return len;
}
