/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the store of objects, see store.h. */
#include "store.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "folder.h"
#include "keypath.h"

/* Maximum number of attempts to give a draft (an unpublished file) its name while other gateways
 * change the folders. */
#define ATTEMPTS 200
/* After each block of this length in bytes, gw_draft_write lets the kernel begin to write the draft
 * to the drive, so that fsync() has less to write. */
#define FLUSH (8u << 20)

/* ---- the store ---- */

/* Opens a folder of the store, and makes it if it is missing. */
static int open_own(int dir, const char *name, mode_t mode)
{
	int fd;

	if (mkdirat(dir, name, mode) && errno != EEXIST)
		return -errno;
	fd = openat(dir, name, GW_OPEN_DIR);
	return fd < 0 ? -errno : fd;
}

/* Returns whether the store can use files without a name: the file system must support them, and
 * /proc must be mounted. */
static bool can_be_unnamed(const struct gw_store *store)
{
	struct gw_draft draft = {
		.fd = openat(store->tmp, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600)};
	char from[40], name[64];
	bool ok;

	if (draft.fd < 0)
		return false;
	gw_unique_name(name);
	snprintf(from, sizeof(from), "/proc/self/fd/%d", draft.fd);
	ok = !linkat(AT_FDCWD, from, store->tmp, name, AT_SYMLINK_FOLLOW);
	if (ok)
		unlinkat(store->tmp, name, 0);
	close(draft.fd);
	return ok;
}

