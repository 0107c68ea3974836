/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the parser of device-mapper tables. The input is parsed as the text of a table, as a
 * uuid, and as the binary answer of the ioctl DM_TABLE_STATUS. libFuzzer runs this target, or
 * replay.c does with its corpus. A failure is a read beyond the answer, or an unknown layer
 * kind.
 */
#include <stdlib.h>
#include <string.h>

#include "storage/dmtable.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

static void check_table(const struct pst_dm *dm)
{
	if ((unsigned)dm->kind >= PST_LAYER_KINDS || !memchr(dm->detail, '\0', sizeof(dm->detail)))
		abort();
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	char *text = malloc(len_bytes + 1);
	struct pst_dm dm;

	if (!text)
		return 0;
	memcpy(text, data, len_bytes);
	text[len_bytes] = '\0';
	if (!pst_dm_parse(text, &dm))
		check_table(&dm);
	pst_dm_by_uuid(text, &dm);
	check_table(&dm);
	if (!pst_dm_take_answer(data, len_bytes, &dm))
		check_table(&dm);
	free(text);
	return 0;
}
