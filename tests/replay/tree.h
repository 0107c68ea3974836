/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Creates machines for tests in an empty folder. A test can write files of /sys and /proc
 * there, add machines of synth.py, and unpack the captures of tests/replay. The tests of topo
 * and of the block stack include this file, and so do fuzz targets. Test programs must run in
 * the root of the tree. The functions must never write outside of their own folder below
 * TMPDIR.
 */
#ifndef PENSTOCK_TREE_H
#define PENSTOCK_TREE_H

#include <errno.h>
#include <ftw.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

struct tree {
	char root[512];
};

static inline void tree_die(const char *what)
{
	fprintf(stderr, "tree: %s: %s\n", what, strerror(errno));
	abort();
}

static inline void tree_open(struct tree *tree)
{
	const char *tmp = getenv("TMPDIR");

	snprintf(tree->root, sizeof(tree->root), "%s/tree-XXXXXX", tmp && tmp[0] ? tmp : "/tmp");
	if (!mkdtemp(tree->root))
		tree_die(tree->root);
}

static inline int tree_unlink(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

static inline void tree_close(struct tree *tree)
{
	nftw(tree->root, tree_unlink, 32, FTW_DEPTH | FTW_PHYS);
}

/* Sets `whole` to the full path of a file, creates the folders above that file, and removes an
 * existing file of that name. */
static inline void tree_path(const struct tree *tree, char *whole, size_t len, const char *path)
{
	char *slash;

	if ((size_t)snprintf(whole, len, "%s/%s", tree->root, path) >= len) {
		errno = ENAMETOOLONG;
		tree_die(path);
	}
	for (slash = whole + strlen(tree->root) + 1; (slash = strchr(slash, '/')); slash++) {
		*slash = '\0';
		if (mkdir(whole, 0755) < 0 && errno != EEXIST)
			tree_die(whole);
		*slash = '/';
	}
	(void)remove(whole); /* usually the file does not exist */
}

static inline void tree_bytes(const struct tree *tree, const char *path, const void *data,
			      size_t len)
{
	char whole[2048];
	FILE *f;

	tree_path(tree, whole, sizeof(whole), path);
	f = fopen(whole, "wb");
	if (!f || fwrite(data, 1, len, f) != len || fclose(f))
		tree_die(whole);
}

static inline void tree_text(const struct tree *tree, const char *path, const char *text)
{
	tree_bytes(tree, path, text, strlen(text));
}

static inline void tree_folder(const struct tree *tree, const char *path)
{
	char whole[2048];

	tree_path(tree, whole, sizeof(whole), path);
	if (mkdir(whole, 0755) < 0 && errno != EEXIST)
		tree_die(whole);
}

static inline void tree_link(const struct tree *tree, const char *path, const char *target)
{
	char whole[2048];

	tree_path(tree, whole, sizeof(whole), path);
	if (symlink(target, whole) < 0)
		tree_die(whole);
}

static inline void tree_remove(const struct tree *tree, const char *path)
{
	char whole[2048];

	tree_path(tree, whole, sizeof(whole), path);
	nftw(whole, tree_unlink, 32, FTW_DEPTH | FTW_PHYS);
}

/*
 * Adds a disk: its folder below /sys/devices and the links that point to it. `dev` is a number
 * such as "8:0", or NULL for a hidden disk. The last component of `path` is the name of the
 * disk.
 */
static inline void tree_disk(const struct tree *tree, const char *path, const char *dev)
{
	const char *name = strrchr(path, '/') + 1;
	char at[1024], to[1024];

	snprintf(at, sizeof(at), "sys/devices/%s/size", path);
	tree_text(tree, at, "2048\n");
	snprintf(to, sizeof(to), "../../devices/%s", path);
	snprintf(at, sizeof(at), "sys/class/block/%s", name);
	tree_link(tree, at, to);
	if (!dev)
		return;
	snprintf(at, sizeof(at), "sys/dev/block/%s", dev);
	tree_link(tree, at, to);
	snprintf(at, sizeof(at), "sys/devices/%s/dev", path);
	tree_text(tree, at, dev);
}

/* Runs a command; aborts the test if the command fails. */
__attribute__((format(printf, 1, 2))) static inline void tree_run(const char *fmt, ...)
{
	char command[4096];
	va_list args;

	va_start(args, fmt);
	vsnprintf(command, sizeof(command), fmt, args);
	va_end(args);
	errno = 0;
	if (system(command) != 0)
		tree_die(command);
}

/* Writes a machine of synth.py to ROOT/NAME. The name "all" writes every machine. */
static inline void tree_synth(const struct tree *tree, const char *name)
{
	tree_run("tests/replay/synth.py '%s' '%s'", name, tree->root);
}

/* Unpacks a capture of tests/replay to ROOT/NAME. */
static inline void tree_capture(const struct tree *tree, const char *name)
{
	tree_run("mkdir '%s/%s' && tar xzf 'tests/replay/%s.tar.gz' -C '%s/%s'", tree->root, name,
		 name, tree->root, name);
}

#endif
