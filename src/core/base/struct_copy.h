/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Structs of the public API that begin with their size: a caller built against an older or
 * newer header has fewer or more fields than this library.
 */
#ifndef PST_CORE_STRUCT_COPY_H
#define PST_CORE_STRUCT_COPY_H

#include <string.h>

#include "core/base/err.h"

/*
 * Copies the caller's struct over `len` zeroed bytes at `into`. NULL leaves zeros, which are
 * the defaults. -EINVAL: its size is not plausible. -E2BIG: a field that this library does
 * not have is not zero. `what` is the struct's name for the message.
 */
int pst_struct_copy_any(void *into, size_t len, const void *from, const char *what,
			struct pst_err *err);

/* The same. The usual case, a caller built against this version's header, is inline. */
static inline int pst_struct_copy_in(void *into, size_t len, const void *from, const char *what,
				     struct pst_err *err)
{
	size_t size;

	if (!from) {
		memset(into, 0, len);
		return 0;
	}
	memcpy(&size, from, sizeof(size));
	if (size != len)
		return pst_struct_copy_any(into, len, from, what, err);
	memcpy(into, from, len);
	return 0;
}

/* Copies as much of `ours` as the caller's struct holds. -EINVAL: its size is not set. */
int pst_struct_copy_out(void *into, const void *ours, size_t len);

#endif
