/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Implements penstock_ckpt_prune. It removes files by the descriptor of their folder. So if another
 * process replaces the folder by a symbolic link meanwhile, no file behind this link is removed. It
 * must never remove the newest complete checkpoint.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

#include "ckpt/dir.h"
#include "ckpt/folder.h"
#include "ckpt/list.h"
#include "weights/err.h"

/* End of the names of lock files. A save holds such a lock while it writes into a folder. */
#define SAVE_LOCK ".penstock-saving"
/* A running save replaces an object, its sign of life, every BEAT_S seconds. If the object does not
 * change for LEASE_S seconds, the save counts as dead. _object_lock.py has the same numbers. */
#define BEAT_S 2u
#define LEASE_S 20u

struct prune {
	struct pst_ckpt_list list;
	unsigned flags;
	int (*each)(void *user, const char *path, uint64_t bytes);
	void *user;
};

static int announce(const struct prune *p, const char *path, uint64_t bytes)
{
	return p->each ? p->each(p->user, path, bytes) : 0;
}

/* Removes the part on another drive to which a link leads, and then the part's folder if it is
 * empty. If the part's folder is itself a checkpoint, with a marker or a manifest, removes
 * nothing. */
static int remove_target(const struct pst_ckpt_folder *f, const char *name)
{
	char target[PATH_MAX], *slash;
	struct pst_ckpt_folder there;
	int ret;

	if (!pst_part_link(&f->dir, name, target))
		return 0;
	slash = strrchr(target, '/');
	*slash = '\0';
	ret = pst_ckpt_folder_open(NULL, target, target, &there);
	if (ret)
		return ret == -ENOENT || ret == -ENOTDIR ? 0 : ret;
	for (uint64_t i = 0; i < there.count && !ret; i++)
		ret = there.files[i].kind == PST_FILE_MARKER ||
		      there.files[i].kind == PST_FILE_RANK_MARKER ||
		      there.files[i].kind == PST_FILE_MANIFEST;
	if (!ret && unlinkat(there.dir.fd, name, 0) && errno != ENOENT)
		ret = pst_weights_fail_errno(errno, target, name, PST_NO_OFF, "cannot remove: %m");
	pst_ckpt_folder_close(&there);
	if (!ret)
		/* This fails if other parts are still in the folder, which is no error. */
		rmdir(target);
	return ret < 0 ? ret : 0;
}

/* Removes a file and, if it is a link to a part on another drive, that part. */
static int remove_file(const struct pst_ckpt_folder *f, const struct pst_ckpt_file *file)
{
	int ret = file->linked ? remove_target(f, file->name) : 0;

	if (ret)
		return ret;
	if (f->dir.remote)
		return pst_objects_remove(&f->dir.objects, file->name);
	if (!unlinkat(f->dir.fd, file->name, 0) || errno == ENOENT)
		return 0;
	return pst_weights_fail_errno(errno, f->ckpt.path, file->name, PST_NO_OFF,
				      "cannot remove: %m");
}

/* Removes the markers of a checkpoint (the files that mark it as complete) if `markers` is true.
 * Otherwise removes its other files. */
static int remove_files(const struct pst_ckpt_folder *f, bool markers)
{
	int ret = 0;

	for (uint64_t i = 0; i < f->count && !ret; i++) {
		const struct pst_ckpt_file *file = &f->files[i];
		bool marker = file->kind == PST_FILE_MARKER || file->kind == PST_FILE_RANK_MARKER ||
			      !strcmp(file->name, "model.safetensors");

		if (marker == markers)
			ret = remove_file(f, file);
	}
	return ret;
}

/* Removes the file `name` if it is the lock file that a killed job has left. */
static int remove_lock(void *user, const char *name)
{
	const struct pst_ckpt_folder *f = user;

	if (!strstr(name, SAVE_LOCK))
		return 0;
	return remove_file(f, &(struct pst_ckpt_file){.name = (char *)(uintptr_t)name});
}

/* Removes a checkpoint: first its markers, which mark it as complete, then its other files, then
 * its folder if it is empty. Syncs after the markers, so that a power cut leaves no marker without
 * its parts. */
static int remove_checkpoint(const struct prune *p, const struct pst_ckpt_entry *e,
			     const struct pst_ckpt_folder *f)
{
	int ret = remove_files(f, true);

	if (!ret && !f->dir.remote && fsync(f->dir.fd) && errno != EINVAL)
		/* EINVAL means that the file system cannot sync a folder. */
		ret = pst_weights_fail_errno(errno, e->path, NULL, PST_NO_OFF, "cannot sync: %m");
	if (!ret)
		ret = remove_files(f, false);
	if (!ret)
		ret = pst_ckpt_dir_names(&f->dir, remove_lock, (void *)(uintptr_t)f);
	if (ret || p->list.self || f->dir.remote ||
	    !unlinkat(p->list.dir.fd, e->name, AT_REMOVEDIR))
		return ret;
	/* If the folder still has other files, it stays. */
	return errno == ENOTEMPTY || errno == EEXIST || errno == ENOENT
		       ? 0
		       : pst_weights_fail_errno(errno, e->path, NULL, PST_NO_OFF,
						"cannot remove: %m");
}

