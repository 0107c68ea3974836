/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes `penstock check` on a simulated machine. The input becomes a tree of files (file_tree.h).
 * The command then runs on that tree, with and without a file, for host memory, a GPU and a PCI
 * device. libFuzzer runs this target, or replay.c runs it on its own corpus and on that of the
 * target `machine`. Three results are failures: a line with "ok" about a fact that the command
 * could not read, a line without a sentence, and "direct" although a check failed.
 */
#include <errno.h>
#include <stdint.h>

#include "check.h"
#include "file_tree.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

static bool printable(const char *text)
{
	for (; *text; text++)
		if ((unsigned char)*text < ' ' && *text != '\n')
			return false;
	return true;
}

static void check_lines(const struct pst_check *check)
{
	bool failed = false;

	for (unsigned i = 0; i < check->line_count; i++) {
		const struct pst_check_line *line = &check->lines[i];

		if (!line->name || !line->seen[0] || !line->why || !printable(line->seen) ||
		    !printable(line->more) || !printable(line->script))
			abort();
		if ((line->state == PST_CHECK_OK) != !line->todo[0])
			abort();
		failed |= line->state != PST_CHECK_OK && line->need >= PST_NEED_DIRECT;
	}
	if (!check->verdict[0] || check->probed || !check->captured)
		abort();
	if (failed && check->works && check->known && check->reached == PENSTOCK_DIRECT)
		abort();
}

static void run_check(const char *root, const char *target, const char *device)
{
	struct pst_check_opts opts = {.root = root, .target = target, .device = device};
	struct pst_check *check;
	char why[PENSTOCK_TEXT_MAX] = "";
	int ret = pst_check_run(&opts, &check, why, sizeof(why));

	if (ret < 0) {
		if (!why[0])
			abort();
		return;
	}
	check_lines(check);
	pst_check_free(check);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	static const char *const targets[] = {NULL, "/", "/data/x", "/dev/nvme0n1", "s3://b/k"};
	static const char *const devices[] = {NULL, "host", "cuda:0", "peermem:0000:01:00.0"};
	char root[] = "/dev/shm/fuzz-check-XXXXXX";
	char *text = malloc(len_bytes + 1);

	if (!text || len_bytes > 1 << 16 || !mkdtemp(root)) {
		free(text);
		return 0;
	}
	memcpy(text, data, len_bytes);
	text[len_bytes] = '\0';
	file_tree_create(root, text, len_bytes);
	free(text);
	for (size_t i = 0; i < sizeof(targets) / sizeof(targets[0]); i++)
		for (size_t j = 0; j < sizeof(devices) / sizeof(devices[0]); j++)
			run_check(root, targets[i], devices[j]);
	nftw(root, remove_one, 32, FTW_DEPTH | FTW_PHYS);
	return 0;
}
