/* SPDX-License-Identifier: Apache-2.0 */
/* Lists a folder by its descriptor. So the right folder is listed, even if a link replaces its path
 * meanwhile. Called for the folders of checkpoints and by the gateway. */
#ifndef PST_COMMON_DIR_H
#define PST_COMMON_DIR_H

#include <dirent.h>

/*
 * Calls `each` for each name in a folder except "." and "..", in any order.
 *
 * fd		descriptor of the folder; its position stays as it is
 * each		a result other than 0 ends the listing
 * failed	becomes "open" or "list" if this failed, else NULL; may be NULL
 *
 * Returns 0, the result of `each` that ended the listing, or the negative errno of open(2) or
 * readdir(3).
 */
int pst_dir_each(int fd, int (*each)(void *user, const struct dirent *entry), void *user,
		 const char **failed);

#endif
