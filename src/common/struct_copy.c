/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements struct_copy.h. The member `size` of the caller's struct is the struct's length. These
 * functions never access bytes beyond this length, and never read more than PST_STRUCT_SIZE_MAX
 * bytes.
 */
#include "common/struct_copy.h"

#include <errno.h>
#include <string.h>

int pst_struct_read(void *to, size_t len, const void *from)
{
	const unsigned char *bytes = from;
	size_t size;

	memset(to, 0, len);
	if (!from)
		return 0;
	memcpy(&size, from, sizeof(size));
	if (size < sizeof(size) || size > PST_STRUCT_SIZE_MAX)
		return -EINVAL;
	for (size_t i = len; i < size; i++)
		if (bytes[i])
			return -E2BIG;
	memcpy(to, from, size < len ? size : len);
	return 0;
}

const void *pst_struct_element(const void *array, uint64_t i)
{
	size_t stride, size;
	const char *at;

	memcpy(&stride, array, sizeof(stride));
	at = (const char *)array + i * stride;
	memcpy(&size, at, sizeof(size));
	return size == stride ? at : NULL;
}

int pst_struct_write(void *to, const void *from, size_t len)
{
	size_t size;

	memcpy(&size, to, sizeof(size));
	if (size < sizeof(size))
		return -EINVAL;
	memcpy((char *)to + sizeof(size), (const char *)from + sizeof(size),
	       (size < len ? size : len) - sizeof(size));
	return 0;
}
