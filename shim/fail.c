/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Translates an error of the library (-errno and reason) into the result of a cuFile call. The
 * result is a code of the ABI if one fits, else -1 with the errno of the file system. Every
 * file of the drop-in calls these functions, but only after a failure. They must never log.
 */
#include "fail.h"

#include <errno.h>

int shim_code(int64_t ret, enum penstock_why why)
{
	if (why == PENSTOCK_WHY_DEVICE_ERROR)
		/* ESTALE, ENXIO and ESHUTDOWN mean that the CUDA context was destroyed or that no
		 * context is current. */
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
