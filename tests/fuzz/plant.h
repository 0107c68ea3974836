/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How a fuzz target's input becomes a tree of files: a line "=PATH" begins a file, whose
 * content are the lines up to the next such; "@PATH TARGET" is a link. Included by those
 * that read a whole machine. It must never write outside its root.
 */
#ifndef PENSTOCK_FUZZ_PLANT_H
#define PENSTOCK_FUZZ_PLANT_H

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

/* Below the root only; what cannot be made is left out. */
static bool whole_path(const char *root, const char *path, char *out, size_t len)
{
	char *slash;

	if (!path[0] || path[0] == '/' || strstr(path, "..") || strstr(path, "//") ||
	    path[strlen(path) - 1] == '/' || (size_t)snprintf(out, len, "%s/%s", root, path) >= len)
		return false;
	for (slash = out + strlen(root) + 1; (slash = strchr(slash, '/')); slash++) {
		struct stat st;

		*slash = '\0';
		/* Not through a planted link: it may lead anywhere. */
		if (mkdir(out, 0700) < 0 && (lstat(out, &st) < 0 || !S_ISDIR(st.st_mode)))
			return false;
		*slash = '/';
	}
	return true;
}

static FILE *begin(const char *root, char *line)
{
	char path[1024], *target;

	if (line[0] == '@') {
		target = strchr(line, ' ');
		if (!target)
			return NULL;
		*target = '\0';
		/* A second link of that name is left out. */
		if (whole_path(root, line + 1, path, sizeof(path)) && symlink(target + 1, path) < 0)
			path[0] = '\0';
		return NULL;
	}
	if (!whole_path(root, line + 1, path, sizeof(path)))
		return NULL;
	/* Exclusive, so that a planted link is not written through. */
	return fopen(path, "wbx");
}

static void plant(const char *root, char *text, size_t len)
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
		f = begin(root, text);
	}
	if (f)
		fclose(f);
}

#endif