/* Removes the stray files (left from an earlier save) of a complete checkpoint, if they are older
 * than its marker. */
static int prune_strays(const struct prune *p, const struct pst_ckpt_folder *f)
{
	int ret = 0;

	for (uint64_t i = 0; i < f->count && !ret; i++) {
		const struct pst_ckpt_file *file = &f->files[i];
		char *path;

		if (!file->stray ||
		    (file->time_ns > f->ckpt.saved_ns && !(p->flags & PENSTOCK_PRUNE_NEWEST)))
			continue;
		if (asprintf(&path, "%s/%s", f->ckpt.path, file->name) < 0)
			return pst_weights_no_memory("a name");
		ret = announce(p, path, file->bytes);
		free(path);
		if (!ret && !(p->flags & PENSTOCK_PRUNE_DRY_RUN))
			ret = remove_file(f, file);
	}
	return ret;
}

/* Returns 1 if the file is a lock file, and a save holds the lock. A lock file that this user
 * cannot open counts as not held. */
static int lock_is_held(void *user, const struct dirent *e)
{
	const char *end = strstr(e->d_name, SAVE_LOCK);
	const struct pst_ckpt_folder *f = user;
	int fd, held;

	if (!end || strcmp(end, SAVE_LOCK) != 0)
		return 0;
	fd = openat(f->dir.fd, e->d_name, O_RDONLY | O_NOFOLLOW | O_NONBLOCK | O_CLOEXEC);
	if (fd < 0)
		return !pst_ckpt_error_is_ours(-errno)
			       ? 0
			       : pst_weights_fail_errno(errno, f->ckpt.path, e->d_name, PST_NO_OFF,
							"cannot open: %m");
	held = flock(fd, LOCK_EX | LOCK_NB) && errno == EWOULDBLOCK;
	close(fd);
	return held;
}

/* A summary of the lock objects below a prefix: a sum of their ETags and times, and the newest
 * time. It changes when a lock is renewed. */
struct beats {
	uint64_t sum;
	int64_t newest_ns;
};

static int add_beat(void *user, const struct pst_listed *object)
{
	struct beats *b = user;

	if (!strstr(object->key, SAVE_LOCK))
		return 0;
	b->sum += object->tag ^ (uint64_t)object->time_ns ^ 1;
	if (object->time_ns > b->newest_ns)
		b->newest_ns = object->time_ns;
	return 0;
}

/* Returns the time of the newest checkpoint of a list, by the clock of the store. */
static int64_t newest_time(const struct pst_ckpt_list *list)
{
	return list->count ? list->entries[list->count - 1].ckpt.saved_ns : 0;
}

/* Returns 1 if a save may be writing below a prefix, 0 if not, or a negative errno. A running save
 * replaces an object of its lock every BEAT_S seconds. A lock is dead if it last changed more than
 * LEASE_S seconds before the time of the list's newest checkpoint. With PENSTOCK_PRUNE_NEWEST, the
 * function watches the lock for LEASE_S seconds, and returns 0 if the lock does not change. */
static int beat_is_seen(const struct prune *p, const struct pst_objects *objects)
{
	struct beats first = {.sum = 0}, now;
	int ret = pst_objects_each(objects, add_beat, &first);

	if (ret || !first.sum ||
	    newest_time(&p->list) - first.newest_ns > (LEASE_S + 1) * INT64_C(1000000000))
		return ret;
	if (!(p->flags & PENSTOCK_PRUNE_NEWEST))
		return 1;
	for (unsigned waited = 0; !ret && waited < LEASE_S; waited += BEAT_S) {
		sleep(BEAT_S);
		now = (struct beats){.sum = 0};
		ret = pst_objects_each(objects, add_beat, &now);
		if (!ret && now.sum != first.sum)
			return 1;
	}
	return ret;
}

/* Returns 1 if a save is writing into the folder, 0 if not, or a negative errno. A save holds the
 * lock .penstock-saving. If each rank saves for itself, rank N holds the lock
 * __N.penstock-saving. */
static int save_runs(const struct prune *p, struct pst_ckpt_folder *f)
{
	return f->dir.remote ? beat_is_seen(p, &f->dir.objects)
			     : pst_ckpt_dir_each(&f->dir, lock_is_held, f);
}

