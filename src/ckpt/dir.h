/* SPDX-License-Identifier: Apache-2.0 */
/* Lists a folder by its descriptor, so a folder that is replaced by a link meanwhile leads nowhere
 * else. */
#ifndef PST_CKPT_DIR_H
#define PST_CKPT_DIR_H

#include <dirent.h>

/*
 * Calls `each` for each name in a folder, in any order, also for "." and "..".
 *
 * fd	descriptor of the folder; its position stays as it is
 * path	name of the folder for messages
 * each	a result other than 0 ends the listing
 *
 * Returns 0, the result of `each` that ended the listing, or the negative errno of open(2) or
 * readdir(3), with a message.
 */
int pst_dir_each(int fd, const char *path, int (*each)(void *user, const struct dirent *entry),
		 void *user);

#endif
