/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A model: the headers of its files, checked, and one table of their tensors in file
 * order. Also the functions that look things up in it. No tensor's bytes are touched
 * here; weights_load.c and its siblings do that.
 */
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "weights/weights.h"

/* Files of a model that stay open from its header on, so that it does not matter what becomes
 * of their names; of one with more of them not all may be read, and descriptors are few. */
#define KEPT_MAX 64u

/* ---- the files ---- */

/* ctime alone changes when somebody links or renames it, which changes no byte. */
static bool same(const struct stat *a, const struct stat *b)
{
	return a->st_dev == b->st_dev && a->st_ino == b->st_ino && a->st_size == b->st_size &&
	       a->st_mtim.tv_sec == b->st_mtim.tv_sec && a->st_mtim.tv_nsec == b->st_mtim.tv_nsec;
}

int pst_shard_same(const struct pst_shard *shard, int fd)
{
	struct stat st;

	if (fstat(fd, &st))
		return pst_weights_fail_errno(errno, shard->path, NULL, PST_NO_OFF, "%m");
	if (!same(&st, &shard->stat))
		return pst_weights_fail(ESTALE, PENSTOCK_WHY_STALE, shard->path, NULL, PST_NO_OFF,
					"the file changed after its header was read");
	return 0;
}

static int open_path(const char *path)
{
	/* Not to hang on a pipe that took the file's place. */
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);

	return fd < 0 ? pst_weights_fail_errno(errno, path, NULL, PST_NO_OFF, "%m") : fd;
}

int pst_shard_open(const struct pst_shard *shard)
{
	int fd = open_path(shard->path), ret;

	if (fd < 0)
		return fd;
	ret = pst_shard_same(shard, fd);
	if (ret)
		close(fd);
	return ret ? ret : fd;
}

const char *pst_shard_tensor_at(const struct pst_shard *shard, uint64_t off)
{
	size_t low = 0, high = shard->st.count;

	off -= off < shard->data_off ? off : shard->data_off; /* pages begin before it */
	while (low < high) {				      /* the first that ends behind it */
		size_t mid = low + (high - low) / 2;

		if (shard->st.tensors[mid].end <= off)
			low = mid + 1;
		else
			high = mid;
	}
	return low < shard->st.count ? shard->st.tensors[low].name : "";
}

static struct pst_source source_of(struct penstock_weights *w, unsigned index)
{
	struct pst_source source;

	pthread_mutex_lock(&w->lock);
	source = w->sources[index];
	pthread_mutex_unlock(&w->lock);
	return source;
}

bool pst_shard_is_open(struct penstock_weights *w, unsigned index)
{
	return source_of(w, index).st != NULL;
}

/* Nothing that a store may keep as long as it likes is done under the lock. */
int pst_shard_storage(struct penstock_weights *w, unsigned index, struct penstock_storage **out)
{
	struct penstock_storage_opts opts = PENSTOCK_STORAGE_OPTS_INIT;
	struct pst_source source = source_of(w, index);
	const bool kept = source.fd >= 0;
	const pid_t process = getpid();
	struct penstock_storage *st, *left;
	int ret;

	*out = source.st;
	if (source.st && source.process == process)
		return 0;
	if (w->flags & PENSTOCK_WEIGHTS_IMMUTABLE)
		opts.flags |= PENSTOCK_O_IMMUTABLE;
	ret = kept ? pst_shard_same(&w->shards[index], source.fd)
		   : pst_shard_open(&w->shards[index]);
	if (ret < 0)
		return ret;
	source.fd = kept ? source.fd : ret;
	ret = penstock_open_fd(source.fd, &opts, &st);
	if (ret < 0) {
		if (!kept)
			close(source.fd);
		return pst_weights_retell(ret, w->shards[index].path, NULL, PST_NO_OFF);
	}
	left = st;
	pthread_mutex_lock(&w->lock);
	if (!w->sources[index].st || w->sources[index].process != process) {
		left = w->sources[index].st; /* the parent's */
		w->sources[index] = (struct pst_source){st, source.fd, process};
	}
	*out = w->sources[index].st;
	pthread_mutex_unlock(&w->lock);
	penstock_close(left);
	if (left == st && !kept) /* another thread was first */
		close(source.fd);
	return 0;
}

static int read_at(const char *path, int fd, void *to, size_t len, uint64_t off)
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

static int wrong_header(const char *path, int code, const struct pst_st_error *err)
{
	return pst_weights_fail(
		code, code == -ENOMEM ? PENSTOCK_WHY_NO_MEMORY : PENSTOCK_WHY_MALFORMED, path,
		err->tensor, err->at == UINT64_MAX ? PST_NO_OFF : PST_ST_PREFIX + err->at, "%s",
		err->text);
}

