/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the files that a model consists of. The caller names a single file, an index that lists
 * files, a directory, or a model in the Hugging Face cache. Called by open.c. This code opens no
 * tensor file, and it refuses an index that names a file outside the model's own directories.
 */
#include "weights/files.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/file_url.h"
#include "common/json.h"
#include "weights/err.h"
#include "weights/safetensors.h"
#include "weights/url.h"

#define SUFFIX ".safetensors"
#define INDEX_SUFFIX ".safetensors.index.json"
#define INDEX_MAX PST_ST_HEADER_MAX

bool pst_ends_with(const char *text, const char *tail)
{
	size_t len = strlen(text), n = strlen(tail);

	return len > n && !strcmp(text + len - n, tail);
}

static int files_path_fail(const char *path, int code, const char *what)
{
	return pst_weights_fail_errno(code, path, NULL, PST_NO_OFF, "%s%m", what);
}

static int index_fail(const char *path, const char *tensor, uint64_t at, const char *what)
{
	return pst_weights_fail(EBADMSG, PENSTOCK_WHY_MALFORMED, path, tensor, at, "%s", what);
}

static int path_join(char *to, const char *dir, const char *name)
{
	int n = 0;

	if (pst_url_match(dir))
		return pst_url_join(to, dir, name);
	n = snprintf(to, PATH_MAX, "%s/%s", dir, name);

	return n < 0 || n >= PATH_MAX ? files_path_fail(name, ENAMETOOLONG, "") : 0;
}

static bool is_dir(const char *path)
{
	struct stat st;

	return !stat(path, &st) && S_ISDIR(st.st_mode);
}

static bool is_file(const char *path)
{
	struct stat st;

	return !stat(path, &st) && S_ISREG(st.st_mode);
}

static int list_add_file(struct pst_file_list *files, const char *path)
{
	if (files->count == files->capacity) {
		unsigned capacity = files->capacity ? files->capacity * 2 : 16;
		char **more = reallocarray(files->paths, capacity, sizeof(*more));

		if (!more)
			return pst_weights_no_memory("the list of files");
		files->paths = more;
		files->capacity = capacity;
	}
	files->paths[files->count] = strdup(path);
	if (!files->paths[files->count])
		return pst_weights_no_memory("the list of files");
	files->count++;
	return 0;
}

static int list_set_home(struct pst_file_list *files, const char *dir)
{
	if (!files->home)
		files->home = strdup(dir);
	return files->home ? 0 : pst_weights_no_memory("the list of files");
}

/* ---- an index ---- */

int pst_read_whole_file(const char *path, char **out, size_t *len)
{
	struct stat st;
	size_t at = 0;
	ssize_t n = 1;
	int fd, ret;

	if (pst_url_match(path))
		return pst_url_read_file(path, INDEX_MAX, out, len);
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return files_path_fail(path, errno, "");
	ret = fstat(fd, &st) ? files_path_fail(path, errno, "") : 0;
	if (!ret && (!S_ISREG(st.st_mode) || st.st_size < 0 || st.st_size > INDEX_MAX))
		ret = index_fail(path, NULL, PST_NO_OFF,
				 "it is not a regular file of at most 100 MB");
	*out = ret ? NULL : malloc((size_t)st.st_size + 1);
	if (!ret && !*out)
		ret = pst_weights_no_memory("an index");
	while (!ret && at < (size_t)st.st_size && n) {
		n = pread(fd, *out + at, (size_t)st.st_size - at, (off_t)at);
		if (n < 0 && errno != EINTR)
			ret = files_path_fail(path, errno, "");
		else if (n > 0)
			at += (size_t)n;
	}
	close(fd);
	if (ret) {
		free(*out);
		return ret;
	}
	(*out)[at] = '\0';
	*len = at;
	return 0;
}

static int index_add_row(struct pst_file_list *files, const char *tensor, const char *file)
{
	if (files->row_count == files->row_capacity) {
		size_t capacity = files->row_capacity ? files->row_capacity * 2 : 256;
		struct pst_index_row *more = reallocarray(files->rows, capacity, sizeof(*more));

		if (!more)
			return pst_weights_no_memory("an index");
		files->rows = more;
		files->row_capacity = capacity;
	}
	files->rows[files->row_count++] = (struct pst_index_row){tensor, file, 0};
	return 0;
}

