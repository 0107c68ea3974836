/* SPDX-License-Identifier: Apache-2.0 */
/* Implements dir.h. All code that accesses the files of a checkpoint calls it. */
#include "ckpt/dir.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#include "common/dir.h"
#include "common/file_url.h"
#include "weights/err.h"

int pst_ckpt_dir_open(const struct pst_ckpt_dir *in, const char *name, const char *path,
		      struct pst_ckpt_dir *out)
{
	int ret;

	*out = (struct pst_ckpt_dir){.path = path, .fd = -1};
	out->remote = in ? in->remote : pst_objects_named(name);
	if (out->remote) {
		ret = in ? pst_objects_open_sub(&in->objects, name, &out->objects)
			 : pst_objects_open(name, &out->objects);
		out->path = ret ? path : out->objects.base;
		return ret;
	}
	if (!in) {
		name = pst_file_url_path(name);
		out->path = pst_file_url_path(path);
	}
	if (!name || !out->path)
		return pst_weights_fail(EINVAL, PENSTOCK_WHY_BAD_ARGUMENT, path, NULL, PST_NO_OFF,
					PST_FILE_URL_HOST);
	out->fd = openat(in ? in->fd : AT_FDCWD, name,
			 O_RDONLY | O_DIRECTORY | O_CLOEXEC | (in ? O_NOFOLLOW : 0));
	return out->fd < 0 ? pst_weights_fail_errno(errno, out->path, NULL, PST_NO_OFF,
						    "cannot open: %m")
			   : 0;
}

void pst_ckpt_dir_close(struct pst_ckpt_dir *dir)
{
	if (dir->remote)
		pst_objects_close(&dir->objects);
	else if (dir->fd >= 0)
		close(dir->fd);
	dir->remote = false;
	dir->fd = -1;
}

int pst_ckpt_dir_each(const struct pst_ckpt_dir *dir,
		      int (*each)(void *user, const struct dirent *entry), void *user)
{
	const char *failed;
	int ret = pst_dir_each(dir->fd, each, user, &failed);

	return failed ? pst_weights_fail_errno(-ret, dir->path, NULL, PST_NO_OFF, "cannot %s: %m",
					       failed)
		      : ret;
}

struct names {
	int (*each)(void *user, const char *name);
	void *user;
};

static int name_of_entry(void *user, const struct dirent *e)
{
	const struct names *n = user;

	return n->each(n->user, e->d_name);
}

static int name_of_object(void *user, const struct pst_listed *object)
{
	const struct names *n = user;

	return n->each(n->user, object->key);
}

int pst_ckpt_dir_names(const struct pst_ckpt_dir *dir, int (*each)(void *user, const char *name),
		       void *user)
{
	struct names n = {each, user};

	return dir->remote ? pst_objects_each(&dir->objects, name_of_object, &n)
			   : pst_ckpt_dir_each(dir, name_of_entry, &n);
}
