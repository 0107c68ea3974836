/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Describes the folder of one checkpoint: lists its files, finds the marker (such as .metadata,
 * which a save writes last), and compares the parts with the manifests. A checkpoint that PyTorch
 * itself has written has no manifest. It is complete if it has its marker; if the marker is an
 * index of safetensors files, all files that the index names must exist, too. Called by list.c,
 * verify.c and prune.c.
 */
#include "ckpt/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/dir.h"
#include "ckpt/index.h"
#include "ckpt/manifest.h"
#include "weights/err.h"

/* ---- names ---- */

static bool ends_with(const char *name, const char *end)
{
	size_t len = strlen(name), n = strlen(end);

	return len >= n && !strcmp(name + len - n, end);
}

/* Reads a number at *at and moves *at behind it. Returns false if there is no digit. */
static bool take_number(const char **at, unsigned long *out)
{
	char *end;

	if (**at < '0' || **at > '9')
		return false;
	errno = 0;
	*out = strtoul(*at, &end, 10);
	*at = end;
	return !errno;
}

/* Returns whether the name is __N.metadata, the marker that rank N writes last. *rank becomes N. */
static bool rank_marker(const char *name, unsigned long *rank)
{
	const char *at = name + 2;

	return !strncmp(name, "__", 2) && take_number(&at, rank) && !strcmp(at, ".metadata");
}

/* Returns whether the name is __N_M.distcp, which torch.distributed.checkpoint gives to the parts
 * (data files) of rank N. *rank becomes N. */
static bool rank_part(const char *name, unsigned long *rank)
{
	const char *at = name + 2;
	unsigned long number;

	return !strncmp(name, "__", 2) && take_number(&at, rank) && *at++ == '_' &&
	       take_number(&at, &number) && !strcmp(at, ".distcp");
}

/* Returns whether the name is that of a file which the library has not committed:
 * .NAME.penstock-*, with 16 hexadecimal digits at the end. */
static bool temp_name(const char *name)
{
	static const char mark[] = ".penstock-";
	size_t len = strlen(name), tail = sizeof(mark) - 1 + 16;

	return name[0] == '.' && len > tail && !memcmp(name + len - tail, mark, sizeof(mark) - 1) &&
	       strspn(name + len - 16, "0123456789abcdef") == 16;
}

enum pst_file_kind pst_file_kind(const char *name)
{
	unsigned long rank;

	if (temp_name(name) || !strcmp(name, ".metadata.tmp") ||
	    (!strncmp(name, "__", 2) && ends_with(name, ".metadata.tmp")))
		return PST_FILE_TEMP;
	if (!strcmp(name, ".metadata") || ends_with(name, ".safetensors.index.json"))
		return PST_FILE_MARKER;
	if (rank_marker(name, &rank))
		return PST_FILE_RANK_MARKER;
	if (ends_with(name, PST_MANIFEST_END))
		return PST_FILE_MANIFEST;
	if (ends_with(name, ".distcp") || ends_with(name, ".safetensors"))
		return PST_FILE_PART;
	return PST_FILE_OTHER;
}

/* Returns whether the last two components of an absolute path are `folder` and `name`. */
static bool path_ends_with(const char *path, const char *folder, const char *name)
{
	size_t len = strlen(path), folder_len = strlen(folder), name_len = strlen(name);
	size_t tail = folder_len + name_len + 2;
	const char *at = path + len - tail;

	return path[0] == '/' && folder_len && len >= tail && at[0] == '/' &&
	       !strncmp(at + 1, folder, folder_len) && at[folder_len + 1] == '/' &&
	       !strcmp(at + folder_len + 2, name);
}

bool pst_part_link(const struct pst_ckpt_dir *dir, const char *name, char target[PATH_MAX])
{
	char self[64], folder[PATH_MAX];
	ssize_t len = !dir->remote && ends_with(name, ".distcp")
			      ? readlinkat(dir->fd, name, target, PATH_MAX - 1)
			      : -1;

	if (len <= 0)
		return false;
	target[len] = '\0';
	snprintf(self, sizeof(self), "/proc/self/fd/%d", dir->fd);
	len = readlink(self, folder, sizeof(folder) - 1);
	if (len <= 0 || folder[0] != '/')
		return false;
	folder[len] = '\0';
	return path_ends_with(target, strrchr(folder, '/') + 1, name);
}