/* Returns whether a complete checkpoint has stray files (files of another save) that are newer than
 * its marker. A save may then be replacing the checkpoint. */
static bool is_being_replaced(const struct pst_ckpt_folder *f)
{
	for (uint64_t i = 0; i < f->count; i++)
		if (f->files[i].stray && f->files[i].time_ns > f->ckpt.saved_ns)
			return f->ckpt.state == PENSTOCK_CKPT_COMPLETE;
	return false;
}

/* Opens a checkpoint again. Returns 1 if it has changed since the list was made. */
static int open_again(const struct prune *p, const struct pst_ckpt_entry *e,
		      struct pst_ckpt_folder *f)
{
	int ret = p->list.self ? pst_ckpt_folder_open(NULL, p->list.name, e->path, f)
			       : pst_ckpt_folder_open(&p->list.dir, e->name, e->path, f);

	if (ret == -ENOENT)
		return 1;
	if (ret || (f->ckpt.state == e->ckpt.state && f->ckpt.saved_ns == e->ckpt.saved_ns))
		return ret;
	pst_ckpt_folder_close(f);
	return 1;
}

/* Removes the whole checkpoint if `whole` is true, otherwise only its stray files, which are left
 * from an earlier save. */
static int prune_entry(const struct prune *p, const struct pst_ckpt_entry *e, bool whole)
{
	struct pst_ckpt_folder f;
	int ret = open_again(p, e, &f);

	if (ret)
		return ret < 0 ? ret : 0;
	ret = save_runs(p, &f);
	if (ret || (whole && is_being_replaced(&f) && !(p->flags & PENSTOCK_PRUNE_NEWEST))) {
		ret = ret < 0 ? ret : 0;
	} else if (!whole) {
		ret = prune_strays(p, &f);
	} else {
		ret = announce(p, e->path, f.ckpt.bytes + f.ckpt.stray_bytes);
		if (!ret && !(p->flags & PENSTOCK_PRUNE_DRY_RUN))
			ret = remove_checkpoint(p, e, &f);
	}
	pst_ckpt_folder_close(&f);
	return ret;
}

/* Returns the index of the oldest checkpoint that is kept. The `keep` newest complete checkpoints
 * are kept; complete and damaged checkpoints before this index are removed. Returns 0, so that none
 * is removed, if `keep` is 0 or if there are fewer than `keep` complete checkpoints. */
static uint64_t oldest_kept(const struct pst_ckpt_list *list, unsigned keep)
{
	unsigned kept = 0;

	for (uint64_t i = list->count; keep && i-- > 0;)
		if (list->entries[i].ckpt.state == PENSTOCK_CKPT_COMPLETE && ++kept == keep)
			return i;
	return 0;
}

/* Returns the index of the newest complete checkpoint. Incomplete checkpoints before this index are
 * removed. Returns 0 if no checkpoint is complete: a save may then still be writing any of them. */
static uint64_t newest_complete(const struct pst_ckpt_list *list)
{
	for (uint64_t i = list->count; i-- > 0;)
		if (list->entries[i].ckpt.state == PENSTOCK_CKPT_COMPLETE)
			return i;
	return 0;
}

static int prune_all(const struct prune *p, unsigned keep)
{
	uint64_t kept = oldest_kept(&p->list, keep), newest = newest_complete(&p->list);
	int ret = 0;

	for (uint64_t i = 0; i < p->list.count && !ret; i++) {
		const struct pst_ckpt_entry *e = &p->list.entries[i];
		bool done = i < newest || p->flags & PENSTOCK_PRUNE_NEWEST;

		if (e->ckpt.state == PENSTOCK_CKPT_INCOMPLETE ? done : i < kept)
			ret = prune_entry(p, e, true);
		else if (e->ckpt.state == PENSTOCK_CKPT_COMPLETE && e->ckpt.stray_count)
			ret = prune_entry(p, e, false);
	}
	return ret;
}

int penstock_ckpt_prune(const char *dir, unsigned keep, unsigned flags,
			int (*each)(void *user, const char *path, uint64_t bytes), void *user)
{
	struct prune p = {.flags = flags, .each = each, .user = user};
	int ret;

	if (flags & ~(PENSTOCK_PRUNE_DRY_RUN | PENSTOCK_PRUNE_NEWEST))
		return pst_weights_fail(EINVAL, PENSTOCK_WHY_BAD_ARGUMENT, dir, NULL, PST_NO_OFF,
					"a flag is unknown");
	ret = pst_ckpt_list_open(dir, &p.list);
	if (ret)
		return ret;
	ret = prune_all(&p, keep);
	pst_ckpt_list_close(&p.list);
	return ret;
}
