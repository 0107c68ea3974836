/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Writes JSON objects, flat or nested. Used by the commands with --json. The output must always be
 * valid JSON: strings are escaped, bytes that are not UTF-8 become U+FFFD, and numbers that JSON
 * cannot express (NaN, infinity) become null.
 */
#include "json.h"

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "utf8.h"

static void write_string(FILE *f, const char *text)
{
	const unsigned char *s = (const unsigned char *)text;

	fputc('"', f);
	while (*s) {
		unsigned n = pst_utf8_length((const char *)s, SIZE_MAX);

		if (!n) {
			fputs("\xef\xbf\xbd", f);
			s++;
		} else if (*s == '"' || *s == '\\') {
			fprintf(f, "\\%c", *s++);
		} else if (*s < ' ') {
			fprintf(f, "\\u%04x", *s++);
		} else {
			fwrite(s, 1, n, f);
			s += n;
		}
	}
	fputc('"', f);
}

/* Writes the name of a member, or nothing if the name is NULL, as for a member of an array.
 * Writes a comma before it, unless the member is the first of its object or array. */
static void write_key(struct json *j, const char *name)
{
	fputs(j->first ? "" : ", ", j->f);
	j->first = false;
	if (!name)
		return;
	write_string(j->f, name);
	fputs(": ", j->f);
}

/* whether json_open() was called, so that main.c prints no second object after an error */
static bool begun;

void json_open(struct json *j, FILE *f)
{
	begun = true;
	j->f = f;
	j->first = true;
	fputc('{', f);
}

bool json_begun(void)
{
	return begun;
}

void json_close(struct json *j)
{
	fputs("}\n", j->f);
}

void json_text(struct json *j, const char *name, const char *value)
{
	write_key(j, name);
	if (value)
		write_string(j->f, value);
	else
		fputs("null", j->f);
}

void json_int(struct json *j, const char *name, int64_t value)
{
	write_key(j, name);
	fprintf(j->f, "%lld", (long long)value);
}

void json_real(struct json *j, const char *name, double value)
{
	write_key(j, name);
	if (isfinite(value))
		fprintf(j->f, "%.9g", value);
	else
		fputs("null", j->f);
}

void json_bool(struct json *j, const char *name, bool value)
{
	write_key(j, name);
	fputs(value ? "true" : "false", j->f);
}

void json_object(struct json *j, const char *name)
{
	write_key(j, name);
	fputc('{', j->f);
	j->first = true;
}

void json_end(struct json *j)
{
	fputc('}', j->f);
	j->first = false;
}

void json_array(struct json *j, const char *name)
{
	write_key(j, name);
	fputc('[', j->f);
	j->first = true;
}

void json_array_end(struct json *j)
{
	fputc(']', j->f);
	j->first = false;
}

void json_failure(struct json *j, int code, const char *message)
{
	json_int(j, "exit", code);
	json_text(j, "error", message);
}
