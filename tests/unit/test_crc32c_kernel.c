/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the kernel of src/device/crc32c.cu on the CPU: see crc_kernel.h. */
#include "common/crc32c.h"

static unsigned long long raw_crc(const void *mem, size_t len, uint64_t after)
{
	return pst_crc32c_shift(pst_crc32c_raw(0, mem, len), after);
}

#define SOURCE "device/crc32c.cu"
#include "crc_kernel.h"
