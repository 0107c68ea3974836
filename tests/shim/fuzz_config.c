/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the reader of cufile.json: the input is the file. libFuzzer runs it, or
 * tests/fuzz/replay.c over tests/shim/corpus. A read past the input, a parameter outside of its
 * limits, or a string without a NUL is a failure.
 */
#include <stdlib.h>
#include <string.h>

#include "config.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
	struct shim_config *config = malloc(sizeof(*config));
	/* Exactly as long as the input, so that a sanitizer sees an overrun. */
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
