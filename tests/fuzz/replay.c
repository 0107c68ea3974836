/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The main function of a fuzz target that is built without libFuzzer. The command line names
 * files and folders. This function passes each of these files to the target once, in the order
 * of their names. So every input that once broke a parser, and is kept as such a file, is an
 * ordinary test. tests/run calls the program. It must never succeed without having replayed a
 * file.
 */
#include <dirent.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

/* Replays one file. The heap block of the input has exactly its length, so that a sanitizer detects
 * a read of one byte too many. */
static int replay_file(const char *name)
{
	struct stat st;
	uint8_t *data;
	size_t got;
	FILE *f = fopen(name, "rb");

	if (!f || fstat(fileno(f), &st) < 0) {
		perror(name);
		if (f)
			fclose(f);
		return -1;
	}
	data = malloc((size_t)st.st_size ? (size_t)st.st_size : 1);
	got = data ? fread(data, 1, (size_t)st.st_size, f) : 0;
	fclose(f);
	if (!data || got != (size_t)st.st_size) {
		fprintf(stderr, "%s: %zu of %zu bytes read\n", name, got, (size_t)st.st_size);
		free(data);
		return -1;
	}
	/* Prints the file's name before the input is parsed. If the parser crashes, the last
	 * line of the log names the input. */
	printf("%s %zu\n", name, got);
	fflush(stdout);
	LLVMFuzzerTestOneInput(data, got);
	free(data);
	return 1;
}

static int not_hidden(const struct dirent *e)
{
	return e->d_name[0] != '.';
}

/* Replays a folder. Returns the number of inputs, or -1. */
static int replay_dir(const char *dir)
{
	struct dirent **entries;
	char name[4096];
	int i, n, ret = 0;

	n = scandir(dir, &entries, not_hidden, alphasort);
	if (n < 0) {
		perror(dir);
		return -1;
	}
	for (i = 0; i < n; i++) {
		snprintf(name, sizeof(name), "%s/%s", dir, entries[i]->d_name);
		if (ret >= 0 && replay_file(name) < 0)
			ret = -1;
		else if (ret >= 0)
			ret++;
		free(entries[i]);
	}
	free(entries);
	return ret;
}

int main(int argc, char **argv)
{
	int i, n, count = 0;

	for (i = 1; i < argc; i++) {
		struct stat st;

		if (stat(argv[i], &st) < 0) {
			perror(argv[i]);
			return 1;
		}
		n = S_ISDIR(st.st_mode) ? replay_dir(argv[i]) : replay_file(argv[i]);
		if (n < 0)
			return 1;
		count += n;
	}
	printf("%d inputs replayed\n", count);
	return count ? 0 : 1;
}
