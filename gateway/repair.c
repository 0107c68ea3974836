/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the repair of a root, see repair.h. */
#include "repair.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "folder.h"
#include "keypath.h"
#include "store.h"
#include "upload.h"

#define OPEN_DIR (O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC)

struct repair {
	struct gw_store store;
	time_t now;
	uint64_t lease_s, upload_lease_s;
	struct gw_repair_result *result;
};

/* Calls a function for each entry of a folder. */
static int each(int dir, struct repair *r,
		int (*call)(struct repair *r, int dir, const char *name, const struct stat *st))
{
	int copy = openat(dir, ".", OPEN_DIR), ret = 0;
	DIR *list = copy < 0 ? NULL : fdopendir(copy);
	struct dirent *entry;
	struct stat st;

	if (!list) {
		ret = -errno;
		if (copy >= 0)
			close(copy);
		return ret;
	}
	while (!ret && (entry = readdir(list)))
		if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0 &&
		    !fstatat(dir, entry->d_name, &st, AT_SYMLINK_NOFOLLOW))
			ret = call(r, dir, entry->d_name, &st);
	closedir(list);
	return ret;
}

static bool is_older(const struct repair *r, const struct stat *st, uint64_t lease_s)
{
	/* The change time also counts: it is when a file got its name. */
	time_t last =
		st->st_mtim.tv_sec > st->st_ctim.tv_sec ? st->st_mtim.tv_sec : st->st_ctim.tv_sec;

	return r->now - last > (time_t)lease_s;
}

/* Returns whether a gateway on this host has the draft open. */
static bool is_locked(int dir, const char *name)
{
	int fd = openat(dir, name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	bool locked;

	if (fd < 0)
		return false;
	locked = flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK;
	close(fd);
	return locked;
}

/* Removes a draft, or the folder of a replacement that was not made. */
static int draft_repair(struct repair *r, int dir, const char *name, const struct stat *st)
{
	int inner;

	if (!is_older(r, st, r->lease_s) || (S_ISREG(st->st_mode) && is_locked(dir, name))) {
		r->result->kept++;
		return 0;
	}
	if (S_ISDIR(st->st_mode)) {
		inner = openat(dir, name, OPEN_DIR);
		if (inner >= 0) {
			unlinkat(inner, GW_MOVING, 0);
			close(inner);
		}
		r->result->drafts += !unlinkat(dir, name, AT_REMOVEDIR);
		return 0;
	}
	r->result->drafts += !unlinkat(dir, name, 0);
	return 0;
}

static int upload_repair(struct repair *r, int dir, const char *name, const struct stat *st);

/* What is known of an upload or of the files in a folder. */
static time_t newest(int dir)
{
	int copy = openat(dir, ".", OPEN_DIR);
	DIR *list = copy < 0 ? NULL : fdopendir(copy);
	struct dirent *entry;
	struct stat st;
	time_t last = 0;

	if (!list && copy >= 0)
		close(copy);
	while (list && (entry = readdir(list)))
		if (!fstatat(dir, entry->d_name, &st, AT_SYMLINK_NOFOLLOW) &&
		    strcmp(entry->d_name, "..") != 0 && st.st_mtim.tv_sec > last)
			last = st.st_mtim.tv_sec;
	if (list)
		closedir(list);
	return last;
}

static const char *repaired_bucket; /* the program has one thread while it repairs */

static int upload_repair(struct repair *r, int dir, const char *name, const struct stat *st)
{
	int upload = openat(dir, name, OPEN_DIR);
	struct stat file;
	time_t last;
	bool whole;

	(void)st;
	if (upload < 0)
		return 0;
	last = newest(upload);
	/* Without its file "upload", the folder is what an interrupted removal has left. */
	whole = !fstatat(upload, "upload", &file, AT_SYMLINK_NOFOLLOW);
	close(upload);
	if (r->now - last <= (time_t)(whole ? r->upload_lease_s : r->lease_s))
		r->result->kept++;
	else if (!gw_upload_remove(&r->store, repaired_bucket, name))
		r->result->uploads++;
	return 0;
}

static int uploads_repair(struct repair *r, int dir, const char *name, const struct stat *st)
{
	int uploads = openat(dir, name, OPEN_DIR), ret;

	(void)st;
	if (uploads < 0)
		return 0;
	repaired_bucket = name;
	ret = each(uploads, r, upload_repair);
	close(uploads);
	return ret;
}

/* Completes moves of objects to %self beneath a folder. */
static int moves_repair(struct repair *r, int dir, const char *name, const struct stat *st)
{
	char target[8];
	int inner, ret;

	if (!S_ISDIR(st->st_mode) || !strcmp(name, ".penstock"))
		return 0;
	inner = openat(dir, name, OPEN_DIR);
	if (inner < 0)
		return 0;
	if (readlinkat(inner, GW_MOVING, target, sizeof(target)) > 0 &&
	    !gw_folder_settle(inner, r->store.tmp))
		r->result->moves++;
	ret = each(inner, r, moves_repair);
	close(inner);
	return ret;
}

/* Removes a record of metadata whose object is gone. All objects' inodes would have to be known to
 * tell which records are in use, so only unfinished records are removed. */
static int record_repair(struct repair *r, int dir, const char *name, const struct stat *st)
{
	size_t len = strlen(name);

	if (len > 4 && !strcmp(name + len - 4, ".tmp") && is_older(r, st, r->lease_s))
		r->result->records += !unlinkat(dir, name, 0);
	return 0;
}

int gw_repair(const char *root, uint64_t lease_s, uint64_t upload_lease_s,
	      struct gw_repair_result *result, char *why, size_t why_len)
{
	struct repair r = {.now = time(NULL),
			   .lease_s = lease_s,
			   .upload_lease_s = upload_lease_s,
			   .result = result};
	int ret = gw_store_open(&r.store, root, why, why_len);

	memset(result, 0, sizeof(*result));
	if (ret)
		return ret;
	/* Moves first: a file that is about to become %self looks like a draft. */
	ret = each(r.store.root, &r, moves_repair);
	if (!ret)
		ret = each(r.store.tmp, &r, draft_repair);
	if (!ret)
		ret = each(r.store.multipart, &r, uploads_repair);
	if (!ret)
		ret = each(r.store.meta, &r, record_repair);
	if (ret)
		snprintf(why, why_len, "cannot repair %s: %s", root, strerror(-ret));
	gw_store_close(&r.store);
	return ret;
}