/* Parses an index, {"weight_map": {"tensor": "file", ...}, ...}, and adds its rows to the list. */
static int index_read_rows(struct pst_file_list *files, struct pst_json *in, const char *path)
{
	bool first = true, first_row = true, found = false;
	char *key, *file;
	size_t len;
	int ret = 0;

	if (!pst_json_take(in, '{'))
		return 0;
	while (!ret && pst_json_more(in, '}', &first)) {
		if (!pst_json_string(in, &key, &len) || !pst_json_take(in, ':'))
			return 0;
		if (strcmp(key, "weight_map")) {
			if (!pst_json_skip(in))
				return 0;
			continue;
		}
		if (found)
			return index_fail(path, NULL, in->at, "it has two weight maps");
		found = true;
		if (!pst_json_take(in, '{'))
			return 0;
		while (!ret && pst_json_more(in, '}', &first_row)) {
			if (!pst_json_string(in, &key, &len) || !pst_json_take(in, ':') ||
			    !pst_json_string(in, &file, &len))
				return 0;
			ret = index_add_row(files, key, file);
		}
	}
	if (!ret && !in->what && !found)
		return index_fail(path, NULL, PST_NO_OFF, "the index has no weight_map");
	return ret;
}

static int by_tensor(const void *a, const void *b)
{
	return strcmp(((const struct pst_index_row *)a)->tensor,
		      ((const struct pst_index_row *)b)->tensor);
}

static int by_file(const void *a, const void *b)
{
	return strcmp(((const struct pst_index_row *)a)->file,
		      ((const struct pst_index_row *)b)->file);
}

/* Returns true if `name` is a relative path that does not lead out of the model's directory. */
static bool stays_inside(const char *name)
{
	const char *part = name;

	if (!*name || *name == '/')
		return false;
	for (; part; part = strchr(part, '/') ? strchr(part, '/') + 1 : NULL)
		if (!strncmp(part, "..", 2) && (!part[2] || part[2] == '/'))
			return false;
	return true;
}

/* Returns the offset of a row in the text of the index `in`, or PST_NO_OFF if the row comes from
 * another index. */
static uint64_t row_at(const struct pst_json *in, const struct pst_index_row *row)
{
	uintptr_t at = (uintptr_t)row->tensor, text = (uintptr_t)in->text;

	return at >= text && at - text < in->len ? at - text : PST_NO_OFF;
}

/* Adds the file that a row names. Takes it from the first of the model's directories that
 * contains a file of this name. */
static int row_resolve(struct pst_file_list *files, const char *index, const char *dir,
		       const struct pst_index_row *row, uint64_t at,
		       const struct penstock_weights_opts *opts)
{
	char path[PATH_MAX];
	int ret;

	if (!stays_inside(row->file))
		return index_fail(index, row->tensor, at,
				  "it names a file outside of the model's directory");
	for (unsigned i = 0; i <= opts->dir_count; i++) {
		ret = path_join(path, i ? opts->dirs[i - 1] : dir, row->file);
		if (ret)
			return ret;
		/* Only opening a URL shows whether its object exists, so a URL is not checked
		 * here. */
		if (pst_url_match(path) || is_file(path))
			return list_add_file(files, path);
	}
	return pst_weights_fail(ENOENT, PENSTOCK_WHY_NOT_FOUND, index, row->tensor, at,
				"the index names %.200s, which does not exist", row->file);
}

static int index_find(struct pst_file_list *files, const char *index, const char *dir,
		      const struct penstock_weights_opts *opts)
{
	struct pst_json in = {.text = NULL};
	size_t first = files->row_count;
	char **texts;
	int ret = list_set_home(files, dir);

	if (ret)
		return ret;
	texts = reallocarray(files->texts, files->text_count + 1, sizeof(*texts));
	if (!texts)
		return pst_weights_no_memory("an index");
	files->texts = texts;
	ret = pst_read_whole_file(index, &in.text, &in.len);
	if (ret)
		return ret;
	files->texts[files->text_count++] = in.text;
	in.text[in.len] = '\0';
	ret = index_read_rows(files, &in, index);
	if (!ret && (in.what || !pst_json_end(&in)))
		ret = index_fail(index, NULL, in.at, in.what);
	if (!ret && files->row_count == first)
		ret = index_fail(index, NULL, PST_NO_OFF, "the index lists no tensors");
	if (ret)
		return ret;
	qsort(files->rows + first, files->row_count - first, sizeof(*files->rows), by_file);
	for (size_t i = first; i < files->row_count && !ret; i++) {
		if (i == first || strcmp(files->rows[i].file, files->rows[i - 1].file))
			ret = row_resolve(files, index, dir, &files->rows[i],
					  row_at(&in, &files->rows[i]), opts);
		files->rows[i].at = files->count - 1;
	}
	if (ret)
		return ret;
	qsort(files->rows, files->row_count, sizeof(*files->rows), by_tensor);
	for (size_t i = 1; i < files->row_count; i++)
		if (!by_tensor(&files->rows[i - 1], &files->rows[i]))
			return index_fail(index, files->rows[i].tensor,
					  row_at(&in, &files->rows[i]), "it occurs twice");
	return 0;
}

