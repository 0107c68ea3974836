/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens a model: reads the headers of its files and makes one table of all tensors in file order.
 * Also closes models. Called by programs. It never reads the bytes of tensors.
 */
#include "weights/open.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "weights/err.h"
#include "weights/file.h"
#include "weights/find.h"
#include "weights/url.h"

/* A model of at most this many files keeps the descriptors with which it has read the headers. So a
 * load still works after a file was removed or replaced. The files of a larger model are opened
 * only when they are read: some of them may never be needed, and a process may open only a limited
 * number of files. */
#define KEPT_MAX 64u

static int open_files(struct penstock_weights *w)
{
	w->files = calloc(w->list.count ? w->list.count : 1, sizeof(*w->files));
	w->sources = calloc(w->list.count ? w->list.count : 1, sizeof(*w->sources));
	if (!w->files || !w->sources)
		return pst_weights_no_memory("the list of files");
	for (unsigned i = 0; i < w->list.count; i++) {
		struct pst_model_file *file = &w->files[i];
		struct pst_file_source *source = &w->sources[i];
		int ret;

		file->path = w->list.paths[i];
		ret = pst_model_file_open(file, source);
		if (ret)
			return ret;
		w->file_count++;
		ret = pst_model_file_read_header(file, source);
		if (ret)
			return ret;
		if (w->list.count > KEPT_MAX)
			pst_model_file_close(source);
	}
	return 0;
}

/* ---- the table of tensors ---- */

/* A caller's list of names and patterns, arranged for is_selected. */
struct name_filter {
	/* The list, sorted by strcmp. A program may name thousands of tensors, so an exact match is
	 * found by a binary search. */
	const char **names;
	const char **patterns; /* The elements with wildcards. */
	unsigned name_count, pattern_count;
};

