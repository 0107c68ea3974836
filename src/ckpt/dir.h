/* SPDX-License-Identifier: Apache-2.0 */
/* Lists a folder by its descriptor. So if another process replaces the folder by a symbolic link
 * meanwhile, the listing does not follow this link. */
#ifndef PST_CKPT_DIR_H
#define PST_CKPT_DIR_H

#include <dirent.h>

/*
 * Calls `each` for each name in a folder, in any order, also for "." and "..".
 *
 * fd	descriptor of the folder; its file position does not change
 * path	name of the folder for messages
 * each	function to call; a result other than 0 ends the listing
 *
 * Returns 0, the result of `each` that ended the listing, or the negative errno of open(2) or
 * readdir(3), with a message.
 */
int pst_dir_each(int fd, const char *path, int (*each)(void *user, const struct dirent *entry),
		 void *user);

#endif
