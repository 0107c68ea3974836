/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the texts that lie beside a model's files: the index that says which tensor is
 * in which file, and config.json. Run by libFuzzer, or by replay.c over its corpus. What
 * it must never find: a path that leads out of the model's folder, a tensor twice, a row
 * whose file is not in the list, or numbers out of a config that cannot be read.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "weights/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

static char dir[200], text[256], part[256];

static void hold(bool truth)
{
	if (!truth)
		abort();
}

static void put(const char *path, const void *data, size_t len)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	hold(fd >= 0 && write(fd, data, len) == (ssize_t)len);
	close(fd);
}

static void tidy(void)
{
	unlink(text);
	unlink(part);
	rmdir(dir);
}

/* A folder with one part, that an index may name. */
static void make_folder(void)
{
	const char *tmp = getenv("TMPDIR");

	if (*dir)
		return;
	snprintf(dir, sizeof(dir), "%s/fuzz-model-XXXXXX", tmp ? tmp : "/tmp");
	hold(mkdtemp(dir));
	snprintf(text, sizeof(text), "%s/config.json", dir);
	snprintf(part, sizeof(part), "%s/p", dir);
	put(part, "", 0);
	atexit(tidy);
}

static void check_index(void)
{
	struct penstock_weights_opts opts = PENSTOCK_WEIGHTS_OPTS_INIT;
	struct pst_file_list files = {.home = NULL};

	if (pst_file_list_find(&files, text, &opts)) {
		hold(*penstock_errmsg());
		pst_file_list_free(&files);
		return;
	}
	hold(files.row_count > 0 && files.count > 0);
	for (size_t i = 0; i < files.row_count; i++) {
		hold(files.rows[i].at < files.count);
		hold(!i || strcmp(files.rows[i - 1].tensor, files.rows[i].tensor) < 0);
	}
	for (unsigned i = 0; i < files.count; i++)
		hold(!strncmp(files.paths[i], dir, strlen(dir)) && !strstr(files.paths[i], "/.."));
	pst_file_list_free(&files);
}

static void check_config(void)
{
	struct penstock_weights w = {.list = {.home = dir}, .lock = PTHREAD_MUTEX_INITIALIZER};

	pst_weights_read_config(&w);
	hold(w.config.read && (!w.config.heads || w.config.kv_heads));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	make_folder();
	put(text, data, len_bytes);
	check_index();
	check_config();
	return 0;
}
