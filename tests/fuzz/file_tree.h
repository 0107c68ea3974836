/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Turns the input of a fuzz target into a tree of files. A line "=PATH" starts a file, which
 * contains the lines up to the next line that starts with "=" or "@". A line "@PATH TARGET"
 * creates a symbolic link. The fuzz targets that read a whole machine include this file. It
 * must never write outside its root.
 */
#ifndef PENSTOCK_FUZZ_FILE_TREE_H
#define PENSTOCK_FUZZ_FILE_TREE_H

#include <ftw.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

static int remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

/* Builds the path of a file below the root and creates the folders of that path. Returns false if
 * `path` is not allowed. */
static bool path_below_root(const char *root, const char *path, char *out, size_t len)
{
	char *slash;

	if (!path[0] || path[0] == '/' || strstr(path, "..") || strstr(path, "//") ||
	    path[strlen(path) - 1] == '/' || (size_t)snprintf(out, len, "%s/%s", root, path) >= len)
		return false;
	for (slash = out + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
		struct stat st;

		*slash = '\0';
		/* The folder must not be a link from the input, because such a link may lead
		 * anywhere. */
		if (mkdir(out, 0700) < 0 && (lstat(out, &st) < 0 || !S_ISDIR(st.st_mode)))
			return false;
		*slash = '/';
	}
	return true;
}

static FILE *start_entry(const char *root, char *line)
{
	char path[1024], *target;

	if (line[0] == '@') {
		target = strchr(line, ' ');
		if (!target)
			return NULL;
		*target = '\0';
		/* If a file or link of this name exists, the new link is left out. */
		if (path_below_root(root, line + 1, path, sizeof(path)) &&
		    symlink(target + 1, path) < 0)
			path[0] = '\0';
		return NULL;
	}
	if (!path_below_root(root, line + 1, path, sizeof(path)))
		return NULL;
	/* "x" makes fopen fail if the name exists, so that it does not write through a link from
	 * the input. */
	return fopen(path, "wbx");
}

static void file_tree_create(const char *root, char *text, size_t len)
{
	char *end = text + len, *next;
	FILE *f = NULL;

	for (; text < end; text = next) {
		next = memchr(text, '\n', (size_t)(end - text));
		next = next ? next + 1 : end;
		if (*text != '=' && *text != '@') {
			if (f)
				fwrite(text, 1, (size_t)(next - text), f);
			continue;
		}
		if (f)
			fclose(f);
		next[-1] = '\0';
		f = start_entry(root, text);
	}
	if (f)
		fclose(f);
}

#endif
