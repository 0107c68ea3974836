/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Fills the output line of a gate (a condition of the direct path): its state, its finding, the
 * action to take and the shell commands. Called by the gates. The texts can contain names that a
 * device or a server chose, so control characters must never pass through unchanged.
 */
#include "line.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static void format_text(char *out, size_t len, const char *fmt, va_list args)
{
	vsnprintf(out, len, fmt, args);
	for (; *out; out++)
		if ((unsigned char)*out < ' ' || (unsigned char)*out == 0x7f)
			*out = '?';
}

#define FORMAT(out)                                         \
	do {                                                \
		va_list args;                               \
		va_start(args, fmt);                        \
		format_text((out), sizeof(out), fmt, args); \
		va_end(args);                               \
	} while (0)

void pst_line_ok(struct pst_check_line *line, const char *fmt, ...)
{
	FORMAT(line->seen);
	line->state = PST_CHECK_OK;
}

void pst_line_no(struct pst_check_line *line, const char *fmt, ...)
{
	FORMAT(line->seen);
	line->state = PST_CHECK_NO;
}

void pst_line_unknown(struct pst_check_line *line, const char *fmt, ...)
{
	FORMAT(line->seen);
	line->state = PST_CHECK_UNKNOWN;
}

void pst_line_todo(struct pst_check_line *line, const char *fmt, ...)
{
	FORMAT(line->todo);
}

/* Appends `add` and a newline to `text`, or appends nothing if `add` and the newline do not fit. */
static void append_line(char *text, size_t capacity, const char *add)
{
	size_t len = strlen(text), add_len = strlen(add);

	if (len + add_len + 2 > capacity)
		return;
	memcpy(text + len, add, add_len);
	memcpy(text + len + add_len, "\n", 2);
}

void pst_line_detail(struct pst_check_line *line, const char *fmt, ...)
{
	char one[PENSTOCK_TEXT_MAX];

	FORMAT(one);
	append_line(line->more, sizeof(line->more), one);
}

void pst_line_script(struct pst_check_line *line, const char *fmt, ...)
{
	char one[512];

	FORMAT(one);
	append_line(line->script, sizeof(line->script), one);
}

void pst_line_no_permission(struct pst_check_line *line, bool captured, const char *what)
{
	pst_line_unknown(line, "this user may not read %s", what);
	pst_line_todo(line,
		      captured ? "capture the machine as root" : "run penstock check as root");
}

bool pst_line_name_is_plain(const char *name)
{
	return name[0] && name[0] != '-' &&
	       !name[strspn(name, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
				  "0123456789_.:/-")];
}
