/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens, creates, commits and aborts files, for the storage named "file". A file that replaces
 * another is written without a name (O_TMPFILE) or, if the file system has no such files, under a
 * temporary name in the same directory. It gets the final name at commit. So no other process ever
 * sees a partial file, and if the process is killed the old file is still there. The function table
 * in file.c points to these functions.
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

#include "common/file_url.h"
#include "core/base/log.h"
#include "storage/file_open.h"
#include "storage/file_facts.h"
#include "storage/file_gate.h"
#include "storage/file_state.h"
#include "storage/file_sync.h"

static int path_fail(struct pst_err *err, int code, const char *what, const char *path)
{
	return pst_fail_errno(err, code, pst_why_from_errno(code), "%s %s: %m", what,
			      pst_path_tail(path));
}

/* Accepts regular files and block devices. Refuses every other kind of file, with a message that
 * names the kind. */
static int kind_judge(const char *name, const struct stat *stat, struct pst_err *err)
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

/* Returns true for a file that the kernel generates when it is read, such as /proc/meminfo. The
 * kernel reports its length as 0, or in sysfs as one page. So a program that relies on the length
 * finds the file empty or truncated. */
static bool is_generated(int fd, const struct stat *stat)
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

static int kind_check(int fd, const char *name, struct stat *stat, struct pst_err *err)
{
	if (fstat(fd, stat))
		return path_fail(err, errno, "cannot stat", name);
	if (S_ISREG(stat->st_mode) && is_generated(fd, stat))
		return pst_fail_errno(err, ESPIPE, PENSTOCK_WHY_BAD_KIND,
				      "%s is made by the kernel as it is read and has no length: "
				      "copy it to a file first",
				      pst_path_tail(name));
	return kind_judge(name, stat, err);
}

/* Opens a path with O_NONBLOCK, because open(2) of a pipe could block forever. kind_check
 * refuses the pipe later. */
static int path_open(const char *path, int flags, unsigned mode, struct pst_err *err)
{
	int fd = pst_open_retry(path, flags | O_NONBLOCK, mode);
	struct stat there;

	if (fd < 0) {
		int code = errno;

		/* open(2) fails with ENXIO for a socket, and with EISDIR for a directory
		 * that is opened for writing. Replace these errors by a message that names the
		 * kind of file. */
		if ((code == ENXIO || code == EISDIR) && !stat(path, &there) &&
		    (S_ISSOCK(there.st_mode) || S_ISDIR(there.st_mode)))
			return kind_judge(path, &there, err);
		errno = code;
		return path_fail(err, code, "cannot open", path);
	}
	/* O_NONBLOCK is removed again. With it, io_uring would return EAGAIN for bytes that are
	 * not in the page cache. */
	fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) & ~O_NONBLOCK);
	return fd;
}

static int file_reserve(const struct pst_file *file, uint64_t length, struct pst_err *err)
{
	const char *name = file->path ? file->path : "descriptor";
	int ret;

	do
		ret = fallocate(file->fd, 0, 0, (off_t)length) ? errno : 0;
	while (ret == EINTR);
	if (ret == EOPNOTSUPP) /* The file system has no fallocate, so only set the length. */
		ret = ftruncate(file->fd, (off_t)length) ? errno : 0;
	if (ret)
		return pst_fail_errno(err, ret, pst_why_from_errno(ret),
				      "cannot reserve %llu bytes for %s: %m",
				      (unsigned long long)length, pst_path_tail(name));
	return 0;
}

#define TEMP_EXTRA 40 /* The temporary name is at most this many bytes longer than the path. */

/* Returns the absolute form of a relative path, which stays valid when the working directory
 * changes. Returns NULL if it would be too long or there is no memory. */
static char *path_absolute(const char *path)
{
	char *here = getcwd(NULL, 0), *absolute = NULL;

	if (here && here[0] == '/' && strlen(here) + strlen(path) + TEMP_EXTRA < PATH_MAX &&
	    asprintf(&absolute, "%s/%s", here, path) < 0)
		absolute = NULL;
	free(here);
	return absolute;
}

/* Returns the name that the file has after commit. If possible it is absolute, because the
 * working directory may change before commit or abort. */
