/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the parser of the lists of an S3 store. libFuzzer runs this target, or replay.c does with
 * its corpus. A failure is an object without a key, a key outside the text, or a read beyond the
 * text, which the address sanitizer reports.
 */
#include <stdlib.h>
#include <string.h>

#include "ckpt/listing.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

struct text {
	const char *at;
	size_t len;
};

static int check_object(void *user, const struct pst_listed *object)
{
	const struct text *t = user;

	if (!object->key || !*object->key || object->key < t->at ||
	    object->key + strlen(object->key) > t->at + t->len)
		abort();
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	char *text = malloc(len_bytes + 1);
	struct text t = {text, len_bytes};
	const char *next = NULL;

	if (!text)
		return 0;
	memcpy(text, data, len_bytes);
	text[len_bytes] = '\0';
	if (!pst_listing_parse(text, len_bytes, check_object, &t, &next) && next && !*next)
		abort();
	free(text);
	return 0;
}
