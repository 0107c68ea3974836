/* SPDX-License-Identifier: Apache-2.0 */
/* Implements multipart uploads, see upload.h. */
#include "upload.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "common/dir.h"
#include "folder.h"

#define UPLOAD_FILE "upload"

int gw_uploads_open(const struct gw_store *store, const char *bucket)
{
	int fd;

	if (!gw_bucket_name_ok(bucket))
		return -ENOENT;
	fd = openat(store->multipart, bucket, GW_OPEN_DIR);
	return fd < 0 ? -errno : fd;
}

/* Opens the folder that contains a bucket's uploads, and makes it if it is missing. */
static int uploads_make(const struct gw_store *store, const char *bucket)
{
	if (mkdirat(store->multipart, bucket, 0700) && errno != EEXIST)
		return -errno;
	if (store->sync && fsync(store->multipart))
		return -errno;
	return gw_uploads_open(store, bucket);
}

int gw_upload_make(const struct gw_store *store, const char *bucket, const char *key,
		   struct gw_meta *meta, char id[GW_UPLOAD_ID])
{
	struct gw_draft draft = {.fd = -1};
	int uploads = uploads_make(store, bucket), dir = -1, ret = 0;
	char unique[64];

	if (uploads < 0)
		return uploads;
	gw_unique_name(unique);
	memcpy(id, unique, GW_UPLOAD_ID);
	gw_meta_add(meta, "etag", "upload");
	gw_meta_add(meta, "key", key);
	if (mkdirat(uploads, id, 0700) || (dir = openat(uploads, id, GW_OPEN_DIR)) < 0)
		ret = -errno;
	if (!ret)
		ret = gw_draft_open(store, &draft);
	if (!ret)
		ret = gw_draft_finish(store, &draft, meta);
	if (!ret)
		ret = gw_draft_place(store, &draft, dir, UPLOAD_FILE);
	if (!ret && store->sync && fsync(uploads))
		ret = -errno;
	gw_draft_close(store, &draft);
	if (dir >= 0)
		close(dir);
	close(uploads);
	if (ret)
		gw_upload_remove(store, bucket, id);
	return ret;
}

static bool id_ok(const char *id)
{
	return strlen(id) == GW_UPLOAD_ID - 1 && strspn(id, "0123456789abcdef") == strlen(id);
}

/* Opens a file of an upload with its metadata. */
static int file_open(const struct gw_store *store, int dir, const char *name, struct gw_object *out)
{
	int ret = 0;

	memset(out, 0, sizeof(*out));
	out->fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_CLOEXEC);
	if (out->fd < 0)
		return -errno;
	if (fstat(out->fd, &out->st))
		ret = -errno;
	else
		ret = gw_meta_load(&out->meta, out->fd, store->meta, &out->st);
	if (ret)
		gw_object_close(out);
	return ret;
}

int gw_upload_open(const struct gw_store *store, const char *bucket, const char *id,
		   const char *key, struct gw_upload *out)
{
	int uploads = id_ok(id) ? gw_uploads_open(store, bucket) : -ENOENT, ret = 0;
	struct gw_object file;
	const char *has;

	memset(out, 0, sizeof(*out));
	out->dir = out->lock = -1;
	out->bucket = bucket;
	out->id = id;
	if (uploads < 0)
		return uploads;
	out->dir = openat(uploads, id, GW_OPEN_DIR);
	if (out->dir < 0)
		ret = -errno;
	close(uploads);
	if (ret)
		return ret;
	ret = file_open(store, out->dir, UPLOAD_FILE, &file);
	if (ret) {
		close(out->dir);
		out->dir = -1;
		return ret;
	}
	out->meta = file.meta;
	out->begun = file.st.st_mtim;
	memset(&file.meta, 0, sizeof(file.meta));
	gw_object_close(&file);
	has = gw_meta_get(&out->meta, "key");
	if (!has || (key && strcmp(has, key) != 0)) {
		gw_upload_close(out);
		return -ENOENT;
	}
	return 0;
}

void gw_upload_close(struct gw_upload *upload)
{
	if (upload->dir >= 0)
		close(upload->dir);
	if (upload->lock >= 0)
		close(upload->lock);
	upload->dir = upload->lock = -1;
	gw_meta_close(&upload->meta);
}

