/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the parser of cufile.json. The fuzzer's input is the content of the file. libFuzzer runs
 * this program; tests/fuzz/replay.c runs it with each file of tests/shim/corpus. It is a failure
 * if the parser reads past the input, sets a parameter outside of its limits, or stores a string
 * without a final NUL.
 */
#include <stdlib.h>
#include <string.h>

#include "config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct shim_config *config = malloc(sizeof(*config));
	/* Copies the input to an allocation of exactly its length. So a sanitizer detects a read
	 * past the end. */
	char *text = malloc(len ? len : 1);

	if (!config || !text)
		abort();
	if (len)
		memcpy(text, data, len);
	shim_config_defaults(config);
	shim_config_text(config, text, len);
	for (int i = 0; i < CUF_SIZE_PARAMS; i++) {
		size_t min, max;

		shim_config_limits((enum cuf_size_param)i, &min, &max);
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
