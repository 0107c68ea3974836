/* SPDX-License-Identifier: Apache-2.0 */
/* Implements the walk through a bucket, see walk.h. */
#include "walk.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/dir.h"
#include "folder.h"

/* Maximum number of a folder's entries that stay in memory after they have been sorted. Up to twice
 * as many are in memory while they are being collected. */
#define PAGE 1024

enum entry_kind { ENTRY_FILE, ENTRY_SELF, ENTRY_FOLDER };

/* An entry of a folder. `text` is the entry's part of the key, with a slash at its end if the entry
 * is a folder. */
struct entry {
	char *text, *path;
	size_t len;
	enum entry_kind kind;
};

/* A page: the next entries of a folder, at most PAGE. */
struct page {
	struct gw_walk *walk;
	const char *key; /* bytes with which the keys of all entries begin */
	size_t key_len;
	const struct entry *after; /* entry after which the page begins; NULL for the first page */
	struct entry *entries;
	unsigned count;
	bool more; /* the folder has more entries after this page */
};

static int compare_bytes(const char *a, size_t a_len, const char *b, size_t b_len)
{
	int ret = memcmp(a, b, a_len < b_len ? a_len : b_len);

	return ret ? ret : (a_len > b_len) - (a_len < b_len);
}

static int compare_entries(const void *a, const void *b)
{
	const struct entry *x = a, *y = b;

	return compare_bytes(x->text, x->len, y->text, y->len);
}

static bool begins_with(const char *text, size_t len, const char *begin, size_t begin_len)
{
	return len >= begin_len && !memcmp(text, begin, begin_len);
}

/* Returns whether the walk must visit the object `key`. If `folder` is true, `key` is a folder, and
 * the walk must visit it if such objects may be in it. */
static bool is_wanted(const struct gw_walk *walk, const char *key, size_t len, bool folder)
{
	if (walk->skip_len && begins_with(key, len, walk->skip, walk->skip_len))
		return false;
	if (!begins_with(key, len, walk->prefix, walk->prefix_len) &&
	    !(folder && begins_with(walk->prefix, walk->prefix_len, key, len)))
		return false;
	if (!walk->after || compare_bytes(key, len, walk->after, walk->after_len) > 0)
		return true;
	return folder && begins_with(walk->after, walk->after_len, key, len);
}

static void entry_free(struct entry *entry)
{
	free(entry->text);
	free(entry->path);
}

/* Sorts the entries of a page, and drops all but the first PAGE entries. */
static void page_shrink(struct page *page)
{
	qsort(page->entries, page->count, sizeof(*page->entries), compare_entries);
	for (unsigned i = PAGE; i < page->count; i++)
		entry_free(&page->entries[i]);
	if (page->count > PAGE) {
		page->count = PAGE;
		page->more = true;
	}
}

static int page_add(struct page *page, const char *text, size_t len, const char *path,
		    enum entry_kind kind)
{
	struct entry entry = {.len = len, .kind = kind};
	char key[GW_KEY_MAX + 512];

	if (page->key_len + len > sizeof(key))
		return 0;
	memcpy(key, page->key, page->key_len);
	memcpy(key + page->key_len, text, len);
	if (page->key_len + len > GW_KEY_MAX ||
	    !is_wanted(page->walk, key, page->key_len + len, kind == ENTRY_FOLDER))
		return 0;
	entry.text = malloc(len + 1);
	entry.path = strdup(path);
	if (!entry.text || !entry.path) {
		entry_free(&entry);
		return -ENOMEM;
	}
	memcpy(entry.text, text, len);
	if (page->after && compare_entries(&entry, page->after) <= 0) {
		entry_free(&entry);
		return 0;
	}
	page->entries[page->count++] = entry;
	if (page->count == 2 * PAGE)
		page_shrink(page);
	return 0;
}

