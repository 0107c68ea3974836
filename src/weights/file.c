/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handles one file of a model: opens it, reads its header, detects that its bytes have changed, and
 * opens it as a storage. Called by open.c, by the loads and by src/group. It never reads the bytes
 * of tensors.
 */
#include "weights/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "weights/err.h"
#include "weights/object.h"

/* Returns true if `a` and `b` describe the same file with the same content. ctime is not
 * compared, since linking or renaming a file changes its ctime but none of its bytes. */
static bool same_file(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
	       a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

int pst_model_file_check(const struct pst_model_file *file, int fd)
{
	struct stat st;

	if (file->object)
		return 0; /* each read fails if the object has changed */
	if (fstat(fd, &st))
		return pst_weights_fail_errno(errno, file->path, NULL, PST_NO_OFF, "%m");
	if (!same_file(&st, &file->stat))
		return pst_weights_fail(ESTALE, PENSTOCK_WHY_STALE, file->path, NULL, PST_NO_OFF,
					"the file changed after its header was read");
	return 0;
}

int pst_model_file_open(const struct pst_model_file *file)
{
	/* O_NONBLOCK prevents that open(2) blocks if a pipe has replaced the file. */
	int fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	return fd < 0 ? pst_weights_fail_errno(errno, file->path, NULL, PST_NO_OFF, "%m") : fd;
}

/* Opens a model's file again. Fails if the path leads to another file, or if the file has
 * changed since its header was read. */
static int reopen_checked(const struct pst_model_file *file)
{
	int fd = pst_model_file_open(file), ret;

	if (fd < 0)
		return fd;
	ret = pst_model_file_check(file, fd);
	if (ret)
		close(fd);
	return ret ? ret : fd;
}

static struct pst_file_source source_of(struct penstock_weights *w, unsigned index)
{
	struct pst_file_source source;

	pthread_mutex_lock(&w->lock);
	source = w->sources[index];
	pthread_mutex_unlock(&w->lock);
	return source;
}

bool pst_model_file_is_open(struct penstock_weights *w, unsigned index)
{
	return source_of(w, index).st != NULL;
}

/* Opens an object as a storage, and checks that it has the length that it had before. */
static int object_open(const struct pst_model_file *file, struct penstock_storage **out)
{
	struct penstock_storage *st;
	int ret = penstock_open(file->path, NULL, &st);

	if (ret < 0)
		return pst_weights_fail_lib(ret, file->path, NULL, PST_NO_OFF);
	if (penstock_storage_length(st) != (int64_t)file->stat.st_size) {
		penstock_close(st);
		return pst_weights_fail(ESTALE, PENSTOCK_WHY_STALE, file->path, NULL, PST_NO_OFF,
					"the object changed after its header was read");
	}
	*out = st;
	return 0;
}

/* Opens the storage of the file without holding the lock: the system calls can block for any length
 * of time if the file is on remote storage. If two threads open it, one of the storages is closed.
 */
int pst_model_file_storage(struct penstock_weights *w, unsigned index,
			   struct penstock_storage **out)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct pst_file_source source = source_of(w, index);
	const bool object = w->files[index].object, kept = source.fd >= 0 || object;
	const pid_t process = getpid();
	struct penstock_storage *st, *left;
	int ret;

	*out = source.st;
	if (source.st && source.process == process)
		return 0;
	if (w->flags & PENSTOCK_WEIGHTS_IMMUTABLE)
		opts.flags |= PENSTOCK_O_IMMUTABLE;
	ret = kept ? pst_model_file_check(&w->files[index], source.fd)
		   : reopen_checked(&w->files[index]);
	if (ret < 0)
		return ret;
	source.fd = kept ? source.fd : ret;
	ret = object ? object_open(&w->files[index], &st) : penstock_open_fd(source.fd, &opts, &st);
	if (ret < 0 && object)
		return ret;
	if (ret < 0) {
		if (!kept)
			close(source.fd);
		return pst_weights_fail_lib(ret, w->files[index].path, NULL, PST_NO_OFF);
	}
	left = st;
	pthread_mutex_lock(&w->lock);
	if (!w->sources[index].st || w->sources[index].process != process) {
		/* The storage that was opened by the parent process and inherited by a fork, or
		 * NULL. */
		left = w->sources[index].st;
		w->sources[index] = (struct pst_file_source){st, source.fd, process};
	}
	*out = w->sources[index].st;
	pthread_mutex_unlock(&w->lock);
	penstock_close(left);
	/* Another thread has set sources[index] first, so this thread's storage is not used. */
	if (left == st && !kept)
		close(source.fd);
	return 0;
}

