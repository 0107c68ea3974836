/* SPDX-License-Identifier: Apache-2.0 */
/* Implements crc32c_cpu.h by the instruction CRC32 of SSE4.2. Compiled for x86-64 only. */
#include "common/crc32c_cpu.h"

#include <nmmintrin.h>
#include <string.h>

#include "common/crc32c_streams.h"

#define WITH_CRC __attribute__((target("sse4.2")))

WITH_CRC static inline uint64_t word_add(uint64_t crc, const unsigned char *at)
{
	uint64_t word;

	memcpy(&word, at, sizeof(word));
	return _mm_crc32_u64(crc, word);
}

WITH_CRC static inline uint64_t byte_add(uint64_t crc, unsigned char byte)
{
	return _mm_crc32_u8((uint32_t)crc, byte);
}

static bool cpu_has(void)
{
	return __builtin_cpu_supports("sse4.2");
}

WITH_CRC static uint32_t cpu_raw(uint32_t raw, const void *mem, size_t len)
{
	return pst_crc32c_streams(raw, mem, len, word_add, byte_add);
}

const struct pst_crc32c_cpu pst_crc32c_cpu = {
	.has = cpu_has,
	.raw = cpu_raw,
};
