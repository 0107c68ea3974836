/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the repair of a root, see repair.h. */
#include "repair.h"

#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <sys/file.h>
#include <time.h>
#include <unistd.h>

#include "common/dir.h"
#include "folder.h"
#include "keypath.h"
#include "store.h"
#include "upload.h"

struct repair {
	struct gw_store store;
	time_t now;
	uint64_t lease_s, upload_lease_s;
	struct gw_repair_result *result;
	/* negative errno if a move of an object's file to %self (folder.h) may be incomplete; 0 if
	 * all moves are complete */
	int unsettled;
};

/* A folder whose entries are being repaired. */
struct visit {
	struct repair *r;
	int dir;
	int (*call)(struct repair *r, int dir, const char *name, const struct stat *st);
};

static int visit_entry(void *user, const struct dirent *entry)
{
	struct visit *v = user;
	struct stat st;

	if (!fstatat(v->dir, entry->d_name, &st, AT_SYMLINK_NOFOLLOW))
		return v->call(v->r, v->dir, entry->d_name, &st);
	return errno == ENOENT ? 0 : -errno;
}

/* Calls a function for each entry of a folder. */
static int each(int dir, struct repair *r,
		int (*call)(struct repair *r, int dir, const char *name, const struct stat *st))
{
	struct visit visit = {r, dir, call};

	return pst_dir_each(dir, visit_entry, &visit, NULL);
}

static bool is_older(const struct repair *r, const struct stat *st, uint64_t lease_s)
{
	/* A rename or a link changes only the change time (ctime). So use the later one of
	 * modification time and change time. */
	time_t last =
		st->st_mtim.tv_sec > st->st_ctim.tv_sec ? st->st_mtim.tv_sec : st->st_ctim.tv_sec;

	return r->now - last > (time_t)lease_s;
}

/* Returns whether a gateway on this host has the draft open: the gateway then has it locked. */
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

/* Removes a draft, which is a file that a crashed gateway has not completed. Also removes a folder
 * that a crashed gateway has made in place of an object's file, but has not used. */
static int draft_repair(struct repair *r, int dir, const char *name, const struct stat *st)
{
	int inner;

	if (!is_older(r, st, r->lease_s) || (S_ISREG(st->st_mode) && is_locked(dir, name))) {
		r->result->kept++;
		return 0;
	}
	if (S_ISDIR(st->st_mode)) {
		inner = openat(dir, name, GW_OPEN_DIR);
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

/* The latest change time that was found so far in a folder. */
struct newest {
	int dir;
	time_t time;
};

static int newest_add(void *user, const struct dirent *entry)
{
	struct newest *n = user;
	struct stat st;

	if (fstatat(n->dir, entry->d_name, &st, AT_SYMLINK_NOFOLLOW))
		return errno == ENOENT ? 0 : -errno;
	if (st.st_mtim.tv_sec > n->time)
		n->time = st.st_mtim.tv_sec;
	return 0;
}

/* Finds the time of the last change of a folder and its files. Returns 0 or a negative errno. */
static int newest(int dir, time_t *last)
{
	struct newest n = {dir, 0};
	struct stat st;
	int ret = fstat(dir, &st) ? -errno : 0;

	if (!ret) {
		n.time = st.st_mtim.tv_sec;
		ret = pst_dir_each(dir, newest_add, &n, NULL);
	}
	*last = n.time;
	return ret;
}

/* the bucket whose uploads are visited; static, because a repair has only one thread */
static const char *repaired_bucket;

static int upload_repair(struct repair *r, int dir, const char *name, const struct stat *st)
{
	int upload = openat(dir, name, GW_OPEN_DIR), ret;
	struct stat file;
	time_t last;
	bool whole;

	(void)st;
	if (upload < 0) {
		r->result->kept += errno != ENOENT && errno != ENOTDIR;
		return 0;
	}
	ret = newest(upload, &last);
	/* If the file "upload" is missing, an interrupted removal has left the folder. Then the
	 * lease of drafts applies. */
	whole = fstatat(upload, "upload", &file, AT_SYMLINK_NOFOLLOW) == 0 || errno != ENOENT;
	close(upload);
	/* An upload whose age cannot be determined is kept. */
	if (ret || r->now - last <= (time_t)(whole ? r->upload_lease_s : r->lease_s))
		r->result->kept++;
	else if (!gw_upload_remove(&r->store, repaired_bucket, name))
		r->result->uploads++;
	return 0;
}

static int uploads_repair(struct repair *r, int dir, const char *name, const struct stat *st)
{
	int uploads = openat(dir, name, GW_OPEN_DIR), ret;

	(void)st;
	if (uploads < 0)
		return errno == ENOENT || errno == ENOTDIR || errno == ELOOP ? 0 : -errno;
	repaired_bucket = name;
	ret = each(uploads, r, upload_repair);
	close(uploads);
	return ret;
}

/* Completes the interrupted moves of objects' files to %self (folder.h) in the folder `name` and
 * the folders beneath it. If one fails, sets `unsettled` and continues with the others. */
static int moves_repair(struct repair *r, int dir, const char *name, const struct stat *st)
{
	char target[8];
	int inner, ret;
	bool moving;

	if (!S_ISDIR(st->st_mode))
		return 0;
	inner = openat(dir, name, GW_OPEN_DIR);
	if (inner < 0) {
		if (errno != ENOENT && errno != ENOTDIR && errno != ELOOP)
			r->unsettled = -errno;
		return 0;
	}
	moving = readlinkat(inner, GW_MOVING, target, sizeof(target)) > 0;
	ret = gw_folder_settle(inner, r->store.tmp);
	r->result->moves += moving && !ret;
	if (ret)
		r->unsettled = ret;
	ret = each(inner, r, moves_repair);
	if (ret && ret != -ENOENT)
		r->unsettled = ret;
	close(inner);
	return 0;
}

static int bucket_repair(struct repair *r, int dir, const char *name, const struct stat *st)
{
	return gw_bucket_name_ok(name) ? moves_repair(r, dir, name, st) : 0;
}

/* Removes an unfinished record of metadata. A complete record stays, even if its object is gone: to
 * notice that, the gateway would have to read the inodes of all objects. */
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
	/* First complete the moves of objects' files to %self, because such a file looks like a
	 * draft until then. If a move may still be incomplete, remove no draft, because a draft may
	 * be the only name of an object. */
	ret = each(r.store.root, &r, bucket_repair);
	if (!ret && !r.unsettled)
		ret = each(r.store.tmp, &r, draft_repair);
	if (!ret)
		ret = each(r.store.multipart, &r, uploads_repair);
	if (!ret)
		ret = each(r.store.meta, &r, record_repair);
	if (ret)
		snprintf(why, why_len, "cannot repair %s: %s", root, strerror(-ret));
	else if (r.unsettled)
		snprintf(why, why_len,
			 "a folder of %s cannot be repaired, so no draft was removed: %s", root,
			 strerror(-r.unsettled));
	ret = ret ? ret : r.unsettled;
	gw_store_close(&r.store);
	return ret;
}