bool pst_ckpt_error_is_ours(int code)
{
	return code == -ENOMEM || code == -EMFILE || code == -ENFILE;
}

/* ---- files ---- */

static int by_name(const void *a, const void *b)
{
	const struct pst_ckpt_file *x = a, *y = b;

	return strcmp(x->name, y->name);
}

static const struct pst_ckpt_file *find_file(const struct pst_ckpt_folder *f, const char *name)
{
	struct pst_ckpt_file key = {.name = (char *)(uintptr_t)name};

	return f->count ? bsearch(&key, f->files, f->count, sizeof(f->files[0]), by_name) : NULL;
}

/* Adds a copy of `file` to the list, with a copy of `name` as its name. */
static int append_file(struct pst_ckpt_folder *f, const char *name,
		       const struct pst_ckpt_file *file)
{
	if (f->count == f->capacity) {
		uint64_t capacity = f->capacity ? f->capacity * 2 : 64;
		struct pst_ckpt_file *more = reallocarray(f->files, capacity, sizeof(*more));

		if (!more)
			return pst_weights_no_memory("the list of files");
		f->files = more;
		f->capacity = capacity;
	}
	f->files[f->count] = *file;
	f->files[f->count].name = strdup(name);
	f->files[f->count].stray = file->kind == PST_FILE_TEMP;
	if (!f->files[f->count].name)
		return pst_weights_no_memory("the list of files");
	f->count++;
	f->found |= file->kind != PST_FILE_TEMP;
	return 0;
}

static int add_file(struct pst_ckpt_folder *f, const char *name, enum pst_file_kind kind)
{
	struct pst_ckpt_file file = {.kind = kind};
	char target[PATH_MAX];
	struct stat stat;

	/* Ignores folders, files that have been removed meanwhile, and links that do not lead to a
	 * part (a data file of a checkpoint). */
	file.linked = pst_part_link(&f->dir, name, target);
	file.missing = file.linked && fstatat(f->dir.fd, name, &stat, 0) && errno == ENOENT;
	if (file.missing && fstatat(f->dir.fd, name, &stat, AT_SYMLINK_NOFOLLOW))
		return 0;
	if (file.missing) {
		/* The target does not exist, so the file gets the time of the link. A running save
		 * makes the link before it writes the target. */
		stat.st_mode = S_IFREG;
		stat.st_size = 0;
	} else if (fstatat(f->dir.fd, name, &stat, file.linked ? 0 : AT_SYMLINK_NOFOLLOW) ||
		   !S_ISREG(stat.st_mode)) {
		return 0;
	}
	file.bytes = (uint64_t)stat.st_size;
	file.time_ns = (int64_t)stat.st_mtim.tv_sec * 1000000000 + stat.st_mtim.tv_nsec;
	return append_file(f, name, &file);
}

/* Adds a part (a data file of the checkpoint) that is an object of a store, with the time 0.
 * Ignores an object that does not exist. */
static int add_object(struct pst_ckpt_folder *f, const char *name)
{
	struct pst_ckpt_file file = {.kind = PST_FILE_PART};
	int ret = pst_objects_length(&f->dir.objects, name, &file.bytes);

	if (ret)
		return ret == -ENOENT ? 0 : ret;
	return append_file(f, name, &file);
}

static int list_file(void *user, const struct dirent *e)
{
	enum pst_file_kind kind = pst_file_kind(e->d_name);

	return kind == PST_FILE_OTHER ? 0 : add_file(user, e->d_name, kind);
}

static int list_object(void *user, const struct pst_listed *object)
{
	struct pst_ckpt_file file = {.kind = pst_file_kind(object->key),
				     .bytes = object->bytes,
				     .time_ns = object->time_ns};

	return object->folder || file.kind == PST_FILE_OTHER
		       ? 0
		       : append_file(user, object->key, &file);
}