/* Returns the type of an entry, DT_UNKNOWN if it has been removed, or a negative errno. */
static int type_of(int dir, const struct dirent *entry)
{
	struct stat st;

	if (entry->d_type != DT_UNKNOWN)
		return entry->d_type;
	if (fstatat(dir, entry->d_name, &st, AT_SYMLINK_NOFOLLOW))
		return gw_is_gone(errno) ? DT_UNKNOWN : -errno;
	return S_ISDIR(st.st_mode) ? DT_DIR : S_ISREG(st.st_mode) ? DT_REG : DT_LNK;
}

/* A folder whose entries are being collected. */
struct collecting {
	struct page *page;
	int dir;
	const char *path; /* from the walked folder to this one: empty, or ends with a slash */
	/* A folder %+BYTES stands for a piece of a long component (keypath.h). In such a folder,
	 * `before` has the component's bytes from its start to the end of this piece. */
	const char *before;
	size_t inside; /* number of bytes in `before` */
};

static int page_collect(struct page *page, int dir, const char *path, const char *before,
			size_t inside);

/* Adds the object or the folder that a directory entry stands for to the page. */
static int page_add_name(void *user, const struct dirent *entry)
{
	const struct collecting *c = user;
	char text[GW_KEY_MAX + 512], inner[GW_PATH_MAX];
	int type = type_of(c->dir, entry), ret;
	enum gw_name_kind kind;
	size_t part_len = 0;

	if (type < 0)
		return type;
	if ((type != DT_DIR && type != DT_REG) || c->inside + 256 > GW_KEY_MAX + 256)
		return 0;
	memcpy(text, c->before, c->inside);
	kind = gw_name_parse(entry->d_name, c->before, c->inside, text + c->inside, &part_len);
	if (kind == GW_NAME_NONE || kind == GW_NAME_INTERN)
		return 0;
	if ((size_t)snprintf(inner, sizeof(inner), "%s%s", c->path, entry->d_name) >= sizeof(inner))
		return 0;
	part_len += c->inside;
	if (kind == GW_NAME_PIECE) {
		int piece;

		if (type != DT_DIR)
			return 0;
		piece = openat(c->dir, entry->d_name, GW_OPEN_DIR);
		if (piece < 0)
			return gw_is_gone(errno) ? 0 : -errno;
		snprintf(inner, sizeof(inner), "%s%s/", c->path, entry->d_name);
		ret = page_collect(c->page, piece, inner, text, part_len);
		close(piece);
		return ret;
	}
	ret = page_add(c->page, text, part_len, inner, type == DT_REG ? ENTRY_FILE : ENTRY_SELF);
	if (ret || type == DT_REG)
		return ret;
	text[part_len] = '/';
	return page_add(c->page, text, part_len + 1, inner, ENTRY_FOLDER);
}

static int page_collect(struct page *page, int dir, const char *path, const char *before,
			size_t inside)
{
	struct collecting c = {page, dir, path, before, inside};
	const char *failed;
	int ret = pst_dir_each(dir, page_add_name, &c, &failed);

	return ret == -ENOENT && failed ? 0 : ret;
}

/* Returns 1 if a path leads to a file or a symbolic link, 0 if not, or a negative errno. */
static int is_file(int dir, const char *path)
{
	struct stat st;

	if (fstatat(dir, path, &st, AT_SYMLINK_NOFOLLOW))
		return gw_is_gone(errno) ? 0 : -errno;
	return S_ISREG(st.st_mode) || S_ISLNK(st.st_mode);
}

/* Writes the path of a folder's file %self, which is the object whose key is the folder's name.
 * Returns 1 if there is such an object, 0 if not, or a negative errno. */
static int has_self(const struct gw_walk *walk, int dir, const char *path, char self[GW_PATH_MAX])
{
	int ret;

	snprintf(self, GW_PATH_MAX, "%s/%s", path, GW_SELF);
	ret = is_file(dir, self);
	if (ret)
		return ret;
	snprintf(self, GW_PATH_MAX, "%s/%s", path, GW_MOVING);
	ret = is_file(dir, self);
	if (ret > 0) {
		int inner = gw_open_beneath(dir, path, O_RDONLY | O_DIRECTORY);

		if (inner < 0)
			return gw_is_gone(-inner) ? 0 : inner;
		ret = gw_folder_settle(inner, walk->store->tmp);
		close(inner);
	}
	/* Look for %self again: gw_folder_settle() or another gateway may have made it since the
	 * first look. */
	snprintf(self, GW_PATH_MAX, "%s/%s", path, GW_SELF);
	return ret < 0 ? ret : is_file(dir, self);
}

