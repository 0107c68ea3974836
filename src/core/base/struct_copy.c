/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copying versioned structs between caller and library: see struct_copy.h. Every public call
 * that takes an options struct uses it; it must never read past the caller's struct.
 */
#include "core/base/struct_copy.h"

#include <string.h>

/* No public struct is longer. A larger size is garbage, and reading so far may fault. */
#define SIZE_MAX_BYTES 4096u

int pst_struct_copy_in(void *into, size_t len, const void *from, const char *what,
		       struct pst_err *err)
{
	size_t theirs;

	memset(into, 0, len);
	if (!from)
		return 0;
	memcpy(&theirs, from, sizeof(theirs));
	if (theirs < sizeof(theirs) || theirs > SIZE_MAX_BYTES)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"%s: size is %zu, initialise it with its _INIT macro", what,
				theirs);
	for (size_t i = len; i < theirs; i++)
		if (((const char *)from)[i])
			return pst_fail_errno(err, E2BIG, PENSTOCK_WHY_BAD_ARGUMENT,
					      "%s has fields that this library does not know",
					      what);
	memcpy(into, from, theirs < len ? theirs : len);
	return 0;
}

int pst_struct_copy_out(void *into, const void *ours, size_t len)
{
	size_t theirs;

	memcpy(&theirs, into, sizeof(theirs));
	if (theirs < sizeof(theirs))
		return pst_fail(NULL, PENSTOCK_WHY_BAD_ARGUMENT, "the struct's size is not set");
	memcpy((char *)into + sizeof(theirs), (const char *)ours + sizeof(theirs),
	       (theirs < len ? theirs : len) - sizeof(theirs));
	return 0;
}
