/* SPDX-License-Identifier: Apache-2.0 */
/* Implements object.h. It never reads the bytes of tensors. */
#include "weights/object.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "weights/err.h"
#include "weights/safetensors.h"

bool pst_weights_is_object(const char *path)
{
	return !strncmp(path, "s3://", 5) || !strncmp(path, "https://", 8) ||
	       !strncmp(path, "http://", 7);
}

bool pst_weights_object_ends_with(const char *url, const char *tail)
{
	size_t len = strcspn(url, "?"), n = strlen(tail);

	return len > n && !strncmp(url + len - n, tail, n);
}

bool pst_weights_object_beside(const char *url, const char *name, char *to, size_t capacity)
{
	size_t end = strcspn(url, "?"), at = end;

	while (at && url[at - 1] != '/')
		at--;
	if (at >= capacity)
		return false;
	memcpy(to, url, at);
	for (; *name && at + 4 < capacity; name++)
		/* In a URL, these two have a meaning of their own. */
		at += (size_t)snprintf(to + at, capacity - at,
				       *name == '%' || *name == '?' ? "%%%02X" : "%c", *name);
	return !*name && (size_t)snprintf(to + at, capacity - at, "%s", url + end) < capacity - at;
}

int pst_weights_object_read(struct penstock_storage *st, const char *url, void *to, size_t len,
			    uint64_t off)
{
	struct penstock_device *host;
	int ret = penstock_device_open("host", NULL, &host);
	int64_t n;

	if (ret < 0)
		return pst_weights_fail_lib(ret, url, NULL, off);
	n = penstock_read(st, host, to, len, off);
	if (n < 0)
		ret = pst_weights_fail_lib((int)n, url, NULL, off);
	else if ((uint64_t)n < len)
		ret = pst_weights_fail(ENODATA, PENSTOCK_WHY_SHRANK, url, NULL, off + (uint64_t)n,
				       "the object ends inside its header");
	else
		ret = 0;
	penstock_device_close(host);
	return ret;
}

int pst_weights_object_read_whole(const char *url, char **out, size_t *len)
{
	struct penstock_storage *st;
	int64_t length;
	int ret = penstock_open(url, NULL, &st);

	if (ret < 0)
		return pst_weights_fail_lib(ret, url, NULL, PST_NO_OFF);
	length = penstock_storage_length(st);
	if (length < 0)
		ret = pst_weights_fail_lib((int)length, url, NULL, PST_NO_OFF);
	else if (length > PST_ST_HEADER_MAX)
		ret = pst_weights_fail(EBADMSG, PENSTOCK_WHY_MALFORMED, url, NULL, PST_NO_OFF,
				       "it is longer than 100 MB");
	*out = ret ? NULL : malloc((size_t)length + 1);
	if (!ret && !*out)
		ret = pst_weights_no_memory("an index");
	if (!ret && length)
		ret = pst_weights_object_read(st, url, *out, (size_t)length, 0);
	penstock_close(st);
	if (ret) {
		free(*out);
		return ret;
	}
	(*out)[length] = '\0';
	*len = (size_t)length;
	return 0;
}
