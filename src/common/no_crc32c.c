/* SPDX-License-Identifier: Apache-2.0 */
/* Implements crc32c_cpu.h for CPUs for which the library knows no instruction. */
#include "common/crc32c_cpu.h"

static bool cpu_has(void)
{
	return false;
}

const struct pst_crc32c_cpu pst_crc32c_cpu = {
	.has = cpu_has,
};