/* ---- a directory ---- */

static int is_model_entry(const struct dirent *e)
{
	return e->d_name[0] != '.' &&
	       (pst_ends_with(e->d_name, SUFFIX) || pst_ends_with(e->d_name, INDEX_SUFFIX));
}

static bool is_duplicate(const char *name)
{
	/* The publisher of the model puts copies of the same tensors into these files, in its
	 * own layout. */
	return !strncmp(name, "consolidated", 12);
}

/* Sets *out to the name of a directory's index file: model.safetensors.index.json, or else the
 * only index file. Sets *out to NULL if there is no index file. Returns -EINVAL if there are
 * several. */
static int choose_index(struct dirent **list, int n, const char *dir, const char **out)
{
	int found = 0;

	*out = NULL;
	for (int i = 0; i < n; i++) {
		if (!pst_ends_with(list[i]->d_name, INDEX_SUFFIX) || is_duplicate(list[i]->d_name))
			continue;
		if (!strcmp(list[i]->d_name, "model" INDEX_SUFFIX)) {
			*out = list[i]->d_name;
			return 0;
		}
		*out = list[i]->d_name;
		found++;
	}
	if (found > 1)
		return pst_weights_fail(
			EINVAL, PENSTOCK_WHY_BAD_ARGUMENT, dir, NULL, PST_NO_OFF,
			"%d indices and none is called model" INDEX_SUFFIX ": name one", found);
	return 0;
}

static int dir_add_files(struct pst_file_list *files, struct dirent **list, int n, const char *dir)
{
	char path[PATH_MAX];
	bool single = false, others = false;
	int ret = 0;

	for (int i = 0; i < n; i++) {
		if (!pst_ends_with(list[i]->d_name, SUFFIX))
			continue;
		single |= !strcmp(list[i]->d_name, "model" SUFFIX);
		others |= !is_duplicate(list[i]->d_name);
	}
	for (int i = 0; i < n && !ret; i++) {
		const char *name = list[i]->d_name;

		if (!pst_ends_with(name, SUFFIX) || (single && strcmp(name, "model" SUFFIX)) ||
		    (others && is_duplicate(name)))
			continue;
		ret = path_join(path, dir, name);
		if (!ret)
			ret = list_add_file(files, path);
	}
	return ret;
}

/* Adds the files of a directory. `required` is true for the model's own directory: its index is
 * read, and it is an error if the directory has no files. */
static int dir_find(struct pst_file_list *files, const char *dir,
		    const struct penstock_weights_opts *opts, bool required)
{
	struct dirent **list;
	const char *index;
	char path[PATH_MAX];
	unsigned before = files->count;
	int n = scandir(dir, &list, is_model_entry, alphasort), ret;

	if (n < 0)
		return files_path_fail(dir, errno, "");
	ret = choose_index(list, n, dir, &index);
	if (!ret && required)
		ret = list_set_home(files, dir);
	if (!ret && index && required) {
		ret = path_join(path, dir, index);
		if (!ret)
			ret = index_find(files, path, dir, opts);
	} else if (!ret) {
		ret = dir_add_files(files, list, n, dir);
		for (unsigned i = 0; required && !ret && i < opts->dir_count; i++)
			ret = dir_find(files, opts->dirs[i], opts, false);
	}
	for (int i = 0; i < n; i++)
		free(list[i]);
	free(list);
	if (!ret && required && files->count == before)
		ret = pst_weights_fail(ENOENT, PENSTOCK_WHY_NOT_FOUND, dir, NULL, PST_NO_OFF,
				       "there is no *" SUFFIX " in it");
	return ret;
}

/* ---- a Hugging Face cache ---- */

static int is_visible(const struct dirent *e)
{
	return e->d_name[0] != '.';
}

