/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening, creating, committing and giving up files. A file that is replaced is
 * written under a name of its own beside its place and renamed over it at commit,
 * so nobody ever sees half of it, and a process that is killed leaves the old one.
 */
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/vfs.h>
#include <unistd.h>

#include "core/base/log.h"
#include "storage/file.h"

static int fail_path(struct pst_err *err, int code, const char *what, const char *path)
{
	return pst_fail_errno(err, code, pst_why_of_errno(code), "%s %s: %m", what,
			      pst_path_tail(path));
}

/* Regular files and block devices; the rest is refused by name. */
static int judge_kind(const char *name, const struct stat *stat, struct pst_err *err)
{
	if (S_ISREG(stat->st_mode) || S_ISBLK(stat->st_mode))
		return 0;
	if (S_ISDIR(stat->st_mode))
		return pst_fail_errno(err, EISDIR, PENSTOCK_WHY_BAD_KIND,
				      "%s is a directory: name a file in it", pst_path_tail(name));
	if (S_ISFIFO(stat->st_mode) || S_ISSOCK(stat->st_mode))
		return pst_fail_errno(err, ESPIPE, PENSTOCK_WHY_BAD_KIND,
				      "%s is a pipe or socket: only files and block devices can "
				      "be read at an offset",
				      pst_path_tail(name));
	return pst_fail(err, PENSTOCK_WHY_BAD_KIND,
			"%s is neither a regular file nor a block device", pst_path_tail(name));
}

/* A file of the kernel's, /proc/meminfo say, comes to be as it is read and tells no length,
 * or in sysfs that of a page: who goes by that finds it empty, or shrunk. */
static bool made_as_read(int fd, const struct stat *stat)
{
	static const long kinds[] = {PROC_SUPER_MAGIC,	 DEBUGFS_MAGIC,	      TRACEFS_MAGIC,
				     CGROUP_SUPER_MAGIC, CGROUP2_SUPER_MAGIC, SECURITYFS_MAGIC};
	struct statfs fs;

	if (stat->st_size > sysconf(_SC_PAGESIZE) || fstatfs(fd, &fs))
		return false;
	for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]) && !stat->st_size; i++)
		if (fs.f_type == kinds[i])
			return true;
	return fs.f_type == SYSFS_MAGIC;
}

static int check_kind(int fd, const char *name, struct stat *stat, struct pst_err *err)
{
	if (fstat(fd, stat))
		return fail_path(err, errno, "cannot stat", name);
	if (S_ISREG(stat->st_mode) && made_as_read(fd, stat))
		return pst_fail_errno(err, ESPIPE, PENSTOCK_WHY_BAD_KIND,
				      "%s is made by the kernel as it is read and has no length: "
				      "copy it to a file first",
				      pst_path_tail(name));
	return judge_kind(name, stat, err);
}

/* A network file system may let a signal end it. */
static int open_whole(const char *path, int flags, unsigned mode)
{
	int fd;

	do
		fd = open(path, flags | O_CLOEXEC | O_NOCTTY, mode);
	while (fd < 0 && errno == EINTR);
	return fd;
}

/* A pipe would block open(2) for ever, so nothing is opened that is not seekable. */
static int open_path(const char *path, int flags, unsigned mode, struct pst_err *err)
{
	int fd = open_whole(path, flags | O_NONBLOCK, mode);
	struct stat there;

	if (fd < 0) {
		int code = errno;

		/* A socket says ENXIO, whatever it is asked for, a folder EISDIR if it is to
		 * be written. */
		if ((code == ENXIO || code == EISDIR) && !stat(path, &there) &&
		    (S_ISSOCK(there.st_mode) || S_ISDIR(there.st_mode)))
			return judge_kind(path, &there, err);
		errno = code;
		return fail_path(err, code, "cannot open", path);
	}
	/* io_uring would give EAGAIN for what is not in the page cache. */
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
	return fd;
}

