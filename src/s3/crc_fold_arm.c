/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements crc_fold.h by the instruction PMULL of ARMv8. Compiled for 64-bit ARM only.
 * crc_fold_x86.c explains the arithmetic.
 */
#include "s3/crc_fold.h"

#include <arm_neon.h>
#include <sys/auxv.h>

#define HWCAP_HAS_PMULL (1ul << 4) /* HWCAP_PMULL of the kernel's asm/hwcap.h */
#define WITH_PMULL __attribute__((target("+crypto")))

static bool cpu_has(void)
{
	return __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ && getauxval(AT_HWCAP) & HWCAP_HAS_PMULL;
}

static inline uint64x2_t block_read(const unsigned char *at)
{
	return vreinterpretq_u64_u8(vld1q_u8(at));
}

/* Moves a block 64 bytes ahead, which multiplies it by x^512, and adds the block `there` at this
 * place. */
WITH_PMULL static inline uint64x2_t block_move(uint64x2_t block, const uint64_t factors[2],
					       uint64x2_t there)
{
	poly128_t first = vmull_p64((poly64_t)vgetq_lane_u64(block, 0), (poly64_t)factors[0]);
	poly128_t second = vmull_p64((poly64_t)vgetq_lane_u64(block, 1), (poly64_t)factors[1]);

	return veorq_u64(veorq_u64(vreinterpretq_u64_p128(first), vreinterpretq_u64_p128(second)),
			 there);
}

WITH_PMULL static void cpu_fold(const uint64_t factors[2], uint64_t raw, const void *mem,
				size_t len, unsigned char out[PST_CRC_FOLD])
{
	const unsigned char *at = mem;
	uint64x2_t a = veorq_u64(block_read(at), vsetq_lane_u64(raw, vdupq_n_u64(0), 0));
	uint64x2_t b = block_read(at + 16);
	uint64x2_t c = block_read(at + 32);
	uint64x2_t d = block_read(at + 48);

	for (at += 64, len -= 64; len; at += 64, len -= 64) {
		a = block_move(a, factors, block_read(at));
		b = block_move(b, factors, block_read(at + 16));
		c = block_move(c, factors, block_read(at + 32));
		d = block_move(d, factors, block_read(at + 48));
	}
	vst1q_u8(out, vreinterpretq_u8_u64(a));
	vst1q_u8(out + 16, vreinterpretq_u8_u64(b));
	vst1q_u8(out + 32, vreinterpretq_u8_u64(c));
	vst1q_u8(out + 48, vreinterpretq_u8_u64(d));
}

const struct pst_crc_fold pst_crc_fold = {
	.has = cpu_has,
	.fold = cpu_fold,
};