bool gw_upload_exists(const struct gw_upload *upload)
{
	struct stat st;

	return !fstatat(upload->dir, UPLOAD_FILE, &st, AT_SYMLINK_NOFOLLOW) || errno != ENOENT;
}

int gw_upload_lock(struct gw_upload *upload)
{
	int ret;

	/* On NFS, an exclusive lock needs a descriptor for writing. */
	upload->lock = openat(upload->dir, UPLOAD_FILE, O_RDWR | O_NOFOLLOW | O_CLOEXEC);
	if (upload->lock < 0)
		return -errno;
	do {
		ret = flock(upload->lock, LOCK_EX);
	} while (ret && errno == EINTR);
	/* If the file system has no locks, the upload is not locked; gw_upload_exists() then
	 * detects most conflicts. */
	if (ret && errno != ENOSYS && errno != EOPNOTSUPP && errno != ENOLCK && errno != EINVAL)
		return -errno;
	return gw_upload_exists(upload) ? 0 : -ENOENT;
}

/* A folder of parts that is being removed. */
struct removal {
	const struct gw_store *store;
	int dir;
};

static int file_remove(void *user, const struct dirent *entry)
{
	const struct removal *r = user;
	struct stat st;

	if (!fstatat(r->dir, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) &&
	    !unlinkat(r->dir, entry->d_name, 0))
		gw_meta_remove(r->store->meta, &st);
	return 0;
}

/* Removes the files in the folder of an upload. Begins with the file "upload": as soon as it is
 * gone, the upload does not exist. */
static int files_remove(const struct gw_store *store, int dir)
{
	struct removal r = {store, dir};
	struct stat st;

	if (!fstatat(dir, UPLOAD_FILE, &st, AT_SYMLINK_NOFOLLOW) && !unlinkat(dir, UPLOAD_FILE, 0))
		gw_meta_remove(store->meta, &st);
	return pst_dir_each(dir, file_remove, &r, NULL);
}

int gw_upload_remove(const struct gw_store *store, const char *bucket, const char *id)
{
	int uploads = id_ok(id) ? gw_uploads_open(store, bucket) : -ENOENT, dir, ret;

	if (uploads < 0)
		return uploads;
	dir = openat(uploads, id, GW_OPEN_DIR);
	ret = dir < 0 ? -errno : files_remove(store, dir);
	if (dir >= 0)
		close(dir);
	/* ENOTEMPTY means that a part has arrived meanwhile. The request that stored the part
	 * removes it, see gw_part_place(). */
	if (!ret && unlinkat(uploads, id, AT_REMOVEDIR) && errno != ENOENT && errno != ENOTEMPTY)
		ret = -errno;
	close(uploads);
	return ret;
}

/* A bucket whose uploads are being removed. */
struct uploads_removal {
	const struct gw_store *store;
	const char *bucket;
};

static int upload_remove(void *user, const struct dirent *entry)
{
	const struct uploads_removal *r = user;

	if (id_ok(entry->d_name))
		gw_upload_remove(r->store, r->bucket, entry->d_name);
	return 0;
}

void gw_uploads_remove(const struct gw_store *store, const char *bucket)
{
	struct uploads_removal r = {store, bucket};
	int uploads = gw_uploads_open(store, bucket);

	if (uploads < 0)
		return;
	/* `penstock serve --repair` removes uploads that remain after a failure. */
	pst_dir_each(uploads, upload_remove, &r, NULL);
	close(uploads);
	unlinkat(store->multipart, bucket, AT_REMOVEDIR);
}

/* Writes the name of a part's file. */
static void part_name(unsigned number, char out[8])
{
	snprintf(out, 8, "%05u", number % 100000);
}

int gw_part_open(const struct gw_store *store, const struct gw_upload *upload, unsigned number,
		 struct gw_object *out)
{
	char name[8];

	part_name(number, name);
	return file_open(store, upload->dir, name, out);
}

int gw_part_place(const struct gw_store *store, const struct gw_upload *upload, unsigned number,
		  struct gw_draft *draft)
{
	char name[8];
	int ret;

	part_name(number, name);
	ret = gw_draft_place(store, draft, upload->dir, name);
	/* gw_upload_remove() first removes the upload's file, and then the parts that it finds. So
	 * it may miss a part only if that part's request does not find the upload here. */
	if (ret || gw_upload_exists(upload))
		return ret;
	gw_upload_remove(store, upload->bucket, upload->id);
	return -ENOENT;
}
