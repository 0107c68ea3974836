/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes cufile.json: the input as a file. Run by libFuzzer, or by tests/fuzz/replay.c
 * over tests/shim/corpus. What it must never find: a read past the input, a value
 * outside of its limits, a text without an end.
 */
#include <stdlib.h>
#include <string.h>

#include "shim.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct shim_config *config = malloc(sizeof(*config));
	char *text = malloc(len ? len : 1); /* an exact block, no byte more */

	if (!config || !text)
		abort();
	if (len)
		memcpy(text, data, len);
	shim_config_defaults(config);
	shim_config_text(config, text, len);
	for (int i = 0; i < CUF_SIZE_PARAMS; i++) {
		size_t min, max;

		cuFileGetParameterMinMaxValue(i, &min, &max);
		if (config->size[i] < min || config->size[i] > max)
			abort();
	}
	for (int i = 0; i < CUF_STRING_PARAMS; i++)
		if (!memchr(config->text[i], '\0', SHIM_TEXT))
			abort();
	if (config->posix.count < 0 || config->posix.count > SHIM_SLABS || config->gpu.count < 0 ||
	    config->gpu.count > SHIM_SLABS)
		abort();
	free(config);
	free(text);
	return 0;
}
