/* SPDX-License-Identifier: Apache-2.0 */
/* Implements why.h. Contains the library's only table from errno to reason, which is an enum
 * penstock_why. */
#include "common/why.h"

#include <errno.h>

enum penstock_why pst_why_from_errno(int code)
{
	switch (code < 0 ? -code : code) {
	case ENOENT:
	case ENOTDIR:
	case ELOOP:
	case ENAMETOOLONG:
		return PENSTOCK_WHY_NOT_FOUND;
	case EACCES:
	case EPERM:
		return PENSTOCK_WHY_NO_PERMISSION;
	case EROFS:
		return PENSTOCK_WHY_READ_ONLY;
	case EMFILE:
	case ENFILE:
		return PENSTOCK_WHY_NO_FILES;
	case ENOSPC:
	case EDQUOT:
	case EFBIG:
		return PENSTOCK_WHY_NO_SPACE;
	case ENOMEM:
		return PENSTOCK_WHY_NO_MEMORY;
	case EINVAL:
	case EBADF:
		return PENSTOCK_WHY_BAD_ARGUMENT;
	case EISDIR:
	case ESPIPE:
		return PENSTOCK_WHY_BAD_KIND;
	case ECANCELED:
		return PENSTOCK_WHY_CANCELLED;
	case ETIME:
		return PENSTOCK_WHY_DEADLINE;
	case EOPNOTSUPP:
	case ENOSYS:
		return PENSTOCK_WHY_UNSUPPORTED;
	default:
		return PENSTOCK_WHY_IO_ERROR;
	}
}