static int read_header(struct pst_shard *shard, int fd)
{
	unsigned char prefix[PST_ST_PREFIX];
	struct pst_st_error err;
	int64_t len;
	char *text;
	int ret;

	if (fstat(fd, &shard->stat))
		return pst_weights_fail_errno(errno, shard->path, NULL, PST_NO_OFF, "%m");
	if (!S_ISREG(shard->stat.st_mode))
		return pst_weights_fail(EINVAL, PENSTOCK_WHY_BAD_KIND, shard->path, NULL,
					PST_NO_OFF, "it is no regular file");
	if ((uint64_t)shard->stat.st_size < PST_ST_PREFIX)
		return pst_weights_fail(EBADMSG, PENSTOCK_WHY_MALFORMED, shard->path, NULL,
					PST_NO_OFF, "%lld bytes are no safetensors file",
					(long long)shard->stat.st_size);
	ret = read_at(shard->path, fd, prefix, sizeof(prefix), 0);
	if (ret)
		return ret;
	len = pst_st_header_length(prefix, (uint64_t)shard->stat.st_size, &err);
	if (len < 0)
		return pst_weights_fail(EBADMSG, PENSTOCK_WHY_MALFORMED, shard->path, NULL, 0, "%s",
					err.text);
	text = malloc((size_t)len + 1);
	if (!text)
		return pst_weights_no_memory("a header");
	ret = read_at(shard->path, fd, text, (size_t)len, PST_ST_PREFIX);
	if (ret) {
		free(text);
		return ret;
	}
	shard->data_off = PST_ST_PREFIX + (uint64_t)len;
	ret = pst_st_parse(text, (size_t)len, (uint64_t)shard->stat.st_size - shard->data_off,
			   &shard->st, &err);
	return ret ? wrong_header(shard->path, ret, &err) : 0;
}

static int open_shards(struct penstock_weights *w)
{
	w->shards = calloc(w->files.count ? w->files.count : 1, sizeof(*w->shards));
	w->sources = calloc(w->files.count ? w->files.count : 1, sizeof(*w->sources));
	if (!w->shards || !w->sources)
		return pst_weights_no_memory("the list of files");
	for (unsigned i = 0; i < w->files.count; i++) {
		struct pst_shard *shard = &w->shards[i];
		struct pst_source *source = &w->sources[i];
		int ret;

		shard->path = w->files.paths[i];
		source->fd = open_path(shard->path);
		if (source->fd < 0)
			return source->fd;
		w->shard_count++;
		ret = read_header(shard, source->fd);
		if (ret)
			return ret;
		if (w->files.count > KEPT_MAX) {
			close(source->fd);
			source->fd = -1;
		}
	}
	return 0;
}

/* ---- the table of tensors ---- */

static bool wanted(const char *name, const struct penstock_weights_opts *opts)
{
	for (unsigned i = 0; i < opts->name_count; i++)
		if (!strcmp(opts->names[i], name) || !fnmatch(opts->names[i], name, 0))
			return true;
	return !opts->name_count;
}

static int compare_row(const void *name, const void *row)
{
	return strcmp(name, ((const struct pst_index_row *)row)->tensor);
}

/* Rows of the index whose file does not have their tensor. */
static int check_index(const struct penstock_weights *w)
{
	for (size_t i = 0; i < w->files.row_count; i++) {
		const struct pst_index_row *row = &w->files.rows[i];
		const struct pst_st *st = &w->shards[row->at].st;
		size_t low = 0, high = st->count;
		int c = 1;

		while (low < high && c) {
			size_t mid = low + (high - low) / 2;

			c = strcmp(row->tensor, st->tensors[st->by_name[mid]].name);
			if (c < 0)
				high = mid;
			else
				low = mid + 1;
		}
		if (c)
			return pst_weights_fail(EBADMSG, PENSTOCK_WHY_MALFORMED,
						w->shards[row->at].path, row->tensor, PST_NO_OFF,
						"the index says that it is in this file");
	}
	return 0;
}

