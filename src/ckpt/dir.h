/* SPDX-License-Identifier: Apache-2.0 */
/* The place of a checkpoint's files: a folder, or the objects of an S3 store below a prefix. A
 * function that fails sets the thread's error message. */
#ifndef PST_CKPT_DIR_H
#define PST_CKPT_DIR_H

#include <dirent.h>

#include "ckpt/objects.h"

struct pst_ckpt_dir {
	const char *path; /* name for messages */
	int fd;		  /* descriptor of the folder; -1 for objects */
	bool remote;	  /* whether the files are objects of a store */
	struct pst_objects objects;
};

/*
 * Opens a folder or a prefix.
 *
 * in	the folder or prefix in which `name` is; NULL if `name` is a path or a URL
 * name	a file URL names a folder of this host if `in` is NULL; must not be a symbolic link
 *	unless `in` is NULL
 * path	name for messages, which must stay valid. out->path becomes the path in a file URL, and the
 *	URL without options of objects
 */
int pst_ckpt_dir_open(const struct pst_ckpt_dir *in, const char *name, const char *path,
		      struct pst_ckpt_dir *out);
void pst_ckpt_dir_close(struct pst_ckpt_dir *dir);

/* Does the same as pst_dir_each (common/dir.h) for a folder. */
int pst_ckpt_dir_each(const struct pst_ckpt_dir *dir,
		      int (*each)(void *user, const struct dirent *entry), void *user);
/* Calls a function for each name in a folder or prefix. */
int pst_ckpt_dir_names(const struct pst_ckpt_dir *dir, int (*each)(void *user, const char *name),
		       void *user);

#endif
