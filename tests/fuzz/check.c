/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes `penstock check` on a captured machine: the input plants a tree (plant.h), then
 * every gate looks at it, with and without a file, for host memory, a GPU and a PCI
 * device. Run by libFuzzer, or by replay.c over its corpus and that of machine. What it
 * must never find: a gate that is open though it was not seen, a line without its
 * sentence, or something direct whose gates are not all open.
 */
#include <errno.h>
#include <stdint.h>

#include "check.h"
#include "plant.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

static bool printable(const char *text)
{
	for (; *text; text++)
		if ((unsigned char)*text < ' ' && *text != '\n')
			return false;
	return true;
}

static void hold(const struct pst_check *check)
{
	bool shut = false;

	for (unsigned i = 0; i < check->line_count; i++) {
		const struct pst_check_line *line = &check->lines[i];

		if (!line->name || !line->seen[0] || !line->why || !printable(line->seen) ||
		    !printable(line->more) || !printable(line->script))
			abort();
		if ((line->state == PST_CHECK_OK) != !line->todo[0])
			abort();
		shut |= line->state != PST_CHECK_OK && line->need >= PST_NEED_DIRECT;
	}
	if (!check->verdict[0] || check->probed || !check->captured)
		abort();
	if (shut && check->works && check->known && check->reached == PENSTOCK_DIRECT)
		abort();
}

static void look(const char *root, const char *target, const char *device)
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
	hold(check);
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
	plant(root, text, len_bytes);
	free(text);
	for (size_t i = 0; i < sizeof(targets) / sizeof(targets[0]); i++)
		for (size_t j = 0; j < sizeof(devices) / sizeof(devices[0]); j++)
			look(root, targets[i], devices[j]);
	nftw(root, remove_one, 32, FTW_DEPTH | FTW_PHYS);
	return 0;
}