static int reserve(const struct pst_file *file, uint64_t length, struct pst_err *err)
{
	const char *name = file->path ? file->path : "descriptor";
	int ret;

	do
		ret = fallocate(file->fd, 0, 0, (off_t)length) ? errno : 0;
	while (ret == EINTR);
	if (ret == EOPNOTSUPP) /* no such call here: the length alone */
		ret = ftruncate(file->fd, (off_t)length) ? errno : 0;
	if (ret)
		return pst_fail_errno(err, ret, pst_why_of_errno(ret),
				      "cannot reserve %llu bytes for %s: %m",
				      (unsigned long long)length, pst_path_tail(name));
	return 0;
}

#define TEMP_MORE 40 /* than its path, of the name until commit */

/* Where a relative path is as long as the working directory stays; NULL: too long to tell. */
static char *whole_path(const char *path)
{
	char *here = getcwd(NULL, 0), *whole = NULL;

	if (here && here[0] == '/' && strlen(here) + strlen(path) + TEMP_MORE < PATH_MAX &&
	    asprintf(&whole, "%s/%s", here, path) < 0)
		whole = NULL;
	free(here);
	return whole;
}

/* What becomes of it later is done there, wherever the process is by then. */
static const char *place_of(const struct pst_file *file)
{
	return file->whole ? file->whole : file->path;
}

/* So much of the name is in the other one: a name may have 255 bytes. */
#define TEMP_NAME 200

static int temp_name(struct pst_file *file, struct pst_err *err)
{
	const char *path = place_of(file);
	uint64_t random = 0;
	const char *slash = strrchr(path, '/');
	int dir = slash ? (int)(slash - path) + 1 : 0;

	if (getrandom(&random, sizeof(random), GRND_NONBLOCK) < 0)
		random = (uint64_t)getpid();
	if (asprintf(&file->temp, "%.*s.%.*s.penstock-%016llx", dir, path, TEMP_NAME, path + dir,
		     (unsigned long long)random) < 0) {
		file->temp = NULL;
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a name");
	}
	return 0;
}

/* Does the link lead to what a process has open, as /dev/stdout does? */
static bool is_to_descriptor(const char *path)
{
	char to[6] = "";

	return readlink(path, to, sizeof(to)) == sizeof(to) && !memcmp(to, "/proc/", sizeof(to));
}

/* The place that a replacement will take must be one that it can take: a file's, or a link's
 * to a file or to nothing. What else a link leads to is named by it, and stays so. */
static int check_place(const char *path, bool follow, struct stat *old, struct pst_err *err)
{
	struct stat there;

	memset(old, 0, sizeof(*old));
	if (lstat(path, old))
		return errno == ENOENT ? 0 : fail_path(err, errno, "cannot stat", path);
	there = *old;
	if (S_ISLNK(old->st_mode)) {
		if (!follow)
			return pst_fail_errno(err, ELOOP, PENSTOCK_WHY_BAD_KIND,
					      "%s is a symbolic link, and those are not to be "
					      "followed",
					      pst_path_tail(path));
		if (stat(path, &there))
			return 0; /* to nothing */
	}
	if (S_ISDIR(there.st_mode))
		return pst_fail_errno(err, EISDIR, PENSTOCK_WHY_BAD_KIND,
				      "%s is a directory: name a file in it", pst_path_tail(path));
	if (!S_ISREG(there.st_mode) || (S_ISLNK(old->st_mode) && is_to_descriptor(path)))
		return pst_fail(err, PENSTOCK_WHY_BAD_KIND,
				"%s exists and is no regular file: name another",
				pst_path_tail(path));
	return 0;
}

/* Until it has the name the file is its owner's to write, and nobody's whose it will not
 * be: a private file stays private also while it is written. `mode` 0: as it is with what
 * is replaced, else 0666. */
static int create_aside(struct pst_file *file, const struct penstock_storage_opts *opts,
			struct pst_err *err)
{
	struct stat old, stat;
	unsigned mode = opts->mode;
	int ret = check_place(file->path, !(opts->flags & PENSTOCK_O_NOFOLLOW), &old, err);