static const char *final_name(const struct pst_file *file)
{
	return file->absolute ? file->absolute : file->path;
}

/* Returns the last part of the final name, which is the file's name in file->dir. */
static const char *base_name(const struct pst_file *file)
{
	const char *path = final_name(file), *slash = strrchr(path, '/');

	return slash ? slash + 1 : path;
}

/* Opens the directory of the file, with the given flags in addition to O_DIRECTORY. Returns a
 * descriptor, or -1 with errno. */
static int directory_open(const struct pst_file *file, int flags)
{
	const char *path = final_name(file);
	int len = (int)(base_name(file) - path), fd = -1;
	char *dir = len ? strndup(path, (size_t)len) : strdup(".");

	if (dir)
		fd = pst_open_retry(dir, flags | O_DIRECTORY, 0);
	else
		errno = ENOMEM;
	free(dir);
	return fd;
}

/* Maximum number of bytes of the file's name that the temporary name repeats. The temporary name
 * also has a suffix, and must stay within the 255 bytes that Linux permits. */
#define TEMP_NAME 200

static int temp_name_make(struct pst_file *file, struct pst_err *err)
{
	uint64_t random = 0;

	if (getrandom(&random, sizeof(random), GRND_NONBLOCK) < 0)
		random = (uint64_t)getpid();
	if (asprintf(&file->temp, ".%.*s.penstock-%016llx", TEMP_NAME, base_name(file),
		     (unsigned long long)random) < 0) {
		file->temp = NULL;
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a name");
	}
	return 0;
}

/* Returns true if the link's target is in /proc, like that of /dev/stdout. Such a link leads to an
 * open descriptor of a process. */
static bool links_to_descriptor(const char *path)
{
	char to[6] = "";

	return readlink(path, to, sizeof(to)) == sizeof(to) && !memcmp(to, "/proc/", sizeof(to));
}

/* Checks that a file under this name may be replaced. The name may be unused, or belong to a
 * regular file. It may also belong to a link, if the link's target is a regular file or does
 * not exist. Any other link is refused and not changed. */
static int target_check(const char *path, bool follow, struct stat *old, struct pst_err *err)
{
	struct stat there;

	memset(old, 0, sizeof(*old));
	if (lstat(path, old))
		return errno == ENOENT ? 0 : path_fail(err, errno, "cannot stat", path);
	there = *old;
	if (S_ISLNK(old->st_mode)) {
		if (!follow)
			return pst_fail_errno(err, ELOOP, PENSTOCK_WHY_BAD_KIND,
					      "%s is a symbolic link, and the caller forbids to "
					      "follow links",
					      pst_path_tail(path));
		if (stat(path, &there))
			/* The link's target does not exist, so nothing forbids replacing the link.
			 */
			return 0;
	}
	if (S_ISDIR(there.st_mode))
		return pst_fail_errno(err, EISDIR, PENSTOCK_WHY_BAD_KIND,
				      "%s is a directory: name a file in it", pst_path_tail(path));
	if (!S_ISREG(there.st_mode) || (S_ISLNK(old->st_mode) && links_to_descriptor(path)))
		return pst_fail(err, PENSTOCK_WHY_BAD_KIND,
				"%s exists and is no regular file: name another",
				pst_path_tail(path));
	return 0;
}

/* Builds the path "/proc/self/fd/N" of the nameless file. linkat(2) needs it to give the file a
 * name. */
static void nameless_path(const struct pst_file *file, char *path, size_t len)
{
	snprintf(path, len, "/proc/self/fd/%d", file->fd);
}

/* Creates the file without a name, so that nothing stays behind if the process is killed. Returns
 * false if the file system cannot do that, or if the file could not get a name later, because
 * /proc is not mounted. */
static bool nameless_create(struct pst_file *file, unsigned mode)
{
	char path[64];

	file->fd = pst_openat_retry(file->dir, ".", O_TMPFILE | O_RDWR, mode);
	if (file->fd < 0)
		return false;
	nameless_path(file, path, sizeof(path));
	file->nameless = !access(path, F_OK);
	if (file->nameless)
		return true;
	close(file->fd);
	file->fd = -1;
	return false;
}

