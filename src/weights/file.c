/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handles one file of a model: opens it, reads its header, detects that its bytes have changed, and
 * opens it as a storage. Called by open.c, by the code that loads tensors and by src/group. It
 * never reads the bytes of tensors.
 */
#include "weights/file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/crc32c.h"
#include "weights/err.h"
#include "weights/url.h"

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

	if (pst_url_match(file->path))
		return 0;
	if (fstat(fd, &st))
		return pst_weights_fail_errno(errno, file->path, NULL, PST_NO_OFF, "%m");
	if (!same_file(&st, &file->stat))
		return pst_weights_fail(ESTALE, PENSTOCK_WHY_STALE, file->path, NULL, PST_NO_OFF,
					"the file changed after its header was read");
	return 0;
}

int pst_model_file_open(const struct pst_model_file *file, struct pst_file_source *out)
{
	struct pst_file_source source = {.fd = -1, .process = getpid()};
	uint64_t length;
	int ret = 0;

	if (pst_url_match(file->path)) {
		ret = pst_url_open(file->path, 0, &source.st, &length);
	} else {
		/* O_NONBLOCK keeps open(2) from blocking if a pipe has replaced the file. */
		source.fd = open(file->path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
		if (source.fd < 0)
			ret = pst_weights_fail_errno(errno, file->path, NULL, PST_NO_OFF, "%m");
	}
	if (!ret)
		*out = source;
	return ret;
}

void pst_model_file_close(struct pst_file_source *source)
{
	penstock_close(source->st);
	if (source->fd >= 0)
		close(source->fd);
	*source = (struct pst_file_source){.fd = -1};
}

/* Opens the storage of a URL again. Fails if the object is not the one whose header was read. */
static int reopen_url(const struct pst_model_file *file, struct penstock_storage **out)
{
	uint64_t length;
	int ret = pst_url_open(file->path, 0, out, &length);

	if (ret ||
	    (length == (uint64_t)file->stat.st_size && pst_url_version(*out) == file->version))
		return ret;
	penstock_close(*out);
	return pst_weights_fail(ESTALE, PENSTOCK_WHY_STALE, file->path, NULL, PST_NO_OFF,
				"it changed after its header was read");
}

/* Opens a model's file again. Fails if the path leads to another file, or if the file has
 * changed since its header was read. */
static int reopen_checked(const struct pst_model_file *file)
{
	struct pst_file_source source;
	int ret = pst_model_file_open(file, &source);

	if (ret)
		return ret;
	ret = pst_model_file_check(file, source.fd);
	if (ret)
		close(source.fd);
	return ret ? ret : source.fd;
}

/* Opens the storage of a file. If source->fd is -1, opens the file first. */
static int open_storage(struct penstock_weights *w, unsigned index, struct pst_file_source *source,
			struct penstock_storage **out)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	const struct pst_model_file *file = &w->files[index];
	const bool kept = source->fd >= 0;
	int ret;

	if (pst_url_match(file->path))
		return reopen_url(file, out);
	if (w->flags & PENSTOCK_WEIGHTS_IMMUTABLE)
		opts.flags |= PENSTOCK_O_IMMUTABLE;
	ret = kept ? pst_model_file_check(file, source->fd) : reopen_checked(file);
	if (ret < 0)
		return ret;
	source->fd = kept ? source->fd : ret;
	ret = penstock_open_fd(source->fd, &opts, out);
	if (ret < 0) {
		if (!kept)
			close(source->fd);
		return pst_weights_fail_lib(ret, file->path, NULL, PST_NO_OFF);
	}
	return 0;
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

/* Opens the storage of the file without holding the lock: the system calls can block for any length
 * of time if the file is on remote storage. If two threads open it, one of the storages is closed.
 */
int pst_model_file_storage(struct penstock_weights *w, unsigned index,
			   struct penstock_storage **out)
{
	struct pst_file_source source = source_of(w, index);
	const bool kept = source.fd >= 0;
	const pid_t process = getpid();
	struct penstock_storage *st, *left;
	int ret;

	*out = source.st;
	if (source.st && source.process == process)
		return 0;
	ret = open_storage(w, index, &source, &st);
	if (ret)
		return ret;
	left = st;
	pthread_mutex_lock(&w->lock);
	if (!w->sources[index].st || w->sources[index].process != process) {
		/* The old value is replaced and closed below. It is NULL, or a storage that this
		 * process has inherited from its parent and must not use. */
		left = w->sources[index].st;
		w->sources[index] = (struct pst_file_source){st, source.fd, process};
	}
	*out = w->sources[index].st;
	pthread_mutex_unlock(&w->lock);
	penstock_close(left);
	/* If another thread has set sources[index] first, `left` is this thread's storage, which is
	 * not used. Then its descriptor is not used either. */
	if (left == st && !kept && source.fd >= 0)
		close(source.fd);
	return 0;
}

static int read_exact(const char *path, int fd, void *to, size_t len, uint64_t off)
{
	size_t at = 0;

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

/* Number of bytes that are read from the start of a file behind a URL. Most headers are shorter, so
 * that they need one request only. */
#define FRONT_BYTES (1u << 20)

/* An open file whose header is being read. */
struct header_reader {
	const char *path;
	const struct pst_file_source *source;
	char *front; /* the first bytes of a file behind a URL */
	size_t front_len;
};

static int front_read(struct header_reader *r, uint64_t length)
{
	size_t len = length < FRONT_BYTES ? (size_t)length : FRONT_BYTES;
	int ret;

	r->front = malloc(len + 1);
	if (!r->front)
		return pst_weights_no_memory("a header");
	ret = pst_url_read(r->path, r->source->st, r->front, len, 0);
	r->front_len = ret ? 0 : len;
	return ret;
}

static int header_read(const struct header_reader *r, void *to, size_t len, uint64_t off)
{
	size_t have = off < r->front_len ? r->front_len - (size_t)off : 0;

	if (r->source->fd >= 0)
		return read_exact(r->path, r->source->fd, to, len, off);
	have = have < len ? have : len;
	memcpy(to, r->front + (have ? off : 0), have);
	return pst_url_read(r->path, r->source->st, (char *)to + have, len - have, off + have);
}

/* Fills file->stat. */
static int file_stat(struct pst_model_file *file, const struct pst_file_source *source)
{
	int64_t length;

	if (source->fd >= 0)
		return fstat(source->fd, &file->stat)
			       ? pst_weights_fail_errno(errno, file->path, NULL, PST_NO_OFF, "%m")
			       : 0;
	length = penstock_storage_length(source->st);
	if (length < 0)
		return pst_weights_fail_lib((int)length, file->path, NULL, PST_NO_OFF);
	file->version = pst_url_version(source->st);
	file->stat = (struct stat){.st_mode = S_IFREG, .st_size = (off_t)length};
	return 0;
}

static int parse_header(struct pst_model_file *file, const struct header_reader *r)
{
	unsigned char prefix[PST_ST_PREFIX];
	struct pst_st_error err;
	int64_t len;
	char *text;
	int ret = header_read(r, prefix, sizeof(prefix), 0);

	if (ret)
		return ret;
	len = pst_st_header_length(prefix, (uint64_t)file->stat.st_size, &err);
	if (len < 0)
		return pst_weights_fail(EBADMSG, PENSTOCK_WHY_MALFORMED, file->path, NULL, 0, "%s",
					err.text);
	text = malloc((size_t)len + 1);
	if (!text)
		return pst_weights_no_memory("a header");
	ret = header_read(r, text, (size_t)len, PST_ST_PREFIX);
	if (ret) {
		free(text);
		return ret;
	}
	if (r->source->fd < 0)
		file->stat.st_ino =
			pst_crc32c_finish(pst_crc32c_raw(0, text, (size_t)len), (uint64_t)len);
	file->data_off = PST_ST_PREFIX + (uint64_t)len;
	ret = pst_st_parse(text, (size_t)len, (uint64_t)file->stat.st_size - file->data_off,
			   &file->st, &err);
	return ret ? header_fail(file->path, ret, &err) : 0;
}

int pst_model_file_read_header(struct pst_model_file *file, const struct pst_file_source *source)
{
	struct header_reader r = {.path = file->path, .source = source};
	int ret = file_stat(file, source);

	if (ret)
		return ret;
	if (!S_ISREG(file->stat.st_mode))
		return pst_weights_fail(EINVAL, PENSTOCK_WHY_BAD_KIND, file->path, NULL, PST_NO_OFF,
					"it is not a regular file");
	if ((uint64_t)file->stat.st_size < PST_ST_PREFIX)
		return pst_weights_fail(EBADMSG, PENSTOCK_WHY_MALFORMED, file->path, NULL,
					PST_NO_OFF,
					"a file of %lld bytes is not a safetensors file",
					(long long)file->stat.st_size);
	if (source->fd < 0)
		ret = front_read(&r, (uint64_t)file->stat.st_size);
	if (!ret)
		ret = parse_header(file, &r);
	free(r.front);
	return ret;
}
