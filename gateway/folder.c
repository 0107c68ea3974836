/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the folders that keys with slashes need, see folder.h. */
#include "folder.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/openat2.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/digits.h"
#include "common/dir.h"
#include "keypath.h"

/* If a folder is younger than this number of seconds, its entry in the parent may not be on the
 * drive yet. The gateway or program that made the folder may have stopped before it synced the
 * parent. */
#define YOUNG_S 600
/* Maximum depth of the nested folders of one key: each folder's name stands for at least one byte
 * of the key. */
#define DEPTH_MAX (GW_KEY_MAX + 8)

int gw_open_beneath(int dir, const char *path, int flags)
{
	struct open_how how = {.flags = (uint64_t)(flags | O_CLOEXEC | O_NOFOLLOW),
			       .resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS |
					  RESOLVE_NO_MAGICLINKS};
	long fd;

	do {
		fd = syscall(SYS_openat2, dir, path, &how, sizeof(how));
	} while (fd < 0 && (errno == EINTR || errno == EAGAIN));
	/* a symbolic link counts as a missing file */
	return fd < 0 ? (errno == ELOOP ? -ENOENT : -errno) : (int)fd;
}

bool gw_is_gone(int code)
{
	return code == ENOENT || code == ENOTDIR || code == ELOOP || code == ENXIO;
}

void gw_unique_name(char out[64])
{
	unsigned char random[16];

	/* If a signal interrupts getrandom(), try again. It has no other error for up to 256
	 * bytes. */
	while (getrandom(random, sizeof(random), 0) != sizeof(random))
		;
	pst_hex(random, sizeof(random), out);
}

/* ---- an object's file in the way of a folder ---- */

int gw_folder_settle(int dir, int tmp)
{
	char name[64];
	ssize_t len = readlinkat(dir, GW_MOVING, name, sizeof(name) - 1);

	if (len < 0)
		return errno == ENOENT || errno == EINVAL ? 0 : -errno;
	name[len] = '\0';
	if (strchr(name, '/'))
		return -EIO;
	/* Another gateway on the same store may have done a part of these steps already, so a step
	 * that is already done is no error. EEXIST means that a new object with this key was stored
	 * after the folder was made. The new object replaces the moved one. */
	if (linkat(tmp, name, dir, GW_SELF, 0) && errno != EEXIST && errno != ENOENT)
		return -errno;
	if (fsync(dir))
		return -errno;
	if (unlinkat(tmp, name, 0) && errno != ENOENT)
		return -errno;
	if (unlinkat(dir, GW_MOVING, 0) && errno != ENOENT)
		return -errno;
	return 0;
}

/*
 * Takes the store's lock: shared to make a folder, exclusive to replace a file by a folder. While
 * the lock is held exclusively, no other gateway makes a folder in place of a file. The kernel
 * releases the lock when the descriptor is closed, also after a crash. Returns the descriptor.
 */
static int lock_folders(int tmp, int kind)
{
	int fd = openat(tmp, "../lock", O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC, 0666), ret;

	if (fd < 0)
		return -errno;
	do {
		ret = flock(fd, kind);
	} while (ret && errno == EINTR);
	/* A failure of flock() is ignored. A file system without locks has no RENAME_EXCHANGE
	 * either, so no file is replaced there, and no lock is needed. */
	return fd;
}

/* Swaps an object's file `name` and the folder `place`, which is in the store's folder `tmp`, in
 * one atomic step. */
static int exchange(int parent, const char *name, int tmp, const char *place)
{
	int lock = lock_folders(tmp, LOCK_EX), ret = 0;
	struct stat st;

	if (lock < 0)
		return lock;
	if (fstatat(parent, name, &st, AT_SYMLINK_NOFOLLOW))
		ret = -errno;
	else if (S_ISDIR(st.st_mode))
		ret = -ENOENT; /* another gateway has made the folder */
	else if (!S_ISREG(st.st_mode))
		ret = -ENOTDIR;
	else if (syscall(SYS_renameat2, tmp, place, parent, name, RENAME_EXCHANGE))
		ret = errno == EINVAL ? -ENOTSUP : -errno;
	close(lock);
	return ret;
}

/* Replaces the file of an object by a folder that contains the object: for example, the key a/b
 * needs `a` as a folder. Returns 0, also if another gateway has done so meanwhile, or a negative
 * errno: -ENOTSUP if the file system cannot exchange two names. */