static int list_files(struct pst_ckpt_folder *f)
{
	int ret = f->dir.remote ? pst_objects_each(&f->dir.objects, list_object, f)
				: pst_ckpt_dir_each(&f->dir, list_file, f);

	if (!ret && f->count)
		qsort(f->files, f->count, sizeof(f->files[0]), by_name);
	return ret;
}

/* ---- state ---- */

__attribute__((format(printf, 3, 4))) static void
set_state(struct pst_ckpt_folder *f, enum penstock_ckpt_state state, const char *fmt, ...)
{
	va_list args;

	f->ckpt.state = state;
	va_start(args, fmt);
	vsnprintf(f->text, sizeof(f->text), fmt, args);
	va_end(args);
}

/* Returns the marker of the whole checkpoint, which a save writes last: .metadata, an index, or
 * model.safetensors, which is the only file of a model without an index. Returns NULL if the folder
 * has none of them. */
static const struct pst_ckpt_file *find_marker(const struct pst_ckpt_folder *f)
{
	for (uint64_t i = 0; i < f->count; i++)
		if (f->files[i].kind == PST_FILE_MARKER)
			return &f->files[i];
	return find_file(f, "model.safetensors");
}

/* Returns whether rank `rank` has written its marker. */
static bool has_rank_marker(const struct pst_ckpt_folder *f, unsigned long rank)
{
	char name[64];

	snprintf(name, sizeof(name), "__%lu.metadata", rank);
	return find_file(f, name);
}

/* Returns whether each rank has written its marker. `ranks` is the number of ranks that the
 * manifest names. If it is 0, there is no manifest, and each rank that has written a part needs a
 * marker. *missing becomes the first rank without a marker. *any tells whether any rank has a
 * marker. */
static bool all_rank_markers(const struct pst_ckpt_folder *f, unsigned ranks,
			     unsigned long *missing, bool *any)
{
	unsigned long rank;

	*any = false;
	for (uint64_t i = 0; i < f->count; i++)
		*any |= f->files[i].kind == PST_FILE_RANK_MARKER;
	if (!*any)
		return false;
	for (*missing = 0; *missing < ranks; ++*missing)
		if (!has_rank_marker(f, *missing))
			return false;
	for (uint64_t i = 0; i < f->count && !ranks; i++)
		if (f->files[i].kind == PST_FILE_PART && rank_part(f->files[i].name, &rank) &&
		    !has_rank_marker(f, rank)) {
			*missing = rank;
			return false;
		}
	return true;
}

/* Finds the marker, the file that a save writes last. If the marker is missing or empty, sets the
 * state and returns false. Otherwise returns true: the checkpoint may be complete. */
static bool check_marker(struct pst_ckpt_folder *f)
{
	const struct pst_ckpt_file *marker = find_marker(f);
	unsigned long missing = 0;
	bool any = false, all = !marker && all_rank_markers(f, f->ckpt.ranks, &missing, &any);

	if (!marker && any && !all)
		set_state(f, PENSTOCK_CKPT_INCOMPLETE,
			  "rank %lu has not written its marker __%lu.metadata: a save runs, or was "
			  "interrupted",
			  missing, missing);
	else if (!marker && !all)
		set_state(f, PENSTOCK_CKPT_INCOMPLETE,
			  "it has no marker (such as .metadata): a save runs, or was interrupted");
	else if (marker && !marker->bytes)
		set_state(f, PENSTOCK_CKPT_DAMAGED, "its marker %s is empty", marker->name);
	return f->ckpt.state == PENSTOCK_CKPT_COMPLETE;
}

/* Compares the parts (data files) that the manifest lists with the folder's files. Sets the state
 * if a part is missing or has another length. */
