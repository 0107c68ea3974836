/* SPDX-License-Identifier: Apache-2.0 */
/* Runs the kernel of src/device/crc64nvme.cu on the CPU: see crc_kernel.h. */
#include "s3/crc.h"

static unsigned long long raw_crc(const void *mem, size_t len, uint64_t after)
{
	return pst_crc_shift(PST_CRC64NVME, pst_crc_raw(PST_CRC64NVME, 0, mem, len), after);
}

#define SOURCE "device/crc64nvme.cu"
#include "crc_kernel.h"
