/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements crc_fold.h by the instruction PCLMULQDQ. Compiled for x86-64 only.
 *
 * A block of 16 bytes is a polynomial A * x^64 + B over GF(2), where A has the first 8 bytes. To
 * move it 64 bytes ahead is to multiply it by x^512, which is A * x^576 + B * x^512. The lowest bit
 * of a product of two registers stands for x^126, while the lowest bit of a block stands for x^127.
 * So the product is one power of x too high, and the factors are x^575 and x^511.
 */
#include "s3/crc_fold.h"

#include <immintrin.h>

#define WITH_CLMUL __attribute__((target("pclmul,sse4.1")))

static bool cpu_has(void)
{
	return __builtin_cpu_supports("pclmul") && __builtin_cpu_supports("sse4.1");
}

WITH_CLMUL static inline __m128i block_read(const unsigned char *at)
{
	return _mm_loadu_si128((const __m128i *)(const void *)at);
}

/* Moves a block 64 bytes ahead, which multiplies it by x^512, and adds the block `there` at this
 * place. */
WITH_CLMUL static inline __m128i block_move(__m128i block, __m128i factors, __m128i there)
{
	__m128i first = _mm_clmulepi64_si128(block, factors, 0x00);
	__m128i second = _mm_clmulepi64_si128(block, factors, 0x11);

	return _mm_xor_si128(_mm_xor_si128(first, second), there);
}

WITH_CLMUL static void cpu_fold(const uint64_t factors[2], uint64_t raw, const void *mem,
				size_t len, unsigned char out[PST_CRC_FOLD])
{
	const unsigned char *at = mem;
	__m128i by = _mm_set_epi64x((long long)factors[1], (long long)factors[0]);
	__m128i a = _mm_xor_si128(block_read(at), _mm_set_epi64x(0, (long long)raw));
	__m128i b = block_read(at + 16);
	__m128i c = block_read(at + 32);
	__m128i d = block_read(at + 48);

	for (at += 64, len -= 64; len; at += 64, len -= 64) {
		a = block_move(a, by, block_read(at));
		b = block_move(b, by, block_read(at + 16));
		c = block_move(c, by, block_read(at + 32));
		d = block_move(d, by, block_read(at + 48));
	}
	_mm_storeu_si128((__m128i *)(void *)out, a);
	_mm_storeu_si128((__m128i *)(void *)(out + 16), b);
	_mm_storeu_si128((__m128i *)(void *)(out + 32), c);
	_mm_storeu_si128((__m128i *)(void *)(out + 48), d);
}

const struct pst_crc_fold pst_crc_fold = {
	.has = cpu_has,
	.fold = cpu_fold,
};