	if (!ret)
		ret = temp_name(file, err);
	if (ret)
		return ret;
	file->keeps_owner = !mode && S_ISREG(old.st_mode);
	file->owner = old.st_uid;
	file->group = old.st_gid;
	file->mode = mode ? mode & 0777 : file->keeps_owner ? old.st_mode & 0777 : 0666;
	file->fd = open_whole(file->temp, O_RDWR | O_CREAT | O_EXCL,
			      0600 | (file->keeps_owner ? 0 : file->mode));
	if (file->fd < 0)
		return fail_path(err, errno, "cannot create a file in the folder of", file->path);
	file->created = file->replace = true;
	if (!file->keeps_owner && !fstat(file->fd, &stat))
		file->mode &= stat.st_mode; /* which the umask has had its say in */
	return 0;
}

/* As far as the caller may: where the group cannot be kept it gets what others get. A file
 * system that knows no permissions refuses all of it, and nothing is lost by that. */
static void take_permissions(const struct pst_file *file)
{
	unsigned mode = file->mode;

	if (file->keeps_owner && fchown(file->fd, file->owner, file->group) &&
	    fchown(file->fd, (uid_t)-1, file->group))
		mode = (mode & ~0070u) | (mode & 0007u) << 3;
	(void)fchmod(file->fd, mode);
}

static int open_named(struct pst_file *file, const struct penstock_storage_opts *opts,
		      struct pst_err *err)
{
	unsigned mode = opts->mode ? opts->mode : 0666;
	int flags = opts->flags & PENSTOCK_O_WRITE ? O_RDWR : O_RDONLY;
	struct stat there;

	if (file->path[0] != '/' && opts->flags & (PENSTOCK_O_REPLACE | PENSTOCK_O_CREATE))
		file->whole = whole_path(file->path);
	if (opts->flags & PENSTOCK_O_NOFOLLOW)
		flags |= O_NOFOLLOW;
	/* A device is written in place: there is nothing to rename. Its name is often a link, as
	 * all are in /dev/mapper and /dev/disk. */
	if (opts->flags & PENSTOCK_O_REPLACE &&
	    (stat(file->path, &there) || !S_ISBLK(there.st_mode)))
		return create_aside(file, opts, err);
	if (opts->flags & PENSTOCK_O_CREATE) {
		file->fd = open_path(file->path, flags | O_CREAT | O_EXCL, mode, err);
		if (file->fd >= 0)
			file->created = true;
		else if (file->fd != -EEXIST)
			return file->fd;
	}
	if (file->fd < 0)
		file->fd = open_path(file->path, flags, 0, err);
	return file->fd < 0 ? file->fd : 0;
}

/* What could not be opened again is used as it is, by a number of our own: the caller's may
 * be closed, and name another file next. */
static int use_as_it_is(struct penstock_storage *st, struct pst_file *file, int fd, int flags,
			struct pst_err *err)
{
	pst_fail_errno(&st->facts.why_fd, errno, PENSTOCK_WHY_REOPEN,
		       "descriptor %d cannot be opened again (%m), it is used as it is", fd);
	file->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (file->fd < 0)
		return pst_fail_errno(err, errno, pst_why_of_errno(errno),
				      "descriptor %d can neither be opened again nor be kept: %m",
				      fd);
	file->fd_borrowed = true;
	/* Linux appends whatever offset it is told (pwrite(2), BUGS). */
	file->appends = flags & O_APPEND && (flags & O_ACCMODE) != O_RDONLY;
	if (file->appends)
		pst_fail_errno(&st->facts.why_no_write, EOPNOTSUPP, PENSTOCK_WHY_REOPEN,
			       "descriptor %d has O_APPEND and cannot be opened again without: "
			       "everything would be written at the end",
			       fd);
	return 0;
}

/* The caller's descriptor, opened again so that its flags stay its own. What it promises of
 * each write, O_SYNC or O_DSYNC, ours have to keep. */