static int fill(struct penstock_weights *w, const bool *indexed,
		const struct penstock_weights_opts *opts)
{
	uint64_t room = 0;

	for (unsigned i = 0; i < w->shard_count; i++)
		room += w->shards[i].st.count;
	if (room > UINT32_MAX)
		return pst_weights_no_memory("that many tensors");
	w->entries = calloc(room ? room : 1, sizeof(*w->entries));
	w->by_name = calloc(room ? room : 1, sizeof(*w->by_name));
	if (!w->entries || !w->by_name)
		return pst_weights_no_memory("the table of tensors");
	for (unsigned i = 0; i < w->shard_count; i++) {
		const struct pst_st *st = &w->shards[i].st;

		for (size_t t = 0; t < st->count; t++) {
			const struct pst_index_row *row = NULL;

			if (indexed[i]) {
				row = bsearch(st->tensors[t].name, w->files.rows,
					      w->files.row_count, sizeof(*row), compare_row);
				if (!row || row->at != i)
					continue; /* a leftover, or a copy of another's */
			}
			if (wanted(st->tensors[t].name, opts))
				w->entries[w->count++] = (struct pst_entry){&st->tensors[t], i};
		}
	}
	return 0;
}

static int by_name(const void *a, const void *b, void *arg)
{
	const struct pst_entry *e = arg;

	return strcmp(e[*(const uint32_t *)a].t->name, e[*(const uint32_t *)b].t->name);
}

static int sort_names(struct penstock_weights *w)
{
	for (uint64_t i = 0; i < w->count; i++)
		w->by_name[i] = (uint32_t)i;
	if (w->shard_count == 1 && w->count == w->shards[0].st.count && w->count) {
		memcpy(w->by_name, w->shards[0].st.by_name, w->count * sizeof(*w->by_name));
		return 0;
	}
	qsort_r(w->by_name, w->count, sizeof(*w->by_name), by_name, w->entries);
	for (uint64_t i = 1; i < w->count; i++) {
		const struct pst_entry *a = &w->entries[w->by_name[i - 1]];
		const struct pst_entry *b = &w->entries[w->by_name[i]];

		if (!strcmp(a->t->name, b->t->name))
			return pst_weights_fail(EBADMSG, PENSTOCK_WHY_MALFORMED,
						w->shards[b->shard].path, b->t->name, PST_NO_OFF,
						"%.90s has a tensor of that name too",
						w->shards[a->shard].path);
	}
	return 0;
}

/* A name without a pattern in it is of one that is there. */
static int check_names(const struct penstock_weights *w, const struct penstock_weights_opts *opts)
{
	for (unsigned i = 0; i < opts->name_count; i++)
		if (!strpbrk(opts->names[i], "*?[\\") &&
		    penstock_weights_find(w, opts->names[i]) < 0)
			return -ENOENT;
	return 0;
}

static int make_table(struct penstock_weights *w, const struct penstock_weights_opts *opts)
{
	bool *indexed = calloc(w->shard_count + 1, sizeof(*indexed));
	int ret;

	if (!indexed)
		return pst_weights_no_memory("the table of tensors");
	for (size_t i = 0; i < w->files.row_count; i++)
		indexed[w->files.rows[i].at] = true;
	ret = check_index(w);
	if (!ret)
		ret = fill(w, indexed, opts);
	free(indexed);
	if (!ret && !w->count && opts->name_count)
		ret = pst_weights_fail(ENOENT, PENSTOCK_WHY_NOT_FOUND, w->shards[0].path, NULL,
				       PST_NO_OFF, "no tensor's name matches '%.80s'%s",
				       opts->names[0], opts->name_count > 1 ? " or others" : "");
	if (!ret)
		ret = sort_names(w);
	return ret ? ret : check_names(w, opts);
}

/* ---- what callers see ---- */

static bool complete(const char *const *list, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		if (!list || !list[i])
			return false;
	return true;
}

int penstock_weights_open_list(const char *const *paths, unsigned count,
			       const struct penstock_weights_opts *from,
			       struct penstock_weights **out)
{
	struct penstock_weights_opts opts;
	struct penstock_weights *w;
	int ret = pst_weights_take(&opts, sizeof(opts), from, "penstock_weights_opts");

	if (ret)
		return ret;
	if (opts.flags & ~PENSTOCK_WEIGHTS_IMMUTABLE)
		return pst_weights_fail(EINVAL, PENSTOCK_WHY_BAD_ARGUMENT, NULL, NULL, PST_NO_OFF,
					"an unknown flag");
	if (!count || !out || !complete(paths, count) || !complete(opts.names, opts.name_count) ||
	    !complete(opts.dirs, opts.dir_count))
		return pst_weights_fail(EINVAL, PENSTOCK_WHY_BAD_ARGUMENT, NULL, NULL, PST_NO_OFF,
					"no path, or a list that is not there or has NULL in it");
	w = calloc(1, sizeof(*w));
	if (!w)
		return pst_weights_no_memory("a model");
	pthread_mutex_init(&w->lock, NULL);
	w->flags = opts.flags;
	w->refs = 1;
	for (unsigned i = 0; i < count && !ret; i++)
		ret = pst_files_find(&w->files, paths[i], &opts);
	if (!ret)
		ret = open_shards(w);
	if (!ret)
		ret = make_table(w, &opts);
	if (ret) {
		penstock_weights_close(w);
		return ret;
	}
	*out = w;
	return 0;
}