static bool has_wildcard(const char *name)
{
	return strpbrk(name, "*?[\\");
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Arranges opts->names. The caller frees filter->names, also after a failure. */
static int name_filter_make(struct name_filter *filter, const struct penstock_weights_opts *opts)
{
	unsigned count = opts->name_count;

	*filter = (struct name_filter){.name_count = count};
	if (!count)
		return 0;
	filter->names = calloc(2 * (size_t)count, sizeof(*filter->names));
	if (!filter->names)
		return pst_weights_no_memory("the list of names");
	filter->patterns = filter->names + count;
	for (unsigned i = 0; i < count; i++) {
		filter->names[i] = opts->names[i];
		if (has_wildcard(opts->names[i]))
			filter->patterns[filter->pattern_count++] = opts->names[i];
	}
	qsort(filter->names, count, sizeof(*filter->names), compare_names);
	return 0;
}

static bool is_selected(const char *name, const struct name_filter *filter)
{
	if (!filter->name_count || bsearch(&name, filter->names, filter->name_count,
					   sizeof(*filter->names), compare_names))
		return true;
	for (unsigned i = 0; i < filter->pattern_count; i++)
		if (!fnmatch(filter->patterns[i], name, 0))
			return true;
	return false;
}

static int compare_row(const void *name, const void *row)
{
	return strcmp(name, ((const struct pst_index_row *)row)->tensor);
}

/* Fails if the index says that a tensor is in a file, but the file does not have it. */
static int check_index(const struct penstock_weights *w)
{
	for (size_t i = 0; i < w->list.row_count; i++) {
		const struct pst_index_row *row = &w->list.rows[i];
		const struct pst_st *st = &w->files[row->at].st;
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
			return pst_weights_fail(
				EBADMSG, PENSTOCK_WHY_MALFORMED, w->files[row->at].path,
				row->tensor, PST_NO_OFF,
				"the index says that it is in this file, which lacks it");
	}
	return 0;
}

static int fill_entries(struct penstock_weights *w, const bool *indexed,
			const struct name_filter *filter)
{
	uint64_t capacity = 0;

	for (unsigned i = 0; i < w->file_count; i++)
		capacity += w->files[i].st.count;
	if (capacity > UINT32_MAX)
		return pst_weights_no_memory("that many tensors");
	w->entries = calloc(capacity ? capacity : 1, sizeof(*w->entries));
	w->by_name = calloc(capacity ? capacity : 1, sizeof(*w->by_name));
	if (!w->entries || !w->by_name)
		return pst_weights_no_memory("the table of tensors");
	for (unsigned i = 0; i < w->file_count; i++) {
		const struct pst_st *st = &w->files[i].st;

		for (size_t t = 0; t < st->count; t++) {
			const struct pst_index_row *row = NULL;

			if (indexed[i]) {
				row = bsearch(st->tensors[t].name, w->list.rows, w->list.row_count,
					      sizeof(*row), compare_row);
				if (!row || row->at != i)
					/* The file has a tensor that no index lists, or that
					 * the index lists for another file. This tensor is
					 * skipped. */
					continue;
			}
			if (is_selected(st->tensors[t].name, filter))
				w->entries[w->count++] =
					(struct pst_tensor_entry){&st->tensors[t], i};
		}
	}
	return 0;
}

static int by_name(const void *a, const void *b, void *arg)
{
	const struct pst_tensor_entry *e = arg;

	return strcmp(e[*(const uint32_t *)a].t->name, e[*(const uint32_t *)b].t->name);
}

/* Fails because the files a and b have a tensor of the same name. Names the whole path of file a
 * if it fits into the message, else the end of the path, which has the file's name. Leaves out the
 * query of a URL, which can be a secret. */
static int fail_duplicate(const struct penstock_weights *w, unsigned a, unsigned b,
			  const char *name)
{
	static const char words[] = "another tensor of that name is in ";
	const size_t most = PENSTOCK_TEXT_MAX - sizeof(words);
	const char *path = w->files[a].path;
	size_t len = strstr(path, "://") ? strcspn(path, "?") : strlen(path);

	for (; len > most || ((unsigned char)*path & 0xc0) == 0x80; len--)
		path++; /* never begins inside a UTF-8 sequence */
	return pst_weights_fail(EBADMSG, PENSTOCK_WHY_MALFORMED, w->files[b].path, name, PST_NO_OFF,
				"%s%.*s", words, (int)len, path);
}

static int sort_by_name(struct penstock_weights *w)
{
	for (uint64_t i = 0; i < w->count; i++)
		w->by_name[i] = (uint32_t)i;
	if (w->file_count == 1 && w->count == w->files[0].st.count && w->count) {
		memcpy(w->by_name, w->files[0].st.by_name, w->count * sizeof(*w->by_name));
		return 0;
	}
	qsort_r(w->by_name, w->count, sizeof(*w->by_name), by_name, w->entries);
	for (uint64_t i = 1; i < w->count; i++) {
		const struct pst_tensor_entry *a = &w->entries[w->by_name[i - 1]];
		const struct pst_tensor_entry *b = &w->entries[w->by_name[i]];

		if (!strcmp(a->t->name, b->t->name))
			return fail_duplicate(w, a->file, b->file, b->t->name);
	}
	return 0;
}

/* Fails with -ENOENT if the caller named a tensor, without wildcards, that the model does not
 * have. */
static int open_check_names(const struct penstock_weights *w,
			    const struct penstock_weights_opts *opts)
{
	for (unsigned i = 0; i < opts->name_count; i++)
		if (!has_wildcard(opts->names[i]) && penstock_weights_find(w, opts->names[i]) < 0)
			return -ENOENT;
	return 0;
}

static int make_table(struct penstock_weights *w, const struct penstock_weights_opts *opts)
{
	bool *indexed = calloc(w->file_count + 1, sizeof(*indexed));
	struct name_filter filter;
	int ret;

	if (!indexed)
		return pst_weights_no_memory("the table of tensors");
	for (size_t i = 0; i < w->list.row_count; i++)
		indexed[w->list.rows[i].at] = true;
	ret = name_filter_make(&filter, opts);
	if (!ret)
		ret = check_index(w);
	if (!ret)
		ret = fill_entries(w, indexed, &filter);
	free(filter.names);
	free(indexed);
	if (!ret && !w->count && opts->name_count)
		ret = pst_weights_fail(ENOENT, PENSTOCK_WHY_NOT_FOUND, w->files[0].path, NULL,
				       PST_NO_OFF, "no tensor's name matches '%.80s'%s",
				       opts->names[0], opts->name_count > 1 ? " or others" : "");
	if (!ret)
		ret = sort_by_name(w);
	return ret ? ret : open_check_names(w, opts);
}

/* ---- public functions ---- */

static bool list_is_complete(const char *const *list, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		if (!list || !list[i])
			return false;
	return true;
}

/* Opens the device "host" if a path is a URL. All headers are read with this device. It is opened
 * only once, because the first open starts threads. */
static int open_host_for_urls(const char *const *paths, unsigned count,
			      struct penstock_device **out)
{
	bool any = false;
	int ret;

	for (unsigned i = 0; i < count; i++)
		any |= pst_url_match(paths[i]);
	ret = any ? penstock_device_open("host", NULL, out) : 0;
	return ret < 0 ? pst_weights_fail_lib(ret, NULL, NULL, PST_NO_OFF) : 0;
}

int penstock_weights_open_list(const char *const *paths, unsigned count,
			       const struct penstock_weights_opts *from,
			       struct penstock_weights **out)
{
	struct penstock_weights_opts opts;
	struct penstock_device *host = NULL;
	struct penstock_weights *w;
	int ret = pst_weights_struct_in(&opts, sizeof(opts), from, "penstock_weights_opts");

	if (ret)
		return ret;
	if (opts.flags & ~PENSTOCK_WEIGHTS_IMMUTABLE)
		return pst_weights_fail(EINVAL, PENSTOCK_WHY_BAD_ARGUMENT, NULL, NULL, PST_NO_OFF,
					"an unknown flag");
	if (!count || !out || !list_is_complete(paths, count) ||
	    !list_is_complete(opts.names, opts.name_count) ||
	    !list_is_complete(opts.dirs, opts.dir_count))
		return pst_weights_fail(EINVAL, PENSTOCK_WHY_BAD_ARGUMENT, NULL, NULL, PST_NO_OFF,
					"no path, or a list that is NULL or contains NULL");
	w = calloc(1, sizeof(*w));
	if (!w)
		return pst_weights_no_memory("a model");
	pthread_mutex_init(&w->lock, NULL);
	w->flags = opts.flags;
	w->refs = 1;
	ret = open_host_for_urls(paths, count, &host);
	for (unsigned i = 0; i < count && !ret; i++)
		ret = pst_file_list_find(&w->list, paths[i], &opts);
	if (!ret)
		ret = open_files(w);
	penstock_device_close(host);
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

void pst_weights_ref(struct penstock_weights *w)
{
	atomic_fetch_add(&w->refs, 1);
}

void penstock_weights_close(struct penstock_weights *w)
{
	if (!w || atomic_fetch_sub(&w->refs, 1) > 1)
		return;
	for (unsigned i = 0; i < w->file_count; i++) {
		pst_model_file_close(&w->sources[i]);
		pst_st_free(&w->files[i].st);
	}
	pthread_mutex_destroy(&w->lock);
	free(w->sources);
	pst_file_list_free(&w->list);
	free(w->files);
	free(w->entries);
	free(w->by_name);
	free(w);
}