static void check_parts(struct pst_ckpt_folder *f, const struct penstock_manifest *m)
{
	const struct pst_manifest_part *wrong = NULL;
	const struct pst_ckpt_file *file = NULL;
	unsigned long long wrongs = 0;
	char more[48] = "";

	for (uint64_t i = 0; i < m->part_count; i++) {
		const struct pst_ckpt_file *found = find_file(f, m->parts[i].name);

		if (found && !found->missing && found->bytes == m->parts[i].bytes)
			continue;
		file = wrongs ? file : found && found->missing ? NULL : found;
		wrong = wrongs ? wrong : &m->parts[i];
		wrongs++;
	}
	if (!wrongs)
		return;
	if (wrongs > 1)
		snprintf(more, sizeof(more), ", and %llu more parts are wrong", wrongs - 1);
	if (file)
		set_state(f, PENSTOCK_CKPT_DAMAGED, "part %.80s has %llu bytes instead of %llu%s",
			  wrong->name, (unsigned long long)file->bytes,
			  (unsigned long long)wrong->bytes, more);
	else
		set_state(f, PENSTOCK_CKPT_DAMAGED, "part %.80s is missing%s", wrong->name, more);
}

/* Checks that the file `name`, which the index names, exists. If not, sets the state, and returns
 * false to end the reading of the index. */
static bool check_indexed_file(void *user, const char *name)
{
	struct pst_ckpt_folder *f = user;

	if (find_file(f, name))
		return true;
	set_state(f, PENSTOCK_CKPT_DAMAGED, "file %.80s of its index is missing", name);
	return false;
}

/* Checks that each file that an index names exists. A missing file makes the checkpoint damaged.
 * Returns 0, or an error such as -ENOMEM if this process cannot check. */
static int check_indices(struct pst_ckpt_folder *f)
{
	for (uint64_t i = 0; i < f->count && f->ckpt.state == PENSTOCK_CKPT_COMPLETE; i++) {
		const char *name = f->files[i].name, *wrong;
		char *text;
		size_t len;
		int ret;

		if (f->files[i].kind != PST_FILE_MARKER || !strcmp(name, ".metadata"))
			continue;
		ret = pst_manifest_read_file(&f->dir, name, PST_MANIFEST_READ_MAX, &text, &len);
		if (pst_ckpt_error_is_ours(ret))
			return ret;
		if (ret) {
			set_state(f, PENSTOCK_CKPT_DAMAGED, "%s", penstock_errmsg());
			return 0;
		}
		wrong = pst_index_files(text, len, check_indexed_file, f);
		free(text);
		if (wrong)
			set_state(f, PENSTOCK_CKPT_DAMAGED, "its index %.80s is malformed: %s",
				  name, wrong);
	}
	return 0;
}

/* Adds more files to f->files: the parts (data files) that the manifest lists, but that list_files
 * has ignored because their names do not look like those of parts. */
static int add_named_parts(struct pst_ckpt_folder *f, const struct penstock_manifest *m)
{
	uint64_t before = f->count;
	int ret = 0;

	for (uint64_t i = 0; i < m->part_count && !ret; i++)
		if (pst_file_kind(m->parts[i].name) == PST_FILE_OTHER)
			ret = f->dir.remote ? add_object(f, m->parts[i].name)
					    : add_file(f, m->parts[i].name, PST_FILE_PART);
	if (f->count > before)
		qsort(f->files, f->count, sizeof(f->files[0]), by_name);
	return ret;
}

/* Sets the state if a part (a data file) is a link whose target is missing, for example because its
 * drive is not mounted. Called for checkpoints without a manifest, for which check_parts cannot
 * find this. */
static void check_links(struct pst_ckpt_folder *f)
{
	for (uint64_t i = 0; i < f->count; i++)
		if (f->files[i].missing)
			set_state(f, PENSTOCK_CKPT_DAMAGED,
				  "part %.80s is a link to a file that does not exist",
				  f->files[i].name);
}

static bool has_manifest(const struct pst_ckpt_folder *f)
{
	for (uint64_t i = 0; i < f->count; i++)
		if (f->files[i].kind == PST_FILE_MANIFEST)
			return true;
	return false;
}

static void find_strays(struct pst_ckpt_folder *f, const struct penstock_manifest *m)
{
	for (uint64_t i = 0; i < f->count; i++)
		if (f->files[i].kind == PST_FILE_PART)
			f->files[i].stray = !pst_manifest_part(m, f->files[i].name);
}

