/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A JSON writer for flat and nested objects. Strings are escaped; bytes that are no
 * UTF-8 become U+FFFD, so that the output always parses. Numbers that JSON does not
 * have become null.
 */
#include <math.h>
#include <string.h>

#include "cli.h"

/* Length of the UTF-8 sequence at `s`, 0 if it is none (RFC 3629). */
static unsigned utf8(const unsigned char *s)
{
	unsigned n = s[0] < 0x80		   ? 1
		     : s[0] >= 0xc2 && s[0] < 0xe0 ? 2
		     : s[0] >= 0xe0 && s[0] < 0xf0 ? 3
		     : s[0] >= 0xf0 && s[0] < 0xf5 ? 4
						   : 0;

	for (unsigned i = 1; i < n; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	if ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] > 0x9f) ||
	    (s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] > 0x8f))
		return 0;
	return n;
}

static void string(FILE *f, const char *text)
{
	const unsigned char *s = (const unsigned char *)text;

	fputc('"', f);
	while (*s) {
		unsigned n = utf8(s);

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

static void key(struct json *j, const char *name)
{
	fputs(j->first ? "" : ", ", j->f);
	j->first = false;
	string(j->f, name);
	fputs(": ", j->f);
}

void json_open(struct json *j, FILE *f)
{
	j->f = f;
	j->first = true;
	fputc('{', f);
}

void json_close(struct json *j)
{
	fputs("}\n", j->f);
}

void json_text(struct json *j, const char *name, const char *value)
{
	key(j, name);
	if (value)
		string(j->f, value);
	else
		fputs("null", j->f);
}

void json_int(struct json *j, const char *name, int64_t value)
{
	key(j, name);
	fprintf(j->f, "%lld", (long long)value);
}

void json_real(struct json *j, const char *name, double value)
{
	key(j, name);
	if (isfinite(value))
		fprintf(j->f, "%.9g", value);
	else
		fputs("null", j->f);
}

void json_bool(struct json *j, const char *name, bool value)
{
	key(j, name);
	fputs(value ? "true" : "false", j->f);
}

void json_object(struct json *j, const char *name)
{
	key(j, name);
	fputc('{', j->f);
	j->first = true;
}

void json_end(struct json *j)
{
	fputc('}', j->f);
	j->first = false;
}