static int open_again(struct penstock_storage *st, struct pst_file *file, int fd,
		      const struct penstock_storage_opts *opts, struct pst_err *err)
{
	struct stat theirs, ours;
	char name[64];
	int flags = fcntl(fd, F_GETFL), ret;

	if (flags < 0)
		return pst_fail_errno(err, errno, PENSTOCK_WHY_BAD_ARGUMENT, "descriptor %d: %m",
				      fd);
	snprintf(name, sizeof(name), "descriptor %d", fd);
	ret = check_kind(fd, name, &theirs, err);
	if (ret)
		return ret;
	if (opts->flags & PENSTOCK_O_REPLACE)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"a descriptor cannot be replaced, only a name can");
	if (opts->flags & PENSTOCK_O_WRITE && (flags & O_ACCMODE) == O_RDONLY)
		return pst_fail_errno(err, EBADF, PENSTOCK_WHY_BAD_ARGUMENT,
				      "descriptor %d is open for reading only", fd);
	snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
	file->fd = open_whole(name, flags & (O_ACCMODE | O_SYNC), 0);
	if (file->fd >= 0 && (fstat(file->fd, &ours) || ours.st_dev != theirs.st_dev ||
			      ours.st_ino != theirs.st_ino)) {
		close(file->fd);
		file->fd = -1;
		errno = ESTALE;
	}
	if (file->fd < 0)
		ret = use_as_it_is(st, file, fd, flags, err);
	if (!ret && file->appends && opts->flags & PENSTOCK_O_WRITE)
		ret = pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "%s", st->facts.why_no_write.text);
	return ret;
}

static const char *path_of(const char *url)
{
	return strncmp(url, "file://", 7) ? url : url + 7;
}

static int measure(struct penstock_storage *st, struct pst_file *file, const struct stat *stat,
		   struct pst_err *err)
{
	st->facts.length = (uint64_t)stat->st_size;
	if (!S_ISBLK(stat->st_mode))
		return 0;
	file->is_block = true;
	if (ioctl(file->fd, BLKGETSIZE64, &file->block_length))
		return fail_path(err, errno, "cannot measure", file->path ? file->path : "device");
	st->facts.length = file->block_length;
	return 0;
}

static void close_all(struct pst_file *file)
{
	if (file->fd_direct >= 0 && file->fd_direct != file->fd)
		close(file->fd_direct);
	if (file->fd >= 0)
		close(file->fd);
	free(file->path);
	free(file->whole);
	free(file->temp);
	free(file);
}

static int remove_created(const struct pst_file *file, struct pst_err *err)
{
	const char *name = file->temp ? file->temp : place_of(file);
	struct stat there, ours;

	if (!file->created || file->committed || !name)
		return 0;
	/* Somebody may have put another file in its place meanwhile: that one is not ours. */
	if (!lstat(name, &there) && !fstat(file->fd, &ours) &&
	    (there.st_dev != ours.st_dev || there.st_ino != ours.st_ino))
		return !ours.st_nlink ? 0
				      : pst_fail(err, PENSTOCK_WHY_STALE,
						 "%s is another's by now and stays; what was "
						 "written has another name",
						 pst_path_tail(name));
	if (unlink(name) && errno != ENOENT)
		return fail_path(err, errno, "cannot remove", name);
	return 0;
}

/* Where another error is told of, or nobody asks any more. */
static void remove_quietly(const struct pst_file *file)
{
	struct pst_err err;

	if (remove_created(file, &err))
		pst_log(PST_LOG_WARN, "file", "%s", err.text);
}

static void say_borrowed(struct pst_storage_facts *facts)
{
	size_t n = strlen(facts->text);

	snprintf(facts->text + n, sizeof(facts->text) - n, "%s%s", n ? "; " : "",
		 penstock_why_text(facts->why_fd.why));
}

int pst_file_open(struct penstock_storage *st, const char *url, int fd,
		  const struct penstock_storage_opts *opts, struct pst_err *err)
{
	struct pst_file *file = calloc(1, sizeof(*file));
	struct stat stat;
	int ret;

	if (!file)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a file");
	file->fd = file->fd_direct = -1;
	file->length = opts->length;
	if (url && !*path_of(url))
		ret = pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "an empty path");
	else if (url && !(file->path = strdup(path_of(url))))
		ret = pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a name");
	else
		ret = url ? open_named(file, opts, err) : open_again(st, file, fd, opts, err);
	if (!ret)
		ret = check_kind(file->fd, url ? file->path : "descriptor", &stat, err);
	if (!ret && file->created && opts->length)
		ret = reserve(file, opts->length, err);
	if (!ret && fstat(file->fd, &stat))
		ret = fail_path(err, errno, "cannot stat", url ? file->path : "descriptor");
	if (!ret)
		ret = measure(st, file, &stat, err);
	if (!ret) {
		st->priv = file;
		pst_gate_open(file, &stat);
		st->facts.writable = (fcntl(file->fd, F_GETFL) & O_ACCMODE) != O_RDONLY &&
				     (url ? (opts->flags & PENSTOCK_O_WRITE) != 0 : !file->appends);
		st->facts.growing = file->created && file->length;
		st->facts.immutable = opts->flags & PENSTOCK_O_IMMUTABLE;
		ret = pst_file_facts(st, opts->sys_root ? opts->sys_root : "", err);
		if (st->facts.why_fd.code)
			say_borrowed(&st->facts);
	}
	if (ret) {
		remove_quietly(file);
		close_all(file);
	}
	return ret;
}