static int replace_by_folder(int parent, const char *name, int tmp)
{
	char place[64];
	int dir, ret = 0;

	gw_unique_name(place);
	if (mkdirat(tmp, place, 0777))
		return -errno;
	dir = openat(tmp, place, GW_OPEN_DIR);
	if (dir < 0) {
		ret = -errno;
		unlinkat(tmp, place, AT_REMOVEDIR);
		return ret;
	}
	/* The exchange moves the object's file to `tmp` under the name `place`. So the link %moving
	 * must contain this name. */
	if (symlinkat(place, dir, GW_MOVING) || fsync(dir) || fsync(tmp))
		ret = -errno;
	else
		ret = exchange(parent, name, tmp, place);
	if (ret) {
		unlinkat(dir, GW_MOVING, 0);
		unlinkat(tmp, place, AT_REMOVEDIR);
	} else if (fsync(parent) || fsync(tmp)) {
		ret = -errno;
	} else {
		ret = gw_folder_settle(dir, tmp);
	}
	close(dir);
	return ret == -ENOENT ? 0 : ret;
}

/* Makes a folder. Returns 0, also if the folder already exists, or a negative errno. */
static int folder_add(int parent, const char *name, int tmp)
{
	int lock = lock_folders(tmp, LOCK_SH), ret = 0;

	if (lock < 0)
		return lock;
	if (mkdirat(parent, name, 0777) && errno != EEXIST)
		ret = -errno;
	close(lock);
	return ret;
}

/* ---- making folders ---- */

bool gw_folder_is_young(int dir)
{
	struct statx x;

	if (statx(dir, "", AT_EMPTY_PATH, STATX_BTIME, &x) || !(x.stx_mask & STATX_BTIME))
		return true;
	return x.stx_btime.tv_sec + YOUNG_S > time(NULL);
}

/* Opens the folder `name` in the folder `parent`, and makes it if it is missing. If an object's
 * file has this name, replaces the file by a folder. */
static int step_into(int parent, const char *name, int tmp, bool sync)
{
	for (unsigned attempt = 0; attempt < 100; attempt++) {
		int dir = openat(parent, name, GW_OPEN_DIR);

		if (dir >= 0) {
			if (sync && gw_folder_is_young(dir) && fsync(parent)) {
				int ret = -errno;

				close(dir);
				return ret;
			}
			return dir;
		}
		if (errno == ENOENT) {
			int ret = folder_add(parent, name, tmp);

			if (ret)
				return ret;
		} else if (errno == ENOTDIR) {
			int ret = replace_by_folder(parent, name, tmp);

			if (ret)
				return ret;
		} else {
			return errno == ELOOP ? -ENOTDIR : -errno;
		}
	}
	return -EBUSY;
}

int gw_folder_make(int bucket, int tmp, const char *path, bool sync)
{
	const char *last = strrchr(path, '/');
	char parents[GW_PATH_MAX];
	int dir;

	if (!last)
		return (dir = openat(bucket, ".", GW_OPEN_DIR)) < 0 ? -errno : dir;
	memcpy(parents, path, (size_t)(last - path));
	parents[last - path] = '\0';
	if (!sync) {
		dir = gw_open_beneath(bucket, parents, O_RDONLY | O_DIRECTORY);
		if (dir >= 0)
			return dir;
	}
	dir = openat(bucket, ".", GW_OPEN_DIR);
	if (dir < 0)
		return -errno;
	for (char *name = parents; dir >= 0 && name;) {
		char *slash = strchr(name, '/');
		int inner;

		if (slash)
			*slash = '\0';
		inner = step_into(dir, name, tmp, sync);
		close(dir);
		dir = inner;
		name = slash ? slash + 1 : NULL;
	}
	return dir;
}

void gw_folder_prune(int bucket, const char *path)
{
	char copy[GW_PATH_MAX];
	char *slash;

	snprintf(copy, sizeof(copy), "%s", path);
	while ((slash = strrchr(copy, '/'))) {
		char *name;
		int dir, ret;

		*slash = '\0';
		name = strrchr(copy, '/');
		if (name)
			*name = '\0';
		dir = name ? gw_open_beneath(bucket, copy, O_RDONLY | O_DIRECTORY) : bucket;
		if (dir < 0)
			return;
		ret = unlinkat(dir, name ? name + 1 : copy, AT_REMOVEDIR);
		if (name)
			close(dir);
		if (ret || !name)
			return;
		*name = '/';
	}
}

/* A folder whose empty subfolders are removed, and its depth beneath the folder with which the
 * removal began. */
struct emptying {
	int dir;
	unsigned depth;
};

static int subfolder_remove(void *user, const struct dirent *entry)
{
	const struct emptying *e = user;
	int inner = openat(e->dir, entry->d_name, GW_OPEN_DIR), ret;

	if (inner < 0)
		return -ENOTEMPTY;
	ret = gw_folder_empty(inner, e->depth + 1);
	close(inner);
	if (!ret && unlinkat(e->dir, entry->d_name, AT_REMOVEDIR))
		ret = errno == ENOENT ? 0 : -errno;
	return ret;
}

int gw_folder_empty(int dir, unsigned depth)
{
	struct emptying e = {dir, depth};

	return depth > DEPTH_MAX ? -ENOTEMPTY : pst_dir_each(dir, subfolder_remove, &e, NULL);
}
