/* SPDX-License-Identifier: Apache-2.0 */
/* Implements crc32c_cpu.h by the instruction CRC32C of ARMv8. Compiled for 64-bit ARM only. */
#include "common/crc32c_cpu.h"

#include <endian.h>
#include <string.h>
#include <sys/auxv.h>

#include "common/crc32c_streams.h"

#define HWCAP_HAS_CRC32 (1ul << 7) /* HWCAP_CRC32 of the kernel's asm/hwcap.h */

/* Adds 8 bytes to a raw CRC. With .arch_extension, the assembler accepts the instruction even if
 * the compiler generates code for CPUs without it. */
static inline uint64_t word_add(uint64_t crc, const unsigned char *at)
{
	uint32_t out = (uint32_t)crc;
	uint64_t word;

	memcpy(&word, at, sizeof(word));
	__asm__(".arch_extension crc\n\tcrc32cx %w0, %w0, %x1" : "+r"(out) : "r"(le64toh(word)));
	return out;
}

static inline uint64_t byte_add(uint64_t crc, unsigned char byte)
{
	uint32_t out = (uint32_t)crc;

	__asm__(".arch_extension crc\n\tcrc32cb %w0, %w0, %w1" : "+r"(out) : "r"(byte));
	return out;
}

static bool cpu_has(void)
{
	return getauxval(AT_HWCAP) & HWCAP_HAS_CRC32;
}

static uint32_t cpu_raw(uint32_t raw, const void *mem, size_t len)
{
	return pst_crc32c_streams(raw, mem, len, word_add, byte_add);
}

const struct pst_crc32c_cpu pst_crc32c_cpu = {
	.has = cpu_has,
	.raw = cpu_raw,
};
