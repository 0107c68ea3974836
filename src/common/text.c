/* SPDX-License-Identifier: Apache-2.0 */
/* Implements a text that grows, see text.h. */
#include "common/text.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void pst_text_put(struct pst_text *t, const char *bytes, size_t len)
{
	if (!t->failed && t->capacity - t->len < len + 1) {
		size_t capacity = t->capacity * 2 + len + 4096;
		char *more = realloc(t->at, capacity);

		t->failed = !more;
		t->at = more ? more : t->at;
		t->capacity = more ? capacity : t->capacity;
	}
	if (t->failed)
		return;
	memcpy(t->at + t->len, bytes, len);
	t->len += len;
	t->at[t->len] = '\0';
}

void pst_text_put_str(struct pst_text *t, const char *text)
{
	pst_text_put(t, text, strlen(text));
}

void pst_text_printf(struct pst_text *t, const char *fmt, ...)
{
	char line[1024];
	va_list args;
	int n;

	va_start(args, fmt);
	n = vsnprintf(line, sizeof(line), fmt, args);
	va_end(args);
	if (n < 0 || (size_t)n >= sizeof(line))
		t->failed = true;
	else
		pst_text_put(t, line, (size_t)n);
}

void pst_text_put_number(struct pst_text *t, uint64_t n)
{
	char digits[24];

	pst_text_put(t, digits,
		     (size_t)snprintf(digits, sizeof(digits), "%llu", (unsigned long long)n));
}

void pst_text_put_json(struct pst_text *t, const char *s)
{
	char escape[8];

	pst_text_put_str(t, "\"");
	for (; *s; s++) {
		unsigned char c = (unsigned char)*s;

		if (c == '"' || c == '\\')
			pst_text_put(t, escape,
				     (size_t)snprintf(escape, sizeof(escape), "\\%c", c));
		else if (c < 0x20)
			pst_text_put(t, escape,
				     (size_t)snprintf(escape, sizeof(escape), "\\u%04x", c));
		else
			pst_text_put(t, s, 1);
	}
	pst_text_put_str(t, "\"");
}