int penstock_weights_open(const char *path, const struct penstock_weights_opts *opts,
			  struct penstock_weights **out)
{
	return penstock_weights_open_list(&path, 1, opts, out);
}

void pst_weights_keep(struct penstock_weights *w)
{
	atomic_fetch_add(&w->refs, 1);
}

void penstock_weights_close(struct penstock_weights *w)
{
	if (!w || atomic_fetch_sub(&w->refs, 1) > 1)
		return;
	for (unsigned i = 0; i < w->shard_count; i++) {
		if (w->sources[i].st)
			penstock_close(w->sources[i].st);
		if (w->sources[i].fd >= 0)
			close(w->sources[i].fd);
		pst_st_free(&w->shards[i].st);
	}
	pthread_mutex_destroy(&w->lock);
	free(w->sources);
	pst_files_free(&w->files);
	free(w->shards);
	free(w->entries);
	free(w->by_name);
	free(w);
}

uint64_t penstock_weights_count(const struct penstock_weights *w)
{
	return w->count;
}

static int out_of_range(const char *what, uint64_t index, uint64_t count)
{
	return pst_weights_fail(ENOENT, PENSTOCK_WHY_BAD_ARGUMENT, NULL, NULL, PST_NO_OFF,
				"%s %llu of %llu", what, (unsigned long long)index,
				(unsigned long long)count);
}

int penstock_weights_get(const struct penstock_weights *w, uint64_t index,
			 struct penstock_tensor *out)
{
	const struct pst_entry *e;
	struct penstock_tensor tensor;

	if (index >= w->count)
		return out_of_range("tensor", index, w->count);
	e = &w->entries[index];
	tensor = (struct penstock_tensor){
		.name = e->t->name,
		.dtype = e->t->dtype,
		.rank = e->t->rank,
		.shape = e->t->shape,
		.bytes = e->t->end - e->t->begin,
		.file = e->shard,
		.off = w->shards[e->shard].data_off + e->t->begin,
	};
	pst_weights_give(out, &tensor, sizeof(tensor));
	return 0;
}

int64_t pst_weights_index(const struct penstock_weights *w, const char *name)
{
	uint64_t low = 0, high = w->count;

	while (low < high) {
		uint64_t mid = low + (high - low) / 2;
		int c = strcmp(name, w->entries[w->by_name[mid]].t->name);

		if (!c)
			return w->by_name[mid];
		if (c < 0)
			high = mid;
		else
			low = mid + 1;
	}
	return -ENOENT;
}

int64_t penstock_weights_find(const struct penstock_weights *w, const char *name)
{
	int64_t found = pst_weights_index(w, name);

	if (found >= 0)
		return found;
	return pst_weights_fail(ENOENT, PENSTOCK_WHY_NOT_FOUND,
				w->shard_count == 1 ? w->shards[0].path : NULL, name, PST_NO_OFF,
				"there is no such tensor");
}

unsigned penstock_weights_file_count(const struct penstock_weights *w)
{
	return w->shard_count;
}

int penstock_weights_get_file(const struct penstock_weights *w, unsigned file,
			      struct penstock_weights_file *out)
{
	struct penstock_weights_file f;

	if (file >= w->shard_count)
		return out_of_range("file", file, w->shard_count);
	f = (struct penstock_weights_file){
		.path = w->shards[file].path,
		.length = (uint64_t)w->shards[file].stat.st_size,
		.data_off = w->shards[file].data_off,
		.pair_count = (unsigned)w->shards[file].st.pair_count,
		.has_metadata = w->shards[file].st.has_metadata,
	};
	pst_weights_give(out, &f, sizeof(f));
	return 0;
}

int penstock_weights_get_metadata(const struct penstock_weights *w, unsigned file, unsigned index,
				  const char **key, const char **value)
{
	if (file >= w->shard_count)
		return out_of_range("file", file, w->shard_count);
	if (index >= w->shards[file].st.pair_count)
		return out_of_range("pair", index, w->shards[file].st.pair_count);
	*key = w->shards[file].st.pairs[index].key;
	*value = w->shards[file].st.pairs[index].value;
	return 0;
}
