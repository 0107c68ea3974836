/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the check of files that contain secrets, see secret.h. */
#include "secret.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

/* Returns whether a group is the group of this process, or one of its supplementary groups. */
static bool is_own_group(gid_t group)
{
	int count = getgroups(0, NULL);
	gid_t *groups = count > 0 ? calloc((size_t)count, sizeof(*groups)) : NULL;
	bool found = group == getegid();

	count = groups ? getgroups(count, groups) : 0;
	for (int i = 0; i < count; i++)
		found |= groups[i] == group;
	free(groups);
	return found;
}

/* Returns whether the file may have an access control list. If so, the group bits of its mode are
 * not the rights of its group, but the most that any user or group of the list may do. */
static bool has_acl(int fd)
{
	return fgetxattr(fd, "system.posix_acl_access", NULL, 0) >= 0 ||
	       (errno != ENODATA && errno != EOPNOTSUPP);
}

/* Returns whether only this process's user, root, and the permitted group can read the file. A user
 * may have set the mode of its own file by accident, and its group may have many members. So a
 * group may read only files of root, such as those of a Kubernetes Secret with `fsGroup`. */
static bool is_private(int fd, const struct stat *st)
{
	if (!(st->st_mode & 077))
		return true;
	return !(st->st_mode & 037) && st->st_uid == 0 && is_own_group(st->st_gid) && !has_acl(fd);
}

int gw_secret_open(const char *path, const char *what, char *why, size_t why_len)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	struct stat st;

	if (fd < 0 || fstat(fd, &st))
		snprintf(why, why_len, "cannot read the %s in %s: %s", what, path, strerror(errno));
	else if (!S_ISREG(st.st_mode))
		snprintf(why, why_len, "%s is no file with the %s", path, what);
	else if (!is_private(fd, &st))
		snprintf(why, why_len,
			 "other users may read the %s in %s (mode %03o): chmod 600 %s, or let root "
			 "own it, with mode 440 and a group of this process",
			 what, path, (unsigned)(st.st_mode & 0777), path);
	else if (st.st_uid != geteuid() && st.st_uid != 0)
		snprintf(why, why_len, "%s belongs to another user: chown it to this user", path);
	else
		return fd;
	if (fd >= 0)
		close(fd);
	return -1;
}