/* Creates the temporary file. Until commit, a user whom the final permissions exclude cannot
 * open the file. So a private file stays private while it is written. If `mode` is 0, the new
 * file gets the permissions of the file that it replaces, or 0666 if it replaces none. */
static int temp_create(struct pst_file *file, const struct penstock_storage_opts *opts,
		       struct pst_err *err)
{
	struct stat old, stat;
	unsigned mode = opts->mode;
	int ret = target_check(file->path, !(opts->flags & PENSTOCK_O_NOFOLLOW), &old, err);

	if (!ret)
		ret = temp_name_make(file, err);
	if (ret)
		return ret;
	file->dir = directory_open(file, O_PATH);
	if (file->dir < 0)
		return path_fail(err, errno, "cannot create a file in the folder of", file->path);
	file->keeps_owner = !mode && S_ISREG(old.st_mode);
	file->owner = old.st_uid;
	file->group = old.st_gid;
	file->mode = mode ? mode & 0777 : file->keeps_owner ? old.st_mode & 0777 : 0666;
	mode = 0600 | (file->keeps_owner ? 0 : file->mode);
	if (!nameless_create(file, mode))
		file->fd = pst_openat_retry(file->dir, file->temp, O_RDWR | O_CREAT | O_EXCL, mode);
	if (file->fd < 0)
		return path_fail(err, errno, "cannot create a file in the folder of", file->path);
	file->created = file->replace = true;
	if (!file->keeps_owner && !fstat(file->fd, &stat))
		/* Removes from the final permissions what the umask forbids. The kernel has applied
		 * the umask to the new file's mode. */
		file->mode &= stat.st_mode;
	return 0;
}

/* Sets owner, group and permissions as far as the process may. If the process cannot set the group,
 * the file keeps another group, which gets only the permissions that all other users have. Errors
 * are ignored, because a file system without permissions refuses these calls. */
static void permissions_set(const struct pst_file *file)
{
	unsigned mode = file->mode;

	if (file->keeps_owner && fchown(file->fd, file->owner, file->group) &&
	    fchown(file->fd, (uid_t)-1, file->group))
		mode = (mode & ~0070u) | (mode & 0007u) << 3;
	(void)fchmod(file->fd, mode);
}

static int file_open_named(struct pst_file *file, const struct penstock_storage_opts *opts,
			   struct pst_err *err)
{
	unsigned mode = opts->mode ? opts->mode : 0666;
	int flags = opts->flags & PENSTOCK_O_WRITE ? O_RDWR : O_RDONLY;
	struct stat there;

	if (file->path[0] != '/' && opts->flags & (PENSTOCK_O_REPLACE | PENSTOCK_O_CREATE))
		file->absolute = path_absolute(file->path);
	if (opts->flags & PENSTOCK_O_NOFOLLOW)
		flags |= O_NOFOLLOW;
	/* A block device is not replaced but written in place, because it cannot be renamed. The
	 * check follows links, because the names in /dev/mapper and /dev/disk are links. */
	if (opts->flags & PENSTOCK_O_REPLACE &&
	    (stat(file->path, &there) || !S_ISBLK(there.st_mode)))
		return temp_create(file, opts, err);
	if (opts->flags & PENSTOCK_O_CREATE) {
		/* With the directory's descriptor, the file can be removed even if the directory
		 * was renamed. If the directory cannot be opened, the file is removed by its
		 * path. */
		file->dir = directory_open(file, O_PATH);
		file->fd = path_open(file->path, flags | O_CREAT | O_EXCL, mode, err);
		if (file->fd >= 0)
			file->created = true;
		else if (file->fd != -EEXIST)
			return file->fd;
	}
	if (file->fd < 0)
		file->fd = path_open(file->path, flags, 0, err);
	return file->fd < 0 ? file->fd : 0;
}

/* Uses a duplicate of a caller's descriptor that could not be reopened. If the caller closes its
 * own descriptor, the number of that descriptor may later belong to another file. So the library
 * keeps the duplicate. */
