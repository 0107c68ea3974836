/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the mount table: the first line of the input is a mount point to look
 * for, the rest is /proc/self/mountinfo. Run by libFuzzer, or by replay.c over its
 * corpus. What it must never find: a read past the text, or a string without end.
 */
#include <stdlib.h>
#include <string.h>

#include "storage/mountinfo.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

static void ends(const char *text, size_t room)
{
	if (!memchr(text, '\0', room))
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	const uint8_t *end = len_bytes ? memchr(data, '\n', len_bytes) : NULL;
	size_t point_len = end ? (size_t)(end - data) : 0, rest;
	struct pst_mount_key key = {.id = -1, .has_dev = true, .major = 259, .minor = 1};
	struct pst_mount mount;
	char point[128] = "";
	unsigned i;

	if (!end || point_len >= sizeof(point))
		return 0;
	memcpy(point, data, point_len);
	rest = len_bytes - point_len - 1;
	for (i = 0; i < 3; i++) {
		key.id = i == 1 ? 22 : -1;
		key.point = i == 2 ? NULL : point;
		if (pst_mount_find((const char *)end + 1, rest, &key, &mount) < 0)
			continue;
		ends(mount.type, sizeof(mount.type));
		ends(mount.point, sizeof(mount.point));
		ends(mount.source, sizeof(mount.source));
		ends(mount.upper, sizeof(mount.upper));
		ends(mount.upper_fs, sizeof(mount.upper_fs));
		if ((unsigned)mount.fs >= PST_FS_KINDS)
			abort();
	}
	return 0;
}