/* Reads the commit hash from the file refs/NAME. Returns false if that file does not exist. */
static bool read_ref(const char *repo, const char *name, char *commit, size_t capacity)
{
	char path[PATH_MAX];
	size_t n;
	FILE *f;

	if (!stays_inside(name) ||
	    snprintf(path, sizeof(path), "%s/refs/%s", repo, name) >= (int)sizeof(path))
		return false;
	f = fopen(path, "re");
	if (!f)
		return false;
	n = fread(commit, 1, capacity - 1, f);
	fclose(f);
	commit[n] = '\0';
	commit[strcspn(commit, " \r\n\t")] = '\0';
	return n > 0 && stays_inside(commit);
}

static int cache_find_snapshot(struct pst_file_list *files, const char *repo,
			       const struct penstock_weights_opts *opts)
{
	char commit[256], snapshots[PATH_MAX], path[PATH_MAX];
	const char *want = opts->revision ? opts->revision : "main";
	struct dirent **list;
	int n, ret = path_join(snapshots, repo, "snapshots");

	if (ret)
		return ret;
	if (read_ref(repo, want, commit, sizeof(commit)) ||
	    (stays_inside(want) && snprintf(commit, sizeof(commit), "%s", want) > 0)) {
		ret = path_join(path, snapshots, commit);
		if (ret || is_dir(path))
			return ret ? ret : dir_find(files, path, opts, true);
	}
	n = opts->revision ? 0 : scandir(snapshots, &list, is_visible, alphasort);
	if (n == 1)
		ret = path_join(path, snapshots, list[0]->d_name);
	for (int i = 0; i < n; i++)
		free(list[i]);
	if (n > 0)
		free(list);
	if (ret)
		return ret;
	if (n != 1)
		return pst_weights_fail(ENOENT, PENSTOCK_WHY_NOT_FOUND, repo, NULL, PST_NO_OFF,
					"it has no snapshot for revision '%.60s'", want);
	return dir_find(files, path, opts, true);
}

static const char *env_value(const char *name)
{
	const char *value = getenv(name);

	return value && *value ? value : NULL;
}

static int cache_dir(const struct penstock_weights_opts *opts, char *to)
{
	const char *cache = opts->cache ? opts->cache : env_value("HF_HUB_CACHE");
	const char *home = env_value("HF_HOME"), *caches = env_value("XDG_CACHE_HOME");
	const char *user = env_value("HOME");
	int n;

	if (cache)
		n = snprintf(to, PATH_MAX, "%s", cache);
	else if (home)
		n = snprintf(to, PATH_MAX, "%s/hub", home);
	else if (caches)
		n = snprintf(to, PATH_MAX, "%s/huggingface/hub", caches);
	else
		n = snprintf(to, PATH_MAX, "%s/.cache/huggingface/hub", user ? user : "");
	return n < 0 || n >= PATH_MAX ? -1 : 0;
}

/* Returns true if `model` has the form owner/name, or is a name without an owner, as the oldest
 * models on the hub have. */
static bool is_cache_name(const char *model)
{
	const char *slash = strchr(model, '/'), *name = slash ? slash + 1 : model;

	return slash != model && *name && !strchr(name, '/') && *model != '.';
}

/* Writes the path of the model's folder in the Hugging Face cache to `to`. Returns false if the
 * cache has no such folder. */
static bool cache_find_repo(const char *model, const struct penstock_weights_opts *opts, char *to)
{
	const char *slash = strchr(model, '/');
	char cache[PATH_MAX];
	int n;

	if (!is_cache_name(model) || cache_dir(opts, cache))
		return false;
	n = snprintf(to, PATH_MAX, "%s/models--%.*s%s%s", cache, slash ? (int)(slash - model) : 0,
		     model, slash ? "--" : "", slash ? slash + 1 : model);
	return n >= 0 && n < PATH_MAX && is_dir(to);
}

static int check_dirs(const struct penstock_weights_opts *opts)
{
	struct stat st;

	for (unsigned i = 0; i < opts->dir_count; i++) {
		if (stat(opts->dirs[i], &st))
			return files_path_fail(opts->dirs[i], errno, "");
		if (!S_ISDIR(st.st_mode))
			return files_path_fail(opts->dirs[i], ENOTDIR, "");
	}
	return 0;
}

/* Reports that `path` does not exist. If `path` may be the name of a cached model, also reports
 * that the Hugging Face cache does not have that model. */