static int borrow_descriptor(struct penstock_storage *st, struct pst_file *file, int fd, int flags,
			     struct pst_err *err)
{
	pst_fail_errno(&st->facts.why_fd, errno, PENSTOCK_WHY_REOPEN,
		       "descriptor %d cannot be opened again (%m): it is used as it is", fd);
	file->fd = fcntl(fd, F_DUPFD_CLOEXEC, 0);
	if (file->fd < 0)
		return pst_fail_errno(err, errno, pst_why_from_errno(errno),
				      "descriptor %d can be neither reopened nor duplicated: %m",
				      fd);
	file->fd_borrowed = true;
	/* With O_APPEND, Linux ignores the offset of a write (pwrite(2), BUGS), so the storage
	 * cannot be written. */
	file->appends = flags & O_APPEND && (flags & O_ACCMODE) != O_RDONLY;
	if (file->appends)
		pst_fail_errno(&st->facts.why_no_write, EOPNOTSUPP, PENSTOCK_WHY_REOPEN,
			       "descriptor %d has O_APPEND and cannot be opened again without it: "
			       "every write would go to the end",
			       fd);
	return 0;
}

/* Opens the file of the caller's descriptor a second time, so that the library can use other flags
 * without changing the flags of the caller's descriptor. The new descriptor gets O_SYNC or O_DSYNC
 * if the caller's descriptor has it, because the caller expects its writes to be durable. */
static int file_reopen(struct penstock_storage *st, struct pst_file *file, int fd,
		       const struct penstock_storage_opts *opts, struct pst_err *err)
{
	struct stat theirs, ours;
	char name[64];
	int flags = fcntl(fd, F_GETFL), ret;

	if (flags < 0)
		return pst_fail_errno(err, errno, PENSTOCK_WHY_BAD_ARGUMENT, "descriptor %d: %m",
				      fd);
	snprintf(name, sizeof(name), "descriptor %d", fd);
	ret = kind_check(fd, name, &theirs, err);
	if (ret)
		return ret;
	if (opts->flags & PENSTOCK_O_REPLACE)
		return pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT,
				"a descriptor cannot be replaced, only a name can");
	if (opts->flags & PENSTOCK_O_WRITE && (flags & O_ACCMODE) == O_RDONLY)
		return pst_fail_errno(err, EBADF, PENSTOCK_WHY_BAD_ARGUMENT,
				      "descriptor %d is open for reading only", fd);
	snprintf(name, sizeof(name), "/proc/self/fd/%d", fd);
	file->fd = pst_open_retry(name, flags & (O_ACCMODE | O_SYNC), 0);
	if (file->fd >= 0 && (fstat(file->fd, &ours) || ours.st_dev != theirs.st_dev ||
			      ours.st_ino != theirs.st_ino)) {
		close(file->fd);
		file->fd = -1;
		errno = ESTALE;
	}
	if (file->fd < 0)
		ret = borrow_descriptor(st, file, fd, flags, err);
	if (!ret && file->appends && opts->flags & PENSTOCK_O_WRITE)
		ret = pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "%s", st->facts.why_no_write.text);
	return ret;
}

static int length_read(struct penstock_storage *st, struct pst_file *file, const struct stat *stat,
		       struct pst_err *err)
{
	st->facts.length = (uint64_t)stat->st_size;
	if (!S_ISBLK(stat->st_mode))
		return 0;
	file->is_block = true;
	if (ioctl(file->fd, BLKGETSIZE64, &file->block_length))
		return path_fail(err, errno, "cannot read the size of",
				 file->path ? file->path : "device");
	st->facts.length = file->block_length;
	return 0;
}

static void file_free(struct pst_file *file)
{
	if (file->fd_direct >= 0 && file->fd_direct != file->fd)
		close(file->fd_direct);
	if (file->fd >= 0)
		close(file->fd);
	if (file->dir >= 0)
		close(file->dir);
	free(file->path);
	free(file->absolute);
	free(file->temp);
	free(file);
}

