/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the text files of a model: the index that maps tensors to files, and config.json.
 * libFuzzer runs this target, or replay.c does with its corpus. Failures are: a path outside the
 * model's folder, a tensor that is listed twice, a tensor whose file is not listed, or numbers
 * from an invalid config.json.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "weights/config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

static char dir[200], text[256], part[256];

static void require(bool truth)
{
	if (!truth)
		abort();
}

static void write_file(const char *path, const void *data, size_t len)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	require(fd >= 0 && write(fd, data, len) == (ssize_t)len);
	close(fd);
}

static void remove_folder(void)
{
	unlink(text);
	unlink(part);
	rmdir(dir);
}

/* Creates a folder with one file of tensors. An index in the fuzz input may name this file. */
static void make_folder(void)
{
	const char *tmp = getenv("TMPDIR");

	if (*dir)
		return;
	snprintf(dir, sizeof(dir), "%s/fuzz-model-XXXXXX", tmp ? tmp : "/tmp");
	require(mkdtemp(dir));
	snprintf(text, sizeof(text), "%s/config.json", dir);
	snprintf(part, sizeof(part), "%s/p", dir);
	write_file(part, "", 0);
	atexit(remove_folder);
}

static void check_index(void)
{
	struct penstock_weights_opts opts = PENSTOCK_WEIGHTS_OPTS_INIT;
	struct pst_file_list files = {.home = NULL};

	if (pst_file_list_find(&files, text, &opts)) {
		require(*penstock_errmsg());
		pst_file_list_free(&files);
		return;
	}
	require(files.row_count > 0 && files.count > 0);
	for (size_t i = 0; i < files.row_count; i++) {
		require(files.rows[i].at < files.count);
		require(!i || strcmp(files.rows[i - 1].tensor, files.rows[i].tensor) < 0);
	}
	for (unsigned i = 0; i < files.count; i++)
		require(!strncmp(files.paths[i], dir, strlen(dir)) &&
			!strstr(files.paths[i], "/.."));
	pst_file_list_free(&files);
}

static void check_config(void)
{
	struct penstock_weights w = {.list = {.home = dir}, .lock = PTHREAD_MUTEX_INITIALIZER};

	pst_weights_read_config(&w);
	require(w.config.read && (!w.config.heads || w.config.kv_heads));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	make_folder();
	write_file(text, data, len_bytes);
	check_index();
	check_config();
	return 0;
}
