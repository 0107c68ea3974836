/* SPDX-License-Identifier: Apache-2.0 */
/* Lists the folder of a checkpoint, with an error message. */
#ifndef PST_CKPT_DIR_H
#define PST_CKPT_DIR_H

#include <dirent.h>

/* Does the same as pst_dir_each (common/dir.h). If it fails itself, it leaves a message. `path` is
 * the name of the folder in the message. */
int pst_ckpt_dir_each(int fd, const char *path,
		      int (*each)(void *user, const struct dirent *entry), void *user);

#endif