static int created_remove(const struct pst_file *file, struct pst_err *err)
{
	int dir = file->dir < 0 ? AT_FDCWD : file->dir;
	const char *name = file->temp	   ? file->temp
			   : file->dir < 0 ? final_name(file)
					   : base_name(file);
	const char *shown = file->temp ? file->temp : final_name(file);
	struct stat there, ours;

	if (!file->created || file->committed || file->nameless)
		return 0; /* the kernel frees a nameless file when it is closed */
	/* By now, another process may have given this name to a different file, which must not be
	 * removed. */
	if (!fstatat(dir, name, &there, AT_SYMLINK_NOFOLLOW) && !fstat(file->fd, &ours) &&
	    (there.st_dev != ours.st_dev || there.st_ino != ours.st_ino))
		return !ours.st_nlink ? 0
				      : pst_fail(err, PENSTOCK_WHY_STALE,
						 "%s belongs to another file by now and stays; the "
						 "written file has been renamed",
						 pst_path_tail(shown));
	if (unlinkat(dir, name, 0) && errno != ENOENT)
		return path_fail(err, errno, "cannot remove", shown);
	return 0;
}

/* Removes the created file. A failure is only logged, because the caller cannot report it or has
 * another error to report. */
static void created_remove_logged(const struct pst_file *file)
{
	struct pst_err err;

	if (created_remove(file, &err))
		pst_log(PST_LOG_WARN, "file", "%s", err.text);
}

static void text_add_borrowed(struct pst_storage_facts *facts)
{
	size_t n = strlen(facts->text);

	snprintf(facts->text + n, sizeof(facts->text) - n, "%s%s", n ? "; " : "",
		 penstock_why_text(facts->why_fd.why));
}

int pst_file_open(struct penstock_storage *st, const char *url, int fd,
		  const struct penstock_storage_opts *opts, struct pst_err *err)
{
	struct pst_file *file = calloc(1, sizeof(*file));
	const char *path = url ? pst_file_url_path(url) : NULL;
	struct stat stat;
	int ret;

	if (!file)
		return pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a file");
	file->fd = file->fd_direct = file->dir = -1;
	file->length = opts->length;
	if (url && !path)
		ret = pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "'%s': " PST_FILE_URL_HOST,
			       pst_path_tail(url));
	else if (path && !*path)
		ret = pst_fail(err, PENSTOCK_WHY_BAD_ARGUMENT, "an empty path");
	else if (path && !(file->path = strdup(path)))
		ret = pst_fail(err, PENSTOCK_WHY_NO_MEMORY, "no memory for a name");
	else
		ret = url ? file_open_named(file, opts, err) : file_reopen(st, file, fd, opts, err);
	if (!ret)
		ret = kind_check(file->fd, url ? file->path : "descriptor", &stat, err);
	if (!ret && file->created && opts->length)
		ret = file_reserve(file, opts->length, err);
	if (!ret && fstat(file->fd, &stat))
		ret = path_fail(err, errno, "cannot stat", url ? file->path : "descriptor");
	if (!ret)
		ret = length_read(st, file, &stat, err);
	if (!ret) {
		st->priv = file;
		pst_gate_open(file, &stat);
		st->facts.writable = (fcntl(file->fd, F_GETFL) & O_ACCMODE) != O_RDONLY &&
				     (url ? (opts->flags & PENSTOCK_O_WRITE) != 0 : !file->appends);
		st->facts.growing = file->created && file->length;
		st->facts.immutable = opts->flags & PENSTOCK_O_IMMUTABLE;
		ret = pst_file_facts(st, opts->sys_root ? opts->sys_root : "", err);
		if (st->facts.why_fd.code)
			text_add_borrowed(&st->facts);
	}
	if (ret) {
		created_remove_logged(file);
		file_free(file);
	}
	return ret;
}

/* Truncates a created file to the length that the caller gave at its creation. The file may be
 * longer, because more bytes were reserved or because its last block was padded. If the caller gave
 * no length, does nothing. */
static int length_truncate(struct pst_file *file, uint64_t length, struct pst_err *err)
{
	struct stat stat;

	if (!file->created || !file->length || file->committed)
		return 0;
	if (fstat(file->fd, &stat))
		return path_fail(err, errno, "cannot stat", file->path);
	if ((uint64_t)stat.st_size != length && ftruncate(file->fd, (off_t)length))
		return path_fail(err, errno, "cannot truncate to its length:", file->path);
	return 0;
}