int gw_store_open(struct gw_store *store, const char *root, char *why, size_t why_len)
{
	int own = -1, ret = 0;

	*store =
		(struct gw_store){.root = -1, .tmp = -1, .meta = -1, .multipart = -1, .sync = true};
	store->path = root;
	store->root = open(root, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	if (store->root < 0) {
		ret = -errno;
	} else if ((own = open_own(store->root, ".penstock", 0700)) < 0) {
		ret = own;
	} else {
		store->tmp = open_own(own, "tmp", 0700);
		store->meta = open_own(own, "meta", 0700);
		store->multipart = open_own(own, "multipart", 0700);
		if (store->tmp < 0 || store->meta < 0 || store->multipart < 0)
			ret = store->tmp < 0	? store->tmp
			      : store->meta < 0 ? store->meta
						: store->multipart;
		else if (fsync(own) || fsync(store->root))
			ret = -errno;
	}
	if (own >= 0)
		close(own);
	if (ret) {
		snprintf(why, why_len, "cannot use the folder %s: %s", root, strerror(-ret));
		gw_store_close(store);
		return ret;
	}
	store->unnamed = can_be_unnamed(store);
	return 0;
}

const char *gw_store_fault(const struct gw_store *store)
{
	struct stat opened, named;

	if (faccessat(store->root, ".penstock", F_OK, 0) || stat(store->path, &named) ||
	    fstat(store->root, &opened))
		return "the root is gone";
	if (opened.st_dev != named.st_dev || opened.st_ino != named.st_ino)
		return "the path of the root names another folder: restart the gateway";
	return NULL;
}

void gw_store_close(struct gw_store *store)
{
	int *fds[] = {&store->root, &store->tmp, &store->meta, &store->multipart};

	for (unsigned i = 0; i < 4; i++) {
		if (*fds[i] >= 0)
			close(*fds[i]);
		*fds[i] = -1;
	}
}

/* ---- buckets ---- */

bool gw_bucket_name_ok(const char *name)
{
	size_t len = strlen(name);
	unsigned dots = 0;

	if (len < 3 || len > GW_BUCKET_MAX ||
	    strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789.-") != len)
		return false;
	for (size_t i = 0; i < len; i++)
		dots += name[i] == '.';
	/* S3 forbids this form, because a client would take it for the IPv4 address of a host. */
	if (dots == 3 && strspn(name, "0123456789.") == len)
		return false;
	return name[0] != '.' && name[0] != '-' && name[len - 1] != '.' && name[len - 1] != '-' &&
	       !strstr(name, "..");
}

int gw_bucket_open(const struct gw_store *store, const char *name)
{
	int fd;

	if (!gw_bucket_name_ok(name))
		return -ENOENT;
	fd = openat(store->root, name, GW_OPEN_DIR);
	if (fd < 0)
		return errno == ENOTDIR || errno == ELOOP ? -ENOENT : -errno;
	return fd;
}

int gw_bucket_make(const struct gw_store *store, const char *name)
{
	if (!gw_bucket_name_ok(name))
		return -EINVAL;
	if (mkdirat(store->root, name, 0777))
		return -errno;
	return fsync(store->root) ? -errno : 0;
}

int gw_bucket_remove(const struct gw_store *store, const char *name)
{
	int bucket = gw_bucket_open(store, name), ret;

	if (bucket < 0)
		return bucket;
	ret = gw_folder_empty(bucket, 0);
	close(bucket);
	if (!ret && unlinkat(store->root, name, AT_REMOVEDIR))
		ret = -errno;
	if (!ret && fsync(store->root))
		ret = -errno;
	return ret;
}

/* ---- objects ---- */

int gw_self_open(const struct gw_store *store, int dir)
{
	int fd = openat(dir, GW_SELF, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC), ret;

	if (fd >= 0 || errno != ENOENT)
		return fd < 0 ? -errno : fd;
	ret = gw_folder_settle(dir, store->tmp);
	if (ret)
		return ret;
	fd = openat(dir, GW_SELF, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	return fd < 0 ? -errno : fd;
}

int gw_object_open(const struct gw_store *store, int bucket, const char *key, size_t len,
		   struct gw_object *out)
{
	char path[GW_PATH_MAX];
	int ret = gw_keypath(key, len, path), fd;

	memset(out, 0, sizeof(*out));
	out->fd = -1;
	if (ret < 0)
		return ret;
	/* O_NONBLOCK: opening a pipe must not wait for its writer. */
	fd = gw_open_beneath(bucket, path, O_RDONLY | O_NONBLOCK);
	if (fd >= 0 && fstat(fd, &out->st)) {
		close(fd);
		return -EIO;
	}
	if (fd >= 0 && S_ISDIR(out->st.st_mode)) {
		int self = gw_self_open(store, fd);

		close(fd);
		fd = self;
		if (fd >= 0 && fstat(fd, &out->st)) {
			close(fd);
			return -EIO;
		}
	}
	if (fd < 0)
		return fd == -ENOTDIR || fd == -ENXIO ? -ENOENT : fd;
	if (!S_ISREG(out->st.st_mode)) {
		close(fd);
		return -ENOENT;
	}
	out->fd = fd;
	ret = gw_meta_load(&out->meta, fd, store->meta, &out->st);
	if (ret)
		gw_object_close(out);
	return ret;
}

void gw_object_close(struct gw_object *object)
{
	if (object->fd >= 0)
		close(object->fd);
	object->fd = -1;
	gw_meta_close(&object->meta);
}

/* Removes a file, and its metadata if that is in a file of its own. */
static int unlink_file(const struct gw_store *store, int dir, const char *name)
{
	struct stat st;

	if (fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW))
		return -errno;
	if (S_ISDIR(st.st_mode))
		return -EISDIR;
	if (!S_ISREG(st.st_mode))
		return -ENOENT;
	if (unlinkat(dir, name, 0))
		return -errno;
	gw_meta_remove(store->meta, &st);
	return store->sync && fsync(dir) ? -errno : 0;
}

int gw_object_remove(const struct gw_store *store, int bucket, const char *key, size_t len)
{
	char path[GW_PATH_MAX], inner[GW_PATH_MAX + 8];
	const char *slash;
	int ret = gw_keypath(key, len, path), dir;

	if (ret < 0)
		return ret;
	slash = strrchr(path, '/');
	if (slash) {
		path[slash - path] = '\0';
		dir = gw_open_beneath(bucket, path, O_RDONLY | O_DIRECTORY);
		path[slash - path] = '/';
	} else {
		dir = openat(bucket, ".", GW_OPEN_DIR);
	}
	if (dir < 0)
		return dir == -ENOTDIR || dir == -1 ? -ENOENT : dir;
	ret = unlink_file(store, dir, slash ? slash + 1 : path);
	if (ret == -EISDIR) {
		int self = openat(dir, slash ? slash + 1 : path, GW_OPEN_DIR);

		ret = self < 0 ? -ENOENT : gw_folder_settle(self, store->tmp);
		if (!ret)
			ret = unlink_file(store, self, GW_SELF);
		if (self >= 0)
			close(self);
		snprintf(inner, sizeof(inner), "%s/x", path);
		gw_folder_prune(bucket, inner);
	} else if (!ret) {
		gw_folder_prune(bucket, path);
	}
	close(dir);
	return ret;
}

/* ---- drafts ---- */

int gw_draft_open(const struct gw_store *store, struct gw_draft *draft)
{
	draft->name[0] = '\0';
	if (store->unnamed) {
		draft->fd = openat(store->tmp, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0666);
		return draft->fd < 0 ? -errno : 0;
	}
	gw_unique_name(draft->name);
	draft->fd = openat(store->tmp, draft->name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
	if (draft->fd < 0)
		return -errno;
	/* The lock shows `serve --repair` that the draft is in use. If flock() fails, only the age
	 * of the draft protects it from the repair. */
	(void)flock(draft->fd, LOCK_SH | LOCK_NB);
	return 0;
}

int gw_draft_write(const struct gw_draft *draft, const char *bytes, size_t len, uint64_t at)
{
	uint64_t from = at / FLUSH * FLUSH, to = (at + len) / FLUSH * FLUSH;

	while (len) {
		ssize_t n = pwrite(draft->fd, bytes, len, (off_t)at);

		if (n < 0 && errno != EINTR)
			return -errno;
		if (n > 0) {
			bytes += n;
			len -= (size_t)n;
			at += (uint64_t)n;
		}
	}
	/* The call is only a hint to the kernel, so its failure does not matter. */
	if (to > from)
		(void)sync_file_range(draft->fd, (off64_t)from, (off64_t)(to - from),
				      SYNC_FILE_RANGE_WRITE);
	return 0;
}

int gw_draft_finish(const struct gw_store *store, const struct gw_draft *draft,
		    const struct gw_meta *meta)
{
	int ret = gw_meta_store(meta, draft->fd, store->meta);

	if (!ret && store->sync && fsync(draft->fd))
		ret = -errno;
	return ret;
}

static int draft_link(const struct gw_store *store, const struct gw_draft *draft, int dir,
		      const char *name)
{
	char from[40];

	snprintf(from, sizeof(from), "/proc/self/fd/%d", draft->fd);
	if (draft->name[0] ? linkat(store->tmp, draft->name, dir, name, 0)
			   : linkat(AT_FDCWD, from, dir, name, AT_SYMLINK_FOLLOW))
		return -errno;
	return 0;
}

static bool is_folder(int dir, const char *name)
{
	struct stat st;

	return !fstatat(dir, name, &st, AT_SYMLINK_NOFOLLOW) && S_ISDIR(st.st_mode);
}

/* Gives a draft (an unpublished file) its name in `dir`, unless another file has this name. Returns
 * 0, -EEXIST, -EISDIR if a folder has the name, or another negative errno. */
static int put_new(const struct gw_store *store, struct gw_draft *draft, int dir, const char *name)
{
	int ret = draft_link(store, draft, dir, name);

	if (ret == -EEXIST && is_folder(dir, name))
		return -EISDIR;
	if (!ret && draft->name[0]) {
		unlinkat(store->tmp, draft->name, 0);
		draft->name[0] = '\0';
	}
	return ret;
}

/* Gives a draft (an unpublished file) its name in `dir`, and replaces a file that has this name. */
static int put_over(const struct gw_store *store, struct gw_draft *draft, int dir, const char *name)
{
	struct stat old;
	bool had;
	int ret;

	if (!draft->name[0]) {
		char unique[64];

		ret = put_new(store, draft, dir, name);
		if (ret != -EEXIST)
			return ret;
		/* rename(2) needs a source with a name, so first give the draft a unique name. */
		gw_unique_name(unique);
		ret = draft_link(store, draft, store->tmp, unique);
		if (ret)
			return ret;
		memcpy(draft->name, unique, sizeof(unique));
	}
	had = !fstatat(dir, name, &old, AT_SYMLINK_NOFOLLOW);
	if (renameat(store->tmp, draft->name, dir, name))
		return errno == ENOTEMPTY || errno == EEXIST ? -EISDIR : -errno;
	draft->name[0] = '\0';
	if (had)
		gw_meta_remove(store->meta, &old);
	return 0;
}

/* Gives a draft (an unpublished file) its name in `dir`. If a folder has this name, the draft
 * becomes the file %self in that folder (store.h). */
static int put(const struct gw_store *store, struct gw_draft *draft, int dir, const char *name,
	       bool exclusive)
{
	int ret = (exclusive ? put_new : put_over)(store, draft, dir, name), inner;

	if (ret != -EISDIR)
		return !ret && store->sync && fsync(dir) ? -errno : ret;
	inner = openat(dir, name, GW_OPEN_DIR);
	if (inner < 0)
		return errno == ENOENT || errno == ENOTDIR ? -EAGAIN : -errno;
	ret = gw_folder_settle(inner, store->tmp);
	if (!ret)
		ret = (exclusive ? put_new : put_over)(store, draft, inner, GW_SELF);
	if (!ret && store->sync && (fsync(inner) || fsync(dir)))
		ret = -errno;
	close(inner);
	return ret == -ENOENT ? -EAGAIN : ret;
}

/* Closes the descriptor of a draft that has been published. */
static void draft_forget(struct gw_draft *draft)
{
	close(draft->fd);
	draft->fd = -1;
}

int gw_draft_publish(const struct gw_store *store, struct gw_draft *draft, int bucket,
		     const char *key, size_t len, bool exclusive)
{
	char path[GW_PATH_MAX];
	const char *slash;
	int ret = gw_keypath(key, len, path);

	if (ret < 0)
		return ret;
	slash = strrchr(path, '/');
	ret = -EAGAIN;
	/* -ENOENT and -EAGAIN mean that another gateway has just removed a folder because it was
	 * empty. So make the folder again. */
	for (unsigned i = 0; i < ATTEMPTS && (ret == -EAGAIN || ret == -ENOENT); i++) {
		int dir = gw_folder_make(bucket, store->tmp, path, store->sync);

		if (dir < 0) {
			ret = dir;
			continue;
		}
		ret = put(store, draft, dir, slash ? slash + 1 : path, exclusive);
		close(dir);
	}
	if (!ret && store->sync && gw_folder_is_young(bucket) && fsync(store->root))
		ret = -errno;
	if (!ret)
		draft_forget(draft);
	return ret == -EAGAIN || ret == -ENOENT ? -EBUSY : ret;
}

int gw_draft_place(const struct gw_store *store, struct gw_draft *draft, int dir, const char *name)
{
	int ret = put_over(store, draft, dir, name);

	if (!ret && store->sync && fsync(dir))
		ret = -errno;
	if (!ret)
		draft_forget(draft);
	return ret;
}

void gw_draft_close(const struct gw_store *store, struct gw_draft *draft)
{
	struct stat st;

	if (draft->fd < 0)
		return;
	if (!fstat(draft->fd, &st))
		gw_meta_remove(store->meta, &st);
	if (draft->name[0])
		unlinkat(store->tmp, draft->name, 0);
	close(draft->fd);
	draft->fd = -1;
	draft->name[0] = '\0';
}