/* Calls object() for the object whose key is the folder's name, if there is one. This function is
 * not inlined, because otherwise each level of a deep tree would have its path buffer on the
 * stack. */
__attribute__((noinline)) static int walk_self(struct gw_walk *walk, int dir, const char *key,
					       size_t len, const char *path)
{
	char self[GW_PATH_MAX];

	int ret = has_self(walk, dir, path, self);

	return ret > 0 ? walk->object(walk->user, key, len, dir, self) : ret;
}

static int walk_folder(struct gw_walk *walk, int dir, char *key, size_t key_len);

static int walk_entry(struct gw_walk *walk, int dir, char *key, size_t key_len,
		      const struct entry *entry)
{
	size_t len = key_len + entry->len;
	int inner, ret;

	memcpy(key + key_len, entry->text, entry->len);
	/* object() may have set `skip` since the page was collected, so check again. */
	if (!is_wanted(walk, key, len, entry->kind == ENTRY_FOLDER))
		return 0;
	if (entry->kind == ENTRY_FILE)
		return walk->object(walk->user, key, len, dir, entry->path);
	if (entry->kind == ENTRY_SELF)
		return walk_self(walk, dir, key, len, entry->path);
	inner = gw_open_beneath(dir, entry->path, O_RDONLY | O_DIRECTORY);
	if (inner < 0)
		return gw_is_gone(-inner) ? 0 : inner;
	ret = walk_folder(walk, inner, key, len);
	close(inner);
	return ret;
}

/* Walks through a folder. `key` has the bytes that all its keys begin with, and room for a key. */
static int walk_folder(struct gw_walk *walk, int dir, char *key, size_t key_len)
{
	struct entry last = {0};
	bool more = true;
	int ret = 0;

	while (!ret && more) {
		struct page page = {.walk = walk,
				    .key = key,
				    .key_len = key_len,
				    .after = last.text ? &last : NULL};

		if (!is_wanted(walk, key, key_len, true))
			break;
		page.entries = malloc(2 * PAGE * sizeof(*page.entries));
		ret = page.entries ? page_collect(&page, dir, "", "", 0) : -ENOMEM;
		if (!ret)
			page_shrink(&page);
		for (unsigned i = 0; !ret && i < page.count; i++)
			ret = walk_entry(walk, dir, key, key_len, &page.entries[i]);
		more = page.more;
		if (page.count) {
			entry_free(&last);
			last = page.entries[--page.count];
		}
		while (page.count)
			entry_free(&page.entries[--page.count]);
		free(page.entries);
	}
	entry_free(&last);
	return ret;
}

int gw_walk(struct gw_walk *walk, int bucket)
{
	char path[GW_PATH_MAX], key[GW_KEY_MAX + 1024];
	size_t folder = walk->prefix_len;
	int dir, ret;

	if (walk->prefix_len > GW_KEY_MAX)
		return 0;
	while (folder && walk->prefix[folder - 1] != '/')
		folder--;
	if (!folder)
		return walk_folder(walk, bucket, key, 0);
	/* If the only slash is the prefix's first byte, the component before it is empty, and its
	 * folder has the name %e. */
	ret = folder == 1 ? snprintf(path, sizeof(path), "%%e")
			  : gw_keypath(walk->prefix, folder - 1, path);
	if (ret < 0)
		return 0;
	dir = gw_open_beneath(bucket, path, O_RDONLY | O_DIRECTORY);
	if (dir < 0)
		return gw_is_gone(-dir) ? 0 : dir;
	memcpy(key, walk->prefix, folder);
	ret = walk_folder(walk, dir, key, folder);
	close(dir);
	return ret;
}
