/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the parser of sizes. libFuzzer runs this target, or replay.c does with its corpus. A
 * failure is a read beyond the text, an end outside the text, or a size above the maximum.
 */
#include <stdlib.h>
#include <string.h>

#include "common/size.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	char *text = malloc(len_bytes + 1);
	const char *end;
	uint64_t size;

	if (!text)
		return 0;
	memcpy(text, data, len_bytes);
	text[len_bytes] = '\0';
	end = pst_size_parse(text, &size);
	if (end && (end <= text || end > text + strlen(text) || size > INT64_MAX))
		abort();
	free(text);
	return 0;
}
