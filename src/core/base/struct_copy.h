/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies structs of the public API, which begin with their size. A caller that was compiled with
 * an older or newer header passes a struct with fewer or more fields than this library's struct
 * has.
 */
#ifndef PST_CORE_STRUCT_COPY_H
#define PST_CORE_STRUCT_COPY_H

#include <string.h>

#include "core/base/err.h"

/*
 * Copies the caller's struct `from` to the `len` bytes at `into`. Fields that the caller's
 * struct lacks become zero, which means the default. If `from` is NULL, all fields become zero.
 * `what` is the struct's name for error messages. Returns 0, -EINVAL if the struct's size is not
 * plausible, or -E2BIG if a field that this library does not have is not zero.
 */
int pst_struct_copy_any(void *into, size_t len, const void *from, const char *what,
			struct pst_err *err);

/* Does the same as pst_struct_copy_any. It is inline for the usual caller, which was compiled with
 * the header of this version. */
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

/* Finds element `i` of the caller's array `array`, see pst_struct_element. `what` is the struct's
 * name for error messages. Returns 0, or -EINVAL if the element has another size than element 0. */
int pst_struct_at(const void *array, uint64_t i, const char *what, const void **out,
		  struct pst_err *err);

/* Copies as much of `ours` as fits into the caller's struct `into`. Returns 0, or -EINVAL if `into`
 * is NULL or the caller has not set the size of that struct. */
int pst_struct_copy_out(void *into, const void *ours, size_t len);

#endif
