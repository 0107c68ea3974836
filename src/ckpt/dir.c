/* SPDX-License-Identifier: Apache-2.0 */
/* Lists a folder by its descriptor. Called by all code that looks for the files of a checkpoint. */
#include "ckpt/dir.h"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "weights/err.h"

int pst_dir_each(int fd, const char *path, int (*each)(void *user, const struct dirent *entry),
		 void *user)
{
	int copy = openat(fd, ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC), ret = 0;
	DIR *d = copy < 0 ? NULL : fdopendir(copy);
	struct dirent *e;

	if (!d) {
		ret = pst_weights_fail_errno(errno, path, NULL, PST_NO_OFF, "cannot open: %m");
		if (copy >= 0)
			close(copy);
		return ret;
	}
	for (errno = 0; !ret && (e = readdir(d)); errno = 0)
		ret = each(user, e);
	if (!ret && errno)
		ret = pst_weights_fail_errno(errno, path, NULL, PST_NO_OFF, "cannot list: %m");
	closedir(d);
	return ret;
}