static int directory_sync(const struct pst_file *file, struct pst_err *err)
{
	int fd = directory_open(file, O_RDONLY), ret = fd;

	while (fd >= 0 && (ret = fsync(fd)) && errno == EINTR)
		;
	if (ret < 0)
		ret = path_fail(err, errno, "cannot sync the directory of", file->path);
	if (fd >= 0)
		close(fd);
	return ret;
}

/* Checks that the caller's path still leads to the directory in which the file was created. */
static int directory_check(const struct pst_file *file, struct pst_err *err)
{
	int fd = directory_open(file, O_PATH), code = 0;
	struct stat there, ours;

	if (fd < 0 || fstat(fd, &there) || fstat(file->dir, &ours))
		code = errno;
	else if (there.st_dev != ours.st_dev || there.st_ino != ours.st_ino)
		code = ESTALE;
	if (fd >= 0)
		close(fd);
	return code ? path_fail(err, code,
				"the folder was renamed while the file was written:", file->path)
		    : 0;
}

/* Gives the finished file its final name. For a nameless file, linkat(2) does that in one step,
 * unless the name is in use. Then the file first gets a temporary name, because only rename(2) can
 * replace a file. */
static int final_name_give(struct pst_file *file, struct pst_err *err)
{
	const char *base = base_name(file);
	char path[64];
	int ret = directory_check(file, err);

	if (ret)
		return ret;
	nameless_path(file, path, sizeof(path));
	if (file->nameless && !linkat(AT_FDCWD, path, file->dir, base, AT_SYMLINK_FOLLOW)) {
		file->nameless = false;
		file->renamed = true;
		return 0;
	}
	if (file->nameless && errno == EEXIST &&
	    !linkat(AT_FDCWD, path, file->dir, file->temp, AT_SYMLINK_FOLLOW))
		file->nameless = false;
	if (file->nameless || renameat(file->dir, file->temp, file->dir, base))
		return path_fail(err, errno, "cannot rename the finished file to", file->path);
	file->renamed = true;
	return 0;
}

int pst_file_commit(struct penstock_storage *st, const struct penstock_end_opts *opts,
		    struct pst_err *err)
{
	struct pst_file *file = st->priv;
	int ret;

	if (file->aborted)
		return pst_fail_errno(err, ESTALE, PENSTOCK_WHY_BAD_ARGUMENT,
				      "%s was aborted, open it again", pst_path_tail(file->path));
	ret = length_truncate(file, file->length, err);
	if (!ret && file->replace && !file->renamed && !file->committed)
		permissions_set(file);
	if (!ret && opts->durable)
		ret = pst_file_sync_all(file, err);
	if (!ret && file->replace && !file->renamed && !file->committed)
		ret = final_name_give(file, err);
	if (!ret && opts->durable && file->created && file->path)
		ret = directory_sync(file, err);
	if (ret)
		return ret;
	file->committed = true;
	/* After the commit, other processes may write to the file under its name. So no later write
	 * of the library may pad the file's last block. */
	st->facts.growing = false;
	return 0;
}

int pst_file_abort(struct penstock_storage *st, const struct penstock_end_opts *opts,
		   struct pst_err *err)
{
	struct pst_file *file = st->priv;
	int ret = created_remove(file, err);

	(void)opts; /* unused: they limit the wait for a server, and a file has none */

	if (ret)
		return ret;
	file->aborted |= file->created && !file->committed;
	/* The file has been removed. `committed` keeps pst_file_close from removing another file
	 * that has the same name by then. */
	file->committed = true;
	return 0;
}

void pst_file_close(struct penstock_storage *st)
{
	struct pst_file *file = st->priv;
	uint64_t end = atomic_load(&file->written_end);
	struct pst_err err;

	if (file->replace)
		created_remove_logged(file);
	/* If the file replaces no other one, removes the reserved or padded bytes after its last
	 * written byte. */
	else if (length_truncate(file, end < file->length ? end : file->length, &err))
		pst_log(PST_LOG_WARN, "file", "%s", err.text);
	file_free(file);
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
		return path_fail(err, errno, "cannot stat", file->path ? file->path : "descriptor");
	*out = (uint64_t)stat.st_size;
	return 0;
}
