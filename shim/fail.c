/* SPDX-License-Identifier: Apache-2.0 */
/*
 * From the core's -errno and reason to what cuFile's callers expect: a code of the
 * ABI where it is ours to say, else -1 with errno as the file system gave it.
 * Called after a failure only.
 */
#include <errno.h>

#include "shim.h"

int shim_code(int64_t ret, enum penstock_why why)
{
	if (why == PENSTOCK_WHY_DEVICE_ERROR)
		/* The context is gone, or none is current. */
		return ret == -ESTALE || ret == -ENXIO || ret == -ESHUTDOWN
			       ? CUF_INVALID_CONTEXT_ERROR
			       : CUF_CUDA_DRIVER_ERROR;
	if (why == PENSTOCK_WHY_REQUIRE || why == PENSTOCK_WHY_CANARY ||
	    why == PENSTOCK_WHY_UNPROVEN)
		return CUF_IO_NOT_SUPPORTED;
	if (why == PENSTOCK_WHY_NO_DEVICE || why == PENSTOCK_WHY_NO_DRIVER)
		return CUF_DEVICE_NOT_FOUND;
	switch (ret) {
	case -EOPNOTSUPP:
		return CUF_IO_NOT_SUPPORTED;
	case -EOWNERDEAD:
		return CUF_DRIVER_NOT_INITIALIZED;
	default:
		return 0;
	}
}

ssize_t shim_result(int64_t ret, enum penstock_why why)
{
	int code;

	if (ret >= 0)
		return (ssize_t)ret;
	code = shim_code(ret, why);
	if (code)
		return -code;
	errno = (int)-ret;
	return -1;
}