/* To its exact length: of what was reserved, and of padded tails. What was given no length
 * is as long as it was written, by whomever. */
static int cut(struct pst_file *file, uint64_t length, struct pst_err *err)
{
	struct stat stat;

	if (!file->created || !file->length || file->committed)
		return 0;
	if (fstat(file->fd, &stat))
		return fail_path(err, errno, "cannot stat", file->path);
	if ((uint64_t)stat.st_size != length && ftruncate(file->fd, (off_t)length))
		return fail_path(err, errno, "cannot cut to its length:", file->path);
	return 0;
}

static int sync_directory(const struct pst_file *file, struct pst_err *err)
{
	const char *path = place_of(file), *slash = strrchr(path, '/');
	char *dir = slash ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
	int fd = dir ? open_whole(dir, O_RDONLY | O_DIRECTORY, 0) : -1, ret = fd;

	while (fd >= 0 && (ret = fsync(fd)) && errno == EINTR)
		;
	if (ret < 0)
		ret = fail_path(err, dir ? errno : ENOMEM, "cannot sync the directory of",
				file->path);
	if (fd >= 0)
		close(fd);
	free(dir);
	return ret;
}

int pst_file_commit(struct penstock_storage *st, bool durable, struct pst_err *err)
{
	struct pst_file *file = st->priv;
	int ret;

	if (file->given_up)
		return pst_fail_errno(err, ESTALE, PENSTOCK_WHY_BAD_ARGUMENT,
				      "%s was given up, open it again", pst_path_tail(file->path));
	ret = cut(file, file->length, err);
	if (!ret && file->replace && !file->placed && !file->committed)
		take_permissions(file);
	if (!ret && durable)
		ret = pst_file_settle(file, err);
	if (!ret && file->replace && !file->placed && !file->committed) {
		if (rename(file->temp, place_of(file)))
			ret = fail_path(err, errno, "cannot put in its place:", file->path);
		else
			file->placed = true;
	}
	if (!ret && durable && file->created && file->path)
		ret = sync_directory(file, err);
	if (ret)
		return ret;
	file->committed = true;
	/* The name is everybody's from here on: no padded tails any more. */
	st->facts.growing = false;
	return 0;
}

int pst_file_abort(struct penstock_storage *st, struct pst_err *err)
{
	struct pst_file *file = st->priv;
	int ret = remove_created(file, err);

	if (ret)
		return ret;
	file->given_up |= file->created && !file->committed;
	file->committed = true; /* nothing more to decide */
	return 0;
}

void pst_file_close(struct penstock_storage *st)
{
	struct pst_file *file = st->priv;
	uint64_t end = atomic_load(&file->written_end);
	struct pst_err err;

	if (file->replace)
		remove_quietly(file);
	else if (cut(file, end < file->length ? end : file->length, &err)) /* a padded tail */
		pst_log(PST_LOG_WARN, "file", "%s", err.text);
	close_all(file);
}

int pst_file_length(struct penstock_storage *st, uint64_t *out, struct pst_err *err)
{
	const struct pst_file *file = st->priv;
	struct stat stat;

	if (file->is_block) {
		*out = file->block_length;
		return 0;
	}
	if (fstat(file->fd, &stat))
		return fail_path(err, errno, "cannot stat", file->path ? file->path : "descriptor");
	*out = (uint64_t)stat.st_size;
	return 0;
}
