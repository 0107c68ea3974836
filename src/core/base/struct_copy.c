/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies versioned structs between caller and library: see struct_copy.h. Every public function
 * that takes an options struct uses it. common/struct_copy.c copies the bytes; this file writes
 * the error messages.
 */
#include "core/base/struct_copy.h"

#include <errno.h>
#include <string.h>

#include "common/struct_copy.h"

int pst_struct_copy_any(void *into, size_t len, const void *from, const char *what,
			struct pst_err *err)
{
	int ret = pst_struct_read(into, len, from);
	size_t size;

	if (!ret)
		return 0;
	if (ret == -E2BIG)
		return pst_fail_errno(err, E2BIG, PENSTOCK_WHY_BAD_ARGUMENT,
				      "%s has fields that this library does not know", what);
	memcpy(&size, from, sizeof(size));
	return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
			"%s: size is %zu, initialise it with its _INIT macro", what, size);
}

int pst_struct_at(const void *array, uint64_t i, const char *what, const void **out,
		  struct pst_err *err)
{
	*out = pst_struct_element(array, i);
	if (*out)
		return 0;
	return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
			"%s: the size of element %llu differs from that of element 0", what,
			(unsigned long long)i);
}

int pst_struct_copy_out(void *into, const void *ours, size_t len)
{
	if (!into)
		return pst_fail_null("the struct to fill in");
	if (pst_struct_write(into, ours, len))
		return pst_fail(NULL, PENSTOCK_WHY_BAD_ARGUMENT, "the struct's size is not set");
	return 0;
}