/* Reads bytes of the header: of the object `st`, or of the file `fd` if `st` is NULL. */
static int read_exact(const char *path, struct penstock_storage *st, int fd, void *to, size_t len,
		      uint64_t off)
{
	size_t at = 0;

	if (st)
		return pst_weights_object_read(st, path, to, len, off);

	while (at < len) {
		ssize_t n = pread(fd, (char *)to + at, len - at, (off_t)(off + at));

		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return pst_weights_fail_errno(errno, path, NULL, off + at,
						      "reading its header: %m");
		if (!n)
			return pst_weights_fail(ENODATA, PENSTOCK_WHY_SHRANK, path, NULL, off + at,
						"the file ends inside its header");
		at += (size_t)n;
	}
	return 0;
}

static int header_fail(const char *path, int code, const struct pst_st_error *err)
{
	return pst_weights_fail(
		code, code == -ENOMEM ? PENSTOCK_WHY_NO_MEMORY : PENSTOCK_WHY_MALFORMED, path,
		err->tensor, err->at == UINT64_MAX ? PST_NO_OFF : PST_ST_PREFIX + err->at, "%s",
		err->text);
}

static int header_read(struct pst_model_file *file, struct penstock_storage *st, int fd)
{
	unsigned char prefix[PST_ST_PREFIX];
	struct pst_st_error err;
	int64_t len;
	char *text;
	int ret;

	if ((uint64_t)file->stat.st_size < PST_ST_PREFIX)
		return pst_weights_fail(EBADMSG, PENSTOCK_WHY_MALFORMED, file->path, NULL,
					PST_NO_OFF,
					"a file of %lld bytes is not a safetensors file",
					(long long)file->stat.st_size);
	ret = read_exact(file->path, st, fd, prefix, sizeof(prefix), 0);
	if (ret)
		return ret;
	len = pst_st_header_length(prefix, (uint64_t)file->stat.st_size, &err);
	if (len < 0)
		return pst_weights_fail(EBADMSG, PENSTOCK_WHY_MALFORMED, file->path, NULL, 0, "%s",
					err.text);
	text = malloc((size_t)len + 1);
	if (!text)
		return pst_weights_no_memory("a header");
	ret = read_exact(file->path, st, fd, text, (size_t)len, PST_ST_PREFIX);
	if (ret) {
		free(text);
		return ret;
	}
	file->data_off = PST_ST_PREFIX + (uint64_t)len;
	ret = pst_st_parse(text, (size_t)len, (uint64_t)file->stat.st_size - file->data_off,
			   &file->st, &err);
	return ret ? header_fail(file->path, ret, &err) : 0;
}

int pst_model_file_read_header(struct pst_model_file *file, int fd)
{
	if (fstat(fd, &file->stat))
		return pst_weights_fail_errno(errno, file->path, NULL, PST_NO_OFF, "%m");
	if (!S_ISREG(file->stat.st_mode))
		return pst_weights_fail(EINVAL, PENSTOCK_WHY_BAD_KIND, file->path, NULL, PST_NO_OFF,
					"it is not a regular file");
	return header_read(file, NULL, fd);
}

int pst_model_file_read_object(struct pst_model_file *file, struct penstock_storage **out)
{
	struct penstock_storage *st;
	int64_t length;
	int ret = penstock_open(file->path, NULL, &st);

	file->object = true;
	if (ret < 0)
		return pst_weights_fail_lib(ret, file->path, NULL, PST_NO_OFF);
	length = penstock_storage_length(st);
	file->stat.st_size = (off_t)length;
	ret = length < 0 ? pst_weights_fail_lib((int)length, file->path, NULL, PST_NO_OFF)
			 : header_read(file, st, -1);
	if (ret)
		penstock_close(st);
	else
		*out = st;
	return ret;
}
