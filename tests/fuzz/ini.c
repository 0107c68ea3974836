/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fuzzes the parser of the configuration files in ~/.aws. libFuzzer runs this target, or replay.c
 * does with its corpus. A failure is a setting without a name, a value with a line break or with
 * blanks at its ends, or a wrong return value.
 */
#include <errno.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "s3/ini.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes);

static void check_text(const char *text)
{
	static const char blanks[] = " \t\r\v\f\n";
	size_t len = strlen(text);

	if (strchr(text, '\n') ||
	    (len && (strchr(blanks, text[0]) || strchr(blanks, text[len - 1]))))
		abort();
}

static int section_seen(void *user, const char *name)
{
	(void)user;
	check_text(name);
	return 0;
}

static int setting_seen(void *user, const struct pst_ini_setting *setting)
{
	check_text(setting->parent);
	check_text(setting->name);
	check_text(setting->value);
	if (!*setting->name)
		abort();
	/* A setting whose name begins with "!" makes the callback end the parsing. */
	*(bool *)user = *setting->name == '!';
	return *(bool *)user ? -ECANCELED : 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len_bytes)
{
	char *text = malloc(len_bytes + 1), why[128] = "";
	bool ended = false;
	int rc;

	if (!text)
		return 0;
	memcpy(text, data, len_bytes);
	text[len_bytes] = '\0';
	rc = pst_ini_read(text, "file", section_seen, setting_seen, &ended, why, sizeof(why));
	if (rc != (ended ? -ECANCELED : *why ? -EINVAL : 0))
		abort();
	free(text);
	return 0;
}
