/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes a whole simulated machine. The input becomes a tree of files (file_tree.h). The
 * topology code reads and prints the machine. The block-stack code walks the machine's block
 * devices and decides whether transfers to them are direct. libFuzzer runs this target, or
 * replay.c does with its corpus. A failure is an endless walk, or the verdict "direct" for an
 * incomplete stack.
 */
#include "core/machine/topo_print.h"
#include "core/machine/topo_read.h"
#include "file_tree.h"
#include "storage/blockstack_verdict.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

static void check_verdict(const char *root, uint32_t minor, bool is_block)
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
	file_tree_create(root, text, len_bytes);
	free(text);
	f = fopen("/dev/null", "w");
	if (f && !pst_topo_open(root, &topo, NULL, 0)) {
		pst_topo_print(topo, f);
		pst_topo_print_json(topo, f);
		pst_topo_close(topo);
	}
	if (f)
		fclose(f);
	check_verdict(root, 0, true);
	check_verdict(root, 1, false);
	check_verdict(root, 2, true);
	nftw(root, remove_one, 32, FTW_DEPTH | FTW_PHYS);
	return 0;
}
