/* SPDX-License-Identifier: Apache-2.0 */
/* Implements ini.h. */
#include "s3/ini.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

static const char blanks[] = " \t\r\v\f";

/* Cuts the blanks off both ends of a text. */
static char *trimmed(char *text)
{
	char *end;

	text += strspn(text, blanks);
	end = text + strlen(text);
	while (end > text && strchr(blanks, end[-1]))
		end--;
	*end = '\0';
	return text;
}

/* Cuts off a comment at the end of a value. A comment begins with # or ;, at the start of the value
 * or after a blank. */
static void comment_cut(char *value)
{
	for (char *at = value; *at; at++)
		if ((*at == '#' || *at == ';') && (at == value || strchr(blanks, at[-1]))) {
			*at = '\0';
			return;
		}
}

static int ini_fail(const char *file, unsigned line, const char *what, char *why, size_t why_len)
{
	snprintf(why, why_len, "%s, line %u: %s", file, line, what);
	return -EINVAL;
}

/* Splits a line NAME = VALUE. Returns false if it has no equals sign or no name. */
static bool line_split(char *line, char **name, char **value)
{
	char *equals = strchr(line, '=');

	if (!equals)
		return false;
	*equals = '\0';
	*name = trimmed(line);
	for (char *at = *name; *at; at++)
		if (*at >= 'A' && *at <= 'Z')
			*at = (char)(*at - 'A' + 'a');
	comment_cut(equals + 1);
	*value = trimmed(equals + 1);
	return **name;
}

int pst_ini_read(char *bytes, const char *file, int (*section)(void *user, const char *name),
		 int (*put)(void *user, const struct pst_ini_setting *setting), void *user,
		 char *why, size_t why_len)
{
	struct pst_ini_setting setting = {.parent = ""};
	char *next = bytes + (strncmp(bytes, "\xef\xbb\xbf", 3) ? 0 : 3), *line, *name, *value;
	const char *above = ""; /* setting that later indented lines belong to */
	int rc = 0;

	for (unsigned number = 1; !rc && next; number++) {
		bool indented;

		line = next;
		next = strchr(line, '\n');
		if (next)
			*next++ = '\0';
		indented = *line && strchr(blanks, *line);
		line = trimmed(line);
		if (!*line || *line == '#' || *line == ';')
			continue;
		if (*line == '[') {
			char *end = strchr(line, ']');

			if (!end)
				return ini_fail(file, number, "add the missing bracket ]", why,
						why_len);
			*end = '\0';
			above = "";
			rc = section(user, trimmed(line + 1));
			continue;
		}
		if (indented && !*above)
			/* The line continues a value of several lines. No setting that the library
			 * uses has such a value, so ignore the line. */
			continue;
		if (!line_split(line, &name, &value))
			return ini_fail(file, number, "write NAME = VALUE", why, why_len);
		setting.parent = indented ? above : "";
		setting.name = name;
		setting.value = value;
		if (!indented)
			above = *value ? "" : name;
		rc = put(user, &setting);
	}
	return rc;
}
