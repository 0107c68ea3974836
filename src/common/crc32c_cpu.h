/* SPDX-License-Identifier: Apache-2.0 */
/*
 * CRC-32C by an instruction of the CPU. A build compiles one of three files, which define the
 * table: crc32c_x86.c for x86-64, crc32c_arm.c for 64-bit ARM, or no_crc32c.c for all other CPUs.
 * Only crc32c.c uses the table.
 */
#ifndef PST_COMMON_CRC32C_CPU_H
#define PST_COMMON_CRC32C_CPU_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct pst_crc32c_cpu {
	/* Returns whether this CPU has an instruction for CRC-32C. */
	bool (*has)(void);
	/* Does what pst_crc32c_raw does. NULL if no CPU of this kind has an instruction. */
	uint32_t (*raw)(uint32_t raw, const void *mem, size_t len);
};
extern const struct pst_crc32c_cpu pst_crc32c_cpu;

#endif