/* Counts the files and their bytes. Sets the time of the checkpoint: the time of its marker, or of
 * its newest file if it has no marker. */
static void count_files(struct pst_ckpt_folder *f)
{
	struct penstock_ckpt *c = &f->ckpt;
	const struct pst_ckpt_file *marker = find_marker(f);
	int64_t newest = INT64_MIN;

	for (uint64_t i = 0; i < f->count; i++) {
		const struct pst_ckpt_file *file = &f->files[i];

		c->part_count += file->kind == PST_FILE_PART && !file->stray;
		c->stray_count += file->stray;
		c->stray_bytes += file->stray ? file->bytes : 0;
		c->bytes += file->stray ? 0 : file->bytes;
		newest = file->time_ns > newest ? file->time_ns : newest;
	}
	c->saved_ns = marker ? marker->time_ns : f->count ? newest : 0;
}

/* Fills in f->ckpt; list_files has filled f->files. `manifest` is the result of opening the
 * checkpoint's manifests: 0 or a negative errno, whose message penstock_errmsg still returns.
 * Returns 0, or an error such as -ENOMEM if this process cannot examine the checkpoint, which may
 * then be whole. */
static int describe(struct pst_ckpt_folder *f, const struct penstock_manifest *m, int manifest)
{
	bool summed = !manifest;
	int ret = 0;

	f->ckpt.summed = summed;
	f->ckpt.ranks = summed ? m->ranks : 0;
	if (summed) {
		ret = add_named_parts(f, m);
		if (ret)
			return ret;
		find_strays(f, m);
	}
	if (check_marker(f) && manifest && manifest != -ENOENT)
		set_state(f, PENSTOCK_CKPT_DAMAGED, "%s", penstock_errmsg());
	else if (f->ckpt.state == PENSTOCK_CKPT_COMPLETE && summed)
		check_parts(f, m);
	else if (f->ckpt.state == PENSTOCK_CKPT_COMPLETE)
		ret = check_indices(f);
	if (f->ckpt.state == PENSTOCK_CKPT_COMPLETE && !summed)
		check_links(f);
	count_files(f);
	if (f->ckpt.state == PENSTOCK_CKPT_COMPLETE && summed)
		set_state(f, PENSTOCK_CKPT_COMPLETE,
			  "it has its marker and all parts of its manifest");
	else if (f->ckpt.state == PENSTOCK_CKPT_COMPLETE && has_manifest(f))
		set_state(f, PENSTOCK_CKPT_COMPLETE,
			  "it has its marker, but its manifest belongs to another one: another "
			  "program has saved here, or the marker is damaged");
	else if (f->ckpt.state == PENSTOCK_CKPT_COMPLETE)
		set_state(f, PENSTOCK_CKPT_COMPLETE,
			  "it has its marker, but no manifest: missing parts, and parts of earlier "
			  "saves, cannot be found");
	return ret;
}

int pst_ckpt_folder_open(const struct pst_ckpt_dir *in, const char *name, const char *path,
			 struct pst_ckpt_folder *f)
{
	struct penstock_manifest *m = NULL;
	int ret;

	memset(f, 0, sizeof(*f));
	ret = pst_ckpt_dir_open(in, name, path, &f->dir);
	if (ret)
		return ret;
	f->ckpt.size = sizeof(f->ckpt);
	f->ckpt.path = f->dir.path;
	ret = list_files(f);
	if (!ret && f->count) {
		ret = pst_manifest_open_at(&f->dir, &m);
		if (!pst_ckpt_error_is_ours(ret))
			ret = describe(f, m, ret);
		penstock_manifest_close(m);
	}
	if (ret)
		pst_ckpt_folder_close(f);
	return ret;
}

void pst_ckpt_folder_close(struct pst_ckpt_folder *f)
{
	for (uint64_t i = 0; i < f->count; i++)
		free(f->files[i].name);
	free(f->files);
	pst_ckpt_dir_close(&f->dir);
	f->files = NULL;
	f->count = 0;
}
