/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Finds the checkpoints of a folder, and implements penstock_ckpt_list. Keeps only the description
 * of each checkpoint, not the names of its files.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "ckpt/dir.h"
#include "ckpt/folder.h"
#include "ckpt/list.h"
#include "weights/err.h"

/* Adds a folder to the list. `name` is its name in the list's folder. */
static int add_entry(struct pst_ckpt_list *list, const struct pst_ckpt_folder *f, const char *name)
{
	struct pst_ckpt_entry *e;

	if (list->count == list->capacity) {
		uint64_t capacity = list->capacity ? list->capacity * 2 : 16;
		struct pst_ckpt_entry *more = reallocarray(list->entries, capacity, sizeof(*more));

		if (!more)
			return pst_weights_no_memory("the list of checkpoints");
		list->entries = more;
		list->capacity = capacity;
	}
	e = &list->entries[list->count++];
	e->ckpt = f->ckpt;
	e->path = strdup(f->ckpt.path);
	e->name = strdup(name);
	memcpy(e->text, f->text, sizeof(e->text));
	return e->path && e->name ? 0 : pst_weights_no_memory("the list of checkpoints");
}

/* Adds a subfolder to the list if it is a checkpoint. Ignores a subfolder that is a symbolic link,
 * that this user cannot read, or that has just been removed. */
static int add_subfolder(struct pst_ckpt_list *list, const char *name)
{
	const char *dir = list->dir.path, *slash = dir[strlen(dir) - 1] == '/' ? "" : "/";
	struct pst_ckpt_folder f;
	char *path;
	int ret;

	if (asprintf(&path, "%s%s%s", dir, slash, name) < 0)
		return pst_weights_no_memory("the list of checkpoints");
	ret = pst_ckpt_folder_open(&list->dir, name, path, &f);
	if (ret == -ENOTDIR || ret == -ELOOP || ret == -EACCES || ret == -ENOENT) {
		ret = 0;
	} else if (!ret) {
		if (f.count)
			ret = add_entry(list, &f, name);
		pst_ckpt_folder_close(&f);
	}
	free(path);
	return ret;
}

static int add_entry_of_folder(void *user, const struct dirent *e)
{
	return e->d_type != DT_DIR && e->d_type != DT_UNKNOWN ? 0 : add_subfolder(user, e->d_name);
}

static int add_prefix(void *user, const struct pst_listed *object)
{
	return object->folder ? add_subfolder(user, object->key) : 0;
}

/* Compares checkpoints by time. Stores may round times to seconds, so checkpoints with equal times
 * are ordered by the numbers in their names. */
static int by_time(const void *a, const void *b)
{
	const struct pst_ckpt_entry *x = a, *y = b;

	if (x->ckpt.saved_ns != y->ckpt.saved_ns)
		return x->ckpt.saved_ns < y->ckpt.saved_ns ? -1 : 1;
	return strverscmp(x->path, y->path);
}

int pst_ckpt_list_open(const char *dir, struct pst_ckpt_list *list)
{
	struct pst_ckpt_folder f;
	int ret;

	memset(list, 0, sizeof(*list));
	list->name = dir;
	list->dir.fd = -1;
	if (!dir || !*dir)
		return pst_weights_fail(EINVAL, PENSTOCK_WHY_BAD_ARGUMENT, NULL, NULL, PST_NO_OFF,
					"the folder's name is %s", dir ? "empty" : "NULL");
	ret = pst_ckpt_folder_open(NULL, dir, dir, &f);
	if (ret)
		return ret;
	list->self = f.found;
	ret = f.found ? add_entry(list, &f, "") : 0;
	list->dir = f.dir;
	f.dir = (struct pst_ckpt_dir){.fd = -1};
	if (!ret && !list->self)
		ret = list->dir.remote ? pst_objects_each(&list->dir.objects, add_prefix, list)
				       : pst_ckpt_dir_each(&list->dir, add_entry_of_folder, list);
	pst_ckpt_folder_close(&f);
	if (list->count && !ret)
		qsort(list->entries, list->count, sizeof(list->entries[0]), by_time);
	for (uint64_t i = 0; i < list->count; i++) {
		list->entries[i].ckpt.path = list->entries[i].path;
		list->entries[i].ckpt.text = list->entries[i].text;
	}
	if (ret)
		pst_ckpt_list_close(list);
	return ret;
}

void pst_ckpt_list_close(struct pst_ckpt_list *list)
{
	for (uint64_t i = 0; i < list->count; i++) {
		free(list->entries[i].path);
		free(list->entries[i].name);
	}
	free(list->entries);
	pst_ckpt_dir_close(&list->dir);
	list->entries = NULL;
	list->count = 0;
}

int penstock_ckpt_list(const char *dir, int (*each)(void *user, const struct penstock_ckpt *ckpt),
		       void *user)
{
	struct pst_ckpt_list list;
	int ret;

	if (!each)
		return pst_weights_fail_null("the callback");
	ret = pst_ckpt_list_open(dir, &list);
	if (ret)
		return ret;
	for (uint64_t i = 0; i < list.count && !ret; i++)
		ret = each(user, &list.entries[i].ckpt);
	pst_ckpt_list_close(&list);
	return ret;
}