static int fail_not_found(const char *path, int code, const struct penstock_weights_opts *opts)
{
	char cache[PATH_MAX];

	if (!strchr(path, '/') || !is_cache_name(path) || cache_dir(opts, cache))
		return files_path_fail(path, code, "");
	return pst_weights_fail(ENOENT, PENSTOCK_WHY_NOT_FOUND, path, NULL, PST_NO_OFF,
				"%m, and it is not in the cache %.200s either", cache);
}

/* Adds the files of a folder behind a URL. The folder cannot be listed, so the function tries the
 * usual name of an index, then the usual name of a single file. Returns -ENOENT if neither
 * exists. */
static int url_find_folder(struct pst_file_list *files, const char *url,
			   const struct penstock_weights_opts *opts)
{
	struct penstock_storage *st;
	char file[PATH_MAX];
	uint64_t length;
	int ret = pst_url_join(file, url, "model" INDEX_SUFFIX);

	if (!ret)
		ret = index_find(files, file, url, opts);
	if (ret != -ENOENT)
		return ret;
	ret = pst_url_join(file, url, "model" SUFFIX);
	if (!ret)
		ret = pst_url_open(file, 0, &st, &length);
	if (ret)
		return ret;
	penstock_close(st);
	return list_add_file(files, file);
}

/* Finds the files of a model behind a URL: an index, a single file, or a folder. If the end of the
 * URL does not show which, tries a folder first, then a file. */
static int url_find(struct pst_file_list *files, const char *url,
		    const struct penstock_weights_opts *opts)
{
	char dir[PATH_MAX];
	int ret;

	if (!pst_url_is_s3(url) && pst_url_ends_with(url, ".json"))
		return pst_weights_fail(EINVAL, PENSTOCK_WHY_BAD_ARGUMENT, url, NULL, PST_NO_OFF,
					"an index can only be read from s3://BUCKET/KEY");
	if (pst_url_ends_with(url, ".json")) {
		ret = pst_url_dir(dir, url);
		return ret ? ret : index_find(files, url, dir, opts);
	}
	if (!pst_url_is_s3(url) || pst_url_ends_with(url, SUFFIX))
		return list_add_file(files, url);
	ret = url_find_folder(files, url, opts);
	if (ret != -ENOENT || pst_url_ends_with(url, "/"))
		return ret;
	return list_add_file(files, url);
}

int pst_file_list_find(struct pst_file_list *files, const char *name,
		       const struct penstock_weights_opts *opts)
{
	char other[PATH_MAX], inside[PATH_MAX];
	const char *path;
	int dirs = check_dirs(opts);
	struct stat st;

	if (dirs)
		return dirs;
	if (pst_url_match(name))
		return url_find(files, name, opts);
	path = pst_file_url_path(name);
	if (!path)
		return pst_weights_fail(EINVAL, PENSTOCK_WHY_BAD_ARGUMENT, name, NULL, PST_NO_OFF,
					PST_FILE_URL_HOST);
	if (stat(path, &st)) {
		int code = errno;

		/* The code is ENOTDIR if the path is owner/name and a file named "owner"
		 * exists. */
		if (code != ENOENT && code != ENOTDIR)
			return files_path_fail(path, code, "");
		if (!cache_find_repo(path, opts, other))
			return fail_not_found(path, code, opts);
		path = other;
	} else if (S_ISREG(st.st_mode) && pst_ends_with(path, ".json")) {
		const char *slash = strrchr(path, '/');

		snprintf(other, sizeof(other), "%.*s", slash ? (int)(slash - path) : 1,
			 slash ? path : ".");
		return index_find(files, path, slash == path ? "/" : other, opts);
	} else if (S_ISREG(st.st_mode)) {
		return list_add_file(files, path);
	} else if (!S_ISDIR(st.st_mode)) {
		return pst_weights_fail(EINVAL, PENSTOCK_WHY_BAD_KIND, path, NULL, PST_NO_OFF,
					"it is neither a file nor a directory");
	}
	if (snprintf(inside, sizeof(inside), "%s/snapshots", path) < (int)sizeof(inside) &&
	    is_dir(inside))
		return cache_find_snapshot(files, path, opts);
	return dir_find(files, path, opts, true);
}

void pst_file_list_free(struct pst_file_list *files)
{
	for (unsigned i = 0; i < files->count; i++)
		free(files->paths[i]);
	for (unsigned i = 0; i < files->text_count; i++)
		free(files->texts[i]);
	free(files->home);
	free(files->paths);
	free(files->texts);
	free(files->rows);
	*files = (struct pst_file_list){.home = NULL};
}
