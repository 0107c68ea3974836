/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes a whole machine: the input plants a tree, then topo reads and prints it
 * and the block stack walks and judges it. A line "=PATH" begins a file, whose
 * content are the lines up to the next such; "@PATH TARGET" is a link. Run by
 * libFuzzer, or by replay.c over its corpus. What it must never find: a walk
 * without end, or a verdict "direct" of a stack that is not complete.
 */
#include <ftw.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/topo.h"
#include "storage/blockstack.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

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

static void judge(const char *root, uint32_t minor, bool is_block)
{
	struct pst_blockstack_in in = {
		.major = 259, .minor = minor, .is_block = is_block, .mount_id = -1};
	struct pst_blockstack stack;
	char text[256], why[256];

	(void)pst_blockstack_read(root, &in, &stack);
	pst_blockstack_text(&stack, text, sizeof(text));
	if (pst_blockstack_direct_ok(&stack, why, sizeof(why)) &&
	    (!stack.complete || !stack.drive_count || (!is_block && !stack.mounted)))
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	char root[] = "/dev/shm/fuzz-machine-XXXXXX";
	struct pst_topo *topo;
	char *text = malloc(len_bytes + 1);
	FILE *f;

	if (!text || len_bytes > 1 << 16 || !mkdtemp(root)) {
		free(text);
		return 0;
	}
	memcpy(text, data, len_bytes);
	text[len_bytes] = '\0';
	plant(root, text, len_bytes);
	free(text);
	f = fopen("/dev/null", "w");
	if (f && !pst_topo_open(root, &topo, NULL, 0)) {
		pst_topo_print(topo, f);
		pst_topo_print_json(topo, f);
		pst_topo_close(topo);
	}
	if (f)
		fclose(f);
	judge(root, 0, true);
	judge(root, 1, false);
	judge(root, 2, true);
	nftw(root, remove_one, 32, FTW_DEPTH | FTW_PHYS);
	return 0;
}
