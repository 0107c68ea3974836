/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the parser of the mount table. The first line of the input is the mount point to find,
 * and the rest is the text of /proc/self/mountinfo. libFuzzer runs this target, or replay.c
 * does with its corpus. A failure is a read beyond the text, or a string that is not
 * terminated.
 */
#include <stdlib.h>
#include <string.h>

#include "storage/mountinfo.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

static void check_terminated(const char *text, size_t room)
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
		check_terminated(mount.type, sizeof(mount.type));
		check_terminated(mount.point, sizeof(mount.point));
		check_terminated(mount.source, sizeof(mount.source));
		check_terminated(mount.upper, sizeof(mount.upper));
		check_terminated(mount.upper_fs, sizeof(mount.upper_fs));
		if ((unsigned)mount.fs >= PST_FS_KINDS)
			abort();
	}
	return 0;
}
