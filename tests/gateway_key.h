/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Converts a file path of the gateway to the key of the S3 object at that path. Tests compare the
 * result with the key from which the gateway made the path. Called by unit/test_keypath.c and
 * fuzz/gateway.c.
 */
#ifndef PENSTOCK_GATEWAY_KEY_H
#define PENSTOCK_GATEWAY_KEY_H

#include <string.h>

#include "gateway/keypath.h"

/* Stores the key of the object at this path in `out`, and returns the key's length. Returns -1 if a
 * name in the path cannot belong to a key, or would lead out of its folder. */
static inline long gateway_key(const char *path, char out[GW_PATH_MAX])
{
	char before[GW_PATH_MAX], name[GW_PATH_MAX];
	size_t len = 0, inside = 0;

	for (;;) {
		size_t name_len = strcspn(path, "/"), part_len;
		enum gw_name_kind kind;

		memcpy(name, path, name_len);
		name[name_len] = '\0';
		if (!strcmp(name, ".") || !strcmp(name, "..") || name_len > GW_NAME_MAX)
			return -1;
		kind = gw_name_parse(name, before, inside, before + inside, &part_len);
		if (kind != GW_NAME_WHOLE && kind != GW_NAME_PIECE)
			return -1;
		inside += part_len;
		path += name_len;
		if (kind == GW_NAME_WHOLE) {
			memcpy(out + len, before, inside);
			len += inside;
			inside = 0;
			if (!*path)
				return (long)len;
			out[len++] = '/';
		} else if (!*path) {
			return -1;
		}
		path++;
	}
}

#endif
