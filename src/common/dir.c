/* SPDX-License-Identifier: Apache-2.0 */
/* Implements dir.h. An error of readdir(3) is reported, and not taken for the end of the folder. */
#include "common/dir.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

int pst_dir_each(int fd, int (*each)(void *user, const struct dirent *entry), void *user,
		 const char **failed)
{
	int copy = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), ret = 0;
	DIR *list = copy < 0 ? NULL : fdopendir(copy);
	const char *step = NULL;

	if (!list) {
		ret = -errno;
		step = "open";
		if (copy >= 0)
			close(copy);
	}
	while (list && !ret) {
		struct dirent *entry;

		errno = 0;
		entry = readdir(list);
		if (entry && strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
			ret = each(user, entry);
		if (entry)
			continue;
		ret = -errno;
		step = ret ? "list" : NULL;
		break;
	}
	if (list)
		closedir(list);
	if (failed)
		*failed = step;
	return ret;
}
