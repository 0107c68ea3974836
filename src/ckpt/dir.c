/* SPDX-License-Identifier: Apache-2.0 */
/* Implements dir.h. Called by all code that looks for the files of a checkpoint. */
#include "ckpt/dir.h"

#include "common/dir.h"
#include "weights/err.h"

int pst_ckpt_dir_each(int fd, const char *path, int (*each)(void *user, const struct dirent *entry),
		      void *user)
{
	const char *failed;
	int ret = pst_dir_each(fd, each, user, &failed);

	return failed ? pst_weights_fail_errno(-ret, path, NULL, PST_NO_OFF, "cannot %s: %m",
					       failed)
		      : ret;
}
