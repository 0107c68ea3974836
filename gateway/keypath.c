/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the mapping of keys to paths, see keypath.h. */
#include "keypath.h"

#include <errno.h>
#include <string.h>

/* A path that is being built from a key; `full` means that the path is too long. */
struct path {
	char *at;
	size_t len;
	bool full;
};

static void path_put(struct path *p, const char *bytes, size_t len)
{
	if (p->full || len >= GW_PATH_MAX - p->len) {
		p->full = true;
		return;
	}
	memcpy(p->at + p->len, bytes, len);
	p->len += len;
}

static void path_put_long(struct path *p, const char *part, size_t len)
{
	while (len > GW_LONG_PIECE) {
		path_put(p, "%+", 2);
		path_put(p, part, GW_LONG_PIECE);
		path_put(p, "/", 1);
		part += GW_LONG_PIECE;
		len -= GW_LONG_PIECE;
	}
	path_put(p, "%-", 2);
	path_put(p, part, len);
}

/* Returns the length of the file name for a component of a key, if one file name is enough. A '%'
 * at the start of the component takes two bytes more, because it is written as "%25". */
static size_t name_len(const char *part, size_t len)
{
	return len && part[0] == '%' ? len + 2 : len;
}

static void path_put_part(struct path *p, const char *part, size_t len)
{
	if (name_len(part, len) > GW_NAME_MAX) {
		path_put_long(p, part, len);
	} else if (!len) {
		path_put(p, "%e", 2);
	} else if (part[0] == '%') {
		path_put(p, "%25", 3);
		path_put(p, part + 1, len - 1);
	} else {
		if ((len == 1 && part[0] == '.') || (len == 2 && !memcmp(part, "..", 2)))
			path_put(p, "%", 1);
		path_put(p, part, len);
	}
}

int gw_keypath(const char *key, size_t len, char out[GW_PATH_MAX])
{
	struct path p = {.at = out};

	if (!len || memchr(key, '\0', len))
		return -EINVAL;
	if (len > GW_KEY_MAX)
		return -ENAMETOOLONG;
	for (;;) {
		const char *slash = memchr(key, '/', len);
		size_t part = slash ? (size_t)(slash - key) : len;

		path_put_part(&p, key, part);
		if (!slash)
			break;
		path_put(&p, "/", 1);
		key += part + 1;
		len -= part + 1;
	}
	if (p.full)
		return -ENAMETOOLONG;
	out[p.len] = '\0';
	return (int)p.len;
}

/* Parses a file name in a folder %+BYTES (keypath.h), where a long component of a key is split over
 * several names. Finds the bytes of the component that this name stands for. */
static enum gw_name_kind parse_inside(const char *name, size_t len, const char *before,
				      size_t inside, char *part, size_t *part_len)
{
	size_t bytes = len - 2;

	if (len < 3 || name[0] != '%' || (name[1] != '+' && name[1] != '-'))
		return GW_NAME_NONE;
	memcpy(part, name + 2, bytes);
	*part_len = bytes;
	if (name[1] == '+')
		return bytes == GW_LONG_PIECE ? GW_NAME_PIECE : GW_NAME_NONE;
	/* A component that fits in one file name must not be split, so such a name stands for no
	 * key. */
	return name_len(before, inside + bytes) > GW_NAME_MAX ? GW_NAME_WHOLE : GW_NAME_NONE;
}

enum gw_name_kind gw_name_parse(const char *name, const char *before, size_t inside, char *part,
				size_t *part_len)
{
	size_t len = strlen(name);

	if (!len || len > GW_NAME_MAX)
		return GW_NAME_NONE;
	if (!strcmp(name, GW_SELF) || !strcmp(name, GW_MOVING))
		return GW_NAME_INTERN;
	if (inside)
		return parse_inside(name, len, before, inside, part, part_len);
	if (name[0] != '%') {
		if (!strcmp(name, ".") || !strcmp(name, ".."))
			return GW_NAME_NONE;
		memcpy(part, name, len);
		*part_len = len;
		return GW_NAME_WHOLE;
	}
	if (!strcmp(name, "%e") || !strcmp(name, "%.") || !strcmp(name, "%..")) {
		*part_len = name[1] == 'e' ? 0 : len - 1;
		memcpy(part, name + 1, *part_len);
		return GW_NAME_WHOLE;
	}
	if (!strncmp(name, "%25", 3)) {
		part[0] = '%';
		memcpy(part + 1, name + 3, len - 3);
		*part_len = len - 2;
		return GW_NAME_WHOLE;
	}
	if (name[1] == '+' && len - 2 == GW_LONG_PIECE) {
		memcpy(part, name + 2, GW_LONG_PIECE);
		*part_len = GW_LONG_PIECE;
		return GW_NAME_PIECE;
	}
	return GW_NAME_NONE;
}
